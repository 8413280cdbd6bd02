// Something went wrong: what, what to try, and the means to try it.

import { button, make } from "/page/elements.js";
import { key } from "/page/server.js";

// `again` does what failed once more.
export function notice(trouble, again) {
  const element = make("div", { class: "notice", role: "alert" },
    make("p", { class: "what" }, trouble.what), make("p", {}, trouble.advice));
  if (trouble.needsKey) {
    const field = make("input", { type: "password", autocomplete: "off", required: true });
    const form = make("form", { class: "key" }, make("label", {}, "API key", field),
                      make("button", { type: "submit", class: "main" }, "Use this key"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      key.set(field.value);
      again();
    });
    element.append(form);
  } else {
    element.append(button("Try again", { class: "main again" }, again));
  }
  return element;
}
