"""A run as a picture: how long people waited, and how many were waiting at a time."""

import importlib.util
from pathlib import Path

from gearworks.errors import NotAvailableError
from gearworks.load.report import Result
from gearworks.load.statistics import in_flight

INK, FIRST, SECOND = "#222222", "#1f6f8b", "#b5541c"


def require_matplotlib() -> None:
    """Raises NotAvailableError without it; called before a run, which may take long."""
    if importlib.util.find_spec("matplotlib") is None:
        raise NotAvailableError("cannot draw a picture of the run",
                                "the package matplotlib is missing",
                                "python -m pip install matplotlib, or no --plot")


def plot(result: Result, path: Path) -> None:
    """Draw the distributions of TTFT and of inter-token latency, and the requests in flight."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.fonttype": "none", "font.size": 10}):
        figure = Figure(figsize=(7.2, 7.6), layout="constrained", facecolor="white")
        panels = figure.subplots(3, 1)
        done = [each for each in result.measurements if each.error is None]
        ttft = [1000 * each.ttft for each in done if each.ttft is not None]
        gaps = [1000 * gap for each in done for gap in each.gaps]
        _distribution(panels[0], ttft, "time to first token, ms", FIRST,
                      result.bounds.get("ttft"))
        _distribution(panels[1], gaps, "between pieces of text, ms", SECOND)
        steps = in_flight(result.measurements)
        panels[2].step([time for time, _ in steps], [number for _, number in steps],
                       where="post", color=INK, linewidth=1.2)
        failed = [each.end for each in result.measurements
                  if each.error is not None and each.end is not None]
        panels[2].plot(failed, [0] * len(failed), "x", color=SECOND, clip_on=False,
                       label=f"{len(failed)} failed")
        if failed:
            panels[2].legend(frameon=False, loc="upper right")
        panels[2].set(xlabel="seconds since the start", ylabel="requests in flight")
        panels[2].yaxis.get_major_locator().set_params(integer=True)
        panels[2].set_ylim(bottom=0)
        for panel in panels:
            panel.grid(alpha=0.25)
            panel.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, format="svg", metadata={"Date": None})


def _distribution(panel, values: list[float], title: str, color: str,
                  bound: float | None = None) -> None:
    """The share of values up to each value, with the median and the 99th percentile."""
    panel.set(xlabel=f"{title} ({len(values)} values)", ylabel="share of values",
              ylim=(0, 1.02))
    if not values:
        panel.text(0.5, 0.5, "nothing was measured", ha="center", transform=panel.transAxes)
        return
    import numpy as np

    panel.ecdf(values, color=color, linewidth=1.6)
    for percent, side, offset in ((50, "left", 6), (99, "right", -6)):
        value = float(np.percentile(values, percent))
        panel.plot([value], [percent / 100], "o", color=color, markersize=4)
        panel.annotate(f"p{percent}: {value:.0f} ms", (value, percent / 100), color=INK,
                       xytext=(offset, -16), textcoords="offset points", ha=side,
                       bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})
    if bound is not None:
        panel.axvline(1000 * bound, color=INK, linestyle="--", linewidth=1,
                      label=f"bound {1000 * bound:g} ms")
        panel.legend(frameon=False, loc="lower right")
