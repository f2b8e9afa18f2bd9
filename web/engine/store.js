// Models kept in this browser (OPFS), and their downloads. Runs in the worker.
//
// models/<id>/record.json   {name, source, files: [{path, url, size, etag, hashes}], kept}
// kernels.json              which kernels were found right on which adapter (zllm/backend/verdicts.py)
// models/<id>/<path>        each file, from the start as large as it will be
//
// `hashes` are SHA-256 of each CHUNK of a file, written once the chunk is on disk and checked when
// the model is opened, but right after this worker fetched it whole.

const CHUNK = 4 << 20;
const IN_FLIGHT = 3;
const FOLDER_FILES = ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"];
const NEEDED = new Set(["config.json"]);
const RECORD_MS = 300; // between writes of a record while chunks arrive
const recorded = new WeakMap(); // record -> when it was last written
const fresh = new Map(); // model/path -> {changed, chunks} of a file that this worker has fetched, every byte, and not opened
const HELD_BYTES = 256 << 20; // of such files in memory at most: reading them again takes as long as sending them to a GPU,
const HELD_MS = 15000; // and no longer than this

export class StoreError extends Error {
  constructor(code, message) { super(message); this.code = code; }
}

const pending = new Set(); // handles of OPFS that were asked something

/** What a handle answers to `question`. Chromium 156 forgets the question if the handle is collected as garbage before. */
export async function ask(handle, question) {
  const kept = { handle };
  pending.add(kept);
  try {
    return await question(handle);
  } finally {
    pending.delete(kept);
  }
}

const storage = () => navigator.storage.getDirectory();
const root = async () => ask(await storage(), folder => folder.getDirectoryHandle("models", { create: true }));
const fileIn = (folder, path, options) => ask(folder, folder => folder.getFileHandle(path, options));
const contents = handle => ask(handle, handle => handle.getFile());
const idOf = name => name.replace(/[^A-Za-z0-9._-]+/g, "-").replace(/^[.-]+|[.-]+$/g, "").slice(0, 100) || "model";

/** Every model here: {id, name, source, size, have, complete}. */
export async function list() {
  const models = [];
  const folders = await ask(await root(), async models => {
    const found = [];
    for await (const [id, folder] of models.entries()) if (folder.kind === "directory") found.push([id, folder]);
    return found;
  });
  for (const [id, folder] of folders) {
    const record = await readRecord(folder);
    if (!record) continue;
    let have = 0;
    for (const file of record.files) have += file.hashes.length * CHUNK >= file.size ? file.size : file.hashes.length * CHUNK;
    const size = record.files.reduce((sum, file) => sum + file.size, 0);
    models.push({ id, name: record.name, source: record.source, size, have, complete: record.complete });
  }
  return models.sort((a, b) => a.name.localeCompare(b.name));
}

export async function estimate() {
  const { quota = 0, usage = 0 } = await navigator.storage.estimate();
  return { quota, usage };
}

export async function remove(id) {
  await locked(id, async () => {
    try {
      await ask(await root(), models => models.removeEntry(id, { recursive: true }));
    } catch (error) {
      if (error.name === "NotFoundError") return;
      throw new StoreError("busy", `${id} is in use in another tab, so it was not deleted`);
    }
  });
}

/** Fetch a model by its address: a .gguf file (all parts of a split one), or a folder with config.json. */
export async function download(url, { name, signal, onProgress = () => {} } = {}) {
  const address = new URL(url, self.location.href);
  if (!/^https?:$/.test(address.protocol)) throw new StoreError("address", `${url}: only http and https addresses can be fetched`);
  const gguf = address.pathname.endsWith(".gguf");
  const title = name || decoded(address.pathname.split("/").filter(Boolean).pop() || address.host);
  const id = idOf(title);
  return locked(id, async () => {
    const folder = await ask(await root(), models => models.getDirectoryHandle(id, { create: true }));
    let record = await readRecord(folder);
    if (record && record.source !== address.href) record = null;
    if (!record) {
      record = { name: title, source: address.href, files: await plan(address, gguf, signal), complete: false };
      await roomFor(record);
      await writeRecord(folder, record);
    }
    const total = record.files.reduce((sum, file) => sum + file.size, 0);
    const done = record.files.map(file => Math.min(file.hashes.length * CHUNK, file.size));
    const report = () => onProgress({ id, loaded: done.reduce((a, b) => a + b, 0), total });
    report();
    for (const [at, file] of record.files.entries()) {
      const begun = file.hashes.length;
      const chunks = begun || file.size > HELD_BYTES - held() ? null : [];
      await fetchFile(folder, record, file, chunks, signal, loaded => { done[at] = loaded; report(); });
      if (!begun) await hold(`${id}/${file.path}`, folder, file, chunks);
    }
    record.complete = true;
    await writeRecord(folder, record);
    return { id, name: record.name };
  });
}

