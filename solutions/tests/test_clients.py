"""OpenAI's own client, and curl, against the real server with the real SmolLM2.

The client is strict: it checks every answer by OpenAI's own types, and raises where one does
not fit. Its libraries are in the extra `clients`.
"""

import asyncio
import json
import os
import shutil
import subprocess
from types import SimpleNamespace
from typing import Literal

import httpx
import jsonschema
import numpy as np
import pytest
from pydantic import BaseModel

from gearworks.sampling import log_softmax

pytestmark = pytest.mark.usefixtures("loopback_only")

CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]
COUNT = {"messages": [{"role": "user", "content": "Count to a thousand."}],
         "max_completion_tokens": 400, "extra_body": {"ignore_eos": True}}
PLACE = {"type": "object", "required": ["city", "country"], "additionalProperties": False,
         "properties": {"city": {"type": "string", "maxLength": 12},
                        "country": {"enum": ["France", "Norway", "Italy"]}}}
# What no layer would make up, change or leave out: quotes, a backslash, signs of markup and of
# templates, letters beyond ASCII, an order that is not the alphabet's.
CANARY = {"type": "function", "function": {
    "name": "zither-tuner.v2",
    "description": "Tunes a zither (“37 strings”, not 36) \\ <b>&</b> {{µ}} 'ß' \"🎶\"",
    "parameters": {
        "type": "object",
        "properties": {
            "wirbel_größe": {"type": "string", "enum": ["quer-9", "längs-4"],
                             "description": "as the peg says; never “medium”"},
            "a.turns": {"type": "integer", "minimum": 3, "maximum": 4}},
        "required": ["wirbel_größe", "a.turns"], "additionalProperties": False}}}
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Get the weather of a city",
    "parameters": {"type": "object", "required": ["city"], "additionalProperties": False,
                   "properties": {"city": {"type": "string", "maxLength": 12}}}}}
TIME = {"type": "function", "function": {"name": "get_time"}}


class Place(BaseModel):
    """What the model is to write about a city."""

    city: Literal["Paris", "Oslo"]
    population: Literal[700_000, 2_000_000]


@pytest.fixture(scope="module")
def server(smollm2_server):
    return smollm2_server


@pytest.fixture(scope="module")
def small(served, smollm2):
    """A server that has a key, and no queue behind the one answer that it runs at a time."""
    with served(smollm2, engine={"max_num_seqs": 1, "num_blocks": 64}, max_queue=0,
                models=("smollm2",), api_key="sesame") as server:
        yield server


@pytest.fixture(scope="module")
def openai(client_library):
    return client_library("openai")


@pytest.fixture(scope="module")
def client(openai, server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0,
                       _strict_response_validation=True) as client:
        yield client


