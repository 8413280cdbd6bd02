"""The GGUF reader against the `gguf` package:
metadata, tensor table and every dequantized bit. About 10 s."""

import doctest
import os
from collections import Counter
from pathlib import Path

import gguf as oracle
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import gearworks.formats.gguf
from gearworks.errors import FormatError, NotAvailableError
from gearworks.formats import gguf_i_quants
from gearworks.formats.gguf import (BLOCK_FORMATS, CHUNK_VALUES, GGUFFile, TensorType,
                                    ValueType, dequantize, read_value)

TYPES = list(BLOCK_FORMATS)
OracleType = oracle.GGUFValueType
QUANTIZED = [kind for kind in TYPES if BLOCK_FORMATS[kind].size > 1]
# Where the float16 numbers of a block stand; at byte 0 alone where nothing is said.
SCALES = {TensorType.Q4_1: (0, 2), TensorType.Q5_1: (0, 2), TensorType.Q2_K: (80, 82),
          TensorType.Q3_K: (108,), TensorType.Q4_K: (0, 2), TensorType.Q5_K: (0, 2),
          TensorType.Q6_K: (208,)}


def random_bytes(rng: np.random.Generator, kind: TensorType,
                 shape: tuple[int, ...]) -> np.ndarray:
    """Bytes of a tensor whose scales are finite and of both signs;
    all other bits are random."""
    block = BLOCK_FORMATS[kind]
    n = int(np.prod(shape)) // block.size
    if kind == TensorType.BF16:
        return (rng.normal(size=n).astype(
            np.float32).view(np.uint32) >> 16).astype("<u2").view(np.uint8)
    if block.size == 1:
        return rng.normal(size=n).astype({4: "<f4", 2: "<f2"}[block.nbytes]).view(np.uint8)
    raw = rng.integers(0, 256, (n, block.nbytes), dtype=np.uint8)
    for place in SCALES.get(kind, (0,)):
        raw[:, place:place + 2] = rng.normal(size=(n, 1)).astype("<f2").view(np.uint8)
    return raw.reshape(-1)


def oracle_values(raw: np.ndarray, kind: TensorType, shape: tuple[int, ...]) -> np.ndarray:
    rows = raw.reshape(*shape[:-1], -1)
    with np.errstate(over="ignore"):            # of the largest scales that MXFP4 can have
        return oracle.quants.dequantize(rows, oracle.GGMLQuantizationType(kind)).reshape(shape)


def assert_same_bits(got: np.ndarray, expected: np.ndarray) -> None:
    assert got.dtype == np.float32 and got.shape == expected.shape
    np.testing.assert_array_equal(np.ascontiguousarray(got).view(np.uint32),
                                  np.ascontiguousarray(expected).view(np.uint32))


