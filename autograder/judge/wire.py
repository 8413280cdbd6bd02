"""How values cross the border between two processes: as JSON and npy.

Nothing of it could run code when it is read. A message is one JSON value and any number of
blobs, preceded by their lengths. What JSON lacks is an object with a "kind". Arrays are blobs
in NumPy's npy format, which is read without pickle. Dataclasses of the engine travel by value,
its classes by name; everything else stays where it is, and a handle travels in its place (see
`peer`).
"""

import dataclasses
import io
import itertools
import json
import math
import struct
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Any, BinaryIO

import numpy as np

LARGEST = 2**28             # bytes of all blobs of a message
LONGEST = 2**24             # bytes of its JSON text
MOST_BLOBS = 2**16
MOST_ELEMENTS = 2**24       # of what is short to write and long to go through
HASHING_SECONDS = 0.5         # of processor time: keys can be chosen so that a table has no end
SHORT = 256                 # bytes that travel inside the JSON text
LONG = 2**16                # characters of a text that does not
ENGINE = "gearworks."       # dataclasses and enumerations of these modules may travel by value

_SIMPLE = frozenset({bool, int, float, str, type(None)})


class WireError(ValueError):
    """A message that does not follow the format."""


@dataclass
class Message:
    """JSON data and the blobs that it points to."""

    data: Any
    blobs: list[bytes] = field(default_factory=list)


def write(stream: BinaryIO, message: Message) -> None:
    """Send a message."""
    text = json.dumps(message.data).encode("ascii")
    sizes = [*map(len, message.blobs)]
    if len(text) > LONGEST or len(sizes) > MOST_BLOBS or sum(sizes) > LARGEST:
        raise WireError("more than one message may hold")
    head = struct.pack(f"<II{len(sizes)}I", len(text), len(sizes), *sizes)
    stream.writelines([head, text, *message.blobs])
    stream.flush()


def read(stream: BinaryIO) -> Message:
    """Receive a message. Raises EOFError when the other side is gone, WireError on nonsense."""
    size, count = struct.unpack("<II", _exactly(stream, 8))
    if size > LONGEST or count > MOST_BLOBS:
        raise WireError("a message larger than any that this protocol sends")
    sizes = struct.unpack(f"<{count}I", _exactly(stream, 4 * count))
    if sum(sizes) > LARGEST:
        raise WireError("a message larger than any that this protocol sends")
    content = _exactly(stream, size + sum(sizes))
    ends = [*itertools.accumulate(sizes, initial=size)]
    try:
        return Message(json.loads(content[:size]),
                       [content[start:end] for start, end in itertools.pairwise(ends)])
    except (ValueError, RecursionError) as error:
        raise WireError("a message that is not JSON") from error


