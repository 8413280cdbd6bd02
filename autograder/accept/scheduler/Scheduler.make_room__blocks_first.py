"""The shared block in a method of its own; a list of new blocks."""

from gearworks.serving import scheduler


class Scheduler(scheduler.Scheduler):
    def make_room(self, sequence, count, plan):
        if self.blocks_needed(sequence, count) > self.pool.available:
            count = min(count, sequence.num_pending_tokens)
        while self.blocks_needed(sequence, count) > self.pool.available:
            last = self.running[len(self.running) - 1]
            self.preempt(last, plan)
            if not sequence.running:
                return False
        self.own_block(sequence, plan)
        size = self.pool.block_size
        wanted = (sequence.num_computed_tokens + count + size - 1) // size
        for _ in range(wanted - len(sequence.block_table)):
            before = sequence.block_table[-1:] or [None]
            sequence.block_table.append(self.pool.allocate(before[0]))
        return True

    def own_block(self, sequence, plan):
        place, inside = divmod(sequence.num_computed_tokens, self.pool.block_size)
        for shared in sequence.block_table[place:place + 1]:
            if self.pool.references[shared] > 1:
                own = self.pool.allocate()
                plan.copies += [(shared, own)]
                sequence.block_table[place] = own
                self.pool.free(shared)
