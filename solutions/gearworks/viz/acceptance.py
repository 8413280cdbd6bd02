"""Speculative decoding as it happened: each pass's guesses, which held, what came instead."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gearworks.speculative import Proposal, Proposer
from gearworks.viz.figure import Figure, player
from gearworks.viz.quantities import number
from gearworks.viz.trace import Cell, FigureError, Lane, Step, Trace

# In this order since a kind's place decides its colour, and green is what was accepted.
_LEGEND = {"own": "the model's own token", "rejected": "a guess that was thrown away",
           "accepted": "a guess that was accepted"}
_CONTEXT = 8                              # tokens of the text before a pass that its step shows


@dataclass(frozen=True)
class Pass:
    """One forward pass of the target.
    guesses: ids that were proposed; tokens: ids that came out, one at least."""

    guesses: tuple[int, ...]
    tokens: tuple[int, ...]

    @property
    def accepted(self) -> int:
        """How many guesses stayed.

        >>> Pass((5, 6, 7), (5, 6, 9)).accepted
        2
        """
        same = (guess == token for guess, token in zip(self.guesses, self.tokens))
        return next((place for place, equal in enumerate(same) if not equal),
                    min(len(self.guesses), len(self.tokens)))


class RecordingProposer:
    """Before a proposer: changes nothing, notes what was guessed, and after how many tokens."""

    def __init__(self, proposer: Proposer):
        self.proposer = proposer
        self.asked: list[tuple[int, tuple[int, ...]]] = []

    def propose(self, ids: Sequence[int], count: int, rng: np.random.Generator) -> Proposal:
        proposal = self.proposer.propose(ids, count, rng)
        self.asked.append((len(ids), tuple(map(int, proposal.ids[:count]))))
        return proposal

    def passes(self, ids: Sequence[int]) -> list[Pass]:
        """The passes that made a text. ids: the prompt and what was generated.

        Where there was no room for guesses, nobody was asked: such tokens have a pass each. The
        EOS that may have ended the text is not shown.
        """
        ends = [length for length, _ in self.asked[1:]] + [len(ids)]
        passes = []
        for (start, guesses), end in zip(self.asked, ends):
            tokens = tuple(map(int, ids[start:end]))
            taken = Pass(guesses, tokens).accepted + 1
            passes += [Pass(guesses, tokens[:taken])] if tokens else []
            passes += [Pass((), (token,)) for token in tokens[taken:]]
        return passes


def acceptance_timeline(passes: Sequence[Pass], token: Callable[[int], str],
                        title: str = "Guessed, checked, kept") -> Figure:
    """All forward passes of a text under each other, or, by choice, one after the other.

    passes: from `RecordingProposer.passes`. token: the text of an id.
    Raises FigureError when there are none.

    >>> letters = dict(enumerate("abcdef")).__getitem__
    >>> print(repr(acceptance_timeline([Pass((1, 2), (1, 3)), Pass((), (4,))],
    ...                                letters)).splitlines()[3])
    3 tokens in 2 passes, 1.5 a pass; 2 guesses, 1 accepted (50%).
    """
    if not passes:
        raise FigureError("cannot draw this timeline", "it was given no passes",
                          "let the proposer be asked at least once")

    def cells(one: Pass) -> list[Cell]:
        """The tokens that came out, then the guesses that did not."""
        kept = [Cell(_visible(token(id)), "accepted", note="guessed and accepted")
                for id in one.tokens[:one.accepted]]
        own = [Cell(_visible(token(id)), "own", note="chosen by the model itself")
               for id in one.tokens[one.accepted:]]
        lost = [Cell(_visible(token(id)), "rejected", note="guessed, and thrown away")
                for id in one.guesses[one.accepted:]]
        return [*kept, *own, *lost]

    guessed, kept = sum(len(one.guesses) for one in passes), sum(one.accepted for one in passes)
    came = sum(len(one.tokens) for one in passes)
    share = f" ({kept / guessed:.0%})" if guessed else ""
    summary = (f"{_count(came, 'token')} in {_count(len(passes), 'pass', 'passes')}, "
               f"{number(came / len(passes))} a pass; {_count(guessed, 'guess', 'guesses')}, "
               f"{kept} accepted{share}.")
    lanes = [Lane(f"pass {i}", cells(one), _count(len(one.tokens), "token"))
             for i, one in enumerate(passes, start=1)]
    steps, so_far = [], []
    for one in passes:
        before = [Cell(_visible(token(id))) for id in so_far[-_CONTEXT:]]
        so_far += one.tokens
        lost = len(one.guesses) - one.accepted
        steps.append(Step(
            f"{_count(len(one.guesses), 'guess', 'guesses')}, {one.accepted} accepted, {lost} "
            f"thrown away: {_count(len(one.tokens), 'token')} for one pass.",
            [Lane("text before", before), Lane("this pass", cells(one))],
            label=f"{len(steps) + 1} of {len(passes)}",
            values={"tokens so far": str(len(so_far)),
                    "tokens a pass so far": number(len(so_far) / (len(steps) + 1))}))
    return player([Trace("All passes", [Step(summary, lanes)], legend=_LEGEND),
                   Trace("One pass after the other", steps, legend=_LEGEND, step_name="Pass")],
                  title)


def _visible(text: str) -> str:
    return text.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥") or "∅"


def _count(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"
