"""Speculation changes how fast a text comes, and nothing about the text. About 25 s."""

import numpy as np
import pytest

from gearworks.decoding import Context, TextStream
from gearworks.errors import ModelError
from gearworks.layers import softmax
from gearworks.model import Model
from gearworks.sampling import SamplingParams, choose, process
from gearworks.speculative import (BackOff, DraftModel, NgramProposer, Proposal, Tally, accept,
                                   next_tokens, ngram_propose, skip_layers, speculate)

V = 211


@pytest.fixture(scope="module")
def model(tiny_llama):
    return Model.load(tiny_llama(31, num_hidden_layers=4)[1])


def plain(model, ids, max_tokens, params=SamplingParams(), eos_ids=()):
    """The text without guesses: one token after the other."""
    context, generated = Context(model), []
    logits = context.forward(ids)
    while len(generated) < max_tokens:
        token = int(process(logits, params, [*ids, *generated], generated).argmax())
        if token in eos_ids:
            return generated, "stop"
        generated.append(token)
        logits = context.forward([token])
    return generated, "length"


class Scripted:
    """Guesses from a script; what it was asked is remembered."""

    def __init__(self, guess):
        self.guess, self.asked = guess, []

    def propose(self, ids, count, rng):
        self.asked.append((len(ids), count))
        return Proposal(self.guess(list(ids), count))


def proposers(model, truth):
    """Right, wrong, right at first, random, copied, and drawn by a draft model."""
    rng = np.random.default_rng(0)
    start = len(truth[0])
    whole = [*truth[0], *truth[1]]
    return {"right": Scripted(lambda ids, count: whole[len(ids):len(ids) + count]),
            "wrong": Scripted(lambda ids, count: [
                (whole[len(ids)] + 1) % V] * count if len(ids) < len(whole) else []),
            "right-at-first": Scripted(lambda ids, count: [*whole[len(ids):len(ids) + 2], 5,
                                                           5][:count]),
            "random": Scripted(lambda ids, count: rng.integers(0, V, count).tolist()),
            "none": Scripted(lambda ids, count: []),
            "more-than-asked": Scripted(lambda ids, count: whole[len(
                ids):len(ids) + count + 3]), "ngram": NgramProposer(),
            "draft": DraftModel(skip_layers(model, [0, 2]), start + len(truth[1]) + 20),
            "itself": DraftModel(model, start + len(truth[1]) + 20)}


@pytest.mark.parametrize(
    "params", [SamplingParams(), SamplingParams(repetition_penalty=1.3, presence_penalty=0.4)],
    ids=["plain", "penalties"])
@pytest.mark.parametrize("name",
                         ["right", "wrong", "right-at-first", "random", "none",
                          "more-than-asked", "ngram", "draft", "itself"])
def test_greedy_text_is_the_targets(model, rng, name, params):
    ids = rng.integers(0, V, 12).tolist() * 2
    truth = plain(model, ids, 40, params)
    tally = Tally()
    proposer = proposers(model, (ids, truth[0]))[name]
    for count in (1, 4, 7):
        assert (speculate(Context(model), ids, proposer, params=params, count=count,
                          max_tokens=40, tally=tally) == truth)
    assert tally.generated == 120 and tally.accepted <= tally.proposed
    if name == "right":
        assert tally.accepted == tally.proposed and tally.steps < 60
    if name in ("wrong", "none"):
        assert tally.accepted == 0 and tally.steps == 120


def test_on_the_real_model_too(smollm2):
    prompt = smollm2.chat_prompt([{"role": "user",
                                   "content": "Write this again: the cat sat on the mat, and "
                                              "the dog sat too."}])
    ids = smollm2.tokenizer.encode(prompt)
    expected = smollm2.generate(prompt, add_special_tokens=False, max_tokens=32)
    tally = Tally()
    got = speculate(Context(smollm2.model, 200), ids, NgramProposer(), count=5, max_tokens=32,
                    eos_ids=smollm2.eos_ids, tally=tally)
    assert got == (expected.ids, expected.finish_reason) and tally.accepted > 0


@pytest.mark.parametrize("max_tokens", [0, 1, 2, 5, 6])
def test_the_limit_holds_inside_an_accepted_run(model, rng, max_tokens):
    ids = rng.integers(0, V, 9).tolist()
    truth = plain(model, ids, 20)[0]
    right = Scripted(lambda text, count: [*ids, *truth][len(text):len(text) + count])
    context = Context(model, len(ids) + max_tokens)         # and never more room than is needed
    assert (speculate(context, ids, right, count=4, max_tokens=max_tokens)
            == (truth[:max_tokens], "length"))


