// An answer as its tokens: their borders, how likely each was, and what else was likely.

import { make } from "/page/elements.js";

// From here on upwards a token is this likely; the words are the legend's.
const LIKELY = [[0.9, "90 % and more"], [0.5, "50 %"], [0.2, "20 %"], [0.05, "5 %"],
                [0, "less"]];

const AT_ONCE = 400;                // tokens that are drawn in one frame

export class TokenView {
  #answer = null;
  #drawn = 0;                       // so many of the answer's tokens are on the page
  #lineIsFull = false;
  #chosen = null;
  #pointed = null;
  #told = null;                     // the least expected token, while it is on show
  #box;
  #about;
  #more;

  constructor(element) {
    this.#about = make("p", { class: "about" });
    this.#box = make("div", { class: "tokens", role: "listbox", tabindex: "0",
                              "aria-label": "Tokens of the answer" });
    this.#more = make("div", { class: "alternatives" });
    const legend = make("ul", { class: "legend" }, ...LIKELY.map(([, words], i) =>
      make("li", {}, make("span", { class: `swatch likely-${i}`, "aria-hidden": "true" }),
           words)));
    element.append(this.#about, this.#box, legend, this.#more);
    this.#listen();
    this.show(null);
  }

  // Begins with another answer; or draws what has come of the same one.
  show(answer) {
    if (answer !== this.#answer || !answer) {
      this.#answer = answer;
      this.#drawn = 0;
      this.#chosen = null;
      this.#box.replaceChildren();
      this.#box.hidden = true;
      this.#pointed = null;
      this.#told = null;
      this.#box.tabIndex = 0;
      this.#tell(null);
    }
    if (!answer) {
      this.#about.textContent = "Send a message, and its answer is here token by token.";
      return;
    }
    const stay = this.#box.scrollHeight - this.#box.scrollTop - this.#box.clientHeight > 40;
    const until = this.#drawn + AT_ONCE;
    const isLast = answer.tokens.length <= until;
    for (const group of groups(answer.tokens.slice(this.#drawn, until),
                               isLast && !answer.isRunning)) this.#append(group);
    if (!isLast) requestAnimationFrame(() => this.#answer === answer && this.show(answer));
    if (!stay) this.#box.scrollTop = this.#box.scrollHeight;
    this.#box.hidden = this.#drawn === 0;
    this.#about.textContent = about(answer);
    if (!this.#pointed) this.#tell(null);
  }

  // A line of the text is an element, so that a long answer is not laid out as a whole again.
  #append(group) {
    if (!this.#box.lastChild || this.#lineIsFull) {
      this.#box.append(make("div", { class: "line", role: "presentation", dir: "auto" }));
    }
    this.#box.lastChild.append(this.#group(group));
    this.#lineIsFull = bytesOf(group.at(-1)).at(-1) === 10;
  }

  // One token is a box; tokens that share a character are a box each after that character.
  #group(group) {
    const at = this.#drawn;
    this.#drawn += group.length;
    if (group.length === 1) return this.#token(group[0], at);
    const shared = new TextDecoder().decode(joined(group));
    return make("span", { class: "shared", role: "group", "aria-label": `Together ${shared}` },
      make("span", { class: "whole", "aria-hidden": "true" }, shared.trim()),
      ...group.map((token, i) => this.#token(token, at + i)));
  }

  #token(token, at) {
    const text = spelled(bytesOf(token));
    const visible = breaksShown(text);
    return make("span", {
      class: `token likely-${likelyOf(token)}`, role: "option", tabindex: "-1", "data-at": at,
      "aria-selected": "false", "aria-label": `${named(text)}, ${percent(token.logprob)}`,
    }, /^[\p{M}\u200d]/u.test(visible) ? `◌${visible}` : visible);
  }

  #listen() {
    const tokenAt = (event) => event.target.closest?.(".token");
    this.#box.addEventListener("pointerover", (event) => {
      const token = tokenAt(event);
      if (token && event.pointerType === "mouse") this.#tell(token);
    });
    this.#box.addEventListener("pointerleave", () => this.#tell(this.#chosen));
    this.#box.addEventListener("click", (event) => {
      const token = tokenAt(event);
      if (token) this.#choose(token);
    });
    this.#box.addEventListener("focus", () => {
      const first = this.#chosen ?? this.#box.querySelector(".token");
      if (first) this.#choose(first);
    });
    this.#box.addEventListener("keydown", (event) => {
      const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10,
                      Home: -Infinity, End: Infinity };
      if (!(event.key in steps) || !this.#chosen) return;
      event.preventDefault();
      const all = this.#box.querySelectorAll(".token");
      const next = Number(this.#chosen.dataset.at) + steps[event.key];
      this.#choose(all[Math.max(0, Math.min(all.length - 1, next))]);
    });
  }

  // The chosen token keeps its alternatives on show, and is the one that Tab comes to.
  #choose(token) {
    this.#chosen?.setAttribute("aria-selected", "false");
    if (this.#chosen) this.#chosen.tabIndex = -1;
    this.#chosen = token;
    this.#box.tabIndex = -1;
    token.tabIndex = 0;
    token.setAttribute("aria-selected", "true");
    token.setAttribute("aria-label", inWords(this.#answer.tokens[token.dataset.at]));
    token.focus({ preventScroll: false });
    this.#tell(token);
  }

  // The alternatives of a token; without one, of that which the model expected least.
  #tell(element) {
    this.#pointed = element;
    const tokens = this.#answer?.tokens ?? [];
    const token = element ? tokens[element.dataset.at] : leastExpected(tokens);
    if (!element && token && token === this.#told) return;
    this.#told = element ? null : token;
    if (!token) {
      this.#more.replaceChildren();
      return;
    }
    const rows = choices(token).map(({ text, logprob, chosen }) => {
      const bar = make("span", { class: "bar-of" });
      bar.style.width = `${Math.max(0.5, 100 * Math.exp(logprob))}%`;
      return make("li", chosen ? { class: "taken" } : {},
        make("span", { class: "text", dir: "auto" }, spacesShown(text)),
        make("span", { class: "track", "aria-hidden": "true" }, bar),
        make("span", { class: "share" }, percent(logprob)),
        make("span", { class: "note" }, chosen ? "taken" : ""));
    });
    this.#more.replaceChildren(
      make("p", { class: "about" }, element ? `Token ${Number(element.dataset.at) + 1}`
        : `Least expected of all: token ${tokens.indexOf(token) + 1}. Point at another.`),
      make("ol", { "aria-label": "Alternatives" }, ...rows));
  }
}

