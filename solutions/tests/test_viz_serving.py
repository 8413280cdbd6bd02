"""Figures of serving, without a browser: what they show is what the engine did. About 8 s."""

import html
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_viz import HOSTILE, parse

from gearworks import viz
from gearworks.errors import ModelError
from gearworks.serving.engine import LLMEngine
from gearworks.serving.record import Row, StepRecord
from gearworks.serving.request import Request
from gearworks.serving.static import Arrival, run, static_steps
from gearworks.viz import FigureError
from gearworks.viz.blocks import _pool_states
from gearworks.viz.moments import labels, moments

BLOCKS, SIZE, BUDGET = 14, 8, 24
# (step, prompt, answer, n); those whose prompt is negative share a prefix of two blocks
BUSY = [(0, -5, 40, 1), (0, -3, 35, 1), (1, -2, 30, 1), (3, 11, 22, 1), (4, 9, 15, 1),
        (6, 15, 6, 1), (6, -7, 11, 1), (30, 6, 8, 2), (34, 12, 8, 1)]
ARRIVALS = [Arrival(f"r{i}", *sizes) for i, sizes in enumerate([
    (0, 12, 9), (0, 40, 22), (0, 18, 4), (1, 8, 12), (2, 22, 26), (3, 14, 6), (5, 30, 10),
    (8, 10, 15), (12, 16, 5), (15, 26, 9)])]
SLOTS, WIDTH = 4, 48


def prompt(rng, tokens: int) -> list[int]:
    shared = [*range(50, 50 + 2 * SIZE)] if tokens < 0 else []
    return shared + [int(id) for id in rng.integers(3, 200, abs(tokens))]


@pytest.fixture(scope="session")
def busy(tiny):  # noqa: F811
    """An engine that had too few blocks, and its records."""
    rng = np.random.default_rng(5)
    engine = LLMEngine(tiny, block_size=SIZE, num_blocks=BLOCKS, max_num_seqs=5,
                       max_num_batched_tokens=BUDGET)
    return run(engine, [(step, Request(prompt(rng, tokens), max_tokens=answer, n=n,
                                       ignore_eos=True, id=f"{i:032x}"))
                        for i, (step, tokens, answer, n) in enumerate(BUSY)])


@pytest.fixture(scope="session")
def guessing(tiny):  # noqa: F811
    rng = np.random.default_rng(6)
    engine = LLMEngine(tiny, block_size=SIZE, num_blocks=60, max_num_seqs=3,
                       max_num_batched_tokens=BUDGET, speculative_tokens=3)
    return run(engine, [(0, Request(prompt(rng, 9), max_tokens=40, ignore_eos=True, id="chat")),
                        (2, Request([5, 6, 7, 8] * 4, max_tokens=30, ignore_eos=True, id="b"))])


def answer_all(language_model, arrivals, slots=SLOTS, width=WIDTH, **options):
    rng = np.random.default_rng(7)
    engine = LLMEngine(language_model, block_size=16, num_blocks=60, max_num_seqs=slots,
                       max_num_batched_tokens=width, **options)
    return run(engine, [(one.step, Request(prompt(rng, one.prompt), max_tokens=one.answer,
                                           ignore_eos=True, id=one.name)) for one in arrivals])


@pytest.fixture(scope="session")
def answered(tiny):  # noqa: F811
    return answer_all(tiny, ARRIVALS)


@pytest.fixture(scope="session")
def serving_figures(busy, guessing, answered) -> dict[str, viz.Figure]:
    """One of each, with a text that would break out of careless HTML."""
    names = {f"{i:032x}": HOSTILE if i == 2 else f"request {i}" for i in range(len(BUSY))}
    return {"batch_timeline": viz.batch_timeline(busy, names, budget=BUDGET, title=HOSTILE),
            "guessing": viz.batch_timeline(guessing, {"chat": HOSTILE}),
            "page_table": viz.page_table(busy, BLOCKS, SIZE, {f"{2:032x}": HOSTILE}),
            "static_and_continuous": viz.static_and_continuous(
                ARRIVALS, answered, SLOTS, WIDTH,
                {one.name: HOSTILE if i == 2 else "ABCDEFGHIJ"[i]
                 for i, one in enumerate(ARRIVALS)})}


