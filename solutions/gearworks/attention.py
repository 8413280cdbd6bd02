"""Rotary positions, the causal mask, and attention itself.

Shapes: T queries (the tokens of this step), S keys (cached ones and this step's), H query
heads, K key/value heads, d head size. Heads of queries come in K groups of H / K neighbours,
and each group shares one key/value head.
"""

import numpy as np

from gearworks.layers import softmax


def rope_frequencies(head_dim: int, theta: float) -> np.ndarray:
    """How fast each pair of a head turns, in radians per position.

    Returns (d/2,) float32, from 1 down to almost 1/theta.
    Source: Su et al. 2021, "RoFormer", section 3.2.2; float32 throughout, as HF computes it.

    >>> rope_frequencies(4, 10000.0)
    array([1.  , 0.01], dtype=float32)
    """
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    return np.float32(1) / np.float32(theta) ** exponents


def rope_angles(positions: np.ndarray,
                frequencies: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The cosine and sine of every token's rotations; all layers share them.

    positions: (T,) integers; frequencies: (d/2,); returns two arrays (T, 1, d), where both
    elements of a pair have the same angle: element i and element i + d/2.
    """
    of_elements = np.concatenate([frequencies, frequencies])                    # (d,)
    angles = positions.astype(np.float32)[:, None, None] * of_elements          # (T, 1, d)
    return np.cos(angles), np.sin(angles)


def apply_rope(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """Rotate every head by its token's position.

    x: (T, H, d) queries or keys; cos, sin: (T, 1, d) from `rope_angles`; returns (T, H, d).
    The pairs are halves, as HF's weights have them: element i turns with element i + d/2.

    >>> cos, sin = rope_angles(np.array([0, 1]), np.array([np.pi / 2], np.float32))
    >>> apply_rope(np.array([[[3., 4.]], [[3., 4.]]], np.float32), cos, sin).round(3)
    array([[[ 3.,  4.]],
    <BLANKLINE>
           [[-4.,  3.]]], dtype=float32)
    """
    half = x.shape[-1] // 2
    turned = np.concatenate([-x[..., half:], x[..., :half]], axis=-1)          # a quarter turn
    turned *= sin
    turned += x * cos
    return turned


def alibi_slopes(num_heads: int) -> np.ndarray:
    """How much each head's score falls with every token between query and key, under ALiBi.

    Returns (H,) float32. For H a power of two, the slopes are 2^(-8/H), 2^(-16/H), … down to
    2^-8. Another number of heads takes all slopes of P heads, where P is the nearest power of
    two below, and then, for the heads that are left, every other slope of 2P heads, from the
    first on.
    Source: Press, Smith & Lewis 2022, "Train Short, Test Long", section 3 and their published
    code; as BLOOM has it.

    >>> alibi_slopes(4)
    array([0.25      , 0.0625    , 0.015625  , 0.00390625], dtype=float32)
    """
    power = 1 << num_heads.bit_length() - 1                   # the largest power of two up to H
    slopes = 2.0 ** (-8 / power * np.arange(1, power + 1))
    between = 2.0 ** (-4 / power * np.arange(1, 2 * power, 2))
    return np.concatenate([slopes, between])[:num_heads].astype(np.float32)


def causal_mask(T: int, S: int, window: int | None = None) -> np.ndarray:
    """Which of S keys each of the last T tokens may see: those up to itself.

    Returns (T, S) bool, true where the query may look. The T queries are the last T of the S
    positions. window: with a number, a query sees so many keys at most, itself included, the
    nearest ones.

    >>> causal_mask(2, 4).astype(int)
    array([[1, 1, 1, 0],
           [1, 1, 1, 1]])
    """
    mask = np.tri(T, S, k=S - T, dtype=bool)
    return mask if window is None else mask & ~np.tri(T, S, k=S - T - window, dtype=bool)


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray,
              mask: np.ndarray | None = None) -> np.ndarray:
    """Scaled dot-product attention with grouped key/value heads.

    q: (T, H, d); k: (S, K, d), where K divides H; v: (S, K, e), where e is d in most models;
    mask: (T, S) bool, true where a query may look, by default the causal mask; returns
    (T, H, e). A query that may see nothing gets zeros. Scores are scaled by 1/sqrt(d).
    Source: Vaswani et al. 2017, section 3.2.1; Ainslie et al. 2023, "GQA".
    """
    T, H, d = q.shape
    S, K, _ = k.shape
    q = q * d ** -0.5
    q = q.reshape(T, K, H // K, d).transpose(1, 2, 0, 3).reshape(K, -1, d)     # (K, H/K * T, d)
    scores = q @ k.transpose(1, 2, 0)                                          # (K, H/K * T, S)
    if mask is not None or T > 1:                                # one last token sees every key
        visible = causal_mask(T, S) if mask is None else mask
        np.copyto(scores.reshape(K, -1, T, S), np.float32(-np.inf), where=~visible)
    out = softmax(scores, out=scores) @ v.transpose(1, 0, 2)                   # (K, H/K * T, e)
    return out.reshape(K, H // K, T, -1).transpose(2, 0, 1, 3).reshape(T, H, -1)
