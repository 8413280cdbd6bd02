"""Keys and values as tensors, in blocks, and attention over them: what torch's decoder needs.

One memory serves both ways to keep sequences: an engine's, with block tables, and the cache of
one sequence, whose table counts up. On GPUs that Triton compiles for, attention is
`kernels.triton`'s; elsewhere it is torch's `scaled_dot_product_attention` over gathered blocks.

Shapes: T tokens of a step, B sequences, L layers, H query heads, K key/value heads, d head
size, W blocks of the widest table, S keys. Any dtype that the device computes in.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
import torch.nn.functional as F

from gearworks.config import ModelConfig
from gearworks.errors import ModelError
from gearworks.kv_cache import KVCache

BLOCK_SIZE = 64                             # of a single sequence's cache


class TorchPagedCache:
    """As `serving.paged_cache.PagedKVCache`, in the memory of a device.

    There is one block more than was asked for, the last: rows that only fill up a step write
    there, and nobody reads it.
    """

    def __init__(self, config: ModelConfig, num_blocks: int, block_size: int,
                 device: torch.device, dtype: torch.dtype, use_triton: bool):
        """Reserve (num_blocks + 1) · block_size tokens. Raises ModelError when that fails."""
        L, K, d = config.num_hidden_layers, config.num_key_value_heads, config.head_dim
        shape = (L, K, num_blocks + 1, block_size, d)
        try:
            # zeros: what is masked is multiplied by 0, and must not be nan
            self.keys, self.values = (torch.zeros(shape, dtype=dtype, device=device)
                                      for _ in range(2))
        except (RuntimeError, MemoryError):          # torch's out-of-memory error is the first
            size = 2e-9 * L * K * d * (num_blocks + 1) * block_size * dtype.itemsize
            raise ModelError(f"cannot reserve a KV cache of {num_blocks:,} blocks",
                             f"it would take {size:,.1f} GB on {device}",
                             "make do with fewer") from None
        self.windows = [config.window(layer) for layer in range(L)]
        self.softcap = config.attention_softcap
        # tensors of the model's weights
        self.sinks = [sinks.float() for sinks in config.sinks] or [None] * L
        self.spare_block, self.block_size = num_blocks, block_size
        self.use_triton = use_triton
        self.graphs = None                 # of `torch_graphs`, once decoding steps ask for them

    def write(self, layer: int, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store keys and values, (T, K, d), each at its slot, (T,): block · block_size + its
        place in the block."""
        for memory, new in ((self.keys, k), (self.values, v)):
            memory[layer].flatten(1, 2).index_copy_(1, slots, new.transpose(0, 1))

    def copy_block(self, source: int, target: int) -> None:
        """Give one block the content of another, in all layers."""
        for memory in (self.keys, self.values):
            memory[:, :, target] = memory[:, :, source]

    def batch(self, block_tables: Sequence[Sequence[int]], starts: Sequence[int],
              counts: Sequence[int], fixed_shapes: bool = False) -> "TorchBatch":
        """The sequences of a step, as `serving.paged_cache.PagedBatch` takes them.
        fixed_shapes: refused with a ModelError."""
        if fixed_shapes:
            raise ModelError("cannot run this step",
                             "torch's products have other sums in every batch",
                             "leave batch_invariant out")
        return TorchBatch.of(self, block_tables, starts, counts)


@dataclass(frozen=True)
class DecodeRows:
    """Sequences of which one token comes in: tables (B, W), lengths (B,), both int32."""

    tables: torch.Tensor
    lengths: torch.Tensor


@dataclass(frozen=True)
class PromptRows:
    """Sequences of which several come in: how many queries and keys each has, and where all
    their keys lie, (S,), one sequence after the other."""

    query_lens: list[int]
    context_lens: list[int]
    slots: torch.Tensor


