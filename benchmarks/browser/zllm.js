// In a page of the site: answers timed, and what the engine says of itself. An expression for page.evaluate.
async ([backend, questions, tokens]) => {
  const { Engine } = await import("/engine/engine.js");
  const began = performance.now();
  const engine = new Engine();
  const { seconds: boot_s } = await engine.ready();
  const ready_ms = performance.now() - began;
  const { id } = await engine.models.download("/models/SmolLM2-135M-Instruct.Q4_1.gguf");
  const loading = performance.now();
  const info = await engine.load(id, { backend });
  const load_ms = performance.now() - loading;
  const frames = [];
  let last = performance.now();
  const frame = now => { frames.push(now - last); last = now; requestAnimationFrame(frame); };
  requestAnimationFrame(frame);
  const ask = async question => {
    const start = performance.now();
    let first = 0, end = 0, count = 0, text = "";
    const chunks = await engine.chat.completions.create({ messages: [{ role: "user", content: question }],
      stream: true, max_tokens: tokens, temperature: 0 });
    for await (const chunk of chunks) {
      const content = chunk.choices[0]?.delta?.content;
      if (!content) continue;
      end = performance.now(); first ||= end; count++; text += content;
    }
    return { ttft_ms: first - start, tok_s: (count - 1) / ((end - first) / 1000), n: count, ms: end - first, text };
  };
  await ask(questions[0]);
  frames.length = 0;
  const runs = [];
  for (const question of questions.slice(1)) {
    const before = (await engine.info()).waited_s;
    const start = performance.now();
    const run = await ask(question);
    const wall = performance.now() - start;
    const after = (await engine.info()).waited_s;
    run.worker_ms = after === null ? null : (wall - 1000 * (after - before)) / (run.n + 1);
    run.repeated_ttft_ms = (await ask(question)).ttft_ms;
    runs.push(run);
  }
  frames.sort((a, b) => a - b);
  const { heap_bytes } = await engine.info();
  return { backend: info.backend, adapter: info.adapter, boot_s, ready_ms, load_ms, heap_bytes, runs,
    frame_ms: { median: frames[frames.length >> 1], p99: frames[Math.floor(frames.length * 0.99)] } };
}