function about(answer) {
  const count = answer.tokens.length;
  if (!count && answer.isRunning) return "The first token is on its way.";
  if (!count) return "This answer has no tokens to show.";
  const mean = answer.tokens.reduce((sum, token) => sum + token.logprob, 0) / count;
  const unlikely = answer.tokens.filter((token) => Math.exp(token.logprob) < 0.2).length;
  const perplexity = Math.exp(-mean).toFixed(2);
  return `${count} ${count === 1 ? "token" : "tokens"}, perplexity ${perplexity}; `
    + `${unlikely} of them less likely than 20 %.`;
}

const leastExpected = (tokens) => tokens.reduce(
  (least, token) => (least && least.logprob <= token.logprob ? least : token), undefined);

// The likeliest tokens, best first, with the one that was taken even if it is not among them.
function choices(token) {
  const own = bytesOf(token);
  const same = (other) => other.token === token.token && String(bytesOf(other)) === String(own);
  const found = (token.top_logprobs ?? []).map((other) =>
    ({ text: spelled(bytesOf(other)), logprob: other.logprob, chosen: same(other) }));
  if (!found.some(({ chosen }) => chosen)) {
    found.push({ text: spelled(own), logprob: token.logprob, chosen: true });
  }
  return found;
}

function inWords(token) {
  const others = choices(token).filter(({ chosen }) => !chosen)
    .map(({ text, logprob }) => `${named(text)} ${percent(logprob)}`);
  const instead = others.length ? `; also likely: ${others.join(", ")}` : "";
  return `${named(spelled(bytesOf(token)))}, ${percent(token.logprob)}${instead}`;
}

const named = (text) => (text.trim() ? `“${text.trim()}”` : spacesInWords(text));
const breaksShown = (text) => text.replaceAll("\n", "↵").replaceAll("\t", "→")
  .replaceAll("\r", "␍");
const spacesShown = (text) => breaksShown(text).replaceAll(" ", "·");

function spacesInWords(text) {
  if (text === "") return "nothing";
  return text.includes("\n") ? "line break" : "space";
}

function percent(logprob) {
  const share = 100 * Math.exp(logprob);
  if (share > 0 && share < 0.1) return "< 0.1 %";
  const isFine = share < 10 || (share > 99 && share < 99.95);
  return `${isFine ? share.toFixed(1) : Math.round(share)} %`;
}

const likelyOf = (token) => LIKELY.findIndex(([from]) => Math.exp(token.logprob) >= from);

// --- bytes and characters

const bytesOf = (token) => (token.bytes ? Uint8Array.from(token.bytes)
  : new TextEncoder().encode(token.token));
const joined = (tokens) => Uint8Array.from(tokens.flatMap((token) => [...bytesOf(token)]));

// Tokens in the shortest groups that begin and end between characters. The last ones are left
// out while their character may still be completed.
export function groups(tokens, ended) {
  const found = [];
  let group = [];
  for (const token of tokens) {
    group.push(token);
    if (!endsWithin(joined(group))) {
      found.push(group);
      group = [];
    }
  }
  if (ended && group.length) found.push(group);
  return found;
}

// Whether these bytes end within a character of UTF-8.
function endsWithin(bytes) {
  for (let back = 1; back <= Math.min(3, bytes.length); back += 1) {
    const byte = bytes[bytes.length - back];
    if ((byte & 0xc0) === 0x80) continue;
    return lengthFrom(byte) > back;
  }
  return false;
}

function lengthFrom(byte) {
  if (byte >= 0xf0 && byte < 0xf8) return 4;
  if (byte >= 0xe0 && byte < 0xf0) return 3;
  return byte >= 0xc0 && byte < 0xe0 ? 2 : 1;
}

// Text, with the bytes that make no character on their own as numbers.
export function spelled(bytes) {
  const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
  let text = "";
  for (let at = 0; at < bytes.length;) {
    const length = lengthFrom(bytes[at]);
    try {
      if (at + length > bytes.length) throw new TypeError("cut off");
      text += strict.decode(bytes.subarray(at, at + length));
      at += length;
    } catch {
      text += `‹${bytes[at].toString(16).toUpperCase().padStart(2, "0")}›`;
      at += 1;
    }
  }
  return text.replaceAll("›‹", " ");
}
