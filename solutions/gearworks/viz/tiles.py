"""FlashAttention step by step: tiles of the scores, and what lies in fast memory meanwhile."""

from collections.abc import Callable

import numpy as np

from gearworks.kernels.flash import (
    Move, Partial, flash_attention_tiled, in_tiles, online_softmax, plain_bytes)
from gearworks.viz.figure import Figure, player
from gearworks.viz.trace import Cell, FigureError, Lane, Step, Trace

_LEGEND = {"now": "a score in fast memory",
           "gone": "used and forgotten: it was never written",
           "unseen": "never computed: no query of the tile may see this key",
           "ours": "moved by FlashAttention so far",
           "plain": "moved by the plain formula in all"}
_GRID = "Scores: a row a query, a column a key"
_MOST = 16                        # queries, and keys: more squares would have no room for text
_STEPS = 80


def attention_tiles(q: np.ndarray, k: np.ndarray, v: np.ndarray, query_tile: int, key_tile: int,
                    window: int | None = None, attention: Callable = flash_attention_tiled,
                    title: str = "FlashAttention, tile by tile") -> Figure:
    """What `flash_attention_tiled` does for one head: a step for every tile that is moved.

    q: (T, 1, d); k: (S, 1, d); v: (S, 1, e), at most 16 queries and keys; attention: the
    function that is replayed, the reference's or one's own. The tiles' order and the bytes are
    those that it moved; scores, maxima and sums are worked out beside it.
    Raises FigureError for more heads, queries or keys, and for an order of tiles in which no
    queries are there when keys are read.

    >>> x = np.zeros((2, 1, 1), np.float32)
    >>> print(repr(attention_tiles(x, x, x, 2, 2)).splitlines()[6])
    Step 2 of 6: Queries 0 to 1 come to fast memory. Nothing is known of them yet.
    """
    (T, H, _), (S, K, _) = q.shape, v.shape
    if H != 1 or K != 1 or not 1 <= T <= _MOST or not 1 <= S <= _MOST:
        raise FigureError("cannot draw these tiles",
                          f"there are {H} heads, {T} queries and {S} keys",
                          f"give one head, and 1 to {_MOST} queries and keys")
    _, memory = in_tiles(q, k, v, query_tile, key_tile, window, attention)
    if len(memory.moves) > _STEPS:
        raise FigureError("cannot draw these tiles", f"{len(memory.moves)} of them are moved",
                          "take larger ones")
    run = _Run(q[:, 0], k[:, 0], v[:, 0], (query_tile, key_tile), window)
    steps = [run.step("All arrays lie in slow memory. Fast memory is empty.", 0)]
    moved = 0
    for move in memory.moves:
        caption = run.take(move)
        moved += move.nbytes
        steps.append(run.step(caption, moved))
    run.finish()
    steps.append(run.step(
        f"Done: {moved:,} bytes were moved, and the plain formula moves {run.plain:,}. No "
        "score was ever in slow memory.", moved))
    columns = _with_gaps([str(key) for key in range(S)], key_tile, "")
    return player(Trace(title, steps, "tiles", _LEGEND, columns=columns))


