"""The server under load and attack: what is refused, what is cut off, and that it goes on."""

import asyncio
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import psutil
import pytest
from test_server import LONG, assert_error, events, stream

from gearworks.server import service as service_module
from gearworks.server.graceful import Patience
from gearworks.cli.serve import KEY_VARIABLE

QUICK = Patience(head=0.5, body=0.5, write=0.5)
SHORT = {"prompt": "One two three", "max_tokens": 5, "temperature": 0, "ignore_eos": True}


@pytest.fixture
def alone(tiny_chat) -> str:
    """What SHORT is answered with when nobody else is there."""
    return tiny_chat.generate(SHORT["prompt"], max_tokens=5).text


@pytest.fixture(autouse=True)
def goes_on(request):
    """After each test that uses the module's server, it still answers, and holds nothing."""
    yield
    if "client" in request.fixturenames:
        client, server = (request.getfixturevalue(name) for name in ("client", "server"))
        assert client.get("/health").json() == {"status": "ok"}
        assert client.post("/v1/completions", json=SHORT).is_success
        wait_until_free(server)


def wait_until_free(server) -> None:
    """Until nobody holds a place or a block."""
    deadline = time.monotonic() + 60
    while (server.service.places.taken or server.service.engine.unfinished
           or server.engine.has_unfinished()):
        assert time.monotonic() < deadline, "something is never given back"
        time.sleep(0.01)
    server.engine.pool.check([])
    assert not any(server.engine.pool.references)


def connect(server) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=60)


def read_all(connection: socket.socket) -> bytes:
    """What comes until the server closes the connection."""
    received = b""
    try:
        while piece := connection.recv(65536):
            received += piece
    except ConnectionResetError:
        pass
    return received


def refused(received: bytes) -> tuple[int, dict]:
    """The status and the error of an HTTP answer."""
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]


# --- clients that go away


@pytest.mark.parametrize("path, body", [
    ("/v1/completions", LONG | {"stream": True, "max_tokens": 1900}),
    ("/v1/completions", LONG | {"max_tokens": 1900}),
    ("/v1/completions", LONG | {"max_tokens": 1900, "n": 3, "temperature": 1}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}],
                              "stream": True, "logit_bias": {"2": -100}}),
    ("/v1/responses", {"input": "Hi", "logit_bias": {"2": -100}})],
    ids=["stream", "whole", "three answers", "chat", "response"])
def test_a_client_that_leaves_frees_its_blocks(server, client, path, body):
    before = server.engine._steps
    content = json.dumps(body).encode()
    with connect(server) as connection:
        connection.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n"
                           b"Content-Type: application/json\r\n\r\n%s"
                           % (path.encode(), len(content), content))
        while server.engine._steps < before + 5:
            time.sleep(0.001)
    wait_until_free(server)
    assert server.engine._steps < before + 1000                 # of 1,900


@pytest.mark.parametrize("stream", [True, False])
def test_the_blocks_are_free_before_the_next_step(server, client, monkeypatch, stream):
    """The step that runs when a client leaves is the last with its answers, however short the
    steps are: here the next one begins only when the server has noticed."""
    step, left, seen = server.engine.step, threading.Event(), []

    def held():
        if server.engine._steps == before + 3:
            asked.close()
            left.set()
            while server.service.engine._commands.empty():
                time.sleep(0.001)
            seen.append(any(server.engine.pool.references))     # in the middle of its step
        if server.engine._steps > before + 3:
            seen.append(server.engine.has_unfinished() or any(server.engine.pool.references))
        return step()
    body = json.dumps(LONG | {"stream": stream, "max_tokens": 1900, "n": 2,
                              "temperature": 1}).encode()
    before = server.engine._steps
    asked = connect(server)
    monkeypatch.setattr(server.engine, "step", held)
    asked.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n"
                  b"Content-Type: application/json\r\n\r\n%s" % (len(body), body))
    assert left.wait(60)
    wait_until_free(server)
    assert seen == [True] and server.engine._steps == before + 4
    monkeypatch.undo()


def test_a_client_that_leaves_the_queue_is_never_run(served, tiny_chat):
    with (served(tiny_chat, engine={"max_num_seqs": 1}) as server,
          httpx.Client(base_url=server.url, timeout=60) as client,
          client.stream("POST", "/v1/completions", json=LONG | {
              "stream": True, "stream_options": {"include_usage": True}}) as first):
        lines = first.iter_lines()
        next(lines)
        with pytest.raises(httpx.ReadTimeout):
            client.post("/v1/completions", json=LONG, timeout=0.2)
        while server.service.engine.unfinished > 1:
            time.sleep(0.01)
        *_, last = (json.loads(line[6:]) for line in lines if line.startswith("data: {"))
        assert last["usage"]["completion_tokens"] == LONG["max_tokens"]
        first.close()
        wait_until_free(server)
        assert len({row.name for record in server.engine.records for row in record.rows}) == 1


