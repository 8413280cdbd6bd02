"""Figures in real Chromium: what buttons and keys change, light and dark,
narrow and wide. About 60 s.

The fixture `browser` (conftest.py at the root) says what they need.
"""

import re

import numpy as np
import pytest
from test_viz import (BLOCK, BUDGET, FORMATS, HOSTILE, KEY, MACHINES, NAMES, QUERY, TORCH,
                      awkward_numbers,
                      figures, llama_steps, random_weights, tokenizer)  # noqa: F401 (fixtures)

from gearworks import viz
from gearworks.attention import apply_rope, rope_angles, rope_frequencies
from gearworks.viz import Cell, Lane, Step, Trace
from gearworks.viz.attention import habits

STEPS = viz.player(Trace("Numbers",
                         [Step(f"it is {i}", [Lane("now", [Cell(str(i), note=f"note {i}")])])
                          for i in range(4)]))


def shown(page, n=0) -> str:
    return page.locator(".gw-cells").nth(n).inner_text()


# --- stepping


def test_buttons_step_and_stop_at_the_ends(show):
    page = show(STEPS)
    seen = [shown(page)]
    for name in ["Previous step", "Next step", "Next step", "Previous step", "Last step",
                 "Next step", "First step"]:
        # an aria-disabled button, too
        page.get_by_role("button", name=name).dispatch_event("click")
        seen.append(shown(page))
    assert seen == ["0", "0", "1", "2", "1", "3", "3", "0"]
    assert page.locator(".gw-caption").inner_text() == "it is 0"
    assert (page.get_by_role("button", name="Previous step").get_attribute("aria-disabled")
            == "true")
    assert (page.get_by_role("button", name="Next step").get_attribute("aria-disabled")
            == "false")


def test_arrow_keys_step_and_keep_the_focus(show):
    page = show(STEPS)
    page.keyboard.press("Tab")                              # into the figure
    seen = []
    for key in ["ArrowRight", "ArrowRight", "ArrowLeft", "End", "ArrowRight", "Home",
                "ArrowLeft"]:
        page.keyboard.press(key)
        seen.append(shown(page))
    assert seen == ["1", "2", "1", "3", "3", "0", "0"]
    page.get_by_role("button", name="Last step").focus()
    page.keyboard.press("Enter")          # the button is of no use now, and still has the focus
    page.keyboard.press("ArrowLeft")
    assert shown(page) == "2"


def test_the_slider_steps_and_is_named(show):
    page = show(viz.player(Trace("x", [Step("a", label="7"), Step("b", label="8")],
                                 step_name="Batch")))
    slider = page.get_by_role("slider", name="Batch")
    assert slider.get_attribute("aria-valuetext") == "Batch 7"
    slider.focus()
    page.keyboard.press("ArrowRight")
    assert ((page.locator(".gw-caption").inner_text(), slider.get_attribute("aria-valuetext"))
            == ("b", "Batch 8"))
    slider.fill("0")
    assert page.locator(".gw-caption").inner_text() == "a"


def test_play_goes_to_the_end_and_pauses(show):
    page = show(STEPS)
    page.get_by_role("button", name="Last step").click()
    page.get_by_role("button", name="Previous step").click()
    page.get_by_role("button", name="Play").click()
    assert page.get_by_role("button", name="Pause").is_visible()
    page.get_by_text("it is 3", exact=True).wait_for()
    # at the end it starts again from the beginning
    page.get_by_role("button", name="Play").click()
    assert shown(page) == "0"
    page.get_by_role("button", name="Pause").click()
    assert page.get_by_role("button", name="Play").is_visible()


def test_boxes_tell_more_by_key_and_by_pointer(show):
    page = show(STEPS)
    page.locator(".gw").focus()
    page.keyboard.press("ArrowDown")
    assert page.locator(".gw-detail").inner_text() == "0: note 0"
    page.keyboard.press("ArrowRight")     # the step changes, and the focus stays in the picture
    assert page.locator(".gw-detail").inner_text() == "1: note 1"
    page.mouse.move(0, 0)
    page.get_by_role("button", name="First step").click()
    page.locator(".gw-cell").hover()
    assert page.locator(".gw-detail").inner_text() == "0: note 0"


def test_one_figure_twice_on_a_page_and_a_copy_of_its_html(show):
    page = show(STEPS, STEPS)
    page.get_by_role("button", name="Next step").nth(1).click()
    assert (shown(page, 0), shown(page, 1)) == ("0", "1")
    ids = page.eval_on_selector_all("[id]", "all => all.map((one) => one.id)")
    assert len(ids) == len(set(ids))


