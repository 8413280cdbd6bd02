"""From a prompt to a finished text: the request loop of `pipeline`, run on a real model.

Shapes: V vocabulary. Ids are Python lists of int, logits (V,) float32.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gearworks.errors import ModelError
from gearworks.model import Model
from gearworks.pipeline import Completion, run_request
from gearworks.sampling import SamplingParams, TokenLogprob, choose, logprobs
from gearworks.tokenizer import IncrementalDetokenizer, Tokenizer

# A long prompt enters the model in pieces of so many tokens, which bounds a step's memory.
PREFILL_CHUNK = 512


@dataclass(frozen=True)
class Generation(Completion):
    """A completion, and what it took."""

    cached_tokens: int        # tokens at the start of the prompt that were in the cache already
    prefill_seconds: float          # until the first logits
    decode_seconds: float           # everything after them
    logprobs: tuple[TokenLogprob, ...] = ()    # one for each of `ids`, when they were asked for

    @property
    def usage(self) -> dict[str, int]:
        """Token counts in OpenAI's names."""
        prompt, completion = len(self.prompt_ids), len(self.ids)
        return {"prompt_tokens": prompt, "completion_tokens": completion,
                "total_tokens": prompt + completion}


class Grammar(Protocol):
    """What may come next: `structured.TokenGrammar`."""

    def allowed(self) -> np.ndarray:
        """The tokens that may come next, (V,) bool."""
        ...

    def advance(self, token: int) -> None:
        """Take the token that was chosen."""
        ...


class Context:
    """One sequence as the model has seen it: ids, and the cache of their keys and values."""

    def __init__(self, model: Model, capacity: int | None = None):
        """capacity: in tokens, by default all that the model was made for.
        Memory is touched as it fills."""
        limit = model.config.max_position_embeddings
        self.model = model
        self.cache = model.new_cache(limit if capacity is None else min(capacity, limit))
        self.ids: list[int] = []

    def rewind(self, ids: Sequence[int]) -> int:
        """Keep only what is stored of a new prompt's beginning; returns how many tokens it is.

        At least the prompt's last token is left to compute, since its logits are needed.
        """
        shared = 0
        for old, new in zip(self.ids, ids[:-1]):
            if old != new:
                break
            shared += 1
        self.truncate(shared)
        return shared

    def forward(self, ids: Sequence[int]) -> np.ndarray:
        """Append at least one id; returns the logits (V,) after the last."""
        return self.forward_all(ids, rows=1)[0]

    def forward_all(self, ids: Sequence[int], rows: int) -> np.ndarray:
        """Append at least one id; returns (rows, V) logits, after each of the last `rows`."""
        for start in range(0, len(ids), PREFILL_CHUNK):
            # The last chunk is long enough for all rows that are wanted
            end = (len(ids) if len(ids) - start <= PREFILL_CHUNK + rows
                   else start + PREFILL_CHUNK)
            chunk = np.asarray(ids[start:end])
            positions = np.arange(len(self.ids), len(self.ids) + len(chunk))
            try:
                # broken weights show in the logits, and `choose` refuses those
                with np.errstate(all="ignore"):
                    logits = self.model.forward(chunk, positions, self.cache,
                                                logits_at=slice(-rows, None))
            except BaseException:
                # interrupted between layers: none of them may keep this step's tokens
                self.cache.truncate(len(self.ids))
                raise
            self.ids += chunk.tolist()
            if end == len(ids):
                break
        return logits

    def truncate(self, length: int) -> None:
        """Forget every token from position `length` on."""
        # first: an interrupt in between must leave no id without its keys
        del self.ids[length:]
        self.cache.truncate(length)


