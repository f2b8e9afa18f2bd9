// Models: those kept here, those the site offers, files and folders of the visitor, downloads.

import { byId, bytes, describe, element, keepingPlace, kept, replaceRows } from "./dom.js";
import { dropped, modelsOf, picked } from "./files.js";

const A_MODEL = "a model is a .gguf file, or a folder with config.json and .safetensors files";
const BUSY = "something is being fetched or opened already: wait, or cancel it";

export class Models {
  constructor(page, settings) {
    Object.assign(this, { page, settings });
    this.opened = null; // {model: id} or {files}, to be opened again on another backend
    this.transfer = null; // AbortController of what is on its way
    this.offered = []; // by the site: models.json
    byId("fetch-form").addEventListener("submit", event => { event.preventDefault(); this.fetch(byId("address").value); });
    byId("pick-file").addEventListener("click", () => byId("file-input").click());
    byId("pick-folder").addEventListener("click", () => byId("folder-input").click());
    for (const id of ["file-input", "folder-input"]) {
      byId(id).addEventListener("change", ({ target }) => {
        this.openFiles(picked(target.files));
        target.value = "";
      });
    }
    byId("pause").addEventListener("click", () => this.transfer?.abort());
    byId("cancel").addEventListener("click", () => this.cancel());
    this.watchDrops();
    fetch("models.json").then(answer => (answer.ok ? answer.json() : [])).then(list => { this.offered = list; this.refresh(); }, () => {});
  }

  nameOf(info) { return (this.opened?.name ?? info.model).split("/").pop(); }

  async refresh() {
    let stored = [];
    try {
      stored = await this.page.engine.models.list();
      const { quota, usage } = await this.page.engine.models.estimate();
      byId("storage").textContent = quota ? `${bytes(usage)} used of the ${bytes(quota)} that this browser grants` : "";
    } catch (error) {
      byId("storage").textContent = `This browser keeps no models: ${describe(error)}`;
    }
    const sources = new Set(stored.map(model => model.source));
    const absent = this.offered.filter(({ url }) => !sources.has(new URL(url, location.href).href));
    const opened = this.page.engine.loaded && this.opened?.model;
    const state = JSON.stringify([stored, absent, opened]);
    if (state === this.shown) return; // a row that is being clicked must stay
    this.shown = state;
    const rows = stored.map(model => this.storedRow(model));
    rows.push(...absent.map(({ name, url, size }) => this.row(name, `${bytes(size)}, not fetched yet`, `Fetch ${name}`, () => this.fetch(url))));
    replaceRows(byId("models"), rows, byId("address"));
    // For a visitor without an open model: the nearest way to one.
    const [whole] = [...stored.filter(({ id, complete }) => complete && id === kept.get("model", null)), ...stored.filter(({ complete }) => complete)];
    const [offer] = absent;
    this.nearest = whole ? { text: `Open ${whole.name}`, run: () => this.open({ model: whole.id, name: whole.name }) }
      : offer ? { text: `Fetch ${offer.name} (${bytes(offer.size)})`, run: () => this.fetch(offer.url) } : null;
    this.page.listed();
    document.body.dataset.models = stored.length;
  }

  storedRow(model) {
    const { id, name, source, size, have, complete } = model;
    const row = complete
      ? this.row(name, bytes(size), `Open ${name}`, () => this.open({ model: id, name }))
      : this.row(name, `${Math.floor(100 * have / size)} % of ${bytes(size)}: go on`, `Go on fetching ${name}`, () => this.fetch(source));
    row.toggleAttribute("aria-current", this.opened?.model === id && Boolean(this.page.engine.loaded));
    row.append(element("button", { class: "icon", "aria-label": `Delete ${name}`, title: "Delete from this browser", onclick: () => this.remove(model) }, "×"));
    return row;
  }

  row(name, note, label, onclick) {
    return element("li", {}, element("button", { class: "name", "aria-label": label, title: name, onclick }, name, element("small", {}, note)));
  }

  async remove({ id, name }) {
    try {
      if (this.opened?.model === id && this.page.engine.loaded) {
        this.page.greeted = null;
        await this.page.engine.unload();
        this.page.changed();
      }
      await this.page.engine.models.remove(id);
    } catch (error) {
      this.page.complain(error);
    }
    this.refresh();
  }

  /** Fetched (or gone on with), then opened. */
  async fetch(url) {
    await this.moving(`Fetching ${url.split("/").pop()}`, async (signal, onProgress) => {
      navigator.storage?.persist?.();
      const { id, name } = await this.page.engine.models.download(url, { signal, onProgress });
      byId("address").value = "";
      this.refresh();
      return { model: id, name };
    }).then(fetched => fetched && this.open(fetched));
  }

