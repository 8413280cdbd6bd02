"""A for loop over those that wait, with break."""

from gearworks.serving import scheduler


class Scheduler(scheduler.Scheduler):
    def admit(self, budget, plan):
        for sequence in list(self.waiting):
            if not budget or sequence.answers > self.places:
                break
            prefixes, needed = self.cached_blocks(sequence), len(self.running)
            needed += (len(sequence.ids) + self.pool.block_size - 1) // self.pool.block_size
            needed -= len([one for one in prefixes if self.pool.references[one.block] != 0])
            if self.pool.available < needed:
                break
            self.waiting.remove(sequence)
            sequence.block_table, sequence.prefix = [], None
            for sequence.prefix in prefixes:
                self.pool.share(sequence.prefix.block)
                sequence.block_table.append(sequence.prefix.block)
            sequence.kept_blocks = len(sequence.block_table)
            sequence.num_computed_tokens = sequence.kept_blocks * self.pool.block_size
            first_time = sequence.cached_tokens is None
            sequence.cached_tokens = (sequence.num_computed_tokens if first_time
                                      else sequence.cached_tokens)
            sequence.running = True
            self.running.append(sequence)
            self.running.sort(key=lambda one: one.rank)
            plan.admitted.append(sequence)
            count = self.chunk(sequence, budget)
            if count and self.make_room(sequence, count, plan):
                plan.rows.append((sequence, count))
                budget -= count
