"""One request over HTTP to a server with OpenAI's API, and what is measured of it.

Nothing is sent twice: a load test that retries hides what it was to find. Nothing is read from
the environment about proxies: what is measured is the server, not the way there.
"""

import asyncio
import ipaddress
import json
import socket
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx

from gearworks.errors import GearworksError, NotAvailableError, UsageError
from gearworks.load.events import EventParser
from gearworks.load.measurement import Clock, Measurement
from gearworks.load.prompts import text
from gearworks.load.trace import TraceRequest

PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
LONGEST_MESSAGE = 400                                       # characters of what a server says


def base_url(url: str) -> str:
    """The address of a server, without the /v1 at its end. Raises UsageError.

    >>> base_url("http://127.0.0.1:8000/v1/")
    'http://127.0.0.1:8000'
    """
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        known = False
    if not known or parts.query or parts.fragment or any(each.isspace() for each in url):
        raise UsageError(f"cannot test {url:.80}", "it is not the address of a server",
                         "an address such as http://127.0.0.1:8000")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def is_own_machine(url: str) -> bool:
    """Whether every address of the URL's host is one of this machine's.

    Raises NotAvailableError for a host that has no address.

    >>> is_own_machine("http://127.0.0.1:8000"), is_own_machine("http://203.0.113.7")
    (True, False)
    """
    host = urlsplit(url).hostname
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise NotAvailableError(f"cannot test {url:.80}", f"{host:.60} has no address: {error}",
                                "the server's address, spelled as it is in a browser") from None
    return all(_is_own(family, address) for family, _, _, _, address in found)


def _is_own(family: int, address: tuple) -> bool:
    if ipaddress.ip_address(address[0].partition("%")[0]).is_loopback:
        return True
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address[0], 0, *address[2:]))       # only possible for one's own
            return True
        except OSError:
            return False


