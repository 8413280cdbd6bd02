"""The table of `quality` as a picture: what each bit that is saved costs."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from gearworks.errors import NotAvailableError, UsageError
from gearworks.quantization.quality import CACHES, Quality

SUFFIXES = (".svg", ".png")
INK, WEIGHTS, CACHE = "#222222", "#1f6f8b", "#b5541c"
LEAST = 1e-5                # a smaller KL is drawn here: the axis is a logarithm
LINE, WIDTH = 16, 150       # pixels that a label takes


def require_plot(path: Path) -> None:
    """Raise UsageError or NotAvailableError where a picture could not be drawn, before the
    work is done."""
    if path.suffix not in SUFFIXES:
        raise UsageError(f"cannot draw {path}", "pictures are drawn as SVG or PNG",
                         "--plot with a name that ends in .svg or .png")
    if importlib.util.find_spec("matplotlib") is None:
        raise NotAvailableError("cannot draw a picture of the table",
                                "the package matplotlib is missing",
                                "python -m pip install matplotlib, or no --plot")


def plot(rows: Sequence[Quality], title: str, path: Path) -> None:
    """Draw the KL divergence of each way over its bits. rows: as `quality.measure` gives them,
    the model itself first."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "gearworks", "font.size": 10}):
        figure = Figure(figsize=(7.2, 4.6), layout="constrained", facecolor="white")
        panel = figure.subplots()
        points = [(row.bits, max(row.kl, LEAST)) for row in rows[1:]]
        for row, point in zip(rows[1:], points):
            color, marker = (CACHE, "s") if row.way in CACHES else (WEIGHTS, "o")
            panel.plot(*point, marker, color=color, markersize=6, zorder=4)
        panel.set_yscale("log")
        panel.set(xlabel="bits for each weight (squares: for each number in the cache)",
                  ylabel="KL divergence from float32, nats",
                  title=f"{title}; in brackets: perplexity (float32: {rows[0].perplexity:.2f})")
        panel.title.set_fontsize(10)
        panel.margins(x=0.05, y=0.1)
        left, right = panel.get_xlim()
        panel.set_xlim(left, right + 0.3 * (right - left))      # room for the last labels
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
        figure.draw_without_rendering()                 # so that places on the page are known
        placed: list[tuple[float, float]] = []
        for row, point in sorted(zip(rows[1:], points), key=lambda pair: -pair[1][1]):
            x, y = panel.transData.transform(point)
            # below the labels above that it would meet
            place = min([y, *(low - LINE for left, low in placed if abs(x - left) < WIDTH)])
            placed.append((x, place))
            below = "" if row.kl >= LEAST else " ↓"
            panel.annotate(f"{row.way}  ({row.perplexity:.2f}){below}", point, color=INK,
                           fontsize=9,
                           xytext=(26, (place - y) * 72 / figure.dpi), va="center",
                           textcoords="offset points",
                           arrowprops={"arrowstyle": "-", "color": "#999999", "lw": 0.8,
                                       "relpos": (0, 0.5), "shrinkA": 2, "shrinkB": 4})
        figure.savefig(path, format=path.suffix[1:], dpi=150,
                       metadata={"Date": None} if path.suffix == ".svg" else None)
