"""The next token's distribution under temperature, top-k, top-p and min-p, moved by the reader.

The page computes with the formulas of `gearworks.sampling`, in their order, so that it needs no
kernel. It holds the likeliest tokens one by one; the others lie in narrow bins of equal logits,
which is enough for sums and counts.

Shapes: V vocabulary.
"""

import json
from collections.abc import Callable, Mapping

import numpy as np

from gearworks.layers import softmax
from gearworks.sampling import SamplingParams, process
from gearworks.viz.figure import Figure, interactive
from gearworks.viz.trace import FigureError

_EXACT = 800                                 # tokens that the page knows one by one
_BINS = 250                                  # for all others
_IN_WORDS = 8
USUAL = SamplingParams(temperature=0.7, top_k=40, top_p=0.9)


def distribution(logits: np.ndarray | Mapping[str, np.ndarray], token: Callable[[int], str],
                 shown: int = 40, title: str = "The next token") -> Figure:
    """The likeliest next tokens as bars, which temperature, top-k, top-p and min-p change.

    logits: (V,), the model's own; or several with names, among which the reader chooses. token:
    the text of an id.
    shown: how many tokens have a bar; all others share one. Of tokens tied with the k-th, all
    stay; of tokens tied at the border of top-p, the higher ids.
    Raises FigureError for logits that are no distribution over at least two tokens.

    >>> print(distribution(np.log(np.array([0.5, 0.3, 0.2], np.float32)), "abc".__getitem__))
    The next token
    "a" 50.0 %, "b" 30.0 %, "c" 20.0 %
    With temperature 0.7, top-k 40 and top-p 0.9: 3 of 3 tokens are left
    """
    named = logits if isinstance(logits, Mapping) else {"": logits}
    if not named:
        raise FigureError("cannot draw this distribution", "there are no logits",
                          "give those of at least one place")
    choices, words = [], [title]
    for name, row in named.items():
        row = np.asarray(row, np.float32)
        if (row.ndim != 1 or len(row) < 2 or shown < 1 or np.isnan(row).any()
            or not np.isfinite(row.max())):
            raise FigureError("cannot draw this distribution",
                              f"the shape is {row.shape}, the largest logit "
                              f"{row.max(initial=-np.inf)}, and {shown} tokens are to be shown",
                              "give the logits of one place, and at least one token to show")
        choices.append({"name": name, "vocabulary": len(row), **_sorted(row, token, shown)})
        probabilities = softmax(row)
        likeliest = ", ".join(
            f"{json.dumps(text, ensure_ascii=False)} {probabilities[id]:.1%}".replace("%", " %")
            for id, text in zip(choices[-1]["ids"], choices[-1]["texts"][:_IN_WORDS]))
        left = int(np.isfinite(process(row, USUAL, [])).sum())
        words.append((f"{name}: " if name else "") + likeliest)
        words.append(f"With temperature {USUAL.temperature}, top-k {USUAL.top_k} and top-p "
                     f"{USUAL.top_p}: {left:,} of {len(row):,} tokens are left")
    return interactive("distribution", title,
                       json.dumps(choices, separators=(",", ":"), allow_nan=False),
                       "\n".join(words), "After")


def _sorted(logits: np.ndarray, token: Callable[[int], str], shown: int) -> dict:
    """The likeliest first, of equal ones the higher id, which top-p keeps; then the bins."""
    possible = np.flatnonzero(np.isfinite(logits))
    order = possible[np.lexsort((-possible, -logits[possible]))]
    exact, rest = order[:max(_EXACT, shown)], logits[order[max(_EXACT, shown):]]
    bins = []
    if len(rest):
        places = np.minimum(((rest[0] - rest) / max(np.ptp(rest), 1e-6) * _BINS).astype(int),
                            _BINS - 1)
        counts = np.bincount(places)
        sums = np.bincount(places, rest.astype(np.float64))
        bins = [[int(count), round(total / count, 4)] for count, total in zip(counts, sums)
                if count]
    return {"ids": exact[:shown].tolist(), "texts": [token(int(id)) for id in exact[:shown]],
            "logits": [float(f"{value:.7g}") for value in logits[exact]], "bins": bins}
