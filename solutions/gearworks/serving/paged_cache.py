"""The memory of many sequences: keys and values in blocks, wherever one is free.

Which block is whose, `kv_cache.BlockPool` knows. Here are the arrays, and what a forward pass
sees of them: a `PagedBatch`, which has the same `attend` as the contiguous cache.

Shapes: T tokens of a step, B sequences, L layers, H query heads, K key/value heads, d head
size. All float32.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gearworks.attention import attention_over_views, causal_mask, paged_attention
from gearworks.config import ModelConfig
from gearworks.errors import ModelError
from gearworks.kv_cache import attention_rules


def bytes_per_token(config: ModelConfig) -> int:
    """What one token's keys and values take in all layers, in bytes."""
    if config.latent is not None:
        return 4 * config.num_hidden_layers * config.latent.cached_size
    return 8 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim


class PagedKVCache:
    """Keys and values of all layers, in blocks of tokens."""

    def __init__(self, config: ModelConfig, num_blocks: int, block_size: int):
        """Reserve num_blocks · block_size tokens; memory is touched as it fills.
        Raises ModelError when that fails.

        The blocks of one head lie one after the other, so that neighbours can be read as one
        array. With latent attention the one key of a token holds its value too.
        """
        L, K, d = config.num_hidden_layers, config.num_key_value_heads, config.head_dim
        self.keys_hold_values = config.latent is not None
        if self.keys_hold_values:
            K, d = 1, config.latent.cached_size
        try:
            self.keys = np.empty((L, K, num_blocks, block_size, d), np.float32)
            self.values = (self.keys[..., :config.latent.kv_lora_rank] if self.keys_hold_values
                           else np.empty(self.keys.shape, np.float32))
        except (MemoryError, ValueError):
            size = 1e-9 * bytes_per_token(config) * num_blocks * block_size
            raise ModelError(f"cannot reserve a KV cache of {num_blocks:,} blocks",
                             f"it would take {size:,.1f} GB", "make do with fewer") from None
        self.rules = attention_rules(config)
        self.block_size = block_size

    def write(self, layer: int, slots: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
        """Store keys and values: k, v (T, K, d), each at its slot, (T,): block · block_size +
        its place in the block."""
        blocks, places = np.divmod(slots, self.block_size)
        self.keys[layer][:, blocks, places] = k.transpose(1, 0, 2)
        if not self.keys_hold_values:
            self.values[layer][:, blocks, places] = v.transpose(1, 0, 2)

    def batch(self, block_tables: Sequence[Sequence[int]], starts: Sequence[int],
              counts: Sequence[int], fixed_shapes: bool = False) -> "PagedBatch":
        """The sequences of one step; the parameters are those of `PagedBatch`."""
        return PagedBatch(self, block_tables, starts, counts, fixed_shapes)

    def copy_block(self, source: int, target: int) -> None:
        """Give one block the content of another, in all layers."""
        self.keys[:, :, target] = self.keys[:, :, source]
        if not self.keys_hold_values:
            self.values[:, :, target] = self.values[:, :, source]


def memory_for(model: Any, num_blocks: int, block_size: int) -> Any:
    """The memory of an engine: a model that does not compute with NumPy brings its own kind,
    with the methods `batch` and `copy_block`."""
    own = getattr(model, "new_paged_cache", None)
    return (PagedKVCache(model.config, num_blocks, block_size) if own is None
            else own(num_blocks, block_size))


class PagedBatch:
    """The sequences of one step, as a forward pass sees them: `kv_cache.Cache` over blocks.

    The rows of a step go by sequence. Nothing is counted here: who runs the step says where
    each sequence begins.
    """

    def __init__(self, memory: PagedKVCache, block_tables: Sequence[Sequence[int]],
                 starts: Sequence[int], counts: Sequence[int], fixed_shapes: bool = False):
        """block_tables, starts, counts: (B,) each sequence's blocks, its tokens before this
        step, and those of this step; its blocks have room for both. fixed_shapes: attention
        takes one sequence after the other and one block after the other, so that nothing
        depends on where blocks lie or who else is there; a sequence may then come in several
        groups of rows, as if it were several."""
        self.memory = memory
        self.fixed_shapes = fixed_shapes
        self.block_tables = [tuple(table) for table in block_tables]
        self.counts = list(counts)
        self.context_lens = [start + count for start, count in zip(starts, counts)]
        size = memory.block_size
        places = [np.arange(start, start + count) for start, count in zip(starts, counts)]
        slots = [np.asarray(table, int)[place // size] * size + place % size
                 for table, place in zip(self.block_tables, places)]
        # (T,) where each row's keys are to lie
        self.slot_mapping = np.concatenate([np.empty(0, int), *slots])

    def attend(self, layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Store this step's keys and values, then let each query look at its own sequence.

        q: (T, H, d); k, v: (T, K, d); returns (T, H, d).
        Raises ValueError when the counts do not add up to T.
        """
        if len(q) != len(self.slot_mapping):
            raise ValueError(f"{len(q)} tokens came in, and the counts add up to "
                             f"{len(self.slot_mapping)}")
        self.memory.write(layer, self.slot_mapping, k, v)
        if self.fixed_shapes:
            return self.attend_alone(layer, q)
        return paged_attention(q, self.memory.keys[layer], self.memory.values[layer],
                               self.block_tables, self.context_lens, self.counts,
                               self.memory.rules[layer])

    def attend_alone(self, layer: int, q: np.ndarray) -> np.ndarray:
        """What `paged_attention` gives, with the same bits whoever else is in the step."""
        keys, values = self.memory.keys[layer], self.memory.values[layer]
        rules, size = self.memory.rules[layer], self.memory.block_size
        out, end = [], 0
        for table, length, count in zip(self.block_tables, self.context_lens, self.counts):
            begin = (0 if rules.window is None
                     else max(0, length - count - rules.window + 1) // size * size)
            places = [(table[first // size], min(size, length - first))
                      for first in range(begin, length, size)]
            mask = causal_mask(count, length - begin, rules.window)
            end += count
            out.append(attention_over_views(
                q[end - count:end], [keys[:, block, :used] for block, used in places],
                [values[:, block, :used] for block, used in places], mask, rules))
        return np.concatenate(out)
