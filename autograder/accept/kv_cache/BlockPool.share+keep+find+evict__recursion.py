"""The beginning of a text, block after block, by recursion."""

from gearworks import kv_cache
from gearworks.errors import ModelError


class BlockPool(kv_cache.BlockPool):
    def share(self, block):
        if self.references[block] == 0:
            if block not in self.kept:
                raise ValueError(f"{block} is empty")
            self.kept.pop(block)
        self.references[block] += 1

    def keep(self, block, hash, ids, parent):
        if hash in self.prefixes:
            known = self.prefixes[hash]
            if known.ids == tuple(ids) and known.parent is parent:
                return known
            self.forget(known.block)
        prefix = kv_cache.Prefix(hash, block, ids, parent)
        self.prefixes |= {hash: prefix}
        self.prefix_of |= {block: prefix}
        return prefix

    def find(self, hashes, ids):
        return list(self.follow(list(hashes), list(ids), None))

    def follow(self, hashes, ids, parent):
        prefix = self.prefixes.get(hashes[0]) if hashes else None
        own, rest = ids[:self.block_size], ids[self.block_size:]
        if prefix is not None and prefix.parent is parent and list(prefix.ids) == own:
            yield prefix
            yield from self.follow(hashes[1:], rest, prefix)

    def evict(self):
        try:
            block = next(iter(self.kept))
        except StopIteration:
            raise ModelError("no block is kept", "all are in use", "wait") from None
        self.forget(block)
        return block
