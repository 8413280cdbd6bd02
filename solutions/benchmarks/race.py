"""The race: our engines, Hugging Face's and llama.cpp, on one model, in one run.

All take turns. llama.cpp reads the same file as ours, on as many threads, where the package
llama-cpp-python is installed; where it is not, the figures of an earlier run stand in, and the
table says so. `bench` makes lines of the table of what is measured here.

Shapes: a text of PROMPT tokens, and so many sequences side by side as a measurement asks for.
"""

import ctypes
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gearworks import hub
from gearworks.kernels.cpu.model import CompiledModel
from gearworks.kv_cache import RaggedBatch
from gearworks.model import Model

PROMPT, TOKENS, LONG = 64, 32, 512
# Seconds: of a token after a prompt of 64, and of a prompt of 512. AMD EPYC with AVX2,
# 2 threads, llama-cpp-python 0.3, the same file, 2026-11-30. Nobody recorded several side by
# side.
RECORDED = {"token": 1 / 95, "prompt": 2.5}


def random_ids(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(100, 49_000, count)


def timed(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


class Ours:
    """One of our engines. model: as `gearworks.model.Model`."""

    def __init__(self, model: Model | CompiledModel):
        self.model = model

    def token(self, count: int = 1) -> float:
        """Seconds of a decode step of `count` sequences."""
        prompt = random_ids(PROMPT)
        caches = [self.model.new_cache(PROMPT + TOKENS) for _ in range(count)]
        for cache in caches:
            self.model.forward(prompt, np.arange(PROMPT), cache, logits_at=[-1])
        ids = np.resize(prompt, count)

        def steps() -> None:
            nonlocal ids
            for position in range(PROMPT, PROMPT + TOKENS):
                logits = self.model.forward(
                    ids, np.full(count, position), RaggedBatch(caches, [1] * count)
                    if count > 1 else caches[0])
                ids = logits.argmax(axis=-1)
        return timed(steps) / TOKENS

    def prompt(self, length: int = LONG) -> float:
        """Seconds to the logits after a prompt."""
        ids, cache = random_ids(length), self.model.new_cache(length)
        return timed(lambda: self.model.forward(ids, np.arange(length), cache, logits_at=[-1]))


class HuggingFace:
    """`generate` of transformers, float32, greedy, padded to one length."""

    def __init__(self, model: Any):
        self.model = model

    def token(self, count: int = 1) -> float:
        """As `Ours.token`."""
        ids = torch.from_numpy(random_ids(PROMPT))[None].repeat(count, 1)

        def seconds(tokens: int) -> float:
            return timed(lambda: self.model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens,
                min_new_tokens=tokens, do_sample=False, pad_token_id=0))
        few = TOKENS // 4
        alone = seconds(1)
        return (seconds(1 + few) - alone) / few

    def prompt(self, length: int = LONG) -> float:
        """As `Ours.prompt`."""
        ids = torch.from_numpy(random_ids(length))[None]
        with torch.inference_mode():
            return timed(lambda: self.model(ids, logits_to_keep=1))


class LlamaCpp:
    """llama.cpp through its C interface, as llama-cpp-python wraps it."""

    SEQUENCES = 32

    def __init__(self, path: Path, threads: int):
        """Raises ImportError where the package is missing."""
        import llama_cpp

        self.library = llama_cpp
        llama_cpp.llama_backend_init()
        self._silence = llama_cpp.llama_log_callback(lambda *arguments: None)
        llama_cpp.llama_log_set(self._silence, ctypes.c_void_p(0))
        self.model = llama_cpp.llama_model_load_from_file(
            str(path).encode(), llama_cpp.llama_model_default_params())
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx = self.SEQUENCES * 2 * (PROMPT + TOKENS)
        settings.n_batch = settings.n_ubatch = LONG
        settings.n_seq_max = self.SEQUENCES
        settings.kv_unified = True              # one memory, which a long text may have alone
        settings.n_threads = settings.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, settings)
        self.batch = llama_cpp.llama_batch_init(LONG, 0, 1)

    def _forget(self) -> None:
        library = self.library
        if hasattr(library, "llama_get_memory"):
            library.llama_memory_clear(library.llama_get_memory(self.context), True)
        else:
            library.llama_kv_self_clear(self.context)

    def _decode(self, ids: Sequence[int], positions: Sequence[int], sequences: Sequence[int],
                wanted: Sequence[int]) -> None:
        batch = self.batch
        batch.n_tokens = len(ids)
        for row, (token, position, sequence) in enumerate(zip(ids, positions, sequences)):
            batch.token[row], batch.pos[row] = int(token), int(position)
            batch.n_seq_id[row] = 1
            batch.seq_id[row][0] = int(sequence)
            batch.logits[row] = row in wanted
        if self.library.llama_decode(self.context, batch):
            raise RuntimeError("llama.cpp could not run a step")

    def token(self, count: int = 1) -> float:
        """As `Ours.token`, but that the tokens are given: nobody looks at the logits."""
        self._forget()
        prompt, everyone = random_ids(PROMPT), range(count)
        for sequence in everyone:
            self._decode(prompt, range(PROMPT), [sequence] * PROMPT, [PROMPT - 1])

        def steps() -> None:
            for position in range(PROMPT, PROMPT + TOKENS):
                self._decode(np.resize(prompt, count), [position] * count, everyone, everyone)
                self.library.llama_get_logits_ith(self.context, 0)          # waits for all
        return timed(steps) / TOKENS

    def prompt(self, length: int = LONG) -> float:
        """As `Ours.prompt`."""
        self._forget()
        ids = random_ids(length)
        return timed(lambda: (self._decode(ids, range(length), [0] * length, [length - 1]),
                              self.library.llama_get_logits_ith(self.context, length - 1)))


