"""Who looks at whom: the attention weights of every layer and head over a short text.

Shapes: T tokens, L layers, H query heads, K key/value heads, d head size.
"""

import json
from base64 import urlsafe_b64encode
from collections.abc import Sequence

import numpy as np

from gearworks import kv_cache
from gearworks.attention import causal_mask
from gearworks.config import ModelConfig
from gearworks.kv_cache import KVCache
from gearworks.model import Model
from gearworks.viz.figure import Figure, interactive
from gearworks.viz.trace import FigureError

# What a head may look at, in the order of the last axis of `habits`. No token is counted twice
# from the third on.
HABITS = ("the first token", "the token before", "itself")
ELSEWHERE = "others"


class RecordingCache(KVCache):
    """A `KVCache` that keeps each layer's queries, and the weights that they gave to the keys.

    queries: list of (T, H, d), after RoPE. weights: list of (H, T, S), S being all keys stored
    by then.
    """

    def __init__(self, config: ModelConfig, capacity: int):
        super().__init__(config, capacity)
        self.queries: list[np.ndarray] = []
        self.weights: list[np.ndarray] = []

    def attend(self, layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """As `KVCache.attend`."""
        out = super().attend(layer, q, k, v)
        S = self.lengths[layer]
        keys = self.keys[layer, :, :S].transpose(1, 0, 2)                      # (S, K, d)
        window = self.rules[layer].window
        mask = None if window is None else causal_mask(len(q), S, window)
        self.queries.append(q)
        self.weights.append(weights_of(q, keys, mask))
        return out


def weights_of(q: np.ndarray, keys: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    """What the caches' attention does with these scores: (H, T, S), each row adding up to 1.

    q: (T, H, d); keys: (S, K, d); mask: as for `attention.attention`.
    """
    # Attention mixes values by weight; of values that are the rows of the identity, the mixture
    # is the weights.
    S, K, _ = keys.shape
    identity = np.broadcast_to(np.eye(S, dtype=np.float32)[:, None], (S, K, S))
    return kv_cache.attention(q, keys, identity, mask).transpose(1, 0, 2)


def attention_weights(model: Model, ids: Sequence[int]) -> np.ndarray:
    """The attention weights of a forward pass over a text: (L, H, T, T) float32.

    weights[layer, head, i, j] says how much of token j's value goes into what token i gets.
    ids: (T,), the whole text. Errors as `Model.forward`.
    """
    cache = RecordingCache(model.config, len(ids))
    model.forward(np.asarray(ids), np.arange(len(ids)), cache, [-1])
    return np.stack(cache.weights)


def habits(weights: np.ndarray) -> np.ndarray:
    """How much weight each head gives to the first token, the token before, and itself.

    weights: (L, H, T, T); returns (L, H, 3), the mean over all queries from the third on.
    Raises FigureError when there is none.

    >>> habits(np.eye(4)[None, None])
    array([[[0., 0., 1.]]])
    """
    if weights.shape[-1] < 3:
        raise FigureError("cannot tell the heads apart",
                          f"there are {weights.shape[-1]} tokens",
                          "give a text of three or more")
    looks = weights[:, :, 2:]
    before, itself = (np.diagonal(looks, shift, 2, 3) for shift in (1, 2))
    return np.stack([part.mean(-1) for part in (looks[..., 0], before, itself)], -1)


def attention_explorer(tokens: Sequence[str], weights: np.ndarray,
                       title: str = "Who looks at whom") -> Figure:
    """Attention weights as a map, by layer and head, and the text with what a token looks at.

    tokens: the T texts. weights: (L, H, T, T) float, each row adding up to 1, as from
    `attention_weights`; shown in steps of 1/255, so that all heads of a small model over 16
    tokens fit into a figure.
    Sliders choose layer and head, a list leads to heads that do one thing most. Pointing at a
    cell of the map, or going to it with the arrow keys, shows its weight, and below the map the
    weights of its whole row.
    Raises FigureError for shapes that do not fit, rows that do not add up to 1, and more than a
    figure can hold.

    >>> figure = attention_explorer(["A", "b", "c"],
    ...                             np.tril(np.ones((1, 1, 3, 3))) / [[1], [2], [3]])
    >>> print(repr(figure).splitlines()[2])
    Layer 0: the first token 33 %; the token before 33 %; itself 33 %; others 0 %
    """
    weights = np.asarray(weights)
    T = len(tokens)
    if weights.ndim != 4 or weights.shape[2:] != (T, T) or not weights.size:
        raise FigureError("cannot draw these weights",
                          f"their shape is {weights.shape}, for {T} tokens",
                          "give (layers, heads, tokens, tokens)")
    if not (np.all(weights >= 0) and np.allclose(weights.sum(-1), 1, atol=1e-3)):
        raise FigureError("cannot draw these weights",
                          "not all are positive, with rows that add up to 1",
                          "softmax goes over the keys, the last axis")
    L, H = weights.shape[:2]
    causal = not np.triu(weights, 1).any()
    cells = weights[:, :, *np.tril_indices(T)] if causal else weights
    shares = habits(weights)
    shares = np.concatenate([shares, 1 - shares.sum(-1, keepdims=True)], -1)         # (L, H, 4)
    names = [*HABITS, ELSEWHERE]
    most = [(name, *np.unravel_index(shares[..., i].argmax(), (L, H)))
            for i, name in enumerate(names)]

    words = [title, "The tokens: " + " | ".join(tokens)]
    for layer in range(L):
        ranges = (f"{name} {_range(shares[layer, :, i])}" for i, name in enumerate(names))
        words.append(f"Layer {layer}: {'; '.join(ranges)}")
    words += [f"Most at {name}: layer {layer}, head {head}, "
              f"{shares[layer, head, i]:.0%}".replace("%", " %")
              for i, (name, layer, head) in enumerate(most)]
    codes = np.rint(cells * 255).astype(np.uint8).tobytes()
    data = {"tokens": list(tokens), "layers": L, "heads": H, "causal": causal,
            "weights": urlsafe_b64encode(codes).decode("ascii"),
            "habits": names,
            "shares": np.rint(100 * shares).astype(int).reshape(-1, 4).tolist(),
            "most": [[f"most at {name}", int(layer), int(head)] for name, layer, head in most]}
    return interactive("attention", title, json.dumps(data, separators=(",", ":")),
                       "\n".join(words))


def _range(shares: np.ndarray) -> str:
    low, high = (f"{100 * share:.0f}" for share in (shares.min(), shares.max()))
    return f"{low} %" if low == high else f"{low} to {high} %"
