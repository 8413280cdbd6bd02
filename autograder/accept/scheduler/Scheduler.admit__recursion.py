"""One newcomer, then the others by recursion."""

from bisect import insort_right

from gearworks.serving import scheduler


class Scheduler(scheduler.Scheduler):
    def admit(self, budget, plan):
        if budget <= 0 or not self.waiting:
            return
        first, size = self.waiting[0], self.pool.block_size
        found = self.cached_blocks(first)
        total = len(range(0, len(first.ids), size))
        unused = sum(1 for prefix in found if self.pool.references[prefix.block] == 0)
        reserve = len(self.running)
        if (first.answers > self.places
                or self.pool.available - unused < total - len(found) + reserve):
            return
        first, self.waiting = self.waiting[0], self.waiting[1:]
        self.let_in(first, found)
        plan.admitted.append(first)
        count = self.chunk(first, budget)
        if count:
            self.make_room(first, count, plan)
            plan.rows += [(first, count)]
        self.admit(budget - count, plan)

    def let_in(self, sequence, found):
        for prefix in found:
            self.pool.share(prefix.block)
        sequence.block_table = [prefix.block for prefix in found]
        sequence.num_computed_tokens = self.pool.block_size * len(found)
        sequence.prefix, sequence.kept_blocks = (found[-1] if found else None), len(found)
        sequence.running = True
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.num_computed_tokens
        insort_right(self.running, sequence, key=lambda one: one.rank)
