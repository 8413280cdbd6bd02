"""The compiled kernels beside their definition: layout, products, threads."""

import gc
import os
import subprocess
import sys
import threading
import time
from itertools import product

import numpy as np
import pytest

pytest.importorskip("numba")

from numba.core.codegen import get_host_cpu_features
from numba.core.errors import NumbaError

from gearworks.errors import FormatError, ModelError
from gearworks.formats.gguf import BLOCK_FORMATS, TensorType, dequantize
from gearworks.kernels.cpu import compiling
from gearworks.kernels.cpu.attention import SEQUENCE
from gearworks.kernels.cpu.compiling import kernel
from gearworks.kernels.cpu.layout import LANES, MATRIX, NONE, Form, aligned, pack, unpack
from gearworks.kernels.cpu.products import SCRATCH
from gearworks.kernels.cpu.instructions import INSTRUCTION, MULTIPLY, PLACES, READY, SHAPE
from gearworks.kernels.cpu.step import run
from gearworks.kernels.cpu.threads import Team, barrier
from gearworks.formats.codes import Codes
from gearworks.formats.gguf_codes import codes_of, is_quantized

# bits, dtype, group (0: one for a row), whether there are minimums
KINDS = [(4, np.uint8, 32, True), (4, np.int8, 32, False), (4, np.uint8, 64, True),
         (3, np.int8, 16, False), (2, np.uint8, 16, True), (8, np.int8, 32, False),
         (8, np.int8, 0, False), (8, np.uint8, 32, True), (6, np.int8, 16, False),
         (5, np.uint8, 32, True), (8, np.uint8, 0, False)]
# rows, columns: of every group size above that is not 0 a multiple
SHAPES = [(1, 64), (16, 128), (37, 192), (50, 64)]


def random_codes(rng, shape, bits, dtype, group, minimums) -> Codes:
    low, high = (-(1 << bits - 1), 1 << bits - 1) if dtype == np.int8 else (0, 1 << bits)
    groups = shape[1] // group if group else 1
    scales = rng.uniform(0.5, 2, (shape[0], groups)).astype(np.float32) / np.float32(high)
    shift = (rng.standard_normal(scales.shape).astype(np.float32) if minimums else None)
    return Codes(rng.integers(low, high, shape).astype(dtype), scales, shift, bits)


def laid_out(weight):
    """A matrix in the layout: its form, and the arrays."""
    shape = weight.shape if isinstance(weight, np.ndarray) else weight.codes.shape
    form = Form.of(weight)
    arrays = [np.empty(shape, kind) if shape else None for shape, kind in
              zip(form.shapes(*shape), (np.uint32, np.float32, np.float32))]
    pack(weight, form, *arrays)
    return form, shape, arrays