def test_a_client_that_leaves_just_when_its_request_is_prepared_is_noticed(server):
    """Both in one turn of the event loop: what is ready must not hide who has gone."""
    begun, let_go = threading.Event(), threading.Event()

    def prepare():
        begun.set()
        let_go.wait(60)

    async def leave():
        working = asyncio.ensure_future(server.service.aside(prepare))
        await asyncio.to_thread(begun.wait)
        let_go.set()
        time.sleep(0.2)                       # it returns now, and the loop has not heard of it
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
    asyncio.run(leave())


# --- slow readers


def test_a_slow_reader_stops_nobody_and_misses_nothing(server, client, alone):
    with client.stream("POST", "/v1/completions", json=LONG | {"stream": True}) as slow:
        lines = slow.iter_lines()
        first = next(lines)
        for _ in range(3):
            assert client.post("/v1/completions", json=SHORT).json()[
                "choices"][0]["text"] == alone
        while server.service.engine.unfinished:                 # done, and not yet read
            time.sleep(0.01)
        text = "".join(json.loads(line[6:])["choices"][0]["text"] for line in [first, *lines]
                       if line.startswith("data: {"))
    assert text == client.post("/v1/completions", json=LONG).json()["choices"][0]["text"]


def test_what_waits_for_a_slow_reader_is_one_delta_an_answer(tiny_chat):

    from gearworks.server.async_engine import AsyncEngine
    from gearworks.serving.engine import LLMEngine
    from gearworks.serving.request import Request

    async def read_late():
        engine = AsyncEngine(LLMEngine(tiny_chat))
        engine.start()
        request = Request(tiny_chat.tokenizer.encode("One two three"), max_tokens=50, n=2,
                          ignore_eos=True)
        with engine.answers([request]) as stream:
            while stream.unfinished:
                await asyncio.sleep(0.01)
            late = [delta async for delta in stream]
        await engine.stop()
        return late
    late = asyncio.run(read_late())
    assert [(delta.index, len(delta.ids), delta.finish_reason) for delta in late] == [
        (0, 50, "length"), (1, 50, "length")]


def test_a_client_that_never_reads_is_cut_off(served, tiny_chat, alone):
    body = json.dumps(LONG | {"stream": True, "max_tokens": 1900, "n": 8, "temperature": 1,
                              "logprobs": 20}).encode()
    with served(tiny_chat, patience=QUICK) as server, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, port = server.url.removeprefix("http://").split(":")
        connection.connect((host, int(port)))
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                           b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
                           % (len(body), body))
        while not server.service.engine.unfinished:
            time.sleep(0.01)
        with httpx.Client(base_url=server.url, timeout=60) as client:
            assert client.post("/v1/completions", json=SHORT).json()[
                "choices"][0]["text"] == alone
        wait_until_free(server)
        assert server.engine._steps < 1800
        while len(server.uvicorn.server_state.connections):     # the socket is gone too
            time.sleep(0.01)


# --- too many


def test_who_finds_no_place_is_told_when_to_come_again(served, tiny_chat):
    with (served(tiny_chat, engine={"max_num_seqs": 1}, max_queue=1) as server,
          httpx.Client(base_url=server.url, timeout=60) as client,
          ThreadPoolExecutor(2) as pool):
        two = [pool.submit(client.post, "/v1/completions", json=LONG) for _ in range(2)]
        while server.service.places.taken < 2:
            time.sleep(0.001)
        for more in ({}, {"stream": True}):
            answer = client.post("/v1/completions", json=SHORT | more)
            assert_error(answer, 429, code="queue_full")
            assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert client.get("/health").is_success
        assert [each.result().status_code for each in two] == [200, 200]
        wait_until_free(server)
        assert client.post("/v1/completions", json=SHORT).is_success
        # alone, a request may hold more places than there are
        several = client.post("/v1/completions", json=SHORT | {"prompt": ["a"] * 5})
        assert len(several.json()["choices"]) == 5


