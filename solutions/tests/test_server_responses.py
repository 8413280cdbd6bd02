"""The Responses API: read as a chat, written as the events that OpenAI's client knows."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from gearworks.errors import ModelError
from gearworks.sampling import TokenLogprob
from gearworks.server.api_error import APIError
from gearworks.server.engine_request import InputProcessor
from gearworks.server.protocol import sse_event, validate_request
from gearworks.server.reply import Reply
from gearworks.server.request_types import ChatRequest, Limits
from gearworks.server.response_events import ResponseReply, whole_response
from gearworks.server.responses import (ResponsesRequest, ResponseStore, chat_request,
                                        conversation)
from gearworks.serving.request import Delta, Request

LIMITS = Limits(("smollm2",), 49152, 2048, 8)
EVENT = TypeAdapter(ResponseStreamEvent)
NOW = {"type": "function", "name": "now", "parameters": {"type": "object", "properties": {}},
       "strict": False}
CALL = '<tool_call>\n{"name": "now", "arguments": {"zone": "CET"}}\n</tool_call>'


def as_chat(body, store=None):
    """A body as its request, and as a chat."""
    request, _ = validate_request(body, ResponsesRequest, LIMITS)
    messages = conversation(request, store or ResponseStore())
    return request, chat_request(request, messages, LIMITS)


def messages_of(body, store=None):
    return [message.model_dump(exclude_unset=True)
            for message in as_chat(body, store)[1].messages]


def refused(body, store=None):
    with pytest.raises(APIError) as caught:
        as_chat(body, store)
    assert caught.value.status == 400
    return caught.value.param


def test_a_text_is_a_message_of_the_user():
    assert messages_of({"input": "Hi", "instructions": "Be brief."}) == [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]


def test_items_are_messages():
    """As a client sends them back: earlier output, calls and their results."""
    items = [{"role": "developer", "content": [{"type": "input_text", "text": "a"},
                                               {"type": "input_text", "text": "b"}]},
             {"type": "message", "role": "user", "content": "What time is it?"},
             {"type": "reasoning", "id": "rs_1", "summary": []},
             {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
              "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}]},
             {"type": "function_call", "id": "fc_1", "call_id": "1", "name": "now",
              "arguments": "{}"},
             {"type": "function_call", "call_id": "2", "name": "now", "arguments": "{}"},
             {"type": "function_call_output", "call_id": "1", "output": "noon"},
             {"type": "function_call_output", "call_id": "2",
              "output": [{"type": "input_text", "text": "night"}]}]

    def call(id):
        return {"id": id, "type": "function", "function": {"name": "now", "arguments": "{}"}}
    assert messages_of({"input": items}) == [
        {"role": "developer", "content": "a\nb"},
        {"role": "user", "content": "What time is it?"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [call("1"), call("2")]},
        {"role": "tool", "tool_call_id": "1", "content": "noon"},
        {"role": "tool", "tool_call_id": "2", "content": "night"}]


def test_parameters_are_those_of_a_chat():
    _, chat = as_chat({"input": "Hi", "model": "smollm2", "max_output_tokens": 7, "seed": 1,
                       "temperature": 0.5, "top_p": 0.5, "top_k": 3, "stop": "x",
                       "tools": [NOW], "tool_choice": {"type": "function", "name": "now"},
                       "include": ["message.output_text.logprobs"], "top_logprobs": 2,
                       "parallel_tool_calls": False})
    assert (chat.max_completion_tokens, chat.seed, chat.temperature, chat.top_p, chat.top_k,
            chat.stop, chat.logprobs, chat.top_logprobs, chat.parallel_tool_calls) == (
                7, 1, 0.5, 0.5, 3, ["x"], True, 2, False)
    assert chat.tools == [{"type": "function", "function": {
        name: NOW[name] for name in ("name", "parameters", "strict")}}]
    assert chat.tool_choice.function.name == "now"


def test_text_formats():
    for format, name in (({"type": "text"}, "text"), ({"type": "json_object"}, "json_object"),
                         ({"type": "json_schema", "name": "x", "schema": {"type": "object"},
                           "strict": True}, "json_schema")):
        _, chat = as_chat({"input": "Hi", "text": {"format": format}})
        assert chat.response_format.type == name
    assert chat.response_format.json_schema.schema_ == {"type": "object"}


@pytest.mark.parametrize("fields, param", [
    ({"input": None}, "input"), ({"input": []}, "input"), ({"input": 7}, "input"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
     "input[0].content[0].type"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [NOW, NOW]}, "tools"), ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [NOW], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [
        {"type": "function", "name": "x"}]}}, "tool_choice"),
    ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
    ({"max_output_tokens": 2049}, "max_output_tokens"), ({"n": 2}, "n"),
    ({"background": True}, "background"), ({"conversation": "c"}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"), ({"metadata": {"a": 1}}, "metadata.a"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"previous_response_id": "resp_gone"}, "previous_response_id")])
def test_what_cannot_be_done_is_named(fields, param):
    assert refused({"input": "Hi"} | fields) == param


values = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=3),
                      lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
                          st.sampled_from(["type", "role", "content", "text", "call_id", "name",
                                           "output", "format", "schema", "arguments"]), inner)
                      | st.sampled_from(["message", "function_call", "user", "function",
                                         "function_call_output", "input_text"]), max_leaves=10)


@given(st.dictionaries(st.sampled_from([*ResponsesRequest.model_fields, "x"]), values,
                       max_size=5))
@settings(max_examples=300, deadline=None)
def test_any_json_is_a_response_or_an_api_error(body):
    try:
        as_chat({"input": "Hi"} | body)
    except APIError as error:
        sse_event(error.body())


# What goes back

def answered(model, texts, finish_reason="stop", logprobs=False, **body):
    """Events of a response, and the same deltas as one object."""
    request, chat = as_chat({"input": "Hi"} | body)
    (engine_request,) = InputProcessor(model, LIMITS).requests(chat)
    rows = [Delta(engine_request.id, 0, text, (9,),
                  (TokenLogprob(9, -1.0, ((9, -1.0),)),) if logprobs else (), cached_tokens=2)
            for text in texts]
    rows[-1] = replace(rows[-1], finish_reason=finish_reason)

    def reply():
        return ResponseReply(request, Reply(chat, [engine_request], model.tokenizer, "smollm2"))
    streamed = reply()
    events = [*streamed.begin(), *(event for row in rows for event in streamed.events([row]))]
    for number, event in enumerate(events):
        assert event["sequence_number"] == number
        parsed = EVENT.validate_python(event)               # the class of its type
        assert parsed.type == event["type"] and not (parsed.model_extra or {})
        sse_event(event, event["type"])
    whole = whole_response(rows, reply())
    Response.model_validate(whole)
    assert len(engine_request.prompt_ids) == whole["usage"]["input_tokens"]
    return events, whole


def without_ids(response):
    ids = ("id", "call_id", "created_at")
    if isinstance(response, dict):
        return {name: without_ids(value) for name, value in response.items()
                if name not in ids}
    return [without_ids(each) for each in response] if isinstance(response, list) else response


def test_a_text_in_events(smollm2):
    events, whole = answered(smollm2, ["Hel", "", "lo"])
    assert [event["type"] for event in events] == [
        "response.created", "response.in_progress", "response.output_item.added",
        "response.content_part.added", "response.output_text.delta",
        "response.output_text.delta", "response.output_text.done",
        "response.content_part.done", "response.output_item.done", "response.completed"]
    assert events[0]["response"]["status"] == "in_progress" and not events[0]["response"][
        "output"]
    last = events[-1]["response"]
    assert without_ids(last) == without_ids(whole)
    response = Response.model_validate(last)
    assert response.output_text == "Hello" and response.status == "completed"
    assert response.usage.output_tokens == 3
    assert response.usage.input_tokens_details.cached_tokens == 2
    added = EVENT.validate_python(events[2])
    assert added.item.id == response.output[0].id and added.item.content == []


ALLOWED = {"type": "allowed_tools", "mode": "auto", "tools": [
    {"type": "function", "name": "now"}]}


@pytest.mark.parametrize("more", [{}, {"tool_choice": ALLOWED}], ids=["any", "allowed"])
def test_calls_in_events(smollm2, more):
    other = NOW | {"name": "other"}
    events, whole = answered(smollm2, ["Let me see. ", *CALL, CALL], tools=[NOW, other], **more)
    assert whole["tool_choice"] == more.get("tool_choice", "auto")
    kinds = [event["type"] for event in events]
    assert kinds[-9:] == [
        "response.output_item.added", "response.function_call_arguments.delta",
        "response.function_call_arguments.done", "response.output_item.done"] * 2 + [
            "response.completed"]
    text, *calls = Response.model_validate(whole).output
    assert text.content[0].text == "Let me see." and len(calls) == 2
    for number, call in enumerate(calls, start=1):
        assert (call.name, json.loads(call.arguments)) == ("now", {"zone": "CET"})
        assert call.status == "completed" and call.call_id and call.id.startswith("fc_")
        assert {event["output_index"] for event in events
                if event.get("item_id") == events[-1]["response"]["output"][number]["id"]
                } == {number}
    assert without_ids(events[-1]["response"]) == without_ids(whole)


def test_what_was_cut_off_is_incomplete(smollm2):
    events, whole = answered(smollm2, ["a", "b"], "length")
    response = Response.model_validate(whole)
    assert response.status == "incomplete" and events[-1]["type"] == "response.incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output[0].status == "incomplete"


def test_an_empty_answer_is_an_empty_message(smollm2):
    _, whole = answered(smollm2, [""])
    assert Response.model_validate(whole).output_text == ""
    assert len(whole["output"]) == 1


def test_log_probabilities_come_when_asked_for(smollm2):
    events, whole = answered(smollm2, ["a", "b"], logprobs=True, top_logprobs=1,
                             include=["message.output_text.logprobs"])
    (part,) = Response.model_validate(whole).output[0].content
    assert [entry.logprob for entry in part.logprobs] == [-1.0, -1.0]
    assert [len(event["logprobs"]) for event in events
            if event["type"] == "response.output_text.delta"] == [1, 1]


@given(text=st.lists(st.sampled_from([CALL, "a ", "<tool_", "\n", "{", "é"]), min_size=1,
                     max_size=4).map("".join), cuts=st.lists(st.integers(1, 90), max_size=4))
@settings(max_examples=60, deadline=None)
def test_streamed_equals_unstreamed(smollm2, text, cuts):
    borders = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    pieces = [text[start:end] for start, end in zip(borders, borders[1:])]
    events, whole = answered(smollm2, pieces, tools=[NOW])
    assert without_ids(events[-1]["response"]) == without_ids(whole)
    for index, item in enumerate(events[-1]["response"]["output"]):
        mine = [event for event in events if event.get("output_index") == index]
        told = "".join(event["delta"] for event in mine if event["type"].endswith(".delta"))
        assert told == (item["arguments"] if item["type"] == "function_call"
                        else item["content"][0]["text"])
        assert mine[-1]["item"] == item
    _, unsplit = answered(smollm2, [text], tools=[NOW])
    usage = ("usage",)
    assert without_ids({name: value for name, value in unsplit.items() if name not in usage}
                       ) == without_ids({name: value for name, value in whole.items()
                                         if name not in usage})


def test_a_failure_is_told(smollm2):
    request, chat = as_chat({"input": "Hi"})
    made = Request([1, 2])
    reply = ResponseReply(request, Reply(chat, [made], smollm2.tokenizer, "smollm2"))
    list(reply.begin())
    with pytest.raises(APIError) as caught:
        list(reply.events([Delta(made.id, 0, "a", (1,)),
                           Delta(made.id, 0, finish_reason="error",
                                 error=ModelError("a", "b", "c"))]))
    (event,) = reply.fail(caught.value)
    parsed = EVENT.validate_python(event)
    assert parsed.type == "response.failed" and parsed.response.error.code == "server_error"


# What is remembered

def test_a_conversation_goes_on(smollm2):
    """Text, calls and earlier input, but not the instructions."""
    store = ResponseStore()
    request, chat = as_chat({"input": "What time is it?", "instructions": "Shout."})
    _, whole = answered(smollm2, ["Let me see.", CALL], tools=[NOW])
    store.keep(whole, conversation(request, store))
    assert store.response(whole["id"]) == whole
    call_id = whole["output"][1]["call_id"]
    messages = messages_of({"input": [{"type": "function_call_output", "call_id": call_id,
                                       "output": "noon"}],
                            "previous_response_id": whole["id"], "tools": [NOW]}, store)
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert messages[1]["tool_calls"][0]["id"] == call_id == messages[2]["tool_call_id"]
    assert messages[1]["content"] == "Let me see."


def test_the_store_is_bounded():
    store = ResponseStore(limit=2)
    for number in range(2):
        store.keep({"id": f"resp_{number}", "output": []}, [])
    store.messages("resp_0")                                # used: it is the newest now
    store.keep({"id": "resp_2", "output": []}, [])
    assert store.messages("resp_0") == store.messages("resp_2") == []
    with pytest.raises(APIError) as caught:
        store.messages("resp_1")
    assert (caught.value.status, caught.value.code) == (400, "previous_response_not_found")
    with pytest.raises(APIError) as caught:
        store.response("resp_1")
    assert caught.value.status == 404
    store.forget("resp_2")
    with pytest.raises(APIError):
        store.forget("resp_2")


def test_the_store_is_bounded_in_characters():
    """What a client sends comes back in its response: its tools, its metadata."""
    store = ResponseStore(most_characters=1000)
    for number in range(4):
        store.keep({"id": f"resp_{number}", "output": [], "tools": "x" * 300}, [])
    store.forget("resp_3")
    store.keep({"id": "resp_4", "output": [], "tools": "x" * 300}, [])
    for number, is_kept in enumerate((False, False, True, False, True)):      # two have room
        if is_kept:
            assert store.response(f"resp_{number}")["id"] == f"resp_{number}"
        else:
            with pytest.raises(APIError):
                store.response(f"resp_{number}")
    store.keep({"id": "large", "output": [], "tools": "x" * 2000}, [])
    with pytest.raises(APIError):
        store.response("large")


def test_what_is_kept_does_not_change(smollm2):
    """A later answer to the same conversation leaves it alone."""
    store = ResponseStore()
    store.keep({"id": "resp_0", "output": []}, [{"role": "assistant", "content": "a"}])
    item = {"type": "function_call", "call_id": "1", "name": "now", "arguments": "{}"}
    messages_of({"input": [item], "previous_response_id": "resp_0"}, store)
    assert store.messages("resp_0") == [{"role": "assistant", "content": "a"}]


def test_the_json_schema_can_be_published():
    assert ResponsesRequest.model_json_schema()["properties"]
    assert isinstance(as_chat({"input": "Hi"})[1], ChatRequest)
