"""A mixture of experts: a layer's many feed-forward networks; each token visits a few.

Shapes: T tokens, D hidden size, E experts, k experts for each token, F an expert's feed-forward
size. All float32.
Left out on purpose: the losses that keep the load even in training, and any limit on how many
tokens an expert takes.
"""

import numpy as np

from gearworks.layers import linear, softmax, swiglu


def route(scores: np.ndarray, k: int, normalize: bool) -> tuple[np.ndarray, np.ndarray]:
    """Choose the k experts of each token, and how much each of them counts.

    scores: (T, E) logits of the router; normalize: whether the chosen weights are scaled to sum
    to 1, as Mixtral does.
    Returns (T, k) integers, best expert first, and (T, k) float32, their probabilities among
    all E experts.
    Source: Shazeer et al. 2017; Jiang et al. 2024, "Mixtral of Experts", section 2.1.

    >>> experts, weights = route(np.array([[0., 2., 1.]], np.float32), k=2, normalize=True)
    >>> experts, weights.round(3)
    (array([[1, 2]]), array([[0.731, 0.269]], dtype=float32))
    """
    weights = softmax(scores)
    experts = np.argsort(-weights, axis=-1, kind="stable")[:, :k]
    chosen = np.take_along_axis(weights, experts, axis=-1)
    if normalize:
        chosen = chosen / chosen.sum(axis=-1, keepdims=True)
    return experts, chosen


def choose_experts(weights: np.ndarray, k: int, normalize: bool,
                   ranking: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The k best experts of each token by a ranking other than their weights, as in DeepSeek.

    weights, ranking: (T, E); returns as `route`. The two share no code, since `route` is an
    exercise and stands alone.
    """
    experts = np.argsort(-ranking, axis=-1, kind="stable")[:, :k]
    chosen = np.take_along_axis(weights, experts, axis=-1)
    if normalize:
        total = chosen.sum(axis=-1, keepdims=True)
        chosen = chosen / (total + 1e-20)                                # sigmoids may all be 0
    return experts, chosen


def keep_best_groups(scores: np.ndarray, groups: int, kept: int, best: int,
                     rest: float) -> np.ndarray:
    """Replace scores outside the best groups by `rest`, so that a token visits few machines.

    scores: (T, E), E in `groups` neighbouring groups of equal size; kept: how many groups stay;
    best: how many of a group's best experts are added up to its score. Returns (T, E).
    Source: DeepSeek-AI 2024, "DeepSeek-V2", section 2.2.2 (best = 1); "DeepSeek-V3", section
    2.1.2 (best = 2).
    """
    T, E = scores.shape
    grouped = scores.reshape(T, groups, E // groups)                  # (T, groups, E / groups)
    strength = np.sort(grouped, axis=-1)[..., -best:].sum(axis=-1)                 # (T, groups)
    winners = np.argsort(-strength, axis=-1, kind="stable")[:, :kept]
    is_kept = np.zeros(strength.shape, bool)
    np.put_along_axis(is_kept, winners, True, axis=-1)
    return np.where(is_kept[..., None], grouped, np.float32(rest)).reshape(scores.shape)


def mixture(x: np.ndarray, experts: np.ndarray, weights: np.ndarray, gate_up_proj: np.ndarray,
            down_proj: np.ndarray) -> np.ndarray:
    """The weighted sum of what each token's experts say.

    x: (T, D); experts, weights: (T, k) from `route`; gate_up_proj: (E, 2F, D), gate then up;
    down_proj: (E, D, F); returns (T, D). An expert that no token chose costs nothing.
    """
    out = np.zeros_like(x)
    for expert in np.unique(experts):
        # a token names an expert once, so `+=` adds each once
        token, place = np.nonzero(experts == expert)
        said = gated_network(x[token], gate_up_proj[expert], down_proj[expert])
        out[token] += weights[token, place, None] * said
    return out


def gated_network(x: np.ndarray, gate_up_proj: np.ndarray, down_proj: np.ndarray) -> np.ndarray:
    """One feed-forward network with a gate.
    x: (T, D); gate_up_proj: (2F, D); down_proj: (D, F); returns (T, D)."""
    gate_up = linear(x, gate_up_proj)                                                  # (T, 2F)
    F = gate_up.shape[-1] // 2
    return linear(swiglu(gate_up[:, :F], gate_up[:, F:]), down_proj)
