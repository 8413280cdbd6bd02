"""Checks of speculative decoding: guesses from the text, rejection, the loop that rewinds."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from autograder.checking import (check, expect, expect_close, expect_equal, expect_error,
                                 expect_returned, expect_unchanged)
from autograder.checking.examples import docstring_example
from autograder.checking.differential import (Raised, Seen, attempted, expect_agreement,
                                              expect_on_all)
from autograder.checks.decoding import TextModel
from autograder.checks.sampling import expect_distribution, true_softmax
from autograder.generators.calls import Call
from autograder.generators.configurations import some
from autograder.generators.ids import words
from autograder.generators.seeds import Generator, generators
from gearworks.decoding import Context
from gearworks.errors import ModelError
from gearworks.layers import softmax
from gearworks.sampling import SamplingParams
from gearworks.speculative import Proposal, Tally
from gearworks.speculative import speculate as reference

# --- ngram_propose

NGRAM = "speculative.ngram_propose"


def true_proposal(ids: Sequence[int], count: int, longest: int) -> list[int]:
    """From the definition: the longest end that stands earlier, its latest place,
    and what followed it there."""
    for length in range(longest, 0, -1):
        for start in range(len(ids) - length - 1, -1, -1):
            if ids[start:start + length] == ids[-length:]:
                return ids[start + length:start + length + count]
    return []


def expect_proposal(ngram_propose, ids: list[int], count: int, longest: int = 3,
                    hint: str = "") -> None:
    with expect_unchanged(ids):
        got = ngram_propose(ids, count, longest)
    expect_equal(got, true_proposal(ids, count, longest),
                 of=f"the guess after {ids}, of at most {count} token{'s' * (count != 1)}, "
                    f"with at most {longest} to compare,", hint=hint)


example_of_ngram_propose = docstring_example(NGRAM, points=1)


@check(NGRAM, points=1, public=True)
def as_it_went_on(ngram_propose, rng):
    """What followed the same tokens earlier in the text is the guess."""
    a, b, c, d, e, f = rng.choice(90, 6, replace=False).tolist()
    expect_proposal(ngram_propose, [a, b, c, d, e, f, a, b], 3,
                    hint="Where did the text end like this before, and what came next?")
    expect_proposal(ngram_propose, [a, b, c, d, e, f, b, c, d], 2,
                    hint="The guess begins behind the tokens that are equal.")
    got = ngram_propose([a, b, c, a], 2)
    expect_equal(got, [b, c],
                 of=f"the guess after {[a, b, c, a]}, of at most 2 tokens, with `longest` left "
                    "out,")


@check(NGRAM, points=1, public=True)
def longest_then_latest(ngram_propose, rng):
    """The longest match wins, and of several the latest."""
    a, b, c, d, e = rng.choice(90, 5, replace=False).tolist()
    expect_proposal(ngram_propose, [a, b, c, d, b, e, a, b], 2,
                    hint="Two equal tokens say more than one, even far away.")
    expect_proposal(ngram_propose, [a, b, c, a, b, d, a, b, e, a, b], 1,
                    hint="A text that has changed its ways may keep to the new ones.")
    expect_proposal(ngram_propose, [a, b, c, d, e, b, c, d, a, c, d, b, a, b, c, d], 1, 2,
                    "No more tokens than `longest` are compared.")


@check(NGRAM, points=1, public=True)
def over_its_own_end(ngram_propose, rng):
    """The end itself is no match, but a match may overlap it."""
    a, b, c = rng.choice(90, 3, replace=False).tolist()
    for ids in ([a, a, a], [a, a], [b, a, b, a, b], [c, a, a, a, a]):
        expect_proposal(ngram_propose, ids, 3,
                        hint="In a, a, a the last two tokens stand at the beginning, too.")


@check(NGRAM, points=1, public=True)
def no_guess(ngram_propose, rng):
    """No more tokens than asked for, fewer where the text ends, none where nothing is known."""
    a, b, c, d = rng.choice(90, 4, replace=False).tolist()
    for ids, count in (([a, b, c, d], 3), ([a], 3), ([], 3), ([a, b, c, d, a], 2),
                       ([a, b, a], 9), ([a, b, c, a], 0)):
        expect_proposal(ngram_propose, ids, count, hint="An empty list is a guess, too.")


@check(NGRAM, points=1, public=True)
def any_guess(ngram_propose, rng):
    """Texts that repeat themselves, ids of one digit and of several, any count and length."""
    def right(ids: list[int], count: int, longest: int = 3) -> list[int]:
        return true_proposal(ids, count, longest)

    texts = st.builds(lambda ids, count, options: Call((ids, count), options),
                      words(12), st.integers(0, 5), some(longest=st.integers(1, 5)))
    expect_agreement(ngram_propose, right, texts, rng, name="ngram_propose", examples=200,
                     hint="How does the text end? Look for that end further left, from the "
                          "right, and the longest first.")


@check(NGRAM, points=0.5, public=False)
def any_ids(ngram_propose, rng):
    """Random texts of few words."""
    for _ in range(60):
        ids = rng.integers(0, int(rng.integers(1, 5)), int(rng.integers(0, 16))).tolist()
        expect_proposal(ngram_propose, ids, int(rng.integers(1, 6)), int(rng.integers(1, 5)))


@check(NGRAM, points=0.5, public=False)
def long_ids(ngram_propose, rng):
    """Long texts, with the match at their very beginning."""
    for length in (1, 2, 3):
        ids = (1000 + rng.permutation(2000)).tolist()
        expect_proposal(ngram_propose, [*ids, *ids[:length]], 5)
        expect_proposal(ngram_propose, [*ids, 151_000, *ids[:length]], 2000, 4)


# --- accept

ACCEPT = "speculative.accept"


def rows(*probabilities: Sequence[float]) -> np.ndarray:
    return np.array(probabilities, np.float32)


def decided(accept, proposed: list[int], draft: np.ndarray | None, target: np.ndarray,
            rng: np.random.Generator, hint: str = "") -> list[int]:
    """What `accept` decides, after a look at its form."""
    got = accept(proposed, draft, target, rng)
    expect_returned(got, "a list of ids")
    many = f"1 to {len(proposed) + 1} ids" if proposed else "one id"
    guesses = f"{len(proposed)} guess{'es' * (len(proposed) != 1)}"
    expect(isinstance(got, list) and 1 <= len(got) <= len(proposed) + 1,
           f"{many} in a list, for {guesses}", f"{got!r:.60}",
           "The accepted ones, and one more: always.")
    wrong = next((place for place, (mine, guess) in enumerate(zip(got[:-1], proposed))
                  if mine != guess), None)
    expect(wrong is None, f"all ids but the last to be guesses, which were {proposed}",
           f"{got}", hint or "The first guess that is refused ends the run.")
    return [int(id) for id in got]


def expect_decided(accept, proposed: list[int], draft: np.ndarray | None, target: np.ndarray,
                   rng: np.random.Generator, place: int, right: np.ndarray, of: str, hint: str,
                   draws: int = 300) -> None:
    """Decide many times; the tokens at this place must follow the probabilities."""
    counts: dict[int, int] = {}
    for _ in range(draws):
        got = decided(accept, proposed, draft, target, rng)
        if place < len(got):
            counts[got[place]] = counts.get(got[place], 0) + 1
    expect(counts, f"some token at place {place}", "none in all draws", hint)
    expect_distribution(counts, right, of, hint)


example_of_accept = docstring_example(ACCEPT, points=0.5)


@check(ACCEPT, points=1, public=True, always=(0,))
def where_nothing_is_left_to_chance(accept, rng):
    """Guesses that the target is sure of stay;
    the first that it rules out is replaced, and nothing follows it."""
    sure = np.eye(6, dtype=np.float32)
    a, b, c, d = rng.permutation(6)[:4].tolist()
    unsure = rows([1 / 6] * 6, [1 / 6] * 6)
    for draft in (None, unsure, sure[[a, b]]):
        kind = "copied" if draft is None else "drawn"
        for target, right in (([a, b, c], [a, b, c]), ([d, b, c], [d]), ([a, d, c], [a, d])):
            with expect_unchanged(sure):
                got = accept([a, b], draft, sure[target], rng)
            expect_equal(got, right,
                         of=f"the ids after the guesses {[a, b]}, {kind}, where the target is "
                            f"sure of {target},",
                         hint="One token comes after the accepted ones, whether all were "
                              "accepted or not.")


@check(ACCEPT, points=1, public=True)
def how_often_it_stays(accept, rng):
    """A guess stays with the probability min(1, target / draft)."""
    guess = 1
    for draft, target in (([0.1, 0.8, 0.1], [0.6, 0.2, 0.2]),
                          ([0.6, 0.2, 0.2], [0.1, 0.8, 0.1]),
                          ([0.3, 0.4, 0.3], [0.3, 0.4, 0.3])):
        kept = min(1, target[guess] / draft[guess])
        lengths = [len(decided(accept, [guess], rows(draft), rows(target, [1, 0, 0]), rng))
                   for _ in range(200)]
        expect_distribution(
            Counter(length - 1 for length in lengths), np.array([1 - kept, kept]),
            "refused guesses (0) and accepted ones (1)",
            f"The draft gave the guess {draft[guess]}, the target gives it {target[guess]}. A "
            "target that likes it better than the draft did never refuses.")


@check(ACCEPT, points=1, public=True)
def what_takes_its_place(accept, rng):
    """A refused guess is replaced by what the target has more of than the draft."""
    draft, target = [0.1, 0.7, 0.1, 0.1], [0.3, 0.05, 0.6, 0.05]
    counts: dict[int, int] = {}
    for _ in range(300):
        got = decided(accept, [1], rows(draft), rows(target, [0, 0, 1, 0]), rng)
        if len(got) == 1:
            counts[got[0]] = counts.get(got[0], 0) + 1
    expect(counts, "some guesses to be refused", "none of 300",
           "The target gives the guess 0.05, the draft gave it 0.7.")
    rest = np.maximum(np.subtract(target, draft), 0)
    expect_distribution(counts, rest / rest.sum(), "the tokens in the place of a refused guess",
                        "Subtract, nothing below 0, and let what is left sum to 1.")


@check(ACCEPT, points=1, public=True)
def copied_guesses(accept, rng):
    """A guess that was copied, not drawn, stays as often as the target likes it;
    else another takes its place."""
    target = [0.25, 0.4, 0.0, 0.35]
    expect_decided(accept, [1], None, rows(target, [0, 0, 1, 0]), rng, 0, np.array(target),
                   "the first tokens",
                   "The draft was certain of its guess: it gave it 1, and 0 to all others.")
    counts: dict[int, int] = {}
    for _ in range(100):
        got = decided(accept, [2], None, rows(target, [0, 0, 1, 0]), rng)
        counts[len(got)] = counts.get(len(got), 0) + 1
    expect_equal(counts, {1: 100},
                 of="how many ids come, when the target rules the copied guess out,", hint="")


@check(ACCEPT, points=1, public=True)
def the_bonus(accept, rng):
    """When all guesses stay, one more token is drawn from the target's last row;
    without guesses, too."""
    last = np.array([0.5, 0.3, 0.0, 0.2])
    sure = np.eye(4, dtype=np.float32)
    for proposed in ([], [2, 0]):
        target = np.concatenate([sure[proposed].reshape(-1, 4), rows(last)])
        expect_decided(accept, proposed, sure[proposed].reshape(-1, 4), target, rng,
                       len(proposed), last,
                       f"the tokens after {len(proposed)} accepted guesses",
                       "target has one row more than there are guesses.", 200)


@check(ACCEPT, points=1, public=True, always=(1,))
def the_law(accept, rng):
    """Whatever the draft is, the first token has the target's distribution."""
    target = rng.dirichlet(np.full(5, 2.0)) * 0.8 + 0.04
    for concentration in (0.5, 5.0):
        draft = rng.dirichlet(np.full(5, concentration)) * 0.9 + 0.02
        counts: dict[int, int] = {}
        for _ in range(400):
            guess = int(rng.choice(5, p=draft / draft.sum()))
            got = decided(accept, [guess], rows(draft / draft.sum()), rows(target, target), rng)
            counts[got[0]] = counts.get(got[0], 0) + 1
        expect_distribution(counts, target, "the first tokens, accepted or not,",
                            "What is refused too often, or replaced by the wrong token, is "
                            "missing here.")