def multiply(weight, x, quantize, threads=1, alike=False) -> np.ndarray:
    """x @ weight.T by the compiled step, of which two instructions are run."""
    form, (rows, columns), arrays = laid_out(weight)
    sizes = [0 if array is None else array.size for array in arrays]
    words = aligned(sum(sizes))
    for array, start, size in zip(arrays, np.cumsum([0, *sizes]), sizes):
        if array is not None:
            words[start:start + size] = array.view(np.uint32).ravel()
    blocks, groups = arrays[0].shape[:2]
    matrix = np.array([(rows, columns, blocks, groups, form.group, form.bits, 0,
                        sizes[0] if sizes[1] else NONE,
                        sizes[0] + sizes[1] if sizes[2] else NONE)], MATRIX)
    stride, width = -(-columns // 32) * 32, blocks * LANES
    memory = aligned(len(x) * (3 * stride + width) + threads * SCRATCH)
    floats = memory.view(np.float32)
    floats[:len(x) * stride].reshape(len(x), stride)[:, :columns] = x
    places = np.zeros(1, PLACES)
    start = len(x) * stride
    for name, size in (("codes", len(x) * stride // 4), ("scales", len(x) * stride // 16),
                       ("sums", len(x) * stride // 16), ("scratch", threads * SCRATCH)):
        places[name] = start
        start += size
    program = np.zeros(2, INSTRUCTION)
    program["op"] = READY, MULTIPLY
    program["source_stride"] = program["target_stride"] = stride
    program["weight"] = program["second"] = program["add_to"] = NONE
    program["target"][1] = NONE
    out = np.empty(len(x) * width, np.float32)
    Team(threads).run(run, program, matrix,
                      np.array([(1, 1, 2, 2, quantize, alike, 0, 0)], SHAPE), words,
                      words.view(np.float32), places, floats, memory,
                      np.zeros(len(x), np.int64), np.zeros(0, np.int64), np.zeros(0, SEQUENCE),
                      np.zeros(1, np.int64), out, width, None)
    return out.reshape(len(x), width)[:, :rows]


def rounded(x: np.ndarray, group: int) -> np.ndarray:
    """Activations as `fast` sees them: each group in 127 steps on either side of 0."""
    padded = np.zeros((len(x), -(-x.shape[1] // group) * group), np.float32)
    padded[:, :x.shape[1]] = x
    groups = padded.reshape(len(x), -1, group)
    largest = np.abs(groups).max(axis=-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = np.where(largest > 0, np.float32(127) / largest, np.float32(0))
    codes = np.floor(groups * inverse + np.float32(0.5))
    return (codes * (largest / np.float32(127))).reshape(len(x), -1)[:, :x.shape[1]]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_matrix_stays_the_same_in_the_layout(rng, kind):
    for shape in [*SHAPES, *([(5, 37), (3, 1)] if kind[2] == 0 else [])]:
        codes = random_codes(rng, shape, *kind)
        form, shape, arrays = laid_out(codes)
        np.testing.assert_allclose(unpack(form, *shape, *arrays), codes.dequantize(), atol=1e-4,
                                   rtol=1e-5)
        assert arrays[0].nbytes == form.bits * arrays[0].shape[0] * LANES * form.group * (
            arrays[0].shape[1]) // 8


def test_float32_stays_the_same_in_the_layout(rng):
    weight = rng.standard_normal((19, 40)).astype(np.float32)
    form, shape, arrays = laid_out(weight)
    assert np.array_equal(unpack(form, *shape, *arrays), weight)


def test_groups_that_no_kernel_knows_are_refused(rng):
    with pytest.raises(ModelError, match="multiple of 16"):
        Form.of(random_codes(rng, (4, 48), 8, np.int8, 24, False))


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("rows", [1, 3, 4, 33])
def test_products_are_those_of_the_matrix(rng, kind, rows):
    for shape in [*SHAPES, *([(21, 37)] if kind[2] == 0 else [])]:
        codes = random_codes(rng, shape, *kind)
        x = (rng.standard_normal((rows, shape[1])) * 10 ** rng.uniform(-3, 2, (rows, 1))
             ).astype(np.float32)
        weight = codes.dequantize().astype(np.float64)
        # what all products of a row come to, without signs: what rounding is relative to
        size = np.abs(x).astype(np.float64) @ np.abs(weight).T
        exact = multiply(codes, x, quantize=False)
        assert np.all(np.abs(exact - x.astype(np.float64) @ weight.T) <= 2e-5 * size)
        fast = multiply(codes, x, quantize=True)
        seen = rounded(x, Form.of(codes).group).astype(np.float64)
        assert np.all(np.abs(fast - seen @ weight.T) <= 2e-5 * size)
        assert not np.array_equal(fast, exact)


@pytest.mark.parametrize("kind", KINDS[::3], ids=str)
def test_a_row_has_the_same_bits_in_any_company(rng, kind):
    codes = random_codes(rng, (37, 192), *kind)
    x = rng.standard_normal((37, 192)).astype(np.float32)
    for quantize in (False, True):
        together = multiply(codes, x, quantize, alike=True)
        for first, last in ((0, 1), (5, 6), (3, 8), (30, 37)):
            alone = multiply(codes, x[first:last], quantize, alike=True)
            assert np.array_equal(alone, together[first:last])
        # in `fast` that is so even where a single row goes its own way
        single = multiply(codes, x[9:10], quantize)
        assert np.array_equal(single, together[9:10]) or not quantize
        for threads in (2, 3):
            assert np.array_equal(multiply(codes, x, quantize, threads, alike=True), together)


def test_zeros_and_broken_numbers(rng):
    codes = random_codes(rng, (20, 64), 4, np.uint8, 32, True)
    x = np.zeros((3, 64), np.float32)
    for broken, quantize in product((np.nan, -np.nan, np.inf, -np.inf), (False, True)):
        x[1, 5] = broken
        got = multiply(codes, x, quantize)
        assert not got[0].any() and not got[2].any()
        assert not np.isfinite(got[1]).any()


@pytest.mark.parametrize("type", [type for type in TensorType if is_quantized(type)],
                         ids=lambda type: type.name)
def test_codes_of_gguf_are_what_the_file_says(rng, type):
    block = BLOCK_FORMATS[type]
    raw = rng.integers(0, 256, (12, block.nbytes), dtype=np.uint8)
    # float16 numbers of every format, wherever they stand: none is infinite or nan
    raw[:, 1::2] &= 0b1011_1111
    raw = raw.ravel()
    shape = (3, 4 * block.size)
    codes = codes_of(raw, type, shape)
    assert codes.codes.min() < codes.codes.max() < 1 << codes.bits
    np.testing.assert_allclose(codes.dequantize(), dequantize(raw, type, shape), rtol=1e-6,
                               atol=1e-6)


def test_floats_and_broken_tensors_are_no_codes():
    with pytest.raises(FormatError, match="F16"):
        codes_of(np.zeros(64, np.uint8), TensorType.F16, (1, 32))
    with pytest.raises(FormatError, match="do not make shape"):
        codes_of(np.zeros(35, np.uint8), TensorType.Q8_0, (1, 32))


@kernel
def meet(meeting, parts, part, log, turns):
    for turn in range(turns):
        log[part, turn] = log[:, :turn].sum()
        barrier(meeting, parts)


def test_nobody_passes_a_barrier_alone():
    for threads in (1, 2, 5):
        log = np.ones((threads, 200), np.int64)
        Team(threads).run(lambda *arguments: meet(*arguments, log, 200))
        assert np.array_equal(log, np.repeat(log[:1], threads, axis=0))


def test_an_interrupt_frees_who_waits():
    team, log = Team(3), np.ones((3, 4), np.int64)

    def step(meeting, parts, part):
        if part == 0:
            raise KeyboardInterrupt
        meet(meeting, parts, part, log, 4)
    for _ in range(20):
        with pytest.raises(KeyboardInterrupt):
            team.run(step)
    team.run(lambda *arguments: meet(*arguments, np.ones((3, 4), np.int64), 4))


def test_an_error_of_any_thread_is_the_callers():
    team = Team(3)
    for wrong in (0, 1, 2, 1):
        def step(meeting, parts, part):
            if part == wrong:
                raise ValueError(f"of thread {part}")
            meet(meeting, parts, part, np.ones((3, 4), np.int64), 4)
        with pytest.raises(ValueError, match=f"of thread {wrong}"):
            team.run(step)
    team.run(lambda *arguments: meet(*arguments, np.ones((3, 4), np.int64), 4))


def test_threads_sleep_and_wake_and_end_with_their_team():
    team, seen = Team(2), []
    for pause in (0, 0.2, 0):
        time.sleep(pause)
        team.run(lambda meeting, parts, part: seen.append(part))
    assert sorted(seen) == [0, 0, 0, 1, 1, 1]
    own = {thread for thread in threading.enumerate()
           if thread.name.startswith("gearworks-kernel")}
    del team
    gc.collect()
    deadline = time.monotonic() + 20
    while own <= set(threading.enumerate()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not own <= set(threading.enumerate())


def test_one_step_at_a_time():
    team, inside = Team(2), []

    def step(meeting, parts, part):
        inside.append(part)
        assert len(inside) <= 2
        meet(meeting, parts, part, np.ones((2, 3), np.int64), 3)
        inside.remove(part)
    callers = [threading.Thread(target=lambda: [team.run(step) for _ in range(20)])
               for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not inside


DOT4 = """
import numpy as np
from gearworks.kernels.cpu.compiling import part_of_another
from gearworks.kernels.cpu.lanes import dot4, load, no_words, store

@part_of_another
def products(codes, x, out):
    store(out, 0, dot4(load(out, 0), load(codes, 0), load(x, 0)))

rng = np.random.default_rng(0)
for _ in range(200):
    codes = rng.integers(0, 256, (16, 4)).astype(np.uint8)
    x = rng.integers(-128, 128, (16, 4)).astype(np.int8)
    if _ == 0:
        codes[:], x[:] = 255, -128
    out = rng.integers(0, 1000, 16).astype(np.uint32)
    wanted = out.view(np.int32) + (codes.astype(int) * x).sum(axis=1)
    products(codes.view(np.uint32).ravel(), x.view(np.uint32).ravel(), out)
    assert np.array_equal(out.view(np.int32), wanted)
text = "".join(products.inspect_asm().values())
print("vpdpbusd" in text, "vpmaddwd" in text)
"""


@pytest.mark.skipif(sys.platform == "darwin" or not sys.maxsize > 2**32,
                    reason="names of x86 processors")
@pytest.mark.parametrize("processor", ["", "haswell", "nehalem"])
def test_four_products_at_once_on_any_processor(processor):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    if processor:
        features = {"haswell": "+avx2,+fma,-avx512f,-avx512vnni",
                    "nehalem": "-avx2,-fma,-avx,-avx512f,-avx512vnni"}[processor]
        environment |= {"NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": features}
    done = subprocess.run([sys.executable, "-c", DOT4], env=environment, text=True,
                          capture_output=True)
    assert done.returncode == 0, done.stderr
    if processor:
        assert done.stdout.split()[0] == "False"
    if processor == "haswell":
        assert done.stdout.split()[1] == "True"


WIDE = """
from gearworks.kernels.cpu.compiling import part_of_another
from gearworks.kernels.cpu.int4 import int4_matvec
from numba import types
floats, words = types.Array(types.float32, 3, "C"), types.Array(types.uint32, 4, "C")
vector = types.Array(types.float32, 1, "C")
loop = part_of_another(int4_matvec.py_func)
loop.compile((words, floats, floats, vector, vector))
text, = loop.inspect_asm().values()
print(text.count("%zmm") > text.count("%ymm"))
"""


@pytest.mark.skipif("+avx512f" not in get_host_cpu_features().split(","),
                    reason="other processors' registers are always used whole")
def test_a_plain_loop_uses_whole_registers():
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", WIDE], env=environment, text=True, check=True,
                          capture_output=True)
    assert done.stdout == "True\n"


CACHED = """
import numpy as np
from gearworks.kernels.cpu.int4 import int4_matvec
from gearworks.kernels.cpu.compiling import is_compiled
before = is_compiled(int4_matvec)
zeros = np.zeros((2, 1, 1, 16), np.float32)
int4_matvec(np.zeros((1, 1, 4, 16), np.uint32), *zeros, np.zeros(32, np.float32),
            np.zeros(16, np.float32))
print(before, is_compiled(int4_matvec), sum(int4_matvec.stats.cache_hits.values()))
"""


def test_machine_code_is_kept_where_the_user_can_write(tmp_path):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path),
                                "NUMBA_CACHE_DIR": str(tmp_path)}
    said = [subprocess.run([sys.executable, "-c", CACHED], env=environment, text=True,
                           check=True, capture_output=True).stdout.split() for _ in range(2)]
    assert said == [["False", "True", "0"], ["True", "True", "1"]]
    assert list(tmp_path.rglob("*.nbc"))


@pytest.mark.parametrize("kind", ["nbc", "nbi"])
@pytest.mark.parametrize("damage", [b"", b"\x80", b"not a pickle"])
def test_damaged_machine_code_is_compiled_again(tmp_path, kind, damage):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path),
                                "NUMBA_CACHE_DIR": str(tmp_path)}

    def hits() -> str:
        return subprocess.run([sys.executable, "-c", CACHED], env=environment, text=True,
                              check=True, capture_output=True).stdout.split()[-1]
    assert hits() == "0"
    for path in tmp_path.rglob(f"*.{kind}"):
        path.write_bytes(damage)
    assert hits() == "0" and hits() == "1"


FULL_DISK = """
from numba.core.caching import IndexDataCacheFile
def full(self, path):
    raise OSError(28, "No space left on device")
IndexDataCacheFile._open_for_write = full
"""


def test_a_full_disk_ends_no_step(tmp_path):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path),
                                "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", FULL_DISK + CACHED], env=environment,
                          text=True, check=True, capture_output=True)
    assert done.stdout.split() == ["False", "False", "0"]
    assert not list(tmp_path.rglob("*.nbc"))


def test_a_kernel_that_reserves_memory_is_refused():
    @kernel
    def sums(x):
        return np.zeros(3) + x[0]
    with pytest.raises(NumbaError, match="array passed into the function"):
        sums(np.ones(1))


def test_other_sources_have_another_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    before = compiling.cache_folder()
    (tmp_path / "one.py").write_text("a = 1\n")
    monkeypatch.setattr(compiling, "__file__", str(tmp_path / "compiling.py"))
    first = compiling.cache_folder()
    (tmp_path / "one.py").write_text("a = 2\n")
    assert len({before, first, compiling.cache_folder()}) == 3
    assert first.parent == tmp_path
