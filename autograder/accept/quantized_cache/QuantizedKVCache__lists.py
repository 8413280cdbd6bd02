"""Its own memory: a list of groups and a list of values for each layer."""

import numpy as np

from gearworks.quantization import quantized_cache
from gearworks.quantization.quantized_cache import round_along, widen


class QuantizedKVCache(quantized_cache.QuantizedKVCache):
    def __init__(self, config, capacity, bits=8, group_size=32):
        super().__init__(config, capacity, bits, group_size)
        heads, size = config.num_key_value_heads, config.head_dim
        self.groups = [[] for _ in self.lengths]
        self.recent = [np.empty((heads, 0, size), np.float32) for _ in self.lengths]
        self.kept = [np.empty((heads, 0, size), np.float32) for _ in self.lengths]

    def store(self, layer, k, v):
        recent = np.concatenate([self.recent[layer], k.swapaxes(0, 1)], axis=1)
        while recent.shape[1] >= self.group_size:
            group, recent = np.split(recent, [self.group_size], axis=1)
            self.groups[layer].append(round_along(group, self.bits, axis=1))
        self.recent[layer] = recent
        rounded = widen(*round_along(v.swapaxes(0, 1), self.bits, axis=2), self.bits)
        self.kept[layer] = np.concatenate([self.kept[layer], rounded], axis=1)
        self.lengths[layer] += len(k)

    def read(self, layer):
        keys = [widen(*group, self.bits) for group in self.groups[layer]]
        return np.concatenate([*keys, self.recent[layer]], axis=1), self.kept[layer]

    def truncate(self, length):
        if length not in range(len(self) + 1):
            raise ValueError("too few tokens are stored")
        for layer in range(len(self.lengths)):
            keys, values = self.read(layer)
            whole = length // self.group_size
            self.groups[layer] = self.groups[layer][:whole]
            self.recent[layer] = keys[:, whole * self.group_size:length]
            self.kept[layer] = values[:, :length]
        self.lengths = [length for _ in self.lengths]