def test_places_are_counted_by_answers(served, tiny_chat):
    with (served(tiny_chat, engine={"max_num_seqs": 4}, max_queue=0) as server,
          httpx.Client(base_url=server.url, timeout=60) as client,
          client.stream("POST", "/v1/completions",
                        json=LONG | {"stream": True, "n": 2}) as first):
        lines = first.iter_lines()
        next(lines)
        assert_error(client.post("/v1/completions", json=SHORT | {"n": 3}), 429)
        assert client.post("/v1/completions", json=SHORT | {"n": 2}).is_success


def test_there_are_only_so_many_connections(served, tiny_chat, monkeypatch):
    from gearworks.server import graceful
    monkeypatch.setattr(graceful, "SPARE_CONNECTIONS", 3 - 2)
    with served(tiny_chat, engine={"max_num_seqs": 1}, max_queue=1) as server:
        held = [connect(server) for _ in range(3)]
        while len(server.uvicorn.server_state.connections) < 3:
            time.sleep(0.001)
        with connect(server) as one_more:
            status, _ = refused(read_all(one_more))
        assert status == 503
        for connection in held:
            connection.close()
        while server.uvicorn.server_state.connections:
            time.sleep(0.001)
        assert httpx.get(f"{server.url}/health").is_success


# --- bodies


@pytest.mark.parametrize("body", [
    b"", b"{", b"nonsense", b'{"prompt": NaN}', b'{"prompt": "\xff"}', b'{"prompt": "x",}',
    b"[" * 100_000, b'{"a":' * 100_000, b'{"prompt": "x", "seed": ' + b"9" * 5000 + b"}",
    b'{"prompt": "\\ud800"}', b'{"prompt": "x", "temperature": 1e999}', b"[]", b"null", b'"x"',
    b"\x00" * 100, '{"prompt": "x"}'.encode("utf-16")],
    ids=lambda body: ascii(body[:20]))
def test_a_body_that_is_no_request_is_a_bad_one(client, body):
    for path in ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/tokenize"):
        assert_error(client.post(path, content=body,
                                 headers={"content-type": "application/json"}), 400)


def test_a_deep_schema_or_message_is_refused(client):
    deep: dict = {"type": "string"}
    for _ in range(90):
        deep = {"type": "object", "properties": {"a": deep}}
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1,
            "response_format": {"type": "json_schema",
                                "json_schema": {"name": "deep", "schema": deep}}}
    assert client.post("/v1/chat/completions", json=body).status_code in (200, 400)


@pytest.mark.parametrize("length", [True, False], ids=["announced", "in chunks"])
def test_a_body_of_50_mb_is_refused_while_it_comes(server, client, length):
    piece, sent = b'"' + b"x" * 65535, 0

    def pieces():
        nonlocal sent
        for _ in range(800):
            sent += len(piece)
            yield piece
    headers = {"content-type": "application/json"}
    if length:
        headers["content-length"] = str(800 * len(piece))
    assert_error(client.post("/v1/completions", content=pieces(), headers=headers), 413)


@pytest.mark.parametrize("body", [
    '{"prompt": [1' + ",1" * 300_000 + "]}", '{"prompt": [' + "[1]," * 140_000 + "[1]]}",
    '{"prompt": "a", "logit_bias": {"1": 1' + ',"1":1' * 300_000 + "}}",
    '{"prompt": "a", "x": [{}' + ",{}" * 140_000 + "]}"],
    ids=["ids", "lists", "an object", "objects"])
def test_a_body_of_many_values_is_refused_before_it_is_read(client, monkeypatch, body):
    """To read it would take long, and nobody else would be answered meanwhile."""
    def reached(*arguments, **options):
        raise AssertionError("it is read")
    monkeypatch.setattr("gearworks.server.body.from_json", reached)
    assert_error(client.post("/v1/completions", content=body,
                             headers={"content-type": "application/json"}), 413)


def test_a_text_beyond_the_context_is_refused_before_it_is_encoded(client, monkeypatch,
                                                                  tiny_chat):
    def reached(*arguments, **options):
        raise AssertionError("it is encoded")
    monkeypatch.setattr(type(tiny_chat.tokenizer), "encode", reached)
    text = " " * 2**20
    assert_error(client.post("/v1/completions", json={"prompt": text}), 400, "prompt",
                 "context_length_exceeded")
    assert_error(client.post("/v1/chat/completions",
                             json={"messages": [{"role": "user", "content": text}]}),
                 400, "messages", "context_length_exceeded")
    assert_error(client.post("/tokenize", json={"prompt": text}), 400, "prompt")
    monkeypatch.undo()


