"""Checks of the GGUF reader, against files packed by hand, layouts of `gguf`, the reference."""

import struct
from math import prod

import numpy as np
from hypothesis import strategies as st

from autograder.checking import (CheckFailure, check, expect, expect_close, expect_equal,
                                 expect_error, expect_returned, expect_unchanged)
from autograder.checking.examples import docstring_example
from autograder.checking.differential import Raised, Seen, attempted, expect_agreement
from autograder.generators.blocks import blocks
from autograder.generators.calls import Call
from autograder.generators.files import Parts
from autograder.generators.texts import texts
from gearworks.errors import FormatError
from gearworks.formats import gguf as reference
from gearworks.formats.gguf import BLOCK_FORMATS, NUMBERS, TensorRow, TensorType, ValueType

LETTERS = "abcxyz_.ĠéÜ中🙂"

# --- read_value


def word(rng, length: int) -> str:
    return "".join(LETTERS[i] for i in rng.integers(0, len(LETTERS), length))


def packed_string(text: str | bytes) -> bytes:
    raw = text.encode("utf-8") if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def packed_numbers(kind: ValueType, values) -> bytes:
    return np.array(values, NUMBERS[kind]).tobytes()


def packed_array(kind: int, items: list[bytes], count: int | None = None) -> bytes:
    return struct.pack("<IQ", kind, len(items) if count is None else count) + b"".join(items)


def some_number(rng, kind: ValueType):
    dtype = NUMBERS[kind]
    if dtype.kind == "f":
        return float(dtype.type(rng.standard_normal() * 100))
    if dtype.kind == "b":
        return bool(rng.integers(2))
    limits = np.iinfo(dtype)
    return int(rng.integers(limits.min, limits.max, dtype=dtype, endpoint=True))


