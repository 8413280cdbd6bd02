"""Figures without a browser: the trace schema, the HTML's form,
and that what is shown is what was given. About 8 s."""

import html
import json
import re
from base64 import urlsafe_b64decode
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gearworks import hub, viz
from gearworks.accounting import SHAPES, bytes_moved, forward_flops, memory_bytes
from gearworks.attention import rope_frequencies
from gearworks.model import Model
from gearworks.onnx_export import Node
from gearworks.profiling.machine import Machine
from gearworks.profiling.operators import Operator
from gearworks.profiling.profile import Profile, Work
from gearworks.tokenizer import Tokenizer
from gearworks.viz import Cell, FigureError, Lane, Line, Mark, Step, Trace
from gearworks.viz.figure import _resource
from gearworks.vocabularies.vocabulary import Vocabulary

VOID = {"br", "hr", "img", "input", "meta", "link"}
HOSTILE = ("</script><b>bold</b> \"double\" 'single' & <!-- ]]> \u202eRTL שלום مرحبا 👩‍👩‍👧 "
           "$x^2$ \\u003c")
STEPS = [Step("two wait", [Lane("queue", [Cell("A", "prompt"), Cell("B", "prompt", "chosen")])],
              values={"10": "a", "9": "b"}),
         Step("one goes",
              [Lane("queue", [Cell("A", "prompt", note="5 tokens")], note="shorter")],
              label="later")]
TRACE = Trace("A queue", STEPS, legend={"prompt": "waits", "decode": "runs"})


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """SmolLM2's."""
    return Tokenizer.from_file(hub.smollm2_folder() / "tokenizer.json")


def llama_steps() -> dict[str, list[viz.Workload]]:
    """Prefill and decode of Llama-2-7B, by batch."""
    shape = SHAPES["Llama-2-7B"]
    return {str(batch): [viz.Workload(label, batch * forward_flops(shape, new, past),
                                      bytes_moved(shape, "float16", batch, new, past),
                                      batch * new)
                         for label, new, past in (("prefill", 512, 0), ("decode", 1, 512))]
            for batch in (1, 8, 64)}


MACHINES = [viz.Machine("laptop", 100e9, 12.5e9), viz.Machine("A100", 312e12, 2e12)]
BUDGET = {f"{tokens:,} tokens": {dtype: memory_bytes(SHAPES["Llama-2-7B"], dtype, tokens)
                                for dtype in ("float16", "q4_1")}
          for tokens in (512, 65536)}


def random_weights(T: int, L: int = 3, H: int = 2) -> np.ndarray:
    """Causal attention weights of L layers and H heads, none like another."""
    scores = np.random.default_rng(T).normal(0, 2, (L, H, T, T))
    scores[..., ~np.tri(T, dtype=bool)] = -np.inf
    return (np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)).astype(np.float32)


RNG = np.random.default_rng(4)
QUERY, KEY = RNG.normal(size=(2, 64)).astype(np.float32)
BLOCK = RNG.normal(0, 0.1, 32).astype(np.float32)
LENGTHS = [1, 8, 64, 512]
CACHE = {name: [memory_bytes(replace(SHAPES["Llama-3.1-8B"], num_key_value_heads=heads),
                             "float16", n)["kv_cache"] for n in LENGTHS]
         for name, heads in (("MHA", 32), ("GQA", 8), (HOSTILE, 1))}
FLOPS = {"with": [forward_flops(SHAPES["Llama-3.1-8B"], 1, n - 1) for n in LENGTHS],
         "without": [forward_flops(SHAPES["Llama-3.1-8B"], n) for n in LENGTHS]}
OPERATORS = (Operator(HOSTILE, 2, 0.0004), Operator("lm_head", 1, 0.01, 100_000_000, 5 * 10**7),
             Operator("in the processor's cache", 1, 0.001, 80_000_000),
             Operator("between them", 0, 0.002))


