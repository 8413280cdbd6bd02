"""By cases."""

from gearworks import kv_cache


class BlockPool(kv_cache.BlockPool):
    def allocate(self, after=None):
        match after:
            case int() if after + 1 in self.empty:
                block = after + 1
            case _:
                block = next(iter(self.empty), None)
                block = self.evict() if block is None else block
        del self.empty[block]
        self.references[block] = 1
        return block

    def free(self, block):
        match self.references[block], block in self.prefix_of:
            case 0, _:
                raise ValueError("not in use")
            case 1, True:
                self.kept[block] = None
            case 1, False:
                self.empty[block] = None
        self.references[block] -= 1
