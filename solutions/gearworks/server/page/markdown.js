// Markdown, from text to a tree for patch.js. Only MarkdownView touches the page.
//
// What models write of it: paragraphs, headings, lists, fenced code, quotes, tables, rules,
// emphasis, code, links. HTML is ordinary text, except <br>. A link leads to http or https or
// is ordinary text, and a picture becomes a link: nothing is fetched that the reader did not
// click. Left out on purpose: indented code, setext headings, reference links, entities.
//
// `open` means that more text will come. Then what has begun counts as whole: a bold word is
// bold before its last asterisks are there, and a mark that could begin anything waits.
//
// Every step is linear in the text, whatever the text is: it comes from a model.

import { inline } from "/page/inline.js";
import { node, patch } from "/page/patch.js";

const FENCE = /^( {0,3})(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^([ \t]*)([-*+]|\d{1,9}[.)])(?:[ \t]+(?=\S)|\s*$)/;
const BARE_MARK = /^[ \t>]*(?:#{1,6}|[-*+_]{1,3}|\d{1,9}[.)]|`{1,2}|~{1,2}|\|)?[ \t]*$/;
const BARE_NUMBER = /^[ \t>]*\d{1,3}$/;
const DEEPEST = 8;                 // lists and quotes in each other; beyond, they are text

// Shows a text that grows in an element, and renders no more than what is not closed yet.
export class MarkdownView {
  #element;
  #closed = [];                    // the blocks that no further text can change
  #closedEnd = 0;                  // where in the text they end
  #shown = [];

  constructor(element) {
    this.#element = element;
  }

  // `text` begins with the text of the last call.
  update(text, open) {
    const lines = text.slice(this.#closedEnd).split("\n");
    const found = blocks(lines, open && "line");
    // A block is closed when two whole lines of the next one are there: the second may still
    // make a table of the first.
    const last = found.findLastIndex((block) => block.first + 2 < lines.length);
    if (last > 0) {
      const whole = blocks(lines.slice(0, found[last].first), false);
      this.#closed = this.#closed.concat(whole.map((block) => block.tree));
      this.#closedEnd += lines.slice(0, found[last].first)
        .reduce((sum, line) => sum + line.length + 1, 0);
    }
    const now = this.#closed.concat(found.slice(Math.max(last, 0)).map((block) => block.tree));
    patch(this.#element, this.#shown, now);
    this.#shown = now;
  }
}

// The blocks of these lines: each its tree, and the number of its first line. `open`: "line"
// while the last line is not whole, "text" when it is and more lines will come, else false.
function blocks(lines, open, depth = 0) {
  if (open === "line" && isBare(lines)) {
    open = "text";
    lines = lines.slice(0, -1);
  }
  const found = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const read = [fence, heading, rule, quote, list, table, paragraph]
      .find((kind) => kind.begins(lines, at, depth, open));
    const [tree, next] = read.read(lines, at, depth, open);
    found.push({ tree, first: at });
    at = next;
  }
  return found;
}

// Whether the last line may still become anything. A number on the first line is an answer.
function isBare(lines) {
  const line = lines.at(-1);
  return line.length < 40
    && (BARE_MARK.test(line) || (lines.length > 1 && BARE_NUMBER.test(line)));
}

const fence = {
  begins: (lines, at) => FENCE.test(lines[at]),
  read(lines, at) {
    const [, indent, marks, info] = FENCE.exec(lines[at]);
    const code = [];
    let next = at + 1;
    while (next < lines.length) {
      const line = lines[next].trim();
      next += 1;
      if (line.length >= marks.length && line === marks[0].repeat(line.length)) break;
      code.push(withoutIndent(lines[next - 1], indent.length));
    }
    const language = info.trim().split(/\s/)[0].slice(0, 30);
    return [node("div", { class: "code" }, [
      node("div", { class: "code-bar" }, [
        node("span", {}, [language || "text"]),
        node("button", { type: "button", class: "quiet copy-code" }, ["Copy code"])]),
      node("pre", { tabindex: "0", dir: "ltr" },
           [node("code", {}, [code.join("\n")])])]), next];
  },
};

const heading = {
  begins: (lines, at) => HEADING.test(lines[at]),
  read(lines, at, depth, open) {
    const [, marks, text = ""] = HEADING.exec(lines[at]);
    const words = text.trimEnd();
    const end = words.length - /#*$/.exec(words.slice(-20))[0].length;
    const title = end === 0 || words[end - 1] === " " ? words.slice(0, end) : words;
    // the page itself has the levels 1 and 2
    const level = Math.min(marks.length + 2, 6);
    return [node(`h${level}`, { class: `title-${marks.length}`, dir: "auto" },
                 inline(title.trim(), open && at + 1 === lines.length)), at + 1];
  },
};

const rule = {
  begins: (lines, at) => RULE.test(lines[at]),
  read: (lines, at) => [node("hr"), at + 1],
};

const quote = {
  begins: (lines, at, depth) => depth < DEEPEST && QUOTE.test(lines[at]),
  read(lines, at, depth, open) {
    let next = at;
    while (next < lines.length && QUOTE.test(lines[next])) next += 1;
    const inner = lines.slice(at, next).map((line) => line.replace(QUOTE, ""));
    return [node("blockquote", { dir: "auto" },
                 trees(inner, open && next === lines.length, depth)), next];
  },
};

const list = {
  begins: (lines, at, depth) => depth < DEEPEST && ITEM.test(lines[at]),
  read(lines, at, depth, open) {
    const [, , mark] = ITEM.exec(lines[at]);
    const items = [];
    let loose = false;
    let next = at;
    while (next < lines.length && !RULE.test(lines[next])) {
      const found = ITEM.exec(lines[next]);
      if (found?.[2].at(-1) !== mark.at(-1)) break;
      const item = itemLines(lines, next, found);
      items.push(item);
      next = item.next;
      loose ||= item.loose || (item.blank && next < lines.length
                               && ITEM.exec(lines[next])?.[2].at(-1) === mark.at(-1));
    }
    const ordered = mark.length > 1;
    const tag = ordered ? "ol" : "ul";
    const first = parseInt(mark, 10);
    return [node(tag, ordered && first !== 1 ? { start: String(first) } : {},
                 items.map((item) => {
                   const inner = trees(item.lines, open && item.next === lines.length, depth);
                   return node("li", { dir: "auto" }, loose ? inner : inner.flatMap(unwrapped));
                 })), next];
  },
};

// The lines of one item, without its mark and indent. What stands under the item's text, or is
// indented by two at least, belongs to it.
function itemLines(lines, at, [whole, lead]) {
  const inside = indentOf(lead) + 2;
  const found = [lines[at].slice(whole.length)];
  let next = at + 1;
  let blank = false;
  let loose = false;
  for (; next < lines.length; next += 1) {
    const line = lines[next];
    if (!line.trim()) {
      blank = true;
      found.push("");
      continue;
    }
    if (indentOf(line) < inside && (blank || ITEM.test(line) || beginsBlock(line))) break;
    loose ||= blank;
    blank = false;
    found.push(withoutIndent(line, whole.length));
  }
  return { lines: found, next, blank, loose };
}

const unwrapped = (tree) => (tree.tag === "p" ? tree.children : [tree]);

const table = {
  begins(lines, at, depth, open) {
    if (!lines[at].includes("|")) return false;
    if (at + 1 < lines.length && isDelimiter(lines[at + 1])
        && cellsOf(lines[at + 1]).length === cellsOf(lines[at]).length) return true;
    const rest = lines.slice(at + 1, at + 3);
    const mayBeDelimiter = (line) => line.trim() && /^[|: \t-]*$/.test(line);
    return open && lines[at].startsWith("|") && (rest.length === 0
      || (rest.length === 1 && open === "line" && mayBeDelimiter(rest[0])));
  },
  read(lines, at, depth, open) {
    const head = cellsOf(lines[at]);
    const sides = cellsOf(lines[at + 1] ?? "").map(sideOf);
    const row = (cells, tag, isLast) => node("tr", {}, head.map((_, i) =>
      node(tag, { dir: "auto", ...(sides[i] ? { class: sides[i] } : {}) },
           inline((cells[i] ?? "").trim().replaceAll("\\|", "|"), open && isLast))));
    const rows = [];
    let next = Math.min(at + 2, lines.length);
    for (; next < lines.length && lines[next].trim() && !beginsBlock(lines[next]); next += 1) {
      rows.push(row(cellsOf(lines[next]), "td", next + 1 === lines.length));
    }
    const scroller = { class: "table", tabindex: "0", role: "region", "aria-label": "Table" };
    return [node("div", scroller, [
      node("table", {}, [node("thead", {}, [row(head, "th", false)]),
                         node("tbody", {}, rows)])]), next];
  },
};

const cellsOf = (line) => line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "")
  .split(/(?<!\\)\|/);
const isDelimiter = (line) => line.includes("-") && line.length < 2000
  && cellsOf(line).every((cell) => /^:?-+:?$/.test(cell.trim()));

function sideOf(cell) {
  const mark = cell.trim();
  if (!mark.endsWith(":")) return "";
  return mark.startsWith(":") ? "centre" : "end";
}

const paragraph = {
  begins: () => true,
  read(lines, at, depth, open) {
    let next = at + 1;
    while (next < lines.length && lines[next].trim() && !interrupts(lines, next, depth, open)) {
      next += 1;
    }
    const text = lines.slice(at, next).map((line) => line.trim()).join("\n");
    return [node("p", { dir: "auto" }, inline(text, open && next === lines.length)), next];
  },
};

function interrupts(lines, at, depth, open) {
  const item = depth < DEEPEST && ITEM.exec(lines[at]);
  return beginsBlock(lines[at], depth) || table.begins(lines, at, depth, open)
    || (item && item[0].length < lines[at].length && /^([-*+]|1[.)])$/.test(item[2]));
}

const beginsBlock = (line, depth = 0) => FENCE.test(line) || HEADING.test(line)
  || RULE.test(line) || (depth < DEEPEST && QUOTE.test(line));

const trees = (lines, open, depth) => blocks(lines, open, depth + 1).map((block) => block.tree);

// Columns of white space before a line; a tab counts as four.
function indentOf(line) {
  let columns = 0;
  for (const letter of line) {
    if (letter === " ") columns += 1;
    else if (letter === "\t") columns += 4;
    else break;
  }
  return columns;
}

function withoutIndent(line, columns) {
  let at = 0;
  for (let left = columns; left > 0; at += 1) {
    if (line[at] === " ") left -= 1;
    else if (line[at] === "\t") left -= 4;
    else break;
  }
  return line.slice(at);
}
