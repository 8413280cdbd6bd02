"""The server as its clients meet it: real HTTP over the loopback, a real engine."""

import json
import logging
import re
import subprocess
import sys
import threading

import httpx
import pytest

from gearworks.server.access import is_loopback
from gearworks.server.async_engine import merged
from gearworks.sampling import TokenLogprob
from gearworks.serving.request import Delta

LONG = {"prompt": "One two three", "max_tokens": 300, "temperature": 0, "ignore_eos": True}
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "temperature": 0}


def events(response) -> list:
    """The data of all server-sent events of a response."""
    assert response.headers["content-type"].startswith("text/event-stream")
    return [line.removeprefix("data: ") for line in response.iter_lines()
            if line.startswith("data: ")]


def stream(client, path, body, **more):
    with client.stream("POST", path, json=body | {"stream": True}, **more) as response:
        assert response.status_code == 200
        return events(response)


def assert_error(response, status, param=None, code=None):
    """An answer in OpenAI's form of an error, with an id."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"} and error["message"]
    assert error["type"] == {401: "authentication_error", 403: "permission_error",
                             429: "rate_limit_error", 500: "server_error",
                             503: "server_error"}.get(status, "invalid_request_error")
    if param is not None:
        assert error["param"] == param
    if code is not None:
        assert error["code"] == code
    assert re.fullmatch("[0-9a-f]{32}", response.headers["x-request-id"])


def test_a_completion_is_what_the_model_writes_alone(client, tiny_chat):
    alone = tiny_chat.generate("One two three", max_tokens=20)
    body = {"prompt": "One two three", "max_tokens": 20, "temperature": 0}
    whole = client.post("/v1/completions", json=body).json()
    assert whole["choices"][0]["text"] == alone.text
    assert whole["usage"]["completion_tokens"] == len(alone.ids)
    *chunks, last = stream(client, "/v1/completions", body)
    assert last == "[DONE]"
    assert "".join(json.loads(chunk)["choices"][0]["text"] for chunk in chunks) == alone.text


def test_a_chat_streams_what_it_answers_whole(client, tiny_chat):
    alone = tiny_chat.chat(CHAT["messages"], max_tokens=8)
    whole = client.post("/v1/chat/completions", json=CHAT).json()
    assert whole["choices"][0]["message"]["content"] == alone.text
    *chunks, last = map(lambda data: data if data == "[DONE]" else json.loads(data),
                        stream(client, "/v1/chat/completions", CHAT))
    assert last == "[DONE]" and len(chunks) > 4                 # not all of it at once
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("content") or "" for delta in deltas) == alone.text
    assert chunks[-1]["choices"][0]["finish_reason"] == alone.finish_reason


def test_characters_that_tokens_cut_arrive_whole(client, tiny_chat):
    """A stream's pieces are whole characters, and together the text that comes at once."""
    said = "🦊 née 한글, 🎶𝄞!"
    assert any("\N{REPLACEMENT CHARACTER}" in tiny_chat.tokenizer.decode([id])
               for id in tiny_chat.tokenizer.encode(said))      # else this shows nothing
    schema = {"type": "json_schema", "name": "n", "schema": {"enum": [said]}}
    chat = CHAT | {"max_tokens": 60, "response_format": {
        "type": "json_schema", "json_schema": {"name": "n", "schema": schema["schema"]}}}
    *chunks, _ = stream(client, "/v1/chat/completions", chat)
    chats = [json.loads(chunk)["choices"][0]["delta"].get("content") or "" for chunk in chunks]
    named = stream(client, "/v1/responses", {"input": "Hi", "text": {"format": schema}})
    responses = [event["delta"] for event in map(json.loads, named)
                 if event["type"] == "response.output_text.delta"]
    whole = client.post("/v1/chat/completions", json=chat).json()["choices"][0]
    assert json.loads(whole["message"]["content"]) == said
    for pieces in (chats, responses):
        assert "".join(pieces) == whole["message"]["content"] and len(pieces) > 5
        assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


