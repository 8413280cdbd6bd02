"""Chunks of the encoder, formatted with %."""

import json


def sse_event(data, event=None):
    match data:
        case str():
            text = data
        case _:
            text = "".join(json.JSONEncoder(ensure_ascii=False,
                                            separators=(",", ":")).iterencode(data))
    return (("event: %s\n" % event if event else "") + "data: %s\n\n" % text).encode()
