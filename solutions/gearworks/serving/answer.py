"""One answer as it is written: `decoding.generate`, halted wherever it asks the model.

Chapter 1's loop and chapter 5's choices know nothing of batches. They call `forward` and wait
for logits. Here that call is where an answer stands still, until a step of the engine has
computed its row together with those of all others. What makes this possible is a coroutine that
can halt inside of any function, however deep: a greenlet.
"""

import dataclasses
from collections.abc import Sequence as Ids
from typing import Any

import greenlet
import numpy as np

from gearworks.decoding import generate
from gearworks.errors import GearworksError, ModelError
from gearworks.language_model import LanguageModel
from gearworks.sampling import TokenLogprob, logprobs
from gearworks.serving.request import Delta
from gearworks.serving.sequence import Sequence


class Aborted(BaseException):
    """Raised where an answer waits for its logits, when nobody wants it any more."""


class Answer:
    """An answer, and what is new of it. It takes the place of `decoding.Context`."""

    def __init__(self, sequence: Sequence, language_model: LanguageModel):
        self.sequence = sequence
        self.finish_reason: str | None = None
        self.error: GearworksError | None = None
        self.accepted = 0              # guesses that were right, since it was resumed
        self.cache = self              # `generate` asks the context's cache for its capacity
        self.capacity = sequence.limit
        self._language_model = language_model
        self._greenlet = greenlet.greenlet(self._write)
        self._rows: list[np.ndarray] = []                 # logits that nobody has read yet
        self._read: np.ndarray | None = None              # the row that the next token is from
        self._text: list[str] = []
        self._ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []

    def resume(self, rows: np.ndarray) -> None:
        """Write on, with the logits after the sequence's last token and after each guess.

        rows: (1 + guesses, V). Returns when other logits are needed, or the answer is finished.
        """
        self._rows = list(rows)
        self.accepted = 0
        self._greenlet.parent = greenlet.getcurrent()
        self._greenlet.switch()

    def abort(self) -> None:
        """Raise where the answer waits; nothing comes of it any more."""
        if self._greenlet:
            self._greenlet.parent = greenlet.getcurrent()
            self._greenlet.throw(Aborted)

    def delta(self) -> Delta | None:
        """What is new since the last time, or None."""
        if not (self._text or self._ids or self.finish_reason):
            return None
        delta = Delta(self.sequence.request.id, self.sequence.index, "".join(self._text),
                      tuple(self._ids), tuple(self._logprobs), self.finish_reason, self.error,
                      cached_tokens=self.sequence.cached_tokens or 0)
        for news in (self._text, self._ids, self._logprobs):
            news.clear()
        return delta

    def rewind(self, ids: Ids[int]) -> int:
        """As `decoding.Context.rewind`: how many tokens of the prompt were there already."""
        return self.sequence.cached_tokens or 0

    def forward(self, ids: Ids[int]) -> np.ndarray:
        """As `decoding.Context.forward`: the logits (V,) after `ids`, which are appended.

        A guess that is right has its logits already. Else the answer halts here.
        """
        if self._read is None:
            self._read = self._rows.pop(0)                # after the prompt
            return self._read
        sequence = self.sequence
        self._take(ids[-1])
        sequence.append(ids[-1])
        if sequence.guesses and self._rows and sequence.guesses[0] == ids[-1]:
            del sequence.guesses[0]
            self.accepted += 1
        else:
            sequence.guesses.clear()
            greenlet.getcurrent().parent.switch()
        self._read = self._rows.pop(0)
        return self._read

    def _take(self, token: int) -> None:
        """A token was chosen."""
        self._ids.append(token)
        if self.sequence.request.top_logprobs is not None:
            self._logprobs.append(logprobs(self._read, token,
                                           self.sequence.request.top_logprobs))

    def _write(self) -> None:
        request, model = self.sequence.request, self._language_model
        params = request.params
        if params.seed is not None:
            params = dataclasses.replace(params, seed=params.seed + self.sequence.index)
        try:
            generation = generate(
                model.model, _Encoded(model.tokenizer, request.prompt_ids), "", params=params,
                max_tokens=self.capacity - len(request.prompt_ids),
                eos_ids=() if request.ignore_eos else model.eos_ids, stop=request.stop,
                stop_ids=request.stop_ids, on_text=self._text.append, context=self,
                grammar=None if request.grammar is None else request.grammar())
        except Aborted:
            self.finish_reason = "abort"
            return
        except (KeyboardInterrupt, GeneratorExit, greenlet.GreenletExit):
            raise                                           # these are not about this answer
        except BaseException as error:
            # in a learner's gear, a library, or ours: it ends this answer, and no other
            self.finish_reason, self.error = "error", failure(error)
            return
        for token in generation.ids[len(self.sequence.generated()):]:
            self._take(token)                              # the one that reached the limit
        self.finish_reason = generation.finish_reason


def failure(error: BaseException) -> GearworksError:
    """What a client is told of an exception that ended an answer."""
    if isinstance(error, GearworksError):
        return error
    return ModelError("this answer failed", f"{type(error).__name__}: {error}",
                      "try it alone, with `gearworks generate`")


class _Encoded:
    """A tokenizer for which the prompt is encoded already."""

    def __init__(self, tokenizer: Any, ids: Ids[int]):
        self._tokenizer, self._ids = tokenizer, list(ids)

    def encode(self, text: str, **options: Any) -> list[int]:
        return self._ids

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)
