"""The moving picture in real Chromium: its steps, its three distances, its words with the
engine's numbers, on a phone and in print. About 40 s.

The fixture `browser` (conftest.py at the root) says what it needs.
"""

import numpy as np
import pytest

from gearworks.language_model import LanguageModel
from gearworks.model import Model
from gearworks.viz.activations import record
from gearworks.viz.movie import HEAD_STEPS, LAYER_STEPS, engine_movie

PROMPT = "The capital of France is"
OUTLINED = ".gw-here"


@pytest.fixture(scope="module")
def movie(smollm2):
    return engine_movie(smollm2, layer=None, most_bytes=300_000)


@pytest.fixture(scope="module")
def passes(smollm2):
    return record(smollm2, PROMPT, max_tokens=2)[1]


def opened(show, figure, **settings):
    page = show(figure, **settings)
    page.wait_for_selector(".gw-stage > *")
    page.locator(".gw").focus()
    return page


def caption(page) -> str:
    return page.locator(".gw-caption").inner_text()


def percent(share) -> str:
    return f"{share:.0%}".replace("%", "\u00a0%")


def press(page, *keys):
    for key in keys:
        page.keyboard.press(key)


def test_steps_go_through_the_whole_and_back(show, movie):
    page = opened(show, movie)
    assert caption(page).startswith(f"“{PROMPT}” becomes 5 ids")
    press(page, "ArrowRight")
    assert "The row of “ is”, which is followed here, has size 0.108" in caption(page)
    for layer in range(30):
        press(page, "ArrowRight")
        assert caption(page).startswith(f"Layer {layer} reads the stream of “ is”")
        assert page.locator(".gw-floor.gw-later").count() == 29 - layer
        assert page.locator(OUTLINED).locator(".gw-name").inner_text() == str(layer)
    press(page, "ArrowRight", "ArrowRight")
    assert caption(page) == "“ Paris” is chosen: nothing is likelier."
    assert page.locator(".gw-chosen-one .gw-word").inner_text() == "␣Paris"
    assert page.locator(".gw-piece.gw-fresh").count() == 0
    press(page, "ArrowRight")
    assert page.locator(".gw-piece.gw-fresh").inner_text().startswith("␣Paris")
    press(page, "ArrowRight")                              # the second pass
    assert caption(page).startswith("Only “ Paris” goes in")
    assert page.locator(".gw-tokens .gw-in-cache").count() == 5
    press(page, "End")
    assert "The text that came out: “ Paris.”" in caption(page)
    press(page, "ArrowRight")
    assert "The text that came out" in caption(page)
    press(page, "ArrowLeft")
    assert caption(page) == "“.” is chosen: nothing is likelier."
    press(page, "Home", "ArrowLeft")
    assert caption(page).startswith(f"“{PROMPT}” becomes")


def test_up_and_down_change_the_distance_and_keep_the_place(show, movie):
    page = opened(show, movie)
    press(page, "ArrowUp", *["ArrowRight"] * 31, "ArrowDown")             # layer 29
    pressed = page.locator(".gw-nearer [aria-pressed=true]")
    assert pressed.inner_text() == "Layer"
    assert page.get_by_label("Layer", exact=True).last.input_value() == "29"
    press(page, "ArrowDown", "ArrowDown")
    assert pressed.inner_text() == "Head"
    assert caption(page).startswith("Head 0 of layer 29. The query of “ is”, position 4")
    press(page, "ArrowRight", "ArrowUp")
    assert pressed.inner_text() == "Layer" and page.locator(".gw-place").inner_text() == (
        "attention")
    press(page, "ArrowUp")
    assert caption(page).startswith("Layer 29 reads")


def test_buttons_heads_and_lists_do_the_same(show, movie):
    page = opened(show, movie)
    page.locator(".gw-floor.gw-opens").nth(0).click()
    assert caption(page).startswith("The norm divides the stream of “ is” by its size, 0.108")
    for _ in LAYER_STEPS[:4]:
        page.get_by_role("button", name="Next step").click()
    page.locator(".gw-one-head").nth(7).click()
    assert page.locator(".gw-place").inner_text() == "scores"
    assert page.locator("select").nth(1).input_value() == "7"
    page.locator("select").nth(0).select_option("29")
    page.locator("select").nth(1).select_option("2")
    page.get_by_role("button", name="Next step").click()
    assert caption(page).startswith("Softmax makes shares of the scores. Head 2 of layer 29")
    page.get_by_role("button", name="Model").click()
    assert caption(page).startswith("Layer 29 reads")


