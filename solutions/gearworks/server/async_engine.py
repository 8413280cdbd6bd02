"""The engine for coroutines: one thread owns it, and each client reads its own deltas.

Only the thread touches the engine. Commands reach it through a queue, and it obeys them between
two steps; what a step gave goes to the event loop in one call. The engine never waits for a
client: what a slow one has not read yet waits for it, and reaches it as one delta.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain

from gearworks.errors import GearworksError
from gearworks.server.containment import contained
from gearworks.serving.engine import LLMEngine
from gearworks.serving.record import StepRecord
from gearworks.serving.request import Delta, Request

log = logging.getLogger("gearworks.server")


class EngineError(GearworksError):
    """The engine's thread has ended with an exception: nothing is answered any more."""


class ShutdownError(GearworksError):
    """The server ends before the answer is complete."""


class DeltaStream:
    """What the engine adds to the answers of one client's requests: an async iterator.

    It ends when every answer has its last delta. Raises what the requests were refused with, or
    what ended the engine. One reader only; everything but the engine's thread may use it.

    What waits is at most what there is of the answers: their lengths bound it.
    """

    def __init__(self, requests: Sequence[Request]):
        self.requests = tuple(requests)
        self._unfinished = sum(request.n for request in requests)
        self._waiting: dict[tuple[str, int], list[Delta]] = {}
        self._error: Exception | None = None
        self._news, self._accepted = asyncio.Event(), asyncio.Event()

    @property
    def unfinished(self) -> int:
        """How many answers have not ended."""
        return self._unfinished

    async def accepted(self) -> None:
        """Wait until the engine has taken all requests; raises what it refuses one with."""
        await self._accepted.wait()
        if self._error is not None and not self._waiting:
            raise self._error

    def accept(self) -> None:
        """The engine has taken all requests."""
        self._accepted.set()

    def push(self, deltas: Sequence[Delta]) -> None:
        """Add what one step gave."""
        for delta in deltas:
            self._waiting.setdefault((delta.request_id, delta.index), []).append(delta)
        self._unfinished -= sum(delta.finish_reason is not None for delta in deltas)
        self._news.set()

    def fail(self, error: Exception) -> None:
        """End the stream with an error, after what waits to be read."""
        self._error = self._error or error
        self._accepted.set()
        self._news.set()

    def __aiter__(self) -> "DeltaStream":
        return self

    async def __anext__(self) -> Delta:
        while not self._waiting:
            if self._error is not None:
                raise self._error
            if not self._unfinished:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return merged(self._waiting.pop(next(iter(self._waiting))))


def merged(deltas: Sequence[Delta]) -> Delta:
    """Consecutive deltas of one answer as one."""
    first, last = deltas[0], deltas[-1]
    if first is last:
        return first
    return replace(last, text="".join(delta.text for delta in deltas),
                   ids=tuple(chain.from_iterable(delta.ids for delta in deltas)),
                   logprobs=tuple(chain.from_iterable(delta.logprobs for delta in deltas)),
                   prompt_logprobs=first.prompt_logprobs,
                   cached_tokens=max(delta.cached_tokens for delta in deltas))


class AsyncEngine:
    """An `LLMEngine` in a thread of its own. All methods belong to one event loop.

    error: what ended the engine's thread, or None.
    """

    def __init__(self, engine: LLMEngine,
                 on_step: Callable[[StepRecord, Sequence[Delta]], None] | None = None):
        """on_step: called in the event loop after each step, with what it gave."""
        self.error: EngineError | None = None
        self._engine, self._on_step = engine, on_step
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._streams: set[DeltaStream] = set()
        self._last_record: StepRecord | None = None         # a step without rows leaves none
        # of the thread alone: whose request it is, and how many of its answers are unfinished
        self._running: dict[str, tuple[DeltaStream, int]] = {}
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Begin to obey commands, and to answer in the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """End the thread after the step that it is in; every stream ends with an error."""
        self.cancel_all()
        self._commands.put(None)
        await asyncio.to_thread(self._thread.join)

    @contextmanager
    def answers(self, requests: Sequence[Request]) -> Iterator[DeltaStream]:
        """The stream of the answers to these requests, as long as somebody reads it.

        Whatever is unfinished at the end is aborted: its blocks are free before the next step.
        Raises EngineError where no engine runs any more.
        """
        if self.error is not None:
            raise self.error
        stream = DeltaStream(requests)
        self._streams.add(stream)
        self._commands.put(partial(self._add, stream))
        try:
            yield stream
        finally:
            self._streams.discard(stream)
            self._commands.put(partial(self._abort, stream))

    def cancel_all(self) -> int:
        """End every stream with a ShutdownError; returns how many there were."""
        for stream in self._streams:
            stream.fail(ShutdownError("the answer is incomplete", "the server is shutting down",
                                      "ask again when it is back"))
        return len(self._streams)

    @property
    def unfinished(self) -> int:
        """How many answers run or wait."""
        return sum(stream.unfinished for stream in self._streams)

    def _run(self) -> None:
        """The engine's thread. Whatever ends it, a panic in a library or `sys.exit` in a
        learner's gear included, is told: nobody waits for a thread that has gone."""
        try:
            while self._obey():
                self._step()
        except BaseException as error:
            log.exception("the engine has failed")
            self._tell(self._fail_all, EngineError(
                "the engine has failed", f"{type(error).__name__}: {error}"[:500],
                "start the server again; its log has the details"))

    def _obey(self) -> bool:
        """Carry out all commands; returns when there is a step to do, and False at the end."""
        while True:
            try:
                command = self._commands.get(block=not self._engine.has_unfinished())
            except queue.Empty:
                return True
            if command is None:
                return False
            command()

    def _add(self, stream: DeltaStream) -> None:
        for request in stream.requests:
            try:
                with contained():
                    self._engine.add_request(request)
            except Exception as error:                      # concerns this client only
                if not isinstance(error, GearworksError):
                    log.exception("a request could not be added")
                self._abort(stream)
                self._tell(stream.fail, error)
                return
            self._running[request.id] = stream, request.n
        self._tell(stream.accept)

    def _abort(self, stream: DeltaStream) -> None:
        for request in stream.requests:
            if self._running.pop(request.id, None) is not None:
                self._engine.abort(request.id)

    def _step(self) -> None:
        """Do a step, and hand its deltas to their streams in one call of the event loop."""
        deltas = self._engine.step()
        news: dict[DeltaStream, list[Delta]] = {}
        for delta in deltas:
            stream, unfinished = self._running[delta.request_id]
            news.setdefault(stream, []).append(delta)
            unfinished -= delta.finish_reason is not None
            if unfinished:
                self._running[delta.request_id] = stream, unfinished
            else:
                del self._running[delta.request_id]
        record = self._engine.records[-1] if self._engine.records else None
        self._tell(self._deliver, news, record, deltas)

    def _tell(self, call: Callable, *arguments) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:                                # the loop has ended before us
            pass

    def _deliver(self, news: dict[DeltaStream, list[Delta]], record: StepRecord | None,
                 deltas: Sequence[Delta]) -> None:
        for stream, own in news.items():
            stream.push(own)
        if record is not self._last_record and self._on_step is not None:
            self._last_record = record
            self._on_step(record, deltas)

    def _fail_all(self, error: EngineError) -> None:
        self.error = error
        for stream in self._streams:
            stream.fail(error)
