"""The memory of many sequences in 8 or 4 bits: `paged_cache`, with codes in its blocks.

Both keys and values are rounded token by token, each head with a scale and a minimum of its
own. The contiguous cache does better by the keys, with a scale for each channel. But then what
is stored of a token would depend on its neighbours, and on how the prompt was cut into chunks;
and prefixes that are found, sequences that are computed again, and batches would no longer give
what they give alone.

Shapes: T tokens of a step, B sequences, L layers, H query heads, K key/value heads, d head
size.
"""

from collections.abc import Sequence

import numpy as np

from gearworks.attention import attention_over_views, causal_mask
from gearworks.config import ModelConfig
from gearworks.errors import ModelError
from gearworks.kv_cache import attention_rules
from gearworks.quantization.quantized_cache import require_quantizable, round_along, widen
from gearworks.serving.paged_cache import PagedBatch


def paged_bytes_per_token(config: ModelConfig, bits: int) -> int:
    """What one token's keys and values take in all layers, scales and minimums included."""
    return (2 * config.num_hidden_layers * config.num_key_value_heads
            * (config.head_dim * bits // 8 + 8))


class QuantizedPagedKVCache:
    """Keys and values of all layers in few bits, in blocks of tokens."""

    def __init__(self, config: ModelConfig, num_blocks: int, block_size: int, bits: int = 8):
        """Reserve num_blocks · block_size tokens in 8 or 4 bits; memory is touched as it fills.
        Raises ModelError for other bits, for latent attention, or when memory is too small."""
        require_quantizable(config, bits)
        L, K, d = config.num_hidden_layers, config.num_key_value_heads, config.head_dim
        try:
            # keys are 0, values are 1
            self.codes = np.empty((2, L, K, num_blocks, block_size, d * bits // 8), np.uint8)
            self.scales = np.empty((2, L, K, num_blocks, block_size, 1), np.float32)
            self.minimums = np.empty(self.scales.shape, np.float32)
        except (MemoryError, ValueError):
            size = 1e-9 * paged_bytes_per_token(config, bits) * num_blocks * block_size
            raise ModelError(f"cannot reserve a KV cache of {num_blocks:,} blocks",
                             f"it would take {size:,.1f} GB", "make do with fewer") from None
        self.rules = attention_rules(config)
        self.block_size, self.bits = block_size, bits

    def write(self, layer: int, slots: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
        """Store keys and values: k, v (T, K, d), each at its slot, (T,): block · block_size +
        its place in the block."""
        blocks, places = np.divmod(slots, self.block_size)
        for kind, x in enumerate((k, v)):
            for memory, part in zip((self.codes, self.scales, self.minimums),
                                    round_along(x.transpose(1, 0, 2), self.bits, axis=-1)):
                memory[kind, layer][:, blocks, places] = part

    def read(self, layer: int, blocks: list[int], count: int) -> tuple[np.ndarray, np.ndarray]:
        """The first `count` tokens of these blocks in float32: keys and values, (K, count, d)
        each."""
        def of(kind: int) -> np.ndarray:
            codes, scales, minimums = (
                memory[kind, layer][:, blocks].reshape(
                    memory.shape[2], len(blocks) * self.block_size, -1)[:, :count]
                for memory in (self.codes, self.scales, self.minimums))
            return widen(codes, scales, minimums, self.bits)
        return of(0), of(1)

    def batch(self, block_tables: Sequence[Sequence[int]], starts: Sequence[int],
              counts: Sequence[int], fixed_shapes: bool = False) -> "QuantizedPagedBatch":
        """The sequences of one step over this memory: see `PagedBatch`."""
        return QuantizedPagedBatch(self, block_tables, starts, counts, fixed_shapes)

    def copy_block(self, source: int, target: int) -> None:
        """Give one block the content of another, in all layers."""
        for memory in (self.codes, self.scales, self.minimums):
            memory[:, :, :, target] = memory[:, :, :, source]


class QuantizedPagedBatch(PagedBatch):
    """The sequences of one step, as a forward pass sees them, over such a memory.

    Attention takes one sequence after the other, so nothing depends on who else is there.
    """

    memory: QuantizedPagedKVCache

    def attend(self, layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """As `PagedBatch.attend`; the queries see what is stored, this step's tokens too."""
        self.require_all(q)
        self.memory.write(layer, self.slot_mapping, k, v)
        rules, size, end = self.memory.rules[layer], self.memory.block_size, 0
        out = np.empty(q.shape, np.float32)
        for table, length, count in zip(self.block_tables, self.context_lens, self.counts):
            begin = (0 if rules.window is None
                     else max(0, length - count - rules.window + 1) // size * size)
            blocks = list(table[begin // size:-(-length // size)])
            keys, values = self.memory.read(layer, blocks, length - begin)
            end += count
            out[end - count:end] = attention_over_views(
                q[end - count:end], [keys], [values],
                causal_mask(count, length - begin, rules.window), rules)
        return out