def test_an_eos_inside_an_accepted_run_ends_the_text(model, rng):
    ids = rng.integers(0, V, 9).tolist()
    truth = plain(model, ids, 20)[0]
    eos = truth[2]
    right = Scripted(lambda text, count: [*ids, *truth][len(text):len(text) + count])
    assert (speculate(Context(model), ids, right, count=6, max_tokens=20, eos_ids={eos})
            == (truth[:truth.index(eos)], "stop"))


def test_a_reader_who_has_enough_ends_the_text(model, rng):
    ids = rng.integers(0, V, 9).tolist()
    truth, seen = plain(model, ids, 20)[0], []
    right = Scripted(lambda text, count: [*ids, *truth][len(text):len(text) + count])

    def show(token):
        seen.append(token)
        return len(seen) == 3
    assert (speculate(Context(model), ids, right, count=6, max_tokens=20, on_token=show)
            == (truth[:3], "stop"))
    assert seen == truth[:3]


def test_a_stop_string_inside_an_accepted_run_ends_the_text(smollm2):
    """Guesses that are all right run past it in one pass;
    what is shown is what plain decoding shows."""
    prompt = "1, 2, 3, 4, 5,"
    ids = smollm2.tokenizer.encode(prompt)
    whole = smollm2.generate(prompt, max_tokens=16).ids
    right = Scripted(lambda text, count: [*ids, *whole][len(text):len(text) + count])
    for stop in (" 8", "7, 8", ", 9,"):                          # across borders of tokens, too
        expected, pieces = smollm2.generate(prompt, max_tokens=16, stop=[stop]), []
        stream = TextStream(smollm2.tokenizer, [stop], pieces.append)
        context = Context(smollm2.model, 64)
        got = speculate(context, ids, right, count=15, max_tokens=16, eos_ids=smollm2.eos_ids,
                        on_token=stream.push)
        assert got == (expected.ids, expected.finish_reason) and len(expected.ids) < 16
        assert stream.finish() == "".join(pieces) == expected.text
        assert context.ids == [*ids, *expected.ids[:-1]]


def test_the_cache_holds_what_was_kept_and_no_more(model, rng):
    ids = rng.integers(0, V, 9).tolist()
    context = Context(model)
    generated, _ = speculate(context, ids, NgramProposer(), count=4, max_tokens=11)
    assert (context.ids == [*ids, *generated][:len(context.ids)]
            and len(context.ids) in (len(ids) + 10, len(ids) + 11))
    assert len(context.cache) == len(context.ids)
    fresh = Context(model)
    fresh.forward(context.ids)
    np.testing.assert_allclose(context.forward([7]), fresh.forward([7]), rtol=0, atol=1e-5)


FAMILIES = {"Llama": {}, "Mistral": {"sliding_window": 7}, "Gemma3": {},
            "GPT2": {"n_positions": 64}, "Qwen3": {"head_dim": 10}, "Mixtral": {},
            "DeepseekV2": {}, "DeepseekV3": {}, "SmolLM3": {}, "Olmo2": {}, "Phi3": {},
            "Gemma2": {}, "GptOss": {}}


def one_by_one(model, ids, params, capacity, eos_ids, enough):
    """As `plain`, to whatever end comes first; also the ids that the cache holds then."""
    context, generated = Context(model, capacity), []
    logits = context.forward(ids)
    while True:
        token = choose(logits, params, [*ids, *generated], None, generated)
        if token in eos_ids:
            return generated, "stop", context.ids
        generated.append(token)
        if len(generated) == enough:
            return generated, "stop", context.ids
        if len(generated) == min(30, capacity - len(ids)):
            return generated, "length", context.ids
        logits = context.forward([token])


