"""Checkpoints of torch.save read by hand, against torch.load;
pickles that would run code are refused. About 8 s."""

import io
import os
import pickle
import pickletools
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from gearworks.errors import FormatError, NotAvailableError
from gearworks.formats.pickled import (MAX_DIRECTORY_BYTES, PickledFile, TensorView,
                                       read_directory)
from gearworks.formats.restricted_pickle import MAX_PROGRAM_BYTES, unpickle

FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn,
          torch.float8_e5m2]
OTHERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16,
          torch.uint32, torch.uint64, torch.bool, torch.complex64]


def saved(contents: object, **settings) -> bytes:
    file = io.BytesIO()
    torch.save(contents, file, **settings)
    return file.getvalue()


def opened(data: bytes) -> PickledFile:
    return PickledFile(Path("file.bin"), memoryview(data))


def refusal(data: bytes) -> str:
    with pytest.raises(FormatError) as caught:
        opened(data)
    assert caught.value.why and caught.value.hint
    return str(caught.value)


def values_of(tensor: torch.Tensor) -> np.ndarray:
    """What reading must give: floating-point numbers as float32, all others as they are."""
    tensor = tensor.detach()
    return (tensor.float() if tensor.is_floating_point() else tensor).numpy()


def assert_reads_as(file: PickledFile, expected: dict[str, torch.Tensor]) -> None:
    """The same names in the same order, the same values,
    whether in new memory or in memory that is given."""
    assert list(file.tensors) == list(expected)
    for name, tensor in expected.items():
        values = values_of(tensor)
        for got in (file.tensor(name),
                    file.tensor(name, out=np.zeros(values.shape, values.dtype)),
                    file.tensor(name, out=np.zeros(values.shape[::-1], values.dtype).T)):
            assert ((got.dtype, got.shape, file.tensors[name].shape)
                    == (values.dtype, values.shape, values.shape))
            np.testing.assert_array_equal(got, values, err_msg=name)


def every_dtype() -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    tensors = {}
    for dtype in FLOATS + OTHERS:
        matrix = (torch.randn(5, 7) * 40).abs().to(dtype)
        tensors |= {f"{dtype}": matrix, f"{dtype}.T": matrix.T,
                    f"{dtype} cut": matrix[1:4, 2::2], f"{dtype} column": matrix[:, 3],
                    f"{dtype} scalar": matrix[2, 2],
                    f"{dtype} empty": matrix[5:, :4], f"{dtype} own": matrix.T.clone()}
    return tensors


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_reads_what_torch_writes(tmp_path, protocol):
    """Every dtype; contiguous, transposed, sliced, scalar and empty;
    most share a storage with others."""
    torch.save(every_dtype(), tmp_path / "model.bin", pickle_protocol=protocol)
    # torch's own restricted reader knows protocol 2
    with PickledFile.open(tmp_path / "model.bin") as file:
        assert_reads_as(file, torch.load(tmp_path / "model.bin", weights_only=protocol == 2))


def test_reads_state_dicts_and_parameters():
    """What model.state_dict() gives, with its attributes and tied weights,
    and a dictionary of parameters."""
    model = torch.nn.Sequential(torch.nn.Embedding(9, 6), torch.nn.LayerNorm(6),
                                torch.nn.Linear(6, 9, bias=False))
    model[2].weight = model[0].weight
    file = opened(saved(model.state_dict()))
    assert_reads_as(file, model.state_dict())
    assert np.shares_memory(file.tensor("0.weight"), file.tensor("2.weight"))
    assert_reads_as(opened(saved(dict(model.named_parameters()))),
                    dict(model.named_parameters()))
    assert_reads_as(opened(saved({})), {})


@given(st.data())
@settings(max_examples=60, deadline=None, database=None)
def test_any_view_of_a_storage(data):
    """Random offsets, permutations, steps and dtypes of up to four dimensions,
    as torch reads them."""
    dtype = data.draw(st.sampled_from(FLOATS + OTHERS))
    shape = data.draw(st.lists(st.integers(1, 5), max_size=4))
    tensor = (torch.randn(tuple(shape)) * 40).abs().to(dtype)
    for axis in range(tensor.dim()):
        start, step = data.draw(st.integers(0, 2)), data.draw(st.integers(1, 3))
        tensor = tensor[(slice(None),) * axis + (slice(start, None, step),)]
    tensor = tensor.permute(data.draw(st.permutations(range(tensor.dim()))))
    assert_reads_as(opened(saved({"view": tensor})), {"view": tensor})


