"""From a prompt to a finished text: the request loop of `pipeline`, run on a real model.

Shapes: V vocabulary. Ids are Python lists of int, logits (V,) float32.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from gearworks.errors import ModelError
from gearworks.model import Model
from gearworks.pipeline import Completion, run_request
from gearworks.sampling import SamplingParams, choose
from gearworks.tokenizer import IncrementalDetokenizer, Tokenizer

# A long prompt enters the model in pieces of this many tokens, which bounds the memory of a step.
PREFILL_CHUNK = 512


@dataclass(frozen=True)
class Generation(Completion):
    """A completion, and what it took."""

    cached_tokens: int              # tokens at the start of the prompt that were in the cache already
    prefill_seconds: float          # until the first logits
    decode_seconds: float           # everything after them

    @property
    def usage(self) -> dict[str, int]:
        """Token counts in OpenAI's names."""
        prompt, completion = len(self.prompt_ids), len(self.ids)
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


class Context:
    """One sequence as the model has seen it: its ids, and the cache that holds their keys and values."""

    def __init__(self, model: Model, capacity: int | None = None):
        """capacity: in tokens, by default all that the model was made for. Memory is touched as it fills."""
        limit = model.config.max_position_embeddings
        self.model = model
        self.cache = model.new_cache(limit if capacity is None else min(capacity, limit))
        self.ids: list[int] = []

    def rewind(self, ids: Sequence[int]) -> int:
        """Keep what is stored of a new prompt's beginning, forget the rest, and return how many tokens that is.

        At least the prompt's last token is left to compute, since its logits are needed.
        """
        shared = 0
        for old, new in zip(self.ids, ids[:-1]):
            if old != new:
                break
            shared += 1
        del self.ids[shared:]                   # first: an interrupt in between must leave no id without its keys
        self.cache.truncate(shared)
        return shared

    def forward(self, ids: Sequence[int]) -> np.ndarray:
        """Append at least one id; returns the logits (V,) after the last."""
        for start in range(0, len(ids), PREFILL_CHUNK):
            chunk = np.asarray(ids[start:start + PREFILL_CHUNK])
            positions = np.arange(len(self.ids), len(self.ids) + len(chunk))
            try:
                with np.errstate(all="ignore"):         # broken weights show in the logits, and `choose` refuses those
                    logits = self.model.forward(chunk, positions, self.cache, logits_at=[-1])
            except BaseException:               # interrupted between layers: none of them may keep this step's tokens
                self.cache.truncate(len(self.ids))
                raise
            self.ids += chunk.tolist()
        return logits[0]


def generate(model: Model, tokenizer: Tokenizer, prompt: str, *, params: SamplingParams = SamplingParams(),
             max_tokens: int = 256, eos_ids: Collection[int] = (), add_special_tokens: bool = True,
             on_text: Callable[[str], None] | None = None, context: Context | None = None) -> Generation:
    """Continue a prompt.

    max_tokens: at most so many new tokens, and never more than the model's context has room for. eos_ids: any of them
    ends the text. add_special_tokens: whether the tokenizer puts its BOS in front, which must be false for a rendered
    conversation, since its template did so already. on_text: receives the text in pieces as it grows; together they
    are `Generation.text`. context: a conversation's earlier tokens, so that a prompt that begins like the last one
    costs only its new part.
    Raises ModelError when the prompt is empty or leaves no room, or the settings make no sense.
    """
    if max_tokens < 0:
        raise ModelError("cannot generate", f"max_tokens is {max_tokens}", "give a value of at least 0")
    rng = np.random.default_rng(params.seed)
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special=True)
    seen: list[int] = []                                    # the prompt and the generated ids, for the penalties
    started = first_logits_at = time.perf_counter()
    cached_tokens = 0

    prompt_ids = tokenizer.encode(prompt, add_special_tokens=add_special_tokens)
    limit = model.config.max_position_embeddings if context is None else context.cache.capacity
    if not prompt_ids:
        raise ModelError("cannot generate", "the prompt is empty", "give the model at least one character to continue")
    if len(prompt_ids) + min(max_tokens, 1) > limit:
        raise ModelError("cannot generate", f"the prompt has {len(prompt_ids)} tokens, and the context {limit}",
                         "shorten the prompt")
    max_tokens = min(max_tokens, limit - len(prompt_ids))
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

    def show(token: int) -> bool:
        text = detokenizer.push(token)
        if on_text is not None and text:
            on_text(text)
        return False

    completion = run_request(
        prompt, encode=lambda _: prompt_ids, forward=forward, choose=lambda logits: choose(logits, params, seen, rng),
        decode=lambda ids: tokenizer.decode(ids, skip_special=True), eos_ids=eos_ids, max_tokens=max_tokens,
        on_token=show)
    rest = detokenizer.flush()
    if on_text is not None and rest:
        on_text(rest)
    return Generation(**vars(completion), cached_tokens=cached_tokens, prefill_seconds=first_logits_at - started,
                      decode_seconds=time.perf_counter() - first_logits_at)
