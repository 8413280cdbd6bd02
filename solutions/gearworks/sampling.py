"""From logits to the next token.

Processors are pure functions: logits in, new logits out, the input untouched; a token that is
ruled out gets -inf.
Shapes: V vocabulary; logits are float32, (V,) for one sequence or (B, V) for several.

`process` applies them in Hugging Face's order: logit bias, repetition penalty, presence and
frequency penalty, allowed tokens, temperature, top-k, top-p, min-p, typical. Presence and
frequency penalties are OpenAI's, and Hugging Face has none; they stand beside the other
penalty. Other engines differ: `ORDERS` says how. What only they have is in `samplers`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral

import numpy as np

from gearworks.errors import ModelError
from gearworks.layers import softmax
from gearworks.samplers import OtherSamplers

# In which order engines apply what they have. From their sources:
# `GenerationMixin._get_logits_processor` of transformers 5; `common_params_sampling.samplers`
# of llama.cpp; `Sampler.forward` of vLLM V1. OpenAI documents formulas, no order.
ORDERS = {"Hugging Face": ("logit bias", "repetition penalty", "allowed tokens", "temperature",
                           "top-k", "top-p", "min-p", "typical"),
          "llama.cpp": ("logit bias", "allowed tokens",
                        "repetition, presence, frequency penalty", "DRY", "top-n-sigma",
                        "top-k", "typical", "top-p", "min-p", "XTC", "temperature"),
          "vLLM": ("allowed tokens", "logit bias", "repetition, frequency, presence penalty",
                   "temperature", "min-p", "top-k", "top-p")}


@dataclass(frozen=True)
class SamplingParams:
    """How one request wants its tokens chosen. The defaults are greedy, and change nothing."""

    temperature: float = 0.0             # 0 is greedy
    top_k: int = 0                       # 0 keeps every token
    top_p: float = 1.0                   # 1 keeps every token
    repetition_penalty: float = 1.0      # 1 changes nothing
    seed: int | None = None              # None draws a fresh one
    min_p: float = 0.0                   # 0 keeps every token
    typical_p: float = 1.0               # 1 keeps every token
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    others: OtherSamplers | None = None  # what other engines have besides

    def __post_init__(self):
        for name, valid, range_ in (
            # Beyond these bounds float32 has no room for the quotients.
            ("temperature", self.temperature == 0 or 1e-6 <= self.temperature <= 1e6,
             "of 0, or from 1e-6 to 1e6"),
            ("top_k", isinstance(self.top_k, Integral) and self.top_k >= 0,
             "that is a whole number, at least 0"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("repetition_penalty", 1e-6 <= self.repetition_penalty <= 1e6, "from 1e-6 to 1e6"),
            ("seed", self.seed is None or isinstance(self.seed, Integral) and self.seed >= 0,
             "that is a whole number, at least 0"),
            ("min_p", 0 <= self.min_p <= 1, "from 0 to 1"),
            ("typical_p", 0 < self.typical_p <= 1, "above 0 and at most 1"),
            ("presence_penalty", abs(self.presence_penalty) <= 1e6, "from -1e6 to 1e6"),
            ("frequency_penalty", abs(self.frequency_penalty) <= 1e6, "from -1e6 to 1e6"),
            ("logit_bias", all(abs(bias) <= 1e6 or bias == -math.inf
                               for bias in self.logit_bias.values()),
             "of numbers from -1e6 to 1e6, or -inf"),
        ):
            if not valid:
                raise ModelError("cannot sample with these settings",
                                 f"{name} is {getattr(self, name)}", f"give a value {range_}")


def logit_bias(logits: np.ndarray, bias: Mapping[int, float]) -> np.ndarray:
    """Add a number to the logits of some tokens.

    logits: (V,) or (B, V); bias: from id to number, for all rows. Returns the shape of logits.
    Raises ModelError for an id outside of the vocabulary. Source: OpenAI's `logit_bias`.

    >>> logit_bias(np.array([1., 2., 3.], np.float32), {2: -100.0, 0: 1.5})
    array([  2.5,   2. , -97. ], dtype=float32)
    """
    wrong = [id for id in bias if not 0 <= id < logits.shape[-1]]
    if wrong:
        raise ModelError("cannot bias the logits", f"there is no token {wrong[0]}",
                         f"ids go from 0 to {logits.shape[-1] - 1}")
    out = logits.copy()
    out[..., list(bias)] += np.array(list(bias.values()), np.float32)
    return out


def repetition_penalty(logits: np.ndarray, penalty: float,
                       ids: Sequence[int] | Sequence[Sequence[int]]) -> np.ndarray:
    """Make tokens that occurred less likely: divide positive logits, multiply negative ones.

    logits: (V,); penalty: above 0, where 1 changes nothing; ids: the prompt and what was
    generated so far. Of logits (B, V), each row has ids of its own, a list for each. Returns
    the shape of logits.
    Source: Keskar et al. 2019, "CTRL"; as HF's RepetitionPenaltyLogitsProcessor.

    >>> repetition_penalty(np.array([2., -2., 2.], np.float32), 2.0, [0, 1, 0])
    array([ 1., -4.,  2.], dtype=float32)
    """
    if logits.ndim > 1:
        return np.stack([repetition_penalty(row, penalty, seen)
                         for row, seen in zip(logits, ids, strict=True)])
    out = logits.copy()
    seen = np.unique(np.asarray(ids, dtype=np.int64))
    score = logits[seen]
    out[seen] = np.where(score > 0, score / np.float32(penalty), score * np.float32(penalty))
    return out


def presence_frequency(logits: np.ndarray, presence: float, frequency: float,
                       generated: Sequence[int] | Sequence[Sequence[int]]) -> np.ndarray:
    """Subtract from tokens that were generated: once for being there, once more for each time.

    logits: (V,); generated: the generated ids, without the prompt. Of logits (B, V), each row
    has ids of its own, a list for each. Returns the shape of logits.
    Source: OpenAI's documentation of `presence_penalty` and `frequency_penalty`.

    >>> presence_frequency(np.array([3., 3., 3.], np.float32), 1.0, 0.5, [1, 1, 2])
    array([3. , 1. , 1.5], dtype=float32)
    """
    if logits.ndim > 1:
        return np.stack([presence_frequency(row, presence, frequency, ids)
                         for row, ids in zip(logits, generated, strict=True)])
    out = logits.copy()
    seen, counts = np.unique(np.asarray(generated, dtype=np.int64), return_counts=True)
    out[seen] -= np.float32(presence) + np.float32(frequency) * counts.astype(np.float32)
    return out


def allow_only(logits: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Rule out every token that is not allowed.
    allowed: (V,) or the shape of logits, bool; returns the shape of logits.

    >>> allow_only(np.array([1., 2., 3.], np.float32), np.array([True, False, True]))
    array([  1., -inf,   3.], dtype=float32)
    """
    return np.where(allowed, logits, np.float32(-np.inf))