@pytest.mark.parametrize("family", list(FAMILIES))
def test_every_family_and_every_end(tiny_model, family, rng):
    """Windows, latent attention, learned positions, experts;
    an EOS, a reader, a limit or a full cache inside a run."""
    model = Model.load(tiny_model(family, 33, **FAMILIES[family])[1])
    for trial in range(6):
        ids = rng.integers(0, V, int(rng.integers(1, 14))).tolist() * int(rng.integers(1, 3))
        capacity = len(ids) + [1, 3, 9, 40, 60, 64][trial]
        capacity = min(capacity, model.config.max_position_embeddings)
        params = (SamplingParams(repetition_penalty=1.3, presence_penalty=0.4,
                                 frequency_penalty=0.2, logit_bias={5: 3.0, 7: -np.inf})
                  if trial % 2 else SamplingParams())
        eos_ids = set(one_by_one(model, ids, params, capacity, (), 0)[0][3:4] if trial > 3
                      else [])
        enough = int(rng.integers(2, 9)) if trial > 1 else 0
        expected = one_by_one(model, ids, params, capacity, eos_ids, enough)
        drafts = [DraftModel(skip_layers(model, [0, 2]), capacity - 1, params, len(ids)),
                  DraftModel(model, len(ids) + 2, params, len(ids)),          # soon full itself
                  DraftModel(model, capacity, params, len(ids))]
        for proposer in (NgramProposer(), *drafts):
            context, seen, tally = Context(model, capacity), [], Tally()
            generated, reason = speculate(
                context, ids, proposer, params=params, count=1 + trial, max_tokens=30,
                eos_ids=eos_ids, tally=tally,
                on_token=lambda token: seen.append(token) or len(seen) == enough)
            assert (generated, reason, context.ids) == expected and seen == generated
            assert set(context.cache.lengths) == {len(context.ids)}
        # the model agrees with itself, penalties and all
        assert tally.accepted == tally.proposed


@pytest.mark.parametrize("warm", [{}, {"temperature": 1.2, "top_k": 3, "seed": 5}],
                         ids=["greedy", "warm"])
def test_broken_logits_are_an_error(tiny_llama, rng, warm):
    broken = Model.load(tiny_llama(34)[1])
    broken.weights.norm[:] = np.nan
    params = SamplingParams(**warm)
    with pytest.raises(ModelError, match="cannot choose a token"):
        DraftModel(broken, 40, params).propose([1, 2, 3, 1, 2], 3, rng)
    with pytest.raises(ModelError, match="cannot choose a token"):
        next_tokens(Context(broken, 40).forward_all([1, 2, 3, 1], rows=2), [1], None, params,
                    [1, 2, 3], 3, rng)


def test_a_draft_of_another_vocabulary_is_refused(model, tiny_llama, rng):
    params = SamplingParams(temperature=1.0, seed=2)
    guesses = DraftModel(Model.load(tiny_llama(36, vocab_size=50)[1]), 40,
                         params).propose([1, 2, 3], 2, rng)
    logits = Context(model, 40).forward_all([1, 2, 3, *guesses.ids], rows=3)
    with pytest.raises(ModelError, match="vocabulary"):
        next_tokens(logits, guesses.ids, guesses.probabilities, params, [1, 2, 3], 3, rng)


def test_nothing_left_to_choose_is_an_error(model, rng):
    nothing = {"logit_bias": dict.fromkeys(range(V), -np.inf)}
    for params in (SamplingParams(**nothing), SamplingParams(1.0, **nothing)):
        with pytest.raises(ModelError, match="-inf"):
            next_tokens(Context(model, 40).forward_all([1, 2, 1], rows=1), [], None, params,
                        [1, 2, 1], 3, rng)


def test_prompts_that_are_empty_or_leave_no_room_are_refused(model):
    for length in (0, 40, 41):
        with pytest.raises(ModelError):
            speculate(Context(model, 40), [1] * length, NgramProposer(), max_tokens=3)


def test_without_guesses_a_seed_draws_what_it_always_draws(model, rng):
    """The loop without guesses is plain sampling, draw for draw."""
    ids, params = rng.integers(0, V, 8).tolist(), SamplingParams(1.1, top_p=0.95,
                                                                 presence_penalty=0.5, seed=9)
    context, generated, draws = Context(model), [], np.random.default_rng(9)
    logits = context.forward(ids)
    while len(generated) < 30:
        generated.append(choose(logits, params, [*ids, *generated], draws, generated))
        logits = context.forward(generated[-1:])
    silent = Scripted(lambda ids, count: [])
    assert (speculate(Context(model), ids, silent, params=params, max_tokens=30)
            == (generated, "length"))


