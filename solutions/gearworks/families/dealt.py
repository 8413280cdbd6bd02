"""Families with a forward pass of their own, in several processes.

Such a pass knows nothing of processes, and need not: it runs in each of them, over the
process's own heads and columns. What a process cannot know alone, it asks where it takes a
weight. A matrix that is cut by its inputs gives the sum over all processes; the table of
embeddings gives rows that others hold; a norm of all heads takes the mean over all of them.

Shapes: T tokens, D hidden size, V vocabulary, n processes.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np

from gearworks.config import ModelConfig
from gearworks.families import olmo2
from gearworks.families.layouts import Weights

# The matrices of a layer that are cut by their inputs
SUMMED = ("o_proj", "down_proj", "shared_down_proj")

AllReduce = Callable[[np.ndarray], np.ndarray]


class Summed(np.ndarray):
    """A process's part of a matrix that is cut by its inputs: products with it are sums over
    all processes. Its slices and its transpose are such parts too."""

    all_reduce: AllReduce

    def __array_finalize__(self, source: object) -> None:
        self.all_reduce = getattr(source, "all_reduce", None)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *operands: np.ndarray,
                        out: tuple[np.ndarray, ...] = (), **options: Any) -> Any:
        plain = [one.view(np.ndarray) if isinstance(one, Summed) else one for one in operands]
        result = getattr(ufunc, method)(*plain, **options)
        if ufunc in (np.matmul, np.vecmat):
            result = self.all_reduce(np.ascontiguousarray(result))
        if not out:
            return result
        out[0][...] = result
        return out[0]


class DealtTable(np.ndarray):
    """A process's rows of the embedding: `table[ids]` are the tokens' rows, whose they are."""

    embed: Callable[[np.ndarray, np.ndarray], np.ndarray]

    def __getitem__(self, ids: np.ndarray) -> np.ndarray:
        return self.embed(self.view(np.ndarray), ids)


def dealt(weights: Weights, all_reduce: AllReduce,
          embed: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Weights:
    """A process's weights as a family's forward pass takes them.

    embed(table, ids): the rows of tokens whose table is dealt out. The head is left as it is:
    it makes the process's own logits.
    """
    def summed(matrix: np.ndarray) -> Summed:
        part = matrix.view(Summed)
        part.all_reduce = all_reduce
        return part

    layers = tuple(replace(layer, **{each.name: summed(getattr(layer, each.name))
                                     for each in fields(layer) if each.name in SUMMED
                                     and getattr(layer, each.name) is not None})
                   for layer in weights.layers)
    table = weights.embed_tokens.view(DealtTable)
    table.embed = embed
    return replace(weights, embed_tokens=table, layers=layers)


def forward_of_part(forward: Callable[..., np.ndarray], config: ModelConfig,
                    all_reduce: AllReduce) -> Callable[..., np.ndarray]:
    """What runs a process's part of a model: as `forward`, its family's, with `dealt`
    weights."""
    if config.architecture != "Olmo2ForCausalLM":
        return forward

    def norm_of_heads(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
        """As `rms_norm`, over the heads of all processes. x, weight: of this one's."""
        squares = all_reduce(np.stack([np.vecdot(x, x), np.full(x.shape[:-1], x.shape[-1],
                                                                x.dtype)]))
        return x / np.sqrt(squares[0] / squares[1] + np.float32(eps))[..., None] * weight
    return partial(olmo2.forward, norm_of_heads=norm_of_heads)
