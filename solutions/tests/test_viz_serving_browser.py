"""Figures of serving in real Chromium: they play, they open where they should,
and they can be read. About 30 s.

The fixture `browser` (conftest.py at the root) says what they need.
"""

import pytest
from test_viz_serving import (ARRIVALS, BLOCKS, BUDGET, NAMES, SIZE, SLOTS, WIDTH,
                              answered, busy, guessing, serving_figures)  # noqa: F401 (fixtures)

from gearworks import viz


def caption(page) -> str:
    return page.locator(".gw-caption").inner_text()


def drawn(page, cells=".gw-slot[data-note]") -> list[str]:
    """The notes of the boxes that can be seen."""
    return page.locator(cells).evaluate_all("all => all.filter((one) => one.checkVisibility("
                                            "{ visibilityProperty: true }))"
                                            ".map((one) => one.dataset.note)")


def test_the_timeline_opens_whole_and_plays_from_the_first_step(show, busy):  # noqa: F811
    page = show(viz.batch_timeline(busy, budget=BUDGET))
    assert caption(page) == f"All of it: 10 answers in {len(busy)} steps."
    assert page.locator(".gw-now").count() == 0
    whole = drawn(page)
    rows = sum(len(record.rows) for record in busy)
    waits = sum(record.waiting for record in busy)
    assert len(whole) == rows + waits + len(busy)               # and a sum in each column
    page.get_by_role("button", name="First step").click()
    assert drawn(page) == ["A, step 0: 12 a part of its prompt: 0 to 11",
                           "B, step 0: 12 a part of its prompt: 0 to 11",
                           f"all tokens, step 0: 24 of {BUDGET}"]
    page.get_by_role("slider").fill("20")
    assert len(drawn(page)) == sum(len(record.rows) + record.waiting + 1
                                   for record in busy[:21])
    page.get_by_role("button", name="Play").click()
    page.get_by_role("slider", name="Step").evaluate(
        "(one) => new Promise((done) => setInterval(() => one.value >= 22 && done(), 50))")
    page.get_by_role("button", name="Pause").click()


def test_columns_keep_their_places_and_the_step_is_marked(show, busy):  # noqa: F811
    page = show(viz.batch_timeline(busy, first=30))
    places = []
    for _ in range(2):
        now, cell = (page.locator(where).first.bounding_box()
                     for where in (".gw-now", ".gw-slot[aria-label*='step 30:']"))
        places.append(cell["x"])
        assert page.locator(".gw-place").inner_text() in ("Step 30", "Step 31")
        if len(places) == 1:
            assert now["x"] <= cell["x"]
            assert cell["x"] + cell["width"] <= now["x"] + now["width"]
        page.get_by_role("button", name="Next step").click()
    assert places[0] == places[1]


def test_it_opens_where_two_runs_part(show, busy):  # noqa: F811
    there = busy[:21] + busy[22:]
    page = show(viz.batch_timeline(busy, first=viz.first_divergence(busy, there)))
    assert page.locator(".gw-place").inner_text() == "Step 21"
    assert caption(page).startswith("The runs part here. C: preempted in this run, not "
                                    "preempted in the other.")


def test_heights_tell_kinds_apart(show, busy):  # noqa: F811
    page = show(viz.batch_timeline(busy, budget=BUDGET))
    heights = page.locator(".gw-slot").evaluate_all("""all => Object.fromEntries(all
        .filter((one) => one.dataset.note && one.dataset.note.includes(", step "))
        .map((one) => [one.dataset.note.split(": ").slice(1).join(": ").split(": ")[0]
                         .replace(/[0-9]+ /, ""),
                       one.querySelector(".gw-fill").getBoundingClientRect().height]))""")
    prompt, next_token, waits = (heights[name] for name in ("a part of its prompt",
                                                            "its next token", "waits"))
    assert prompt > 1.8 * next_token > 3 * waits > 5