def plain(value):
    """A value with its arrays as lists, whatever their dtype."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [plain(item) for item in value] if isinstance(value, list) else value


def expect_value(read_value, raw: bytes, kind: ValueType, wanted, of: str, hint: str,
                 rng=None) -> None:
    """The value is read from the middle of other bytes, and so is the place where it ends."""
    before = (b"" if rng is None
              else rng.integers(0, 256, int(rng.integers(1, 9)), dtype=np.uint8).tobytes())
    data = before + raw + b"\x01\x02\x03"
    got = read_value(data, len(before), kind)
    expect_returned(got, "a pair, the value and the next offset")
    expect(isinstance(got, tuple) and len(got) == 2, "a pair, the value and the next offset",
           f"a {type(got).__name__}", "`return value, offset` makes a pair.")
    expect_equal(plain(got[0]), wanted, of=of, hint=hint)
    expect_equal(got[1], len(before) + len(raw), of=f"the offset after {of}",
                 hint="It counts from the beginning of `data`, not of the value, and every "
                      "byte that was read counts: of lengths and types, too.")


def expect_refused(reader, arguments: tuple, when: str, hint: str, name: str = "") -> None:
    """Fail unless this is refused with FormatError. name: of the tensor that it has to name."""
    try:
        with expect_error(FormatError, when=when, hint=hint):
            try:
                reader(*arguments)
            except FormatError as error:
                if name and name not in str(error):
                    raise CheckFailure(f"the error to name the tensor {name!r} when {when}",
                                       f"the message {str(error).splitlines()[0]!r}") from error
                raise
    except (MemoryError, RecursionError) as error:
        raise CheckFailure(f"FormatError when {when}", type(error).__name__, hint) from None


example_of_read_value = docstring_example("gguf.read_value", points=1)


@check("gguf.read_value", points=2, public=True)
def single_numbers(read_value, rng):
    """A number of each type, as a Python number, and the offset behind it."""
    for kind, dtype in NUMBERS.items():
        value = some_number(rng, kind)
        expect_value(read_value, packed_numbers(kind, [value]), kind, value,
                     f"a {kind.name} {value!r}",
                     "`read_numbers` knows the dtype of every type; `.item()` makes an int, a "
                     "float or a bool of one.", rng)


@check("gguf.read_value", points=2, public=True)
def strings(read_value, rng):
    """A string is its length in bytes, then its bytes; there is no zero at the end."""
    for text in ("ok", "", word(rng, 7), "中文"):
        expect_value(read_value, packed_string(text), ValueType.STRING, text,
                     f"the string {text!r}",
                     "The length is a uint64, and it counts bytes, not characters.", rng)


@check("gguf.read_value", points=2, public=True)
def arrays(read_value, rng):
    """An array of numbers is one NumPy array of the stored type,
    an array of strings is a list."""
    for kind in (ValueType.UINT8, ValueType.INT32, ValueType.FLOAT32, ValueType.UINT64):
        values = [some_number(rng, kind) for _ in range(int(rng.integers(2, 6)))]
        raw = packed_array(kind, [packed_numbers(kind, values)], len(values))
        wanted = np.array(values, NUMBERS[kind]).tolist()
        expect_value(read_value, raw, ValueType.ARRAY, wanted, f"an array of {kind.name}",
                     "Type of the items (uint32), their number (uint64), the items.", rng)
        got, _ = read_value(raw, 0, ValueType.ARRAY)
        expect(isinstance(got, np.ndarray) and got.dtype == NUMBERS[kind],
               f"a NumPy array of {NUMBERS[kind]}",
               f"{type(got).__name__} {getattr(got, 'dtype', '')}".strip(),
               "A vocabulary has tens of thousands of scores: `read_numbers` reads them at "
               "once.")
    texts = [word(rng, int(rng.integers(0, 6))) for _ in range(4)]
    expect_value(read_value, packed_array(ValueType.STRING, [*map(packed_string, texts)]),
                 ValueType.ARRAY, texts, f"an array of the strings {texts}",
                 "Each item is read like any other value of its type.", rng)


@check("gguf.read_value", points=2, public=True)
def claims_are_checked(read_value, rng):
    """A value that claims more than the file holds is refused before anything is reserved."""
    hint = ("`require_bytes` compares a claim with what follows. Every item takes at least "
            "`SMALLEST[type]` bytes.")
    for size in (2**63, 2**64 - 1, 4):
        expect_refused(read_value, (struct.pack("<Q", size) + b"abc", 0, ValueType.STRING),
                       f"a string claims {size} bytes and 3 follow", hint)
    for kind in (ValueType.STRING, ValueType.FLOAT32, ValueType.ARRAY, ValueType.UINT8):
        expect_refused(read_value, (packed_array(kind, [bytes(40)], 2**62), 0, ValueType.ARRAY),
                       f"an array claims 2**62 items of {kind.name} and 40 bytes follow", hint)
    for kind in (ValueType.UINT32, ValueType.FLOAT64, ValueType.STRING, ValueType.ARRAY):
        expect_refused(read_value, (b"\0" * int(rng.integers(0, 4)), 0, kind),
                       f"{kind.name} is cut off", hint)
    longest = packed_string(bytes(reference.MAX_STRING_BYTES))
    value, end = read_value(b"123456789" + longest, 9, ValueType.STRING)
    expect_equal((len(value), end), (reference.MAX_STRING_BYTES, 9 + len(longest)),
                 of="the length of the longest string that is allowed, and the next offset",
                 hint="`MAX_STRING_BYTES` counts the string's own bytes, and is allowed.")


@check("gguf.read_value", points=1, public=True)
def nonsense(read_value, rng):
    """A type that does not exist, a bool that is 2, and bytes that are no UTF-8 are refused."""
    unknown = int(rng.integers(13, 2**31))
    expect_refused(read_value, (bytes(16), 0, unknown), f"the type is {unknown}",
                   "`ValueType` has all the types that there are.")
    expect_refused(read_value, (packed_array(unknown, []) + bytes(9), 0, ValueType.ARRAY),
                   f"an array has items of the type {unknown}", "Also when it has no items.")
    expect_refused(read_value, (b"\x02", 0, ValueType.BOOL), "a bool is 2",
                   "`read_numbers` refuses it.")
    expect_refused(read_value, (packed_string(b"ab\xff\xfe"), 0, ValueType.STRING),
                   "a string is not UTF-8",
                   "`UnicodeDecodeError` is no FormatError: catch it, and say what is wrong "
                   "with the file.")


@check("gguf.read_value", points=0.5, public=False)
def nested(read_value, rng):
    """Arrays in arrays, empty ones too, up to the allowed depth and not beyond."""
    inner = [[some_number(rng, ValueType.INT16) for _ in range(n)] for n in (2, 0, 3)]
    rows = [packed_array(ValueType.INT16, [packed_numbers(ValueType.INT16, row)], len(row))
            for row in inner]
    raw = packed_array(ValueType.ARRAY, rows)
    expect_value(read_value, raw, ValueType.ARRAY, inner, "an array of arrays", "", rng)
    texts = [[word(rng, 2)], [], [word(rng, 3), ""]]
    rows = [packed_array(ValueType.STRING, [*map(packed_string, row)]) for row in texts]
    raw = packed_array(ValueType.ARRAY, rows)
    expect_value(read_value, raw, ValueType.ARRAY, texts, "an array of arrays of strings", "",
                 rng)
    for kind in ValueType:
        expect_value(read_value, packed_array(kind, []), ValueType.ARRAY, [], "an empty array",
                     "")
    raw, wanted = packed_array(ValueType.UINT8, [b"\x07"]), [7]
    for _ in range(reference.MAX_ARRAY_DEPTH - 1):
        raw, wanted = packed_array(ValueType.ARRAY, [raw]), [wanted]
    expect_value(read_value, raw, ValueType.ARRAY, wanted, "arrays nested as deep as allowed",
                 "")
    expect_refused(read_value, (packed_array(ValueType.ARRAY, [raw]), 0, ValueType.ARRAY),
                   "one more encloses them", "")
    bomb = packed_array(ValueType.ARRAY, [], 1) * 5000
    expect_refused(read_value, (bomb, 0, ValueType.ARRAY), "5,000 arrays are nested", "")


@check("gguf.read_value", points=0.5, public=False, always=(0,))
def value_after_value(read_value, rng):
    """Random values one after the other, up to the last byte,
    and a long string that is too long."""
    entries, data = [], b""
    for _ in range(30):
        kind = ValueType(int(rng.integers(0, 13)))
        if kind == ValueType.STRING:
            value = word(rng, int(rng.integers(0, 9)))
            raw = packed_string(value)
        elif kind == ValueType.ARRAY:
            value = [some_number(rng, ValueType.UINT16) for _ in range(int(rng.integers(0, 5)))]
            items = [packed_numbers(ValueType.UINT16, value)]
            raw = packed_array(ValueType.UINT16, items, len(value))
        else:
            value = some_number(rng, kind)
            raw = packed_numbers(kind, [value])
        entries.append((kind, value))
        data += raw
    at = 0
    for kind, value in entries:
        got, at = read_value(memoryview(data), at, kind)
        expect_equal(plain(got), value, of="the value")
    expect_equal(at, len(data), of="the last offset")
    long = bytes(reference.MAX_STRING_BYTES + 1)
    expect_refused(read_value, (packed_string(long), 0, ValueType.STRING),
                   "a string is longer than any may be", "")


ANY_NUMBER = st.sampled_from([*NUMBERS])
STRINGS = st.one_of(
    texts(most=3), st.sampled_from(["\ufeff", "\ufeffa", "a\ufeff", "", "\0", "中"]),
    st.sampled_from(["\ufeff", b"\xff", b"\xc3", b"a\x80", b"\xed\xa0\x80"]))


@st.composite
def values(draw, depth: int = 0) -> tuple[ValueType, bytes]:
    """The type and the bytes of a value: a number, a string, an array of anything; wrong ones
    among them."""
    if depth < 3 and draw(st.sampled_from([False, True, False])):
        count_claim = draw(st.sampled_from([0, 0, 0, 0, 1, -1, 2**40, 2**62]))
        if draw(st.booleans()):
            kind = draw(ANY_NUMBER)
            items = [draw(raw_numbers(kind)) for _ in range(draw(st.integers(0, 3)))]
        else:
            first = draw(values(depth + 1))
            kind, items = first[0], [first[1]] * draw(st.integers(0, 2))
        written = draw(st.sampled_from([kind] * 8 + [13, 2**31]))
        count = max(0, len(items) + count_claim)
        return ValueType.ARRAY, packed_array(written, items, count)
    if draw(st.booleans()):
        return ValueType.STRING, packed_string(draw(STRINGS))
    kind = draw(ANY_NUMBER)
    return kind, draw(raw_numbers(kind))


def raw_numbers(kind: ValueType) -> st.SearchStrategy[bytes]:
    """A number's bytes: all bits set or none, and others; of a bool, sometimes 2."""
    size = NUMBERS[kind].itemsize
    patterns = ([b"\0", b"\1", b"\1", b"\2"] if kind is ValueType.BOOL
                else [bytes(size), b"\1" * size, b"\xff" * size, b"\x80" + bytes(size - 1),
                      bytes(size - 1) + b"\x80", bytes(range(0x38, 0x38 + size))])
    return st.sampled_from(patterns)


