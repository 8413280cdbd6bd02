"""Triton's kernels: compiled on a GPU that Triton knows, else in its interpreter. About 20 s.

Triton exists for Linux only; elsewhere these tests are left out, and say so.
"""

import linecache
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

if sys.platform != "linux":
    pytest.skip("Triton exists for Linux only", allow_module_level=True)

from gearworks.attention import (AttentionRules, apply_rope, attention, causal_mask,
                                 paged_attention, rope_angles, rope_frequencies)
from gearworks.errors import ModelError, NotAvailableError
from gearworks.kernels.flash import in_tiles
from gearworks.kernels.triton import has_triton_gpu
from gearworks.kernels.triton.attention import (NO_WINDOW, attend, decode, flash_attention,
                                                paged_decode)
from gearworks.kernels.triton.elementwise import swiglu, turn
from gearworks.kernels.triton.int4 import int4_matmul, pack
from gearworks.kernels.triton.language import (Launched, launched_by, level, level_in_words, tl,
                                               triton)
from gearworks.kernels.triton.rms_norm import rms_norm
from gearworks.layers import rms_norm as plain_rms_norm
from gearworks.layers import swiglu as plain_swiglu
from gearworks.formats.codes import Codes

WHERE = "cuda" if has_triton_gpu() else "cpu"


def random(rng, *shape, scale=1.0):
    return (scale * rng.standard_normal(shape)).astype(np.float32)


def qkv(rng, T, S, H, K, d):
    return random(rng, T, H, d), random(rng, S, K, d), random(rng, S, K, d)


# --- FlashAttention


@pytest.mark.parametrize("T, S, H, K, d", [
    (1, 1, 1, 1, 1), (17, 17, 2, 1, 10), (16, 48, 4, 2, 16), (33, 40, 6, 3, 7),
    (1, 70, 4, 4, 64), (20, 20, 1, 1, 128), (5, 90, 3, 1, 33)])
@pytest.mark.parametrize("window", [None, 1, 18])
def test_flash_equals_plain_attention(rng, T, S, H, K, d, window):
    q, k, v = qkv(rng, T, S, H, K, d)
    got = flash_attention(q, k, v, window=window)
    np.testing.assert_allclose(got, attention(q, k, v, causal_mask(T, S, window)), rtol=0,
                               atol=1e-5)
    tiled, _ = in_tiles(q, k, v, 16, 16, window)           # the same idea, one level up
    np.testing.assert_allclose(got, tiled, rtol=0, atol=1e-5)


def test_rows_that_see_nothing_are_zero(rng):
    q, k, v = qkv(rng, 40, 7, 2, 1, 12)
    got = flash_attention(q, k, v)
    assert not got[:33].any()
    np.testing.assert_allclose(got[33:], attention(q[33:], k, v), rtol=0, atol=1e-5)


def test_sequences_of_one_launch_do_not_see_each_other(rng):
    lens = [(19, 19), (1, 33), (8, 24), (2, 2)]
    parts = [qkv(rng, T, S, 4, 2, 6) for T, S in lens]
    q, k, v = (np.concatenate(part) for part in zip(*parts))
    got = flash_attention(q, k, v, [T for T, _ in lens], [S for _, S in lens])
    expected = np.concatenate([attention(*part) for part in parts])
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_errs_no_more_than_twice_the_plain_formula(rng, dtype):
    q, k, v = (torch.from_numpy(x).to(WHERE, dtype) for x in qkv(rng, 30, 45, 4, 2, 20))
    exact = attention(*(x.float().cpu().numpy() for x in (q, k, v)))
    repeated = [x.repeat_interleave(2, dim=1) for x in (k, v)]
    scores = torch.einsum("thd,shd->hts", q, repeated[0]) * 20 ** -0.5
    scores.masked_fill_(~torch.from_numpy(causal_mask(30, 45)).to(WHERE), -torch.inf)
    plain = torch.einsum("hts,shd->thd", scores.softmax(-1), repeated[1])
    got = flash_attention(q, k, v)
    assert got.dtype == dtype and got.device == q.device
    ours, theirs = (np.linalg.norm(x.float().cpu().numpy() - exact) for x in (got, plain))
    assert ours <= 2 * theirs


