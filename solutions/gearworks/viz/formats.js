// Number formats: what each of them makes of the number that the reader types or moves. The rounding follows
// formats.py for floating point, and gguf-py for the blocks; all of it is exact in a browser's float64.
(() => {
  "use strict";

  // --- Rounding

  function roundHalfToEven(x) {
    const low = Math.floor(x), rest = x - low;
    return rest > 0.5 || (rest === 0.5 && low % 2 !== 0) ? low + 1 : low;
  }
  const roundHalfAway = (x) => Math.sign(x) * Math.floor(Math.abs(x) + 0.5);
  const clamp = (x, low, high) => Math.min(Math.max(x, low), high);
  const isNegative = (x) => x < 0 || Object.is(x, -0);

  function floatFormat({ name, exponent_bits: E, mantissa_bits: M, infinities }) {
    const bits = 1 + E + M, bias = 2 ** (E - 1) - 1, half = 2 ** (bits - 1);
    const largest = half - 1 - (infinities ? 2 ** M : 1), tooLarge = largest + (infinities ? 1 : 0);
    const view = new DataView(new ArrayBuffer(8));
    function exponentOf(size) {                // from the float64's bits: a logarithm may err beside a power of two
      view.setFloat64(0, size);
      return ((view.getUint16(0) >> 4) & 0x7ff) - 1023;
    }
    function encode(value) {
      const sign = isNegative(value) ? half : 0, size = Math.abs(value);
      if (Number.isNaN(value)) return tooLarge + (infinities ? 2 ** (M - 1) : 1);
      if (size === Infinity) return sign + tooLarge;
      const exponent = Math.max(exponentOf(size), 1 - bias);
      const steps = roundHalfToEven(size * 2 ** (M - exponent));
      return sign + Math.min((exponent + bias - 1) * 2 ** M + steps, tooLarge);
    }
    function parts(code) {
      const rest = code % half;
      return { sign: code >= half ? 1 : 0, exponent: Math.floor(rest / 2 ** M), mantissa: rest % 2 ** M, rest };
    }
    function decode(code) {
      const { sign, exponent, mantissa, rest } = parts(code);
      const size = rest > largest ? (infinities && mantissa === 0 ? Infinity : NaN)
        : (mantissa + (exponent ? 2 ** M : 0)) * 2 ** (Math.max(exponent, 1) - bias - M);
      return sign ? -size : size;
    }
    function formula(code) {
      const { sign, exponent, mantissa, rest } = parts(code);
      const minus = sign ? "−" : "";
      if (rest > largest && infinities && mantissa === 0) return `${minus}infinity: exponent all ones, mantissa 0`;
      if (rest > largest) return "not a number";
      if (rest === 0) return `${minus}0`;
      const power = powerOfTwo(Math.max(exponent, 1) - bias), fraction = mantissa / 2 ** M;
      return `${minus}${power} × ${exponent ? 1 + fraction : `${fraction} (subnormal: no leading 1)`}`;
    }
    const digits = (code) => code.toString(2).padStart(bits, "0");
    function remark(value, stored, code) {
      if (Number.isNaN(value)) return "";
      if (Math.abs(stored) === Infinity && Math.abs(value) !== Infinity) return "too large: it overflows to infinity";
      if (!infinities && parts(code).rest === largest && Math.abs(value) > Math.abs(stored)) {
        return `too large: it saturates at ${Math.abs(stored)}, for there is no infinity`;
      }
      if (stored === 0 && value !== 0) return "too small: it underflows to zero";
      return "";
    }
    return { name, bits, E, M, encode, decode, formula, digits, remark };
  }

  // Codes and scale of a block, as float32 arithmetic gives them. scale: what is multiplied with a code.
  const FP16 = floatFormat({ exponent_bits: 5, mantissa_bits: 10, infinities: true });
  const throughFp16 = (x) => FP16.decode(FP16.encode(x));
  function int8Block(block) {
    const scale = Math.fround(Math.max(...block.map(Math.abs)) / 127);
    const code = (x) => (scale ? clamp(roundHalfToEven(Math.fround(x / scale)), -127, 127) : 0);
    return { scale, codes: block.map(code) };
  }
  function q8Block(block) {
    const exact = Math.fround(Math.max(...block.map(Math.abs)) / 127);
    const inverse = exact ? Math.fround(1 / exact) : 0;
    const code = (x) => clamp(roundHalfAway(Math.fround(x * inverse)), -127, 127);
    return { scale: throughFp16(exact), codes: block.map(code) };
  }
  function q4Block(block) {
    const top = block.reduce((most, x) => (Math.abs(x) > Math.abs(most) ? x : most), 0);
    const exact = Math.fround(top / -8);
    const inverse = exact ? Math.fround(1 / exact) : 0;
    const code = (x) => clamp(Math.trunc(Math.fround(Math.fround(x * inverse) + 8.5)), 0, 15) - 8;
    return { scale: throughFp16(exact), codes: block.map(code) };
  }
  const BLOCKS = [
    { name: "int8", bits: 8, offset: 0, scaleFormat: "fp32", quantize: int8Block,
      about: "one fp32 scale for all 32" },
    { name: "Q8_0", bits: 8, offset: 0, scaleFormat: "fp16", quantize: q8Block,
      about: "an fp16 scale for 32 codes: 34 bytes, 8.5 bits a number" },
    { name: "Q4_0", bits: 4, offset: 8, scaleFormat: "fp16", quantize: q4Block,
      about: "an fp16 scale for 32 codes: 18 bytes, 4.5 bits a number" },
  ];

  // --- The number that the reader gives

  function parse(text) {
    const plain = text.trim().toLowerCase().replace("−", "-");
    const [, minus, name] = plain.match(/^([+-]?)(inf|infinity|nan)$/) ?? [];
    if (name) return (minus === "-" ? -1 : 1) * (name === "nan" ? NaN : Infinity);
    const parts = plain.split(/[/^]/).map((part) => (part.trim() === "" ? NaN : Number(part)));
    if (parts.some(Number.isNaN) || parts.length > 2) return undefined;
    if (parts.length === 1) return parts[0];
    return plain.includes("/") ? parts[0] / parts[1] : parts[0] ** parts[1];
  }
  const powerOfTwo = (exponent) => `2${String(exponent).replace(/./g, (c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c]))}`;
  function neighbours(x) {                      // between which powers of two a number lies
    if (!Number.isFinite(x) || x === 0) return `${inDigits(x)}.`;
    const size = Math.abs(x);
    let low = Math.floor(Math.log2(size));
    if (2 ** low > size) low -= 1;
    if (2 ** (low + 1) <= size) low += 1;
    const [lowest, highest] = [low, low + 1].map((exponent) => (x < 0 ? "−" : "") + powerOfTwo(exponent));
    return `${inDigits(x)} ${size === 2 ** low ? `is ${lowest}` : `lies between ${lowest} and ${highest}`}.`;
  }
  const inDigits = (x) => (Object.is(x, -0) ? "−0" : String(x).replaceAll("-", "−").toLowerCase());
  const short = (x) => inDigits(Number.isFinite(x) ? Number(x.toPrecision(3)) : x);

  const TRY = [["0.1", "0.1"], ["1/3", "1/3"], ["1 + 2^-8, between two bf16", "1.00390625"],
    ["448, the largest e4m3", "448"], ["1000", "1000"], ["65504, the largest fp16", "65504"],
    ["65520, halfway to what fp16 lacks", "65520"],
    ["1e-5", "1e-5"], ["2^-24, the smallest fp16", "2^-24"], ["1e-40, subnormal in fp32", "1e-40"], ["-0", "-0"],
    ["inf", "inf"], ["nan", "nan"]];

  // --- The page

  function start(root, data, words) {
    const formats = data.floats.map(floatFormat);
    let value = data.block[0];
    const field = make("input", { type: "text", class: "gw-number", spellcheck: "false", autocomplete: "off" });
    const choice = make("select", {}, make("option", { value: "" }, "choose …"),
      ...TRY.map(([name, text]) => make("option", { value: text }, name)));
    const size = slider("Size", { min: -26, max: 18, step: 0.125, inWords: () => short(Math.abs(value)) }, () => {
      field.value = String(Number((Math.sign(value) * 2 ** size.value || 2 ** size.value).toPrecision(5)));
      draw();
    });
    const problem = make("p", { class: "gw-caption", "aria-live": "polite" });
    const stage = make("div", { class: "gw-formats-list" });
    const legend = make("ul", { class: "gw-legend" }, ...["sign", "exponent", "mantissa", "code"].map((name, i) =>
      make("li", {}, make("span", { class: `gw-swatch gw-kind-${i + 1}`, "aria-hidden": "true" }), name)));

    field.addEventListener("input", draw);
    choice.addEventListener("change", () => {
      if (choice.value === "") return;
      field.value = choice.value;
      draw();
    });

    const group = (name, digits, kind) => ({ name, digits, kind });
    function floatGroups(format, code) {
      const digits = format.digits(code);
      return [group("sign", digits[0], 1), group("exponent", digits.slice(1, 1 + format.E), 2),
              group("mantissa", digits.slice(1 + format.E), 3)];
    }
    function bits(groups, i, all) {
      const name = all.length > 1 ? ["scale", "code"][i] : "";
      const aloud = groups.map((one) => `${one.name} ${one.digits}`).join(", ");
      return make("div", { class: "gw-piece" }, name ? make("small", {}, name) : "",
        make("div", { class: "gw-bits", role: "img", "aria-label": aloud }, ...groups.map(({ digits, kind }) =>
          make("span", { class: "gw-field" },
            ...[...digits].map((digit) => make("span", { class: `gw-bit gw-kind-${kind}` }, digit))))));
    }
    function row(name, about, groups, stored, how, remark) {
      const error = stored - value;
      const fault = stored === value ? "exact" : Number.isFinite(error)
        ? `error ${short(error)}${value ? `, ${short((100 * Math.abs(error)) / Math.abs(value))}\u00a0%` : ""}` : "";
      return make("div", { class: "gw-format", "data-format": name },
        make("div", { class: "gw-label" }, make("span", {}, name), make("small", {}, about)),
        make("div", {}, ...groups.map(bits),
          make("p", { class: "gw-stored" },
            make("data", { value: Object.is(stored, -0) ? "-0" : String(stored) }, inDigits(stored)), " ",
            make("span", { class: "gw-error" }, [fault, remark].filter(Boolean).join("; "))),
          make("p", { class: "gw-how" }, how)));
    }
    function blockRow(kind) {
      const block = [value, ...data.block.slice(1)].map(Math.fround);
      if (!Number.isFinite(block[0])) {
        return row(kind.name, kind.about, [], NaN, "A block with such a number has no scale.", "cannot be stored");
      }
      const quantized = kind.quantize(block), scale = quantized.scale;
      const codes = quantized.codes.map((one) => one + 0);                 // no −0 among integers
      const stored = codes.map((one) => Math.fround(one * scale));
      const others = Math.max(...stored.slice(1).map((one, i) => Math.abs(one - block[i + 1])));
      const zeros = codes.slice(1).filter((one) => one === 0).length;
      const scaleFormat = formats.find((format) => format.name === kind.scaleFormat);
      const scaleGroups = floatGroups(scaleFormat, scaleFormat.encode(scale))
        .map((one) => ({ ...one, name: `scale's ${one.name}` }));
      const code = codes[0] + kind.offset;
      const bitsOfCode = ((code + 2 ** kind.bits) % 2 ** kind.bits).toString(2).padStart(kind.bits, "0");
      return row(kind.name, kind.about, [scaleGroups, [group("code", bitsOfCode, 4)]], stored[0],
        `${kind.offset ? `(${code} − ${kind.offset})` : inDigits(code)} × ${inDigits(scale)}. The other 31 are off by `
          + `${short(others)} at most; ${zeros || "none"} of them ${zeros > 1 ? "become" : "becomes"} 0.`,
        Number.isFinite(scale) ? "" : "the scale overflows fp16");
    }
    function draw() {
      const parsed = parse(field.value);
      field.setAttribute("aria-invalid", parsed === undefined);
      problem.textContent = parsed !== undefined ? neighbours(parsed)
        : `“${field.value}” is no number. Try 0.1, -1/3, 2^-24, 1e-5, inf or nan.`;
      if (parsed === undefined) return;
      value = parsed;
      const moving = document.activeElement === size.input || value === 0 || !Number.isFinite(value);
      size.set(moving ? size.value : clamp(Math.log2(Math.abs(value)), -26, 18));
      stage.replaceChildren(...formats.map((format) => {
        const code = format.encode(value), stored = format.decode(code);
        return row(format.name, `${format.bits} bits: 1 + ${format.E} + ${format.M}`, [floatGroups(format, code)],
          stored, format.formula(code), format.remark(value, stored, code));
      }), ...BLOCKS.map(blockRow));
    }

    words.before(make("label", { class: "gw-choice" }, make("span", {}, "Number"), field),
      make("label", { class: "gw-choice" }, make("span", {}, "Try"), choice), size.row, problem, stage, legend);
    field.value = String(data.block[0]);
    draw();
  }

  startAll("formats", start);
})();
