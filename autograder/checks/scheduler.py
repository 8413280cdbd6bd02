"""Checks of the scheduler's methods, and the engine that many checks of serving run."""

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Ids
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np

from autograder.checking import CheckFailure, check, expect, expect_close, expect_equal
from autograder.checking.examples import docstring_example
from autograder.checks.model import Truth, truth
from gearworks import viz
from gearworks.kv_cache import BlockPool
from gearworks.model import forward
from gearworks.serving.paged_cache import PagedBatch, PagedKVCache
from gearworks.serving.record import Row, StepRecord
from gearworks.serving.request import Request
from gearworks.serving.scheduler import Plan
from gearworks.serving.scheduler import Scheduler as Reference
from gearworks.serving.sequence import Sequence

ADMIT, CHUNK = "scheduler.Scheduler.admit", "scheduler.Scheduler.chunk"
ROOM = "scheduler.Scheduler.make_room"
STEPS = 400                   # more than any of these traces needs
VOCABULARY = 41               # of the tiny models

# Several texts, of which some begin alike, so few blocks that not all of them fit, and a budget
# that cuts prompts: (tokens in the prompt, tokens after it), in the order in which they come.
TEXTS = ((13, 5), (3, 9), (13, 4), (21, 2), (9, 8), (1, 3))
SIZES = {"max_num_batched_tokens": 11, "max_num_seqs": 4}


def sequence(ids: Ids[int], number: int, more: int = 3, prompt: int | None = None, n: int = 1,
             **fields: Any) -> Sequence:
    """An answer that waits for its turn. prompt: how many of `ids` are the prompt, by default
    all. more: how many tokens may follow."""
    request = Request([int(id) for id in ids[:prompt]], id=f"request-{number}", n=n)
    return Sequence(request, 0, [int(id) for id in ids], (0, number, 0), len(ids) + more,
                    **fields)


def name_of(sequence: Sequence) -> str:
    return f"{sequence.request.id}/{sequence.index}"


def expect_books(pool: BlockPool, scheduler: Reference, when: str, hint: str = "",
                 others: Ids[int] = ()) -> None:
    """Every block is free or counted once for each sequence that has it in its table.
    others: blocks that are in use for something else."""
    tables = [list(one.block_table) for one in [*scheduler.running, *scheduler.waiting]]
    tables.append(list(others))
    try:
        pool.check(tables)
    except AssertionError as error:
        raise CheckFailure(f"the pool's books to be right {when}", str(error), hint) from None


@contextmanager
def with_timeline(mine: Callable[[], Iterable[StepRecord]],
                  right: Callable[[], Iterable[StepRecord]] = list,
                  budget: int | None = None) -> Iterator[None]:
    """Let a failure in the block show the learner's run, step by step.

    mine, right: give the records of both runs, once something has failed. The figure opens
    where they part; without a right run, or where they agree so far, at the last step.
    budget: tokens of a step.
    """
    try:
        yield
    except CheckFailure as failure:
        with suppress(Exception):                # the records of wrong code may be anything
            records, others = list(mine()), list(right())
            both = min(len(records), len(others))           # one may be a step ahead
            parted = viz.first_divergence(records[:both], others[:both],
                                          runs=("your run", "the right one"))
            failure.figure = viz.batch_timeline(records, budget=budget, title="Your run",
                                                first=parted or len(records) - 1).html
        raise


class Recorder:
    """Records of a run's steps, from what a check asks the scheduler anyway."""

    def __init__(self):
        self.records: list[StepRecord] = []
        self._computed: dict[str, int] = {}

    def step(self, plan: dict[str, Any], pending: Ids[int], cached: Ids[int]) -> None:
        """plan: as `told` gives it; pending: tokens of each of its rows; cached: of each that
        was admitted."""
        admitted = tuple(zip(plan["admitted"], cached))
        self._computed |= admitted
        rows = []
        for (name, count, blocks), left in zip(plan["rows"], pending):
            start = self._computed.get(name, 0)
            rows.append(Row(name, start, count, max(0, count - left), left > 1 or not start,
                            tuple(range(blocks))))
            self._computed[name] = start + min(count, left)
        self.records.append(StepRecord(len(self.records), 0.0, 0.0, tuple(rows), admitted,
                                       tuple(plan["preempted"])))

    def finish(self, name: str) -> None:
        """An answer has ended with the last step."""
        last = self.records[-1]
        self.records[-1] = replace(last, finished=(*last.finished, name))


def served_texts(rng: np.random.Generator) -> list[list[int]]:
    """The texts of `TEXTS`: the third begins like the first, the fifth like the fourth."""
    texts = [rng.integers(0, VOCABULARY, prompt + more).tolist() for prompt, more in TEXTS]
    texts[2][:13], texts[4][:9] = texts[0][:13], texts[3][:9]
    return texts


