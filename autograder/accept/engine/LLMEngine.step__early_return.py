"""Returns early; a list of finished names that grows; times by subtraction at the end."""

import dataclasses
from time import perf_counter

from gearworks.serving.engine import LLMEngine as Given


class LLMEngine(Given):
    def step(self):
        begun = perf_counter()
        self.guess_ahead()
        plan = self.scheduler.schedule()
        if not plan.rows:
            return self.news()
        before = self.record(plan)
        entered = perf_counter()
        succeeded = False
        try:
            logits = self.forward(plan)
            succeeded = True
        finally:
            if not succeeded:
                for row in plan.rows:
                    self.scheduler.preempt(row[0], plan)
        left = perf_counter()
        ended = []
        for place, (sequence, count) in enumerate(plan.rows):
            self.hand_over(sequence, count, logits[place], ended)
        tokens = [token for delta in self._deltas for token in delta.ids]
        after = dataclasses.replace(before, finished=tuple(ended), generated=len(tokens),
                                    model_seconds=left - entered)
        self._steps = self._steps + 1
        self.records.append(dataclasses.replace(after, seconds=perf_counter() - begun))
        return self.news()

    def news(self):
        deltas = list(self._deltas)
        self._deltas.clear()
        return deltas