@dataclass(frozen=True)
class Run:
    """Guesses, the draft's probabilities or None, the target's, and a generator."""

    proposed: list[int]
    draft: list[list[int]] | None
    target: list[list[int]]
    generator: Generator

    def made(self) -> tuple:
        def shares(rows: list[list[int]]) -> np.ndarray:
            table = np.array(rows, np.float32).reshape(-1, 4)
            return table / table.sum(axis=-1, keepdims=True)

        return ([*self.proposed], None if self.draft is None else shares(self.draft),
                shares(self.target), self.generator.made())

    def typed(self) -> str:
        draft = ("None" if self.draft is None
                 else f"{self.draft}, each row divided by its sum")
        return (f"accept({self.proposed}, draft={draft}, target={self.target}, each row "
                f"divided by its sum, {self.generator.typed()})")


@st.composite
def runs(draw) -> Run:
    """Guesses of which the target may rule some out, copied or drawn, none or several."""
    row = st.sampled_from([[1, 1, 1, 1], [4, 0, 0, 0], [0, 1, 0, 3], [2, 1, 1, 0],
                           [0, 0, 5, 0]])
    proposed = draw(st.lists(st.integers(0, 3), max_size=3))
    target = [draw(row) for _ in range(len(proposed) + 1)]
    drawn_from = [draw(row.filter(lambda weights, id=id: weights[id] > 0)) for id in proposed]
    return Run(proposed, draw(st.sampled_from([None, drawn_from])), target, draw(generators()))