def test_on_a_narrow_screen_the_lanes_scroll_and_the_names_stay(show, busy):  # noqa: F811
    page = show(viz.batch_timeline(busy, first=50), width=390)
    scroll = page.locator(".gw-scroll")
    assert scroll.evaluate("(one) => one.scrollLeft") > 100
    box, now, name = (page.locator(one).first.bounding_box()
                      for one in (".gw-scroll", ".gw-now", ".gw-timeline .gw-label"))
    assert box["x"] <= now["x"] <= box["x"] + box["width"] - now["width"]
    assert name["x"] == pytest.approx(box["x"], abs=1)
    first = page.locator(".gw-scroll").evaluate("""(one) => {
        const [x, y] = [one.getBoundingClientRect().left + 4, 0];
        const label = one.querySelector(".gw-label").getBoundingClientRect();
        return document.elementFromPoint(x, label.top + label.height / 2).closest(".gw-label")
               !== null; }""")
    assert first, "a box covers the name of its lane"


def test_boxes_are_reached_by_key(show, busy):  # noqa: F811
    page = show(viz.batch_timeline(busy, first=2))
    page.locator(".gw").focus()
    for text in ("A, step 0: 12 a part of its prompt: 0 to 11",
                 "A, step 1: 9 a part of its prompt: 12 to 20", "A, step 2: its next token"):
        page.keyboard.press("ArrowDown")
        assert page.locator(".gw-detail").inner_text() == text
    assert page.get_by_role("list", name="A", exact=True).get_by_role("listitem").count() == 3


def test_a_block_is_found_in_pool_and_tables(show, busy):  # noqa: F811
    page = show(viz.page_table(busy, BLOCKS, SIZE, first=5))
    assert page.locator(".gw-pool .gw-cell").count() == BLOCKS
    tables = {row.name: row.blocks for row in busy[5].rows}
    shown = page.locator(".gw-tables .gw-cells").evaluate_all(
        "all => all.map((one) => [...one.children].map((cell) => Number(cell.textContent)))")
    assert shown == [list(blocks) for blocks in tables.values()]
    shared = page.locator(".gw-tables [data-block='0']")
    shared.first.hover()
    assert page.locator(".gw-same").count() == 1 + shared.count() == 3
    assert page.locator(".gw-detail").inner_text().startswith("0, of several sequences")
    fill = page.locator(".gw-pool .gw-cell").evaluate_all(
        "all => all.map((one) => one.style.getPropertyValue('--gw-fill'))")
    assert len({*fill}) > 2


def test_pool_and_tables_stand_side_by_side_where_there_is_room(show, busy):  # noqa: F811
    for width, beside in ((1280, True), (390, False)):
        page = show(viz.page_table(busy, BLOCKS, SIZE, first=5), width=width)
        pool, tables = (page.locator(one).bounding_box() for one in (".gw-pool", ".gw-tables"))
        assert (tables["y"] < pool["y"] + 1) == beside


def test_two_ways_of_batching_play_in_step(show, answered):  # noqa: F811
    page = show(viz.static_and_continuous(ARRIVALS, answered, SLOTS, WIDTH))
    assert page.locator(".gw-group").all_inner_texts() == ["Static batching",
                                                           "Continuous batching"]
    counts = viz.batching_counts(ARRIVALS, answered, SLOTS, WIDTH)
    assert (f"static {counts['static'].steps} · continuous {counts['continuous'].steps}"
            in page.locator(".gw-values").inner_text())
    page.get_by_role("slider").fill("17")
    assert caption(page).startswith("Static: 3 slots, 2 wasted. Continuous: ")
    ends = page.locator(".gw-slot[data-note*='step 17:']")
    x = ends.evaluate_all("all => all.map((one) => Math.round(one.getBoundingClientRect().x))")
    assert len({*x}) == 1 and len(x) >= 8                       # one column for both
    explained = page.locator(".gw-legend li").all_inner_texts()
    assert "computed for nothing" in explained and "preempted" not in explained


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_all_are_readable(show, serving_figures, assert_readable, scheme, width):  # noqa: F811
    for name in NAMES:
        page = show(serving_figures[name], width=width, color_scheme=scheme)
        for place in ("0", "5"):
            assert_readable(page, name, place)
            page.get_by_role("slider").fill(place)
