"""From logits to the next token.

Processors are pure functions: logits in, new logits out, the input untouched; a token that is ruled out gets -inf.
Shapes: V vocabulary; logits are float32, (V,) for one sequence or (B, V) for several.
`process` applies them in Hugging Face's order: repetition penalty, temperature, top-k, top-p.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gearworks.errors import ModelError
from gearworks.layers import softmax


@dataclass(frozen=True)
class SamplingParams:
    """How one request wants its tokens chosen. The defaults are greedy."""

    temperature: float = 0.0             # 0 is greedy
    top_k: int = 0                       # 0 keeps every token
    top_p: float = 1.0                   # 1 keeps every token
    repetition_penalty: float = 1.0      # 1 changes nothing
    seed: int | None = None              # None draws a fresh one

    def __post_init__(self):
        for name, valid, range_ in (
            # Beyond these bounds float32 has no room for the quotients.
            ("temperature", self.temperature == 0 or 1e-6 <= self.temperature <= 1e6, "of 0, or from 1e-6 to 1e6"),
            ("top_k", self.top_k >= 0, "at least 0"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("repetition_penalty", 1e-6 <= self.repetition_penalty <= 1e6, "from 1e-6 to 1e6"),
            ("seed", self.seed is None or self.seed >= 0, "at least 0"),
        ):
            if not valid:
                raise ModelError("cannot sample with these settings", f"{name} is {getattr(self, name)}",
                                 f"give a value {range_}")


def temperature(logits: np.ndarray, value: float) -> np.ndarray:
    """Sharpen (value < 1) or flatten (value > 1) the distribution. value: above 0; returns the shape of logits.

    >>> temperature(np.array([1., 2.], np.float32), 0.5)
    array([2., 4.], dtype=float32)
    """
    return logits / np.float32(value)


def top_k(logits: np.ndarray, k: int) -> np.ndarray:
    """Rule out all but the k most likely tokens; tokens tied with the k-th stay, as in HF's TopKLogitsWarper.

    k: at least 1, and k >= V keeps all; returns the shape of logits.

    >>> top_k(np.array([1., 3., 2., 2.], np.float32), 2)
    array([-inf,   3.,   2.,   2.], dtype=float32)
    """
    k = min(k, logits.shape[-1])
    threshold = np.partition(logits, -k, axis=-1)[..., -k, None]
    return np.where(logits < threshold, np.float32(-np.inf), logits)


def top_p(logits: np.ndarray, p: float) -> np.ndarray:
    """Keep the smallest set of most likely tokens whose probabilities reach p together; rule out the others.

    p: in (0, 1]; the token that crosses p is kept, so at least one is; of tokens tied at the border, the higher
    ids stay. Returns the shape of logits. Source: Holtzman et al. 2019, nucleus sampling; as HF's TopPLogitsWarper.

    >>> top_p(np.log(np.array([0.5, 0.25, 0.15, 0.1], np.float32)), 0.7).round(2)
    array([-0.69, -1.39,  -inf,  -inf], dtype=float32)
    """
    order = np.argsort(logits, axis=-1, kind="stable")                         # ascending
    tail = np.cumsum(softmax(np.take_along_axis(logits, order, axis=-1)), axis=-1)
    ruled_out = tail <= np.float32(1 - p)
    ruled_out[..., -1] = False
    out = logits.copy()
    np.put_along_axis(out, order, np.where(ruled_out, np.float32(-np.inf),
                                           np.take_along_axis(logits, order, axis=-1)), axis=-1)
    return out


def repetition_penalty(logits: np.ndarray, penalty: float, ids: Sequence[int]) -> np.ndarray:
    """Make tokens that occurred already less likely: positive logits are divided, negative ones multiplied.

    logits: (V,); penalty: above 0, where 1 changes nothing; ids: the prompt and what was generated so far.
    Returns (V,). Source: Keskar et al. 2019, "CTRL"; as HF's RepetitionPenaltyLogitsProcessor.

    >>> repetition_penalty(np.array([2., -2., 2.], np.float32), 2.0, [0, 1, 0])
    array([ 1., -4.,  2.], dtype=float32)
    """
    out = logits.copy()
    seen = np.unique(np.asarray(ids, dtype=np.int64))
    score = logits[seen]
    out[seen] = np.where(score > 0, score / np.float32(penalty), score * np.float32(penalty))
    return out


def process(logits: np.ndarray, params: SamplingParams, ids: Sequence[int]) -> np.ndarray:
    """Apply all processors that `params` asks for, in Hugging Face's order.

    logits: (V,); ids: the prompt and what was generated so far. Returns (V,). Greedy stops before the temperature.
    """
    if params.repetition_penalty != 1:
        logits = repetition_penalty(logits, params.repetition_penalty, ids)
    if params.temperature == 0:
        return logits
    logits = temperature(logits, params.temperature)
    if params.top_k:
        logits = top_k(logits, params.top_k)
    if params.top_p < 1:
        logits = top_p(logits, params.top_p)
    return logits


def sample(logits: np.ndarray, rng: np.random.Generator) -> int:
    """Draw a token id from the distribution softmax(logits). logits: (V,). Uses one number of the generator.

    Raises ModelError for logits without a distribution: nan, +inf, or -inf throughout.

    >>> sample(np.array([-np.inf, 5., -np.inf], np.float32), np.random.default_rng(0))
    1
    """
    _refuse_unusable(logits)
    cumulative = np.cumsum(softmax(logits), dtype=np.float64)
    # A draw below the total, found to the right of ties, never lands on a token of probability zero.
    return int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))


def choose(logits: np.ndarray, params: SamplingParams, ids: Sequence[int], rng: np.random.Generator) -> int:
    """Pick the next token id as `params` says. logits: (V,); ids: the prompt and what was generated so far.

    Greedy takes the first of equal maxima and leaves the generator alone. Raises ModelError as `sample` does.
    """
    processed = process(logits, params, ids)
    if params.temperature == 0:
        _refuse_unusable(processed)
        return int(processed.argmax())
    return sample(processed, rng)


def _refuse_unusable(logits: np.ndarray) -> None:
    peak = logits.max()                                     # nan wins every maximum
    if not np.isfinite(peak):
        raise ModelError("cannot choose a token", f"the largest logit is {peak}",
                         "the weights or a processor are broken: compare with Hugging Face's logits")
