"""Speculative decoding: guess tokens cheaply, check all in one forward pass, keep what holds.

A forward pass over one token and over five reads the same weights, so on a machine that waits
for memory five cost less than five passes. Whoever guesses well gets several tokens for little
more than one. The guesses never change the result: greedy text is the target's, token for
token, and sampled text has the target's distribution.
Left out on purpose: grammars and log-probabilities, which `decoding.generate` has.

Shapes: k guessed tokens, V vocabulary. Probabilities are float32.
Source: Leviathan, Kalman & Matias 2023, "Fast Inference from Transformers via Speculative
Decoding"; Chen et al. 2023, "Accelerating Large Language Model Decoding with Speculative
Sampling".
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from gearworks.decoding import Context, room_for
from gearworks.errors import ModelError
from gearworks.families.layouts import Weights
from gearworks.layers import softmax
from gearworks.model import Model
from gearworks.sampling import SamplingParams, choose, process, refuse_unusable


@dataclass(frozen=True)
class Proposal:
    """Guessed tokens.
    probabilities: (k, V), what each was drawn from; None when they were copied instead."""

    ids: list[int]
    probabilities: np.ndarray | None = None


class Proposer(Protocol):
    """Guesses how a text goes on."""

    def propose(self, ids: Sequence[int], count: int, rng: np.random.Generator) -> Proposal:
        """At most `count` tokens that could follow `ids`, the whole text so far."""


def ngram_propose(ids: Sequence[int], count: int, longest: int = 3) -> list[int]:
    """Guess that the text goes on as it did the last time that it ended like this.

    The last n tokens, with n from `longest` down to 1, are looked for earlier in the text; the
    longest match wins, and of several the latest. Returns the up to `count` tokens that
    followed it there, or nothing.
    Source: Saxena 2023, "Prompt Lookup Decoding".

    >>> ngram_propose([1, 2, 3, 9, 1, 2], count=3)
    [3, 9, 1]
    """
    ids = np.asarray(ids)
    for length in range(min(longest, len(ids) - 1), 0, -1):
        # the end itself is no match
        windows = np.lib.stride_tricks.sliding_window_view(ids[:-1], length)
        matches = np.flatnonzero((windows == ids[-length:]).all(axis=1))
        if len(matches):
            after = int(matches[-1]) + length
            return ids[after:after + count].tolist()
    return []


def accept(proposed: Sequence[int], draft: np.ndarray | None, target: np.ndarray,
           rng: np.random.Generator) -> list[int]:
    """Decide how many guessed tokens stay, and draw the one that follows them.

    proposed: k ids; draft: (k, V), the probabilities that each was drawn from, or None when
    they were certain;
    target: (k + 1, V), the target's probabilities at each of these places and at the one after
    them.
    Returns 1 to k + 1 ids: the accepted ones, and one more. A guess is accepted with the
    probability min(1, target / draft). At the first that is not, the next token is drawn from
    what the target has more of than the draft, max(0, target - draft), scaled to sum to 1; when
    all are accepted, it is drawn from the target's last row.

    >>> sure = np.eye(4, dtype=np.float32)
    >>> [accept([2, 1], None, sure[rows], np.random.default_rng(0))
    ...  for rows in ([2, 1, 3], [0, 1, 3])]
    [[2, 1, 3], [0]]
    """
    kept: list[int] = []
    for place, token in enumerate(proposed):
        certain = 1.0 if draft is None else float(draft[place, token])
        if rng.random() * certain < target[place, token]:
            kept.append(int(token))
            continue
        rest = target[place].astype(np.float64)
        if draft is None:
            rest[token] = 0
        else:
            rest = np.maximum(rest - draft[place], 0)
        if not rest.any():                        # rounding alone refused it: both are the same
            rest = target[place].astype(np.float64)
        return [*kept, draw(rest, rng)]
    return [*kept, draw(target[len(kept)].astype(np.float64), rng)]


def draw(weights: np.ndarray, rng: np.random.Generator) -> int:
    """Draw an index, each with a probability in proportion to its weight.
    weights: (V,) float64, not all zero.

    >>> draw(np.array([0., 0., 0.25]), np.random.default_rng(0))
    2
    """
    cumulative = np.cumsum(weights)
    return int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))


@dataclass
class Tally:
    """What speculation did: tokens guessed, accepted and put out, and the target's passes.

    Those that were accepted count even where the text ended before them.
    """

    proposed: int = 0
    accepted: int = 0
    steps: int = 0
    generated: int = 0

    @property
    def acceptance(self) -> float:
        """The share of guesses that stayed."""
        return self.accepted / self.proposed if self.proposed else 0.0


def speculate(context: Context, ids: Sequence[int], proposer: Proposer, *,
              params: SamplingParams = SamplingParams(), count: int = 4, max_tokens: int = 256,
              eos_ids: Collection[int] = (),
              on_token: Callable[[int], bool] | None = None,
              tally: Tally | None = None) -> tuple[list[int], str]:
    """Continue a prompt with guesses.

    context: of the target, whose cache holds the beginning of `ids`; ids: the prompt; count:
    guesses per step. What a proposer gives beyond what it was asked for is dropped.
    eos_ids, max_tokens and on_token as for `pipeline.run_request`; they hold inside an accepted
    run too. The text, prompt included, never outgrows the cache, and no guess is asked for that
    the limit or the cache has no room for.
    tally: counts, if it is given.
    Returns the generated ids, and "stop" or "length". Penalties see each token that comes
    before, guessed or not. Afterwards the context holds what it would without guesses: the text
    without its last token, or, where an EOS ended it, all of it.
    Raises ModelError as `decoding.room_for` does.

    >>> from types import SimpleNamespace
    >>> class OneMore:                                # a model: after id n comes n + 1
    ...     config = SimpleNamespace(max_position_embeddings=20)
    ...     def new_cache(self, capacity):
    ...         return SimpleNamespace(capacity=capacity, truncate=lambda length: None)
    ...     def forward(self, input_ids, positions, cache, logits_at):
    ...         return np.eye(9, dtype=np.float32)[np.asarray(input_ids)[logits_at] + 1]
    >>> class Guesser:                                # right, and then wrong
    ...     def propose(self, ids, count, rng):
    ...         return Proposal([ids[-1] + 1, 0][:count])
    >>> tally = Tally()
    >>> speculate(Context(OneMore(), 20), [1, 2], Guesser(), eos_ids={7}, tally=tally)
    ([3, 4, 5, 6], 'stop')
    >>> tally.accepted
    3
    """
    rng = np.random.default_rng(params.seed)
    tally = Tally() if tally is None else tally
    end = len(ids) + room_for(ids, max_tokens, context.cache.capacity)
    context.rewind(ids)
    text, generated, reason = list(ids), [], "length"
    while len(text) < end and reason == "length":
        room = min(count, end - len(text) - 1)            # one more token comes without a guess
        proposal = proposer.propose(text, room, rng) if room > 0 else Proposal([])
        guesses = proposal.ids[:room]
        unseen = text[len(context.ids):]                          # what the target has not seen
        logits = context.forward_all([*unseen, *guesses], rows=len(guesses) + 1)    # (k + 1, V)
        tally.steps += 1
        tally.proposed += len(guesses)
        accepted = next_tokens(logits, guesses, proposal.probabilities, params, text, len(ids),
                               rng)
        tally.accepted += len(accepted) - 1
        for token in accepted:
            text.append(token)
            if token in eos_ids:
                reason = "stop"
                break
            generated.append(token)
            tally.generated += 1
            if on_token is not None and on_token(token):
                reason = "stop"
                break
        context.truncate(len(text) - 1)               # the last one is yet to be run, or an EOS
    return generated, reason


def next_tokens(logits: np.ndarray, guesses: Sequence[int], draft: np.ndarray | None,
                params: SamplingParams, text: Sequence[int], prompt_length: int,
                rng: np.random.Generator) -> list[int]:
    """The accepted guesses and the next token, 1 to k + 1 ids, after all processors everywhere.

    logits: (k + 1, V), the target's after the last token of `text` and after each guess;
    guesses: k ids; draft: (k, V), what they were drawn from, or None; text: all tokens before
    the guesses, of which the first `prompt_length` are the prompt. Greedy takes the likeliest
    token everywhere, and keeps the guesses that are it.
    Raises ModelError for logits without a distribution, as `choose` does, and for a draft of
    another vocabulary.
    """
    if draft is not None and (len(draft) < len(guesses) or draft.shape[1] != logits.shape[1]):
        raise ModelError("cannot judge these guesses",
                         f"their probabilities are {draft.shape}, and should be "
                         f"{(len(guesses), logits.shape[1])}",
                         "use a draft model that has the target's vocabulary")
    if params.temperature == 0:
        kept: list[int] = []
        for row in logits:
            token = choose(row, params, [*text, *kept], rng, [*text[prompt_length:], *kept])
            kept.append(token)
            if len(kept) > len(guesses) or token != guesses[len(kept) - 1]:
                break
        return kept
    target = [distribution(row, params, [*text, *guesses[:place]], prompt_length, rng)
              for place, row in enumerate(logits)]
    return accept(guesses, draft, np.stack(target), rng)


def distribution(logits: np.ndarray, params: SamplingParams, ids: Sequence[int],
                 prompt_length: int, rng: np.random.Generator) -> np.ndarray:
    """The distribution of the token after `ids`, after every processor.

    logits: (V,); prompt_length: so many of `ids` are the prompt; rng: for XTC, which is left
    to chance; returns (V,).
    Raises ModelError for logits without a distribution.
    """
    refuse_unusable(logits)                                 # before a processor hides a nan
    processed = process(logits, params, ids, ids[prompt_length:])
    refuse_unusable(processed)
    if params.others is not None:
        processed = params.others.without_top_choices(processed, rng)
    return softmax(processed)


class NgramProposer:
    """Copies from the text itself: free, and good where an answer repeats its prompt."""

    def __init__(self, longest: int = 3):
        self.longest = longest

    def propose(self, ids: Sequence[int], count: int, rng: np.random.Generator) -> Proposal:
        """As `Proposer.propose`; takes nothing from rng."""
        return Proposal(ngram_propose(ids, count, self.longest))


class DraftModel:
    """Lets a smaller model guess, with its own cache, rewound to what the target kept."""

    def __init__(self, model: Model, capacity: int, params: SamplingParams = SamplingParams(),
                 prompt_length: int = 0):
        """model: with the target's vocabulary; capacity: of the draft's cache, in tokens;
        params: as the target's, so that both mean the same distribution; prompt_length: how
        many tokens the presence and frequency penalties do not count."""
        self.context = Context(model, capacity)
        self.params = params
        self.prompt_length = prompt_length

    def propose(self, ids: Sequence[int], count: int, rng: np.random.Generator) -> Proposal:
        """As `Proposer.propose`; fewer guesses where the draft's own cache is full."""
        text, rows = list(ids), []
        self.context.rewind(text)
        for _ in range(min(count, self.context.cache.capacity - len(ids) + 1)):
            logits = self.context.forward(text[len(self.context.ids):])
            if self.params.temperature == 0:
                text.append(choose(logits, self.params, text, rng, text[self.prompt_length:]))
            else:
                rows.append(distribution(logits, self.params, text, self.prompt_length,
                                         rng))
                text.append(draw(rows[-1].astype(np.float64), rng))
        return Proposal(text[len(ids):], np.stack(rows) if rows else None)


