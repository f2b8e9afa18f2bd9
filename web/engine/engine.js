// zLLM in a page: the API of web/README.md. The engine itself runs in a worker.

export class EngineError extends Error {
  constructor({ code, message, detail }) {
    super(message);
    this.name = "EngineError";
    this.code = code;
    this.detail = detail; // for a developer: the whole of what went wrong
  }
}

/** Calls into the worker: a promise of each, and what it says on the way. */
class Port {
  constructor(onNotice) {
    this.onNotice = onNotice;
    this.start();
  }

  start() {
    this.next = 1;
    this.calls = new Map();
    this.worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module", name: "zllm" });
    this.worker.onmessage = ({ data }) => this.receive(data);
    this.worker.onerror = event => this.fail(event.message || "its script could not be loaded");
  }

  receive({ id, event, data, value, error }) {
    if (event === "notice") return this.onNotice(data);
    const call = this.calls.get(id);
    if (!call) return;
    if (event) return call.on[event]?.(data);
    this.calls.delete(id);
    if (error?.code === "fatal") this.restart(new EngineError(error));
    if (error) call.reject(new EngineError(error));
    else call.resolve(value);
  }

  fail(message) {
    const error = new EngineError({ code: "worker", message: `the engine's worker failed: ${message}` });
    for (const call of this.calls.values()) call.reject(error);
    this.calls.clear();
  }

  /** on: {event: handler}. Stopped by `signal`, if given. */
  call(op, args = {}, on = {}, signal) {
    if (signal?.aborted) return Promise.reject(stopped());
    const id = this.next++;
    return new Promise((resolve, reject) => {
      const stop = () => this.worker.postMessage({ id: 0, op: "stop", args: { target: id } });
      signal?.addEventListener("abort", stop, { once: true });
      const over = settle => value => { signal?.removeEventListener("abort", stop); settle(value); };
      this.calls.set(id, { on, resolve: over(resolve), reject: over(reject) });
      this.worker.postMessage({ id, op, args });
    });
  }

  /** Nothing that the worker held stays: the way to end work that cannot be asked to stop. */
  restart(error) {
    this.worker.terminate();
    for (const call of this.calls.values()) call.reject(error);
    this.start();
  }
}

const stopped = () => new EngineError({ code: "stopped", message: "stopped" });

export class Engine {
  /** Boots at once; nothing is fetched but the engine's own files. */
  constructor() {
    this.onnotice = () => {}; // what goes on differently than asked for: a text
    this.onpicture = null; // called while an answer comes: {rows: [{name, ms}], total_ms}, as of trace()
    this.port = new Port(text => this.noticed(text));
    this.models = new Models(this.port);
    this.chat = { completions: { create: (request, options) => this.complete(request, options) } };
    this.loaded = null;
  }

  /** Resolves when the engine could open a model: {seconds}. */
  ready() { return this.port.call("boot"); }

  /**
   * Open a model: the id of a stored one, files (File objects), or an address, which is fetched and
   * kept first. options: {backend: "auto" | "webgpu" | "numpy", context}.
   */
  async load(model, { backend = "auto", context, check, onProgress = () => {}, signal } = {}) {
    let source = typeof model === "string" ? { model } : { files: [...model] };
    if (typeof model === "string" && model.includes("/")) { // ids of kept models have no slash
      const { id } = await this.models.download(model, { onProgress: p => onProgress({ ...p, stage: "download" }), signal });
      source = { model: id };
    }
    const before = this.loaded;
    this.loaded = null;
    // Python cannot be interrupted while it loads: to stop, its worker is ended and begun again.
    if (signal?.aborted) throw stopped();
    const stop = () => this.port.restart(stopped());
    signal?.addEventListener("abort", stop, { once: true });
    try {
      this.loaded = await this.port.call("load", { source, options: { backend, context, check } }, { progress: onProgress });
    } catch (error) {
      if (before && error.code !== "stopped" && await this.port.call("loaded").catch(() => false)) this.loaded = before;
      throw error;
    } finally {
      signal?.removeEventListener("abort", stop);
    }
    return this.loaded;
  }

