"""Checks of the engine's step, on a model whose every word is known."""

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np

from autograder.checking import check, expect, expect_equal, expect_error, expect_returned
from autograder.checking.examples import docstring_example
from autograder.checks.decoding import TextModel, byte_tokenizer
from autograder.checks.scheduler import with_timeline
from gearworks.language_model import LanguageModel
from gearworks.sampling import SamplingParams
from gearworks.serving.engine import LLMEngine as Reference
from gearworks.serving.record import StepRecord
from gearworks.serving.request import Request

STEP = "engine.LLMEngine.step"
V, EOS, CONTEXT = 260, 257, 64
LETTERS = range(64, 90)                      # of `byte_tokenizer`: a to z


class PagedTextModel(TextModel):
    """A `TextModel` of letters that reads its text in what attention gives it.

    A token's value has its id at the place of its position, and all keys are 0: so attention
    gives each row the ids that it can see, divided by their number. passes: how many tokens
    each forward pass had. failures: what a pass raises, by its number.
    """

    def __init__(self, *args: Any, failures: Mapping[int, BaseException] | None = None,
                 **options: Any):
        super().__init__(*args, **options)
        self.config = replace(self.config, head_dim=CONTEXT, max_position_embeddings=CONTEXT)
        self.passes: list[int] = []
        self.failures = failures or {}

    def forward(self, input_ids: np.ndarray, positions: np.ndarray, batch: Any,
                logits_at: np.ndarray) -> np.ndarray:
        count, positions = len(input_ids), np.asarray(positions, int)
        self.passes.append(count)
        if len(self.passes) - 1 in self.failures:
            raise self.failures[len(self.passes) - 1]
        values = np.zeros((count, 1, CONTEXT), np.float32)
        values[np.arange(count), 0, positions] = input_ids
        seen = batch.attend(0, np.zeros_like(values), np.zeros_like(values), values)
        rows = []
        for row in logits_at:
            length = positions[row] + 1
            text = np.rint(seen[row, 0, :length] * length).astype(int)
            rows.append(self.logits_after(text.tolist()))
        return np.array(rows, np.float32).reshape(len(rows), V)

    def logits_after(self, text: Sequence[int]) -> np.ndarray:
        logits = super().logits_after(text)
        logits[[id for id in range(EOS) if id not in LETTERS]] -= 20
        return logits


def told(delta: Any) -> list:
    """What a delta says."""
    error = None if delta.error is None else delta.error.what
    return [f"{delta.request_id}/{delta.index}", delta.text, list(delta.ids),
            delta.finish_reason, delta.cached_tokens, error]


def step_of(engine: Any) -> Any:
    """What a step returns, in an order of its own, or raises."""
    try:
        deltas = engine.step()
    except NotImplementedError:                            # not written yet
        raise
    except (RuntimeError, SystemExit, GeneratorExit) as error:
        return f"{type(error).__name__}: {error}"
    expect_returned(deltas, "a list of deltas, empty where nothing is new")
    expect(isinstance(deltas, list) and all(hasattr(delta, "request_id") for delta in deltas),
           "a list of deltas", repr(deltas)[:80])
    return sorted((told(delta) for delta in deltas), key=str)