def _exactly(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError("the other process has ended")
    return data


def encode(value: Any, blobs: list[bytes], export: Callable[[Any], Any],
           identity: bool = False) -> Any:
    """A value as JSON data, with its arrays appended to `blobs`.
    export: gives the data of what cannot travel by value. identity: whether that holds for
    dataclasses without equality, such as a sequence that a scheduler moves about.

    >>> encode({"ids": (1, 2)}, [], export=repr)
    {'kind': 'dict', 'keys': ['ids'], 'values': [{'kind': 'rows', 'items': [(1, 2)]}]}
    """
    def items(values: Any) -> list:
        values = list(values)
        kinds = set(map(type, values))
        if kinds <= _SIMPLE and not any(map(is_long, values)):
            return values
        if kinds == {tuple}:              # pairs and merges, which come by the ten thousand
            if set(map(type, itertools.chain.from_iterable(values))) <= _SIMPLE:
                return [{"kind": "rows", "items": values}]
        return [encode(item, blobs, export, identity) for item in values]

    def is_long(value: Any) -> bool:
        return type(value) is str and len(value) > LONG

    def blob(content: bytes) -> int:
        blobs.append(content)
        return len(blobs) - 1

    if is_long(value):
        return {"kind": "str", "blob": blob(value.encode("utf-8", "surrogatepass"))}
    if type(value) in _SIMPLE:
        return value
    if isinstance(value, Enum) and _travels(type(value)):
        return {"kind": "enum", "class": _class_name(type(value)), "name": value.name}
    if isinstance(value, (np.ndarray, np.generic)) and not value.dtype.hasobject:
        data = {"kind": "array" if isinstance(value, np.ndarray) else "scalar",
                "blob": blob(_npy(np.asarray(value)))}
        if isinstance(value, np.ndarray) and not value.flags.writeable:
            data["locked"] = True
        return data
    for kind, number in (("int", int), ("float", float), ("str", str)):
        if isinstance(value, number):
            return number.__pos__(value) if number is not str else str.__str__(value)
    for kind, buffer in (("bytes", bytes), ("bytearray", bytearray),
                         ("memoryview", memoryview)):
        if isinstance(value, buffer):
            content = bytes(value)
            if len(content) > SHORT:
                return {"kind": kind, "blob": blob(content)}
            return {"kind": kind, "text": content.decode("latin-1")}
    if isinstance(value, dict):
        kind = "counter" if isinstance(value, Counter) else "dict"
        return {"kind": kind, "keys": items(value.keys()), "values": items(value.values())}
    if isinstance(value, list):
        return items(value)
    for kind, collection in (("tuple", tuple), ("deque", deque), ("frozenset", frozenset),
                             ("set", set)):
        if isinstance(value, collection):
            return {"kind": kind, "items": items(value)}
    if isinstance(value, range):
        return {"kind": "range", "items": [value.start, value.stop, value.step]}
    if isinstance(value, slice):
        return {"kind": "slice", "items": items([value.start, value.stop, value.step])}
    if value is Ellipsis:
        return {"kind": "ellipsis"}
    if isinstance(value, PurePath):
        return {"kind": "path", "text": str(value)}
    if isinstance(value, np.random.Generator):
        state = value.bit_generator.state
        return {"kind": "generator", "state": encode(state, blobs, export)}
    if isinstance(value, np.dtype):
        return {"kind": "dtype", "text": value.str}
    if isinstance(value, type) and issubclass(value, np.generic):
        return {"kind": "scalar type", "text": np.dtype(value).str}
    if isinstance(value, type) and _travels(value):
        return {"kind": "class", "class": _class_name(value)}
    if (dataclasses.is_dataclass(type(value)) and _travels(type(value))
        and (type(value).__dataclass_params__.eq or not identity)):
        fields = [each.name for each in dataclasses.fields(value)]
        return {"kind": "dataclass", "class": _class_name(type(value)), "keys": fields,
                "values": [encode(getattr(value, name), blobs, export, identity)
                           for name in fields]}
    return export(value)


def decode(data: Any, blobs: list[bytes], adopt: Callable[[dict], Any]) -> Any:
    """The value that `encode` made data of. adopt: gives what stands for a handle.

    Raises WireError when the data follow no rule of this format.
    """
    def items(values: Any) -> list:
        if not isinstance(values, list):
            raise WireError("a list was due")
        if set(map(type, values)) <= _SIMPLE:
            return [*values]             # the message stays as it was sent, whoever changes it
        if len(values) == 1 and isinstance(values[0], dict) and values[0].get("kind") == "rows":
            return [tuple(row) for row in values[0]["items"]]
        return [decode(item, blobs, adopt) for item in values]

    if type(data) in _SIMPLE:
        return data
    if isinstance(data, list):
        return items(data)
    try:
        match data["kind"]:
            case "array":
                array = _array(blobs[data["blob"]])
                array.flags.writeable = "locked" not in data
                return array
            case "scalar":
                return _array(blobs[data["blob"]])[()]
            case "bytes" | "bytearray" | "memoryview" as kind:
                content = (blobs[data["blob"]] if "blob" in data
                           else data["text"].encode("latin-1"))
                return {"bytes": bytes, "bytearray": bytearray,
                        "memoryview": memoryview}[kind](content)
            case "str":
                return blobs[data["blob"]].decode("utf-8", "surrogatepass")
            case "dict":
                return _table(items(data["keys"]), items(data["values"]))
            case "counter":
                return Counter(_table(items(data["keys"]), items(data["values"])))
            case "tuple" | "deque" as kind:
                return {"tuple": tuple, "deque": deque}[kind](items(data["items"]))
            case "set" | "frozenset" as kind:
                elements = items(data["items"])
                return {"set": set, "frozenset": frozenset}[kind](_table(elements, elements))
            case "range":
                return _short(range(*data["items"]))
            case "slice":
                return slice(*items(data["items"]))
            case "ellipsis":
                return Ellipsis
            case "path":
                return Path(data["text"])
            case "dtype":
                return np.dtype(str(data["text"]))
            case "scalar type":
                return np.dtype(str(data["text"])).type
            case "generator":
                return generator_of(decode(data["state"], blobs, adopt))
            case "class":
                return _class_named(data["class"])
            case "enum":
                return _value_class(data["class"], Enum)[data["name"]]
            case "dataclass":
                kind = _value_class(data["class"], object)
                values = [decode(value, blobs, adopt) for value in data["values"]]
                made = object.__new__(kind)
                for each, value in zip(dataclasses.fields(kind), values, strict=True):
                    object.__setattr__(made, each.name, value)
                return made
            case "handle":
                return adopt(data)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise WireError(f"a message that does not follow the format: {error}") from error
    raise WireError(f"a value of an unknown kind, {str(data['kind'])[:40]!r}")


def _table(keys: list, values: list) -> dict:
    """A dict of them. Who writes the keys may want it to take for ever."""
    table, start = {}, time.thread_time()
    for number, (key, value) in enumerate(zip(keys, values, strict=True)):
        table[key] = value
        if number % 256 == 255 and time.thread_time() - start > HASHING_SECONDS:
            raise WireError("a table whose keys collide")
    return table


def _short(value: range) -> range:
    if value and abs(value[-1] - value[0]) // abs(value.step) >= MOST_ELEMENTS:
        raise WireError("a range longer than any that this protocol sends")
    return value


def generator_of(state: dict) -> np.random.Generator:
    """A random generator that goes on from a state, which names its kind."""
    kinds = {"PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"}
    if state["bit_generator"] not in kinds:
        raise WireError("a random generator of an unknown kind")
    bits = getattr(np.random, state["bit_generator"])()
    bits.state = state
    return np.random.Generator(bits)


def _npy(array: np.ndarray) -> bytes:
    is_fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    return (_header(array.dtype, array.shape, is_fortran)
            + array.tobytes("F" if is_fortran else "C"))


# NumPy writes and parses a header as Python's text, which takes longer than sending a small
# array. The same few shapes come by the thousand.
@lru_cache(maxsize=1024)
def _header(dtype: np.dtype, shape: tuple[int, ...], is_fortran: bool) -> bytes:
    told = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": is_fortran,
            "shape": shape}
    stream = io.BytesIO()
    try:
        np.lib.format.write_array_header_1_0(stream, told)
    except ValueError:                                  # it is longer than 64 KB
        np.lib.format.write_array_header_2_0(stream, told)
    return stream.getvalue()


