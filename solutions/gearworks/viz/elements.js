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

const ICONS = {
  "First step": "M5 4h2.5v16H5zM19 6.2 13.2 12 19 17.8 17.2 19.6 9.6 12l7.6-7.6z",
  "Previous step": "M16 6.2 10.2 12 16 17.8 14.2 19.6 6.6 12 14.2 4.4z",
  Play: "M7 4v16l13-8z", Pause: "M6 4h4v16H6zM14 4h4v16h-4z",
  "Next step": "M8 6.2 13.8 12 8 17.8 9.8 19.6 17.4 12 9.8 4.4z",
  "Last step": "M19 4h-2.5v16H19zM5 6.2 10.8 12 5 17.8 6.8 19.6 14.4 12 6.8 4.4z",
};
const icon = (name) => svg("svg", { viewBox: "0 0 24 24", "aria-hidden": "true" }, svg("path", { d: ICONS[name] }));

function button(name, act) {
  const element = make("button", { type: "button", "aria-label": name, title: name }, icon(name));
  element.addEventListener("click", act);
  return element;
}

function startAll(kind, start) {
  for (const root of document.querySelectorAll(`.gw-${kind}:not([data-ready])`)) {
    const words = root.querySelector(".gw-words"), data = root.querySelector(".gw-data");
    if (!data) continue;                        // a page that has not loaded it yet
    root.dataset.ready = "";
    start(root, JSON.parse(data.textContent), words);
    words.open = false;
  }
}
