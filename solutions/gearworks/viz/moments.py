"""What each sequence did in each step, worked out of the engine's records.

The records say how many sequences wait, and not which. Who is admitted next has waited longest:
so it is shown, and so it is while all requests have the same priority.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase

from gearworks.serving.record import Row, StepRecord
from gearworks.viz.trace import FigureError

_LONGEST_NAME = 8                     # characters; a request's id is a name if it is no longer


@dataclass(frozen=True)
class Moment:
    """One sequence in one step.

    state: "" (not there), "waiting", "preempted", "idle" (it runs, and has no turn), "prompt",
    "again" (tokens that were computed before a preemption), "decode" or "guess" (the next token
    and guesses).
    row: what was computed of it. began: with so many cached tokens. held: how many of its
    guesses were right, None where nobody knows. ended: this step was its last.
    """

    state: str = ""
    row: Row | None = None
    began: int | None = None
    held: int | None = None
    ended: bool = False


def moments(records: Sequence[StepRecord]) -> dict[str, list[Moment]]:
    """For each sequence, in order of appearance, a moment for each record.

    Raises FigureError without any records.
    """
    if not records:
        raise FigureError("cannot draw these steps", "there are no records of any",
                          "give the `records` of an engine that has run")
    there = [sequences(record) for record in records]
    last = {name: step for step, names in enumerate(there) for name in names}
    order = _admissions(records)
    names = dict.fromkeys(name for names in there for name in names)
    told: dict[str, list[Moment]] = {name: [] for name in names}
    state = dict.fromkeys(names, "")                     # "", "running" or "queued"
    known = dict.fromkeys(names, 0)                      # tokens that were computed at any time
    for step, record in enumerate(records):
        rows = {row.name: row for row in record.rows}
        began = dict(record.admitted)
        for name in record.preempted:
            state[name] = "queued"
        for name in [*began, *rows]:
            state[name] = "running"
        queued = [name for name in names if state[name] == "queued"]
        waiting = _who_waits(record.waiting, queued,
                             [name for when, name in order if when > step], last, step)
        for name in names:
            row = rows.get(name)
            if row is not None:
                held = _held(records[step + 1:], row)
                told[name].append(Moment(_kind(row, known[name]), row, began.get(name), held,
                                         name in record.finished))
                known[name] = max(known[name], row.start + row.count - row.guesses)
            elif name in record.preempted:
                told[name].append(Moment("preempted"))
            elif name in waiting:
                told[name].append(Moment("waiting"))
            else:
                runs = state[name] == "running" and last[name] > step
                told[name].append(Moment("idle" if runs else "", None, began.get(name)))
        for name in record.finished:
            state[name] = ""
    return told


def sequences(record: StepRecord) -> list[str]:
    """The names of all sequences that a record knows by name."""
    return [*dict.fromkeys([*(row.name for row in record.rows),
                            *(name for name, _ in record.admitted),
                            *record.preempted, *record.finished])]


def _admissions(records: Sequence[StepRecord]) -> list[tuple[int, str]]:
    """(step, name) of each sequence's first admission, in order."""
    first: dict[str, int] = {}
    for step, record in enumerate(records):
        for name, _ in record.admitted:
            first.setdefault(name, step)
    return [(step, name) for name, step in first.items()]


def _who_waits(count: int, queued: Sequence[str], later: Sequence[str],
               last: Mapping[str, int], step: int) -> set[str]:
    """Of those that were preempted or come later, as many as the record counts."""
    return set([*sorted(queued, key=lambda name: last[name] <= step), *later][:count])


def _kind(row: Row, known: int) -> str:
    if row.prompt:
        return "again" if row.start < known else "prompt"
    return "guess" if row.guesses else "decode"


def _held(later: Sequence[StepRecord], row: Row) -> int | None:
    """How many of a row's guesses were right: the sequence's next row begins after them."""
    if not row.guesses or not later:
        return None
    start = next((other.start for other in later[0].rows if other.name == row.name), None)
    certain = row.start + row.count - row.guesses
    return None if start is None or start < certain else start - certain


def labels(answers: Sequence[str], names: Mapping[str, str] | None = None) -> dict[str, str]:
    """What to call the sequences: what `names` calls their request; else its id if that is
    short; else A, B, C. Of several answers to one request, each has its number.

    >>> labels(["chat/0", "00112233445566778899/0", "00112233445566778899/1"]).values()
    dict_values(['chat', 'B/0', 'B/1'])
    """
    names = names or {}
    requests = {name: name.rpartition("/")[0] for name in answers}
    order = [*dict.fromkeys(requests.values())]
    called = {}
    for name, request in requests.items():
        short = names.get(request, request if len(request) <= _LONGEST_NAME
                          else _letters(order.index(request)))
        several = [*requests.values()].count(request) > 1
        called[name] = f"{short}/{name.rpartition('/')[2]}" if several else short
    return called


def _letters(place: int) -> str:
    rounds, letter = divmod(place, len(ascii_uppercase))
    return ascii_uppercase[letter] + (str(rounds) if rounds else "")


def listed(words: Sequence[str]) -> str:
    """
    >>> listed(["A"]), listed(["A", "B", "C"])
    ('A', 'A, B and C')
    """
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def count(number: int, one: str, many: str = "") -> str:
    """
    >>> count(1, "token"), count(2, "token"), count(2000, "guess", "guesses")
    ('1 token', '2 tokens', '2,000 guesses')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"