@st.composite
def values_in_files(draw) -> Call:
    """A value at any place of a file; one that is cut off, nested too deep, or of no type."""
    kind, raw = draw(values())
    for _ in range(draw(st.sampled_from([0, 0, 0, 0, 6, 7, 8, 9]))):
        kind, raw = ValueType.ARRAY, packed_array(kind, [raw])
    before, after = draw(st.integers(0, 9)), draw(st.sampled_from([3, 0, 3, -1, -2]))
    kind = draw(st.sampled_from([kind] * 12 + [13, 99]))
    content = raw[:after] if after < 0 else raw
    depth = draw(st.sampled_from([(), (), (), (1,), (8,)]))
    return Call((Parts((before, content, max(after, 0)), draw(st.booleans())), before, kind,
                 *depth))


def value_of(read_value, call: Call) -> Seen:
    args, _ = call.made()
    got = attempted(read_value, args=args)
    if isinstance(got, Raised) or not isinstance(got, tuple) or len(got) != 2:
        return [("", got)]
    return [("the value of", plain(got[0])), ("the kind of the value of", kind_of(got[0])),
            ("the next offset of", got[1])]


def kind_of(value) -> str:
    """The type of a value; of arrays with their dtype, of lists with their items'."""
    if isinstance(value, np.ndarray):
        return f"array of {value.dtype}"
    if isinstance(value, list):
        return f"list of [{', '.join(map(kind_of, value))}]"
    return type(value).__name__


