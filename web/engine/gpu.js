// The JavaScript half of the WebGPU driver (zllm/backend/webgpu/browser_device.py): Python plans,
// this file replays. Addresses and sizes are bytes of the Python heap.

const STORAGE = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
const READBACK = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST;
const FEATURES = { f16: ["shader-f16", "enable f16;\n"], subgroups: ["subgroups", "enable subgroups;\n"] };
const RAISED = ["maxBufferSize", "maxStorageBufferBindingSize"];
const LOST_MS = 500;
const ADAPTER_MS = 20000;
const STAGING_BYTES = 4 << 20;
const TOO_LARGE = "the device has too little memory for this: take a smaller model, or a file with fewer bits a weight";
const PROBE = `@group(0) @binding(0) var<storage, read_write> size: array<u32>;
@compute @workgroup_size(64) fn main(@builtin(subgroup_size) n: u32) { size[0] = n; }`;

/** A device of the preferred adapter with the limits of every browser, but larger buffers. */
export async function openGpu(heap, sourceOf) {
  if (!navigator.gpu) throw new Error("this browser has no WebGPU");
  const adapter = await Promise.race([navigator.gpu.requestAdapter({ powerPreference: "high-performance" }), silence()]);
  if (!adapter) throw new Error("the browser offers no WebGPU adapter");
  const features = Object.keys(FEATURES).filter(name => adapter.features.has(FEATURES[name][0]));
  const requiredLimits = Object.fromEntries(RAISED.map(name => [name, adapter.limits[name]]));
  const requiredFeatures = features.map(name => FEATURES[name][0]);
  const device = await adapter.requestDevice({ requiredFeatures, requiredLimits });
  const gpu = new Gpu(device, adapter.info, features, heap, sourceOf);
  if (features.includes("subgroups")) gpu.info.subgroupSize = await gpu.subgroupSize();
  return gpu;
}

const rounds = new Map(); // submitted ones by number, until they are done and somebody knows
let submitted = 0;

/** Whether the round went well, once it is done: its result then lies in the Python heap. Never broken. */
export async function done(number) {
  const well = await rounds.get(number).done;
  if (well) rounds.delete(number); // else `failure` tells why
  return well;
}

/** A browser whose GPU process starts again may not answer at all. */
const silence = () => new Promise((_, reject) => {
  setTimeout(() => reject(new Error("the browser does not answer when asked for a WebGPU adapter")), ADAPTER_MS);
});

class Gpu {
  constructor(device, info, features, heap, sourceOf) {
    this.device = device;
    this.sourceOf = sourceOf; // path -> {read(into, at)} or undefined
    this.staging = new Uint8Array(STAGING_BYTES);
    this.heap = heap; // () => Uint8Array over the Python heap, which moves as it grows
    this.preamble = features.map(name => FEATURES[name][1]).join("");
    this.info = {
      name: info.description || [info.vendor, info.architecture].filter(Boolean).join(" ") || "GPU",
      software: Boolean(info.isFallbackAdapter) || info.architecture === "swiftshader",
      driver: navigator.userAgent, features, subgroupSize: 0, limits: device.limits,
    };
    this.lost = null; // why, once it is
    this.faults = []; // what the device complained of since it was last asked
    this.modules = new Map();
    this.layouts = new Map();
    this.pipelines = new Map();
    this.waiting = []; // work that must wait for a pipeline, and all that came after it
    this.free = new Map(); // readbacks by size
    device.onuncapturederror = ({ error }) => this.faults.push(error instanceof GPUOutOfMemoryError ? TOO_LARGE : error.message);
    device.lost.then(({ reason, message }) => {
      this.lost = reason === "destroyed" ? message || reason : "its driver or process ended";
      if (reason !== "destroyed") console.info(`WebGPU device lost: ${message}`);
    });
  }

  buffer(size, label) { return this.device.createBuffer({ size, usage: STORAGE, label }); }

  write(buffer, offset, address, size) {
    if (!this.waiting.length) return this.device.queue.writeBuffer(buffer, offset, this.heap(), address, size);
    const data = this.heap().slice(address, address + size);
    this.inOrder(null, () => this.device.queue.writeBuffer(buffer, offset, data));
  }

  /** Rows of a file to a buffer, each padded; the bytes never enter the Python heap. */
  stream(path, start, buffer, offset, rows, rowBytes, paddedBytes) {
    const source = this.sourceOf(path);
    if (!source) return false;
    const step = Math.max(1, Math.floor(STAGING_BYTES / paddedBytes));
    for (let first = 0; first < rows; first += step) {
      const count = Math.min(step, rows - first), size = count * rowBytes;
      const raw = size > STAGING_BYTES ? new Uint8Array(size) : this.staging.subarray(0, size);
      source.read(raw, start + first * rowBytes);
      const data = paddedBytes !== rowBytes ? padded(raw, count, rowBytes, paddedBytes) : this.waiting.length ? raw.slice() : raw;
      this.inOrder(null, () => this.device.queue.writeBuffer(buffer, offset + first * paddedBytes, data));
    }
    return true;
  }