class BackOff:
    """Asks another proposer for fewer guesses where they fail, and for none where all do.

    A refused guess has cost its share of a forward pass. So when nothing was kept of a step's
    guesses, the next step asks for half as many; when all were kept, for twice as many. From
    one guess that failed it rests, for `rest` steps at first and twice as long each time that
    one guess fails again, and then tries with one. It needs not be told what was kept: the text
    shows it.
    """

    def __init__(self, proposer: Proposer, most: int = 8, rest: int = 4,
                 longest_rest: int = 64):
        """most: guesses of a step, at most; rest, longest_rest: in steps."""
        self.proposer = proposer
        self.most, self.rest, self.longest_rest = most, rest, longest_rest
        self.count = most                                # to ask for
        self.pause = rest                                # how long the next rest is
        self.resting = 0                                 # steps left of this one
        self._asked_at = 0
        self._guesses: list[int] = []

    def propose(self, ids: Sequence[int], count: int, rng: np.random.Generator) -> Proposal:
        """As `Proposer.propose`; what was kept of the last ones decides how many there are."""
        self._learn(ids)
        if self.resting:
            self.resting -= 1
            return Proposal([])
        proposal = self.proposer.propose(ids, min(count, self.count), rng)
        self._asked_at, self._guesses = len(ids), list(proposal.ids)
        return proposal

    def _learn(self, ids: Sequence[int]) -> None:
        """See what became of the last guesses."""
        guesses, self._guesses = self._guesses, []
        if not guesses:
            return
        came = ids[self._asked_at:self._asked_at + len(guesses)]
        kept = next((place for place, (guess, token) in enumerate(zip(guesses, came))
                     if guess != token), min(len(guesses), len(came)))
        if kept == len(guesses):
            self.count = min(2 * self.count, self.most)
            self.pause = self.rest
        elif not kept and self.count > 1:
            self.count //= 2
        elif not kept:
            self.resting = self.pause
            self.pause = min(2 * self.pause, self.longest_rest)


def skip_layers(model: Model, kept: Sequence[int]) -> Model:
    """A draft that ships with every model: the same weights, without some of the layers.

    kept: the numbers of the layers that stay. No weight is copied.
    Source: Zhang et al. 2023, "Draft & Verify".
    """
    layers = tuple(model.weights.layers[layer] for layer in kept)
    of_layers = {name: tuple(getattr(model.config, name)[layer] for layer in kept)
                 for name in ("windows", "rope_layers") if getattr(model.config, name)}
    weights: Weights = replace(model.weights, layers=layers)
    return Model(replace(model.config, num_hidden_layers=len(layers), **of_layers), weights)
