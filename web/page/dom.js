// Small helpers over the document.

export const byId = id => document.getElementById(id);

/** <tag …attributes>children</tag>; children are nodes or texts, never HTML. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

export function bytes(count) {
  if (count >= 1e9) return `${(count / 1e9).toFixed(2)} GB`;
  if (count >= 1e6) return `${(count / 1e6).toFixed(count < 1e7 ? 1 : 0)} MB`;
  return `${Math.ceil(count / 1e3)} kB`;
}

export function describe(error) {
  const text = String(error?.message ?? error);
  if (!text) return "Something went wrong";
  const file = /^[^:]+\.\w+: /.test(text); // whose name begins the sentence
  return file ? text : text[0].toUpperCase() + text.slice(1);
}

/** A button that opens and closes a side panel on narrow screens. */
export function drawer(buttonId, panelId) {
  const button = byId(buttonId), panel = byId(panelId);
  const set = open => {
    panel.classList.toggle("open", open);
    button.setAttribute("aria-expanded", open);
  };
  button.addEventListener("click", () => set(!panel.classList.contains("open")));
  document.addEventListener("keydown", event => { if (event.key === "Escape") set(false); });
  document.querySelector("main").addEventListener("click", () => set(false));
}

/** A value kept in this browser. Where it cannot be kept (false), the page goes on without. */
export const kept = {
  get(name, otherwise) {
    try { return JSON.parse(localStorage.getItem(`zllm.${name}`)) ?? otherwise; } catch { return otherwise; }
  },
  set(name, value) {
    try { localStorage.setItem(`zllm.${name}`, JSON.stringify(value)); return true; } catch { return false; } // private mode, or full
  },
};