@pytest.fixture(scope="session")
def figures(tokenizer) -> dict[str, viz.Figure]:
    """One of each, with a text that would break out of careless HTML wherever it may stand."""
    hostile = Trace(
        HOSTILE,
        [Step(HOSTILE, [Lane(HOSTILE, [Cell(HOSTILE, HOSTILE, "new", HOSTILE)], HOSTILE)], [],
              {HOSTILE: HOSTILE}, HOSTILE)] * 2, legend={HOSTILE: HOSTILE}, step_name=HOSTILE)
    kinds = {f"k{k}": f"kind {k}" for k in range(8)}
    page_table = Trace(
        "Blocks",
        [Step("one block", [Lane("request A", [Cell("7", "k0"), Cell("free", "", "faded")])])],
        view="table", columns=["block 0", "block 1"], legend=kinds)
    return {
        "engine_map": viz.engine_map(lit=["pipeline", "tokenizer"], building=["weights"]),
        "roofline": viz.roofline(MACHINES, llama_steps()),
        "memory_budget": viz.memory_budget(BUDGET),
        "merge_stepper": viz.merge_stepper([" inferencer", HOSTILE[:40], "中文 👍🏽"],
                                           tokenizer),
        "token_borders": viz.token_borders(HOSTILE, {"SmolLM2": tokenizer, HOSTILE: tokenizer}),
        "player": viz.player(TRACE),
        "kinds": viz.player(Trace("Kinds",
                                  [Step("all",
                                        [Lane("kinds", [Cell(kind, kind) for kind in kinds]),
                                         Lane("emphases",
                                              [Cell(e or "none", "", e)
                                               for e in ("", "chosen", "new", "faded")])])],
                                  legend=kinds)), "table": viz.player(page_table),
        "hostile": viz.player([hostile, replace(hostile, view="bars"),
                               replace(hostile, view="table", columns=[HOSTILE])], HOSTILE,
                              HOSTILE),
        "attention_explorer": viz.attention_explorer(["The", " cat", HOSTILE, " s", "\n"],
                                                     random_weights(5), HOSTILE),
        "rope_rotation": viz.rope_rotation(QUERY, KEY, rope_frequencies(64, 1e5),
                                           title=HOSTILE),
        "cache_growth": viz.cache_growth(LENGTHS, CACHE, FLOPS, HOSTILE),
        "number_formats": viz.number_formats(BLOCK, HOSTILE),
        "operator_graph": viz.operator_graph(
            [Node(HOSTILE, (HOSTILE,), ()), Node("Add", (), (0,)), Node("Mul", (), (0, 1))],
            HOSTILE),
        "step_profile": viz.step_profile(
            [Profile(work, OPERATORS, 0.01, Machine(20e9, 100e9, threads=2))
             for work in (Work(past_tokens=9), Work(new_tokens=64))], HOSTILE)}


# --- the schema


def test_a_trace_survives_json():
    trace = Trace("All fields", STEPS, "bars", {"prompt": "waits"}, "Round", ["a"],
                  [Mark(8, "8 GB")], 10.5, [Line("roof", [(1, 2), (3.5, 4)])], "x", "y",
                  [Lane("A", [Cell("4", "prompt", size=0.5, rest="prompt")], group="g")], 1)
    assert Trace.from_json(trace.to_json()) == trace
    assert [*Trace.from_json(
        trace.to_json()).steps[0].values] == ["10", "9"], "names keep their order"


def test_numpy_numbers_survive_json():
    trace = Trace(
        "x",
        [Step("x",
              [Lane("x", [Cell("x", size=np.float32(1.5)), Cell("y", size=np.int64(7))])])])
    cells = Trace.from_json(trace.to_json()).steps[0].lanes[0].cells
    assert [(cell.size, type(cell.size)) for cell in cells] == [(1.5, float), (7, int)]


def test_a_cell_that_comes_often_is_written_once():
    cell = Cell("a long text that would be repeated")
    text = Trace("x", [Step("x", [Lane("x", [cell] * 50)])] * 20).to_json()
    assert text.count(cell.text) == 1


@given(st.text(), st.text(), st.lists(st.text(), max_size=4))
@settings(deadline=None, max_examples=50)
def test_any_text_survives(title, caption, cells):
    lanes = [Lane("lane", [Cell(text, note=text) for text in cells])]
    trace = Trace(title, [Step(caption, lanes, values={title: caption})])
    assert Trace.from_json(trace.to_json()) == trace
    _, data = parse(viz.player(trace).html)
    assert Trace.from_json(json.dumps(data[0])) == trace


def damaged(change) -> str:
    value = json.loads(TRACE.to_json())
    change(value)
    return json.dumps(value)


