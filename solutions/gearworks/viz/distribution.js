// A distribution under temperature, top-k, top-p and min-p, in that order, as gearworks.sampling has them.
(() => {
  "use strict";

  const REASONS = ["top-k", "top-p", "min-p"];
  const EVERY = { temperature: 1, topK: 0, topP: 1, minP: 0 };
  const TRY = [
    ["nothing: as the model says", EVERY],
    ["0.7 / 40 / 0.9, a usual setting", { ...EVERY, temperature: 0.7, topK: 40, topP: 0.9 }],
    ["temperature 0: greedy", { ...EVERY, temperature: 0 }],
    ["temperature 2", { ...EVERY, temperature: 2 }],
    ["top-p 0.9", { ...EVERY, topP: 0.9 }],
    ["temperature 1.5, min-p 0.1", { ...EVERY, temperature: 1.5, minP: 0.1 }],
  ];
  const TOP_K_END = 101;                        // the slider's right end: no bound

  // Entries from the likeliest to the least likely, each with a logit and how many tokens share it.
  function entriesOf({ logits, bins }) {
    return [...logits.map((logit) => ({ logit, count: 1 })), ...bins.map(([count, logit]) => ({ logit, count }))];
  }

  // What each entry weighs after the processors; `left` tokens of it are kept, `why` names what ruled out the others.
  function processed(entries, { temperature, topK, topP, minP }) {
    const peak = entries[0].logit;
    const now = entries.map(({ logit, count }) => ({
      weight: temperature ? Math.exp((logit - peak) / temperature) : 0, left: count, why: "", logit }));
    if (!temperature) {
      now.forEach((entry) => { entry.left = 0; entry.why = "greedy"; });
      now[0] = { weight: 1, left: 1, why: "", logit: peak };
    }
    const total = () => now.reduce((sum, entry) => sum + entry.weight * entry.left, 0);
    const keep = (entry, left, why) => {
      if (left < entry.left) entry.why = why;
      entry.left = left;
    };
    if (temperature && topK) {
      let seen = 0, threshold = -Infinity;
      for (const { logit, left } of now) {
        seen += left;
        if (seen >= topK) { threshold = logit; break; }
      }
      now.forEach((entry) => keep(entry, entry.logit < threshold ? 0 : entry.left, "top-k"));
    }
    if (temperature && topP < 1) {
      const goal = topP * total();
      let sum = 0;
      now.forEach((entry, i) => {
        const room = Math.max(0, Math.ceil((goal - sum) / entry.weight - 1e-9));
        sum += entry.weight * entry.left;
        keep(entry, Math.min(entry.left, i ? room || 0 : 1), "top-p");
      });
    }
    if (temperature && minP) {
      now.forEach((entry) => keep(entry, entry.weight < minP ? 0 : entry.left, "min-p"));
    }
    const sum = total();
    now.forEach((entry) => { entry.probability = entry.weight / sum; });
    return now;
  }

  const percent = (share) => `${(100 * share).toFixed(share && share < 0.0995 ? 2 : 1)}\u00a0%`;
  const visible = (text) => text.replaceAll(" ", "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥") || "∅";
  const whole = (count) => count.toLocaleString("en");

  function start(root, choices, words) {
    let chosen, entries, raw;
    const context = make("select", {}, ...choices.map(({ name }, i) => make("option", { value: i }, name)));
    const preset = make("select", {}, make("option", { value: "" }, "choose …"),
      ...TRY.map(([name], i) => make("option", { value: i }, name)));
    const moved = () => { preset.value = ""; draw(); };
    const two = (value) => value.toFixed(2);
    const heat = (t) => (t ? two(t) : "0: greedy");
    const temperature = slider("Temperature", { max: 3, step: 0.05, inWords: heat }, moved);
    const bound = (k) => (k < TOP_K_END ? String(k) : "all");
    const topK = slider("top-k", { min: 1, max: TOP_K_END, inWords: bound }, moved);
    const topP = slider("top-p", { min: 0.01, max: 1, step: 0.01, inWords: two }, moved);
    const minP = slider("min-p", { max: 1, step: 0.01, inWords: two }, moved);
    const caption = make("p", { class: "gw-caption", "aria-live": "polite" });
    const list = make("ol", { class: "gw-tokens", tabindex: "0", "aria-label": "The likeliest tokens" });
    const legend = make("ul", { class: "gw-legend" },
      make("li", {}, make("span", { class: "gw-swatch gw-after-swatch", "aria-hidden": "true" }), "after the settings"),
      make("li", {}, make("span", { class: "gw-swatch gw-before-swatch", "aria-hidden": "true" }),
        "as the model says"));

    function open() {
      chosen = choices[Number(context.value)];
      entries = entriesOf(chosen);
      raw = processed(entries, EVERY);
      draw();
    }
    function set(settings) {
      temperature.set(settings.temperature);
      topK.set(settings.topK || TOP_K_END);
      topP.set(settings.topP);
      minP.set(settings.minP);
    }
    function draw() {
      const settings = { temperature: temperature.value, topK: topK.value < TOP_K_END ? topK.value : 0,
                         topP: topP.value, minP: minP.value };
      const now = processed(entries, settings);
      const bars = chosen.texts.map((text, i) => ({
        text: visible(text), id: chosen.ids[i], before: raw[i].probability, why: now[i].left ? "" : now[i].why,
        after: now[i].left ? now[i].probability : 0 }));
      const rest = { text: "all others", before: 0, after: 0, why: "" };
      let restLeft = 0;
      now.slice(bars.length).forEach((entry, i) => {
        rest.before += raw[bars.length + i].probability * entries[bars.length + i].count;
        rest.after += entry.probability * entry.left;
        restLeft += entry.left;
      });
      if (!restLeft) rest.why = now.at(-1).why;
      if (now.length > bars.length) bars.push(rest);
      const longest = Math.max(...bars.flatMap(({ before, after }) => [before, after]));
      list.replaceChildren(...bars.map((bar) => row(bar, longest)));
      caption.textContent = summary(now, settings);
    }
    function row({ text, id, before, after, why }, longest) {
      const out = after === 0 ? why : "";
      const spoken = `${text}: ${out ? `ruled out by ${why}` : percent(after)}, before ${percent(before)}`;
      return make("li", { class: out ? "gw-out" : "", "data-id": id, "data-probability": after, "data-why": out },
        make("span", { class: id === undefined ? "gw-rest" : "gw-token", title: id === undefined ? "" : `id ${id}`,
                       "aria-hidden": "true" }, text),
        make("span", { class: "gw-shares", role: "img", "aria-label": spoken },
          make("span", { class: "gw-after", style: `width: ${(100 * after) / longest}%` }),
          make("span", { class: "gw-before", style: `left: ${(100 * before) / longest}%` })),
        make("span", { class: "gw-share", "aria-hidden": "true" }, out ? why : percent(after)));
    }
    function summary(now, { temperature: t }) {
      const left = now.reduce((sum, entry) => sum + entry.left, 0);
      const held = now.reduce((sum, entry, i) => sum + raw[i].probability * entry.left, 0);
      const lost = REASONS.map((why) => [why, now.reduce((sum, entry, i) =>
        sum + (entry.why === why ? entries[i].count - entry.left : 0), 0)]).filter((pair) => pair[1]);
      const about = lost.length && left > chosen.logits.length ? "about " : "";
      return `${about}${whole(left)} of ${whole(chosen.vocabulary)} tokens ${left === 1 ? "is" : "are"} left; `
        + `to the model they had ${percent(held)}.${t ? "" : " Greedy takes the likeliest."}`
        + (lost.length ? ` Ruled out: ${lost.map(([why, count]) => `${whole(count)} by ${why}`).join(", ")}.` : "");
    }

    context.addEventListener("change", open);
    preset.addEventListener("change", () => {
      if (preset.value === "") return;
      set(TRY[Number(preset.value)][1]);
      draw();
    });
    const choice = make("label", { class: "gw-choice" }, make("span", {}, root.dataset.choice ?? ""), context);
    choice.hidden = choices.length < 2;
    words.before(choice, make("label", { class: "gw-choice" }, make("span", {}, "Try"), preset),
      temperature.row, topK.row, topP.row, minP.row, caption, list, legend);
    set(EVERY);
    preset.value = "0";
    open();
  }

  startAll("distribution", start);
})();