def test_a_warm_draft_counts_what_was_generated_alone(model, rng):
    """With the target's own weights and penalties, every guess of a draft stays;
    the prompt is not punished."""
    ids, tally = rng.integers(0, 30, 40).tolist(), Tally()
    params = SamplingParams(1.0, presence_penalty=3.0, frequency_penalty=2.0, seed=4)
    speculate(Context(model), ids, DraftModel(model, 100, params, len(ids)), params=params,
              max_tokens=40, tally=tally)
    assert tally.accepted == tally.proposed > 25


def chi_squared(counts, probabilities):
    expected = probabilities * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


# The 99.9 % points of the chi-squared distribution for 6 and for 48 degrees of freedom
LIMIT_6, LIMIT_48 = 22.46, 84.04


@pytest.mark.parametrize("kind", ["close", "far", "disjoint", "equal", "certain"])
def test_the_first_token_has_the_targets_distribution(kind):
    """Whatever the draft says: accepted or drawn anew,
    the token is distributed as the target's own."""
    rng = np.random.default_rng(5)
    target = softmax(rng.standard_normal((2, 7)).astype(np.float32))
    draft = {"close": softmax(np.log(target[:1])
                              + 0.3 * rng.standard_normal((1, 7)).astype(np.float32)),
             "far": softmax(3 * rng.standard_normal((1, 7)).astype(np.float32)),
             "equal": target[:1], "disjoint": np.eye(7, dtype=np.float32)[:1],
             "certain": None}[kind]
    counts = np.zeros(7)
    for _ in range(20_000):
        guess = 2 if draft is None else int(rng.choice(
            7, p=draft[0].astype(np.float64) / draft[0].sum(dtype=np.float64)))
        counts[accept([guess], draft, target, rng)[0]] += 1
    assert chi_squared(counts, target[0].astype(np.float64)) < LIMIT_6


def test_sampled_text_has_the_targets_distribution(model, rng):
    """Two tokens after a prompt, drawn with guesses of a draft model,
    against the target's exact joint distribution."""
    params = SamplingParams(temperature=1.0, top_k=7)
    ids = rng.integers(0, V, 6).tolist()
    context = Context(model)
    first = softmax(process(context.forward(ids), params, ids))
    joint = np.zeros((V, V))
    for token in np.flatnonzero(first):
        fresh = Context(model)
        joint[token] = (float(first[token])
                        * softmax(process(fresh.forward([*ids, int(token)]), params, ids)))
    possible = np.argwhere(joint > 0)
    assert len(possible) == 49
    draft = DraftModel(skip_layers(model, [0, 1, 3]), 40, params)
    target, counts = Context(model), np.zeros((V, V))
    tally = Tally()
    for seed in range(4000):
        seeded = SamplingParams(temperature=1.0, top_k=7, seed=seed)
        generated, _ = speculate(target, ids, draft, params=seeded, count=2, max_tokens=2,
                                 tally=tally)
        counts[tuple(generated)] += 1
    probabilities = joint[tuple(possible.T)]
    assert counts.sum() == counts[tuple(possible.T)].sum()   # nothing that the target rules out
    assert 0.05 < tally.acceptance < 0.95
    assert (chi_squared(counts[tuple(possible.T)], probabilities / probabilities.sum())
            < LIMIT_48)


@pytest.mark.parametrize("draft_wants",
                         [pytest.param({"temperature": 0.0}, marks=pytest.mark.long),
                          pytest.param({"temperature": 0.6, "top_k": 2},
                                       marks=pytest.mark.long),
                          pytest.param({"temperature": 2.0, "top_p": 0.95,
                                        "presence_penalty": -1.0}, marks=pytest.mark.long)],
                         ids=["greedy", "narrow", "wide"])
