"""OpenAI's protocol: what is accepted and refused, and what goes back in its client's types."""

import inspect
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.resources import completions as completions_api
from openai.resources.chat import completions as chat_api
from openai.resources.responses import responses as responses_api
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import ValidationError

from gearworks.decoding import generate
from gearworks.errors import ModelError
from gearworks.samplers import SETTINGS, breaking_ids
from gearworks.sampling import TokenLogprob, logprobs
from gearworks.server.api_error import APIError
from gearworks.server.engine_request import InputProcessor
from gearworks.server.protocol import (chat_chunks, chat_completion, completion,
                                       completion_chunks, model_list, sse_event,
                                       validate_request)
from gearworks.server.reply import Reply
from gearworks.server.request_types import (ChatRequest, CompletionRequest, DetokenizeRequest,
                                            Limits, TokenizeRequest)
from gearworks.server.responses import ResponsesRequest
from gearworks.serving.request import Delta, Request

LIMITS = Limits(("smollm2", "other"), 49152, 100, 8)
HI = {"messages": [{"role": "user", "content": "Hi"}]}
CALL = '<tool_call>\n{"name": "now", "arguments": {"zone": "CET"}}\n</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "now"}}]


def valid(body, kind=ChatRequest):
    return validate_request(body, kind, LIMITS)[0]


def refused(body, kind=ChatRequest, status=400):
    """What the client reads when a body is refused."""
    with pytest.raises(APIError) as caught:
        validate_request(body, kind, LIMITS)
    assert caught.value.status == status
    error = caught.value.body()["error"]
    assert error.keys() == {"message", "type", "param", "code"} and error["message"]
    assert error["type"] == "invalid_request_error"
    json.dumps(error, ensure_ascii=False).encode()
    return error


# What is accepted

@pytest.mark.parametrize("kind, needed", [
    (ChatRequest, HI), (CompletionRequest, {"prompt": "a"}), (ResponsesRequest, {"input": "a"}),
    (TokenizeRequest, {"prompt": "a"}), (DetokenizeRequest, {"tokens": [1]})],
    ids=lambda part: getattr(part, "__name__", ""))
def test_null_is_absent_and_unknown_parameters_are_named(kind, needed):
    nulls = dict.fromkeys([*kind.model_fields.keys() - needed.keys(), "user", "verbosity"])
    request, ignored = validate_request(needed | nulls | {"service_tier": "auto",
                                                          "moderation": {"a": 1}}, kind, LIMITS)
    assert request == valid(needed, kind) and ignored == ["moderation", "service_tier"]


# Parameters of OpenAI's that mean nothing here: who asks, what it costs and how long it is kept
# there; sound, pictures, the web, thoughts and helpers that this server does not have; and what
# newer parameters have replaced
NOT_OURS = {"user", "safety_identifier", "service_tier", "prompt_cache_key",
            "prompt_cache_options", "prompt_cache_retention", "moderation", "access_programs",
            "audio", "modalities", "image", "web_search_options", "reasoning_effort",
            "reasoning", "verbosity", "prediction", "max_tool_calls", "background_options",
            "context_management", "truncation", "functions", "function_call", "best_of",
            "suffix"}


@pytest.mark.parametrize("kind, create, more", [
    (ChatRequest, chat_api.Completions.create, {"store", "metadata"}),
    (CompletionRequest, completions_api.Completions.create, set()),
    (ResponsesRequest, responses_api.Responses.create, set())],
    ids=["chat", "completions", "responses"])
def test_every_parameter_of_openais_client_is_ours_or_left_out_on_purpose(kind, create, more):
    known = inspect.signature(create).parameters.keys() - {
        "self", "extra_headers", "extra_query", "extra_body", "timeout"}
    assert known - kind.model_fields.keys() <= NOT_OURS | more


