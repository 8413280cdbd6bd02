"""Many requests at once: each gets what it gets alone, and Hugging Face's logits."""

import gc
import math
import re
import weakref
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gearworks import decoding
from gearworks.decoding import generate
from gearworks.errors import GearworksError, ModelError
from gearworks.language_model import LanguageModel
from gearworks.model import Model
from gearworks.sampling import SamplingParams, choose, log_softmax
from gearworks.serving import answer as answer_module
from gearworks.serving import engine as engine_module
from gearworks.serving import paged_cache
from gearworks.serving import scheduler as scheduler_module
from gearworks.serving.answer import Answer
from gearworks.serving.engine import LLMEngine
from gearworks.serving.request import Request
from gearworks.serving.scheduler import Plan
from gearworks.structured import GrammarVocabulary, TokenGrammar

V, EOS = 211, 2                        # of the fixture `tokenizer`
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0,
        "original_max_position_embeddings": 64}
FAMILIES = [
    ("Llama", {}), ("Llama", {"rope_parameters": YARN}),
    ("Llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}),
    ("Qwen2", {}), ("Qwen2", {"use_sliding_window": True, "sliding_window": 11,
                              "max_window_layers": 1}),
    ("Qwen3", {"head_dim": 10}), ("Mistral", {"sliding_window": 9}),
    ("Mistral", {"sliding_window": 33, "num_attention_heads": 5, "num_key_value_heads": 5,
                 "head_dim": 6}),
    ("Gemma3", {}), ("GPT2", {}), ("Mixtral", {}), ("Mixtral", {"sliding_window": 1}),
    ("Qwen3Moe", {}), ("SmolLM3", {}), ("Olmo2", {}), ("Phi3", {}), ("Gemma2", {}),
    ("GptOss", {}), ("DeepseekV2", {"topk_method": "greedy"}), ("DeepseekV3", {}),
    ("DeepseekV3", {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 0.8}})]


class Given:
    """A tokenizer for a prompt that is ids already."""

    def __init__(self, tokenizer, ids):
        self._tokenizer, self._ids = tokenizer, [int(id) for id in ids]

    def encode(self, text, **options):
        return self._ids

    def __getattr__(self, name):
        return getattr(self._tokenizer, name)


def alone(language_model, request, index=0, capacity=None):
    """What `gearworks generate` makes of one answer."""
    params, model = request.params, language_model.model
    if params.seed is not None:
        params = replace(params, seed=params.seed + index)
    capacity = capacity or model.config.max_position_embeddings
    context = decoding.Context(model, capacity)
    return generate(model, Given(language_model.tokenizer, request.prompt_ids), "",
                    params=params,
                    max_tokens=capacity if request.max_tokens is None else request.max_tokens,
                    eos_ids=() if request.ignore_eos else language_model.eos_ids,
                    stop=request.stop, stop_ids=request.stop_ids, context=context,
                    top_logprobs=request.top_logprobs,
                    grammar=None if request.grammar is None else request.grammar())


