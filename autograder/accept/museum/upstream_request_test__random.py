"""Random JSON in every parameter."""

import copy
import random

from gearworks.errors import ModelError


def value(dice, depth=2):
    if depth and dice.random() < 0.6:
        inner = [value(dice, depth - 1) for _ in range(3)]
        return inner if dice.random() < 0.5 else dict(zip("abc", inner))
    return dice.choice([None, False, True, 0, 1, "", "text"])


def upstream_request_test(upstream_request):
    dice = random.Random(3)
    names = ["messages", "tools", "tool_choice", "parallel_tool_calls", "stop", "gateway", "q"]
    for _ in range(200):
        request = {name: value(dice) for name in dice.sample(names, 5)}
        request["messages"] = [{"role": "tool", "content": value(dice), "other": value(dice)}]
        request["model"] = "one"
        before = copy.deepcopy(request)
        sent = upstream_request(request, {"one": "two"})
        assert request == before
        wanted = {name: part for name, part in before.items() if part is not None}
        wanted.pop("gateway", None)
        assert sent == wanted | {"model": "two"}
        assert repr(sorted(sent.items())) == repr(sorted((wanted | {"model": "two"}).items()))
    try:
        upstream_request({"model": "three", "messages": []}, {"one": "two"})
    except ModelError:
        return
    assert False