  async noticed(text) {
    if (this.loaded) this.loaded = await this.info().catch(() => this.loaded); // the backend may be another now
    this.onnotice(text);
  }

  info() { return this.port.call("info"); }
  unload() { this.loaded = null; return this.port.call("unload"); }
  countTokens(request) { return this.port.call("tokens", { request }); }

  /** Every kernel against the NumPy reference on this device; onRow is called with each result. */
  check(onRow, { signal } = {}) { return this.port.call("check", {}, { row: onRow }, signal); }

  /** Where the time of a token goes. */
  trace() { return this.port.call("trace"); }

  close() { this.port.worker.terminate(); this.port.fail("it was closed"); }

  /** OpenAI's chat.completions.create: an answer, or with `stream: true` an async iterator of chunks. */
  async complete(request, { signal } = {}) {
    if (request.stream) return this.stream(request, signal);
    const chunks = this.stream({ ...request, stream: true, stream_options: { include_usage: true } }, signal);
    let answer = null;
    for await (const chunk of chunks) answer = joined(answer, chunk);
    return answer;
  }

  async *stream(request, signal) {
    const queue = [];
    let wake = () => {};
    const inner = new AbortController();
    const both = signal ? AbortSignal.any([signal, inner.signal]) : inner.signal;
    let done = false, failure = null;
    const push = chunk => { queue.push(JSON.parse(chunk)); wake(); };
    this.port.call("generate", { request, pictures: Boolean(this.onpicture) }, { chunk: push, picture: seen => this.onpicture?.(seen) }, both)
      .catch(error => { failure = error; })
      .finally(() => { done = true; wake(); });
    try {
      for (;;) {
        while (queue.length) yield queue.shift();
        if (done) break;
        await new Promise(resolve => { wake = resolve; });
      }
      if (failure && failure.code !== "stopped") throw failure;
    } finally {
      if (!done) inner.abort(); // whoever reads left early
    }
  }
}

function joined(answer, chunk) {
  answer ??= { ...chunk, object: chunk.object.replace(/\.chunk$/, ""), choices: [] };
  if (chunk.usage) answer.usage = chunk.usage;
  for (const { index, delta, text, finish_reason, logprobs, token_ids } of chunk.choices) {
    const empty = delta ? { message: { role: "assistant", content: "" } } : { text: "" }; // of messages, of a prompt
    const choice = answer.choices[index] ??= { index, ...empty, finish_reason: null };
    if (delta) choice.message.content += delta.content ?? "";
    else choice.text += text ?? "";
    for (const [name, list] of Object.entries(logprobs ?? {})) (((choice.logprobs ??= {})[name] ??= [])).push(...list ?? []);
    if (token_ids) (choice.token_ids ??= []).push(...token_ids);
    if (finish_reason) choice.finish_reason = finish_reason;
  }
  return answer;
}

/** Models kept in this browser. */
class Models {
  constructor(port) { this.port = port; }
  list() { return this.port.call("list"); }
  estimate() { return this.port.call("estimate"); }
  remove(model) { return this.port.call("remove", { model }); }

  /** Goes on where an earlier download of the same address ended. */
  download(url, { name, onProgress = () => {}, signal } = {}) {
    if (!URL.canParse(url, location.href)) return Promise.reject(new EngineError({ code: "address", message: `${url} is no address` }));
    return this.port.call("download", { url: new URL(url, location.href).href, name }, { progress: onProgress }, signal);
  }
}

/** An engine with `model` loaded: the ten lines of web/README.md. */
export async function createEngine({ model, ...options } = {}) {
  const engine = new Engine();
  try {
    if (model !== undefined) await engine.load(model, options);
  } catch (error) {
    engine.close();
    throw error;
  }
  return engine;
}