class Checked(LLMEngine):
    """An engine that holds every step to the laws, and whose unwritten memory is nan."""

    def __init__(self, language_model, *, block_size=16, num_blocks=None, **options):
        super().__init__(language_model, block_size=block_size,
                         num_blocks=num_blocks or 1000 // block_size, **options)
        self.memory.keys.fill(np.nan)
        self.memory.values.fill(np.nan)
        self.preempt_every = 0           # with a number, somebody is in some of the first steps

    def forward(self, plan):
        size, slots = self.pool.block_size, set()
        assert sum(count for _, count in plan.rows) <= self.scheduler.max_num_batched_tokens
        for sequence, count in plan.rows:
            start = sequence.num_computed_tokens
            # after the last token that there may be, nobody asks
            assert start + count <= max(sequence.prompt_length, sequence.limit - 1)
            for position in range(start, start + count):
                block = sequence.block_table[position // size]
                assert (block, position % size) not in slots, "two sequences write to one slot"
                slots.add((block, position % size))
                assert self.pool.references[block] == 1, "writes into a shared block"
                assert block not in self.pool.prefix_of, "writes into a block that is kept"
        return super().forward(plan)

    def check(self):
        """The books are right, and what is empty holds nothing that anybody may read."""
        alive = [*self.scheduler.running, *self.scheduler.waiting]
        self.pool.check([one.block_table for one in alive])
        assert ({one.name for one in alive}
                == {one.name for answers in self._answers.values()
                    for one, _ in answers.values()})
        empty = list(self.pool.empty)
        self.memory.keys[:, :, empty] = np.nan
        self.memory.values[:, :, empty] = np.nan

    def step(self):
        deltas = super().step()
        running = self.scheduler.running
        steps = len(self.records)
        if self.preempt_every and running and steps % self.preempt_every == 0 and steps < 60:
            self.scheduler.preempt(running[steps % len(running)], Plan())
        self.check()
        return deltas


@dataclass
class Got:
    """What the deltas of one answer say together."""

    ids: list = field(default_factory=list)
    text: str = ""
    logprobs: list = field(default_factory=list)
    finish_reason: str | None = None
    error: GearworksError | None = None
    prompt_logprobs: tuple | None = None
    cached_tokens: int | None = None
    deltas: int = 0


def collect(deltas, into):
    for delta in deltas:
        got = into.setdefault((delta.request_id, delta.index), Got())
        assert got.finish_reason is None, "something came after the last delta"
        assert delta.text or delta.ids or delta.finish_reason, "a delta that says nothing"
        assert (delta.error is not None) == (delta.finish_reason == "error")
        assert delta.prompt_logprobs is None or got.deltas == 0
        assert got.cached_tokens in (None, delta.cached_tokens)
        got.ids += delta.ids
        got.text += delta.text
        got.logprobs += delta.logprobs
        got.finish_reason, got.error = delta.finish_reason, delta.error
        got.prompt_logprobs = got.prompt_logprobs or delta.prompt_logprobs
        got.cached_tokens, got.deltas = delta.cached_tokens, got.deltas + 1


def serve(engine, requests, arrivals=None, aborts=(), bound=3000):
    """Run requests to their end; arrivals: the step before which each comes; aborts: pairs of
    a step and the number of a request. Returns {(request id, answer): Got}."""
    arrivals = arrivals or [0] * len(requests)
    got: dict = {}
    gone = set()
    for number in range(bound):
        for request, arrival in zip(requests, arrivals):
            if arrival == number:
                engine.add_request(request)
        for step, place in aborts:
            if step == number and arrivals[place] <= number:
                engine.abort(requests[place].id)
                gone.add(requests[place].id)
                if isinstance(engine, Checked):
                    engine.check()
        if not engine.has_unfinished() and number >= max(arrivals, default=0):
            break
        steps = len(engine.records)
        deltas = engine.step()
        assert len(engine.records) > steps or not engine.scheduler.waiting, "nothing is done"
        assert not {delta.request_id for delta in deltas} & gone, "a delta after an abort"
        collect(deltas, got)
    else:
        raise AssertionError("it never ends")
    assert engine.pool.available == len(engine.pool.references), "a block is lost"
    assert not engine.scheduler.running and not engine.scheduler.waiting
    assert engine.step() == []
    return got


def one(language_model, request, **options):
    """The only answer of a request, from an engine of its own."""
    (got,) = serve(Checked(language_model, **options), [request]).values()
    return got


def assert_same(language_model, request, got, index=0, capacity=None):
    """An answer is that of the request alone; where two tokens are equally good to 1e-3, either
    is right, and what follows is not compared."""
    expected = alone(language_model, request, index, capacity)
    for place, (mine, theirs) in enumerate(zip(got.ids, expected.ids)):
        if mine != theirs:
            assert is_close_call(language_model.model, request, index, expected.ids[:place],
                                 {mine, theirs}), (place, got.ids, expected.ids)
            return
    if got.ids != expected.ids:                    # one has ended where the other has gone on
        place = min(len(got.ids), len(expected.ids))
        theirs = expected.ids[place:place + 1] or language_model.eos_ids
        mine = got.ids[place:place + 1] or language_model.eos_ids
        assert is_close_call(language_model.model, request, index, expected.ids[:place],
                             {*mine, *theirs}), (got.ids, expected.ids)
        return
    assert (got.text, got.finish_reason) == (expected.text, expected.finish_reason)
    if request.top_logprobs is not None:
        assert [each.id for each in got.logprobs] == got.ids
        for mine, theirs in zip(got.logprobs, expected.logprobs):
            assert abs(mine.logprob - theirs.logprob) < 1e-4
            np.testing.assert_allclose([value for _, value in mine.top],
                                       [value for _, value in theirs.top], rtol=0, atol=1e-4)


def is_close_call(model, request, index, before, tokens) -> bool:
    """Whether rounding may decide between tokens: logits 5e-4 away give the other one too."""
    prompt, noise = list(request.prompt_ids), np.random.default_rng(0)
    params = request.params
    cache = model.new_cache(len(prompt) + len(before))
    ids = np.array([*prompt, *before])
    logits = model.forward(ids, np.arange(len(ids)), cache)[len(prompt) - 1:]
    found = set()
    for _ in range(40):
        rng = np.random.default_rng(None if params.seed is None else params.seed + index)
        for place, row in enumerate(logits):
            end = len(prompt) + place
            if place == len(before):
                row = row + noise.uniform(-5e-4, 5e-4, len(row)).astype(np.float32)
            token = choose(row, params, ids[:end].tolist(), rng, before[:place])
        found.add(token)
    return tokens <= found


# Hugging Face is the truth

def record_logits(monkeypatch):
    """A list that gets what every answer gets: its request, its tokens, guesses, and rows."""
    handed, resume = [], Answer.resume

    def note(self, rows):
        handed.append((self.sequence.request.id, self.sequence.index, list(self.sequence.ids),
                       list(self.sequence.guesses), np.array(rows)))
        return resume(self, rows)
    monkeypatch.setattr(Answer, "resume", note)
    return handed


class HF:
    """Hugging Face's logits for one sequence alone, computed once for each text."""

    def __init__(self, model):
        self.model, self.texts = model, []

    def after(self, ids) -> np.ndarray:
        """The logits after the last of `ids`, (V,)."""
        for text, logits in self.texts:
            if text[:len(ids)] == ids:
                return logits[len(ids) - 1]
        return self.whole(ids)[-1]

    def whole(self, ids) -> np.ndarray:
        """The logits after each of `ids`, (T, V)."""
        with torch.no_grad():
            logits = self.model(torch.tensor([ids])).logits[0].numpy()
        self.texts.append((list(ids), logits))
        return logits


def mixed_requests(rng, context=256):
    """Prompts that begin alike, long and short ones, answers of several kinds."""
    document = rng.integers(3, V, 60).tolist()
    word = rng.integers(3, V, 4).tolist()
    own = [rng.integers(3, V, size).tolist() for size in (1, 2, 45, 7, 30)]
    drawn = SamplingParams(temperature=0.8, top_k=30, seed=5)
    return [Request([*document, *own[0]], max_tokens=8, id="document", ignore_eos=True),
            Request(own[2], max_tokens=12, id="own", ignore_eos=True),
            Request([*document[:40], *own[1]], drawn, max_tokens=9, n=3, id="three"),
            Request(word * 6, max_tokens=24, id="repeats", ignore_eos=True),
            Request(own[0], max_tokens=15, id="short", ignore_eos=True),
            Request([*document, *own[4]], max_tokens=10, id="later", top_logprobs=2,
                    ignore_eos=True),
            Request(own[3], max_tokens=6, id="asks", prompt_logprobs=1, priority=-1),
            Request(document, drawn, max_tokens=7, id="whole")]


@pytest.mark.parametrize("family, settings", FAMILIES,
                         ids=lambda value: value if isinstance(value, str)
                         else "-".join(value) or "plain")
def test_every_row_is_hugging_faces(tiny_model, tokenizer, rng, monkeypatch, family, settings):
    """Ragged, chunked, found, preempted, guessed and forked: the logits that an answer gets are
    those of its sequence alone."""
    hf_model, folder = tiny_model(family, 11, **settings)
    language_model = LanguageModel(Model.load(folder), tokenizer, {}, frozenset([EOS]))
    engine = Checked(language_model, block_size=4, num_blocks=28, max_num_batched_tokens=24,
                     max_num_seqs=7, speculative_tokens=3)
    engine.preempt_every = 3
    handed, requests = record_logits(monkeypatch), mixed_requests(rng)
    got = serve(engine, requests, arrivals=[0, 0, 8, 1, 2, 12, 0, 20])
    hf = HF(hf_model)
    for request in requests:
        for index in range(request.n):
            hf.whole([*request.prompt_ids, *got[request.id, index].ids])
    for _, _, ids, guesses, rows in handed:
        assert len(rows) == 1 + len(guesses)
        for place, row in enumerate(rows):
            np.testing.assert_allclose(row, hf.after([*ids, *guesses[:place]]), rtol=0,
                                       atol=1e-4)
    told = got["asks", 0].prompt_logprobs
    expected = log_softmax(hf.whole(list(requests[6].prompt_ids)))
    assert told[0] is None and len(told) == 7
    for place, each in enumerate(told[1:]):
        assert each.id == requests[6].prompt_ids[place + 1]
        assert abs(each.logprob - expected[place, each.id]) < 1e-4
        assert abs(each.top[0][1] - expected[place].max()) < 1e-4
    # the run was one that shows something
    records = list(engine.records)
    rows = [row for record in records for row in record.rows]
    admitted = [name for record in records for name, _ in record.admitted]
    assert len(admitted) > len(set(admitted)) + 3, "nobody was preempted"
    assert any(record.rows and len({row.prompt for row in record.rows}) == 2
               for record in records), "prompts and decoding in one step"
    assert any(row.prompt and 0 < row.start for row in rows), "chunks"
    assert any(row.guesses for row in rows)
    assert max(got["later", 0].cached_tokens, got["whole", 0].cached_tokens) >= 20


def test_a_sequence_may_fill_its_context(tiny_model, tokenizer, rng):
    """GPT-2 has learned positions up to 255, and the last one is used."""
    hf_model, folder = tiny_model("GPT2", 12)
    language_model = LanguageModel(Model.load(folder), tokenizer, {}, frozenset([EOS]))
    engine = Checked(language_model, block_size=7, speculative_tokens=4)
    prompt = (rng.integers(3, V, 5).tolist() * 60)[:250]
    got = serve(engine, [Request(prompt, ignore_eos=True), Request(prompt + prompt[:6],
                                                                   max_tokens=0)])
    first, last = got.values()
    assert engine.max_model_len == 256
    assert {len(first.ids), len(last.ids)} == {6, 0}
    assert {first.finish_reason, last.finish_reason} == {"length"}


def test_logprobs_are_hugging_faces(tiny_model, tokenizer, rng):
    """Those of an answer and of its prompt, in chunks, among others, and after a preemption."""
    hf_model, folder = tiny_model("Llama", 13)
    language_model = LanguageModel(Model.load(folder), tokenizer, {}, frozenset([EOS]))
    hf = HF(hf_model)
    prompts = [rng.integers(3, V, size).tolist() for size in (1, 2, 9, 31, 40)]
    requests = [Request(prompt, SamplingParams(temperature=1.1, seed=3, repetition_penalty=1.3,
                                               logit_bias={9: 1.5}),
                        max_tokens=9, top_logprobs=3, prompt_logprobs=2, n=2)
                for prompt in prompts]
    engine = Checked(language_model, block_size=2, num_blocks=30, max_num_batched_tokens=11,
                     max_num_seqs=8, speculative_tokens=2, max_model_len=50)
    got = serve(engine, requests)
    assert any(record.preempted for record in engine.records)
    for request in requests:
        for index in range(2):
            answer = got[request.id, index]
            text = [*request.prompt_ids, *answer.ids]
            expected = log_softmax(hf.whole(text))
            told = [*answer.prompt_logprobs, *answer.logprobs]
            assert told[0] is None and [each.id for each in told[1:]] == text[1:]
            for place, each in enumerate(told[1:]):
                assert abs(each.logprob - expected[place, each.id]) < 1e-4
                best = np.sort(expected[place])[::-1][:len(each.top)]
                np.testing.assert_allclose([value for _, value in each.top], best, rtol=0,
                                           atol=1e-4)
            assert {len(each.top) for each in answer.prompt_logprobs[1:]} <= {2}
            assert {len(each.top) for each in answer.logprobs} <= {3}


# The laws, over traces of all kinds

PARAMS = [SamplingParams(), SamplingParams(repetition_penalty=1.4, frequency_penalty=0.3),
          SamplingParams(temperature=0.9, seed=1), SamplingParams(temperature=1.5, seed=8),
          SamplingParams(temperature=0.7, seed=2, top_k=20, top_p=0.9, presence_penalty=0.5)]
WISHES = st.fixed_dictionaries({
    "begin": st.integers(0, 2), "shared": st.integers(0, 25),
    "own": st.lists(st.integers(3, V - 1), min_size=1, max_size=6),
    "params": st.sampled_from(PARAMS), "max_tokens": st.integers(0, 14) | st.just(None),
    "n": st.sampled_from([1, 1, 1, 2, 3]), "priority": st.integers(-1, 1),
    "stop": st.sampled_from([(), (), ("A",), ("w5", "é")]),
    "stop_ids": st.sampled_from([(), (), (40, 41, 42, 43)]), "ignore_eos": st.booleans(),
    "top_logprobs": st.sampled_from([None, None, 0, 2]),
    "prompt_logprobs": st.sampled_from([None, None, None, 1]),
    "arrival": st.integers(0, 10)})
TRACES = st.fixed_dictionaries({
    "wishes": st.lists(WISHES, min_size=1, max_size=6), "block_size": st.integers(1, 9),
    "spare_blocks": st.integers(0, 12), "max_num_batched_tokens": st.integers(4, 40),
    "max_num_seqs": st.integers(3, 6), "enable_prefix_caching": st.booleans(),
    "speculative_tokens": st.sampled_from([0, 0, 1, 4]),
    "preempt_every": st.sampled_from([0, 0, 2, 3, 7]),
    "aborts": st.lists(st.tuples(st.integers(0, 15), st.integers(0, 5)), max_size=2),
    "collide": st.sampled_from([False, False, True])})


def follow(language_model, case):
    """Run a trace, and hold each of its answers to the answer alone."""
    beginnings = [np.random.default_rng(number).integers(3, V, 5).tolist() * 5
                  for number in range(3)]
    requests, arrivals = [], []
    for wish in case["wishes"]:
        options = {name: value for name, value in wish.items()
                   if name not in ("begin", "shared", "own", "arrival")}
        prompt = [*beginnings[wish["begin"]][:wish["shared"]], *wish["own"]]
        requests.append(Request(prompt, **options))
        arrivals.append(wish["arrival"])
    room = 40                                                  # tokens; no request needs more
    blocks = -(-room // case["block_size"]) + case["spare_blocks"]
    engine = Checked(
        language_model, num_blocks=blocks, max_model_len=room,
        max_num_batched_tokens=max(case["max_num_batched_tokens"], case["max_num_seqs"]),
        **{name: case[name] for name in ("block_size", "max_num_seqs", "speculative_tokens",
                                         "enable_prefix_caching")})
    engine.preempt_every = case["preempt_every"]
    aborts = [(step, place) for step, place in case["aborts"] if place < len(requests)]
    with pytest.MonkeyPatch.context() as patch:
        if case["collide"]:
            patch.setattr(scheduler_module, "hash_blocks", lambda ids, size, parent=b"": [
                bytes([sum(ids[end - size:end]) % 3])
                for end in range(size, len(ids) + 1, size)])
        got = serve(engine, requests, arrivals, aborts)
    aborted = {requests[place].id for _, place in aborts}
    for request in requests:
        for index in range(request.n):
            if request.id in aborted and (request.id, index) not in got:
                continue
            answer = got[request.id, index]
            if request.id in aborted and answer.finish_reason is None:
                continue
            assert answer.error is None
            assert_same(language_model, request, answer, index, room)
            assert answer.cached_tokens <= len(request.prompt_ids) - 1
            assert (answer.prompt_logprobs is None) == (request.prompt_logprobs is None)
    return engine


@settings(max_examples=40, deadline=None)
@given(TRACES)
def test_any_trace_gives_what_each_request_gives_alone(tiny, case):
    """Batched, chunked, preempted, found, guessed: the same tokens, text, and log-probabilities
    as alone; aborted ones leave nothing; and every trace ends."""
    follow(tiny, case)


@pytest.mark.long
@settings(max_examples=400, deadline=None)
@given(TRACES)
def test_very_many_traces(tiny, case):
    follow(tiny, case)


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(TRACES, st.sampled_from([family for family, settings in FAMILIES if not settings]))
def test_traces_of_other_families(tiny_model, tokenizer, case, family):
    _, folder = tiny_model(family, 21)
    follow(LanguageModel(Model.load(folder), tokenizer, {}, frozenset([EOS])), case)


def some(rng, sizes=(5, 1, 20, 11), **options):
    return [Request(rng.integers(3, V, size).tolist(), **options) for size in sizes]


@pytest.mark.parametrize("changes", [
    {"max_num_batched_tokens": 4, "max_num_seqs": 4}, {"num_blocks": 15, "block_size": 3},
    {"enable_prefix_caching": False}, {"speculative_tokens": 5}, {"block_size": 1},
    {"max_num_seqs": 1}], ids=str)
def test_no_setting_changes_an_answer(tiny, rng, changes):
    requests = [*some(rng, max_tokens=20), *some(rng, max_tokens=20, params=PARAMS[2])]
    got = serve(Checked(tiny, **{"max_model_len": 45} | changes), requests)
    for request in requests:
        assert_same(tiny, request, got[request.id, 0])


def test_neighbours_do_not_change_a_requests_draws(tiny, rng):
    """With a seed, the same tokens in any company; without one, not the same twice."""
    mine = Request(rng.integers(3, V, 8).tolist(), PARAMS[3], max_tokens=20, ignore_eos=True)
    texts = []
    for others in (0, 1, 5):
        company = [Request(request.prompt_ids, replace(PARAMS[3], seed=seed), max_tokens=20)
                   for seed, request in enumerate(some(rng, (6,) * others))]
        texts.append(serve(Checked(tiny), [*company, mine])[mine.id, 0].ids)
    assert texts[0] == texts[1] == texts[2] == alone(tiny, mine).ids
    unseeded = replace(mine, params=SamplingParams(temperature=2.0))
    assert one(tiny, unseeded).ids != one(tiny, unseeded).ids


def test_n_answers_are_n_requests_with_seeds_in_a_row(tiny, rng):
    prompt = rng.integers(3, V, 13).tolist()
    three = Request(prompt, PARAMS[3], max_tokens=15, n=3)
    engine = Checked(tiny, block_size=4, speculative_tokens=2)
    got = serve(engine, [three])
    assert [key for key in sorted(got)] == [(three.id, index) for index in range(3)]
    for index in range(3):
        single = Request(prompt, replace(PARAMS[3], seed=8 + index), max_tokens=15)
        assert one(tiny, single).ids == got[three.id, index].ids
    assert len({tuple(answer.ids) for answer in got.values()}) == 3
    computed = sum(row.count - row.guesses for record in engine.records for row in record.rows)
    assert computed < 2 * len(prompt) + 3 * 15, "the prompt is computed once"


def test_answers_of_one_request_share_its_prompt_in_memory(tiny, rng):
    engine = Checked(tiny, block_size=4)
    engine.add_request(Request(rng.integers(3, V, 41).tolist(), PARAMS[3], n=5, max_tokens=9,
                               ignore_eos=True))
    engine.step()
    engine.step()
    # ten full blocks once, and for each answer one of its own
    assert engine.records[-1].blocks_used == 10 + 5
    serve(engine, [])


# Prefixes

def test_a_prefix_is_not_computed_again(tiny, rng):
    document = rng.integers(3, V, 100).tolist()
    engine = Checked(tiny, block_size=8, max_num_batched_tokens=300)
    first = serve(engine, [Request([*document, 5], max_tokens=4, ignore_eos=True, id="a")])
    before = sum(record.tokens for record in engine.records)
    again = serve(engine, [Request([*document, 5], max_tokens=4, ignore_eos=True, id="b"),
                           Request([*document, 6], max_tokens=4, ignore_eos=True, id="c")])
    after = sum(record.tokens for record in engine.records) - before
    assert first["a", 0].cached_tokens == 0
    assert again["b", 0].cached_tokens == again["c", 0].cached_tokens == 96
    assert again["b", 0].ids == first["a", 0].ids
    assert after == 2 * (101 - 96 + 3)


def test_a_prompt_that_is_there_whole_is_still_computed_for_one_token(tiny, rng):
    prompt = rng.integers(3, V, 32).tolist()
    engine = Checked(tiny, block_size=8)
    texts = []
    for size in (32, 32, 24, 1):
        request = Request(prompt[:size], max_tokens=5)
        (got,) = serve(engine, [request]).values()
        assert_same(tiny, request, got)
        texts.append(got.cached_tokens)
    assert texts == [0, 24, 16, 0]


def test_generated_text_is_found_too(tiny, rng):
    """A conversation's second turn begins with the first turn's answer."""
    engine = Checked(tiny, block_size=4)
    prompt = rng.integers(3, V, 10).tolist()
    (first,) = serve(engine, [Request(prompt, max_tokens=20, ignore_eos=True)]).values()
    turn = Request([*prompt, *first.ids, 7, 8, 9], max_tokens=5)
    (second,) = serve(engine, [turn]).values()
    assert second.cached_tokens == 28                     # of the 29 tokens that were computed
    assert_same(tiny, turn, second)


# What a request may ask for

def test_no_token_is_wanted(tiny, rng):
    """max_tokens=0 computes the prompt, for its log-probabilities, and says no word."""
    for n in (1, 2):
        engine = Checked(tiny)
        request = Request(rng.integers(3, V, 9).tolist(), max_tokens=0, prompt_logprobs=1, n=n)
        for got in serve(engine, [request]).values():
            assert (got.ids, got.text, got.finish_reason) == ([], "", "length")
            assert len(got.prompt_logprobs) == 9
    got = one(tiny, Request([5], max_tokens=0))
    assert got.finish_reason == "length" and got.prompt_logprobs is None


def test_ends(tiny, rng):
    """An EOS, a stop token and a stop string end an answer, in the middle of guesses too."""
    prompt = rng.integers(3, V, 6).tolist()
    free = one(tiny, Request(prompt, PARAMS[3], max_tokens=60, ignore_eos=True))
    assert len(free.ids) == 60 and free.finish_reason == "length"
    token, place = free.ids[20], free.ids.index(free.ids[20])
    for speculative in (0, 4):
        got = one(tiny, Request(prompt, PARAMS[3], stop_ids=[token], ignore_eos=True),
                  speculative_tokens=speculative)
        assert got.ids == free.ids[:place] and got.finish_reason == "stop"
        ended = LanguageModel(tiny.model, tiny.tokenizer, {}, frozenset([1, token]))
        got = one(ended, Request(prompt, PARAMS[3]), speculative_tokens=speculative)
        assert got.ids == free.ids[:place] and got.finish_reason == "stop"
        for stop in (free.text[10:13], free.text[30]):
            got = one(tiny, Request(prompt, PARAMS[3], stop=[stop, "no such text"],
                                    ignore_eos=True, top_logprobs=0),
                      speculative_tokens=speculative)
            assert got.finish_reason == "stop"
            assert got.text == free.text[:free.text.index(stop)]
            assert got.ids == free.ids[:len(got.ids)] and len(got.logprobs) == len(got.ids)


def test_text_comes_in_whole_characters(tiny, rng):
    """The pieces together are the text; no piece ends inside a character."""
    ids = {piece: tiny.tokenizer.vocabulary.tokens[piece] for piece in "ðŁ¦ĬÃ©"}
    fox = [ids[piece] for piece in "ðŁ¦ĬÃ©"]
    bias = {id: 30.0 for id in fox}
    for request in [Request(rng.integers(3, V, 4).tolist(),
                            SamplingParams(temperature=1.0, seed=seed, logit_bias=bias),
                            max_tokens=40) for seed in range(4)]:
        engine, pieces, generated = Checked(tiny), [], []
        engine.add_request(request)
        while engine.has_unfinished():
            for delta in engine.step():
                pieces.append(delta.text)
                generated += delta.ids
        assert "".join(pieces) == tiny.tokenizer.decode(generated)


def test_grammars_inside_a_batch(tiny, rng):
    """Each answer follows its own, drawn or greedy, guessed or not, and others have none."""
    vocabulary = GrammarVocabulary(tiny.tokenizer, V, tiny.eos_ids)
    patterns = ["[0-9]{3}-[a-z]{2}", "(yes|no)!", "(ab){2,9}"]
    for speculative in (0, 3):
        requests = [Request(rng.integers(3, V, 4).tolist(), params, max_tokens=30, n=n,
                            grammar=lambda pattern=pattern: TokenGrammar.from_regex(vocabulary,
                                                                                    pattern))
                    for pattern, params, n in zip(patterns, (PARAMS[0], PARAMS[3], PARAMS[2]),
                                                  (1, 3, 2))]
        requests += some(rng, (4, 9), max_tokens=15)
        engine = Checked(tiny, block_size=3, num_blocks=24, max_num_seqs=8,
                         max_model_len=40, speculative_tokens=speculative)
        got = serve(engine, requests)
        for request in requests:
            for index in range(request.n):
                assert_same(tiny, request, got[request.id, index], index)
        for request, pattern in zip(requests, patterns):
            for index in range(request.n):
                assert re.fullmatch(pattern, got[request.id, index].text)


# What is refused

@pytest.mark.parametrize("request_, match", [
    (Request([]), "the prompt is empty"), (Request([5] * 41), "41 tokens, and the context 40"),
    (Request([5] * 40), "40 tokens, and the context 40"),
    (Request([5] * 41, max_tokens=0), "41 tokens, and the context 40"),
    (Request([5], max_tokens=-1), "max_tokens is -1"),
    (Request([5, 211]), "the vocabulary has"), (Request([-1, 5]), "the vocabulary has"),
    (Request([5], n=6), "runs 5 answers at once")],
    ids=lambda value: value if isinstance(value, str) else "")
def test_what_can_never_run_is_refused_at_once(tiny, request_, match):
    engine = Checked(tiny, block_size=4, num_blocks=10, max_num_seqs=5)
    with pytest.raises(ModelError, match=match):
        engine.add_request(request_)
    assert not engine.has_unfinished() and engine.step() == []
    engine.add_request(Request([5] * 39, n=5))            # the largest that there is
    serve(engine, [])


def test_no_answers_and_a_name_that_is_taken(tiny):
    with pytest.raises(ModelError, match="n is 0"):
        Request([5], n=0)
    engine = Checked(tiny)
    engine.add_request(Request([5], id="x", max_tokens=2))
    with pytest.raises(ValueError, match="there is a request x already"):
        engine.add_request(Request([5], id="x"))
    serve(engine, [])
    engine.add_request(Request([5], id="x", max_tokens=2))                      # it is free now
    serve(engine, [])


@pytest.mark.parametrize("options, match", [
    ({"block_size": 0}, "block_size is 0"), ({"num_blocks": 0}, "num_blocks is 0"),
    ({"max_num_seqs": 0}, "max_num_seqs is 0"), ({"max_model_len": 1}, "max_model_len is 1"),
    ({"max_num_batched_tokens": 7, "max_num_seqs": 8}, "max_num_batched_tokens is 7"),
    ({"speculative_tokens": -1}, "speculative_tokens is -1"),
    ({"max_model_len": 257}, "a context of 256 tokens"),
    ({"num_blocks": 10**12}, "make do with fewer")], ids=str)
def test_sizes_that_make_no_sense(tiny, options, match):
    with pytest.raises(ModelError, match=match):
        LLMEngine(tiny, **options)


def test_a_stretched_model_is_served_within_its_original_context(tiny_model, tokenizer):
    _, folder = tiny_model("Llama", 11, max_position_embeddings=256, rope_parameters={
        "rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0,
        "original_max_position_embeddings": 64})
    language_model = LanguageModel(Model.load(folder), tokenizer, {}, frozenset([EOS]))
    longest = LLMEngine(language_model).max_model_len
    config = language_model.model.config
    assert longest == config.rope_scaling.original_max_position_embeddings


def test_memory_by_default_has_room_for_one_sequence(tiny, monkeypatch):
    monkeypatch.setattr(engine_module, "KV_CACHE_BYTES", 1)
    engine = LLMEngine(tiny, block_size=100)
    assert engine.max_model_len == 256 and len(engine.pool.references) == 3


# What goes wrong in one answer is not the others' business

class Fails:
    """A grammar that lets everything pass, until it raises."""

    def __init__(self, error, after):
        self.error, self.after = error, after

    def allowed(self):
        if not self.after:
            raise self.error
        self.after -= 1
        return np.ones(V, bool)

    def advance(self, token):
        pass


class Panic(BaseException):
    """What PyO3 makes of a panic in a library written in Rust, such as llguidance."""


@pytest.mark.parametrize("after", [0, 3])
@pytest.mark.parametrize("error", [ZeroDivisionError("oh"), ModelError("what", "why", "try"),
                                   RecursionError("deep"), MemoryError("full"),
                                   Panic("index out of bounds"), SystemExit(3)], ids=repr)
def test_an_exception_ends_one_answer(tiny, rng, error, after):
    requests = some(rng, max_tokens=8, ignore_eos=True)
    requests[1] = replace(requests[1], grammar=lambda: Fails(error, after))
    got = serve(Checked(tiny, speculative_tokens=2, block_size=3), requests)
    failed = got[requests[1].id, 0]
    assert failed.finish_reason == "error" and len(failed.ids) <= after
    if isinstance(error, GearworksError):
        assert failed.error is error
    else:
        assert repr(type(error).__name__)[1:-1] in failed.error.why
    for request in (requests[0], *requests[2:]):
        assert_same(tiny, request, got[request.id, 0])


def test_a_grammar_that_cannot_be_made(tiny, rng):
    requests = some(rng, max_tokens=8)
    requests[2] = replace(requests[2], n=2, grammar=lambda: TokenGrammar.from_regex(
        GrammarVocabulary(tiny.tokenizer, V, [EOS]), "(("))
    got = serve(Checked(tiny), requests)
    for index in range(2):
        assert got[requests[2].id, index].error.what == "cannot use this regular expression"
    assert_same(tiny, requests[0], got[requests[0].id, 0])


def test_settings_that_fail_when_a_token_is_chosen(tiny, rng):
    requests = some(rng, max_tokens=8)
    requests[0] = replace(requests[0], params=SamplingParams(logit_bias={9999: 1.0}))
    got = serve(Checked(tiny), requests)
    assert "9999" in got[requests[0].id, 0].error.why
    assert_same(tiny, requests[1], got[requests[1].id, 0])


def test_nan_for_one_sequence(tiny, rng):
    """An embedding that is broken for one token: whoever has it, and nobody else, fails."""
    weights = tiny.model.weights
    table = weights.embed_tokens.copy()
    table[77] = np.nan
    broken = LanguageModel(Model(tiny.model.config, replace(weights, embed_tokens=table)),
                           tiny.tokenizer, {}, tiny.eos_ids)
    bias = SamplingParams(logit_bias={77: -math.inf})
    requests = [replace(request, params=bias, max_tokens=12,
                        prompt_ids=[id if id != 77 else 78 for id in request.prompt_ids])
                for request in some(rng)]
    ill = Request([5, 77, 6], max_tokens=5, prompt_logprobs=1)
    engine = Checked(broken, block_size=2, num_blocks=40, max_model_len=60)
    got = serve(engine, [requests[0], ill, *requests[1:]])
    assert "the largest logit is nan" in got[ill.id, 0].error.why
    # its blocks are others' now
    got |= serve(engine, [replace(request, id=request.id + "again") for request in requests])
    for request in requests:
        assert_same(tiny, request, got[request.id, 0])
        assert got[request.id + "again", 0].ids == got[request.id, 0].ids


def test_log_probabilities_of_a_prompt_that_cannot_be_told(tiny, rng, monkeypatch):
    """An exception there ends that request, all of its answers, and no other."""
    true = engine_module.logprobs

    def wrong(row, token, top):
        if top == 7:
            raise IndexError("wrong")
        return true(row, token, top)
    monkeypatch.setattr(engine_module, "logprobs", wrong)
    requests = some(rng, max_tokens=8)
    requests[2] = replace(requests[2], prompt_logprobs=7, n=2)
    engine = Checked(tiny, max_num_batched_tokens=8, max_num_seqs=6)
    got = serve(engine, requests)
    for index in range(2):
        assert got[requests[2].id, index].error.why == "IndexError: wrong"
    for request in (requests[0], requests[1], requests[3]):
        assert_same(tiny, request, got[request.id, 0])


def test_an_abort_raises_where_the_answer_waits(tiny, rng, monkeypatch):
    """Whatever it had opened is closed; nothing of it is left, not even in memory."""
    ended = []
    true = answer_module.generate

    def watched(*args, **options):
        try:
            return true(*args, **options)
        except BaseException as error:
            ended.append(type(error).__name__)
            raise
    monkeypatch.setattr(answer_module, "generate", watched)
    engine = Checked(tiny, block_size=4)
    requests = some(rng, (5, 5, 5), max_tokens=50, ignore_eos=True, n=2)
    for request in requests[:2]:
        engine.add_request(request)
    engine.step()
    engine.step()
    engine.add_request(requests[2])                                         # it has not begun
    answers = [weakref.ref(answer) for each in engine._answers.values()
               for _, answer in each.values()]
    assert len(answers) == 5
    for request in (requests[0], requests[2]):
        engine.abort(request.id)
        engine.abort(request.id)
        engine.abort("nobody")
        engine.check()
    assert ended == ["Aborted"] * 2
    used = sum(len(row.blocks) for row in engine.records[-1].rows)
    assert 0 < len(engine.pool.references) - engine.pool.available < used
    got: dict = {}
    while engine.has_unfinished():
        collect(engine.step(), got)
    assert {id for id, _ in got} == {requests[1].id} and len(ended) == 2
    gc.collect()
    assert not any(answer() for answer in answers)


# An interrupt

class Interrupts(Fails):
    def __init__(self, after):
        super().__init__(KeyboardInterrupt(), after)


def test_an_interrupt_while_a_token_is_chosen(tiny, rng):
    """The engine goes on; nobody else loses a token, those that had theirs already included."""
    requests = some(rng, (5, 6, 7, 8, 9), max_tokens=9, ignore_eos=True)
    requests[2] = replace(requests[2], grammar=lambda: Interrupts(4))
    engine, got, interrupts = Checked(tiny, block_size=3, speculative_tokens=2), {}, 0
    for request in requests:
        engine.add_request(request)
    while engine.has_unfinished():
        try:
            collect(engine.step(), got)
        except KeyboardInterrupt:
            interrupts += 1
            engine.check()
    assert interrupts == 1 and got[requests[2].id, 0].finish_reason is None
    for request in [*requests[:2], *requests[3:]]:
        assert_same(tiny, request, got[request.id, 0])
    assert engine.pool.available == len(engine.pool.references)


@pytest.mark.parametrize("where", ["copy_block", "write", "computed"])
def test_an_interrupt_at_any_moment_of_a_step(tiny, rng, monkeypatch, where):
    """In the middle of copies, between layers, between answers: again, and nothing is lost."""
    requests = some(rng, (13, 6), params=PARAMS[3], max_tokens=9, ignore_eos=True, n=3)
    calls = 0

    def interrupting(at, true):
        def call(*args, **options):
            nonlocal calls
            calls += 1
            if calls == at:
                raise KeyboardInterrupt
            return true(*args, **options)
        return call
    for at in range(1, 12):
        with monkeypatch.context() as patch:
            calls, got = 0, {}
            engine = Checked(tiny, block_size=4, num_blocks=30, max_model_len=40)
            if where == "computed":
                patch.setattr(scheduler_module.Scheduler, "computed", interrupting(
                    at, scheduler_module.Scheduler.computed))
            else:
                patch.setattr(paged_cache.PagedKVCache, where, interrupting(
                    at, getattr(paged_cache.PagedKVCache, where)))
            for request in requests:
                engine.add_request(request)
            interrupted = 0
            while engine.has_unfinished():
                try:
                    collect(engine.step(), got)
                except KeyboardInterrupt:
                    interrupted += 1
                    engine.check()
            assert interrupted == (calls >= at)
        for request in requests:
            for index in range(3):
                assert_same(tiny, request, got[request.id, index], index)


# It is the learner's loop that runs

@pytest.mark.reference("`generate` calls `run_request`")
def test_every_answer_passes_run_request(tiny, rng, monkeypatch):
    """Once for each answer, preempted or not; and what runs is `decoding.generate`."""
    calls, generations = [], []
    run_request, generate = decoding.run_request, answer_module.generate

    def counted(prompt, **options):
        calls.append(options["max_tokens"])
        return run_request(prompt, **options)
    monkeypatch.setattr(decoding, "run_request", counted)
    monkeypatch.setattr(answer_module, "generate",
                        lambda *args, **options: generations.append(generate(*args, **options))
                        or generations[-1])
    requests = [*some(rng, max_tokens=7), *some(rng, (6, 9), max_tokens=5, n=2)]
    engine = Checked(tiny, block_size=2, num_blocks=24, max_model_len=40)
    got = serve(engine, requests)
    assert any(record.preempted for record in engine.records)
    assert sorted(calls) == [5] * 4 + [7] * 4
    assert (sorted((each.ids, each.text, each.finish_reason) for each in generations)
            == sorted((each.ids, each.text, each.finish_reason) for each in got.values()))


def test_every_step_is_one_forward_and_its_attention_is_paged_attention(tiny, rng, monkeypatch):
    batches, forwards = [], []
    attention, forward = paged_cache.paged_attention, Model.forward

    def counted(q, keys, values, tables, lengths, counts, rules):
        batches.append(list(counts))
        return attention(q, keys, values, tables, lengths, counts, rules)
    monkeypatch.setattr(paged_cache, "paged_attention", counted)
    monkeypatch.setattr(Model, "forward", lambda self, ids, *rest: forwards.append(len(ids))
                        or forward(self, ids, *rest))
    engine = Checked(tiny)
    serve(engine, some(rng, max_tokens=7, ignore_eos=True))
    layers = tiny.model.config.num_hidden_layers
    assert batches == [[row.count for row in record.rows]
                       for record in engine.records for _ in range(layers)]
    assert forwards == [record.tokens for record in engine.records]
    assert max(map(len, batches)) == 4


# Order and fairness

def test_who_comes_first_begins_first(tiny, rng):
    engine = Checked(tiny, max_num_seqs=2, max_num_batched_tokens=8)
    requests = some(rng, (6, 3, 9, 2, 5), max_tokens=3)
    serve(engine, requests)
    admitted = [name for record in engine.records for name, _ in record.admitted]
    assert admitted == [f"{request.id}/0" for request in requests]


def test_priorities_and_their_end(tiny, monkeypatch):
    """A request of lower priority is overtaken by those that come a while later, but not by
    all that ever come."""
    monkeypatch.setattr(engine_module, "PATIENCE", 3)
    engine = Checked(tiny, max_num_seqs=1, max_num_batched_tokens=8)
    engine.add_request(Request([9], max_tokens=2, id="first"))
    engine.add_request(Request([8], max_tokens=2, id="low", priority=1))
    for number in range(8):                        # there is always another one that waits
        engine.add_request(Request([10 + number], max_tokens=2, id=f"high{number}"))
        engine.step()
    while engine.has_unfinished():
        engine.step()
    admitted = [name.split("/")[0] for record in engine.records for name, _ in record.admitted]
    assert admitted[0] == "first"
    assert admitted.index("low") == 3                              # two others came before it
    assert len(admitted) == 10


def test_guessing_changes_how_fast_and_nothing_else(tiny, rng):
    """Texts that repeat themselves need fewer steps; the tokens are the same."""
    two = {50: 100.0, 51: 100.0}                               # a text of two different tokens
    requests = [Request(rng.integers(3, V, 4).tolist() * 5, replace(params, logit_bias=two),
                        max_tokens=40) for params in (PARAMS[0], PARAMS[0], PARAMS[2])]
    steps, texts = [], []
    for count in (0, 4):
        engine = Checked(tiny, speculative_tokens=count)
        got = serve(engine, requests)
        steps.append(len(engine.records))
        texts.append([got[request.id, 0] for request in requests])
    for request, plain, guessed in zip(requests, *texts):
        assert_same(tiny, request, plain)
        assert_same(tiny, request, guessed)
    assert steps[1] < steps[0]


def test_guesses_that_fail_become_few(tiny, rng, monkeypatch):
    """A wrong guess costs a row of a step, so an answer whose guesses all fail rests."""
    request = Request(rng.integers(3, V, 12).tolist(), PARAMS[0], max_tokens=60,
                      ignore_eos=True)
    plain = serve(Checked(tiny), [request])[request.id, 0]
    wrong = next(id for id in range(3, V) if id not in plain.ids)
    monkeypatch.setattr("gearworks.speculative.ngram_propose",
                        lambda ids, count, longest: [wrong] * count)
    engine = Checked(tiny, speculative_tokens=8)
    again = replace(request, id="again")
    assert serve(engine, [again])["again", 0].ids == plain.ids
    guesses = [row.guesses for record in engine.records for row in record.rows]
    assert guesses[1:5] == [8, 4, 2, 1] and sum(guesses) < 25


def test_records_say_what_happened(tiny, rng):
    engine = Checked(tiny, block_size=2, num_blocks=20, max_num_batched_tokens=9,
                     max_num_seqs=4, max_model_len=40, speculative_tokens=2)
    requests = some(rng, (8, 1, 15, 6), max_tokens=12, ignore_eos=True)
    got = serve(engine, requests)
    records = list(engine.records)
    assert [record.number for record in records] == list(range(len(records)))
    assert sum(record.generated for record in records) == 48
    names = {f"{request.id}/0" for request in requests}
    assert sorted(name for record in records for name in record.finished) == sorted(names)
    assert any(record.preempted for record in records)
    for record in records:
        assert record.blocks_used + record.blocks_kept + record.blocks_empty == 20
        assert 0 <= record.model_seconds <= record.seconds
        for row in record.rows:
            assert len(row.blocks) * 2 >= row.start + row.count
    # a sequence's rows follow each other, but where it was preempted
    for name in names:
        at = guesses = 0
        for record in records:
            at = 0 if name in record.preempted else at
            for admitted, cached in record.admitted:
                at, guesses = (cached, 0) if admitted == name else (at, guesses)
            for row in record.rows:
                if row.name == name:
                    assert at - guesses <= row.start <= at
                    at, guesses = row.start + row.count, row.guesses
    for request in requests:
        prompt = [row for record in records for row in record.rows
                  if row.name == f"{request.id}/0" and row.prompt]
        assert sum(row.count for row in prompt) >= len(request.prompt_ids)
    assert {answer.finish_reason for answer in got.values()} == {"length"}


@pytest.mark.long
def test_ten_thousand_short_requests_leave_nothing(tiny, rng):
    """Arrivals and aborts without end: no block, no answer and no memory is kept."""
    import psutil
    engine = LLMEngine(tiny, block_size=4, num_blocks=60, max_num_batched_tokens=64,
                       max_num_seqs=16, max_model_len=60)
    process, sizes, waiting = psutil.Process(), [], []
    for number in range(10_000):
        request = Request(rng.integers(3, V, rng.integers(1, 12)).tolist(),
                          PARAMS[number % 5], max_tokens=int(rng.integers(1, 8)),
                          n=1 + number % 2)
        engine.add_request(request)
        waiting.append(request.id)
        if number % 7 == 0:
            engine.abort(waiting[rng.integers(max(0, len(waiting) - 9), len(waiting))])
        engine.step()
        while len(engine.scheduler.waiting) > 20:
            engine.step()
        if number % 1000 == 999:
            gc.collect()
            sizes.append(process.memory_info().rss)
    while engine.has_unfinished():
        engine.step()
    gc.collect()
    assert engine.pool.available == 60 and not engine._answers and not engine._prompt_logprobs
    assert sizes[-1] < 1.05 * sizes[4]


# Batch invariance

SAME_BITS = [*FAMILIES, ("Mixtral", {"num_local_experts": 3, "num_experts_per_tok": 2})]
QUICK = [SAME_BITS[0], ("Gemma3", {}), ("DeepseekV3", {}), SAME_BITS[-1]]


@pytest.mark.reference("the same bits")
@pytest.mark.parametrize("family, settings", [
    pytest.param(*case, marks=[] if case in QUICK else pytest.mark.long) for case in SAME_BITS],
    ids=lambda value: value if isinstance(value, str) else "-".join(value) or "plain")
def test_logits_have_the_same_bits_alone_and_in_any_batch(tiny_model, tokenizer, rng,
                                                          monkeypatch, family, settings):
    """Ragged, chunked, found, preempted, guessed and forked, and not off by a single bit."""
    _, folder = tiny_model(family, 14, **settings)
    language_model = LanguageModel(Model.load(folder), tokenizer, {}, frozenset([EOS]))
    handed, requests = record_logits(monkeypatch), mixed_requests(rng)
    options = {"block_size": 8, "batch_invariant": True, "max_num_seqs": 7}
    alone_rows = {}
    for request in requests:
        serve(Checked(language_model, **options), [request])
        for id, index, ids, _, rows in handed:
            alone_rows[id, index, tuple(ids)] = rows[0]
        handed.clear()
    engine = Checked(language_model, num_blocks=15, max_num_batched_tokens=24,
                     speculative_tokens=3, **options)
    engine.preempt_every = 4
    serve(engine, requests, arrivals=[0, 0, 8, 1, 2, 12, 0, 20])
    compared = 0
    for id, index, ids, guesses, rows in handed:
        for place, row in enumerate(rows):
            expected = alone_rows.get((id, index, (*ids, *guesses[:place])))
            if expected is not None:
                compared += 1
                np.testing.assert_array_equal(row, expected)
    assert compared >= len(alone_rows)
