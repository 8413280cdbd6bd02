"""The same with moveaxis and copyto, and the length asked with all()."""

import numpy as np

from gearworks import kv_cache


class KVCache(kv_cache.KVCache):
    def __len__(self):
        return sorted(self.lengths)[0]

    def attend(self, layer, q, k, v):
        count = k.shape[0]
        self.require_room(layer, count)
        new = slice(self.lengths[layer], self.lengths[layer] + count)
        for memory, part in ((self.keys, k), (self.values, v)):
            np.copyto(memory[layer][:, new], np.moveaxis(part, 0, 1))
        self.lengths[layer] += count
        return self.look(layer, q)

    def truncate(self, length):
        if length < 0 or length > len(self):
            raise ValueError(f"{length} is no length of a part of {len(self)} tokens")
        for layer in range(len(self.lengths)):
            self.lengths[layer] = length