def room_for(prompt_ids: Sequence[int], max_tokens: int, capacity: int) -> int:
    """How many new tokens a text may get: `max_tokens`, or what room the prompt leaves.

    capacity: of the cache, in tokens. Raises ModelError when the prompt is empty or leaves no
    room, and when max_tokens is negative.

    >>> room_for([1, 2, 3], 100, capacity=8)
    5
    """
    if max_tokens < 0:
        raise ModelError("cannot generate", f"max_tokens is {max_tokens}",
                         "give a value of at least 0")
    if not len(prompt_ids):
        raise ModelError("cannot generate", "the prompt is empty",
                         "give the model at least one character to continue")
    if len(prompt_ids) + min(max_tokens, 1) > capacity:
        raise ModelError("cannot generate",
                         f"the prompt has {len(prompt_ids)} tokens, and the context {capacity}",
                         "shorten the prompt, or the conversation before it")
    return min(max_tokens, capacity - len(prompt_ids))


class StopMatcher:
    """Finds the first stop string in a text that comes in pieces, and shows what is before it.

    Nothing of a stop string is ever shown, and nothing before it is lost, wherever the pieces
    end. Of several stop strings the one that is complete first ends the text; of two that are
    complete at once, the longer. What can no longer become part of a stop string is shown at
    once. found: the stop string that ended the text, or None.

    >>> matcher = StopMatcher(["END"])
    >>> matcher.push("one E"), matcher.push("N, two EN"), matcher.push("D three"), matcher.found
    ('one ', 'EN, two ', '', 'END')
    """

    def __init__(self, stops: Sequence[str]):
        """Raises ModelError for an empty stop string, which would end every text at once."""
        if any(not stop for stop in stops):
            raise ModelError("cannot stop at an empty text", "one of the stop strings is empty",
                             "leave it out")
        self.stops = tuple(stops)
        self.found: str | None = None
        self._held = ""                      # could still become the beginning of a stop string

    def push(self, text: str) -> str:
        """Take the next piece; returns what can be shown by now.
        After a stop string was found, that is nothing."""
        if self.found is not None:
            return ""
        text = self._held + text
        ends = [(at + len(stop), -len(stop), stop) for stop in self.stops
                if (at := text.find(stop)) >= 0]
        if ends:
            end, _, self.found = min(ends)
            self._held = ""
            return text[:end - len(self.found)]
        # a whole one would have been found
        longest = max((len(stop) for stop in self.stops), default=1) - 1
        held = next((length for length in range(min(longest, len(text)), 0, -1)
                     if any(stop.startswith(text[-length:]) for stop in self.stops)), 0)
        self._held = text[len(text) - held:]
        return text[:len(text) - held]

    def flush(self) -> str:
        """The text has ended: what was held back is a part of it, and is returned once."""
        held, self._held = self._held, ""
        return held


