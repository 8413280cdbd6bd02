// The moving picture: the tower of layers, one layer, one head. Every number was recorded by Python; none is made here,
// but for sums that a caption names as such.
(() => {
  "use strict";

  const LEVELS = ["model", "layer", "head"];
  const SECONDS_PER_STEP = { model: 0.5, layer: 2.4, head: 3 };
  const POSITIVE = [217, 114, 42], NEGATIVE = [47, 120, 208];     // on white and on black alike; how much: the alpha
  const MOST = { vector: 63, numbers: 32767 };

  // The arrays of a chunk, by "name/pass". Codes of a vector are signed square roots: a code's share of the largest is
  // what a colour shows, and its square is the number's.
  async function unpack({ arrays, codes }) {
    const packed = Uint8Array.from(atob(codes), (character) => character.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    const bytes = await new Response(stream).arrayBuffer();
    const found = new Map();
    let place = 0;
    for (const [name, pass, shape, kind, scale, size] of arrays) {
      const count = shape.reduce((product, length) => product * length, 1);
      const typed = kind === "vector" ? new Int8Array(bytes, place, count) : new Int16Array(bytes, place, count);
      place += typed.byteLength + (typed.byteLength % 2);
      found.set(`${name}/${pass}`, new Numbers(typed, shape, kind, scale, size));
    }
    return found;
  }

  class Numbers {
    constructor(codes, shape, kind, scale, size) { Object.assign(this, { codes, shape, kind, scale, size }); }
    at(i) {
      const share = this.codes[i] / MOST[this.kind];
      return this.scale * (this.kind === "vector" ? share * Math.abs(share) : share);
    }
    // The numbers at one place of the first axis.
    row(i) {
      const shape = this.shape.slice(1), count = shape.reduce((product, length) => product * length, 1);
      return new Numbers(this.codes.subarray(i * count, (i + 1) * count), shape, this.kind, this.scale);
    }
    get list() { return Array.from(this.codes, (_, i) => this.at(i)); }
  }

  const visible = (text) => text.replaceAll(" ", "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥");
  const quoted = (text) => `“${text.trim() ? text.replaceAll("\n", "⏎") : visible(text)}”`;
  const percent = (share) => (share > 0 && share < 0.005 ? "under 1\u00a0%" : `${Math.round(100 * share)}\u00a0%`);
  const number = (x) => (Math.abs(x) >= 1000 ? Math.round(x).toLocaleString("en") : x === 0 ? "0" : x.toPrecision(3));
  const counted = (n, what) => `${n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`;
  const largest = (list) => list.reduce((best, x, i) => (x > list[best] ? i : best), 0);

  async function start(root, data, words) {
    let shared, details;
    try {
      shared = await unpack(data.shared);
      details = Object.fromEntries(await Promise.all(
        Object.entries(data.details).map(async ([layer, chunk]) => [layer, await unpack(chunk)])));
    } catch {
      words.open = true;                        // a browser that cannot inflate
      return;
    }
    addEventListener("beforeprint", () => { words.open = true; });
    show(root, data, shared, details, words);
  }

  function show(root, { tokens, prompt, shape, text, finish, passes, names, at: opening }, shared, details, words) {
    const { L, D, H, K, d, F, V } = shape;
    const kept = Object.keys(details).map(Number);
    const frames = {
      model: passes.flatMap((_, pass) => [
        ...(pass ? [] : [{ pass, step: "encode" }]), { pass, step: "embed" },
        ...Array.from({ length: L }, (__, layer) => ({ pass, step: "layers", layer })),
        { pass, step: "head" }, { pass, step: "choose" }, { pass, step: "append" }]),
      layer: passes.flatMap((_, pass) => kept.flatMap((layer) => names.layer.map((step) => ({ pass, layer, step })))),
      head: passes.flatMap((_, pass) => kept.flatMap((layer) => names.head.map((step) => ({ pass, layer, step })))),
    };
    let level = opening.head !== null ? "head" : opening.layer !== null ? "layer" : "model";
    let head = opening.head ?? 0;
    let at = Math.max(0, frames[level].findIndex((frame) => (opening.layer === null || frame.layer === opening.layer)
                                                  && (!opening.step || frame.step === opening.step)));
    let timer, view;                            // view: what is drawn, and how it is brought to a step
    const now = () => frames[level][at];
    const focusOf = (pass) => passes[pass].stored + passes[pass].count - 1;
    const textOf = (i) => quoted(tokens[i][0]);
    const array = (name, { pass, layer }) => (layer === undefined ? shared : details[layer]).get(`${name}/${pass}`);

    // --- what surrounds the picture

    root.tabIndex = 0;
    const back = [button("First step", () => go(0)), button("Previous step", () => go(at - 1))];
    const onward = [button("Next step", () => go(at + 1)), button("Last step", () => go(Infinity))];
    const play = button("Play", () => (timer ? pause() : run()));
    const slide = make("input", { type: "range", min: 0, step: 1, "aria-label": "Step" });
    const place = make("span", { class: "gw-place" });
    const near = Object.fromEntries(LEVELS.map((name) => {
      const one = make("button", { type: "button", class: "gw-button" }, `${name[0].toUpperCase()}${name.slice(1)}`);
      one.addEventListener("click", () => { pause(); zoom(name); });
      return [name, one];
    }));
    const chosen = { layer: picker("Layer", kept), head: picker("Head", Array.from({ length: H }, (_, i) => i)) };
    const strip = make("div", { class: "gw-tokens" });
    const caption = make("p", { class: "gw-caption", "aria-live": "polite" });
    const stage = make("div", { class: "gw-stage" });
    const detail = make("p", { class: "gw-detail" });
    words.before(
      make("div", { class: "gw-zoom" },
        make("div", { class: "gw-nearer", role: "group", "aria-label": "How near" }, ...LEVELS.map((name) => near[name])),
        chosen.layer.label, chosen.head.label),
      make("div", { class: "gw-controls" }, ...back, play, ...onward, slide, place), strip, caption, stage, detail,
      make("ul", { class: "gw-legend" },
        make("li", {}, make("span", { class: "gw-scale", "aria-hidden": "true" }),
          "a number: below zero, zero, above (each strip by its own largest)"),
        make("li", {}, make("span", { class: "gw-swatch gw-in-cache", "aria-hidden": "true" }), "in the cache"),
        make("li", {}, make("span", { class: "gw-swatch gw-goes-in", "aria-hidden": "true" }), "goes in now"),
        make("li", {}, make("span", { class: "gw-swatch gw-goes-in gw-focus", "aria-hidden": "true" }), "is followed here")));

    function picker(name, numbers) {
      const select = make("select", { "aria-label": name }, ...numbers.map((n) => make("option", { value: n }, `${name} ${n}`)));
      select.addEventListener("change", () => {
        pause();
        if (name === "Head") head = Number(select.value);
        else at = frames[level].findIndex((frame) => frame.pass === now().pass && frame.step === now().step
                                          && frame.layer === Number(select.value));
        draw();
      });
      return { label: make("label", { class: "gw-choice" }, select), select };
    }

    function go(target) {
      at = Math.min(Math.max(target, 0), frames[level].length - 1);
      draw();
    }

    // To another distance, and there to the step nearest to this one.
    function zoom(to, { layer, head: toHead } = {}) {
      const from = now();
      const wanted = layer ?? from.layer ?? (from.step === "encode" || from.step === "embed" ? 0 : L - 1);
      const nearest = kept.reduce((best, one) => (Math.abs(one - wanted) < Math.abs(best - wanted) ? one : best));
      head = toHead ?? head;
      const steps = names[to];
      let step = from.step;
      if (to === "model") step = "layers";
      else if (!steps.includes(step)) {
        step = to === "layer" ? (level === "head" ? "attention" : steps[0])
          : names.layer.indexOf(step) < names.layer.indexOf("attention") || level === "model" ? "rotation"
            : step === "attention" ? "softmax" : "values";
      }
      if (to === "head" && toHead !== undefined) step = "scores";
      level = to;
      go(frames[to].findIndex((frame) => frame.pass === from.pass && frame.step === step
                              && frame.layer === (to === "model" ? wanted : nearest)));
    }

    function run() {
      if (at === frames[level].length - 1) go(0);
      timer = setInterval(() => {
        if (!root.isConnected || at === frames[level].length - 1) pause();
        else go(at + 1);
      }, 1000 * SECONDS_PER_STEP[level]);
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
      caption.setAttribute("aria-live", playing ? "off" : "polite");
    }

    // --- one step

    function draw() {
      const frame = now(), told = passes[frame.pass], focus = focusOf(frame.pass);
      slide.max = frames[level].length - 1;
      slide.value = at;
      place.textContent = level === "model" && frame.step === "layers" ? `layer ${frame.layer}` : frame.step;
      slide.setAttribute("aria-valuetext", `${place.textContent}, pass ${frame.pass + 1} of ${passes.length}`);
      // Not `disabled`: a disabled button loses the focus, and with it the arrow keys.
      back.forEach((one) => one.setAttribute("aria-disabled", at === 0));
      onward.forEach((one) => one.setAttribute("aria-disabled", at === frames[level].length - 1));
      for (const name of LEVELS) near[name].setAttribute("aria-pressed", name === level);
      chosen.layer.label.hidden = level === "model";
      chosen.head.label.hidden = level !== "head";
      if (level !== "model") chosen.layer.select.value = frame.layer;
      chosen.head.select.value = head;

      const there = focus + 1 + (frame.step === "append" && told.chosen !== null ? 1 : 0);
      strip.replaceChildren(...tokens.map(([token, id], i) => make("span", {
        class: ["gw-piece", i >= there ? "gw-later" : i > focus ? "gw-fresh" : i >= told.stored ? "gw-goes-in" : "gw-in-cache",
                i === focus ? "gw-focus" : ""].join(" ").trim(),
      }, make("span", { dir: "auto" }, visible(token)), make("small", {}, String(id)))));
      caption.textContent = say(frame, told, focus);
      detail.textContent = {
        model: `Press a layer to look into it${kept.length < L ? ` (here: ${kept.join(", ")})` : ""}. Point at a strip to read its numbers.`,
        layer: "Press a head to look into it. Point at a strip to read its numbers.",
        head: "Point at a strip to read its numbers. Faint values: those of small shares." }[level];
      // From step to step only classes change; what is drawn changes with its place.
      const drawn = [level, frame.pass, ...(level === "model" ? [] : [frame.layer]), ...(level === "head" ? [head] : [])].join();
      if (view?.drawn !== drawn) {
        const held = stage.contains(document.activeElement);
        view = { drawn, ...{ model: drawModel, layer: drawLayer, head: drawHead }[level](frame, told, focus) };
        stage.replaceChildren(view.picture);
        if (held) root.focus();
      }
      view.bring(frame);
    }

    function say(frame, told, focus) {
      const own = textOf(focus), { layer, pass, step } = frame, stored = focus + 1;
      const size = (name) => number(array(name, frame).size);
      if (level === "model") {
        const chosen = told.chosen === null ? "the end of the text" : quoted(told.listed.find(([, id]) => id === told.chosen)[0]);
        return {
          encode: () => `${quoted(tokens.slice(0, prompt).map(([token]) => token).join(""))} becomes ${counted(prompt, "id")}, `
            + `each the number of a piece of text in a list of ${V.toLocaleString("en")}.`,
          embed: () => (pass ? `Only ${own} goes in: keys and values of all before it are in the cache. Its row of the table `
            : `Each id picks a row of a table, ${D} numbers. The row of ${own}, which is followed here, `)
            + `has size ${number(told.sizes[0])} (root mean square).`,
          layers: () => `Layer ${layer} reads the stream of ${own} and adds to it: its size goes from ${number(told.sizes[layer])} to `
            + `${number(told.sizes[layer + 1])}. Read off here, the head would say ${quoted(told.early[layer + 1][0])} with ${percent(told.early[layer + 1][1])}.`,
          head: () => `After the last layer: a norm, and a product with ${V.toLocaleString("en")} rows. The highest logit is `
            + `${number(told.listed[0][2])}, of ${quoted(told.listed[0][0])}; softmax makes ${percent(told.listed[0][3])} of it.`,
          choose: () => (told.rank === null ? "What is chosen ends the text." : told.rank === 0 ? `${chosen} is chosen: nothing is likelier.`
            : `${chosen} is chosen, place ${told.rank + 1} by likelihood: the dice, or a setting, decided so.`),
          append: () => (pass + 1 < passes.length ? `${chosen} is appended, and is all that goes into the next pass.`
            : `${told.chosen === null ? "" : `${chosen} is appended. `}Here it ends (${finish}). The text that came out: ${quoted(text)}.`),
        }[step]();
      }
      if (level === "layer") {
        const weights = array("weights", frame);
        const seen = weights.list.map((weight, i) => (i % stored ? weight : 0));
        const best = largest(seen);
        const gate = array("gate", frame), gated = array("gated", frame)?.list.map(Math.abs);
        const heads = `${counted(H, "query").replace("querys", "queries")}, ${counted(K, "key")} and ${counted(K, "value")}`;
        return {
          norm: () => `The norm divides the stream of ${own} by its size, ${number(told.sizes[layer])}, and weights each of the ${D} numbers. `
            + `What follows reads numbers of size ${size("normed")}.`,
          "queries, keys, values": () => `One product makes ${heads} of them, of ${d} numbers each. `
            + `${H > K ? `${H / K} heads share a key and a value.` : "Each head has its own."}`,
          rotation: () => `${own} stands at position ${focus}. Each pair of numbers in its queries and keys turns by ${focus} times the pair's own angle; `
            + "their sizes stay.",
          cache: () => (pass ? `The key and the value of ${own} join the ${told.stored} that are in the cache of layer ${layer}. None of those is computed again.`
            : `Keys and values of ${told.count === 1 ? "the token" : `all ${told.count} tokens`} go into the cache of layer ${layer}: `
              + `${told.count} × 2 × ${K} × ${d} numbers.`),
          attention: () => `Each head shares out 100\u00a0% among ${counted(stored, "token")}. `
            + (stored > 1 ? `Head ${Math.floor(best / stored)} gives ${percent(seen[best])} to ${textOf(best % stored)}, the most `
              + "that any gives to another than the first." : "There is only one to look at."),
          "heads mixed": () => `What the ${H} heads brought is mixed by o_proj into ${D} numbers of size ${size("from_heads")}.`,
          added: () => `They are added to the stream: size ${number(told.sizes[layer])} becomes ${size("middle")}.`,
          "second norm": () => `The second half. A norm with other weights reads the stream: now size ${size("normed_again")}. No token looks at another here.`,
          "gate and up": () => (gate ? `Two products make ${F.toLocaleString("en")} numbers each. Of the gate, ${gate.list.filter((x) => x > 0).length.toLocaleString("en")} `
            + `are above zero; the largest, number ${largest(gate.list)}, is ${number(gate.at(largest(gate.list)))}.` : "Experts compute here; they are not drawn."),
          SwiGLU: () => (gated ? `silu(gate) × up: a gate far below zero shuts. The largest result is number ${largest(gated)}; `
            + `${gated.filter((x) => x > gated[largest(gated)] / 4).length.toLocaleString("en")} of ${F.toLocaleString("en")} have more than a quarter of it.` : "Experts compute here; they are not drawn."),
          down: () => `One more product: ${D} numbers again, of size ${size("from_network")}.`,
          "added again": () => `Added to the stream: size ${number(told.sizes[layer + 1])}. This is what ${layer + 1 < L ? `layer ${layer + 1}` : "the head"} finds.`,
        }[step]();
      }
      const scores = array("scores", frame).row(head).list, weights = array("weights", frame).row(head).list;
      const order = weights.map((_, i) => i).sort((a, b) => weights[b] - weights[a]);
      const shares = order.slice(0, 3).map((i) => `${percent(weights[i])} to ${textOf(i)}`);
      const top = largest(scores);
      return {
        rotation: () => `Head ${head} of layer ${layer}. The query of ${own}, position ${focus}, has turned: fast pairs far, slow ones hardly. So have the keys, each by its own position.`,
        scores: () => `The query times each key, over √${d}. ${textOf(top)} fits best, with ${number(scores[top])}.`,
        softmax: () => `Softmax makes shares of the scores. Head ${head} of layer ${layer} gives ${shares.join(", ")}.`,
        values: () => `The values are mixed by these shares: ${order.slice(0, 3).map((i) => `${weights[i].toFixed(2)} × that of ${textOf(i)}`).join(" + ")}`
          + `${order.length > 3 ? ", and a little of the others" : ""}. This is what head ${head} brings home.`,
      }[step]();
    }

    // --- drawings: each gives a picture, and a function that brings it to a step

    // What belongs to a step: its name or number here, its place in the order of steps there.
    function mark(elements, step) {
      for (const [element, own] of elements) {
        element.classList.toggle("gw-later", own > step);
        element.classList.toggle("gw-here", own === step);
      }
    }

    // Numbers as a strip of colours, as wide as there are many, in as many lines as the stream's width asks for.
    function colours(numbers, name) {
      const count = numbers.codes.length, lines = Math.max(1, Math.round(count / Math.max(D, H * d)));
      const columns = Math.ceil(count / lines);
      const canvas = make("canvas", { width: columns, height: lines, role: "img",
        "aria-label": `${name}: ${numbers.shape.join(" × ")} numbers${numbers.size === undefined ? "" : `, size ${number(numbers.size)}`}` });
      const picture = new ImageData(columns, lines);
      const most = numbers.codes.reduce((found, code) => Math.max(found, Math.abs(code)), 1);
      numbers.codes.forEach((code, i) => picture.data.set(
        [...(code < 0 ? NEGATIVE : POSITIVE), 255 * (Math.abs(code) / most) ** 0.75], 4 * i));
      canvas.getContext("2d").putImageData(picture, 0, 0);
      canvas.addEventListener("pointermove", (event) => {
        const box = canvas.getBoundingClientRect();
        const column = Math.floor(((event.clientX - box.left) / box.width) * columns);
        const line = Math.floor(((event.clientY - box.top) / box.height) * lines);
        const i = line * columns + column;
        if (i >= 0 && i < count) detail.textContent = `${name}, ${spot(numbers.shape, i)}: about ${number(numbers.at(i))}`;
      });
      return canvas;
    }
    function spot(shape, i) {
      return shape.length === 1 ? `number ${i}` : `head ${Math.floor(i / shape.at(-1))}, number ${i % shape.at(-1)}`;
    }

    function drawModel(frame, told, focus) {
      const streams = shared.get(`stream/${frame.pass}`), most = Math.max(...told.sizes), least = Math.min(...told.sizes);
      const room = focusOf(passes.length - 1) + 1;
      const long = (size) => 100 * (0.06 + 0.94 * (Math.log(size / least) / (Math.log(most / least) || 1)));
      const rows = told.sizes.map((size, i) => {
        const row = make("div", { class: "gw-floor" },
          make("span", { class: "gw-name" }, i ? String(i - 1) : "in"), colours(streams.row(i), i ? `after layer ${i - 1}` : "embedded"),
          i ? make("span", { class: "gw-kept" }, ...tokens.slice(0, room).map((_, token) => make("i", {
            class: token < told.stored ? "gw-in-cache" : token <= focus ? "gw-goes-in" : "" }))) : make("span"),
          make("span", { class: "gw-size" }, make("span", { style: `width: ${long(size)}%` }), make("b", {}, number(size))),
          make("span", { class: "gw-early", dir: "auto" }, make("span", {}, visible(told.early[i][0])), make("b", {}, percent(told.early[i][1]))));
        if (i && kept.includes(i - 1)) {
          row.classList.add("gw-opens");
          row.addEventListener("click", () => { pause(); zoom("layer", { layer: i - 1 }); });
        }
        return row;
      });
      const tower = make("div", { class: "gw-tower", role: "group", "aria-label": `The stream of ${textOf(focus)}, layer by layer` },
        make("div", { class: "gw-floor gw-heads" }, make("span", { class: "gw-name" }, "layer"), make("span", {}, `the stream, ${D} numbers`), make("span", {}, "cache"),
          make("span", { class: "gw-size" }, "size"), make("span", { class: "gw-early" }, "read off here")), ...rows);
      const loop = make("p", { class: "gw-loop-back" });
      const listed = make("div", { class: "gw-said" },
        make("p", { class: "gw-heading" }, "What the head says"),
        make("ol", { class: "gw-likely" }, ...told.listed.map(([token, id, logit, share]) => make("li", {
          class: id === told.chosen ? "gw-to-be-chosen" : "", title: `id ${id}, logit ${number(logit)}` },
          make("span", { class: "gw-word", dir: "auto" }, visible(token)),
          make("span", { class: "gw-track" }, make("span", { style: `width: ${100 * share}%` })),
          make("b", {}, percent(share))))), loop);
      const picture = make("div", { class: "gw-model" }, tower, listed);
      return { picture, bring({ step, layer }) {
        const shown = names.model.indexOf(step);
        mark(rows.map((row, i) => [row, i]), shown < 3 ? [-1, 0, layer + 1][shown] : L + 0.5);
        picture.classList.toggle("gw-saying", shown > 2);
        listed.classList.toggle("gw-later", shown < 3);
        listed.querySelector(".gw-to-be-chosen")?.classList.toggle("gw-chosen-one", shown > 3);
        loop.textContent = shown > 3 && told.chosen === null ? "the text ends"
          : shown > 4 ? "↑ appended to the text" : shown > 3 ? "chosen" : "";
      } };
    }

    function drawLayer(frame, told, focus) {
      const stored = focus + 1, lines = [], width = Math.max(D, H * d);
      const get = (name) => array(name, frame);
      const streams = shared.get(`stream/${frame.pass}`);
      const stream = (i) => Object.assign(streams.row(i), { size: told.sizes[i] });
      const line = (own, label, inside) => {
        const element = make("div", { class: "gw-line" }, make("span", { class: "gw-name" }, label), inside);
        lines.push([element, own]);
        return element;
      };
      const row = (own, label, ...parts) => line(own, label, make("div", { class: "gw-parts" }, ...parts.filter(([numbers]) => numbers).map(([numbers, name]) => make("div", {
          class: "gw-part", style: `--gw-share: ${Math.min(1, numbers.codes.length / width)}` },
          colours(numbers, name), make("small", {}, `${name} ${numbers.shape.join(" × ")}`,
            numbers.size === undefined || 2 * numbers.codes.length < width ? "" : make("span", {}, ` · size ${number(numbers.size)}`))))));
      const keyOf = (name) => get(name) ?? details[frame.layer].get(`${name}/-1`);
      const weights = get("weights");
      const heads = Array.from({ length: H }, (_, h) => {
        const shares = weights.row(h).list, best = largest(shares.map((share, i) => (i ? share : 0)));
        const one = make("button", { type: "button", class: "gw-one-head",
          title: `Head ${h} gives ${shares.map((share, i) => `${percent(share)} to ${textOf(i)}`).join(", ")}` },
          make("b", {}, String(h)), " ",
          make("span", { class: "gw-shares", "aria-hidden": "true" }, ...shares.map((share) => make("i", { style: `--gw-share: ${100 * share}%` }))),
          make("small", { dir: "auto" }, visible(tokens[best][0])), " ", make("small", { class: "gw-of-all" }, percent(shares[best])));
        one.addEventListener("click", () => { pause(); zoom("head", { head: h }); });
        return one;
      });
      const picture = make("div", { class: "gw-layer" },
        make("div", { class: "gw-half" }, make("p", { class: "gw-heading" }, "Attention: the tokens look at each other"),
          row(-1, "stream", [stream(frame.layer), "stream"]),
          row(0, "norm", [get("normed"), "normed"]),
          row(1, "q, k, v", [get("queries") ?? get("turned"), "queries"], [get("keys"), "keys"], [keyOf("stored_values").row(focus), "values"]),
          row(2, "turn", [get("turned"), "queries"], [keyOf("stored_keys").row(focus), "keys"]),
          line(3, "cache", make("div", { class: "gw-store" }, ...tokens.slice(0, stored).map(([token], i) => make("span", {
              class: `gw-piece ${i < told.stored ? "gw-in-cache" : "gw-goes-in"}`, dir: "auto" }, visible(token))))),
          line(4, "heads", make("div", { class: "gw-heads-of-layer" }, ...heads)),
          row(5, "mixed", [get("attended"), "from the heads"], [get("from_heads"), "after o_proj"]),
          row(6, "+", [get("middle"), "stream"])),
        make("div", { class: "gw-half" }, make("p", { class: "gw-heading" }, "Feed-forward: each token by itself"),
          row(7, "norm", [get("normed_again"), "normed"]),
          row(8, "gate, up", [get("gate"), "gate"], [get("up"), "up"]),
          row(9, "SwiGLU", [get("gated"), "silu(gate) × up"]),
          row(10, "down", [get("from_network"), "from the network"]),
          row(11, "+", [stream(frame.layer + 1), "stream"])));
      return { picture, bring({ step }) {
        const place = names.layer.indexOf(step);
        mark(lines, place);
        picture.classList.toggle("gw-second", place > 6);
      } };
    }

    function drawHead(frame, told, focus) {
      const stored = focus + 1, parts = [];
      const raw = array("queries", frame)?.row(head), turned = array("turned", frame).row(head);
      const keys = details[frame.layer].get("stored_keys/-1"), values = details[frame.layer].get("stored_values/-1");
      const group = Math.floor(head / (H / K));
      const of = (all, token) => all.row(token).row(group);
      const scores = array("scores", frame).row(head).list, weights = array("weights", frame).row(head).list;
      const part = (own, element) => { parts.push([element, own]); return element; };
      const most = Math.max(...scores.map(Math.abs)) || 1;
      const half = d / 2, pairs = [...new Set([0, 0.1, 0.25, 0.5, 0.999].map((share) => Math.floor(share * half)))];
      const mixed = Array.from({ length: stored }, (_, i) => part(3, colours(of(values, i), `value of ${textOf(i)}`)));
      const picture = make("div", { class: "gw-look" },
        make("div", { class: "gw-query" },
          make("p", { class: "gw-heading" }, `The query of ${textOf(focus)}, ${d} numbers`),
          ...(raw ? [make("div", { class: "gw-line" }, make("span", { class: "gw-name" }, "before"), colours(raw, "query before it turned"))] : []),
          part(0, make("div", { class: "gw-line" }, make("span", { class: "gw-name" }, "turned"), colours(turned, "query, turned"))),
          raw ? make("div", { class: "gw-turns" }, ...pairs.map((pair) => dial(pair, [raw.at(pair), raw.at(pair + half)],
            [turned.at(pair), turned.at(pair + half)]))) : ""),
        make("div", { class: "gw-scored" },
          make("div", { class: "gw-against gw-heads" }, make("span", {}, "token"), make("span", {}, `its key (head ${group} of ${K})`),
            make("span", {}, "score"), make("span", {}, "share"), make("span", {}, "its value"),
            make("span", { class: "gw-in-short" }, "its key (head " + `${group} of ${K}); its score and its share; its value`)),
          ...Array.from({ length: stored }, (_, i) => make("div", { class: "gw-against" },
            make("span", { class: `gw-piece ${i < told.stored ? "gw-in-cache" : "gw-goes-in"}${i === focus ? " gw-focus" : ""}`, dir: "auto" }, visible(tokens[i][0])),
            colours(of(keys, i), `key of ${textOf(i)}`),
            part(1, make("span", { class: "gw-score" }, make("span", { class: scores[i] < 0 ? "gw-below" : "", style: `width: ${50 * Math.abs(scores[i]) / most}%` }),
              make("b", {}, scores[i].toFixed(2)))),
            part(2, make("span", { class: "gw-share-of" }, make("span", { style: `width: ${100 * weights[i]}%` }), make("b", {}, percent(weights[i])))),
            mixed[i]))),
        part(3, make("div", { class: "gw-line gw-home" }, make("span", { class: "gw-name" }, "mixed"),
          colours(array("attended", frame).row(head), "the values, mixed"))));
      mixed.forEach((value, i) => { value.style.opacity = 0.12 + 0.88 * weights[i]; });
      return { picture, bring({ step }) { mark(parts, names.head.indexOf(step)); } };
    }

    function dial(pair, before, after) {
      const radius = Math.hypot(...before) || 1, scaled = ([x, y]) => [(38 * x) / radius, (-38 * y) / radius];
      const angle = ([x, y]) => (Math.atan2(y, x) * 180) / Math.PI;
      const turn = Math.round(((angle(after) - angle(before)) % 360 + 360) % 360) % 360;
      const [[x1, y1], [x2, y2]] = [scaled(before), scaled(after)];
      return make("figure", { class: "gw-turn" },
        svg("svg", { viewBox: "-46 -46 92 92", role: "img", "aria-label": `Pair ${pair} turned by ${turn}°` },
          svg("circle", { class: "gw-rim", r: 42 }), svg("line", { class: "gw-start", x1: 0, y1: 0, x2: x1, y2: y1 }),
          svg("line", { class: "gw-hand", x1: 0, y1: 0, x2, y2 }), svg("circle", { class: "gw-tip", cx: x2, cy: y2, r: 4 })),
        make("figcaption", {}, `pair ${pair}: ${turn}°`));
    }

    // --- keys

    root.addEventListener("keydown", (event) => {
      if (event.altKey || event.ctrlKey || event.metaKey || event.target.closest("select, input, summary")) return;
      const nearer = (by) => { const to = LEVELS[LEVELS.indexOf(level) + by]; if (to) zoom(to); };
      const act = { ArrowLeft: () => go(at - 1), ArrowRight: () => go(at + 1), ArrowDown: () => nearer(1), ArrowUp: () => nearer(-1),
                    Home: () => go(0), End: () => go(Infinity) }[event.key];
      if (!act) return;
      event.preventDefault();
      event.stopPropagation();
      pause();
      act();
    });
    for (const [element, target] of [[back[0], 0], [onward[1], 0]]) element.addEventListener("click", pause, target);
    slide.addEventListener("input", () => { pause(); go(Number(slide.value)); });
    draw();
  }

  startAll("movie", start);
})();