@check(ACCEPT, points=1, public=True)
def any_run_of_guesses(accept, rng):
    """Whatever numbers the generator gives, 0 too: no id that the target rules out, and in the
    place of a refused guess one that the target has more of."""
    def demand(run: Run) -> None:
        proposed, draft, target, generator = run.made()
        shown = f"`{run.typed()}`"
        with expect_unchanged(proposed, draft, target):
            got = decided(accept, proposed, draft, target, generator,
                          f"This was {shown}.")
        kept = len(got) - 1
        for place, id in enumerate(got):
            expect(0 <= id < 4 and target[place, id] > 0,
                   f"{shown} to give no id that the target rules out", f"{id} at place {place}",
                   "A guess that the target gives 0 stays never, not even when the number "
                   "drawn is 0.")
        if kept < len(proposed):
            before = np.eye(4)[proposed[kept]] if draft is None else draft[kept]
            more = target[kept] > before + 1e-6
            expect(more[got[-1]] or not more.any(),
                   f"{shown} to put in the place of guess {kept} an id that the target has "
                   "more of than the draft", f"{got[-1]}", "max(0, target - draft).")
            sure = min(1, target[kept, proposed[kept]] / max(before[proposed[kept]], 1e-9))
            # the largest number below 1 is 1 in float32
            expect(sure < 1 or run.generator.next == "most",
                   f"{shown} to keep guess {kept}: the target likes it as much as "
                   "the draft did, or more", f"{got}", "min(1, target / draft) is 1 here.")
    expect_on_all(runs(), demand, rng, 200)


