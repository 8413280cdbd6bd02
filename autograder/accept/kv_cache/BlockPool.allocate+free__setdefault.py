"""Candidates in their order of preference."""

from gearworks import kv_cache


class BlockPool(kv_cache.BlockPool):
    def allocate(self, after=None):
        if not self.empty:
            self.evict()
        candidates = [] if after is None else [after + 1]
        candidates.append(next(iter(self.empty)))
        block = next(each for each in candidates if each in self.empty)
        self.empty.pop(block)
        self.references[block] = 1
        return block

    def free(self, block):
        if self.references[block] == 0:
            raise ValueError(f"nobody uses {block}")
        self.references[block] -= 1
        if self.references[block] == 0:
            home = self.kept if self.prefix_of.get(block) else self.empty
            home.setdefault(block)