NAMES = ["batch_timeline", "guessing", "page_table", "static_and_continuous"]


@pytest.mark.parametrize("name", NAMES)
def test_the_html_stands_alone(serving_figures, name):
    figure = serving_figures[name]
    page, data = parse(figure.html)
    assert page.tags[0] == "div" and not {"link", "img", "iframe", "b"} & {*page.tags}
    outside = re.sub(r'"http://www\.w3\.org/[^"]*"', "", figure.html)
    assert not re.search(r"https?:|url\(|@import|[\"'(=]\s*//", outside, re.I)
    assert dict(page.attributes)["role"] == "group" and dict(page.attributes)["aria-label"]
    assert html.escape(figure.words, quote=False) in figure.html
    assert figure.html.count("</script>") == 2 and HOSTILE in figure.words
    assert data[0]["schema"] == "gearworks.trace/2"


# --- what the records tell


def test_every_token_is_somebodys_moment(busy, guessing, answered):
    for records in (busy, guessing, answered):
        told = moments(records)
        for step, record in enumerate(records):
            now = [ones[step] for ones in told.values()]
            assert {one.row for one in now if one.row} == {*record.rows}
            assert sum(one.state == "waiting" for one in now) + sum(
                one.state == "preempted" for one in now) == record.waiting
            assert sum(one.began is not None for one in now) == len(record.admitted)
        assert all(sum(one.ended for one in ones) == 1 for ones in told.values())


def test_waiting_begins_when_the_request_came(busy):
    """Without priorities, who waits is no guess."""
    told = [*moments(busy).items()]
    for i, (step, *_) in enumerate(BUSY):
        ones = next(ones for name, ones in told if name == f"{i:032x}/0")
        there = next(place for place, one in enumerate(ones) if one.state)
        assert there == step, i                # there was work in every step of this run


def test_what_is_computed_again_and_which_guesses_held(busy, guessing):
    preempted = {name for record in busy for name in record.preempted}
    again = {name for name, ones in moments(busy).items()
             if any(one.state == "again" for one in ones)}
    assert again == preempted != set()
    held = [one for ones in moments(guessing).values() for one in ones if one.held is not None]
    assert 0 < sum(one.held for one in held) < sum(one.row.guesses for one in held)
    for ones in moments(guessing).values():
        rows = [one for one in ones if one.row]
        for one, then in zip(rows, rows[1:]):
            assert then.row.start == one.row.start + one.row.count - (
                one.row.guesses - (one.held or 0))


def test_an_aborted_answer_is_gone_and_a_pause_is_none():
    row = Row("a/0", 0, 4, 0, True, (0,))
    records = [StepRecord(0, 0, 0, (row, replace(row, name="b/0"))),
               StepRecord(1, 0, 0, (replace(row, name="b/0", start=4),)),
               StepRecord(2, 0, 0, (replace(row, start=4),))]
    told = moments(records)
    assert [one.state for one in told["a/0"]] == ["prompt", "idle", "prompt"]
    assert [one.state for one in told["b/0"]] == ["prompt", "prompt", ""]


@pytest.mark.parametrize("draw", [lambda: viz.batch_timeline([]),
                                  lambda: viz.page_table([], 4, 4)])
def test_no_records_are_refused(draw):
    with pytest.raises(FigureError, match="no records"):
        draw()


def test_names():
    assert labels(["chat/0", "f" * 32 + "/0", "f" * 32 + "/1"], {"f" * 32: "poem"}) == {
        "chat/0": "chat", "f" * 32 + "/0": "poem/0", "f" * 32 + "/1": "poem/1"}
    assert [*labels([f"{i:032x}/0" for i in range(28)]).values()][24:] == ["Y", "Z", "A1", "B1"]


# --- the timeline


