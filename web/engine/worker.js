// The engine's module worker: boots Pyodide, then answers the page's messages {id, op, args}.

import { loadPyodide } from "../python/pyodide.mjs";
import { openGpu } from "./gpu.js";
import * as store from "./store.js";

const MOUNT = "/models";
const files = new Map(); // path in Python -> File
const stops = new Map(); // message id -> AbortController of a download
let pyodide;
let python; // zllm.web.worker

async function boot() {
  const started = performance.now();
  const indexURL = new URL("../python/", import.meta.url).href;
  pyodide = await loadPyodide({ indexURL, packages: ["zllm"] });
  const heap = () => pyodide._module.HEAPU8;
  pyodide.registerJsModule("zllm_page", {
    openGpu: () => openGpu(heap, path => files.get(path)),
    heapBytes: () => heap().length,
  });
  python = pyodide.pyimport("zllm.web.worker");
  return { seconds: (performance.now() - started) / 1000 };
}

const booted = boot();
booted.catch(() => {}); // told to whoever asks

const say = (id, name, data) => postMessage({ id, event: name, data });

const OPS = {
  boot: () => booted,
  list: () => store.list(),
  estimate: () => store.estimate(),
  remove: (_, { model }) => store.remove(model),

  async download(id, { url, name }) {
    const controller = new AbortController();
    stops.set(id, controller);
    const onProgress = progress => say(id, "progress", progress);
    return store.download(url, { name, signal: controller.signal, onProgress }).finally(() => stops.delete(id));
  },

  /** source: {model: id in the store} or {files: [File]}. */
  async load(id, { source, options }) {
    const { name, files: opened } = source.files ? chosen(source.files)
      : await store.open(source.model, { onProgress: p => say(id, "progress", { ...p, stage: "verify" }) });
    await booted;
    await python.unload();
    const path = mount(name, opened);
    const progress = (loaded, total) => say(id, "progress", { loaded, total, stage: "load" });
    return JSON.parse(await python.load(path, JSON.stringify({ name, ...options }), progress));
  },

  async generate(id, { request }) {
    await booted;
    await python.generate(id, JSON.stringify(request), chunk => say(id, "chunk", JSON.parse(chunk)));
  },

  async tokens(id, { request }) { await booted; return python.count_tokens(JSON.stringify(request)); },
  async check(id) { await booted; await python.check(row => say(id, "row", JSON.parse(row))); },
  async trace() { await booted; return JSON.parse(await python.trace()); },
  async info() { await booted; return JSON.parse(await python.info()); },
  async unload() { await booted; await python.unload(); },
  async lose() { await booted; python.lose_device(); }, // for tests: as if the driver had failed

  /** End what message `target` began. */
  async stop(_, { target }) {
    stops.get(target)?.abort();
    if (python) python.cancel(target);
  },
};

function chosen(list) {
  const folder = list[0]?.webkitRelativePath?.split("/")[0];
  const opened = list.map(file => ({ path: file.name, file }));
  const single = opened.find(({ path }) => path.endsWith(".gguf")) ?? opened[0];
  return { name: folder || single?.path || "model", files: opened };
}

/** Files appear to Python below MOUNT, unread; returns the path of the model. */
function mount(name, opened) {
  const { FS } = pyodide;
  if (FS.analyzePath(MOUNT).exists) FS.unmount(MOUNT);
  else FS.mkdir(MOUNT);
  files.clear();
  FS.mount(FS.filesystems.WORKERFS, { blobs: opened.map(({ path, file }) => ({ name: path, data: file })) }, MOUNT);
  for (const { path, file } of opened) files.set(`${MOUNT}/${path}`, file);
  if (opened.some(({ path }) => path === "config.json")) return MOUNT;
  const names = opened.map(({ path }) => path).sort();
  return `${MOUNT}/${names.find(path => path.endsWith(".gguf")) ?? names[0] ?? name}`;
}

onmessage = async ({ data: { id, op, args } }) => {
  try {
    postMessage({ id, value: await OPS[op](id, args ?? {}) });
  } catch (error) {
    postMessage({ id, error: described(error) });
  }
};

/** Of Python's traceback only the last line is for people. */
function described(error) {
  if (error?.name === "AbortError") return { code: "stopped", message: "stopped" };
  const text = String(error?.message ?? error).trim();
  const python = error?.constructor?.name === "PythonError";
  const last = python ? text.split("\n").filter(line => /^\S+(Error|Lost|Interrupt|Exception)\b/.test(line)).pop() ?? text : text;
  const message = python ? last.replace(/^[\w.]+: /, "") : last;
  return { code: error?.code ?? (python ? /([\w]+)(?::|$)/.exec(last.split(":")[0].split(".").pop())?.[1] : "error"), message, detail: text };
}