def temperature(logits: np.ndarray, value: float) -> np.ndarray:
    """Sharpen (value < 1) or flatten (value > 1) the distribution.

    logits: (V,) or (B, V); value: above 0. Returns the shape of logits.

    >>> temperature(np.array([1., 2.], np.float32), 0.5)
    array([2., 4.], dtype=float32)
    """
    return logits / np.float32(value)


def top_k(logits: np.ndarray, k: int) -> np.ndarray:
    """Rule out all but the k most likely tokens; tokens tied with the k-th stay.

    logits: (V,) or (B, V); k: at least 1, and k >= V keeps all. Returns the shape of logits.
    Source: as HF's TopKLogitsWarper.

    >>> top_k(np.array([1., 3., 2., 2.], np.float32), 2)
    array([-inf,   3.,   2.,   2.], dtype=float32)
    """
    k = min(k, logits.shape[-1])
    threshold = np.partition(logits, -k, axis=-1)[..., -k, None]
    return np.where(logits < threshold, np.float32(-np.inf), logits)


def top_p(logits: np.ndarray, p: float) -> np.ndarray:
    """Keep the fewest likeliest tokens whose probabilities reach p together; rule out others.

    logits: (V,) or (B, V); p: in (0, 1]. The token that crosses p is kept, so at least one is;
    of tokens tied at the border, the higher ids stay. The sum is right to a few tokens, however
    large V is. Returns the shape of logits.
    Source: Holtzman et al. 2019, nucleus sampling; as HF's TopPLogitsWarper.

    >>> top_p(np.log(np.array([0.5, 0.25, 0.15, 0.1], np.float32)), 0.7).round(2)
    array([-0.69, -1.39,  -inf,  -inf], dtype=float32)
    """
    if logits.ndim > 1:
        return np.stack([top_p(row, p) for row in logits])
    probabilities = softmax(logits)
    # All tokens below (1 - p) / V together have less than 1 - p, so they are out, and need not
    # be sorted. The likeliest one is in, even where all are equal and a tiny p puts this floor
    # above them; those of probability 0 are out.
    floor = np.clip(np.float32((1 - p) / len(logits)), np.finfo(np.float32).smallest_subnormal,
                    probabilities.max())
    candidates = np.flatnonzero(probabilities >= floor)
    order = candidates[np.argsort(logits[candidates], kind="stable")]                # ascending
    sorted_sum = probabilities[order].sum(dtype=np.float64)
    below_floor = max(0, probabilities.sum(dtype=np.float64) - sorted_sum)
    tail = (np.cumsum(probabilities[order], dtype=np.float64) + below_floor).astype(np.float32)
    kept = order[tail > np.float32(1 - p)]
    if not len(kept):
        kept = order[-1:]                                           # the most likely one always
    out = np.full_like(logits, -np.inf)
    out[kept] = logits[kept]
    return out