def test_several_prompts_and_answers_come_from_one_batch(client, tiny_chat):
    prompts = ["One", "Two two"]
    body = {"prompt": prompts, "n": 2, "max_tokens": 6, "temperature": 0}
    choices = client.post("/v1/completions", json=body).json()["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    assert [choice["text"] for choice in choices] == [
        tiny_chat.generate(prompt, max_tokens=6).text for prompt in prompts for _ in range(2)]


def test_a_response_is_kept_until_it_is_deleted(client):
    body = {"input": "Hi", "max_output_tokens": 5, "temperature": 0}
    made = client.post("/v1/responses", json=body).json()
    assert made["object"] == "response" and made["status"] == "incomplete"
    path = f"/v1/responses/{made['id']}"
    assert client.get(path).json() == made
    named = stream(client, "/v1/responses", body | {"previous_response_id": made["id"]})
    assert json.loads(named[-1])["type"] == "response.incomplete"
    assert client.delete(path).json()["deleted"] is True
    assert_error(client.get(path), 404, code="not_found")
    assert_error(client.post("/v1/responses", json=body | {"previous_response_id": made["id"]}),
                 400, "previous_response_id")
    kept = client.post("/v1/responses", json=body | {"store": False}).json()
    assert_error(client.get(f"/v1/responses/{kept['id']}"), 404)


def test_models(client):
    models = client.get("/v1/models").json()
    assert [model["id"] for model in models["data"]] == ["tiny"]
    assert client.get("/v1/models/tiny").json() == models["data"][0]
    assert_error(client.get("/v1/models/other"), 404, "model", "model_not_found")
    assert_error(client.post("/v1/completions", json={"model": "other", "prompt": "x"}),
                 404, "model", "model_not_found")


def test_tokenize_and_back(client, tiny_chat):
    found = client.post("/tokenize", json={"prompt": "Grüße, 😀"}).json()
    assert found["tokens"] == tiny_chat.tokenizer.encode("Grüße, 😀", add_special_tokens=True)
    assert found["count"] == len(found["tokens"]) and found["max_model_len"] == 2048
    assert client.post("/detokenize", json={"tokens": found["tokens"]}).json() == {
        "prompt": "Grüße, 😀"}
    found = client.post("/tokenize", json={"messages": CHAT["messages"]}).json()
    assert found["tokens"] == tiny_chat.tokenizer.encode(
        tiny_chat.chat_prompt(CHAT["messages"]))
    assert_error(client.post("/tokenize", json={}), 400, "prompt")
    assert_error(client.post("/detokenize", json={"tokens": [49152]}), 400, "tokens")


def test_unknown_paths_and_methods(client):
    assert_error(client.get("/v1/nothing"), 404)
    assert_error(client.get("/v1/models/"), 404)                # and no redirect
    wrong = client.get("/v1/chat/completions")
    assert_error(wrong, 405)
    assert wrong.headers["allow"] == "POST"
    assert_error(client.post("/health"), 405)
    assert_error(client.get("/page/../app.py"), 404)
    assert_error(client.get("/page/..%2fapp.py"), 404)


def test_every_exchange_has_an_id_of_its_own(client):
    ids = {client.get(path).headers["x-request-id"] for path in ("/health", "/v1/models", "/x")}
    assert len(ids) == 3


