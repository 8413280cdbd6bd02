"""What all paths of the server share: the engine, the queue in front of it, its watchers."""

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request as HTTPRequest

from gearworks.server.api_error import APIError
from gearworks.server.async_engine import AsyncEngine
from gearworks.server.containment import contained
from gearworks.server.engine_request import InputProcessor
from gearworks.server.inside import StepFeed
from gearworks.server.metrics import Metrics
from gearworks.server.protocol import validate_request
from gearworks.server.reply import Reply
from gearworks.server.request_types import (ChatRequest, CompletionRequest, Limits, Object,
                                            ignored_within)
from gearworks.serving.engine import LLMEngine
from gearworks.serving.record import StepRecord
from gearworks.serving.request import Delta, Request

log = logging.getLogger("gearworks.server")

PREPARING = 2                       # requests that are tokenized or compiled at the same time
PREPARE_SECONDS = 20


@dataclass(frozen=True)
class Options:
    """How the server is to behave. models: the names that it answers to. host: what it is
    bound to. max_queue: answers that may wait beyond those that can run."""

    models: tuple[str, ...]
    host: str = "127.0.0.1"
    api_key: str | None = None
    allowed_origins: tuple[str, ...] = ()
    max_queue: int = 128


class Places:
    """How many answers may run or wait. Who finds no place is told when to come again."""

    def __init__(self, limit: int):
        self.limit, self.taken = limit, 0
        self._seconds: deque[float] = deque([1.0], maxlen=16)       # that the last ones took

    @contextmanager
    def held(self) -> Iterator[Callable[[int], None]]:
        """Hold one place, and give back all in the end.

        Yields a function that changes how many are held. Both raise APIError where there are
        not enough; but a request that is alone may have more than all.
        """
        held, started = 0, time.monotonic()

        def hold(count: int) -> None:
            nonlocal held
            if self.taken + count - held > self.limit and self.taken > held:
                wait = sum(self._seconds) / len(self._seconds)
                raise APIError(429, "The queue is full; try again in a moment.",
                               code="queue_full",
                               headers={"Retry-After": str(min(60, max(1, round(wait))))})
            self.taken += count - held
            held = count

        hold(1)
        try:
            yield hold
        finally:
            hold(0)
            self._seconds.append(time.monotonic() - started)


class Service:
    """engine: in its thread; places, metrics, feed: see there."""

    def __init__(self, engine: LLMEngine, options: Options):
        self.language_model = engine.language_model
        self.limits = Limits(
            options.models, self.language_model.model.config.vocab_size, engine.max_model_len,
            engine.max_num_seqs)
        self.inputs = InputProcessor(self.language_model, self.limits)
        self.options = options
        self.created = int(time.time())
        self.metrics = Metrics(options.models[0])
        self.feed = StepFeed()
        self.places = Places(engine.max_num_seqs + options.max_queue)
        self.engine = AsyncEngine(engine, self._on_step)
        self.draining = False
        self._threads = ThreadPoolExecutor(PREPARING, "prepare")

    @asynccontextmanager
    async def running(self, app: Starlette) -> AsyncIterator[None]:
        """The time between the first request and the last."""
        self.engine.start()
        try:
            yield
        finally:
            self.feed.close()
            await self.engine.stop()
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _on_step(self, record: StepRecord, deltas: Sequence[Delta]) -> None:
        self.metrics.step(record, deltas)
        self.feed.publish(record)

    async def aside(self, call: Callable, *arguments: Any) -> Any:
        """Call a function beside the event loop. Raises APIError when it takes too long."""
        def work() -> Any:
            with contained():
                return call(*arguments)
        working = asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            # not wait_for: before Python 3.12 it forgets that it was cancelled if the call has
            # just returned, and a client that has gone is answered to the end
            async with asyncio.timeout(PREPARE_SECONDS):
                return await working
        except TimeoutError:
            raise APIError(400, "It takes too long to prepare this request: shorten its text, "
                                "or simplify its schema.", code="too_complex") from None

    def reply(self, asked: ChatRequest | CompletionRequest, requests: Sequence[Request]
              ) -> Reply:
        """What the answers to a request come to."""
        return Reply(asked, requests, self.language_model.tokenizer, self.limits.models[0])

    def validated(self, body: Any, kind: type[Object], request: HTTPRequest
                  ) -> tuple[Any, dict[str, str]]:
        """A body as its type, and a header that names the parameters that mean nothing."""
        asked, ignored = validate_request(body, kind, self.limits)
        ignored += ignored_within(asked, body)
        if not ignored:
            return asked, {}
        names = safe_names(ignored)
        log.info("%s: ignored parameters: %s", request.state.request_id, names)
        return asked, {"X-Ignored-Parameters": names}


def safe_names(names: Sequence[str], most: int = 20) -> str:
    """Names that a client chose, for a header or a log: short, and of safe characters.

    >>> safe_names(["user", "a\\r\\nSet-Cookie: b"])
    'user, a__Set-Cookie__b'
    """
    shown = [re.sub(r"[^A-Za-z0-9_.-]", "_", name[:64]) for name in names[:most]]
    more = [f"and {len(names) - most} more"] if len(names) > most else []
    return ", ".join(shown + more)