  /** found: [{path, file}]. Of several models the visitor chooses one. */
  openFiles(found) {
    const models = modelsOf(found);
    if (models.length > 1) {
      this.page.complain(null);
      return this.page.notice(`${models.length} models are in there: which one?`,
        ...models.map(model => ({ text: model.name, run: () => this.open(model) })));
    }
    if (!found.length) return this.page.complain(`nothing is in there: ${A_MODEL}`);
    const files = found.map(({ file }) => file);
    if (!models.length && files.length > 1 && !files.some(({ name }) => name === "config.json" || name.endsWith(".safetensors"))) {
      return this.page.complain(`${found[0].path.split("/")[0]} holds no model: ${A_MODEL}`);
    }
    return this.open(models[0] ?? { files, name: files[0].name });
  }

  async open(source) {
    if (this.transfer) return this.page.complain(BUSY);
    this.page.stop();
    this.page.notice(null);
    this.page.greeted = null;
    const before = this.opened;
    this.opened = source;
    const done = await this.moving(`Opening ${source.name}`, (signal, onProgress) => this.page.engine.load(
      source.model ?? source.files, { backend: this.settings.backend(), signal, onProgress }),
      error => this.wayOn(source, error));
    if (done && source.model) kept.set("model", source.model);
    if (done) this.page.toChat();
    if (!done && this.page.engine.loaded) this.opened = before;
    this.page.changed();
    this.refresh();
    if (this.page.engine.loaded) await this.page.greet({ again: !done });
  }

  /** What to do about a model that could not be opened. */
  wayOn({ model, files, name }, { code }) {
    if (code === "damaged") return { text: "Fetch it again", run: () => this.fetchAgain(model) };
    if (code === "incomplete") return { text: "Go on fetching", run: () => this.fetchAgain(model, { keep: true }) };
    if (files?.length === 1 && /^config\.json$|\.safetensors$/.test(name)) return { text: "Pick its folder…", run: () => byId("pick-folder").click() };
    if (code === "BackendError" && this.settings.backend() === "webgpu") return { text: "Run it on the CPU", run: () => this.page.onNumPy() };
    return null;
  }

  async fetchAgain(id, { keep = false } = {}) {
    const model = (await this.page.engine.models.list()).find(other => other.id === id);
    if (!model) return this.refresh();
    if (!keep) await this.remove(model);
    await this.fetch(model.source);
  }

  reopen() { if (this.opened && !this.transfer) this.open(this.opened); }

  /** Run `work` with a bar, a pause and an end; undefined if it was stopped or failed. */
  async moving(text, work, wayOn = () => null) {
    if (this.transfer) return this.page.complain(BUSY);
    this.page.complain(null);
    this.transfer = new AbortController();
    const pace = new Pace();
    byId("transfer").hidden = false;
    byId("pause").hidden = !text.startsWith("Fetching");
    const show = (words, part) => {
      byId("transfer-text").textContent = words;
      if (part === null) byId("transfer-bar").removeAttribute("value"); else byId("transfer-bar").value = part;
    };
    show(`${text}…`, null);
    try {
      return await work(this.transfer.signal, ({ id, loaded, total, stage }) => {
        this.arriving = id; // of a download
        if (stage === "check") return show("Checking this device's kernels (once)…", null);
        const what = stage === "verify" ? "Checking the stored copy" : text;
        show(`${what}: ${bytes(loaded)} of ${bytes(total)}${pace.text(loaded, total)}`, loaded / total);
      });
    } catch (error) {
      if (error.code !== "stopped") this.page.complain(error, wayOn(error));
      else if (this.dropped) await this.page.engine.models.remove(this.dropped).catch(failure => this.page.complain(failure));
      return undefined;
    } finally {
      keepingPlace(() => { byId("transfer").hidden = true; }, () => byId("address"));
      this.transfer = this.arriving = this.dropped = null;
      this.refresh();
    }
  }

  /** As pause, but what came is not kept. */
  cancel() {
    this.dropped = this.arriving;
    this.transfer?.abort();
  }

  watchDrops() {
    const zone = byId("drop");
    const set = shown => { zone.hidden = !shown; };
    addEventListener("dragenter", event => { if (event.dataTransfer?.types.includes("Files")) set(true); });
    addEventListener("dragover", event => event.preventDefault());
    zone.addEventListener("dragleave", () => set(false));
    addEventListener("drop", async event => {
      event.preventDefault();
      set(false);
      if (event.dataTransfer.types.includes("Files")) this.openFiles(await dropped(event.dataTransfer));
    });
  }
}

/** Speed and time left, over the last seconds. */
class Pace {
  constructor() { this.seen = []; }

  text(loaded, total) {
    const now = performance.now();
    this.seen.push([now, loaded]);
    while (this.seen.length > 2 && now - this.seen[0][0] > 5000) this.seen.shift();
    const [then, before] = this.seen[0];
    const rate = (loaded - before) / ((now - then) / 1000);
    if (!(rate > 0) || loaded >= total) return "";
    const left = (total - loaded) / rate;
    return `, ${bytes(rate)}/s, ${left < 90 ? `${Math.ceil(left)} s` : `${Math.ceil(left / 60)} min`} left`;
  }
}
