"""Static batching against continuous batching: the same requests, in the same slots, step by
step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gearworks.serving.record import StepRecord
from gearworks.serving.static import Arrival, StaticRow, static_steps
from gearworks.viz.batch import HEIGHTS, LEGEND
from gearworks.viz.figure import Figure, player
from gearworks.viz.moments import Moment, count, labels, listed, moments
from gearworks.viz.quantities import number
from gearworks.viz.trace import Cell, FigureError, Lane, Step, Trace

_STEPS = 100                              # more columns would be too narrow to tell anything


@dataclass(frozen=True)
class BatchCounts:
    """What a way of batching took for its requests.

    steps: forward passes. slots: tokens computed. wasted: those that nobody needed: padding,
    answers that were done, what was computed again, guesses that were wrong. first_token: for
    each request, in how many steps its first token came; 1 is the step before which it came.
    """

    steps: int
    slots: int
    wasted: int
    first_token: tuple[int, ...]

    @property
    def mean(self) -> float:
        """Of the steps until a first token."""
        return sum(self.first_token) / len(self.first_token)


def batching_counts(arrivals: Sequence[Arrival], records: Sequence[StepRecord],
                    batch_size: int, max_num_batched_tokens: int) -> dict[str, BatchCounts]:
    """The counts of both ways of batching, "static" and "continuous".

    The parameters are those of `static_and_continuous`, of any number of steps.
    """
    return {name: _counts(events, arrivals) for name, events in
            _both(arrivals, records, batch_size, max_num_batched_tokens).items()}


def static_and_continuous(arrivals: Sequence[Arrival], records: Sequence[StepRecord],
                          batch_size: int, max_num_batched_tokens: int,
                          names: Mapping[str, str] | None = None,
                          title: str = "Static and continuous batching") -> Figure:
    """Two timelines that play in step: a lane for each slot of the batch, a column a step.

    arrivals: the requests, one answer each. records: of an engine that answered them, as
    `serving.static.run` returns; it had to stop after `answer` tokens, end of text or not.
    batch_size, max_num_batched_tokens: for both; of the engine they are max_num_seqs and
    max_num_batched_tokens. names: as for `batch_timeline`. The figure opens with the whole,
    and with the counts of both.
    Raises FigureError when records and requests do not belong together, or there are more than
    100 steps to show (`batching_counts` counts any number).
    """
    both = _both(arrivals, records, batch_size, max_num_batched_tokens)
    columns = max(events[-1].time for events in both.values()) + 1
    if columns > _STEPS:
        raise FigureError("cannot draw this comparison", f"it has {columns} steps",
                          f"show fewer or shorter requests, of at most {_STEPS} steps, or use "
                          "`batching_counts`")
    called = {name.rpartition("/")[0]: label for name, label in labels(
        [f"{one.name}/0" for one in arrivals], names).items()}
    most = max(len(event.waiting) for events in both.values() for event in events)
    timeline, said = [], []
    for name, events in both.items():
        timeline += _lanes(f"{name.capitalize()} batching", events, called, columns,
                           batch_size, most)
        said.append(_so_far(name, events, called, columns, len(arrivals)))
    steps = [Step(" ".join(caption for caption, _ in told),
                  values=dict(zip(both, (text for _, text in told))), label=str(now))
             for now, told in enumerate(zip(*said))]
    steps.append(_whole([_counts(events, arrivals) for events in both.values()], columns))
    return player(Trace(title, steps, "timeline", LEGEND, timeline=timeline,
                        first=len(steps) - 1))


@dataclass(frozen=True)
class _Turn:
    """One request in one step, in a slot of the batch."""

    name: str
    slot: int
    cell: Cell
    slots: int
    wasted: int
    began: bool = False
    answer: bool = False                  # a token of the answer came out
    done: bool = False                    # it was the last one


@dataclass(frozen=True)
class _Event:
    """What one way of batching did at a time, counted in steps."""

    time: int
    turns: Sequence[_Turn]
    waiting: Sequence[str]


def _both(arrivals: Sequence[Arrival], records: Sequence[StepRecord], batch_size: int,
          max_num_batched_tokens: int) -> dict[str, list[_Event]]:
    return {"static": _static(arrivals, batch_size, max_num_batched_tokens),
            "continuous": _continuous(arrivals, list(records))}


def _static(arrivals: Sequence[Arrival], batch_size: int, max_tokens: int) -> list[_Event]:
    events: list[_Event] = []
    answered: set[str] = set()
    begun: set[str] = set()
    for step in static_steps(arrivals, batch_size, max_tokens):
        turns = []
        for slot, row in enumerate(step.rows):
            done = row.done and row.name not in answered
            turns.append(_Turn(row.name, slot, _static_cell(row, done), row.slots, row.wasted,
                               row.name not in begun, row.answer, done))
            begun.add(row.name)
            answered |= {row.name} if done else set()
        events.append(_Event(step.number, turns, step.waiting))
    return events


def _static_cell(row: StaticRow, done: bool) -> Cell:
    if row.prompt and row.padding:
        return Cell("", "prompt", note=f"{row.prompt}, and {row.padding} of padding",
                    size=row.prompt / row.slots, rest="wasted")
    if row.padding:
        return Cell("", "wasted", note=f"{row.padding} of padding")
    if row.prompt:
        return Cell("", "prompt", note=str(row.prompt))
    if row.wasted:
        return Cell("", "wasted", note="its answer is done", size=HEIGHTS["decode"])
    return Cell("", "finished" if done else "decode", size=HEIGHTS["decode"])


def _continuous(arrivals: Sequence[Arrival], records: Sequence[StepRecord]) -> list[_Event]:
    sequences = moments(records)
    told = {name.rpartition("/")[0]: ones for name, ones in sequences.items()}
    known = {one.name: one for one in arrivals}
    if (known.keys() != told.keys() or len(told) < len(sequences)
        or not all(any(one.began is not None for one in ones)
                   and any(one.ended for one in ones) for ones in told.values())):
        raise FigureError("cannot compare these runs",
                          "the records do not hold all of these requests, and only these, from "
                          "their beginning to their end",
                          "give each request the name of its arrival as id, and all records")
    first = {name: _first_token(ones) for name, ones in told.items()}
    computed = dict.fromkeys(told, 0)
    slots: dict[str, int] = {}
    events, time = [], -1
    for step in range(len(records)):
        now = {name: ones[step] for name, ones in told.items()}
        time = max(time + 1, *(known[name].step for name, one in now.items() if one.row))
        turns = []
        for name, one in now.items():
            if name not in slots and one.state not in ("preempted", "waiting", ""):
                slots[name] = min({*range(len(told))} - {*slots.values()})
            if one.row is not None:
                wasted, computed[name] = _wasted(one, known[name], computed[name])
                turns.append(_Turn(name, slots[name], _cell(one), one.row.count, wasted,
                                   one.began is not None, step >= first[name], one.ended))
        waiting = [name for name, ones in told.items()
                   if now[name].state in ("preempted", "waiting")
                   or known[name].step <= time and not any(one.row for one in ones[:step + 1])]
        events.append(_Event(time, turns, waiting))
        for name, one in now.items():
            if one.ended or one.state == "preempted":
                slots.pop(name, None)
    return events


def _cell(moment: Moment) -> Cell:
    row = moment.row
    kind = "finished" if moment.ended and moment.state == "decode" else moment.state
    note = "" if moment.state == "decode" else str(row.count)
    return Cell("", kind, note=note, size=HEIGHTS[moment.state])


def _wasted(moment: Moment, arrival: Arrival, computed: int) -> tuple[int, int]:
    """How many of a row's slots nobody needed, and how many tokens are computed by now."""
    row = moment.row
    end = row.start + row.count - row.guesses
    held = moment.held or 0
    if moment.ended:                          # no row after this one tells what was right
        held = max(0, min(row.guesses, arrival.prompt + arrival.answer - 1 - end))
    again = max(0, min(computed, end) - row.start)
    return again + row.guesses - held, max(computed, end + held)


