"""The chat page in real Chromium, against a server that says what a test tells it to say.

The fixture `browser` (conftest.py at the root) says what the tests need. About 60 s.
"""

import asyncio
import json
import math
import queue
import threading
from pathlib import Path

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import FileResponse, JSONResponse, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from gearworks import server

PAGE = Path(server.__path__[0]) / "page"
END = object()                       # of an answer, as it should be
CUT = object()                       # the connection ends


class Script:
    """A server that streams what a test puts in, at the moment when it does.

    asked: the bodies of the chat requests. refusals: responses that come first. key: what must
    be sent. open_feeds: how many pages listen to the engine.
    """

    def __init__(self):
        self.pieces, self.steps = queue.Queue(), queue.Queue()
        self.asked, self.refusals, self.key = [], [], None
        self.open_feeds = self.feeds = self.aborted = 0
        self.app = Starlette(routes=[
            Route("/", lambda request: FileResponse(PAGE / "index.html")),
            Mount("/page", StaticFiles(directory=PAGE)),
            Route("/v1/models", self.models),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/inside", self.inside)])

    def models(self, request):
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return refusal(401, "Incorrect API key provided")
        return JSONResponse({"object": "list", "data": [{"id": "smollm2", "object": "model"}]})

    async def chat(self, request):
        self.asked.append(await request.json())
        if self.refusals:
            return self.refusals.pop(0)
        return StreamingResponse(self.chunks(request, f"chatcmpl-{len(self.asked)}"),
                                 media_type="text/event-stream")

    async def chunks(self, request, name):
        def event(delta, logprobs=None, finish=None):
            choice = {"index": 0, "delta": delta, "logprobs": logprobs,
                      "finish_reason": finish}
            return data({"id": name, "object": "chat.completion.chunk", "choices": [choice]})

        yield event({"role": "assistant", "content": ""})
        count = 0
        while True:
            piece = await self.next(self.pieces, request)
            if piece is None:
                self.aborted += 1
                return
            if piece is CUT:
                return
            if piece is END or piece == "length":
                yield event({}, finish="stop" if piece is END else "length")
                details = {"cached_tokens": 32}
                yield data({"id": name, "choices": [],
                            "usage": {"prompt_tokens": 40, "completion_tokens": count,
                                      "prompt_tokens_details": details}})
                yield "data: [DONE]\n\n"
                return
            if "error" in piece:
                yield data(piece)
                return
            count += len(piece["tokens"])
            yield event({"content": piece["text"]}, {"content": piece["tokens"]})

    async def inside(self, request):
        async def events():
            self.open_feeds += 1
            self.feeds += 1
            try:
                yield ": hello\n\n"
                while (step := await self.next(self.steps, request)) not in (None, CUT):
                    yield data(step)
            finally:
                self.open_feeds -= 1
        return StreamingResponse(events(), media_type="text/event-stream")

    @staticmethod
    async def next(pieces, request):
        while True:
            try:
                return pieces.get_nowait()
            except queue.Empty:
                if await request.is_disconnected():
                    return None
                await asyncio.sleep(0.005)

    def say(self, *texts, tokens=None):
        """Stream these texts, each as one token where `tokens` are not given."""
        for text in texts:
            self.pieces.put({"text": text, "tokens": tokens or [token(text)]})

    def answer(self, *texts):
        self.say(*texts)
        self.pieces.put(END)


def data(value) -> str:
    return f"data: {json.dumps(value)}\n\n"


def token(text, share=0.75, others=(), raw=None):
    """A token of the API, with alternatives as pairs of a text and a probability."""
    entry = {"token": text, "logprob": math.log(share),
             "bytes": list(text.encode() if raw is None else raw)}
    return {**entry, "top_logprobs": [entry, *(
        {"token": other, "logprob": math.log(p), "bytes": list(other.encode())}
        for other, p in others)]}


def refusal(status, message, param=None, code=None, **headers):
    return JSONResponse({"error": {"message": message, "type": "invalid_request_error",
                                   "param": param, "code": code}}, status, headers)


def row(name, start, count, blocks, prompt=False, guesses=0):
    return {"name": name, "start": start, "count": count, "guesses": guesses,
            "prompt": prompt, "blocks": list(blocks)}


def step(number, rows, **more):
    return {"number": number, "seconds": 0.02, "model_seconds": 0.018, "rows": rows,
            "admitted": [], "preempted": [], "finished": [], "waiting": 0, "blocks_used": 4,
            "blocks_kept": 2, "blocks_empty": 10, "generated": len(rows), **more}


@pytest.fixture
def script():
    """A running Script; `script.url` is its address."""
    script = Script()
    running = uvicorn.Server(uvicorn.Config(script.app, port=0, log_level="warning",
                                            timeout_graceful_shutdown=1))
    thread = threading.Thread(target=running.run)
    thread.start()
    while not running.started:
        assert thread.is_alive()
    script.url = f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}/"
    yield script
    running.should_exit = True
    thread.join()


@pytest.fixture
def visit(browser, script):
    """A function that opens the page. At the end, no page has said anything on its console,
    asked anybody else, opened a dialog or a window."""
    pages, said = [], []

    def open_page(width=1280, height=800, quiet=True, **settings):
        page = browser.new_context(viewport={"width": width, "height": height},
                                   **settings).new_page()
        page.set_default_timeout(10_000)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(f"dialog {dialog.message}"))
        page.on("popup", lambda other: said.append(f"window {other.url}"))
        page.on("request", lambda request: request.url.startswith(script.url)
                or said.append(f"fetched {request.url}"))
        if quiet:                    # Chromium itself reports responses like 401 there
            page.on("console", lambda message: said.append(message.text))
        page.goto(script.url)
        page.get_by_text("smollm2" if not script.key else "API key").first.wait_for()
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        page.context.close()
    assert said == []
