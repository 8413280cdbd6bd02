"""Token by token; a group is rounded when its last key comes."""

import numpy as np

from gearworks.quantization import quantized_cache
from gearworks.quantization.quantized_cache import round_along, widen


class QuantizedKVCache(quantized_cache.QuantizedKVCache):
    def store(self, layer, k, v):
        for key, value in zip(k, v):
            at = self.lengths[layer]
            (self.values[layer, :, at], self.value_scales[layer, :, at],
             self.value_minimums[layer, :, at]) = round_along(value, self.bits, axis=1)
            group, place = divmod(at, self.group_size)
            self.newest_keys[layer, :, place] = key
            if place == self.group_size - 1:
                full = round_along(self.newest_keys[layer], self.bits, axis=1)
                for memory, part in zip((self.keys, self.key_scales, self.key_minimums), full):
                    memory[layer, :, group] = part
            self.lengths[layer] += 1

    def read(self, layer):
        tokens = self.lengths[layer]
        keys = []
        for group in range(tokens // self.group_size):
            keys.append(widen(self.keys[layer, :, group], self.key_scales[layer, :, group],
                              self.key_minimums[layer, :, group], self.bits))
        keys.append(self.newest_keys[layer][:, :tokens % self.group_size])
        return np.concatenate(keys, axis=1), widen(
            self.values[layer][:, :tokens], self.value_scales[layer][:, :tokens],
            self.value_minimums[layer][:, :tokens], self.bits)

    def truncate(self, length):
        if length < 0 or any(length > stored for stored in self.lengths):
            raise ValueError("no such length")
        for layer in range(len(self.lengths)):
            keys, _ = self.read(layer)
            rest = length % self.group_size
            self.newest_keys[layer][:, :rest] = keys[:, length - rest:length].copy()
            self.lengths[layer] = length