def test_float32_is_not_copied_and_nothing_else_is_read():
    """Contiguous or transposed, it is a read-only view of the file;
    other tensors may be damaged."""
    contents = {"w": torch.randn(40, 30), "t": torch.randn(40, 30).T,
                "broken": torch.randn(500)}
    data = bytearray(saved(contents))
    start = opened(data).tensors["broken"].start
    data[start:start + 2000] = b"\xff" * 2000
    with opened(data) as file:
        views = [file.tensor("w"), file.tensor("t")]
    for view, name in zip(views, ("w", "t")):
        assert np.shares_memory(view, np.frombuffer(data, np.uint8))
        np.testing.assert_array_equal(view, contents[name].numpy())
        with pytest.raises(ValueError):
            view[0, 0] = 9
    with pytest.raises(ValueError, match="closed"):
        file.tensor("w")


@pytest.mark.parametrize("transposed", [False, True])
def test_reading_into_given_memory_holds_nothing_twice(transposed):
    tensor = torch.randn(1500, 700).bfloat16()
    file = opened(saved({"w": tensor.T if transposed else tensor}))
    out = np.empty(file.tensors["w"].shape, np.float32)
    tracemalloc.start()
    file.tensor("w", out=out)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_array_equal(out, values_of(tensor.T if transposed else tensor))
    assert peak < 0.5 * out.nbytes
    with pytest.raises(ValueError, match="shape"):
        file.tensor("w", out=out.T)


def test_errors_name_the_file(tmp_path):
    torch.save({"w": torch.ones(2)}, tmp_path / "few.bin")
    with PickledFile.open(tmp_path / "few.bin") as file, pytest.raises(
        FormatError, match=r"'no\.such'.*few\.bin"):
        file.tensor("no.such")
    (tmp_path / "bad.bin").write_bytes(b"PK")
    with pytest.raises(FormatError, match=r"bad\.bin"):
        PickledFile.open(tmp_path / "bad.bin")
    with pytest.raises(NotAvailableError, match=r"none\.bin"):
        PickledFile.open(tmp_path / "none.bin")


# --- code in a pickle -------------------------------------------------------------------------

