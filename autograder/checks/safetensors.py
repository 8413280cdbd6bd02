"""Checks of the safetensors reader, against the `safetensors` package and handmade files."""

import json
from math import prod

import numpy as np
import safetensors.numpy
from hypothesis import strategies as st

from autograder.checking import (CheckFailure, check, expect, expect_close, expect_equal,
                                 expect_error, expect_returned)
from autograder.checking.examples import docstring_example
from autograder.checking.differential import Seen, attempted, expect_agreement
from autograder.generators.calls import Call
from autograder.generators.files import Parts, twice, with_fault
from gearworks.errors import FormatError
from gearworks.formats.float8 import widen_e4m3, widen_e5m2
from gearworks.formats.safetensors import DTYPES, MAX_DIMS, TensorInfo
from gearworks.formats.safetensors import read_header as reference_header
from gearworks.formats.safetensors import read_tensor as reference_tensor

NUMPY_DTYPES = {"F64": "f8", "F32": "f4", "F16": "f2", "I64": "i8", "I32": "i4", "I16": "i2",
                "I8": "i1", "U8": "u1"}


def some_array(rng, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    if np.dtype(dtype).kind == "f":
        return np.asarray(rng.standard_normal(shape), dtype)
    return rng.integers(-100 if np.dtype(dtype).kind == "i" else 0, 100, shape).astype(dtype)


def file_of(entries: dict | str | bytes, data: bytes = b"", size: int | None = None) -> bytes:
    """A file with this header. size: what its first 8 bytes claim instead of the truth."""
    text = json.dumps(entries) if isinstance(entries, dict) else entries
    raw = text.encode("utf-8") if isinstance(text, str) else text
    return (len(raw) if size is None else size).to_bytes(8, "little") + raw + data


def entry(dtype: str, shape: list, begin, end) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def expect_read(read_header, data: bytes | memoryview, tensors: dict[str, TensorInfo],
                metadata: dict, of: str, hint: str) -> None:
    got = read_header(data)
    expect_returned(got, "a pair, the tensors and the metadata")
    expect(isinstance(got, tuple) and len(got) == 2, "a pair, the tensors and the metadata",
           f"a {type(got).__name__}", "`return tensors, metadata` makes a pair.")
    expect_equal(got[0], tensors, of=f"the tensors of {of}", hint=hint)
    expect_equal(list(got[0]), list(tensors), of=f"the order of the names of {of}",
                 hint="The header's order, whatever the order of the bytes.")
    expect_equal(got[1], metadata, of=f"the metadata of {of}",
                 hint='It is what stands under "__metadata__".')


def expect_refused(read_header, data: bytes, when: str, hint: str, name: str = "") -> None:
    """Fail unless this is refused with FormatError. name: of the tensor that it has to name."""
    try:
        with expect_error(FormatError, when=when, hint=hint):
            try:
                read_header(data)
            except FormatError as error:
                if name and name not in str(error):
                    raise CheckFailure(f"the error to name the tensor {name!r} when {when}",
                                       f"the message {str(error).splitlines()[0]!r}",
                                       "In a file with a thousand tensors, somebody has to "
                                       "find it.") from error
                raise
    except MemoryError:
        raise CheckFailure(
            f"FormatError when {when}", "MemoryError",
            "Compare a claim with the file's size before you believe it.") from None


example_of_read_header = docstring_example("safetensors.read_header", points=1)


@check("safetensors.read_header", points=2, public=True)
def what_the_package_wrote(read_header, rng):
    """Names, dtypes, shapes and places of a file that the safetensors package wrote."""
    rows, columns = (int(size) for size in rng.integers(2, 9, 2))
    arrays = {"z.weight": some_array(rng, "f4", (rows, columns)),
              "b.bias": some_array(rng, "f2", (columns,)),
              "c": some_array(rng, "i1", (3, 1, rows))}
    data = safetensors.numpy.save(arrays)
    header_size = int.from_bytes(data[:8], "little")
    wanted = {}
    for name, stored in json.loads(data[8:8 + header_size]).items():
        begin, end = stored["data_offsets"]
        wanted[name] = TensorInfo(stored["dtype"], tuple(stored["shape"]),
                                  8 + header_size + begin, 8 + header_size + end)
    hint = ("The file is: 8 bytes with the header's size, the header, the data. `data_offsets` "
            "count from the end of the header, `start` and `end` from the beginning of the "
            "file. A shape is a tuple.")
    expect_read(read_header, data, wanted, {}, "a file of three tensors", hint)
    expect_read(read_header, memoryview(data), wanted, {}, "the same file as a memoryview",
                "A memoryview is sliced like bytes; `json.loads` takes none, "
                "`parse_strict_json` does.")


@check("safetensors.read_header", points=1, public=True)
def metadata_is_no_tensor(read_header, rng):
    """What stands under __metadata__ comes back beside the tensors, not among them."""
    notes = {"format": "pt", "step": str(rng.integers(1000))}
    header = {"__metadata__": notes, "w": entry("U8", [3], 0, 3)}
    data = file_of(header, bytes(3))
    start = len(data) - 3
    expect_read(read_header, data, {"w": TensorInfo("U8", (3,), start, start + 3)}, notes,
                "a file with metadata",
                "Take it out of the header before you go through the tensors.")
    expect_refused(read_header, file_of({"__metadata__": {"step": 7}}),
                   "a value of the metadata is a number",
                   "The format allows strings there, and nothing else.")


@check("safetensors.read_header", points=2, public=True)
def absurd_sizes(read_header, rng):
    """A header that is larger than the file, or than any header,
    is refused before it is read."""
    hint = ("How many bytes does the file have? Compare, before anything is sliced, parsed or "
            "reserved.")
    whole = file_of({"w": entry("F32", [2], 0, 8)}, bytes(8))
    expect_refused(read_header, b"", "the file is empty", hint)
    expect_refused(read_header, whole[:int(rng.integers(1, 8))],
                   "the file ends within the first 8 bytes", hint)
    for size in (2**63, 2**64 - 1, len(whole), 2**32 + len(whole) - 16):
        expect_refused(read_header, size.to_bytes(8, "little") + whole[8:],
                       f"the first 8 bytes of a file of {len(whole)} bytes claim a header of "
                       f"{size}", hint)


@check("safetensors.read_header", points=2, public=True)
def inside_the_file(read_header, rng):
    """Offsets past the end of the file, or in the wrong order, are refused,
    and the tensor is named."""
    more = int(rng.integers(1, 5)) * 4
    hint = "0 <= begin <= end <= number of bytes after the header."
    beyond = {"ok": entry("F32", [2], 0, 8), "far.away": entry("F32", [more // 4], 8, 8 + more)}
    expect_refused(read_header, file_of(beyond, bytes(8)),
                   f"a tensor ends {more} bytes past the end of the file", hint, "far.away")
    expect_refused(read_header, file_of({"turned": entry("F32", [0], 8, 4)}, bytes(8)),
                   "begin is larger than end", hint, "turned")
    expect_refused(read_header, file_of({"before": entry("F32", [2], -8, 0)}, bytes(8)),
                   "begin is negative", hint, "before")


@check("safetensors.read_header", points=2, public=True)
def bytes_for_the_shape(read_header, rng):
    """A tensor has exactly the bytes that its shape and its dtype take,
    and a dtype that is known."""
    rows = int(rng.integers(2, 6))
    hint = ("`prod(shape)` elements, each of `DTYPES[dtype].itemsize` bytes, lie between the "
            "two offsets.")
    for dtype, nbytes in (("F16", rows * 12), ("F32", rows * 12 - 4), ("F64", rows * 12)):
        data = file_of({"layer.norm": entry(dtype, [rows, 3], 0, nbytes)}, bytes(nbytes))
        expect_refused(read_header, data,
                       f"the shape ({rows}, 3) of {dtype} has {nbytes} bytes", hint,
                       "layer.norm")
    expect_refused(read_header, file_of({"odd.one": entry("F12", [2], 0, 3)}, bytes(3)),
                   "the dtype is 'F12'", "The keys of `DTYPES` are all there are.", "odd.one")
    expect_refused(read_header, file_of({"huge": entry("F32", [2**31, 2**31], 0, 8)}, bytes(8)),
                   "8 bytes claim to be an array of 2**62 numbers", hint, "huge")


@check("safetensors.read_header", points=2, public=True)
def no_overlap_and_no_gap(read_header, rng):
    """Tensors lie end to end: none overlaps another, no byte is left over,
    in whatever order the header lists them."""
    size = int(rng.integers(1, 4)) * 8
    first, second = entry("F32", [size // 4], 0, size), entry("F32", [2], size, size + 8)
    data = file_of({"bias": second, "weight": first}, bytes(size + 8))
    start = len(data) - size - 8
    expect_read(read_header, data,
                {"bias": TensorInfo("F32", (2,), start + size, start + size + 8),
                 "weight": TensorInfo("F32", (size // 4,), start, start + size)}, {},
                "a file whose header names the second tensor first",
                "Sort by place before you compare neighbours.")
    hint = ("Go through them by place; each begins where the one before it ended, and the last "
            "ends with the file.")
    overlapping = {"weight": first, "bias": entry("F32", [2], size - 4, size + 4)}
    expect_refused(read_header, file_of(overlapping, bytes(size + 4)),
                   "two tensors share 4 bytes", hint)
    apart = {"weight": first, "bias": entry("F32", [2], size + 4, size + 12)}
    expect_refused(read_header, file_of(apart, bytes(size + 12)),
                   "4 bytes between two tensors belong to nobody", hint)
    expect_refused(read_header, file_of({"weight": first}, bytes(size + 1)),
                   "a byte follows the last tensor", hint)


@check("safetensors.read_header", points=0.5, public=True)
def sizes_are_integers(read_header, rng):
    """Sizes and offsets that are no integers, true among them, are refused, a dtype that is no
    string, and more dimensions than an array can have."""
    hint = "A list, and in it nothing but what `is_size` says is one; in Python True is an int."
    for shape in ([True, 2], [2.0], ["2"], [-1, -2], None, 2, {"0": 2}):
        expect_refused(read_header, file_of({"w": entry("F32", shape, 0, 8)}, bytes(8)),
                       f"the shape is {shape}", hint, "w")
    for begin, end in ((False, 8), (0, 8.0), ("0", 8), (None, 8)):
        expect_refused(read_header, file_of({"w": entry("F32", [2], begin, end)}, bytes(8)),
                       f"the offsets are {begin!r} and {end!r}", hint, "w")
    for offsets in ([0], [0, 8, 8], 8):
        odd = {"dtype": "F32", "shape": [2], "data_offsets": offsets}
        expect_refused(read_header, file_of({"w": odd}, bytes(8)), f"the offsets are {offsets}",
                       hint, "w")
    for dtype in (["F32"], {"F32": 1}, None, 4):
        odd = {"dtype": dtype, "shape": [2], "data_offsets": [0, 8]}
        expect_refused(read_header, file_of({"w": odd}, bytes(8)), f"the dtype is {dtype}",
                       "What is no string cannot be looked up in `DTYPES`.", "w")
    many = entry("U8", [1] * MAX_DIMS, 0, 1)
    data = file_of({"deep": many}, bytes(1))
    expect_read(read_header, data, {"deep": TensorInfo("U8", (1,) * MAX_DIMS, len(data) - 1,
                                                       len(data))}, {},
                f"a file whose tensor has {MAX_DIMS} dimensions",
                "So many are allowed: `MAX_DIMS`.")
    expect_refused(read_header,
                   file_of({"deep": entry("U8", [1] * (MAX_DIMS + 1), 0, 1)}, bytes(1)),
                   f"a tensor has {MAX_DIMS + 1} dimensions",
                   "No array has more than `MAX_DIMS`.", "deep")


# Shapes about as large as an array can be, most of which have no elements.
WIDE_SHAPES = [[2**32, 2**32], [2**62, 4], [2**63, 2], [0, 2**62], [0, 2**62, 2],
               [0, 2**62, 4], [0, 2**61], [0, 2**61 - 1], [0, 2**63 - 1], [0, 4000],
               [0, *[1] * MAX_DIMS]]


@st.composite
def safetensors_files(draw) -> Call:
    """Whole files, and files with one thing wrong: in the header, in its size, in the data."""
    header, at = {}, 0
    names = st.sampled_from(["w", "b", "层", *["\ud800"] * draw(st.sampled_from([0, 0, 0, 1]))])
    for name in draw(st.lists(names, max_size=3, unique=True)):
        dtype = draw(st.sampled_from(["U8", "F32", "BF16", "F8_E4M3", "I64", "BOOL"]))
        shape = draw(st.lists(st.sampled_from([2, 1, 3, 0]), max_size=3))
        end = at + prod(shape) * DTYPES[dtype].itemsize
        header[name] = entry(dtype, shape, at, end)
        at = end
    header = {name: header[name] for name in draw(st.permutations([*header]))}
    notes = draw(st.sampled_from([None, {"a": "b"}, {}, {"a": 1}, {"a": None}, [],
                                  {"\ud800": "half a pair"}]))
    if draw(st.booleans()):
        header["__metadata__"] = notes
    more, claim, text = 0, 0, ""
    match draw(st.sampled_from(["none", "header", "header", "none", "wraps", "wraps", "size",
                                "data", "json", "twice"])):
        case "header":
            header = draw(with_fault(header))
        case "wraps":                        # 2**64 bytes are none, in 64 bits, and so are 0
            shape = draw(st.permutations(draw(st.sampled_from(WIDE_SHAPES))))
            header["wraps"] = entry(draw(st.sampled_from(["U8", "F32"])), shape, at, at)
        case "size":
            claim = draw(st.sampled_from([1, -1, 2**32, 2**62]))
        case "data":
            more = draw(st.sampled_from([1, 8, -1, -8]))
        case "json":
            text = draw(st.sampled_from(["[]", "{", "{}x", "", '{"w": NaN}', "[" * 3000]))
        case "twice":
            text = twice(header) if header else ""
    plain = draw(st.booleans()) and "\ud800" not in json.dumps(header, ensure_ascii=False)
    raw = (text or json.dumps(header, ensure_ascii=not plain)).encode("utf-8")
    size = max(0, len(raw) + claim)
    return Call((Parts((size.to_bytes(8, "little"), raw, max(0, at + more)),
                       draw(st.booleans())),))


def header_of(read_header, call: Call) -> Seen:
    (data,), _ = call.made()
    tensors, metadata = read_header(data)
    return [("the tensors of", dict(tensors)), ("the order of the names of", [*tensors]),
            ("the metadata of", metadata)]


@check("safetensors.read_header", points=2, public=True)
def any_header(read_header, rng):
    """Files of every kind, and files of which one thing is missing, huge, or of another
    type."""
    expect_agreement(read_header, reference_header, safetensors_files(), rng, run=header_of,
                     examples=250,
                     hint="Take this file apart by the docstring, one rule after the other. "
                          "Which rule does it break, if any?")


@check("safetensors.read_header", points=0.5, public=False)
def any_file(read_header, rng):
    """Files of every dtype, scalars, empty tensors, and no tensor at all."""
    data = file_of({"full": entry("F32", [2], 0, 8), "empty": entry("F16", [3, 0], 0, 0)},
                   bytes(8))
    start = len(data) - 8
    expect_read(read_header, data,
                {"full": TensorInfo("F32", (2,), start, start + 8),
                 "empty": TensorInfo("F16", (3, 0), start, start)}, {}, "a file", "")
    for _ in range(6):
        wanted, entries, at = {}, {}, 0
        for number in range(int(rng.integers(0, 8))):
            dtype = str(rng.choice(list(DTYPES)))
            shape = rng.integers(0, 4, int(rng.integers(0, 4))).tolist()
            end = at + prod(shape) * DTYPES[dtype].itemsize
            entries[f"层.{number}"] = entry(dtype, shape, at, end)
            wanted[f"层.{number}"] = (dtype, tuple(shape), at, end)
            at = end
        names = list(entries)
        rng.shuffle(names)
        text = json.dumps({name: entries[name] for name in names}, ensure_ascii=False)
        data = file_of(text + " " * int(rng.integers(0, 9)), bytes(at))
        start = len(data) - at
        tensors = {}
        for name in names:
            dtype, shape, begin, end = wanted[name]
            tensors[name] = TensorInfo(dtype, shape, start + begin, start + end)
        expect_read(read_header, data, tensors, {}, "a file", "")


@check("safetensors.read_header", points=1, public=False)
def broken_headers(read_header, rng):
    """JSON that two readers could read differently,
    and entries with other members, are refused."""
    good = json.dumps(entry("F32", [2], 0, 8))
    for text in ('{"w":' + good + ',"w":' + good + "}", "[]", "{", '{"w": NaN}',
                 b'{"w\xff": 1}', '{"w": 3}', "{}x"):
        expect_refused(read_header, file_of(text, bytes(8)), f"the header is {text!r}", "")
    for odd in ({**entry("F32", [2], 0, 8), "strides": [1]}, {"dtype": "F32", "shape": [2]}):
        expect_refused(read_header, file_of({"w": odd}, bytes(8)), f"the entry of w is {odd}",
                       "", "w")


# --- read_tensor


def expect_tensor(read_tensor, info: TensorInfo, raw: bytes, wanted: np.ndarray, of: str,
                  hint: str, rng) -> None:
    """The tensor is wanted, bit for bit, out of a file with other bytes around it."""
    before = rng.integers(0, 256, int(rng.integers(1, 20)), dtype=np.uint8).tobytes()
    placed = TensorInfo(info.dtype, info.shape, len(before), len(before) + len(raw))
    expect_close(read_tensor(before + raw + b"\xff" * 5, placed), wanted, of=of,
                 dtype=wanted.dtype, hint=hint, axes=["row", "column"], atol=0, rtol=0)


def bf16_bits(values: np.ndarray) -> np.ndarray:
    return (values.astype(np.float32).view(np.uint32) >> 16).astype("<u2")


def widened(bits: np.ndarray) -> np.ndarray:
    """What bfloat16 patterns mean, as little-endian float32: two bytes of zeros come first."""
    pairs = bits.reshape(-1, 1).view(np.uint8)
    return np.hstack([np.zeros_like(pairs), pairs]).view("<f4").reshape(bits.shape)


example_of_read_tensor = docstring_example("safetensors.read_tensor", points=1)


@check("safetensors.read_tensor", points=1, public=True, always=(0,))
def float32_in_its_place(read_tensor, rng):
    """A float32 tensor is read from its own place, row by row."""
    rows, columns = (int(size) for size in rng.integers(3, 7, 2))
    array = some_array(rng, "<f4", (rows, columns + 3))
    expect_tensor(read_tensor, TensorInfo("F32", array.shape, 0, 0), array.tobytes(), array,
                  f"a float32 tensor of shape {array.shape}",
                  "`np.frombuffer` takes a dtype, a count and an offset in bytes. The offset "
                  "is `info.start`.", rng)


@check("safetensors.read_tensor", points=2, public=True)
def bfloat16(read_tensor, rng):
    """bfloat16 becomes the float32 whose upper half it is."""
    values = np.concatenate([[1.5, -2.0, 0.0, -0.0, 1e-30, -3e38],
                             10.0 ** rng.uniform(-20, 20, 6)]).reshape(3, 4)
    bits = bf16_bits(values)
    expect_tensor(read_tensor, TensorInfo("BF16", (3, 4), 0, 0), bits.tobytes(), widened(bits),
                  "a bfloat16 tensor",
                  "Print the bits of 1.5 after each step. How wide is the type in which you "
                  "shift? Does the last step convert a number, or look at its bits?", rng)


@check("safetensors.read_tensor", points=1, public=True)
def narrow_and_wide(read_tensor, rng):
    """float16, float64 and the two kinds of float8 become float32."""
    for name, dtype in (("F16", "<f2"), ("F64", "<f8")):
        array = some_array(rng, dtype, (4, 5))
        array[0, 0] = 1 / 3
        expect_tensor(read_tensor, TensorInfo(name, array.shape, 0, 0), array.tobytes(),
                      array.astype(np.float32), f"a tensor of {name}",
                      "The engine computes in float32: `.astype` converts values, `.view` "
                      "looks at the same bits as something else. Which one do you want here, "
                      "and which for bfloat16?", rng)
    codes = rng.integers(0, 120, (3, 4), dtype=np.uint8)
    for name, widen in (("F8_E4M3", widen_e4m3), ("F8_E5M2", widen_e5m2)):
        expect_tensor(read_tensor, TensorInfo(name, codes.shape, 0, 0), codes.tobytes(),
                      widen(codes), f"a tensor of {name}",
                      "`widen_e4m3` and `widen_e5m2` are given.", rng)


@check("safetensors.read_tensor", points=1, public=True)
def float32_is_a_view(read_tensor, rng):
    """A float32 tensor is not copied: it is a view of the file, which nobody may write into."""
    array = some_array(rng, "<f4", (3, 7))
    data = array.tobytes()
    got = read_tensor(data, TensorInfo("F32", array.shape, 0, len(data)))
    expect_close(got, array, of="a float32 tensor", atol=0, rtol=0)
    expect(not got.flags.writeable, "a read-only view of the file's bytes",
           "an array that can be written to: a copy",
           "`np.frombuffer` does not copy. What after it does?")


PATTERNS = st.sampled_from([b"\x00", b"\x01", b"\x3f\x80", b"\x7f", b"\x80", b"\xff",
                            b"\xc0\x3f", b"\x2a\x7b"])


@st.composite
def tensors_in_files(draw) -> Call:
    """A tensor of any dtype and shape, at any place of a file."""
    dtype = draw(st.sampled_from([*DTYPES]))
    shape = tuple(draw(st.lists(st.sampled_from([2, 1, 3, 0]), max_size=3)))
    size, before = prod(shape) * DTYPES[dtype].itemsize, draw(st.integers(0, 9))
    raw = draw(PATTERNS) + draw(PATTERNS) + draw(PATTERNS)
    content = (raw * (size // len(raw) + 1))[:size]
    if dtype == "BOOL":
        content = bytes(byte & 1 for byte in content)
    return Call((Parts((before, content, draw(st.integers(0, 5))), draw(st.booleans())),
                 TensorInfo(dtype, shape, before, before + size)))


def tensor_of(read_tensor, call: Call) -> Seen:
    """A tensor bit by bit: nan has many patterns."""
    args, _ = call.made()
    got = attempted(read_tensor, args=args)
    if not isinstance(got, (np.ndarray, np.generic)):
        return [("", got)]
    number = np.array(got)
    return [("the dtype of", str(got.dtype)), ("the shape of", got.shape),
            ("the bytes of", number.tobytes() if got.dtype.kind != "f"
             else np.where(np.isnan(number), np.float32(7e7), number).tobytes())]


@check("safetensors.read_tensor", points=1.5, public=True)
def any_tensor(read_tensor, rng):
    """Tensors of every dtype, shape and pattern of bits, at any place of a file."""
    with np.errstate(all="ignore"):
        expect_agreement(read_tensor, reference_tensor, tensors_in_files(), rng, run=tensor_of,
                         examples=150,
                         hint="Where does it begin, how many elements has it, and what becomes "
                              "of this dtype?")


@check("safetensors.read_tensor", points=0.5, public=False)
def other_kinds(read_tensor, rng):
    """Integers, booleans and complex numbers keep their dtype;
    the other kinds of float8 are refused."""
    for name in ("I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL", "C64"):
        array = some_array(rng, "u1", (2, 3)).astype(DTYPES[name])
        if name == "I64":
            array += 2**53 + 1
        info = TensorInfo(name, array.shape, 3, 3 + array.nbytes)
        got = read_tensor(b"..." + array.tobytes(), info)
        expect_returned(got, f"a tensor of {name}")
        expect_equal((str(got.dtype), got.shape), (str(array.dtype), array.shape),
                     of=f"dtype and shape of {name}")
        expect(np.array_equal(got, array), f"the values of a tensor of {name}", "others")
    for name in ("F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"):
        with expect_error(FormatError, when=f"the dtype is {name}"):
            read_tensor(bytes(4), TensorInfo(name, (4,), 0, 4))


@check("safetensors.read_tensor", points=0.5, public=False)
def all_patterns(read_tensor, rng):
    """All 65,536 patterns of bfloat16, against PyTorch: infinities, tiny numbers, nan."""
    import torch

    bits = rng.permutation(2**16).astype("<u2").reshape(128, 512)
    patterns = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)
    wanted = patterns.to(torch.float32).numpy()
    expect_tensor(read_tensor, TensorInfo("BF16", bits.shape, 0, 0), bits.tobytes(), wanted,
                  "a bfloat16 tensor", "", rng)


@check("safetensors.read_tensor", points=0.5, public=False)
def scalars_and_empty_ones(read_tensor, rng):
    """Tensors without dimensions, without elements, and of many dimensions."""
    for dtype in ("F32", "BF16", "F16"):
        for shape in ((), (0,), (3, 0, 2), (1,), (2, 1, 3, 2)):
            numbers = rng.standard_normal(shape)
            raw = bf16_bits(numbers) if dtype == "BF16" else numbers.astype(DTYPES[dtype])
            data = b"??" + raw.tobytes()
            info = TensorInfo(dtype, shape, 2, len(data))
            expect_close(read_tensor(data, info), reference_tensor(data, info),
                         of=f"a tensor of shape {shape}", atol=0, rtol=0)
