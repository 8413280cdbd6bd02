"""The beginning of a text with takewhile; nothing of the given `forget`."""

from itertools import takewhile

from gearworks import kv_cache
from gearworks.errors import ModelError


class BlockPool(kv_cache.BlockPool):
    def share(self, block):
        if block in self.empty:
            raise ValueError("nothing is in it")
        self.references[block] += 1
        self.kept = {each: None for each in self.kept if each != block}

    def keep(self, block, hash, ids, parent):
        known = self.prefixes.get(hash)
        if known and (known.parent, tuple(known.ids)) == (parent, tuple(ids)):
            return known
        if known:
            del self.prefix_of[known.block]
            if self.kept.pop(known.block, "used") is None:
                self.empty[known.block] = None
        new = kv_cache.Prefix(hash, block, tuple(ids), parent)
        self.prefixes[hash] = new
        self.prefix_of[block] = new
        return new

    def find(self, hashes, ids):
        pieces = [tuple(ids[start:start + self.block_size])
                  for start in range(0, len(hashes) * self.block_size, self.block_size)]
        known = [self.prefixes.get(hash) for hash in hashes]
        parents = [None, *known]
        fits = takewhile(
            lambda each: each[0] is not None and each[0].ids == each[1]
            and each[0].parent is each[2], zip(known, pieces, parents))
        return [prefix for prefix, _, _ in fits]

    def evict(self):
        if len(self.kept) == 0:
            raise ModelError("nothing to give up", "all blocks are in use", "wait")
        block = list(self.kept)[0]
        del self.kept[block]
        prefix = self.prefix_of.pop(block)
        del self.prefixes[prefix.hash]
        self.empty[block] = None
        return block
