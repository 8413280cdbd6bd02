"""FlashAttention in tiles, on a model of a GPU's two memories that counts what moves.

A GPU keeps its arrays in a large, slow memory, and computes in a small, fast one beside its
processors. The plain formula of attention writes all T x S scores to the slow one, reads them
for the softmax, and writes and reads the weights. FlashAttention takes a tile of queries, goes
through the keys tile by tile, and never writes a score. Here `SlowMemory` stands for the slow
memory, NumPy's arrays for the fast one; `kernels.triton` is the same for a real GPU.

Shapes: T queries (the last T of the S tokens), S keys, H query heads, K key/value heads, d head
size, e a value's size, R rows of scores, n keys of a tile. All float32.
Left out on purpose: that a GPU computes many tiles at once, and anything for training.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gearworks.errors import ModelError


@dataclass(frozen=True)
class Move:
    """One tile on its way. array: its name; rows: from where to where, without the last;
    heads: the same; nbytes: its size; written: to slow memory, else read from it."""

    array: str
    rows: tuple[int, int]
    heads: tuple[int, int]
    nbytes: int
    written: bool


class SlowMemory:
    """Where the arrays lie. Every tile that is read or written is noted in `moves`."""

    def __init__(self):
        self.moves: list[Move] = []

    def place(self, name: str, array: np.ndarray, tile: int) -> "SlowArray":
        """Lay an array down; fast memory has room for `tile` of its rows at a time."""
        return SlowArray(name, array, tile, self.moves)

    @property
    def bytes_read(self) -> int:
        return sum(move.nbytes for move in self.moves if not move.written)

    @property
    def bytes_written(self) -> int:
        return sum(move.nbytes for move in self.moves if move.written)


class SlowArray:
    """An array (rows, heads, size) in slow memory, read and written in tiles.

    `array[rows, heads]` brings a tile to fast memory, as an array of its own; rows is a slice
    of at most `tile` tokens, heads a number or a slice. `array[rows, heads] = tile` takes one
    back.

    >>> memory = SlowMemory()
    >>> k = memory.place("k", np.zeros((6, 2, 4), np.float32), tile=3)
    >>> k[3:6, 0].shape, memory.bytes_read
    ((3, 4), 48)
    """

    def __init__(self, name: str, array: np.ndarray, tile: int, moves: list[Move]):
        self.shape, self.tile = array.shape, tile
        self._name, self._array, self._moves = name, array, moves

    def __getitem__(self, place: tuple) -> np.ndarray:
        """A copy of a tile. Raises ModelError for one that fast memory has no room for."""
        return self._view(place, written=False).copy()

    def __setitem__(self, place: tuple, tile: np.ndarray) -> None:
        """Write a tile. Raises ModelError for one of another shape than its place."""
        view = self._view(place, written=True)
        if np.shape(tile) != view.shape:
            raise ModelError(f"cannot write a tile of {self._name}",
                             f"it has the shape {np.shape(tile)}, its place {view.shape}",
                             "give (rows, heads, size)")
        view[...] = tile

    def _view(self, place: tuple, written: bool) -> np.ndarray:
        rows, heads = place if isinstance(place, tuple) and len(place) == 2 else (place, None)
        if not isinstance(rows, slice) or not isinstance(heads, (slice, int, np.integer)):
            raise ModelError(f"cannot reach {self._name}[{place!r:.60}]",
                             "slow memory is read and written in tiles",
                             f"say {self._name}[first:end, heads]")
        first, end, _ = rows.indices(self.shape[0])
        if rows.step not in (None, 1) or end - first > self.tile:
            raise ModelError(f"no room for {end - first} rows of {self._name}",
                             f"fast memory has room for a tile of {self.tile}",
                             "take one tile after the other")
        low, high, _ = (heads.indices(self.shape[1]) if isinstance(heads, slice)
                        else (int(heads), int(heads) + 1, 1))
        view = self._array[rows, heads]
        self._moves.append(Move(self._name, (first, max(first, end)), (low, high), view.nbytes,
                                written))
        return view


@dataclass(frozen=True)
class Partial:
    """What attention over some of the keys has come to, for R rows.

    peak: (R,), the largest score; -inf where no key could be seen. total: (R,), the sum of
    exp(score - peak) over the keys; 0 where none could be seen. mixed: (R, e), the sum of
    exp(score - peak) times the key's value.
    """

    peak: np.ndarray
    total: np.ndarray
    mixed: np.ndarray

    @classmethod
    def nothing(cls, rows: int, size: int) -> "Partial":
        """No key seen yet, for so many rows and values of this size."""
        return cls(np.full(rows, -np.inf, np.float32), np.zeros(rows, np.float32),
                   np.zeros((rows, size), np.float32))

    def result(self) -> np.ndarray:
        """Attention over these keys, (R, e): zeros for a row that saw none.

        >>> Partial(np.float32([5, -np.inf]), np.float32([2, 0]),
        ...         np.float32([[3], [0]])).result()
        array([[1.5],
               [0. ]], dtype=float32)
        """
        return self.mixed / np.where(self.total == 0, 1, self.total)[:, None]


def online_softmax(before: Partial, scores: np.ndarray, values: np.ndarray) -> Partial:
    """Take one more tile of keys into a softmax that is under way.

    before: what it has come to over the keys so far, for R rows; scores: (R, n), those of the
    tile's n keys, -inf where a row may not look, perhaps in all of them; values: (n, e), the
    keys' values, the same for all rows. Returns what it has come to with them; the arguments
    stay as they are.
    Source: Milakov & Gimelshein 2018, "Online normalizer calculation for softmax"; Rabe &
    Staats 2021; Dao et al. 2022, "FlashAttention", section 3.1.

    >>> so_far = online_softmax(Partial.nothing(1, 1), np.float32([[3., 3.]]),
    ...                         np.float32([[10.], [20.]]))
    >>> so_far.peak, so_far.total, so_far.mixed
    (array([3.], dtype=float32), array([2.], dtype=float32), array([[30.]], dtype=float32))
    >>> online_softmax(so_far, np.float32([[-np.inf]]), np.float32([[5.]])).result()
    array([[15.]], dtype=float32)
    """
    peak = np.maximum(before.peak, scores.max(axis=-1, initial=-np.inf))                # (R,)
    safe = np.where(np.isneginf(peak), 0, peak)          # not -inf, since -inf - -inf is nan
    weights = np.exp(scores - safe[:, None])                                          # (R, n)
    rescale = np.exp(before.peak - safe)                 # 0 where nothing was seen before
    return Partial(peak, before.total * rescale + weights.sum(axis=-1),
                   before.mixed * rescale[:, None] + weights @ values)


def merge(parts: Sequence[Partial]) -> Partial:
    """What several sets of keys come to together, when each was gone through by itself.

    So a long sequence can be cut among many processors: split-KV decoding.
    Source: Dao et al. 2023, "Flash-Decoding for long-context inference".

    >>> one, other = (Partial(np.float32([peak]), np.float32([1]), np.float32([[value]]))
    ...               for peak, value in ((2, 10), (2, 30)))
    >>> merge([one, other]).result()
    array([[20.]], dtype=float32)
    """
    peaks = np.stack([part.peak for part in parts])                                # (parts, R)
    peak = peaks.max(axis=0)
    scales = np.exp(peaks - np.where(np.isneginf(peak), 0, peak))
    return Partial(peak, sum(scale * part.total for scale, part in zip(scales, parts)),
                   sum(scale[:, None] * part.mixed for scale, part in zip(scales, parts)))


def flash_attention_tiled(q: SlowArray, k: SlowArray, v: SlowArray, out: SlowArray,
                          window: int | None = None) -> None:
    """Causal attention, tile by tile, as `attention.attention` gives it.

    q: (T, H, d); k: (S, K, d); v: (S, K, e); out: (T, H, e), which is written; all in slow
    memory. A tile has at most `q.tile` queries, with all heads that share a key/value head, or
    `k.tile` keys of one head. The T queries are the last T of the S tokens; each sees the keys
    up to its own, with a window, 1 or more, at most so many, its own included. A query that
    sees none gets zeros; with T > S the first ones do.

    Every query is read once, and every output written once. For each tile of queries and each
    key/value head, the keys and values that any query of the tile may see are read once, and no
    other ones.
    Source: Dao et al. 2022, "FlashAttention"; Dao 2023, "FlashAttention-2", algorithm 1.

    >>> memory, x = SlowMemory(), np.ones((2, 1, 1), np.float32)
    >>> arrays = [memory.place(name, x.copy(), tile=1) for name in ("q", "k", "v", "out")]
    >>> flash_attention_tiled(*arrays)
    >>> memory.bytes_read, memory.bytes_written       # 2 queries; 1 + 2 keys, and values
    (32, 8)
    """
    (T, H, d), (S, K, e) = q.shape, v.shape
    group = H // K
    for start in range(0, T, q.tile):
        rows = slice(start, min(start + q.tile, T))
        places = np.arange(S - T + rows.start, S - T + rows.stop)      # of the tile's queries
        first = 0 if window is None else max(0, int(places[0]) - window + 1)
        for head in range(K):
            heads = slice(head * group, (head + 1) * group)
            queries = q[rows, heads].reshape(-1, d) * d ** -0.5    # (R, d), by token, then head
            state = Partial.nothing(len(queries), e)
            for begin in range(first, int(places[-1]) + 1, k.tile):
                keys = slice(begin, min(begin + k.tile, int(places[-1]) + 1))
                scores = queries @ k[keys, head].T                                    # (R, n)
                distance = places[:, None] - np.arange(keys.start, keys.stop)
                visible = distance >= 0
                if window is not None:
                    visible &= distance < window
                scores[~np.repeat(visible, group, axis=0)] = -np.inf
                state = online_softmax(state, scores, v[keys, head])
            out[rows, heads] = state.result().reshape(-1, group, e)


def in_tiles(q: np.ndarray, k: np.ndarray, v: np.ndarray, query_tile: int, key_tile: int,
             window: int | None = None, attention: Callable = flash_attention_tiled
             ) -> tuple[np.ndarray, SlowMemory]:
    """Run `flash_attention_tiled`, or one's own, on arrays: the result, and what has moved.

    q, k, v: as for `attention.attention`; query_tile, key_tile: tokens of a tile; returns
    (T, H, e) and the memory with its `moves`.
    """
    memory = SlowMemory()
    out = np.full((*q.shape[:2], v.shape[-1]), np.nan, np.float32)
    attention(memory.place("q", q, query_tile), memory.place("k", k, key_tile),
              memory.place("v", v, key_tile), memory.place("out", out, query_tile), window)
    return out, memory


def tiled_bytes(T: int, S: int, H: int, K: int, d: int, e: int, query_tile: int,
                window: int | None = None) -> int:
    """How many bytes FlashAttention reads and writes, in float32.

    A larger tile of queries reads the keys less often; the size of a tile of keys is no matter.

    >>> tiled_bytes(2, 2, 1, 1, 1, 1, query_tile=1), tiled_bytes(2, 2, 1, 1, 1, 1, 2)
    (40, 32)
    """
    keys = 0
    for start in range(0, T, query_tile):
        end = S - T + min(start + query_tile, T)
        first = 0 if window is None else max(0, S - T + start - window + 1)
        keys += max(0, end - first)
    return 4 * (T * H * (d + e) + keys * K * (d + e))


def plain_bytes(T: int, S: int, H: int, K: int, d: int, e: int) -> int:
    """How many bytes the plain formula moves at least, in float32 and in three passes.

    Scores, softmax, product with the values: each pass reads its operands once and writes its
    result once, masked scores included.

    >>> plain_bytes(2, 2, 1, 1, 1, 1) == 4 * ((2 + 2 + 4) + (4 + 4) + (4 + 2 + 2))
    True
    """
    scores = H * T * S
    return 4 * ((T * H * d + S * K * d + scores) + 2 * scores
                + (scores + S * K * e + T * H * e))
