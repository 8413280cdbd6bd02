"""Static batching, counted and not computed: what continuous batching is compared with.

Requests come step by step. A static batch is formed of those that wait, padded to its longest
prompt, and runs until its longest answer is done; only then does the next one begin. A step is
one forward pass, and a slot is one token in it, whether anybody needs it or not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gearworks.errors import ModelError
from gearworks.serving.record import StepRecord

if TYPE_CHECKING:                       # counting needs no engine
    from gearworks.serving.engine import LLMEngine
    from gearworks.serving.request import Request


@dataclass(frozen=True)
class Arrival:
    """A request as a scheduler sees it.

    name: the request's id. step: before which step it comes, from 0. prompt, answer: how many
    tokens it has, and how many it will get.
    """

    name: str
    step: int
    prompt: int
    answer: int


@dataclass(frozen=True)
class StaticRow:
    """One request in one step of its batch. padding: slots for nothing. prompt: slots for
    tokens of the prompt. answer: whether a token of the answer came out. done: whether it was
    the last one, or came earlier; the row goes on all the same."""

    name: str
    padding: int
    prompt: int
    answer: bool
    done: bool

    @property
    def slots(self) -> int:
        return self.padding + self.prompt or 1

    @property
    def wasted(self) -> int:
        """Slots that nobody needed: of padding, or of an answer that was done."""
        return self.padding + (not self.prompt and not self.padding and not self.answer)


@dataclass(frozen=True)
class StaticStep:
    """number: of the step, those without a batch included. waiting: who has come and is in no
    batch."""

    number: int
    rows: tuple[StaticRow, ...]
    waiting: tuple[str, ...]


def static_steps(arrivals: Sequence[Arrival], batch_size: int,
                 max_num_batched_tokens: int) -> list[StaticStep]:
    """The steps that static batches take; those in which nobody is there are left out.

    batch_size: requests of a batch, at most. max_num_batched_tokens: slots of a step, at most:
    a padded prompt takes several steps where it has more. Prompts are padded on their left, so
    the first tokens of all answers come in the same step.
    Raises ModelError for a request without a prompt or an answer, and for a batch_size that is
    not from 1 to max_num_batched_tokens.

    >>> steps = static_steps([Arrival("a", 0, 2, 1), Arrival("b", 0, 1, 3)], 2, 64)
    >>> [[row.wasted for row in step.rows] for step in steps]
    [[0, 1], [1, 0], [1, 0]]
    """
    if not 1 <= batch_size <= max_num_batched_tokens:
        raise ModelError("cannot form static batches", f"batch_size is {batch_size}",
                         f"it goes from 1 to {max_num_batched_tokens}")
    for one in arrivals:
        if min(one.prompt, one.answer) < 1 or one.step < 0:
            raise ModelError("cannot form static batches",
                             f"{one.name} has {one.prompt} tokens and gets {one.answer}, from "
                             f"step {one.step} on", "give at least one token of each, and a "
                                                    "step from 0 on")
    to_come = sorted(arrivals, key=lambda one: one.step)
    steps: list[StaticStep] = []
    now = 0
    while to_come:
        now = max(now, to_come[0].step)
        batch = [one for one in to_come if one.step <= now][:batch_size]
        to_come = to_come[len(batch):]
        for rows in _batch(batch, max_num_batched_tokens // len(batch)):
            waiting = tuple(one.name for one in to_come if one.step <= now)
            steps.append(StaticStep(now, rows, waiting))
            now += 1
    return steps


def _batch(batch: Sequence[Arrival], chunk: int) -> list[tuple[StaticRow, ...]]:
    """The steps of one batch. chunk: how many columns of its prompts a step computes."""
    width = max(one.prompt for one in batch)
    steps = []
    for start in range(0, width, chunk):
        end = min(width, start + chunk)
        prompts = [max(0, end - max(start, width - one.prompt)) for one in batch]
        steps.append(tuple(
            StaticRow(one.name, end - start - prompt, prompt, end == width,
                      end == width and one.answer == 1)
            for one, prompt in zip(batch, prompts)))
    for token in range(2, max(one.answer for one in batch) + 1):
        steps.append(tuple(StaticRow(one.name, 0, 0, token <= one.answer, token >= one.answer)
                           for one in batch))
    return steps


def run(engine: "LLMEngine",
        requests: "Sequence[tuple[int, Request]]") -> list[StepRecord]:
    """Let an engine answer requests that come at given steps, and return the steps' records.

    requests: (step, request): each is added before that step, in the order of the steps. Steps
    in which there is nothing to do are counted, and have no record.
    """
    to_come = sorted(requests, key=lambda pair: pair[0])
    records: list[StepRecord] = []
    now = 0
    while to_come or engine.has_unfinished():
        while to_come and to_come[0][0] <= now:
            engine.add_request(to_come.pop(0)[1])
        before = engine.records[-1].number if engine.records else -1
        engine.step()
        if engine.records and engine.records[-1].number > before:
            records.append(engine.records[-1])
        now += 1
    return records
