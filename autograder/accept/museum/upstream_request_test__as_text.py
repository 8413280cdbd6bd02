"""Compares the two requests as text, keys sorted."""

import json

from gearworks.errors import ModelError


def upstream_request_test(upstream_request):
    function = {"name": "g", "parameters": {"type": "object", "default": None}, "strict": True}
    calls = [{"id": str(number), "type": "function",
              "function": {"name": "g", "arguments": "{ }"}} for number in range(2)]
    request = {
        "messages": [{"role": "user", "content": "x"},
                     {"role": "assistant", "tool_calls": calls, "content": None},
                     {"role": "tool", "tool_call_id": "0", "content": "y"},
                     {"role": "tool", "tool_call_id": "1", "content": "z"}],
        "tools": [{"type": "function", "function": function}], "tool_choice": "none",
        "parallel_tool_calls": False, "max_tokens": 5, "logprobs": False}
    sent = upstream_request(request | {"model": "m", "gateway": {}, "stop": None}, {"m": "m2"})
    wanted = request | {"model": "m2"}
    assert json.dumps(sent, sort_keys=True) == json.dumps(wanted, sort_keys=True)
    try:
        upstream_request(request, {"m": "m2"})
    except ModelError:
        pass
    else:
        raise AssertionError("no model was named")