def expect_served(case: Truth, scheduler: Reference, pool: BlockPool, texts: Ids[Ids[int]],
                  hint: str, later: int = 3) -> None:
    """Run texts through an engine: every row's logits must be Hugging Face's for that text.

    The tokens of each text are known beforehand; a step computes those that the scheduler
    names, from blocks that hold nan until they are written to. later: so many of the texts come
    a while after the others, when some of what they begin with is in blocks.
    """
    records: list[StepRecord] = []
    with with_timeline(lambda: records, budget=SIZES["max_num_batched_tokens"]):
        _expect_served(case, scheduler, pool, texts, hint, later, records)


def _expect_served(case: Truth, scheduler: Reference, pool: BlockPool, texts: Ids[Ids[int]],
                   hint: str, later: int, records: list[StepRecord]) -> None:
    right = [case.logits_of(text) for text in texts]
    memory = PagedKVCache(case.config, len(pool.references), pool.block_size)
    memory.keys.fill(np.nan)
    memory.values.fill(np.nan)
    waiting, begun = list(range(len(texts))), set()
    for step in range(STEPS):
        now = [waiting.pop(0) for _ in range(len(waiting) - later * (step < 9))]
        for number in now:
            prompt = TEXTS[number][0]
            scheduler.add(sequence(texts[number][:prompt], number,
                                   len(texts[number]) - prompt))
        plan = scheduler.schedule()
        for source, target in plan.copies:
            memory.copy_block(source, target)
        rows = [(one, int(count), int(one.num_computed_tokens),
                 int(one.request.id.rpartition("-")[2])) for one, count in plan.rows]
        records.append(StepRecord(
            step, 0.0, 0.0, tuple(Row(f"text {number}/0", start, count, 0,
                                      count > 1 or not start, ())
                                  for _, count, start, number in rows),
            tuple((f"text {number}/0", start) for _, _, start, number in rows
                  if number not in begun)))
        begun.update(number for *_, number in rows)
        for one, count, start, _ in rows:
            expect(1 <= count <= one.num_pending_tokens,
                   f"a step to compute 1 to {one.num_pending_tokens} tokens of {name_of(one)}, "
                   "which are pending", f"{count}", hint)
        if rows:
            _expect_step(case, memory, rows, texts, right, step, hint)
        for one, count, _, number in rows:
            scheduler.computed(one, count)
            if one.num_pending_tokens:
                continue
            if len(one.ids) == len(texts[number]):
                scheduler.remove(one)
            else:
                one.append(texts[number][len(one.ids)])
        expect_books(pool, scheduler, f"after step {step + 1}", hint)
        if not (waiting or scheduler.running or scheduler.waiting):
            return
    left = [name_of(one) for one in [*scheduler.running, *scheduler.waiting]]
    raise CheckFailure(f"{len(texts)} texts to be done after at most {STEPS} steps",
                       f"that {', '.join(left)} went on and on, or waited for ever", hint)


def _expect_step(case: Truth, memory: PagedKVCache, rows: list[tuple], texts: Ids[Ids[int]],
                 right: list[np.ndarray], step: int, hint: str) -> None:
    counts = [count for _, count, _, _ in rows]
    ids = [id for _, count, start, number in rows for id in texts[number][start:start + count]]
    positions = [start + at for _, count, start, _ in rows for at in range(count)]
    batch = PagedBatch(memory, [list(one.block_table) for one, _, _, _ in rows],
                       [start for _, _, start, _ in rows], counts)
    logits = forward(case.weights, case.config, np.array(ids), np.array(positions), batch,
                     np.arange(len(ids)))
    at = 0
    for one, count, start, number in rows:
        others = f", beside {len(rows) - 1} other texts," if len(rows) > 1 else ""
        expect_close(logits[at:at + count], right[number][start:start + count], atol=1e-4,
                     rtol=1e-4, axes=["token", "vocabulary entry"], hint=hint,
                     of=f"the logits of tokens {start} to {start + count - 1} of text {number}"
                        f"{others} in step {step + 1}")
        at += count


def a_scheduler(Scheduler, num_blocks: int = 40, block_size: int = 4,
                **options: Any) -> tuple[Reference, BlockPool]:
    """A scheduler of 16 tokens a step and 4 places, and its pool."""
    pool = BlockPool(num_blocks, block_size)
    sizes = {"max_num_batched_tokens": 16, "max_num_seqs": 4} | options
    return Scheduler(pool, **sizes), pool


def running(scheduler: Reference, number: int) -> Sequence:
    """The first answer of a request that runs."""
    return next(one for one in scheduler.running
                if (one.request.id, one.index) == (f"request-{number}", 0))