class Call:
    """Pickled, it is a call of this function with these arguments."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_pickle_that_would_write_a_file_is_refused(tmp_path, protocol):
    """torch.load with weights_only=False runs it; we refuse it by name, and no file appears."""
    traces = tmp_path / "traces"
    call = Call(exec,
                f"import pathlib; pathlib.Path({str(traces)!r}).write_text('I was here', "
                "encoding='utf-8')")
    torch.save(OrderedDict(w=torch.ones(2), evil=call), tmp_path / "model.bin",
               pickle_protocol=protocol)
    torch.load(tmp_path / "model.bin", weights_only=False)
    assert traces.exists()
    traces.unlink()
    with pytest.raises(FormatError, match=r"builtin.*\.exec.*would run") as caught:
        PickledFile.open(tmp_path / "model.bin")
    assert "model.bin" in caught.value.what and "safetensors" in caught.value.hint
    assert not traces.exists()


@pytest.mark.parametrize("contents, name", [
    ({"w": Call(os.system, "true")}, f"{os.system.__module__}.system"),
    (Call(eval, "1"), "__builtin__.eval"),
    ({"w": Call(getattr, "a", "b")}, "__builtin__.getattr"),
    ({"w": Call(torch.load, "other.bin")}, "torch.serialization.load"),
    ({"w": np.ones(2)}, "numpy"),
    ({"w": torch.randn(2).to_sparse()}, "_rebuild_sparse_tensor"),
    (torch.nn.Linear(2, 2), "torch.nn.modules.linear.Linear"),
    ({"size": torch.Size([1])}, "torch.Size"),
])
def test_all_other_names_are_refused_by_name(contents, name):
    message = refusal(saved(contents))
    assert name in message and "would run" in message


def test_nothing_that_a_pickle_names_is_imported():
    """A module with that name would be found, and its import would print."""
    code = ("import sys; from gearworks.formats.restricted_pickle import unpickle\ntry: "
            "unpickle(b'\\x80\\x02cantigravity\\nfly\\n)R.')\nexcept ValueError as error: "
            "print('antigravity' in sys.modules, 'torch' in sys.modules, error.why)")
    done = subprocess.run([sys.executable, "-c", code],
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                          check=True, capture_output=True, text=True, encoding="utf-8")
    assert done.stdout.startswith("False False") and "antigravity.fly" in done.stdout


INT = struct.Struct("<I")
HOSTILE_PROGRAMS = {
    "empty": b"",
    "no STOP": b"\x80\x02}",
    "an empty stack": b"\x80\x02.",
    "a pop from an empty stack": b"\x80\x02\x87.",
    "a place that was never filled": b"\x80\x02h\x07.",
    "no mark": b"\x80\x02K\x01t.",
    "one item too few": b"\x80\x02}(X\x01\0\0\0au.",
    "an unknown instruction": b"\x80\x02\xff.",
    "a string of 4 GB": b"\x80\x02X" + INT.pack(2**32 - 1) + b"a.",
    "a string of 2**62 bytes": b"\x80\x04\x8d" + struct.pack("<Q", 2**62) + b"a.",
    "a bytearray of 2**40 bytes": b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b".",
    "an integer of 2 GB": b"\x80\x02\x8b" + INT.pack(2**31 - 1) + b"\x01.",
    "half a surrogate pair": b"\x80\x02}X\x03\0\0\0\xed\xa0\x80K\x01s.",
    "a number as key": b"\x80\x02}K\x01K\x01s.",
    "100,000 nested tuples as key": b"\x80\x02})" + b"\x85" * 10**5 + b"K\x01s.",
    "attributes of a function": b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n}b.",
    "a call of a number": b"\x80\x02K\x01)R.",
    "a call of a storage's class": b"\x80\x02ctorch\nFloatStorage\n)R.",
    "an OrderedDict of something": b"\x80\x02ccollections\nOrderedDict\n]\x85R.",
    "a new object": b"\x80\x02ccollections\nOrderedDict\n)\x81.",
    "an old-style instance": b"\x80\x02(ios\nsystem\n.",
    "a copyreg extension": b"\x80\x02\x82\x01.",
    "a name that is made of numbers": b"\x80\x04K\x01K\x02\x93.",
    "protocol 0": pickle.dumps({"a": 1}, protocol=0),
}


@pytest.mark.parametrize("fault", HOSTILE_PROGRAMS)
def test_hostile_programs(fault):
    tracemalloc.start()
    try:
        with pytest.raises(FormatError) as caught:
            unpickle(HOSTILE_PROGRAMS[fault])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.why and caught.value.hint and len(str(caught.value)) < 500
    assert peak < 130 * max(len(HOSTILE_PROGRAMS[fault]), 10**4)


def test_a_far_place_in_the_memo_costs_nothing():
    """pickle.Unpickler would reserve 64 GB for this."""
    tracemalloc.start()
    assert (unpickle(b"\x80\x02K\x07r" + INT.pack(2**32 - 1) + b"j" + INT.pack(2**32 - 1)
                     + b"\x86.") == (7, 7))
    assert tracemalloc.get_traced_memory()[1] < 10**6
    tracemalloc.stop()


def test_long_programs_are_refused_unread():
    with pytest.raises(FormatError, match=f"{MAX_PROGRAM_BYTES} are not allowed"):
        unpickle(memoryview(bytes(MAX_PROGRAM_BYTES + 1)))


TEXT = st.text(st.characters(codec="utf-8"))
ATOMS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), TEXT)


@given(st.recursive(ATOMS, lambda inner: st.one_of(
    st.lists(inner), st.dictionaries(TEXT, inner), st.lists(inner).map(tuple))),
    st.sampled_from([2, 3, 4, 5]))
@settings(max_examples=100, deadline=None, database=None)
def test_plain_values_go_round(value, protocol):
    """Any plain value that pickle writes: what Python's own pickle reads."""
    program = pickle.dumps(value, protocol)
    if any(instruction.name in ("LONG4", "BINUNICODE8")
           for instruction, *_ in pickletools.genops(program)):
        return
    assert unpickle(program) == value