def test_what_a_head_says_is_what_the_engine_computed(show, smollm2, passes):
    """Opened at its place, with the weights as numbers and as widths."""
    page = opened(show, engine_movie(smollm2, layer=23, head=4, step="softmax"))
    weights, scores = (passes[0].layers[23][name][4] for name in ("weights", "scores"))
    assert np.argmax(weights) == 3
    assert f"{percent(weights[3])} to “ France”" in caption(page)
    rows = page.locator(".gw-against:not(.gw-heads)")
    assert rows.count() == 5
    shares = rows.locator(".gw-share-of b").all_inner_texts()
    for share, weight in zip(shares, weights):
        assert share == (percent(weight) if weight >= 0.005 else "under 1\u00a0%")
    told = [float(text) for text in rows.locator(".gw-score b").all_inner_texts()]
    assert told == pytest.approx(scores, abs=0.006)
    wide = rows.locator(".gw-share-of > span").evaluate_all(
        "all => all.map((one) => one.offsetWidth / one.parentElement.clientWidth)")
    assert wide == pytest.approx(weights, abs=0.03)
    assert rows.locator("canvas.gw-later").count() == 5                      # values: later
    press(page, "ArrowRight")
    assert rows.locator("canvas.gw-later").count() == 0
    assert caption(page).startswith(f"The values are mixed by these shares: {weights[3]:.2f} ×")


def test_colours_are_the_numbers(show, smollm2, passes):
    """The turned query of a head: its signs as two hues, its sizes as how much of them."""
    page = opened(show, engine_movie(smollm2, layer=23, head=4, step="rotation"))
    pixels = np.array(page.locator(".gw-query canvas").last.evaluate(
        "one => [...one.getContext('2d').getImageData(0, 0, one.width, one.height).data]"))
    pixels = pixels.reshape(-1, 4)
    query = passes[0].layers[23]["turned"][4]
    assert len(pixels) == len(query) == 64
    strong = np.abs(query) > 0.05 * np.abs(query).max()
    assert ((pixels[strong, 0] > pixels[strong, 2]) == (query[strong] > 0)).all()
    order = np.argsort(np.abs(query))
    assert np.diff(pixels[order, 3]).min() >= -3 and pixels[:, 3].max() > 230
    page.locator(".gw-query canvas").last.hover(position={"x": 1, "y": 5})
    assert page.locator(".gw-detail").inner_text().startswith("query, turned, number 0: about")
    shown = float(page.locator(".gw-detail").inner_text().split()[-1])
    assert shown == pytest.approx(query[0], abs=0.02 * float(np.abs(query).max()))


def test_every_step_says_something_of_its_own(show, movie):
    page = opened(show, movie)
    press(page, "ArrowRight", "ArrowDown", "Home")
    said = []
    for _ in LAYER_STEPS:
        said.append(caption(page))
        press(page, "ArrowRight")
    press(page, "Home", "ArrowDown", "Home")
    for _ in HEAD_STEPS:
        said.append(caption(page))
        press(page, "ArrowRight")
    assert len({*said}) == len(LAYER_STEPS) + len(HEAD_STEPS)
    assert not any(word in text for text in said for word in ("undefined", "NaN", "null"))


@pytest.mark.parametrize("family, prompt, tokens", [
    ("Llama", "a", 1), ("Mixtral", "w3 w5", 2), ("Qwen3", "w1 w2 w3 w4 w5 w6 w7", 9)])
def test_other_models_and_texts_are_told_through(show, tiny_model, tokenizer,
                                                 family, prompt, tokens):
    """One token, experts, heads with a norm of their own, a text of many lines: every step."""
    _, folder = tiny_model(family, 5, max_position_embeddings=64)
    model = LanguageModel(Model.load(folder), tokenizer, {}, frozenset())
    page = opened(show, engine_movie(model, prompt, max_tokens=tokens), width=390)
    for level in ("model", "layer", "head"):
        last = int(page.get_by_role("slider").get_attribute("max"))
        press(page, "Home")
        for _ in range(last + 1):
            said = caption(page)
            assert len(said) > 20
            assert not any(word in said for word in ("undefined", "NaN", "null", "Infinity"))
            press(page, "ArrowRight")
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, level
        press(page, "Home", "ArrowRight", "ArrowDown")


