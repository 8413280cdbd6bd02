// How to continue: the parameters of a request, in a dialog, and remembered.

import { button, byId, kept, make } from "/page/elements.js";
import { key } from "/page/server.js";

// An empty field is not sent, and the server's own value holds.
const NUMBERS = [
  { name: "temperature", label: "Temperature", min: 0, max: 2, step: 0.05,
    about: "0 always takes the likeliest token." },
  { name: "top_p", label: "Top p", min: 0.01, max: 1, step: 0.01,
    about: "Only the likeliest tokens that together have this probability." },
  { name: "top_k", label: "Top k", min: 0, max: 1000, step: 1,
    about: "Only so many of the likeliest. 0 for all." },
  { name: "min_p", label: "Min p", min: 0, max: 1, step: 0.01,
    about: "Only tokens that have this share of the likeliest one’s probability." },
  { name: "repetition_penalty", label: "Repetition penalty", min: 0.1, max: 2, step: 0.05,
    about: "Above 1, what was there already becomes less likely." },
  { name: "max_completion_tokens", label: "Most tokens", min: 1, max: 1000000, step: 1,
    about: "Where an answer is cut off." },
  { name: "seed", label: "Seed", min: 0, max: 2147483647, step: 1,
    about: "The same seed draws the same answer." },
];
const KEPT = "gearworks.settings";

export class Settings {
  #dialog = byId("settings");
  #form;
  #values = {};

  constructor(keyChanged) {
    try {
      this.#values = JSON.parse(kept.get(KEPT)) ?? {};
    } catch { /* not ours; begin anew */ }
    this.#form = this.#made();
    this.#dialog.append(this.#form);
    this.#fill();
    byId("settings-button").addEventListener("click", () => this.#dialog.showModal());
    this.#dialog.addEventListener("click", (event) => {
      if (event.target === this.#dialog) this.#dialog.close();          // on what is around it
    });
    this.#form.addEventListener("input", () => this.#read());
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#dialog.close();
    });
    this.#form.elements.key.addEventListener("change", keyChanged);
    this.#dialog.addEventListener("close", () => this.#fill());
  }

  get system() {
    return this.#values.system ?? "";
  }

  // What goes into the request.
  get parameters() {
    return Object.fromEntries(NUMBERS.filter(({ name }) => Number.isFinite(this.#values[name]))
      .map(({ name }) => [name, this.#values[name]]));
  }

  showKey() {
    this.#form.elements.key.value = key.get();
  }

  #read() {
    const { elements } = this.#form;
    for (const { name } of NUMBERS) {
      const field = elements[name];
      const wrong = !field.validity.valid;
      byId(`${name}-wrong`).textContent = wrong ? field.validationMessage : "";
      field.setAttribute("aria-invalid", String(wrong));
      if (!wrong) this.#values[name] = field.value === "" ? undefined : Number(field.value);
    }
    this.#values.system = elements.system.value;
    key.set(elements.key.value);
    kept.set(KEPT, JSON.stringify(this.#values));
  }

  #fill() {
    const { elements } = this.#form;
    for (const { name } of NUMBERS) {
      elements[name].value = this.#values[name] ?? "";
      elements[name].setAttribute("aria-invalid", "false");
      byId(`${name}-wrong`).textContent = "";
    }
    elements.system.value = this.system;
    this.showKey();
  }

  #made() {
    const number = ({ name, label, min, max, step, about }) => make("div", { class: "setting" },
      make("label", { for: `set-${name}` }, label),
      make("input", { id: `set-${name}`, name, type: "number", min, max,
                      step: Number.isInteger(step) ? step : "any", inputmode: "decimal",
                      placeholder: "server’s own",
                      "aria-describedby": `${name}-about ${name}-wrong` }),
      make("p", { class: "about", id: `${name}-about` }, about),
      make("p", { class: "wrong", id: `${name}-wrong` }));
    return make("form", { method: "dialog", novalidate: true },
      make("div", { class: "settings-head" },
        make("h2", { id: "settings-title" }, "Settings"),
        button("Server’s own values", { class: "quiet" }, () => {
          for (const { name } of NUMBERS) this.#form.elements[name].value = "";
          this.#read();
        })),
      make("div", { class: "setting wide" },
        make("label", { for: "set-system" }, "System text"),
        make("textarea", { id: "set-system", name: "system", rows: 3, dir: "auto",
                           "aria-describedby": "system-about" }),
        make("p", { class: "about", id: "system-about" },
          "Stands before the conversation. It counts from the next answer on.")),
      make("div", { class: "numbers" }, ...NUMBERS.map(number)),
      make("div", { class: "setting wide" },
        make("label", { for: "set-key" }, "API key"),
        make("input", { id: "set-key", name: "key", type: "password", autocomplete: "off",
                        "aria-describedby": "key-about" }),
        make("p", { class: "about", id: "key-about" },
          "Only where the server asks for one. Forgotten when this tab closes.")),
      make("div", { class: "settings-foot" },
        make("button", { type: "submit", class: "main" }, "Done")));
  }
}