def test_messages_of_all_roles_and_content_in_parts():
    request = valid({"messages": [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"},
                                     {"type": "text", "text": "b"}], "name": None},
        {"role": "assistant", "content": None, "refusal": None, "reasoning_content": "hm",
         "tool_calls": [{"id": "1", "type": "function",
                         "function": {"name": "now", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "noon"}]})
    assert request.messages[1].text() == "a\nb" and request.messages[2].text() is None
    assert request.messages[2].model_dump()["reasoning_content"] == "hm"


def test_prompts_are_text_or_ids_or_several():
    for prompt, prompts in (("a", ["a"]), ([1, 2], [[1, 2]]), (["a", ""], ["a", ""]),
                            ([[1], [2, 3]], [[1], [2, 3]])):
        assert valid({"prompt": prompt}, CompletionRequest).prompts == prompts


def test_stop_is_one_text_or_several():
    assert valid(HI | {"stop": "END"}).stop == ["END"]
    assert valid(HI | {"stop": ["a", "b"]}).stop == ["a", "b"]
    assert valid(HI | {"stop": []}).stop == []


def test_a_whole_number_may_have_a_point():
    """As in JSON Schema: some clients write every number so."""
    whole = {"n": 2.0, "seed": -3.0, "max_tokens": 5.0, "top_k": 0.0, "priority": 1e3,
             "top_logprobs": 4.0, "stop_token_ids": [7.0, 8]}
    request = valid(HI | {"logprobs": True} | whole)
    for name, value in whole.items():
        got = getattr(request, name)
        assert got == value and not any(isinstance(each, float) for each in (
            got if isinstance(got, list) else [got]))
    for prompt in ([1.0, 2], [[1, 2.0], [3]]):
        prompts = valid({"prompt": prompt, "max_tokens": 0.0}, CompletionRequest).prompts
        assert all(type(id) is int for ids in prompts for id in ids)
    assert valid({"tokens": [1.0, 2]}, DetokenizeRequest).tokens == [1, 2]


# What is refused, with the parameter that caused it

BAD = [("messages", []), ("messages", "Hi"), ("messages", {}), ("messages", [7]),
       ("n", 0), ("n", 9), ("n", 129), ("n", True), ("n", 1.5), ("n", "2"), ("n", 10 ** 400),
       ("temperature", -0.1), ("temperature", 2.1), ("temperature", "1"),
       ("temperature", True), ("temperature", 10 ** 400), ("temperature", math.nan),
       ("temperature", math.inf), ("top_p", 1.01), ("top_p", []), ("top_k", -2),
       ("top_k", 2 ** 40), ("min_p", -1), ("repetition_penalty", 0),
       ("presence_penalty", 3), ("frequency_penalty", -3), ("seed", 2 ** 63), ("seed", 1.5),
       ("stop", ""), ("stop", 7), ("stop", ["x"] * 65), ("stop_token_ids", [49152]),
       ("stop_token_ids", "2"), ("logit_bias", {"49152": 1}), ("logit_bias", {"a": 1}),
       ("logit_bias", {"-1": 1}), ("logit_bias", {"1": 101}), ("logit_bias", {"1": "1"}),
       ("logit_bias", [1]), ("stream", 1), ("stream", "true"), ("ignore_eos", 1),
       ("priority", 2 ** 40), ("max_tokens", 0), ("max_tokens", 101), ("max_tokens", -1),
       ("max_completion_tokens", 10 ** 30), ("max_completion_tokens", True),
       ("logprobs", 5), ("top_logprobs", -1), ("top_logprobs", 21), ("top_logprobs", True),
       ("response_format", "json"), ("response_format", {"type": "xml"}),
       ("min_tokens", -1), ("min_tokens", 101), ("dry_multiplier", -1), ("dry_base", 0.5),
       ("dry_allowed_length", 0), ("dry_penalty_last_n", -2), ("dry_sequence_breakers", [""]),
       ("dry_sequence_breakers", ["x"] * 65), ("xtc_probability", 1.1),
       ("xtc_threshold", "0.1"), ("top_n_sigma", -1), ("dynatemp_range", 3),
       ("dynatemp_exponent", -1),
       ("tools", {}), ("tools", TOOLS * 2), ("tool_choice", "maybe"),
       ("tool_choice", "required"), ("stream_options", True), ("model", 7)]


@pytest.mark.parametrize("name, value", BAD)
def test_a_bad_value_is_named(name, value):
    error = refused(HI | {"logprobs": True} | {name: value})
    assert error["param"].partition("[")[0] == name and error["param"] in error["message"]


@pytest.mark.parametrize("body, param", [
    ({}, "messages"), ({"messages": None}, "messages"),
    (HI | {"logprobs": False, "top_logprobs": 1}, "top_logprobs"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "assistant", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [*HI["messages"], {"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages[1].content[0].type"),
    (HI | {"stop": ["a", ""]}, "stop[1]"),
    (HI | {"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    (HI | {"tools": [{"type": "custom"}]}, "tools[0].type"),
    (HI | {"tools": [{"type": "function", "function": {"name": "a b"}}]},
     "tools[0].function.name"),
    (HI | {"tools": [{"type": "function", "function": {"name": "a", "parameters": []}}]},
     "tools[0].function.parameters"),
    (HI | {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}},
     "tool_choice"),
    (HI | {"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice.function"),
    (HI | {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": 5}}},
     "tool_choice.function.name"),
    (HI | {"tools": TOOLS, "tool_choice": {"type": "custom"}}, "tool_choice"),
    (HI | {"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools": {
        "mode": "auto", "tools": [{"type": "function", "function": {"name": "x"}}]}}},
     "tool_choice"),
    (HI | {"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools": {
        "mode": "none", "tools": []}}}, "tool_choice.allowed_tools.mode"),
    (HI | {"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools": {
        "mode": "auto", "tools": []}}}, "tool_choice.allowed_tools.tools"),
    (HI | {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
     "response_format.json_schema.schema"),
    (HI | {"user": "\ud800"}, "user"), (HI | {"\ud800": 1}, "\\ud800"),
    (HI | {"metadata": {"a": math.nan}}, "metadata"),
    (HI | {"seed": 10 ** 5000}, "seed")])
def test_the_path_to_a_bad_value_is_named(body, param):
    assert refused(body)["param"] == param


@pytest.mark.parametrize("prompt, param", [
    (None, "prompt"), (7, "prompt"), ([], "prompt"), ([[]], "prompt[0]"), ([1, "a"], "prompt"),
    ([True], "prompt[0]"), ([-1], "prompt[0]"), ([49152], "prompt"), ([[1], [49152]], "prompt"),
    ([1.5], "prompt[0]"), ([10 ** 30], "prompt[0]"), (["a"] * 1025, "prompt"), ({}, "prompt")])
def test_a_bad_prompt_is_named(prompt, param):
    assert refused({"prompt": prompt}, CompletionRequest)["param"].startswith(param)


def test_a_request_has_so_many_answers_at_most():
    """Prompts times n: else one line asks for work of hours, and everybody else waits."""
    assert valid({"prompt": ["a"] * 128, "n": 8}, CompletionRequest).n == 8
    error = refused({"prompt": ["a"] * 129, "n": 8}, CompletionRequest)
    assert error["param"] == "prompt" and "1032 answers" in error["message"]
    refused({"prompt": [[1]] * 1024, "n": 2}, CompletionRequest)


def test_what_is_only_too_long_is_called_so():
    error = refused({"prompt": ["a"] * 1025}, CompletionRequest)
    assert error["param"] == "prompt" and "1024 items" in error["message"]


MANY = 20_000


@pytest.mark.parametrize("kind, body, param", [
    (CompletionRequest, {"prompt": [1.5] * MANY}, "prompt"),
    (CompletionRequest, {"prompt": [[1]] * MANY}, "prompt"),
    (CompletionRequest, {"prompt": [[1], [1.5] * MANY]}, "prompt"),
    (CompletionRequest, {"prompt": [7, *["a"] * MANY]}, "prompt"),
    (CompletionRequest, {"prompt": "a", "stop": [7] * MANY}, "stop"),
    (CompletionRequest, {"prompt": "a", "stop_token_ids": ["x"] * MANY}, "stop_token_ids"),
    (DetokenizeRequest, {"tokens": ["x"] * MANY}, "tokens"),
    (ChatRequest, {"messages": [{"role": "robot", "content": 7}] * MANY}, "messages"),
    (ChatRequest, {"messages": HI["messages"] * MANY}, "messages"),
    (ChatRequest, {"messages": [{"role": "user", "content": [{"type": "x"}] * MANY}]},
     "messages"),
    (ChatRequest, {"messages": [{"role": "assistant", "tool_calls": [{"type": "x"}] * MANY}]},
     "messages"),
    (ResponsesRequest, {"input": [{"type": "x"}] * MANY}, "input"),
    (ResponsesRequest, {"input": [{"role": "user", "content": [{"type": "x"}] * MANY}]},
     "input"),
    (ResponsesRequest, {"input": "a", "include": [7] * MANY}, "include"),
    (ResponsesRequest, {"input": "a", "metadata": {str(i): 7 for i in range(MANY)}},
     "metadata")])
def test_a_long_list_has_few_errors(kind, body, param):
    """To collect one for each of its elements takes seconds, and nobody else is answered."""
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(body)
    assert caught.value.error_count() < 10
    assert refused(body, kind)["param"].startswith(param)


def test_the_logprobs_of_completions_are_bounded():
    for logprobs_ in (-1, 21, True, 1.5):
        assert refused({"prompt": "a", "logprobs": logprobs_},
                       CompletionRequest)["param"] == "logprobs"


def test_an_unknown_model_is_not_found():
    error = refused(HI | {"model": "gpt-7"}, status=404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert valid(HI | {"model": "other"}).model == "other"


def test_nesting_that_is_too_deep_is_refused():
    deep = []
    for _ in range(200_000):
        deep = [deep]
    assert refused(HI | {"metadata": deep})["param"] == "metadata"
    while deep:                                             # taken apart without recursion
        deep = deep.pop()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(
        st.characters(exclude_categories=()), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["role", "content", "type", "text", "function", "name", "parameters",
                         "json_schema", "schema", "tool_calls", "1", "x"]), inner, max_size=4)
    | st.sampled_from(["user", "assistant", "function", "text", "json_schema", "required"]),
    max_leaves=12)


@given(st.sampled_from([ChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest]),
       st.data())
@settings(max_examples=400, deadline=None)
def test_any_json_is_a_request_or_an_api_error(kind, data):
    names = st.sampled_from([*kind.model_fields, "unknown"])
    body = data.draw(json_values | st.dictionaries(names, json_values, max_size=6))
    body = HI | {"prompt": "a", "tokens": [1]} | body if isinstance(body, dict) and (
        data.draw(st.booleans())) else body
    try:
        request, ignored = validate_request(body, kind, LIMITS)
    except APIError as error:
        assert error.status in (400, 404)
        sse_event(error.body())
    else:
        assert isinstance(request, kind) and all(name in body for name in ignored)


def test_the_json_schemas_of_requests_can_be_published():
    """The OpenAPI document is made of them."""
    for kind in (ChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest):
        assert kind.model_json_schema()["properties"]


# Events

@given(st.recursive(st.none() | st.integers() | st.text(),
                    lambda inner: st.dictionaries(st.text(), inner)).filter(
                        lambda value: isinstance(value, dict)))
def test_an_event_is_one_line_of_json(data):
    event = sse_event(data)
    assert event.startswith(b"data: ") and event.endswith(b"\n\n")
    assert event.count(b"\n") == 2 and b"\r" not in event
    assert json.loads(event[6:]) == data


def test_an_event_may_have_a_name():
    assert sse_event({"a": 1}, "response.created") == (
        b'event: response.created\ndata: {"a":1}\n\n')


# Answers. Deltas are written here as the engine writes them.

def deltas_of(request, texts, finish_reason="stop", index=0, **first):
    """One answer's deltas: a token a text."""
    rows = [Delta(request.id, index, text, (9 + number,)) for number, text in enumerate(texts)]
    rows[0] = replace(rows[0], **first)
    return [*rows[:-1], replace(rows[-1], finish_reason=finish_reason)]


def chat(body, tokenizer, requests=None):
    request = valid(HI | body)
    requests = requests or [Request([1, 2, 3], n=request.n)]
    return requests[0], lambda: Reply(request, requests, tokenizer, "smollm2")


def test_a_chat_in_chunks(smollm2):
    request, reply = chat({"stream": True}, smollm2.tokenizer)
    chunks = list(chat_chunks(deltas_of(request, ["He", "", "llo"]), reply()))
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": ""}, {"content": "He"}, {"content": "llo"}, {}]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None,
                                                                          "stop"]
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    for chunk in chunks:
        assert "usage" not in chunk
        assert ChatCompletionChunk.model_validate(chunk, strict=True).id.startswith("chatcmpl-")


def test_usage_comes_only_when_asked_for_and_last(smollm2):
    request, reply = chat({"stream_options": {"include_usage": True}}, smollm2.tokenizer)
    *chunks, last = chat_chunks(deltas_of(request, ["a", "b"], cached_tokens=2), reply())
    assert last["choices"] == [] and last["usage"] == {
        "prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 2}}
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks)
    ChatCompletionChunk.model_validate(last, strict=True)


@pytest.mark.parametrize("include_usage", [False, True])
def test_answers_that_interleave(smollm2, include_usage):
    """Each has its role once, and the usage waits for all."""
    request, reply = chat({"n": 2, "stream_options": {"include_usage": include_usage}},
                          smollm2.tokenizer)
    one = deltas_of(request, ["a", "b"], cached_tokens=1)
    two = deltas_of(request, ["c", "d", "e"], "length", index=1, cached_tokens=1)
    mixed = [two[0], one[0], one[1], two[1], two[2]]
    chunks = list(chat_chunks(mixed, reply()))
    for index, text, reason in ((0, "ab", "stop"), (1, "cde", "length")):
        mine = [choice for chunk in chunks for choice in chunk["choices"]
                if choice["index"] == index]
        assert [bool(choice["delta"].get("role")) for choice in mine] == [
            True, *[False] * len(text), False]
        assert "".join(choice["delta"].get("content", "") for choice in mine) == text
        assert mine[-1]["finish_reason"] == reason
    assert [bool(chunk.get("usage")) for chunk in chunks] == (
        [False] * (len(chunks) - 1) + [include_usage])
    whole = chat_completion(mixed, reply())
    assert whole["usage"] == {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8,
                              "prompt_tokens_details": {"cached_tokens": 1}}
    assert [choice["message"]["content"] for choice in whole["choices"]] == ["ab", "cde"]
    ChatCompletion.model_validate(whole, strict=True)


def test_chunks_come_whenever_deltas_come(smollm2):
    """One call a step gives what one call for all gives, and nothing before there is some."""
    request, reply = chat({"stream_options": {"include_usage": True}}, smollm2.tokenizer)
    deltas = deltas_of(request, ["a", "b", "c"])
    together, reply = reply(), reply()
    stepwise = [list(chat_chunks([delta], reply)) for delta in deltas]
    assert [len(chunks) for chunks in stepwise] == [2, 1, 3]
    assert list(chat_chunks([], reply)) == [] or reply.done
    whole = list(chat_chunks(deltas, together))
    assert [chunk | reply.head for chunk in whole] == [chunk for chunks in stepwise
                                                       for chunk in chunks]


def test_a_tool_call_streams_and_ends_with_tool_calls(smollm2):
    request, reply = chat({"tools": TOOLS}, smollm2.tokenizer)
    deltas = deltas_of(request, ["Let me", " see. ", *CALL, "\n"])
    chunks = list(chat_chunks(deltas, reply()))
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk, strict=True)
    pieces = [chunk["choices"][0]["delta"] for chunk in chunks]
    (first,), (second,) = [piece["tool_calls"] for piece in pieces if "tool_calls" in piece]
    assert first == {"index": 0, "id": first["id"], "type": "function",
                     "function": {"name": "now", "arguments": ""}}
    assert second == {"index": 0, "function": {"arguments": '{"zone": "CET"}'}}
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    whole = chat_completion(deltas, reply())
    (choice,) = ChatCompletion.model_validate(whole, strict=True).choices
    assert choice.message.content == "Let me see." and choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls[0].function.arguments == '{"zone": "CET"}'


def test_a_call_alone_has_no_content(smollm2):
    request, reply = chat({"tools": TOOLS}, smollm2.tokenizer)
    whole = chat_completion(deltas_of(request, [CALL]), reply())
    assert whole["choices"][0]["message"]["content"] is None


def test_a_call_before_the_length_ran_out_does_not_hide_that(smollm2):
    request, reply = chat({"tools": TOOLS}, smollm2.tokenizer)
    whole = chat_completion(deltas_of(request, [CALL, "<tool_call>"], "length"), reply())
    (choice,) = whole["choices"]
    assert choice["finish_reason"] == "length" and choice["message"]["content"] == "<tool_call>"
    assert len(choice["message"]["tool_calls"]) == 1


def test_calls_stay_text_where_no_tools_were_offered(smollm2):
    for body in ({}, {"tools": TOOLS, "tool_choice": "none"}, {"tools": []}):
        request, reply = chat(body, smollm2.tokenizer)
        (choice,) = chat_completion(deltas_of(request, [CALL]), reply())["choices"]
        assert choice["message"]["content"] == CALL and choice["finish_reason"] == "stop"


@given(text=st.lists(st.sampled_from([CALL, "<tool_", "call>", " ", "\n", "é", "{", "}", '"']),
                     max_size=6).map("".join), cuts=st.lists(st.integers(1, 90), max_size=6),
       tools=st.booleans(), size=st.integers(1, 4))
@settings(max_examples=200, deadline=None)
def test_streamed_equals_unstreamed(smollm2, text, cuts, tools, size):
    """However the engine cuts a text into deltas and the server takes them."""
    request, reply = chat({"tools": TOOLS} if tools else {}, smollm2.tokenizer)
    borders = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    texts = [text[start:end] for start, end in zip(borders, borders[1:])] or [""]
    deltas, reply_ = deltas_of(request, texts), reply()
    chunks = [chunk for start in range(0, len(deltas), size)
              for chunk in chat_chunks(deltas[start:start + size], reply_)]
    pieces = [chunk["choices"][0]["delta"] for chunk in chunks]
    (whole,) = chat_completion(deltas_of(request, [text]), reply())["choices"]
    assert "".join(piece.get("content", "") for piece in pieces) == (
        whole["message"]["content"] or "")
    arguments = [call["function"]["arguments"] for piece in pieces
                 for call in piece.get("tool_calls", ())]
    assert "".join(arguments) == "".join(call["function"]["arguments"] for call in
                                         whole["message"].get("tool_calls", ()))
    assert chunks[-1]["choices"][0]["finish_reason"] == whole["finish_reason"]


def test_log_probabilities_of_a_chat(smollm2):
    """Every token's come, also of tokens whose text is still held back."""
    tokenizer = smollm2.tokenizer
    ids = tokenizer.encode("a 🦜")                           # a character of several tokens
    assert len(ids) > 2
    entries = [TokenLogprob(id, -0.5, ((id, -0.5), (5, -math.inf))) for id in ids]
    request, reply = chat({"logprobs": True, "top_logprobs": 2}, tokenizer)
    deltas = [Delta(request.id, 0, "", (id,), (entry,)) for id, entry in zip(ids, entries)]
    deltas[-1] = replace(deltas[-1], text="a 🦜", finish_reason="stop")
    streamed = [entry for chunk in chat_chunks(deltas, reply())
                for entry in (chunk["choices"][0]["logprobs"] or {}).get("content", ())]
    whole = chat_completion(deltas, reply())
    assert whole["choices"][0]["logprobs"]["content"] == streamed
    ChatCompletion.model_validate(whole, strict=True)
    assert bytes(byte for entry in streamed for byte in entry["bytes"]) == "a 🦜".encode()
    assert streamed[0]["token"] == "a" and "\ufffd" in streamed[-1]["token"]
    assert streamed[0]["top_logprobs"][1]["logprob"] == -9999.0
    sse_event(whole)


def test_a_failure_ends_a_reply(smollm2):
    request, reply = chat({}, smollm2.tokenizer)
    failed = Delta(request.id, 0, finish_reason="error", error=ModelError("a", "b", "c"))
    with pytest.raises(APIError) as caught:
        list(chat_chunks([Delta(request.id, 0, "x", (1,)), failed], reply()))
    assert caught.value.status == 500 and "a: b" in caught.value.message
    with pytest.raises(APIError) as caught:
        chat_completion([Delta(request.id, 0, finish_reason="abort")], reply())
    assert caught.value.status == 503 and caught.value.body()["error"]["type"] == "server_error"


def completions(body, tokenizer, prompts):
    request = valid({"prompt": prompts} | body, CompletionRequest)
    requests = [Request(tokenizer.encode(prompt) if isinstance(prompt, str) else prompt,
                        n=request.n) for prompt in request.prompts]
    return requests, lambda: Reply(request, requests, tokenizer, "smollm2")


def test_completions_of_several_prompts(smollm2):
    (one, two), reply = completions({"n": 2, "echo": True}, smollm2.tokenizer, ["A", "B c"])
    deltas = [row for request, offset in ((two, 2), (one, 0)) for index in (1, 0)
              for row in deltas_of(request, ["x", str(offset + index)], index=index)]
    whole = completion(deltas, reply())
    Completion.model_validate(whole, strict=True)
    assert [(choice["index"], choice["text"]) for choice in whole["choices"]] == [
        (0, "Ax0"), (1, "Ax1"), (2, "B cx2"), (3, "B cx3")]
    assert whole["usage"]["prompt_tokens"] == 3 and whole["usage"]["completion_tokens"] == 8
    reply = reply()
    chunks = list(completion_chunks(deltas, reply))
    assert reply.done and all(chunk["object"] == "text_completion" for chunk in chunks)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "B cx3B cx2Ax1Ax0"
    assert "usage" not in chunks[-1]


def scored(model, ids, top):
    """What the engine gives for `echo` and `logprobs`, from the model's own logits."""
    rows = model.model.forward(np.array(ids), np.arange(len(ids)),
                               model.model.new_cache(len(ids)), logits_at=slice(None))
    return (None, *(logprobs(row, id, top) for row, id in zip(rows, ids[1:]))), rows[-1]


@pytest.mark.parametrize("text", ["The sky is blue today", "naïve 🦜 parrots"])
def test_echo_with_log_probabilities_is_what_lm_eval_reads(client_library, smollm2, text):
    """Source of truth: lm-eval's own parser, and the sum of the model's log-softmax."""
    tokenizer = smollm2.tokenizer
    ids = tokenizer.encode(text)
    (request,), reply = completions({"echo": True, "logprobs": 1, "max_tokens": 1}, tokenizer,
                                    [ids])
    prompt_logprobs, last = scored(smollm2, ids, 1)
    best = logprobs(last, int(last.argmax()), 1)
    delta = Delta(request.id, 0, tokenizer.decode([best.id]), (best.id,), (best,), "length",
                  prompt_logprobs=prompt_logprobs)
    whole = completion([delta], reply())
    Completion.model_construct(**whole)
    found = whole["choices"][0]["logprobs"]
    assert all(len(values) == len(ids) + 1 for values in found.values())
    assert found["token_logprobs"][0] is None and found["top_logprobs"][0] is None
    assert whole["choices"][0]["text"] == text + tokenizer.decode([best.id])
    # each token begins where the text says
    assert found["text_offset"][0] == 0 and found["text_offset"][-1] == len(text)
    for token, offset in zip(found["tokens"], found["text_offset"]):
        if "\ufffd" not in token:
            assert whole["choices"][0]["text"][offset:].startswith(token)
    of_lm_eval = client_library("lm_eval.models.openai_completions").LocalCompletionsAPI
    whole = json.loads(json.dumps(whole))
    for context in (1, 2):
        ((score, greedy),) = of_lm_eval.parse_logprobs(whole, [ids], [context])
        expected = [entry.logprob for entry in prompt_logprobs[context:]]
        assert score == sum(expected)
        assert greedy == all(entry.id == entry.top[0][0] for entry in prompt_logprobs[context:])
    with pytest.raises(AssertionError):
        of_lm_eval.parse_logprobs(whole, [ids], [0])


def test_tokens_that_read_the_same_do_not_hide_the_likelier(smollm2):
    """Parts of characters all read U+FFFD; lm-eval compares with the largest."""
    tokenizer = smollm2.tokenizer
    one, two = [id for id in range(1000) if tokenizer.decode([id]) == "\ufffd"][:2]
    (request,), reply = completions({"logprobs": 1}, tokenizer, [[1]])
    entry = TokenLogprob(two, -3.0, ((one, -1.0),))
    delta = Delta(request.id, 0, "", (two,), (entry,), "length")
    found = completion([delta], reply())["choices"][0]["logprobs"]
    assert found["top_logprobs"] == [{"\ufffd": -1.0}] and found["token_logprobs"] == [-3.0]


def test_a_bos_that_the_prompt_does_not_show_has_no_place(smollm2):
    tokenizer = smollm2.tokenizer
    request = valid({"prompt": "Hi you", "echo": True, "logprobs": 0}, CompletionRequest)
    made = Request([1, *tokenizer.encode("Hi you")])        # as with a tokenizer that adds one
    delta = Delta(made.id, 0, "", (), (), "length", prompt_logprobs=(
        None, *(TokenLogprob(id, -1.0) for id in made.prompt_ids[1:])))
    whole = completion([delta], Reply(request, [made], tokenizer, "m"))["choices"][0]
    assert whole["text"] == "Hi you" and whole["logprobs"]["text_offset"] == [0, 0, 2]


def test_the_list_of_models():
    listed = model_list(LIMITS, 7)
    assert [Model.model_validate(each).id for each in listed["data"]] == ["smollm2", "other"]


# For the engine

def made(model, body, kind=ChatRequest, limits=LIMITS):
    return InputProcessor(model, limits).requests(validate_request(body, kind, limits)[0])


def test_parameters_reach_the_engine(smollm2):
    (request,) = made(smollm2, HI | {
        "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "repetition_penalty": 1.5,
        "presence_penalty": 0.5, "frequency_penalty": -0.5, "seed": 3, "n": 2,
        "logit_bias": {"5": -100, "06": 2}, "stop": ["a", "b"], "stop_token_ids": [4],
        "ignore_eos": True, "priority": -1, "max_tokens": 9, "logprobs": True})
    params = request.params
    assert (params.temperature, params.top_p, params.top_k, params.min_p, params.seed,
            params.repetition_penalty, params.presence_penalty, params.frequency_penalty) == (
                0.5, 0.9, 7, 0.1, 3, 1.5, 0.5, -0.5)
    assert params.logit_bias == {5: -100, 6: 2}
    assert (request.stop, request.stop_ids, request.n, request.ignore_eos, request.priority,
            request.max_tokens, request.top_logprobs, request.grammar) == (
                ("a", "b"), (4,), 2, True, -1, 9, 0, None)
    assert smollm2.tokenizer.decode(request.prompt_ids) == smollm2.chat_prompt(HI["messages"])


def test_samplers_of_other_engines_reach_the_engine(smollm2):
    settings = {"min_tokens": 3, "dry_multiplier": 0.8, "dry_base": 2.0,
                "dry_allowed_length": 3, "dry_penalty_last_n": 64, "xtc_probability": 0.5,
                "xtc_threshold": 0.2, "top_n_sigma": 1.5, "dynatemp_range": 0.25,
                "dynatemp_exponent": 2.0}
    assert {*settings} == {*SETTINGS}
    (request,) = made(smollm2, HI | settings | {"dry_sequence_breakers": [":"],
                                                "stop_token_ids": [4]})
    others = request.params.others
    assert {name: getattr(others, name) for name in settings} == settings
    assert others.ending_ids == {4, *smollm2.eos_ids}
    assert others.dry_breakers == breaking_ids(smollm2.tokenizer, [":"])


def test_defaults_are_openais(smollm2):
    (request,) = made(smollm2, HI)
    assert request.params.temperature == 1 and request.params.seed is None
    assert request.params.others is None
    assert request.max_tokens == 100 - len(request.prompt_ids)      # what room there is
    assert request.top_logprobs is None and request.prompt_logprobs is None
    (request,) = made(smollm2, {"prompt": "Hi"}, CompletionRequest)
    assert request.max_tokens == 16 and not request.ignore_eos


@pytest.mark.parametrize("sent, engine", [
    ({"temperature": 0}, {"temperature": 0}), ({"temperature": 1e-9}, {"temperature": 0}),
    ({"top_k": -1}, {"top_k": 0}), ({"top_p": 0}, {"top_p": 1e-9}),
    ({"seed": -1}, {"seed": 2 ** 64 - 1}), ({"repetition_penalty": 1e-9},
                                            {"repetition_penalty": 1e-6})])
def test_bounds_of_the_engine_are_met(smollm2, sent, engine):
    params = made(smollm2, HI | sent)[0].params
    assert {name: getattr(params, name) for name in engine} == engine


def test_max_completion_tokens_is_the_newer_name(smollm2):
    assert made(smollm2, HI | {"max_completion_tokens": 5})[0].max_tokens == 5


def test_the_context_is_a_bound(smollm2):
    long = {"messages": [{"role": "user", "content": "a " * 200}]}
    for body, kind, param in ((long, ChatRequest, "messages"),
                              ({"prompt": "a " * 200}, CompletionRequest, "prompt"),
                              ({"prompt": [1] * 100}, CompletionRequest, "prompt")):
        with pytest.raises(APIError) as caught:
            made(smollm2, body, kind)
        assert (caught.value.status, caught.value.param, caught.value.code) == (
            400, param, "context_length_exceeded")
    (request,) = made(smollm2, {"prompt": [1] * 99, "max_tokens": 50}, CompletionRequest)
    assert request.max_tokens == 1                          # it ends with "length"
    (request,) = made(smollm2, {"prompt": [1] * 100, "max_tokens": 0}, CompletionRequest)
    assert request.max_tokens == 0


def test_an_empty_prompt_is_refused(smollm2):
    with pytest.raises(APIError) as caught:
        made(smollm2, {"prompt": ["a", ""]}, CompletionRequest)
    assert caught.value.param == "prompt"


def test_what_lm_eval_asks_for(smollm2):
    """One token is always generated, whatever it is, since lm-eval takes off the last entry."""
    requests = made(smollm2, {"prompt": [[5, 6], [7]], "temperature": 0, "max_tokens": 1,
                              "logprobs": 1, "seed": 1234, "echo": True}, CompletionRequest)
    assert [list(request.prompt_ids) for request in requests] == [[5, 6], [7]]
    assert all(request.prompt_logprobs == request.top_logprobs == 1 and request.ignore_eos
               for request in requests)


def test_a_template_that_refuses_is_the_clients_matter(smollm2):
    strict = replace(smollm2, settings={"chat_template": "{{ raise_exception('no system') }}"})
    with pytest.raises(APIError) as caught:
        made(strict, HI)
    assert (caught.value.status, caught.value.param) == (400, "messages")
    assert "no system" in caught.value.message


@pytest.mark.parametrize("response_format, check", [
    ({"type": "json_object"}, lambda value: isinstance(value, dict)),
    ({"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": {
        "type": "object", "properties": {"warm": {"type": "boolean"}}, "required": ["warm"],
        "additionalProperties": False}}}, lambda value: isinstance(value["warm"], bool))])
