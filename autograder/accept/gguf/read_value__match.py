"""By cases, with struct."""

import struct

from gearworks.errors import FormatError
from gearworks.formats.gguf import (MAX_ARRAY_DEPTH, MAX_STRING_BYTES, NUMBERS, SMALLEST,
                                    ValueType, read_numbers, require_bytes)


def read_value(data, offset, value_type, depth=0):
    match value_type:
        case ValueType.STRING:
            require_bytes(data, offset, 8, "a length")
            (length,) = struct.unpack_from("<Q", data, offset)
            require_bytes(data, offset + 8, length, "a string")
            try:
                if length > MAX_STRING_BYTES:
                    raise ValueError("it is too long")
                return bytes(data[offset + 8:offset + 8
                                  + length]).decode("utf-8"), offset + 8 + length
            except ValueError as error:
                raise FormatError("bad string", str(error), "fetch it again") from error
        case ValueType.ARRAY:
            require_bytes(data, offset, 12, "the head of an array")
            item_type, count = struct.unpack_from("<IQ", data, offset)
            if item_type not in SMALLEST or depth >= MAX_ARRAY_DEPTH:
                raise FormatError("bad array", f"items of type {item_type} at depth {depth}",
                                  "convert it again")
            at = offset + 12
            require_bytes(data, at, count * SMALLEST[item_type], "items")
            if item_type in NUMBERS:
                return read_numbers(data, at, item_type, count)
            values = []
            while len(values) < count:
                value, at = read_value(data, at, item_type, depth + 1)
                values.append(value)
            return values, at
        case kind if kind in NUMBERS:
            numbers, end = read_numbers(data, offset, kind, 1)
            return numbers.tolist()[0], end
    raise FormatError("bad value", f"there is no type {value_type}", "fetch it again")
