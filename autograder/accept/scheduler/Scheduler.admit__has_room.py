"""Whether there is room, in a method of its own."""

from bisect import bisect
from math import ceil

from gearworks.serving import scheduler


class Scheduler(scheduler.Scheduler):
    def has_room(self, sequence, found, budget):
        needed = ceil(len(sequence.ids) / self.pool.block_size) + len(self.running)
        for prefix in found:
            if self.pool.references[prefix.block]:
                needed -= 1
        return (budget >= 1 and sequence.answers <= self.places
                and needed <= self.pool.available)

    def admit(self, budget, plan):
        while len(self.waiting):
            sequence = self.waiting[0]
            found = self.cached_blocks(sequence)
            if not self.has_room(sequence, found, budget):
                return
            self.waiting.pop(0)
            blocks = [prefix.block for prefix in found]
            for block in blocks:
                self.pool.share(block)
            sequence.block_table = blocks
            sequence.kept_blocks = len(blocks)
            sequence.prefix = (found or [None])[-1]
            sequence.num_computed_tokens = len(blocks) * self.pool.block_size
            if sequence.cached_tokens is None:
                sequence.cached_tokens = sequence.num_computed_tokens
            sequence.running = True
            place = bisect([one.rank for one in self.running], sequence.rank)
            self.running.insert(place, sequence)
            plan.admitted.append(sequence)
            count = self.chunk(sequence, budget)
            if count > 0:
                self.make_room(sequence, count, plan)
                plan.rows.append((sequence, count))
            budget -= count
