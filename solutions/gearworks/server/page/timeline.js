// The batch over time: a lane a sequence, a column a step. A piece of a prompt is a tall box, a
// decoded token a short bar, a checked guess a dot above it; below, how long each step took.

import { cleared } from "/page/drawing.js";
import { make } from "/page/elements.js";
import { stepInWords } from "/page/history.js";

const COLUMN = 8;
const LANE = 20;
const LABEL = 62;
const CLOCK = 34;                   // the strip below
const LEAST_LANES = 2;              // the picture does not jump when a second request comes
const MOST_LANES = 64;

export class Timeline {
  #history;
  #colours;
  #canvas = make("canvas");
  #chosen = null;                   // the number of a step, or null for the latest
  #visible = [];
  #focusable;
  words = make("p", { class: "words" });

  constructor(element, history, colours) {
    this.#history = history;
    this.#colours = colours;
    this.#focusable = make("div", { class: "drawing", role: "slider", tabindex: "0",
                                    "aria-label": "Step of the batch" }, this.#canvas);
    element.append(this.#focusable, this.words);
    this.#focusable.addEventListener("pointermove", (event) => {
      const { left } = this.#canvas.getBoundingClientRect();
      this.#choose(Math.floor((event.clientX - left - LABEL) / COLUMN));
    });
    this.#focusable.addEventListener("pointerleave", () => this.#choose(null));
    this.#focusable.addEventListener("keydown", (event) => {
      const now = this.#visible.findIndex((step) => step.number === this.#chosen);
      const from = now < 0 ? this.#visible.length - 1 : now;
      const next = { ArrowLeft: Math.max(0, from - 1), ArrowRight: from + 1, Home: 0,
                     End: null }[event.key];              // beyond the last one: the latest
      if (next === undefined) return;
      event.preventDefault();
      this.#choose(next);
    });
  }

  #choose(column) {
    this.#chosen = column === null ? null : this.#visible[column]?.number ?? null;
    this.paint();
  }

  paint() {
    const width = this.#focusable.clientWidth;
    if (!width) return;
    const history = this.#history;
    const steps = history.steps.slice(-Math.max(1, Math.floor((width - LABEL) / COLUMN)));
    const lanes = history.lanes(steps).slice(0, MOST_LANES);
    this.#visible = steps;
    const height = LANE * Math.max(LEAST_LANES, lanes.length) + CLOCK;
    const pen = cleared(this.#canvas, width, height);
    this.#drawColumn(pen, height);
    lanes.forEach((lane, i) => this.#drawLane(pen, lane, i * LANE, width));
    this.#drawClock(pen, height - CLOCK, width);
    this.#describe();
  }

  #drawColumn(pen, height) {
    const column = this.#visible.findIndex((step) => step.number === this.#chosen);
    if (column < 0) return;
    pen.fillStyle = this.#colours.get("chosen");
    pen.fillRect(LABEL + column * COLUMN - 1, 0, COLUMN, height);
  }

  #drawLane(pen, lane, top, width) {
    const middle = top + LANE / 2;
    pen.fillStyle = this.#colours.get("rule");
    pen.fillRect(LABEL, middle - 0.5, width - LABEL, 1);
    pen.font = `${lane.own ? 650 : 400} 12px ${getComputedStyle(this.#focusable).fontFamily}`;
    pen.fillStyle = this.#colours.get(lane.own ? "own" : "muted");
    pen.fillText(lane.own ? `${lane.letter} yours` : lane.letter, 0, middle + 0.5);
    const colour = this.#colours.of(lane);
    this.#visible.forEach((step, i) => {
      const row = step.rows.find(({ name }) => name === lane.name);
      const x = LABEL + i * COLUMN;
      if (row?.prompt) {
        pen.fillStyle = this.#colours.get("paper");
        pen.fillRect(x, top + 2, COLUMN - 2, LANE - 4);
        pen.strokeStyle = colour;
        pen.lineWidth = 1.5;
        pen.strokeRect(x + 0.75, top + 2.75, COLUMN - 3.5, LANE - 5.5);
      } else if (row) {
        pen.fillStyle = colour;
        pen.fillRect(x, middle - 3, COLUMN - 2, 6);
        if (row.guesses) pen.fillRect(x + 2, top + 2, 2, 2);
      }
      if (step.finished.includes(lane.name)) {
        pen.fillStyle = colour;
        pen.fillRect(x + COLUMN - 2, top + 2, 2, LANE - 4);
      }
      if (step.preempted.includes(lane.name)) {
        pen.strokeStyle = this.#colours.get("bad");
        pen.lineWidth = 1.5;
        pen.beginPath();
        pen.moveTo(x, middle - 4);
        pen.lineTo(x + 6, middle + 4);
        pen.moveTo(x + 6, middle - 4);
        pen.lineTo(x, middle + 4);
        pen.stroke();
      }
    });
  }

  // How long each step took; what of it was not the model is the light end.
  #drawClock(pen, top, width) {
    const longest = Math.max(...this.#visible.map((step) => step.seconds), 0);
    pen.font = `12px ${getComputedStyle(this.#focusable).fontFamily}`;
    pen.fillStyle = this.#colours.get("muted");
    pen.fillText(longest ? `${Math.round(1000 * longest)} ms` : "ms", 0, top + CLOCK / 2 + 2);
    pen.fillStyle = this.#colours.get("rule");
    pen.fillRect(LABEL, top + CLOCK - 1, width - LABEL, 1);
    this.#visible.forEach((step, i) => {
      const high = (CLOCK - 8) * step.seconds / longest;
      const model = (CLOCK - 8) * step.model_seconds / longest;
      const x = LABEL + i * COLUMN;
      pen.fillStyle = this.#colours.get("rule");
      pen.fillRect(x, top + CLOCK - 1 - high, COLUMN - 2, high);
      pen.fillStyle = this.#colours.get("muted");
      pen.fillRect(x, top + CLOCK - 1 - model, COLUMN - 2, model);
    });
  }

  #describe() {
    const step = this.#visible.find(({ number }) => number === this.#chosen)
      ?? this.#history.last;
    const words = step ? stepInWords(step, this.#history) : "No step yet. Send a message.";
    this.words.textContent = words;
    this.#focusable.setAttribute("aria-valuetext", words);
    this.#focusable.setAttribute("aria-valuemin", this.#visible[0]?.number ?? 0);
    this.#focusable.setAttribute("aria-valuemax", this.#history.last?.number ?? 0);
    this.#focusable.setAttribute("aria-valuenow", step?.number ?? 0);
  }
}
