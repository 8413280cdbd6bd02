"""Replicas behind Ray Serve, really started: what the router promises, and what it survives.

Ray takes most of the time: about 20 s of two cores until two replicas of a tiny model answer,
and 5 s to end.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import jsonschema
import psutil
import pytest
from test_clients import CANARY

from gearworks.load.prompts import text
from gearworks.load.trace import TraceRequest
from gearworks.server.tools import in_words

REPLICAS = Path(__file__).resolve().parents[1] / "replicas"
MINUTES = 5                         # for Ray to start in
GROUPS, PREFIX_TOKENS, SEED = 4, 320, 5

pytestmark = [pytest.mark.long,
              pytest.mark.skipif(sys.platform == "win32", reason="Ray names no process there")]


class Deployment:
    """Two replicas that run. process: the one that was started, with all others below it."""

    def __init__(self, url: str, process: psutil.Process):
        self.url, self.process = url, process
        self.http = httpx.Client(base_url=url, timeout=60, trust_env=False)

    def __enter__(self) -> "Deployment":
        return self

    def __exit__(self, *_) -> None:
        self.http.close()

    def complete(self, prompt: str, **more) -> httpx.Response:
        return self.http.post("/v1/completions",
                              json={"model": "tiny", "prompt": prompt, "max_tokens": 2} | more)

    def metrics(self, count: int) -> dict[str, dict[str, float]]:
        """The figures of so many replicas, by their names; who answers is left to chance."""
        found = {}
        until = time.monotonic() + 60
        while len(found) < count and time.monotonic() < until:
            answer = self.http.get("/metrics")
            found[answer.headers["x-replica"]] = {
                name: float(value) for name, value in
                re.findall(r"^vllm:(\w+)\{[^}]*\} (\S+)", answer.text, re.MULTILINE)}
        return found

    def replicas(self) -> list[psutil.Process]:
        return [each for each in self.process.children(recursive=True)
                if "ServeReplica:default:Replica" in " ".join(each.cmdline())]


@pytest.fixture(scope="module")
def deployment(client_library, tiny_folder):
    client_library("ray")
    # short, because Ray makes sockets there, whose names may not be long
    folder = tempfile.mkdtemp(prefix="gw", dir="/tmp")
    try:
        with started(tiny_folder, folder) as found:
            yield found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def started(model: Path, folder: str):
    """A deployment as a user starts it. Nothing of it is left afterwards."""
    command = [sys.executable, str(REPLICAS / "ray_serve.py"), "--model", str(model),
               "--served-model-name", "tiny", "--replicas", "2", "--port", "0"]
    environment = os.environ | {"RAY_TMPDIR": folder}
    said = Path(folder) / "said"
    for _ in range(3):                                      # see what ray_serve.py says of 15 s
        with said.open("wb") as file:
            process = psutil.Popen(command, env=environment, stdin=subprocess.DEVNULL,
                                   stdout=file, stderr=subprocess.STDOUT)
        try:
            url = wait_for_url(process, said)
            if url is not None:
                with Deployment(url, process) as deployment:
                    yield deployment
                everything = process.children(recursive=True)
                process.terminate()
                assert process.wait(120) == 0, said.read_text(encoding="utf-8")
                _, alive = psutil.wait_procs(everything, 30)
                assert not alive
                return
        finally:
            end(process)
    pytest.fail(said.read_text(encoding="utf-8", errors="replace")[-3000:])


def wait_for_url(process: psutil.Popen, said: Path) -> str | None:
    """The address, or None when the process has ended without one."""
    until = time.monotonic() + 60 * MINUTES
    while time.monotonic() < until:
        found = re.search(r"Gearworks serves .* at (http\S+)",
                          said.read_text(encoding="utf-8", errors="replace"))
        if found:
            return found[1]
        if process.poll() is not None:
            return None
        time.sleep(0.2)
    return None


def end(process: psutil.Popen) -> None:
    """End a process and all below it, also those that would outlive it."""
    try:
        everything = [*process.children(recursive=True), process]
    except psutil.NoSuchProcess:
        return
    for each in everything:
        try:
            each.kill()
        except psutil.NoSuchProcess:
            pass
    psutil.wait_procs(everything, 30)


def prompt(group: int, number: int) -> str:
    """A prompt of the load generator's: a shared document, and words of its own."""
    return text(TraceRequest(0, 2, PREFIX_TOKENS + 24, group=str(group),
                             prefix_tokens=PREFIX_TOKENS), SEED, 1000 + number)