@pytest.mark.parametrize(
    "change, place",
    [(lambda v: v.update(schema="gearworks.trace/9"), "schema is 'gearworks.trace/9'"),
     (lambda v: v.pop("title"), "title is missing"),
     (lambda v: v.pop("pool"), "pool is missing"),
     (lambda v: v.update(colour="red"), "colour is unknown"),
     (lambda v: v.update(steps=[]), "steps is empty"),
     (lambda v: v.update(steps=3), "steps is 3"),
     (lambda v: v.update(steps=[None]), "steps[0] is None"),
     (lambda v: v.update(view="hologram"), "view is 'hologram'"),
     (lambda v: v.update(legend=[["a"]]), "legend is [['a']]"),
     (lambda v: v.update(legend=[[str(k), "x"] for k in range(9)] + v["legend"]),
      "legend has 11 kinds"),
     (lambda v: v["steps"][1].update(caption=7), "steps[1].caption is 7"),
     (lambda v: v["steps"][1].pop("caption"), "steps[1].caption is missing"),
     (lambda v: v["steps"][0]["lanes"][0].update(cells=[99]),
      "steps[0].lanes[0].cells[0] is 99"),
     (lambda v: v["steps"][0]["lanes"][0].update(cells="ab"),
      "steps[0].lanes[0].cells is 'ab'"),
     (lambda v: v["pool"][1].update(kind="decoding"),
      "steps[0].lanes[0].cells[1].kind is 'decoding'"),
     (lambda v: v["pool"][1].update(emphasis="loud"),
      "steps[0].lanes[0].cells[1].emphasis is 'loud'"),
     (lambda v: v["pool"][0].update(size=-1), "steps[0].lanes[0].cells[0].size is -1"),
     (lambda v: v["pool"][0].update(size=True), "steps[0].lanes[0].cells[0].size is True"),
     (lambda v: v["pool"][0].update(size=float("nan")),
      "steps[0].lanes[0].cells[0].size is nan"),
     (lambda v: v["pool"][0].update(text="\ud800"),
      "steps[0].lanes[0].cells[0].text holds half a surrogate pair"),
     (lambda v: v.update(view="table"), "steps[0].lanes[0].cells has 2 cells"),
     (lambda v: v.update(first=2), "first is 2"),
     (lambda v: v.update(first=0.5), "first is 0.5"),
     (lambda v: v.update(timeline=[{"label": "A", "cells": [0, 0, 0]}]),
      "timeline[0].cells has 3 cells"),
     (lambda v: (v.update(timeline=[{"label": "A", "cells": [0]}]),
                 v["pool"][0].update(rest="loud")), "timeline[0].cells[0].rest is 'loud'"),
     (lambda v: (v.update(view="blocks"), v["pool"][0].update(size=1.5)),
      "steps[0].lanes[0].cells[0].size is 1.5"),
     (lambda v: v["steps"][0].update(points=[{"label": "p", "x": 0, "y": 1}]),
      "steps[0].points[0] is at (0, 1)"),
     (lambda v: v.update(lines=[{"label": "l", "points": [[1]]}]),
      "lines[0].points[0] is (1,)")])
def test_a_damaged_trace_is_refused_at_its_place(change, place):
    with pytest.raises(FigureError) as caught:
        Trace.from_json(damaged(change))
    assert place in caught.value.why


@pytest.mark.parametrize("text", ["", "[", "[]", "3", "{}", "[" * 100_000])
def test_what_is_no_trace_is_refused(text):
    with pytest.raises(FigureError):
        Trace.from_json(text)


def test_words_say_what_the_picture_shows():
    assert viz.player(TRACE).words.splitlines() == [
        "A queue",
        "Step 1 of 2: two wait", "  queue: A (waits) | B (waits, chosen)", "  10: a", "  9: b",
        "Step later: one goes", "  queue (shorter): A (waits)"]


# --- the HTML


