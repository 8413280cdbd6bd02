"""The figures of book/performance.md: the races, the roofline, the ledger of optimisations.

Each stands in the page between two marks, and comes from a committed file: `results.json`
(`gearworks bench --publish`), `profile.json` (`ledger.py --publish`) and
`ledger.toml` (written by hand, measured by ledger.py). `python solutions/benchmarks/page.py`
brings the page up to date, and a test tells when it is not. What was not measured yet says so.
"""

import json
import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "book" / "performance.md"
ENGINES = ("HF ", "llama.cpp", "torch")     # what is raced against; all else is a bound
WIDTH = 620
NOT_PROFILED = ("Not measured yet; `python solutions/benchmarks/ledger.py --publish` does it, "
                "on a machine that does nothing else.")


@dataclass(frozen=True)
class Optimisation:
    """One entry of the ledger. Ratios say how many times as fast the engine is with it.

    name: as ledger.py knows it, or "" for one that another command measures. hypothesis: why
    it should help. predicted, reason: by how much, and how that was found, before it was
    measured. measured: the median; low and high: the smallest and the largest; measured_on:
    when and where; none of the four as long as it was not measured. command: what measures it.
    loses: where it does not help, or costs something.
    """

    name: str
    title: str
    hypothesis: str
    predicted: float
    reason: str
    command: str
    loses: str
    measured: float | None = None
    low: float | None = None
    high: float | None = None
    measured_on: str = ""


def read_ledger() -> list[Optimisation]:
    """The entries, in their order."""
    ledger = tomllib.loads((HERE / "ledger.toml").read_text(encoding="utf-8"))
    return [Optimisation(**entry) for entry in ledger["optimisation"]]


def read_json(name: str) -> Any:
    return json.loads((HERE / name).read_text(encoding="utf-8"))


def races() -> str:
    """Every race against another engine on each machine, as bars on a logarithmic scale."""
    return ("\n\n".join(map(_races_of, read_json("results.json")))
            + "\n\nA bar to the right of the line is a race won; the dashed mark is what was "
            "promised.")


def _races_of(report: dict[str, Any]) -> str:
    found = [entry for entry in report["results"] if entry["beside"].startswith(ENGINES)]
    ratios = [value for entry in found for value in (entry["ratio"], entry["target"])]
    low, high = math.log(min(1, *ratios) * 0.8), math.log(max(ratios) * 1.25)
    left, right = 10, WIDTH - 10

    def x(ratio: float) -> float:
        return left + (right - left) * (math.log(ratio) - low) / (high - low)
    parts = []
    for row, entry in enumerate(found):
        y = 46 * row + 14
        text = f"{entry['what']}, beside {entry['beside']}: {entry['ratio']:.2f} ×"
        start, end = sorted((x(1), x(entry["ratio"])))
        parts += [f'<text x="{left}" y="{y}">{escape(text)}</text>',
                  f'<rect x="{start:.1f}" y="{y + 7}" width="{end - start:.1f}" height="14" '
                  'fill="currentColor" opacity="0.35"/>',
                  _line(x(entry["target"]), y + 5, x(entry["target"]), y + 23,
                        'stroke-dasharray="3 2"')]
    bottom = 46 * len(found)
    parts += [_line(x(1), 0, x(1), bottom),
              f'<text x="{x(1):.1f}" y="{bottom + 16}" text-anchor="middle">as fast</text>']
    words = "; ".join(f"{entry['what']} beside {entry['beside']} {entry['ratio']:.2f} times as "
                      "good" for entry in found)
    return (_figure(f"How many times as good as other engines: {words}.", bottom + 24, parts)
            + f"\n\n{report['machine']['processor']}, {report['threads']} threads: measured by "
            f"`gearworks bench` on {report['date']}.")