class Recorded:
    """llama.cpp as it was measured elsewhere, one sequence at a time."""

    def token(self) -> float:
        return RECORDED["token"]

    def prompt(self, length: int = LONG) -> float:
        return RECORDED["prompt"]


def llama_cpp(path: Path, threads: int) -> tuple[LlamaCpp | Recorded, str]:
    """llama.cpp, and what the table calls it."""
    try:
        return LlamaCpp(path, threads), "llama.cpp"
    except ImportError:
        return Recorded(), "llama.cpp, recorded on another machine"


def memory_reads(nbytes: int, threads: int) -> Callable[[], float]:
    """Seconds to read so many bytes once: nobody who must read them is faster."""
    from concurrent.futures import ThreadPoolExecutor

    data = np.ones(nbytes // 4, np.float32)
    parts = np.array_split(data, threads)
    pool = ThreadPoolExecutor(threads)
    return lambda: timed(lambda: [list(pool.map(lambda part: part @ part, parts))
                                  for _ in range(TOKENS)]) / TOKENS


LOADING = """
import sys, time
from pathlib import Path
import numpy as np
import psutil
from gearworks.backends import load_model
before = psutil.Process().memory_info().rss
if sys.argv[1] != "numpy":
    import gearworks.kernels.cpu.step
started = time.perf_counter()
model = load_model(Path(sys.argv[2]), sys.argv[1])
loaded = time.perf_counter() - started
ids = np.arange(100, 164)
cache = model.new_cache(128)
model.forward(ids, np.arange(64), cache, [-1])
first = time.perf_counter() - started
for position in range(64, 128):
    model.forward(ids[:1], np.array([position]), cache)
print(loaded, first, psutil.Process().memory_info().rss - before)
"""


def loading(engine: str) -> tuple[float, float, float]:
    """Of a process that loads the model, answers a prompt of 64 and 64 tokens more: seconds
    until it is loaded and until its first token, and the memory that it has then, in bytes,
    beyond what it had without the model and Numba."""
    done = subprocess.run([sys.executable, "-c", LOADING, engine, str(hub.smollm2_gguf())],
                          check=True, capture_output=True, text=True)
    return tuple(map(float, done.stdout.split()))