  /** copies: flat [source, offset, target, offset, size, …]. */
  copy(copies) {
    this.inOrder(null, () => {
      const encoder = this.device.createCommandEncoder();
      for (let i = 0; i < copies.length; i += 5) encoder.copyBufferToBuffer(...copies.slice(i, i + 5));
      this.device.queue.submit([encoder.finish()]);
    });
  }

  /** calls: [[kernel, [buffer, …], [x, y, z]], …]; kernel: {key, name, wgsl, access, constants, entry, now}. */
  program(calls, step, result, resultBytes) {
    const program = { step, result, resultBytes, calls: [], ready: null };
    const pending = [];
    for (const [kernel, buffers, grid] of calls) {
      const layout = this.layout(kernel.access);
      const bindings = buffers.map((buffer, binding) => ({ binding, resource: { buffer } }));
      const group = this.device.createBindGroup({ layout, entries: bindings });
      const [x, y, z] = grid;
      const call = { pipeline: null, group, x, y, z };
      program.calls.push(call);
      const pipeline = this.pipeline(kernel);
      if (pipeline instanceof Promise) pending.push(pipeline.then(made => { call.pipeline = made; }));
      else call.pipeline = pipeline;
    }
    if (pending.length) {
      program.ready = Promise.all(pending).then(
        () => { program.ready = null; },
        error => { program.ready = null; program.error = error; });
    }
    return program;
  }

  layout(access) {
    const key = access.join();
    if (!this.layouts.has(key)) {
      const entries = access.map((how, binding) => ({ binding, visibility: GPUShaderStage.COMPUTE,
        buffer: { type: how === "read" ? "read-only-storage" : "storage" } }));
      this.layouts.set(key, this.device.createBindGroupLayout({ entries }));
    }
    return this.layouts.get(key);
  }

  /** All pipelines are made side by side; one needed at once (`now`) is made in place. */
  pipeline(kernel) {
    const made = this.pipelines.get(kernel.key);
    if (made) return made;
    if (!this.modules.has(kernel.wgsl)) {
      const module = this.device.createShaderModule({ code: this.preamble + kernel.wgsl, label: kernel.name });
      this.modules.set(kernel.wgsl, module);
    }
    const module = this.modules.get(kernel.wgsl);
    const layout = this.device.createPipelineLayout({ bindGroupLayouts: [this.layout(kernel.access)] });
    const compute = { module, entryPoint: kernel.entry, constants: kernel.constants };
    const descriptor = { label: kernel.name, layout, compute };
    if (kernel.now) {
      const pipeline = this.device.createComputePipeline(descriptor);
      this.pipelines.set(kernel.key, pipeline);
      return pipeline;
    }
    const promise = this.device.createComputePipelineAsync(descriptor).then(
      pipeline => { this.pipelines.set(kernel.key, pipeline); return pipeline; },
      async error => { throw new Error(`kernel ${kernel.name}: ${await this.reason(module) || error.message}`); });
    promise.catch(() => {});
    this.pipelines.set(kernel.key, promise);
    return promise;
  }

  async reason(module) {
    const { messages } = await module.getCompilationInfo();
    return messages.filter(({ type }) => type === "error").map(({ lineNum, message }) => `line ${lineNum}: ${message}`).join(" / ");
  }

  /** Run `work` now, or after all that waits for pipelines before it. */
  inOrder(ready, work) {
    if (!ready && !this.waiting.length) return work();
    this.waiting.push([ready, work]);
    if (this.waiting.length === 1) this.drain();
  }

  async drain() {
    while (this.waiting.length) {
      await this.waiting[0][0];
      this.waiting[0][1]();
      this.waiting.shift();
    }
  }

  /** One round: its number, for `done`, `failure` and `forget`; its result goes to `target`. */
  submit(program, address, size, target) {
    this.check();
    const readback = this.readback(program.resultBytes), number = ++submitted;
    const round = { done: null, error: null };
    round.done = this.run(program, address, size, readback).then(
      () => this.take(number, readback, program.resultBytes, target)).catch(error => { round.error = error; return false; });
    rounds.set(number, round);
    return number;
  }