def test_its_examples_are_right(client_library):
    client_library("ray")
    quick = os.pathsep.join(filter(None, [str(REPLICAS / "without"),
                                          os.environ.get("PYTHONPATH")]))
    ran = subprocess.run([sys.executable, "-m", "doctest", str(REPLICAS / "ray_serve.py")],
                         capture_output=True, text=True, timeout=300,
                         env=os.environ | {"PYTHONPATH": quick})
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stdout + ran.stderr


def test_prompts_of_one_document_meet_on_one_replica_under_load(deployment, tmp_path):
    first = [deployment.complete(prompt(group, group)) for group in range(GROUPS)]
    homes = [answer.headers["x-replica"] for answer in first]
    assert [answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
            for answer in first] == GROUPS * [0]
    assert sorted(homes.count(name) for name in set(homes)) == [GROUPS // 2, GROUPS // 2]

    again = [deployment.complete(prompt(group, 100 * number + group))
             for number in range(1, 4) for group in range(GROUPS)]
    assert [answer.headers["x-replica"] for answer in again] == 3 * homes
    for answer in again:                                    # of a block of 64 tokens at most
        usage = answer.json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] > PREFIX_TOKENS - 64

    result = tmp_path / "load.json"
    before = deployment.metrics(2)
    loaded = subprocess.run(
        [sys.executable, "-m", "gearworks", "load", deployment.url, "--endpoint", "completions",
         "--seed", str(SEED), "--prefix", f"1:{PREFIX_TOKENS}:{GROUPS}",
         "--prompt-tokens", "24", "--output-tokens", "8", "--ignore-eos", "--concurrency", "4",
         "--max-requests", "24", "--warmup", "0", "--json", str(result)],
        capture_output=True, text=True, timeout=300)
    assert loaded.returncode == 0, loaded.stderr
    requests = json.loads(result.read_text(encoding="utf-8"))["requests"]
    assert len(requests) == 24 and len({each["group"] for each in requests}) == GROUPS
    assert [each["error"] for each in requests] == 24 * [None]
    # Chance would send half of the first ones to where their document was not yet: 0 cached
    assert min(each["cached_tokens"] for each in requests) > PREFIX_TOKENS - 64
    after = deployment.metrics(2)
    for name in before:
        assert (after[name]["prefix_cache_queries_total"]
                > before[name]["prefix_cache_queries_total"])


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_blocks(deployment, stream):
    before = deployment.metrics(2)
    asked = {"model": "tiny", "prompt": "Once", "max_tokens": 2000, "ignore_eos": True,
             "stream": stream}
    if stream:
        with deployment.http.stream("POST", "/v1/completions", json=asked) as answer:
            home = answer.headers["x-replica"]
            next(answer.iter_lines())
    else:
        with pytest.raises(httpx.ReadTimeout):
            deployment.http.post("/v1/completions", json=asked, timeout=0.5)
        home = None
    until = time.monotonic() + 60
    while time.monotonic() < until:
        after = deployment.metrics(2)
        if not any(each["num_requests_running"] for each in after.values()):
            break
    generated = {name: after[name]["generation_tokens_total"]
                 - before[name]["generation_tokens_total"] for name in after}
    assert all(each["num_requests_running"] == each["kv_cache_usage_perc"] == 0
               for each in after.values())
    assert sum(generated.values()) < 1900, "the answer was computed to its end"
    assert home is None or max(generated, key=generated.get) == home


