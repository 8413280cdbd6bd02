"""What a client asks of the engine, and what it gets back, step by step.

A request may want several answers. Each answer is a sequence of its own in the scheduler
(`sequence.py`); what the client sees of it is a stream of deltas.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from uuid import uuid4

from gearworks.decoding import Grammar
from gearworks.errors import GearworksError, ModelError
from gearworks.sampling import SamplingParams, TokenLogprob


@dataclass(frozen=True)
class Request:
    """One prompt, and how it is to be continued.

    max_tokens: of each answer; None for as many as the context has room for. n: how many
    answers; with a seed s, answer i draws with seed s + i. stop, stop_ids: any of these strings
    or tokens ends an answer, and is not part of it. top_logprobs: with a number, each token
    comes with its log-probability and those of so many alternatives. prompt_logprobs: the same
    for the tokens of the prompt. grammar: makes a fresh grammar for each answer. priority: of
    two requests that came together, that with the lower number goes first.
    """

    prompt_ids: Sequence[int]
    params: SamplingParams = SamplingParams()
    max_tokens: int | None = None
    n: int = 1
    stop: Sequence[str] = ()
    stop_ids: Sequence[int] = ()
    ignore_eos: bool = False
    top_logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: Callable[[], Grammar] | None = None
    priority: int = 0
    id: str = field(default_factory=lambda: uuid4().hex)

    def __post_init__(self):
        if self.n < 1:
            raise ModelError("cannot answer this request", f"n is {self.n}",
                             "ask for at least one answer")


@dataclass(frozen=True)
class Delta:
    """What one step of the engine added to one answer.

    index: which of the request's answers. text: whole characters; all of an answer's texts
    together are the answer. ids: the tokens that were chosen, without one that ended the
    answer; their text may come with a later delta. logprobs: one for each of `ids`, when they
    were asked for. finish_reason: None until the answer's last delta, then "stop", "length",
    "abort", or "error" with an `error`. prompt_logprobs: with an answer's first delta, when
    they were asked for, one for each token of the prompt, None for the first. cached_tokens:
    how many tokens of the prompt nobody had to compute.
    """

    request_id: str
    index: int
    text: str = ""
    ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: str | None = None
    error: GearworksError | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    cached_tokens: int = 0
