// Replays an exported model (zllm/backend/webgpu/export.py, version 1) on navigator.gpu.

const USAGE = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
const FEATURES = { f16: ["shader-f16", "enable f16;\n"], subgroups: ["subgroups", "enable subgroups;\n"] };

async function fetched(url) {
  const answer = await fetch(url);
  if (!answer.ok) throw new Error(`${url}: ${answer.status}`);
  return answer;
}

export async function load(base) {
  const doc = await (await fetched(`${base}.json`)).json();
  const bytes = new Uint8Array(await (await fetched(`${base}.bin`)).arrayBuffer());
  const adapter = await navigator.gpu.requestAdapter();
  if (!adapter) throw new Error("no WebGPU adapter");
  const device = await adapter.requestDevice({
    requiredFeatures: doc.features.map(name => FEATURES[name][0]),
    requiredLimits: { maxStorageBufferBindingSize: doc.maxBindingBytes, maxBufferSize: doc.maxBufferBytes },
  });
  const model = { doc, device, errors: [], adapter: adapter.info };
  device.onuncapturederror = event => model.errors.push(event.error.message);

  const started = performance.now();
  const preamble = doc.features.map(name => FEATURES[name][1]).join("");
  const modules = doc.shaders.map(code => device.createShaderModule({ code: preamble + code }));
  const layouts = {};
  const layoutOf = access => layouts[access] ??= device.createBindGroupLayout({
    entries: access.map((how, binding) => ({ binding, visibility: GPUShaderStage.COMPUTE,
      buffer: { type: how === "read" ? "read-only-storage" : "storage" } })),
  });
  const pipelines = await Promise.all(doc.kernels.map(kernel => device.createComputePipelineAsync({
    layout: device.createPipelineLayout({ bindGroupLayouts: [layoutOf(kernel.access)] }),
    compute: { module: modules[kernel.shader], entryPoint: kernel.entry, constants: kernel.constants },
  })));
  model.pipelineMs = performance.now() - started;

  model.buffers = doc.buffers.map(size => device.createBuffer({ size, usage: USAGE }));
  model.programs = doc.programs.map(program => ({ ...program, calls: program.dispatches.map(
    ([kernel, bound, grid]) => [pipelines[kernel], device.createBindGroup({
      layout: layoutOf(doc.kernels[kernel].access),
      entries: bound.map((buffer, binding) => ({ binding, resource: { buffer: model.buffers[buffer] } })),
    }), grid]) }));
  for (const [what, ...a] of doc.setup) {
    if (what === "write") device.queue.writeBuffer(model.buffers[a[0]], a[1], bytes, a[2], a[3]);
    else if (what === "run") encode(model, model.programs[a[0]]);
    else if (what === "destroy") model.buffers[a[0]].destroy();
    else throw new Error(`set-up step ${what} is unknown`);
  }
  return model;
}

function encode(model, program, readback) {
  const encoder = model.device.createCommandEncoder();
  const pass = encoder.beginComputePass();
  for (const [pipeline, group, grid] of program.calls) {
    pass.setPipeline(pipeline);
    pass.setBindGroup(0, group);
    pass.dispatchWorkgroups(...grid);
  }
  pass.end();
  if (readback) encoder.copyBufferToBuffer(model.buffers[program.result], 0, readback, 0, program.resultBytes);
  model.device.queue.submit([encoder.finish()]);
}

/** Runs one round after all before it; the promise is of its result's bytes. */
export function submit(model, plan, words) {
  const program = model.programs[plan.program];
  const readback = model.device.createBuffer({ size: program.resultBytes, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
  model.device.queue.writeBuffer(model.buffers[program.step], 0, words);
  encode(model, program, readback);
  return readback.mapAsync(GPUMapMode.READ).then(() => {
    const result = readback.getMappedRange().slice(0);
    readback.destroy();
    return result;
  });
}

/** Step words of one sequence in lane 0 whose pages are 1, 2, …: `tokens` follow `first` cached ones. */
export function stepWords(plan, tokens, first, pageSlots, scratchLane) {
  const words = new Int32Array(plan.words);
  const set = (name, index, value) => { words[plan.offset[name] + index] = value; };
  const entries = plan.tableEntries.full;
  set("valid_rows", 0, tokens.length);
  set("valid_seqs", 0, 1);
  for (let seq = 1; seq < plan.key.seqs; seq++) set("lane", seq, scratchLane);
  for (let entry = 0; entry < entries; entry++) set("full.table", entry, 1 + entry);
  tokens.forEach((token, row) => {
    set("token", row, token);
    set("position", row, first + row);
    set("full.row_slot", row, pageSlots + first + row);
  });
  for (const name of ["length", "draw"]) set(name, 0, first + tokens.length);
  set("last_row", 0, tokens.length - 1);
  return words;
}

/** Logits of every token, fed in rounds of `split` rows: each round names its plan. */
export async function logits(model, tokens, rounds, { pageSlots, scratchLane }) {
  const out = [];
  let first = 0;
  for (const [name, count] of rounds) {
    const plan = model.doc.plans[name];
    const words = stepWords(plan, tokens.slice(first, first + count), first, pageSlots, scratchLane);
    const values = new Float32Array(await submit(model, plan, words));
    const vocabulary = values.length / plan.key.rows;
    for (let row = 0; row < count; row++) out.push(Array.from(values.subarray(row * vocabulary, (row + 1) * vocabulary)));
    first += count;
  }
  return out;
}
