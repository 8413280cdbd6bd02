"""Where keys and values of past tokens live.

`model.forward` never looks at sequence borders: every layer hands its new keys and values to
`cache.attend`, which stores them and lets the new queries look at all that it holds. `KVCache`
is one sequence in contiguous memory; `RaggedBatch` puts several caches behind the same call.

Shapes: T new tokens, S stored tokens, L layers, H query heads, K key/value heads, d head size.
All float32.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from gearworks.attention import attention, causal_mask
from gearworks.config import ModelConfig
from gearworks.errors import ModelError

# Queries of a long prompt go through attention in blocks of this many, so that the scores stay
# in the processor's cache and each block multiplies only with keys that it can see. The result
# does not depend on it.
QUERY_BLOCK = 64

Rows = np.ndarray | Sequence[int] | slice


class Cache(Protocol):
    """What a model needs of a cache: `KVCache` for one sequence, `RaggedBatch` for several."""

    def attend(self, layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Store this step's keys and values; returns its attention over all that is stored."""
        ...


class KVCache:
    """The keys and values of one sequence, in memory reserved once and written in place.

    Each layer counts its own tokens, since within one forward pass the layers run one after the
    other.
    """

    def __init__(self, config: ModelConfig, capacity: int):
        """Reserve room for `capacity` tokens: 2 · L · K · capacity · d float32.
        Raises ModelError when that fails.

        With latent attention the one key of a token holds its value too, so there is a single
        array.
        """
        L, K, d = config.num_hidden_layers, config.num_key_value_heads, config.head_dim
        arrays = 2
        if config.latent is not None:
            K, d, arrays = 1, config.latent.cached_size, 1
        try:
            self.keys = np.empty((L, K, capacity, d), np.float32)   # a head's keys lie together
            self.values = (np.empty((L, K, capacity, d), np.float32) if config.latent is None
                           else self.keys[..., :config.latent.kv_lora_rank])
        except (MemoryError, ValueError):
            # ValueError: a size or a number of bytes beyond all memory
            raise ModelError(f"cannot reserve a KV cache for {capacity} tokens",
                             f"it would take {4e-9 * arrays * L * K * capacity * d:,.1f} GB",
                             "make do with fewer tokens") from None
        self.windows = [config.window(layer) for layer in range(L)]
        self.lengths = [0] * L
        self.capacity = capacity

    def __len__(self) -> int:
        """How many tokens are stored, in every layer."""
        return min(self.lengths)

    def require_room(self, layer: int, count: int) -> None:
        """Raise ModelError unless `count` more tokens fit into `layer`."""
        if self.lengths[layer] + count > self.capacity:
            raise ModelError("the KV cache is full",
                             f"it holds {self.capacity} tokens, and "
                             f"{self.lengths[layer] + count} are needed",
                             "make it larger, or shorten the prompt or the answer")

    def attend(self, layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Store this step's keys and values, then let its queries look at all stored tokens.

        q: (T, H, d); k, v: (T, K, d), the T tokens that follow those already stored; returns
        (T, H, d).
        Raises ModelError when the tokens do not fit; then nothing is stored.
        """
        self.require_room(layer, len(k))
        start = self.lengths[layer]
        end = start + len(k)
        self.keys[layer, :, start:end] = k.transpose(1, 0, 2)
        self.values[layer, :, start:end] = v.transpose(1, 0, 2)
        self.lengths[layer] = end
        return self.look(layer, q)

    def look(self, layer: int, q: np.ndarray) -> np.ndarray:
        """Attention of the last tokens over all that the layer holds, or its window of it.

        q: (T, H, d), the queries of the last T stored tokens; returns (T, H, d). Long prompts
        are cut into blocks of queries, each of which multiplies only with keys that some of its
        queries can see.
        """
        if not len(q):
            return np.empty((0, q.shape[1], self.values.shape[-1]), np.float32)
        start, window = self.lengths[layer] - len(q), self.windows[layer]
        attended = []
        for first in range(0, len(q), QUERY_BLOCK):
            block = q[first:first + QUERY_BLOCK]
            end = start + first + len(block)
            begin = 0 if window is None else max(0, end - len(block) - window + 1)
            mask = None if window is None else causal_mask(len(block), end - begin, window)
            keys = self.keys[layer, :, begin:end].transpose(1, 0, 2)                # (S, K, d)
            values = self.values[layer, :, begin:end].transpose(1, 0, 2)            # (S, K, d)
            attended.append(attention(block, keys, values, mask))
        return attended[0] if len(attended) == 1 else np.concatenate(attended)

    def truncate(self, length: int) -> None:
        """Forget every token from position `length` on.
        Raises ValueError when fewer tokens are stored."""
        if not 0 <= length <= len(self):
            raise ValueError(f"cannot truncate {len(self)} stored tokens to {length}")
        self.lengths = [length] * len(self.lengths)


class RaggedBatch:
    """Several sequences in one forward pass, each with its own cache, of any lengths.

    The rows of a step go by sequence: first `counts[0]` tokens of the first, and so on.
    """

    def __init__(self, caches: Sequence[KVCache], counts: Sequence[int]):
        """counts: (B,) how many of this step's tokens belong to each cache; their sum is T.
        A cache may appear once."""
        if (len(caches) != len(counts) or len({id(cache) for cache in caches}) != len(caches)
            or min(counts, default=0) < 0):
            raise ValueError("a ragged batch needs one count for each cache, none below 0, and "
                             "each cache once")
        used = [(cache, count) for cache, count in zip(caches, counts) if count]
        self.caches = [cache for cache, _ in used]
        self.borders = np.cumsum([0, *(count for _, count in used)]).tolist()

    def attend(self, layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """As `KVCache.attend`, once for each sequence.
        Raises ValueError when the counts do not add up to T."""
        if len(q) != self.borders[-1]:
            raise ValueError(f"{len(q)} tokens came in, and the counts add up to "
                             f"{self.borders[-1]}")
        parts = list(zip(self.caches, self.borders, self.borders[1:]))
        # before the first one writes: all of the step or nothing
        for cache, start, end in parts:
            cache.require_room(layer, end - start)
        out = np.empty((*q.shape[:2], v.shape[-1]), np.float32)
        for cache, start, end in parts:
            out[start:end] = cache.attend(layer, q[start:end], k[start:end], v[start:end])
        return out
