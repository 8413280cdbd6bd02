"""Checks of the scheduler's methods, and the engine that many checks of serving run."""

from collections.abc import Sequence as Ids
from typing import Any

import numpy as np

from autograder.checking import CheckFailure, check, expect, expect_close, expect_equal
from autograder.checks.model import Truth, truth
from gearworks.errors import ModelError
from gearworks.kv_cache import BlockPool
from gearworks.model import forward
from gearworks.serving.paged_cache import PagedBatch, PagedKVCache
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


def expect_books(pool: BlockPool, scheduler: Reference, when: str, hint: str = "") -> None:
    """Every block is free or counted once for each sequence that has it in its table."""
    tables = [list(one.block_table) for one in [*scheduler.running, *scheduler.waiting]]
    try:
        pool.check(tables)
    except AssertionError as error:
        raise CheckFailure(f"the pool's books to be right {when}", str(error), hint) from None


def served_texts(rng: np.random.Generator) -> list[list[int]]:
    """The texts of `TEXTS`: the third begins like the first, the fifth like the fourth."""
    texts = [rng.integers(0, VOCABULARY, prompt + more).tolist() for prompt, more in TEXTS]
    texts[2][:13], texts[4][:9] = texts[0][:13], texts[3][:9]
    return texts


def expect_served(case: Truth, scheduler: Reference, pool: BlockPool, texts: Ids[Ids[int]],
                  hint: str, later: int = 3) -> None:
    """Run texts through an engine: every row's logits must be Hugging Face's for the text alone.

    The tokens of each text are known beforehand; a step computes those that the scheduler names,
    from blocks that hold nan until they are written to. later: so many of the texts come a
    while after the others, when some of what they begin with is in blocks.
    """
    right = [case.logits_of(text) for text in texts]
    memory = PagedKVCache(case.config, len(pool.references), pool.block_size)
    memory.keys.fill(np.nan)
    memory.values.fill(np.nan)
    waiting = list(range(len(texts)))
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