def test_choosing_another_trace(show, figures):  # noqa: F811
    page = show(figures["merge_stepper"])
    first = page.locator(".gw-caption").inner_text()
    page.get_by_label("Text").select_option(index=2)
    assert page.locator(".gw-caption").inner_text() != first
    page.get_by_role("button", name="Last step").click()
    assert page.locator(".gw-caption").inner_text().startswith("No pair is left")


# --- what is drawn


def test_the_pair_that_merges_is_marked(show, figures):  # noqa: F811
    page = show(figures["merge_stepper"])
    page.get_by_role("button", name="Next step").click()
    assert page.locator(".gw-chosen").all_inner_texts() == ["i", "n"]
    assert page.locator(".gw-new").all_inner_texts() == ["in"]
    assert page.locator(".gw-caption").inner_text() == \
        'Piece 1 of 1, merge 1 of 8: "i" + "n" makes "in". Its rank, 2, is the lowest here.'


def test_points_are_where_the_axes_say(show, figures):  # noqa: F811
    page = show(figures["roofline"])
    for workloads in llama_steps().values():
        at = page.evaluate("""() => {
            const prefixes = {k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15};
            const number = (text) => parseFloat(text) * (prefixes[text.slice(-1)] ?? 1);
            const ticks = (anchor) => [
              ...document.querySelectorAll(`.gw-plot text[text-anchor=${anchor}]`)
            ].filter((text) => /^[0-9.]+[kMGTP]?$/.test(text.textContent));
            const read = (tick, axis) =>
              [Math.log10(number(tick.textContent)), Number(tick.getAttribute(axis))];
            const scale = (list, axis, shift) => {
              const [a, b] = [read(list[0], axis), read(list.at(-1), axis)];
              return (pixel) =>
                10 ** (a[0] + (pixel + shift - a[1]) / (b[1] - a[1]) * (b[0] - a[0]));
            };
            const x = scale(ticks("middle"), "x", 0), y = scale(ticks("end"), "y", 4);
            return [...document.querySelectorAll(".gw-plot .gw-point")].map((point) => {
              const [px, py] = point.getAttribute("transform").match(/[-0-9.]+/g).map(Number);
              return [x(px), y(py)];
            });
        }""")
        pairs = [(w.flops / w.bytes, m) for m in MACHINES for w in workloads]
        assert [x for x, _ in at] == pytest.approx([x for x, _ in pairs], rel=1e-6)
        assert ([y for _, y in at]
                == pytest.approx([min(m.flops, x * m.bandwidth) for x, m in pairs], rel=1e-6))
        page.get_by_role("button", name="Next step").dispatch_event("click")


def test_bars_are_as_long_as_their_bytes(show, figures):  # noqa: F811
    page = show(figures["memory_budget"])
    for bars in BUDGET.values():
        widths = page.eval_on_selector_all(
            ".gw-segment", "all => all.map((one) => one.getBoundingClientRect().width)")
        track = page.locator(".gw-track").first.bounding_box()["width"]
        sizes = [size for parts in bars.values() for size in parts.values()]
        # the scale ends at 30 GB; borders take 3 px
        expected = [max(3, size / 30e9 * track) for size in sizes]
        assert widths == pytest.approx(expected, abs=0.5)
        page.get_by_role("button", name="Next step").dispatch_event("click")


def test_hostile_text_is_shown_and_not_obeyed(show, figures):  # noqa: F811
    page = show(figures["hostile"])
    assert page.locator(".gw b").count() == 0
    assert page.locator(".gw-caption").inner_text() == HOSTILE
    for index in (1, 2):
        page.get_by_role("combobox").select_option(index=index)
        assert page.locator(".gw-caption").inner_text() == HOSTILE
    assert page.locator("td.gw-box").inner_text() == HOSTILE


# --- attention


def explorer(T=5):
    weights = random_weights(T)
    return weights, viz.attention_explorer([f"t{i}" for i in range(T)], weights)


def map_of_weights(page) -> np.ndarray:
    """The shares by which the map's cells are painted."""
    shares = page.eval_on_selector_all(
        ".gw-weight", "all => all.map((one) => one.style.getPropertyValue('--gw-share'))")
    return np.array([float(share.rstrip("%")) / 100 for share in shares])


