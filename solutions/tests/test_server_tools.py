"""Tool calls: found in text however it is cut, enforced by grammar, described to the model."""

import dataclasses
import json

import jsonschema
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gearworks.errors import ModelError
from gearworks.server.api_error import APIError
from gearworks.server.chat_text import ForcedCalls, FreeCalls, JSONEnd, chat_text
from gearworks.server.engine_request import InputProcessor
from gearworks.server.protocol import validate_request
from gearworks.server.request_types import ChatRequest, Limits
from gearworks.server.tools import FunctionCall, arguments_schema, parse_tool_calls
from gearworks.structured import TokenGrammar

NAMES = ["now", "get_weather"]
WEATHER = {"type": "function", "function": {
    "parameters": {"required": ["city", "unit"], "$defs": {"City": {"type": "string",
                                                                   "maxLength": 12}},
                   "properties": {"city": {"$ref": "#/$defs/City"},
                                  "unit": {"enum": ["C", "F"], "default": None}},
                   "additionalProperties": False},
    "description": "How warm é is <it>?", "name": "get_weather", "strict": None}}
NOW = {"function": {"name": "now"}, "type": "function"}
PARIS = {"city": "Paris", "unit": "C"}


def put_together(deltas):
    """The content and the calls that a client collects from deltas."""
    content, calls, ids = "", [], []
    for delta in deltas:
        content += delta.get("content", "")
        for call in delta.get("tool_calls", ()):
            if call["index"] == len(calls):
                calls.append([call["function"]["name"], ""])
                ids.append(call["id"])
                assert call["type"] == "function"
            assert call["index"] == len(calls) - 1
            calls[-1][1] += call["function"]["arguments"]
    assert len(set(ids)) == len(ids) and all(len(id) == 9 for id in ids)
    return content, [FunctionCall(*call) for call in calls]


def in_pieces(text, cuts):
    borders = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:end] for start, end in zip(borders, borders[1:])]


CALL = json.dumps({"name": "get_weather", "arguments": PARIS})
FOUND = FunctionCall("get_weather", json.dumps(PARIS))


@pytest.mark.parametrize("text, content, calls", [
    (f"<tool_call>\n{CALL}\n</tool_call>", "", [FOUND]),
    (f"<tool_call>{CALL}", "", [FOUND]),                    # ended by EOS
    (f"Let me see.\n\n<tool_call>{CALL}</tool_call>\n", "Let me see.", [FOUND]),
    (f"<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>", "", [FOUND, FOUND]),
    (f"a <tool_call>{CALL}</tool_call> b", "ab", [FOUND]),
    (f"<tool_call>[{CALL}, {CALL}]</tool_call>", "", [FOUND, FOUND]),
    (CALL.replace("arguments", "parameters"), "", [FOUND]),                       # Llama 3
    (f"<|python_tag|>{CALL.replace('arguments', 'parameters')}", "", [FOUND]),
    (f' \n {{"type": "function", {CALL[1:]} ', "", [FOUND]),
    (f"[TOOL_CALLS] [{CALL}, {CALL}]", "", [FOUND, FOUND]),                       # Mistral
    (f" [TOOL_CALLS][{CALL}]", "", [FOUND]),
    (f"[{CALL}]", "", [FOUND]),                     # its marker was a special token
    ('<tool_call>{"name": "now", "arguments": "{\\"a\\": 1}"}</tool_call>', "",
     [FunctionCall("now", '{"a": 1}')]),
    ('<tool_call>{"name": "now", "arguments": {"text": "a\nb {</tool_call>"}}</tool_call>', "",
     [FunctionCall("now", '{"text": "a\\nb {</tool_call>"}')]),
    ('<tool_call>{"name": "now", "arguments": {"a": "\\ud83d"}}</tool_call>', "",
     [FunctionCall("now", '{"a": "\\ud83d"}')]),            # half a pair, still UTF-8
    pytest.param(f"<tool_call> <tool_call>{CALL}", "<tool_call> ", [FOUND],
                 marks=pytest.mark.reference("white space behind a marker of no call")),
    (f"<tool_call>{{oops <tool_call>{CALL}</tool_call>", "<tool_call>{oops", [FOUND]),
])
def test_calls_are_found(text, content, calls):
    assert parse_tool_calls(text, NAMES) == (content, calls)