def test_queries_that_are_views_are_taken_as_they_are(rng):
    """An engine's q, k and v are parts of one product."""
    qkv_rows = torch.from_numpy(random(rng, 9, 8, 10)).to(WHERE)
    q, k, v = qkv_rows[:, :4], qkv_rows[:, 4:6], qkv_rows[:, 6:]
    got = flash_attention(q, k, v).cpu().numpy()
    expected = attention(*(x.cpu().numpy() for x in (q, k, v)))
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)


# --- decoding from blocks


def blocks(rng, lengths, K, d, size):
    """Keys and values as `PagedKVCache` keeps a layer's, nan where nobody's are."""
    needs = [-(-length // size) for length in lengths]
    order = rng.permutation(sum(needs) + 2)
    borders = np.cumsum([0, *needs])
    tables = [order[start:end].tolist() for start, end in zip(borders, borders[1:])]
    keys, values = (np.full((K, sum(needs) + 2, size, d), np.nan, np.float32) for _ in range(2))
    for table, length in zip(tables, lengths):
        for token in range(length):
            for memory in (keys, values):
                memory[:, table[token // size], token % size] = random(rng, K, d)
    return keys, values, tables


@pytest.mark.parametrize("size, H, K, d, splits", [
    (4, 2, 1, 6, 1), (16, 6, 2, 10, 2), (64, 4, 4, 33, 3), (1, 3, 1, 16, 4), (5, 17, 1, 8, 2),
    (16, 2, 2, 128, None)])
@pytest.mark.parametrize("window", [None, 1, 16])
def test_paged_decode_equals_paged_attention(rng, size, H, K, d, splits, window):
    lengths = [37, 1, 64, 16]
    keys, values, tables = blocks(rng, lengths, K, d, size)
    q = random(rng, 4, H, d)
    got = paged_decode(q, keys, values, tables, lengths, window=window, splits=splits)
    expected = paged_attention(q, keys, values, tables, lengths, [1] * 4,
                               AttentionRules(window=window))
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)


def test_sequences_without_tokens_and_steps_without_sequences(rng):
    keys, values, tables = blocks(rng, [0, 9], 1, 8, 4)
    got = paged_decode(random(rng, 2, 2, 8), keys, values, tables, [0, 9], splits=3)
    assert not got[0].any() and np.isfinite(got).all() and got[1].any()
    assert paged_decode(random(rng, 0, 2, 8), keys, values, [], []).shape == (0, 2, 8)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_decoding_in_low_precision(rng, dtype):
    keys, values, tables = blocks(rng, [50, 21], 2, 16, 8)
    q, keys, values = (torch.from_numpy(x).to(WHERE, dtype)
                       for x in (random(rng, 2, 4, 16), keys, values))
    got = paged_decode(q, keys, values, tables, [50, 21], splits=2)
    expected = paged_attention(*(x.float().cpu().numpy() for x in (q, keys, values)), tables,
                               [50, 21], [1, 1])
    assert got.dtype == dtype
    np.testing.assert_allclose(got.float().cpu().numpy(), expected, rtol=0,
                               atol=4e-3 if dtype == torch.float16 else 3e-2)


def test_heads_that_are_too_large_are_refused(rng):
    with pytest.raises(ModelError, match="129 elements"):
        flash_attention(*qkv(rng, 2, 2, 1, 1, 129))
    with pytest.raises(ModelError, match="130 elements"):
        paged_decode(random(rng, 1, 1, 130), *(random(rng, 1, 2, 4, 130),) * 2, [[0]], [3])
    assert NO_WINDOW > 10**9


# --- norms and products


@pytest.mark.parametrize("shape", [(1, 5), (7, 64), (3, 4, 10), (0, 8)])
def test_rms_norm(rng, shape):
    x, weight = random(rng, *shape, scale=3.0), random(rng, shape[-1])
    np.testing.assert_allclose(rms_norm(x, weight, 1e-3), plain_rms_norm(x, weight, 1e-3),
                               rtol=0, atol=1e-5)


def test_rms_norm_adds_to_the_residual_first(rng):
    x, residual, weight = (torch.from_numpy(random(rng, *shape)).to(WHERE)
                           for shape in ((4, 30), (4, 30), (30,)))
    summed = x + residual
    got = rms_norm(x, weight, 1e-5, residual)
    torch.testing.assert_close(residual, summed)
    torch.testing.assert_close(got, torch.nn.functional.rms_norm(summed, (30,), weight, 1e-5))


def test_turning_parts_of_a_product(rng):
    """An engine's queries and keys are the first heads of a row that goes on with values."""
    for T, H, d in ((5, 3, 10), (1, 1, 2), (7, 4, 64), (0, 2, 4)):
        whole = torch.from_numpy(random(rng, T, H + 2, d)).to(WHERE)
        cos, sin = rope_angles(rng.integers(0, 500, T), rope_frequencies(d, 1e4))
        got = turn(whole[:, :H], *(torch.from_numpy(x).to(WHERE) for x in (cos, sin)))
        expected = apply_rope(whole[:, :H].cpu().numpy(), cos, sin)
        np.testing.assert_allclose(got.cpu().numpy(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("T, F", [(1, 1), (3, 80), (2, 1500), (0, 8)])
def test_swiglu(rng, T, F):
    gate_up = random(rng, T, 2 * F, scale=4.0)
    np.testing.assert_allclose(swiglu(gate_up), plain_swiglu(gate_up[:, :F], gate_up[:, F:]),
                               rtol=0, atol=1e-4)


@pytest.mark.parametrize("T, n, m, group, signed", [
    (1, 64, 9, 32, False), (5, 96, 70, 32, True), (40, 128, 33, 128, False),
    (17, 256, 64, 64, True), (0, 32, 8, 32, False)])
def test_int4_products(rng, T, n, m, group, signed):
    low = -8 if signed else 0
    codes = Codes(rng.integers(low, low + 16, (m, n)).astype(np.int8 if signed else np.uint8),
                  random(rng, m, n // group), None if signed else random(rng, m, n // group), 4)
    x = torch.from_numpy(random(rng, T, n)).to(WHERE)
    packed = pack(codes, WHERE)
    assert packed.group_size == group and packed.nbytes == n * m // 2 + 8 * m * n // group
    np.testing.assert_allclose(int4_matmul(x, packed).cpu().numpy(),
                               x.cpu().numpy() @ codes.dequantize().T, rtol=0, atol=1e-3)
    assert int4_matmul(x.bfloat16(), packed).dtype == torch.bfloat16


@pytest.mark.parametrize("bits, group", [(8, 32), (4, 16), (4, 48)])
def test_other_codes_are_refused(bits, group):
    scales = np.ones((3, 96 // group), np.float32)
    codes = Codes(np.zeros((3, 96), np.uint8), scales, None, bits)
    with pytest.raises(ModelError, match=f"{bits} bits, in groups of {group}"):
        pack(codes)


# --- how kernels are launched


def test_the_line_that_raises_is_the_kernels_own(rng):
    if level() == "GPU":
        pytest.skip("a GPU's compiler says where")

    @launched_by(lambda kernel, x: kernel[(1,)](x))
    @triton.jit
    def broken(x):
        tl.load(x + undefined_offset)  # noqa: F821

    with pytest.raises(NameError, match="undefined_offset") as caught:
        broken(np.zeros(3, np.float32))
    lines = [entry.name for entry in caught.traceback]
    assert "broken" in lines


def test_a_kernel_that_is_not_written_says_so():
    @launched_by(lambda kernel, x: kernel[(1,)](x))
    @triton.jit
    def unwritten(x):
        raise NotImplementedError("kernels.triton.flash_attention: write this function")

    with pytest.raises(NotImplementedError, match="write this"):
        unwritten(np.zeros(3, np.float32))


def test_what_is_launched_looks_like_its_kernel():
    assert isinstance(flash_attention, Launched) and flash_attention.launcher is attend
    assert paged_decode.launcher is decode and paged_decode.__name__ == "paged_decode"
    assert "one query for each sequence" in paged_decode.__doc__


def test_the_level_is_said_in_words():
    words = {"interpreter": "Level: interpreter. ", "GPU": "Level: GPU. "}
    assert level_in_words().startswith(words[level()])


def child(code: str, **environment: str) -> str:
    """What a new Python process prints."""
    variables = {name: value for name, value in os.environ.items()
                 if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8",
                          env=variables | environment, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


CALL = """
import numpy as np
from gearworks.kernels.triton.attention import flash_attention
from gearworks.kernels.triton.language import level_in_words
try:
    flash_attention(*[np.ones((2, 1, 4), np.float32)] * 3)
except Exception as error:
    print(type(error).__name__, error.why)
print(level_in_words())
"""


def test_without_triton_kernels_can_be_imported_and_not_run():
    said = child("import sys; sys.modules['triton'] = None" + CALL)
    assert said.splitlines() == [
        "NotAvailableError Triton is not installed here; it exists for Linux only",
        "Level: none. Triton is not installed here; it exists for Linux only."]


@pytest.mark.skipif(has_triton_gpu(), reason="with a GPU no interpreter is needed")
@pytest.mark.parametrize("before", ["", "import triton.language", "import torch._dynamo",
                                    "import transformers.modeling_utils"])
def test_whoever_imports_triton_before_the_interpreter_runs(before):
    assert child(before + CALL).startswith("Level: interpreter.")


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from gearworks.kernels.triton import attention, elementwise, int4, rms_norm

def build(kernel, types, **constants):
    names = kernel.arg_names
    types = dict(zip([name for name in names if name not in constants], types.split()))
    source = triton.compiler.ASTSource(
        kernel, {name: types.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()})
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32),
                          options={"num_warps": 8 if "ROWS" in names else 4})
    print(kernel.__name__, "mma" in made.asm["ptx"], len(made.asm["cubin"]) > 1000)

b = "*bf16"
build(attention.flash_attention.kernel, f"{b} {b} {b} {b} *i32 *i32 i32 i32 i32 fp32", d=96,
      ROWS=128, KEYS=64, HEAD=128, WINDOWED=False)
# Triton makes a constant of every 1 that it is given
build(attention.paged_decode.kernel,
      f"{b} {b} {b} *i32 *i32 *fp32 *fp32 *fp32 i32 i32 i32 fp32", group=1, size=1,
      splits=1, d=128, GROUP=16, KEYS=64, HEAD=128)
build(attention.merge_splits, f"*fp32 *fp32 *fp32 {b} i32", d=128, SPLITS=8, HEAD=128)
build(rms_norm.rms_norm_kernel, f"{b} {b} {b} {b} i32 fp32", ADD=True, COLUMNS=1024)
build(elementwise.turn_kernel, f"{b} *fp32 *fp32 {b} i32 i32 i32", HALF=64)
build(elementwise.swiglu_kernel, f"{b} {b} i32", COLUMNS=1024)
build(int4.int4_matmul_kernel, f"{b} *u8 *fp32 *fp32 {b} i32 i32 i32", HALF=16, ROWS=16,
      COLUMNS=32)
"""


def test_all_compile_for_a_gpu_that_is_not_here():
    """What an interpreter takes, a compiler may not; and products go to the tensor cores."""
    assert child(COMPILE, TRITON_INTERPRET="0").splitlines() == [
        "flash_attention True True", "paged_decode True True", "merge_splits False True",
        "rms_norm_kernel False True", "turn_kernel False True", "swiglu_kernel False True",
        "int4_matmul_kernel True True"]


def test_a_missing_level_raises(monkeypatch):
    from gearworks.kernels.triton import language
    monkeypatch.setattr(language, "tl", object())
    with pytest.raises(NotAvailableError, match="Linux"):
        language.level()


NOTEBOOK = '''
import triton
import triton.language as tl

@triton.jit
def twice(x, out):
    tl.store(out, 2 * tl.load(x))
'''


def test_a_kernel_of_a_notebook_leaves_it_without_a_file():
    """Where Triton's interpreter ran, new processes began by running the interpreter's file."""
    name, names = "<ipython-input-1-twice>", {"__name__": "__main__"}
    linecache.cache[name] = len(NOTEBOOK), None, NOTEBOOK.splitlines(keepends=True), name
    exec(compile(NOTEBOOK, name, "exec"), names)

    def launch(kernel, x):
        out = torch.empty_like(x)
        kernel[1,](x, out)
        return out
    for _ in range(2):
        assert Launched(launch, names["twice"])(np.float32([21])) == 42
    assert "__file__" not in names
