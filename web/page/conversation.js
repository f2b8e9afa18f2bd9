// The messages of the open chat, the composer, and what an answer costs.

import { byId, element, keepingPlace } from "./dom.js";
import { render } from "./markdown.js";

const NO_MODEL = "open a model first: pick one of the list, or drop a .gguf file on the page";
const SUGGESTIONS = ["Explain in two sentences why the sky is blue.", "Write a haiku about autumn.", "What can you help me with?"];

export class Conversation {
  constructor(page, chats, settings) {
    Object.assign(this, { page, chats, settings });
    this.log = byId("messages");
    this.prompt = byId("prompt");
    this.plain = false; // the model knows no chats, only texts
    this.answering = null; // AbortController of the answer on its way
    byId("composer").addEventListener("submit", event => { event.preventDefault(); this.send(); });
    byId("stop").addEventListener("click", () => this.stop());
    this.prompt.addEventListener("input", () => this.grow());
    this.prompt.addEventListener("keydown", event => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); this.send(); }
    });
    document.addEventListener("keydown", event => { if (event.key === "Escape" && !event.defaultPrevented) this.stop(); });
    addEventListener("pagehide", () => { if (this.answering) chats.save(); });
    this.log.addEventListener("scroll", () => { this.atEnd = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 80; });
    new ResizeObserver(() => { if (this.atEnd) this.toEnd(); }).observe(this.log);
  }

  stop() { this.answering?.abort(); }

  get messages() { return this.chats.current.messages; }

  grow() {
    this.prompt.style.height = "auto";
    this.prompt.style.height = `${this.prompt.scrollHeight + 2}px`;
  }

  show() {
    const rows = this.messages.length ? this.messages.map((_, at) => this.row(at)) : [this.welcome()];
    keepingPlace(() => this.log.replaceChildren(...rows), () => this.prompt);
    this.toEnd();
    this.buttons();
    this.count();
  }

  toEnd() {
    this.log.scrollTop = this.log.scrollHeight;
    this.atEnd = true;
  }

  welcome() {
    const open = this.page.engine.loaded;
    const nearest = this.page.nearest?.();
    const asks = open ? SUGGESTIONS.map(text => element("button", { onclick: () => this.send(text) }, text))
      : nearest ? [element("button", { class: "first", onclick: nearest.run }, nearest.text)] : [];
    return element("div", { class: "welcome" },
      element("h2", {}, "A language model in this tab"),
      element("p", {}, open ? "Ask something. Nothing you write leaves this browser." : "Open a model of the list, or drop a .gguf file or a model folder here. Nothing you write leaves this browser."),
      ...asks);
  }

  /** The list of models changed. */
  welcomeAgain() {
    if (!this.messages.length && !this.page.engine.loaded) this.show();
  }

  row(at) {
    const { role, content, note } = this.messages[at];
    const body = element("div", { class: "body" });
    if (role === "assistant") body.append(render(content)); else body.textContent = content;
    const tools = element("div", { class: "tools" });
    if (role === "user") tools.append(element("button", { onclick: () => this.edit(at) }, "Edit"));
    if (role === "user" && at === this.messages.length - 1) tools.append(element("button", { onclick: () => this.again() }, "Try again"));
    if (role === "assistant") {
      tools.append(element("button", { onclick: ({ target }) => this.copy(content, target) }, "Copy"));
      if (at === this.messages.length - 1) tools.append(element("button", { onclick: () => this.regenerate() }, "Regenerate"));
      if (note) tools.append(element("span", {}, note));
    }
    return element("article", { class: `message ${role}`, "aria-label": role === "user" ? "You" : "Model" }, body, tools);
  }

  async copy(text, button) {
    try {
      await navigator.clipboard.writeText(text);
      this.speak("Copied");
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    } catch {
      this.page.complain("this browser does not let the page copy: mark the text and copy it yourself");
    }
  }

  /** To who does not see the page. */
  speak(text) { byId("spoken").textContent = text; }

  /** A question can be put again in other words: what followed it is dropped. */
  edit(at) {
    if (this.answering) return;
    this.prompt.value = this.messages[at].content;
    this.messages.length = at;
    this.chats.save();
    this.show();
    this.grow();
    this.prompt.focus();
  }

  regenerate() {
    if (this.answering || this.messages.at(-1)?.role !== "assistant") return;
    if (!this.page.engine.loaded) return this.page.complain(NO_MODEL);
    this.messages.pop();
    this.answer();
  }

  /** Of a question that got no answer. */
  again() {
    if (this.answering) return;
    if (!this.page.engine.loaded) return this.page.complain(NO_MODEL);
    this.answer();
  }

  send(text = this.prompt.value) {
    if (!text.trim() || this.answering) return;
    if (!this.page.engine.loaded) return this.page.complain(NO_MODEL);
    this.messages.push({ role: "user", content: text.trim() });
    this.prompt.value = "";
    this.grow();
    this.answer();
  }

  async answer() {
    const { engine } = this.page;
    const chat = this.chats.current;
    const message = { role: "assistant", content: "" };
    const asked = [...this.messages];
    this.messages.push(message);
    this.page.complain(null);
    this.page.notice(null);
    this.chats.save();
    this.answering = new AbortController();
    this.show();
    this.speak("The model answers");
    const row = this.log.lastElementChild;
    const body = row.firstElementChild;
    body.classList.add("writing");
    const timer = new Timer();
    try {
      await this.page.greeted;
      const request = { ...this.request(asked), ...this.settings.sampling(), stream: true, stream_options: { include_usage: true } };
      for await (const chunk of await engine.chat.completions.create(request, { signal: this.answering.signal })) {
        if (chunk.usage) timer.usage = chunk.usage;
        const [choice] = chunk.choices;
        if (!choice) continue;
        const text = choice.delta?.content ?? choice.text;
        if (text) {
          message.content += text;
          timer.token();
          if (timer.times.length === 1) this.count();
          this.draw(body, message, timer);
        }
        if (choice.finish_reason === "length") message.cut = true;
      }
      if (!message.content && !this.answering.signal.aborted) this.page.notice("The model ended its answer before the first word.");
    } catch (error) {
      this.page.complain(error);
    }
    message.note = timer.text() + (this.answering.signal.aborted ? ", stopped" : message.cut ? ", cut off at the length limit" : "");
    this.answering = null;
    cancelAnimationFrame(this.drawing);
    this.drawing = null;
    byId("speed").textContent = "";
    this.speak(message.content ? `The model answered: ${render(message.content).textContent.trim()}` : "No answer");
    if (!message.content) chat.messages.pop();
    this.chats.save(chat);
    if (row.isConnected && message.content) this.finish(row);
    else this.show();
    if (this.page.engine.loaded) this.settings.picture();
  }

  /** The whole answer where it was written, so that what is marked or focused elsewhere stays. */
  finish(row) {
    row.replaceWith(this.row(this.messages.length - 1));
    if (this.atEnd) this.toEnd();
    this.buttons();
    this.count();
  }

  /** What the model is given to answer: {messages}, or {prompt}. */
  request(messages) {
    const system = this.settings.system();
    const said = messages.map(({ role, content }) => ({ role, content }));
    if (system) said.unshift({ role: "system", content: system });
    if (!this.plain) return { messages: said };
    return { prompt: said.reduce((text, { role, content }) => (role === "user" && text ? `${text}\n${content}` : text + content), "") };
  }

  /** At most once a frame, however fast tokens come. */
  draw(body, message, timer) {
    if (this.drawing) return;
    this.drawing = requestAnimationFrame(() => {
      this.drawing = null;
      body.replaceChildren(render(message.content));
      byId("speed").textContent = timer.text();
      this.fill(this.counted + timer.times.length);
      if (this.atEnd) this.toEnd();
    });
  }

  buttons() {
    keepingPlace(() => {
      byId("send").hidden = Boolean(this.answering);
      byId("stop").hidden = !this.answering;
      byId("send").disabled = !this.page.engine.loaded;
    }, () => this.prompt);
  }

  async count() {
    const messages = this.answering ? this.messages.slice(0, -1) : this.messages;
    const known = this.page.engine.loaded && this.messages.length;
    this.counted = known ? await this.page.engine.countTokens(this.request(messages)).catch(() => 0) : 0;
    this.fill(this.counted);
  }

  /** The context meter. */
  fill(tokens) {
    const { loaded } = this.page.engine;
    const meter = byId("context");
    meter.max = loaded?.context ?? 1;
    meter.value = tokens;
    byId("context-label").hidden = !loaded;
    byId("context-text").textContent = loaded ? `${tokens} of ${loaded.context} tokens` : "";
  }
}

/** When the tokens of an answer came. */
class Timer {
  constructor() {
    this.began = performance.now();
    this.times = [];
    this.usage = null;
  }

  token() { this.times.push(performance.now()); }

  get first() { return this.times.length ? (this.times[0] - this.began) / 1000 : null; }

  /** Tokens a second after the first. */
  get rate() {
    const tokens = (this.usage?.completion_tokens ?? this.times.length) - 1;
    const seconds = (this.times.at(-1) - this.times[0]) / 1000;
    return tokens > 0 && seconds > 0 ? tokens / seconds : null;
  }

  text() {
    const parts = [];
    if (this.rate) parts.push(`${this.rate.toFixed(1)} tokens/s`);
    if (this.first !== null) parts.push(`first after ${this.first.toFixed(1)} s`);
    return parts.join(", ");
  }
}
