// RoPE: dials that turn with the position, and a score that depends on a distance. Every number comes from Python.
(() => {
  "use strict";

  const polar = ([x, y]) => `${((Math.atan2(y, x) * 180) / Math.PI + 360).toFixed(0) % 360}°`;

  const round = (x) => (x >= 100 ? Math.round(x).toLocaleString("en") : x.toPrecision(3));

  function start(root, { dials, scores, law }, words) {
    const last = scores.length - 1;

    // Part one: the dials.
    const position = slider("Position", { max: last }, turn);
    const pictures = make("div", { class: "gw-dials" });
    const hands = dials.map((dial) => {
      const radius = Math.hypot(...dial.points[0]) || 1;
      const scaled = ([x, y]) => [(40 * x) / radius, (-40 * y) / radius];
      const [startX, startY] = scaled(dial.points[0]);
      const hand = svg("line", { class: "gw-hand", x1: 0, y1: 0 });
      const tip = svg("circle", { class: "gw-tip", r: 4 });
      const trail = svg("g", {}, ...dial.points.map((point) => {
        const [cx, cy] = scaled(point);
        return svg("circle", { class: "gw-trail", cx, cy, r: 1.5 });
      }));
      const picture = svg("svg", { viewBox: "-50 -50 100 100", role: "img" },
        svg("circle", { class: "gw-rim", r: 40 }), svg("line", { class: "gw-axis", x1: -48, x2: 48, y1: 0, y2: 0 }),
        svg("line", { class: "gw-axis", x1: 0, x2: 0, y1: -48, y2: 48 }), trail,
        svg("line", { class: "gw-start", x1: 0, y1: 0, x2: startX, y2: startY }), hand, tip);
      const now = make("small");
      const turnsIn = (2 * Math.PI) / dial.frequency;
      pictures.append(make("figure", { class: "gw-dial" }, picture, make("figcaption", {},
        make("strong", {}, `Pair ${dial.pair}`), make("small", {}, `elements ${dial.pair} and ${dial.partner}`),
        make("small", {}, `a full turn in ${round(turnsIn)} tokens`), now)));
      return (p) => {
        const [x, y] = scaled(dial.points[p]);
        fill(hand, { x2: x, y2: y }, []);
        fill(tip, { cx: x, cy: y }, []);
        [...trail.children].forEach((dot, i) => dot.classList.toggle("gw-past", i <= p));
        now.textContent = `at ${polar(dial.points[p])}, from ${polar(dial.points[0])}`;
        picture.setAttribute("aria-label", `Pair ${dial.pair} at position ${p}: ${now.textContent}`);
      };
    });
    function turn() {
      hands.forEach((show) => show(position.value));
    }

    // Part two: the score.
    const query = slider("Query at", { max: last }, score);
    const key = slider("Key at", { max: last }, score);
    const both = (offset) => {
      const [m, n] = [query.value + offset, key.value + offset];
      if (Math.min(m, n) < 0 || Math.max(m, n) > last) return;
      query.set(m);
      key.set(n);
      score();
    };
    const move = (text, offset) => {
      const button = make("button", { type: "button", class: "gw-button" }, text);
      button.addEventListener("click", () => both(offset));
      return button;
    };
    const caption = make("p", { class: "gw-caption", "aria-live": "polite" });
    const stage = make("div", { class: "gw-stage" });
    const stays = make("p", { class: "gw-detail" }, law);
    function score() {
      const [m, n] = [query.value, key.value];
      caption.textContent = `The query at ${m}, the key at ${n}: distance ${m - n}, score ${scores[m][n].toFixed(4)}.`;
      stage.replaceChildren(plot(m, n, stage.clientWidth || 640));
    }
    function plot(m, n, width) {
      const height = 230;
      const box = { left: 48, right: width - 12, top: 12, bottom: height - 40 };
      const all = Array.from({ length: 2 * last + 1 }, (_, i) => i - last)
        .map((distance) => [distance, distance < 0 ? scores[0][-distance] : scores[distance][0]]);
      const values = all.map((pair) => pair[1]);
      const low = Math.min(...values), high = Math.max(...values), middle = (low + high) / 2;
      const digits = Math.max(0, 2 - Math.floor(Math.log10(high - low || 1)));
      const x = (distance) => box.left + ((distance + last) / (2 * last)) * (box.right - box.left);
      const y = (value) => box.bottom - ((value - low) / (high - low || 1)) * (box.bottom - box.top);
      const ticks = [-last, -Math.round(last / 2), 0, Math.round(last / 2), last];
      return svg("svg", { class: "gw-plot", width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
                          "aria-label": `The score by the distance of query and key. ${caption.textContent}` },
        ...ticks.flatMap((tick) => [
          svg("line", { class: "gw-grid", x1: x(tick), x2: x(tick), y1: box.top, y2: box.bottom }),
          svg("text", { x: x(tick), y: box.bottom + 16, "text-anchor": "middle" }, String(tick))]),
        ...[low, middle, high].flatMap((tick) => [
          svg("line", { class: "gw-grid", x1: box.left, x2: box.right, y1: y(tick), y2: y(tick) }),
          svg("text", { x: box.left - 6, y: y(tick) + 4, "text-anchor": "end" }, tick.toFixed(digits))]),
        svg("text", { x: box.right, y: height - 6, "text-anchor": "end" },
          "position of the query minus that of the key"),
        svg("polyline", { class: "gw-line", points: all.map(([d, value]) => `${x(d)},${y(value)}`).join(" ") }),
        svg("circle", { class: "gw-point gw-kind-2", cx: x(m - n), cy: y(scores[m][n]), r: 7 }));
    }

    words.before(position.row, pictures, make("p", { class: "gw-part" }, "The score of a query and a key"),
      query.row, key.row, make("div", { class: "gw-buttons" }, move("Both one back", -1), move("Both one on", 1)),
      caption, stage, stays);
    position.set(Math.min(last, 5));
    turn();
    query.set(Math.min(last, 9));
    key.set(Math.min(last, 4));
    score();
    let width = stage.clientWidth;
    new ResizeObserver(() => {
      if (stage.clientWidth === width) return;
      width = stage.clientWidth;
      score();
    }).observe(stage);
  }

  startAll("rotation", start);
})();