@lru_cache(maxsize=1024)
def _parsed(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype]:
    """What an npy header says: shape, whether the order is Fortran's, dtype."""
    stream = io.BytesIO(header)
    reader = {(1, 0): np.lib.format.read_array_header_1_0,
              (2, 0): np.lib.format.read_array_header_2_0}.get(np.lib.format.read_magic(stream))
    if reader is None:
        raise WireError("an array in an unknown format")
    return reader(stream)


def _array(blob: bytes) -> np.ndarray:
    # A header of version 1 begins with 6 bytes of magic, 2 of version and 2 of its length; of
    # version 2, with 4 of its length.
    start = 10 if blob[6:7] == b"\x01" else 12
    start += int.from_bytes(blob[8:start], "little")
    shape, is_fortran, dtype = _parsed(blob[:start])
    content = memoryview(blob)[start:]
    count = math.prod(shape)
    # The header is not believed: the content must be exactly as long as it says, before
    # anything is reserved.
    if dtype.hasobject or min(shape, default=0) < 0 or count * dtype.itemsize != len(content):
        raise WireError("an array whose header and content do not agree")
    if dtype.itemsize == 0:
        if count > MOST_ELEMENTS:
            raise WireError("an array of too many nothings")
        return np.empty(shape, dtype)
    array = np.frombuffer(bytearray(content), dtype)
    return array.reshape(shape, order="F" if is_fortran else "C")


def _class_name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _travels(kind: type) -> bool:
    return _of_engine(kind.__module__, kind.__qualname__) is kind


def _of_engine(module: str, name: str) -> Any:
    """What a module of the engine that has been imported has by a name; else None."""
    return (getattr(sys.modules.get(module), name, None) if module.startswith(ENGINE)
            else None)


def _class_named(name: str) -> type:
    """A class of an engine module that has been imported. A message imports nothing."""
    module, _, qualname = name.partition(":")
    kind = _of_engine(module, qualname)
    if not isinstance(kind, type):
        raise WireError(f"there is no class {name[:80]!r} in the engine")
    return kind


def _value_class(name: str, base: type) -> type:
    """A dataclass or enumeration of an engine module, whose values travel."""
    kind = _class_named(name)
    if not (issubclass(kind, base) and (issubclass(kind, Enum)
                                        or dataclasses.is_dataclass(kind))):
        raise WireError(f"a value of the class {name[:80]!r}, which may not travel")
    return kind
