"""What `/metrics` tells Prometheus: vLLM's names where vLLM has them.

Source of the names: vLLM's documentation, "Production Metrics"
(https://docs.vllm.ai/en/latest/usage/metrics/). The rest begins with `gearworks:`.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from gearworks.serving.record import StepRecord
from gearworks.serving.request import Delta, Request

SECONDS = (.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 25, 50, 100, 250)
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


@dataclass
class Timing:
    """When a request came, and when each of its answers last grew: `time.perf_counter`."""

    request: Request
    started: float
    last: dict[int, float] = field(default_factory=dict)
    finished: int = 0


class Metrics:
    """Counts for one server, in a registry of their own."""

    def __init__(self, model_name: str):
        """model_name: the label of all of them."""
        self.registry = CollectorRegistry()
        self._model = model_name
        self._watched: dict[str, Timing] = {}
        self._used, self._wait = 0.0, 0                     # as the last step left them
        self._running = self._gauge("vllm:num_requests_running", "Answers in the batch.")
        self._waiting = self._gauge("vllm:num_requests_waiting", "Answers that wait for it.")
        self._cache = self._gauge("vllm:kv_cache_usage_perc",
                                  "Share of the cache's blocks in use, 0 to 1.")
        self._preemptions = self._counter("vllm:num_preemptions", "Answers put back to wait.")
        self._generated = self._counter("vllm:generation_tokens", "Tokens generated.")
        self._step_tokens = self._histogram("vllm:iteration_tokens_total",
                                            "Tokens of one step.", TOKENS)
        self._step_seconds = self._counter("gearworks:step_seconds", "Time spent in steps.")
        self._model_seconds = self._counter("gearworks:model_seconds",
                                            "Time of it spent in the forward pass.")
        self._prompt = self._counter("vllm:prompt_tokens", "Tokens of prompts, cached or not.")
        self._queries = self._counter("vllm:prefix_cache_queries",
                                      "Tokens of prompts that were looked for in the cache.")
        self._hits = self._counter("vllm:prefix_cache_hits", "Those that were found.")
        self._first = self._histogram("vllm:time_to_first_token_seconds",
                                      "From the request to its first token.", SECONDS)
        self._between = self._histogram("vllm:inter_token_latency_seconds",
                                        "From one token of an answer to the next.", SECONDS)
        self._whole = self._histogram("vllm:e2e_request_latency_seconds",
                                      "From the request to its last token.", SECONDS)
        self._success = Counter("vllm:request_success", "Answers that were completed.",
                                ["model_name", "finished_reason"], registry=self.registry)
        self._errors = Counter("gearworks:http_errors", "Answers of 400 and above.",
                               ["model_name", "status"], registry=self.registry)

    def step(self, record: StepRecord, deltas: Sequence[Delta]) -> None:
        """Count what one step did, and what it gave to requests that are watched."""
        self._preemptions.inc(len(record.preempted))
        self._generated.inc(record.generated)
        self._step_tokens.observe(record.tokens)
        self._step_seconds.inc(record.seconds)
        self._model_seconds.inc(record.model_seconds)
        blocks = record.blocks_used + record.blocks_kept + record.blocks_empty
        self._used = record.blocks_used / blocks if blocks else 0.0
        self._wait = record.waiting
        now = time.perf_counter()
        for delta in deltas:
            if delta.request_id in self._watched:
                self._delta(self._watched[delta.request_id], delta, now)

    @contextmanager
    def watching(self, requests: Sequence[Request]) -> Iterator[None]:
        """Measure the time that these requests take, from now on."""
        now = time.perf_counter()
        self._watched |= {request.id: Timing(request, now) for request in requests}
        try:
            yield
        finally:
            for request in requests:
                del self._watched[request.id]

    def _delta(self, timing: "Timing", delta: Delta, now: float) -> None:
        if not timing.last:                                 # the request's first
            length = len(timing.request.prompt_ids)
            self._first.observe(now - timing.started)
            self._prompt.inc(length)
            self._queries.inc(length)
            self._hits.inc(delta.cached_tokens)
        elif delta.index in timing.last and delta.ids:
            # those that came together took the time together
            seconds = (now - timing.last[delta.index]) / len(delta.ids)
            for _ in delta.ids:
                self._between.observe(seconds)
        timing.last[delta.index] = now
        if delta.finish_reason is not None:
            self._success.labels(self._model, delta.finish_reason).inc()
            timing.finished += 1
            if timing.finished == timing.request.n:
                self._whole.observe(now - timing.started)

    def refused(self, status: int) -> None:
        """Count an HTTP answer that is an error."""
        self._errors.labels(self._model, str(status)).inc()

    def text(self, unfinished: int) -> bytes:
        """All of it, as Prometheus reads it. unfinished: how many answers run or wait now."""
        waiting = min(self._wait, unfinished)
        self._waiting.set(waiting)
        self._running.set(unfinished - waiting)
        self._cache.set(self._used if unfinished else 0)
        return generate_latest(self.registry)

    def _gauge(self, name: str, help: str) -> Gauge:
        return Gauge(name, help, ["model_name"], registry=self.registry).labels(self._model)

    def _counter(self, name: str, help: str) -> Counter:
        return Counter(name, help, ["model_name"], registry=self.registry).labels(self._model)

    def _histogram(self, name: str, help: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(name, help, ["model_name"], registry=self.registry,
                         buckets=buckets).labels(self._model)
