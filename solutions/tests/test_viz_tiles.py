"""The figure of FlashAttention, without a browser: it shows what was moved. About 2 s."""

import html
import re

import numpy as np
import pytest
from test_viz import HOSTILE, parse

from gearworks import viz
from gearworks.attention import attention
from gearworks.kernels.flash import flash_attention_tiled, in_tiles, plain_bytes
from gearworks.viz import Cell, FigureError, Lane, Step, Trace


def qkv(T: int, S: int, d: int = 4, seed: int = 7):
    rng = np.random.default_rng(seed)
    return [(1.5 * rng.standard_normal((n, 1, d))).astype(np.float32) for n in (T, S, S)]


@pytest.fixture(scope="session")
def tile_figures() -> dict[str, viz.Figure]:
    return {"square": viz.attention_tiles(*qkv(9, 9), 3, 3),
            "cached": viz.attention_tiles(*qkv(5, 12), 2, 5, window=6, title=HOSTILE),
            "unseen": viz.attention_tiles(*qkv(6, 3), 4, 4)}


def trace_of(figure):
    _, (trace,) = parse(figure.html)
    for step in trace["steps"]:
        for lane in step["lanes"]:
            lane["cells"] = [trace["pool"][place] for place in lane.get("cells", [])]
    return trace


def lanes(step, group) -> list:
    return [lane for lane in step["lanes"] if lane["group"].startswith(group)]


@pytest.mark.parametrize("name", ["square", "cached", "unseen"])
def test_the_html_stands_alone(tile_figures, name):
    figure = tile_figures[name]
    page, data = parse(figure.html)
    assert page.tags[0] == "div" and not {"link", "img", "iframe", "b"} & {*page.tags}
    outside = re.sub(r'"http://www\.w3\.org/[^"]*"', "", figure.html)
    assert not re.search(r"https?:|url\(|@import|[\"'(=]\s*//", outside, re.I)
    assert html.escape(figure.words, quote=False) in figure.html
    assert data[0]["schema"] == "gearworks.trace/2" and data[0]["view"] == "tiles"


def test_a_step_for_every_move_and_the_bytes_are_those_that_were_moved(tile_figures):
    arrays = qkv(9, 9)
    _, memory = in_tiles(*arrays, 3, 3)
    steps = trace_of(tile_figures["square"])["steps"]
    assert len(steps) == len(memory.moves) + 2
    moved = 0
    for move, step in zip(memory.moves, steps[1:]):
        moved += move.nbytes
        ours, plain = lanes(step, "Bytes")
        assert ours["cells"][0]["text"] == f"{moved:,} bytes"
        assert plain["cells"][0]["text"] == f"{plain_bytes(9, 9, 1, 1, 4, 4):,} bytes"
    assert moved == memory.bytes_read + memory.bytes_written
    assert f"Done: {moved:,} bytes" in tile_figures["square"].words


def test_every_score_is_there_once_or_never(tile_figures):
    for name, (T, S), tiles, window in (("square", (9, 9), (3, 3), None),
                                        ("cached", (5, 12), (2, 5), 6),
                                        ("unseen", (6, 3), (4, 4), None)):
        steps = trace_of(tile_figures[name])["steps"]
        seen = np.zeros((T, S), int)
        before = None
        for step in steps:
            rows = [[cell for cell in lane["cells"] if cell.get("size", 1)]
                    for lane in lanes(step, "Scores") if lane["cells"]]
            now = np.array([[cell.get("kind") == "now" for cell in row] for row in rows])
            assert now.shape == (T, S)
            if before is not None:
                seen += now & ~before
            before = now
        distance = np.arange(S - T, S)[:, None] - np.arange(S)
        visible = (distance >= 0) & (distance < (window or 99))
        assert (seen[visible] == 1).all() and seen.max() <= 1
        # what is drawn as never computed never was, and the rest was used and forgotten
        kinds = np.array([[cell.get("kind", "") for cell in row] for row in rows])
        assert (kinds == np.where(seen, "gone", "unseen")).all()


def test_maxima_and_sums_are_those_of_the_softmax(tile_figures):
    q, k, v = (x[:, 0] for x in qkv(9, 9))
    scores = np.where(np.tri(9, dtype=bool), q @ k.T / 2, -np.inf)
    steps = trace_of(tile_figures["square"])["steps"]
    for number, step in enumerate(steps[:-1]):
        if "go to slow memory" not in steps[number + 1]["caption"]:
            continue
        for lane in lanes(step, "Of each query"):
            row = int(lane["label"].removeprefix("query "))
            peak = scores[row].max()
            told = [float(cell["text"].split()[1].replace("−", "-"))
                    for cell in lane["cells"][:2]]
            assert told == pytest.approx([peak, np.exp(scores[row] - peak).sum()], abs=0.06)


def test_captions_tell_what_is_rescaled(tile_figures):
    words = tile_figures["square"].words
    assert "9 scores, in fast memory alone, 3 of them masked." in words
    assert re.search(r"where the maximum has grown \([1-3] of 3\), what was there is scaled",
                     words)
    assert "× 0." in words
    assert "Scores: a row" not in words                      # captions tell what the grid shows
    assert "None" not in words and "nan" not in words


def test_it_replays_ones_own_function():
    def whole_rows(q, k, v, out, window=None):
        """Tiles from the last to the first."""
        for start in range(q.shape[0] - 2, -1, -2):
            queries = q[start:start + 2, 0]
            parts = [(k[key:key + 2, 0], v[key:key + 2, 0]) for key in range(0, start + 1, 2)]
            keys, values = (np.concatenate(part) for part in zip(*parts))
            out[start:start + 2, 0:1] = attention(queries[:, None], keys[:, None],
                                                  values[:, None])

    arrays = qkv(6, 6)
    figure = viz.attention_tiles(*arrays, 2, 2, attention=whole_rows)
    assert "Step 2 of 20: Queries 4 to 5 come" in figure.words
    assert figure.words != viz.attention_tiles(*arrays, 2, 2).words


@pytest.mark.parametrize("lanes", [[], [Lane("a", [Cell("1")], group="only")]], ids=len)
def test_a_grid_needs_bars(lanes):
    with pytest.raises(FigureError, match=rf"steps\[0\].lanes has {len(lanes)} groups"):
        Trace("t", [Step("s", lanes)], view="tiles")


def test_what_cannot_be_drawn_is_refused():
    def keys_first(q, k, v, out, window=None):
        k[0:2, 0]
        flash_attention_tiled(q, k, v, out, window)

    for arrays, tiles, why in ((qkv(17, 17), (4, 4), "17 queries"), (qkv(16, 16), (1, 1),
                                                                    "304 of them")):
        with pytest.raises(FigureError, match=why):
            viz.attention_tiles(*arrays, *tiles)
    two_heads = [np.repeat(x, 2, axis=1) for x in qkv(4, 4)]
    with pytest.raises(FigureError, match="2 heads"):
        viz.attention_tiles(*two_heads, 2, 2)
    with pytest.raises(FigureError, match="k 0 to 1 is read before any queries"):
        viz.attention_tiles(*qkv(4, 4), 2, 2, attention=keys_first)
