"""What serving costs and gains: the parts of `gearworks bench` that are about many requests.

The mixed requests are the trace that comes with `gearworks load`, which was drawn from
published figures of chat services.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import torch

from gearworks.kv_cache import RaggedBatch
from gearworks.language_model import LanguageModel
from gearworks.load.prompts import text
from gearworks.load.trace import find_trace, read_trace
from gearworks.server.background import BackgroundServer
from gearworks.serving.engine import LLMEngine
from gearworks.serving.paged_cache import PagedBatch, PagedKVCache
from gearworks.serving.request import Request

STATIC_BATCHES = (4, 8, 16, 32)           # of which Hugging Face gets the best


def chat_requests(llm: LanguageModel) -> list[tuple[float, Request]]:
    """The trace's requests and when they arrive, in seconds."""
    trace = read_trace(Path(find_trace("chat")))
    return [(one.arrival, Request(llm.tokenizer.encode(text(one, 0, number)),
                                  max_tokens=one.output_tokens, ignore_eos=True,
                                  id=str(number)))
            for number, one in enumerate(trace)]


def replay(engine: LLMEngine, arriving: Sequence[tuple[float, Request]]) -> float:
    """Seconds until all are answered; each comes at its time, whatever the engine does."""
    started, waiting = time.perf_counter(), list(arriving)
    while waiting or engine.has_unfinished():
        now = time.perf_counter() - started
        while waiting and waiting[0][0] <= now:
            engine.add_request(waiting.pop(0)[1])
        if engine.has_unfinished():
            engine.step()
        else:
            time.sleep(waiting[0][0] - now)
    return time.perf_counter() - started


def together(llm: LanguageModel, arriving: Sequence[tuple[float, Request]]) -> float:
    """Seconds when all that are there share each step."""
    return replay(LLMEngine(llm), arriving)


def one_by_one(llm: LanguageModel, arriving: Sequence[tuple[float, Request]]) -> float:
    """Seconds when each request has the model to itself, in the order of arrival."""
    return replay(LLMEngine(llm, max_num_seqs=1), arriving)


def static_batches(model: torch.nn.Module, requests: Sequence[Request], size: int) -> float:
    """Seconds that Hugging Face takes for batches of so many, padded on the left; all are there
    from the beginning, and a batch ends with its longest answer."""
    started = time.perf_counter()
    for first in range(0, len(requests), size):
        batch = requests[first:first + size]
        longest = max(len(request.prompt_ids) for request in batch)
        ids = torch.zeros(len(batch), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, request in enumerate(batch):
            ids[row, longest - len(request.prompt_ids):] = torch.tensor(request.prompt_ids)
            mask[row, longest - len(request.prompt_ids):] = 1
        count = max(request.max_tokens for request in batch)
        model.generate(ids, attention_mask=mask, max_new_tokens=count, min_new_tokens=count,
                       do_sample=False, pad_token_id=0)
    return time.perf_counter() - started


def bookkeeping(llm: LanguageModel) -> tuple[float, float]:
    """Seconds of a step of 64 sequences at 128 tokens, and of them those that are not the
    model's: the scheduler, the pool, the choosing of tokens, the handing over."""
    engine = LLMEngine(llm, max_num_seqs=64)
    rng = np.random.default_rng(0)
    for number in range(64):
        engine.add_request(Request(rng.integers(100, 49_000, 120).tolist(), max_tokens=200,
                                   ignore_eos=True, id=str(number)))
    while any(sequence.num_pending_tokens > 1 for sequence in engine.scheduler.running) or (
            len(engine.scheduler.running) < 64):
        engine.step()
    for _ in range(12):
        engine.step()
    last = list(engine.records)[-8:]
    return (sum(record.seconds for record in last) / len(last),
            sum(record.seconds - record.model_seconds for record in last) / len(last))


def first_token(llm: LanguageModel, caching: bool) -> float:
    """Seconds to the first token of the second of two requests that share 1,000 tokens."""
    engine = LLMEngine(llm, enable_prefix_caching=caching)
    ids = np.random.default_rng(0).integers(100, 49_000, 1040).tolist()
    engine.add_request(Request([*ids[:1000], *ids[1000:1020]], max_tokens=1))
    while engine.has_unfinished():
        engine.step()
    engine.add_request(Request([*ids[:1000], *ids[1020:]], max_tokens=1))
    started = time.perf_counter()
    while engine.has_unfinished():
        engine.step()
    return time.perf_counter() - started


def paged_and_contiguous(llm: LanguageModel) -> tuple[Callable[[], float], Callable[[], float]]:
    """Two ways to compute a step of 8 sequences at 512 tokens; each returns its seconds."""
    model, count, context = llm.model, 8, 512
    rng = np.random.default_rng(0)
    ids, positions = rng.integers(100, 49_000, count), np.full(count, context - 1)
    caches = [model.new_cache(context) for _ in range(count)]
    engine = LLMEngine(llm)
    size = engine.pool.block_size
    # as they come to lie in an engine in which all grow side by side
    tables: list[list[int]] = [[] for _ in range(count)]
    for _ in range(-(-context // size)):
        for table in tables:
            table.append(engine.pool.allocate(after=table[-1] if table else None))
    memory = PagedKVCache(model.config, max(map(max, tables)) + 1, size)
    for cache in caches:
        cache.keys[:], cache.values[:] = 0.1, 0.1
    memory.keys[:], memory.values[:] = 0.1, 0.1

    def seconds(cache: Callable[[], object]) -> float:
        started = time.perf_counter()
        for _ in range(5):
            model.forward(ids, positions, cache())
        return (time.perf_counter() - started) / 5

    def contiguous() -> RaggedBatch:
        for cache in caches:
            cache.lengths = [context - 1] * len(cache.lengths)
        return RaggedBatch(caches, [1] * count)
    return (lambda: seconds(lambda: PagedBatch(memory, tables, [context - 1] * count,
                                               [1] * count)),
            lambda: seconds(contiguous))


def engine_and_http(llm: LanguageModel) -> tuple[Callable[[], float], Callable[[], float]]:
    """Two ways to get 16 answers of 64 tokens: through HTTP, streamed, and from the engine."""
    prompts = [f"Tell me something about the number {number}." for number in range(16)]

    def direct() -> float:
        engine = LLMEngine(llm)
        started = time.perf_counter()
        for number, prompt in enumerate(prompts):
            engine.add_request(Request(llm.tokenizer.encode(prompt), max_tokens=64,
                                       ignore_eos=True, id=str(number)))
        while engine.has_unfinished():
            engine.step()
        return time.perf_counter() - started

    def over_http() -> float:
        with BackgroundServer(LLMEngine(llm)) as server, httpx.Client(timeout=600) as client:
            def ask(prompt: str) -> int:
                body = {"prompt": prompt, "max_tokens": 64, "ignore_eos": True,
                        "temperature": 0, "stream": True}
                with client.stream("POST", f"{server.url}/v1/completions", json=body) as answer:
                    return sum(len(piece) for piece in answer.iter_bytes())
            with ThreadPoolExecutor(len(prompts)) as pool:
                started = time.perf_counter()
                list(pool.map(ask, prompts))
                return time.perf_counter() - started
    return over_http, direct