def schema(**schema) -> dict:
    return {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3,
            "response_format": {"type": "json_schema",
                                "json_schema": {"name": "x", "schema": schema}}}


@pytest.mark.parametrize("body", [
    schema(type="string", pattern="^((a{1,100}){1,100}){1,100}$"),
    schema(type="string", pattern="^(a|b)*a(a|b){60}c(a|b)*$"),
    schema(type="string", pattern="(" * 5000), schema(type="string", pattern="(?=a)b"),
    schema(type="string", minLength=10**6), schema(type="nothing"),
    schema(**{"$ref": "#/$defs/0", "$defs": {
        str(i): {"allOf": [{"$ref": f"#/$defs/{i + 1}"}] * 2} for i in range(40)}
        | {"40": {"type": "string"}}}),
    schema(**{"$ref": "#"}), schema(**{"$ref": "http://127.0.0.1:1/schema"})],
    ids=["nested repetition", "determinism", "parentheses", "look-around", "long", "no type",
         "reference bomb", "itself", "elsewhere"])
def test_a_hostile_schema_ends_nothing(client, body):
    answer = client.post("/v1/chat/completions", json=body)
    if answer.status_code != 200:
        assert_error(answer, 400, "response_format")


def test_while_a_large_schema_is_compiled_others_are_answered(client, alone):
    large = schema(anyOf=[{"type": "object", "properties": {f"key{i}": {
        "type": "integer", "minimum": i}}, "required": [f"key{i}"]} for i in range(1500)])
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(client.post, "/v1/chat/completions", json=large)
        answered = 0
        while not slow.done():
            assert client.post("/v1/completions", json=SHORT).json()[
                "choices"][0]["text"] == alone
            answered += 1
        assert slow.result().status_code == 200 and answered > 2


def test_what_takes_too_long_to_prepare_is_refused(server, client, monkeypatch):
    let_go = threading.Event()
    monkeypatch.setattr(service_module, "PREPARE_SECONDS", 0.05)
    monkeypatch.setattr(server.service.inputs, "requests", lambda asked: let_go.wait(60))
    try:
        assert_error(client.post("/v1/completions", json=SHORT), 400, code="too_complex")
    finally:
        let_go.set()
        monkeypatch.undo()


# --- connections


@pytest.mark.parametrize("head, status", [
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
     + b"".join(b"X-Header-%d: value\r\n" % i for i in range(10_000)) + b"\r\n", 431),
    (b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 431),
    (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 100_000 + b"\r\n\r\n", 431),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a TLS greeting\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
    (b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400),
    (b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n"
     b"Content-Length: 2\r\n\r\n", 400),
    (b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
     b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400)],
    ids=["10,000 headers", "path", "header", "tls", "no host", "two hosts", "negative length",
         "two lengths", "bad chunk"])
def test_what_is_no_http_is_refused_in_the_same_form(server, client, head, status):
    with connect(server) as connection:
        connection.sendall(head)
        found, error = refused(read_all(connection))
    assert found == status
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"


CHUNKED = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
           b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n")


def chunked(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)


def test_a_body_with_two_lengths_is_refused(server, client):
    """Else a proxy that believes the other one lets a client write into the next request."""
    smuggled = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connect(server) as connection:
        connection.sendall(CHUNKED + b"Content-Length: 4\r\n\r\n"
                           + chunked(json.dumps(SHORT).encode()) + smuggled)
        received = read_all(connection)
    assert received.count(b"HTTP/1.1 ") == 1 and b"connection: close" in received.lower()
    status, error = refused(received)
    assert (status, error["code"]) == (400, "ambiguous_length")


@pytest.mark.parametrize("rest, status", [
    (b"5;" + b"a" * 100_000 + b"\r\nabcde\r\n0\r\n\r\n", 431),
    (b"0" * 50 + b"5\r\nabcde\r\n0\r\n\r\n", 400), (b"-5\r\nabcde\r\n", 400),
    (b"5\r\nabcdefghij\r\n0\r\n\r\n", 400),
    (b"".join([b"2\r\n{}\r\n0\r\n", *(b"T%d: x\r\n" % i for i in range(10_000)), b"\r\n"]),
     431)], ids=["extension", "long size", "negative size", "wrong size", "trailers"])
def test_a_body_in_bad_chunks_is_refused(server, client, rest, status):
    with connect(server) as connection:
        connection.sendall(CHUNKED + b"\r\n" + rest)
        found, error = refused(read_all(connection))
    assert found == status and error["type"] == "invalid_request_error"