def test_an_answer_has_the_form_that_was_asked_for(smollm2, response_format, check):
    (request,) = made(smollm2, {"response_format": response_format, "temperature": 0,
                                "messages": [{"role": "user", "content": "Is it warm? {}"}]})
    generation = generate(smollm2.model, smollm2.tokenizer,
                          smollm2.tokenizer.decode(request.prompt_ids), params=request.params,
                          eos_ids=smollm2.eos_ids, grammar=request.grammar(), max_tokens=40)
    if generation.finish_reason == "stop":
        assert check(json.loads(generation.text))
    assert generation.text.startswith("{")


@pytest.mark.parametrize("schema", [
    {"type": "strang"}, {"$ref": "#/gone"}, {"pattern": "(?=a)"}, {"anyOf": []},
    {"not": {}}, {"$ref": "https://example.com/schema"}])
def test_a_hostile_schema_is_refused(smollm2, schema):
    with pytest.raises(APIError) as caught:
        made(smollm2, HI | {"response_format": {
            "type": "json_schema", "json_schema": {"name": "x", "schema": schema}}})
    assert (caught.value.status, caught.value.param) == (400, "response_format")


def test_ids_are_bounded_by_their_ends_alone():
    """One by one, a hundred thousand took longer than to read them."""
    limits = replace(LIMITS, vocab_size=10)
    few, many = (len([*CompletionRequest(prompt=[3] * count).bounded(limits)])
                 for count in (2, 100_000))
    assert few == many
    for tokens in ([10, 1, 1], [1, 10, 1], [1, 1, 10]):
        for kind, name in ((CompletionRequest, "prompt"), (DetokenizeRequest, "tokens")):
            with pytest.raises(APIError, match=f"{name} is 10; it can be from 0 to 9"):
                validate_request({name: tokens}, kind, limits)