class TextStream:
    """From tokens to the text that a reader sees, in pieces, up to a stop string."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str],
                 on_text: Callable[[str], None] | None):
        self._detokenizer = IncrementalDetokenizer(tokenizer, skip_special=True)
        # "END" is not "E", "N" and "D"
        self._matcher = StopMatcher([stop] if isinstance(stop, str) else stop)
        self._on_text = on_text
        self._shown: list[str] = []

    def push(self, token: int) -> bool:
        """Take a token, show what it completes; returns whether a stop string was found."""
        self._show(self._matcher.push(self._detokenizer.push(token)))
        return self._matcher.found is not None

    def finish(self) -> str:
        """Show what is left, and return the whole text."""
        if self._matcher.found is None:
            self._show(self._matcher.push(self._detokenizer.flush()))
            self._show(self._matcher.flush())
        return "".join(self._shown)

    def _show(self, text: str) -> None:
        if text:
            self._shown.append(text)
            if self._on_text is not None:
                self._on_text(text)


def generate(model: Model, tokenizer: Tokenizer, prompt: str, *,
             params: SamplingParams = SamplingParams(), max_tokens: int = 256,
             eos_ids: Collection[int] = (), stop: Sequence[str] = (),
             stop_ids: Collection[int] = (), add_special_tokens: bool = True,
             top_logprobs: int | None = None, grammar: Grammar | None = None,
             on_text: Callable[[str], None] | None = None,
             context: Context | None = None) -> Generation:
    """Continue a prompt.

    max_tokens: at most so many new tokens, and never more than the model's context has room
    for. eos_ids, stop_ids: any of them ends the text, and is not part of it. stop: any of these
    strings ends the text before its beginning, wherever the borders of tokens lie.
    add_special_tokens: whether the tokenizer puts its BOS in front, which must be false for a
    rendered conversation, since its template did so already. top_logprobs: with a number, the
    log-probability of each token is kept, and those of so many alternatives. grammar: the
    tokens that may come next, from `structured`. on_text: receives the text in pieces of whole
    characters as it grows; together they are `Generation.text`. A character that the end of the
    text cuts reads U+FFFD, as in `Tokenizer.decode`. context: a conversation's earlier tokens,
    so that a prompt that begins like the last one costs only its new part.
    All draws come from one `np.random.default_rng(params.seed)`. The repetition penalty sees
    the prompt and the text, the presence and frequency penalties the text alone.
    Raises ModelError when the prompt is empty or leaves no room, or the settings make no sense.

    >>> from types import SimpleNamespace
    >>> from gearworks.vocabularies.vocabulary import Vocabulary
    >>> class OneMore:                                # a model: after id n comes n + 1
    ...     config = SimpleNamespace(max_position_embeddings=9)
    ...     def new_cache(self, capacity):
    ...         return SimpleNamespace(capacity=capacity, truncate=lambda length: None)
    ...     def forward(self, input_ids, positions, cache, logits_at):
    ...         return np.eye(4, dtype=np.float32)[np.asarray(input_ids)[logits_at] + 1]
    >>> tokenizer = Tokenizer(Vocabulary({"a": 0, "b": 1, "c": 2, "d": 3}, {}))
    >>> generation = generate(OneMore(), tokenizer, "a", eos_ids={3})
    >>> generation.ids, generation.text, generation.finish_reason
    ([1, 2], 'bc', 'stop')
    """
    rng = np.random.default_rng(params.seed)
    stream = TextStream(tokenizer, stop, on_text)
    seen: list[int] = []                   # the prompt and the generated ids, for the penalties
    kept_logprobs: list[TokenLogprob] = []
    started = first_logits_at = time.perf_counter()
    cached_tokens = 0

    prompt_ids = tokenizer.encode(prompt, add_special_tokens=add_special_tokens)
    limit = model.config.max_position_embeddings if context is None else context.cache.capacity
    max_tokens = room_for(prompt_ids, max_tokens, limit)
    if context is None:
        context = Context(model, len(prompt_ids) + max_tokens)

    def forward(ids: Sequence[int]) -> np.ndarray:
        nonlocal cached_tokens, first_logits_at
        if seen:
            logits = context.forward(ids)
        else:
            cached_tokens = context.rewind(ids)
            logits = context.forward(ids[cached_tokens:])
            first_logits_at = time.perf_counter()
        seen.extend(ids)
        return logits

    def choose_next(logits: np.ndarray) -> int:
        token = choose(logits, params, seen, rng, generated=seen[len(prompt_ids):],
                       allowed=None if grammar is None else grammar.allowed())
        if grammar is not None:
            grammar.advance(token)
        if top_logprobs is not None:
            kept_logprobs.append(logprobs(logits, token, top_logprobs))
        return token

    completion = run_request(prompt, encode=lambda _: prompt_ids, forward=forward,
                             choose=choose_next, decode=lambda ids: stream.finish(),
                             eos_ids={*eos_ids, *stop_ids}, max_tokens=max_tokens,
                             on_token=stream.push)
    kept = kept_logprobs[:len(completion.ids)]              # an EOS is not part of the text
    return Generation(**vars(completion), cached_tokens=cached_tokens,
                      prefill_seconds=first_logits_at - started,
                      decode_seconds=time.perf_counter() - first_logits_at,
                      logprobs=tuple(kept))