def compute(scheduler: Reference, number: int, count: int) -> None:
    """Compute so many tokens of a sequence that runs."""
    one = running(scheduler, number)
    scheduler.make_room(one, count, Plan())
    scheduler.computed(one, count)


def catch_up(scheduler: Reference, tokens: int = 0) -> None:
    """Compute all that is pending, in some steps; then every answer goes on by so many
    tokens."""
    for _ in range(20):
        for one, count in scheduler.schedule().rows:
            scheduler.computed(one, min(count, one.num_pending_tokens))
    for one in scheduler.running:
        for _ in range(tokens):
            one.append(7)


def told(plan: Plan) -> dict[str, Any]:
    """A plan as plain data. Which blocks were taken does not matter, how many were does."""
    return {"rows": [[name_of(one), int(count), len(one.block_table)]
                     for one, count in plan.rows],
            "admitted": [name_of(one) for one in plan.admitted],
            "preempted": [name_of(one) for one in plan.preempted],
            "copies": len(plan.copies)}


def expect_plans(Scheduler, rng: np.random.Generator, steps: int, hint: str,
                 guesses: bool = True, **options: Any) -> None:
    """Requests come and go by chance, in two engines: their plans must be the same.

    Some have several answers, some go on from a preemption, many begin alike.
    """
    sizes = {"num_blocks": 9, "block_size": 3, "max_num_batched_tokens": 9,
             "max_num_seqs": 4} | options
    both = [a_scheduler(kind, **sizes) for kind in (Scheduler, Reference)]
    recorders = Recorder(), Recorder()
    with with_timeline(lambda: recorders[0].records, lambda: recorders[1].records,
                       sizes["max_num_batched_tokens"]):
        _expect_steps(both, recorders, rng, steps, hint, guesses)


def _expect_steps(both: list[tuple[Reference, BlockPool]], recorders: tuple[Recorder, Recorder],
                  rng: np.random.Generator, steps: int, hint: str, guesses: bool) -> None:
    number = 0
    for step in range(steps):
        if rng.random() < 0.5:
            ids = rng.integers(0, 2, int(rng.integers(1, 18))).tolist()
            fields = {"more": int(rng.integers(1, 9)), "n": int(rng.choice([1, 1, 1, 2]))}
            if guesses and rng.random() < 0.5:
                fields["guesses"] = [7] * int(rng.integers(1, 4))
            for scheduler, _ in both:
                scheduler.add(sequence(ids, number, **fields, prompt=max(1, len(ids) - 2)))
            number += 1
        ended = rng.random()
        plans = []
        for (scheduler, pool), recorder in zip(both, recorders):
            plan = scheduler.schedule()
            pending = [one.num_pending_tokens for one, _ in plan.rows]
            plans.append(told(plan) | {
                "waiting": [name_of(one) for one in scheduler.waiting],
                "running": [name_of(one) for one in scheduler.running],
                "cached": [[one.num_computed_tokens, one.kept_blocks, one.cached_tokens,
                            one.running, one.prefix is not None] for one in plan.admitted]})
            recorder.step(plans[-1], pending, [cached for cached, *_ in plans[-1]["cached"]])
            for (one, count), left in zip(plan.rows, pending):
                scheduler.computed(one, min(count, left))
                if count < left:
                    continue
                answers = [one]
                if one.request.n > 1 and not one.forked:
                    scheduler.fork(one, Sequence(one.request, 1, list(one.ids),
                                                 (*tuple(one.rank)[:2], 1), one.limit))
                    answers += [other for other in scheduler.running if other.index == 1
                                and other.request.id == one.request.id]
                for answer in answers:
                    answer.append(7 + answer.index)
                    if len(answer.ids) >= answer.limit or ended < 0.1:
                        scheduler.remove(answer)
                        recorder.finish(name_of(answer))
            expect_books(pool, scheduler, f"after step {step + 1}", hint)
        for key, right in plans[1].items():
            expect_equal(plans[0][key], right, hint=hint,
                         of=f"{PARTS_OF_A_PLAN.get(key, key)} in step {step + 1}")


PARTS_OF_A_PLAN = {"rows": "the rows of the plan (name, tokens, blocks in the table)",
                   "cached": "the computed tokens, kept blocks, cached tokens, `running` and "
                             "whether there is a prefix, of those admitted",
                   "copies": "the number of copies", "waiting": "those that wait",
                   "running": "those that run", "admitted": "those admitted",
                   "preempted": "those preempted"}


# --- how much ---------------------------------------------------------------------------------


def expect_chunk(scheduler: Reference, one: Sequence, budget: int, right: int, when: str,
                 hint: str = "") -> None:
    expect_equal(scheduler.chunk(one, budget), right, hint=hint,
                 of=f"the chunk of a budget of {budget} tokens, {when},")


