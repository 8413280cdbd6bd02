"""Look-ups that may fail, and helpers."""

from gearworks import kv_cache
from gearworks.errors import ModelError
from gearworks.kv_cache import Prefix


class BlockPool(kv_cache.BlockPool):
    def share(self, block):
        if not self.references[block] and block not in self.kept:
            raise ValueError("empty")
        if block in self.kept:
            del self.kept[block]
        self.references[block] = self.references[block] + 1

    def is_same(self, prefix, ids, parent):
        return prefix.parent is parent and list(prefix.ids) == list(ids)

    def keep(self, block, hash, ids, parent):
        try:
            known = self.prefixes[hash]
        except KeyError:
            pass
        else:
            if self.is_same(known, ids, parent):
                return known
            self.forget(known.block)
        self.prefixes[hash] = Prefix(hash, block, ids, parent)
        self.prefix_of[block] = self.prefixes[hash]
        return self.prefix_of[block]

    def find(self, hashes, ids):
        found, parent, size = [], None, self.block_size
        while len(found) < len(hashes):
            place = len(found)
            prefix = self.prefixes.get(hashes[place])
            own = ids[place * size:][:size]
            if not prefix or not self.is_same(prefix, own, parent):
                return found
            found.append(prefix)
            parent = prefix
        return found

    def evict(self):
        for block in self.kept:
            self.forget(block)
            return block
        raise ModelError("no block", "all are in use", "wait")