@check("gguf.read_value", points=2, public=True)
def any_value(read_value, rng):
    """Values of every type, arrays in arrays, and values that are cut off, claim too much,
    or are of no type."""
    strings = st.builds(lambda text, before: Call(
        (Parts((before, packed_string(text), 3)), before, ValueType.STRING)), STRINGS,
        st.integers(0, 9))
    expect_agreement(read_value, reference.read_value, strings, rng, run=value_of, examples=80,
                     hint="Its length in bytes, then its bytes, as they are.")
    expect_agreement(read_value, reference.read_value, values_in_files(), rng, run=value_of,
                     examples=300,
                     hint="Read these bytes with a pencil: length or count first. Does what "
                          "it claims fit into what follows?")


# --- read_tensor_table


def packed_row(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    """A row of the tensor table; shape: as in NumPy."""
    return (packed_string(name) + struct.pack("<I", len(shape))
            + struct.pack(f"<{len(shape)}Q", *reversed(shape))
            + struct.pack("<IQ", kind, offset))


@st.composite
def tables(draw) -> Call:
    """Tables of tensors of every type and size; one thing in them may be wrong."""
    rows = []
    for name in draw(st.lists(st.sampled_from(["w", "b", "blk.0.层", ""]), max_size=3)):
        kind = draw(st.sampled_from([*BLOCK_FORMATS]))
        size = BLOCK_FORMATS[kind].size
        row_size = draw(st.sampled_from([size, 2 * size, 3 * size, size, size + 1, 0, 32]))
        outer = draw(st.sampled_from([(), (2,), (3, 2), (1, 2, 3), (2**31, 2**31), (2**62, 4),
                                      (2, 2, 2, 2), (0,)]))
        written = draw(st.sampled_from([kind] * 8 + [4, 16, 2**31]))
        rows.append(packed_row(name, (*outer, row_size), written,
                               draw(st.sampled_from([0, 32, 2**40]))))
    if draw(st.sampled_from([False] * 9 + [True])):
        rows.append(packed_row("none", (), TensorType.F32, 0))
    raw, before = b"".join(rows), draw(st.integers(0, 9))
    after = draw(st.sampled_from([40, 0, 40, 0, -1, -9]))
    count = max(0, len(rows) + draw(st.sampled_from([0, 0, 0, 0, 0, 1, -1, 2**40, 2**62])))
    content = raw[:after] if after < 0 else raw
    return Call((Parts((before, content, max(after, 0)), draw(st.booleans())), before, count))


def table_of(read_tensor_table, call: Call) -> Seen:
    args, _ = call.made()
    got = attempted(read_tensor_table, args=args)
    if isinstance(got, Raised) or not isinstance(got, tuple) or len(got) != 2:
        return [("", got)]
    return [("the tensors of", dict(got[0])), ("the order of the names of", [*got[0]]),
            ("the next offset of", got[1])]


def info_of(name: str, shape: tuple[int, ...], kind: TensorType, offset: int) -> TensorRow:
    block = BLOCK_FORMATS[kind]
    return TensorRow(name, shape, kind, offset, prod(shape) // block.size * block.nbytes)


def expect_table(read_tensor_table, infos: list[TensorRow], of: str, hint: str, rng) -> None:
    before = bytes(int(rng.integers(1, 40)))
    rows = b"".join(packed_row(info.name, info.shape, info.type, info.offset) for info in infos)
    got = read_tensor_table(before + rows + b"\0" * 40, len(before), len(infos))
    expect_returned(got, "a pair, the table and the next offset")
    expect(isinstance(got, tuple) and len(got) == 2, "a pair, the table and the next offset",
           f"a {type(got).__name__}", "`return rows, offset` makes a pair.")
    expect_equal(got[0], {info.name: info for info in infos}, of=of, hint=hint)
    expect_equal(list(got[0]), [info.name for info in infos],
                 of=f"the order of the names of {of}", hint="The file's order.")
    expect_equal(got[1], len(before) + len(rows), of=f"the offset behind {of}",
                 hint="Where does the last row end?")


def expect_row_refused(read_tensor_table, row: bytes, when: str, hint: str, name: str = "",
                       count: int = 1) -> None:
    expect_refused(read_tensor_table, (row + bytes(40), 0, count), when, hint, name)


TABLE_HINT = ("A row: name, number of dimensions (uint32), dimensions (uint64 each), type "
              "(uint32), offset (uint64). The file lists the fastest dimension first.")


example_of_read_tensor_table = docstring_example("gguf.read_tensor_table", points=1)


@check("gguf.read_tensor_table", points=2, public=True)
def rows_of_a_table(read_tensor_table, rng):
    """Names, shapes in NumPy's order, types and offsets of several tensors."""
    sizes = rng.permutation([2, 3, 5, 7]).tolist()
    infos = [info_of("output_norm.weight", (sizes[0] * 8,), TensorType.F32, 0),
             info_of("token_embd.weight", (sizes[1], 64), TensorType.F32, 1024),
             info_of(f"blk.0.{word(rng, 3)}", (sizes[2], sizes[3], 32), TensorType.F32, 96)]
    expect_table(read_tensor_table, infos, "a table of three tensors", TABLE_HINT, rng)


@check("gguf.read_tensor_table", points=2, public=True)
def bytes_by_type(read_tensor_table, rng):
    """How many bytes a tensor takes follows from its blocks."""
    infos = [info_of(f"t.{kind.name}", (int(rng.integers(2, 6)), 256 * int(rng.integers(1, 4))),
                     kind, 64 * number) for number, kind in enumerate(BLOCK_FORMATS)]
    expect_table(read_tensor_table, infos, "a table with every type",
                 "`BLOCK_FORMATS[type]` has a `size`, the values in a block, and `nbytes`, the "
                 "bytes that hold them. `type` is a `TensorType`.", rng)


@check("gguf.read_tensor_table", points=2, public=True)
def whole_blocks(read_tensor_table, rng):
    """A row of a tensor is a whole number of blocks,
    and a type that nobody knows is refused."""
    columns = 32 * int(rng.integers(1, 5)) + int(rng.integers(1, 32))
    hint = ("A block holds values of one row, the fastest dimension; it never goes on in the "
            "next row.")
    odd = packed_row("blk.3.odd", (64, columns), TensorType.Q4_0, 0)
    expect_row_refused(read_tensor_table, odd,
                       f"a row of {columns} values is stored in blocks of 32", hint,
                       "blk.3.odd")
    for unknown in (4, int(rng.integers(40, 99)), 2**31):
        expect_row_refused(read_tensor_table, packed_row("blk.4.new", (2, 256), unknown, 0),
                           f"the type is {unknown}",
                           "The keys of `BLOCK_FORMATS` can be read, and no others.",
                           "blk.4.new")


@check("gguf.read_tensor_table", points=2, public=True)
def absurd_tables(read_tensor_table, rng):
    """A table that does not end inside the file, absurd dimensions,
    and a name twice are refused."""
    row = packed_row("w", (2, 32), TensorType.F32, 0)
    expect_row_refused(read_tensor_table, row, "the table claims 2**62 rows",
                       "How many bytes does the shortest row take? Compare that with the file "
                       "before you begin.", count=2**62)
    expect_refused(read_tensor_table, (row[:int(rng.integers(9, len(row)))], 0, 1),
                   "the table is cut off", "")
    expect_row_refused(read_tensor_table, row + row, "two tensors have the name w",
                       "Look into the table that you have so far.", "w", count=2)
    hint = f"1 to {reference.MAX_TENSOR_DIMS} dimensions, 1 to 2**63 - 1 values."
    for shape, when in (((), "a tensor has no dimension"),
                        ((1,) * 5, "a tensor has five dimensions"),
                        ((3, 0), "a dimension is 0"),
                        ((2**40, 2**40), "the dimensions multiply to 2**80")):
        row = packed_row("strange", shape, TensorType.F32, 0)
        expect_row_refused(read_tensor_table, row, when, hint, "strange")


@check("gguf.read_tensor_table", points=2, public=True)
def any_rows(read_tensor_table, rng):
    """Tables of every kind, and tables of which one thing is missing, huge, or unknown."""
    expect_agreement(read_tensor_table, reference.read_tensor_table, tables(), rng, always=2,
                     run=table_of, examples=250,
                     hint="Read the first row that differs with a pencil, and hold it against "
                          "each rule of the docstring.")


@check("gguf.read_tensor_table", points=0.5, public=False)
def any_table(read_tensor_table, rng):
    """Tables of any length, with tensors of one to four dimensions and every type."""
    for count in (0, 1, 12):
        infos = []
        for number in range(count):
            kind = list(BLOCK_FORMATS)[int(rng.integers(len(BLOCK_FORMATS)))]
            outer = rng.integers(1, 6, int(rng.integers(0, 4))).tolist()
            shape = (*outer, BLOCK_FORMATS[kind].size * int(rng.integers(1, 5)))
            infos.append(info_of(f"{word(rng, 3)}{number}", shape, kind,
                                 int(rng.integers(2**40))))
        expect_table(read_tensor_table, infos, "a table", "", rng)


@check("gguf.read_tensor_table", points=0.5, public=False)
def odd_rows(read_tensor_table, rng):
    """A dimension count of 2**32 - 1, and products that wrap around in 64 bits."""
    expect_row_refused(read_tensor_table,
                       packed_string("n") + struct.pack("<I", 2**32 - 1) + bytes(64),
                       "a tensor has 2**32 - 1 dimensions", "", "n")
    for shape in ((2**32, 2**31 + 1), (2**63,), (2**62, 4, 1, 32), (4, 2**62 + 1),
                  (2**32, 2**32, 32)):
        expect_row_refused(read_tensor_table, packed_row("wraps", shape, TensorType.F32, 0),
                           f"the shape is {shape}", "", "wraps")


# --- dequantize


def blocks_of(rng, n: int, floats: list, codes: int) -> np.ndarray:
    """Random blocks: columns of float16 numbers, each (n,), then random bytes of codes."""
    heads = [np.asarray(column, "<f2").reshape(n, 1).view(np.uint8) for column in floats]
    return np.hstack([*heads, rng.integers(0, 256, (n, codes), dtype=np.uint8)])


def scales(rng, n: int) -> np.ndarray:
    """Scales of both signs, different in each block, small ones among them."""
    return (rng.standard_normal(n) * 10.0 ** rng.uniform(-4, 1, n)).astype(np.float16)


def expect_blocks(dequantize, blocks: np.ndarray, wanted: np.ndarray, of: str,
                  hint: str) -> None:
    with expect_unchanged(blocks, hint="The bytes belong to the file."):
        got = dequantize(blocks)
    expect(getattr(got, "dtype", None) != np.float16, f"{of} to be float32", "float16",
           "NumPy makes a float16 of a float16 and an int8. What has to be widened before the "
           "product?")
    expect_close(got, wanted, of=of, axes=["block", "value"], atol=0, rtol=0, hint=hint)


def q8_0_values(blocks: np.ndarray) -> np.ndarray:
    """One block after the other, number by number."""
    values = []
    for block in blocks.tolist():
        scale, *codes = struct.unpack("<e32b", bytes(block))
        values.append([scale * code for code in codes])
    return np.array(values, np.float32).reshape(-1, 32)


def q4_values(blocks: np.ndarray, has_minimum: bool) -> np.ndarray:
    """One block after the other, number by number: exact but for the last rounding."""
    values = []
    for block in blocks.tolist():
        head = bytes(block[:4] if has_minimum else block[:2])
        scale, *rest = struct.unpack("<ee" if has_minimum else "<e", head)
        codes = block[len(head):]
        nibbles = [code % 16 for code in codes] + [code // 16 for code in codes]
        values.append([scale * nibble + rest[0] if has_minimum else scale * (nibble - 8)
                       for nibble in nibbles])
    return np.array(values, np.float32).reshape(-1, 32)


example_of_dequantize_q8_0 = docstring_example("gguf.dequantize_q8_0", points=1)


@check("gguf.dequantize_q8_0", points=1, public=True, always=(0,))
def scale_times_byte(dequantize_q8_0, rng):
    """Each value is the block's scale times a signed byte."""
    scale = float(rng.choice([0.5, 2.0, -0.25]))
    blocks = blocks_of(rng, 1, [[scale]], 32)
    blocks[0, 2:8] = 0, 1, 127, 128, 255, 200
    expect_blocks(dequantize_q8_0, blocks, q8_0_values(blocks),
                  f"a block with the scale {scale}",
                  "The bytes are signed: 128 is -128, 255 is -1. `.view(np.int8)` looks at "
                  "them so.")


@check("gguf.dequantize_q8_0", points=2, public=True)
def each_block_its_scale(dequantize_q8_0, rng):
    """Every block has its own scale, a little-endian float16 before its bytes."""
    blocks = blocks_of(rng, 5, [scales(rng, 5)], 32)
    expect_blocks(dequantize_q8_0, blocks, q8_0_values(blocks),
                  "five blocks with different scales",
                  "Two bytes of scale, 32 of codes. With the shape (n, 1) a scale meets its "
                  "own block only.")


@check("gguf.dequantize_q8_0", points=1, public=True)
def any_q8_0(dequantize_q8_0, rng):
    """Blocks of every scale, that may not be written to."""
    expect_agreement(dequantize_q8_0, reference.dequantize_q8_0, blocks(34), rng, rtol=0,
                     hint="Take the first value that differs: which byte is it, and which "
                          "number is that byte?")


@check("gguf.dequantize_q8_0", points=0.5, public=False)
def q8_0_bit_for_bit(dequantize_q8_0, rng):
    """Scales that are large, tiny or zero: exact, in float32."""
    blocks = blocks_of(rng, 7, [[65504, -60000, 6e-8, 1e-5, 0, -0.0, 0.1]], 32)
    expect_blocks(dequantize_q8_0, blocks, q8_0_values(blocks), "blocks with extreme scales",
                  "")
    blocks = blocks_of(rng, 300, [scales(rng, 300)], 32)
    expect_blocks(dequantize_q8_0, blocks, q8_0_values(blocks), "300 blocks", "")


@check("gguf.dequantize_q8_0", points=0.5, public=False)
def like_gguf_py(dequantize_q8_0, rng):
    """What a quantizer stored comes back within half a step."""
    x = rng.standard_normal((6, 32)).astype(np.float32) * np.float32(3)
    steps = (np.abs(x).max(axis=1) / 127).astype(np.float16)
    codes = np.rint(x / steps.astype(np.float32)[:, None]).astype(np.int8).view(np.uint8)
    blocks = np.hstack([steps.reshape(-1, 1).view(np.uint8), codes])
    expect_close(dequantize_q8_0(blocks), x, of="six quantized vectors", atol=0.06, rtol=0)
    expect_blocks(dequantize_q8_0, blocks, q8_0_values(blocks), "six quantized vectors", "")


Q4 = "gguf.dequantize_q4_0+dequantize_q4_1"


def uniform_blocks(rng, head: list[float]) -> np.ndarray:
    """A block for each of the 16 codes, 32 times the same: no order of values can matter."""
    codes = np.repeat(rng.permutation(16).astype(np.uint8)[:, None] * np.uint8(17), 16, axis=1)
    return np.hstack([np.tile(np.array(head, "<f2").view(np.uint8), (16, 1)), codes])


example_of_dequantize_q4_0_dequantize_q4_1 = docstring_example(Q4, points=1)


@check(Q4, points=2, public=True)
def q4_0_around_eight(dequantize_q4_0, dequantize_q4_1, rng):
    """In Q4_0 a value is the scale times its four bits less eight."""
    scale = float(rng.choice([0.5, 4.0, -2.0]))
    blocks = uniform_blocks(rng, [scale])
    expect_blocks(dequantize_q4_0, blocks, q4_values(blocks, False),
                  f"16 blocks of Q4_0, each 32 times one code, with the scale {scale},",
                  "Four bits say 0 to 15. The eight is subtracted from them, before the scale "
                  "is applied. What is 7 - 8 in bytes?")


@check(Q4, points=2, public=True)
def halves_not_neighbours(dequantize_q4_0, dequantize_q4_1, rng):
    """The low bits of byte j are value j, its high bits value j + 16."""
    hint = ("Are only the values wrong, or what stands before them, too: scale and minimum? "
            "The low halves are values 0 to 15, the high halves 16 to 31.")
    blocks = blocks_of(rng, 3, [scales(rng, 3)], 16)
    expect_blocks(dequantize_q4_0, blocks, q4_values(blocks, False), "three blocks of Q4_0",
                  hint)
    blocks = blocks_of(rng, 3, [scales(rng, 3), scales(rng, 3)], 16)
    expect_blocks(dequantize_q4_1, blocks, q4_values(blocks, True), "three blocks of Q4_1",
                  hint)


@check(Q4, points=2, public=True)
def q4_1_from_its_minimum(dequantize_q4_0, dequantize_q4_1, rng):
    """In Q4_1 a value is the scale times its four bits, plus the block's minimum."""
    scale, minimum = float(rng.choice([0.5, 2.0])), float(rng.choice([-3.0, -7.0, 1.25]))
    blocks = uniform_blocks(rng, [scale, minimum])
    expect_blocks(dequantize_q4_1, blocks, q4_values(blocks, True),
                  f"16 blocks of Q4_1, each 32 times one code, with the scale {scale} and the "
                  f"minimum {minimum},",
                  "First the scale, then the minimum, then the sixteen bytes. Nothing is "
                  "centred at eight here.")


@check(Q4, points=1, public=True)
def any_q4(dequantize_q4_0, dequantize_q4_1, rng):
    """Blocks of every scale, that may not be written to."""
    for dequantize, right, nbytes, count in (
            (dequantize_q4_0, reference.dequantize_q4_0, 18, 1),
            (dequantize_q4_1, reference.dequantize_q4_1, 20, 2)):
        expect_agreement(dequantize, right, blocks(nbytes, count), rng, rtol=1e-6,
                         hint="Take the first value that differs: which half of which byte is "
                              "it, and what is done to four bits?")


@check(Q4, points=0.5, public=False)
def q4_bit_for_bit(dequantize_q4_0, dequantize_q4_1, rng):
    """Many blocks, exact in float32, extreme scales among them."""
    extreme = np.array([65504, -60000, 6e-8, 0, 0.1, -0.3], np.float16)
    for n, scale, minimum in ((200, scales(rng, 200), scales(rng, 200)),
                              (6, extreme, extreme[::-1]), (1, [-1.0], [0.0])):
        blocks = blocks_of(rng, n, [scale], 16)
        expect_blocks(dequantize_q4_0, blocks, q4_values(blocks, False), "blocks of Q4_0", "")
        blocks = blocks_of(rng, n, [scale, minimum], 16)
        expect_blocks(dequantize_q4_1, blocks, q4_values(blocks, True), "blocks of Q4_1", "")


@check(Q4, points=0.5, public=False)
def every_byte(dequantize_q4_0, dequantize_q4_1, rng):
    """All 256 bytes, each of them in each place."""
    steps = np.arange(16) * int(rng.integers(1, 99))
    codes = (np.arange(256)[:, None] + steps).astype(np.uint8)
    ones = np.ones((256, 1), "<f2").view(np.uint8)
    blocks = np.hstack([ones, codes])
    expect_blocks(dequantize_q4_0, blocks, q4_values(blocks, False),
                  "blocks of Q4_0 with every byte", "")
    blocks = np.hstack([ones, ones, codes])
    expect_blocks(dequantize_q4_1, blocks, q4_values(blocks, True),
                  "blocks of Q4_1 with every byte", "")