@pytest.mark.parametrize("text", [
    "", " \n", "Paris.", "1 < 2", "<tool_call>", "<tool_call>{}", "[", "{",
    '<tool_call>{"name": "now", "arguments": {',                                # incomplete
    '<tool_call>{"name": "now", "arguments": {}</tool_call>',                  # unbalanced
    "<tool_call>{'name': 'now', 'arguments': {}}</tool_call>",                  # no JSON
    '<tool_call>{"name": "later", "arguments": {}}</tool_call>',               # not offered
    '<tool_call>{"name": ["now"], "arguments": {}}</tool_call>',
    '<tool_call>{"name": "now"}</tool_call>',
    '<tool_call>{"name": "now", "arguments": 7}</tool_call>',
    '<tool_call>{"name": "now", "arguments": "soon"}</tool_call>',
    '<tool_call>{"name": "now", "arguments": {"a": NaN}}</tool_call>',
    '<tool_call>{"name": "now", "arguments": {"a": 1e999}}</tool_call>',
    '<tool_call>{"name": "now", "arguments": {"a": ' + "9" * 5000 + "}}</tool_call>",
    "<tool_call>" + "[" * 100_000, "<tool_call>" + '{"name":' * 100_000,
    f'[{CALL}, {{"name": "later", "arguments": {{}}}}]',                        # all or none
    f"The answer is {CALL}",                                    # not where the answer begins
    '{"city": "Paris"}', "[1, 2]",
])
def test_what_is_no_call_stays_text(text):
    assert parse_tool_calls(text, NAMES) == (text, [])


fragments = st.sampled_from([
    "<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "<tool_", "</tool",
    "[TOOL", " ", "\n", "{", "}", "[", "]", '"', "\\", "Paris", CALL, f"[{CALL}]",
    CALL[:-3], CALL[-3:], '{"name": "later", "arguments": {}}',
    '{"name": "now", "parameters": {"a": "}\\""}}', ","])


@pytest.mark.reference("white space behind a marker of no call")
@given(st.lists(fragments, max_size=9).map("".join), st.lists(st.integers(0, 500), max_size=9))
@example(f"[TOOL_CALLS] [{CALL}]", [3, 11, 12, 13])
@example(f" [TOOL_CALLS] [{CALL}]", [1, 7])
@example(f"x \n<tool_call>{CALL} </tool_call> y", [1, 2, 3, 5, 85, 88])
@settings(max_examples=600, deadline=None)
def test_any_pieces_give_the_calls_of_the_whole(text, cuts):
    stream = FreeCalls(NAMES)
    deltas = [delta for piece in in_pieces(text, cuts) for delta in stream.push(piece)]
    deltas += stream.finish()
    assert put_together(deltas) == parse_tool_calls(text, NAMES)
    assert stream.calls == len(parse_tool_calls(text, NAMES)[1])
    assert all(delta.get("content") != "" for delta in deltas)


def test_text_is_let_through_as_soon_as_it_cannot_be_a_call():
    stream = FreeCalls(NAMES)
    assert stream.push("1 <") == [{"content": "1"}]
    assert stream.push(" 2 is") == [{"content": " < 2 is"}]
    assert stream.push(" so \n") == [{"content": " so"}]
    assert stream.push("<tool_call>{oops}") == [{"content": " \n<tool_call>"},
                                                {"content": "{oops}"}]
    stream = FreeCalls(NAMES)
    deltas = stream.push(f"<tool_call>{CALL}")              # before its end tag
    assert put_together(deltas) == ("", [FOUND])


def test_a_single_call_where_several_are_not_wanted():
    request = validate_request({"messages": [{"role": "user", "content": "?"}],
                                "tools": [NOW, WEATHER], "parallel_tool_calls": False},
                               ChatRequest, LIMITS)[0]
    stream = chat_text(request)
    deltas = stream.push(f"<tool_call>{CALL}</tool_call><tool_call>{CALL}</tool_call>.")
    assert put_together(deltas + stream.finish()) == (".", [FOUND])


@given(st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner)
                    | st.dictionaries(st.text(), inner)).filter(
                        lambda value: isinstance(value, (list, dict))),
       st.text(), st.lists(st.integers(0, 1000)))
@settings(deadline=None)
def test_the_end_of_a_json_value_is_found(value, rest, cuts):
    whole, text, end = json.dumps(value) + rest, "", JSONEnd(0)
    for piece in in_pieces(whole, cuts):
        text += piece
        assert end.is_in(text) == (len(text) >= len(json.dumps(value)))
    assert end.end == len(json.dumps(value))


