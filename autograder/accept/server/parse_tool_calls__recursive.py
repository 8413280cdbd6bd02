"""The rest of the answer by recursion, as long as there are calls."""

from gearworks.server.tools import AFTER_CALL, OPENER, calls_at


def first_call(text, start, names):
    """Where the first call from a place on begins, its calls, and what comes behind them."""
    for opener in OPENER.finditer(text, start):
        found, end = calls_at(text, opener.end(), names)
        if found:
            return opener.start(), found, AFTER_CALL.match(text, end).end()
    return None


def parse_tool_calls(text, names, start=0):
    first = first_call(text, start, names)
    if first is None:
        return text[start:], []
    begin, found, behind = first
    rest, more = parse_tool_calls(text, names, behind)
    return text[start:begin].rstrip() + rest, [*found, *more]