def test_the_timeline_shows_every_row(busy):
    _, (trace,) = parse(viz.batch_timeline(busy, budget=BUDGET).html)
    lanes = {lane["label"]: [trace["pool"][place] for place in lane["cells"]]
             for lane in trace["timeline"]}
    assert len(trace["steps"]) == len(busy) + 1 and trace["first"] == len(busy)
    called = labels([*moments(busy)])
    for step, record in enumerate(busy):
        for row in record.rows:
            cell = lanes[called[row.name]][step]
            assert cell["kind"] in (("prompt", "again") if row.prompt else
                                    ("decode", "finished"))
            assert not row.prompt or cell["text"].split()[0] == str(row.count)
            assert ("✓" in cell.get("text", "")) == (row.name in record.finished)
        for name in record.preempted:
            assert lanes[called[name]][step]["kind"] == "preempted"
        load = lanes["all tokens"][step]
        assert load["note"] == f"{record.tokens} of {BUDGET}"
        assert load.get("size", 1) == pytest.approx(record.tokens / BUDGET)


def test_its_words_say_what_happened(busy):
    words = viz.batch_timeline(busy, budget=BUDGET).words.splitlines()
    assert words[1] == "Step 0: 24 of 24 tokens: 24 of prompts. A begins. B begins."
    assert words[2] == ("Step 1: 24 of 24 tokens: 24 of prompts. C begins with 8 cached "
                        "tokens.")
    when = next(step for step, record in enumerate(busy) if record.preempted)
    assert "D gives up its blocks and waits again." in words[1 + when]
    assert "D begins again." in viz.batch_timeline(busy).words
    assert "  preemptions: 2" in words
    assert any(line.startswith("  D: nothing, for 3 steps | 11: a part of its prompt, 0 to 10 |"
                               " its next token, for 9 steps | ×: preempted | waits")
               for line in words)


def test_guesses_are_told(guessing):
    words = viz.batch_timeline(guessing).words
    assert re.search(r"\d: its next token and guesses, \d guess(es)?, \d right", words)
    assert re.search(r"of them guesses: \d+, \d+ of them right", words)


def test_a_long_run_is_shown_around_the_place_that_matters():
    rows = [StepRecord(1000 + i, 0, 0, tuple(Row(f"{j}/0", i, 1, 0, False, ()) for j in
                                             range(30))) for i in range(300)]
    figure = viz.batch_timeline(rows, first=200)
    _, (trace,) = parse(figure.html)
    assert trace["steps"][int(trace["first"])]["label"] == "1200"
    assert len(trace["timeline"]) == 25 and len(trace["steps"]) == 65
    assert "sequences not shown: 6" in figure.words and "steps: 64 of 300" in figure.words
    for bad in (300, -1):
        with pytest.raises(FigureError, match=f"no record {bad}"):
            viz.batch_timeline(rows, first=bad)


# --- where runs part


def test_equal_runs_do_not_part(busy):
    slower = [replace(record, seconds=9.0, rows=tuple(replace(row, blocks=()) for row in
                                                      record.rows)) for record in busy]
    assert viz.first_divergence(busy, slower) is None


A = Row("a/0", 0, 16, 0, True, (0,))
STEP = StepRecord(0, 0, 0, (A,), admitted=(("a/0", 0),), finished=("a/0",), preempted=("b/0",))


@pytest.mark.parametrize("other, sentence", [
    (replace(STEP, rows=(replace(A, count=8),)),
     "a: 16 tokens from token 0 in this run, 8 tokens from token 0 in the other."),
    (replace(STEP, rows=(replace(A, guesses=2),)),
     "a: 16 tokens from token 0 in this run, 16 tokens from token 0, of them 2 guesses, in the "
     "other."),
    (replace(STEP, rows=()), "a: 16 tokens from token 0 in this run, no token in the other."),
    (replace(STEP, rows=(A, replace(A, name="c/0"))),
     "c: no token in this run, 16 tokens from token 0 in the other."),
    (replace(STEP, admitted=(("a/0", 1),)),
     "a: admitted with 0 cached tokens in this run, admitted with 1 cached token in the "
     "other."),
    (replace(STEP, preempted=()), "b: preempted in this run, not preempted in the other."),
    (replace(STEP, finished=()), "a: done in this run, not done in the other."),
    (None, "There is nothing left to do in the other, and this run goes on.")])
