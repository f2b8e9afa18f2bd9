// The engine's module worker: boots Pyodide, then answers the page's messages {id, op, args}.

import { loadPyodide } from "../python/pyodide.mjs";
import { done, openGpu } from "./gpu.js";
import * as store from "./store.js";

const CACHE = "/cache"; // of Python, where it keeps what it found out about kernels
const VERDICTS = "kernels.json";
const MOUNT = "/models"; // each model that is opened gets a folder of its own there
const sources = new Map(); // path in Python -> Source
const stops = new Map(); // message id -> AbortController of what can be stopped
let mounted = null; // folder of the model at hand
let mounts = 0;
let pyodide;
let python; // zllm.web.worker

async function boot() {
  const started = performance.now();
  const indexURL = new URL("../python/", import.meta.url).href;
  const verdicts = store.readText(VERDICTS);
  pyodide = await loadPyodide({ indexURL, packages: ["zllm"], env: { HOME: CACHE, ZLLM_CACHE: CACHE } });
  pyodide.FS.mkdirTree(CACHE);
  if (await verdicts) pyodide.FS.writeFile(`${CACHE}/${VERDICTS}`, await verdicts);
  const heap = () => pyodide._module.HEAPU8;
  pyodide.registerJsModule("zllm_page", {
    openGpu: () => openGpu(heap, path => sources.get(path)),
    heapBytes: () => heap().length,
    keepVerdicts: text => store.writeText(VERDICTS, text),
    notice: text => postMessage({ id: 0, event: "notice", data: text }),
  });
  python = pyodide.pyimport("zllm.web.worker");
  return { seconds: (performance.now() - started) / 1000 };
}

const booted = boot();
booted.catch(() => {}); // told to whoever asks

/** Run `work` with a signal that the page's stop aborts. */
async function stoppable(id, work) {
  const controller = new AbortController();
  stops.set(id, controller);
  try {
    return await work(controller.signal);
  } finally {
    stops.delete(id);
  }
}

const say = (id, name, data) => postMessage({ id, event: name, data });

const OPS = {
  boot: () => booted,
  list: () => store.list(),
  estimate: () => store.estimate(),
  remove: (_, { model }) => store.remove(model),

  download: (id, { url, name }) => stoppable(id, signal =>
    store.download(url, { name, signal, onProgress: progress => say(id, "progress", progress) })),

  /** source: {model: id in the store} or {files: [File]}. What cannot be opened leaves the earlier model. */
  async load(id, { source, options }) {
    const { name, files: opened } = source.files ? chosen(source.files)
      : await store.open(source.model, { onProgress: p => say(id, "progress", { ...p, stage: "verify" }) });
    await booted;
    const folder = `${MOUNT}/${++mounts}`;
    const path = mount(folder, opened);
    const progress = (loaded, total, stage) => say(id, "progress", { loaded, total, stage });
    const close = await quickened(folder, opened);
    try {
      const info = JSON.parse(await python.load(path, JSON.stringify({ name, ...options }), progress));
      if (mounted) unmount(mounted);
      mounted = folder;
      setTimeout(() => python.prepare()); // once the page knows
      return info;
    } catch (error) {
      unmount(folder);
      throw error;
    } finally {
      close();
    }
  },

  generate: (id, { request, pictures }) => stoppable(id, async signal => {
    await booted;
    if (signal.aborted) return;
    signal.addEventListener("abort", () => python.cancel(id));
    const show = pictures ? seen => say(id, "picture", JSON.parse(seen)) : null;
    await stepped(python.steps(id, JSON.stringify(request), chunk => say(id, "chunk", chunk), show));
  }),

  check: id => stoppable(id, async signal => {
    await booted;
    signal.addEventListener("abort", () => python.cancel(id));
    await python.check(id, row => say(id, "row", JSON.parse(row)));
  }),

  async tokens(id, { request }) { await booted; return python.count_tokens(JSON.stringify(request)); },
  async trace() { await booted; return JSON.parse(await python.trace()); },
  async info() { await booted; return JSON.parse(await python.info()); },
  async loaded() { await booted; return JSON.parse(python.loaded()); },
  async unload() { await booted; await python.unload(); },
  async lose() { await booted; python.lose_device(); }, // for tests: as if the driver had failed

  /** End what message `target` began. */
  stop: (_, { target }) => stops.get(target)?.abort(),
};