example_of_scheduler_chunk = docstring_example(CHUNK, points=1)


@check(CHUNK, points=1.5, public=True)
def one_pending(Scheduler, rng):
    """Who decodes gets its token and its guesses, as far as the budget goes."""
    scheduler, _ = a_scheduler(Scheduler)
    hint = "One pending token, and behind it the guesses: `len(sequence.guesses)`."
    scheduler.add(sequence([1, 2, 3], 0, more=9))
    scheduler.add(sequence([4, 5], 1, more=9, guesses=[7, 8, 9]))
    catch_up(scheduler, tokens=1)
    plain, guessing = running(scheduler, 0), running(scheduler, 1)
    for budget in (1, 9):
        expect_chunk(scheduler, plain, budget, 1, "of which one is pending", hint)
    for budget, right in ((16, 4), (4, 4), (3, 3), (1, 1)):
        expect_chunk(scheduler, guessing, budget, right,
                     "one token pending and 3 guesses behind it", hint)


@check(CHUNK, points=1, public=True)
def a_prompt_alone(Scheduler, rng):
    """A prompt that nobody else waits behind gets all of the budget, up to its end."""
    scheduler, _ = a_scheduler(Scheduler)
    count = int(rng.integers(20, 30))
    scheduler.add(sequence(range(count), 0, guesses=[7, 7]))
    plan = Plan()
    scheduler.admit(5, plan)
    compute(scheduler, 0, 5)
    hint = ("Half of the step is for prompts that others wait behind: here nobody does. The "
            "one that is asked about runs, too, and is no *other*.")
    for budget, right in ((16, 16 if count > 21 else count - 5), (9, 9), (1, 1)):
        expect_chunk(scheduler, running(scheduler, 0), budget, right,
                     f"{count - 5} tokens pending, alone", hint)
    compute(scheduler, 0, count - 9)
    for budget, right in ((16, 4), (3, 3)):
        expect_chunk(scheduler, running(scheduler, 0), budget, right,
                     "4 tokens pending and 2 guesses",
                     "Guesses are for one pending token: with more, the prompt comes first.")


@check(CHUNK, points=1.5, public=True)
def half_for_a_prompt(Scheduler, rng):
    """A prompt gets at most half of a step while another is unfinished, or somebody waits
    for whom there is a place."""
    scheduler, _ = a_scheduler(Scheduler, max_num_seqs=2, max_num_batched_tokens=15)
    hint = "`self.running` with more than one pending; `self.waiting` while `self.places`."
    scheduler.add(sequence(range(30), 0))
    scheduler.admit(3, Plan())
    compute(scheduler, 0, 3)
    expect_chunk(scheduler, running(scheduler, 0), 15, 15, "27 pending, alone", hint)
    scheduler.add(sequence(range(40, 60), 1))
    for budget, right in ((15, 7), (8, 7), (7, 7), (4, 4)):
        expect_chunk(scheduler, running(scheduler, 0), budget, right,
                     "27 pending, and somebody waits, of 15 a step", hint)
    scheduler.admit(2, Plan())
    compute(scheduler, 1, 2)
    for number in (0, 1):
        expect_chunk(scheduler, running(scheduler, number), 15, 7,
                     "when two prompts are unfinished, of 15 a step", hint)
    compute(scheduler, 1, 17)                                     # one is left: it decodes soon
    scheduler.add(sequence(range(9), 2))
    expect_chunk(scheduler, running(scheduler, 0), 15, 15,
                 "when the other one has one token pending, and there is no place for the one "
                 "that waits", hint)
    narrow, _ = a_scheduler(Scheduler, max_num_seqs=1, max_num_batched_tokens=1)
    narrow.add(sequence(range(5), 0))
    narrow.admit(1, Plan())
    expect_chunk(narrow, running(narrow, 0), 1, 1, "alone, of one token a step", hint)
    narrow, _ = a_scheduler(Scheduler, max_num_seqs=1, max_num_batched_tokens=1)
    narrow.add(sequence(range(5), 0))
    narrow.add(sequence(range(5), 1))
    expect_chunk(narrow, narrow.waiting[0], 1, 1, "while others wait, of one token a step",
                 "Half of one token is none, and with none nobody gets on.")
    for least in (2, 3):
        narrow, _ = a_scheduler(Scheduler, max_num_seqs=1, max_num_batched_tokens=least)
        narrow.add(sequence(range(5), 0))
        narrow.add(sequence(range(5), 1))
        expect_chunk(narrow, narrow.waiting[0], least, 1,
                     f"while others wait, of {least} tokens a step", "Rounded down.")