def test_the_first_difference_in_a_sentence(other, sentence):
    same = StepRecord(0, 0, 0, (replace(A, name="z/0"),))
    found = viz.first_divergence([same, STEP], [same] + [other] * (other is not None))
    assert found == (1, sentence)
    figure = viz.batch_timeline([same, STEP], first=found)
    _, (trace,) = parse(figure.html)
    assert trace["first"] == 1
    assert trace["steps"][1]["caption"].startswith(f"The runs part here. {sentence}")


def test_a_real_divergence_opens_the_timeline(tiny):  # noqa: F811
    """A smaller budget is another plan."""
    here, there = (answer_all(tiny, ARRIVALS[:4], width=width) for width in (48, 32))
    found = viz.first_divergence(here, there, runs=("yours", "the reference"))
    assert found.step == 0 and "in yours" in found.sentence
    assert viz.first_divergence(here, here[:7]).step == 7
    assert "part here" in viz.batch_timeline(here[:7], first=viz.first_divergence(
        here[:7], here)).words


# --- blocks


def test_the_pool_is_as_the_engine_had_it(tiny):  # noqa: F811
    """Step by step against the engine's own pool: who uses what, what is kept or empty."""
    class Spying(LLMEngine):
        def forward(self, plan):
            seen.append(([*self.pool.references], {*self.pool.kept}))
            return super().forward(plan)

    rng = np.random.default_rng(5)
    seen: list = []
    engine = Spying(tiny, block_size=SIZE, num_blocks=BLOCKS, max_num_seqs=5,
                    max_num_batched_tokens=BUDGET)
    records = run(engine, [(step, Request(prompt(rng, tokens), max_tokens=answer, n=n,
                                          ignore_eos=True, id=str(i)))
                           for i, (step, tokens, answer, n) in enumerate(BUSY)])
    states = _pool_states(records, moments(records), SIZE)
    assert any(max(references) > 1 for references, _ in seen)
    for record, state, (references, kept) in zip(records, states, seen, strict=True):
        assert [len(state.users.get(block, ())) for block in range(BLOCKS)] == references
        # which of two equal blocks is kept is the engine's secret; how many, it says
        assert len(state.kept) == len(kept) == record.blocks_kept
    assert sum(state.kept == kept for state, (_, kept) in zip(states, seen)) > 0.8 * len(seen)


def test_the_page_table_in_words_and_levels():
    records = [StepRecord(0, 0, 0, (Row("a/0", 0, 5, 0, True, (3, 1)),
                                    Row("b/0", 4, 4, 0, True, (3, 0))), blocks_used=3,
                          blocks_empty=2, admitted=(("a/0", 0), ("b/0", 4)),
                          finished=("a/0",)),
               StepRecord(1, 0, 0, (Row("b/0", 8, 1, 0, False, (3, 0, 4)),), blocks_used=3,
                          blocks_kept=0, blocks_empty=2)]
    figure = viz.page_table(records, 5, 4)
    assert figure.words.splitlines()[2:5] == [
        "  a (5 tokens): 3 | 1", "  b (8 tokens): 3 | 0",
        "  blocks: 3 in use, 0 kept for a prefix, 2 empty"]
    _, (trace,) = parse(figure.html)
    pool = [[(cell["text"], cell.get("kind", ""), cell.get("size", 1), cell.get("emphasis", ""))
             for cell in (trace["pool"][place] for place in step["lanes"][0]["cells"])]
            for step in trace["steps"]]
    assert pool[0] == [("0\nb", "used", 1, "new"), ("1\na", "used", 0.25, "new"),
                       ("2", "", 0, "faded"), ("3\na +1", "shared", 1, "new"),
                       ("4", "", 0, "faded")]
    assert pool[1] == [("0\nb", "used", 1, ""), ("1", "", 0, "faded"), ("2", "", 0, "faded"),
                       ("3\nb", "used", 1, ""), ("4\nb", "used", 0.25, "new")]
    with pytest.raises(FigureError, match="block 4 is in use, and the pool has 4"):
        viz.page_table(records, 4, 4)


