// The list of chats, kept across reloads.

import { byId, element, kept, replaceRows } from "./dom.js";

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
    this.removed = new Set(); // ids: an answer on its way must not bring a chat back
    this.current = this.all.find(chat => chat.id === kept.get("chat", null)) ?? this.fresh();
    this.onTurn = () => {}; // another chat is the open one
    this.onOpen = () => {}; // by the visitor's wish
    this.onRemove = () => {};
    byId("new-chat").addEventListener("click", () => this.open(this.fresh()));
    addEventListener("storage", ({ key }) => { if (key === "zllm.chats") { this.merge(); this.draw(); } }); // another tab's
    this.draw();
  }

  /** {id, title, messages: [{role, content, …}]}; kept once it holds something. */
  fresh() { return { id: crypto.randomUUID(), title: "New chat", messages: [] }; }

  open(chat) {
    this.turn(chat);
    this.onOpen();
  }

  turn(chat) {
    this.current = chat;
    kept.set("chat", chat.id);
    this.draw();
    this.onTurn();
  }

  save(chat = this.current) {
    if (this.removed.has(chat.id)) return;
    const first = chat.messages.find(message => message.role === "user");
    if (first) chat.title = first.content.slice(0, 60);
    this.merge(chat);
    if (chat.messages.length && !this.all.includes(chat)) this.all.unshift(chat);
    this.all.length = Math.min(this.all.length, MOST);
    while (!kept.set("chats", this.all) && this.all.length > 1) this.all.pop(); // the oldest make room
    kept.set("chat", this.current.id);
    this.draw();
  }

  /** What another tab wrote since, but for the open chat and `saved`. */
  merge(saved = this.current) {
    const own = new Set([this.current, saved].filter(chat => this.all.includes(chat)));
    this.all = stored().map(chat => [...own].find(({ id }) => id === chat.id) ?? chat);
    for (const chat of own) if (!this.all.includes(chat)) this.all.unshift(chat);
  }

  remove(chat) {
    this.merge();
    this.removed.add(chat.id);
    this.all = this.all.filter(other => other.id !== chat.id);
    kept.set("chats", this.all);
    if (chat.id === this.current.id) this.turn(this.all[0] ?? this.fresh());
    else this.draw();
    this.onRemove(chat);
  }

  restore(chat) {
    this.removed.delete(chat.id);
    this.merge();
    this.all.unshift(chat);
    kept.set("chats", this.all);
    this.open(chat);
  }

  draw() {
    replaceRows(byId("chats"), this.all.map(chat => element("li", { "aria-current": chat === this.current && "true" },
      element("button", { class: "name", onclick: () => this.open(chat), title: chat.title }, chat.title),
      element("button", { class: "icon", "aria-label": `Delete chat ${chat.title}`, onclick: () => this.remove(chat) }, "×"))), byId("new-chat"));
  }
}
