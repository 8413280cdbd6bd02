"""First the waiting group is filled up, then whole groups follow, then the rest."""

import numpy as np

from gearworks.quantization import quantized_cache
from gearworks.quantization.quantized_cache import round_along, widen


class QuantizedKVCache(quantized_cache.QuantizedKVCache):
    def store(self, layer, k, v):
        size, taken = self.group_size, 0
        begin = self.lengths[layer]
        codes, scales, minimums = round_along(np.moveaxis(v, 0, 1), self.bits, axis=-1)
        here = np.s_[layer, :, begin:begin + len(k)]
        self.values[here], self.value_scales[here], self.value_minimums[here] = (
            codes, scales, minimums)
        while taken < len(k):
            place = self.lengths[layer] % size
            count = min(size - place, len(k) - taken)
            self.newest_keys[layer, :, place:place + count] = np.moveaxis(
                k[taken:taken + count], 0, 1)
            taken += count
            self.lengths[layer] += count
            if place + count == size:
                group = self.lengths[layer] // size - 1
                parts = round_along(self.newest_keys[layer], self.bits, axis=-2)
                self.keys[layer, :, group] = parts[0]
                self.key_scales[layer, :, group] = parts[1]
                self.key_minimums[layer, :, group] = parts[2]

    def read(self, layer):
        length, heads = self.lengths[layer], self.newest_keys.shape[1]
        keys = np.empty((heads, length, self.newest_keys.shape[-1]), np.float32)
        whole = length - length % self.group_size
        if whole:
            groups = np.s_[layer, :, :whole // self.group_size]
            keys[:, :whole] = widen(self.keys[groups], self.key_scales[groups],
                                    self.key_minimums[groups],
                                    self.bits).reshape(heads, whole, -1)
        keys[:, whole:] = self.newest_keys[layer, :, :length - whole]
        tokens = np.s_[layer, :, :length]
        return keys, widen(self.values[tokens], self.value_scales[tokens],
                           self.value_minimums[tokens], self.bits)

    def truncate(self, length):
        if not 0 <= length <= min(self.lengths):
            raise ValueError(f"{length} of {len(self)}")
        group, rest = divmod(length, self.group_size)
        for layer, before in enumerate(self.lengths):
            if rest and before - before % self.group_size > length:
                at = np.s_[layer, :, group]
                self.newest_keys[layer] = widen(self.keys[at], self.key_scales[at],
                                                self.key_minimums[at], self.bits)
            self.lengths[layer] = length
