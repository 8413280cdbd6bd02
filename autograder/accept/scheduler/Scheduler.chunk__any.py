"""With any, and the tiles as a walk over borders."""

from gearworks.serving import scheduler


class Scheduler(scheduler.Scheduler):
    def chunk(self, sequence, budget):
        pending = sequence.num_pending_tokens
        match pending, sequence.answers:
            case 1, 1:
                return min(len(sequence.guesses) + 1, budget)
            case 1, _:
                return min(budget, 1)
        busy = any(one.num_pending_tokens > 1 for one in self.running if one is not sequence)
        waits = bool(self.waiting) and bool(self.places)
        if busy or waits:
            budget = max(min(budget, self.max_num_batched_tokens // 2), 1)
        count, size, end = min(pending, budget), self.pool.block_size, self.tiles_end(sequence)
        if sequence.num_computed_tokens + budget < end:
            count = budget
            while (sequence.num_computed_tokens + count) % size:
                count -= 1
        return count
