// The list of chats, kept across reloads.

import { byId, element, kept } from "./dom.js";

const MOST = 50;

/** Chats of this browser; an answer that a reload cut off before its first word is none. */
function stored() {
  const chats = kept.get("chats", []).filter(chat => Array.isArray(chat?.messages));
  for (const { messages } of chats) if (messages.at(-1)?.role === "assistant" && !messages.at(-1).content) messages.pop();
  return chats;
}

export class Chats {
  constructor() {
    this.all = stored();
    this.current = this.all.find(chat => chat.id === kept.get("chat", null)) ?? this.fresh();
    this.onOpen = () => {};
    byId("new-chat").addEventListener("click", () => this.open(this.fresh()));
    addEventListener("storage", ({ key }) => { if (key === "zllm.chats") { this.merge(); this.draw(); } }); // another tab's
    this.draw();
  }

  /** {id, title, messages: [{role, content, …}]}; kept once it holds something. */
  fresh() { return { id: crypto.randomUUID(), title: "New chat", messages: [] }; }

  open(chat) {
    this.current = chat;
    kept.set("chat", chat.id);
    this.draw();
    this.onOpen();
    byId("prompt").focus();
  }

  save() {
    const chat = this.current;
    const first = chat.messages.find(message => message.role === "user");
    if (first) chat.title = first.content.slice(0, 60);
    this.merge();
    if (chat.messages.length && !this.all.includes(chat)) this.all.unshift(chat);
    this.all.length = Math.min(this.all.length, MOST);
    while (!kept.set("chats", this.all) && this.all.length > 1) this.all.pop(); // the oldest make room
    kept.set("chat", chat.id);
    this.draw();
  }

  /** What another tab wrote since, but for the open chat. */
  merge() {
    const open = this.current;
    const held = this.all.includes(open);
    this.all = stored().map(chat => (chat.id === open.id ? open : chat));
    if (held && !this.all.includes(open)) this.all.unshift(open);
  }

  remove(chat) {
    this.merge();
    this.all = this.all.filter(other => other.id !== chat.id);
    kept.set("chats", this.all);
    if (chat.id === this.current.id) this.open(this.all[0] ?? this.fresh());
    else this.draw();
  }

  draw() {
    byId("chats").replaceChildren(...this.all.map(chat => element("li", { "aria-current": chat === this.current && "true" },
      element("button", { class: "name", onclick: () => this.open(chat), title: chat.title }, chat.title),
      element("button", { class: "icon", "aria-label": `Delete chat ${chat.title}`, onclick: () => this.remove(chat) }, "×"))));
  }
}
