"""Victims in a for loop over a copy of the list; the last block as an argument."""

from gearworks.serving import scheduler


class Scheduler(scheduler.Scheduler):
    def make_room(self, sequence, count, plan):
        def fits():
            return self.blocks_needed(sequence, count) <= self.pool.available

        if not fits():
            count = min(count, len(sequence.ids) - sequence.num_computed_tokens)
        for victim in self.running[::-1]:
            if fits():
                break
            self.preempt(victim, plan)
            if victim is sequence:
                return False
        end = sequence.num_computed_tokens + count
        table, size = sequence.block_table, self.pool.block_size
        place = sequence.num_computed_tokens // size
        if self.blocks_needed(sequence, count) and table[place:]:
            if self.pool.references[table[place]] != 1:
                plan.copies.append((table[place], self.pool.allocate()))
                self.pool.free(table[place])
                table[place] = plan.copies[-1][1]
        last = table[-1] if table else None
        while len(table) < -(-end // size):
            last = self.pool.allocate(last)
            table.append(last)
        return True
