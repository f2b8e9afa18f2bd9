// The chat page: puts its parts together. Each part owns one region of index.html.

import { Engine } from "../engine/engine.js";
import { Chats } from "./chats.js";
import { Conversation } from "./conversation.js";
import { Models } from "./models.js";
import { Settings } from "./settings.js";
import { byId, describe, drawer } from "./dom.js";

const engine = new Engine();
const status = byId("status");
const problem = byId("problem");

const page = {
  engine,
  say(text) { status.textContent = text; },

  /** What went wrong, in words; null takes the words away. */
  complain(error) {
    problem.hidden = !error;
    problem.textContent = error ? describe(error) : "";
  },

  /** After a model was opened or closed. */
  changed() {
    const info = engine.loaded;
    page.say(info ? `${models.nameOf(info)} on ${info.backend === "webgpu" ? info.adapter : "NumPy"}` : "no model open");
    settings.show(info);
    conversation.show();
  },
};

const settings = new Settings(page);
const chats = new Chats(page);
const conversation = new Conversation(page, chats, settings);
const models = new Models(page, settings);
chats.onOpen = () => conversation.show();
settings.onBackend = () => models.reopen();

drawer("menu", "sidebar");
drawer("settings-button", "settings");
window.zllm = { engine, page }; // for the console and for tests

conversation.show();
models.refresh();
engine.ready().then(({ seconds }) => {
  if (!engine.loaded) page.say(`ready after ${seconds.toFixed(1)} s: open a model`);
  document.body.dataset.ready = seconds;
}, error => { page.say("the engine did not start"); page.complain(error); });
