"""Python's own incremental decoder."""

import codecs


def decode(ids, token_bytes):
    data = bytearray()
    for id in ids:
        data += token_bytes.get(id, b"")
    return data.decode("utf-8", "replace")


class IncrementalDetokenizer:
    def __init__(self, tokenizer, skip_special=False):
        self.tokenizer, self.skip_special = tokenizer, skip_special
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id):
        data = self.tokenizer.decode_bytes([id], self.skip_special)
        return self.decoder.decode(data)

    def flush(self):
        return self.decoder.decode(b"", True)