def test_a_body_in_small_chunks_is_a_body(server, client, alone):
    body = json.dumps(SHORT).encode()
    with connect(server) as connection:
        connection.sendall(CHUNKED + b"Connection: close\r\n\r\n" + b"".join(
            b"1;x=y\r\n%c\r\n" % byte for byte in body) + b"0\r\nTrailer: x\r\n\r\n")
        received = read_all(connection)
    assert json.loads(received.partition(b"\r\n\r\n")[2])["choices"][0]["text"] == alone


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_says_it_is_done_sending_leaks_nothing(server, client, stream):
    """A half-closed connection counts as one whose client has gone."""
    body = json.dumps(LONG | {"stream": stream, "max_tokens": 1900}).encode()
    before = server.engine._steps
    with connect(server) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                           b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
                           % (len(body), body))
        connection.shutdown(socket.SHUT_WR)
        read_all(connection)
    wait_until_free(server)
    assert server.engine._steps < before + 1000                 # of 1,900


def test_requests_in_one_breath_are_answered_in_turn(server, client, alone):
    body = json.dumps(SHORT).encode()
    one = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
           b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
           % (len(body), body))
    last = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with connect(server) as connection:
        connection.sendall(one * 5 + last)
        received = read_all(connection)
    assert received.count(b"HTTP/1.1 200 OK") == 6
    assert received.count(json.dumps(alone, ensure_ascii=False).encode()) == 5
    assert received.endswith(b'{"status":"ok"}')


def drip(connection: socket.socket, data: bytes) -> bytes:
    """Send a byte now and then, until the server has had enough; returns what it says."""
    connection.settimeout(0.05)
    received = b""
    for byte in data:
        try:
            connection.sendall(bytes([byte]))
            piece = connection.recv(65536)
            if not piece:
                return received
            received += piece
        except TimeoutError:
            continue
        except ConnectionError:
            return received
    raise AssertionError("nobody had enough")


def test_a_head_or_a_body_that_trickles_in_is_cut_off(served, tiny_chat, alone):
    with (served(tiny_chat, patience=QUICK) as server, connect(server) as head,
          connect(server) as body, connect(server) as idle):
        body.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                     b"Content-Type: application/json\r\nContent-Length: 10000\r\n\r\n")
        with ThreadPoolExecutor(2) as pool:
            slow = [pool.submit(drip, head, b"GET /health HTTP/1.1\r\nX: " + b"x" * 1000),
                    pool.submit(drip, body, b"x" * 1000)]
            text = httpx.post(f"{server.url}/v1/completions", json=SHORT).json()
            assert text["choices"][0]["text"] == alone
            for each in slow:
                status, error = refused(each.result())
                assert status == 408 and "too long" in error["message"]
        assert read_all(idle) == b""                            # without a word


def test_what_is_slow_in_the_engine_is_not_slow_in_coming(served, tiny_chat, monkeypatch):
    """The limits are for what clients send, not for what they wait for; and a connection that
    is used again starts its clocks anew."""
    with (served(tiny_chat, patience=QUICK) as server,
          httpx.Client(base_url=server.url, timeout=60) as client):
        step = server.engine.step

        def slow_step():
            time.sleep(QUICK.head / 4)
            return step()
        monkeypatch.setattr(server.engine, "step", slow_step)
        for _ in range(2):
            started = time.monotonic()
            assert client.post("/v1/completions", json=LONG | {"max_tokens": 8}).is_success
            assert time.monotonic() > started + QUICK.head      # else this shows nothing
        assert len(server.uvicorn.server_state.connections) == 1


# --- exceptions