def test_ignored_parameters_are_named(client, caplog):
    names = ["user", "a\r\nSet-Cookie: b=c", "ü" * 100, *(f"more{i}" for i in range(40))]
    with caplog.at_level(logging.INFO, "gearworks.server"):
        answer = client.post("/v1/completions", json={
            "prompt": "x", "max_tokens": 1, "logit_bias": None} | dict.fromkeys(names, 1))
    assert answer.status_code == 200
    shown = answer.headers["x-ignored-parameters"]
    assert "a__Set-Cookie__b_c" in shown and "logit_bias" not in shown
    assert "set-cookie" not in answer.headers and len(shown) < 1000
    assert shown.endswith("and 23 more")
    line, = (record.getMessage() for record in caplog.records if "ignored" in record.message)
    assert line == f"{answer.headers['x-request-id']}: ignored parameters: {shown}"
    assert "x-ignored-parameters" not in client.post(
        "/v1/completions", json={"prompt": "x", "max_tokens": 1}).headers
    streamed = {"prompt": "x", "max_tokens": 1, "stream": True, "user": "me"}
    assert client.post("/v1/completions",
                       json=streamed).headers["x-ignored-parameters"] == "user"


@pytest.mark.parametrize("path, body, named", [
    ("/v1/chat/completions",
     CHAT | {"stream_options": {"include_obfuscation": False}, "logit_bias": {"5": 1}},
     "stream_options.include_obfuscation"),
    ("/v1/chat/completions", CHAT | {"user": "me", "response_format": {
        "type": "json_schema", "json_schema": {"name": "n", "title": None, "strict": True,
                                               "kind": 1, "schema": {"enum": ["a"], "x": 2}}}},
     "user, response_format.json_schema.kind"),
    ("/v1/responses", {"input": "Hi", "max_output_tokens": 1, "metadata": {"a": "b"},
                       "text": {"verbosity": "low", "format": {"type": "text", "b": 1}}},
     "text.verbosity, text.format.b"),
    ("/v1/chat/completions", CHAT | {"messages": [{"role": "user", "content": [
        {"type": "text", "text": "Hi", "cache_control": {}}]}]}, None)])
def test_ignored_parameters_are_named_inside_of_objects_too(client, path, body, named):
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers.get("x-ignored-parameters") == named


def test_what_the_engine_refuses_is_a_bad_request_in_a_stream_too(client):
    body = {"prompt": "x " * 3000, "max_tokens": 1}
    for more in ({}, {"stream": True}):
        assert_error(client.post("/v1/completions", json=body | more), 400, "prompt",
                     "context_length_exceeded")


def numbers(client) -> dict[str, float]:
    """/metrics, without the labels."""
    lines = client.get("/metrics").text.splitlines()
    return {line.partition("{")[0]: float(line.split()[-1]) for line in lines
            if not line.startswith("#") and "_bucket{" not in line}


def test_metrics_count_what_was_done(served, tiny_chat):
    with served(tiny_chat) as server, httpx.Client(base_url=server.url) as client:
        assert all(value == 0 for name, value in numbers(client).items()
                   if not name.endswith("_created"))
        body = {"prompt": list(range(100, 200)), "max_tokens": 7, "ignore_eos": True}
        usage = client.post("/v1/completions", json=body | {"n": 2}).json()["usage"]
        cached = client.post("/v1/completions", json=body).json()["usage"][
            "prompt_tokens_details"]["cached_tokens"]
        client.get("/nothing")
        found = numbers(client)
    assert usage["completion_tokens"] == 14 and cached > 0
    assert found["vllm:prompt_tokens_total"] == 200
    assert found["vllm:generation_tokens_total"] == 21
    assert found["vllm:prefix_cache_queries_total"] == 200
    assert found["vllm:prefix_cache_hits_total"] == cached
    assert found["vllm:time_to_first_token_seconds_count"] == 2
    assert found["vllm:e2e_request_latency_seconds_count"] == 2
    assert found["vllm:inter_token_latency_seconds_count"] == 18
    assert found["vllm:request_success_total"] == 3
    assert found["vllm:num_requests_running"] == found["vllm:num_requests_waiting"] == 0
    assert found["vllm:kv_cache_usage_perc"] == 0
    assert found["gearworks:http_errors_total"] == 1
    assert found["gearworks:step_seconds_total"] >= found["gearworks:model_seconds_total"] > 0


