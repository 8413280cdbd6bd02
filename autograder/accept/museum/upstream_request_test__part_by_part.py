"""One assertion for each way to lose something."""

import json

import pytest

from gearworks.errors import ModelError

MODELS = {"a": "b"}


def upstream_request_test(upstream_request):
    tool = {"type": "function", "function": {
        "name": "f", "strict": False, "parameters": {"properties": {"x": {"const": None}}}}}
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x":null}'}}
    chat = [{"role": "user", "content": "?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": ""}]
    request = {"model": "a", "messages": chat, "tools": [tool], "tool_choice": "required",
               "parallel_tool_calls": False, "seed": 0, "n": None, "gateway": 1, "new": [None]}
    kept = json.dumps(request)
    sent = upstream_request(request, MODELS)
    assert json.dumps(request) == kept
    assert sent["model"] == "b"
    assert sent["messages"] == chat
    assert sent["tools"] == [tool]
    assert sent["tool_choice"] == "required"
    assert sent["parallel_tool_calls"] is False
    assert sent["seed"] == 0 and sent["new"] == [None]
    assert not {"n", "gateway"} & {*sent}
    with pytest.raises(ModelError):
        upstream_request({"model": "c", "messages": []}, MODELS)
