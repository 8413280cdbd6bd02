"""Where two runs of the same requests part."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

from gearworks.serving.record import Row, StepRecord
from gearworks.viz.moments import count, labels, sequences


class Divergence(NamedTuple):
    """The first step that differs, as a place in the records, and how, in a sentence."""

    step: int
    sentence: str


def first_divergence(records: Sequence[StepRecord], other: Sequence[StepRecord],
                     names: Mapping[str, str] | None = None,
                     runs: tuple[str, str] = ("this run", "the other")) -> Divergence | None:
    """The first step in which two runs of the same requests did not do the same, or None.

    What counts is who is admitted, with how many cached tokens, who is preempted, which tokens
    of whom are computed, and who is done; not in which blocks they are, nor how long it took.
    The requests need the same ids in both runs. names: as for `batch_timeline`. runs: what the
    two are called in the sentence.

    >>> a = StepRecord(0, 0.1, 0.1, (Row("chat/0", 0, 16, 0, True, (0,)),))
    >>> b = StepRecord(0, 0.1, 0.1, (Row("chat/0", 0, 8, 0, True, (0,)),))
    >>> first_divergence([a], [b], runs=("yours", "the reference"))
    Divergence(step=0, sentence='chat: 16 tokens from token 0 in yours, 8 tokens from token 0
    in the reference.')
    """
    pairs = [*zip_longest(records, other)]
    called = labels([*dict.fromkeys(name for pair in pairs for record in pair
                                    if record is not None for name in sequences(record))],
                    names)
    for step, (here, there) in enumerate(pairs):
        if here is None or there is None:
            ended, goes_on = runs if here is None else runs[::-1]
            return Divergence(step, f"There is nothing left to do in {ended}, and {goes_on} "
                                    "goes on.")
        for name, mine, theirs in _differences(here, there):
            return Divergence(step, f"{called[name]}: {mine} in {runs[0]}, {theirs} in "
                                    f"{runs[1]}.")
    return None


def _differences(here: StepRecord, there: StepRecord) -> Iterator[tuple[str, str, str]]:
    """Who is treated differently, and how by each, in the order in which a step comes about."""
    views = (lambda record: {name: "preempted" for name in record.preempted},
             lambda record: {name: f"admitted with {count(cached, 'cached token')}"
                             for name, cached in record.admitted},
             lambda record: {row.name: _tokens(row) for row in record.rows},
             lambda record: {name: "done" for name in record.finished})
    nothing = ("not preempted", "not admitted", "no token", "not done")
    for view, otherwise in zip(views, nothing):
        mine, theirs = view(here), view(there)
        for name in [*mine, *(name for name in theirs if name not in mine)]:
            if mine.get(name) != theirs.get(name):
                yield name, mine.get(name, otherwise), theirs.get(name, otherwise)


def _tokens(row: Row) -> str:
    guesses = f", of them {count(row.guesses, 'guess', 'guesses')}," if row.guesses else ""
    return f"{count(row.count, 'token')} from token {row.start}{guesses}"