def test_large_pools_and_long_runs_fit():
    """What a learner may ask for: thousands of blocks, hundreds of steps."""
    table = [tuple(range(6 * i, 6 * i + 6)) for i in range(16)]
    records = [StepRecord(i, 0, 0, tuple(Row(f"{j:032x}/0", i, 1, 0, False, table[j])
                                         for j in range(16))) for i in range(200)]
    _, (trace,) = parse(viz.page_table(records, 5000, 64, first=150).html)
    assert len(trace["steps"][0]["lanes"][0]["cells"]) == 96
    assert trace["steps"][int(trace["first"])]["label"] == "150"


def test_long_tables_of_blocks_fit():
    """Where a few long sequences share their beginning; fewer steps are shown then."""
    own = [(*range(4), *range(4 + 32 * i, 36 + 32 * i)) for i in range(4)]
    records = [StepRecord(step, 0, 0, tuple(Row(f"story {i}/0", 272 + step % 8, 1, 0, False,
                                                own[i]) for i in range(4)),
                          waiting=6, blocks_used=132, blocks_empty=5) for step in range(30)]
    _, (trace,) = parse(viz.page_table(records, 137, 8, first=20).html)
    assert trace["steps"][int(trace["first"])]["label"] == "20"


# --- static and continuous


def test_a_static_batch_by_hand():
    """Two prompts of 2 and 5 tokens, answers of 3 and 1: padding on the left, in two steps."""
    steps = static_steps([Arrival("a", 0, 2, 3), Arrival("b", 0, 5, 1), Arrival("c", 1, 1, 1)],
                         2, 8)
    assert [(step.number, [(row.name, row.padding, row.prompt, row.answer, row.done)
                           for row in step.rows], step.waiting) for step in steps] == [
        (0, [("a", 3, 1, False, False), ("b", 0, 4, False, False)], ()),
        (1, [("a", 0, 1, True, False), ("b", 0, 1, True, True)], ("c",)),
        (2, [("a", 0, 0, True, False), ("b", 0, 0, False, True)], ("c",)),
        (3, [("a", 0, 0, True, True), ("b", 0, 0, False, True)], ("c",)),
        (4, [("c", 0, 1, True, True)], ())]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 40), st.integers(1, 30)),
                min_size=1, max_size=12), st.integers(1, 6), st.integers(6, 64))
@settings(deadline=None, max_examples=60)
def test_static_batches_compute_everything_once(sizes, batch_size, width):
    arrivals = [Arrival(str(i), *each) for i, each in enumerate(sizes)]
    steps = static_steps(arrivals, batch_size, width)
    rows = [row for step in steps for row in step.rows]
    for one in arrivals:
        mine = [row for row in rows if row.name == one.name]
        assert sum(row.prompt for row in mine) == one.prompt
        assert sum(row.answer for row in mine) == one.answer
    assert all(len(step.rows) <= batch_size and sum(row.slots for row in step.rows) <= width
               for step in steps)
    needed = sum(one.prompt + one.answer - 1 for one in arrivals)
    assert sum(row.slots - row.wasted for row in rows) == needed
    numbers = [step.number for step in steps]
    assert numbers == sorted({*numbers})


@pytest.mark.parametrize("sizes, batch_size", [((0, 0, 1), 1), ((0, 1, 0), 1), ((-1, 1, 1), 1),
                                               ((0, 1, 1), 0), ((0, 1, 1), 9)])
def test_senseless_batches_are_refused(sizes, batch_size):
    with pytest.raises(ModelError, match="cannot form static batches"):
        static_steps([Arrival("a", *sizes)], batch_size, 8)


def test_both_counts_are_right(answered):
    counts = viz.batching_counts(ARRIVALS, answered, SLOTS, WIDTH)
    needed = sum(one.prompt + one.answer - 1 for one in ARRIVALS)
    for one in counts.values():
        assert one.slots - one.wasted == needed
        assert len(one.first_token) == len(ARRIVALS) and min(one.first_token) >= 1
    assert counts["continuous"].wasted == 0
    assert counts["continuous"].slots == sum(record.tokens for record in answered)
    assert counts["continuous"].steps == len(answered) < counts["static"].steps
    assert counts["continuous"].mean < counts["static"].mean
    words = viz.static_and_continuous(ARRIVALS, answered, SLOTS, WIDTH).words
    assert (f"  slots computed: static {counts['static'].slots} · continuous {needed}"
            in words.splitlines())


