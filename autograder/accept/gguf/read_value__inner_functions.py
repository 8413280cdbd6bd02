"""A reader with a cursor, which counts its own depth."""

import numpy as np

from gearworks.errors import FormatError
from gearworks.formats.gguf import (MAX_ARRAY_DEPTH, MAX_STRING_BYTES, NUMBERS, SMALLEST,
                                    ValueType, read_numbers)


class Cursor:
    def __init__(self, data, at):
        self.data, self.at = memoryview(data), at

    def take(self, size):
        if size > len(self.data) - self.at:
            raise FormatError(f"cannot read byte {self.at}", f"{size} bytes are not there",
                              "is it the whole file?")
        self.at += size
        return self.data[self.at - size:self.at]

    def integer(self, size):
        return int.from_bytes(self.take(size), "little")

    def string(self):
        raw = self.take(self.integer(8))
        if len(raw) > MAX_STRING_BYTES:
            raise FormatError("cannot read a string", f"{len(raw)} bytes are too many",
                              "fetch it again")
        try:
            return str(raw, encoding="utf-8")
        except UnicodeError:
            raise FormatError("cannot read a string", "it is not UTF-8",
                              "fetch it again") from None

    def numbers(self, kind, count):
        values, self.at = read_numbers(self.data, self.at, kind, count)
        return values

    def value(self, kind, depth):
        if kind == ValueType.STRING:
            return self.string()
        if kind in NUMBERS:
            return self.numbers(kind, 1)[0].item()
        if kind != ValueType.ARRAY or depth >= MAX_ARRAY_DEPTH:
            raise FormatError(f"cannot read byte {self.at}", f"type {kind}, depth {depth}",
                              "fetch it again")
        item_kind, count = self.integer(4), self.integer(8)
        if item_kind not in SMALLEST or count * SMALLEST[item_kind] > len(self.data) - self.at:
            raise FormatError(f"cannot read byte {self.at}",
                              f"{count} items of type {item_kind}", "fetch it again")
        if item_kind in NUMBERS:
            return np.array(self.numbers(item_kind, count))
        return [self.value(item_kind, depth + 1) for _ in range(count)]


def read_value(data, offset, value_type, depth=0):
    cursor = Cursor(data, offset)
    return cursor.value(value_type, depth), cursor.at