@check(CHUNK, points=0.5, public=True)
def whole_tiles(Scheduler, rng):
    """Where tiles are computed no tile is cut: a chunk ends at a border of blocks,
    or behind the first `tiles_end` tokens."""
    hint = ("Up to which token would this budget lead? Where that is before `tiles_end`, go "
            "back to the last border of blocks.")
    tiled, _ = a_scheduler(Scheduler, tiled=True, max_num_batched_tokens=24)
    tiled.add(sequence(range(22), 0))
    tiled.admit(9, Plan())
    compute(tiled, 0, 8)
    for budget, right in ((3, 0), (4, 4), (11, 8), (12, 12), (13, 13), (14, 14), (20, 14)):
        expect_chunk(tiled, running(tiled, 0), budget, right,
                     "8 of 22 tokens computed, in tiles of 4", hint)


@check(CHUNK, points=0.5, public=False)
def answers_to_come(Scheduler, rng):
    """While a request has other answers to come, nothing is guessed."""
    scheduler, _ = a_scheduler(Scheduler)
    scheduler.add(sequence([1, 2, 3], 0, n=2, guesses=[7, 8]))
    scheduler.admit(2, Plan())
    compute(scheduler, 0, 2)
    expect_chunk(scheduler, running(scheduler, 0), 9, 1, "one pending, of two answers")


@check(CHUNK, points=1, public=True, always=(1,))
def any_chunks(Scheduler, rng):
    """Whatever comes, every step computes what the rules say."""
    for options in ({}, {"num_blocks": 30, "max_num_batched_tokens": 7}):
        expect_plans(Scheduler, rng, 30, "Which of the rules is it about: the guesses, the "
                     "half, or what is pending?", **options)


# --- room -------------------------------------------------------------------------------------


def filled(Scheduler, lengths: Ids[int], left: int,
           **fields: Any) -> tuple[Reference, BlockPool, list[int]]:
    """A scheduler whose sequences have computed so many tokens and have one more pending, its
    pool, and the blocks that are in use for something else: only so many are left."""
    scheduler, pool = a_scheduler(Scheduler)
    for number, length in enumerate(lengths):
        scheduler.add(sequence([number + 1] * length, number, more=20, **fields))
    catch_up(scheduler, tokens=1)
    expect_equal(len(scheduler.running), len(lengths), of="how many sequences run")
    return scheduler, pool, [pool.allocate() for _ in range(pool.available - left)]


example_of_scheduler_make_room = docstring_example(ROOM, points=1)


@check(ROOM, points=1.5, public=True)
def no_more_than_needed(Scheduler, rng):
    """A block is taken at a block's border, and not before; several for several tokens."""
    scheduler, pool, others = filled(Scheduler, [7, 8], left=20)
    for number, count, blocks in ((0, 1, 2), (1, 1, 3), (1, 4, 3), (1, 5, 4)):
        one, plan = running(scheduler, number), Plan()
        expect_equal(bool(scheduler.make_room(one, count, plan)), True,
                     of="the answer, where blocks are left,")
        expect_equal(len(one.block_table), blocks,
                     of=f"how many blocks of 4 the table has, for {count} tokens after "
                        f"{one.num_computed_tokens}",
                     hint="`blocks_needed` counts them. While the table is shorter than the "
                          "tokens need, one more.")
        expect_equal(told(plan), told(Plan()), of="a plan in which nobody gave way")
        expect_books(pool, scheduler, "after that", "Whatever is in a table was allocated.",
                     others)


@check(ROOM, points=1, public=True)
def side_by_side(Scheduler, rng):
    """A table's new blocks follow its last one where they can."""
    scheduler, pool, _ = filled(Scheduler, [4, 4], left=38)
    one = running(scheduler, 1)
    before = list(one.block_table)
    pool.free(pool.allocate(after=before[0]))          # so that it comes last of the empty ones
    scheduler.make_room(one, 1, Plan())
    expect_equal(list(one.block_table), [before[0], before[0] + 1],
                 of=f"the table that was {before}",
                 hint="`allocate(after=…)` takes the last block of the table.")
    scheduler.make_room(one, 9, Plan())
    expect_equal(list(one.block_table), [before[0] + at for at in range(4)],
                 of="the table after three more", hint="Each one after the one before it.")