class Run:
    """Two engines side by side, the learner's and the reference, that get the same requests."""

    def __init__(self, LLMEngine: Any, rng: np.random.Generator, *, model: Mapping = {},
                 failures: Mapping[int, BaseException] | None = None, **options: Any):
        seed = int(rng.integers(2**32))
        options = {"block_size": 4, "num_blocks": 30, "max_num_batched_tokens": 12,
                   "max_num_seqs": 4} | options
        self.budget = options["max_num_batched_tokens"]
        self.models = [PagedTextModel(seed, V, failures=failures, **model) for _ in range(2)]
        self.mine, self.true = (
            kind(LanguageModel(model, byte_tokenizer(), {}, frozenset([EOS])), **options)
            for kind, model in zip((LLMEngine, Reference), self.models))

    def add(self, *requests: Request) -> None:
        for request in requests:
            self.mine.add_request(request)
            self.true.add_request(request)

    def abort(self, request_id: str) -> None:
        self.mine.abort(request_id)
        self.true.abort(request_id)

    def step(self, hint: str = "") -> None:
        """One step of both: what it returns must be the same, and what the model was given."""
        with self.with_timeline():
            self._expect_step(hint)

    def with_timeline(self) -> AbstractContextManager[None]:
        """Let a failure in the block show where the two engines part."""
        return with_timeline(lambda: self.mine.records, lambda: self.true.records, self.budget)

    def _expect_step(self, hint: str) -> None:
        number = len(self.models[1].passes)
        got, right = step_of(self.mine), step_of(self.true)
        where = f"step {number}"
        if isinstance(right, str) or isinstance(got, str):
            expect_equal(got, right, of=f"the outcome of {where}", hint=hint)
        else:
            expect_equal([delta[0] for delta in got], [delta[0] for delta in right],
                         of=f"whose deltas {where} returns, request/answer,", hint=hint)
            expect_equal(got, right, hint=hint,
                         of=f"the deltas of {where} (whose, text, ids, finish_reason, …)")
        expect_equal(self.models[0].passes, self.models[1].passes, hint=hint,
                     of="the number of tokens in each forward pass")
        expect_equal(self.mine.scheduler.places, self.true.scheduler.places, hint=hint,
                     of=f"how many places are free after {where}")

    def finish(self, hint: str = "", most: int = 80) -> None:
        """Steps until nothing is left to do."""
        for _ in range(most):
            if not self.true.has_unfinished():
                break
            self.step(hint)
        expect_equal(self.mine.has_unfinished(), False, hint=hint,
                     of="`has_unfinished` after the last step")

    def expect_records(self, hint: str = "") -> None:
        """What both put on record must be the same, but for the seconds."""
        with self.with_timeline():
            self._expect_records(hint)

    def _expect_records(self, hint: str) -> None:
        mine, true = list(self.mine.records), list(self.true.records)
        expect_equal(len(mine), len(true), of="the number of records", hint=hint)
        for got, right in zip(mine, true):
            expect(isinstance(got, StepRecord), "StepRecords in `records`", repr(got)[:60])
            for name in ("number", "admitted", "finished", "generated", "preempted", "waiting",
                         "blocks_used", "blocks_kept", "blocks_empty"):
                expect_equal(getattr(got, name), getattr(right, name), hint=hint,
                             of=f"`{name}` in the record of step {right.number}")
            expect(got.rows == right.rows, f"the rows of step {right.number} on record to be "
                                           f"{right.rows!r}"[:300], f"{got.rows!r}"[:300], hint)
            expect(0 < got.model_seconds <= got.seconds,
                   "0 < model_seconds <= seconds in a record",
                   f"{got.model_seconds} and {got.seconds}",
                   "Two spans of `time.perf_counter()`, one inside of the other.")


def ask(rng: np.random.Generator, id: str, prompt: int = 5, max_tokens: int = 5,
        **options: Any) -> Request:
    """A request with a prompt of so many random letters."""
    ids = rng.integers(64, 70, prompt).tolist()
    return Request(ids, max_tokens=max_tokens, id=id, **options)


SECONDS = 0.02


class Refusing:
    """A grammar of letters that raises something at its third token."""

    def __init__(self, error: BaseException):
        self.count, self.error = 0, error

    def allowed(self) -> np.ndarray:
        mask = np.zeros(V, bool)
        mask[LETTERS] = True
        return mask

    def advance(self, token: int) -> None:
        self.count += 1
        if self.count == 3:
            raise self.error


class Slow(Refusing):
    """A grammar that takes its time, and refuses nothing."""

    def __init__(self):
        super().__init__(RuntimeError())

    def allowed(self) -> np.ndarray:
        time.sleep(SECONDS)
        return super().allowed()

    def advance(self, token: int) -> None:
        pass


example_of_llmengine_step = docstring_example(STEP, points=1)


@check(STEP, points=1.5, public=True)
def step_by_step(LLMEngine, rng):
    """Each step is one forward pass over all that run;
    it returns what is new in it, once, and each answer gets its own logits."""
    hint = ("One plan, one forward pass, and the logits go to the sequences in the plan's "
            "order. What was returned is not new any more.")
    run = Run(LLMEngine, rng)
    run.add(ask(rng, "a", 3, 6))
    run.finish(hint)
    run.add(ask(rng, "b", 9, 4), ask(rng, "c", 4, 7, params=SamplingParams(1.0, seed=3)))
    run.step(hint)
    run.add(ask(rng, "d", 2, 1, n=2), ask(rng, "e", 17, 2))
    run.finish(hint)