class _Run:
    """What is in fast memory after each move, and which scores have been there."""

    def __init__(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, tiles: tuple[int, int],
                 window: int | None):
        self.q, self.k, self.v = q * q.shape[1] ** -0.5, k, v
        (self.T, d), (self.S, e) = q.shape, v.shape
        self.query_tile, self.key_tile = tiles
        self.window = window
        self.plain = plain_bytes(self.T, self.S, 1, 1, d, e)
        self.gone: set[tuple[int, int]] = set()
        self.held: dict[str, Move] = {}                      # array -> the tile that is there
        self.scores: np.ndarray | None = None                # of the tiles that are there
        self.rescale: np.ndarray | None = None
        self.state: Partial | None = None

    def take(self, move: Move) -> str:
        """Take a move, and say what it means."""
        first, last = move.rows[0], move.rows[1] - 1
        if move.array == "q":
            self.forget("q", "k", "v")
            self.held["q"] = move
            self.state = Partial.nothing(last + 1 - first, self.v.shape[1])
            return (f"Queries {first} to {last} come to fast memory. Nothing is known of them "
                    "yet.")
        if move.written:
            self.forget("q", "k", "v")
            return (f"The results of queries {first} to {last}, each divided by its sum, go to "
                    "slow memory. That is all that is written.")
        if "q" not in self.held:
            raise FigureError("cannot draw these tiles",
                              f"{move.array} {first} to {last} is read before any queries",
                              "read a tile of queries first")
        if move.array == "k":
            self.forget("k", "v")
            self.held["k"] = move
            self.scores = self.scores_of(self.held["q"].rows, move.rows)
            masked = int(np.isneginf(self.scores).sum())
            return (f"Keys {first} to {last} come, and are multiplied with the queries: "
                    f"{self.scores.size} scores, in fast memory alone"
                    + (f", {masked} of them masked." if masked else "."))
        self.held["v"] = move
        before = self.state
        self.state = online_softmax(before, self.scores, self.v[first:last + 1])
        safe = np.where(np.isneginf(self.state.peak), 0, self.state.peak)
        self.rescale = np.exp(before.peak - safe)
        raised = int(((before.peak < self.state.peak) & ~np.isneginf(before.peak)).sum())
        return (f"Values {first} to {last} come. Sums and mixtures take this tile in"
                + (f"; where the maximum has grown ({raised} of {len(safe)}), what was there "
                   "is scaled down first." if raised else "."))

    def scores_of(self, rows: tuple[int, int], keys: tuple[int, int]) -> np.ndarray:
        scores = self.q[slice(*rows)] @ self.k[slice(*keys)].T
        distance = (np.arange(*rows)[:, None] + self.S - self.T) - np.arange(*keys)
        unseen = distance < 0
        if self.window is not None:
            unseen |= distance >= self.window
        return np.where(unseen, np.float32(-np.inf), scores)

    def forget(self, *arrays: str) -> None:
        """Let tiles go; the scores that hang on them go with them."""
        if self.scores is not None:
            self.gone |= {(row, key) for row in range(*self.held["q"].rows)
                          for key in range(*self.held["k"].rows)}
        self.scores = self.rescale = None
        for array in arrays:
            self.held.pop(array, None)

    def finish(self) -> None:
        """Nothing is left in fast memory."""
        self.forget("q", "k", "v")

    def step(self, caption: str, moved: int) -> Step:
        lanes = _with_gaps([Lane(str(row), _with_gaps(
            [self.square(row, key) for key in range(self.S)], self.key_tile,
            Cell("", size=0)), group=_GRID) for row in range(self.T)], self.query_tile,
            Lane("", group=_GRID))
        lanes += self.fast_memory()
        share = moved / max(moved, self.plain)
        bytes_group = "Bytes between slow and fast memory"
        lanes += [Lane("so far", [Cell(f"{moved:,} bytes", "ours", size=share)],
                       group=bytes_group),
                  Lane("plain formula",
                       [Cell(f"{self.plain:,} bytes", "plain",
                             size=self.plain / max(moved, self.plain))], group=bytes_group)]
        return Step(caption, lanes)

    def square(self, row: int, key: int) -> Cell:
        if self.scores is not None:
            rows, keys = self.held["q"].rows, self.held["k"].rows
            if row in range(*rows) and key in range(*keys):
                score = self.scores[row - rows[0], key - keys[0]]
                text = "–" if np.isneginf(score) else f"{score:.1f}".replace("-", "−")
                return Cell(text, "now", "chosen", f"query {row}, key {key}: {text}")
        if (row, key) in self.gone:
            return Cell("", "gone")
        return Cell("") if self.reachable(row, key) else Cell("", "unseen", "faded")

    def reachable(self, row: int, key: int) -> bool:
        """Whether some query of the row's tile sees the key: if not, it is not read for it."""
        first = row // self.query_tile * self.query_tile
        last = min(first + self.query_tile, self.T) - 1
        lowest = 0 if self.window is None else first + self.S - self.T - self.window + 1
        return lowest <= key <= last + self.S - self.T

    def fast_memory(self) -> list[Lane]:
        group, state = "In fast memory", "Of each query there"
        tiles = [Cell(f"{name} {move.rows[0]}–{move.rows[1] - 1}", note=f"{move.nbytes} bytes")
                 for name, move in self.held.items()]
        if self.scores is not None:
            tiles.append(Cell(f"scores {self.scores.shape[0]}×{self.scores.shape[1]}", "now",
                              note=f"{self.scores.nbytes} bytes"))
        lanes = [Lane("tiles", tiles, group=group)]
        if "q" not in self.held:
            return [*lanes, Lane("queries", [], group=state)]
        for i, row in enumerate(range(*self.held["q"].rows)):
            peak, total = self.state.peak[i], self.state.total[i]
            cells = [Cell(f"max {'–' if np.isneginf(peak) else _short(peak)}"),
                     Cell(f"sum {_short(total)}")]
            if self.rescale is not None and 0 < self.rescale[i] < 1:
                factor = f"× {_short(self.rescale[i])}"
                cells.append(Cell(factor, emphasis="new",
                                  note="what the sum and the mixture so far were scaled by"))
            lanes.append(Lane(f"query {row}", cells, group=state))
        return lanes


def _with_gaps(items: list, every: int, gap: object) -> list:
    """The items, with a gap before each tile but the first."""
    return [one for i, item in enumerate(items)
            for one in ([gap, item] if i and i % every == 0 else [item])]


def _short(value: float) -> str:
    """A number in four characters or so, with a real minus."""
    return f"{value:.2f}".replace("-", "−") if abs(value) < 1 else (
        f"{value:.1f}".replace("-", "−"))