# --- views and archives that do not add up ----------------------------------------------------

def archive_of(program: bytes, storages: dict[str, bytes], compression=zipfile.ZIP_STORED,
               **entries: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        archive.writestr("model/data.pkl", program)
        for key, content in storages.items():
            archive.writestr(f"model/data/{key}", content)
        for name, content in entries.items():
            archive.writestr(f"model/{name}", content)
    return file.getvalue()


class Named:
    """Pickled with `NamingPickler`, it is a bare name, whether a module has it or not."""

    def __init__(self, name: str):
        self.name = name


class NamingPickler(pickle._Pickler):
    """Writes the persistent ids and names that torch.save writes, with any arguments."""

    def persistent_id(self, value):
        return value if type(value) is tuple and value[:1] == ("storage",) else None

    def save(self, value, save_persistent_id=True):
        if isinstance(value, Named):
            module, _, name = value.name.rpartition(".")
            self.write(b"c" + module.encode("utf-8") + b"\n" + name.encode("utf-8") + b"\n")
        elif isinstance(value, Call):
            self.save(value.function)
            self.save(value.arguments)
            self.write(b"R")
        else:
            super().save(value, save_persistent_id)


def described(offset=0, shape=(2, 3), strides=(3, 1), *, kind="torch.FloatStorage", key="0",
              size=6, more=(), function="torch._utils._rebuild_tensor_v2") -> bytes:
    """A checkpoint with a storage of six floats and one tensor, "w", described this way."""
    storage = ("storage", Named(kind), key, "cpu", size)
    tensor = Call(Named(function), storage, offset, shape, strides, False, {}, *more)
    file = io.BytesIO()
    NamingPickler(file, 2).dump({"w": tensor})
    return archive_of(file.getvalue(), {"0": np.arange(6, dtype="<f4").tobytes()})


def test_the_good_description_is_good():
    np.testing.assert_array_equal(opened(described()).tensor("w"), [[0, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(opened(described(1, (2, 2), (1, 2))).tensor("w"),
                                  [[1, 3], [2, 4]])
    np.testing.assert_array_equal(opened(described(5, (1, 1), (10**9, 7))).tensor("w"), [[5]])
    for offset in (0, 6, 2**62):            # torch.ones(1)[5:] has an offset beyond its storage
        assert opened(described(offset, (0, 7), (7, 1))).tensor("w").shape == (0, 7)


HOSTILE_VIEWS = {"one value beyond the storage": described(1),
                 "rows beyond the storage": described(0, (2, 3), (4, 1)),
                 "far beyond the storage": described(2**62, (1,), (1,)),
                 "2**64 bytes further, 0 in 64 bits": described(2**62, (2, 3), (3, 1)),
                 "strides of 2**62": described(0, (2, 2), (2**62, 1)),
                 "negative offset": described(-1),
                 "negative stride": described(5, (6,), (-1,)),
                 "negative sizes": described(0, (-2, -3), (3, 1)),
                 "one value repeated 2**40 times": described(0, (2**40,), (0,)),
                 "one value repeated seven times": described(0, (7,), (0,)),
                 "no values in an impossible shape": described(0, (2**40, 0, 2**40), (1, 1, 1)),
                 "2**64 values, 0 in 64 bits": described(0, (2**32, 2**32), (0, 0)),
                 "more strides than sizes": described(0, (6,), (1, 1)),
                 "100 dimensions": described(0, (1,) * 100, (1,) * 100),
                 "sizes of floats": described(0, (2.0, 3.0), (3, 1)),
                 "sizes of bools": described(0, (True, 3), (3, 1)),
                 "sizes in a list": described(0, [2, 3], (3, 1)),
                 "offset None": described(None),
                 "a storage that is not there": described(key="1"),
                 "a storage in another folder": described(key="../data/0"),
                 "a storage of another size": described(size=5),
                 "a storage of 2**62 floats, 0 bytes in 64 bits": described(size=2**62),
                 "a storage of -6 floats": described(size=-6),
                 "a storage of six doubles": described(kind="torch.DoubleStorage"),
                 "a storage of OrderedDicts": described(kind="collections.OrderedDict"),
                 "a conjugated view": described(more=({"conj": True},)),
                 "one dtype too many": described(function="torch._utils._rebuild_tensor_v3",
                                                 more=(Named("torch.uint16"),)),
                 "half an item": described(
                     kind="torch.storage.UntypedStorage", size=24, offset=6, shape=(2, 3),
                     function="torch._utils._rebuild_tensor_v3", more=(Named("torch.uint32"),))}


@pytest.mark.parametrize("fault", HOSTILE_VIEWS)
def test_hostile_views(fault):
    tracemalloc.start()
    refusal(HOSTILE_VIEWS[fault])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10**6


@pytest.mark.parametrize("contents, why", [
    ({"state_dict": {"w": torch.ones(2)}, "epoch": 3}, "'state_dict' is of type dict"),
    ({"w": torch.ones(2), "step": 7}, "'step' is of type int"),
    ([torch.ones(2)], "type list"),
    (torch.ones(2), "type tensor"),
    ({0: torch.ones(2)}, "type int"),
])
def test_only_dictionaries_of_tensors(contents, why):
    message = refusal(saved(contents))
    assert why in message and "copy of the model in safetensors" in message or why == "type int"


def test_the_format_of_before_2020_is_refused_by_name():
    assert "1.6" in refusal(saved({"w": torch.ones(2)}, _use_new_zipfile_serialization=False))
    assert "bare pickle" in refusal(pickle.dumps(Call(os.system, "true")))


def test_compressed_entries_are_refused():
    """10 MB of zeros in 10 KB: never inflated."""
    bomb = archive_of(b"\x80\x02}.", {"0": bytes(10**7)}, zipfile.ZIP_DEFLATED)
    tracemalloc.start()
    assert "compressed" in refusal(bomb)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10**6


def test_hostile_archives():
    good = archive_of(b"\x80\x02}.", {"0": b"abcd"})
    assert opened(good).tensors == {}
    two = io.BytesIO(good)
    with zipfile.ZipFile(two, "a") as archive:
        archive.writestr("other/data.pkl", b"\x80\x02}.")
    assert "2 entries named data.pkl" in refusal(two.getvalue())
    assert ("0 entries named data.pkl"
            in refusal(good.replace(b"model/data.pkl", b"model/other.p_")))
    assert "little-endian" in refusal(archive_of(b"\x80\x02}.", {}, byteorder=b"big"))
    with pytest.warns(UserWarning, match="Duplicate"):
        twice = archive_of(b"\x80\x02}.", {}, **{"data.pkl": b"\x80\x02K\x01."})
    assert "twice" in refusal(twice)
    for damaged in (b"", b"PK\x05\x06", good[:-1], good[:30],
                    good.replace(b"PK\x01\x02", b"PK\x01\x03"),
                    good.replace(b"PK\x03\x04", b"PK\x03\x05"), b"\x93NUMPY", bytes(100)):
        refusal(damaged)


def test_a_huge_table_of_contents_is_refused_unread():
    """Its size is a number in the file's last bytes; the bytes are there."""
    size = MAX_DIRECTORY_BYTES + 1
    data = bytes(size) + struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 9, 9, size, 0, 0)
    tracemalloc.start()
    with pytest.raises(FormatError, match=f"{MAX_DIRECTORY_BYTES} are not allowed"):
        read_directory(memoryview(data))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10**6


def test_archives_of_more_than_4_gb_use_other_fields():
    """The same entries with 64-bit sizes and places, as in a file of that size."""
    tensor = torch.randn(3, 5)
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(saved({
        "w": tensor}))) as old, zipfile.ZipFile(file, "w") as new:
        for entry in old.infolist():
            with new.open(entry.filename, "w", force_zip64=True) as target:
                target.write(old.read(entry))
    assert_reads_as(opened(file.getvalue()), {"w": tensor})


def test_a_view_knows_whether_it_is_contiguous():
    for shape, strides, expected in [
        ((2, 3), (3, 1), True), ((2, 3), (1, 2), False), ((1, 3), (99, 1), True),
        ((2, 3), (4, 1), False), ((), (), True), ((0, 3), (7, 7), True)]:
        view = TensorView("BF16", shape, strides, 0)
        assert (view.is_contiguous, view.nbytes) == (expected, 2 * int(np.prod(shape)))