def test_sliders_choose_layer_and_head(show):
    weights, figure = explorer()
    page = show(figure)
    layer, head = page.get_by_role("slider",
                                   name="Layer"), page.get_by_role("slider", name="Head")
    for place in np.ndindex(3, 2):
        layer.fill(str(place[0]))
        head.fill(str(place[1]))
        np.testing.assert_allclose(map_of_weights(page), weights[place].ravel(),
                                   atol=0.51 / 255)
        assert page.locator(".gw-caption").inner_text().startswith("Layer {}, head {}.".format(
            *place))
    layer.press("ArrowLeft")
    np.testing.assert_allclose(map_of_weights(page), weights[1, 1].ravel(), atol=0.51 / 255)
    assert layer.get_attribute("aria-valuetext") == "1"


def test_a_jump_goes_to_the_head_that_was_promised(show):
    weights, figure = explorer()
    page = show(figure)
    shares = habits(weights)[..., 2]
    page.get_by_label("Jump to the head that looks").select_option("most at itself")
    assert page.locator(".gw-caption").inner_text().startswith(
        "Layer {}, head {}.".format(*np.unravel_index(shares.argmax(), shares.shape)))
    for layer in "01":
        page.get_by_role("slider", name="Layer").fill(layer)
    assert page.get_by_label("Jump to the head that looks").input_value() == "-1"


def test_a_token_shows_what_it_looks_at_by_key_and_by_pointer(show):
    weights, figure = explorer()
    page = show(figure)
    page.get_by_role("slider", name="Layer").fill("2")
    page.get_by_role("slider", name="Head").fill("1")
    percents = [f"{100 * weight:.0f} %" for weight in np.rint(255 * weights[2, 1, 3]) / 255]
    page.get_by_role("gridcell").nth(3 * 5 + 1).hover()
    assert page.locator(".gw-token small").all_inner_texts() == [*percents[:4], "hidden"]
    assert page.locator(".gw-detail").inner_text() == \
        f"“t3” looks at “t1”: {percents[1]}. All that “t3”, token 3, looks at:"
    page.locator(".gw-map-of-weights [tabindex='0']").focus()
    for keys, said in ((["ArrowUp", "ArrowRight", "ArrowRight"], "“t2” may not see “t3”"),
                       (["ArrowDown", "Home"], f"“t3” looks at “t0”: {percents[0]}"),
                       (["ArrowLeft", "End", "ArrowLeft"],
                        f"“t3” looks at “t3”: {percents[3]}")):
        for key in keys:
            page.keyboard.press(key)
        assert page.locator(".gw-detail").inner_text().startswith(said)
        assert page.evaluate(
            "document.activeElement.getAttribute('aria-label')").startswith(said)
    assert page.locator(".gw-map-of-weights [tabindex='0']").count() == 1


def test_the_mask_shows_and_hides(show):
    page = show(explorer()[1])
    hatched = ("all => all.filter((one) => getComputedStyle(one).backgroundImage !== "
               "'none').length")
    assert page.eval_on_selector_all(".gw-weight", hatched) == 10
    page.get_by_label("Hatch what the causal mask hides").uncheck()
    assert page.eval_on_selector_all(".gw-weight", hatched) == 0
    both_ways = np.full((1, 1, 4, 4), 0.25)
    page = show(viz.attention_explorer(list("abcd"), both_ways))
    assert not page.get_by_label("Hatch what the causal mask hides").is_visible()
    assert page.eval_on_selector_all(".gw-weight", hatched) == 0


# --- rotation


def test_dials_turn_with_the_position(show, figures):  # noqa: F811
    page = show(figures["rope_rotation"])
    slider = page.get_by_role("slider", name="Position")
    slider.focus()
    for key, position in (("Home", 0), ("ArrowRight", 1), ("End", 47)):
        page.keyboard.press(key)
        assert slider.get_attribute("aria-valuetext") == str(position)
        turned = apply_rope(QUERY[None, None],
                            *rope_angles(np.array([position]), rope_frequencies(64, 1e5)))[0, 0]
        hands = page.eval_on_selector_all(".gw-hand",
                                          "all => all.map((one) => [one.x2, "
                                          "one.y2].map((length) => length.baseVal.value))")
        for (x, y), pair in zip(hands, (0, 10, 21, 31), strict=True):
            expected = turned[[pair, pair + 32]]
            np.testing.assert_allclose([x, -y], 40 * expected / np.linalg.norm(expected),
                                       atol=0.02)