@pytest.mark.long
def test_a_soak_leaves_no_block_no_task_and_no_memory(served, tiny_chat, request):
    """Short requests over eight connections, some streamed; every fifth hangs up on the way."""
    count, process = request.config.getoption("--soak"), psutil.Process()
    kinds = [("/v1/completions", {}, False), ("/v1/completions", {"stream": True}, False),
             ("/v1/chat/completions", {"stream": True, "n": 2}, False),
             ("/v1/responses", {"stream": True}, False),
             ("/v1/completions", {"stream": True, "max_tokens": 400}, True)]

    def body(path, number):
        text = f"Number {number % 50}"
        return {"/v1/completions": {"prompt": text, "max_tokens": 4},
                "/v1/chat/completions": {"messages": [{"role": "user", "content": text}],
                                         "max_tokens": 4},
                "/v1/responses": {"input": text, "max_output_tokens": 4}}[path]

    with served(tiny_chat, engine={"num_blocks": 200, "block_size": 16}) as server:
        def some(numbers):
            with httpx.Client(base_url=server.url, timeout=60) as client:
                for number in numbers:
                    path, more, leaves = kinds[number % len(kinds)]
                    with client.stream("POST", path, json=body(path, number) | more) as answer:
                        assert answer.status_code == 200
                        for _ in answer.iter_bytes():
                            if leaves:
                                break

        sizes, tasks = [], []
        with ThreadPoolExecutor(8) as pool:
            for part in np.array_split(np.arange(count), 10):
                list(pool.map(some, [part[at::8].tolist() for at in range(8)]))
                wait_until_free(server)
                gc.collect()
                sizes.append(process.memory_info().rss)
                tasks.append(len(asyncio.all_tasks(server.service.engine._loop)))
    assert max(tasks) <= tasks[0] + 8, tasks        # at most connections that are just closing
    assert sizes[-1] < 1.05 * sizes[3], sizes


def test_an_exception_in_one_request_ends_no_other(server, client, alone, monkeypatch):
    add = server.engine.add_request

    def add_but_fail(request):
        if len(request.prompt_ids) == 1:
            raise RuntimeError("a bug")
        add(request)
    monkeypatch.setattr(server.engine, "add_request", add_but_fail)
    with ThreadPoolExecutor(8) as pool:
        good = [pool.submit(client.post, "/v1/completions", json=SHORT) for _ in range(4)]
        bad = [pool.submit(client.post, "/v1/completions", json=SHORT | {"prompt": [5]})
               for _ in range(4)]
    for each in good:
        assert each.result().json()["choices"][0]["text"] == alone
    for each in bad:
        assert_error(each.result(), 500)
        assert "a bug" not in each.result().text
    # of several prompts, those that were added before are taken back
    assert_error(client.post("/v1/completions", json=LONG | {"prompt": [[5, 6], [5]]}), 500)
    wait_until_free(server)


def test_an_answer_that_fails_ends_alone(server, client, alone, monkeypatch):
    class Broken:
        def allowed(self):
            raise RuntimeError("a bug")
    requests = server.service.inputs.requests

    def with_broken_grammar(asked):
        from dataclasses import replace
        return [replace(each, grammar=Broken) if len(each.prompt_ids) == 1 else each
                for each in requests(asked)]
    monkeypatch.setattr(server.service.inputs, "requests", with_broken_grammar)
    assert_error(client.post("/v1/completions", json=SHORT | {"prompt": [5]}), 500)
    *_, last = stream(client, "/v1/completions", SHORT | {"prompt": [5]})
    assert json.loads(last)["error"]["type"] == "server_error"  # and no [DONE]
    assert client.post("/v1/completions", json=SHORT).json()["choices"][0]["text"] == alone
    monkeypatch.undo()


class Panic(BaseException):
    """What PyO3 makes of a panic in a library written in Rust, such as llguidance."""


