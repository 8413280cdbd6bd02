"""What the engine computed for whom, as a timeline: a lane a sequence, a column a step."""

from collections.abc import Mapping, Sequence
from itertools import chain

from gearworks.serving.record import StepRecord
from gearworks.viz.divergence import Divergence
from gearworks.viz.figure import Figure, player
from gearworks.viz.moments import Moment, count, labels, listed, moments
from gearworks.viz.trace import Cell, FigureError, Lane, Step, Trace

# A kind's place decides its colour; how high its cells are tells them apart without colours.
LEGEND = {"prompt": "a part of its prompt", "again": "computed again",
          "decode": "its next token", "guess": "its next token and guesses",
          "finished": "its last step", "wasted": "computed for nothing",
          "preempted": "preempted", "waiting": "waits"}
HEIGHTS = {"prompt": 1.0, "again": 1.0, "decode": 0.5, "guess": 0.75, "preempted": 0.5,
           "waiting": 0.12, "idle": 0.06, "": 0.0}
_STEPS, _LANES = 64, 24                     # as many as can be taken in at once


def batch_timeline(records: Sequence[StepRecord], names: Mapping[str, str] | None = None,
                   first: int | Divergence | None = None, budget: int | None = None,
                   title: str = "Who got which step") -> Figure:
    """The engine's steps one after the other, and at the end as a whole.

    records: `LLMEngine.records`, or a part of it. names: what to call the requests, by id;
    without them, their ids if these are short, else A, B, C. first: the record (from 0) at
    which the figure opens, or what `first_divergence` found, with its sentence; without it, the
    figure opens with the whole. budget: the engine's `max_num_batched_tokens`. Of a long run,
    64 steps are shown, the first ones or those around `first`, and 24 sequences.
    Raises FigureError when there are no records, or none with this number.

    >>> from gearworks.serving.record import Row
    >>> step = StepRecord(0, 0.1, 0.1, (Row("chat/0", 0, 16, 0, True, (0,)),),
    ...                   admitted=(("chat/0", 0),), finished=("chat/0",))
    >>> print(repr(batch_timeline([step], budget=32)).splitlines()[1])
    Step 0: 16 of 32 tokens: 16 of prompts. chat begins. chat is done.
    """
    records = list(records)
    told = moments(records)
    called = labels([*told], names)
    sentence = first.sentence if isinstance(first, Divergence) else ""
    if isinstance(first, Divergence):
        first = min(first.step, len(records) - 1)    # what one run has and the other has not
    start, end = window(len(records), first, _STEPS)
    shown = [name for name in told if any(one.state for one in told[name][start:end])]
    if first is not None:
        shown.sort(key=lambda name: not told[name][first].state)
    hidden = len(shown) - len(shown[:_LANES])
    shown = [name for name in told if name in shown[:_LANES]]
    most = budget or max(record.tokens for record in records)
    load = [Cell("", size=min(1.0, record.tokens / most), note=f"{record.tokens} of {most}")
            for record in records[start:end]]
    steps = [Step(step_in_words(record, {name: told[name][start + i] for name in told}, called,
                                budget), label=str(record.number))
             for i, record in enumerate(records[start:end])]
    if sentence:
        steps[first - start] = Step(f"The runs part here. {sentence} "
                                    f"{steps[first - start].caption}",
                                    label=steps[first - start].label)
    steps.append(_whole(records, start, end, hidden, told))
    return player(Trace(title, steps, "timeline", LEGEND, timeline=[
        *(Lane(called[name], [cell(moment) for moment in told[name][start:end]])
          for name in shown),
        Lane("all tokens", load)],
        first=len(steps) - 1 if first is None else first - start))


