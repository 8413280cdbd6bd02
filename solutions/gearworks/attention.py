"""Rotary positions, the causal mask, and attention itself: over one array, and over blocks.

Shapes: T queries (the tokens of this step), S keys (cached ones and this step's), H query
heads, K key/value heads, d head size, e a value's size (d in most models), B sequences. Heads
of queries come in K groups of H / K neighbours, and each group shares one key/value head.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from gearworks.layers import softmax

# Queries of a long prompt go through attention in blocks of this many, so that the scores stay
# in the processor's cache and each block multiplies only with keys that it can see. The result
# does not depend on it.
QUERY_BLOCK = 64


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
    positions. window: with a number, at least 1, a query sees so many keys at most, itself
    included, the nearest ones.

    >>> causal_mask(2, 4).astype(int)
    array([[1, 1, 1, 0],
           [1, 1, 1, 1]])
    """
    mask = np.tri(T, S, k=S - T, dtype=bool)
    return mask if window is None else mask & ~np.tri(T, S, k=S - T - window, dtype=bool)


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray,
              mask: np.ndarray | None = None) -> np.ndarray:
    """Scaled dot-product attention with grouped key/value heads.

    q: (T, H, d), where T may be 0; k: (S, K, d), where K divides H; v: (S, K, e), where e is d
    in most models; mask: (T, S) bool, true where a query may look, by default the causal mask;
    returns (T, H, e). A query that may see nothing gets zeros. Scores are scaled by 1/sqrt(d).
    Source: Vaswani et al. 2017, section 3.2.1; Ainslie et al. 2023, "GQA".

    >>> q, k = np.zeros((2, 2, 1), np.float32), np.zeros((3, 1, 1), np.float32)
    >>> v = np.array([[[1.]], [[2.]], [[6.]]], np.float32)
    >>> attention(q, k, v)[..., 0]        # equal scores: the mean of the values that it sees
    array([[1.5, 1.5],
           [3. , 3. ]], dtype=float32)
    """
    T, H, d = q.shape
    S, K, e = v.shape
    q = q * d ** -0.5
    q = q.reshape(T, K, H // K, d).transpose(1, 2, 0, 3)                       # (K, H/K, T, d)
    scores = q.reshape(K, H // K * T, d) @ k.transpose(1, 2, 0)                # (K, H/K * T, S)
    if mask is not None or T > 1:                                # one last token sees every key
        visible = causal_mask(T, S) if mask is None else mask
        np.copyto(scores.reshape(K, H // K, T, S), np.float32(-np.inf), where=~visible)
    out = softmax(scores, out=scores) @ v.transpose(1, 0, 2)                   # (K, H/K * T, e)
    return out.reshape(K, H // K, T, e).transpose(2, 0, 1, 3).reshape(T, H, e)


@dataclass(frozen=True, eq=False)
class AttentionRules:
    """What differs between models, and between layers of one, in how attention scores.

    window: how many tokens a query looks back, itself included; None for all. scale: what
    scores are multiplied by; None for 1/sqrt(d). softcap: scores s become
    softcap · tanh(s / softcap), as in Gemma-2. sinks: (H,), a score that each head may give to
    nothing, as in gpt-oss.
    """

    window: int | None = None
    scale: float | None = None
    softcap: float | None = None
    sinks: np.ndarray | None = None

    @property
    def plain(self) -> bool:
        """Whether `attention` and its mask say it all."""
        return self.scale is None and self.softcap is None and self.sinks is None


PLAIN = AttentionRules()


def attention_over_views(q: np.ndarray, keys: Sequence[np.ndarray],
                         values: Sequence[np.ndarray], mask: np.ndarray | None,
                         rules: AttentionRules = PLAIN) -> np.ndarray:
    """As `attention`, over keys that lie in several places, which are read where they are.

    q: (T, H, d); keys, values: arrays (K, n, d) and (K, n, e), together all S tokens in order;
    mask: (T, S) bool, or None where every query sees every key; returns (T, H, e).
    """
    T, H, d = q.shape
    K, S = len(keys[0]), sum(view.shape[1] for view in keys)
    q = q * np.float32(d ** -0.5 if rules.scale is None else rules.scale)
    q = q.reshape(T, K, H // K, d).transpose(1, 2, 0, 3).reshape(K, -1, d)     # (K, H/K * T, d)
    scores = np.empty((K, q.shape[1], S), np.float32)
    at = 0
    for view in keys:
        np.matmul(q, view.transpose(0, 2, 1), out=scores[:, :, at:at + view.shape[1]])
        at += view.shape[1]
    if rules.softcap is not None:
        scores = np.float32(rules.softcap) * np.tanh(scores / np.float32(rules.softcap))
    if mask is not None:
        np.copyto(scores.reshape(K, -1, T, S), np.float32(-np.inf), where=~mask)
    if rules.sinks is None:
        softmax(scores, out=scores)
    else:                                   # one more key, whose value is zero
        sinks = np.repeat(rules.sinks.astype(np.float32).reshape(K, -1), T, axis=1)
        scores = softmax(np.concatenate([scores, sinks[..., None]], axis=-1))
    at = values[0].shape[1]
    out = scores[:, :, :at] @ values[0]                                        # (K, H/K * T, e)
    for view in values[1:]:
        out += scores[:, :, at:at + view.shape[1]] @ view
        at += view.shape[1]
    return out.reshape(K, H // K, T, -1).transpose(2, 0, 1, 3).reshape(T, H, -1)


@lru_cache(maxsize=2**10)              # the layers of a step ask for the same
def adjacent_blocks(table: tuple[int, ...], begin: int, end: int,
                    block_size: int) -> tuple[slice, ...]:
    """Where the tokens from `begin` to `end` of a sequence lie, as few slices of the memory.

    table: the sequence's blocks in order; a slice counts tokens, in a memory whose block b
    holds the tokens from b · block_size on. Blocks that follow each other there are one slice.

    >>> adjacent_blocks((7, 8, 3), 2, 11, block_size=4)
    (slice(30, 36, None), slice(12, 15, None))
    """
    slices: list[slice] = []
    for place in range(begin // block_size, -(-end // block_size)):
        start = table[place] * block_size
        first = start + max(begin - place * block_size, 0)
        last = start + min(end - place * block_size, block_size)
        if slices and slices[-1].stop == first:
            first = slices.pop().start
        slices.append(slice(first, last))
    return tuple(slices)


def paged_attention(q: np.ndarray, keys: np.ndarray, values: np.ndarray,
                    block_tables: Sequence[Sequence[int]], context_lens: Sequence[int],
                    query_lens: Sequence[int], rules: AttentionRules = PLAIN) -> np.ndarray:
    """Attention of several sequences at once, each over its own keys, which lie in blocks.

    q: (T, H, d), the rows of the first sequence, then those of the second, and so on; keys,
    values: (K, blocks, block_size, d) and (K, blocks, block_size, e), one layer's memory for
    all sequences; block_tables: (B,) lists of block numbers, a sequence's own in order, perhaps
    more than it needs; context_lens: (B,) how many tokens each sequence has in its blocks,
    those of this step included; query_lens: (B,) how many of the rows are its own, its last
    tokens, perhaps none; their sum is T. rules: of this layer; every query sees the keys up to
    itself, within the window. Returns (T, H, e). What else lies in the memory means nothing,
    and may be nan. Token i of a sequence lies in block table[i // block_size], at place
    i % block_size. Blocks are read where they lie: copied together, a sequence's keys and
    values would be read and written once more in every layer of every step.
    Source: Kwon et al. 2023, "Efficient Memory Management for Large Language Model Serving with
    PagedAttention", section 4.1.

    >>> keys = np.zeros((1, 2, 2, 1), np.float32)               # two blocks of two tokens
    >>> values = np.array([1, 9, 3, 5], np.float32).reshape(1, 2, 2, 1)
    >>> paged_attention(np.zeros((1, 1, 1), np.float32), keys, values, block_tables=[[1, 0]],
    ...                 context_lens=[3], query_lens=[1]).ravel()        # the mean of 3, 5, 1
    array([3.], dtype=float32)
    """
    out = np.empty((*q.shape[:2], values.shape[-1]), np.float32)
    block_size = keys.shape[2]
    keys = keys.reshape(len(keys), -1, keys.shape[-1])                          # (K, tokens, d)
    values = values.reshape(len(values), -1, values.shape[-1])                  # (K, tokens, e)
    single, places = [], []
    start = 0
    for table, length, count in zip(block_tables, context_lens, query_lens):
        if count == 1 and rules.plain:
            first = 0 if rules.window is None else max(0, length - rules.window)
            single.append(start)
            places.append(adjacent_blocks(tuple(table), first, length, block_size))
        else:
            for row in range(0, count, QUERY_BLOCK):
                rows = min(QUERY_BLOCK, count - row)
                end = length - count + row + rows
                first = (0 if rules.window is None
                         else max(0, end - rows - rules.window + 1))
                slices = adjacent_blocks(tuple(table), first, end, block_size)
                out[start + row:start + row + rows] = attention_over_views(
                    q[start + row:start + row + rows], [keys[:, tokens] for tokens in slices],
                    [values[:, tokens] for tokens in slices],
                    causal_mask(rows, end - first, rules.window), rules)
        start += count
    if single:
        one_each = slice(None) if len(single) == len(q) else single
        out[one_each] = attention_of_single_queries(q[one_each], keys, values, places)
    return out


def attention_of_single_queries(q: np.ndarray, keys: np.ndarray, values: np.ndarray,
                                places: Sequence[Sequence[slice]]) -> np.ndarray:
    """The attention of the last token of each of B sequences: the rows of a decoding batch.

    q: (B, H, d); keys, values: (K, tokens, d) and (K, tokens, e); places: (B,) the slices of
    them that each query sees; returns (B, H, e). The scores of all sequences lie in one array
    side by side, so that everything but the products is one call for all, and a long sequence
    costs its neighbours nothing. Each query meets its keys alone: the few that share them would
    make a matrix so narrow that BLAS takes longer to arrange the keys than to multiply.
    """
    B, H, d = q.shape
    K = len(keys)
    q = (q * np.float32(d ** -0.5)).reshape(B, K, H // K, d)
    lengths = [sum(tokens.stop - tokens.start for tokens in slices) for slices in places]
    borders = np.cumsum([0, *lengths])
    scores = np.empty((K, H // K, borders[-1]), np.float32)
    at = 0
    for query, slices in zip(q, places):
        for tokens in slices:
            end = at + tokens.stop - tokens.start
            np.matvec(keys[:, None, tokens], query, out=scores[:, :, at:end])
            at = end
    peaks = np.maximum.reduceat(scores, borders[:-1], axis=-1)                   # (K, H/K, B)
    scores -= np.repeat(peaks, lengths, axis=-1)
    np.exp(scores, out=scores)
    sums = np.add.reduceat(scores, borders[:-1], axis=-1)                        # (K, H/K, B)
    out = np.empty((B, K, H // K, values.shape[-1]), np.float32)
    at = 0
    for mixed, slices in zip(out, places):
        for number, tokens in enumerate(slices):
            end = at + tokens.stop - tokens.start
            if number == 0:
                np.vecmat(scores[:, :, at:end], values[:, None, tokens], out=mixed)
            else:
                mixed += np.vecmat(scores[:, :, at:end], values[:, None, tokens])
            at = end
    out /= sums.transpose(2, 0, 1)[..., None]
    return out.reshape(B, H, -1)