LIMITS = Limits(("m",), 49152, 2048, 8)
QUESTION = [{"role": "user", "content": "How warm is it in Paris?"}]


def made(model, **fields):
    """A chat's engine request, and what cuts its answer."""
    request, ignored = validate_request({"messages": QUESTION} | fields, ChatRequest, LIMITS)
    assert not ignored
    return InputProcessor(model, LIMITS).requests(request)[0], chat_text(request)


def only(mode, *names):
    """The choice of some tools."""
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [
        {"type": "function", "function": {"name": name}} for name in names]}}


def random_text(grammar, tokenizer, rng, most=400):
    """A text that the grammar allows, by tokens drawn at random, and whether it ended."""
    ids: list[int] = []
    while len(ids) < most:
        allowed = np.flatnonzero(grammar.allowed())
        if grammar.may_end() and (len(allowed) < 10 or rng.random() < 0.5):
            break
        ids.append(int(rng.choice(allowed)))
        grammar.advance(ids[-1])
    return tokenizer.decode(ids), grammar.may_end()


@pytest.mark.parametrize("choice, several", [
    ("required", None), ("required", True),
    ({"type": "function", "function": {"name": "get_weather"}}, True),
    (only("required", "get_weather"), None), (only("required", "now", "get_weather"), True)],
    ids=["required", "several", "named", "allowed", "several allowed"])
def test_a_forced_call_is_a_call_whatever_is_drawn(smollm2, rng, choice, several):
    engine_request, _ = made(smollm2, tools=[WEATHER, NOW], tool_choice=choice,
                             parallel_tool_calls=several)
    ended, names = 0, set()
    for _ in range(30):
        text, whole = random_text(engine_request.grammar(), smollm2.tokenizer, rng)
        stream = ForcedCalls()
        deltas = [delta for character in text for delta in stream.push(character)]
        content, calls = put_together(deltas + stream.finish())
        unsplit = ForcedCalls()
        assert put_together(unsplit.push(text) + unsplit.finish()) == (content, calls)
        if not whole:
            continue
        ended += 1
        assert not content and 1 <= len(calls) <= (
            8 if several and (choice == "required" or "allowed_tools" in choice) else 1)
        for call in calls:
            names.add(call.name)
            schema = WEATHER["function"]["parameters"] if call.name == "get_weather" else {
                "maxProperties": 0}
            jsonschema.validate(json.loads(call.arguments), schema)
        free, found = parse_tool_calls(text, NAMES)         # the two readings agree
        assert not free and [(call.name, json.loads(call.arguments)) for call in found] == [
            (call.name, json.loads(call.arguments)) for call in calls]
    assert ended > 20
    both = choice == "required" or choice == only("required", "now", "get_weather")
    assert names == ({"now", "get_weather"} if both else {"get_weather"})


def test_of_all_tools_some_may_be_allowed(smollm2):
    """All are described, so that the prompt stays the same; a call of another one is text."""
    free, _ = made(smollm2, tools=[WEATHER, NOW])
    allowed, text = made(smollm2, tools=[WEATHER, NOW], tool_choice=only("auto", "now"))
    assert allowed.prompt_ids == free.prompt_ids and allowed.grammar is None
    weather = '<tool_call>{"name": "get_weather", "arguments": {"city": "Rome"}}</tool_call>'
    now = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    content, calls = put_together(text.push(weather + now) + text.finish())
    assert content == weather and [call.name for call in calls] == ["now"]


def test_forced_arguments_come_as_they_are_written(smollm2):
    stream = ForcedCalls()
    assert stream.push('<tool_call>\n{"name": "now", "argum') == []
    first, second = stream.push('ents": {"a": "x')
    assert first["tool_calls"][0]["function"] == {"name": "now", "arguments": ""}
    assert second["tool_calls"][0] == {"index": 0, "function": {"arguments": '{"a": "x'}}
    assert stream.push('}"') == [{"tool_calls": [{"index": 0, "function": {
        "arguments": '}"'}}]}]
    assert stream.finish() == []                            # cut off: it stays a call


def test_a_forced_call_cut_off_before_its_name_stays_text():
    stream = ForcedCalls()
    assert stream.push('<tool_call>\n{"na') == []
    assert stream.finish() == [{"content": '<tool_call>\n{"na'}]


HERMES = ("{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}{% for m in messages %}"
          "<{{ m.role }}>{{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }}"
          "{% endfor %}")


def with_template(model, template):
    return dataclasses.replace(model, settings={"chat_template": template})


