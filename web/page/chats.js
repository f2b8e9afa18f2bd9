// The list of chats, kept across reloads.

import { byId, element, kept } from "./dom.js";

const MOST = 50;

export class Chats {
  constructor() {
    this.all = kept.get("chats", []).filter(chat => Array.isArray(chat?.messages));
    this.current = this.all.find(chat => chat.id === kept.get("chat", null)) ?? this.fresh();
    this.onOpen = () => {};
    byId("new-chat").addEventListener("click", () => this.open(this.fresh()));
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
    if (chat.messages.length && !this.all.includes(chat)) this.all.unshift(chat);
    this.all.length = Math.min(this.all.length, MOST);
    kept.set("chats", this.all);
    kept.set("chat", chat.id);
    this.draw();
  }

  remove(chat) {
    this.all = this.all.filter(other => other !== chat);
    kept.set("chats", this.all);
    if (chat === this.current) this.open(this.all[0] ?? this.fresh());
    else this.draw();
  }

  draw() {
    byId("chats").replaceChildren(...this.all.map(chat => element("li", { "aria-current": chat === this.current && "true" },
      element("button", { class: "name", onclick: () => this.open(chat), title: chat.title }, chat.title),
      element("button", { class: "icon", "aria-label": `Delete chat ${chat.title}`, onclick: () => this.remove(chat) }, "×"))));
  }
}
