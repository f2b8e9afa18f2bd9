// In a page of the site: answers timed, and what the engine says of itself. An expression for page.evaluate.
async ([backend, questions, tokens]) => {
  const { Engine } = await import("/engine/engine.js");
  const began = performance.now();
  const engine = new Engine();
  const { seconds: boot_s } = await engine.ready();
  const ready_ms = performance.now() - began;
  const fetching = performance.now();
  const { id } = await engine.models.download("/models/SmolLM2-135M-Instruct.Q4_1.gguf");
  const loading = performance.now();
  let weights = 0, there = 0; // when the first bytes of weights were loaded, and the last
  const info = await engine.load(id, { backend, onProgress: ({ stage, loaded, total }) => {
    if (stage !== "load") return;
    weights ||= performance.now();
    if (loaded >= total) there ||= performance.now();
  } });
  const load_ms = performance.now() - loading;
  const frames = [];
  let last = performance.now();
  const frame = now => { frames.push(now - last); last = now; requestAnimationFrame(frame); };
  requestAnimationFrame(frame);
  const ask = async (question, tokens, ignore_eos = false) => {
    const start = performance.now();
    let first = 0, end = 0, count = 0, text = "";
    const chunks = await engine.chat.completions.create({ messages: [{ role: "user", content: question }],
      stream: true, max_tokens: tokens, temperature: 0, ignore_eos });
    for await (const chunk of chunks) {
      const content = chunk.choices[0]?.delta?.content;
      if (!content) continue;
      end = performance.now(); first ||= end; count++; text += content;
    }
    return { ttft_ms: first - start, tok_s: (count - 1) / ((end - first) / 1000), n: count, ms: end - first, text };
  };
  /** An answer of so many tokens, and the worker's time for it: all that it did not wait for the GPU. */
  const busy = async (question, tokens) => {
    const before = (await engine.info()).waited_s;
    const start = performance.now();
    const { ttft_ms } = await ask(question, tokens, true);
    const wall_ms = performance.now() - start;
    return { ttft_ms, ms: wall_ms - 1000 * ((await engine.info()).waited_s - before) };
  };
  await ask(questions[0], tokens);
  frames.length = 0;
  const runs = [];
  for (const question of questions.slice(1)) {
    const run = await ask(question, tokens);
    const one = await busy(question, 1), all = await busy(question, tokens);
    run.repeated_ttft_ms = Math.min(one.ttft_ms, all.ttft_ms);
    run.request_ms = info.waited_s === null ? null : one.ms;
    run.worker_ms = info.waited_s === null ? null : (all.ms - one.ms) / (tokens - 1);
    runs.push(run);
  }
  frames.sort((a, b) => a - b);
  const { heap_bytes } = await engine.info();
  return { backend: info.backend, adapter: info.adapter, boot_s, ready_ms, load_ms,
    fetch_ms: loading - fetching, weights_ms: there - weights, heap_bytes, runs,
    frame_ms: { median: frames[frames.length >> 1], p99: frames[Math.floor(frames.length * 0.99)] } };
}