def write_gguf(path: Path, tensors: dict[str, tuple[TensorType, np.ndarray, tuple[int, ...]]],
               metadata=(), alignment: int | None = None) -> Path:
    """Write a file with the gguf package. metadata: (key, value, type, item type or None)."""
    writer = oracle.GGUFWriter(path, "llama")
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    for key, value, kind, items in metadata:
        writer.add_key_value(key, value, kind, items)
    for name, (kind, raw, shape) in tensors.items():
        writer.add_tensor(name, raw.reshape(*shape[:-1], -1),
                          raw_dtype=oracle.GGMLQuantizationType(kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def random_tensors(
        rng: np.random.Generator) -> dict[str, tuple[TensorType, np.ndarray, tuple[int, ...]]]:
    """Two tensors of every type, in mixed order, of 1 to 4 dimensions,
    few of them ending on an aligned byte."""
    tensors = {}
    for i, kind in enumerate(TYPES + TYPES[::-1]):
        columns = (BLOCK_FORMATS[kind].size * int(rng.integers(1, 4))
                   + (BLOCK_FORMATS[kind].size == 1))
        shape = (*(int(size) for size in rng.integers(1, 6, size=i % 4)), columns)
        tensors[f"blk.{i}.{kind.name}.weight"] = kind, random_bytes(rng, kind, shape), shape
    return tensors


@pytest.mark.parametrize("alignment", [None, 1, 8, 32, 64, 4096])
def test_tensors_equal_those_of_the_gguf_package(tmp_path, alignment):
    """Names, order, shapes, places in the file and every bit of the values,
    whatever the alignment."""
    tensors = random_tensors(np.random.default_rng(alignment))
    path = write_gguf(tmp_path / "small.gguf", tensors, alignment=alignment)
    with GGUFFile.open(path) as file:
        reader = oracle.GGUFReader(path)
        assert list(file.tensors) == list(tensors) == [tensor.name for tensor in reader.tensors]
        for expected in reader.tensors:
            info = file.tensors[expected.name]
            kind, raw, shape = tensors[expected.name]
            assert ((info.name, info.shape, info.type, info.nbytes)
                    == (expected.name, shape, kind, expected.n_bytes))
            assert file.data_start + info.offset == expected.data_offset
            np.testing.assert_array_equal(file.raw(info.name), raw)
            assert_same_bits(file.tensor(info.name), oracle_values(raw, kind, shape))


NUMBERS = {OracleType.UINT8: [0, 255, 7], OracleType.INT8: [-128, 127],
           OracleType.UINT16: [0, 65535], OracleType.INT16: [-32768, 32767],
           OracleType.UINT32: [0, 2**32 - 1], OracleType.INT32: [-2**31, 2**31 - 1],
           OracleType.UINT64: [0, 2**64 - 1], OracleType.INT64: [-2**63, 2**63 - 1],
           OracleType.FLOAT32: [0.5, -1.25, 1e-5], OracleType.FLOAT64: [0.1, -1e300],
           OracleType.BOOL: [True, False]}
TEXTS = ["", "a", "ĠHello", "中文", "👩‍👩‍👧", "\0nul\n", "e\u0301" * 300]


def test_metadata_of_every_type(tmp_path):
    """Scalars, arrays of every type and arrays in arrays;
    64-bit extremes and Unicode survive."""
    metadata = [(f"one.{kind.name}", values[0], kind, None) for kind, values in NUMBERS.items()]
    metadata += [(f"many.{kind.name}", values, OracleType.ARRAY, kind)
                 for kind, values in NUMBERS.items()]
    metadata += [(f"text.{i}", text, OracleType.STRING, None) for i, text in enumerate(TEXTS)]
    metadata += [("texts", TEXTS, OracleType.ARRAY, OracleType.STRING),
                 ("nested", [[1, -2], [3], [-2**31, 5, 6]], OracleType.ARRAY, OracleType.ARRAY),
                 ("nested.texts", [[["a"], ["b", "中"]], [["c"]]], OracleType.ARRAY,
                  OracleType.ARRAY)]
    with GGUFFile.open(write_gguf(tmp_path / "meta.gguf", {}, metadata)) as file:
        assert list(file.metadata) == ["general.architecture", *(key for key, *_ in metadata)]
        for kind, values in NUMBERS.items():
            expected = np.float32(values[0]) if kind == OracleType.FLOAT32 else values[0]
            one, many = file.metadata[f"one.{kind.name}"], file.metadata[f"many.{kind.name}"]
            assert one == expected and type(one) is type(values[0])
            assert many.dtype == gearworks.formats.gguf.NUMBERS[kind] and many.flags.owndata
            np.testing.assert_array_equal(many, np.array(values, many.dtype))
        assert ([file.metadata[f"text.{i}"] for i in range(len(TEXTS))] == TEXTS
                == file.metadata["texts"])
        assert [list(row) for row in file.metadata["nested"]] == [[1, -2], [3], [-2**31, 5, 6]]
        assert file.metadata["nested.texts"] == [[["a"], ["b", "中"]], [["c"]]]


def test_empty_arrays():
    """An array of no items takes 12 bytes and is empty, whatever its items would be."""
    for kind in ValueType:
        value, end = read_value(bytes([9, kind, 0, 0, 0]) + bytes(8) + b"rest", 1,
                                ValueType.ARRAY)
        assert len(value) == 0 and end == 13


ITEMS = {**{kind: st.integers(min(values), max(values)) for kind, values in NUMBERS.items()
            if "INT" in kind.name}, OracleType.FLOAT64: st.floats(allow_nan=False),
         OracleType.BOOL: st.booleans(),
         OracleType.STRING: st.text(st.characters(codec="utf-8"))}


@given(st.lists(st.one_of(st.tuples(st.just(kind), st.lists(items, min_size=1))
                          for kind, items in ITEMS.items())))
@settings(max_examples=60, deadline=None, database=None)
def test_values_follow_each_other(entries):
    """Any sequence of values that the gguf package packs is read back, value after value,
    to the last byte."""
    writer = oracle.GGUFWriter(None, "llama")
    data = b"".join(writer._pack_val(values, OracleType.ARRAY, add_vtype=False, sub_type=kind)
                    + writer._pack_val(values[0], kind, add_vtype=False)
                    for kind, values in entries)
    offset = 0
    for kind, values in entries:
        many, offset = read_value(memoryview(data), offset, ValueType.ARRAY)
        one, offset = read_value(memoryview(data), offset, ValueType(kind))
        assert list(many) == values and one == values[0]
    assert offset == len(data)


def test_version_2_reads_like_version_3(tmp_path):
    rng = np.random.default_rng(2)
    path = write_gguf(tmp_path / "v3.gguf", random_tensors(rng),
                      [("key", 5, OracleType.UINT16, None)])
    data = bytearray(path.read_bytes())
    data[4] = 2
    older = tmp_path / "v2.gguf"
    older.write_bytes(data)
    with GGUFFile.open(path) as new, GGUFFile.open(older) as old:
        assert (new.version, old.version) == (3, 2)
        assert new.metadata == old.metadata and new.tensors == old.tensors
        for name in new.tensors:
            assert_same_bits(old.tensor(name), new.tensor(name))


@pytest.mark.parametrize("kind", [TensorType.F16, TensorType.BF16])
def test_all_half_floats(kind):
    """Every one of the 65,536 patterns, infinities, NaNs and subnormals included."""
    raw = np.arange(2**16, dtype="<u2").view(np.uint8)
    with np.errstate(invalid="ignore"):
        assert_same_bits(dequantize(raw, kind, (256, 256)),
                         oracle_values(raw, kind, (256, 256)))


@pytest.mark.reference("the bits of a nan")
@pytest.mark.parametrize("kind", QUANTIZED)
def test_blocks_with_any_bits(kind):
    """Random blocks, zero, subnormal, infinite and NaN scales included:
    the same bits as the gguf package."""
    rng = np.random.default_rng(kind)
    block = BLOCK_FORMATS[kind]
    raw = rng.integers(0, 256, 500 * block.nbytes, dtype=np.uint8)
    shape = 50, 10 * block.size
    with np.errstate(invalid="ignore"):
        assert_same_bits(dequantize(raw, kind, shape), oracle_values(raw, kind, shape))


@pytest.mark.parametrize("kind",
                         [TensorType.Q8_0, TensorType.Q4_0, TensorType.Q4_1, TensorType.Q5_0,
                          TensorType.Q5_1, TensorType.MXFP4])
def test_what_the_package_quantizes(tmp_path, kind):
    """Normal weights, quantized by the gguf package into a file:
    its values come out, and they are near the weights."""
    weights = np.random.default_rng(9).normal(size=(12, 96)).astype(np.float32)
    raw = oracle.quants.quantize(weights, oracle.GGMLQuantizationType(kind))
    path = write_gguf(tmp_path / "quantized.gguf",
                      {"w": (kind, raw.reshape(-1), weights.shape)})
    with GGUFFile.open(path) as file:
        got = file.tensor("w")
    assert_same_bits(got, oracle.quants.dequantize(raw, oracle.GGMLQuantizationType(kind)))
    bits = {TensorType.Q8_0: 8, TensorType.MXFP4: 3}.get(kind) or int(kind.name[1])
    assert np.abs(got - weights).max() < 8 / 2**bits                # the values span about 7


def test_every_type_has_the_name_and_number_that_the_package_gives_it():
    """So that a type which is not read is refused by its name."""
    assert ({kind.name: kind.value for kind in TensorType}
            == {kind.name: kind.value for kind in oracle.GGMLQuantizationType})
    for kind, block in BLOCK_FORMATS.items():
        assert (block.size, block.nbytes) == oracle.GGML_QUANT_SIZES[kind]


@pytest.mark.reference("words")
@pytest.mark.parametrize("kind", [kind for kind in TensorType if kind not in BLOCK_FORMATS])
def test_a_type_that_is_not_read_is_refused_by_name(tmp_path, kind):
    """And the tensor, and the types that are."""
    size, nbytes = oracle.GGML_QUANT_SIZES[kind]
    path = write_gguf(tmp_path / "w.gguf", {
        "blk.3.odd": (kind, np.zeros(nbytes, np.uint8), (1, size))})
    with pytest.raises(FormatError, match=rf"'blk.3.odd'.*\({kind.name}\)") as error:
        GGUFFile.open(path)
    assert all(known.name in error.value.hint for known in BLOCK_FORMATS)


def test_levels_of_iq4_by_hand():
    """Scale 2: nibble 0 is -127 scales, nibble 15 is 113; the scale of sub-block 5 alone is
    34 - 32, and the others' 0."""
    packed = bytes([0xF0] * 16)
    values = dequantize(np.frombuffer(np.float16(2).tobytes() + packed, np.uint8),
                        TensorType.IQ4_NL, (32,))
    np.testing.assert_array_equal(values, [-254] * 16 + [226] * 16)
    high = sum(2 << 2 * sub for sub in range(8)).to_bytes(2, "little")
    low = bytes([0, 0, 2 << 4, 0])
    block = np.float16(2).tobytes() + high + low + packed * 8
    values = dequantize(np.frombuffer(block, np.uint8), TensorType.IQ4_XS, (256,))
    values = values.reshape(8, 32)
    np.testing.assert_array_equal(values[5], [-508] * 16 + [452] * 16)
    assert not np.delete(values, 5, axis=0).any()


def test_fifth_and_sixth_bits_of_k_quants():
    """Worked by hand: all scales 1, all minimums 0; one value differs from the rest."""
    one, zero = np.float16(1).tobytes(), np.float16(0).tobytes()
    ones_of_six_bits = bytes([1] * 4 + [0] * 4 + [1] * 4)
    for value in range(256):
        high, low = bytearray(32), bytearray(128)
        high[value % 32] = 1 << value // 32
        low[value // 64 * 32 + value % 32] = 15 << value // 32 % 2 * 4
        block = np.frombuffer(one + zero + ones_of_six_bits + high + low, np.uint8)
        np.testing.assert_array_equal(np.flatnonzero(dequantize(block, TensorType.Q5_K, (256,))
                                                     == 31), [value])
        four_bits = np.delete(block, np.s_[16:48])
        np.testing.assert_array_equal(np.flatnonzero(dequantize(four_bits, TensorType.Q4_K,
                                                                (256,)) == 15), [value])

        high, low = bytearray(64), bytearray(128)
        half, run, at = value // 128, value % 128 // 32, value % 32
        high[half * 32 + at] = 3 << 2 * run
        low[half * 64 + run % 2 * 32 + at] = 15 << run // 2 * 4
        block = np.frombuffer(low + high + bytes([1] * 16) + one, np.uint8)
        np.testing.assert_array_equal(np.flatnonzero(dequantize(block, TensorType.Q6_K, (256,))
                                                     == 31), [value])


def test_low_nibbles_are_the_first_half_of_a_block():
    """Worked by hand: scale 2, minimum -1, byte j holds j and 15 - j."""
    packed = [j | (15 - j) << 4 for j in range(16)]
    scale, minimum = np.float16(2).tobytes(), np.float16(-1).tobytes()
    ramp = np.arange(16, dtype=np.float32)
    q4_0 = dequantize(np.frombuffer(scale + bytes(packed), np.uint8), TensorType.Q4_0, (32,))
    np.testing.assert_array_equal(q4_0, np.concatenate([2 * (ramp - 8), 2 * (15 - ramp - 8)]))
    q4_1 = dequantize(np.frombuffer(scale + minimum + bytes(packed), np.uint8), TensorType.Q4_1,
                      (32,))
    np.testing.assert_array_equal(q4_1, np.concatenate([2 * ramp - 1, 2 * (15 - ramp) - 1]))


@pytest.mark.parametrize("kind", TYPES)
def test_dequantize_into_given_memory(kind):
    """Across chunk borders; contiguous, sliced and transposed memory get the same values,
    the rest stays untouched."""
    rng = np.random.default_rng(5)
    columns = max(96, BLOCK_FORMATS[kind].size)
    rows = CHUNK_VALUES // columns * 2 + 3
    raw = random_bytes(rng, kind, (rows, columns))
    expected = oracle_values(raw, kind, (rows, columns))
    assert_same_bits(dequantize(raw, kind, (rows, columns)), expected)

    transposed = np.full((columns, rows), np.nan, np.float32)
    assert dequantize(raw, kind, (rows, columns), out=transposed.T).base is transposed
    assert_same_bits(transposed, expected.T)
    wide = np.full((rows, columns + 7), -3, np.float32)
    dequantize(raw, kind, (rows, columns), out=wide[:, 3:-4])
    assert_same_bits(wide[:, 3:-4], expected)
    assert (wide[:, :3] == -3).all() and (wide[:, -4:] == -3).all()
    deep = np.empty((rows, 1, columns), np.float32)
    assert_same_bits(dequantize(raw, kind, (rows, 1, columns), out=deep), expected[:, None])


def test_dequantize_never_fills_a_hidden_copy():
    """Memory that cannot be seen as rows is refused,
    not filled in a copy that is thrown away."""
    raw = random_bytes(np.random.default_rng(6), TensorType.Q8_0, (3, 4, 64))
    with pytest.raises(ValueError):
        dequantize(raw, TensorType.Q8_0, (3, 4, 64), out=np.empty((64, 4, 3), np.float32).T)


def test_dequantize_refuses_what_does_not_fit():
    raw = np.zeros(34 * 4, np.uint8)
    for wrong in [(3, 32), (5, 32), (16, 8), (8, 16), (2, 63), (4, 63)]:
        with pytest.raises(FormatError):
            dequantize(raw, TensorType.Q8_0, wrong)
    with pytest.raises(FormatError):
        dequantize(raw, TensorType.IQ2_XS, (4, 32))


def test_views_outlive_the_file_and_cannot_be_written(tmp_path):
    """F32 tensors are views of the mapping, so they are free;
    closing the file must not pull the memory away."""
    rng = np.random.default_rng(7)
    tensors = random_tensors(rng)
    name = next(name for name, (kind, *_) in tensors.items() if kind == TensorType.F32)
    with GGUFFile.open(write_gguf(tmp_path / "views.gguf", tensors)) as file:
        view, raw = file.tensor(name), file.raw(name)
        assert np.shares_memory(view, raw)
        own = file.tensor(name, out=np.empty(view.shape, np.float32))
    assert_same_bits(view, own)
    for array in (view, raw):
        with pytest.raises(ValueError):
            array[...] = 0
    with pytest.raises(ValueError, match="closed"):
        file.tensor(name)


def test_errors_name_the_file(tmp_path):
    with GGUFFile.open(write_gguf(tmp_path / "few.gguf",
                                  random_tensors(np.random.default_rng(8)))) as file:
        with pytest.raises(FormatError, match=r"'no\.such'.*few\.gguf"):
            file.tensor("no.such")
    with pytest.raises(NotAvailableError, match=r"none\.gguf"):
        GGUFFile.open(tmp_path / "none.gguf")


def test_smollm2_equals_the_gguf_package(smollm2_gguf):
    """All 272 tensors of the real model, bit for bit;
    types, counts and vocabulary as its maker published them."""
    with GGUFFile.open(smollm2_gguf) as file:
        counts = Counter(info.type for info in file.tensors.values())
        assert counts == {TensorType.Q4_1: 210, TensorType.F32: 61, TensorType.Q8_0: 1}
        assert file.metadata["general.architecture"] == "llama"
        assert (len(file.metadata["tokenizer.ggml.tokens"])
                == len(file.metadata["tokenizer.ggml.token_type"]) == 49152)
        assert file.tensors["token_embd.weight"].shape == (49152, 576)
        for name, info in file.tensors.items():
            assert_same_bits(file.tensor(name),
                             oracle_values(file.raw(name), info.type, info.shape))


@pytest.mark.skipif("GEARWORKS_GEMMA" not in os.environ, reason="GEARWORKS_GEMMA names no file")
def test_a_file_of_k_quants_equals_the_gguf_package():
    """Any real file that GEARWORKS_GEMMA names, such as a Q4_K_M of Gemma 3 270M:
    every tensor, bit for bit."""
    with GGUFFile.open(os.environ["GEARWORKS_GEMMA"]) as file:
        assert ({TensorType.Q4_K, TensorType.Q6_K}
                <= {info.type for info in file.tensors.values()})
        for name, info in file.tensors.items():
            oracle = oracle_values(file.raw(name), info.type, info.shape)
            assert_same_bits(file.tensor(name), oracle)


def test_docstring_examples():
    for module in (gearworks.formats.gguf, gguf_i_quants):
        assert doctest.testmod(module).failed == 0