def test_it_plays_and_stops(show, movie):
    page = opened(show, movie)
    page.clock.install(time=0)
    page.clock.pause_at(60_000)                     # time passes only where the test says so
    page.get_by_role("button", name="Play").click()
    page.clock.run_for(1600)
    assert caption(page).startswith("Layer 1 reads")
    assert page.get_by_role("button", name="Pause").is_visible()
    press(page, "ArrowRight")                                   # whoever steps, stops it
    page.clock.run_for(3000)
    assert caption(page).startswith("Layer 2 reads")
    press(page, "End")
    press(page, "ArrowLeft")
    page.get_by_role("button", name="Play").click()
    page.clock.run_for(2000)
    assert "The text that came out" in caption(page)
    assert page.get_by_role("button", name="Play").is_visible()


@pytest.mark.parametrize("motion, moves", [("reduce", False), ("no-preference", True)])
def test_who_wants_no_motion_gets_none(show, movie, motion, moves):
    page = opened(show, movie, reduced_motion=motion)
    press(page, *["ArrowRight"] * 4)
    names = page.locator(".gw-here canvas").evaluate_all(
        "all => all.map((one) => getComputedStyle(one).animationName)")
    assert names == ["gw-flow" if moves else "none"]


def test_a_step_takes_less_than_a_frame_of_a_phone(show, movie):
    """Counted, not timed: a place is drawn once, from few pixels; a step makes no elements."""
    page = opened(show, movie, width=390)
    page.evaluate("""window.made = 0;
        new MutationObserver((all) => { for (const { addedNodes } of all) {
          for (const node of addedNodes) made += node.nodeType === 1; } })
        .observe(document.querySelector(".gw-stage"), { childList: true, subtree: true })""")
    for keys, steps in ((["ArrowRight"] * 3, 28), (["ArrowDown", "Home"], 11),
                        (["ArrowDown", "Home"], 3)):
        press(page, *keys)
        page.evaluate("made = 0")
        press(page, *["ArrowRight"] * steps)
        assert page.evaluate("made") == 0
        press(page, "ArrowRight", "ArrowRight")
        assert page.locator(".gw-stage *").count() < 600
        pixels = page.locator(".gw-stage canvas").evaluate_all(
            "all => all.reduce((sum, one) => sum + one.width * one.height, 0)")
        assert pixels < 25_000


def test_without_inflating_the_words_stay(browser, movie):
    page = browser.new_page()
    page.add_init_script("delete globalThis.DecompressionStream")
    page.goto("about:blank")
    page.set_content(f"<!doctype html><html lang='en'><body>{movie.html}")
    page.wait_for_timeout(200)
    assert page.locator(".gw-words pre").is_visible()
    page.close()


def test_print_shows_the_words(show, movie):
    page = opened(show, movie)
    assert not page.locator(".gw-words pre").is_visible()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert "Head 4 of layer 23" in page.locator(".gw-words pre").inner_text()
    assert not page.locator(".gw-zoom").is_visible()


def test_nothing_jumps_on_a_phone(show, movie):
    """The picture stays where it is from step to step, and what the step is about is in it."""
    page = opened(show, movie, width=390)
    places = set()
    for _ in range(36):
        places.add(round(page.locator(".gw-stage").bounding_box()["y"]))
        press(page, "ArrowRight")
    assert len(places) == 1
    press(page, "Home", "ArrowRight", "ArrowRight", "ArrowDown")
    for _ in LAYER_STEPS:
        assert page.locator(f".gw-line{OUTLINED}").is_visible()
        press(page, "ArrowRight")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_it_is_readable(show, movie, assert_readable, scheme, width):
    page = opened(show, movie, width=width, color_scheme=scheme, reduced_motion="reduce")
    for keys in (["Home"], ["ArrowRight"] * 12, ["ArrowRight"] * 21, ["ArrowDown"],
                 ["ArrowLeft"] * 7, ["ArrowDown"], ["ArrowRight"] * 3):
        press(page, *keys)
        assert_readable(page, keys)