def test_the_canary_tells_whether_a_template_heeds_tools(smollm2):
    """SmolLM2's template ignores tools, as issue 11 says."""
    assert not InputProcessor(smollm2, LIMITS).template_heeds_tools
    assert InputProcessor(with_template(smollm2, HERMES), LIMITS).template_heeds_tools
    refuses = with_template(smollm2, "{{ raise_exception('no') if tools else '' }}")
    assert not InputProcessor(refuses, LIMITS).template_heeds_tools


def test_schemas_reach_the_template_as_they_were_sent(smollm2):
    """Every key in its order, nulls included."""
    engine_request, _ = made(with_template(smollm2, HERMES), tools=[WEATHER, NOW])
    lines = smollm2.tokenizer.decode(engine_request.prompt_ids).split("\n")
    assert lines[0] == json.dumps(WEATHER, ensure_ascii=False)
    assert lines[1] == json.dumps(NOW)


def test_a_template_without_tools_gets_them_in_words(smollm2):
    engine_request, _ = made(smollm2, tools=[WEATHER, NOW])
    prompt = smollm2.tokenizer.decode(engine_request.prompt_ids)
    assert prompt.count("<|im_start|>system") == 1
    assert json.dumps(WEATHER, ensure_ascii=False) in prompt and "<tool_call>" in prompt
    silent, _ = made(smollm2, tools=[WEATHER, NOW], tool_choice="none")
    assert "get_weather" not in smollm2.tokenizer.decode(silent.prompt_ids)


def test_a_conversation_with_calls_in_words(smollm2):
    """The system message keeps its own text; calls and results become text."""
    conversation = [
        {"role": "developer", "content": "Be brief."}, *QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "123456789", "type": "function",
             "function": {"name": "get_weather", "arguments": json.dumps(PARIS)}}]},
        {"role": "tool", "tool_call_id": "123456789", "content": "21 C"}]
    engine_request, _ = made(smollm2, messages=conversation, tools=[NOW])
    prompt = smollm2.tokenizer.decode(engine_request.prompt_ids)
    assert "<|im_start|>system\nBe brief.\n\nYou can call functions." in prompt
    assert ("<|im_start|>assistant\n<tool_call>\n"
            '{"name": "get_weather", "arguments": {"city": "Paris", "unit": "C"}}\n'
            "</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n21 C\n</tool_response>"
            "<|im_end|>\n<|im_start|>assistant\n") in prompt


def test_arguments_reach_a_template_as_objects(smollm2):
    """Else its `tojson` would quote them twice. What is no JSON stays as it is."""
    for arguments, shown in ((json.dumps(PARIS), json.dumps(PARIS)), ("", "{}"),
                             ('{"city', '"{\\"city"')):
        calls = [{"id": "1", "function": {"name": "now", "arguments": arguments}}]
        engine_request, _ = made(with_template(smollm2, HERMES), messages=[
            *QUESTION, {"role": "assistant", "tool_calls": calls},
            {"role": "tool", "content": "21 C"}])
        prompt = smollm2.tokenizer.decode(engine_request.prompt_ids)
        assert f'"arguments": {shown}}}' in prompt


def test_parameters_of_a_function_are_an_object():
    assert arguments_schema(None) == arguments_schema({}) == {
        "type": "object", "additionalProperties": False}
    assert arguments_schema({"type": ["object", "null"], "maxProperties": 1}) == {
        "type": "object", "maxProperties": 1}
    with pytest.raises(ModelError):
        arguments_schema({"type": "string"})


@pytest.mark.parametrize("parameters", [
    {"type": "array"}, {"properties": {"a": {"type": "strang"}}},
    {"properties": {"a": {"$ref": "#/$defs/gone"}}, "required": ["a"]},
    {"properties": {"a": {"pattern": "(?=a)"}}, "required": ["a"]}])
def test_a_forced_call_refuses_a_hostile_schema(smollm2, parameters):
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    with pytest.raises(APIError) as caught:
        made(smollm2, tools=[NOW, tool], tool_choice="required")
    assert caught.value.status == 400
    assert caught.value.param in ("tools[1].function.parameters", "tools")


def test_each_answer_has_a_grammar_of_its_own(smollm2):
    engine_request, _ = made(smollm2, tools=[NOW], tool_choice="required", n=2)
    one, other = engine_request.grammar(), engine_request.grammar()
    assert isinstance(one, TokenGrammar) and one is not other