def test_guesses_and_second_tries_are_waste(tiny):  # noqa: F811
    arrivals = [Arrival("a", 0, 12, 30), Arrival("b", 0, 9, 30), Arrival("c", 2, 9, 25)]
    needed = sum(one.prompt + one.answer - 1 for one in arrivals)
    rng = np.random.default_rng(8)
    for options in ({"speculative_tokens": 4, "num_blocks": 30}, {"num_blocks": 10}):
        engine = LLMEngine(tiny, block_size=SIZE, max_num_seqs=3, max_num_batched_tokens=WIDTH,
                           enable_prefix_caching=False, **options)
        records = run(engine, [(one.step, Request(prompt(rng, one.prompt), ignore_eos=True,
                                                  max_tokens=one.answer, id=one.name))
                               for one in arrivals])
        count = viz.batching_counts(arrivals, records, 3, WIDTH)["continuous"]
        assert count.slots - count.wasted == needed and count.wasted > 0, options


def test_both_timelines_play_in_step(answered):
    _, (trace,) = parse(viz.static_and_continuous(ARRIVALS, answered, SLOTS, WIDTH).html)
    lanes = {(lane["group"], lane["label"]): [trace["pool"][place] for place in lane["cells"]]
             for lane in trace["timeline"]}
    assert len(lanes) == 2 * (SLOTS + 1)
    assert len({len(cells) for cells in lanes.values()}) == 1
    for group in ("Static batching", "Continuous batching"):
        cells = [cell for (where, label), row in lanes.items() for cell in row
                 if where == group and label != "waiting"]
        begun = sorted(cell["text"].split()[0] for cell in cells
                       if cell.get("text", "").startswith("r"))
        assert begun == sorted(one.name for one in ARRIVALS)
        assert sum("✓" in cell.get("text", "") for cell in cells) == len(ARRIVALS)
    drawn = sum(bool(cell.get("kind")) for (group, label), row in lanes.items() for cell in row
                if group == "Continuous batching" and label != "waiting")
    assert drawn == sum(len(record.rows) for record in answered)


def test_idle_steps_are_kept_apart(tiny):  # noqa: F811
    """The second request comes long after the first is done."""
    arrivals = [Arrival("a", 0, 5, 3), Arrival("b", 20, 5, 3)]
    records = answer_all(tiny, arrivals)
    counts = viz.batching_counts(arrivals, records, SLOTS, WIDTH)
    assert {(one.steps, one.first_token) for one in counts.values()} == {(6, (1, 1))}
    _, (trace,) = parse(viz.static_and_continuous(arrivals, records, SLOTS, WIDTH).html)
    assert len(trace["steps"]) == 23 + 1
    assert trace["steps"][10]["caption"] == ("Static: nothing to do. Continuous: nothing to "
                                             "do.")


def test_other_peoples_records_are_refused(answered, busy):
    for records in (busy, answered[1:], answered[:-1]):
        with pytest.raises(FigureError, match="cannot compare these runs"):
            viz.static_and_continuous(ARRIVALS, records, SLOTS, WIDTH)
    with pytest.raises(FigureError, match="cannot compare these runs"):
        viz.static_and_continuous(ARRIVALS[1:], answered, SLOTS, WIDTH)


def test_a_comparison_that_is_too_long_is_counted_only(tiny):  # noqa: F811
    arrivals = [Arrival("a", 0, 5, 120), Arrival("b", 0, 5, 3)]
    records = answer_all(tiny, arrivals)
    with pytest.raises(FigureError, match="it has 120 steps"):
        viz.static_and_continuous(arrivals, records, 2, WIDTH)
    assert viz.batching_counts(arrivals, records, 2, WIDTH)["static"].wasted == 117
