"""Looks for an end at which the rest could still become a character,
by trying the error that Python reports."""


def decode(ids, token_bytes):
    return b"".join(token_bytes[id] for id in ids if id in token_bytes).decode(errors="replace")


class IncrementalDetokenizer:
    def __init__(self, tokenizer, skip_special=False):
        self._bytes_of = lambda id: tokenizer.decode_bytes([id], skip_special)
        self._waiting = b""

    def push(self, id):
        data = self._waiting + self._bytes_of(id)
        text, start = "", 0
        while True:
            try:
                text += data[start:].decode("utf-8")
                self._waiting = b""
                return text
            except UnicodeDecodeError as error:
                text += data[start:start + error.start].decode("utf-8")
                if error.reason == "unexpected end of data":
                    self._waiting = data[start + error.start:]
                    return text
                text += "\ufffd"
                start += error.end

    def flush(self):
        text, self._waiting = self._waiting.decode("utf-8", errors="replace"), b""
        return text
