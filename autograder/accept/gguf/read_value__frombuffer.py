"""Numbers by NumPy directly, and the items' offsets gathered in a loop."""

import numpy as np

from gearworks.errors import FormatError
from gearworks.formats.gguf import (MAX_ARRAY_DEPTH, MAX_STRING_BYTES, NUMBERS, SMALLEST,
                                    require_bytes)


def plain_numbers(data, offset, kind, count):
    dtype = NUMBERS[kind]
    require_bytes(data, offset, count * dtype.itemsize, "numbers")
    if dtype == np.bool_:
        raw = np.frombuffer(data, np.uint8, count, offset)
        if not np.isin(raw, (0, 1)).all():
            raise FormatError("a bool is neither 0 nor 1", f"at byte {offset}",
                              "fetch it again")
        return raw == 1
    return np.array(np.frombuffer(data, dtype, count, offset))


def read_value(data, offset, value_type, depth=0):
    if value_type in NUMBERS:
        return plain_numbers(data, offset, value_type,
                             1)[0].item(), offset + NUMBERS[value_type].itemsize
    if value_type == 8:
        length, start = read_value(data, offset, 10)
        require_bytes(data, start, length, "a string")
        if length > MAX_STRING_BYTES:
            raise FormatError("a string is too long", f"{length} bytes", "fetch it again")
        raw = bytes(data[start:start + length])
        if raw.decode("utf-8", "ignore").encode("utf-8") != raw:
            raise FormatError("a string is broken", "it is not UTF-8", "fetch it again")
        return raw.decode("utf-8"), start + length
    if value_type == 9 and depth < MAX_ARRAY_DEPTH:
        kind, at = read_value(data, offset, 4)
        count, at = read_value(data, at, 10)
        if kind in SMALLEST:
            require_bytes(data, at, SMALLEST[kind] * count, "items")
            if kind in NUMBERS:
                return plain_numbers(data, at, kind, count), at + count * NUMBERS[kind].itemsize
            found = []
            for _ in range(count):
                item, at = read_value(data, at, kind, depth + 1)
                found += [item]
            return found, at
    raise FormatError(f"no value of type {value_type}", f"at byte {offset}", "fetch it again")
