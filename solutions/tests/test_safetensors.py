"""safetensors read and written by hand, against the `safetensors` package,
in both directions. About 10 s."""

import doctest
import errno
import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import given, settings, strategies as st

import gearworks.formats.safetensors
from gearworks.errors import FormatError, NotAvailableError
from gearworks.formats.files import map_file
from gearworks.formats.safetensors import (LazyTensor, SafetensorsFile, TensorInfo, read_header,
                                           read_tensor, write)

NUMPY_DTYPES = ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?", "c8"]
SHAPES = [(3, 5), (), (0,), (4, 0, 2), (2, 3, 1, 7), (1,)]


def random_array(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    dtype = np.dtype(dtype)
    if dtype.kind in "fc":
        return np.asarray(rng.normal(size=shape) * 100, dtype)
    raw = rng.integers(0, 256, (*shape, dtype.itemsize), dtype=np.uint8)
    return (np.asarray(raw[..., 0] > 127) if dtype.kind == "b"
            else raw.view(dtype).reshape(shape))


def random_arrays(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Every dtype in every shape, with names that UTF-8, JSON and sorting could trip over."""
    arrays = {f"{dtype} {shape}": random_array(rng, dtype, shape) for dtype in NUMPY_DTYPES
              for shape in SHAPES}
    names = ["", "中文", 'a"b\\c', "👩‍👩‍👧", "\x00", "__metadata_"]
    return arrays | {name: random_array(rng, "f4", (2,)) for name in names}


def as_read(array: np.ndarray) -> np.ndarray:
    """What reading gives: floating-point numbers as float32, all others as they are."""
    return array.astype(np.float32) if array.dtype.kind == "f" else array


def assert_equal(got: np.ndarray, expected: np.ndarray) -> None:
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(got, expected)


def test_reads_what_the_package_writes(tmp_path):
    arrays = random_arrays(np.random.default_rng(1))
    metadata = {"format": "np", "中": "文\n", "": ""}
    safetensors.numpy.save_file(arrays, tmp_path / "a.safetensors", metadata)
    with SafetensorsFile.open(tmp_path / "a.safetensors") as file:
        assert file.metadata == metadata
        assert file.tensors.keys() == arrays.keys()
        for name, array in arrays.items():
            assert file.tensors[name].shape == array.shape
            assert_equal(file.tensor(name), as_read(array))


def test_the_package_reads_what_we_write(tmp_path):
    arrays = random_arrays(np.random.default_rng(2))
    metadata = {"format": "np", "中": "文\n", "": ""}
    write(tmp_path / "b.safetensors", arrays, metadata)
    loaded = safetensors.numpy.load_file(tmp_path / "b.safetensors")
    assert loaded.keys() == arrays.keys()
    for name, array in arrays.items():
        assert_equal(loaded[name], array)
    with safetensors.safe_open(tmp_path / "b.safetensors", "np") as file:
        assert file.metadata() == metadata
    assert [path.name for path in tmp_path.iterdir()] == ["b.safetensors"]


def test_files_are_the_package_s_byte_for_byte(tmp_path):
    rng = np.random.default_rng(3)
    arrays = {f"model.layers.{i}.weight": random_array(rng, "f4", (i, 3))
              for i in (10, 2, 1, 0)}
    for metadata in ({"format": "pt"}, None):
        write(tmp_path / "ours", arrays, metadata)
        assert (tmp_path / "ours").read_bytes() == safetensors.numpy.save(arrays, metadata)


@given(st.dictionaries(st.text(st.characters(codec="utf-8")),
                       st.tuples(st.sampled_from(NUMPY_DTYPES),
                                 st.lists(st.integers(0, 4), max_size=4),
                                 st.integers(0, 2**32 - 1)), max_size=6),
       st.dictionaries(st.text(st.characters(codec="utf-8")),
                       st.text(st.characters(codec="utf-8")), max_size=3))
@settings(max_examples=60, deadline=None, database=None)
def test_any_tensors_go_round(specs, metadata):
    """The package's bytes, read by us; read_header's places, read by NumPy."""
    specs.pop("__metadata__", None)
    arrays = {name: random_array(np.random.default_rng(seed), dtype, tuple(shape))
              for name, (dtype, shape, seed) in specs.items()}
    # its own bytes for ({}, {}) are broken JSON
    data = safetensors.numpy.save(arrays, metadata or None)
    tensors, found = read_header(memoryview(data))
    assert found == metadata and tensors.keys() == arrays.keys()
    for name, info in tensors.items():
        assert data[info.start:info.end] == arrays[name].tobytes()
        assert_equal(read_tensor(data, info), as_read(arrays[name]))


def test_bfloat16_is_widened_exactly(tmp_path):
    """All 65,536 patterns, against torch; a scalar and an empty tensor too."""
    bits = torch.arange(-2**15, 2**15, dtype=torch.int32).to(torch.int16)
    tensors = {"all": bits.view(torch.bfloat16).reshape(256, 256),
               "one": torch.tensor(1.5, dtype=torch.bfloat16),
               "none": torch.zeros((0, 3), dtype=torch.bfloat16)}
    safetensors.torch.save_file(tensors, tmp_path / "bf16.safetensors")
    with SafetensorsFile.open(tmp_path / "bf16.safetensors") as file:
        for name, tensor in tensors.items():
            got, expected = file.tensor(name), tensor.float().numpy()
            assert (got.dtype, got.shape) == (np.float32, expected.shape)
            np.testing.assert_array_equal(got.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_is_widened_exactly(tmp_path, dtype):
    """All 256 codes, against torch: subnormals, both zeros, infinities and nan;
    a scalar and an empty tensor too."""
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    tensors = {"all": codes.view(dtype).reshape(16, 16), "one": torch.tensor(-1.75).to(dtype),
               "none": torch.zeros((0, 3)).to(dtype)}
    safetensors.torch.save_file(tensors, tmp_path / "f8.safetensors")
    with SafetensorsFile.open(tmp_path / "f8.safetensors") as file:
        for name, tensor in tensors.items():
            got = file.tensor(name)
            assert_equal(got, tensor.float().numpy())
            assert np.array_equal(np.signbit(got)[got == 0],
                                  np.signbit(tensor.float().numpy())[got == 0])


def test_other_float8_kinds_are_listed_but_not_read(tmp_path):
    safetensors.torch.save_file({"a.weight": torch.ones(2, 3).to(torch.float8_e4m3fnuz)},
                                tmp_path / "f8.safetensors")
    with SafetensorsFile.open(tmp_path / "f8.safetensors") as file:
        assert file.tensors["a.weight"].shape == (2, 3)
        with pytest.raises(FormatError, match=r"a\.weight.*f8\.safetensors"):
            file.tensor("a.weight")


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.int64])
def test_reading_into_given_memory_holds_nothing_twice(tmp_path, dtype):
    """Into contiguous, transposed and sliced memory, in pieces;
    whole rows or less, scalars and empty ones."""
    torch.manual_seed(1)
    tensors = {"w": (torch.randn(1500, 700) * 9).to(dtype), "one": torch.tensor(3).to(dtype),
               "none": torch.zeros((0, 4)).to(dtype),
               "long rows": (torch.randn(2, 600_000) * 9).to(dtype)}
    safetensors.torch.save_file(tensors, tmp_path / "w.safetensors")
    with SafetensorsFile.open(tmp_path / "w.safetensors") as file:
        for name, tensor in tensors.items():
            expected = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
            plain = np.full(expected.shape, 7, expected.dtype)
            assert file.tensor(name, out=plain) is plain
            assert_equal(plain, expected)
            transposed = np.full(expected.shape[::-1], 7, expected.dtype).T
            file.tensor(name, out=transposed)
            assert_equal(transposed, expected)
        out = np.empty((1500, 700), np.float32)
        tracemalloc.start()
        file.tensor("w", out=out)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 0.75 * out.nbytes
        with pytest.raises(ValueError, match="shape"):
            file.tensor("w", out=np.empty((700, 1500), np.float32))


@pytest.mark.reference("memory that is not copied")
def test_float32_is_not_copied():
    """A view of the file: free, and protected against writing even where bytes are writable."""
    data = bytearray(safetensors.numpy.save({"w": np.float32([[1, 2, 3], [4, 5, 6]])}))
    view = read_tensor(data, read_header(data)[0]["w"])
    assert np.shares_memory(view, np.frombuffer(data, np.uint8))
    with pytest.raises(ValueError):
        view[0, 0] = 9


def test_views_outlive_the_file(tmp_path):
    array = random_array(np.random.default_rng(4), "f4", (100, 100))
    write(tmp_path / "w.safetensors", {"w": array})
    with SafetensorsFile.open(tmp_path / "w.safetensors") as file:
        view = file.tensor("w")
    assert_equal(view, array)
    with pytest.raises(ValueError, match="closed"):
        file.tensor("w")


def test_a_missing_tensor_is_named(tmp_path):
    write(tmp_path / "w.safetensors", {"w": np.zeros(1, np.float32)})
    with SafetensorsFile.open(tmp_path / "w.safetensors") as file, \
            pytest.raises(FormatError, match=r"'model\.norm'.*w\.safetensors"):
        file.tensor("model.norm")


def test_arrays_of_any_layout_are_written_row_major_and_little_endian(tmp_path):
    rng = np.random.default_rng(5)
    array = random_array(rng, "f4", (6, 10))
    frozen = array.copy()
    frozen.flags.writeable = False
    layouts = {"transposed": array.T, "strided": array[::2, 1::3], "reversed": array[::-1],
               "frozen": frozen, "column-major": np.asfortranarray(array),
               "big-endian": array.astype(">f4"),
               "broadcast": np.broadcast_to(array[0], (4, 10))}
    write(tmp_path / "layouts.safetensors", layouts)
    loaded = safetensors.numpy.load_file(tmp_path / "layouts.safetensors")
    for name, expected in layouts.items():
        assert_equal(loaded[name], expected.astype("<f4"))


def test_tensors_are_aligned(tmp_path):
    """The header is padded to 8, and no tensor starts off its own item size: views are fast."""
    arrays = random_arrays(np.random.default_rng(6))
    write(tmp_path / "aligned.safetensors", arrays)
    assert (int.from_bytes((tmp_path / "aligned.safetensors").read_bytes()[:8], "little") % 8
            == 0)
    with SafetensorsFile.open(tmp_path / "aligned.safetensors") as file:
        for name, info in file.tensors.items():
            assert info.start % np.dtype(arrays[name].dtype.str.replace(
                "c8", "f8")).itemsize == 0, name
            assert file.tensor(name).flags.aligned


def test_lazy_tensors_are_held_one_at_a_time(tmp_path):
    """Eight tensors of 4 MB: never two of them in memory."""
    values = range(8)
    shape = (1024, 1024)
    lazy = {f"w{i}": LazyTensor(shape, np.dtype(np.float32),
                                lambda i=i: np.full(shape, i, np.float32)) for i in values}
    tracemalloc.start()
    write(tmp_path / "lazy.safetensors", lazy)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.5 * 4 * 2**20
    with SafetensorsFile.open(tmp_path / "lazy.safetensors") as file:
        for i in values:
            assert_equal(file.tensor(f"w{i}"), np.full(shape, i, np.float32))


def full_disk():
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("load, error", [
    (full_disk, NotAvailableError),
    (lambda: np.zeros((3, 2), np.float32), ValueError),     # not the shape that was announced
    (lambda: np.zeros((2, 3), np.float16), ValueError),     # not the dtype
    (lambda: 1 / 0, ZeroDivisionError),
])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, load, error):
    path = tmp_path / "model.safetensors"
    write(path, {"w": np.float32([1, 2])})
    before = path.read_bytes()
    with pytest.raises(error):
        write(path,
              {"a": np.zeros(1000, np.float32),
               "w": LazyTensor((2, 3), np.dtype(np.float32), load)})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


LIMITED = """
import resource, sys
import numpy as np
from gearworks.errors import NotAvailableError
from gearworks.formats.safetensors import write
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
try:
    write(sys.argv[1], {"w": np.zeros(1_000_000, np.float32)})
except NotAvailableError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot limit the size of files")
def test_no_room_for_the_file(tmp_path):
    """The operating system refuses to let the file grow past 1 MB, as a full disk would."""
    path = tmp_path / "model.safetensors"
    same_package = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", LIMITED, str(path)], env=same_package,
                          check=True, capture_output=True, text=True, encoding="utf-8")
    assert "model.safetensors" in done.stdout and "4.0 MB" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_no_place_for_the_file(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "missing" / "w", tmp_path / "file" / "w", tmp_path / "folder"):
        with pytest.raises(NotAvailableError, match=path.name):
            write(path, {"w": np.zeros(1, np.float32)})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


@pytest.mark.parametrize("tensors, metadata",
                         [({"w": np.zeros(1, complex)}, None),
                          ({"w": np.zeros(1, object)}, None), ({"w": np.zeros(1, "U3")}, None),
                          ({"__metadata__": np.zeros(1, np.float32)}, None),
                          ({"\ud800": np.zeros(1, np.float32)}, None),
                          ({}, {"a": 1}), ({}, {1: "a"}), ({}, {"a": "\udfff"})])
def test_what_the_format_cannot_hold(tmp_path, tensors, metadata):
    with pytest.raises(ValueError):
        write(tmp_path / "w.safetensors", tensors, metadata)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("metadata, allowed", [
    ("null", True), ("{}", True), ('{"a": "b"}', True), ("[]", False), ("false", False),
    ('""', False), ("0", False), ('{"a": null}', False)])
def test_metadata_is_accepted_as_the_package_accepts_it(metadata, allowed):
    header = (f'{{"__metadata__":{metadata},'
              '"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}').encode()
    data = len(header).to_bytes(8, "little") + header + bytes(4)
    if allowed:
        assert [name for name, _ in safetensors.deserialize(data)] == ["w"]
        assert read_header(data)[1] == (json.loads(metadata) or {})
    else:
        with pytest.raises(safetensors.SafetensorError):
            safetensors.deserialize(data)
        with pytest.raises(FormatError, match="__metadata__"):
            read_header(data)


def test_no_tensors_at_all(tmp_path):
    write(tmp_path / "empty.safetensors", {})
    with SafetensorsFile.open(tmp_path / "empty.safetensors") as file:
        assert (file.tensors, file.metadata) == ({}, {})


def test_map_file(tmp_path):
    """An empty file maps to nothing; what is no file at all is refused with its name."""
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "full").write_bytes(b"abc")
    assert (bytes(map_file(tmp_path / "empty")) == b""
            and bytes(map_file(str(tmp_path / "full"))) == b"abc")
    assert map_file(tmp_path / "full").readonly
    for path in (tmp_path / "none", tmp_path, tmp_path / "full" / "below",
                 Path(f"{tmp_path}/nul\0")):
        with pytest.raises(NotAvailableError, match="cannot open"):
            map_file(path)


def test_place_in_the_file_is_absolute():
    data = safetensors.numpy.save({"a": np.float32([1, 2]), "b": np.float32([3])})
    header_end = 8 + int.from_bytes(data[:8], "little")
    assert (read_header(data)[0]
            == {"a": TensorInfo("F32", (2,), header_end, header_end + 8),
                "b": TensorInfo("F32", (1,), header_end + 8, header_end + 12)})


def test_docstring_examples():
    assert doctest.testmod(gearworks.formats.safetensors).failed == 0
