// Models: those kept here, those the site offers, files and folders of the visitor, downloads.

import { byId, bytes, describe, element, kept } from "./dom.js";

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
        if (target.files.length) this.openFiles([...target.files]);
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
    const rows = stored.map(model => this.storedRow(model));
    const sources = new Set(stored.map(model => model.source));
    const absent = this.offered.filter(({ url }) => !sources.has(new URL(url, location.href).href));
    rows.push(...absent.map(({ name, url, size }) => this.row(name, bytes(size), `Fetch ${name}`, () => this.fetch(url))));
    byId("models").replaceChildren(...rows);
    document.body.dataset.models = stored.length;
  }

  storedRow(model) {
    const { id, name, source, size, have, complete } = model;
    const row = complete
      ? this.row(name, bytes(size), `Open ${name}`, () => this.open({ model: id, name }))
      : this.row(name, `${Math.floor(100 * have / size)} %`, `Go on fetching ${name}`, () => this.fetch(source));
    row.toggleAttribute("aria-current", this.opened?.model === id && Boolean(this.page.engine.loaded));
    row.append(element("button", { class: "icon", "aria-label": `Delete ${name}`, title: "Delete from this browser", onclick: () => this.remove(model) }, "×"));
    return row;
  }

  row(name, note, label, onclick) {
    return element("li", {}, element("button", { class: "name", "aria-label": label, title: name, onclick }, name), element("small", {}, note));
  }

  async remove({ id, name }) {
    try {
      if (this.opened?.model === id && this.page.engine.loaded) {
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

  openFiles(files) {
    const folder = files[0].webkitRelativePath?.split("/")[0];
    return this.open({ files, name: folder || files.find(file => file.name.endsWith(".gguf"))?.name || files[0].name });
  }

  async open(source) {
    this.opened = source;
    const done = await this.moving(`Opening ${source.name}`, (signal, onProgress) => this.page.engine.load(
      source.model ?? source.files, { backend: this.settings.backend(), context: this.settings.context(), signal, onProgress }));
    if (done && source.model) kept.set("model", source.model);
    this.page.changed();
    this.refresh();
  }

  reopen() { if (this.opened && !this.transfer) this.open(this.opened); }

  /** Run `work` with a bar, a pause and an end; undefined if it was stopped or failed. */
  async moving(text, work) {
    if (this.transfer) return this.page.complain("something is being fetched or opened already: wait, or cancel it");
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
        const what = stage === "verify" ? "Checking the stored copy" : text;
        show(`${what}: ${bytes(loaded)} of ${bytes(total)}${pace.text(loaded, total)}`, loaded / total);
      });
    } catch (error) {
      if (error.code !== "stopped") this.page.complain(error);
      else if (this.dropped) await this.page.engine.models.remove(this.dropped).catch(failure => this.page.complain(failure));
      return undefined;
    } finally {
      byId("transfer").hidden = true;
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
      const files = await dropped(event.dataTransfer);
      if (files.length) this.openFiles(files);
    });
  }
}

/** Files of a drop, also those inside a dropped folder. */
async function dropped(transfer) {
  const entries = [...transfer.items].map(item => item.webkitGetAsEntry?.()).filter(Boolean);
  const files = [];
  for (const entry of entries) {
    if (entry.isFile) files.push(await new Promise((resolve, reject) => entry.file(resolve, reject)));
    else {
      const reader = entry.createReader();
      for (;;) {
        const more = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
        if (!more.length) break;
        for (const inner of more) if (inner.isFile) files.push(await new Promise((resolve, reject) => inner.file(resolve, reject)));
      }
    }
  }
  return files;
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
