// What the scripts of the figures share: elements, sliders, and finding the figures that wait for their script.
// Python puts this text before each of them, inside one function. All text enters the page as text, never as markup.
const make = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== "" && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== ""));
  return element;
}

// A slider with its name before it and its value, in words, behind it. `changed` is called when the reader moves it.
function slider(name, { min = 0, max, step = 1, inWords = String }, changed) {
  const input = make("input", { type: "range", min, max, step });
  const output = make("span", { class: "gw-place", "aria-hidden": "true" });
  const set = (value) => {
    input.value = value;
    output.textContent = inWords(Number(input.value));
    input.setAttribute("aria-valuetext", output.textContent);
  };
  input.addEventListener("input", () => { set(input.value); changed(); });
  set(min);
  return { row: make("label", { class: "gw-slider" }, make("span", {}, name), input, output), input, set,
           get value() { return Number(input.value); } };
}

function startAll(kind, start) {
  for (const root of document.querySelectorAll(`.gw-${kind}:not([data-ready])`)) {
    root.dataset.ready = "";
    const words = root.querySelector(".gw-words");
    start(root, JSON.parse(root.querySelector(".gw-data").textContent), words);
    words.open = false;
  }
}
