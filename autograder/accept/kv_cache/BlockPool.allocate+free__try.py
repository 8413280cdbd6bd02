"""What to do is tried, and errors say what to do instead."""

from gearworks import kv_cache


class BlockPool(kv_cache.BlockPool):
    def allocate(self, after=None):
        wanted = -1 if after is None else after + 1
        try:
            self.empty.pop(wanted)
            block = wanted
        except KeyError:
            if not self.empty:
                self.evict()
            block = self.take_first()
        self.references[block] += 1
        return block

    def take_first(self):
        for block in self.empty:
            break
        return block if self.empty.pop(block) is None else None

    def free(self, block):
        users = self.references[block]
        if users < 1:
            raise ValueError("nobody uses it")
        self.references[block] = users - 1
        if users > 1:
            return
        if block in self.prefix_of:
            self.kept[block] = None
        else:
            self.empty[block] = None