@pytest.fixture(scope="module")
def lenient(openai, server):
    """OpenAI's types do not know the nulls that OpenAI's completions have: the first token's
    log-probability, the reason why a stream that goes on has ended."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def chat(client):
    """client.chat.completions.create, greedy and short unless told otherwise."""
    def create(messages=CAPITAL, **options):
        return client.chat.completions.create(**{
            "model": "smollm2", "messages": messages, "temperature": 0,
            "max_completion_tokens": 24} | options)
    return create


def idle(server) -> dict[str, float]:
    """Wait until the server has nothing to do; returns its metrics.

    The last thing is a token for us: what was to be cancelled before it, is.
    """
    httpx.post(f"{server.url}/v1/completions", json={"prompt": "x", "max_tokens": 1},
               timeout=99)
    while True:
        lines = httpx.get(f"{server.url}/metrics").text.splitlines()
        found = {line.partition("{")[0]: float(line.split()[-1]) for line in lines
                 if not line.startswith("#") and "_bucket{" not in line}
        if found["vllm:num_requests_running"] == found["vllm:num_requests_waiting"] == 0:
            return found


def earlier_calls(*cities: str) -> list[dict]:
    """A conversation in which the weather of cities was asked for, and looked up."""
    return [message for place, city in enumerate(cities) for message in (
        {"role": "user", "content": f"What is the weather in {city}?"},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": f"call_{place}", "type": "function", "function": {
                "name": "get_weather", "arguments": json.dumps({"city": city})}}]})]


def test_a_chat_whole_and_as_a_stream(chat, smollm2):
    alone = smollm2.chat(CAPITAL, max_tokens=24)
    assert "Paris" in alone.text
    answer = chat()
    assert answer.choices[0].message.content == alone.text
    assert answer.choices[0].finish_reason == alone.finish_reason == "stop"
    assert answer.usage.total_tokens == (answer.usage.prompt_tokens
                                         + answer.usage.completion_tokens)
    *chunks, last = chat(stream=True, stream_options={"include_usage": True})
    assert [chunk.choices[0].delta.role for chunk in chunks] == ["assistant"] + [None] * (
        len(chunks) - 1)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == alone.text
    assert chunks[-1].choices[0].finish_reason == "stop" and len(chunks) > 4
    assert not last.choices
    assert last.usage.completion_tokens == answer.usage.completion_tokens
    assert all(chunk.usage is None and chunk.id == last.id for chunk in chunks)


def test_the_helper_for_streams_puts_them_together(client):
    with client.chat.completions.stream(model="smollm2", messages=CAPITAL, temperature=0,
                                        max_completion_tokens=24) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        assert stream.get_final_completion().choices[0].message.content == text
    assert "Paris" in text


def test_several_answers(chat):
    answers = chat(n=3, seed=1, temperature=1.2, max_completion_tokens=12).choices
    assert [answer.index for answer in answers] == [0, 1, 2]
    assert len({answer.message.content for answer in answers}) > 1
    texts = {0: "", 1: "", 2: ""}
    for chunk in chat(n=3, seed=1, temperature=1.2, max_completion_tokens=12, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert list(texts.values()) == [answer.message.content for answer in answers]


def test_a_stop_string_ends_the_answer_and_is_not_in_it(chat):
    whole = chat().choices[0].message.content
    before, _, _ = whole.partition("tal of Fr")             # neither end is that of a token
    answer = chat(stop=["never", "tal of Fr"]).choices[0]
    assert (answer.message.content, answer.finish_reason) == (before, "stop")
    assert before != whole
    assert before == "".join(chunk.choices[0].delta.content or ""
                             for chunk in chat(stop="tal of Fr", stream=True))


def test_the_same_seed_gives_the_same_text(chat):
    first, again, other = (
        chat(seed=seed, temperature=1, top_p=0.9).choices[0].message.content
        for seed in (5, 5, 6))
    assert first == again != other


def test_a_chats_log_probabilities(chat):
    answer = chat(logprobs=True, top_logprobs=3).choices[0]
    entries = answer.logprobs.content
    assert bytes(byte for entry in entries for byte in entry.bytes).decode() == (
        answer.message.content)
    for entry in entries:                                   # greedy: the chosen one is first
        assert entry.top_logprobs[0].token == entry.token
        assert entry.top_logprobs[0].logprob == entry.logprob <= 0
        assert len(entry.top_logprobs) == 3
    streamed = [entry for chunk in chat(logprobs=True, top_logprobs=3, stream=True)
                if chunk.choices[0].logprobs for entry in chunk.choices[0].logprobs.content]
    assert [entry.token for entry in streamed] == [entry.token for entry in entries]
    assert [entry.logprob for entry in streamed] == pytest.approx(
        [entry.logprob for entry in entries], abs=1e-4)


def test_an_answer_in_the_form_of_a_json_schema(chat):
    answer = chat([{"role": "user", "content": "Where is Rome? Answer in JSON."}],
                  response_format={"type": "json_schema",
                                   "json_schema": {"name": "place", "schema": PLACE}},
                  temperature=1, seed=3, max_completion_tokens=48)
    jsonschema.validate(json.loads(answer.choices[0].message.content), PLACE)
    answer = chat(response_format={"type": "json_object"}, max_completion_tokens=1)
    assert answer.choices[0].message.content.startswith("{")


def test_an_answer_as_an_object_of_pydantic(client):
    answer = client.chat.completions.parse(
        model="smollm2", messages=CAPITAL, response_format=Place, temperature=0,
        max_completion_tokens=48)
    assert isinstance(answer.choices[0].message.parsed, Place)
    response = client.responses.parse(model="smollm2", input="Where is the Louvre?",
                                      text_format=Place, temperature=0, max_output_tokens=48)
    assert isinstance(response.output_parsed, Place)


def test_a_tool_reaches_the_model_unchanged_and_its_call_comes_back(chat, server, smollm2):
    answer = chat(tools=[CANARY], tool_choice="required", max_completion_tokens=64).choices[0]
    prompt = smollm2.tokenizer.decode(server.requests[-1].prompt_ids)
    assert f"\n<tools>\n{json.dumps(CANARY, ensure_ascii=False)}\n</tools>\n" in prompt
    call, = answer.message.tool_calls
    assert answer.finish_reason == "tool_calls" and answer.message.content is None
    assert call.function.name == CANARY["function"]["name"]
    jsonschema.validate(json.loads(call.function.arguments), CANARY["function"]["parameters"])


def test_a_tool_of_the_responses_api_reaches_the_model_unchanged(client, server, smollm2):
    response = client.responses.create(
        model="smollm2", input="Tune it.", tool_choice="required", temperature=0,
        tools=[{"type": "function", **CANARY["function"]}], max_output_tokens=64)
    prompt = smollm2.tokenizer.decode(server.requests[-1].prompt_ids)
    assert f"\n<tools>\n{json.dumps(CANARY, ensure_ascii=False)}\n</tools>\n" in prompt
    call, = response.output
    assert (call.type, call.name, call.status) == ("function_call", CANARY["function"]["name"],
                                                   "completed")
    jsonschema.validate(json.loads(call.arguments), CANARY["function"]["parameters"])


def test_a_named_tool_is_called_and_no_other(chat):
    for name in ("get_time", "get_weather"):
        named = {"type": "function", "function": {"name": name}}
        for choice in (named, {"type": "allowed_tools", "allowed_tools": {
                "mode": "required", "tools": [named]}}):
            answer = chat(earlier_calls("Rome")[:1], tools=[WEATHER, TIME], tool_choice=choice,
                          max_completion_tokens=48)
            call, = answer.choices[0].message.tool_calls
            assert call.function.name == name
    assert json.loads(call.function.arguments) == {"city": "Rome"}


def test_the_model_calls_by_itself_what_it_has_called_before(chat):
    """A model of this size does as it did; without an example it seldom calls anything."""
    messages = [*earlier_calls("Rome", "Oslo"), earlier_calls("Paris")[0]]
    answer = chat(messages, tools=[WEATHER], tool_choice="auto",
                  max_completion_tokens=48).choices[0]
    call, = answer.message.tool_calls
    assert answer.finish_reason == "tool_calls"
    assert (call.function.name, json.loads(call.function.arguments)) == (
        "get_weather", {"city": "Paris"})
    silent = chat(messages, tools=[WEATHER], tool_choice="none", max_completion_tokens=4)
    assert silent.choices[0].message.tool_calls is None


@pytest.mark.parametrize("choice", ["required", "auto"])
def test_the_deltas_of_a_call_make_a_whole(chat, choice):
    messages = [*earlier_calls("Rome", "Oslo"), earlier_calls("Paris")[0]]
    calls: dict[int, SimpleNamespace] = {}
    for chunk in chat(messages, tools=[WEATHER], tool_choice=choice, stream=True,
                      max_completion_tokens=48):
        assert not chunk.choices[0].delta.content
        for delta in chunk.choices[0].delta.tool_calls or ():
            if delta.id is not None:                        # once for each, and first
                assert delta.index not in calls and delta.type == "function"
                calls[delta.index] = SimpleNamespace(name=delta.function.name, arguments="")
            calls[delta.index].arguments += delta.function.arguments
    assert chunk.choices[0].finish_reason == "tool_calls"
    assert calls.keys() == {0} and calls[0].name == "get_weather"
    assert json.loads(calls[0].arguments) == {"city": "Paris"}


def test_a_tool_made_of_a_type(openai, client):
    with client.chat.completions.stream(
            model="smollm2", messages=CAPITAL, temperature=0, max_completion_tokens=48,
            tools=[openai.pydantic_function_tool(Place)], tool_choice="required") as stream:
        done = [event for event in stream
                if event.type == "tool_calls.function.arguments.done"]
        call, = stream.get_final_completion().choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Place)
    assert [event.arguments for event in done] == [call.function.arguments]


def test_parameters_that_mean_nothing_are_named(client):
    answer = client.chat.completions.with_raw_response.create(
        model="smollm2", messages=CAPITAL, max_completion_tokens=1, user="me",
        reasoning_effort="low")
    assert answer.headers["x-ignored-parameters"] == "reasoning_effort, user"
    assert answer.parse().choices[0].finish_reason == "length"


def test_completions_of_texts_and_of_ids(client, lenient, smollm2):
    texts = ["Rome, Paris,", "One, two, three,"]
    ids = [smollm2.tokenizer.encode(text) for text in texts]
    alone = [smollm2.generate(text, max_tokens=8).text for text in texts]
    for prompt, expected in ((texts, alone), (ids, alone), (ids[0], alone[:1]),
                             (texts[1], alone[1:])):
        answer = client.completions.create(model="smollm2", prompt=prompt, max_tokens=8,
                                           temperature=0)
        assert [choice.text for choice in answer.choices] == expected
    chunks = lenient.completions.create(model="smollm2", prompt=texts[1], max_tokens=8,
                                        temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == alone[1]


def test_an_echo_has_the_prompts_log_probabilities(lenient, smollm2):
    text = "The quick brown fox jumps over the lazy dog, grüßt und geht."
    choice = lenient.completions.create(model="smollm2", prompt=text, max_tokens=0, echo=True,
                                        logprobs=2).choices[0]
    ids = smollm2.tokenizer.encode(text, add_special_tokens=True)
    rows = log_softmax(smollm2.model.forward(
        np.array(ids), np.arange(len(ids)), smollm2.model.new_cache(len(ids))))
    assert choice.text == text
    assert choice.logprobs.token_logprobs[0] is choice.logprobs.top_logprobs[0] is None
    assert choice.logprobs.token_logprobs[1:] == pytest.approx(
        rows[np.arange(len(ids) - 1), ids[1:]], abs=1e-3)
    for token, offset, top in zip(choice.logprobs.tokens, choice.logprobs.text_offset,
                                  choice.logprobs.top_logprobs):
        assert "\N{REPLACEMENT CHARACTER}" in token or text.startswith(token, offset)
        assert top is None or 2 <= len(top) <= 3 and token in top


def test_a_response_in_two_turns(client):
    first = client.responses.create(model="smollm2", input=CAPITAL[0]["content"],
                                    temperature=0, max_output_tokens=24)
    assert "Paris" in first.output_text and first.status == "completed"
    second = client.responses.create(
        model="smollm2", input="Tell me a story about a dog.", temperature=0,
        max_output_tokens=8, instructions="Be brief.", previous_response_id=first.id)
    assert second.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens
    assert (second.status, second.incomplete_details.reason) == ("incomplete",
                                                                 "max_output_tokens")
    assert client.responses.retrieve(first.id).output_text == first.output_text
    client.responses.delete(first.id)


def test_a_response_as_a_stream(client):
    whole = client.responses.create(model="smollm2", input=CAPITAL[0]["content"],
                                    temperature=0, max_output_tokens=24)
    with client.responses.stream(model="smollm2", input=CAPITAL[0]["content"], temperature=0,
                                 max_output_tokens=24) as stream:
        events = list(stream)
        assert stream.get_final_response().output_text == whole.output_text
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events
                   if event.type == "response.output_text.delta") == whole.output_text


def test_a_function_in_two_turns_of_the_responses_api(client):
    tools = [{"type": "function", **WEATHER["function"]}]
    asked = "What is the weather in Paris?"
    with client.responses.stream(model="smollm2", input=asked, tools=tools, temperature=0,
                                 tool_choice="required", max_output_tokens=48) as stream:
        pieces = "".join(event.delta for event in stream
                         if event.type == "response.function_call_arguments.delta")
        first = stream.get_final_response()
    call, = first.output
    assert (call.name, call.arguments) == ("get_weather", pieces)
    assert json.loads(pieces) == {"city": "Paris"}
    result = {"type": "function_call_output", "call_id": call.call_id,
              "output": "It is snowing in Paris."}
    second = client.responses.create(model="smollm2", input=[result], tools=tools,
                                     tool_choice="none", temperature=0, max_output_tokens=24,
                                     previous_response_id=first.id)
    assert "snow" in second.output_text
    by_hand = client.responses.create(
        model="smollm2", tools=tools, tool_choice="none", temperature=0, max_output_tokens=24,
        input=[{"role": "user", "content": asked}, call.model_dump(exclude_none=True), result])
    assert by_hand.output_text == second.output_text


def test_models(openai, client):
    assert [model.id for model in client.models.list()] == ["smollm2"]
    assert client.models.retrieve("smollm2").owned_by == "gearworks"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


@pytest.mark.parametrize("wrong, param", [
    ({"temperature": 9}, "temperature"), ({"top_logprobs": -1, "logprobs": True},
                                          "top_logprobs"),
    ({"n": 65}, "n"), ({"logit_bias": {"60000": 1}}, "logit_bias"),
    ({"messages": []}, "messages"), ({"messages": [{"role": "user", "content": "a " * 9000}]},
                                     "messages"),
    ({"response_format": {"type": "json_schema", "json_schema": {
        "name": "n", "schema": {"type": "colour"}}}}, "response_format"),
    ({"tools": [WEATHER, WEATHER]}, "tools")])
def test_what_is_wrong_has_a_name(openai, chat, wrong, param):
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            chat(stream=stream, **wrong)
        assert caught.value.param.startswith(param) and caught.value.body["message"]


def test_an_unknown_model(openai, chat):
    with pytest.raises(openai.NotFoundError) as caught:
        chat(model="gpt-4o")
    assert (caught.value.param, caught.value.code) == ("model", "model_not_found")


def test_a_wrong_key_and_a_full_queue(openai, small):
    options = {"base_url": f"{small.url}/v1", "max_retries": 0}
    asked = {"model": "smollm2", **COUNT}
    with openai.OpenAI(api_key="sesam", **options) as client:
        with pytest.raises(openai.AuthenticationError) as caught:
            client.models.list()
        assert caught.value.code == "invalid_api_key"
    with openai.OpenAI(api_key="sesame", **options) as client:
        with client.chat.completions.create(**asked, stream=True) as stream:
            next(stream)
            with pytest.raises(openai.RateLimitError) as caught:
                client.chat.completions.create(**asked)
        assert caught.value.code == "queue_full"
        assert int(caught.value.response.headers["retry-after"]) >= 1


def test_a_stream_that_is_closed_frees_its_blocks(client, server):
    before = idle(server)
    with client.chat.completions.create(model="smollm2", stream=True, **COUNT) as stream:
        next(stream)
        assert any(server.engine.pool.references)
    after = idle(server)
    assert after["vllm:kv_cache_usage_perc"] == 0 and not any(server.engine.pool.references)
    assert after["vllm:e2e_request_latency_seconds_count"] == (     # ours, and no other
        before["vllm:e2e_request_latency_seconds_count"] + 1)
    assert after["vllm:generation_tokens_total"] < before["vllm:generation_tokens_total"] + 400


def test_coroutines_share_a_batch_and_one_that_is_cancelled_frees_its_blocks(
        openai, server, chat):
    cities = ["France", "Italy", "Germany", "Norway"]

    def question(country):
        return [{"role": "user", "content": f"What is the capital of {country}?"}]

    async def answer(client, country, stream):
        answer = await client.chat.completions.create(
            model="smollm2", messages=question(country), temperature=0,
            max_completion_tokens=12, stream=stream)
        if not stream:
            return answer.choices[0].message.content
        return "".join([chunk.choices[0].delta.content or "" async for chunk in answer])

    async def together():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none",
                                      _strict_response_validation=True) as client:
            texts = await asyncio.gather(*(answer(client, country, stream=place % 2 == 0)
                                           for place, country in enumerate(cities)))
            whole = asyncio.create_task(client.chat.completions.create(model="smollm2",
                                                                       **COUNT))
            while server.service.engine.unfinished == 0:
                await asyncio.sleep(0.01)
            whole.cancel()
            await asyncio.gather(whole, return_exceptions=True)
            return texts

    server.engine.records.clear()
    texts = asyncio.run(together())
    assert max(len(record.rows) for record in server.engine.records) == len(cities)
    alone = [chat(question(country), max_completion_tokens=12).choices[0].message.content
             for country in cities]
    assert texts == alone
    idle(server)
    assert not any(server.engine.pool.references)


@pytest.fixture(scope="module")
def curl(server):
    """A function that runs curl on a path, and returns what it prints."""
    if shutil.which("curl") is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no curl on the path")

    def run(path, *arguments, body=None):
        sent = [] if body is None else ["-H", "Content-Type: application/json",
                                        "--data-binary", "@-"]
        return subprocess.run(
            ["curl", "--silent", "--show-error", "--noproxy", "*", *sent, *arguments,
             server.url + path], input=None if body is None else json.dumps(body).encode(),
            capture_output=True, check=True).stdout.decode()
    return run


def test_curl(curl):
    assert json.loads(curl("/health")) == {"status": "ok"}
    asked = {"messages": CAPITAL, "temperature": 0, "max_tokens": 24, "stream": True}
    *lines, last = filter(None, curl("/v1/chat/completions", "-N", body=asked).splitlines())
    assert last == "data: [DONE]" and all(line.startswith("data: {") for line in lines)
    assert "Paris" in "".join(
        json.loads(line.removeprefix("data: "))["choices"][0]["delta"].get("content") or ""
        for line in lines)
    body, status = curl("/v1/chat/completions", "-w", "\n%{http_code}",
                        body=asked | {"temperature": -1}).rsplit("\n", 1)
    assert status == "400" and json.loads(body)["error"]["param"] == "temperature"
