"""The server's API by several replicas behind Ray Serve, routed so that shared prefixes meet.

    pip install "gearworks[replicas]"
    python solutions/replicas/ray_serve.py --model smollm2 --replicas 2

starts Ray on this machine alone, without its dashboard and its usage statistics, prints the
address when all replicas are ready, and ends on Ctrl-C. In a cluster of several machines that
runs already, and has the model and this package on each,

    cd solutions/replicas
    serve run --working-dir . ray_serve:build model=smollm2 replicas=2

A request passes Ray's HTTP proxy, the gateway, and one of the replicas:

    client -> proxy -> Gateway -> PrefixRouter -> Replica: create_app(Service(LLMEngine(...)))

The proxy knows a request's headers only, and so cannot choose by its prompt: the gateway reads
the body, hashes the beginning of its prompt by full pieces, each hash with the one before it,
as `hash_blocks` does with blocks of tokens, and Ray asks our router with these hashes. The
router keeps a map of its own of where which piece was computed last; nobody asks the replicas.
Each answer names its replica in the header X-Replica.

Left out on purpose: several gateways (each would learn a map of its own); the limits of
`gearworks serve` on slow clients, since the proxy holds the connections; the sum of all
replicas in /metrics, which shows one of them: whoever sums has to ask every replica.
"""

import argparse
import asyncio
import json
import os
import re
import secrets
import signal
import sys
import threading
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from random import sample
from typing import Any, Literal

if __name__ == "__main__":                              # what Ray reads when it is imported
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"   # everywhere: only 127.0.0.1
    os.environ["RAY_AUTH_MODE"] = "token"                   # other users are kept out
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)    # else it is kept in a file
    sys.path.insert(1, str(Path(__file__).parent / "without"))
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [sys.path[1], os.environ.get("PYTHONPATH")]))

import numpy as np
import ray
from pydantic import BaseModel, ConfigDict, PositiveInt
from ray import serve
from ray.exceptions import RayError
from ray.serve.config import RequestRouterConfig
from ray.serve.handle import DeploymentHandle
from ray.serve.request_router import (PendingRequest, RequestRouter,
                                      RunningReplica)
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gearworks.cli import console
from gearworks.cli.serve import KEY_VARIABLE
from gearworks.errors import GearworksError
from gearworks.hub import find_model
from gearworks.kv_cache import hash_blocks
from gearworks.language_model import LanguageModel
from gearworks.server.api_error import APIError
from gearworks.server.app import create_app
from gearworks.server.body import MOST_BYTES
from gearworks.server.exchange import error_response, unless_gone
from gearworks.server.listener import bound
from gearworks.server.service import Options, Service
from gearworks.serving.engine import LLMEngine

PIECE_BYTES = 64                    # of a prompt, in one hash: some 16 tokens of English
HASHED_BYTES = 64 * 1024            # where two prompts differ only later, the load decides
RESPONSE_ID = re.compile(rb"resp_[0-9a-f]{32}")
SCOPE = ("type", "asgi", "http_version", "method", "scheme", "path", "raw_path",
         "query_string", "root_path", "headers", "client", "server")       # what can be pickled


class Arguments(BaseModel):
    """What `build` takes, by their names on a command line.

    cpus: what Ray counts for one replica, and the number of its threads. routing: `prefix`, or
    `load` for Ray's own, which looks at the queues only.
    """

    model_config = ConfigDict(extra="forbid")
    model: str = "smollm2"
    served_model_name: str | None = None
    replicas: PositiveInt = 2
    cpus: PositiveInt = 1
    routing: Literal["prefix", "load"] = "prefix"
    api_key: str | None = None
    max_num_seqs: PositiveInt = 64
    max_queue: int = 128
    max_model_len: PositiveInt | None = None
    num_blocks: PositiveInt | None = None


