// The player: replays the traces that trace.py describes. Python writes the page, the words and the data; this file
// draws one step at a time.
(() => {
  "use strict";

  const legendOf = (trace) => trace.legend ?? [];         // pairs: kind, words
  const kindIndex = (trace, kind) => legendOf(trace).findIndex((pair) => pair[0] === kind);
  const kindWords = (trace, kind) => legendOf(trace)[kindIndex(trace, kind)]?.[1];
  const kindClass = (trace, kind) => (kind ? `gw-kind-${kindIndex(trace, kind) + 1}` : "");
  const cellClass = (trace, cell) =>
    ["gw-cell", kindClass(trace, cell.kind), cell.emphasis ? `gw-${cell.emphasis}` : ""].join(" ").trim();
  const lanesOf = (step) => step.lanes ?? [];
  const cellsOf = (lane) => lane.cells ?? [];

  function label(lane) {
    return make("div", { class: "gw-label" }, make("span", {}, lane.label),
      lane.note ? make("small", {}, lane.note) : "");
  }

  function lanes(trace, step) {
    return make("div", { class: `gw-${trace.view ?? "lanes"}` }, ...lanesOf(step).map((lane) =>
      make("div", { class: "gw-lane" }, label(lane),
        make("div", { class: "gw-cells", role: "list", "aria-label": lane.label }, ...cellsOf(lane).map((cell) =>
          make("span", {
            class: cellClass(trace, cell), role: "listitem", dir: "auto",
            "data-note": cell.note && `${cell.text}: ${cell.note}`,
            "aria-label": [cell.text, kindWords(trace, cell.kind), cell.emphasis, cell.note].filter(Boolean).join(", "),
          }, cell.text))))));
  }

  function table(trace, step) {
    const head = make("tr", {}, make("td"), ...(trace.columns ?? []).map((name) => make("th", { scope: "col" }, name)));
    return make("div", { class: "gw-scroll" }, make("table", { class: "gw-table" }, make("thead", {}, head),
      make("tbody", {}, ...lanesOf(step).map((lane) => make("tr", {}, make("th", { scope: "row" }, lane.label),
        ...cellsOf(lane).map((cell) =>
          make("td", { class: cellClass(trace, cell).replace("gw-cell", "gw-box"), dir: "auto" }, cell.text)))))));
  }

  const ROOM_FOR_TEXT = 84;         // pixels that a segment's text needs
  const length = (lane) => cellsOf(lane).reduce((sum, cell) => sum + (cell.size ?? 1), 0);

  function bars(trace, step, width) {
    const marks = trace.marks ?? [];
    const lengths = trace.steps.flatMap((other) => lanesOf(other).map(length));
    const longest = Math.max(...lengths, ...marks.map((mark) => mark.at));
    const limit = trace.limit || longest * 1.02 || 1;
    const percent = (size) => `${(100 * size) / limit}%`;
    return make("div", { class: "gw-bars" },
      ...marks.map((mark, i) => make("div", {
        class: `gw-mark ${i % 2 ? "gw-high" : ""} ${mark.at > 0.8 * limit ? "gw-left" : ""}`,
        style: `left: ${percent(mark.at)}`,
      }, make("span", {}, mark.label))),
      ...lanesOf(step).map((lane) => make("div", { class: "gw-bar" }, label(lane),
        make("div", {
          class: `gw-track ${length(lane) > limit ? "gw-cut" : ""}`, role: "list", "aria-label": lane.label,
        }, ...cellsOf(lane).map((cell) =>
          make("div", {
            class: `gw-segment ${kindClass(trace, cell.kind)}`, style: `width: ${percent(cell.size ?? 1)}`,
            role: "listitem",
            "data-note": [lane.label, kindWords(trace, cell.kind), cell.text].filter(Boolean).join(", "),
            "aria-label": [kindWords(trace, cell.kind), cell.text].filter(Boolean).join(" "),
          }, ((cell.size ?? 1) / limit) * width > ROOM_FOR_TEXT ? make("span", {}, cell.text) : ""))))));
  }

  const SHAPES = [      // the outline of a point of each kind, around 0, 0
    "M-6,0a6,6 0 1,0 12,0a6,6 0 1,0 -12,0", "M-6,-6H6V6H-6Z", "M0,-7L7,6H-7Z", "M0,-8L8,0L0,8L-8,0Z",
    "M0,7L7,-6H-7Z", "M-2,-7H2V-2H7V2H2V7H-2V2H-7V-2H-2Z", "M-7,-4H7V4H-7Z", "M-4,-7H4V7H-4Z",
  ];
  const kindShape = (trace, kind) => SHAPES[Math.max(0, kindIndex(trace, kind))];

  function power(exponent) {        // the number that a tick of a logarithmic axis stands for
    const prefixes = { "-1": "m", 0: "", 1: "k", 2: "M", 3: "G", 4: "T", 5: "P" };
    const thousands = Math.floor(exponent / 3);
    if (exponent >= -2 && exponent < 0) return String(10 ** exponent);
    return thousands in prefixes ? `${10 ** (exponent - 3 * thousands)}${prefixes[thousands]}` : `1e${exponent}`;
  }

  function plot(trace, step, width) {
    const lines = trace.lines ?? [];
    const pairs = [...lines.flatMap((line) => line.points),
                   ...trace.steps.flatMap((other) => (other.points ?? []).map((point) => [point.x, point.y]))];
    if (pairs.length === 0) return make("div");
    const height = Math.round(Math.min(380, Math.max(260, width * 0.55)));
    const box = { left: 52, right: width - 12, top: 26, bottom: height - 44 };
    const range = (axis) => {
      const logs = pairs.map((pair) => Math.log10(pair[axis]));
      const low = Math.floor(Math.min(...logs));
      return [low, Math.max(low + 1, Math.ceil(Math.max(...logs) + 0.05))];
    };
    const [[x0, x1], [y0, y1]] = [range(0), range(1)];
    const x = (value) => box.left + ((Math.log10(value) - x0) / (x1 - x0)) * (box.right - box.left);
    const y = (value) => box.bottom - ((Math.log10(value) - y0) / (y1 - y0)) * (box.bottom - box.top);
    const ticks = (low, high, room) => {
      const every = Math.ceil((high - low) / room);
      return Array.from({ length: high - low + 1 }, (_, i) => low + i).filter((tick) => (tick - low) % every === 0);
    };
    return svg("svg", { class: "gw-plot", width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
                        "aria-label": `${trace.title}. ${step.caption}` },
      ...ticks(x0, x1, width / 60).flatMap((tick) => [
        svg("line", { class: "gw-grid", x1: x(10 ** tick), x2: x(10 ** tick), y1: box.top, y2: box.bottom }),
        svg("text", { x: x(10 ** tick), y: box.bottom + 18, "text-anchor": "middle" }, power(tick))]),
      ...ticks(y0, y1, height / 40).flatMap((tick) => [
        svg("line", { class: "gw-grid", x1: box.left, x2: box.right, y1: y(10 ** tick), y2: y(10 ** tick) }),
        svg("text", { x: box.left - 8, y: y(10 ** tick) + 4, "text-anchor": "end" }, power(tick))]),
      svg("text", { x: box.right, y: height - 6, "text-anchor": "end" }, trace.x_label ?? ""),
      svg("text", { x: 0, y: 12 }, trace.y_label ?? ""),
      ...lines.map((line, i) => svg("polyline", { class: `gw-line gw-line-${i + 1}`,
        points: line.points.map((pair) => `${x(pair[0])},${y(pair[1])}`).join(" ") })),
      ...lines.map((line) => {
        const [endX, endY] = line.points.at(-1);
        const place = { x: x(endX) - 4, y: y(endY) - 8, "text-anchor": "end" };
        return svg("text", { class: "gw-line-label", ...place }, line.label);
      }),
      ...(step.points ?? []).map((point) => svg("path", {
        class: `gw-point ${kindClass(trace, point.kind)}`, d: kindShape(trace, point.kind),
        transform: `translate(${x(point.x)} ${y(point.y)})`,
      }, svg("title", {}, point.label))));
  }

  const percent = (share) => `${Math.round(100 * share)}%`;
  const stepName = (trace, i) =>
    `${trace.step_name ?? "Step"} ${trace.steps[i].label ?? `${i + 1} of ${trace.steps.length}`}`;

  function box(trace, cell) {       // what stands in a slot of a timeline, as high as its size
    const fill = make("i", { class: `gw-fill ${kindClass(trace, cell.kind)}`, style: `height: ${percent(cell.size ?? 1)}` },
      cell.text ? make("b", {}, cell.text) : "");
    return cell.rest ? [make("i", { class: `gw-fill gw-rest ${kindClass(trace, cell.rest)}` }), fill] : [fill];
  }

  function timeline(trace, step) {
    const rows = trace.timeline ?? [];
    const now = trace.steps.indexOf(step);
    const columns = Math.max(1, ...rows.map((lane) => cellsOf(lane).length));
    const parts = [];
    const place = (element, row, column) => {
      element.style.gridArea = `${row} / ${column}`;
      parts.push(element);
      return element;
    };
    let row = 1, group;
    for (let i = 0; i < columns; i += 5) {
      place(make("span", { class: "gw-tick", "aria-hidden": "true" }, trace.steps[i].label ?? String(i + 1)), row, i + 2);
    }
    for (const lane of rows) {
      if (lane.group && lane.group !== group) {
        place(make("div", { class: "gw-group" }, make("span", {}, lane.group)), ++row, "1 / auto / -1");
        group = lane.group;
      }
      row += 1;
      place(label(lane), row, 1);
      const list = make("div", { class: "gw-timeline-lane", role: "list", "aria-label": lane.label });
      parts.push(list);
      cellsOf(lane).forEach((cell, i) => {
        const what = [kindWords(trace, cell.kind), kindWords(trace, cell.rest)].filter(Boolean).join(", and above it ");
        const words = [cell.text, [what, cell.note].filter(Boolean).join(": ")].filter(Boolean).join(" ");
        const note = words && `${lane.label}, ${stepName(trace, i).toLowerCase()}: ${words}`;
        const slot = make("span", { class: `gw-slot ${i > now ? "gw-later" : ""}`, style: `grid-area: ${row} / ${i + 2}`,
                                    ...(note && i <= now ? { role: "listitem", "data-note": note, "aria-label": note } : {}) },
          ...(cell.kind || cell.note ? box(trace, cell) : []));
        list.append(slot);
      });
    }
    if (now < columns) parts.unshift(make("div", { class: "gw-now", style: `grid-area: 1 / ${now + 2} / ${row + 1}` }));
    return make("div", { class: "gw-scroll" }, make("div", {
      class: "gw-timeline", style: `grid-template-columns: max-content repeat(${columns}, auto)`,
    }, ...parts));
  }

  function blocks(trace, step) {
    const [pool, ...tables] = lanesOf(step);
    const lane = ({ label: name, note, cells }) => make("div", { class: "gw-lane" }, label({ label: name, note }),
      make("div", { class: "gw-cells", role: "list", "aria-label": name }, ...cellsOf({ cells }).map((cell) => {
        const [number, ...owner] = cell.text.split("\n");
        const words = [number, kindWords(trace, cell.kind), cell.note].filter(Boolean).join(", ");
        return make("span", { class: cellClass(trace, cell), style: `--gw-fill: ${percent(cell.size ?? 1)}`,
                              role: "listitem", "data-block": number, "data-note": words,
                              "aria-label": [words, cell.emphasis].filter(Boolean).join(", ") },
          number, owner.length ? make("b", {}, owner.join(" ")) : "");
      })));
    return make("div", { class: "gw-blocks" }, make("div", { class: "gw-pool" }, lane(pool)),
      make("div", { class: "gw-tables" }, ...tables.map(lane)));
  }

  function tiles(trace, step) {
    const groups = new Map();
    for (const lane of lanesOf(step)) groups.set(lane.group, [...(groups.get(lane.group) ?? []), lane]);
    const [[name, rows], ...beside] = [...groups];
    const [title, bars] = beside.pop();
    const heading = (text) => make("p", { class: "gw-heading" }, text);
    const square = (cell) => ((cell.size ?? 1) === 0 ? make("span", { class: "gw-gap" }) : make("span", {
      class: cellClass(trace, cell), role: "listitem", "data-note": cell.note,
      "aria-label": [cell.note, kindWords(trace, cell.kind), cell.emphasis].filter(Boolean).join(", "),
    }, cell.text));
    const row = (label, list) => make("div", { class: "gw-row" }, make("span", { class: "gw-side" }, label), list);
    const columns = make("div", { class: "gw-cells", "aria-hidden": "true" }, ...(trace.columns ?? []).map((text) =>
      make("span", { class: text ? "gw-column" : "gw-gap" }, text)));
    return make("div", { class: "gw-tiles" },
      make("div", {}, heading(name), make("div", { class: "gw-scroll" }, make("div", { class: "gw-grid" },
        row("", columns), ...rows.map((lane) => (cellsOf(lane).length ? row(lane.label,
          make("div", { class: "gw-cells", role: "list", "aria-label": lane.label }, ...cellsOf(lane).map(square)))
          : make("div", { class: "gw-gap" })))))),
      make("div", {}, ...beside.flatMap(([text, inside]) => [heading(text), lanes({ ...trace, view: "lanes" }, { lanes: inside })])),
      make("div", { class: "gw-bytes" }, heading(title), ...bars.map((lane) => make("div", { class: "gw-bar" },
        label({ label: lane.label, note: cellsOf(lane).map((cell) => cell.text).join(", ") }), make("div", { class: "gw-track" }, ...cellsOf(lane).map((cell) =>
          make("div", { class: `gw-segment ${kindClass(trace, cell.kind)}`, style: `width: ${percent(cell.size ?? 1)}` })))))));
  }

  const VIEWS = { lanes, text: lanes, table, bars, plot, timeline, blocks, tiles };

  function swatch(trace, kind) {
    const sizes = trace.timeline.flatMap(cellsOf).filter((cell) => cell.kind === kind).map((cell) => cell.size ?? 1);
    return make("span", { class: "gw-swatch", "aria-hidden": "true" }, ...box(trace, { kind, size: Math.max(0, ...sizes) || 1 }));
  }

  function legend(trace) {
    const drawn = new Set((trace.timeline ?? []).flatMap(cellsOf).flatMap((cell) => [cell.kind, cell.rest]));
    const explained = legendOf(trace).filter(([kind]) => trace.view !== "timeline" || drawn.has(kind));
    return make("ul", { class: "gw-legend" }, ...explained.map(([kind, words]) =>
      make("li", {}, trace.view === "timeline" ? swatch(trace, kind) : trace.view === "plot"
        ? svg("svg", { class: "gw-swatch-point", viewBox: "-10 -10 20 20", "aria-hidden": "true" },
            svg("path", { class: `gw-point ${kindClass(trace, kind)}`, d: kindShape(trace, kind) }))
        : make("span", { class: `gw-swatch ${kindClass(trace, kind)}`, "aria-hidden": "true" }), words)));
  }

  const SECONDS_PER_STEP = { timeline: 0.5 };

  function start(root, traces, words) {
    for (const { pool, steps, timeline = [] } of traces) {
      for (const lane of [...steps.flatMap(lanesOf), ...timeline]) lane.cells = cellsOf(lane).map((place) => pool[place]);
    }
    let trace, at, timer;
    root.tabIndex = 0;                          // so that the arrow keys work wherever in the figure the focus is

    const choice = make("select", {}, ...traces.map((other, i) => make("option", { value: i }, other.title)));
    const slider = make("input", { type: "range", min: 0, step: 1 });
    const place = make("span", { class: "gw-place" });
    const back = [button("First step", () => go(0)), button("Previous step", () => go(at - 1))];
    const onward = [button("Next step", () => go(at + 1)), button("Last step", () => go(Infinity))];
    const play = button("Play", () => (timer ? pause() : run()));
    const controls = make("div", { class: "gw-controls" }, ...back, play, ...onward, slider, place);
    const caption = make("p", { class: "gw-caption", "aria-live": "polite", dir: "auto" });
    const stage = make("div", { class: "gw-stage" });
    const detail = make("p", { class: "gw-detail" });
    const values = make("dl", { class: "gw-values" });
    const key = make("div");
    words.before(make("label", { class: "gw-choice" }, make("span", {}, root.dataset.choice ?? ""), choice),
      controls, caption, stage, detail, key, values);
    choice.parentElement.hidden = traces.length < 2;

    function open(index) {
      pause();
      trace = traces[index];
      slider.max = trace.steps.length - 1;
      slider.setAttribute("aria-label", trace.step_name ?? "Step");
      controls.hidden = trace.steps.length < 2;
      key.replaceChildren(trace.legend ? legend(trace) : "");
      go(trace.first ?? 0);
    }

    function go(target) {
      at = Math.min(Math.max(target, 0), trace.steps.length - 1);
      const step = trace.steps[at];
      const last = at === trace.steps.length - 1;
      const name = stepName(trace, at);
      slider.value = at;
      slider.setAttribute("aria-valuetext", name);
      place.textContent = name;
      // Not `disabled`: a disabled button loses the focus, and with it the arrow keys.
      back.forEach((one) => one.setAttribute("aria-disabled", at === 0));
      onward.forEach((one) => one.setAttribute("aria-disabled", last));
      if (last) pause();
      caption.textContent = step.caption;
      values.hidden = !step.values;
      values.replaceChildren(...(step.values ?? []).flatMap(([term, text]) =>
        [make("dt", { dir: "auto" }, term), make("dd", { dir: "auto" }, text)]));
      draw();
    }

    function draw() {
      const focused = stage.contains(document.activeElement);
      stage.replaceChildren(VIEWS[trace.view ?? "lanes"](trace, trace.steps[at], stage.clientWidth || 640));
      const [current, scroll] = [".gw-now", ".gw-scroll"].map((name) => stage.querySelector(name));
      if (current) scroll.scrollLeft = current.offsetLeft - scroll.clientWidth / 2;
      const noted = stage.querySelectorAll("[data-note]");
      noted.forEach((cell, i) => (cell.tabIndex = i === 0 ? 0 : -1));
      detail.hidden = noted.length === 0;
      detail.textContent = noted.length ? "Point at a box, or use the up and down arrow keys, to see more." : "";
      if (focused) (noted[0] ?? root).focus();
    }

    function show(event) {
      const cell = event.target.closest?.("[data-note]");
      if (!cell) return;
      detail.textContent = cell.dataset.note;
      for (const one of stage.querySelectorAll("[data-block]")) {
        one.classList.toggle("gw-same", one.dataset.block === cell.dataset.block);
      }
    }

    function run() {
      if (at === trace.steps.length - 1) go(0);
      timer = setInterval(() => (root.isConnected ? go(at + 1) : pause()), 1000 * (SECONDS_PER_STEP[trace.view] ?? 1.4));
      showPlaying(true);
    }

    function pause() {
      clearInterval(timer);
      timer = undefined;
      showPlaying(false);
    }

    function showPlaying(playing) {
      const name = playing ? "Pause" : "Play";
      play.replaceChildren(icon(name));
      play.setAttribute("aria-label", name);
      play.title = name;
    }

    function focusNote(offset) {
      const noted = [...stage.querySelectorAll("[data-note]")];
      if (noted.length === 0) return;
      const current = noted.indexOf(document.activeElement);
      const next = noted[current < 0 ? 0 : Math.min(Math.max(current + offset, 0), noted.length - 1)];
      noted.forEach((cell) => (cell.tabIndex = cell === next ? 0 : -1));
      next.focus();
    }

    root.addEventListener("keydown", (event) => {
      if (event.altKey || event.ctrlKey || event.metaKey || event.target.closest("select, input, summary")) return;
      const stepping = trace.steps.length > 1;
      const act = {
        ArrowLeft: () => (stepping ? go(at - 1) : focusNote(-1)),
        ArrowRight: () => (stepping ? go(at + 1) : focusNote(1)),
        ArrowUp: () => focusNote(-1), ArrowDown: () => focusNote(1), Home: () => go(0), End: () => go(Infinity),
      }[event.key];
      if (!act) return;
      event.preventDefault();
      event.stopPropagation();
      if (event.key !== "ArrowUp" && event.key !== "ArrowDown") pause();
      act();
    });
    slider.addEventListener("input", () => { pause(); go(Number(slider.value)); });
    choice.addEventListener("change", () => open(Number(choice.value)));
    stage.addEventListener("focusin", show);
    stage.addEventListener("pointerover", show);

    open(0);
    let width = stage.clientWidth;
    new ResizeObserver(() => {
      if (stage.clientWidth === width) return;
      width = stage.clientWidth;
      draw();
    }).observe(stage);
  }

  startAll("player", start);
})();
