// The settings panel: sampling, backend, device check, and the picture of a token's time.

import { byId, element, kept } from "./dom.js";

// name, label, least, most, step, usual
const SAMPLING = [
  ["temperature", "Temperature", 0, 2, 0.1, 0.7],
  ["top_p", "Top p", 0, 1, 0.05, 0.95],
  ["top_k", "Top k (0: all)", 0, 500, 1, 40],
  ["min_p", "Min p", 0, 1, 0.01, 0],
  ["repetition_penalty", "Repetition penalty", 1, 2, 0.05, 1],
  ["max_tokens", "Most tokens", 1, 32768, 1, 512],
  ["seed", "Seed (empty: any)", 0, 2 ** 31 - 1, 1, ""],
];
const BACKENDS = [["auto", "The faster one"], ["webgpu", "GPU (WebGPU)"], ["oracle", "CPU (NumPy)"]];

export class Settings {
  constructor(page) {
    this.page = page;
    this.onBackend = () => {};
    this.values = kept.get("settings", {});
    const system = byId("system");
    system.value = this.values.system ?? "";
    system.addEventListener("input", () => this.keep("system", system.value));
    byId("sampling").replaceChildren(...SAMPLING.flatMap(row => this.number(...row)));
    byId("backends").append(...BACKENDS.map(([value, label]) => this.radio(value, label)));
    byId("check").addEventListener("click", () => this.check());
  }

  /** As if the visitor had picked a backend. */
  choose(backend) {
    document.querySelector(`input[name=backend][value=${backend}]`).checked = true;
    this.keep("backend", backend);
    this.onBackend();
  }

  keep(name, value) {
    this.values[name] = value;
    kept.set("settings", this.values);
  }

  number(name, label, min, max, step, usual) {
    const id = `sampling-${name}`;
    const input = element("input", { id, type: "number", min, max, step, value: this.values[name] ?? usual });
    input.addEventListener("change", () => {
      if (input.value !== "" && !input.checkValidity()) input.value = Math.min(max, Math.max(min, Number(input.value) || usual));
      this.keep(name, input.value);
    });
    return [element("label", { for: id }, label), input];
  }

  radio(value, label) {
    const input = element("input", { type: "radio", name: "backend", value, checked: value === this.backend() });
    input.addEventListener("change", () => { this.keep("backend", value); this.onBackend(); });
    return element("label", {}, input, label);
  }

  backend() { return this.values.backend ?? "auto"; }
  system() { return byId("system").value.trim(); }

  sampling() {
    const chosen = {};
    for (const [name] of SAMPLING) {
      const { value } = byId(`sampling-${name}`);
      if (value !== "") chosen[name] = Number(value);
    }
    return chosen;
  }

  show(info) {
    const adapter = byId("adapter");
    if (!info) adapter.textContent = "";
    else if (info.backend === "webgpu") {
      const offers = info.features.length ? `, with ${info.features.join(" and ")}` : "";
      const why = info.why ? `; ${info.why}` : "";
      adapter.textContent = `${info.adapter}${info.software ? " (a software adapter: the CPU plays GPU)" : ""}${offers}${why}`;
    } else adapter.textContent = info.why ? `NumPy on the CPU: ${info.why}` : "NumPy on the CPU";
    byId("check").disabled = info?.backend !== "webgpu";
    byId("check-hint").hidden = info?.backend === "webgpu";
    if (info === this.shown) return;
    this.shown = info;
    byId("check-result").hidden = true;
    byId("picture").setAttribute("aria-label", "no answer yet");
    byId("picture").replaceChildren(element("p", { class: "hint" }, "Ask something first."));
  }

  async check() {
    if (this.checking) return this.checking.abort();
    const result = byId("check-result");
    const body = element("tbody");
    const summary = element("p", { role: "status" }, "Comparing each kernel with NumPy…");
    result.hidden = false;
    const head = element("tr", {}, element("th", { scope: "col" }, "Kernel"), element("th", { scope: "col" }, "Difference"));
    result.replaceChildren(summary, element("table", {}, element("thead", {}, head), body));
    const { signal } = this.checking = new AbortController();
    byId("check").textContent = "Stop the check";
    let right = 0, wrong = 0;
    try {
      await this.page.engine.check(({ name, right: fine, message }) => {
        if (fine) right++; else wrong++;
        body.append(element("tr", {}, element("td", {}, name), element("td", { class: fine ? "good" : "bad" }, message === "0e+00" ? "none" : message)));
      }, { signal });
      summary.textContent = signal.aborted ? `Stopped: ${right} kernels agree with NumPy, ${wrong} do not.`
        : wrong ? `${wrong} of ${right + wrong} kernels are wrong on this device and are not used.` : `All ${right} kernels agree with NumPy.`;
    } catch (error) {
      summary.textContent = "The check could not be finished.";
      this.page.complain(error);
    }
    this.checking = null;
    byId("check").textContent = "Check this device";
  }

  /** Once an answer is there: by kernels, where that must be measured apart. */
  async picture() {
    const { loaded } = this.page.engine;
    if (loaded?.backend === "webgpu" && loaded === this.measured) return;
    this.measured = loaded;
    try { this.draw(await this.page.engine.trace()); } catch { /* the device is gone: nothing to show */ }
  }

  /** Bars of {rows: [{name, ms}], total_ms}; those that are there are moved. */
  draw({ rows, total_ms }) {
    if (!rows.length) return;
    const where = byId("picture");
    const most = Math.max(...rows.map(({ ms }) => ms));
    const bars = where.querySelectorAll(".bar");
    const shown = rows.map(({ name, ms }, at) => {
      const bar = bars[at] ?? element("div", { class: "bar" }, element("span"), element("i"), element("span"));
      const [label, line, value] = bar.children;
      label.textContent = name;
      line.style.width = `${100 * ms / most}%`;
      value.textContent = `${ms.toFixed(ms < 10 ? 1 : 0)} ms`;
      return bar;
    });
    where.replaceChildren(...shown, element("p", { class: "hint" }, `${total_ms.toFixed(0)} ms a token`));
    where.setAttribute("aria-label", rows.map(({ name, ms }) => `${name} ${ms.toFixed(1)} milliseconds`).join(", "));
  }
}