def prompt_pieces(body: bytes) -> list[bytes]:
    """The chained hashes of the full pieces at the beginning of a request's prompt.

    Whatever a template puts first comes first here. A body without a prompt has none.

    >>> first, second = (prompt_pieces(json.dumps({"prompt": 100 * "a" + end}).encode())
    ...                  for end in ("b", 100 * "c"))
    >>> len(first), len(second), first[0] == second[0], first[1:] == second[1:2]
    (1, 3, True, False)
    """
    try:
        asked = json.loads(body)
        parts = [asked.get(name) for name in
                 ("tools", "instructions", "messages", "input", "prompt")]
        text = json.dumps([part for part in parts if part is not None]).encode()
    except (ValueError, AttributeError, RecursionError):
        return []                                           # the replica says what is wrong
    return hash_blocks(np.frombuffer(text[:HASHED_BYTES], np.uint8), PIECE_BYTES)


class PrefixMap:
    """Where which piece of a prompt was computed last; the least recently used are forgotten.

    >>> known = PrefixMap(limit=3)
    >>> known.remember([b"a", b"ab"], "first")
    >>> known.remember([b"c"], "second")
    >>> known.find([b"a", b"ax"]), known.find([b"x"]), known.size("first")
    ('first', None, 2)
    """

    def __init__(self, limit: int):
        self._limit = limit
        self._places: OrderedDict[bytes, Any] = OrderedDict()
        self._sizes: Counter = Counter()

    def find(self, pieces: Sequence[bytes]) -> Any | None:
        """The place of the longest beginning that is known."""
        for piece in reversed(pieces):
            if piece in self._places:
                return self._places[piece]
        return None

    def remember(self, pieces: Sequence[bytes], place: Any) -> None:
        """From now on, all these pieces are at this place."""
        for piece in reversed(pieces):                      # a beginning outlives what follows
            if piece in self._places:
                self._sizes[self._places.pop(piece)] -= 1
            self._places[piece] = place
            self._sizes[place] += 1
        while len(self._places) > self._limit:
            self._sizes[self._places.popitem(last=False)[1]] -= 1

    def keep_only(self, places: Iterable[Any]) -> None:
        """Forget what was at any other place."""
        gone = self._sizes.keys() - set(places)
        if gone:
            self._places = OrderedDict(item for item in self._places.items()
                                       if item[1] not in gone)
            for place in gone:
                del self._sizes[place]

    def size(self, place: Any) -> int:
        """How many pieces a place has."""
        return self._sizes[place]