def test_the_score_stays_when_both_move(show, figures):  # noqa: F811
    page = show(figures["rope_rotation"])
    page.get_by_role("slider", name="Query at").fill("20")
    page.get_by_role("slider", name="Key at").fill("17")
    q, k = (apply_rope(x[None, None],
                       *rope_angles(np.array([p]), rope_frequencies(64, 1e5)))[0, 0]
            for x, p in ((QUERY, 20), (KEY, 17)))
    caption = page.locator(".gw-caption")
    score = caption.inner_text().split("distance ")[1]
    assert (score.startswith("3, ")
            and float(score.split()[-1].rstrip(".")) == pytest.approx(q @ k / 8, abs=2e-4))
    for name, place in (("Both one on", "21, the key at 18"),
                        ("Both one on", "22, the key at 19"),
                        ("Both one back", "21, the key at 18")):
        page.get_by_role("button", name=name).click()
        assert place in caption.inner_text() and caption.inner_text().endswith(score)
    page.get_by_role("slider", name="Key at").press("ArrowLeft")
    assert not caption.inner_text().endswith(score)
    page.get_by_role("slider", name="Query at").press("End")
    page.get_by_role("button", name="Both one on").click()
    # nothing is beyond the last position
    assert "The query at 47, the key at 17" in caption.inner_text()


# --- number formats


def test_every_format_stores_what_torch_stores(show):
    import torch
    numbers = awkward_numbers()
    page = show(viz.number_formats(BLOCK))
    found = page.evaluate("""(numbers) => {
        const field = document.querySelector(".gw-number");
        return numbers.map((text) => {
            field.value = text;
            field.dispatchEvent(new Event("input"));
            return [...document.querySelectorAll(".gw-format")].slice(0, 5).map((row) => [
                row.querySelector("data").value, row.querySelector(".gw-bits").textContent]);
        });
    }""", [repr(float(x)) for x in numbers])
    for i, (name, known) in enumerate(FORMATS.items()):
        dtype = getattr(torch, TORCH.get(name, "float32"))
        expected = torch.from_numpy(numbers).to(dtype).to(torch.float64).numpy()
        values = np.array([float(row[i][0]) for row in found])
        np.testing.assert_array_equal(values, expected, err_msg=name)
        codes = [int(row[i][1], 2) for row in found]
        is_number = values == values
        np.testing.assert_array_equal(np.signbit(values)[is_number],
                                      np.signbit(expected)[is_number])
        assert codes == [known.encode(float(x)) for x in numbers], name
        assert {len(row[i][1]) for row in found} == {known.bits}


def test_blocks_store_what_their_formats_define(show):
    import gguf
    numbers = np.float32([0, 1e-3, 0.05, -0.05, 0.1, -0.25, 1, -1, 7.5, -300, 65504, 1e6,
                          *BLOCK[1:20], *(BLOCK[:20] * 3)])
    page = show(viz.number_formats(BLOCK))
    found = page.evaluate("""(numbers) => {
        const field = document.querySelector(".gw-number");
        return numbers.map((text) => {
            field.value = text;
            field.dispatchEvent(new Event("input"));
            return [...document.querySelectorAll(".gw-format")].slice(5).map((row) => [
                row.querySelector("data").value,
                ...[...row.querySelectorAll(".gw-bits")].map((one) => one.textContent)]);
        });
    }""", [repr(float(x)) for x in numbers])
    for number, rows in zip(numbers, found, strict=True):
        block = np.concatenate([[number], BLOCK[1:]]).astype(np.float32)
        scale = np.abs(block).max() / np.float32(127)
        code = np.rint(number / scale)
        assert (float(rows[0][0]) == np.float32(code) * scale
                and int(rows[0][2], 2) == code % 256)
        assert int(rows[0][1], 2) == scale.view(np.uint32)
        for row, kind in zip(rows[1:],
                             (gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_0),
                             strict=True):
            with np.errstate(over="ignore", invalid="ignore"):          # a scale beyond float16
                stored = gguf.quants.quantize(block, kind)
                np.testing.assert_array_equal(float(row[0]),
                                              gguf.quants.dequantize(stored, kind)[0])
            assert int(row[1], 2) == int.from_bytes(stored[:2].tobytes(), "little")
            assert int(row[2], 2) == stored[2] & (2 ** len(row[2]) - 1)


