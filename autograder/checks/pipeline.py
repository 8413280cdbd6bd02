"""Checks of the request loop: what it asks of its boxes, when it stops, what it hands back."""

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from autograder.checking import (CheckFailure, check, expect, expect_equal, expect_returned,
                                 expect_unchanged)
from autograder.checking.examples import docstring_example
from autograder.checking.differential import Seen, expect_agreement
from autograder.generators.ids import IDS
from gearworks.pipeline import run_request as reference

# A loop that never stops is stopped after this many forward passes.
PATIENCE = 300


class Machine:
    """Four black boxes that answer from a script, and remember what they were asked.

    Its words are numbers: the prompt "5 7" has the ids 5 and 7. Once the script has ended, it
    goes on with token 3.
    """

    def __init__(self, script):
        self.script = [int(token) for token in script]
        self.seen, self.decoded, self.shown = [], [], []

    def encode(self, text):
        return [int(word) for word in text.split()]

    def forward(self, ids):
        if len(self.seen) == PATIENCE:
            raise RuntimeError(f"the model was asked {PATIENCE} times and the request still "
                               "has not stopped")
        self.seen.append(id_list("forward", ids))
        return len(self.seen) - 1

    def choose(self, step):
        return self.script[step] if step < len(self.script) else 3

    def decode(self, ids):
        self.decoded.append(id_list("decode", ids))
        return words(self.decoded[-1])

    def answer(self, run_request, prompt="40 41 42", **options):
        completion = run_request(prompt, encode=self.encode, forward=self.forward,
                                 choose=self.choose, decode=self.decode, **options)
        expect_returned(completion, "the request to give back a `Completion`")
        for field in ("prompt_ids", "ids", "text", "finish_reason"):
            expect(getattr(completion, field, None) is not None,
                   "the request to give back a `Completion`",
                   f"a {type(completion).__name__} without {field}",
                   "Build it at the end: Completion(prompt_ids, ids, text, finish_reason).")
        return completion


def id_list(box: str, ids) -> list[int]:
    """What a black box was given, as a list of integers."""
    try:
        return [int(id) for id in ids]
    except (TypeError, ValueError):
        raise CheckFailure(f"`{box}` to be given a list of ids",
                           f"that `{box}` was given {str(ids)[:60]}, not a list of ids",
                           "It takes a list in every round, also when there is a single id in "
                           "it.") from None


def tokens(rng: np.random.Generator, count: int, low: int = 100) -> list[int]:
    """Different ids, none of which is an EOS of these checks."""
    return (low + rng.permutation(200)[:count]).tolist()


def words(ids: list[int]) -> str:
    return " ".join(map(str, ids))


example_of_run_request = docstring_example("pipeline.run_request", points=1)


@check("pipeline.run_request", points=4, public=True)
def reads_the_prompt_once(run_request, rng):
    """The prompt goes into the model once, then one new token at a time."""
    prompt, script = tokens(rng, 5), tokens(rng, 4)
    machine = Machine([*script, 9])
    machine.answer(run_request, words(prompt), eos_ids={9}, max_tokens=20)
    expect_equal(machine.seen, [prompt, *([token] for token in script)],
                 of="what `forward` was given, call by call",
                 hint="`forward` takes only the ids that the model has not seen yet; it "
                      "remembers the others.")


@check("pipeline.run_request", points=3, public=True)
def stops_at_any_eos(run_request, rng):
    """Any of several EOS ids ends the answer, and is not part of it."""
    script = tokens(rng, 3)
    for eos in (7, 8, 9):
        completion = Machine([*script, eos, *script]).answer(run_request, eos_ids=[7, 8, 9],
                                                             max_tokens=20)
        expect_equal(completion.ids, script,
                     of=f"the generated ids, when the model says {script} and then EOS {eos}",
                     hint="A model may have several EOS ids. Compare the token with all of "
                          "them, before you keep it.")
        expect_equal(completion.finish_reason, "stop", of="finish_reason after an EOS")


@check("pipeline.run_request", points=2, public=True)
def empty_answer(run_request, rng):
    """An EOS as the very first token gives an empty answer."""
    completion = Machine([9, *tokens(rng, 3)]).answer(run_request, eos_ids={9}, max_tokens=20)
    expect_equal((completion.ids, completion.text, completion.finish_reason), ([], "", "stop"),
                 of="ids, text and finish_reason",
                 hint="The first token is a token like every other: it may be an EOS.")


@check("pipeline.run_request", points=3, public=True)
def stops_at_the_limit(run_request, rng):
    """The limit holds exactly, zero included,
    and the model is asked for no token that nobody wants."""
    for limit in (4, 1, 0):
        machine = Machine([*tokens(rng, limit), 9])
        completion = machine.answer(run_request, eos_ids={9}, max_tokens=limit)
        expect_equal(len(completion.ids), limit,
                     of=f"the number of generated ids with max_tokens={limit}",
                     hint="Only generated tokens count, and 0 is a limit like any other.")
        expect_equal(completion.finish_reason, "length",
                     of=f"finish_reason with max_tokens={limit}",
                     hint="An EOS that was never asked for did not stop anything.")
        expect_equal(len(machine.seen), limit,
                     of=f"the number of `forward` calls with max_tokens={limit}",
                     hint="A forward pass is all that costs anything. Decide before it whether "
                          "its token is wanted.")