def test_metrics_tell_who_runs_and_who_waits(served, tiny_chat):
    with (served(tiny_chat, engine={"max_num_seqs": 1}) as server,
          httpx.Client(base_url=server.url, timeout=60) as client,
          client.stream("POST", "/v1/completions", json=LONG | {"stream": True}) as first):
        lines = first.iter_lines()
        next(lines)
        other = threading.Thread(target=client.post, args=["/v1/completions"],
                                 kwargs={"json": LONG})
        other.start()
        while (found := numbers(client))["vllm:num_requests_waiting"] != 1:
            assert other.is_alive()
        assert found["vllm:num_requests_running"] == 1
        assert 0 < found["vllm:kv_cache_usage_perc"] <= 1
        other.join()


def test_the_key_is_wanted_but_for_what_says_nothing(served, tiny_chat):
    with (served(tiny_chat, api_key="sësam".encode().decode("latin-1")) as server,
          httpx.Client(base_url=server.url) as client):
        for path in ("/health", "/openapi.json"):
            assert client.get(path).status_code == 200
        for path in ("/v1/models", "/metrics", "/inside", "/nothing"):
            refused = client.get(path)
            assert_error(refused, 401, code="invalid_api_key")
            assert refused.headers["www-authenticate"] == "Bearer"
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/tokenize"):
            assert_error(client.post(path, json={}), 401)


@pytest.mark.parametrize("given, status", [
    ("Bearer sesame", 200), ("bearer sesame", 200), ("Bearer  sesame", 200),
    ("Bearer sesam", 401), ("Bearer sesame2", 401), ("Bearer", 401), ("", 401),
    ("sesame", 401), ("Basic sesame", 401), ("Bearer s\xe9same", 401)])
def test_only_the_key_opens(keyed, given, status):
    assert keyed.get("/v1/models", headers=[
        (b"authorization", given.encode("latin-1"))]).status_code == status


@pytest.fixture(scope="module")
def keyed(served, tiny_chat):
    with (served(tiny_chat, api_key="sesame") as server,
          httpx.Client(base_url=server.url) as client):
        yield client


def port(client) -> int:
    return client.base_url.port


@pytest.mark.parametrize("host, status", [
    ("127.0.0.1:{port}", 200), ("localhost:{port}", 200), ("LOCALHOST:{port}", 200),
    ("[::1]:{port}", 200), ("127.0.0.1", 200), ("127.8.9.1", 200),
    ("rebound.example:{port}", 403), ("rebound.example", 403), ("localhost.example", 403),
    ("127.0.0.1.example:{port}", 403), ("192.168.0.1:{port}", 403), ("[::1", 403), ("", 403),
    ("evil@localhost", 403), ("localhost@evil", 403)])
def test_a_foreign_host_is_refused_on_loopback(client, host, status):
    answer = client.get("/v1/models", headers={"host": host.format(port=port(client))})
    assert answer.status_code == status
    if status != 200:
        assert_error(answer, status, code="host_not_allowed")


@pytest.mark.parametrize("headers, status", [
    ({"origin": "http://127.0.0.1:{port}"}, 200),
    ({"origin": "http://localhost:3000"}, 403), ({"origin": "http://127.0.0.1:1"}, 403),
    ({"origin": "https://evil.example"}, 403), ({"origin": "null"}, 403), ({"origin": ""}, 403),
    ({"origin": "http://["}, 403),
    ({"sec-fetch-site": "same-origin"}, 200), ({"sec-fetch-site": "none"}, 200),
    ({"sec-fetch-site": "cross-site"}, 403), ({"sec-fetch-site": "same-site"}, 403),
    ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, 403)])
def test_a_page_of_another_origin_cannot_drive_the_server(client, headers, status):
    headers = {name: value.format(port=port(client)) for name, value in headers.items()}
    steps = client.get("/metrics").text
    answer = client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1},
                         headers=headers)
    assert answer.status_code == status
    assert "access-control-allow-origin" not in answer.headers
    if status == 403:
        assert_error(answer, 403, code="origin_not_allowed")
        assert re.findall("vllm:prompt_tokens_total.*", steps) == re.findall(
            "vllm:prompt_tokens_total.*", client.get("/metrics").text)