def _first_token(ones: Sequence[Moment]) -> int:
    """The step in which a sequence's first token came: the last one before it decodes."""
    decodes = [step for step, one in enumerate(ones) if one.state in ("decode", "guess")]
    return max(step for step, one in enumerate(ones[:decodes[0]] if decodes else ones)
               if one.row is not None)


def _counts(events: Sequence[_Event], arrivals: Sequence[Arrival]) -> BatchCounts:
    first: dict[str, int] = {}
    for event in events:
        for turn in event.turns:
            if turn.answer:
                first.setdefault(turn.name, event.time)
    turns = [turn for event in events for turn in event.turns]
    return BatchCounts(len(events), sum(turn.slots for turn in turns),
                       sum(turn.wasted for turn in turns),
                       tuple(first[one.name] - one.step + 1 for one in arrivals))


def _lanes(group: str, events: Sequence[_Event], called: Mapping[str, str], columns: int,
           batch_size: int, most: int) -> list[Lane]:
    width = max([batch_size, *(turn.slot + 1 for event in events for turn in event.turns)])
    slots = [[Cell("", size=0)] * columns for _ in range(width)]
    queue = [Cell("", size=0)] * columns
    for event in events:
        for turn in event.turns:
            label = called[turn.name]
            text = " ".join(filter(None, [label * turn.began, "✓" * turn.done]))
            note = f"{label}: {turn.cell.note}" if turn.cell.note else label
            slots[turn.slot][event.time] = replace(turn.cell, text=text, note=note)
        if event.waiting:
            note = f"{len(event.waiting)}: {listed([called[name] for name in event.waiting])}"
            queue[event.time] = Cell("", "waiting", size=len(event.waiting) / most, note=note)
    return [*(Lane(f"slot {i}", cells, group=group) for i, cells in enumerate(slots, start=1)),
            Lane("waiting", queue, group=group)]