@check(ROOM, points=1, public=True)
def the_last_gives_way(Scheduler, rng):
    """Where no block is left, the running sequence of the last rank gives up its own."""
    scheduler, pool, others = filled(Scheduler, [8, 4, 3], left=0)
    plan, first = Plan(), running(scheduler, 0)
    hint = "Preempt `self.running[-1]`, and look again whether that is enough."
    expect_equal(bool(scheduler.make_room(first, 1, plan)), True, hint=hint,
                 of="the answer for the first of three")
    expect_equal(told(plan)["preempted"], ["request-2/0"], of="who gave way", hint=hint)
    expect_equal(len(first.block_table), 3, of="how many blocks the first one has", hint=hint)
    expect_equal([name_of(one) for one in scheduler.waiting], ["request-2/0"],
                 of="who waits", hint="`preempt` is given.")
    expect_books(pool, scheduler, "after that", hint, others)
    scheduler, pool, others = filled(Scheduler, [8, 4, 3], left=0)
    plan = Plan()
    for _ in range(4):
        running(scheduler, 0).append(7)
    scheduler.make_room(running(scheduler, 0), 5, plan)
    expect_equal(told(plan)["preempted"], ["request-2/0", "request-1/0"], hint=hint,
                 of="who gave way for five tokens, two blocks of 4")
    expect_books(pool, scheduler, "after that", hint, others)


@check(ROOM, points=1, public=True)
def itself(Scheduler, rng):
    """Who is last itself gives way, and is not run: nothing is taken for it."""
    scheduler, pool, others = filled(Scheduler, [8, 4, 4], left=0)
    plan, last = Plan(), running(scheduler, 2)
    hint = "Once the sequence itself was preempted, the answer is False."
    answer = scheduler.make_room(last, 1, plan)
    expect_equal(told(plan)["preempted"], ["request-2/0"], of="who gave way", hint=hint)
    expect_equal(bool(answer), False, of="the answer for the last of three", hint=hint)
    expect_equal([list(last.block_table), last.running], [[], False],
                 of="its table, and whether it runs", hint=hint)
    expect_books(pool, scheduler, "after that", hint, others)


@check(ROOM, points=1, public=True)
def guesses_first(Scheduler, rng):
    """Before anybody gives way, guesses are given up."""
    scheduler, pool, others = filled(Scheduler, [6, 3], left=0, guesses=[7] * 4)
    plan, first = Plan(), running(scheduler, 0)
    hint = "A guess may be wrong anyway: what must be computed is `num_pending_tokens`."
    expect_equal(bool(scheduler.make_room(first, 5, plan)), True, of="the answer", hint=hint)
    expect_equal(told(plan)["preempted"], [], hint=hint,
                 of="who gave way for one token and four guesses, when one block is too few")
    expect_equal(len(first.block_table), 2, of="how many blocks of 4 it has, for token 6",
                 hint=hint)
    expect_books(pool, scheduler, "after that", hint, others)
    scheduler, pool, others = filled(Scheduler, [6, 3], left=1, guesses=[7] * 8)
    plan, first = Plan(), running(scheduler, 0)
    expect_equal(bool(scheduler.make_room(first, 9, plan)), True, of="the answer", hint=hint)
    expect_equal(len(first.block_table), 2,
                 hint="All guesses are given up: no block is taken for some of them.",
                 of="the number of its blocks of 4, for token 6 and eight guesses that would "
                    "need two more, when one is left,")
    expect_books(pool, scheduler, "after that", hint, others)


@check(ROOM, points=1, public=True)
def copy_on_write(Scheduler, rng):
    """A block that others use too is copied before it is written to, once."""
    scheduler, pool = a_scheduler(Scheduler)
    scheduler.add(sequence(range(6), 0, n=2, more=9))
    catch_up(scheduler)
    one = running(scheduler, 0)
    scheduler.fork(one, Sequence(one.request, 1, list(one.ids), (0, 0, 1), one.limit))
    for answer in scheduler.running:
        answer.append(7)
    before, plan = list(one.block_table), Plan()
    hint = ("Is the block of the next token shared (`self.pool.references`)? Then another "
            "takes its place in this table, and only in this one.")
    for answer in scheduler.running:
        expect_equal(bool(scheduler.make_room(answer, 1, plan)), True, of="the answer",
                     hint=hint)
        expect_books(pool, scheduler, "after one of two answers got room", hint)
    expect_equal([list(copy) for copy in plan.copies], [[before[1], one.block_table[1]]],
                 of="the copies for two answers that share two blocks, the second half full",
                 hint=hint)
    expect_equal([list(other.block_table) for other in scheduler.running],
                 [[before[0], one.block_table[1]], before], of="their tables", hint=hint)
    expect(one.block_table[1] != before[1], "the first answer to have a block of its own",
           f"block {before[1]}, which the other one reads", hint)


@check(ROOM, points=0.5, public=False, always=(0, 2))
def any_room(Scheduler, rng):
    """Whatever comes: whoever is first gets on, and tables are as long as they must be."""
    for options in ({}, {"num_blocks": 7}, {"block_size": 1, "num_blocks": 20}):
        expect_plans(Scheduler, rng, 30, "", **options)


# --- who comes in -----------------------------------------------------------------------------


example_of_scheduler_admit = docstring_example(ADMIT, points=1)