def roofline() -> str:
    """The steps of a profile under the roof that the machine had at that moment."""
    if not (HERE / "profile.json").is_file():
        return NOT_PROFILED
    profile = read_json("profile.json")
    machine = profile["machine"]
    bandwidth, peak = machine["bandwidth"], machine["flops_per_second"]
    steps = [(entry["work"]["name"], entry["step"]) for entry in profile["profiles"]]
    points = [(name, step["flops"] / step["bytes"], step["flops"] / step["seconds"],
               step["share_of_roof"]) for name, step in steps]
    ridge = peak / bandwidth
    lowest = min(point[1] for point in points) / 3
    x_range = math.log10(lowest), math.log10(max(ridge, *(point[1] for point in points)) * 3)
    y_range = (math.log10(min(lowest * bandwidth, *(point[2] for point in points)) / 1.5),
               math.log10(peak * 2))
    left, right, top, bottom = 62, WIDTH - 12, 10, 300

    def x(intensity: float) -> float:
        return left + (right - left) * _place(intensity, *x_range)

    def y(rate: float) -> float:
        return bottom - (bottom - top) * _place(rate, *y_range)
    end, upper = 10 ** x_range[1], lowest**0.25 * ridge**0.75      # upper: a place on the slope
    parts = [f'<path d="M{x(lowest):.1f} {y(lowest * bandwidth):.1f} L{x(ridge):.1f} '
             f'{y(peak):.1f} L{x(end):.1f} {y(peak):.1f}" fill="none" stroke="currentColor" '
             'stroke-width="2"/>',
             f'<text x="{x(upper) - 10:.1f}" y="{y(upper * bandwidth):.1f}" '
             f'text-anchor="end">memory: {bandwidth / 1e9:.1f} GB/s</text>',
             f'<text x="{x(end):.1f}" y="{y(peak) - 6:.1f}" text-anchor="end">arithmetic: '
             f'{peak / 1e9:.0f} GFLOP/s</text>',
             _line(left, bottom, right, bottom), _line(left, top, left, bottom)]
    for exponent in range(math.ceil(x_range[0]), math.floor(x_range[1]) + 1):
        parts += [_line(x(10**exponent), bottom, x(10**exponent), bottom + 5),
                  f'<text x="{x(10**exponent):.1f}" y="{bottom + 19}" text-anchor="middle">'
                  f'{10.0**exponent:g}</text>']
    for exponent in range(math.ceil(y_range[0]), math.floor(y_range[1]) + 1):
        parts += [_line(left - 5, y(10**exponent), left, y(10**exponent)),
                  f'<text x="{left - 8}" y="{y(10**exponent) + 4:.1f}" text-anchor="end">'
                  f'{10.0**exponent / 1e9:g}</text>']
    parts += [f'<text x="{(left + right) / 2}" y="{bottom + 38}" text-anchor="middle">'
              'FLOPs per byte moved</text>',
              f'<text x="{left + 6}" y="{top + 10}">GFLOP/s</text>']
    for name, intensity, rate, share in points:
        roof = min(peak, intensity * bandwidth)
        last = x(intensity) > (left + right) / 2
        parts += [_line(x(intensity), y(rate), x(intensity), y(roof), 'stroke-dasharray="3 2"'),
                  f'<circle cx="{x(intensity):.1f}" cy="{y(rate):.1f}" r="5" '
                  'fill="currentColor"/>',
                  f'<text x="{x(intensity) + (-9 if last else 9):.1f}" y="{y(rate) + 18:.1f}" '
                  f'text-anchor="{"end" if last else "start"}">{escape(name)}: {share:.0%}'
                  '</text>']
    words = "; ".join(f"{name}: {rate / 1e9:.1f} GFLOP/s, {share:.0%} of what the roof allows"
                      for name, _, rate, share in points)
    return _figure(f"Steps under the roofline of the machine. {words}.", bottom + 46, parts)


def operators() -> str:
    """The operators of the profile's decoding step, as a table."""
    if not (HERE / "profile.json").is_file():
        return ""
    profile = read_json("profile.json")
    step = profile["profiles"][0]
    whole = step["step"]["seconds"]
    lines = ["| operator | calls | ms | share of the step | GB/s | of its roof |",
             "|---|--:|--:|--:|--:|--:|"]
    for each in (*step["operators"], step["step"]):
        moved = f"{each['bytes'] / each['seconds'] / 1e9:.1f}" if each["bytes"] else ""
        roof = f"{each['share_of_roof']:.0%}" if each["share_of_roof"] >= 0.005 else ""
        seconds = each["seconds"]
        lines.append(f"| {each['name']} | {each['calls'] or ''} | {1e3 * seconds:.2f} | "
                     f"{seconds / whole:.0%} | {moved} | {roof} |")
    return (f"{step['work']['name'].capitalize()} ({profile['measured_on']}):\n\n"
            + "\n".join(lines))


def ledger() -> str:
    """The ledger: a table of all optimisations, and what is to be said about each."""
    lines = ["| optimisation | predicted | measured | its range |", "|---|--:|--:|--:|"]
    told = []
    for each in read_ledger():
        if each.measured is None:
            figures, found = "not yet | ", f"*Not measured yet;* `{each.command}` does it."
        else:
            figures = f"**{each.measured:.2f} ×** | {each.low:.2f} to {each.high:.2f}"
            found = (f"*Measured* {each.measured:.2f} ×, by `{each.command}` "
                     f"({each.measured_on}).")
        lines.append(f"| {each.title} | {each.predicted:.2f} × | {figures} |")
        told.append(f"**{each.title}.** {each.hypothesis} *Predicted* {each.predicted:.2f} ×: "
                    f"{each.reason} {found} *Where it loses:* {each.loses}")
    return "\n".join([*lines, "", "Each measured ratio is the median of several rounds, in "
                      "which both sides take turns.", "", "\n\n".join(told)])


PARTS: Mapping[str, Callable[[], str]] = {"races": races, "roofline": roofline,
                                          "operators": operators, "ledger": ledger}


def filled(page: str) -> str:
    """The page with every part as its files have it."""
    for name, part in PARTS.items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
        before, found, rest = page.partition(begin)
        _, closed, after = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"{PAGE.name} has no place for the {name}")
        page = f"{before}{begin}{part()}\n{end}{after}"
    return page


def write() -> None:
    """Bring the page up to date."""
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def _place(value: float, low: float, high: float) -> float:
    return (math.log10(value) - low) / (high - low)


def _line(x1: float, y1: float, x2: float, y2: float, more: str = "") -> str:
    return (f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
            f'stroke="currentColor" {more}/>')


def _figure(words: str, height: float, parts: Sequence[str]) -> str:
    """One line of HTML, so that Markdown leaves it alone; it scrolls where it has no room."""
    words = escape(words)
    return (f'<div class="flow" tabindex="0" role="group" aria-label="{words}"><svg role="img" '
            f'aria-label="{words}" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" '
            f'fill="currentColor" font-size="13">{"".join(parts)}</svg></div>')


if __name__ == "__main__":
    write()