def test_the_number_is_typed_chosen_or_moved(show):
    page = show(viz.number_formats(BLOCK))
    field, said = page.get_by_role("textbox", name="Number"), page.locator(".gw-caption")

    def row(name):
        return page.locator(f"[data-format='{name}']").inner_text()

    assert float(field.input_value()) == BLOCK[0]
    for text, name, words in (
        ("-1/3", "fp16", "−2⁻² × 1.3330078125"),
        ("2^-24", "fp16", "0.0009765625 (subnormal: no leading 1)"),
        ("1e9", "fp16", "too large: it overflows to infinity"),
        ("-464.5", "fp8 e4m3", "it saturates at 448, for there is no infinity"),
        ("1e-9", "fp8 e5m2", "too small: it underflows to zero"),
        ("NaN", "bf16", "not a number"),
        ("-inf", "fp32", "−infinity: exponent all ones, mantissa 0"),
        ("inf", "Q8_0", "cannot be stored"), ("0.75", "bf16", "exact"),
        ("0.1", "fp16", "error −0.0000244, 0.0244\u00a0%"),
        ("1e7", "Q4_0", "31 of them become 0"), ("1e8", "Q8_0", "the scale overflows fp16")):
        field.fill(text)
        assert words in row(name), (text, row(name))
        assert field.get_attribute("aria-invalid") == "false"
    before = row("fp32")
    for text in ("", "ten", "1/2/3", "0x", "--1"):
        field.fill(text)
        assert (field.get_attribute("aria-invalid") == "true"
                and "is no number" in said.inner_text())
        assert row("fp32") == before, "the last number stays"
    page.get_by_label("Try").select_option("65520, halfway to what fp16 lacks")
    assert field.input_value() == "65520" and "overflows to infinity" in row("fp16")
    assert said.inner_text() == "65520 lies between 2¹⁵ and 2¹⁶."
    field.fill("-8")
    assert said.inner_text() == "−8 is −2³."
    slider = page.get_by_role("slider", name="Size")
    assert slider.get_attribute("aria-valuetext") == "8"
    for _ in range(8):
        slider.press("ArrowRight")
    assert (field.input_value(), slider.get_attribute("aria-valuetext")) == ("-16", "16")


# --- how it looks


@pytest.mark.parametrize("width, scheme", [
    (390, "dark"), *(pytest.param(*case, marks=pytest.mark.long) for case in (
        (390, "light"), (1280, "light"), (1280, "dark")))])
def test_every_figure_is_readable(
        show, figures, assert_readable, scheme, width):  # noqa: F811
    for name in NAMES:
        page = show(figures[name], width=width, color_scheme=scheme)
        for step in range(2):
            assert_readable(page, name, step)
            if step == 0 and page.get_by_role("button", name="Next step").is_visible():
                page.get_by_role("button", name="Next step").click()


@pytest.mark.parametrize("host, dark", [
    # the book
    ("<html data-theme='dark'><body>", True), ("<html data-theme='light'><body>", False),
    # Jupyter
    ("<html><body data-jp-theme-light='false'>", True),
    ("<html><body data-jp-theme-light='true'>", False),
    # VS Code
    ("<html><body class='vscode-dark'>", True), ("<html><body class='vscode-light'>", False),
    ("<html><body class='vscode-high-contrast'>", True),
    ("<html><body class='vscode-high-contrast vscode-high-contrast-light'>", False),
    ("<html theme='dark'><body>", True), ("<html theme='light'><body>", False),          # Colab
])
def test_the_host_decides_before_the_system(show, host, dark):
    page = show(STEPS, host=host, color_scheme="light" if dark else "dark")
    paper = page.locator(".gw").evaluate("(one) => getComputedStyle(one).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", paper)[:3])) < 380) == dark, paper


@pytest.mark.parametrize("motion, animation",
                         [("reduce", "none"), ("no-preference", "gw-arrive")])
def test_nothing_moves_for_those_who_asked_for_that(
        show, figures, motion, animation):  # noqa: F811
    page = show(figures["merge_stepper"], reduced_motion=motion)
    page.get_by_role("button", name="Next step").click()
    assert (page.locator(".gw-new").evaluate("(one) => getComputedStyle(one).animationName")
            == animation)


def test_without_scripts_the_words_are_there(show, figures):  # noqa: F811
    page = show(figures["roofline"], java_script_enabled=False)
    assert "Limited by memory: decode on laptop" in page.locator(".gw-words pre").inner_text()