@check(ACCEPT, points=1, public=True)
def each_by_a_number_of_its_own(accept, rng):
    """Of three guesses, each stays or not by itself."""
    draft = np.array([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]])
    target = np.array([[0.4, 0.3, 0.3], [0.3, 0.4, 0.3], [0.3, 0.3, 0.4], [1, 0, 0]])
    counts: dict[int, int] = {}
    for _ in range(400):
        length = len(decided(accept, [0, 1, 2], rows(*draft), rows(*target), rng)) - 1
        counts[length] = counts.get(length, 0) + 1
    expect_distribution(counts, np.array([0.5, 0.25, 0.125, 0.125]),
                        "the numbers of accepted guesses, 0 to 3,",
                        "Each guess stays with probability 1/2 here. How many numbers does the "
                        "generator give for three guesses?")


@check(ACCEPT, points=0.5, public=False, always=(0,))
def two_tokens(accept, rng):
    """The first two tokens together, with two guesses drawn from a draft,
    have the target's distribution."""
    target = [np.array([0.5, 0.2, 0.3]), np.array([0.1, 0.6, 0.3]), np.array([0.3, 0.3, 0.4])]
    draft = [np.array([0.25, 0.5, 0.25]), np.array([0.5, 0.3, 0.2])]
    counts: dict[int, int] = {}
    for _ in range(1200):
        proposed = [int(rng.choice(3, p=row)) for row in draft]
        got = decided(accept, proposed, rows(*draft), rows(*target), rng)
        if len(got) == 1:                                  # the loop would ask the target again
            got.append(int(rng.choice(3, p=target[1])))
        counts[3 * got[0] + got[1]] = counts.get(3 * got[0] + got[1], 0) + 1
    expect_distribution(counts, np.outer(target[0], target[1]).ravel(), "pairs of tokens", "")


@check(ACCEPT, points=0.5, public=False)
def each_guess_has_its_chance(accept, rng):
    """With several guesses, each is decided by itself, by its own rows."""
    draft = np.array([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]])
    target = np.array([[0.4, 0.3, 0.3], [0.3, 0.4, 0.3], [0.3, 0.3, 0.4], [1, 0, 0]])
    counts: dict[int, int] = {}
    for _ in range(600):
        length = len(decided(accept, [0, 1, 2], rows(*draft), rows(*target), rng)) - 1
        counts[length] = counts.get(length, 0) + 1
    expect_distribution(counts, np.array([0.5, 0.25, 0.125, 0.125]),
                        "the numbers of accepted guesses", "")


