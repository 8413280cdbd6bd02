"""Rotary positions: how pairs turn, and why a score knows only how far apart two tokens are.

Shapes: N positions, d head size. Everything that turns here is turned by
`attention.apply_rope`.
"""

import json
import math

import numpy as np

from gearworks.attention import apply_rope, rope_angles
from gearworks.viz.figure import Figure, interactive
from gearworks.viz.quantities import number
from gearworks.viz.trace import FigureError


def rope_rotation(q: np.ndarray, k: np.ndarray, frequencies: np.ndarray, pairs: int = 4,
                  positions: int = 48,
                  title: str = "Positions turn pairs of numbers") -> Figure:
    """Pairs of a query as dials that turn with position, and its score with a key anywhere.

    q, k: (d,), one head's query and key before rotation. frequencies: (d/2,), from
    `attention.rope_frequencies`.
    pairs: how many dials, from the fastest pair to the slowest. positions: N, how many there
    are, from 0; the page holds the scores of all N² ways to place query and key. A score is
    scaled by 1/sqrt(d), as in attention.
    Raises FigureError for shapes that do not fit, and for numbers that are not finite.

    >>> q, k = np.array([3., 4.], np.float32), np.array([1., 0.], np.float32)
    >>> print(repr(rope_rotation(q, k, np.array([np.pi / 2], np.float32), pairs=1,
    ...                          positions=8)).splitlines()[1])
    Pair 0 (elements 0 and 1): a full turn in 4 tokens
    """
    d, N = len(q), positions
    if (q.shape != (d,) or k.shape != (d,) or frequencies.shape != (d // 2,)
        or not 1 <= pairs <= d // 2 or N < 2):
        raise FigureError("cannot draw this rotation",
                          f"the shapes are {q.shape}, {k.shape} and {frequencies.shape}, for "
                          f"{pairs} pairs and {N} positions",
                          "give (d,), (d,) and (d/2,), at least one pair, and two positions")
    if not all(np.isfinite(numbers).all() for numbers in (q, k, frequencies)):
        raise FigureError("cannot draw this rotation", "not all numbers are finite",
                          "check the query and the key")
    cos, sin = rope_angles(np.arange(N), np.asarray(frequencies, np.float32))
    at_all = (np.tile(np.asarray(x, np.float32), (N, 1, 1)) for x in (q, k))       # (N, 1, d)
    turned_q, turned_k = (apply_rope(x, cos, sin)[:, 0] for x in at_all)           # (N, d)
    scores = turned_q @ turned_k.T / np.float32(math.sqrt(d))             # (N, N), [query, key]
    # query minus key
    by_distance = [np.diagonal(scores, -distance) for distance in range(1 - N, N)]
    spread = max(float(np.ptp(equal)) for equal in by_distance)
    same = spread <= 1e-5 * max(1, np.abs(scores).max())
    law = (f"Of all {N * N:,} ways to place query and key, those at the same distance have "
           f"scores that differ by {spread:.1g} at most: "
           + ("no more than float32 rounds away." if same
              else "with this rotation, the score is no matter of distance alone."))
    shown = np.unique(np.linspace(0, d // 2 - 1, pairs).round().astype(int))
    dials = [{"pair": int(i), "partner": int(i + d // 2), "frequency": float(frequencies[i]),
              "points": np.round(turned_q[:, [i, i + d // 2]], 4).tolist()} for i in shown]

    words = [title]
    words += [f"Pair {dial['pair']} (elements {dial['pair']} and {dial['partner']}): a full "
              f"turn in {number(2 * math.pi / dial['frequency'])} tokens" for dial in dials]
    words += [f"Query {distance} tokens after the key: score "
              f"{float(by_distance[N - 1 + distance][0]):.4g}" for distance in range(min(N, 9))]
    words.append(law)
    data = {"dials": dials, "scores": np.round(scores.astype(np.float64), 5).tolist(),
            "law": law}
    return interactive("rotation", title,
                       json.dumps(data, separators=(",", ":"), allow_nan=False),
                       "\n".join(words))