def window(steps: int, first: int | None, most: int) -> tuple[int, int]:
    """From which step to which to show when there are too many.

    Raises FigureError for a first step that there is not.

    >>> window(100, 90, 40), window(100, None, 40), window(100, 50, 40)
    ((60, 100), (0, 40), (30, 70))
    """
    if first is not None and first not in range(steps):
        raise FigureError("cannot open this figure", f"there is no record {first}",
                          f"they are 0 to {steps - 1}")
    start = max(0, min((first or 0) - most // 2, steps - most))
    return start, min(steps, start + most)


def cell(moment: Moment) -> Cell:
    """A moment as a box of a timeline."""
    row, height = moment.row, HEIGHTS[moment.state]
    if row is None:
        note = {"idle": "runs, without a token in this step"}.get(moment.state, "")
        return Cell("×" if moment.state == "preempted" else "",
                    moment.state if moment.state in LEGEND else "", size=height, note=note)
    if moment.state == "decode":
        return Cell("✓" if moment.ended else "", "finished" if moment.ended else "decode",
                    size=height)
    note = (f"{row.start} to {row.start + row.count - 1}" if row.prompt else
            count(row.guesses, "guess", "guesses") + (
                "" if moment.held is None else f", {moment.held} right"))
    return Cell(f"{row.count}{' ✓' if moment.ended else ''}", moment.state, note=note,
                size=height)


def step_in_words(record: StepRecord, now: Mapping[str, Moment], called: Mapping[str, str],
                  budget: int | None = None) -> str:
    """What a step did. now: each sequence's moment in it; called: what to call them."""
    rows = [moment for moment in now.values() if moment.row is not None]

    def tokens(*states: str) -> int:
        return sum(one.row.count - one.row.guesses for one in rows if one.state in states)

    parts = [(tokens("prompt"), "of prompts"), (tokens("again"), "again"),
             (tokens("decode", "guess"), "of answers"),
             (sum(one.row.guesses for one in rows), "guessed")]
    share = (f"{record.tokens} of {budget} tokens" if budget
             else count(record.tokens, "token"))
    said = [f"{share}: {listed([f'{number} {what}' for number, what in parts if number])}."]
    said += [f"{called[name]} gives up its blocks and waits again."
             for name in record.preempted]
    for name, moment in now.items():
        if moment.began is not None:
            begins = "again" if moment.state == "again" else ""
            said.append(" ".join(filter(None, [called[name], "begins", begins])) + (
                f" with {count(moment.began, 'cached token')}." if moment.began else "."))
    done = [called[name] for name in record.finished]
    said += [f"{listed(done)} {'is' if len(done) == 1 else 'are'} done."] if done else []
    if record.waiting:
        said.append(f"{record.waiting} wait{'s' if record.waiting == 1 else ''}.")
    return " ".join(said)


def _whole(records: Sequence[StepRecord], start: int, end: int, hidden: int,
           told: Mapping[str, Sequence[Moment]]) -> Step:
    shown = records[start:end]
    part = [one for ones in told.values() for one in ones[start:end]]
    again = sum(one.row.count for one in part if one.state == "again")
    held, guesses = (sum(one.held or 0 for one in part),
                     sum(one.row.guesses for one in part if one.row is not None))
    values = {"steps": f"{len(shown)} of {len(records)}" if len(shown) < len(records)
              else str(len(shown)),
              "tokens computed": f"{sum(record.tokens for record in shown):,}",
              "of them again": str(again) if again else "",
              "of them guesses": f"{guesses}, {held} of them right" if guesses else "",
              "tokens of answers": f"{sum(record.generated for record in shown):,}",
              "cached tokens": str(sum(cached for record in shown
                                       for _, cached in record.admitted)),
              "preemptions": str(len([*chain(*(record.preempted for record in shown))])),
              "sequences not shown": str(hidden) if hidden else ""}
    sequences = sum(any(one.row is not None for one in ones[start:end])
                    for ones in told.values())
    return Step(f"All of it: {count(sequences, 'answer')} in {count(len(shown), 'step')}.",
                values={name: text for name, text in values.items() if text},
                label=f"{shown[0].number} to {shown[-1].number}")