/** The files to fetch, with their sizes: asked of the server by a range of one byte. */
async function plan(address, gguf, signal) {
  if (gguf) return Promise.all(splitNames(address).map(async url => described(url, signal)));
  const base = address.pathname.endsWith("/") ? address : new URL(`${address.href}/`);
  const files = [];
  for (const name of FOLDER_FILES) {
    const file = await described(new URL(name, base), signal, !NEEDED.has(name));
    if (file) files.push(file);
  }
  const index = await fetchOptional(new URL("model.safetensors.index.json", base), signal);
  const weights = index ? [...new Set(Object.values(JSON.parse(index).weight_map))] : ["model.safetensors"];
  if (index) files.push(await described(new URL("model.safetensors.index.json", base), signal));
  for (const name of weights) {
    if (typeof name !== "string" || name.includes("/")) throw new StoreError("model", "model.safetensors.index.json names files outside its folder");
    files.push(await described(new URL(name, base), signal));
  }
  return files;
}

function splitNames(address) {
  const match = /-00001-of-(\d{5})\.gguf$/.exec(address.pathname);
  if (!match) return [address];
  return Array.from({ length: Math.min(Number(match[1]), 999) }, (_, i) =>
    new URL(address.href.replace("-00001-of-", `-${String(i + 1).padStart(5, "0")}-of-`)));
}

async function described(url, signal, optional = false) {
  const answer = await reached(url, { headers: { Range: "bytes=0-0" }, signal });
  await answer.body?.cancel();
  if (optional && (answer.status === 404 || answer.status === 403)) return null;
  if (!answer.ok) throw new StoreError("http", `${url.href} answered ${answer.status} ${answer.statusText}`.trim());
  if (/^text\/html/.test(answer.headers.get("content-type") ?? "")) {
    if (optional) return null; // what some hosts answer for a file that is not there
    throw new StoreError("http", `${url.href} is a web page, not a file: take the address that its download has`);
  }
  const range = /\/(\d+)$/.exec(answer.headers.get("content-range") ?? "");
  const size = range ? Number(range[1]) : Number(answer.headers.get("content-length"));
  if (!size) throw new StoreError("http", `${url.href} does not say its size, so it cannot be fetched`);
  const path = decoded(url.pathname.split("/").pop());
  return { path, url: url.href, size, etag: answer.headers.get("etag"), ranges: answer.status === 206, hashes: [] };
}

async function fetchOptional(url, signal) {
  const answer = await reached(url, { signal });
  if (!answer.ok) { await answer.body?.cancel(); return null; }
  return answer.text();
}