def min_p(logits: np.ndarray, p: float) -> np.ndarray:
    """Rule out the tokens that are less than p times as likely as the likeliest.

    logits: (V,) or (B, V); p: from 0 to 1. Returns the shape of logits.
    Source: Nguyen et al. 2024, "Turning Up the Heat"; as HF's MinPLogitsWarper.

    >>> min_p(np.log(np.array([0.6, 0.3, 0.1], np.float32)), 0.4).round(2)
    array([-0.51, -1.2 ,  -inf], dtype=float32)
    """
    probabilities = softmax(logits)
    threshold = np.float32(p) * probabilities.max(axis=-1, keepdims=True)
    return np.where(probabilities < threshold, np.float32(-np.inf), logits)


def typical(logits: np.ndarray, p: float) -> np.ndarray:
    """Keep tokens whose surprise is closest to the expected one, until they reach p together.

    logits: (V,) or (B, V); p: in (0, 1]. Of tokens equally close at the border, all stay; a row
    of nothing but -inf is left as it is. Returns the shape of logits.
    Source: Meister et al. 2022, "Locally Typical Sampling"; as HF's TypicalLogitsWarper.

    >>> typical(np.log(np.array([0.4, 0.3, 0.3], np.float32)), 0.5).round(2)
    array([-inf, -1.2, -1.2], dtype=float32)
    """
    if logits.ndim > 1:
        return np.stack([typical(row, p) for row in logits])
    # of a row with a nan nothing stays: `sample` refuses it
    possible = np.flatnonzero(logits != -np.inf)
    if not len(possible):
        return logits.copy()
    logprobs = log_softmax(logits[possible])
    entropy = -(np.exp(logprobs) * logprobs).sum()
    distance = np.abs(-logprobs - entropy)
    order = np.argsort(distance, kind="stable")
    reached = int((np.cumsum(np.exp(logprobs[order])) < np.float32(p)).sum())
    out = np.full_like(logits, -np.inf)
    kept = possible[distance <= distance[order[min(reached, len(order) - 1)]]]
    out[kept] = logits[kept]
    return out


def process(logits: np.ndarray, params: SamplingParams, ids: Sequence[int],
            generated: Sequence[int] = (), allowed: np.ndarray | None = None) -> np.ndarray:
    """Apply all processors that `params` asks for, in Hugging Face's order.

    logits: (V,); ids: the prompt and what was generated so far; generated: the latter alone;
    allowed: (V,) bool, the tokens that a grammar allows. Returns new logits (V,). Greedy stops
    before the temperature.
    """
    logits = logits.copy()                           # new ones, even where nothing is asked for
    if params.logit_bias:
        logits = logit_bias(logits, params.logit_bias)
    if params.repetition_penalty != 1:
        logits = repetition_penalty(logits, params.repetition_penalty, ids)
    if params.presence_penalty or params.frequency_penalty:
        logits = presence_frequency(logits, params.presence_penalty, params.frequency_penalty,
                                    generated)
    if allowed is not None:
        logits = allow_only(logits, allowed)
    if params.others is not None:
        logits = params.others.penalized(logits, ids, generated)
    if params.temperature == 0:
        return logits
    heat = params.temperature
    if params.others is not None:
        heat = params.others.temperature(logits, heat)
    logits = temperature(logits, heat)
    if not params.top_k:
        return truncate(logits, params)
    out = np.full_like(logits, -np.inf)
    # top-k rules the others out: nobody need look at them
    candidates = shortlist(logits, params.top_k)
    if len(candidates):
        out[candidates] = truncate(top_k(logits[candidates], params.top_k), params)
    return out