def test_a_link_from_elsewhere_may_be_followed_but_nothing_else(client):
    site = {"sec-fetch-site": "cross-site"}
    assert client.get("/health", headers=site | {"sec-fetch-mode": "navigate"}).is_success
    assert_error(client.get("/health", headers=site | {"sec-fetch-mode": "no-cors"}), 403)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded",
                                  "multipart/form-data; boundary=x", None])
def test_only_what_says_that_it_is_json_is_read(client, kind):
    headers = {} if kind is None else {"content-type": kind}
    assert_error(client.post("/v1/completions", content=b'{"prompt": "x"}', headers=headers),
                 415)
    assert client.post("/v1/completions", content=b'{"prompt": "x", "max_tokens": 1}',
                       headers={"content-type": "Application/JSON; charset=utf-8"}).is_success


def test_without_being_asked_the_server_allows_no_other_origin(client):
    asked = {"origin": "http://a.example", "access-control-request-method": "POST"}
    answer = client.options("/v1/completions", headers=asked)
    assert_error(answer, 403)
    assert not any(name.startswith("access-control") for name in answer.headers)


def test_an_allowed_origin_gets_in_and_no_other(served, tiny_chat):
    with (served(tiny_chat, allowed_origins=("http://a.example",), api_key="k") as server,
          httpx.Client(base_url=server.url) as client):
        asked = {"origin": "http://a.example", "access-control-request-method": "POST",
                 "access-control-request-headers": "authorization,content-type"}
        answer = client.options("/v1/completions", headers=asked)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "http://a.example"
        assert "authorization" in answer.headers["access-control-allow-headers"]
        with_key = {"authorization": "Bearer k"}
        answer = client.get("/v1/models", headers={"origin": "http://a.example"} | with_key)
        assert answer.is_success
        assert answer.headers["access-control-allow-origin"] == "http://a.example"
        assert "X-Request-Id" in answer.headers["access-control-expose-headers"]
        # the page can read what is wrong, too
        refused = client.get("/v1/models", headers={"origin": "http://a.example"})
        assert_error(refused, 401)
        assert refused.headers["access-control-allow-origin"] == "http://a.example"
        assert_error(client.get("/v1/models", headers={"origin": "http://b.example"}
                                | with_key), 403)
        # a proxy passes the name on that the page knows the server by
        assert client.get("/v1/models", headers={"host": "a.example"} | with_key).is_success
        assert_error(client.get("/v1/models", headers={"host": "b.example"} | with_key), 403)
        # what is inside is for our own page only
        assert_error(client.get("/inside", headers={"origin": "http://a.example"} | with_key),
                     403)


def test_beyond_loopback_any_host_is_right_and_origins_are_checked(served, tiny_chat):
    with (served(tiny_chat, host="0.0.0.0") as server,
          httpx.Client(base_url=server.url) as client):
        host = {"host": "machine.example:8000"}
        assert client.get("/health", headers=host).is_success
        assert client.get("/health", headers=host | {
            "origin": "http://machine.example:8000"}).is_success
        assert_error(client.get("/health", headers=host | {"origin": "http://a.example"}), 403)


def test_a_star_allows_every_origin(served, tiny_chat):
    with (served(tiny_chat, allowed_origins=("*",)) as server,
          httpx.Client(base_url=server.url) as client):
        answer = client.get("/v1/models", headers={"origin": "http://any.example"})
        assert answer.is_success and answer.headers["access-control-allow-origin"] == "*"
        assert_error(client.get("/inside", headers={"origin": "http://any.example"}), 403)
        assert_error(client.get("/v1/models", headers={"host": "rebound.example"}), 403)


