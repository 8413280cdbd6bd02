"""The parts of a step as methods of their own, and names in a list for each row."""

import time
from dataclasses import replace

from gearworks.serving.engine import LLMEngine as Given


class LLMEngine(Given):
    def compute(self, plan):
        try:
            start = time.perf_counter()
            return self.forward(plan), time.perf_counter() - start
        except BaseException as error:
            for sequence in [sequence for sequence, _ in plan.rows]:
                self.scheduler.preempt(sequence, plan)
            raise error

    def distribute(self, plan, logits):
        ended = []
        for (sequence, count), rows in zip(plan.rows, logits, strict=True):
            names = []
            self.hand_over(sequence, count, rows, names)
            ended += names
        return tuple(ended)

    def step(self):
        start = time.perf_counter()
        self.guess_ahead()
        plan = self.scheduler.schedule()
        if len(plan.rows) > 0:
            record = self.record(plan)
            logits, model_seconds = self.compute(plan)
            finished = self.distribute(plan, logits)
            generated = 0
            for delta in self._deltas:
                generated += len(delta.ids)
            record = replace(record, model_seconds=model_seconds, finished=finished,
                             generated=generated, seconds=time.perf_counter() - start)
            self.records += [record]
            self._steps += 1
        try:
            return self._deltas
        finally:
            self._deltas = []
