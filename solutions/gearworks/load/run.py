"""When each request is sent: by an open loop, as users come, or by a closed one, to compare.

An open loop sends a request when it arrives, whatever has become of those before it. A closed
loop with c clients sends the next one when an answer is complete: when the server slows down,
so does the load, and the worst moments are measured least often. This is called coordinated
omission (Tene, "How NOT to Measure Latency", 2015); here every latency counts from the arrival
that was intended.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass

from gearworks.load.measurement import Clock, Measurement
from gearworks.load.trace import TraceRequest

Send = Callable[[Measurement, str], Awaitable[None]]
Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True)
class Planned:
    """A request of the load, and its prompt."""

    request: TraceRequest
    prompt: str


class Run:
    """A load as it happens. `measurements` are those of the requests that arrived so far.

    on_change: called when a request was sent, and when one is over.
    """

    def __init__(self, send: Send, clock: Clock, sleep: Sleep = asyncio.sleep,
                 on_change: Callable[["Run"], None] = lambda run: None):
        self._send, self._clock, self._sleep, self._on_change = send, clock, sleep, on_change
        self.measurements: list[Measurement] = []
        self.planned: list[Planned] = []
        self.in_flight = self.finished = self.failed = 0

    async def open_loop(self, load: Iterable[Planned]) -> None:
        """Send each request at its arrival, and wait for all answers."""
        async with asyncio.TaskGroup() as group:
            for planned in load:
                await self._sleep(0.0)          # even when it is late, what was begun goes on
                while (wait := planned.request.arrival - self._clock()) > 0:
                    await self._sleep(wait)     # a system may wake it a little early
                group.create_task(self._ask(planned, planned.request.arrival))

    async def closed_loop(self, load: Iterable[Planned], concurrency: int,
                          duration: float | None = None) -> None:
        """Keep so many requests on their way, whatever their arrivals, and begin none after
        `duration` seconds."""
        waiting = iter(load)
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(self._ask_one_by_one(waiting, duration))

    async def _ask_one_by_one(self, waiting: Iterator[Planned], duration: float | None) -> None:
        while duration is None or self._clock() < duration:
            planned = next(waiting, None)
            if planned is None:
                return
            await self._ask(planned, self._clock())

    async def _ask(self, planned: Planned, arrival: float) -> None:
        request = planned.request
        measured = Measurement(arrival, request.prompt_tokens, request.output_tokens,
                               request.group)
        self.measurements.append(measured)
        self.planned.append(planned)
        self.in_flight += 1
        self._on_change(self)
        try:
            await self._send(measured, planned.prompt)
        finally:
            self.in_flight -= 1
            self.finished += 1
            self.failed += measured.error is not None
            self._on_change(self)


def as_trace(planned: Iterable[Planned],
             measurements: Iterable[Measurement]) -> Iterator[TraceRequest]:
    """The load of a run as a trace that can be replayed: the prompts, when they really arrived,
    and for answers that came whole as many tokens as they had."""
    for each, measured in zip(planned, measurements):
        count = each.request.output_tokens
        if measured.error is None and measured.generated:
            count = measured.generated
        yield TraceRequest(measured.arrival, count, prompt=each.prompt,
                           group=each.request.group)