@check(ADMIT, points=2, public=True)
def in_their_order(Scheduler, rng):
    """Who waits comes in by rank, as long as the step has tokens and places."""
    scheduler, pool = a_scheduler(Scheduler, max_num_seqs=3)
    for number in rng.permutation(5).tolist():
        scheduler.add(sequence([number] * 3, number))
    hint = "A loop: the first that waits, is there room for it? If not, the loop ends."
    plan = Plan()
    scheduler.admit(16, plan)
    expect_equal(told(plan)["admitted"], [f"request-{number}/0" for number in range(3)],
                 of="who is admitted to three places", hint=hint)
    expect_equal(told(plan)["rows"], [[f"request-{number}/0", 3, 1] for number in range(3)],
                 of="the rows of the plan (name, tokens, blocks)", hint="`chunk` says how many "
                 "tokens, `make_room` takes the blocks.")
    expect_equal([[name_of(one), one.running] for one in scheduler.running],
                 [[f"request-{number}/0", True] for number in range(3)], of="who runs",
                 hint=hint)
    expect_equal([name_of(one) for one in scheduler.waiting], ["request-3/0", "request-4/0"],
                 of="who still waits", hint=hint)
    expect_books(pool, scheduler, "after that", hint)
    scheduler, pool = a_scheduler(Scheduler)
    for number, count in enumerate((4, 7, 9)):
        scheduler.add(sequence([number] * count, number))
    plan = Plan()
    scheduler.admit(10, plan)
    expect_equal(told(plan)["rows"], [["request-0/0", 4, 1], ["request-1/0", 6, 2]],
                 of="the rows of prompts of 4, 7 and 9, with 10 tokens left",
                 hint="Each row takes from the budget. With none left, nobody comes in.")
    later = Plan()
    scheduler.admit(0, later)
    expect_equal(told(later), told(Plan()), of="the plan with no token left", hint=hint)
    scheduler, pool = a_scheduler(Scheduler)
    for number, n in enumerate((2, 3)):
        scheduler.add(sequence([number] * 3, number, n=n))
    plan = Plan()
    scheduler.admit(16, plan)
    expect_equal(told(plan)["admitted"], ["request-0/0"],
                 of="who is admitted to four places, when the first wants two answers, and the "
                    "second three", hint="`sequence.answers` and `self.places`.")
    scheduler, pool = a_scheduler(Scheduler, tiled=True, max_num_batched_tokens=24)
    scheduler.add(sequence(range(22), 0))
    plan = Plan()
    scheduler.admit(3, plan)
    expect_equal([told(plan)["admitted"], told(plan)["rows"]], [["request-0/0"], []],
                 of="who is admitted, and the rows, when the chunk is 0",
                 hint="It runs from now on, and has no row in this step.")


@check(ADMIT, points=1, public=True)
def by_rank_among_those_that_run(Scheduler, rng):
    """Who comes back takes its place by rank, not at the end: the last one gives way first."""
    scheduler, _ = a_scheduler(Scheduler)
    for number in (0, 2, 3):
        scheduler.add(sequence([number] * 3, number))
    scheduler.admit(16, Plan())
    scheduler.add(sequence([1] * 3, 1))
    scheduler.admit(5, Plan())
    expect_equal([name_of(one) for one in scheduler.running],
                 [f"request-{number}/0" for number in range(4)],
                 of="those that run, when request 1 came in last,",
                 hint="`insort` with the key `rank` finds the place.")


@check(ADMIT, points=1, public=True)
def nobody_slips_by(Scheduler, rng):
    """Who is first and finds no room holds up the others, and blocks are kept in reserve:
    one for each that runs."""
    scheduler, pool = a_scheduler(Scheduler, 7)
    scheduler.add(sequence([1] * 9, 0))                                   # three blocks
    scheduler.admit(16, Plan())
    hint = ("Blocks for all its tokens, whatever the step computes of them, and one to spare "
            "for each that runs. Compare with `self.pool.available`.")
    for count, comes in ((13, False), (12, True)):
        scheduler.add(sequence([2] * count, 1))
        scheduler.add(sequence([3], 2))
        plan = Plan()
        scheduler.admit(3, plan)
        expect_equal(told(plan)["admitted"], ["request-1/0"] if comes else [], hint=hint,
                     of=f"who is admitted to 4 free blocks of 4, when one runs, {count} tokens "
                        "come first, and one token after them")
        for one in list(scheduler.waiting):
            scheduler.remove(one)
    expect_books(pool, scheduler, "after that", hint)