  run(program, address, size, readback) {
    if (!program.ready && !this.waiting.length) {
      if (program.step) this.device.queue.writeBuffer(program.step, 0, this.heap(), address, size);
      return this.encode(program, readback);
    }
    const words = this.heap().slice(address, address + size);
    return new Promise((resolve, reject) => this.inOrder(program.ready, () => {
      try {
        if (program.step) this.device.queue.writeBuffer(program.step, 0, words);
        resolve(this.encode(program, readback));
      } catch (error) { reject(error); }
    }));
  }

  check() {
    if (this.lost) throw new Error(`the device is lost: ${this.lost}`);
    if (this.faults.length) throw new Error(this.takeFaults());
  }

  encode(program, readback) {
    if (program.error) throw program.error;
    const encoder = this.device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    let last = null;
    for (const { pipeline, group, x, y, z } of program.calls) {
      if (pipeline !== last) pass.setPipeline(last = pipeline);
      pass.setBindGroup(0, group);
      pass.dispatchWorkgroups(x, y, z);
    }
    pass.end();
    if (program.result) encoder.copyBufferToBuffer(program.result, 0, readback, 0, Math.ceil(program.resultBytes / 4) * 4);
    else encoder.clearBuffer(readback, 0, 4); // something to wait for
    this.device.queue.submit([encoder.finish()]);
    return readback.mapAsync(GPUMapMode.READ).catch(error => this.explained(error));
  }

  /** A lost device rejects what is under way before it says that it is lost. */
  async explained(error) {
    await Promise.race([this.device.lost, new Promise(resolve => setTimeout(resolve, LOST_MS))]);
    throw error;
  }

  readback(size) {
    const capacity = 2 ** Math.ceil(Math.log2(Math.max(16, size)));
    return this.free.get(capacity)?.pop() ?? this.device.createBuffer({ size: capacity, usage: READBACK, label: "readback" });
  }

  done(number) { return done(number); }

  /** The result of a round, to an address in the Python heap, if it is still wanted there. */
  take(number, readback, size, address) {
    this.check();
    if (size && rounds.has(number)) {
      this.heap().set(new Uint8Array(readback.getMappedRange(0, Math.ceil(size / 4) * 4), 0, size), address);
    }
    readback.unmap();
    if (!this.free.has(readback.size)) this.free.set(readback.size, []);
    this.free.get(readback.size).push(readback);
    return true;
  }

  /** Why a round did not go well. */
  failure(number) {
    const { error } = rounds.get(number);
    rounds.delete(number);
    throw error;
  }

  /** Nobody will look at its result. */
  forget(number) { rounds.delete(number); }

  /** ranges: flat [buffer, offset, size, …]; the promise is of a Uint8Array of each. */
  async fetch(ranges) {
    const sizes = ranges.filter((_, i) => i % 3 === 2);
    const total = sizes.reduce((sum, size) => sum + size, 0);
    const readback = this.device.createBuffer({ size: Math.max(total, 4), usage: READBACK });
    await new Promise(resolve => this.inOrder(null, resolve));
    const encoder = this.device.createCommandEncoder();
    let at = 0;
    for (let i = 0; i < ranges.length; i += 3) {
      encoder.copyBufferToBuffer(ranges[i], ranges[i + 1], readback, at, ranges[i + 2]);
      at += ranges[i + 2];
    }
    this.device.queue.submit([encoder.finish()]);
    await readback.mapAsync(GPUMapMode.READ);
    const data = new Uint8Array(readback.getMappedRange().slice(0));
    readback.destroy();
    at = 0;
    return sizes.map(size => data.subarray(at, at += size));
  }

  async subgroupSize() {
    const size = this.buffer(4, "subgroup size");
    const kernel = { key: "subgroup size", name: "subgroup_size", wgsl: PROBE, access: ["write"], constants: {}, entry: "main", now: true };
    const round = this.submit(this.program([[kernel, [size], [1, 1, 1]]], null, null, 0), 0, 0, 0);
    if (!await done(round)) this.failure(round);
    const [data] = await this.fetch([size, 0, 4]);
    size.destroy();
    return new Uint32Array(data.slice().buffer)[0];
  }

  async settled() {
    await new Promise(resolve => this.inOrder(null, resolve));
    await this.device.queue.onSubmittedWorkDone();
  }

  takeFaults() { return [...new Set(this.faults.splice(0))].join(" / "); }

  close() { this.device.destroy(); }
}

function padded(raw, rows, rowBytes, paddedBytes) {
  const data = new Uint8Array(rows * paddedBytes);
  for (let row = 0; row < rows; row++) data.set(raw.subarray(row * rowBytes, (row + 1) * rowBytes), row * paddedBytes);
  return data;
}