@check(STEP, points=1, public=True)
def on_record(LLMEngine, rng):
    """Each step is put on record: its number, what it was about to do,
    who finished, how many tokens, how long."""
    hint = "`record(plan)` tells what the step is about to do, so it comes before the pass."
    prompt = rng.integers(64, 90, 5).tolist()
    run = Run(LLMEngine, rng, model={"prompt": prompt, "script": [70, 71, EOS]})
    run.add(Request(prompt, max_tokens=9, id="ends"), ask(rng, "a", 6, 3), ask(rng, "b", 10, 2),
            ask(rng, "c", 3, 5, n=2))
    run.finish(hint)
    run.expect_records(hint)
    run = Run(LLMEngine, rng)
    run.add(ask(rng, "a", 4, 2, grammar=Slow))
    run.finish(hint)
    for record in run.mine.records:
        expect(record.seconds - record.model_seconds >= SECONDS,
               "model_seconds to be those of the forward pass alone, in a step in which an "
               f"answer takes {SECONDS:g} s to choose its token",
               f"{record.model_seconds:.3f} of {record.seconds:.3f} s",
               "Stop the inner clock before the logits are handed over.")


@check(STEP, points=1, public=True, always=(5,))
def nothing_to_do(LLMEngine, rng):
    """Without anything to do the model is not asked, and nothing is put on record;
    what is left over is returned all the same."""
    run = Run(LLMEngine, rng)
    run.step("No request has come. Does the plan have any rows?")
    run.add(ask(rng, "a", 4, 3), ask(rng, "b", 4, 2))
    run.step("Two prompts.")
    run.abort("a")
    run.abort("b")
    run.step("All was aborted.")
    run.add(ask(rng, "c", 4, 1))
    run.finish()
    run.step("The engine has finished, and is asked again.")
    run.expect_records("An empty step is none.")


@check(STEP, points=1, public=True, always=(0,))
def failures(LLMEngine, rng):
    """What the forward pass raises goes on to the caller, and all of the step's answers
    wait to be computed again; then they go on as if nothing had been."""
    hint = ("`preempt` for every sequence of the plan, whatever was raised, and `raise`. "
            "Nothing goes on record.")
    for error in (RuntimeError("no memory"), SystemExit("interrupted")):
        run = Run(LLMEngine, rng, failures={0: error, 2: error, 5: error})
        run.add(ask(rng, "a", 5, 4), ask(rng, "b", 3, 5))
        run.finish(hint)
        run.expect_records(hint)
    run = Run(LLMEngine, rng)
    run.add(ask(rng, "a", 5, 4),
            ask(rng, "b", 3, 5, grammar=lambda: Refusing(GeneratorExit("interrupted"))),
            ask(rng, "c", 4, 5))
    run.finish("An interrupt while an answer chooses its token: what others had said by then "
               "is still to be returned.")
    run.expect_records(hint)
    run = Run(LLMEngine, rng)
    run.add(ask(rng, "a", 5, 3),
            ask(rng, "b", 3, 5, grammar=lambda: Refusing(GeneratorExit("interrupted"))))
    run.finish("An interrupt after another answer has ended: nobody runs any more, and what it "
               "said last is still to be returned, by a step with an empty plan.")
    run = Run(LLMEngine, rng, failures={1: ValueError("broken")})
    run.add(ask(rng, "a"))
    run.step()
    with expect_error(ValueError, when="the forward pass raises it", hint=hint):
        run.mine.step()


@check(STEP, points=1, public=True)
def guesses(LLMEngine, rng):
    """Answers guess before each step, and right guesses save forward passes."""
    prompt = [64 + int(i) for i in rng.permutation(6)[:3]] * 3
    for script in (prompt, [*prompt[:4], 80, 81]):
        run = Run(LLMEngine, rng, speculative_tokens=3,
                  model={"prompt": prompt, "script": [*script, EOS]})
        run.add(Request(prompt, max_tokens=12, id="a"), ask(rng, "b", 4, 3))
        run.finish("Who guesses, and when? The plan has to know of the guesses.")
        run.expect_records()


@check(STEP, points=0.5, public=False)
def any_work(LLMEngine, rng):
    """Random work: many requests, several answers, little memory, failures, aborts,
    and answers that fail."""
    def refuse() -> Refusing:
        return Refusing(ValueError("no letter follows"))

    for options in ({"num_blocks": 9}, {"speculative_tokens": 2, "max_num_seqs": 3},
                    {"failures": {3: RuntimeError("x"), 4: SystemExit("y")}},
                    {"enable_prefix_caching": False, "max_num_batched_tokens": 5}):
        run = Run(LLMEngine, rng, **options)
        for number in range(5):
            run.add(ask(rng, f"r{number}", int(rng.integers(1, 12)), int(rng.integers(1, 9)),
                        n=int(rng.integers(1, 3)), priority=int(rng.integers(2)),
                        stop_ids=rng.integers(64, 90, 3).tolist(),
                        grammar=refuse if number == 2 else None,
                        params=SamplingParams(float(rng.choice([0, 1])), seed=number)))
            run.step()
            if rng.random() < 0.2:
                run.abort(f"r{int(rng.integers(number + 1))}")
        run.finish()
        run.expect_records()