@pytest.mark.parametrize("error", [Panic("oh"), SystemExit(3)],
                         ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("where", ["service.validate_request", "generation.completion_chunks",
                                   "generation.completion", "engine_request.SamplingParams",
                                   "async_engine.LLMEngine.add_request"])
def test_what_is_no_exception_ends_its_own_request_only(server, client, alone, monkeypatch,
                                                        where, error):
    def fail(*arguments, **options):
        raise error
    with client.stream("POST", "/v1/chat/completions", json={
            "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 50, "stream": True,
            "ignore_eos": True}) as other:
        lines = other.iter_lines()
        next(lines)
        with monkeypatch.context() as patch:
            patch.setattr(f"gearworks.server.{where}", fail)
            if where == "generation.completion_chunks":
                *_, last = stream(client, "/v1/completions", SHORT)
                assert json.loads(last)["error"]["type"] == "server_error"
            else:
                assert_error(client.post("/v1/completions", json=SHORT), 500)
        assert list(filter(None, lines))[-1] == "data: [DONE]"
    assert client.post("/v1/completions", json=SHORT).json()["choices"][0]["text"] == alone


def test_a_bug_in_a_path_is_an_error_with_an_id_in_the_log(client, server, monkeypatch, caplog):
    monkeypatch.setattr(server.service.metrics, "text", lambda unfinished: 1 / 0)
    answer = client.get("/metrics")
    assert_error(answer, 500)
    assert "ZeroDivisionError" not in answer.text
    assert answer.headers["x-request-id"] in answer.json()["error"]["message"]
    assert any(record.exc_info and answer.headers["x-request-id"] in record.getMessage()
               for record in caplog.records)
    monkeypatch.undo()


@pytest.mark.parametrize("error", [MemoryError("out of memory"), SystemExit("out")],
                         ids=lambda error: type(error).__name__)
def test_when_the_engine_fails_everybody_is_told_at_once(served, tiny_chat, error):
    with (served(tiny_chat, engine={"max_num_seqs": 2}) as server,
          httpx.Client(base_url=server.url, timeout=60) as client,
          ThreadPoolExecutor(3) as pool):
        whole = [pool.submit(client.post, "/v1/completions", json=LONG) for _ in range(2)]
        streamed = pool.submit(stream, client, "/v1/completions", LONG)     # one of them waits
        while server.service.engine.unfinished < 3 or server.engine._steps < 5:
            time.sleep(0.001)

        def fail(*arguments, **options):
            raise error
        server.engine.forward = fail
        for each in whole:
            assert_error(each.result(), 500, code="engine_failed")
            assert f"{type(error).__name__}: {error}" in each.result().text
        assert json.loads(streamed.result()[-1])["error"]["code"] == "engine_failed"
        assert_error(client.get("/health"), 503, code="engine_failed")
        assert_error(client.post("/v1/completions", json=SHORT), 500, code="engine_failed")
        assert client.get("/v1/models").is_success
        assert server.service.places.taken == server.service.engine.unfinished == 0


# --- the end


def test_at_the_end_running_answers_are_finished(served, tiny_chat):
    with served(tiny_chat, grace=60) as server, httpx.Client(timeout=60) as client:
        with client.stream("POST", f"{server.url}/v1/completions",
                           json=LONG | {"stream": True}) as answer:
            lines = answer.iter_lines()
            next(lines)
            server.uvicorn.should_exit = True
            while not server.service.draining:
                time.sleep(0.01)
            lines = list(lines)
        assert lines[-2] == "data: [DONE]"
        server.thread.join(60)
        with pytest.raises(httpx.ConnectError):
            client.get(f"{server.url}/health")


def test_after_the_grace_answers_are_cancelled_and_told(served, tiny_chat, capsys):
    endless = LONG | {"max_tokens": 1900}
    with (served(tiny_chat, grace=0.2) as server,
          httpx.Client(base_url=server.url, timeout=60) as client,
          ThreadPoolExecutor(1) as pool,
          client.stream("POST", "/v1/completions", json=endless | {"stream": True}) as begun):
        assert begun.status_code == 200
        whole = pool.submit(client.post, "/v1/completions", json=endless)
        while server.service.engine.unfinished < 2:
            time.sleep(0.001)
        server.uvicorn.should_exit = True
        assert_error(whole.result(), 503, code="shutting_down")
        assert json.loads(events(begun)[-1])["error"]["code"] == "shutting_down"
        server.thread.join(60)
        assert not server.engine.has_unfinished()
    said = capsys.readouterr().err
    assert "2 unfinished answers" in said and "2 answers were cancelled" in said


COMMAND = [sys.executable, "-m", "gearworks", "serve"]


@pytest.fixture
def command(tiny_folder):
    """Starts `gearworks serve` on the tiny model; yields a function that returns the process
    and its address."""
    started = []

    def start(*options):
        process = subprocess.Popen([*COMMAND, str(tiny_folder), "--port", "0", *options],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   encoding="utf-8")
        started.append(process)
        line = process.stdout.readline()
        assert line.startswith("Gearworks serves ") and " at http://127.0.0.1:" in line, line
        return process, line.split()[-1]
    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_the_command_serves_and_ends(command, tiny_folder):
    process, url = command("--served-model-name", "one", "two", "--max-model-len", "100",
                           "--api-key", "k", "--max-num-seqs", "3", "--block-size", "8",
                           "--num-blocks", "30", "--no-prefix-caching",
                           "--speculative-tokens", "2", "--max-num-batched-tokens", "16")
    with httpx.Client(base_url=url, headers={"authorization": "Bearer k"}) as client:
        assert [model["id"] for model in client.get("/v1/models").json()["data"]] == [
            "one", "two"]
        assert client.get("/v1/models/one").json()["max_model_len"] == 100
        answer = client.post("/v1/completions", json=SHORT | {"model": "two", "user": "me"})
        assert answer.is_success and answer.json()["model"] == "two"
        assert_error(client.post("/v1/completions", json=SHORT | {"n": 4}), 400, "n")
        assert_error(client.get("/v1/models", headers={"authorization": ""}), 401)
    process.terminate()
    output, error = process.communicate(timeout=60)
    if os.name == "posix":
        assert process.returncode == 0
        assert "ignored parameters: user" in error and "gearworks: stopped" in error
    assert output == "" and "Traceback" not in error


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
@pytest.mark.parametrize("first, second, code", [
    (signal.SIGTERM, signal.SIGTERM, 128 + signal.SIGTERM),
    (signal.SIGINT, signal.SIGINT, 130), (signal.SIGTERM, signal.SIGINT, 130)])
def test_a_second_signal_ends_the_command_at_once(command, first, second, code):
    process, url = command("--grace", "600")
    with httpx.Client(base_url=url, timeout=60) as client, client.stream(
            "POST", "/v1/completions", json=LONG | {"max_tokens": 1900, "n": 20, "stream": True,
                                                    "temperature": 1}) as answer:
        lines = answer.iter_lines()
        next(lines)
        process.send_signal(first)
        for line in process.stderr:
            if "unfinished answers may take" in line:
                break
        process.send_signal(second)
        assert process.wait(60) == code


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
def test_ctrl_c_ends_an_idle_command(command, monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, "sesame")              # where no `ps` shows it
    process, url = command()
    assert_error(httpx.get(f"{url}/v1/models"), 401)
    assert httpx.get(f"{url}/v1/models",
                     headers={"authorization": "Bearer sesame"}).is_success
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    assert process.stderr.read() == "gearworks: stopped\n"


@pytest.mark.parametrize("options, code, says", [
    (["--port", "-1"], 2, "--port"), (["--port", "65536"], 2, "65535"),
    (["--port", "http"], 2, "--port"), (["--host", ""], 2, "--host"),
    (["--host", "http://localhost"], 2, "no address"),
    (["--host", "198.51.100.7"], 1, "cannot listen"),
    (["--host", "no-such-host.invalid"], 1, "cannot listen"),
    (["--api-key", ""], 2, "--api-key"), (["--api-key", "ü"], 2, "--api-key"),
    (["--max-num-seqs", "0"], 2, "--max-num-seqs"), (["--block-size", "0"], 2, "--block-size"),
    (["--num-blocks", "0"], 2, "--num-blocks"), (["--max-queue", "-1"], 2, "--max-queue"),
    (["--max-model-len", "0"], 2, "--max-model-len"),
    (["--max-model-len", "2049"], 1, "2048 tokens"),
    (["--max-num-batched-tokens", "8"], 2, "--max-num-seqs 64"),
    (["--num-blocks", "2", "--block-size", "16", "--max-model-len", "100"], 2, "32 tokens"),
    (["--grace", "-1"], 2, "--grace"), (["--grace", "nan"], 2, "--grace"),
    (["--speculative-tokens", "-1"], 2, "--speculative-tokens"),
    (["--allow-origin", "localhost:3000"], 2, "no origin"),
    (["--allow-origin", "http://a.example/path"], 2, "no origin"),
    (["--served-model-name", ""], 2, "--served-model-name"),
    (["--engine", "no-such-folder"], 1, "no engine")])
def test_what_cannot_work_is_refused_before_weights_are_read(tiny_folder, options, code, says,
                                                             capsys, monkeypatch):
    from gearworks.cli import commands
    from gearworks.language_model import LanguageModel

    def reached(*_, **__):
        raise AssertionError("the model is loaded before the command is refused")
    monkeypatch.setattr(LanguageModel, "load", reached)
    assert commands.main(["serve", str(tiny_folder), "--port", "0", *options]) == code
    output, error = capsys.readouterr()
    assert output == "" and says in error and "Traceback" not in error
    assert [line[:7] for line in error.splitlines()[1:3]] == ["  Why  ", "  Try  "]


def test_a_key_in_the_environment_is_checked_too(tiny_folder, monkeypatch, capsys):
    from gearworks.cli import commands
    monkeypatch.setenv(KEY_VARIABLE, "two words")
    assert commands.main(["serve", str(tiny_folder), "--port", "0"]) == 2
    error = capsys.readouterr().err
    assert KEY_VARIABLE in error and "two words" not in error


def test_a_port_that_is_taken_is_refused(tiny_folder, capsys):
    from gearworks.cli import commands
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert commands.main(["serve", str(tiny_folder), "--port", str(port)]) == 1
    assert f"port {port}" in capsys.readouterr().err
