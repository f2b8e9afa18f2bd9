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

/** Run `change`. Who is at the keyboard and loses the place by it goes on at the element `otherwise()`. */
export function keepingPlace(change, otherwise) {
  const at = document.activeElement;
  const byKeyboard = at?.matches(":focus-visible");
  change();
  if (byKeyboard && (at.disabled || !at.checkVisibility({ visibilityProperty: true }))) otherwise()?.focus();
}

/** Other rows for `list`: the place in it is kept, or else that of the next row, or `otherwise`. */
export function replaceRows(list, rows, otherwise) {
  const at = document.activeElement;
  const row = [...list.children].findIndex(item => item.contains(at));
  const named = button => button.getAttribute("aria-label") ?? button.textContent;
  const same = () => [...list.querySelectorAll("button")].find(button => named(button) === named(at));
  const near = () => list.children[Math.min(row, rows.length - 1)]?.querySelector("button");
  keepingPlace(() => list.replaceChildren(...rows), () => (row < 0 ? null : same() ?? near() ?? otherwise));
}

/** A button that opens and closes a side panel on narrow screens; returns how to close it. */
export function drawer(buttonId, panelId) {
  const button = byId(buttonId), panel = byId(panelId);
  const set = open => keepingPlace(() => {
    panel.classList.toggle("open", open);
    button.setAttribute("aria-expanded", open);
  }, () => button);
  button.addEventListener("click", () => {
    set(!panel.classList.contains("open"));
    if (panel.classList.contains("open")) panel.focus();
  });
  document.addEventListener("keydown", event => {
    if (event.key !== "Escape" || !panel.classList.contains("open")) return;
    event.preventDefault();
    set(false);
  }, true);
  document.querySelector("main").addEventListener("click", () => set(false));
  return () => set(false);
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