/**
 * Run a coroutine of Python: `step` goes on to its next wait and returns what to wait for (the number of a
 * round, or a promise), or nothing to let messages in, or false at the end; it is told how long that took, or -1 of a
 * round that failed. As a task of asyncio it would open a message channel for every turn.
 */
async function stepped(step) {
  let waited = 0;
  try {
    for (let wait; (wait = step(waited)) !== false;) {
      const began = performance.now();
      let well = true;
      if (typeof wait === "number") well = await done(wait);
      else try { await (wait ?? turn()); } catch { /* Python asks what it waited for */ }
      waited = well ? performance.now() - began : -1;
      if (typeof wait === "object" && wait instanceof pyodide.ffi.PyProxy) wait.destroy();
    }
  } finally {
    step.destroy();
  }
}

const channel = new MessageChannel();
const turns = [];
channel.port1.onmessage = () => turns.shift()();

/** The next turn of the event loop. */
function turn() {
  channel.port2.postMessage(null);
  return new Promise(resolve => turns.push(resolve));
}

function chosen(list) {
  const folder = list[0]?.webkitRelativePath?.split("/")[0];
  const own = list.filter(file => !folder || file.webkitRelativePath.split("/").length === 2); // not in folders inside
  const opened = (own.length ? own : list).map(file => ({ path: file.name, file }));
  const single = opened.find(({ path }) => path.endsWith(".gguf")) ?? opened[0];
  return { name: folder || single?.path || "model", files: opened };
}

/** Bytes of a file, at once. */
class Source {
  static reader = new FileReaderSync();
  quick = null; // another way to read(into, at), while a model is loaded

  constructor(file) { this.file = file; }

  read(into, at) {
    if (this.quick) this.quick(into, at);
    else into.set(new Uint8Array(Source.reader.readAsArrayBuffer(this.file.slice(at, at + into.length))));
  }
}

/**
 * Let the files of a stored model be read quickly: from memory, or by a handle of OPFS, while which is open nobody can
 * delete the file. Returns how to end that.
 */
async function quickened(folder, opened) {
  const ends = [];
  for (const { path, handle, read } of opened) {
    const source = sources.get(`${folder}/${path}`);
    const access = !read && handle && await store.ask(handle, file => file.createSyncAccessHandle({ mode: "read-only" }))
      .catch(() => null); // another tab holds it
    source.quick = read ?? (access ? (into, at) => access.read(into, { at }) : null);
    ends.push(() => { source.quick = null; if (access) access.close(); });
  }
  return () => ends.forEach(end => end());
}

/** Files appear to Python below `folder`, unread; returns the path of the model. */
function mount(folder, opened) {
  const { FS } = pyodide;
  const names = opened.map(({ path }) => path).sort();
  FS.mkdirTree(folder);
  FS.mount(FS.filesystems.WORKERFS, { blobs: opened.map(({ path, file }) => ({ name: path, data: file })) }, folder);
  for (const { path, file } of opened) sources.set(`${folder}/${path}`, new Source(file));
  const gguf = names.find(path => path.endsWith(".gguf"));
  const tensors = names.some(path => path.endsWith(".safetensors"));
  if ((names.includes("config.json") && (tensors || !gguf)) || (names.length > 1 && !gguf)) return folder;
  return `${folder}/${gguf ?? names[0] ?? ""}`;
}

function unmount(folder) {
  pyodide.FS.unmount(folder);
  for (const path of sources.keys()) if (path.startsWith(`${folder}/`)) sources.delete(path);
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
  if (/fatally failed|fatal error/.test(text) || error instanceof WebAssembly.RuntimeError) {
    return { code: "fatal", message: "the engine failed, most likely for want of memory, and was started again: open the model again", detail: text };
  }
  const python = error?.constructor?.name === "PythonError";
  const last = python ? text.split("\n").filter(line => /^\S+(Error|Lost|Interrupt|Exception)\b/.test(line)).pop() ?? text : text;
  const message = (python ? last.replace(/^[\w.]+: /, "") : last)
    .replace(/\/models\/\d+\//g, "").replace(/\/models\/\d+\b/g, "the folder");
  return { code: error?.code ?? (python ? /([\w]+)(?::|$)/.exec(last.split(":")[0].split(".").pop())?.[1] : "error"), message, detail: text };
}