@check(ACCEPT, points=0.5, public=False)
def of_every_kind(accept, rng):
    """A large vocabulary, zeros everywhere, equal draft and target;
    arguments stay as they were, seeds decide."""
    logits = rng.standard_normal((4, 3000)).astype(np.float32) * 6
    logits[rng.random((4, 3000)) < 0.9] = -np.inf
    target = np.array([true_softmax(row) for row in logits], np.float32)
    guesses = [int(rng.choice(np.flatnonzero(row > 1e-4))) for row in target[:3]]
    seed = int(rng.integers(2**32))
    for draft in (None, target[:3].copy(), (target[:3] + target[[1, 2, 0]]) / 2):
        def twenty_times() -> list[list[int]]:
            generators = (np.random.default_rng(seed + number) for number in range(20))
            return [decided(accept, guesses, draft, target, each) for each in generators]

        with expect_unchanged(guesses, draft, target):
            got = twenty_times()
        again = twenty_times()
        expect_equal(got, again, of="the ids with the same seeds")
        expect(all(target[place, id] > 0 for ids in got for place, id in enumerate(ids)),
               "only ids that the target allows", "one that it rules out")
        if draft is not None and np.array_equal(draft, target[:3]):
            expect_equal([ids[:3] for ids in got], [guesses] * 20,
                         of="the accepted guesses, when draft and target are equal,")


# --- speculate

SPECULATE = "speculative.speculate"
GREEDY = SamplingParams(seed=0)     # two runs of the same code say the same to a proposer
MORE = "more than was asked for"
TOO_MANY = "Somebody else wrote the proposer. How many of its guesses are there room for?"


class Guesses:
    """A proposer that guesses as it is told, and remembers what it was asked."""

    def __init__(self, guess: Callable[[list[int], int], list[int]]):
        self.guess = guess
        self.asked: list[tuple[list[int], int]] = []

    def propose(self, ids: Sequence[int], count: int, rng: np.random.Generator) -> Proposal:
        text = [int(id) for id in ids]
        self.asked.append((text, int(count)))
        return Proposal(self.guess(text, int(count)))


class Drafts:
    """A proposer that draws its guesses from a model."""

    def __init__(self, model: TextModel):
        self.model = model

    def propose(self, ids: Sequence[int], count: int, rng: np.random.Generator) -> Proposal:
        guesses, drawn_from = [], []
        for _ in range(count):
            drawn_from.append(softmax(self.model.logits_after([*ids, *guesses])))
            exact = true_softmax(np.log(drawn_from[-1]))
            guesses.append(int(rng.choice(len(exact), p=exact)))
        return Proposal(guesses, np.stack(drawn_from) if guesses else None)


def plain(model: TextModel, ids: list[int], count: int) -> list[int]:
    """The greedy text, one token after the other."""
    text = list(ids)
    for _ in range(count):
        text.append(int(model.logits_after(text).argmax()))
    return text[len(ids):]


def proposers(truth: list[int], vocab_size: int,
              rng: np.random.Generator) -> dict[str, Guesses]:
    """Guesses that are right, wrong, right at first, random, none, or more than were asked for.

    truth: the whole text.
    """
    def wrong(text: list[int]) -> int:
        return (truth[len(text)] + 1) % vocab_size if len(text) < len(truth) else 0

    return {"right": Guesses(lambda text, count: truth[len(text):len(text) + count]),
            "wrong": Guesses(lambda text, count: [wrong(text)] * count),
            "right at first": Guesses(lambda text, count: [*truth[len(text):len(text) + 2],
                                                           wrong(text), 0][:count]),
            "random": Guesses(lambda text, count: rng.integers(0, vocab_size, count).tolist()),
            "empty": Guesses(lambda text, count: []),
            MORE: Guesses(lambda text, count: truth[len(text):len(text) + count + 3])}


def new_model(rng: np.random.Generator, vocab_size: int = 40) -> tuple[TextModel, list[int]]:
    """A model, and a prompt."""
    model = TextModel(int(rng.integers(2**32)), vocab_size)
    return model, rng.integers(0, vocab_size, 5).tolist()


def expect_held(context: Context, right: list[int], of: str, hint: str) -> None:
    expect_equal(context.ids, right, of=f"the context's ids afterwards, {of},", hint=hint)
    expect_equal(len(context.cache), len(context.ids), of="the length of the cache",
                 hint="`context.truncate` cuts both.")


def expect_text(got, right: list[int], reason: str, of: str, hint: str) -> None:
    expect_returned(got, "the generated ids and a reason")
    expect(isinstance(got, tuple | list) and len(got) == 2, "the generated ids and a reason",
           f"{got!r:.60}")
    expect_equal(got[0], right, of=f"the generated ids, {of},", hint=hint)
    expect_equal(got[1], reason, of=f"the reason, {of},",
                 hint="'stop' for an EOS and for a reader who has enough, else 'length'.")