class PrefixRouter(RequestRouter):
    """Sends a prompt to the replica that has computed its beginning, unless that is busy.

    A new prompt, or one whose replica has `slack` requests more than another, goes to the
    better of two that are drawn at random (Mitzenmacher, "The Power of Two Choices in
    Randomized Load Balancing", 2001): the one with fewer requests, then with fewer pieces.
    """

    def initialize_state(self, slack: int = 8, limit: int = 100_000) -> None:
        """Called by Ray. limit: of the pieces that are remembered."""
        self._slack, self._known = slack, PrefixMap(limit)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Called by Ray."""
        super().update_replicas(replicas)
        self._known.keep_only(self.curr_replicas)

    def on_replica_actor_died(self, replica_id) -> None:
        """Called by Ray."""
        super().on_replica_actor_died(replica_id)
        self._known.keep_only(self.curr_replicas)

    async def choose_replicas(self, candidate_replicas: list[RunningReplica],
                              pending_request: PendingRequest | None = None
                              ) -> list[list[RunningReplica]]:
        """Called by Ray: the replicas to try, the best first."""
        if pending_request is None or not candidate_replicas:
            return [candidate_replicas]
        # or else full replicas are asked again without a pause
        pending_request.routing_context.should_backoff = True
        pieces, home = pending_request.kwargs["pieces"], pending_request.kwargs["home"]
        by_id = {replica.replica_id: replica for replica in candidate_replicas}
        chosen = next((replica for replica in candidate_replicas
                       if replica.replica_id.unique_id == home), None)
        if chosen is None:
            chosen = by_id.get(self._known.find(pieces))
        if chosen is None or (home is None and self._queue(chosen) > self._slack + min(
                map(self._queue, candidate_replicas))):
            chosen = min(sample(candidate_replicas, min(2, len(candidate_replicas))),
                         key=lambda replica: (self._queue(replica), bool(pieces)
                                              and self._known.size(replica.replica_id)))
        # now, not when it is answered: the next request may be about the same document
        self._known.remember(pieces, chosen.replica_id)
        others = [replica for replica in candidate_replicas if replica is not chosen]
        return [[chosen], others] if others else [[chosen]]

    def _queue(self, replica: RunningReplica) -> int:
        """How many requests it has, as far as this router knows."""
        return self.replica_queue_len_cache.get(replica.replica_id) or 0


class Replica:
    """One engine with its server. Ray makes as many as it was told, each a process."""

    async def __init__(self, arguments: Arguments):         # in the loop that runs the server
        sizes = {name: getattr(arguments, name) for name in ("max_model_len", "num_blocks")
                 if getattr(arguments, name) is not None}
        engine = LLMEngine(LanguageModel.load(find_model(arguments.model)),
                           max_num_seqs=arguments.max_num_seqs, **sizes)
        self._service = Service(engine, Options(
            (arguments.served_model_name or arguments.model,), api_key=arguments.api_key,
            max_queue=arguments.max_queue))
        self._app = create_app(self._service)
        self._running = self._service.running(self._app)
        await self._running.__aenter__()
        self._name = serve.get_replica_context().replica_id.unique_id

    async def answer(self, scope: Scope, body: bytes, pieces: list[bytes], home: str | None
                     ) -> AsyncIterator[list[Message]]:
        """What the application sends for a request. pieces, home: for the router alone.

        When nobody wants the rest, Ray closes the generator, and the application is cancelled.
        """
        messages: asyncio.Queue[Message | None] = asyncio.Queue()
        requests = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> Message:
            return next(requests, None) or await asyncio.Event().wait()

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["X-Replica"] = self._name
                # Ray's proxy puts its own id under this name
                headers["X-Replica-Request-Id"] = headers.get("X-Request-Id", "")
                del headers["X-Request-Id"]
            messages.put_nowait(message)

        async def run() -> None:
            try:
                await self._app(scope, receive, send)
            finally:
                messages.put_nowait(None)
        running = asyncio.create_task(run())
        try:
            while (message := await messages.get()) is not None:
                together = [message]
                while not messages.empty() and (message := messages.get_nowait()) is not None:
                    together.append(message)
                yield together
                if message is None:
                    break
            await running                                   # raises what the application raised
        finally:
            running.cancel()

    async def check_health(self) -> None:
        """Called by Ray, which replaces a replica that raises."""
        if self._service.engine.error is not None:
            raise self._service.engine.error


@serve.ingress()
class Gateway:
    """Reads what a client asks, has it answered by a replica, and passes the answer on."""

    def __init__(self, replicas: DeploymentHandle):
        self._replicas = replicas.options(method_name="answer", stream=True)
        self._homes: OrderedDict[str, str] = OrderedDict()  # of stored responses: their replica

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """Called by Ray."""
        return Starlette(routes=[Route("/{path:path}", _Everything(self._exchange))])

    async def _exchange(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await _whole_body(receive)
            await unless_gone(receive, self._pass_on(scope, body, send))
        except ClientDisconnect:
            pass
        except _NotStarted:
            error = APIError(503, "The replica that was to answer has failed; ask again.",
                             code="replica_failed", headers={"Retry-After": "1"})
            await error_response(error)(scope, receive, send)

    async def _pass_on(self, scope: Scope, body: bytes, send: Send) -> None:
        pieces = prompt_pieces(body)
        home = self._home(scope["path"], body)
        answer = self._replicas.remote({name: scope[name] for name in SCOPE if name in scope},
                                       body, pieces=pieces, home=home)
        replica = None
        try:
            async for messages in answer:
                for message in messages:
                    if message["type"] == "http.response.start":
                        replica = MutableHeaders(scope=message)["X-Replica"]
                    elif scope["path"] == "/v1/responses":
                        self._remember_home(message.get("body", b""), replica)
                    await send(message)
        except RayError as error:
            if replica is None:
                raise _NotStarted from error
            raise                                           # the client gets half an answer
        finally:
            answer.cancel()

    def _home(self, path: str, body: bytes) -> str | None:
        """The replica that has stored the response that a request is about, or continues."""
        if not path.startswith("/v1/responses"):
            return None
        id = path.rpartition("/")[2]
        if path == "/v1/responses":
            try:
                id = json.loads(body).get("previous_response_id")
            except (ValueError, AttributeError, RecursionError):
                return None
        return self._homes.get(id) if isinstance(id, str) else None

    def _remember_home(self, piece: bytes, replica: str | None) -> None:
        found = RESPONSE_ID.search(piece)
        if found and replica is not None:
            self._homes[found[0].decode()] = replica
            while len(self._homes) > 10_000:
                self._homes.popitem(last=False)


class _NotStarted(Exception):
    """A replica has failed before its answer began."""


class _Everything:
    """An ASGI application of one function."""

    def __init__(self, answer: ASGIApp):
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._answer(scope, receive, send)


async def _whole_body(receive: Receive) -> bytes:
    """The body of a request. What is too long is cut, just so that the replica refuses it."""
    body, more = bytearray(), True
    while more and len(body) <= MOST_BYTES:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return bytes(body[:MOST_BYTES + 1])


def build(arguments: Arguments) -> serve.Application:
    """The application, for `serve run` and for `serve.run`."""
    router = RequestRouterConfig(request_router_class=PrefixRouter)
    if arguments.routing == "load":
        router = RequestRouterConfig()
    # the engine's own queue is the one that counts: a full one answers 429 itself
    most = arguments.max_num_seqs + arguments.max_queue + 64
    replicas = serve.deployment(Replica).options(
        num_replicas=arguments.replicas, max_ongoing_requests=most,
        request_router_config=router, ray_actor_options={"num_cpus": arguments.cpus})
    gateway = serve.deployment(Gateway).options(
        num_replicas=1, max_ongoing_requests=most * arguments.replicas,
        ray_actor_options={"num_cpus": 0})
    return gateway.bind(replicas.bind(arguments))


def main() -> int:
    """Start Ray on this machine, and serve until a signal."""
    parser = argparse.ArgumentParser(description="Serve a model by replicas behind Ray Serve.")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--served-model-name", metavar="NAME")
    parser.add_argument("--replicas", type=console.positive_count, default=2, metavar="N")
    parser.add_argument("--port", type=console.count, default=8000,
                        help="0 for any that is free (default %(default)s)")
    parser.add_argument("--routing", choices=("prefix", "load"), default="prefix",
                        help="load: by the queues only, as Ray does it (default %(default)s)")
    parser.add_argument("--max-num-seqs", type=console.positive_count, default=64, metavar="N",
                        help="answers that run at once, in each replica (default %(default)s)")
    parser.add_argument("--max-model-len", type=console.positive_count, metavar="N")
    parser.add_argument("--num-blocks", type=console.positive_count, metavar="N",
                        help="of each replica's cache")
    options = vars(parser.parse_args())
    port = options.pop("port")
    cpus = max(1, (os.cpu_count() or 1) // options["replicas"])
    arguments = Arguments(cpus=cpus, api_key=os.environ.get(KEY_VARIABLE), **options)
    try:
        find_model(arguments.model)                         # it may have to be fetched, once
        with bound("127.0.0.1", port) as listener:          # Ray would wait for a port for long
            port = listener.getsockname()[1]
    except GearworksError as error:
        sys.exit(str(error))
    try:
        ray.init(num_cpus=cpus * arguments.replicas, include_dashboard=False,
                 object_store_memory=100 * 2**20, logging_level="error")
    except Exception as error:
        # Its helpers get 15 s to start, whatever else the machine does (ray-project/ray#65983)
        sys.exit(f"Ray did not start\n  Why  {error}\n  Try  once more, if the machine is busy")
    ended = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: ended.set())
    try:
        quiet = {"enable_access_log": False, "log_level": "WARNING"}
        serve.start(http_options={"host": "127.0.0.1", "port": port}, logging_config=quiet)
        serve.run(build(arguments), logging_config=quiet)
        print(f"Gearworks serves {arguments.served_model_name or arguments.model} by "
              f"{arguments.replicas} replicas at http://127.0.0.1:{port}", flush=True)
        while not ended.wait(1):                            # Windows has to wake for a signal
            pass
        print("gearworks: stopping", file=sys.stderr, flush=True)
    finally:
        serve.shutdown()
        ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
