"""Where the time of a step goes, and how much of it the machine could not have saved."""

from collections.abc import Sequence

from gearworks.profiling.operators import Operator
from gearworks.profiling.profile import Profile, limits
from gearworks.viz.figure import Figure, player
from gearworks.viz.quantities import number, with_prefix
from gearworks.viz.trace import Cell, FigureError, Lane, Step, Trace

# In this order since a kind's place decides its colour
_LEGEND = {"least": "what the machine needs at least", "more": "what it took beyond that"}


def step_profile(profiles: Profile | Sequence[Profile],
                 title: str = "Where a step's time goes") -> Figure:
    """A bar for each operator of a step, as long as it took; of several steps the reader
    chooses one.

    The first part of a bar is the least time that this machine needs for the operator's bytes
    and FLOPs. What is read from the processor's cache may take less; then it is all of the bar.
    Raises FigureError without a profile.

    >>> from gearworks.profiling.machine import Machine
    >>> from gearworks.profiling.profile import Work
    >>> head = Operator("lm_head", calls=1, seconds=0.01, bytes=100_000_000, flops=50_000_000)
    >>> step = Profile(Work(past_tokens=9), (head,), 0.01, Machine(20e9, 100e9, threads=2))
    >>> print(repr(step_profile(step)).splitlines()[3].partition(". ")[0])
    10 ms, of which the machine needs 5 ms at least (50 %)
    """
    profiles = [profiles] if isinstance(profiles, Profile) else list(profiles)
    if not profiles:
        raise FigureError("cannot draw a profile", "none was given",
                          "give what `gearworks.profiling.profile.profile` returns")
    return player([_bars(each) for each in profiles], title, "Step")


def _bars(profile: Profile) -> Trace:
    machine = profile.machine
    whole = profile.whole
    least = whole.least_seconds(machine.bandwidth, machine.flops_per_second)
    caption = (f"{_ms(whole.seconds)}, of which the machine needs {_ms(least)} at least "
               f"({profile.share_of_roof(whole):.0%}). {limits(machine)}").replace("%", " %")
    return Trace(profile.work.name,
                 [Step(caption, [_bar(profile, each) for each in profile.operators])],
                 view="bars", legend=_LEGEND)


def _bar(profile: Profile, operator: Operator) -> Lane:
    seconds = max(operator.seconds, 0.0)
    least = min(seconds, operator.least_seconds(profile.machine.bandwidth,
                                                profile.machine.flops_per_second))
    note = _ms(seconds)
    if share := round(100 * profile.share_of_roof(operator)):
        note += f", {share} % of its roof"
    for amount, unit in ((operator.bytes, "B"), (operator.flops, "FLOP")):
        if amount and seconds:
            note += f"; {with_prefix(amount, unit)}, {with_prefix(amount / seconds, unit)}/s"
    cells = [Cell(_ms(part), kind, size=1e3 * part)
             for kind, part in (("least", least), ("more", seconds - least)) if part > 0]
    return Lane(operator.name, cells, note=note)


def _ms(seconds: float) -> str:
    return f"{number(1e3 * seconds)} ms"
