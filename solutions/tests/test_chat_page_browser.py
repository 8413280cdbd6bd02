"""The chat page in real Chromium, against a server that says what a test tells it to say.

The fixture `browser` (conftest.py at the root) says what the tests need. About 90 s.
"""

import asyncio
import json
import math
import queue
import random
import subprocess
import sys
import threading
import urllib.request
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
        self.asked, self.refusals, self.key, self.model = [], [], None, "smollm2"
        self.open_feeds = self.feeds = self.aborted = 0      # aborted: answers broken off
        self.app = Starlette(routes=[
            Route("/", lambda request: FileResponse(PAGE / "index.html")),
            Mount("/page", StaticFiles(directory=PAGE)),
            Route("/v1/models", self.models),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/inside", self.inside)])

    def models(self, request):
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return refusal(401, "Incorrect API key provided")
        return JSONResponse({"object": "list", "data": [{"id": self.model}]})

    async def chat(self, request):
        self.asked.append(await request.json())
        if self.refusals:
            return self.refusals.pop(0)
        number = len(self.asked)
        return StreamingResponse(self.chunks(f"chatcmpl-{number}"),
                                 media_type="text/event-stream",
                                 headers={"X-Request-Id": f"mine{number}"})

    async def chunks(self, name):
        """An answer; one that the page breaks off is counted."""
        ended = False
        try:
            async for chunk in self.answer_so_far(name):
                yield chunk
            ended = True
        finally:
            self.aborted += not ended

    async def answer_so_far(self, name):
        def event(delta, logprobs=None, finish=None):
            choice = {"index": 0, "delta": delta, "logprobs": logprobs,
                      "finish_reason": finish}
            return data({"id": name, "object": "chat.completion.chunk", "choices": [choice]})

        yield event({"role": "assistant", "content": ""})
        count = 0
        while True:
            piece = await self.next(self.pieces)
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
                while (step := await self.next(self.steps)) is not CUT:
                    yield data(step)
            finally:
                self.open_feeds -= 1
        return StreamingResponse(events(), media_type="text/event-stream")

    @staticmethod
    async def next(pieces):
        while True:
            try:
                return pieces.get_nowait()
            except queue.Empty:
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

    def open_page(width=1280, height=800, quiet=True, url=script.url, **settings):
        page = browser.new_context(viewport={"width": width, "height": height},
                                   **settings).new_page()
        page.set_default_timeout(10_000)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(f"dialog {dialog.message}"))
        page.on("popup", lambda other: said.append(f"window {other.url}"))
        page.on("request", lambda request: request.url.startswith(url)
                or said.append(f"fetched {request.url}"))
        if quiet:                    # Chromium itself reports responses like 401 there
            page.on("console", lambda message: said.append(message.text))
        page.goto(url)
        page.get_by_text("smollm2" if not script.key else "API key").first.wait_for()
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        page.context.close()
    assert said == []


def ask(page, text="Hello"):
    page.get_by_label("Your message").fill(text)
    page.keyboard.press("Enter")


def replies(page):
    return page.locator(".reply .markdown")


def settled(page, n=0):
    """The n-th reply when it has ended."""
    page.locator(".reply").nth(n).locator(".actions").wait_for(timeout=120_000)
    return replies(page).nth(n)


def answered(page, script, *texts, question="Hello"):
    """A new reply with these texts, when it has ended."""
    n = replies(page).count()
    script.answer(*texts)
    ask(page, question)
    return settled(page, n)


def until(page, condition):
    """Wait for something outside of the page."""
    for _ in range(400):
        if condition():
            return
        page.wait_for_timeout(25)
    raise AssertionError("it does not come")


# --- the conversation


def test_an_answer_streams_and_is_kept_for_the_next_question(visit, script):
    page = visit()
    ask(page, "  Say it  ")
    script.say("One", " two")
    replies(page).get_by_text("One two", exact=True).wait_for()
    assert page.get_by_role("button", name="Stop").is_visible()
    script.answer(" three")
    assert settled(page).inner_text() == "One two three"
    answered(page, script, "four", question="And then?")
    first, second = script.asked
    assert first["messages"] == [{"role": "user", "content": "Say it"}]
    assert second["messages"] == [
        {"role": "user", "content": "Say it"},
        {"role": "assistant", "content": "One two three"},
        {"role": "user", "content": "And then?"}]
    assert {name: first[name] for name in ("model", "stream", "logprobs", "top_logprobs",
                                           "stream_options")} == {
        "model": "smollm2", "stream": True, "logprobs": True, "top_logprobs": 5,
        "stream_options": {"include_usage": True}}
    assert not {"temperature", "seed", "max_completion_tokens"} & set(first)
    summary = page.locator(".summary").first.inner_text()
    assert summary.startswith("3 tokens · ") and "32 of 40 prompt tokens" in summary


def test_keys_send_break_and_stop(visit, script):
    page = visit()
    field = page.get_by_label("Your message")
    field.press("Enter")                                     # nothing to send
    field.press_sequentially("a")
    field.press("Shift+Enter")
    field.press_sequentially("b")
    assert field.input_value() == "a\nb" and not script.asked
    field.press("Enter")
    script.say("It goes")
    replies(page).get_by_text("It goes").wait_for()
    assert field.input_value() == "" and script.asked[0]["messages"][0]["content"] == "a\nb"
    field.press_sequentially("next")
    field.press("Enter")                                     # not while an answer is coming
    assert len(script.asked) == 1 and field.input_value() == "next"
    page.keyboard.press("Escape")
    assert settled(page).inner_text() == "It goes"
    assert "stopped by you" in page.locator(".summary").inner_text()
    until(page, lambda: script.aborted == 1)
    assert field.evaluate("(one) => one === document.activeElement")
    assert page.get_by_role("status").inner_text() == "Stopped."


def test_the_button_stops_and_what_came_is_kept(visit, script):
    page = visit()
    ask(page)
    script.say("Half")
    replies(page).get_by_text("Half").wait_for()
    page.get_by_role("button", name="Stop").click()
    settled(page)
    answered(page, script, "whole", question="Go on")
    assert script.asked[1]["messages"][1] == {"role": "assistant", "content": "Half"}


def test_regenerate_asks_the_same_again(visit, script):
    page = visit()
    answered(page, script, "first")
    script.answer("second")
    page.get_by_role("button", name="Regenerate").click()
    replies(page).get_by_text("second").wait_for()
    settled(page)
    assert replies(page).count() == 1
    assert script.asked[0]["messages"] == script.asked[1]["messages"]
    answered(page, script, "third", question="And?")
    assert page.get_by_role("button", name="Regenerate").count() == 1   # of the last one


def test_an_edited_message_continues_from_there(visit, script):
    page = visit()
    answered(page, script, "A1", question="Q1")
    answered(page, script, "A2", question="Q2")
    answered(page, script, "A3", question="Q3")
    page.get_by_role("button", name="Edit").nth(1).click()
    box = page.locator(".rewrite")
    assert box.input_value() == "Q2"
    box.press("Escape")                                      # everything is as it was
    assert replies(page).count() == 3 and page.locator(".rewrite").count() == 0
    page.get_by_role("button", name="Edit").nth(1).click()
    script.answer("A2 anew")
    page.locator(".rewrite").fill("Q2 edited")
    page.locator(".rewrite").press("Enter")
    replies(page).get_by_text("A2 anew").wait_for()
    settled(page, 1)
    assert replies(page).all_inner_texts() == ["A1", "A2 anew"]
    assert page.locator(".said").all_inner_texts() == ["Q1", "Q2 edited"]
    assert script.asked[-1]["messages"] == [
        {"role": "user", "content": "Q1"}, {"role": "assistant", "content": "A1"},
        {"role": "user", "content": "Q2 edited"}]


def test_another_answer_while_one_is_coming_takes_its_place(visit, script):
    page = visit()
    ask(page, "slow")
    script.say("never")
    replies(page).get_by_text("never").wait_for()
    page.get_by_role("button", name="Edit").click()
    page.locator(".rewrite").fill("quick")
    page.locator(".rewrite").press("Enter")
    until(page, lambda: script.aborted == 1)
    script.answer("instead")
    replies(page).get_by_text("instead").wait_for()
    settled(page)
    assert replies(page).all_inner_texts() == ["instead"]
    assert page.get_by_role("button", name="Send").is_visible()


def test_a_new_conversation_forgets(visit, script):
    page = visit()
    answered(page, script, "old")
    page.get_by_role("button", name="New").click()
    assert page.locator(".turn").count() == 0
    assert page.get_by_role("heading", name="Ask something").is_visible()
    answered(page, script, "new", question="Again")
    assert script.asked[-1]["messages"] == [{"role": "user", "content": "Again"}]


def test_copies_the_source_and_the_code(visit, script):
    page = visit()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    text = "Look, **bold**:\n\n```py\nx = 1\n\ty\n```\n"
    answered(page, script, text)
    page.locator(".reply").get_by_role("button", name="Copy", exact=True).click()
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == text
    page.get_by_role("button", name="Copy code").click()
    page.get_by_role("button", name="Copied").nth(1).wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == "x = 1\n\ty"


def test_parameters_are_sent_checked_and_remembered(visit, script):
    page = visit()
    page.get_by_role("button", name="Settings").click()
    for label, value in (("Temperature", "0.33"), ("Top p", "0.9"), ("Top k", "40"),
                         ("Min p", "0.05"), ("Repetition penalty", "1.1"),
                         ("Most tokens", "77"), ("Seed", "7"), ("System text", "Be brief.")):
        page.get_by_role("dialog").get_by_label(label).fill(value)
    page.get_by_label("Top k").fill("-3")                    # not taken
    assert page.get_by_label("Top k").get_attribute("aria-invalid") == "true"
    assert page.locator("#top_k-wrong").inner_text() != ""
    page.keyboard.press("Escape")
    for _ in range(2):
        answered(page, script, "yes")
        assert script.asked[-1]["messages"][0] == {"role": "system", "content": "Be brief."}
        sent = {name: script.asked[-1].get(name) for name in (
            "temperature", "top_p", "top_k", "min_p", "repetition_penalty",
            "max_completion_tokens", "seed")}
        assert sent == {"temperature": 0.33, "top_p": 0.9, "top_k": 40, "min_p": 0.05,
                        "repetition_penalty": 1.1, "max_completion_tokens": 77, "seed": 7}
        page.reload()
    page.get_by_role("button", name="Settings").click()
    assert page.get_by_label("Temperature").input_value() == "0.33"
    page.get_by_role("button", name="Server’s own values").click()
    page.get_by_role("button", name="Done").click()
    answered(page, script, "yes")
    assert "temperature" not in script.asked[-1] and script.asked[-1]["messages"][0][
        "role"] == "system"


def test_works_where_nothing_may_be_stored(visit, script, browser):
    page = visit()
    page.add_init_script("""for (const area of ["localStorage", "sessionStorage"])
        Object.defineProperty(window, area, { get() { throw new Error("forbidden"); } });""")
    page.reload()
    assert answered(page, script, "Still here").inner_text() == "Still here"
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Seed").fill("3")
    page.keyboard.press("Escape")
    answered(page, script, "yes")
    assert script.asked[-1]["seed"] == 3


# --- when something goes wrong


@pytest.mark.parametrize("response, what, advice", [
    (refusal(400, "temperature must be at most 2", "temperature"),
     "The server refused this. temperature must be at most 2.", "Change “temperature”"),
    (refusal(400, "The prompt is longer than the context", "messages",
             "context_length_exceeded"), "The prompt is longer", "Begin a new conversation"),
    (refusal(429, "64 requests wait", **{"Retry-After": "7"}), "as much to do as it takes",
     "Try again in 7 s."),
    (refusal(500, "The engine has stopped"), "The server failed. The engine has stopped.",
     "Its terminal says more."),
    (JSONResponse("what", 502), "It answered with status 502.", "Its terminal"),
])
def test_errors_say_what_to_try_and_trying_helps(visit, script, response, what, advice):
    page = visit(quiet=False)
    script.refusals.append(response)
    ask(page)
    notice = page.get_by_role("alert")
    notice.wait_for()
    assert what in notice.inner_text() and advice in notice.inner_text()
    script.answer("Better")
    page.get_by_role("button", name="Try again").click()
    replies(page).get_by_text("Better").wait_for()
    assert page.get_by_role("alert").count() == 0


def test_a_lost_connection_keeps_what_came(visit, script):
    page = visit()
    ask(page, "Q")
    script.say("Half of")
    script.pieces.put(CUT)
    page.get_by_role("alert").wait_for()
    assert "connection was lost" in page.get_by_role("alert").inner_text()
    assert settled(page).inner_text() == "Half of"
    ask(page, "Q2")
    script.say("More")
    script.pieces.put({"error": {"message": "out of memory", "type": "server_error"}})
    page.get_by_text("The server failed. out of memory.").wait_for()
    assert replies(page).all_inner_texts() == ["Half of", "More"]
    assert script.asked[1]["messages"][1]["content"] == "Half of"


def test_a_question_without_an_answer_is_not_sent_again(visit, script):
    page = visit(quiet=False)
    script.refusals.append(refusal(500, "no"))
    ask(page, "lost")
    page.get_by_role("alert").wait_for()
    answered(page, script, "yes", question="found")
    assert script.asked[-1]["messages"] == [{"role": "user", "content": "found"}]


def test_asks_for_a_key_and_sends_it(visit, script):
    script.key = "sesame"
    page = visit(quiet=False)
    page.get_by_role("alert").get_by_label("API key").fill("wrong")
    page.get_by_role("button", name="Use this key").click()
    page.get_by_role("alert").get_by_label("API key").fill("sesame")
    page.get_by_role("button", name="Use this key").click()
    page.get_by_text("smollm2").wait_for()
    assert page.get_by_role("alert").count() == 0
    assert answered(page, script, "open").inner_text() == "open"


def test_another_model_after_a_failure_is_found(visit, script):
    page = visit(quiet=False)
    script.refusals.append(refusal(404, "There is no model of this name.", "model"))
    script.model = "another"
    ask(page)
    page.get_by_role("alert").wait_for()
    script.answer("Here")
    page.get_by_role("button", name="Try again").click()
    replies(page).get_by_text("Here").wait_for()
    assert [body["model"] for body in script.asked] == ["smollm2", "another"]
    assert page.locator("#model").inner_text() == "another"


def test_an_unreachable_server_is_said_so(visit, script):
    page = visit(quiet=False)
    page.route("**/v1/chat/completions", lambda route: route.abort())
    ask(page)
    page.get_by_text("The server cannot be reached.").wait_for()
    page.unroute("**/v1/chat/completions")
    script.answer("Back")
    page.get_by_role("button", name="Try again").click()
    replies(page).get_by_text("Back").wait_for()


# --- Markdown


RICH = """# Title

Some **bold**, *italic*, `code` and [a link](https://example.org/a_(b)?x=1 "t").
A second line with snake_case_name and 2 * 3 * 4.

- one
- two
  continued

  1. nested
  2. deeper `x`
- three

3. third
4. fourth

> quoted **text**
> > inner

| left | right | mid |
|:-----|------:|:---:|
| a \\| b | `c` | d |
| e |

---

```python
if a < b and c > d:
\tprint("<b>")
```

Done: https://example.org/x, and <https://example.org/y>.
"""


def test_markdown_becomes_what_it_says(visit, script):
    page = visit()
    reply = answered(page, script, RICH)
    found = reply.evaluate("""(root) => {
        const all = (query) => [...root.querySelectorAll(query)].map((one) => one.textContent);
        return { titles: all("h3"), bold: all("strong"), italic: all("em"),
                 links: [...root.querySelectorAll("a")].map(
                     (a) => [a.textContent, a.href, a.rel]),
                 items: [...root.querySelectorAll("ul > li")].length,
                 nested: all("ul ol > li"), start: root.querySelector(":scope > ol").start,
                 inner: all("blockquote blockquote"), head: all("th"), cells: all("td"),
                 sides: [...root.querySelectorAll("th")].map(
                     (one) => getComputedStyle(one).textAlign),
                 rules: all("hr").length, code: all("pre"), breaks: all(":scope > p")[0] };
    }""")
    assert found == {
        "titles": ["Title"], "bold": ["bold", "text"], "italic": ["italic"],
        "links": [["a link", "https://example.org/a_(b)?x=1", "noopener noreferrer"],
                  ["https://example.org/x", "https://example.org/x", "noopener noreferrer"],
                  ["https://example.org/y", "https://example.org/y", "noopener noreferrer"]],
        "items": 3, "nested": ["nested", "deeper x"], "start": 3, "inner": ["inner"],
        "head": ["left", "right", "mid"], "cells": ["a | b", "c", "d", "e", "", ""],
        "sides": ["start", "end", "center"], "rules": 1,
        "code": ['if a < b and c > d:\n\tprint("<b>")'],
        "breaks": "Some bold, italic, code and a link.\nA second line with snake_case_name "
                  "and 2 * 3 * 4."}


def test_html_and_bad_links_are_text(visit, script):
    page = visit()
    hostile = """<img src=x onerror="alert(1)"> <script>alert(2)</script><b>no</b>

[a](javascript:alert(3)) [b](data:text/html,<script>alert(4)</script>) [c](/page/page.css)
[d](  JaVaScRiPt:alert(5)) [e](java&#x0a;script:alert(6)) ![f](javascript:alert(7))
![g](https://example.org/track.png) <javascript:alert(8)> [h](https://a"onclick="alert(9))

| <img src=x onerror=alert(10)> |
|---|
| <svg onload=alert(11)> |

```<script>alert(12)</script>
</code></pre><script>alert(13)</script>
```
# <iframe src="javascript:alert(14)">
"""
    reply = answered(page, script, hostile)
    tags = reply.evaluate("(root) => [...new Set([...root.querySelectorAll('*')]"
                          ".map((one) => one.localName))].sort()")
    assert set(tags) <= {"p", "a", "div", "table", "thead", "tbody", "tr", "th", "td", "pre",
                         "code", "span", "button", "h3"}
    targets = reply.evaluate("(root) => [...root.querySelectorAll('a')].map((a) => a.href)")
    assert all(target.startswith("https://") for target in targets)
    assert "https://example.org/track.png" in targets
    attributes = reply.evaluate("(root) => [...root.querySelectorAll('*')].flatMap((one) => "
                                "one.getAttributeNames())")
    assert not [name for name in attributes if name.startswith("on") or name == "style"]
    text = reply.inner_text()
    assert '<img src=x onerror="alert(1)">' in text and "[a](javascript:alert(3))" in text
    page.wait_for_timeout(100)                               # nothing has run: `visit` checks


def test_streamed_in_pieces_it_is_what_it_is_at_once(visit):
    """However a text is cut, and whatever was closed on the way, the end is the same."""
    page, draw = visit(), random.Random(0)
    lines = (RICH + AWKWARD).split("\n")
    texts = [RICH + AWKWARD, *("\n".join(draw.choices(lines, k=draw.randint(1, 12)))
                              for _ in range(400))]
    cuts = [list(range(1, len(text))) if n % 2 else
            sorted(draw.randint(0, len(text)) for _ in range(20))
            for n, text in enumerate(texts)]
    different = page.evaluate("""async ([texts, cuts]) => {
        const { MarkdownView } = await import("/page/markdown.js");
        return texts.filter((text, n) => {
            const whole = document.createElement("div");
            const grown = document.createElement("div");
            new MarkdownView(whole).update(text, false);
            const view = new MarkdownView(grown);
            for (const end of cuts[n]) view.update(text.slice(0, end), true);
            view.update(text, false);
            return whole.innerHTML !== grown.innerHTML;
        });
    }""", [texts, cuts])
    assert different == []


AWKWARD = """
para
| a | b |
|--x|---|
not a table
| a | b |
|---|---|
| 1 | 2 |
after
-
- - -
* x

  y
* ***both*** **a *b** c* __d__ ~~~
~~~
fence ``` inside
~~~
``one ` two`` ` **[never closed](https://exam
####### seven
#no heading
1986. A year
[x][y] [](https://example.org) [[a](https://example.org)](https://example.org/b)
\\*not\\* \\( kept \\)
"""


def test_half_written_marks_look_sane(visit, script):
    page = visit()
    shown = page.evaluate("""async (texts) => {
        const { MarkdownView } = await import("/page/markdown.js");
        return texts.map((text) => {
            const element = document.createElement("div");
            new MarkdownView(element).update(text, true);
            const first = element.querySelector("strong, em, code, table, pre, li");
            return [element.textContent, first?.localName ?? ""];
        });
    }""", ["a **bo", "a **", "a *it", "see `co", "see [the pa", "see [the paper](https://ex",
           "| a | b", "| a | b |\n|--", "- one\n- ", "- one\n2", "42", "```", "```py\nx = ",
           "x\n#", "x\n##"])
    assert shown == [["a bo", "strong"], ["a ", ""], ["a it", "em"], ["see co", "code"],
                     ["see the pa", ""], ["see the paper", ""], ["ab", "table"],
                     ["ab", "table"], ["one", "li"], ["one", "li"], ["42", ""],
                     ["textCopy code", "pre"], ["pyCopy codex = ", "pre"], ["x", ""], ["x", ""]]


def test_what_is_closed_is_not_drawn_again(visit, script):
    page = visit()
    ask(page)
    script.say("First **paragraph**.\n\nSecond.\n\nThird, which")
    page.get_by_text("Third, which").wait_for()
    page.evaluate("""() => {
        window.kept = [...document.querySelectorAll(".markdown > p")];
        window.seen = 0;
        new MutationObserver((all) => { window.seen += all.length; })
            .observe(kept[0], { subtree: true, childList: true, characterData: true });
    }""")
    script.answer(" goes on", " and on.\n\n", "- a\n- b\n\nFourth")
    settled(page)
    assert page.evaluate("[...document.querySelectorAll('.markdown > p')].slice(0, 3)"
                         ".every((one, i) => one === window.kept[i]) && window.seen === 0")


HOSTILE = {
    "no space": "x" * 100_000, "spaces": "a" + " " * 100_000 + "b", "stars": "*a " * 30_000,
    "closers": "*a " * 15_000 + "b_ " * 15_000, "nested": "*a " * 9_000 + "b* " * 9_000,
    "both marks": "*a _b " * 15_000, "links": "[a](" * 25_000,
    "brackets": "[" * 30_000 + "a_ " * 30_000, "targets": "](" * 50_000,
    "ticks": "".join("`" * n + " " for n in range(1, 400)),
    "quotes": ">" * 20_000 + "x",
    "nested lists": "\n".join("  " * n + "- x" for n in range(300)),
    "items": "\n".join(f"{n}. item **{n}**" for n in range(1, 501)), "fences": "```\n" * 5_001,
    "pipes": "|" * 50_000 + "\n" + "|-" * 900 + "\n", "dashes": "-" * 50_000 + "x",
    "addresses": "http://" * 14_000, "rule": "- " * 50_000 + "x",
    "heading": "# " + "#" * 50_000,
    "table": "| a | b |\n|---|---|\n" + "| x | **y** |\n" * 1_000}


def test_hostile_texts_are_drawn_without_delay(visit, script):
    """Each in 50 pieces; a quadratic step in one of them would take minutes."""
    page = visit(width=390)
    for name, text in HOSTILE.items():
        size = math.ceil(len(text) / 50)
        answered(page, script, *(text[at:at + size] for at in range(0, len(text), size)))
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        assert page.evaluate("document.getElementById('scroller').scrollWidth") <= 390, name
        if name == "items":
            assert page.locator(".markdown > ol > li").count() == 500
        page.get_by_role("button", name="New").click()


def test_other_scripts_run_their_own_way(visit, script):
    page = visit()
    reply = answered(page, script, "مرحبا بالعالم\n\n- שלום\n\nhello", question="שלום")
    ways = reply.evaluate("(root) => [...root.querySelectorAll('p, li')].map("
                          "(one) => getComputedStyle(one).direction)")
    assert ways == ["rtl", "rtl", "ltr"]
    assert page.locator(".said").evaluate("(one) => getComputedStyle(one).direction") == "rtl"


# --- the inside: tokens


SMILE = [token("\ufffd", 0.5, raw=b" \xf0\x9f"), token("\ufffd", 0.9, raw=b"\x98"),
         token("\ufffd", 0.99, raw=b"\x80")]


def test_tokens_show_borders_probabilities_and_alternatives(visit, script):
    page = visit()
    script.say("The", tokens=[token("The", 0.95)])
    script.say(" cat", tokens=[token(" cat", 0.3, [(" dog", 0.6), ("\n", 0.05)])])
    script.say(" 😀", tokens=SMILE)
    script.answer("!\n")
    ask(page, "Tell")
    settled(page)
    page.get_by_role("button", name="Tokens").click()
    tokens = page.get_by_role("option")
    assert tokens.all_inner_texts() == ["The", " cat", " ‹F0 9F›", "‹98›", "‹80›", "!↵"]
    assert page.locator(".shared .whole").all_inner_texts() == ["😀"]
    assert [name.split("-")[1] for name in page.locator(".token").evaluate_all(
        "all => all.map((one) => one.className)")] == ["0", "2", "1", "0", "0", "1"]
    tokens.nth(1).hover()
    rows = page.get_by_role("list", name="Alternatives").get_by_role("listitem")
    assert [text.split("\n")[0] for text in rows.all_inner_texts()] == ["·cat", "·dog", "↵"]
    assert "30 %" in rows.nth(0).inner_text() and "taken" in rows.nth(0).inner_text()
    assert "60 %" in rows.nth(1).inner_text() and "taken" not in rows.nth(1).inner_text()
    page.mouse.move(0, 0)                                    # the least expected one again
    page.get_by_text("Least expected of all: token 2.").wait_for()
    # by key: one stop for Tab, then arrows
    page.get_by_role("listbox").focus()
    page.keyboard.press("ArrowRight")
    assert "·dog" in rows.nth(1).inner_text()
    assert (page.evaluate("document.activeElement.getAttribute('aria-label')")
            == "“cat”, 30 %; also likely: “dog” 60 %, line break 5.0 %")
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement.textContent") == "!↵"
    assert page.locator(".tokens [tabindex='0']").count() == 1


def test_tokens_come_live_and_by_tap(visit, script):
    page = visit(width=390, height=844, has_touch=True)
    ask(page)
    script.say("One", tokens=[token("One", 0.5, [("Two", 0.4)])])
    page.get_by_text("One", exact=True).wait_for()
    page.get_by_role("button", name="Inside").tap()
    page.get_by_role("option").first.tap()
    assert "Two" in page.get_by_role("list", name="Alternatives").inner_text()
    script.answer(" more")
    page.get_by_role("option").nth(1).wait_for()
    assert "Two" in page.get_by_role("list", name="Alternatives").inner_text()


# --- the inside: the engine


def test_the_engines_steps_are_drawn_and_told(visit, script):
    page = visit()
    ask(page)
    script.say("x")
    replies(page).get_by_text("x", exact=True).wait_for()
    page.get_by_role("button", name="Inside").click()
    script.steps.put(step(1, [row("other-0/0", 0, 96, [0, 1, 2], prompt=True)],
                          admitted=[["other-0/0", 32]], generated=0))
    script.steps.put(step(2, [row("other-0/0", 96, 1, [0, 1, 2]),
                              row("mine1-0/0", 32, 20, [0, 3], prompt=True)], waiting=2,
                          admitted=[["mine1-0/0", 32]], generated=1))
    batch = page.get_by_role("slider", name="Step of the batch")
    page.get_by_text("Step 2, 20.0 ms").wait_for()
    assert batch.get_attribute("aria-valuetext") == (
        "Step 2, 20.0 ms (model 18.0 ms): A decodes a token; B (yours) reads 20 prompt tokens "
        "from place 32.")
    figures = page.locator(".figures").inner_text().split("\n")
    assert figures == ["tokens/s", "25.0", "running", "2", "waiting", "2",
                       "from the cache", "36 %"]
    blocks = page.get_by_role("slider", name="Block of the pool")
    assert blocks.get_attribute("aria-valuetext") == (
        "16 blocks: 4 in use, 1 of them shared, 2 kept for a prefix, 10 empty.")
    batch.focus()
    page.keyboard.press("ArrowLeft")
    assert "A reads 96 prompt tokens from place 0" in batch.get_attribute("aria-valuetext")
    page.keyboard.press("End")
    blocks.hover(position={"x": 8, "y": 8})
    page.get_by_text("Block 0: shared by A, B (yours).").wait_for()
    page.mouse.move(0, 0)
    blocks.focus()
    for key, words in (("ArrowRight", "Block 0: shared by A, B (yours)."),
                       ("ArrowRight", "Block 1: of A."), ("End", "Block 15: free.")):
        page.keyboard.press(key)
        assert blocks.get_attribute("aria-valuetext") == words


def test_a_finished_sequence_leaves_its_blocks(visit, script):
    page = visit()
    page.get_by_role("button", name="Inside").click()
    script.steps.put(step(1, [row("a-0/0", 0, 90, [5, 6, 7], prompt=True)], blocks_used=3,
                          blocks_kept=0, blocks_empty=13))
    script.steps.put(step(2, [row("a-0/0", 90, 1, [5, 6, 7])], finished=["a-0/0"],
                          blocks_used=0, blocks_kept=2, blocks_empty=14))
    page.get_by_text("Step 2, ").wait_for()
    blocks = page.evaluate("""async (steps) => {
        const { History } = await import("/page/history.js");
        const history = new History();
        return steps.map((step) => { history.add(step); return history.blocks().map(
            ({ owners, kept }) => owners.join() || (kept ? "kept" : "")); });
    }""", [step(1, [row("a-0/0", 0, 90, [2, 0, 1], prompt=True)], blocks_used=3, blocks_kept=0,
                blocks_empty=2),
           step(2, [row("a-0/0", 90, 1, [2, 0, 1]), row("b-0/0", 64, 3, [2, 0, 3])],
                blocks_used=4, blocks_kept=0, blocks_empty=1),
           step(3, [row("a-0/0", 91, 1, [2, 0, 1])], finished=["a-0/0"], preempted=["b-0/0"],
                blocks_used=0, blocks_kept=3, blocks_empty=2)])
    assert blocks == [["a-0/0", "a-0/0", "a-0/0", "", ""],
                      ["a-0/0,b-0/0", "a-0/0", "a-0/0,b-0/0", "b-0/0", ""],
                      ["kept", "", "kept", "", ""]]


def test_the_feed_is_asked_only_while_it_is_seen_and_again_when_it_ends(visit, script):
    page = visit()
    answered(page, script, "closed")
    assert script.feeds == 0
    page.get_by_role("button", name="Inside").click()
    until(page, lambda: script.open_feeds == 1)
    script.steps.put(step(1, [row("a-0/0", 0, 1, [0])]))
    page.get_by_text("Step 1, ").wait_for()
    script.steps.put(CUT)
    until(page, lambda: script.feeds == 2 and script.open_feeds == 1)
    script.steps.put(step(2, [row("a-0/0", 1, 1, [0])]))
    page.get_by_text("Step 2, ").wait_for()
    assert page.get_by_role("alert").count() == 0
    page.get_by_role("button", name="Inside").click()
    until(page, lambda: script.open_feeds == 0)
    page.wait_for_timeout(600)                               # longer than it waits to try again
    assert script.feeds == 2


def test_as_a_sheet_the_inside_keeps_the_rest_out_of_reach(visit, script):
    page = visit(width=390, height=844)
    page.get_by_role("button", name="Inside").click()
    assert page.evaluate("document.getElementById('main').inert")
    assert page.evaluate("document.activeElement.id") == "inside"
    page.keyboard.press("Escape")
    assert not page.locator("#inside").is_visible()
    assert not page.evaluate("document.getElementById('main').inert")
    assert page.evaluate("document.activeElement.id") == "inside-button"


# --- how it looks


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_everything_is_readable(visit, script, assert_readable, scheme, width):
    page = visit(width=width, color_scheme=scheme, quiet=False)
    assert_readable(page)
    for n, share in enumerate([0.95, 0.6, 0.3, 0.1, 0.01]):
        script.say(f"{n}", tokens=[token(f"{n}", share, [("x", 0.01)])])
    answered(page, script, RICH)
    script.refusals.append(refusal(500, "no"))
    ask(page)
    page.get_by_role("alert").wait_for()
    assert_readable(page)
    page.get_by_role("button", name="Tokens").first.click()
    script.steps.put(step(1, [row("mine1-0/0", 0, 1, [0])]))
    page.get_by_text("Step 1, ").wait_for()
    page.get_by_role("option").first.click()
    assert_readable(page)
    page.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Top k").fill("-3")
    assert_readable(page)


def test_light_and_dark_as_the_reader_decides(visit, script):
    page = visit(color_scheme="light")

    def is_dark():
        return page.evaluate("getComputedStyle(document.documentElement).backgroundColor"
                             ".match(/\\d+/g).slice(0, 3).every((part) => part < 128)")

    button = page.locator("#theme")
    seen = [is_dark()]
    for _ in range(3):
        button.click()
        seen.append((is_dark(), button.get_attribute("aria-label")))
    assert seen == [False, (False, "Colours: Light"), (True, "Colours: Dark"),
                    (False, "Colours: Auto")]
    button.click()
    button.click()
    page.reload()
    assert is_dark()


@pytest.mark.parametrize("motion, animation",
                         [("reduce", "none"), ("no-preference", "breathe")])
def test_nothing_moves_for_those_who_asked_for_that(visit, script, motion, animation):
    page = visit(reduced_motion=motion)
    ask(page)
    waiting = page.locator(".waiting .markdown")
    waiting.wait_for(state="attached")
    assert waiting.evaluate("(one) => getComputedStyle(one, '::after').animationName"
                            ) == animation
    script.answer("x")
    settled(page)


def test_the_end_stays_in_sight_when_the_page_narrows(visit, script):
    page = visit()
    answered(page, script, *(f"Line {n} " * 30 + "\n\n" for n in range(20)))
    page.get_by_role("button", name="Inside").click()
    until(page, lambda: page.locator("#scroller").evaluate(
        "(one) => one.scrollHeight - one.scrollTop - one.clientHeight < 2"))


def test_a_reader_who_scrolled_up_is_left_there(visit, script):
    page = visit()
    answered(page, script, *(f"Line {n}.\n\n" for n in range(60)))
    ask(page)
    script.say("Now")
    replies(page).get_by_text("Now", exact=True).wait_for()
    page.locator("#scroller").evaluate("(one) => { one.scrollTop = 0; }")
    to_end = page.get_by_role("button", name="To the end")
    to_end.wait_for()
    script.say(*(f" more {n}\n\n" for n in range(20)))
    page.get_by_text("more 19").wait_for()
    assert page.locator("#scroller").evaluate("(one) => one.scrollTop") == 0
    to_end.click()
    script.answer(*(f"end {n}\n\n" for n in range(20)))
    settled(page, 1)
    until(page, lambda: page.locator("#scroller").evaluate(
        "(one) => one.scrollHeight - one.scrollTop - one.clientHeight < 2"))


def test_announcements_are_few(visit, script):
    page = visit()
    page.evaluate("""() => {
        window.said = [];
        new MutationObserver(() => window.said.push(announcer.textContent))
            .observe(announcer, { childList: true });
    }""")
    answered(page, script, *("word " for _ in range(30)))
    said = page.evaluate("window.said")
    assert len(said) == 2
    assert said[0] == "Answering." and said[1].startswith("Answer: word word")
    assert page.locator("[aria-live], [role=log]").count() == 0


# --- with the real server


@pytest.fixture(scope="module")
def served(smollm2_folder):
    """The address of a server with the real SmolLM2."""
    with subprocess.Popen([sys.executable, "-m", "gearworks", "serve", str(smollm2_folder),
                           "--port", "0", "--served-model-name", "smollm2", "--grace", "1"],
                          stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process.stdout.readline().split()[-1] + "/"
        finally:
            process.terminate()


def posted(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def test_the_real_server_and_the_page_understand_each_other(visit, served):
    page = visit(url=served)
    page.get_by_role("button", name="Inside").click()
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Most tokens").fill("12")
    page.keyboard.press("Escape")
    question = "List three colours as a Markdown list."
    ask(page, question)
    reply = page.locator(".reply")
    settled(page)
    whole = posted(f"{served}v1/chat/completions", {
        "model": "smollm2", "temperature": 0, "max_tokens": 12, "logprobs": True,
        "top_logprobs": 5, "messages": [{"role": "user", "content": question}]})
    known = [entry["token"].strip() for entry in whole["choices"][0]["logprobs"]["content"]]
    shown = page.get_by_role("option").all_inner_texts()
    assert [text.replace("↵", "").strip() for text in shown] == known
    assert reply.locator(".summary").inner_text().startswith("12 tokens · ")
    assert "cut off" in reply.locator(".summary").inner_text()
    page.get_by_role("option").nth(2).click()
    assert page.get_by_role("list", name="Alternatives").get_by_role("listitem").count() >= 5
    batch = page.get_by_role("slider", name="Step of the batch")
    batch.focus()
    page.keyboard.press("Home")
    assert "A (yours) reads" in batch.get_attribute("aria-valuetext")
    blocks = page.get_by_role("slider", name="Block of the pool")
    assert " kept for a prefix, " in blocks.get_attribute("aria-valuetext")
    # an answer that is stopped leaves the engine
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Most tokens").fill("4000")
    page.keyboard.press("Escape")
    page.get_by_label("Your message").fill("Write a very long story.")
    page.keyboard.press("Enter")
    reply.nth(1).locator(".markdown p").first.wait_for(timeout=120_000)
    page.keyboard.press("Escape")
    settled(page, 1)

    def running():
        with urllib.request.urlopen(f"{served}metrics") as response:
            return [line for line in response.read().decode().splitlines()
                    if line.startswith("vllm:num_requests_running")]
    until(page, lambda: running()[0].endswith(" 0.0"))