class Client:
    """Sends requests to one server, any number at once. An asynchronous context manager.

    endpoint: a key of `PATHS`. timeout: seconds from the sending of a request to the end of its
    answer. clock: seconds after the start of the run.
    """

    def __init__(self, url: str, *, endpoint: str = "chat", key: str | None = None,
                 ignore_eos: bool = False, timeout: float = 600.0, clock: Clock):
        self.url, self.endpoint, self.model = url, endpoint, None
        self._ignore_eos, self._timeout, self.clock = ignore_eos, timeout, clock
        # A bounded pool of connections would delay arrivals when answers are slow
        self._http = httpx.AsyncClient(
            timeout=None, trust_env=False,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            headers={"Accept-Encoding": "identity"}         # compression may hold tokens back
            | ({"Authorization": f"Bearer {key}"} if key else {}))

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_) -> None:
        await self._http.aclose()

    async def choose_model(self, name: str | None) -> str:
        """Decide on the model to ask: this one, or the first that the server has.

        Raises NotAvailableError when no server answers, GearworksError when it has no models.
        """
        address = f"{self.url}/v1/models"
        try:
            async with asyncio.timeout(min(self._timeout, 30)):
                answer = await self._http.get(address)
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
            raise NotAvailableError(
                f"no server answers at {self.url}", _said(error),
                "start it first, for example with gearworks serve, and look at its port"
            ) from None
        if name is None:
            try:
                answer.raise_for_status()
                name = answer.json()["data"][0]["id"]
                if not isinstance(name, str):
                    raise TypeError
            except (httpx.HTTPStatusError, ValueError, LookupError, TypeError,
                    RecursionError):
                raise GearworksError(
                    f"{self.url} has no models", f"{address} gave {_shown(answer)}",
                    "--api-key, if it wants one" if answer.status_code in (401, 403)
                    else "the address of a server with OpenAI's API, or --model NAME") from None
        self.model = name
        return name

    async def warm_up(self, count: int, seed: int) -> None:
        """Ask for so many short answers, one after another, which nobody measures.

        Raises GearworksError when one fails: then the load would tell nothing either.
        """
        for number in range(count):
            request = TraceRequest(0.0, output_tokens=8, prompt_tokens=16)
            measured = Measurement(self.clock(), asked_output_tokens=request.output_tokens)
            await self.send(measured, text(request, seed, -1 - number))
            if measured.error is not None:
                raise GearworksError(
                    f"{self.url} does not answer a first request",
                    f"{measured.error}: {measured.message}",
                    "--api-key, if it wants one" if measured.status in (401, 403)
                    else "look at the server's log; --warmup 0 goes on nevertheless")

    async def send(self, measured: Measurement, prompt: str) -> None:
        """Ask for an answer, and fill in what comes of it. Failures are measurements too."""
        measured.sent = self.clock()
        try:
            async with asyncio.timeout(self._timeout):
                await self._stream(measured, prompt)
        except TimeoutError:
            measured.error = "timeout"
            measured.message = f"no end within {self._timeout:g} s"
        except (httpx.ConnectError, httpx.InvalidURL) as error:
            measured.error, measured.message = "no connection", _said(error)
        except httpx.HTTPError as error:                    # closed, reset, or no HTTP
            measured.error, measured.message = "cut", _said(error)
        finally:                                            # when interrupted, too
            if measured.end is None:
                measured.end = self.clock()

    async def _stream(self, measured: Measurement, prompt: str) -> None:
        body = {"model": self.model, "max_tokens": measured.asked_output_tokens,
                "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
        if self.endpoint == "chat":
            body["messages"] = [{"role": "user", "content": prompt}]
        else:
            body["prompt"] = prompt
        if self._ignore_eos:
            body["ignore_eos"] = True
        async with self._http.stream("POST", self.url + PATHS[self.endpoint],
                                     json=body) as answer:
            measured.status = answer.status_code
            if answer.status_code != 200:
                measured.retry_after = answer.headers.get("Retry-After")
                await answer.aread()
                measured.error, measured.message = f"HTTP {answer.status_code}", _shown(answer)
                return
            if "text/event-stream" not in answer.headers.get("Content-Type", ""):
                await answer.aread()
                measured.error, measured.message = "not a stream", _shown(answer)
                return
            parser, stream = EventParser(), answer.aiter_bytes()
            async for received in stream:
                for data in parser.feed(received):
                    if _is_last(data, measured, self.clock()):
                        measured.end = self.clock()
                        await _drain(stream)
                        return
        if measured.finish_reason is None:
            measured.error, measured.message = "cut", "the stream ended before the answer did"
        else:
            measured.error = None


async def _drain(stream: AsyncIterator[bytes]) -> None:
    """Read what follows the last event; httpx keeps no connection that was not read out."""
    try:
        async with asyncio.timeout(1):
            async for _ in stream:
                pass
    except (httpx.HTTPError, TimeoutError):
        pass


def _is_last(data: str, measured: Measurement, now: float) -> bool:
    """Take in one event of an answer; whether it was the last."""
    if data == "[DONE]":
        measured.error = None
        return True
    try:
        event = json.loads(data)
        if event.get("error"):
            measured.error = "error in the stream"
            measured.message = json.dumps(event["error"])[:LONGEST_MESSAGE]
            return True
        if _brings_text(event):
            measured.chunks.append(now)
        for choice in event.get("choices") or ():
            measured.finish_reason = choice.get("finish_reason") or measured.finish_reason
        _take_usage(event.get("usage"), measured)
    except (ValueError, AttributeError, TypeError, RecursionError):
        measured.error, measured.message = "not readable", data[:LONGEST_MESSAGE]
        return True
    return False


def _brings_text(event: Mapping[str, Any]) -> bool:
    """Whether an event brings text, of the answer or of what the model thinks before it."""
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        if choice.get("text") or any(delta.get(name) for name in
                                     ("content", "reasoning_content", "reasoning")):
            return True
    return False


def _take_usage(usage: Mapping[str, Any] | None, measured: Measurement) -> None:
    if not usage:
        return
    details = usage.get("prompt_tokens_details") or {}
    counts = (usage.get("prompt_tokens"), usage.get("completion_tokens"),
              details.get("cached_tokens"))
    measured.prompt_tokens, measured.output_tokens, measured.cached_tokens = [
        count if type(count) is int else None for count in counts]


def _said(error: Exception) -> str:
    return str(error)[:LONGEST_MESSAGE] or type(error).__name__


def _shown(answer: httpx.Response) -> str:
    """The status of an answer, and the beginning of its body or OpenAI's message there."""
    body = answer.text
    try:
        body = answer.json()["error"]["message"]
    except (ValueError, LookupError, TypeError, RecursionError):
        pass
    return f"{answer.status_code}: {' '.join(str(body).split())[:LONGEST_MESSAGE]}"
