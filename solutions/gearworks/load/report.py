"""What a run, or two runs, say on a terminal; and a run as a file."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gearworks.errors import FormatError, NotAvailableError
from gearworks.load.measurement import Measurement
from gearworks.load.statistics import BOUNDED, Distribution, Summary, summarise

FORMAT = "gearworks load 1"
DISTRIBUTIONS = {"ttft": "time to first token", "itl": "between pieces of text",
                 "tpot": "time per output token", "e2e": "whole answer",
                 "lateness": "sent too late"}


@dataclass(frozen=True)
class Result:
    """A run as it is kept: how it was made, the bounds of its goodput in seconds, what it
    measured."""

    settings: Mapping[str, Any]
    bounds: Mapping[str, float]
    measurements: Sequence[Measurement]

    def summary(self) -> Summary:
        return summarise(self.measurements, self.bounds)


def save(result: Result, path: Path) -> None:
    """Write a run with all its timings, and its figures for whoever reads the file."""
    content = {"format": FORMAT, "settings": result.settings, "bounds": result.bounds,
               "summary": asdict(result.summary()),
               "requests": [measured.to_dict() for measured in result.measurements]}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8", newline="\n")


def load(path: Path) -> Result:
    """What `save` wrote; its figures are computed anew.

    Raises NotAvailableError when the file cannot be read, FormatError when it is no such file.
    """
    try:
        content = json.loads(path.read_bytes())
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']!r:.40}")
        bounds = {name: float(content["bounds"][name]) for name in content["bounds"]}
        if not bounds.keys() <= {*BOUNDED}:
            raise ValueError("it has bounds that nobody knows")
        return Result(dict(content["settings"]), bounds,
                      [Measurement.from_dict(each) for each in content["requests"]])
    except OSError as error:
        raise NotAvailableError(f"cannot read {path}", str(error),
                                "a file that gearworks load --json has written") from None
    except (ValueError, LookupError, TypeError, RecursionError, AttributeError) as error:
        raise FormatError(f"cannot use {path}", f"it holds no result of a load test: {error}",
                          "a file that gearworks load --json has written") from None


def table(result: Result) -> str:
    """The figures of a run, for people. Times are in milliseconds."""
    summary = result.summary()
    lines = [f"{summary.completed} of {summary.requests} answers in {summary.seconds:.1f} s"
             + "".join(f"; {count} {kind}" for kind, count in summary.errors.items()), "",
             f"{'milliseconds':<24}{'mean':>10}{'median':>10}{'p90':>10}{'p99':>10}{'of':>8}"]
    for name, title in DISTRIBUTIONS.items():
        lines.append(f"{title:<24}" + _row(getattr(summary, name)))
    lines += ["", f"{'output tokens a second':<24}{summary.output_tokens_per_second:>10.2f}",
              f"{'answers a second':<24}{summary.requests_per_second:>10.3f}"]
    if summary.goodput is not None:
        bounds = ", ".join(f"{name} ≤ {bound * 1000:g} ms"
                           for name, bound in result.bounds.items())
        lines.append(f"{'goodput':<24}{summary.goodput:>10.3f}  ({summary.good} of "
                     f"{summary.requests} with {bounds})")
    lines.append(f"{'most at a time':<24}{summary.peak_in_flight:>10}")
    tokens = f"{'output tokens':<24}{summary.output_tokens:>10}"
    if summary.uncounted:
        answers = f"{summary.uncounted} answer{'s' if summary.uncounted > 1 else ''}"
        tokens += f"  (without usage of the server for {answers}: pieces of text are counted)"
    lines.append(tokens)
    if summary.prompt_tokens is not None:
        cached = ("" if summary.cached_tokens is None
                  else f"  ({summary.cached_tokens} of them were cached)")
        lines.append(f"{'prompt tokens':<24}{summary.prompt_tokens:>10}{cached}")
    return "\n".join(lines)


def _row(found: Distribution | None) -> str:
    if found is None:
        return f"{'-':>10}" * 4 + f"{0:>8}"
    return "".join(f"{value * 1000:>10.1f}" for value in
                   (found.mean, found.median, found.p90, found.p99)) + f"{found.count:>8}"


def first_failures(measurements: Sequence[Measurement]) -> list[str]:
    """One line for each kind of failure, with what was said of the first of its kind.

    >>> busy = Measurement(0.0, error="HTTP 429", message="too many", retry_after="2")
    >>> first_failures([busy, Measurement(0.0, error="HTTP 429", message="still too many")])
    ['HTTP 429: too many (Retry-After: 2)']
    """
    seen: dict[str, str] = {}
    for each in measurements:
        if each.error is not None and each.message and each.error not in seen:
            again = f" (Retry-After: {each.retry_after})" if each.retry_after else ""
            seen[each.error] = f"{each.error}: {each.message}{again}"
    return list(seen.values())


def comparison(first: Result, second: Result, names: Sequence[str]) -> str:
    """Two runs side by side, and what the second is of the first."""
    pairs = [(first.summary(), second.summary())]
    a, b = pairs[0]
    rows = [("output tokens a second", a.output_tokens_per_second, b.output_tokens_per_second),
            ("answers a second", a.requests_per_second, b.requests_per_second)]
    if a.goodput is not None and b.goodput is not None:
        rows.append(("goodput", a.goodput, b.goodput))
    for name in ("ttft", "itl", "tpot", "e2e"):
        for figure in ("median", "p90", "p99"):
            values = [math.nan if (found := getattr(each, name)) is None
                      else 1000 * getattr(found, figure) for each in (a, b)]
            rows.append((f"{DISTRIBUTIONS[name]}, {figure}, ms", *values))
    rows += [("answers that came whole", a.completed, b.completed),
             ("requests that failed", a.requests - a.completed, b.requests - b.completed)]
    width = max(14, *(len(name) + 2 for name in names))
    lines = [f"{'':<36}{names[0]:>{width}}{names[1]:>{width}}{'ratio':>9}"]
    for title, one, other in rows:
        ratio = f"{other / one:.3f}" if one else "-"
        lines.append(f"{title:<36}{_number(one):>{width}}{_number(other):>{width}}"
                     f"{'-' if ratio == 'nan' else ratio:>9}")
    notes = _differences(first, second)
    return "\n".join(lines + ([""] + notes if notes else []))


def _number(value: float) -> str:
    if math.isnan(value):
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.2f}"


def _differences(first: Result, second: Result) -> list[str]:
    """What else differs between two runs, so that nobody takes it for the server's doing."""
    one, other = first.settings, second.settings
    names = [name for name in one | other if name not in ("started", "url")]
    lines = [f"They differ in {name}: {one.get(name)} and {other.get(name)}."
             for name in names if one.get(name) != other.get(name)]
    if first.bounds != second.bounds:
        lines.append("They differ in the bounds of their goodput.")
    return lines
