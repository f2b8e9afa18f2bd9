// The chat page: puts its parts together. Each part owns one region of index.html.

import { Engine } from "../engine/engine.js";
import { Chats } from "./chats.js";
import { Conversation } from "./conversation.js";
import { Models } from "./models.js";
import { Settings } from "./settings.js";
import { byId, describe, drawer, element, keepingPlace } from "./dom.js";

const engine = new Engine();
const status = byId("status");
const problem = byId("problem");

const page = {
  engine,
  /** `end` is seen however long `text` is. */
  say(text, end = "") {
    status.title = text + end;
    status.replaceChildren(element("span", {}, text), element("span", {}, end));
  },

  /** What went wrong, in words, with a way on: {text, run}. null takes the words away. */
  complain(error, way) {
    keepingPlace(() => {
      problem.hidden = !error;
      problem.replaceChildren(...error ? [element("span", {}, describe(error))] : []);
    }, () => byId("prompt"));
    if (error && way) problem.append(element("button", { type: "button", onclick: () => { page.complain(null); way.run(); } }, way.text));
    if (error) problem.append(element("button", { type: "button", class: "icon", "aria-label": "Dismiss", onclick: () => page.complain(null) }, "×"));
  },

  /** What goes on differently than asked for, or a question; null takes the words away. */
  notice(text, ...ways) {
    keepingPlace(() => {
      byId("notice").hidden = !text;
      byId("notice").replaceChildren(...text ? [element("span", {}, describe(text))] : []);
    }, () => byId("prompt"));
    byId("notice").append(...ways.map(({ text, run }) => element("button", { type: "button", onclick: () => { page.notice(null); run(); } }, text)));
  },

  /** What runs where. */
  running() {
    const info = engine.loaded;
    if (info) page.say(models.nameOf(info), ` on ${info.backend === "webgpu" ? info.adapter : "NumPy"}`);
    else page.say("no model open");
  },

  /** After a model was opened or closed. */
  changed() {
    const info = engine.loaded;
    page.running();
    settings.show(info);
    conversation.plain = false;
    conversation.show();
  },

  greeted: null, // a promise: it is known how the open model can be asked

  greet({ again = false } = {}) {
    const greeted = page.tryOut(again, () => page.greeted === greeted);
    return (page.greeted = greeted);
  },

  /** Whether the open model can chat: it may lack a template, or a tokenizer. Nothing is said of one that gave way
   *  to another meanwhile; nor `again`, over why another could not be opened. */
  async tryOut(again, current) {
    const content = "Hello";
    try {
      await engine.countTokens({ messages: [{ role: "user", content }] });
    } catch {
      try {
        await engine.countTokens({ prompt: content });
        if (!current()) return;
        conversation.plain = true;
        page.notice("This model has no chat template: it goes on with your text instead of answering it.");
      } catch (error) {
        if (current() && !again) page.complain(`this model cannot be asked anything: ${error.message}`);
      }
    }
  },

  /** A model or a chat was picked. Where fingers type, a keyboard would cover half the page. */
  toChat() {
    closeMenu();
    if (byId("settings").contains(document.activeElement) || matchMedia("(pointer: coarse)").matches) return;
    byId("prompt").focus();
  },
};

const settings = new Settings(page);
const chats = new Chats(page);
const conversation = new Conversation(page, chats, settings);
page.chats = chats;
const models = new Models(page, settings);
chats.onTurn = () => { conversation.stop(); conversation.show(); };
chats.onOpen = () => page.toChat();
chats.onRemove = chat => page.notice(`The chat “${chat.title}” was deleted`, { text: "Undo", run: () => chats.restore(chat) });
settings.onBackend = () => models.reopen();
engine.onnotice = text => { page.notice(text); page.running(); settings.show(engine.loaded); };
engine.onpicture = picture => settings.draw(picture);
page.listed = () => conversation.welcomeAgain();
page.nearest = () => models.nearest;
page.stop = () => conversation.stop();
page.onNumPy = () => settings.choose("oracle");

const closeMenu = drawer("menu", "sidebar");
drawer("settings-button", "settings");
window.zllm = { engine, page }; // for the console and for tests

conversation.show();
models.refresh();
engine.ready().then(({ seconds }) => {
  if (!engine.loaded) page.say(`ready after ${seconds.toFixed(1)} s: open a model`);
  document.body.dataset.ready = seconds;
}, error => { page.say("the engine did not start"); page.complain(error); });
