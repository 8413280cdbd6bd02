"""All checks and measurements that want a GPU, in one run of at most eight minutes.

    PYTHONPATH=solutions python solutions/benchmarks/gpu.py --json gpu.json

It needs PyTorch with CUDA, Triton, NumPy and this repository; no model file: weights are
random, and the model has Llama-3-8B's shape, where the memory's bandwidth decides and not the
launches.
First the kernels are compared with plain formulas, in every dtype, then they are timed beside
torch's own. What there was no time for, and what failed, is in the JSON too, which is written
after every part. `--rehearse` runs the same code on a processor, in Triton's interpreter, on
tiny arrays: it shows that the script works, and its times mean nothing.
"""

import argparse
import dataclasses
import datetime
import json
import math
import platform
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from gearworks.config import ModelConfig
from gearworks.errors import GearworksError, NotAvailableError, UsageError

SECONDS = 450                          # of the whole run; parts that come later are left out
# What their makers say of the memory, in GB/s
BANDWIDTHS = {"H200": 4800, "H100 NVL": 3900, "H100 PCIe": 2000, "H100": 3350, "A100": 2039,
              "B200": 8000, "L40S": 864, "L4": 300, "A10": 600, "RTX 4090": 1008,
              "RTX 3090": 936}
LLAMA_3_8B = ModelConfig("LlamaForCausalLM", 128_256, 4096, 14_336, 32, 32, 8, 128, 8192, 1e-5,
                         500_000.0, False)
# Tiles to try: queries, keys, warps, stages
TILES = [(128, 64, 4, 3), (128, 64, 8, 3), (128, 128, 8, 2), (64, 64, 4, 3), (128, 32, 4, 4)]


class Bench:
    """The device, the sizes, and the clock.

    rehearsal: tiny sizes on a processor.
    """

    def __init__(self, rehearsal: bool, seconds: float):
        import torch

        self.torch, self.rehearsal = torch, rehearsal
        self.device = torch.device("cpu" if rehearsal else "cuda")
        self.end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return self.end - time.monotonic()

    def milliseconds(self, call: Callable[[], object]) -> float:
        """The median time of a call, on the GPU's own clock."""
        if self.rehearsal:
            started = time.perf_counter()
            call()
            return 1e3 * (time.perf_counter() - started)
        import triton
        return float(triton.testing.do_bench(call, warmup=20, rep=80, return_mode="median"))

    def wall_milliseconds(self, call: Callable[[], object], rounds: int = 20) -> float:
        """The median time of a call as its caller sees it."""
        times = []
        for _ in range(1 if self.rehearsal else rounds):
            self.wait()
            started = time.perf_counter()
            call()
            self.wait()
            times.append(1e3 * (time.perf_counter() - started))
        return statistics.median(times)

    def wait(self) -> None:
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()

    def random(self, *shape: int, dtype: str = "float32", seed: int = 0):
        draw = self.torch.Generator(self.device).manual_seed(seed + sum(shape))
        values = self.torch.randn(shape, generator=draw, device=self.device)
        return values.to(getattr(self.torch, dtype))


def machine(bench: Bench) -> dict:
    """What this ran on."""
    torch = bench.torch
    told = {"python": platform.python_version(), "torch": torch.__version__,
            "system": platform.platform(), "rehearsal": bench.rehearsal}
    if bench.device.type == "cuda":
        import triton
        properties = torch.cuda.get_device_properties(0)
        told |= {"card": properties.name, "memory_gb": properties.total_memory / 1e9,
                 "capability": list(torch.cuda.get_device_capability()),
                 "processors": properties.multi_processor_count, "cuda": torch.version.cuda,
                 "triton": triton.__version__}
    return told


def nominal_bandwidth(card: str) -> float | None:
    """GB/s, as the card's maker says; None for a card that is not in the list.

    >>> nominal_bandwidth("NVIDIA H200"), nominal_bandwidth("NVIDIA H100 PCIe")
    (4800, 2000)
    """
    return next((speed for name, speed in BANDWIDTHS.items() if name in card), None)


# --- are the kernels right?


def relative_error(got, truth) -> float:
    """Of all elements together: the root of squared errors over that of squares."""
    got, truth = got.double(), truth.double()
    return float((got - truth).norm() / truth.norm().clamp_min(1e-30))


