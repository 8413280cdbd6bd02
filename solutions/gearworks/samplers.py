"""Samplers of other engines, that their users miss elsewhere; all are off until asked for.

Pure functions as in `sampling`: logits in, new logits out. Shapes: V vocabulary; logits are
float32, (V,).

`sampling.process` applies them where they belong: min-tokens and DRY after the penalties, then
top-n-sigma, dynamic temperature in the temperature's place; `sampling.choose` ends with XTC,
which comes after all that rules unlikely tokens out.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Integral

import numpy as np

from gearworks.errors import ModelError
from gearworks.layers import softmax
from gearworks.tokenizer import Tokenizer

BREAKERS = ("\n", ":", '"', "*")     # llama.cpp's: a list may begin with the same words
LONGEST_REPEAT = 50                 # of tokens that DRY looks at: beyond, nothing more changes


@dataclass(frozen=True)
class OtherSamplers:
    """What one request asks for. The names are llama.cpp's, and vLLM's for `min_tokens`.

    dry_breakers: ids that a repeat does not reach across. ending_ids: what `min_tokens` holds
    back. Raises ModelError for values outside of their bounds.
    """

    dry_multiplier: float = 0.0         # 0 is off
    dry_base: float = 1.75
    dry_allowed_length: int = 2         # in tokens
    dry_penalty_last_n: int = -1        # how many tokens it looks back; -1: all
    dry_breakers: frozenset[int] = frozenset()
    xtc_probability: float = 0.0        # 0 is off
    xtc_threshold: float = 0.1          # above 0.5 nothing happens
    top_n_sigma: float = 0.0            # 0 is off
    dynatemp_range: float = 0.0         # 0 is off
    dynatemp_exponent: float = 1.0
    min_tokens: int = 0                 # 0 is off
    ending_ids: frozenset[int] = frozenset()

    def __post_init__(self):
        for name, valid, range_ in (
            ("dry_multiplier", 0 <= self.dry_multiplier <= 1e6, "from 0 to 1e6"),
            ("dry_base", 1 <= self.dry_base <= 4, "from 1 to 4"),
            ("dry_allowed_length", _is_whole(self.dry_allowed_length, 1),
             "that is a whole number, at least 1"),
            ("dry_penalty_last_n", _is_whole(self.dry_penalty_last_n, -1),
             "that is a whole number, at least -1"),
            ("xtc_probability", 0 <= self.xtc_probability <= 1, "from 0 to 1"),
            ("xtc_threshold", 0 <= self.xtc_threshold <= 1, "from 0 to 1"),
            ("top_n_sigma", 0 <= self.top_n_sigma <= 1e6, "from 0 to 1e6"),
            ("dynatemp_range", 0 <= self.dynatemp_range <= 1e6, "from 0 to 1e6"),
            ("dynatemp_exponent", 0 <= self.dynatemp_exponent <= 100, "from 0 to 100"),
            ("min_tokens", _is_whole(self.min_tokens, 0), "that is a whole number, at least 0"),
        ):
            if not valid:
                raise ModelError("cannot sample with these settings",
                                 f"{name} is {getattr(self, name)}", f"give a value {range_}")

    def for_model(self, tokenizer: Tokenizer, breakers: Sequence[str],
                  ending_ids: Collection[int]) -> "OtherSamplers | None":
        """The same for a model, or None if nothing is asked for.

        breakers: texts that no repeat reaches across, for DRY; ending_ids: the EOS ids and
        others that end an answer, for `min_tokens`.
        """
        if not (self.dry_multiplier or self.xtc_probability or self.top_n_sigma
                or self.dynatemp_range or self.min_tokens):
            return None
        return replace(self, ending_ids=frozenset(ending_ids),
                       dry_breakers=breaking_ids(tokenizer, breakers) if self.dry_multiplier
                       else frozenset())

    def penalized(self, logits: np.ndarray, ids: Sequence[int],
                  generated: Sequence[int]) -> np.ndarray:
        """What comes before the temperature: min-tokens, DRY, top-n-sigma.

        logits: (V,); ids: the prompt and what was generated; generated: the latter alone.
        Returns (V,).
        """
        if len(generated) < self.min_tokens:
            logits = hold_back(logits, self.ending_ids)
        if self.dry_multiplier:
            last = len(ids) if self.dry_penalty_last_n == -1 else self.dry_penalty_last_n
            logits = dry(logits, ids[max(0, len(ids) - last):], self.dry_multiplier,
                         self.dry_base, self.dry_allowed_length, self.dry_breakers)
        if self.top_n_sigma:
            logits = top_n_sigma(logits, self.top_n_sigma)
        return logits

    def temperature(self, logits: np.ndarray, value: float) -> float:
        """The temperature of this token, where `value` is asked for. logits: (V,)."""
        if not self.dynatemp_range:
            return value
        return dynamic_temperature(logits, value, self.dynatemp_range, self.dynatemp_exponent)

    def without_top_choices(self, logits: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """XTC, as often as is asked for; uses one `rng.random()` where it is on.
        logits: (V,), after all else; returns (V,)."""
        if self.xtc_probability and rng.random() < self.xtc_probability:
            return xtc(logits, self.xtc_threshold)
        return logits


# What a user sets: all but the ids, which depend on the model
SETTINGS = tuple(field.name for field in fields(OtherSamplers)
                 if field.name not in ("dry_breakers", "ending_ids"))


def hold_back(logits: np.ndarray, ids: Collection[int]) -> np.ndarray:
    """Rule out tokens that would end the answer too early; where nothing else is possible, as
    at the end of a grammar, they stay.

    logits: (V,); returns (V,). Source: vLLM's `min_tokens`.

    >>> hold_back(np.array([1., 2., 3.], np.float32), {2})
    array([  1.,   2., -inf], dtype=float32)
    """
    out = logits.copy()
    out[list(ids)] = -np.inf
    return out if (out > -np.inf).any() else logits.copy()


def dry(logits: np.ndarray, ids: Sequence[int], multiplier: float, base: float = 1.75,
        allowed_length: int = 2, breakers: Collection[int] = ()) -> np.ndarray:
    """Subtract from tokens that would go on with a repeat, more the longer it is: "don't repeat
    yourself".

    logits: (V,). Where the last n tokens of `ids` occurred before, n at least allowed_length,
    the token that came after them loses multiplier * base ** (n - allowed_length). A repeat
    does not reach across a breaker, and a breaker loses nothing. Returns (V,).
    Source: p-e-w 2024, pull request 5677 of text-generation-webui; as llama.cpp's `dry`.

    >>> dry(np.zeros(4, np.float32), [0, 1, 2, 0, 1], multiplier=1.0)
    array([ 0.,  0., -1.,  0.], dtype=float32)
    """
    out = logits.copy()
    text = np.asarray(ids, dtype=np.int64)
    broken = np.isin(text, [*breakers])
    if not len(text) or broken[-1]:
        return out
    # where the last token stood before, each with the length of its repeat
    places = np.flatnonzero((text[:-1] == text[-1]) & ~broken[1:])
    lengths = np.ones(len(places), np.int64)
    alive = np.arange(len(places))
    for back in range(1, min(LONGEST_REPEAT, len(text))):
        if broken[-1 - back]:
            break
        alive = alive[places[alive] >= back]
        alive = alive[text[places[alive] - back] == text[-1 - back]]
        lengths[alive] += 1
    longest = np.zeros(len(logits), np.int64)
    np.maximum.at(longest, text[places + 1], lengths)
    repeated = np.flatnonzero(longest >= allowed_length)
    out[repeated] -= (multiplier * base ** (longest[repeated] - float(allowed_length))
                      ).astype(np.float32)
    return out


def top_n_sigma(logits: np.ndarray, n: float) -> np.ndarray:
    """Rule out the tokens whose logits are more than n standard deviations below the largest.

    logits: (V,); n: above 0. What is ruled out already does not count. A temperature changes
    nothing: it scales deviations and distances alike. Returns (V,).
    Source: Tang et al. 2024, "Top-nσ: Not All Logits Are You Need"; as llama.cpp's.

    >>> top_n_sigma(np.array([0., 1., 2., 3.], np.float32), 1.0)
    array([-inf, -inf,   2.,   3.], dtype=float32)
    """
    possible = logits[logits > -np.inf]
    if not len(possible):
        return logits.copy()
    least = possible.max() - np.float32(n) * possible.std()
    return np.where(logits < least, np.float32(-np.inf), logits)


def dynamic_temperature(logits: np.ndarray, value: float, range_: float,
                        exponent: float = 1.0) -> float:
    """A temperature from value - range_ to value + range_: low where the model is certain, high
    where it is not.

    logits: (V,). With the entropy of softmax(logits) as a share of the greatest possible one,
    from 0 to 1, it is value - range_ + 2 * range_ * share ** exponent; below 1e-6 it never
    gets. Source: kalomaze 2023, in koboldcpp; as llama.cpp's `temp_ext`.

    >>> dynamic_temperature(np.zeros(4, np.float32), 1.0, 0.5)
    1.5
    >>> round(dynamic_temperature(np.array([50., 0., 0.], np.float32), 1.0, 0.5), 6)
    0.5
    """
    possible = logits[logits > -np.inf]
    if len(possible) < 2:
        return value
    probabilities = softmax(possible).astype(np.float64)
    probabilities = probabilities[probabilities > 0]
    entropy = -(probabilities * np.log(probabilities)).sum()
    share = min(1.0, max(0.0, entropy / math.log(len(possible))))
    least, most = max(0.0, value - range_), value + range_
    return max(1e-6, float(least + (most - least) * share ** exponent))


def xtc(logits: np.ndarray, threshold: float) -> np.ndarray:
    """Rule out the top choices: of the tokens that have at least this probability, all but the
    least likely one, and those tied with it.

    logits: (V,); returns (V,). Where only one token has it, nothing changes: a text goes on as
    it must, and takes another way where there are several good ones.
    Source: p-e-w 2024, "Exclude Top Choices", pull request 6335 of text-generation-webui; as
    llama.cpp's `xtc`.

    >>> xtc(np.log(np.array([0.5, 0.3, 0.2], np.float32)), 0.25).round(2)
    array([ -inf, -1.2 , -1.61], dtype=float32)
    """
    probabilities = softmax(logits)
    top = probabilities >= threshold
    if top.sum() < 2:
        return logits.copy()
    return np.where(probabilities > probabilities[top].min(), np.float32(-np.inf), logits)


def breaking_ids(tokenizer: Tokenizer, breakers: Sequence[str]) -> frozenset[int]:
    """The ids of tokens that hold one of these texts; one across several tokens breaks nothing.

    >>> from gearworks.vocabularies.vocabulary import Vocabulary
    >>> sorted(breaking_ids(Tokenizer(Vocabulary({"a": 0, ":": 1, "a:b": 2}, {})), [":"]))
    [1, 2]
    """
    sought = [breaker.encode() for breaker in breakers]
    return frozenset(id for id in tokenizer.vocabulary.ids
                     if any(text in tokenizer.token_bytes(id) for text in sought))


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, Integral) and value >= least
