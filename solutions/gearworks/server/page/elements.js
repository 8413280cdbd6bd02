// Elements of the page. All text enters it as text nodes, never as markup.

const SVG = "http://www.w3.org/2000/svg";

// An attribute that is undefined or false is left out; one that is true is there, empty.
export function make(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function icon(path) {
  const svg = filled(document.createElementNS(SVG, "svg"),
                     { viewBox: "0 0 20 20", "aria-hidden": "true" }, []);
  svg.append(filled(document.createElementNS(SVG, "path"), { d: path }, []));
  return svg;
}

export function button(label, attributes, pressed) {
  const element = make("button", { type: "button", ...attributes }, label);
  element.addEventListener("click", pressed);
  return element;
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) {
      element.setAttribute(name, value === true ? "" : value);
    }
  }
  element.append(...children);
  return element;
}

export const byId = (id) => document.getElementById(id);

// What a browser keeps for this page; where it keeps nothing, the page still works.
export const kept = {
  get(name, area = "localStorage") {
    try { return window[area].getItem(name); } catch { return null; }
  },
  set(name, value, area = "localStorage") {
    try { window[area].setItem(name, value); } catch { /* forbidden or full */ }
  },
};

// Outside of https and localhost there is no navigator.clipboard.
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = make("textarea", { class: "unseen", readonly: true });
    const focused = document.activeElement;
    field.value = text;
    document.body.append(field);
    field.select();
    const copied = document.execCommand("copy");
    field.remove();
    focused?.focus();
    return copied;
  }
}