@check("pipeline.run_request", points=2, public=True)
def hands_everything_back(run_request, rng):
    """The completion holds the prompt's ids, the generated ids, and the text of the latter,
    decoded together."""
    prompt, script = tokens(rng, 3), tokens(rng, 4)
    machine = Machine([*script, 9])
    completion = machine.answer(run_request, words(prompt), eos_ids={9}, max_tokens=20)
    expect_equal(completion.prompt_ids, prompt, of="prompt_ids",
                 hint="Was the prompt's list changed on the way?")
    expect_equal(completion.ids, script, of="ids")
    expect_equal(completion.text, words(script), of="text",
                 hint="The text is what `decode` makes of the generated ids, all at once: a "
                      "character may be spread over several tokens.")


@check("pipeline.run_request", points=2, public=True)
def the_reader_watches(run_request, rng):
    """`on_token` sees every generated token, and a true answer from it stops the request."""
    script = tokens(rng, 5)
    shown = []

    def on_token(token):
        shown.append(int(token))
        return int(token) == script[2]
    completion = Machine(script).answer(run_request, eos_ids={9}, max_tokens=5,
                                        on_token=on_token)
    expect_equal(shown, script[:3], of="the tokens that `on_token` was shown",
                 hint="It sees a token as soon as it is kept, and the request ends when it "
                      "returns true.")
    expect_equal(completion.ids, script[:3],
                 of="ids, when the reader stopped at the third token")
    expect_equal(completion.finish_reason, "stop",
                 of="finish_reason when the reader stopped the request")
    shown.clear()
    Machine([*script[:2], 9]).answer(run_request, eos_ids={9}, max_tokens=5, on_token=on_token)
    expect_equal(shown, script[:2], of="the tokens that `on_token` was shown before an EOS",
                 hint="The EOS is no part of the answer, so nobody is shown it.")


@dataclass(frozen=True)
class Request:
    """A prompt's ids, what the model says to it, and when to stop. on: the tokens at which
    `on_token` returns true; None: there is no `on_token`."""

    prompt: list[int]
    script: list[int]
    eos_ids: list[int]
    max_tokens: int
    on: list[int] | None

    def typed(self) -> str:
        watcher = "" if self.on is None else f", on_token=lambda token: token in {self.on}"
        return (f"run_request({words(self.prompt)!r}, …, eos_ids={self.eos_ids}, "
                f"max_tokens={self.max_tokens}{watcher}), where the model says {self.script} "
                "and then 3 for ever")


@st.composite
def requests(draw) -> Request:
    """A model that says a few tokens, and an EOS, a reader and a limit that come at any of
    them, or not at all."""
    token = st.sampled_from(IDS[:6])
    prompt = draw(st.lists(token, min_size=1, max_size=3))
    script = draw(st.lists(token, min_size=1, max_size=5))
    some = st.lists(st.one_of(st.sampled_from(script), token), max_size=2, unique=True)
    limit = draw(st.integers(-1, 1).map(lambda more: max(0, len(script) + more))
                 | st.integers(0, 6))
    last = [script[limit - 1]] if 0 < limit <= len(script) else []
    watched = draw(st.one_of(st.none(), some, st.just(last)))
    return Request(prompt, script, draw(st.one_of(st.just([]), some)), limit, watched)


def seen_of(run_request, request: Request) -> Seen:
    """What a request gives back, and what it asked for on the way."""
    machine, shown = Machine(request.script), []

    def on_token(token) -> bool:
        shown.append(int(token))
        return int(token) in request.on

    watcher = {} if request.on is None else {"on_token": on_token}
    eos_ids = [*request.eos_ids]
    with expect_unchanged(eos_ids):
        completion = machine.answer(run_request, words(request.prompt), eos_ids=eos_ids,
                                    max_tokens=request.max_tokens, **watcher)
    return [*((f"{field} of", getattr(completion, field))
              for field in ("prompt_ids", "ids", "text", "finish_reason")),
            ("what `forward` was given, call by call, in", machine.seen),
            ("what `on_token` was shown in", shown)]


@check("pipeline.run_request", points=4, public=True)
def any_reader(run_request, rng):
    """Requests that end in every way, with a reader who stops them or not."""
    expect_agreement(run_request, reference, requests(), rng, run=seen_of, examples=150,
                     hint="Play the request with pencil and paper, token by token: what ends "
                          "it, and is the token that ends it kept?")


@check("pipeline.run_request", points=1, public=False)
def ordinary_ids(run_request, rng):
    """Ids that look special are ordinary where they stand:
    0 in an answer, an EOS inside the prompt."""
    script = [0, *tokens(rng, 2), 0]
    machine = Machine([*script, 9])
    completion = machine.answer(run_request, "9 44 9", eos_ids=frozenset({9, 8}), max_tokens=20)
    expect_equal(completion.ids, script, of="the generated ids")
    expect_equal(machine.seen[0], [9, 44, 9], of="the first ids that `forward` was given")


@check("pipeline.run_request", points=2, public=False, always=(0,))
def any_request(run_request, rng):
    """Requests of many kinds, with every call that they make."""
    for _ in range(20):
        script = rng.integers(0, 12, rng.integers(0, 12)).tolist()
        eos_ids = set(rng.integers(0, 12, rng.integers(0, 4)).tolist())
        options = {"eos_ids": sorted(eos_ids), "max_tokens": int(rng.integers(0, 10))}
        ours, theirs = Machine(script), Machine(script)
        prompt = words(tokens(rng, int(rng.integers(1, 5))))
        expected = ours.answer(reference, prompt, **options)
        got = theirs.answer(run_request, prompt, **options)
        for field in ("prompt_ids", "ids", "text", "finish_reason"):
            expect_equal(getattr(got, field), getattr(expected, field), of=field)
        expect_equal(theirs.seen, ours.seen, of="what `forward` was given, call by call")