def test_the_inside_is_shown_live(server, client):
    with client.stream("GET", "/inside") as inside:
        lines = inside.iter_lines()
        assert next(lines).startswith(":")
        answer = client.post("/v1/completions", json={"prompt": "One", "max_tokens": 3,
                                                      "temperature": 0, "ignore_eos": True})
        seen = []
        while not any(step["finished"] for step in seen):
            line = next(lines)
            seen += [json.loads(line[6:])] if line.startswith("data: ") else []
    name = f"{answer.headers['x-request-id']}-0/0"
    assert {row["name"] for step in seen for row in step["rows"]} == {name}
    assert seen[-1]["finished"] == [name] and sum(step["generated"] for step in seen) == 3
    assert all(step["missed"] == 0 and step["tokens"] >= 1 for step in seen)


def test_few_may_watch(client):
    from contextlib import ExitStack

    from gearworks.server.inside import READERS
    with ExitStack() as stack:
        lines = [stack.enter_context(client.stream("GET", "/inside")).iter_lines()
                 for _ in range(READERS)]
        for each in lines:
            next(each)
        assert_error(client.get("/inside"), 429)
    while client.get("/health").is_success:                 # they leave in a moment
        with client.stream("GET", "/inside") as again:
            if again.status_code == 200:
                break


def test_the_page_and_its_files(client):
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    policy = page.headers["content-security-policy"]
    assert "default-src 'self'" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    for script in re.findall('src="(/page/[^"]+)"', page.text):
        found = client.get(script)
        assert found.is_success and found.headers["content-type"].startswith("text/javascript")
    # whoever frames it or links to it from elsewhere gets no more than the page
    assert client.get("/", headers={"sec-fetch-site": "cross-site",
                                    "sec-fetch-mode": "navigate"}).is_success


def test_the_openapi_document_is_the_types(client):
    document = client.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    chat = document["components"]["schemas"]["ChatRequest"]["properties"]
    assert {"messages", "temperature", "top_logprobs", "stop"} <= chat.keys()
    assert {path for path in document["paths"]} >= {
        "/v1/models", "/v1/completions", "/v1/chat/completions", "/v1/responses", "/health",
        "/metrics", "/tokenize", "/detokenize"}
    assert document["paths"]["/v1/responses/{id}"].keys() == {"get", "delete"}


@pytest.mark.long
def test_schemathesis_finds_nothing(client_library, served, tiny_chat, tmp_path):
    """Requests made from the document, right and wrong ones: no crash, and every answer is one
    that the document announces."""
    client_library("schemathesis")
    with served(tiny_chat, engine={"max_model_len": 16}) as server:
        result = subprocess.run(
            [sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json",
             "--checks", "not_a_server_error,status_code_conformance,content_type_conformance,"
             "response_headers_conformance,response_schema_conformance,"
             "negative_data_rejection,unsupported_method", "--phases", "examples,coverage,"
             "fuzzing", "--max-examples", "10", "--seed", "7", "--workers", "1",
             "--request-timeout", "300"],
            capture_output=True, encoding="utf-8", cwd=tmp_path, timeout=600)
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]


def test_deltas_that_wait_become_one():
    logprob = TokenLogprob(1, -0.5)
    parts = [Delta("r", 0, "a", (1,), (logprob,), prompt_logprobs=(None,), cached_tokens=3),
             Delta("r", 0, "", (2,), (logprob,), cached_tokens=3),
             Delta("r", 0, "b", (3,), (logprob,), "stop", cached_tokens=3)]
    assert merged(parts) == Delta("r", 0, "ab", (1, 2, 3), (logprob,) * 3, "stop", None,
                                  (None,), 3)
    assert merged(parts[:1]) is parts[0]


@pytest.mark.parametrize("host, ours", [
    ("127.0.0.1", True), ("127.1.2.3", True), ("::1", True), ("localhost", True),
    ("0.0.0.0", False), ("::", False), ("192.168.1.1", False), ("evil.example", False),
    ("", False)])
def test_what_is_loopback(host, ours):
    assert is_loopback(host) is ours
