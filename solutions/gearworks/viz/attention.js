// The attention explorer: a map of the weights of one head, and the text as one of its tokens sees it.
(() => {
  "use strict";

  function start(root, data, words) {
    const { tokens, layers, heads, causal } = data;
    const T = tokens.length;
    const bytes = Uint8Array.from(atob(data.weights.replaceAll("-", "+").replaceAll("_", "/")), (c) => c.charCodeAt(0));
    const perHead = causal ? (T * (T + 1)) / 2 : T * T;
    const shown = tokens.map((token) => token.replaceAll(" ", "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥"));
    let row, column;

    const sees = (query, key) => !causal || key <= query;
    function weight(query, key) {
      if (!sees(query, key)) return 0;
      const at = causal ? (query * (query + 1)) / 2 + key : query * T + key;
      return bytes[(layer.value * heads + head.value) * perHead + at] / 255;
    }
    const quoted = (i) => `“${shown[i]}”`;
    const percent = (share) => `${Math.round(100 * share)} %`;

    const layer = slider("Layer", { max: layers - 1 }, moved);
    const head = slider("Head", { max: heads - 1 }, moved);
    const choice = make("select", {}, make("option", { value: -1 }, "…"),
      ...data.most.map(([name], i) => make("option", { value: i }, name)));
    choice.addEventListener("change", go);
    const mask = make("input", { type: "checkbox", checked: "checked" });
    mask.addEventListener("change", () => map.classList.toggle("gw-unmasked", !mask.checked));
    const maskRow = make("label", { class: "gw-check" }, mask, make("span", {}, "Hatch what the causal mask hides"));
    maskRow.hidden = !causal;
    const caption = make("p", { class: "gw-caption", "aria-live": "polite" });
    const cells = tokens.map((_, i) => tokens.map((_, j) => make("div", { role: "gridcell", class: "gw-weight" })));
    const map = make("div", { class: "gw-map-of-weights", role: "grid", "aria-label": "rows look, columns are seen",
                              style: `--gw-tokens: ${T}` },
      make("div", { role: "row", class: "gw-map-row" },
        make("span", { role: "columnheader", class: "gw-corner" }, "looks at →"),
        ...shown.map((token) =>
          make("span", { role: "columnheader", class: "gw-column" }, make("span", { dir: "auto" }, token)))),
      ...cells.map((line, i) => make("div", { role: "row", class: "gw-map-row" },
        make("span", { role: "rowheader", class: "gw-row", dir: "auto" }, shown[i]), ...line)));
    const detail = make("p", { class: "gw-detail", "aria-live": "polite" });
    const text = make("div", { class: "gw-seen" });
    words.before(make("label", { class: "gw-choice" }, make("span", {}, "Jump to the head that looks"), choice),
      layer.row, head.row, caption, map, maskRow, detail, text);

    function go() {
      const [, toLayer, toHead] = data.most[choice.value] ?? [, layer.value, head.value];
      layer.set(toLayer);
      head.set(toHead);
      draw();
    }
    function moved() {
      choice.value = -1;
      draw();
    }

    function draw() {
      const shares = data.shares[layer.value * heads + head.value];
      caption.textContent = `Layer ${layer.value}, head ${head.value}. On average a token looks at `
        + data.habits.map((name, i) => `${name} ${shares[i]} %`).join(", ") + ".";
      cells.forEach((line, i) => line.forEach((cell, j) => {
        cell.classList.toggle("gw-masked", !sees(i, j));
        cell.style.setProperty("--gw-share", `${100 * weight(i, j)}%`);
        cell.setAttribute("aria-label", sees(i, j)
          ? `${quoted(i)} looks at ${quoted(j)}: ${percent(weight(i, j))}` : `${quoted(i)} may not see ${quoted(j)}`);
      }));
      select(row, column);
    }

    function select(i, j) {
      [row, column] = [i, j];
      cells.forEach((line, a) => line.forEach((cell, b) => {
        cell.tabIndex = a === i && b === j ? 0 : -1;
        cell.classList.toggle("gw-here", a === i && b === j);
        cell.parentElement.classList.toggle("gw-looking", a === i);
      }));
      detail.textContent = `${cells[i][j].getAttribute("aria-label")}. All that ${quoted(i)}, token ${i}, looks at:`;
      text.replaceChildren(...tokens.map((_, key) => make("span", {
        class: ["gw-token", key === i ? "gw-asking" : "", sees(i, key) ? "" : "gw-masked"].join(" ").trim(),
        style: `--gw-share: ${100 * weight(i, key)}%`,
      }, make("span", { dir: "auto" }, shown[key]),
        make("small", {}, sees(i, key) ? percent(weight(i, key)) : "hidden"))));
    }

    const place = (element) => {
      for (let i = 0; i < T; i++) if (cells[i].includes(element)) return [i, cells[i].indexOf(element)];
    };
    map.addEventListener("pointerover", (event) => { const at = place(event.target); if (at) select(...at); });
    map.addEventListener("focusin", (event) => { const at = place(event.target); if (at) select(...at); });
    map.addEventListener("keydown", (event) => {
      if (event.altKey || event.ctrlKey || event.metaKey) return;
      const clamp = (value) => Math.min(Math.max(value, 0), T - 1);
      const to = { ArrowUp: [row - 1, column], ArrowDown: [row + 1, column], ArrowLeft: [row, column - 1],
                   ArrowRight: [row, column + 1], Home: [row, 0], End: [row, T - 1] }[event.key];
      if (!to) return;
      event.preventDefault();
      event.stopPropagation();
      cells[clamp(to[0])][clamp(to[1])].focus();
    });
    [row, column] = [T - 1, 0];
    choice.value = 1;
    go();
  }

  startAll("attention", start);
})();
