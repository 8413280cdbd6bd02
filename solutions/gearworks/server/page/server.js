// What the page asks of the server, and what goes wrong with that, in words.

import { events } from "/page/events.js";
import { kept } from "/page/elements.js";

// what: a sentence. advice: what to try. needsKey: whether a key would help.
export class Trouble extends Error {
  constructor(what, advice, needsKey = false) {
    super(what);
    this.what = what;
    this.advice = advice;
    this.needsKey = needsKey;
  }
}

export const key = {
  get: () => kept.get("gearworks.key", "sessionStorage") ?? "",
  set: (value) => kept.set("gearworks.key", value, "sessionStorage"),
};

// The response, or a Trouble. An abort stays an AbortError.
export async function ask(path, { body, signal } = {}) {
  const headers = {};
  if (key.get()) headers.Authorization = `Bearer ${key.get()}`;
  if (body) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, { method: body ? "POST" : "GET", headers, signal,
                                   body: body && JSON.stringify(body), cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Trouble("The server cannot be reached.",
                      "See whether gearworks serve still runs, then try again.");
  }
  if (!response.ok) throw await troubleOf(response);
  return response;
}

export async function modelName() {
  const models = await (await ask("/v1/models")).json();
  return models.data[0].id;
}

// A streamed answer: the request's name, and its chunks as they come. They end with a Trouble
// where the stream ends before its [DONE].
export async function answerTo(body, signal) {
  const response = await ask("/v1/chat/completions", { body, signal });
  return { id: response.headers.get("X-Request-Id"), chunks: chunks(response) };
}

async function* chunks(response) {
  try {
    for await (const data of events(response)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw troubleIn(chunk.error, 500);
      yield chunk;
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof Trouble) throw error;
    throw lost();
  }
  throw lost();
}

const lost = () => new Trouble("The connection was lost before the answer ended.",
                               "What had come is kept. Try again for a whole answer.");

async function troubleOf(response) {
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch { /* not from our server, or cut short: the status says enough */ }
  return troubleIn(error, response.status, response.headers.get("Retry-After"));
}

function troubleIn({ message, param, code }, status, wait) {
  const said = message ? sentence(message) : `It answered with status ${status}.`;
  if (status === 401) {
    return new Trouble("The server wants an API key.",
                       "It is what was given to gearworks serve as --api-key.", true);
  }
  if (status === 429) {
    const when = wait ? `in ${wait} s` : "in a moment";
    return new Trouble(`The server has as much to do as it takes. ${said}`,
                       `Try again ${when}.`);
  }
  if (status === 400 && (code === "context_length_exceeded" || /context/.test(message))) {
    return new Trouble(said, "Begin a new conversation, shorten this one by editing an earlier "
                             + "message, or allow fewer tokens in Settings.");
  }
  if (status < 500) {
    const isSetting = param && !param.startsWith("messages");
    return new Trouble(`The server refused this. ${said}`,
                       isSetting ? `Change “${param}” in Settings, then try again.`
                         : "Edit the message, then try again.");
  }
  return new Trouble(`The server failed. ${said}`,
                     "Its terminal says more. What had come is kept; try again.");
}

const sentence = (text) => (/[.!?]$/.test(text) ? text : `${text}.`);
