"""Without the helpers: markers by str.find, JSON by json, white space by strip."""

import json

from gearworks.server.tools import CLOSER, MARKERS, FunctionCall


def refuse(constant):
    raise ValueError(constant)


DECODER = json.JSONDecoder(strict=False, parse_constant=refuse)


def call_of(value, names):
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ValueError
    arguments = value.get("arguments", value.get("parameters"))
    if isinstance(arguments, str):
        arguments = DECODER.decode(arguments)
    if value["name"] not in names or not isinstance(arguments, dict):
        raise ValueError
    written = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    return FunctionCall(value["name"], written)


def read(text, start, names):
    while start < len(text) and text[start].isspace():
        start += 1
    try:
        value, end = DECODER.raw_decode(text, start)
        values = value if isinstance(value, list) else [value]
        return [call_of(each, names) for each in values], end
    except (ValueError, RecursionError):
        return [], start


def parse_tool_calls(text, names):
    content, calls, place, start = "", [], 0, 0
    if text.lstrip()[:1] in ("{", "["):
        found, end = read(text, 0, names)
        if found:
            calls, place = found, after(text, end)
            start = place
    while True:
        begin, marker = min(((at, marker) for marker in MARKERS
                             if (at := text.find(marker, start)) >= 0), default=(-1, ""))
        if begin < 0:
            return content + text[place:], calls
        found, end = read(text, begin + len(marker), names)
        start = begin + len(marker)
        if found:
            content += text[place:begin].rstrip()
            calls = calls + found
            place = start = after(text, end)


def after(text, end):
    rest = text[end:].lstrip()
    if rest.startswith(CLOSER):
        rest = rest[len(CLOSER):].lstrip()
    return len(text) - len(rest)
