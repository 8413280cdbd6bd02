// The inside, live: a panel beside the conversation, or a sheet over it where there is no room.
// Closed, it has no connection and draws nothing.

import { Colours } from "/page/drawing.js";
import { button, byId, make } from "/page/elements.js";
import { events } from "/page/events.js";
import { History } from "/page/history.js";
import { Pool } from "/page/pool.js";
import { ask, Trouble } from "/page/server.js";
import { Timeline } from "/page/timeline.js";
import { TokenView } from "/page/tokens.js";

const NARROW = matchMedia("(max-width: 62rem)");
const QUIET = 15000;                // milliseconds without a step, after which the engine rests
const WAITS = [250, 500, 1000, 2000, 4000, 8000];         // milliseconds before trying again

export class Inside {
  #panel = byId("inside");
  #history = new History();
  #feed = null;                     // the AbortController of the connection
  #due = 0;
  #resting = 0;
  #answer = null;
  #parts;
  #figures = {};
  #status = make("p", { class: "about" });

  constructor() {
    this.#parts = this.#made();
    new ResizeObserver(() => this.paint()).observe(this.#panel);
    NARROW.addEventListener("change", () => this.#asSheet());
    byId("scrim").addEventListener("click", () => this.close());
  }

  get isOpen() { return !this.#panel.hidden; }
  get isSheet() { return this.isOpen && NARROW.matches; }

  // Shows the tokens of an answer, if there is one, beside what the engine does.
  open(answer) {
    const wasOpen = this.isOpen;
    if (answer) this.#follow(answer);
    if (wasOpen) {
      this.#parts.tokenSection.scrollIntoView({ block: "nearest" });
      return;
    }
    this.#panel.hidden = false;
    byId("inside-button").setAttribute("aria-expanded", "true");
    this.#asSheet();
    this.#panel.focus({ preventScroll: true });
    this.#connect();
    this.#showTokens();
    this.paint();
  }

  close() {
    this.#panel.hidden = true;
    byId("inside-button").setAttribute("aria-expanded", "false");
    this.#asSheet();
    this.#feed?.abort();
    this.#feed = null;
    clearTimeout(this.#resting);
    byId("inside-button").focus();
  }

  // An answer grows. While the panel is closed, only its name is noted.
  follow(answer) {
    if (answer.id) this.#history.own.add(answer.id);
    if (!this.isOpen) return;
    if (answer.isRunning || answer === this.#answer) this.#follow(answer);
  }

  forget() {
    this.#answer = null;
    this.#showTokens();
  }

  #follow(answer) {
    this.#answer = answer;
    if (answer.id) this.#history.own.add(answer.id);
    this.#showTokens();
  }

  #showTokens() {
    if (this.isOpen) this.#parts.tokens.show(this.#answer);
  }

  // As a sheet it covers the rest, which is out of reach then.
  #asSheet() {
    byId("scrim").hidden = !this.isSheet;
    for (const element of [byId("main"), document.querySelector(".bar")]) {
      element.inert = this.isSheet;
    }
  }

  // --- the feed

  async #connect() {
    const feed = this.#feed = new AbortController();
    for (let tries = 0; !feed.signal.aborted; tries += 1) {
      try {
        const response = await ask("/inside", { signal: feed.signal });
        this.#status.textContent = "";
        for await (const data of events(response)) {
          tries = 0;
          this.#history.add(JSON.parse(data));
          this.#paintSoon();
        }
      } catch (error) {
        if (feed.signal.aborted) return;
        this.#status.textContent = error instanceof Trouble
          ? `The engine’s steps are not to be had just now. ${error.what}` : "";
      }
      await new Promise((done) => {
        const timer = setTimeout(done, WAITS[Math.min(tries, WAITS.length - 1)]);
        feed.signal.addEventListener("abort", () => { clearTimeout(timer); done(); });
      });
    }
  }

  // --- drawing

  #paintSoon() {
    clearTimeout(this.#resting);
    this.#resting = setTimeout(() => this.#tellNumbers(true),
                               this.#history.isAtRest ? 500 : QUIET);
    this.#due ||= requestAnimationFrame(() => {
      this.#due = 0;
      this.#draw();
    });
  }

  // Anew in every respect: the size or the colours may have changed.
  paint() {
    this.#parts.colours.forget();
    this.#draw();
  }

  #draw() {
    if (!this.isOpen) return;
    this.#parts.timeline.paint();
    this.#parts.pool.paint();
    this.#tellNumbers(false);
  }

  #tellNumbers(resting) {
    const { last, cached, computed, tokensPerSecond } = this.#history;
    const prompt = cached + computed;
    const busy = last && !resting;
    const tell = (name, value, unit) => {
      this.#figures[name].value.textContent = value;
      this.#figures[name].unit.textContent = unit;
    };
    tell("speed", busy ? tokensPerSecond.toFixed(1) : "–", resting ? "at rest" : "tokens/s");
    tell("running", busy ? last.rows.length : "–", "running");
    tell("waiting", busy ? last.waiting : "–", "waiting");
    tell("cached", prompt ? `${Math.round(100 * cached / prompt)} %` : "–", "from the cache");
    this.#figures.cached.value.parentElement.title =
      `${cached} of ${prompt} prompt tokens, while this panel was open`;
  }

  #made() {
    const figures = make("dl", { class: "figures" });
    for (const name of ["speed", "running", "waiting", "cached"]) {
      const value = make("dd");
      const unit = make("dt");
      this.#figures[name] = { value, unit };
      figures.append(make("div", {}, unit, value));
    }
    const colours = new Colours(this.#panel);
    const section = (id, title, ...more) => make("section", { "aria-labelledby": id },
      make("h3", { id }, title), ...more);
    const about = (text) => make("p", { class: "about" }, text);
    const swatch = (kind) => make("span", { class: `swatch ${kind}`, "aria-hidden": "true" });
    const legend = (...entries) => make("ul", { class: "legend" },
      ...entries.map(([kind, words]) => make("li", {}, swatch(kind), words)));
    const batch = make("div");
    const blocks = make("div");
    const tokens = make("div");
    const tokenSection = section("inside-tokens", "Tokens", tokens);
    this.#panel.append(
      make("div", { class: "inside-head" },
           make("h2", { id: "inside-title" }, "The inside, live"),
           button("Close", { class: "quiet" }, () => this.close())),
      this.#status, figures, tokenSection,
      section("inside-batch", "Batch",
              about("A column is one step of the engine, a lane one answer."), batch,
              legend(["prompt", "piece of a prompt"], ["decode", "one token"],
                     ["guess", "guesses checked"], ["preempt", "preempted"])),
      section("inside-pool", "Blocks",
              about("Where keys and values lie, each block for the same number of tokens."),
              blocks,
              legend(["held", "in use"], ["fold", "shared"], ["kept", "kept"],
                     ["hollow", "empty"])));
    return { colours, tokenSection, tokens: new TokenView(tokens),
             timeline: new Timeline(batch, this.#history, colours),
             pool: new Pool(blocks, this.#history, colours) };
  }
}
