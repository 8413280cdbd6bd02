"""Where keys and values of past tokens live.

`model.forward` never looks at sequence borders: every layer hands its new keys and values to `cache.attend`, which
stores them and lets the new queries look at all that it holds. `KVCache` is one sequence in contiguous memory;
`RaggedBatch` puts several caches behind the same call.

Shapes: T new tokens, S stored tokens, L layers, H query heads, K key/value heads, d head size. All float32.
"""

from collections.abc import Sequence
from math import prod

import numpy as np

from gearworks.attention import attention
from gearworks.config import ModelConfig
from gearworks.errors import ModelError

# Queries of a long prompt go through attention in blocks of this many, so that the scores stay in the processor's
# cache and each block multiplies only with keys that it can see. The result does not depend on it.
QUERY_BLOCK = 64


class KVCache:
    """The keys and values of one sequence, in memory reserved once and written in place.

    Each layer counts its own tokens, since within one forward pass the layers run one after the other.
    """

    def __init__(self, config: ModelConfig, capacity: int):
        """Reserve room for `capacity` tokens: 2 · L · K · capacity · d float32. Raises ModelError when that fails."""
        shape = (config.num_hidden_layers, config.num_key_value_heads, capacity, config.head_dim)
        try:
            self.keys = np.empty(shape, np.float32)      # (L, K, capacity, d): each head's keys lie together
            self.values = np.empty(shape, np.float32)
        except (MemoryError, ValueError):                # ValueError: a size or a number of bytes beyond all memory
            raise ModelError(f"cannot reserve a KV cache for {capacity} tokens",
                             f"it would take {8e-9 * prod(shape):,.1f} GB", "make do with fewer tokens") from None
        self.lengths = [0] * config.num_hidden_layers
        self.capacity = capacity

    def __len__(self) -> int:
        """How many tokens are stored, in every layer."""
        return min(self.lengths)

    def require_room(self, layer: int, count: int) -> None:
        """Raise ModelError unless `count` more tokens fit into `layer`."""
        if self.lengths[layer] + count > self.capacity:
            raise ModelError("the KV cache is full",
                             f"it holds {self.capacity} tokens, and {self.lengths[layer] + count} are needed",
                             "make it larger, or shorten the prompt or the answer")

    def attend(self, layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Store this step's keys and values in `layer`, then let this step's queries look at all stored tokens.

        q: (T, H, d); k, v: (T, K, d), the T tokens that follow those already stored; returns (T, H, d).
        Raises ModelError when the tokens do not fit; then nothing is stored.
        """
        self.require_room(layer, len(k))
        start = self.lengths[layer]
        end = start + len(k)
        self.keys[layer, :, start:end] = k.transpose(1, 0, 2)
        self.values[layer, :, start:end] = v.transpose(1, 0, 2)
        self.lengths[layer] = end
        keys = self.keys[layer].transpose(1, 0, 2)         # (capacity, K, d), a view
        values = self.values[layer].transpose(1, 0, 2)
        if len(q) <= QUERY_BLOCK:
            return attention(q, keys[:end], values[:end])
        out = np.empty_like(q)
        for first in range(0, len(q), QUERY_BLOCK):
            last = min(first + QUERY_BLOCK, len(q))
            out[first:last] = attention(q[first:last], keys[:start + last], values[:start + last])
        return out

    def truncate(self, length: int) -> None:
        """Forget every token from position `length` on. Raises ValueError when fewer tokens are stored."""
        if not 0 <= length <= len(self):
            raise ValueError(f"cannot truncate {len(self)} stored tokens to {length}")
        self.lengths = [length] * len(self.lengths)


class RaggedBatch:
    """Several sequences in one forward pass, each with its own cache, of any lengths.

    The rows of a step are grouped by sequence: first `counts[0]` tokens of the first, and so on.
    """

    def __init__(self, caches: Sequence[KVCache], counts: Sequence[int]):
        """counts: (B,) how many of this step's tokens belong to each cache; their sum is T. A cache may appear once."""
        if len(caches) != len(counts) or len({id(cache) for cache in caches}) != len(caches) or min(counts, default=0) < 0:
            raise ValueError("a ragged batch needs one count for each cache, none below 0, and each cache once")
        used = [(cache, count) for cache, count in zip(caches, counts) if count]
        self.caches = [cache for cache, _ in used]
        self.borders = np.cumsum([0, *(count for _, count in used)]).tolist()

    def attend(self, layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """As `KVCache.attend`, once for each sequence. Raises ValueError when the counts do not add up to T."""
        if len(q) != self.borders[-1]:
            raise ValueError(f"{len(q)} tokens came in, and the counts add up to {self.borders[-1]}")
        parts = list(zip(self.caches, self.borders, self.borders[1:]))
        for cache, start, end in parts:                  # before the first one writes: all of the step or nothing
            cache.require_room(layer, end - start)
        out = np.empty_like(q)
        for cache, start, end in parts:
            out[start:end] = cache.attend(layer, q[start:end], k[start:end], v[start:end])
        return out