@check(ADMIT, points=2, public=True)
def what_is_there_already(Scheduler, rng):
    """What blocks hold of a prompt is shared and not computed again, but for the last token."""
    text = rng.permutation(12)[:8].tolist()
    scheduler, pool = a_scheduler(Scheduler, 12)
    scheduler.add(sequence(text, 0))
    catch_up(scheduler, tokens=1)
    hint = "`cached_blocks` is given. Its blocks are shared, and are the table's beginning."
    for number, (ids, cached) in enumerate((([*text, 20, 21], 8), (text, 4), (text[::-1], 0)),
                                           start=1):
        scheduler.add(sequence(ids, number))
        plan = Plan()
        scheduler.admit(16, plan)
        one = running(scheduler, number)
        words = f"a text of {len(ids)} tokens, of which {cached} are to be found"
        expect_equal(told(plan)["rows"], [[f"request-{number}/0", len(ids) - cached,
                                           -(-len(ids) // 4)]],
                     of=f"the row (name, tokens, blocks) of {words}", hint=hint)
        expect_equal([one.num_computed_tokens, one.cached_tokens, one.kept_blocks],
                     [cached, cached, cached // 4],
                     of=f"the computed and cached tokens and kept blocks of {words}", hint=hint)
        shared = list(running(scheduler, 0).block_table)[:cached // 4]
        expect_equal(list(one.block_table)[:cached // 4], shared, hint=hint,
                     of=f"the beginning of the table of {words}")
        expect_equal(None if one.prefix is None else one.prefix.block,
                     shared[-1] if shared else None, of=f"the block of the prefix of {words}",
                     hint="What follows is kept as going on from here.")
        expect_books(pool, scheduler, "after that", "Who uses a block is counted: `share`.")
    scheduler, pool = a_scheduler(Scheduler)
    scheduler.add(sequence(text, 0))
    catch_up(scheduler)
    held = [pool.allocate() for _ in range(pool.available - 2)]
    scheduler.add(sequence([*text, 20], 1))
    for turn, words in enumerate(("text of three blocks", "text of four, preempted once,")):
        plan = Plan()
        scheduler.admit(16, plan)
        expect_equal(told(plan)["admitted"], ["request-1/0"],
                     of=f"who is admitted beside one that runs, when {2 + turn} blocks are "
                        f"available, and a {words} waits, of which two are in use already",
                     hint="Blocks that are shared need not be taken: `self.pool.references`.")
        again = running(scheduler, 1)
        expect_equal(again.cached_tokens, 8, of=f"the cached tokens of that {words}",
                     hint="They are noted at the first admission: the client is told of those.")
        expect_books(pool, scheduler, "after that", "Who uses a block is counted.", held)
        if turn == 0:
            for number in (0, 1):
                compute(scheduler, number, running(scheduler, number).num_pending_tokens)
            for _ in range(4):
                again.append(21)
            pool.free(held.pop())
            compute(scheduler, 1, 3)
            scheduler.preempt(again, Plan())
    scheduler, pool = a_scheduler(Scheduler, 4)
    for number, ids in enumerate((text, text[::-1])):
        scheduler.add(sequence(ids, number))
        catch_up(scheduler)
        scheduler.remove(running(scheduler, number))
    scheduler.add(sequence([*text, 20], 2))
    scheduler.admit(16, Plan())
    expect_books(pool, scheduler, "after a text found two blocks that were kept, and got a "
                 "third one that had to be given up", "What is found is shared before anything "
                 "else is taken: kept blocks may be given up.")
    scheduler, pool = a_scheduler(Scheduler)
    scheduler.add(sequence(text[::-1], 0))
    catch_up(scheduler, tokens=1)
    first = running(scheduler, 0)
    scheduler.preempt(first, Plan())
    scheduler.admit(16, Plan())
    expect_equal([first.num_computed_tokens, first.cached_tokens], [8, 0],
                 of="the computed and cached tokens of a text that found nothing at first, was "
                    "preempted, and finds its own blocks",
                 hint="Nothing was found at the first admission, and that is noted: 0 is a "
                      "number, and not None.")


@check(ADMIT, points=1, public=True)
def as_hugging_face(Scheduler, rng):
    """In an engine, with prompts in pieces, shared prefixes and preemption:
    every row's logits are Hugging Face's for that text alone."""
    case = truth("Llama", rng)
    for num_blocks in (9, 7):
        scheduler, pool = a_scheduler(Scheduler, num_blocks, **SIZES)
        expect_served(case, scheduler, pool, served_texts(rng),
                      "Is what comes back from a preemption complete? Its prompt, and what it "
                      "has generated.")


@check(ADMIT, points=1, public=False, always=(35,))
def any_arrivals(Scheduler, rng):
    """Whatever comes: several answers, cached beginnings, blocks that run out."""
    for options in ({}, {"num_blocks": 7}, {"max_num_seqs": 2}, {"num_blocks": 25},
                    {"enable_prefix_caching": False}):
        expect_plans(Scheduler, rng, 30, "", **options)
