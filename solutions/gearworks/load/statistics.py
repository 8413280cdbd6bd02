"""From the measurements of requests to the figures of a run. Arithmetic only.

Definitions are those of `vllm bench serve`, except that latencies count from the intended
arrival, and that an answer ends with its stream.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gearworks.load.measurement import Measurement

BOUNDED = ("ttft", "tpot", "e2e")


@dataclass(frozen=True)
class Distribution:
    """A few figures of many values, with the number of values that they come from."""

    count: int
    mean: float
    median: float
    p90: float
    p99: float


@dataclass(frozen=True)
class Summary:
    """The figures of a run. Times are in seconds; a distribution without values is None.

    seconds: from the first arrival to the end of the last request. completed: answers that came
    whole; all latencies, rates and token counts are theirs. good: those that met every bound,
    None when there was none. lateness: how long the load generator itself delayed requests.
    uncounted: answers for which the server gave no usage, so that their pieces were counted.
    prompt_tokens, cached_tokens: None when no answer said anything about them.
    """

    requests: int
    completed: int
    errors: Mapping[str, int]
    seconds: float
    ttft: Distribution | None
    itl: Distribution | None
    tpot: Distribution | None
    e2e: Distribution | None
    lateness: Distribution | None
    requests_per_second: float
    output_tokens_per_second: float
    good: int | None
    goodput: float | None
    prompt_tokens: int | None
    output_tokens: int
    cached_tokens: int | None
    uncounted: int
    peak_in_flight: int


def distribution(values: Sequence[float]) -> Distribution | None:
    """Mean and percentiles, interpolated as NumPy does.

    >>> distribution([1.0, 2.0, 3.0, 4.0])
    Distribution(count=4, mean=2.5, median=2.5, p90=3.7, p99=3.97)
    """
    if not len(values):
        return None
    median, p90, p99 = np.percentile(values, [50, 90, 99])
    return Distribution(len(values), *[round(float(value), 9) for value in
                                       (np.mean(values), median, p90, p99)])


def meets(measured: Measurement, bounds: Mapping[str, float]) -> bool:
    """Whether an answer came whole, and within all bounds, in seconds.

    An answer of one token has no time per output token, and an empty one no first token: where
    there is nothing to wait for, nobody waited too long.

    >>> meets(Measurement(1.0, chunks=[1.5], end=1.6, error=None), {"ttft": 0.6, "tpot": 0.1})
    True
    """
    return measured.error is None and all(
        (getattr(measured, name) or 0.0) <= bound for name, bound in bounds.items())


def in_flight(measurements: Sequence[Measurement]) -> list[tuple[float, int]]:
    """How many requests were on their way, as steps (time, number from then on).

    >>> in_flight([Measurement(0.0, sent=0.0, end=2.0), Measurement(1.0, sent=1.0, end=3.0)])
    [(0.0, 1), (1.0, 2), (2.0, 1), (3.0, 0)]
    """
    changes: Counter[float] = Counter()
    for measured in measurements:
        if measured.sent is not None and measured.end is not None:
            changes[measured.sent] += 1
            changes[measured.end] -= 1
    times = sorted(changes)
    numbers = np.cumsum([changes[time] for time in times]).tolist()
    return list(zip(times, numbers))


def summarise(measurements: Sequence[Measurement],
              bounds: Mapping[str, float] | None = None) -> Summary:
    """The figures of a run. bounds: names of `BOUNDED` to seconds, which goodput is to meet."""
    done = [each for each in measurements if each.error is None]
    ends = [each.end for each in measurements if each.end is not None]
    seconds = max(ends) - min(each.arrival for each in measurements) if ends else 0.0
    good = sum(meets(each, bounds) for each in done) if bounds else None

    def rate(count: int) -> float:
        return count / seconds if seconds else 0.0

    def values(name: str) -> list[float]:
        return [value for each in done if (value := getattr(each, name)) is not None]

    def total(name: str) -> int | None:
        return sum(counts) if (counts := values(name)) else None

    output = sum(each.generated for each in done)
    return Summary(
        requests=len(measurements), completed=len(done),
        errors=dict(Counter(each.error for each in measurements
                            if each.error is not None).most_common()),
        seconds=seconds,
        ttft=distribution(values("ttft")),
        itl=distribution([gap for each in done for gap in each.gaps]),
        tpot=distribution(values("tpot")), e2e=distribution(values("e2e")),
        lateness=distribution([each.sent - each.arrival for each in measurements
                               if each.sent is not None]),
        requests_per_second=rate(len(done)), output_tokens_per_second=rate(output),
        good=good, goodput=None if good is None else rate(good),
        prompt_tokens=total("prompt_tokens"), output_tokens=output,
        cached_tokens=total("cached_tokens"),
        uncounted=sum(each.output_tokens is None for each in done),
        peak_in_flight=max((number for _, number in in_flight(measurements)), default=0))