example_of_speculate = docstring_example(SPECULATE, points=1)


@check(SPECULATE, points=1, public=True)
def greedy_text_is_the_targets(speculate, rng):
    """Whatever the guesses are, the greedy text is the target's own, token for token."""
    model, ids = new_model(rng)
    truth = plain(model, ids, 20)
    hint = ("What has the model seen when the next step begins: every token of the text but "
            "the last, and nothing else?")
    for name, proposer in proposers([*ids, *truth], 40, rng).items():
        for count in (1, 4):
            got = speculate(Context(model, 60), ids, proposer, params=GREEDY, count=count,
                            max_tokens=12)
            expect_text(got, truth[:12], "length",
                        f"with guesses that are {name}, {count} at a time",
                        TOO_MANY if name == MORE else hint)


@check(SPECULATE, points=1, public=True)
def one_pass_for_all_guesses(speculate, rng):
    """The unseen token and the guesses go through the model together,
    and accepted ones never again."""
    model, ids = new_model(rng)
    truth = plain(model, ids, 12)
    for name, passes in (("right", [[*ids, *truth[:3]], truth[3:7], truth[7:9]]),
                         ("empty", [ids, *([id] for id in truth[:9])])):
        model.forwarded.clear()
        tally = Tally()
        got = speculate(Context(model, 60), ids, proposers([*ids, *truth], 40, rng)[name],
                        params=GREEDY, count=3, max_tokens=10, tally=tally)
        expect_text(got, truth[:10], "length", f"with guesses that are {name}", "")
        expect_equal(model.forwarded, passes,
                     of="what the model was given, pass by pass, with guesses that are "
                        f"{name}, 3 at a time,",
                     hint="Three accepted guesses and the token after them are four tokens of "
                          "one pass.")
        expect_equal((tally.steps, tally.generated), (len(passes), 10),
                     of="steps and generated tokens in the tally", hint="")


@check(SPECULATE, points=1, public=True)
def the_end_inside_a_run(speculate, rng):
    """An EOS inside an accepted run ends the text there, and what the context holds."""
    model, ids = new_model(rng)
    truth = plain(model, ids, 14)
    for eos in truth[1:7]:
        place = truth.index(eos)
        for name in ("right", "empty"):
            context = Context(model, 60)
            got = speculate(context, ids, proposers([*ids, *truth], 40, rng)[name],
                            params=GREEDY, count=5, max_tokens=14, eos_ids=[99, eos])
            when = f"when token {place + 1} of the answer is an EOS and guesses are {name}"
            expect_text(got, truth[:place], "stop", when,
                        "A step brings several tokens. Each of them may be the end, and the "
                        "EOS is no part of the text.")
            expect_held(context, [*ids, *truth[:place]], when,
                        "Without guesses the model would have seen every token of the text, "
                        "and no EOS.")


@check(SPECULATE, points=1, public=True)
def limits(speculate, rng):
    """The limit and the cache's capacity hold exactly;
    no guess is asked for, and no prompt taken, without room."""
    model, ids = new_model(rng)
    truth = plain(model, ids, 14)
    for limit in (0, 1, 2, 5, 6, 7, 100):
        for capacity in (11, 6) if limit == 100 else (5 + limit, 60):
            most = min(limit, capacity - 5)
            right = proposers([*ids, *truth], 40, rng)["right"]
            got = speculate(Context(model, capacity), ids, right, params=GREEDY, count=4,
                            max_tokens=limit)
            expect_text(got, truth[:most], "length",
                        f"with a prompt of 5 and max_tokens={limit} in a cache of {capacity}",
                        "Every step gives one token more than it has accepted guesses. Where "
                        "the cache is full, the text ends.")
            for text, count in right.asked:
                room = max(min(4, most - (len(text) - 5) - 1), 0)
                expect(count <= room,
                       f"at most {room} guesses to be asked for with a text of {len(text)}, "
                       f"max_tokens={limit} and a cache of {capacity}", f"{count}", "")
    for prompt, most, when in (([], 3, "the prompt is empty"),
                               (ids, 3, "a prompt of 5 leaves no room in a cache of 5"),
                               (ids[:2], -1, "max_tokens is -1")):
        with expect_error(ModelError, when=when,
                          hint="`room_for` is given, and knows what to refuse."):
            speculate(Context(model, 5), prompt, Guesses(lambda text, count: []), params=GREEDY,
                      max_tokens=most)


