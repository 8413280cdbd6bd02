"""What a step knows of the caches: where each sequence's keys and values lie.

The compiled step writes and reads the memory of `KVCache`, `RaggedBatch` and `PagedBatch`
itself. For a cache of any other kind it stops in every layer and asks its `attend`.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gearworks.kernels.cpu.attention import SEQUENCE
from gearworks.kv_cache import Cache, KVCache, RaggedBatch


@dataclass(frozen=True)
class Described:
    """The sequences of one step.

    sequences: (B,) of `SEQUENCE`; tables: the blocks of all, one after the other; caches: the
    contiguous ones, whose lengths count the tokens; longest: tokens of the longest sequence,
    those of this step included.
    """

    sequences: np.ndarray
    tables: np.ndarray
    caches: Sequence[KVCache]
    longest: int

    def commit(self) -> None:
        """Count the step's tokens, after it has stored them."""
        for cache, sequence in zip(self.caches, self.sequences):
            length = int(sequence["start"] + sequence["rows"])
            cache.lengths = [length] * len(cache.lengths)


def described(cache: Cache, rows: int) -> Described | None:
    """Where the sequences of a step of `rows` rows lie; None for a cache of another kind.

    Raises ModelError where a contiguous cache is full, ValueError unless the rows are as many
    as the cache was made for.
    """
    if type(cache) is KVCache and _plain(cache):
        return _contiguous([cache], [0, rows])
    if type(cache) is RaggedBatch and all(map(_plain, cache.caches)):
        if rows != cache.borders[-1]:
            raise ValueError(f"{rows} tokens came in, and the counts add up to "
                             f"{cache.borders[-1]}")
        return _contiguous(cache.caches, cache.borders)
    # by its parts: the room of serving stands above this one
    if all(hasattr(cache, name) for name in ("memory", "block_tables", "slot_mapping")) and (
            _plain(cache.memory)):
        if rows != len(cache.slot_mapping):
            raise ValueError(f"{rows} tokens came in, and the counts add up to "
                             f"{len(cache.slot_mapping)}")
        return _paged(cache)
    return None


def _plain(cache) -> bool:
    """Whether keys are float32 in one array, and values in another, or the first part of the
    keys. Rules are the model's own; the step knows all of them but a scale."""
    keys, values = getattr(cache, "keys", None), getattr(cache, "values", None)
    return (isinstance(keys, np.ndarray) and isinstance(values, np.ndarray)
            and keys.dtype == values.dtype == np.float32 and keys.flags.c_contiguous
            and (values.flags.c_contiguous or values.ctypes.data == keys.ctypes.data)
            and all(rules.scale is None for rules in cache.rules))


def _contiguous(caches: Sequence[KVCache], borders: Sequence[int]) -> Described:
    sequences = np.zeros(len(caches), SEQUENCE)
    for sequence, cache, first, end in zip(sequences, caches, borders, borders[1:]):
        for layer in range(len(cache.lengths)):
            cache.require_room(layer, end - first)
        _fill(sequence, cache.keys, cache.values, block_size=max(cache.capacity, 1), table=0,
              first_row=first, rows=end - first, start=len(cache))
    longest = max((int(one["start"] + one["rows"]) for one in sequences), default=0)
    return Described(sequences, np.zeros(1, np.int64), caches, longest)


def _paged(batch: Cache) -> Described:
    sequences = np.zeros(len(batch.counts), SEQUENCE)
    tables: list[int] = []
    first = 0
    for sequence, table, length, count in zip(sequences, batch.block_tables, batch.context_lens,
                                              batch.counts):
        _fill(sequence, batch.memory.keys, batch.memory.values,
              block_size=batch.memory.block_size, table=len(tables), first_row=first,
              rows=count, start=length - count)
        tables += table
        first += count
    return Described(sequences, np.array(tables or [0], np.int64), (),
                     max(batch.context_lens, default=0))


def _fill(sequence: np.ndarray, keys: np.ndarray, values: np.ndarray, **fields: int) -> None:
    """One record. keys, values: (L, K, …) float32, contiguous."""
    sequence["keys"], sequence["values"] = keys.ctypes.data, values.ctypes.data
    sequence["of_layer"], sequence["of_head"] = (stride // 4 for stride in keys.strides[:2])
    for name, value in fields.items():
        sequence[name] = value


class Recycled:
    """Arrays of logits that are used again as soon as nobody else has them.

    A caller may keep what it was given for as long as it likes. One that looks at a step's
    logits and then runs the next step makes two arrays take turns.
    """

    def __init__(self):
        self._arrays: list[np.ndarray] = []
        self.reserved = 0

    def take(self, size: int) -> np.ndarray:
        """An array of at least `size` float32."""
        for array in self._arrays:
            # the list, the loop and getrefcount itself; a view that is out would be a fourth
            if array.size >= size and sys.getrefcount(array) == 3:
                return array
        self.reserved += 1
        array = np.empty(size, np.float32)
        self._arrays = [*self._arrays[-1:], array]
        return array
