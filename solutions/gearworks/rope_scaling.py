"""RoPE stretched over contexts longer than a model was first trained on.

Every method slows the rotations down, so that a far position looks like one that the model has
seen; they differ in which pairs they slow, and by how much. `attention.rope_frequencies` is
where all of them start.

Shapes: d head size, so d/2 pairs. Frequencies are float32, in radians per position.
"""

import math

import numpy as np

from gearworks.attention import rope_angles, rope_frequencies
from gearworks.config import ModelConfig, RopeScaling


def scaled_frequencies(head_dim: int, theta: float, scaling: RopeScaling | None,
                       length: int = 0) -> tuple[np.ndarray, float]:
    """The frequencies of a model, and the factor by which its cosines and sines are multiplied.

    length: tokens of the sequence so far, at which dynamic and longrope look. Returns (d/2,)
    float32, and 1.0 for every kind but yarn and longrope.

    >>> scaled_frequencies(4, 10000.0, RopeScaling("linear", 2.0, 64))
    (array([0.5  , 0.005], dtype=float32), 1.0)
    """
    if scaling is None:
        return rope_frequencies(head_dim, theta), 1.0
    return _FREQUENCIES[scaling.kind](head_dim, theta, scaling, length)


def scaled_angles(positions: np.ndarray, head_dim: int, theta: float,
                  scaling: RopeScaling | None,
                  rotary_dim: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The cosine and sine of every token's rotations, as `attention.rope_angles`, but scaled.

    positions: (T,) integers; rotary_dim: how many elements of a head turn, by default all;
    returns two arrays (T, 1, d), multiplied by the scaling's factor. Pairs that do not turn are
    the last of each half. Where frequencies depend on a sequence's length, positions that
    follow each other are taken for one sequence.
    """
    turning = head_dim if rotary_dim is None else rotary_dim
    sequences = [positions]
    if scaling is not None and scaling.kind in ("dynamic", "longrope"):
        sequences = np.split(positions, np.flatnonzero(np.diff(positions) != 1) + 1)
    cos, sin = (np.empty((len(positions), 1, turning), np.float32) for _ in range(2))
    end = 0
    for places in sequences:
        start, end = end, end + len(places)
        length = int(places.max(initial=-1)) + 1
        frequencies, magnitude = scaled_frequencies(turning, theta, scaling, length)
        cos[start:end], sin[start:end] = rope_angles(places, frequencies)
        if magnitude != 1:
            cos[start:end] *= magnitude
            sin[start:end] *= magnitude
    if turning == head_dim:
        return cos, sin
    return _with_still_pairs(cos, head_dim, 1), _with_still_pairs(sin, head_dim, 0)


def _with_still_pairs(angles: np.ndarray, head_dim: int, still: int) -> np.ndarray:
    """(T, 1, d) of (T, 1, rotary_dim): each half is filled up with pairs that do not turn."""
    T, half = len(angles), angles.shape[-1] // 2
    whole = np.full((T, 1, 2, head_dim // 2), still, np.float32)
    whole[..., :half] = angles.reshape(T, 1, 2, half)
    return whole.reshape(T, 1, head_dim)


def angles_in_layer(config: ModelConfig, layer: int, cos: np.ndarray,
                    sin: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The cosine and sine of one layer's rotations: those of all, or of no turn at all.

    cos, sin: (T, 1, d), which the layers share; returns two such arrays.
    """
    return (cos, sin) if config.turns(layer) else (np.ones_like(cos), np.zeros_like(sin))


def _linear(head_dim: int, theta: float, scaling: RopeScaling,
            length: int) -> tuple[np.ndarray, float]:
    """Every pair turns slower by the same factor.
    Source: Chen et al. 2023, "Positional Interpolation"."""
    return rope_frequencies(head_dim, theta) / np.float32(scaling.factor), 1.0


def _dynamic(head_dim: int, theta: float, scaling: RopeScaling,
             length: int) -> tuple[np.ndarray, float]:
    """Beyond the trained context, theta grows with the sequence.

    All that a sequence has in a step turns by the frequencies of its length then, and cached
    keys keep those of their own step, as in Hugging Face. So this kind and longrope do not give
    the same logits however a sequence is cut into steps.
    """
    context = scaling.original_max_position_embeddings
    stretch = scaling.factor * max(length, context) / context - (scaling.factor - 1)
    return rope_frequencies(head_dim, theta * stretch ** (head_dim / (head_dim - 2))), 1.0


def llama3_frequencies(frequencies: np.ndarray, factor: float, low_freq_factor: float,
                       high_freq_factor: float, original_context: int) -> np.ndarray:
    """Slow the pairs that never finish a turn in the original context, and leave the fast ones.

    frequencies: (d/2,) float32; returns the same. A pair that turns fewer than
    `low_freq_factor` times within `original_context` tokens is slowed by `factor`; one that
    turns more than `high_freq_factor` times is left as it is; between the two, the slowed and
    the original frequency are mixed in proportion to the number of turns.
    Source: Meta 2024, the reference code of Llama 3.1; as Hugging Face computes it.

    >>> llama3_frequencies(np.array([1.0, 0.001], np.float32), 8.0, 1.0, 4.0, 512)
    array([1.00e+00, 1.25e-04], dtype=float32)
    """
    turns = original_context / (2 * math.pi / frequencies)
    # how much of the original
    kept = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clip(0, 1)
    return (1 - kept) * frequencies / factor + kept * frequencies


def _llama3(head_dim: int, theta: float, scaling: RopeScaling,
            length: int) -> tuple[np.ndarray, float]:
    return llama3_frequencies(rope_frequencies(head_dim, theta), scaling.factor,
                              scaling.low_freq_factor, scaling.high_freq_factor,
                              scaling.original_max_position_embeddings), 1.0


def _factors(head_dim: int, theta: float, scaling: RopeScaling,
             length: int) -> tuple[np.ndarray, float]:
    """Every pair has a factor of its own, which somebody has computed before."""
    divisors = np.array(scaling.factors, np.float32) * np.float32(scaling.factor)
    return rope_frequencies(head_dim, theta) / divisors, 1.0


def _longrope(head_dim: int, theta: float, scaling: RopeScaling,
              length: int) -> tuple[np.ndarray, float]:
    """Every pair has two factors of its own, found by a search: one for texts within the first
    training's context, one for longer ones: see `_dynamic`.
    Source: Ding et al. 2024, "LongRoPE"; Hugging Face's Phi3RotaryEmbedding.
    """
    context, factor = scaling.original_max_position_embeddings, scaling.attention_factor
    if factor is None:
        factor = math.sqrt(1 + math.log(max(scaling.factor, 1.0)) / math.log(context))
    divisors = np.array(scaling.long_factor if length > context else scaling.short_factor,
                        np.float32)
    return rope_frequencies(head_dim, theta) / divisors, factor


def _yarn(head_dim: int, theta: float, scaling: RopeScaling,
          length: int) -> tuple[np.ndarray, float]:
    """Slow pairs are slowed, fast ones not, with a ramp between; attention gets sharper for it.

    Source: Peng et al. 2023, "YaRN"; `mscale` as in DeepSeek-V2's configuration.
    """
    def pair_that_turns(times: float) -> float:
        context = scaling.original_max_position_embeddings
        return head_dim * math.log(context / (times * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair_that_turns(scaling.beta_fast), pair_that_turns(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    pairs = np.arange(head_dim // 2, dtype=np.float32)
    slowed = ((pairs - low) / ((high - low) or 0.001)).clip(0, 1)     # how much of the slow one
    frequencies = rope_frequencies(head_dim, theta)
    factor = scaling.attention_factor
    if factor is None and scaling.mscale and scaling.mscale_all_dim:
        factor = (yarn_mscale(scaling.factor, scaling.mscale)
                  / yarn_mscale(scaling.factor, scaling.mscale_all_dim))
    elif factor is None:
        factor = yarn_mscale(scaling.factor)
    mixed = frequencies / np.float32(scaling.factor) * slowed + frequencies * (1 - slowed)
    return mixed, factor


def yarn_mscale(factor: float, mscale: float = 1.0) -> float:
    """How much sharper attention gets in a context that is `factor` times as long.
    Source: YaRN, section 3.4."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


_FREQUENCIES = {"linear": _linear, "dynamic": _dynamic, "llama3": _llama3, "yarn": _yarn,
                "factors": _factors, "longrope": _longrope}
