"""Figures in real Chromium: what buttons and keys change, light and dark, narrow and wide. About 45 s.

The fixture `browser` (conftest.py at the root) says what they need.
"""

import re

import pytest
from test_viz import BUDGET, HOSTILE, MACHINES, NAMES, figures, llama_steps, tokenizer  # noqa: F401 (fixtures)

from gearworks import viz
from gearworks.viz import Cell, Lane, Step, Trace

STEPS = viz.player(Trace("Numbers", [Step(f"it is {i}", [Lane("now", [Cell(str(i), note=f"note {i}")])])
                                     for i in range(4)]))


@pytest.fixture
def show(browser):
    """A function that opens a page with these figures; at the end, no page has said or fetched anything."""
    pages, said = [], []

    def open_page(*shown, host="<html lang='en'><body>", width=1280, **settings):
        page = browser.new_context(viewport={"width": width, "height": 700}, **settings).new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: said.append(f"fetched {request.url}"))
        page.on("dialog", lambda dialog: said.append(f"dialog {dialog.message}"))
        page.set_content(f"<!doctype html>{host}{''.join(figure.html for figure in shown)}")
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        page.context.close()
    assert said == []


def shown(page, n=0) -> str:
    return page.locator(".gw-cells").nth(n).inner_text()


# --- stepping


def test_buttons_step_and_stop_at_the_ends(show):
    page = show(STEPS)
    seen = [shown(page)]
    for name in ["Previous step", "Next step", "Next step", "Previous step", "Last step", "Next step", "First step"]:
        page.get_by_role("button", name=name).dispatch_event("click")       # an aria-disabled button, too
        seen.append(shown(page))
    assert seen == ["0", "0", "1", "2", "1", "3", "3", "0"]
    assert page.locator(".gw-caption").inner_text() == "it is 0"
    assert page.get_by_role("button", name="Previous step").get_attribute("aria-disabled") == "true"
    assert page.get_by_role("button", name="Next step").get_attribute("aria-disabled") == "false"


def test_arrow_keys_step_and_keep_the_focus(show):
    page = show(STEPS)
    page.keyboard.press("Tab")                              # into the figure
    seen = []
    for key in ["ArrowRight", "ArrowRight", "ArrowLeft", "End", "ArrowRight", "Home", "ArrowLeft"]:
        page.keyboard.press(key)
        seen.append(shown(page))
    assert seen == ["1", "2", "1", "3", "3", "0", "0"]
    page.get_by_role("button", name="Last step").focus()
    page.keyboard.press("Enter")                            # the button is of no use now, and still has the focus
    page.keyboard.press("ArrowLeft")
    assert shown(page) == "2"


def test_the_slider_steps_and_is_named(show):
    page = show(viz.player(Trace("x", [Step("a", label="7"), Step("b", label="8")], step_name="Batch")))
    slider = page.get_by_role("slider", name="Batch")
    assert slider.get_attribute("aria-valuetext") == "Batch 7"
    slider.focus()
    page.keyboard.press("ArrowRight")
    assert (page.locator(".gw-caption").inner_text(), slider.get_attribute("aria-valuetext")) == ("b", "Batch 8")
    slider.fill("0")
    assert page.locator(".gw-caption").inner_text() == "a"


def test_play_goes_to_the_end_and_pauses(show):
    page = show(STEPS)
    page.get_by_role("button", name="Last step").click()
    page.get_by_role("button", name="Previous step").click()
    page.get_by_role("button", name="Play").click()
    assert page.get_by_role("button", name="Pause").is_visible()
    page.get_by_text("it is 3", exact=True).wait_for()
    page.get_by_role("button", name="Play").click()         # at the end it starts again from the beginning
    assert shown(page) == "0"
    page.get_by_role("button", name="Pause").click()
    assert page.get_by_role("button", name="Play").is_visible()


