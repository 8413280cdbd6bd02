"""Early returns, and a helper."""

from gearworks.serving import scheduler


class Scheduler(scheduler.Scheduler):
    def others_want_some(self, sequence):
        for other in self.running:
            if other is not sequence and other.num_pending_tokens >= 2:
                return True
        return len(self.waiting) > 0 and self.places > 0

    def chunk(self, sequence, budget):
        if sequence.num_pending_tokens == 1 and sequence.answers > 1:
            return min(1, budget)
        if sequence.num_pending_tokens == 1:
            return min(budget, 1 + len(sequence.guesses))
        if self.others_want_some(sequence):
            half = self.max_num_batched_tokens // 2
            budget = min(budget, half if half else 1)
        reached = sequence.num_computed_tokens + budget
        if reached < self.tiles_end(sequence):
            return reached - reached % self.pool.block_size - sequence.num_computed_tokens
        return min(budget, sequence.num_pending_tokens)