@check(SPECULATE, points=1, public=True)
def a_reader_who_has_enough(speculate, rng):
    """`on_token` sees every token once, in order, and ends the text inside a run, too,
    and what the context holds."""
    model, ids = new_model(rng)
    truth = plain(model, ids, 12)
    for enough in (1, 3, 20):
        seen: list[int] = []

        def on_token(token: int) -> bool:
            seen.append(int(token))
            return len(seen) == enough

        context = Context(model, 60)
        got = speculate(context, ids, proposers([*ids, *truth], 40, rng)["right"],
                        params=GREEDY, count=4, max_tokens=9, on_token=on_token)
        shown = truth[:min(enough, 9)]
        expect_equal(seen, shown, of=f"what a reader saw who had enough after {enough} tokens",
                     hint="Tokens are handed out one by one.")
        when = f"with a reader who has enough after {enough}"
        expect_text(got, shown, "stop" if enough < 9 else "length", when, "")
        expect_held(context, [*ids, *shown[:-1]], when,
                    "A guess that was right, and comes after the end, is not part of the text.")


@check(SPECULATE, points=1, public=True)
def the_cache_afterwards(speculate, rng):
    """The context holds the text without its last token,
    and a beginning that it knew already is not computed again."""
    model, ids = new_model(rng)
    truth = plain(model, ids, 12)
    for name, proposer in proposers([*ids, *truth], 40, rng).items():
        context = Context(model, 60)
        context.forward([*ids[:3], 7, 8, 9] if ids[3] != 7 else [*ids[:3], 9, 8])
        model.forwarded.clear()
        got = speculate(context, ids, proposer, params=GREEDY, count=4, max_tokens=8)
        expect_text(got, truth[:8], "length",
                    f"with guesses that are {name}, in a context that knew 3 tokens of the "
                    "prompt", "")
        expect_equal(model.forwarded[0][:2], ids[3:],
                     of="the first ids that the model was given",
                     hint="`context.rewind` says how much of the prompt is known, and forgets "
                          "the rest.")
        expect_held(context, [*ids, *truth[:7]], f"with guesses that are {name}",
                    "A refused guess has left its keys in the cache: how many tokens are "
                    "right?")


@dataclass(frozen=True)
class Speculation:
    """A prompt, how much of it the context knows, guesses that are right so often, and an
    end."""

    seed: int
    prompt: int
    known: int
    right: int
    count: int
    max_tokens: int
    capacity: int
    ends: list[int]
    enough: int

    def typed(self) -> str:
        ends = f", an EOS at one of the places {self.ends}" if self.ends else ""
        enough = f", a reader who stops at token {self.enough}" if self.enough else ""
        return (f"a prompt of {self.prompt}, {self.known} known, every guess but each "
                f"{self.right}th right, count={self.count}, max_tokens={self.max_tokens}, room "
                f"for {self.capacity} more than the prompt{ends}{enough}")


SPECULATIONS = st.builds(Speculation, st.integers(0, 9), st.sampled_from([3, 1, 5]),
                         st.sampled_from([0, 1, 2]), st.sampled_from([1, 2, 3, 99]),
                         st.integers(1, 4), st.sampled_from([6, 1, 0, 3, 9]),
                         st.sampled_from([20, 1, 3, 6]),
                         st.lists(st.integers(0, 7), max_size=2, unique=True),
                         st.sampled_from([0, 0, 1, 3])).filter(
    lambda run: run.max_tokens or not run.known)         # who asks for nothing may leave it


def text_of(speculate, run: Speculation) -> Seen:
    model = TextModel(run.seed, 30)
    ids = np.random.default_rng(run.seed).integers(0, 30, run.prompt).tolist()
    truth = plain(model, ids, 10)
    whole, seen = [*ids, *truth, *[0] * 20], []

    def guess(text: list[int], count: int) -> list[int]:
        places = range(len(text), len(text) + count)
        return [whole[place] if (place + 1) % run.right else (whole[place] + 1) % 30
                for place in places]

    def on_token(token: int) -> bool:
        seen.append(int(token))
        return len(seen) == run.enough

    context = Context(model, run.prompt + run.capacity)
    if run.known:
        context.forward(ids[:run.known])
    eos_ids = [truth[place] for place in run.ends]
    with expect_unchanged(ids, eos_ids):
        got = attempted(speculate, args=(context, ids, Guesses(guess)),
                        kwargs={"params": GREEDY, "count": run.count, "eos_ids": eos_ids,
                                "max_tokens": run.max_tokens, "on_token": on_token})
    if isinstance(got, Raised):
        return [("", got)]
    return [("the ids and the reason for", got), ("what `on_token` was shown of", seen),
            ("what the context holds after", [*context.ids]),
            ("the length of the cache after", len(context.cache))]