/** Past the browser's own cache, which would keep all bytes a second time. */
async function reached(url, options) {
  try {
    return await fetch(url, { ...options, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new StoreError("network", `${url.href} cannot be reached (offline, or its server does not allow other pages: CORS)`);
  }
}

async function roomFor(record) {
  const size = record.files.reduce((sum, file) => sum + file.size, 0);
  const { quota, usage } = await estimate();
  if (quota && size > quota - usage) {
    throw new StoreError("quota", `${record.name} takes ${mb(size)}, and this browser grants the page only ${mb(quota - usage)} more: delete another model, or free disk space`);
  }
}

function decoded(text) {
  try { return decodeURIComponent(text); } catch { return text; } // a lone %
}

const mb = bytes => (bytes >= 1e9 ? `${(bytes / 1e9).toFixed(1)} GB` : `${Math.ceil(bytes / 1e6)} MB`);

const held = () => [...fresh.values()].reduce((sum, { chunks }) => sum + (chunks?.length ?? 0) * CHUNK, 0);

/** Known as fetched by this worker, and for a while in memory. */
async function hold(key, folder, file, chunks) {
  const { lastModified } = await contents(await fileIn(folder, file.path));
  const entry = { changed: lastModified, chunks };
  fresh.set(key, entry);
  setTimeout(() => { entry.chunks = null; }, HELD_MS);
}

/** Bytes from `at` on of what lies in chunks. */
function copied(chunks, into, at) {
  for (let filled = 0; filled < into.length;) {
    const chunk = chunks[Math.floor((at + filled) / CHUNK)];
    const part = chunk.subarray((at + filled) % CHUNK).subarray(0, into.length - filled);
    into.set(part, filled);
    filled += part.length;
  }
}

async function fetchFile(folder, record, file, chunks, signal, onProgress) {
  if (file.hashes.length * CHUNK >= file.size) return;
  const handle = await ask(await fileIn(folder, file.path, { create: true }), made => made.createSyncAccessHandle());
  try {
    grow(handle, file.size);
    if (file.ranges) await fetchRanges(folder, record, file, handle, chunks, signal, onProgress);
    else await fetchWhole(folder, record, file, handle, chunks, signal, onProgress);
  } finally {
    handle.close();
    await writeRecord(folder, record).catch(() => {}); // no room: then the last one holds
  }
}

/** To its size at once, which is quicker than by and by. Where there is no room, `keep` tells. */
function grow(handle, size) {
  try { if (handle.getSize() < size) handle.truncate(size); } catch { /* told later */ }
}

async function fetchRanges(folder, record, file, handle, chunks, signal, onProgress) {
  const queue = [];
  let next = file.hashes.length * CHUNK;
  const ask = () => {
    const first = next;
    next = Math.min(first + CHUNK, file.size);
    const headers = { Range: `bytes=${first}-${next - 1}` };
    if (file.etag && !file.etag.startsWith("W/")) headers["If-Range"] = file.etag;
    const asked = reached(new URL(file.url), { headers, signal }).then(async answer => {
      if (answer.status === 200) throw new StoreError("changed", `${file.path} changed on the server since the download began: delete it here and fetch it again`);
      if (answer.status !== 206) throw new StoreError("http", `${file.url} answered ${answer.status}`);
      const data = new Uint8Array(await answer.arrayBuffer());
      if (data.length !== Math.min(CHUNK, file.size - first)) throw new StoreError("network", `${file.path}: the server sent ${data.length} bytes of ${Math.min(CHUNK, file.size - first)}`);
      return data;
    });
    asked.catch(() => {});
    queue.push([first, asked]);
  };
  while (next < file.size && queue.length < IN_FLIGHT) ask();
  while (queue.length) {
    const [first, asked] = queue.shift();
    const data = await retried(asked, file, first, signal);
    if (next < file.size) ask();
    await keep(folder, record, file, handle, first, data);
    chunks?.push(data);
    onProgress(Math.min(first + data.length, file.size));
  }
}

/** A connection that broke is tried again a few times; what was asked stays the same. */
async function retried(asked, file, first, signal) {
  for (let attempt = 0; ; attempt++) {
    try {
      return await asked;
    } catch (error) {
      const transient = error.code === "network" || error instanceof TypeError;
      if (!transient || attempt === 3 || signal?.aborted) {
        throw error instanceof TypeError ? new StoreError("network", `the connection broke while ${file.path} was fetched; what came is kept, fetch again to go on`) : error;
      }
      await new Promise(resolve => setTimeout(resolve, 500 * 2 ** attempt));
      const last = Math.min(first + CHUNK, file.size) - 1;
      asked = reached(new URL(file.url), { headers: { Range: `bytes=${first}-${last}` }, signal })
        .then(async answer => new Uint8Array(await answer.arrayBuffer()));
    }
  }
}

/** A server without ranges: one stream, from the beginning each time. */
async function fetchWhole(folder, record, file, handle, chunks, signal, onProgress) {
  file.hashes = [];
  const answer = await reached(new URL(file.url), { signal });
  if (!answer.ok) throw new StoreError("http", `${file.url} answered ${answer.status}`);
  const reader = answer.body.getReader();
  let chunk = new Uint8Array(CHUNK);
  let first = 0, filled = 0;
  for (;;) {
    const { done, value } = await reader.read();
    let at = 0;
    while (value && at < value.length) {
      const count = Math.min(CHUNK - filled, value.length - at);
      chunk.set(value.subarray(at, at + count), filled);
      filled += count;
      at += count;
      if (filled === CHUNK) {
        await keep(folder, record, file, handle, first, chunk);
        if (chunks?.push(chunk)) chunk = new Uint8Array(CHUNK);
        first += CHUNK;
        filled = 0;
        onProgress(first);
      }
    }
    if (done) break;
  }
  if (first + filled !== file.size) throw new StoreError("network", `${file.path}: the connection ended after ${first + filled} of ${file.size} bytes`);
  if (filled) await keep(folder, record, file, handle, first, chunk.subarray(0, filled));
  if (filled) chunks?.push(chunk.subarray(0, filled));
  onProgress(file.size);
}

async function keep(folder, record, file, handle, first, data) {
  const hashed = hash(data); // beside the writing
  const due = performance.now() - (recorded.get(record) ?? 0) >= RECORD_MS;
  try {
    if (handle.write(data, { at: first }) !== data.length) throw new DOMException("", "QuotaExceededError");
    if (due) handle.flush();
  } catch (error) {
    if (error.name !== "QuotaExceededError") throw error;
    throw new StoreError("quota", `there is no room for ${record.name} in this browser's storage; what came is kept: free some, then go on`);
  }
  file.hashes[first / CHUNK] = await hashed;
  if (!due) return;
  await writeRecord(folder, record);
  recorded.set(record, performance.now());
}

async function hash(data) {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", data));
  return btoa(String.fromCharCode(...digest));
}

/** A stored model as {name, files: [{path, file: File, handle, read}]}, its bytes verified; read(into, at): from memory. */
export async function open(id, { onProgress = () => {} } = {}) {
  let folder;
  try {
    folder = await ask(await root(), models => models.getDirectoryHandle(id));
  } catch {
    throw new StoreError("absent", `${id} is not in this browser`);
  }
  const record = await readRecord(folder);
  if (!record?.complete) throw new StoreError("incomplete", `${id} is not wholly fetched: go on with its download first`);
  const total = record.files.reduce((sum, file) => sum + file.size, 0);
  let verified = 0;
  const files = [];
  for (const { path, size, hashes } of record.files) {
    const handle = await fileIn(folder, path);
    const file = await contents(handle);
    const opened = { path, file, handle, read: null };
    files.push(opened);
    const damaged = new StoreError("damaged", `${record.name}: the stored copy of ${path} is damaged: delete it and fetch it again`);
    if (file.size !== size) throw damaged;
    const fetched = fresh.get(`${id}/${path}`);
    fresh.delete(`${id}/${path}`);
    if (fetched?.changed === file.lastModified) {
      const { chunks } = fetched;
      if (chunks) opened.read = (into, at) => copied(chunks, into, at);
      continue;
    }
    for (let first = 0; first < size; first += CHUNK) {
      const data = await file.slice(first, Math.min(first + CHUNK, size)).arrayBuffer();
      if ((await hash(data)) !== hashes[first / CHUNK]) throw damaged;
      verified += data.byteLength;
      onProgress({ loaded: verified, total });
    }
  }
  return { name: record.name, files };
}

/** A small text that is kept beside the models; "" where there is none. */
export async function readText(name) {
  try {
    return await (await contents(await fileIn(await storage(), name))).text();
  } catch {
    return "";
  }
}

/** Keep it, whole or not at all; where nothing can be written it is lost, which costs only time. */
export async function writeText(name, text) {
  try {
    const handle = await fileIn(await storage(), name, { create: true });
    await ask(handle, async handle => {
      const file = await handle.createWritable();
      await ask(file, async file => { await file.write(text); await file.close(); });
    });
  } catch (error) {
    console.info(`${name} is not kept: ${error.message}`);
  }
}

async function readRecord(folder) {
  try {
    const file = await contents(await fileIn(folder, "record.json"));
    const record = JSON.parse(await file.text());
    return Array.isArray(record.files) ? record : null;
  } catch {
    return null; // none, or cut off while it was written
  }
}

/** Whole or not at all: written beside and moved over. */
async function writeRecord(folder, record) {
  const handle = await fileIn(folder, "record.new", { create: true });
  const access = await ask(handle, handle => handle.createSyncAccessHandle());
  try {
    const text = new TextEncoder().encode(JSON.stringify(record));
    access.truncate(0);
    access.write(text, { at: 0 });
    access.flush();
  } finally {
    access.close();
  }
  await ask(handle, handle => handle.move("record.json"));
}

async function locked(id, work) {
  return navigator.locks.request(`zllm model ${id}`, { ifAvailable: true }, lock => {
    if (!lock) throw new StoreError("busy", `another tab is working on ${id}: wait for it, or close that tab`);
    return work();
  });
}
