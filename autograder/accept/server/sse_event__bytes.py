"""Bytes joined, and the type as a line among others."""

import json


def sse_event(data, event=None):
    if not isinstance(data, str):
        data = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    lines = [f"data: {data}", "", ""]
    if event is not None:
        lines.insert(0, f"event: {event}")
    return b"\n".join(line.encode("utf-8") for line in lines)