@check(SPECULATE, points=1.5, public=True)
def any_speculation(speculate, rng):
    """Guesses that are right now and then, ends inside a run, and little room."""
    expect_agreement(speculate, reference, SPECULATIONS, rng, run=text_of, examples=100,
                     hint="Write the text down with a mark under every token that the model "
                          "has seen. Which guess is the first that is wrong, and what ends "
                          "the text?")


@check(SPECULATE, points=0.5, public=False)
def sampled_text_is_the_targets(speculate, rng):
    """Two tokens drawn with a draft model's guesses have the target's distribution;
    the same seed gives the same."""
    target, draft = (TextModel(int(rng.integers(2**32)), 4, scale=0.7) for _ in range(2))
    ids = rng.integers(0, 4, 3).tolist()
    counts: dict[int, int] = {}
    context, first_seed = Context(target, 20), int(rng.integers(2**31))
    for seed in range(first_seed, first_seed + 700):
        target.forwarded.clear()
        params = SamplingParams(temperature=1.0, seed=seed)
        (first, second), _ = speculate(context, ids, Drafts(draft), params=params, count=2,
                                       max_tokens=2)
        counts[4 * first + second] = counts.get(4 * first + second, 0) + 1
        if seed < first_seed + 5:
            again, _ = speculate(Context(target, 20), ids, Drafts(draft), params=params,
                                 count=2, max_tokens=2)
            expect_equal(again, [first, second], of="the text with the same seed")
    start = true_softmax(target.logits_after(ids))
    joint = np.array([start[first] * true_softmax(target.logits_after([*ids, first]))
                      for first in range(4)])
    expect_distribution(counts, joint.ravel(), "pairs of tokens", "")
    tally = Tally()
    speculate(context, ids, Drafts(target), params=SamplingParams(temperature=1.0), count=3,
              max_tokens=12, tally=tally)
    expect_equal((tally.accepted, tally.proposed), (9, 9),
                 of="accepted and proposed guesses, when the draft is the target itself,")


@check(SPECULATE, points=0.5, public=False)
def penalties_see_the_text(speculate, rng):
    """Penalties of all kinds, with a prompt that only some of them count;
    the tally tells what happened."""
    for params in (SamplingParams(repetition_penalty=3.0),
                   SamplingParams(presence_penalty=2.0, frequency_penalty=1.0)):
        model = TextModel(int(rng.integers(2**32)), 12)
        ids = rng.permutation(12)[:8].tolist()
        truth, _ = reference(Context(model, 60), ids, Guesses(lambda text, count: []),
                             params=params, max_tokens=17)
        for name, proposer in proposers([*ids, *truth], 12, rng).items():
            mine, right = Tally(), Tally()
            got = speculate(Context(model, 60), ids, proposer, params=params, count=3,
                            max_tokens=14, tally=mine)
            expect_text(got, truth[:14], "length", "with penalties", "")
            if name != "random":
                reference(Context(model, 60), ids, proposer, params=params, count=3,
                          max_tokens=14, tally=right)
                expect_equal((mine.steps, mine.proposed, mine.accepted, mine.generated),
                             (right.steps, right.proposed, right.accepted, right.generated),
                             of="the tally")


@check(SPECULATE, points=0.5, public=False)
def any_run(speculate, rng):
    """Runs of many kinds: every end, every size, guesses that are right here and there."""
    for _ in range(12):
        model, ids = new_model(rng, 15)
        truth = plain(model, ids, 16)
        chance = rng.random((40, 8))

        def often_right(text: list[int], count: int) -> list[int]:
            said = len(text) - 5
            return [truth[said + i] if said + i < 16 and chance[len(text), i] < 0.8 else 3
                    for i in range(min(count, 8))]

        eos = rng.integers(0, 15, 2).tolist() if rng.random() < 0.5 else []
        limit = int(rng.integers(1, 16))
        context = Context(model, int(rng.choice([5 + limit, 6 + limit // 2, 90])))
        most = min(limit, context.cache.capacity - 5)
        end = next((place for place, id in enumerate(truth[:most]) if id in eos), None)
        got = speculate(context, ids, Guesses(often_right), params=GREEDY,
                        count=int(rng.integers(1, 8)), max_tokens=limit, eos_ids=frozenset(eos))
        expect_text(got, truth[:most if end is None else end],
                    "length" if end is None else "stop", "in a random run", "")
        expect_held(context, [*ids, *(truth[:most - 1] if end is None else truth[:end])],
                    "in a random run", "")
        if end is None:
            expect_close(context.forward([got[0][-1]]), model.logits_after([*ids, *got[0]]),
                         of="the logits afterwards")