class Page(HTMLParser):
    """Checks that every element is closed in order;
    keeps the text, the attributes and the data of the player."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.attributes, self.text, self.data = [], [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)
        if ("class", "gw-data") in attrs:
            self.data.append("")

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data):
        if self.open[-1] == "script" and self.data and not self.data[-1]:
            self.data[-1] = data
        elif self.open[-1] not in ("script", "style"):
            self.text.append(data)


def parse(text: str) -> tuple[Page, list[dict]]:
    page = Page()
    page.feed(text)
    page.close()
    assert page.open == []
    return page, json.loads(page.data[0]) if page.data else []


NAMES = ["engine_map", "roofline", "memory_budget", "merge_stepper", "token_borders", "player",
         "kinds", "table", "hostile", "attention_explorer", "rope_rotation", "cache_growth",
         "number_formats", "operator_graph", "step_profile"]


@pytest.mark.parametrize("name", NAMES)
def test_the_html_stands_alone(figures, name):
    text = figures[name]._repr_html_()
    page, _ = parse(text)
    assert page.tags[0] == "div"
    assert not {"link", "img", "iframe", "object", "base", "b"} & {*page.tags}
    outside = re.sub(r'"http://www\.w3\.org/[^"]*"', "", text)
    assert not re.search(r"https?:|url\(|@import|[\"'(=]\s*//", outside, re.I)
    assert not [name for name, _ in page.attributes
                if name in ("id", "src", "href", "for") or name.startswith("on")]
    assert len(text.encode("utf-8")) < 100_000


@pytest.mark.parametrize("name", NAMES)
def test_it_has_a_name_and_a_text_alternative(figures, name):
    figure = figures[name]
    page, data = parse(figure.html)
    attributes = dict(page.attributes)
    assert attributes["role"] == "group" and attributes["aria-label"]
    assert len(figure.words) > 20
    assert "\n".join(repr(figure).splitlines()[:11]) in figure.words
    assert len(repr(figure).splitlines()) <= 12
    if data:
        # for those whose notebook runs no scripts
        assert html.escape(figure.words, quote=False) in figure.html


def test_hostile_text_stays_text(figures):
    page, data = parse(figures["hostile"].html)
    assert HOSTILE in "".join(page.text)
    assert (data[0]["title"] == data[0]["steps"][0]["caption"] == data[0]["pool"][0]["text"]
            == HOSTILE)
    assert figures["hostile"].html.count("</script>") == 2


def test_a_figure_that_is_too_large_is_refused():
    with pytest.raises(FigureError, match="100,000 is the limit"):
        viz.player(Trace("x", [Step(f"{i} " * 100) for i in range(1000)]))
    with pytest.raises(FigureError, match="no trace"):
        viz.player([])


# --- the engine's map


def test_lit_gears_are_told_apart_in_picture_and_words():
    figure = viz.engine_map(lit=["pipeline", "sampler"], building=["kv_cache"])
    page, _ = parse(figure.html)
    looks = [value for name, value in page.attributes
             if name == "class" and "gw-gear " in f"{value} "]
    assert sum("gw-lit" in look for look in looks) == 2    # step 5 (sampler), step 6 (pipeline)
    assert sum("gw-building" in look for look in looks) == 1
    assert "Step 5, Choose: logits to one id. Gear: Sampler (built)" in figure.words
    assert "Step 1, Encode: text to ids. Gear: Tokenizer (chapter 2)" in figure.words
    assert "KV cache keeps keys and values of past tokens (you build it now)" in figure.words
    assert "2 of 10 gears built" in figure.words


def test_every_gear_is_on_the_map():
    words = viz.engine_map(lit=list(viz.GEARS)).words
    assert all(f"{gear.title}" in words for gear in viz.GEARS.values())
    assert "chapter" not in words and "10 of 10 gears built" in words


def test_an_unknown_gear_is_refused():
    with pytest.raises(FigureError, match="no gear 'turbo'") as caught:
        viz.engine_map(lit=["turbo"])
    assert "kv_cache" in caught.value.hint


# --- hardware


def test_points_stand_under_the_roof(figures):
    _, (trace,) = parse(figures["roofline"].html)
    for step, (batch, workloads) in zip(trace["steps"], llama_steps().items(), strict=True):
        assert step["label"] == batch
        pairs = [(w.flops / w.bytes, m) for m in MACHINES for w in workloads]
        assert [p["x"] for p in step["points"]] == pytest.approx([x for x, _ in pairs])
        assert ([p["y"] for p in step["points"]]
                == pytest.approx([min(m.flops, x * m.bandwidth) for x, m in pairs]))
    for line, machine in zip(trace["lines"], MACHINES, strict=True):
        (x0, y0), (x1, y1), (x2, y2) = line["points"]
        assert y0 == pytest.approx(x0 * machine.bandwidth)
        assert (y1 == y2 == machine.flops
                and x1 == pytest.approx(machine.flops / machine.bandwidth))
        assert x0 < min(p["x"] for step in trace["steps"] for p in step["points"]) < x2


def test_the_roofline_says_the_rates():
    workloads = [viz.Workload("a", 1e9, 1e9, 2), viz.Workload("b", 50e9, 1e9)]
    words = viz.roofline(viz.Machine("m", 100e9, 10e9), workloads).words
    assert "  a: 1 FLOP/byte, at best 10 GFLOP/s, 20 tokens/s; memory is the limit" in words
    assert "  b: 50 FLOP/byte, at best 100 GFLOP/s; arithmetic is the limit" in words
    assert "Limited by memory: a. Limited by arithmetic: b." in words


@pytest.mark.parametrize("machines, steps", [
    ([], [viz.Workload("a", 1, 1)]), (MACHINES[0], []), (MACHINES[0], {"1": []}),
    (MACHINES * 2, [viz.Workload("a", 1, 1)]), (MACHINES[0], [viz.Workload("a", 0, 1)]),
    (MACHINES[0], [viz.Workload("a", 1, float("nan"))]),
    (viz.Machine("m", 1, 0), [viz.Workload("a", 1, 1)])])
def test_an_impossible_roofline_is_refused(machines, steps):
    with pytest.raises(FigureError):
        viz.roofline(machines, steps)


def test_bars_are_the_bytes_that_were_given(figures):
    _, (trace,) = parse(figures["memory_budget"].html)
    for step, (position, bars) in zip(trace["steps"], BUDGET.items(), strict=True):
        assert step["label"] == position
        for lane, (name, parts) in zip(step["lanes"], bars.items(), strict=True):
            cells = [trace["pool"][place] for place in lane["cells"]]
            assert lane["label"] == name
            assert {cell["kind"]: cell["size"] for cell in cells} == parts
    assert [mark["label"] for mark in trace["marks"]] == ["8 GB", "12 GB", "16 GB", "24 GB"]


def test_a_profiles_bars_are_its_times(figures):
    _, traces = parse(figures["step_profile"].html)
    assert [trace["title"] for trace in traces] == ["decode, batch 1, after 9 tokens",
                                                    "prefill of 64 tokens"]
    parts = [[(cell["kind"], round(cell.get("size", 1), 6)) for cell in
              (traces[0]["pool"][place] for place in lane["cells"])]
             for lane in traces[0]["steps"][0]["lanes"]]
    # 100 MB take 5 ms of these 10; 80 MB in 1 ms are faster than memory
    assert parts == [[("more", 0.4)], [("least", 5.0), ("more", 5.0)], [("least", 1.0)],
                     [("more", 2.0)]]
    words = figures["step_profile"].words
    assert "13.4 ms, of which the machine needs 9 ms at least (67 %)." in words
    assert ("lm_head (10 ms, 50 % of its roof; 100 MB, 10 GB/s; 50 MFLOP, 5 GFLOP/s): "
            "5 ms (what the machine needs at least)" in words)
    with pytest.raises(FigureError, match="none was given"):
        viz.step_profile([])


def test_a_budget_says_what_fits():
    bars = {"a": {"weights": 12e9}, "b": {"weights": 12e9, "kv_cache": 1}}
    words = viz.memory_budget(bars, capacity=[16e9, 12e9]).words
    assert "Fits 12 GB: a. Fits 16 GB: a; b." in words
    assert "a (12 GB, fits 12 GB): 12 GB (weights)" in words
    assert "b (12 GB, fits 16 GB): 12 GB (weights) | 1 B (KV cache)" in words
    assert "more than 8 GB" in viz.memory_budget({"weights": 9e9}, capacity=8e9).words


@pytest.mark.parametrize("items",
                         [{}, {"a": {}}, {"a": {"b": {"c": {"d": 1}}}},
                          {str(i): 1 for i in range(9)}, {"a": -1}, {"a": 1, "b": {"c": 1}},
                          {"a": "big"}, {"a": float("inf")}, "ab"])
def test_an_impossible_budget_is_refused(items):
    with pytest.raises(FigureError):
        viz.memory_budget(items)


# --- tokens


@pytest.mark.parametrize("text",
                         [" inferencer", "It's 2024: naïve cafés", "中文分词", "👩‍👩‍👧‍👦 ok",
                          "<|im_end|>", "aaaaaaa", ""])
def test_the_merges_end_in_the_tokenizers_ids(tokenizer, text):
    _, (trace,) = parse(viz.merge_stepper(text, tokenizer).html)
    last = [[trace["pool"][place]["text"] for place in lane.get("cells", [])]
            for lane in trace["steps"][-1]["lanes"]]
    assert last[1] == [str(id) for id in tokenizer.encode(text, parse_special=False)]
    shown = [trace["pool"][place]["text"]
             for place in trace["steps"][0]["lanes"][1].get("cells", [])]
    assert bytes.fromhex("".join(shown)) == text.encode("utf-8")


def test_each_merge_takes_the_lowest_rank_of_all_possible(tokenizer):
    merges = tokenizer.vocabulary.merges
    symbols = [tokenizer.token_to_id(character) for character in "Ġinferencer"]
    steps = viz.merge_steps(symbols, merges)
    assert steps[0].symbols == tuple(symbols)
    assert [tokenizer.token_bytes(id) for id in steps[-1].after] == [b" inf", b"eren", b"cer"]
    for step, following in zip(steps, steps[1:]):
        assert step.after == following.symbols
    for step in steps:
        pair = step.symbols[step.place:step.place + 2]
        assert merges[pair] == (step.rank, step.merged)
        assert step.rank == min(merges[p][0] for p in zip(step.symbols, step.symbols[1:])
                                if p in merges)
        assert len({rank for rank, _ in step.candidates}) == len(step.candidates)


def test_a_merge_step_shows_the_pair_its_rank_and_the_result():
    vocabulary = Vocabulary({"a": 0, "b": 1, "aa": 2, "ab": 3},
                            {(0, 0): (9, 2), (0, 1): (4, 3)})
    words = viz.merge_stepper("aab", Tokenizer(vocabulary)).words
    assert 'merge 1 of 1: "a" + "b" makes "ab". Its rank, 4, is the lowest here.' in words
    assert "  before: a | a (chosen) | b (chosen)\n  after: a | ab (new)" in words
    assert ('  pairs that could merge: "a" + "b" rank 4; "a" + "a" rank 9\n  id of the new '
            'symbol: 3' in words)
    assert "  tokens: a | ab\n  ids: 0 | 3" in words


def test_a_whole_word_vocabulary_and_a_repeated_piece():
    tokens = {"a": 0, "b": 1, "ab": 2, "Ġ": 3, "Ġab": 4}
    whole = Tokenizer(Vocabulary(tokens, {(0, 1): (0, 2)}, ignore_merges=True))
    assert "Piece 2 of 3 is a token as a whole" in viz.merge_stepper("ba ab ab", whole).words
    merging = viz.merge_stepper("ba ab ab",
                                Tokenizer(Vocabulary(tokens, {(0, 1): (0, 2)}))).words
    assert merging.count("merge 1 of 1") == 1 and "  ids: 1 | 0 | 3 | 2 | 3 | 2" in merging


def test_a_wrong_encode_piece_is_not_drawn(monkeypatch):
    monkeypatch.setattr("gearworks.viz.tokens.encode_piece",
                        lambda symbols, merges: list(symbols))
    with pytest.raises(FigureError, match="check `encode_piece` first"):
        viz.merge_steps([0, 1], {(0, 1): (0, 2)})


def test_token_borders_show_ids_and_bytes(tokenizer):
    text = "2nd café\n中 <|im_end|>"
    figure = viz.token_borders(text, {"one": tokenizer, "two": tokenizer})
    _, (trace,) = parse(figure.html)
    ids = tokenizer.encode(text, parse_special=False)
    for lane in trace["steps"][0]["lanes"]:
        notes = [trace["pool"][place]["note"] for place in lane["cells"]]
        assert [int(re.search(r"id (\d+)", note)[1]) for note in notes] == ids
        assert (bytes.fromhex("".join(note.split("bytes ")[1] for note in notes))
                == text.encode("utf-8"))
    assert f"({len(ids)} tokens)" in figure.words and "é" in figure.words
    assert "21 characters, 24 bytes" in figure.words


# --- attention


@pytest.mark.parametrize("family, settings",
                         [("Llama", {"num_attention_heads": 6, "num_key_value_heads": 2}),
                          ("Mistral", {"sliding_window": 9}),
                          ("Gemma3",
                           {"layer_types": ["full_attention", "sliding_attention",
                                            "full_attention"], "sliding_window": 5}),
                          ("GPT2", {}), ("DeepseekV3", {})])
def test_attention_weights_are_those_of_hugging_face(tiny_model, family, settings):
    import torch
    hf, folder = tiny_model(family, 5, attn_implementation="eager", **settings)
    ids = np.random.default_rng(5).integers(3, 211, 70)    # more tokens than a block of queries
    with torch.no_grad():
        expected = hf(torch.tensor(ids)[None], output_attentions=True).attentions
    found = viz.attention_weights(Model.load(folder), ids)
    assert found.shape[2:] == (70, 70) and found.dtype == np.float32
    np.testing.assert_allclose(found, torch.cat(expected).numpy(), atol=1e-5)


def test_a_recording_cache_changes_nothing_and_counts_on(tiny_llama):
    model = Model.load(tiny_llama(6)[1])
    ids = np.random.default_rng(6).integers(3, 211, 9)
    recording, plain = viz.RecordingCache(model.config, 9), model.new_cache(9)
    for start, end in ((0, 7), (7, 9)):
        logits = [model.forward(ids[start:end], np.arange(start, end), cache)
                  for cache in (recording, plain)]
        np.testing.assert_array_equal(*logits)
    assert [weights.shape for weights in recording.weights] == [(6, 7, 7)] * 3 + [(6, 2, 9)] * 3
    assert [queries.shape for queries in recording.queries] == [(7, 6, 8)] * 3 + [(2, 6, 8)] * 3
    np.testing.assert_allclose(recording.weights[3],
                               viz.attention_weights(model, ids)[0, :, 7:], atol=1e-6)


def explored(weights: np.ndarray) -> tuple[dict, np.ndarray]:
    _, data = parse(viz.attention_explorer([f"t{i}" for i in range(weights.shape[-1])],
                                           weights).html)
    return data, np.frombuffer(urlsafe_b64decode(data["weights"]), np.uint8) / 255


def test_the_explorer_holds_the_weights_that_were_given():
    weights = random_weights(7)
    data, shown = explored(weights)
    assert data["causal"] and (data["layers"], data["heads"]) == (3, 2)
    np.testing.assert_allclose(shown, weights[:, :, *np.tril_indices(7)].ravel(),
                               atol=0.5001 / 255)
    both_ways = np.ascontiguousarray(weights[..., ::-1, ::-1]) / 2 + weights / 2
    data, shown = explored(both_ways)
    assert not data["causal"]
    np.testing.assert_allclose(shown, both_ways.ravel(), atol=0.5001 / 255)


def test_the_explorer_knows_the_heads_apart():
    first, itself = np.zeros((4, 4)), np.eye(4)
    first[:, 0] = 1
    before, others = np.eye(4, k=-1), np.zeros((4, 4))
    before[0, 0] = others[0, 0] = others[1, 0] = others[2, 0] = others[3, 1] = 1
    weights = np.stack([[first, before], [itself, others]])
    data, _ = explored(weights)
    assert data["shares"] == [[100, 0, 0, 0], [0, 100, 0, 0], [0, 0, 100, 0], [50, 0, 0, 50]]
    assert [place[1:] for place in data["most"]] == [[0, 0], [0, 1], [1, 0], [1, 1]]
    words = viz.attention_explorer(["a", "b", "c", "d"], weights).words
    assert ("Layer 1: the first token 0 to 50 %; the token before 0 %; itself 0 to 100 %; "
            "others 0 to 50 %" in words)
    assert "Most at the token before: layer 0, head 1, 100 %" in words


def test_a_small_model_over_sixteen_tokens_fits():
    assert len(viz.attention_explorer(["token"] * 16, random_weights(16, 30, 9)).html) > 60_000
    with pytest.raises(FigureError, match="100,000 is the limit"):
        viz.attention_explorer(["token"] * 20, random_weights(20, 30, 9))


@pytest.mark.parametrize(
    "count, weights, why",
    [(4, random_weights(5), "for 4 tokens"), (5, random_weights(5)[0], "for 5 tokens"),
     (5, random_weights(5).swapaxes(-1, -2), "rows that add up to 1"),
     (5, random_weights(5) * np.nan, "add up to 1"),
     (2, random_weights(2), "there are 2 tokens"), (0, np.zeros((1, 1, 0, 0)), "for 0 tokens")])
def test_impossible_weights_are_refused(count, weights, why):
    with pytest.raises(FigureError, match=why):
        viz.attention_explorer(["t"] * count, weights)


# --- rotation


def test_dials_and_scores_are_what_rope_says():
    _, data = parse(viz.rope_rotation(QUERY, KEY, rope_frequencies(64, 1e5), pairs=3,
                                      positions=20).html)
    q, k = (x[:32].astype(np.float64) + 1j * x[32:] for x in (QUERY, KEY))
    angles = np.arange(20)[:, None] * 1e5 ** (-np.arange(32) / 32)
    q, k = q * np.exp(1j * angles), k * np.exp(1j * angles)
    np.testing.assert_allclose(data["scores"], (q @ k.conj().T).real / 8, atol=2e-5)
    assert [dial["pair"] for dial in data["dials"]] == [0, 16, 31]
    for dial in data["dials"]:
        turned = q[:, dial["pair"]]
        np.testing.assert_allclose(dial["points"], np.stack([turned.real, turned.imag], 1),
                                   atol=1e-4)
        assert dial["frequency"] == pytest.approx(1e5 ** (-dial["pair"] / 32))


def test_a_rotation_that_is_none_is_found_out(monkeypatch):
    frequencies = rope_frequencies(64, 1e5)
    assert ("no more than float32 rounds away"
            in viz.rope_rotation(QUERY, KEY, frequencies).words)
    monkeypatch.setattr("gearworks.viz.rotation.apply_rope", lambda x, cos, sin: x * cos)
    assert "no matter of distance alone" in viz.rope_rotation(QUERY, KEY, frequencies).words


@pytest.mark.parametrize("settings",
                         [{"q": QUERY[:32]}, {"k": KEY[None]}, {"frequencies": np.ones(64)},
                          {"pairs": 0}, {"pairs": 33}, {"positions": 1}, {"q": QUERY * np.nan}])
def test_an_impossible_rotation_is_refused(settings):
    with pytest.raises(FigureError):
        viz.rope_rotation(**{"q": QUERY, "k": KEY, "frequencies": rope_frequencies(64, 1e5)}
                          | settings)


# --- the cache


def test_growth_is_what_was_counted(figures):
    _, traces = parse(figures["cache_growth"].html)
    for trace, curves in zip(traces, (CACHE, FLOPS), strict=True):
        assert ([line["points"] for line in trace["lines"]]
                == [[*map(list, zip(LENGTHS, c))] for c in curves.values()])
        for i, step in enumerate(trace["steps"]):
            assert [(p["label"], p["x"], p["y"]) for p in step["points"]] == [
                (name, LENGTHS[i], curve[i]) for name, curve in curves.items()]
    assert figures["cache_growth"].words.count(" times as much as “with”.") == 3
    assert "Tokens 1: All the same." in figures["cache_growth"].words
    assert ("“MHA” 32 times, “GQA” 8 times as much as “</script>"
            in figures["cache_growth"].words)


@pytest.mark.parametrize("lengths, curves",
                         [([], {"a": []}), ([2, 1], {"a": [1, 2]}), ([1, 2], {"a": [1]}),
                          ([1], {}), ([1], {str(i): [1] for i in range(5)}), ([1], {"a": [0]}),
                          ([1], {"a": [float("inf")]})])
def test_an_impossible_growth_is_refused(lengths, curves):
    with pytest.raises(FigureError):
        viz.cache_growth(lengths, curves, curves)


# --- number formats


TORCH = {"fp16": "float16", "bf16": "bfloat16", "fp8 e4m3": "float8_e4m3fn",
         "fp8 e5m2": "float8_e5m2"}
FORMATS = {known.name: known for known in viz.FLOAT_FORMATS}


def awkward_numbers() -> np.ndarray:
    """Float32 numbers on, between and beside those of the small formats,
    and everything special."""
    rng = np.random.default_rng(8)
    neighbours = []
    for name in TORCH:
        largest = 2 ** (FORMATS[name].bits - 1) - 1
        codes = np.unique([1, 2, 3, 7, 8, 9, *rng.integers(0, largest, 40)])
        numbers = np.array([[FORMATS[name].decode(int(code)),
                             FORMATS[name].decode(int(code) + 1)] for code in codes])
        numbers = numbers[np.isfinite(numbers).all(1)]
        halfway = numbers.mean(1).astype(np.float32)  # a tie, unless float32 has no room for it
        neighbours += [numbers[:, 0].astype(np.float32), halfway,
                       np.nextafter(halfway, np.float32(0)),
                       np.nextafter(halfway, np.float32(np.inf))]
    special = [0, 448, 464, 465, 480, 57344, 61439, 61440, 65504, 65519, 65520, 3.3895e38,
               3.3961e38, 3.4028235e38, 1e-45, 1.1754942e-38, np.inf, np.nan]
    numbers = np.concatenate([*neighbours, np.float32(special),
                              rng.normal(0, 1, 40).astype(np.float32),
                              np.exp(rng.uniform(-100, 88, 60)).astype(np.float32)])
    return np.concatenate([numbers, -numbers])


@pytest.mark.parametrize("name", TORCH)
def test_every_code_means_what_torch_says(name):
    import torch
    width, known = FORMATS[name].bits, FORMATS[name]
    codes = np.arange(2 ** width).astype(f"uint{width}")
    expected = torch.from_numpy(codes).view(getattr(torch,
                                                    TORCH[name])).to(torch.float64).numpy()
    np.testing.assert_array_equal([known.decode(int(code)) for code in codes], expected)
    numbers = expected[np.isfinite(expected)]
    assert [known.encode(float(x)) for x in numbers] == codes[np.isfinite(expected)].tolist()
    assert known.largest == numbers.max() and known.smallest == numbers[numbers > 0].min()


@pytest.mark.parametrize("name", TORCH)
def test_rounding_is_torchs(name):
    import torch
    numbers = awkward_numbers()
    expected = torch.from_numpy(numbers).to(getattr(torch,
                                                    TORCH[name])).to(torch.float64).numpy()
    found = np.array([FORMATS[name].decode(FORMATS[name].encode(float(x))) for x in numbers])
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found)[found == found],
                                  np.signbit(expected)[found == found])


def test_float64_is_rounded_once():
    """What lies a little above a tie would be one after a first rounding to float32."""
    rng = np.random.default_rng(9)
    numbers = np.concatenate([rng.normal(size=200), 1 + 2.0 ** -11 + 2.0 ** -np.arange(25, 50),
                              [1e-45, 7e-46, 1e39]])
    for name, dtype in (("fp32", np.float32), ("fp16", np.float16)):
        with np.errstate(over="ignore"):
            expected = numbers.astype(dtype).astype(np.float64)
        np.testing.assert_array_equal([FORMATS[name].decode(FORMATS[name].encode(x))
                                       for x in numbers], expected)


@pytest.mark.parametrize("block", [BLOCK[:31], BLOCK[None], BLOCK * np.inf])
def test_a_block_that_is_none_is_refused(block):
    with pytest.raises(FigureError):
        viz.number_formats(block)


@pytest.mark.parametrize("kind", ["attention", "distribution", "formats", "movie", "rotation"])
def test_the_style_of_a_figure_meets_no_figure_of_another_kind(kind):
    """A style counts on the whole page: each selector is of figures of its own kind."""
    no_rules = r"/\*.*?\*/|@keyframes[^{]+\{(?:[^{}]+\{[^{}]*\})*\s*\}"
    style = re.sub(no_rules, "", _resource(f"{kind}.css"), flags=re.DOTALL)
    selectors = [each.strip() for head in re.findall(r"([^{};]+)\{", style)
                 if not head.lstrip().startswith("@")
                 for each in re.sub(r"\([^()]*\)", "", head).split(",")]
    assert len(selectors) > 5
    assert [each for each in selectors if f"gw-{kind}" not in each] == []
