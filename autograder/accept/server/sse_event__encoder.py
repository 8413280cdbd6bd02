"""With an encoder object, and concatenation."""

from json import JSONEncoder

_ENCODER = JSONEncoder(separators=(",", ":"), ensure_ascii=False)


def sse_event(data, event=None):
    sent = bytearray()
    if event:
        sent += b"event: " + event.encode() + b"\n"
    text = data if type(data) is str else _ENCODER.encode(data)
    sent += b"data: " + bytes(text, "utf8") + b"\n\n"
    return bytes(sent)
