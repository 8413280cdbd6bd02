"""The engine's steps, live, for the chat page: server-sent events, one a step.

Each event is a `StepRecord` as JSON, with `tokens`, and `missed`: how many steps before it this
reader was too slow for. A row's name is "ID-PROMPT/ANSWER" with the X-Request-Id of the request
that asked for it. No text is shown.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import asdict

from gearworks.server.api_error import APIError
from gearworks.server.protocol import sse_event
from gearworks.serving.record import StepRecord

READERS = 8                         # at once
KEPT = 32                           # steps that wait for a reader
SILENCE = 15                        # seconds after which a comment shows that we are here


class StepFeed:
    """Hands each step's record to those who watch."""

    def __init__(self):
        self._readers: set[Reader] = set()

    def publish(self, record: StepRecord) -> None:
        """Tell all readers of a step."""
        for reader in self._readers:
            reader.push(record)

    def close(self) -> None:
        """End all readers' streams."""
        for reader in self._readers:
            reader.close()

    @contextmanager
    def reader(self) -> Iterator["Reader"]:
        """Let somebody watch. Raises APIError when there are too many already."""
        if len(self._readers) >= READERS:
            raise APIError(429, f"{READERS} watch the engine already; close one of them.",
                           headers={"Retry-After": "5"})
        reader = Reader()
        self._readers.add(reader)
        try:
            yield reader
        finally:
            self._readers.discard(reader)


class Reader:
    """What one reader has not read yet."""

    def __init__(self):
        self._news = asyncio.Event()
        self._waiting: deque[StepRecord] = deque(maxlen=KEPT)
        self._last: int | None = None
        self._closed = False

    def push(self, record: StepRecord) -> None:
        """Keep a record; the oldest makes room for it."""
        self._waiting.append(record)
        self._news.set()

    def close(self) -> None:
        """Nothing comes any more."""
        self._closed = True
        self._news.set()

    async def events(self) -> AsyncIterator[bytes]:
        """Server-sent events, until the feed is closed."""
        yield b": here come the engine's steps\n\n"
        while not self._closed:
            try:
                async with asyncio.timeout(SILENCE):        # wait_for may lose a cancellation
                    await self._news.wait()
            except TimeoutError:
                yield b": nothing to do\n\n"
                continue
            self._news.clear()
            yield b"".join(map(sse_event, self._take()))

    def _take(self) -> list[dict]:
        taken = []
        for record in self._waiting:
            missed = 0 if self._last is None else record.number - self._last - 1
            taken.append(asdict(record) | {"tokens": record.tokens, "missed": missed})
            self._last = record.number
        self._waiting.clear()
        return taken