def test_a_stored_response_is_found_again(deployment):
    ids = []
    for number in range(4):
        created = deployment.http.post("/v1/responses", json={
            "model": "tiny", "input": f"{number}: {prompt(7 + number, number)}",
            "max_output_tokens": 16})
        ids.append((created.json()["id"], created.headers["x-replica"]))
    assert len({home for _, home in ids}) == 2
    for id, home in ids:
        found = deployment.http.get(f"/v1/responses/{id}")
        assert (found.status_code, found.headers["x-replica"]) == (200, home)
        more = deployment.http.post("/v1/responses", json={
            "model": "tiny", "input": "And then?", "previous_response_id": id,
            "max_output_tokens": 16})
        assert (more.status_code, more.headers["x-replica"]) == (200, home)


def test_a_tool_passes_the_router_unchanged_and_its_call_comes_back(deployment, tiny_chat):
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "Tune it."}],
             "tools": [CANARY], "tool_choice": "required", "max_tokens": 96, "temperature": 0}
    answer = deployment.http.post("/v1/chat/completions", json=asked)
    assert answer.headers["x-replica"] and "x-ignored-parameters" not in answer.headers
    choice = answer.json()["choices"][0]
    call, = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert call["function"]["name"] == CANARY["function"]["name"]
    jsonschema.validate(json.loads(call["function"]["arguments"]),
                        CANARY["function"]["parameters"])
    prompt = tiny_chat.chat_prompt(in_words(asked["messages"], [CANARY]))
    ids = tiny_chat.tokenizer.encode(prompt, add_special_tokens=False)
    assert answer.json()["usage"]["prompt_tokens"] == len(ids)


def test_what_is_wrong_is_refused_by_a_replica(deployment):
    for body, status in [(b"{", 400), (b"[" * 100_000, 400), (b'"a"', 400),
                         (b'{"model": "tiny", "prompt": 5}', 400), (b" " * (5 * 2**20), 413)]:
        answer = deployment.http.post("/v1/completions", content=body,
                                      headers={"Content-Type": "application/json"})
        assert answer.status_code == status
        assert answer.json()["error"]["message"]
    assert deployment.http.get("/nowhere").status_code == 404
    assert deployment.http.get("/v1/models", headers={"Host": "example.com"}
                               ).status_code == 403


def test_the_client_shows_what_was_cached(client_library, deployment):
    client_library("openai")
    ran = subprocess.run(
        [sys.executable, str(REPLICAS / "client.py"), deployment.url, "--documents", "2",
         "--questions", "3", "--words", "200"], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert "models: tiny" in ran.stdout
    rows = [line.split() for line in ran.stdout.splitlines() if re.match(r" +\d", line)]
    assert len(rows) == 6 and len({row[4] for row in rows}) == 2
    for row in rows[2:]:
        assert int(row[3]) >= 128 and row[4] == rows[int(row[0])][4]


def test_a_replica_that_dies_takes_only_its_own_answers_with_it(deployment):
    """The last test: afterwards, Ray starts another replica, for which nobody waits here."""
    long = {"model": "tiny", "max_tokens": 1000, "ignore_eos": True, "stream": True}
    homes = deployment.metrics(2)
    streams, lines = {}, {}
    with ExitStack() as stack:
        for group in range(20, 40):                         # until each replica has one
            answer = stack.enter_context(deployment.http.stream(
                "POST", "/v1/completions", json=long | {"prompt": prompt(group, group)}))
            streams.setdefault(answer.headers["x-replica"], answer)
            if len(streams) == 2:
                break
        assert streams.keys() == homes.keys()
        victim = deployment.replicas()[0]
        victim.kill()
        victim.wait(30)
        for name, answer in streams.items():
            try:
                lines[name] = [line for line in answer.iter_lines() if line]
            except httpx.HTTPError:
                lines[name] = []
    whole = [name for name in lines if lines[name] and lines[name][-1] == "data: [DONE]"]
    assert len(whole) == 1
    answers = [deployment.complete(prompt(group, 50)) for group in range(GROUPS)]
    assert [answer.status_code for answer in answers] == GROUPS * [200]
