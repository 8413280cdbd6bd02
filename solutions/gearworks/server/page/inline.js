// What stands inside a block of Markdown: emphasis, code, links. See markdown.js.

import { node } from "/page/patch.js";

const SPECIAL = /[\\`*_[\]!<]|https?:\/\//g;
const ESCAPED = /[\\`*_[\]#+.!|>~<-]/;
const ADDRESS = /https?:\/\/[^\s<>"`]{1,2000}/y;
const IN_BRACKETS = /<(https?:\/\/[^\s<>]{1,2000})>/y;
const BREAK = /<br[ \t]*\/?>/iy;
const PLAIN = "[^\\s()<>]{0,2000}";
const TARGET = new RegExp(`\\([ \\t]*<?(${PLAIN}(?:\\(${PLAIN}\\)${PLAIN})?)>?`
                          + '(?:\\s+"[^"\\n]{0,500}")?[ \\t]*\\)', "y");
const MOST_OPEN = 24;              // marks that wait for their ends; beyond, they are text

// The tree of a block's text.
export function inline(text, open) {
  const ticks = backticks(text);
  const frames = [new Frame("")];
  let plainFrom = 0;
  let at = 0;
  const top = () => frames.at(-1);
  const flush = (end) => top().add(text.slice(plainFrom, end));
  const goOn = (next) => { at = next; plainFrom = next; };
  // A mark whose end never came is the text that it is.
  const giveUp = () => {
    const frame = frames.pop();
    top().add(frame.mark);
    frame.children.forEach((child) => top().add(child));
    top().hasLink ||= frame.hasLink;
  };
  const giveUpAbove = (frame) => { while (top() !== frame) giveUp(); };
  const wrap = (frame, tag, attributes) => {
    frames.pop();
    top().add(node(tag, attributes, frame.children));
    top().hasLink ||= frame.hasLink || tag === "a";
  };
  const lastOpen = (isIt) => frames.findLast((frame) => isIt(frame.mark));

  for (;;) {
    SPECIAL.lastIndex = at;
    const special = SPECIAL.exec(text);
    if (!special) break;
    at = special.index;
    const letter = text[at];
    if (letter === "\\") {
      if (at + 1 < text.length && ESCAPED.test(text[at + 1])) {
        flush(at);
        plainFrom = at + 1;
      }
      at += 2;
    } else if (letter === "`") {
      const run = runLength(text, at);
      const end = ticks.next(run, at + run);
      if (end === undefined && !open) {
        at += run;
        continue;
      }
      flush(at);
      const code = text.slice(at + run, end);
      if (code) top().add(node("code", { dir: "ltr" }, [codeText(code)]));
      goOn(end === undefined ? text.length : end + run);
    } else if (letter === "*" || letter === "_") {
      const run = runLength(text, at);
      flush(at);
      emphasis(letter, run, at);
      goOn(at + run);
    } else if (letter === "[" || (letter === "!" && text[at + 1] === "[")) {
      const mark = letter === "!" ? "![" : "[";
      if (frames.length < MOST_OPEN) {
        flush(at);
        frames.push(new Frame(mark));
        goOn(at + mark.length);
      } else {
        at += mark.length;
      }
    } else if (letter === "]") {
      const opener = lastOpen((mark) => mark.endsWith("["));
      if (!opener) {
        at += 1;
        continue;
      }
      flush(at);
      giveUpAbove(opener);
      endOfLink(opener);
    } else if (letter === "h") {
      const found = address(at);
      if (found) goOn(at + found.length);
      else at += 4;
    } else if (letter === "<") {
      const found = sticky(IN_BRACKETS, text, at);
      const line = sticky(BREAK, text, at);
      if (found) {
        flush(at);
        top().add(link(found[1], [found[1]]));
        goOn(at + found[0].length);
      } else if (line) {
        flush(at);
        top().add(node("br"));
        goOn(at + line[0].length);
      } else {
        at += 1;
      }
    } else {
      at += 1;
    }
  }
  flush(text.length);
  while (frames.length > 1) {
    const tag = TAGS[top().mark];
    if (!open) giveUp();
    else if (top().children.length === 0) frames.pop();
    else if (tag) wrap(top(), tag, {});
    else {
      top().mark = "";
      giveUp();
    }
  }
  return frames[0].children;

  // Marks of one kind in a row close what they can, and open what is left of them.
  function emphasis(letter, run, start) {
    const before = text[start - 1] ?? " ";
    const after = text[start + run] ?? " ";
    const leans = (to, from) => /\S/.test(to)
      && (!isPunctuation(to) || /\s/.test(from) || isPunctuation(from));
    const opens = leans(after, before);
    const closes = leans(before, after);
    const inWord = letter === "_" && isWord(before) && isWord(after);
    let left = run;
    while (left > 0 && closes && !inWord) {
      const opener = lastOpen((mark) => mark[0] === letter);
      if (!opener) break;
      giveUpAbove(opener);
      const width = Math.min(left, opener.mark.length);
      if (width < opener.mark.length) frames.at(-2).add(letter);
      wrap(opener, width === 2 ? "strong" : "em", {});
      left -= width;
    }
    if (left > 0 && opens && !inWord && left <= 3 && frames.length < MOST_OPEN) {
      if (left >= 2) frames.push(new Frame(letter + letter));
      if (left !== 2) frames.push(new Frame(letter));
    } else if (left > 0 && !(open && start + run === text.length)) {
      top().add(letter.repeat(left));
    }
  }

  function endOfLink(opener) {
    const target = sticky(TARGET, text, at + 1);
    const made = target && !opener.hasLink && link(target[1], opener.children);
    if (made) {
      if (opener.mark === "![") made.children = ["Picture: ", ...made.children];
      wrap({ children: made.children, hasLink: true }, "a", made.attributes);
      goOn(at + 1 + target[0].length);
    } else if (open && /^(?:\([^)\s]*)?$/.test(text.slice(at + 1, at + 2000))) {
      opener.mark = "";
      giveUp();
      goOn(text.length);
    } else {
      giveUp();
      plainFrom = at;
      at += 1;
    }
  }

  // A bare address; what follows it of punctuation is not part of it.
  function address(start) {
    const found = sticky(ADDRESS, text, start)?.[0];
    if (!found || isWord(text[start - 1] ?? " ")) return null;
    if (lastOpen((mark) => mark.endsWith("["))) return null;
    let end = found.length;
    const unpaired = found.includes("(") ? /[.,:;!?'"\]}*_]/ : /[.,:;!?'")\]}*_]/;
    while (end > 0 && unpaired.test(found[end - 1])) end -= 1;
    const href = found.slice(0, end);
    const made = link(href, [href]);
    if (!made) return null;
    flush(start);
    top().add(made);
    top().hasLink = true;
    return href;
  }
}

const TAGS = { "*": "em", "**": "strong", "_": "em", "__": "strong" };

// A mark that waits for its end, and what has come since.
class Frame {
  constructor(mark) {
    this.mark = mark;
    this.children = [];
    this.hasLink = false;
  }

  add(child) {
    if (child === "") return;
    if (typeof child === "string" && typeof this.children.at(-1) === "string") {
      this.children.push(this.children.pop() + child);
    } else {
      this.children.push(child);
    }
  }
}

// Nothing but http and https becomes a link.
function link(href, children) {
  let address;
  try {
    address = new URL(href);
  } catch {
    return null;
  }
  if (!["http:", "https:"].includes(address.protocol)) return null;
  return node("a", { href: address.href, target: "_blank", rel: "noopener noreferrer" },
              children);
}

// Where the next run of so many backticks begins, for starts that only grow.
function backticks(text) {
  const starts = new Map();
  for (const run of text.matchAll(/`+/g)) {
    const length = run[0].length;
    if (!starts.has(length)) starts.set(length, []);
    starts.get(length).push(run.index);
  }
  const seen = new Map();
  return {
    next(length, from) {
      const all = starts.get(length) ?? [];
      let i = seen.get(length) ?? 0;
      while (i < all.length && all[i] < from) i += 1;
      seen.set(length, i);
      return all[i];
    },
  };
}

function codeText(code) {
  const text = code.replaceAll("\n", " ");
  return text.trim() && text.startsWith(" ") && text.endsWith(" ") ? text.slice(1, -1) : text;
}

function runLength(text, at) {
  let end = at + 1;
  while (text[end] === text[at]) end += 1;
  return end - at;
}

function sticky(pattern, text, at) {
  pattern.lastIndex = at;
  return pattern.exec(text);
}

const isPunctuation = (letter) => /[\p{P}\p{S}]/u.test(letter);
const isWord = (letter) => /[\p{L}\p{N}]/u.test(letter);