def _so_far(name: str, events: Sequence[_Event], called: Mapping[str, str], columns: int,
            requests: int) -> list[tuple[str, str]]:
    """For each step what this way of batching did in it, and what it had done by then."""
    at = {event.time: event for event in events}
    slots = wasted = done = 0
    told = []
    for now in range(columns):
        turns = at[now].turns if now in at else ()
        slots += (here := sum(turn.slots for turn in turns))
        wasted += (lost := sum(turn.wasted for turn in turns))
        done += sum(turn.done for turn in turns)
        said = [f"{count(here, 'slot')}{f', {lost} wasted' if lost else ''}" if turns
                else "nothing to do"]
        for words, names in (("begin", [called[turn.name] for turn in turns if turn.began]),
                             ("done:", [called[turn.name] for turn in turns if turn.done])):
            said += [f"{listed(names)} {words}{'s' * (len(names) == 1)}" if words == "begin"
                     else f"{words} {listed(names)}"] if names else []
        told.append((f"{name.capitalize()}: {'; '.join(said)}.",
                     f"{slots:,} slots so far, {wasted:,} of them wasted; {done} of {requests} "
                     "answered"))
    return told


def _whole(counts: Sequence[BatchCounts], columns: int) -> Step:
    static, continuous = counts
    rows = {"steps": lambda one: str(one.steps), "slots computed": lambda one: f"{one.slots:,}",
            "of them wasted": lambda one: f"{one.wasted:,} "
                                          f"({100 * one.wasted / one.slots:.0f} %)",
            "steps until a first token": lambda one: f"{number(one.mean)} (worst "
                                                     f"{max(one.first_token)})"}
    return Step(f"The same {count(len(static.first_token), 'request')}: "
                f"{count(static.steps, 'step')} in static batches, {continuous.steps} in "
                "continuous ones.",
                values={name: f"static {one(static)} · continuous {one(continuous)}"
                        for name, one in rows.items()}, label=f"0 to {columns - 1}")