@dataclass(frozen=True)
class TorchBatch:
    """The sequences of one step, as a forward pass sees them.

    slots: (T,), where each row's keys are to lie. order: the rows, those of prompts first, or
    None where they are so already; sequences with one row are decoded.
    """

    memory: TorchPagedCache
    slots: torch.Tensor
    order: torch.Tensor | None
    prompts: PromptRows | None
    decodes: DecodeRows | None

    @classmethod
    def of(cls, memory: TorchPagedCache, block_tables: Sequence[Sequence[int]],
           starts: Sequence[int], counts: Sequence[int]) -> "TorchBatch":
        """From what a scheduler plans; the parameters are those of `TorchPagedCache.batch`."""
        size, device = memory.block_size, memory.keys.device

        def slots_of(table: Sequence[int], first: int, end: int) -> np.ndarray:
            places = np.arange(first, end)
            return np.asarray(table, np.int64)[places // size] * size + places % size

        def on_device(array: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(array).to(device, non_blocking=True)

        rows = [(np.asarray(table), start, count, begin) for table, start, count, begin
                in zip(block_tables, starts, counts, accumulate(counts, initial=0)) if count]
        several = [row for row in rows if row[2] > 1]
        single = [row for row in rows if row[2] == 1]
        nothing = np.empty(0, np.int64)
        slots = on_device(np.concatenate([nothing, *(slots_of(table, start, start + count)
                                                     for table, start, count, _ in rows)]))
        order = np.concatenate([nothing, *(np.arange(begin, begin + count)
                                           for _, _, count, begin in several + single)])
        is_ordered = bool((order == np.arange(len(order))).all())
        prompts = decodes = None
        if several:
            prompts = PromptRows(
                [count for _, _, count, _ in several],
                [start + count for _, start, count, _ in several],
                on_device(np.concatenate([slots_of(table, 0, start + count)
                                          for table, start, count, _ in several])))
        if single:
            tables = np.full((len(single), max(start // size + 1 for _, start, _, _ in single)),
                             memory.spare_block, np.int32)
            for row, (table, start, _, _) in zip(tables, single):
                row[:start // size + 1] = table[:start // size + 1]
            lengths = np.array([start + 1 for _, start, _, _ in single], np.int32)
            decodes = DecodeRows(on_device(tables), on_device(lengths))
        return cls(memory, slots, None if is_ordered else on_device(order), prompts, decodes)

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor,
               v: torch.Tensor) -> torch.Tensor:
        """Store this step's keys and values, then let each query look at its own sequence.

        q: (T, H, d); k, v: (T, K, d); returns (T, H, d).
        Raises ValueError when there are more or fewer tokens than the step was planned for.
        """
        if len(q) != len(self.slots):
            raise ValueError(f"{len(q)} tokens came in, and the step has {len(self.slots)}")
        self.memory.write(layer, self.slots, k, v)
        if self.order is not None:
            q = q[self.order]
        several = sum(self.prompts.query_lens) if self.prompts else 0
        parts = []
        if self.prompts:
            parts.append(self._prompts(layer, q[:several]))
        if self.decodes:
            parts.append(self._decodes(layer, q[several:]))
        attended = parts[0] if len(parts) == 1 else torch.cat(parts)
        if self.order is None:
            return attended
        out = torch.empty_like(attended)
        out[self.order] = attended
        return out

    def _prompts(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        """Attention of sequences with several rows, each over its own keys."""
        rows, window = self.prompts, self.memory.windows[layer]
        keys, values = (memory[layer].flatten(1, 2)[:, rows.slots]
                        for memory in (self.memory.keys, self.memory.values))   # (K, S, d)
        if self.memory.use_triton:
            from gearworks.kernels.triton.attention import flash_attention
            return flash_attention(q, keys.transpose(0, 1), values.transpose(0, 1),
                                   rows.query_lens, rows.context_lens, window)
        parts, query, key = [], 0, 0
        for count, length in zip(rows.query_lens, rows.context_lens):
            parts.append(_of_one(q[query:query + count], keys[:, key:key + length],
                                 values[:, key:key + length], window, self.memory.softcap,
                                 self.memory.sinks[layer]))
            query, key = query + count, key + length
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _decodes(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        """Attention of sequences with one row each."""
        rows, window = self.decodes, self.memory.windows[layer]
        keys, values = self.memory.keys[layer], self.memory.values[layer]
        if self.memory.use_triton:
            from gearworks.kernels.triton.attention import paged_decode
            return paged_decode(q, keys, values, rows.tables, rows.lengths, window)
        B, H, d = q.shape
        K = len(keys)
        places = torch.arange(rows.tables.shape[1] * self.memory.block_size, device=q.device)
        seen = places < rows.lengths[:, None]                                       # (B, S)
        if window is not None:
            seen &= places >= rows.lengths[:, None] - window
        keys, values = (memory[:, rows.tables].flatten(2, 3).transpose(0, 1)
                        for memory in (keys, values))                           # (B, K, S, d)
        # whatever lies where nothing is seen, perhaps an infinity, is multiplied by 0
        values = values.masked_fill(~seen[:, None, :, None], 0)
        sinks = self.memory.sinks[layer]
        out = _look(q.view(B, K, H // K, d), keys, values, seen[:, None, None, :],
                    self.memory.softcap, None if sinks is None else sinks.view(K, H // K, 1))
        return out.reshape(B, H, d)


def _look(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, seen: torch.Tensor,
          softcap: float | None, sinks: torch.Tensor | None) -> torch.Tensor:
    """Attention with a mask, which torch's own has, and what `AttentionRules` has besides.
    sinks: a score for each row of q, its last axis 1; all else as torch has it."""
    if softcap is None and sinks is None:
        return F.scaled_dot_product_attention(q, keys, values, seen)
    scores = (q @ keys.transpose(-1, -2)).float() * q.shape[-1] ** -0.5
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~seen, -torch.inf)
    if sinks is not None:                   # one more key, whose value is zero
        scores = torch.cat([scores, sinks.expand(*scores.shape[:-1], 1)], dim=-1)
    return scores.softmax(-1)[..., :keys.shape[-2]].to(values.dtype) @ values


def _of_one(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int | None,
            softcap: float | None, sinks: torch.Tensor | None) -> torch.Tensor:
    """Attention of one sequence's last tokens. q: (T, H, d); keys, values: (K, S, d)."""
    (T, H, d), (K, S, _) = q.shape, keys.shape
    queries = q.view(T, K, H // K, d).permute(1, 2, 0, 3)                  # (K, H/K, T, d)
    keys, values = (each[:, None].expand(K, H // K, S, d) for each in (keys, values))
    if softcap is None and sinks is None and T == S and (window is None or window >= S):
        out = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
    else:
        distance = (torch.arange(S - T, S, device=q.device)[:, None]
                    - torch.arange(S, device=q.device))
        seen = distance >= 0 if window is None else (distance >= 0) & (distance < window)
        out = _look(queries, keys, values, seen, softcap,
                    None if sinks is None else sinks.view(K, H // K, 1, 1))
    return out.permute(2, 0, 1, 3).reshape(T, H, d)


class TorchKVCache:
    """As `kv_cache.KVCache`, in the memory of a device: one sequence, in blocks in a row."""

    join = staticmethod(torch.cat)             # of several sequences' rows, for `RaggedBatch`
    require_room = KVCache.require_room

    def __init__(self, config: ModelConfig, capacity: int, device: torch.device,
                 dtype: torch.dtype, use_triton: bool):
        """Reserve room for `capacity` tokens. Raises ModelError when that fails."""
        blocks = -(-capacity // BLOCK_SIZE)
        self.memory = TorchPagedCache(config, blocks, BLOCK_SIZE, device, dtype, use_triton)
        self.table = tuple(range(blocks))
        self.lengths = [0] * config.num_hidden_layers
        self.capacity = capacity
        self._planned: tuple[tuple[int, int], TorchBatch] | None = None

    @property
    def keys(self) -> torch.Tensor:
        """(L, K, tokens, d), a view."""
        return self.memory.keys.flatten(2, 3)

    @property
    def values(self) -> torch.Tensor:
        """(L, K, tokens, d), a view."""
        return self.memory.values.flatten(2, 3)

    def __len__(self) -> int:
        """How many tokens are stored, in every layer."""
        return min(self.lengths)

    def step(self, layer: int, count: int) -> TorchBatch:
        """The next `count` tokens as a step of its own; all layers of a pass share it."""
        now = self.lengths[layer], count
        if self._planned is None or self._planned[0] != now:
            self._planned = now, self.memory.batch([self.table], [now[0]], [count])
        return self._planned[1]

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor,
               v: torch.Tensor) -> torch.Tensor:
        """As `KVCache.attend`, with tensors."""
        self.require_room(layer, len(k))
        if not len(q):
            return q
        attended = self.step(layer, len(k)).attend(layer, q, k, v)
        self.lengths[layer] += len(k)
        return attended

    def truncate(self, length: int) -> None:
        """Forget every token from position `length` on.
        Raises ValueError when fewer tokens are stored."""
        if not 0 <= length <= len(self):
            raise ValueError(f"cannot truncate {len(self)} stored tokens to {length}")
        self.lengths = [length] * len(self.lengths)
