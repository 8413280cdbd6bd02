"""The figure of FlashAttention in real Chromium. About 10 s.

The fixture `browser` (conftest.py at the root) says what it needs.
"""

import pytest
from test_viz_tiles import tile_figures  # noqa: F401 (a fixture)


def test_a_tile_comes_and_goes(show, tile_figures):  # noqa: F811
    page = show(tile_figures["square"])
    squares = page.locator(".gw-grid .gw-cell")
    assert squares.count() == 81 and page.locator(".gw-grid .gw-chosen").count() == 0
    page.get_by_role("slider").fill("2")
    now = page.locator(".gw-grid .gw-chosen")
    assert now.count() == 9 and "–" in now.all_inner_texts()
    assert page.locator(".gw-lane .gw-cell").all_inner_texts()[:3] == ["q 0–2", "k 0–2",
                                                                      "scores 3×3"]
    page.get_by_role("button", name="Last step").click()
    assert page.locator(".gw-grid .gw-chosen").count() == 0
    assert page.locator(".gw-grid .gw-kind-2").count() == 54          # used and forgotten
    assert page.locator(".gw-grid .gw-kind-3").count() == 27          # never computed
    bars = [bar.bounding_box()["width"] for bar in page.locator(".gw-segment").all()]
    assert bars[0] < bars[1]


def test_tiles_are_apart_and_in_line(show, tile_figures):  # noqa: F811
    page = show(tile_figures["square"])
    x = page.locator(".gw-grid [role=list]").first.locator(".gw-cell").evaluate_all(
        "all => all.map((one) => one.getBoundingClientRect().x)")
    steps = [round(b - a) for a, b in zip(x, x[1:])]
    assert steps[2] == steps[5] > steps[0] == steps[3] == steps[7]
    columns = page.locator(".gw-column").evaluate_all(
        "all => all.map((one) => one.getBoundingClientRect().x)")
    assert [round(place) for place in columns] == [round(place) for place in x]


def test_scores_are_reached_by_key(show, tile_figures):  # noqa: F811
    page = show(tile_figures["square"])
    page.get_by_role("slider").fill("2")
    page.locator(".gw").focus()
    page.keyboard.press("ArrowDown")
    assert page.locator(".gw-detail").inner_text().startswith("query 0, key 0: ")
    page.keyboard.press("ArrowDown")
    assert page.locator(".gw-detail").inner_text() == "query 0, key 1: –"


def test_memory_stands_beside_the_grid_where_there_is_room(show, tile_figures):  # noqa: F811
    for width, beside in ((1280, True), (390, False)):
        page = show(tile_figures["square"], width=width)
        grid, memory = (page.locator(".gw-tiles > div").nth(n).bounding_box() for n in (0, 1))
        assert (memory["x"] >= grid["x"] + grid["width"]) == beside


def test_nothing_jumps_from_step_to_step(show, tile_figures):  # noqa: F811
    page = show(tile_figures["square"])
    places = set()
    for step in range(1, 12):
        page.get_by_role("slider").fill(str(step))
        places.add(round(page.locator(".gw-grid").bounding_box()["y"]))
    assert len(places) <= 2                              # a caption of two lines, or of one


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", ["square", "cached", "unseen"])
def test_it_is_readable(show, tile_figures, assert_readable, name, scheme, width):  # noqa: F811
    page = show(tile_figures[name], width=width, color_scheme=scheme)
    for place in ("0", "3", "100"):
        page.get_by_role("slider").fill(place)
        assert_readable(page, name, place)
