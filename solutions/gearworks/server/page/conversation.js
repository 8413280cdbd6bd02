// The conversation: questions, answers, and going back to any of them.

import { Answer } from "/page/answer.js";
import { button, copy, make } from "/page/elements.js";
import { MarkdownView } from "/page/markdown.js";
import { notice } from "/page/notice.js";
import { answerTo, Trouble } from "/page/server.js";

const NEAR = 60;                    // pixels from the end that count as being there
const REST = 3;                     // after drawing for so long, wait this many times as long

export class Conversation {
  #turns = [];
  #running = null;                  // { abort, turn } of the answer that is coming
  #following = true;

  // scroller: what scrolls `log`. model: asks the server for the model's name. tell: says a
  // sentence to those who do not see the page. changed: called when an answer begins or ends.
  // inspect: shows an answer's tokens. drawn: called with an answer that has just been drawn.
  constructor({ log, scroller, settings, model, tell, changed, inspect, drawn }) {
    Object.assign(this, { log, scroller, settings, model, tell, changed, inspect, drawn });
    new ResizeObserver(() => this.#following && this.toEnd()).observe(scroller);
    scroller.addEventListener("scroll", () => {
      this.#following = this.atEnd;
      changed();
    }, { passive: true });
    log.addEventListener("click", (event) => {
      const pressed = event.target.closest(".copy-code");
      if (!pressed) return;
      this.#copied(pressed, pressed.closest(".code").querySelector("code").textContent);
    });
  }

  get isRunning() { return this.#running !== null; }
  get isEmpty() { return this.#turns.length === 0; }
  get latest() { return this.#turns.at(-1)?.answer ?? null; }

  get atEnd() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    return scrollHeight - scrollTop - clientHeight < NEAR;
  }

  toEnd() {
    this.#following = true;
    this.scroller.scrollTop = this.scroller.scrollHeight;
  }

  say(text) {
    const turn = this.#turnOf(text);
    this.#turns.push(turn);
    this.log.append(turn.question, turn.reply);
    this.toEnd();
    return this.#answer(turn);
  }

  stop() {
    this.#running?.abort.abort();
  }

  clear() {
    this.stop();
    this.#cutFrom(0);
    this.changed();
  }

  // --- the parts of a turn

  #turnOf(text) {
    const turn = { text, answer: null, drawing: 0 };
    turn.question = make("article", { class: "turn you", "aria-label": "You" });
    turn.reply = make("article", { class: "turn reply", "aria-label": "Model",
                                   tabindex: "-1" });
    this.#showQuestion(turn);
    return turn;
  }

  #showQuestion(turn) {
    turn.question.replaceChildren(
      make("p", { class: "who", "aria-hidden": "true" }, "You"),
      make("div", { class: "body" },
        make("div", { class: "said", dir: "auto" }, turn.text),
        make("div", { class: "actions" },
          button("Edit", { class: "quiet" }, () => this.#edit(turn)),
          button("Copy", { class: "quiet" },
                 (event) => this.#copied(event.currentTarget, turn.text)))));
  }

  // Edited and sent, the conversation continues from here: what came after is gone.
  #edit(turn) {
    const field = make("textarea", {
      class: "rewrite", dir: "auto", "aria-label": "Your message",
      rows: Math.min(12, turn.text.split("\n").length + 1) });
    field.value = turn.text;
    const back = () => {
      this.#showQuestion(turn);
      turn.question.querySelector("button").focus();
    };
    const form = make("form", { class: "body" }, field,
      make("div", { class: "actions" },
        make("button", { type: "submit", class: "main" }, "Send"),
        button("Cancel", { class: "quiet" }, back),
        make("span", { class: "about" }, "What follows this message is answered anew.")));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (!field.value.trim()) return;
      turn.text = field.value.trim();
      this.#showQuestion(turn);
      turn.question.querySelector("button").focus();
      this.#answer(turn);
    });
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        back();
      } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        form.requestSubmit();
      }
    });
    turn.question.querySelector(".body").replaceWith(form);
    field.focus();
  }

  #showReply(turn) {
    const markdown = make("div", { class: "markdown" });
    turn.view = new MarkdownView(markdown);
    turn.summary = make("p", { class: "summary" });
    turn.after = make("div", { class: "after" });
    turn.reply.replaceChildren(
      make("p", { class: "who", "aria-hidden": "true" }, "Model"),
      make("div", { class: "body" }, markdown, turn.after, turn.summary));
    turn.reply.setAttribute("aria-busy", "true");
  }

  #finishReply(turn) {
    const { answer } = turn;
    turn.reply.removeAttribute("aria-busy");
    turn.after.replaceChildren();
    const again = () => {
      turn.reply.focus({ preventScroll: true });               // what had it will be gone
      this.#answer(turn);
    };
    if (answer.trouble) turn.after.append(notice(answer.trouble, again));
    else if (!answer.text) turn.after.append(make("p", { class: "about" }, "An empty answer."));
    const actions = make("div", { class: "actions" });
    if (answer.text) {
      actions.append(button("Copy", { class: "quiet" },
                            (event) => this.#copied(event.currentTarget, answer.text)));
    }
    if (!answer.trouble) {
      actions.append(button("Regenerate", { class: "quiet again" }, again));
    }
    if (answer.tokens.length) {
      actions.append(button("Tokens", { class: "quiet" }, () => this.inspect(answer)));
    }
    turn.summary.textContent = answer.summary;
    turn.summary.after(actions);
  }

  async #copied(pressed, text) {
    const before = pressed.textContent;
    const done = await copy(text) ? "Copied" : "Not copied";
    this.tell(done);
    if (before === done) return;
    pressed.textContent = done;
    setTimeout(() => { pressed.textContent = before; }, 1500);
  }

  #cutFrom(index) {
    for (const { question, reply } of this.#turns.splice(index)) {
      question.remove();
      reply.remove();
    }
  }

  // --- asking

  // What the model reads. A question that got no answer is left out: templates want turns.
  #messages(turn) {
    const earlier = this.#turns.slice(0, this.#turns.indexOf(turn))
      .filter(({ answer }) => answer.text)
      .flatMap(({ text, answer }) => [{ role: "user", content: text },
                                      { role: "assistant", content: answer.text }]);
    const system = this.settings.system.trim();
    return [...(system ? [{ role: "system", content: system }] : []), ...earlier,
            { role: "user", content: turn.text }];
  }

  async #answer(turn) {
    this.stop();
    this.#cutFrom(this.#turns.indexOf(turn) + 1);
    const abort = new AbortController();
    const running = { abort, turn };
    const answer = new Answer(turn.text);
    turn.answer = answer;
    this.#running = running;
    this.#showReply(turn);
    this.tell("Answering.");
    this.changed();
    const draw = this.#drawing(turn, answer);
    draw();
    try {
      this.modelName ??= await this.model();
      const body = { model: this.modelName, messages: this.#messages(turn), stream: true,
                     logprobs: true, top_logprobs: 5, stream_options: { include_usage: true },
                     ...this.settings.parameters };
      const { id, chunks } = await answerTo(body, abort.signal);
      answer.id = id;
      draw();
      for await (const chunk of chunks) {
        if (abort.signal.aborted) break;
        answer.take(chunk);
        draw();
      }
      answer.state = abort.signal.aborted ? "stopped" : "done";
    } catch (error) {
      answer.state = abort.signal.aborted ? "stopped" : "failed";
      if (answer.state === "failed") {
        answer.trouble = inWords(error);
        this.modelName = null;                                 // it may be another server now
      }
    }
    // another answer may have taken the place of this one
    if (turn.answer === answer && this.#turns.includes(turn)) {
      draw();
      this.#finishReply(turn);
      if (this.#following) this.toEnd();
    }
    if (this.#running === running) {
      this.#running = null;
      if (!answer.trouble) this.tell(endInWords(answer));
      this.changed();
    }
  }

  // A function that draws what has come, with the next frame at the latest or, once the answer
  // has ended, at once.
  #drawing(turn, answer) {
    const { view } = turn;
    let due = 0;
    let wait = 0;
    const now = () => {
      due = 0;
      if (turn.answer !== answer) return;
      const began = performance.now();
      view.update(answer.text, answer.isRunning);
      if (answer.isRunning) turn.summary.textContent = answer.summary;
      turn.reply.classList.toggle("waiting", answer.state === "waiting");
      turn.reply.classList.toggle("streaming", answer.isRunning);
      this.drawn(answer);
      if (this.#following) this.scroller.scrollTop = this.scroller.scrollHeight;
      wait = began + (1 + REST) * (performance.now() - began);
    };
    const later = () => {
      due = requestAnimationFrame(
        (time) => (time < wait && answer.isRunning ? later() : now()));
    };
    return () => {
      if (!answer.isRunning) {
        cancelAnimationFrame(due);
        now();
      } else if (!due) {
        later();
      }
    };
  }
}

function inWords(error) {
  if (error instanceof Trouble) return error;
  return new Trouble("The server’s answer was not what this page expects.",
                     `Reload the page, then try again. (${error.message})`);
}

// A short answer is read out as a whole when it is there; of a long one, that it is there.
function endInWords(answer) {
  if (answer.state === "stopped") return "Stopped.";
  return answer.text.length < 400 ? `Answer: ${answer.text}`
    : `The answer is there, ${answer.tokens.length || "many"} tokens.`;
}
