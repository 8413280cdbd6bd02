"""Limits in a list, of which the smallest counts."""

from gearworks.serving import scheduler


class Scheduler(scheduler.Scheduler):
    def chunk(self, sequence, budget):
        pending = len(sequence.ids) - sequence.num_computed_tokens
        if pending == 1:
            return min(budget, 1 + (sequence.answers == 1) * len(sequence.guesses))
        limits = [budget]
        crowd = [one for one in self.running if one.num_pending_tokens > 1 and one != sequence]
        if crowd or (self.waiting and self.places >= 1):
            limits.append(max(self.max_num_batched_tokens // 2, 1))
        start, size = sequence.num_computed_tokens, self.pool.block_size
        if start + min(limits) < self.tiles_end(sequence):
            return (start + min(limits)) // size * size - start
        return min(*limits, pending)
