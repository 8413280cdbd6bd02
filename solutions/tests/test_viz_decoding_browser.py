"""Figures of decoding in real Chromium:
the page's arithmetic is gearworks.sampling's. About 20 s.

The fixture `browser` (conftest.py at the root) says what they need.
"""

import numpy as np
import pytest
from test_viz_decoding import HOSTILE, decoding_figures, steep

from gearworks import viz
from gearworks.layers import softmax
from gearworks.sampling import SamplingParams, process

SLIDERS = {"temperature": "Temperature", "top_k": "top-k", "top_p": "top-p", "min_p": "min-p"}
ALL_K = 101                                  # the right end of top-k's slider


def move(page, **settings) -> None:
    for name, value in {"temperature": 1.0, "top_k": ALL_K, "top_p": 1.0, "min_p": 0.0,
                        **settings}.items():
        page.get_by_role("slider", name=SLIDERS[name]).fill(str(value))


def bars(page) -> dict[int, float]:
    """The probability of each token that has a bar, by its id; -1 is all others."""
    rows = page.locator(".gw-tokens li").evaluate_all(
        "rows => rows.map(({ dataset }) => [dataset.id ?? -1, dataset.probability])")
    return {int(id): float(share) for id, share in rows}


def caption(page) -> str:
    return page.locator(".gw-caption").inner_text()


SETTINGS = [{}, {"temperature": 0.3}, {"temperature": 2.5}, {"top_k": 1}, {"top_k": 40},
            {"top_k": 12}, {"top_p": 0.9}, {"top_p": 0.01}, {"top_p": 0.5, "temperature": 0.7},
            {"min_p": 0.1}, {"min_p": 1.0},
            {"min_p": 0.03, "temperature": 1.5},
            {"temperature": 0.7, "top_k": 40, "top_p": 0.9},
            {"temperature": 1.3, "top_k": 30, "top_p": 0.95, "min_p": 0.05},
            {"temperature": 3, "top_p": 0.97}]


@pytest.mark.parametrize("seed, V", [(1, 49_152), (2, 900), (3, 30)])
def test_every_bar_is_what_sampling_says(show, seed, V):
    logits = steep(seed, max(V, 200))[-V:] if V < 200 else steep(seed, V)
    page = show(viz.distribution(logits, str))
    for settings in SETTINGS:
        move(page, **settings)
        processed = process(logits, SamplingParams(**{"temperature": 1.0, **settings}), [])
        expected = softmax(processed)
        found = bars(page)
        rest = found.pop(-1, 0.0)
        kept = np.flatnonzero(np.isfinite(processed))
        if len(kept) < 800:                         # exact: who is left, and how likely each is
            assert {id for id, share in found.items() if share} == {*kept} & {*found}, settings
            assert caption(page).split()[0] == f"{len(kept):,}", settings
        else:
            said = caption(page).removeprefix("about ").split()[0].replace(",", "")
            assert int(said) == pytest.approx(len(kept), rel=0.01), settings
        assert max(abs(found[id] - expected[id]) for id in found) < 2e-5, settings
        assert rest == pytest.approx(1 - sum(float(expected[id]) for id in found),
                                     abs=2e-4), settings


def test_greedy_leaves_one(show):
    logits = steep(1)
    page = show(viz.distribution(logits, str))
    move(page, temperature=0)
    assert {id for id, share in bars(page).items() if share} == {int(logits.argmax())}
    assert "Greedy takes the likeliest" in caption(page)
    assert (page.get_by_role("slider", name="Temperature").get_attribute("aria-valuetext")
            == "0: greedy")


def test_it_says_who_was_ruled_out_and_by_what(show):
    page = show(viz.distribution(np.log(np.array([0.5, 0.2, 0.15, 0.1, 0.05], np.float32)),
                                 "abcde".__getitem__))
    move(page, top_k=4, top_p=0.8, min_p=0.35)
    why = page.locator(".gw-tokens li").evaluate_all("rows => rows.map((row) => "
                                                     "row.dataset.why ?? '')")
    assert why == ["", "", "min-p", "top-p", "top-k"]
    assert page.get_by_role("img", name="c: ruled out by min-p, before 15.0").is_visible()
    assert caption(page) == ("2 of 5 tokens are left; to the model they had 70.0\u00a0%. "
                             "Ruled out: 1 by top-k, 1 by top-p, 1 by min-p.")


def test_places_presets_and_keys(show):
    page = show(viz.distribution({"one": steep(1), "two": steep(2)}, str))
    first = bars(page)
    page.get_by_label("After").select_option("two")
    assert bars(page) != first
    page.get_by_label("Try").select_option(label="0.7 / 40 / 0.9, a usual setting")
    chosen = [page.get_by_role("slider", name=name).input_value() for name in SLIDERS.values()]
    assert chosen == ["0.7", "40", "0.9", "0"]
    heat = page.get_by_role("slider", name="Temperature")
    heat.press("ArrowRight")
    assert heat.get_attribute("aria-valuetext") == "0.75"
    assert page.get_by_label("Try").input_value() == ""     # the reader's own settings now
    page.get_by_label("After").select_option("one")
    assert heat.get_attribute("aria-valuetext") == "0.75"   # they stay when the place changes


def test_the_timeline_goes_pass_by_pass(show):
    page = show(decoding_figures()["acceptance_timeline"])
    assert page.locator(".gw-lane").count() == 24
    page.get_by_label("Show").select_option("One pass after the other")
    page.get_by_role("slider", name="Pass").press("ArrowRight")
    assert (page.locator(".gw-caption").inner_text()
            == "0 guesses, 0 accepted, 0 thrown away: 1 token for one pass.")
    assert HOSTILE.strip()[:9] in page.locator(".gw").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_both_are_readable(show, assert_readable, scheme, width):
    for name, figure in decoding_figures().items():
        page = show(figure, width=width, color_scheme=scheme)
        if name == "distribution":
            move(page, top_k=20, temperature=0.5)
        assert_readable(page, name)
