"""By recursion: after each that gave way, the question is asked again."""

from gearworks.serving import scheduler


class Scheduler(scheduler.Scheduler):
    def make_room(self, sequence, count, plan):
        needed = self.blocks_needed(sequence, count)
        if needed > self.pool.available:
            if count > sequence.num_pending_tokens:
                return self.make_room(sequence, sequence.num_pending_tokens, plan)
            victim = max(self.running, key=lambda one: one.rank)
            self.preempt(victim, plan)
            return victim is not sequence and self.make_room(sequence, count, plan)
        table = sequence.block_table
        first = sequence.num_computed_tokens // self.pool.block_size
        if first < len(table) and self.pool.references[table[first]] >= 2:
            old, table[first] = table[first], self.pool.allocate()
            self.pool.free(old)
            plan.copies.append((old, table[first]))
            needed -= 1
        for _ in range(needed):
            table.append(self.pool.allocate(after=table[-1]) if table else self.pool.allocate())
        return True
