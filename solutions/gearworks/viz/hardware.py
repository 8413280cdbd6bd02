"""What a machine allows: the roofline, and what fits into memory.

The numbers come from the caller (`gearworks.accounting`); nothing about models is computed
here.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real

from gearworks.viz.figure import Figure, player
from gearworks.viz.quantities import number, with_prefix
from gearworks.viz.trace import KINDS, Cell, FigureError, Lane, Line, Mark, Point, Step, Trace


@dataclass(frozen=True)
class Machine:
    """flops: floating-point operations a second at best.
    bandwidth: bytes a second between memory and processor.

    >>> laptop = Machine("laptop", flops=100e9, bandwidth=12.5e9)
    >>> laptop.attainable(intensity=1), laptop.attainable(intensity=1000)
    (12500000000.0, 100000000000.0)
    """

    name: str
    flops: float
    bandwidth: float

    def attainable(self, intensity: float) -> float:
        """FLOP/s at best for work of this intensity, in FLOPs per byte moved.
        Source: Williams et al. 2009."""
        return min(self.flops, intensity * self.bandwidth)


@dataclass(frozen=True)
class Workload:
    """Something to compute: floating-point operations and the bytes that must move for them.
    tokens: its yield."""

    label: str
    flops: float
    bytes: float
    tokens: int = 0


def roofline(machines: Machine | Sequence[Machine],
             steps: Sequence[Workload] | Mapping[str, Sequence[Workload]],
             step_name: str = "Batch", title: str = "What the machine allows") -> Figure:
    """Workloads under the roofs of one to three machines, on logarithmic axes.

    steps: the workloads; or, for a slider, the slider's positions with the workloads of each
    ({"1": […], "8": […]}).
    step_name: what the slider selects. Each workload stands where a machine can bring it at
    best.

    >>> decode = Workload("decode", flops=270e6, bytes=540e6, tokens=1)
    >>> print(repr(roofline(Machine("laptop", 100e9, 12.5e9), [decode])).splitlines()[2])
      decode: 0.5 FLOP/byte, at best 6.25 GFLOP/s, 23.1 tokens/s; memory is the limit
    """
    machines = [machines] if isinstance(machines, Machine) else list(machines)
    positions = dict(steps) if isinstance(steps, Mapping) else {"": steps}
    workloads = [workload for position in positions.values() for workload in position]
    if not workloads or not 1 <= len(machines) <= 3:
        raise FigureError("cannot draw a roofline",
                          f"there are {len(workloads)} workloads and {len(machines)} machines",
                          "give at least one workload, and one to three machines")
    for quantity in [*(m.flops for m in machines), *(m.bandwidth for m in machines),
                     *(w.flops for w in workloads), *(w.bytes for w in workloads)]:
        if not quantity > 0:
            raise FigureError("cannot draw a roofline", f"a quantity is {quantity}",
                              "FLOPs, bytes and speeds are positive")
    labels = list(dict.fromkeys(workload.label for workload in workloads))
    intensities = [workload.flops / workload.bytes for workload in workloads]
    ridges = [machine.flops / machine.bandwidth for machine in machines]
    left, right = min(intensities + ridges) / 4, max(intensities + ridges) * 4

    def step(position: str, here: Sequence[Workload]) -> Step:
        points, values, limited = [], {}, {"memory": [], "arithmetic": []}
        for machine, ridge in zip(machines, ridges):
            for workload in here:
                intensity = workload.flops / workload.bytes
                attainable = machine.attainable(intensity)
                limit = "memory" if intensity < ridge else "arithmetic"
                name = (f"{workload.label} on {machine.name}" if len(machines) > 1
                        else workload.label)
                points.append(Point(name, intensity, attainable, workload.label))
                rate = (f", {number(attainable / workload.flops * workload.tokens)} tokens/s"
                        if workload.tokens else "")
                values[name] = (f"{number(intensity)} FLOP/byte, at best "
                                f"{with_prefix(attainable, 'FLOP/s')}{rate}; "
                                f"{limit} is the limit")
                limited[limit].append(name)
        caption = " ".join(f"Limited by {limit}: {'; '.join(names)}."
                           for limit, names in limited.items() if names)
        return Step(caption, points=points, values=values, label=position)

    lines = [Line(f"{machine.name}: {with_prefix(machine.flops, 'FLOP/s')}, "
                  f"{with_prefix(machine.bandwidth, 'B/s')}",
                  [(left, machine.attainable(left)), (ridge, machine.flops),
                   (right, machine.flops)])
             for machine, ridge in zip(machines, ridges)]
    return player(Trace(title, [step(position, here) for position, here in positions.items()],
                        view="plot", legend={label: label for label in labels},
                        step_name=step_name, lines=lines, x_label="FLOPs per byte moved",
                        y_label="FLOP/s"))


Parts = Mapping[str, float]                 # what memory holds, in bytes
Bars = Mapping[str, Parts]                  # the same for several models or precisions
CAPACITIES = (8e9, 12e9, 16e9, 24e9)


def memory_budget(items: Parts | Bars | Mapping[str, Bars],
                  capacity: float | Sequence[float] = CAPACITIES, step_name: str = "Context",
                  title: str = "What fits") -> Figure:
    """What memory holds, as stacked bars against what machines have.

    items: {"weights": bytes, "kv_cache": bytes} for one bar; {"float16": {"weights": …}, …} for
    several; one level more, {"4,096 tokens": {"float16": {…}}, …}, for a slider. capacity:
    bytes; 1 GB is 1e9 bytes. step_name: what the slider selects.

    >>> print(repr(memory_budget({"weights": 13.5e9, "kv_cache": 1.1e9},
    ...                          capacity=[12e9, 16e9])).splitlines()[1])
    Fits 12 GB: nothing. Fits 16 GB: all of it.
    """
    capacities = sorted(capacity) if isinstance(capacity, Sequence) else [capacity]
    depth, inner = 0, items
    while isinstance(inner, Mapping):
        depth, inner = depth + 1, next(iter(inner.values()), None)
    if not 1 <= depth <= 3 or not capacities:
        raise FigureError("cannot draw this budget",
                          f"the items are nested {depth} deep, and there are {len(capacities)} "
                          "capacities",
                          "give {part: bytes}, or {bar: {part: bytes}}, or one level more")
    positions: Mapping[str, Bars] = {1: {"": {"all of it": items}}, 2: {"": items},
                                     3: items}[depth]
    all_bars = [bar for bars in positions.values() if isinstance(bars, Mapping)
                for bar in bars.values()]
    for bar in all_bars:
        if (not isinstance(bar, Mapping) or not bar
            or not all(isinstance(size, Real) and 0 <= size < math.inf
                       for size in bar.values())):
            raise FigureError("cannot draw this budget", f"a bar holds {bar!r}",
                              "give {part: bytes} for every bar")
    parts = list(dict.fromkeys(part for bar in all_bars for part in bar))
    if len(parts) > KINDS:
        raise FigureError("cannot draw this budget", f"it has {len(parts)} parts",
                          f"sum some up: {KINDS} can be told apart")

    def lane(name: str, bar: Parts) -> Lane:
        total = sum(bar.values())
        enough = next((limit for limit in capacities if total <= limit), None)
        verdict = (f"fits {with_prefix(enough, 'B')}" if enough
                   else f"more than {with_prefix(capacities[-1], 'B')}")
        cells = [Cell(with_prefix(size, "B"), part, size=size) for part, size in bar.items()]
        return Lane(name, cells, note=f"{with_prefix(total, 'B')}, {verdict}")

    def caption(bars: Bars) -> str:
        fitting = {limit: [name for name, bar in bars.items() if sum(bar.values()) <= limit]
                   for limit in capacities}
        return " ".join(f"Fits {with_prefix(limit, 'B')}: {'; '.join(names) or 'nothing'}."
                        for limit, names in fitting.items())

    steps = [Step(caption(bars), [lane(*named) for named in bars.items()], label=position)
             for position, bars in positions.items()]
    legend = {part: part.replace("_", " ").replace("kv ", "KV ") for part in parts}
    marks = [Mark(limit, with_prefix(limit, "B")) for limit in capacities]
    return player(Trace(title, steps, view="bars", step_name=step_name, legend=legend,
                        marks=marks, limit=1.25 * capacities[-1]))