def test_boxes_tell_more_by_key_and_by_pointer(show):
    page = show(STEPS)
    page.locator(".gw").focus()
    page.keyboard.press("ArrowDown")
    assert page.locator(".gw-detail").inner_text() == "0: note 0"
    page.keyboard.press("ArrowRight")                       # the step changes, and the focus stays in the picture
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
            const ticks = (anchor) => [...document.querySelectorAll(`.gw-plot text[text-anchor=${anchor}]`)]
              .filter((text) => /^[0-9.]+[kMGTP]?$/.test(text.textContent));
            const read = (tick, axis) => [Math.log10(number(tick.textContent)), Number(tick.getAttribute(axis))];
            const scale = (list, axis, shift) => {
              const [a, b] = [read(list[0], axis), read(list.at(-1), axis)];
              return (pixel) => 10 ** (a[0] + (pixel + shift - a[1]) / (b[1] - a[1]) * (b[0] - a[0]));
            };
            const x = scale(ticks("middle"), "x", 0), y = scale(ticks("end"), "y", 4);
            return [...document.querySelectorAll(".gw-plot .gw-point")].map((point) => {
              const [px, py] = point.getAttribute("transform").match(/[-0-9.]+/g).map(Number);
              return [x(px), y(py)];
            });
        }""")
        pairs = [(w.flops / w.bytes, m) for m in MACHINES for w in workloads]
        assert [x for x, _ in at] == pytest.approx([x for x, _ in pairs], rel=1e-6)
        assert [y for _, y in at] == pytest.approx([min(m.flops, x * m.bandwidth) for x, m in pairs], rel=1e-6)
        page.get_by_role("button", name="Next step").dispatch_event("click")


def test_bars_are_as_long_as_their_bytes(show, figures):  # noqa: F811
    page = show(figures["memory_budget"])
    for bars in BUDGET.values():
        widths = page.eval_on_selector_all(".gw-segment", "all => all.map((one) => one.getBoundingClientRect().width)")
        track = page.locator(".gw-track").first.bounding_box()["width"]
        sizes = [size for parts in bars.values() for size in parts.values()]
        expected = [max(3, size / 30e9 * track) for size in sizes]      # the scale ends at 30 GB; borders take 3 px
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


# --- how it looks


LOOK = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const linear = (c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const luminance = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const texts = document.createTreeWalker(document.querySelector(".gw"), NodeFilter.SHOW_TEXT);
  const found = [];
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !element.checkVisibility()) continue;
    if (element.closest("style, script, title")) continue;
    let behind = element;
    while (behind && rgba(getComputedStyle(behind).backgroundColor)[3] < 255) behind = behind.parentElement;
    if (!behind) throw new Error("no paper behind " + texts.currentNode.data);
    const style = getComputedStyle(element);
    const ink = luminance(rgba(element.namespaceURI.endsWith("svg") ? style.fill : style.color));
    const paper = luminance(rgba(getComputedStyle(behind).backgroundColor));
    const contrast = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    found.push([contrast, parseFloat(style.fontSize), texts.currentNode.data]);
  }
  return { texts: found, overflow: document.documentElement.scrollWidth - innerWidth };
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_every_figure_is_readable(show, figures, scheme, width):  # noqa: F811
    for name in NAMES:
        page = show(figures[name], width=width, color_scheme=scheme)
        for step in range(2):
            look = page.evaluate(LOOK)
            contrast, size, text = min(look["texts"])
            assert contrast >= 4.5, (name, step, text)
            assert min(size for _, size, _ in look["texts"]) >= 12, (name, step)
            assert look["overflow"] <= 0, (name, step)
            if step == 0 and page.get_by_role("button", name="Next step").is_visible():
                page.get_by_role("button", name="Next step").click()


@pytest.mark.parametrize("host, dark", [
    ("<html data-theme='dark'><body>", True), ("<html data-theme='light'><body>", False),                    # the book
    ("<html><body data-jp-theme-light='false'>", True), ("<html><body data-jp-theme-light='true'>", False),  # Jupyter
    ("<html><body class='vscode-dark'>", True), ("<html><body class='vscode-light'>", False),                # VS Code
    ("<html><body class='vscode-high-contrast'>", True),
    ("<html><body class='vscode-high-contrast vscode-high-contrast-light'>", False),
    ("<html theme='dark'><body>", True), ("<html theme='light'><body>", False),                              # Colab
])
def test_the_host_decides_before_the_system(show, host, dark):
    page = show(STEPS, host=host, color_scheme="light" if dark else "dark")
    paper = page.locator(".gw").evaluate("(one) => getComputedStyle(one).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", paper)[:3])) < 380) == dark, paper


@pytest.mark.parametrize("motion, animation", [("reduce", "none"), ("no-preference", "gw-arrive")])
def test_nothing_moves_for_those_who_asked_for_that(show, figures, motion, animation):  # noqa: F811
    page = show(figures["merge_stepper"], reduced_motion=motion)
    page.get_by_role("button", name="Next step").click()
    assert page.locator(".gw-new").evaluate("(one) => getComputedStyle(one).animationName") == animation


def test_without_scripts_the_words_are_there(show, figures):  # noqa: F811
    page = show(figures["roofline"], java_script_enabled=False)
    assert "Limited by memory: decode on laptop" in page.locator(".gw-words pre").inner_text()
