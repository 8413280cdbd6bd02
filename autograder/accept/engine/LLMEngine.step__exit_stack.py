"""What is to be undone stands on a stack, which is emptied when all went well."""

import time
from contextlib import ExitStack
from dataclasses import replace

from gearworks.serving.engine import LLMEngine as Given


class LLMEngine(Given):
    def step(self):
        times = [time.perf_counter()]
        self.guess_ahead()
        plan, finished = self.scheduler.schedule(), []
        if plan.rows:
            record = self.record(plan)
            with ExitStack() as undo:
                for sequence, _ in reversed(plan.rows):
                    undo.callback(self.scheduler.preempt, sequence, plan)
                times.append(time.perf_counter())
                logits = self.forward(plan)
                times.append(time.perf_counter())
                undo.pop_all()
            while logits:
                (sequence, count), rows = plan.rows[-len(logits)], logits.pop(0)
                self.hand_over(sequence, count, rows, finished)
            self._steps += 1
            self.records.append(replace(
                record, finished=(*finished,), generated=len([*self.all_ids()]),
                seconds=time.perf_counter() - times[0], model_seconds=times[2] - times[1]))
        deltas = self._deltas
        self._deltas = []
        return deltas

    def all_ids(self):
        for delta in self._deltas:
            yield from delta.ids
