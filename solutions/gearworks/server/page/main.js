// The page as a whole: the message field, the keys, and who tells whom what.

import { Conversation } from "/page/conversation.js";
import { button, byId } from "/page/elements.js";
import { Inside } from "/page/inside.js";
import { notice } from "/page/notice.js";
import { modelName, Trouble } from "/page/server.js";
import { Settings } from "/page/settings.js";
import { offerThemes } from "/page/theme.js";

const BEGINNINGS = [
  "Why is the sky blue? Answer in two sentences.",
  "Write a short poem about gears.",
  "List three uses of a hash table, as a table.",
];

const field = byId("message");
const inside = new Inside();
const settings = new Settings(() => meet());
const conversation = new Conversation({
  log: byId("log"), scroller: byId("scroller"), settings, model,
  tell: (text) => { byId("announcer").textContent = text; },
  changed: show,
  inspect: (answer) => inside.open(answer),
  drawn: (answer) => inside.follow(answer),
});

function show() {
  const { isRunning } = conversation;
  byId("send").setAttribute("aria-label", isRunning ? "Stop" : "Send");
  byId("send").classList.toggle("stop", isRunning);
  byId("send").setAttribute("aria-disabled", String(!isRunning && !field.value.trim()));
  byId("welcome").hidden = !conversation.isEmpty;
  byId("latest").hidden = conversation.isEmpty || conversation.atEnd;
}

function send(text) {
  if (conversation.isRunning || !text.trim()) return;
  field.value = "";
  fit();
  conversation.say(text.trim());
  field.focus();
}

// The field is as high as its text, within limits that the style sheet sets.
function fit() {
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight}px`;
}

async function model() {
  const name = await modelName();
  byId("model").textContent = name;
  return name;
}

// Which model is here; or what to do so that one is.
async function meet() {
  const notices = byId("welcome").querySelectorAll(".notice");
  if (notices.length) field.focus();                        // not lost with what is removed
  notices.forEach((one) => one.remove());
  try {
    conversation.modelName = await model();
  } catch (error) {
    const trouble = error instanceof Trouble ? error
      : new Trouble("This is not the server that the page expects.", "Reload the page.");
    byId("welcome").append(notice(trouble, meet));
  }
  settings.showKey();
}

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  if (conversation.isRunning) conversation.stop();
  else send(field.value);
});
field.addEventListener("input", () => {
  fit();
  show();
});
field.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send(field.value);
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || byId("settings").open) return;
  if (inside.isSheet) inside.close();
  else conversation.stop();
});
byId("new").addEventListener("click", () => {
  conversation.clear();
  inside.forget();
  field.focus();
});
byId("latest").addEventListener("click", () => {
  conversation.toEnd();
  field.focus();
});
byId("inside-button").addEventListener("click", () => {
  if (inside.isOpen) inside.close();
  else inside.open(conversation.latest);
});
for (const text of BEGINNINGS) {
  const item = document.createElement("li");
  item.append(button(text, {}, () => send(text)));
  byId("prompts").append(item);
}

offerThemes(() => inside.paint());
show();
fit();
meet();
if (matchMedia("(pointer: fine)").matches) field.focus();
