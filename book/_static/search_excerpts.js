// Below each search result, the place that was found, and the link to its section. The texts of the pages are scripts
// beside them (book/_ext/search_excerpts.py): from a disk no other kind of file can be read.
const searchTexts = {};
(() => {
  const LENGTH = 240, BEFORE = 80;
  const query = (new URLSearchParams(location.search).get("q") || "").trim().toLowerCase();
  const stemmer = new Stemmer();
  const words = [...new Set(splitQuery(query).map((word) => word.toLowerCase()))].filter((word) => word);
  const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&");
  // a word, or what begins with its stem; the words as they were typed come first
  const sources = words.map((word) => `(?<![\\p{L}\\p{N}_])(?:${escaped(word)}|${escaped(stemmer.stemWord(word))})`);
  const anyWord = new RegExp(sources.join("|") || "$^", "giu");
  const phrase = words.length > 1 ? new RegExp(`(?<![\\p{L}\\p{N}_])${escaped(query)}`, "giu") : null;

  // The best place in a text: where it begins, and how good it is; null where no word is.
  const bestIn = (text) => {
    const exact = phrase && text.search(phrase);
    if (phrase && exact >= 0) return { at: exact, worth: 1000 };
    const found = [...text.matchAll(anyWord)];
    let best = null;
    found.forEach((match, first) => {
      const near = found.slice(first, first + 40).filter((other) => other.index < match.index + LENGTH - BEFORE);
      const worth = new Set(near.map((other) => stemmer.stemWord(other[0].toLowerCase()))).size;
      if (!best || worth > best.worth) best = { at: match.index, worth };
    });
    return best;
  };

  const excerpt = (text, at) => {
    let from = Math.max(0, at - BEFORE), to = Math.min(text.length, from + LENGTH);
    if (from > 0) from = text.indexOf(" ", from) + 1;
    if (to < text.length) to = Math.max(at + 1, text.lastIndexOf(" ", to));
    const shown = document.createElement("p");
    shown.className = "context";
    const part = text.slice(from, to), marks = phrase && part.search(phrase) >= 0 ? phrase : anyWord;
    let done = 0;
    shown.append(from > 0 ? "… " : "");
    for (const match of part.matchAll(marks)) {
      const mark = document.createElement("span");
      mark.className = "highlighted";
      mark.textContent = match[0];
      shown.append(part.slice(done, match.index), mark);
      done = match.index + match[0].length;
    }
    shown.append(part.slice(done), to < text.length ? " …" : "");
    return shown;
  };

  const show = (item, link, page, anchor) => {
    let best = null, chosen = null;
    for (const [id, text] of searchTexts[page] || []) {
      if (anchor && id !== anchor) continue;
      const place = bestIn(text);
      if (place && (!best || place.worth > best.worth)) [best, chosen] = [place, [id, text]];
    }
    if (!chosen) chosen = (searchTexts[page] || []).find(([id]) => !anchor || id === anchor);
    if (!chosen) return;
    if (!anchor && chosen[0]) link.setAttribute("href", `${link.getAttribute("href")}#${chosen[0]}`);
    item.append(excerpt(chosen[1], best ? best.at : 0));
  };

  const load = (item) => {
    const link = item.querySelector("a");
    if (!link || "excerpt" in item.dataset) return;
    item.dataset.excerpt = "";
    const [address, anchor] = link.getAttribute("href").split("#");
    const page = address.slice(0, -DOCUMENTATION_OPTIONS.LINK_SUFFIX.length);
    const script = document.createElement("script");
    script.src = `_static/search/${page}.js`;
    script.addEventListener("load", () => show(item, link, page, anchor));
    document.body.append(script);
  };

  const results = document.getElementById("search-results");
  const loadAll = () => results.querySelectorAll("ul.search > li").forEach(load);
  new MutationObserver(loadAll).observe(results, { childList: true, subtree: true });
  loadAll();
})();
