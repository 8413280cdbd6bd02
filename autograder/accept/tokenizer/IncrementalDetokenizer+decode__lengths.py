"""Walks back over continuation bytes, and compares with what the first byte asks for."""

from functools import reduce


def decode(ids, token_bytes):
    return reduce(lambda data, id: data + token_bytes.get(id, b""), ids,
                  b"").decode("utf-8", errors="replace")


def _unfinished(data):
    """How many bytes at the end are the beginning of a character."""
    for back in (1, 2, 3):
        if back > len(data):
            return 0
        first = data[-back]
        if first & 0b1100_0000 == 0b1000_0000:
            continue
        length = ({0b110: 2}.get(first >> 5) or {0b1110: 3}.get(first >> 4)
                  or {0b11110: 4}.get(first >> 3) or 1)
        return back if length > back else 0
    return 0


class IncrementalDetokenizer:
    def __init__(self, tokenizer, skip_special=False):
        self.tokenizer = tokenizer
        self.skip_special = skip_special
        self.kept = b""

    def push(self, id):
        data = self.kept + self.tokenizer.decode_bytes([id], self.skip_special)
        count = _unfinished(data)
        self.kept = data[len(data) - count:]
        return data[:len(data) - count].decode("utf-8", errors="replace")

    def flush(self):
        rest = self.kept.decode("utf-8", errors="replace")
        self.kept = b""
        return rest
