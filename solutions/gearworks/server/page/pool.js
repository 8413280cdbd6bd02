// The pool's blocks as cells: whose they are, which are shared, which are kept, which empty.

import { cleared } from "/page/drawing.js";
import { make } from "/page/elements.js";

const SIDES = [18, 14, 11, 8, 6, 4];    // of a cell; the largest with which all fit
const HEIGHT = 150;
const MOST = 8192;                      // more cells than this are not drawn

export class Pool {
  #history;
  #colours;
  #canvas = make("canvas");
  #drawing;
  #cells = [];
  #side = 4;
  #across = 1;
  #pointed = null;
  words = make("p", { class: "words" });

  constructor(element, history, colours) {
    this.#history = history;
    this.#colours = colours;
    this.#drawing = make("div", { class: "drawing", role: "slider", tabindex: "0",
                                  "aria-label": "Block of the pool" }, this.#canvas);
    element.append(this.#drawing, this.words);
    this.#drawing.addEventListener("pointermove", (event) => {
      const { left, top } = this.#canvas.getBoundingClientRect();
      const column = Math.floor((event.clientX - left) / this.#side);
      const row = Math.floor((event.clientY - top) / this.#side);
      this.#point(column < this.#across ? row * this.#across + column : null);
    });
    this.#drawing.addEventListener("pointerleave", () => this.#point(null));
    this.#drawing.addEventListener("blur", () => this.#point(null));
    this.#drawing.addEventListener("keydown", (event) => {
      const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.#across,
                      ArrowUp: -this.#across, Home: -Infinity, End: Infinity };
      if (!(event.key in steps)) return;
      event.preventDefault();
      const next = this.#pointed === null ? 0 : this.#pointed + steps[event.key];
      this.#point(Math.max(0, Math.min(this.#cells.length - 1, next)));
    });
  }

  #point(index) {
    this.#pointed = index;
    this.paint();
  }

  paint() {
    const width = this.#drawing.clientWidth;
    if (!width) return;
    this.#cells = this.#history.blocks();
    const cells = this.#cells.slice(0, MOST);
    const high = (side) => side * Math.ceil(cells.length / Math.floor(width / side));
    this.#side = SIDES.find((side) => high(side) <= HEIGHT) ?? SIDES.at(-1);
    this.#across = Math.floor(width / this.#side);
    const pen = cleared(this.#canvas, width, Math.max(this.#side * 2, high(this.#side)));
    pen.font = `600 11px ${getComputedStyle(this.#drawing).fontFamily}`;
    pen.textAlign = "center";
    cells.forEach((cell, i) => this.#drawCell(pen, cell, i % this.#across * this.#side,
                                              Math.floor(i / this.#across) * this.#side));
    if (cells[this.#pointed]) {
      pen.strokeStyle = this.#colours.get("ink");
      pen.lineWidth = 2;
      pen.strokeRect(this.#pointed % this.#across * this.#side,
                     Math.floor(this.#pointed / this.#across) * this.#side,
                     this.#side - 1, this.#side - 1);
    }
    this.#describe();
  }

  #drawCell(pen, cell, x, y) {
    const size = this.#side - (this.#side > 6 ? 2 : 1);
    if (cell.owners.length) {
      const owner = cell.owners.map((name) => this.#history.face(name))
        .find((face, i, all) => face.own || i === all.length - 1);
      pen.fillStyle = this.#colours.of(owner);
      pen.fillRect(x, y, size, size);
      if (cell.owners.length > 1) {
        // a corner turned down
        pen.fillStyle = this.#colours.get("paper");
        pen.beginPath();
        pen.moveTo(x + size, y);
        pen.lineTo(x + size, y + size * 0.6);
        pen.lineTo(x + size * 0.4, y);
        pen.fill();
      } else if (this.#side >= 14) {
        pen.fillStyle = this.#colours.get("paper");
        pen.fillText(owner.letter, x + size / 2, y + size / 2 + 0.5);
      }
    } else if (cell.kept) {
      pen.strokeStyle = this.#colours.get("muted");
      pen.lineWidth = 1;
      pen.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
      pen.beginPath();
      pen.moveTo(x + 1, y + size - 1);
      pen.lineTo(x + size - 1, y + 1);
      pen.stroke();
    } else {
      pen.fillStyle = this.#colours.get("hollow");
      pen.fillRect(x, y, size, size);
    }
  }

  #describe() {
    const last = this.#history.last;
    const shared = this.#cells.filter((cell) => cell.owners.length > 1).length;
    const summary = !last ? "The pool shows itself with the first step."
      : `${this.#cells.length} blocks: ${last.blocks_used} in use, ${shared} of them `
      + `shared, ${last.blocks_kept} kept for a prefix, ${last.blocks_empty} empty.`;
    const cell = this.#cells[this.#pointed];
    const words = cell ? `Block ${this.#pointed}: ${this.#cellInWords(cell)}.` : summary;
    this.words.textContent = words;
    this.#drawing.setAttribute("aria-valuetext", words);
    this.#drawing.setAttribute("aria-valuemin", 0);
    this.#drawing.setAttribute("aria-valuemax", Math.max(0, this.#cells.length - 1));
    this.#drawing.setAttribute("aria-valuenow", this.#pointed ?? 0);
  }

  #cellInWords(cell) {
    const who = cell.owners.map((name) => {
      const { letter, own } = this.#history.face(name);
      return own ? `${letter} (yours)` : letter;
    });
    if (who.length > 1) return `shared by ${who.join(", ")}`;
    if (who.length) return `of ${who[0]}`;
    return cell.kept ? "probably kept for a prefix that may come again" : "free";
  }
}
