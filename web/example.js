// The API of engine/engine.js in a page of its own: load once, ask, show what comes, stop.

import { createEngine } from "./engine/engine.js";

const [model, question, ask, stop, bar, answer] = ["model", "question", "ask", "stop", "bar", "answer"].map(id => document.getElementById(id));
let engine;

ask.onclick = async () => {
  const controller = new AbortController();
  const { signal } = controller;
  stop.onclick = () => controller.abort();
  ask.disabled = !(stop.disabled = false);
  answer.textContent = "";
  try {
    bar.hidden = Boolean(engine);
    engine ??= await createEngine({ model: model.value, signal, onProgress: ({ loaded, total }) => { bar.value = loaded / total; } });
    bar.hidden = true;
    const messages = [{ role: "user", content: question.value }];
    const chunks = await engine.chat.completions.create({ messages, stream: true, max_tokens: 100, temperature: 0 }, { signal });
    for await (const chunk of chunks) answer.append(chunk.choices[0]?.delta?.content ?? "");
  } catch (error) {
    answer.textContent = error.message;
  } finally {
    bar.hidden = true;
    ask.disabled = !(stop.disabled = true);
  }
};