def test_three_tokens_of_a_draft_that_wants_something_else(tiny_llama, draft_wants):
    """The target's top-p and penalties decide, whatever the draft thinks possible.

    The 99.9 % point of χ² is Wilson and Hilferty's approximation.
    """
    target, ids = Model.load(tiny_llama(35, vocab_size=9)[1]), [3, 1, 4]
    wants = {"temperature": 1.1, "top_p": 0.9, "min_p": 0.02, "presence_penalty": 1.0,
             "repetition_penalty": 1.2}

    def branches(text, chance):
        if len(text) == 6:
            return {tuple(text[3:]): chance}
        logits = process(Context(target, 9).forward(text), SamplingParams(**wants), text,
                         text[3:])
        row = softmax(logits.astype(np.float64))
        return {key: value for token in np.flatnonzero(row)
                for key, value in branches([*text, int(token)], chance * row[token]).items()}
    joint = branches(ids, 1.0)
    context, tally, draws = Context(target, 9), Tally(), 2000
    draft = DraftModel(skip_layers(target, [0, 2]), 9, SamplingParams(**draft_wants), 3)
    counts = dict.fromkeys(joint, 0)
    for seed in range(draws):
        text, _ = speculate(context, ids, draft, params=SamplingParams(**wants, seed=seed),
                            count=2, max_tokens=3, tally=tally)
        counts[tuple(text)] += 1                           # KeyError: what the target rules out
    often = [key for key in joint if joint[key] * draws >= 5]
    found = np.array([counts[key] for key in often]
                     + [draws - sum(counts[key] for key in often)], np.float64)
    expected = np.array([joint[key] for key in often] + [1 - sum(joint[key] for key in often)])
    freedom = len(often)
    limit = freedom * (1 - 2 / (9 * freedom) + 3.09 * (2 / (9 * freedom)) ** 0.5) ** 3
    assert (freedom > 20 and 0.05 < tally.acceptance < 0.95
            and chi_squared(found, expected) < limit)


@pytest.mark.parametrize("ids, count, expected", [
    ([1, 2, 3, 9, 1, 2], 3, [3, 9, 1]),
    ([1, 2, 3, 9, 1, 2], 1, [3]),
    ([5, 1, 7, 1, 8, 1], 2, [8, 1]),                     # the latest match
    ([1, 2, 4, 2, 6, 1, 2], 2, [4, 2]),                  # the longest match before the latest
    ([7, 7, 7], 3, [7]),                                 # overlapping itself
    ([1, 2, 3], 3, []), ([4], 3, []), ([], 3, []),
], ids=str)
def test_ngram_proposals(ids, count, expected):
    assert ngram_propose(ids, count) == expected


def test_skipping_layers_copies_nothing(model):
    draft = skip_layers(model, [0, 3])
    assert (draft.weights.layers[1] is model.weights.layers[3]
            and draft.weights.embed_tokens is model.weights.embed_tokens)
    assert draft.new_cache(4).keys.shape[0] == 2


class Known:
    """Guesses how a known text goes on, or something else."""

    def __init__(self, text, right):
        self.text, self.right, self.asked = text, right, []

    def propose(self, ids, count, rng):
        self.asked.append(count)
        guesses = self.text[len(ids):len(ids) + count]
        return Proposal([token if self.right(len(ids) + place) else token + 1
                         for place, token in enumerate(guesses)])


def steps(proposer, text, start, count=8):
    """How a text comes about when greedy verification keeps what is right."""
    rng, ids, passes = np.random.default_rng(0), list(text[:start]), 0
    while len(ids) < len(text):
        guesses = proposer.propose(ids, count, rng).ids
        kept = next((place for place, guess in enumerate(guesses)
                     if guess != text[len(ids) + place]), len(guesses))
        ids += text[len(ids):len(ids) + kept + 1]
        passes += 1
    return passes


def test_whoever_guesses_wrong_is_asked_less():
    text = list(range(1000, 1400))
    wrong = Known(text, lambda place: False)
    steps(BackOff(wrong), text, 10)
    assert wrong.asked[:4] == [8, 4, 2, 1]
    assert sum(wrong.asked) < 0.08 * len(text)          # 8 a step without it
    right = Known(text, lambda place: True)
    assert steps(BackOff(right), text, 10) == -(-390 // 9)
    assert set(right.asked) == {8}


def test_whoever_guesses_right_again_is_asked_more():
    text = list(range(1000, 1600))
    later = Known(text, lambda place: place > 200)
    passes = steps(BackOff(later, longest_rest=16), text, 10)
    assert later.asked[-1] == 8 and passes < 190 + 16 + 10 + 390 / 9
    some = Known(text, lambda place: place % 7)       # some of each: as many as before
    steps(BackOff(some, most=4), text, 10)
    assert max(some.asked) == 4 and min(some.asked) > 0


def test_backing_off_changes_no_text(model, rng):
    ids = rng.integers(3, 211, 20).tolist() * 2
    plain, backed = (speculate(Context(model, 120), ids, proposer, max_tokens=60)
                     for proposer in (NgramProposer(), BackOff(NgramProposer())))
    assert plain == backed