def shortlist(logits: np.ndarray, k: int) -> np.ndarray:
    """The ids of the k largest logits and those tied with them, and some others: that is cheap.

    logits: (V,); returns (n,), ascending. What is ruled out already, as by a grammar, is not
    among them.
    """
    block, least = 64, np.finfo(np.float32).min
    peaks = logits[:len(logits) // block * block].reshape(-1, block).max(axis=1)
    if k <= len(peaks):
        # k logits reach this: their blocks' peaks
        least = max(least, np.partition(peaks, -k)[-k])
    return np.flatnonzero(~(logits < least))


def truncate(logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    """The processors after top-k that `params` asks for: top-p, min-p, typical.
    (V,) to (V,)."""
    if params.top_p < 1:
        logits = top_p(logits, params.top_p)
    if params.min_p:
        logits = min_p(logits, params.min_p)
    if params.typical_p < 1:
        logits = typical(logits, params.typical_p)
    return logits


def sample(logits: np.ndarray, rng: np.random.Generator) -> int:
    """Draw a token id from the distribution softmax(logits).

    logits: (V,). Uses one `rng.random()`, and nothing else.
    Raises ModelError for logits without a distribution: nan, +inf, or -inf throughout.

    >>> sample(np.array([-np.inf, 5., -np.inf], np.float32), np.random.default_rng(0))
    1
    """
    refuse_unusable(logits)
    possible = np.flatnonzero(logits > -np.inf)
    cumulative = np.cumsum(softmax(logits[possible]), dtype=np.float64)
    # Below the total, and to the right of ties, it never lands on a token of probability zero
    drawn = rng.random() * cumulative[-1]
    return int(possible[np.searchsorted(cumulative, drawn, side="right")])


def choose(logits: np.ndarray, params: SamplingParams, ids: Sequence[int],
           rng: np.random.Generator, generated: Sequence[int] = (),
           allowed: np.ndarray | None = None) -> int:
    """Pick the next token id as `params` says. Arguments as for `process`.

    Greedy takes the first of equal maxima and leaves the generator alone. Raises ModelError as
    `sample` does.
    """
    refuse_unusable(logits)                                 # before a processor hides a nan
    processed = process(logits, params, ids, generated, allowed)
    if params.temperature == 0:
        refuse_unusable(processed)
        return int(processed.argmax())
    if params.others is not None:
        processed = params.others.without_top_choices(processed, rng)
    return sample(processed, rng)


def mirostat(logits: np.ndarray, mu: float, tau: float, eta: float,
             rng: np.random.Generator) -> tuple[int, float]:
    """Draw a token so that texts are about equally surprising throughout: Mirostat, version 2.

    logits: (V,), after the temperature. mu: the most bits of surprise that a token may have
    now; 2 · tau at first.
    tau: the bits of surprise that are wanted. eta: how fast mu learns. Returns the token, and
    the mu of the next one. Tokens more surprising than mu are ruled out, but for the likeliest;
    the surprise that counts is that under what is left. Raises ModelError as `sample` does.
    Source: Basu et al. 2021, "Mirostat", algorithm 2.

    >>> mirostat(np.array([10., 0., 0.], np.float32), mu=6.0, tau=3.0, eta=0.1,
    ...          rng=np.random.default_rng(0))
    (0, 6.3)
    """
    refuse_unusable(logits)
    surprise = -log_softmax(logits) / np.float32(math.log(2))                          # in bits
    kept = (surprise <= np.float32(mu)) | (surprise == surprise.min())
    left = allow_only(logits, kept)
    token = sample(left, rng)
    observed = -float(log_softmax(left)[token]) / math.log(2)
    return token, mu - eta * (observed - tau)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """The logarithms of softmax(logits), without its underflow.
    logits: (..., V); returns the same shape.

    >>> log_softmax(np.array([0., 0., -100.], np.float32)).round(2)
    array([  -0.69,   -0.69, -100.69], dtype=float32)
    """
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


@dataclass(frozen=True)
class TokenLogprob:
    """A chosen token, how likely the model itself found it, and the likeliest, best first."""

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def logprobs(logits: np.ndarray, token: int, top: int = 0) -> TokenLogprob:
    """The log-probability of a chosen token, and of the `top` likeliest ones.

    logits: (V,), the model's own, before any processor; top: at least 0. One array serves both,
    so a token that is in both has the very same number. Of equally likely tokens the lower id
    comes first.

    >>> chosen = logprobs(np.log(np.array([0.5, 0.25, 0.25], np.float32)), 2, top=2)
    >>> chosen.id, chosen.logprob
    (2, -1.3862943649291992)
    >>> chosen.top
    ((0, -0.6931471824645996), (1, -1.3862943649291992))
    """
    logarithms = log_softmax(logits)
    top = min(top, len(logits))
    best = (np.flatnonzero(logarithms >= np.partition(logarithms, -top)[-top]) if top
            else np.array([], int))
    best = best[np.argsort(-logarithms[best], kind="stable")][:top]
    return TokenLogprob(int(token), float(logarithms[token]),
                        tuple((int(id), float(logarithms[id])) for id in best))


def refuse_unusable(logits: np.ndarray) -> None:
    """Raise ModelError for logits without a distribution: nan, +inf, or -inf throughout.
    logits: (V,) or (B, V)."""
    peaks = np.atleast_1d(logits.max(axis=-1, initial=-np.inf))         # nan wins every maximum
    wrong = peaks[~np.isfinite(peaks)]
    if len(wrong):
        raise ModelError("cannot choose a token", f"the largest logit is {wrong[0]}",
                         "fetch the model again if its weights may be damaged; "
                         "`gearworks compare` finds the first layer that goes wrong")
