// What both canvases need: sharp pixels, and the colours of the style sheet.

import { make } from "/page/elements.js";

// A canvas of this size in CSS pixels, ready to be drawn anew.
export function cleared(canvas, width, height) {
  const dense = window.devicePixelRatio || 1;
  const [across, down] = [Math.round(width * dense), Math.round(height * dense)];
  if (canvas.width !== across || canvas.height !== down) {
    canvas.width = across;
    canvas.height = down;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(dense, 0, 0, dense, 0, 0);
  context.clearRect(0, 0, width, height);
  context.textBaseline = "middle";
  return context;
}

// Custom properties with light-dark() are only resolved where an element uses them.
export class Colours {
  #probe = make("span", { class: "probe", "aria-hidden": "true", hidden: true });
  #known = new Map();

  constructor(element) {
    element.append(this.#probe);
  }

  get(name) {
    if (!this.#known.has(name)) {
      this.#probe.style.color = `var(--${name})`;
      this.#known.set(name, getComputedStyle(this.#probe).color);
    }
    return this.#known.get(name);
  }

  of(lane) {
    return this.get(lane.own ? "own" : `lane-${lane.hue}`);
  }

  forget() {
    this.#known.clear();
  }
}