def plain_attention(q, k, v, window: int | None = None):
    """Attention from its formula, in the dtype of its inputs: (T, H, d) over (S, K, d)."""
    import torch

    (T, H, d), (S, K, _) = q.shape, k.shape
    k, v = (x.repeat_interleave(H // K, dim=1) for x in (k, v))
    scores = torch.einsum("thd,shd->hts", q, k) * d ** -0.5
    distance = (torch.arange(S - T, S, device=q.device)[:, None]
                - torch.arange(S, device=q.device))
    seen = (distance >= 0) & (distance < (window or S + T + 1))
    weights = torch.softmax(scores.masked_fill(~seen, -math.inf), dim=-1)
    return torch.einsum("hts,shd->thd", torch.nan_to_num(weights), v)


def check_attention(bench: Bench) -> Iterator[dict]:
    """FlashAttention and paged decoding against the formula in float64.

    In float32 the error is rounding; in the others at most twice that of the formula in the
    same dtype.
    """
    from gearworks.kernels.triton.attention import flash_attention, paged_decode

    shapes = [(5, 5, 2, 1, 16, None), (37, 70, 6, 2, 80, 9), (24, 5, 2, 2, 64, None)]
    if not bench.rehearsal:
        shapes += [(1000, 1000, 8, 8, 128, None), (777, 1500, 8, 2, 96, 300),
                   (513, 513, 4, 1, 64, None), (1, 900, 8, 2, 128, None)]
    for dtype in ("float32", "float16", "bfloat16"):
        # in float32 each head size takes the compiler ten seconds
        for T, S, H, K, d, window in shapes[:4] if dtype == "float32" else shapes:
            q, k, v = (bench.random(n, heads, d, dtype=dtype, seed=i)
                       for i, (n, heads) in enumerate(((T, H), (S, K), (S, K))))
            truth = plain_attention(q.double(), k.double(), v.double(), window)
            plain = relative_error(plain_attention(q, k, v, window), truth)
            bound = max(1e-5, 2 * plain)
            ours = relative_error(flash_attention(q, k, v, window=window), truth)
            case = f"{dtype} T={T} S={S} H={H} K={K} d={d} window={window}"
            yield {"check": f"flash_attention {case}", "error": ours, "bound": bound,
                   "passed": ours <= bound}
            size, blocks = 16, -(-S // 16)
            order = bench.torch.randperm(blocks, generator=bench.torch.Generator()
                                         .manual_seed(S)).to(bench.device)
            memory = [bench.torch.full((K, blocks + 1, size, d), math.nan, device=bench.device,
                                       dtype=q.dtype) for _ in range(2)]
            places = bench.torch.arange(S, device=bench.device)
            for kept, new in zip(memory, (k, v)):
                kept[:, order[places // size], places % size] = new.transpose(0, 1)
            got = paged_decode(q[-1:], *memory, order[None].int(), [S], window=window, splits=4)
            last = truth[-1:]
            bound = max(1e-5, 2 * relative_error(plain_attention(q[-1:], k, v, window), last))
            ours = relative_error(got, last)
            yield {"check": f"paged_decode {case}", "error": ours, "bound": bound,
                   "passed": ours <= bound}


def check_others(bench: Bench) -> Iterator[dict]:
    """RMSNorm and the int4 product against their formulas."""
    from gearworks.kernels.triton.int4 import int4_matmul, pack
    from gearworks.kernels.triton.rms_norm import rms_norm
    from gearworks.formats.codes import Codes

    for dtype in ("float32", "float16", "bfloat16"):
        x, residual = (bench.random(7, 576, dtype=dtype, seed=i) for i in (1, 2))
        weight = bench.random(576, dtype=dtype, seed=3)
        summed = x.double() + residual.double()
        truth = (summed / (summed.square().mean(-1, keepdim=True) + 1e-5).sqrt()
                 * weight.double())
        error = relative_error(rms_norm(x, weight, 1e-5, residual.clone()), truth)
        bound = {"float32": 1e-6, "float16": 2e-3, "bfloat16": 1.2e-2}[dtype]
        yield {"check": f"rms_norm {dtype}", "error": error, "bound": bound,
               "passed": error <= bound}
        for T, n, m, group in ((1, 128, 80, 32), (19, 192, 33, 64)):
            rng = np.random.default_rng(T)
            codes = Codes(rng.integers(0, 16, (m, n)).astype(np.uint8),
                          rng.uniform(0.01, 0.1, (m, n // group)).astype(np.float32),
                          rng.uniform(-1, 0, (m, n // group)).astype(np.float32), 4)
            x = bench.random(T, n, dtype=dtype)
            plain = bench.torch.from_numpy(codes.dequantize()).to(bench.device)
            truth = x.double() @ plain.double().T
            bound = max(1e-5, 2 * relative_error(x @ plain.to(x.dtype).T, truth))
            error = relative_error(int4_matmul(x, pack(codes, bench.device)), truth)
            yield {"check": f"int4_matmul {dtype} T={T} groups of {group}", "error": error,
                   "bound": bound, "passed": error <= bound}


def check_model(bench: Bench) -> Iterator[dict]:
    """The torch backend against NumPy's engine, with and without graphs, on a tiny model."""
    from gearworks.kernels.torch_model import TorchModel
    from gearworks.model import Model
    from gearworks.weights import reserve

    config = ModelConfig("LlamaForCausalLM", 97, 48, 80, 2, 6, 2, 16, 256, 1e-5, 1e4, False)
    weights, places = reserve(config)
    rng = np.random.default_rng(0)
    for place in places.values():
        place[...] = (1 + 0.3 * rng.standard_normal(place.shape) if place.ndim == 1
                      else 0.2 * rng.standard_normal(place.shape))
    ids, model = rng.integers(0, 97, 90), Model(config, weights)
    truth = model.forward(ids, np.arange(90), model.new_cache(90))
    for options in ({"graphs": False, "use_triton": False}, {"graphs": True},
                    {"graphs": False, "use_triton": True}):
        ours = TorchModel.of(config, weights, bench.device, bench.torch.float32, **options)
        cache = ours.new_cache(90)
        steps = [ours.forward(ids[:60], np.arange(60), cache)]
        steps += [ours.forward(ids[i:i + 1], np.array([i]), cache) for i in range(60, 90)]
        error = float(np.abs(np.concatenate(steps) - truth).max())
        yield {"check": f"torch backend, float32, {options}", "error": error, "bound": 1e-4,
               "passed": error <= 1e-4}


def check_exercises(bench: Bench) -> Iterator[dict]:
    """The checks that learners' kernels meet, on the reference's, compiled."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    try:
        from autograder.checking.running import Status, run_exercise
        from autograder.variants.mutation import reference_subjects
        import autograder.checks.kernels  # noqa: F401
    except ImportError as error:                  # on a machine that has torch and little else
        yield {"not_run": f"{error}"}
        return
    for name in ("paged_decode", "flash_attention")[:1 if bench.rehearsal else 2]:
        exercise = f"kernels.triton.{name}"
        report = run_exercise(exercise, reference_subjects(exercise), public=None, seed=1)
        for outcome in report.outcomes:
            yield {"check": f"{exercise}: {outcome.name}", "level": report.level,
                   "found": outcome.found, "passed": outcome.status is Status.PASSED}


# --- how fast are they?


def bandwidth(bench: Bench) -> Iterator[dict]:
    """What the memory gives when it is copied, in GB/s read and written together."""
    size = 2**16 if bench.rehearsal else 2**30
    source = bench.torch.empty(size, dtype=bench.torch.float32, device=bench.device)
    target = bench.torch.empty_like(source)
    took = bench.milliseconds(lambda: target.copy_(source))
    yield {"measure": "copy", "gb_per_second": 8 * size / took / 1e6}


def time_flash(bench: Bench) -> Iterator[dict]:
    """FlashAttention beside torch's flash backend: causal, 32 heads on 8, bfloat16."""
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from gearworks.kernels.triton.attention import flash_attention

    H, K = (4, 2) if bench.rehearsal else (32, 8)
    dtype = "float32" if bench.rehearsal else "bfloat16"
    for d in (64, 128):
        for T in ((48,) if bench.rehearsal else (4096, 8192, 16_384)):
            q = bench.random(T, H, d, dtype=dtype, seed=1)
            k, v = (bench.random(T, K, d, dtype=dtype, seed=i) for i in (2, 3))
            batch = [x.transpose(0, 1)[None] for x in (q, k.repeat_interleave(H // K, 1),
                                                       v.repeat_interleave(H // K, 1))]

            def theirs():
                with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                    return F.scaled_dot_product_attention(*batch, is_causal=True)

            agrees = relative_error(flash_attention(q, k, v), theirs()[0].transpose(0, 1))
            tried = {}
            for tiles in TILES[:1] if bench.rehearsal else TILES:
                try:
                    tried[str(tiles)] = bench.milliseconds(
                        lambda: flash_attention(q, k, v, tiles=tiles))
                except Exception as error:               # more fast memory than the card has
                    tried[str(tiles)] = f"{type(error).__name__}: {error}"[:200]
            ours, other = bench.milliseconds(lambda: flash_attention(q, k, v)), (
                bench.milliseconds(theirs))
            best = min(each for each in [ours, *tried.values()] if isinstance(each, float))
            flops = 4 * H * d * T * (T + 1) / 2
            yield {"measure": "flash forward", "head_size": d, "tokens": T, "ours_ms": ours,
                   "sdpa_flash_ms": other, "ratio": other / ours, "target": 0.9,
                   "best_ratio": other / best, "tflops": flops / ours / 1e9,
                   "sdpa_tflops": flops / other / 1e9, "differs_by": agrees, "tiles": tried}


def time_decode_attention(bench: Bench) -> Iterator[dict]:
    """Paged decoding: what share of the memory's bandwidth reading the keys and values is."""
    from gearworks.kernels.triton.attention import paged_decode

    H, K, d, size = (4, 2, 16, 16) if bench.rehearsal else (32, 8, 128, 64)
    for B, context in (((2, 40),) if bench.rehearsal else ((1, 4096), (1, 65_536), (8, 8192),
                                                           (64, 4096))):
        blocks = -(-context // size)
        memory = [bench.random(K, B * blocks, size, d, seed=i,
                               dtype="float32" if bench.rehearsal else "bfloat16")
                  for i in (1, 2)]
        order = bench.torch.randperm(B * blocks, generator=bench.torch.Generator()
                                     .manual_seed(0))
        tables = order.reshape(B, blocks).int().to(bench.device)
        lengths = bench.torch.full((B,), context, dtype=bench.torch.int32, device=bench.device)
        q = bench.random(B, H, d, dtype=str(memory[0].dtype).removeprefix("torch."))
        moved = 2 * B * context * K * d * q.element_size()
        for splits in (None, 1):
            took = bench.milliseconds(lambda: paged_decode(q, *memory, tables, lengths,
                                                           splits=splits))
            yield {"measure": "paged decode", "sequences": B, "context": context,
                   "splits": splits or "chosen", "ms": took,
                   "gb_per_second": moved / took / 1e6}


def time_rms_norm(bench: Bench) -> Iterator[dict]:
    import torch.nn.functional as F

    from gearworks.kernels.triton.rms_norm import rms_norm

    D = 96 if bench.rehearsal else 4096
    for T in ((3,) if bench.rehearsal else (1, 512, 16_384)):
        dtype = "float32" if bench.rehearsal else "bfloat16"
        x, residual = (bench.random(T, D, dtype=dtype, seed=i) for i in (1, 2))
        weight = bench.random(D, dtype=dtype)
        ours = bench.milliseconds(lambda: rms_norm(x, weight, 1e-5, residual))
        theirs = bench.milliseconds(lambda: F.rms_norm(residual.add_(x), (D,), weight, 1e-5))
        yield {"measure": "add and RMSNorm", "tokens": T, "ours_ms": ours, "torch_ms": theirs,
               "ratio": theirs / ours, "gb_per_second": 4 * x.nbytes / ours / 1e6}


def time_int4(bench: Bench) -> Iterator[dict]:
    """The int4 product beside torch's in bfloat16, in the shape of Llama-3-8B's down_proj."""
    import torch.nn.functional as F

    from gearworks.kernels.triton.int4 import PackedInt4, int4_matmul

    n, m = (64, 32) if bench.rehearsal else (14_336, 4096)
    dtype = "float32" if bench.rehearsal else "bfloat16"
    torch = bench.torch
    packed = PackedInt4(torch.randint(0, 256, (n // 2, m), dtype=torch.uint8,
                                      device=bench.device),
                        *(bench.random(n // 32, m, seed=i) for i in (1, 2)))
    weight = bench.random(m, n, dtype=dtype)
    for T in (1, 16, 128):
        x = bench.random(T, n, dtype=dtype)
        ours = bench.milliseconds(lambda: int4_matmul(x, packed))
        theirs = bench.milliseconds(lambda: F.linear(x, weight))
        yield {"measure": "int4 product", "tokens": T, "ours_ms": ours, "bf16_ms": theirs,
               "ratio": theirs / ours, "gb_per_second": packed.nbytes / ours / 1e6}


def time_decode(bench: Bench) -> Iterator[dict]:
    """Decoding steps in Llama-3-8B's shape, beside what reading the weights alone takes."""
    from gearworks.kernels.torch_model import TorchModel

    config, dtype, context = LLAMA_3_8B, bench.torch.bfloat16, 1024
    if bench.rehearsal:
        config = dataclasses.replace(config, vocab_size=64, hidden_size=32,
                                     intermediate_size=48, num_hidden_layers=1,
                                     num_attention_heads=4, num_key_value_heads=2, head_dim=8)
        dtype, context = bench.torch.float32, 10
    elif bench.torch.cuda.get_device_properties(0).total_memory < 24e9:
        config = dataclasses.replace(config, num_hidden_layers=8)
    model = TorchModel.random(config, bench.device, dtype, graphs=True,
                              use_triton=True)
    # the embedding's table is looked up, not read
    read = model.weights.nbytes() - model.weights.embed_tokens.nbytes
    heads = 2 * config.num_key_value_heads * config.head_dim * config.num_hidden_layers
    for graphs in (True, False):
        model.graphs = graphs
        for B in ((1, 2) if bench.rehearsal else (1, 8, 32)):
            if B > 1 and not graphs:
                continue
            blocks = -(-(context + 64) // 64)
            memory = model.new_paged_cache(B * blocks, 64)
            tables = np.arange(B * blocks).reshape(B, blocks).tolist()
            ids, positions = np.full(B, 7), np.full(B, context)

            def step():
                batch = memory.batch(tables, [context] * B, [1] * B)
                return model.forward(ids, positions, batch)

            for _ in range(12):                              # until the step is recorded
                step()
            wall = bench.wall_milliseconds(step)
            moved = read + B * context * heads * dtype.itemsize
            told = {"measure": "decode", "layers": config.num_hidden_layers, "sequences": B,
                    "context": context, "graphs": graphs, "bytes": moved, "step_ms": wall,
                    "tokens_per_second": 1e3 * B / wall, "gb_per_second": moved / wall / 1e6}
            if graphs and not bench.rehearsal:
                recorded = next(iter(memory.graphs.recorded.values()))
                alone = bench.milliseconds(recorded.replay_alone)
                told |= {"graph_ms": alone, "graph_gb_per_second": moved / alone / 1e6}
            yield told
    model.graphs = False
    T = 40 if bench.rehearsal else 2048
    ids, cache = np.arange(T) % config.vocab_size, model.new_cache(T)

    def prefill():
        cache.truncate(0)
        model.forward(ids, np.arange(T), cache, [-1])

    prefill()
    wall = bench.wall_milliseconds(prefill, rounds=5)
    yield {"measure": "prefill", "layers": config.num_hidden_layers, "tokens": T,
           "tokens_per_second": 1e3 * T / wall}


def time_compiled(bench: Bench) -> Iterator[dict]:
    """Decoding with torch.compile between the attentions, recorded as before: 4 layers."""
    from gearworks.kernels.torch_model import TorchModel

    if bench.rehearsal:
        return
    config = dataclasses.replace(LLAMA_3_8B, num_hidden_layers=4)
    times = {}
    for compiled in (False, True):
        model = TorchModel.random(config, bench.device, bench.torch.bfloat16, graphs=True,
                                  use_triton=True, compile=compiled)
        memory = model.new_paged_cache(20, 64)

        def step():
            batch = memory.batch([range(20)], [1024], [1])
            return model.forward(np.array([7]), np.array([1024]), batch)

        started = time.perf_counter()
        for _ in range(12):
            step()
        first = time.perf_counter() - started
        recorded = next(iter(memory.graphs.recorded.values()))
        times[compiled] = bench.milliseconds(recorded.replay_alone)
        yield {"measure": "decode, 4 layers", "compiled": compiled, "first_seconds": first,
               "graph_ms": times[compiled]}


# name -> part, and the seconds below which it is not begun
PARTS: dict[str, tuple[Callable[[Bench], Iterator[dict]], float]] = {
    "check_others": (check_others, 20), "check_attention": (check_attention, 40),
    "check_model": (check_model, 20), "bandwidth": (bandwidth, 5),
    "time_decode": (time_decode, 60), "time_flash": (time_flash, 60),
    "time_decode_attention": (time_decode_attention, 20), "time_int4": (time_int4, 15),
    "time_rms_norm": (time_rms_norm, 10), "check_exercises": (check_exercises, 60),
    "time_compiled": (time_compiled, 60)}


def run(bench: Bench, only: list[str], save: Callable[[dict], None]) -> dict:
    """Run the parts, and keep what they say, whatever happens in one of them."""
    report = {"date": datetime.date.today().isoformat(), "machine": machine(bench),
              "results": {}, "not_run": {}, "seconds": {}}
    for name, (part, needed) in PARTS.items():
        if only and name not in only:
            report["not_run"][name] = "not asked for"
            continue
        if bench.left < needed:
            report["not_run"][name] = f"{bench.left:.0f} seconds were left"
            continue
        started, rows = time.monotonic(), report["results"].setdefault(name, [])
        try:
            for row in part(bench):
                rows.append(row)
                print(_line(name, row), flush=True)
        except Exception as error:
            rows.append({"error": f"{type(error).__name__}: {error}"[:500],
                         "traceback": traceback.format_exc()[-2000:], "passed": False})
            print(_line(name, {"error": rows[-1]["error"]}), flush=True)
        report["seconds"][name] = round(time.monotonic() - started, 1)
        save(report)
    _add_shares(report)
    save(report)
    return report


def _add_shares(report: dict) -> None:
    """What share of the memory's bandwidth each measured one is."""
    copied = [row["gb_per_second"] for row in report["results"].get("bandwidth", [])
              if "gb_per_second" in row]
    limits = {"of_copy": copied[0] if copied else None,
              "of_nominal": nominal_bandwidth(report["machine"].get("card", ""))}
    for rows in report["results"].values():
        for row in rows:
            for name, limit in limits.items():
                for speed in ("gb_per_second", "graph_gb_per_second"):
                    if limit and speed in row:
                        row[f"{speed}_{name}"] = row[speed] / limit


def _line(name: str, row: dict) -> str:
    shown = {key: f"{value:.4g}" if isinstance(value, float) else value
             for key, value in row.items() if key not in ("tiles", "traceback")}
    return f"{name}: " + ", ".join(f"{key} {value}" for key, value in shown.items())


def require_gpu() -> None:
    """Raise NotAvailableError unless Triton and a GPU that it compiles for are here."""
    from gearworks.kernels.triton import has_triton_gpu

    if not has_triton_gpu():
        raise NotAvailableError(
            "cannot measure a GPU", "there is no GPU of compute capability 8.0 or later here "
            "for which both torch and Triton are installed",
            "run this on one, with a torch that was built for CUDA; --rehearse tries the "
            "script without")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, default=Path("gpu.json"), metavar="FILE",
                        help="where to write the report (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=SECONDS,
                        help="that the run may take (default: %(default)s)")
    parser.add_argument("--only", action="append", default=[], metavar="PART",
                        help=f"run this part alone; one of {', '.join(PARTS)}")
    parser.add_argument("--rehearse", action="store_true",
                        help="try the script on a processor, with tiny arrays")
    options = parser.parse_args(arguments)
    try:
        unknown = [name for name in options.only if name not in PARTS]
        if unknown:
            raise UsageError(f"there is no part {unknown[0]!r:.60}",
                             "the parts are " + ", ".join(PARTS), "name one of these")
        if not options.rehearse:
            require_gpu()
        report = run(Bench(options.rehearse, options.seconds), options.only,
                     lambda told: options.json.write_text(json.dumps(told, indent=1) + "\n",
                                                          encoding="utf-8"))
    except GearworksError as error:
        print(f"gpu.py: {error}", file=sys.stderr)
        return 1
    failed = [row.get("check", row.get("error")) for rows in report["results"].values()
              for row in rows if row.get("passed") is False]
    print(f"wrote {options.json}; {len(failed)} failed" + "".join(f"\n  {one}"
                                                                  for one in failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
