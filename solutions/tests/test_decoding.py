"""Generation with the real model: Hugging Face's text, streaming, limits,
and a conversation's cache. About 65 s."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gearworks.decoding import PREFILL_CHUNK, Context, StopMatcher, TextStream, generate
from gearworks.errors import ModelError
from gearworks.kv_cache import RaggedBatch
from gearworks.language_model import LanguageModel
from gearworks.sampling import SamplingParams, choose

PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a village by the sea,",
    "1, 1, 2, 3, 5, 8, 13,",
    "深度学习是",
    "Dear colleagues,\n\nI am writing to",
]
# A sentence that asks for symbols of several tokens each, so that streaming has half characters
# to hold back.
EMOJI = [{"role": "user", "content": "Repeat exactly: 😀 深度学习 🚀 naïve 😀 深度学习 🚀"}]


def hf_greedy(hf_model, prompt_ids, count):
    with torch.no_grad():
        out = hf_model.generate(torch.tensor([prompt_ids]),
                                attention_mask=torch.ones(1, len(prompt_ids), dtype=torch.long),
                                max_new_tokens=count, do_sample=False, pad_token_id=0,
                                return_dict_in_generate=True, output_logits=True)
    ids = out.sequences[0, len(prompt_ids):].tolist()
    gaps = [float(torch.topk(step[0], 2).values.diff().abs()) for step in out.logits]
    return ids, gaps


@pytest.mark.parametrize("prompt", [
    *(pytest.param(prompt, marks=pytest.mark.long) for prompt in PROMPTS), "chat"])
def test_64_greedy_tokens_equal_hf(smollm2, hf_smollm2, prompt):
    if prompt == "chat":
        ours = smollm2.chat([{"role": "user", "content": "Name three colours."}], max_tokens=64)
    else:
        ours = smollm2.generate(prompt, max_tokens=64)
    theirs, gaps = hf_greedy(hf_smollm2, ours.prompt_ids, 64)
    if theirs[-1] in smollm2.eos_ids:
        theirs.pop()
        assert ours.finish_reason == "stop"
    else:
        assert ours.finish_reason == "length" and len(ours.ids) == 64
    differs = next((i for i, (a, b) in enumerate(zip(ours.ids, theirs)) if a != b), None)
    assert differs is None or gaps[differs] < 1e-3, (differs, ours.ids, theirs)
    assert differs is not None or len(ours.ids) == len(theirs)
    assert len(ours.ids) > 5


def test_the_answer_to_a_question(smollm2):
    answer = smollm2.chat([{"role": "user", "content": "What is the capital of France?"}],
                          max_tokens=40)
    assert "Paris" in answer.text and answer.finish_reason == "stop"
    assert "<|im_end|>" not in answer.text


def test_streamed_equals_whole_and_never_shows_half_a_character(smollm2):
    pieces = []
    answer = smollm2.chat(EMOJI, max_tokens=60, on_text=pieces.append)
    assert "".join(pieces) == answer.text and len(pieces) > 10
    assert ("�" not in "".join(pieces[:-1])
            and any(ord(letter) > 0x2000 for letter in answer.text))
    assert len(pieces) < len(answer.ids)                    # some tokens completed no character
    assert answer.text == smollm2.tokenizer.decode(answer.ids, skip_special=True)


def test_a_text_cut_inside_a_character_streams_as_it_decodes(smollm2):
    whole = smollm2.chat(EMOJI, max_tokens=60)
    for limit in range(len(whole.ids)):
        pieces = []
        answer = smollm2.chat(EMOJI, max_tokens=limit, on_text=pieces.append)
        assert answer.ids == whole.ids[:limit] and "".join(pieces) == answer.text
        if answer.text.endswith("�"):
            return
    pytest.fail("no limit fell into a character")


def test_seeds(smollm2):
    warm = {"max_tokens": 12, "params": SamplingParams(temperature=1.5, seed=7)}
    first = smollm2.generate(PROMPTS[2], **warm)
    assert smollm2.generate(PROMPTS[2], **warm).ids == first.ids
    others = [smollm2.generate(PROMPTS[2], max_tokens=12,
                               params=SamplingParams(temperature=1.5, seed=seed)).ids
              for seed in (8, None, None)]
    assert len({tuple(ids) for ids in [first.ids, *others]}) == 4


def test_repetition_penalty_counts_prompt_and_answer(smollm2, hf_smollm2):
    ours = smollm2.generate(PROMPTS[3], max_tokens=24,
                            params=SamplingParams(repetition_penalty=1.4))
    with torch.no_grad():
        theirs = hf_smollm2.generate(torch.tensor([ours.prompt_ids]), max_new_tokens=24,
                                     do_sample=False, pad_token_id=0,
                                     repetition_penalty=1.4)[0, len(ours.prompt_ids):].tolist()
    assert ours.ids == [token for token in theirs if token not in smollm2.eos_ids]


def test_several_eos_ids(smollm2):
    plain = smollm2.generate(PROMPTS[0], max_tokens=10)
    assert len(set(plain.ids)) > 3
    for stop in sorted(set(plain.ids)):
        cut = generate(smollm2.model, smollm2.tokenizer, PROMPTS[0], max_tokens=10,
                       eos_ids={49151, stop})
        assert cut.ids == plain.ids[:plain.ids.index(stop)] and cut.finish_reason == "stop"


@pytest.fixture(scope="module")
def small(smollm2, tiny_llama) -> LanguageModel:
    """A random model with SmolLM2's tokenizer and a context of 256 tokens:
    limits and caches need no good text."""
    from gearworks.model import Model
    _, folder = tiny_llama(11, vocab_size=49152)
    return LanguageModel(Model.load(folder), smollm2.tokenizer, smollm2.settings, frozenset())


def test_the_context_is_the_last_limit(small):
    prompt = "word " * 120
    answer = small.generate(prompt, max_tokens=10_000)
    assert len(answer.prompt_ids) + len(answer.ids) == 256 and answer.finish_reason == "length"
    assert small.generate("word " * 254, max_tokens=5).usage["total_tokens"] == 256
    for count in (255, 300):                                    # not even one token has room
        with pytest.raises(ModelError, match="tokens, and the context 256"):
            small.generate("word " * count, max_tokens=1)


@pytest.mark.parametrize("options, complaint",
                         [({"prompt": ""}, "empty"), ({"max_tokens": -1}, "max_tokens is -1")],
                         ids=["empty", "negative"])
def test_requests_that_make_no_sense(small, options, complaint):
    with pytest.raises(ModelError, match=complaint):
        small.generate(**{"prompt": "a", "max_tokens": 1} | options)


def test_nothing_wanted_costs_nothing(small):
    answer = small.generate("a b c", max_tokens=0)
    assert (answer.ids, answer.text, answer.finish_reason) == ([], "", "length")


def test_a_conversation_computes_only_what_is_new(small, monkeypatch):
    """A prompt that begins like the last one reuses its keys,
    and the text is the same as from a cold start."""
    rows = []
    forward = small.model.forward
    monkeypatch.setattr(small.model, "forward",
                        lambda ids, *rest, **more: rows.append(len(ids)) or forward(ids, *rest,
                                                                                    **more))
    context = Context(small.model)
    prompt = "The sea was calm that morning"
    first = small.generate(prompt, max_tokens=6, context=context)
    # the last token is not run
    assert first.cached_tokens == 0 and sum(rows) == len(first.prompt_ids) + 5
    for following in (prompt + " and the fishermen", prompt, "The sea was rough",
                      "Quite another text", prompt):
        rows.clear()
        before = list(context.ids)
        warm = small.generate(following, max_tokens=6, context=context)
        assert sum(rows) == len(warm.prompt_ids) - warm.cached_tokens + len(warm.ids) - 1
        assert before[:warm.cached_tokens] == warm.prompt_ids[:warm.cached_tokens]
        assert warm.cached_tokens < len(warm.prompt_ids)
        assert warm.ids == small.generate(following, max_tokens=6).ids
    assert (small.generate(prompt, max_tokens=6, context=context).cached_tokens
            == len(first.prompt_ids) - 1)


def test_long_prompts_enter_in_chunks(small, monkeypatch):
    monkeypatch.setattr("gearworks.decoding.PREFILL_CHUNK", 50)
    chunked = small.generate("word " * 130, max_tokens=5).ids
    monkeypatch.setattr("gearworks.decoding.PREFILL_CHUNK", PREFILL_CHUNK)
    assert chunked == small.generate("word " * 130, max_tokens=5).ids


def test_an_interrupted_answer_leaves_a_usable_context(small, monkeypatch):
    context = Context(small.model)
    small.generate("The sea was calm", max_tokens=3, context=context)
    attend, calls = type(context.cache).attend, []

    def interrupted(self, layer, q, k, v):
        calls.append(layer)
        if len(calls) == 8:                                  # in the middle of the third pass
            raise KeyboardInterrupt
        return attend(self, layer, q, k, v)
    with monkeypatch.context() as patch:
        patch.setattr(type(context.cache), "attend", interrupted)
        with pytest.raises(KeyboardInterrupt):
            small.generate("The sea was calm and grey", max_tokens=9, context=context)
    assert set(context.cache.lengths) == {len(context.ids)}
    again = small.generate("The sea was calm and grey", max_tokens=9, context=context)
    assert again.ids == small.generate("The sea was calm and grey", max_tokens=9).ids


def test_times_are_measured(small):
    answer = small.generate("a b c", max_tokens=4)
    assert answer.prefill_seconds > 0 and answer.decode_seconds > 0
    assert answer.usage == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}


@given(st.lists(st.sampled_from(["a", "b", "ab", "ba", "aab", "END", "E", "EN", "D", "ß",
                                 "🦊"]), max_size=12),
       st.lists(st.sampled_from(["END", "ab", "aab", "ba", "🦊E", "b"]), max_size=3))
def test_stop_strings_do_not_depend_on_the_pieces(pieces, stops):
    """Against the definition: letter by letter,
    the text ends at the first letter at which some stop string is complete."""
    text, expected, found = "".join(pieces), "".join(pieces), None
    for end in range(len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            found = max(complete, key=len)
            expected = text[:end - len(found)]
            break
    matcher, shown = StopMatcher(stops), ""
    for piece in pieces:
        shown += matcher.push(piece)
        assert expected.startswith(shown)                       # nothing of a stop string, ever
    assert shown + matcher.flush() == expected and matcher.found == found
    assert matcher.flush() == ""


class Reciter:
    """A model that says given ids, one after the other, whatever it is asked:
    made of what `Context` needs of one."""

    def __init__(self, ids, prompt_length):
        self.ids, self.prompt_length = ids, prompt_length
        self.config = SimpleNamespace(max_position_embeddings=64)

    def new_cache(self, capacity):
        return SimpleNamespace(capacity=capacity, truncate=lambda length: None)

    def forward(self, ids, positions, cache, logits_at):
        assert positions[-1] + 1 < cache.capacity        # the last token of a text is never run
        logits = np.zeros((1, 49152), np.float32)
        logits[0, self.ids[positions[-1] + 1 - self.prompt_length]] = 1
        return logits


def as_defined(tokenizer, ids, limit, stops):
    """What a reader sees, how many ids there are, and why they end:
    token by token, from all of the text each time."""
    for count in range(limit):
        if ids[count] == 2:                                             # the EOS
            return tokenizer.decode(ids[:count]), count, "stop"
        data = tokenizer.decode_bytes(ids[:count + 1])
        text = data.decode("utf-8", errors="ignore")      # all but the beginning of a character
        for end in range(len(text) + 1):
            complete = [stop for stop in stops if text[:end].endswith(stop)]
            if complete:
                return text[:end - len(max(complete, key=len))], count + 1, "stop"
    return tokenizer.decode(ids[:limit]), limit, "length"


# Pieces of several bytes and tokens: an emoji, one that zero-width joiners hold together,
# Chinese, combining marks
SCRAPS = ["a", "ab", "b c", " END", "EN", "D", "ß", "🦊", "👩‍👩‍👧", "深度", "é", "e\u0301",
          "\n\n", "🇫🇷"]
STOPS = ["END", "EN", "a", "ab", "🦊", "\u200d", "👩‍👧", "度", "\u0301", "🇷", "\n\n",
         "b c END", "ßEN"]


@given(st.lists(st.sampled_from(SCRAPS), min_size=1, max_size=9),
       st.lists(st.sampled_from(STOPS), max_size=4),
       st.integers(0, 40), st.integers(0, 40), st.booleans())
@settings(max_examples=100, deadline=None)
def test_any_end_shows_what_it_should(smollm2, scraps, stops, limit, eos_at,
                                      whole_text_is_a_stop):
    """Stop strings anywhere, across tokens and inside characters, beside an EOS,
    a limit and the end of the context."""
    tokenizer = smollm2.tokenizer
    ids = tokenizer.encode("".join(scraps)) * 3
    ids = [*ids[:eos_at], 2, *ids[eos_at:], *[67] * 64]
    stops = [*stops, "".join(scraps)] if whole_text_is_a_stop else stops
    prompt = "one two three"
    room = 64 - len(tokenizer.encode(prompt))                       # as far as the context goes
    pieces = []
    answer = generate(Reciter(ids, len(tokenizer.encode(prompt))), tokenizer, prompt,
                      max_tokens=limit * 3, eos_ids={2}, stop=stops, on_text=pieces.append,
                      top_logprobs=1)
    text, count, reason = as_defined(tokenizer, ids, min(limit * 3, room), stops)
    assert (answer.text, answer.ids, answer.finish_reason) == (text, ids[:count], reason)
    assert "".join(pieces) == text and "" not in pieces
    # half a character only where a limit cuts it
    assert not any("�" in piece for piece in pieces[:-1])
    assert [entry.id for entry in answer.logprobs] == answer.ids


def test_what_cannot_become_a_stop_string_is_shown_at_once():
    matcher = StopMatcher(["</tool>", "###"])
    assert ([matcher.push(piece) for piece in ("one <", "b> two #", "# three", " four")]
            == ["one ", "<b> two ", "## three", " four"])


def test_one_stop_string_is_not_its_letters(smollm2):
    stream = TextStream(smollm2.tokenizer, "END", None)
    assert ([stream.push(token)
             for token in smollm2.tokenizer.encode("N, D, E and END.")].count(True) > 0)
    assert stream.finish() == "N, D, E and "


def test_empty_stop_strings_are_refused():
    with pytest.raises(ModelError, match="empty"):
        StopMatcher(["END", ""])


def test_stop_strings_across_token_borders(smollm2):
    """Every substring of an answer, as a stop string, ends it where it first occurs,
    streamed and whole."""
    whole = smollm2.generate(PROMPTS[0], max_tokens=24)
    for start in range(0, len(whole.text) - 6, 5):
        stop = whole.text[start:start + 6]
        pieces = []
        cut = smollm2.generate(PROMPTS[0], max_tokens=24, stop=[stop, "never occurs"],
                               on_text=pieces.append)
        assert cut.text == "".join(pieces) == whole.text[:whole.text.index(stop)]
        assert cut.finish_reason == "stop" and cut.ids == whole.ids[:len(cut.ids)]


def test_the_held_back_end_is_not_lost(smollm2):
    whole = smollm2.generate(PROMPTS[0], max_tokens=12)
    pieces = []
    cut = smollm2.generate(PROMPTS[0], max_tokens=12,
                           stop=[whole.text[-3:] + "and then something"], on_text=pieces.append)
    assert cut.text == "".join(pieces) == whole.text and cut.finish_reason == "length"


def test_stop_ids_end_the_text_and_are_not_part_of_it(smollm2):
    whole = smollm2.generate(PROMPTS[0], max_tokens=12)
    cut = smollm2.generate(PROMPTS[0], max_tokens=12, stop_ids={whole.ids[5]})
    assert cut.ids == whole.ids[:whole.ids.index(whole.ids[5])] and cut.finish_reason == "stop"


def test_logprobs_are_the_models_own(smollm2, hf_smollm2):
    """Of every token, before any processor;
    the chosen token's number is the very same in both lists."""
    params = SamplingParams(temperature=2.0, top_k=3, seed=1)
    answer = smollm2.generate(PROMPTS[1], max_tokens=8, params=params, top_logprobs=5)
    ids = torch.tensor([[*answer.prompt_ids, *answer.ids]])
    with torch.no_grad():
        expected = hf_smollm2(ids).logits[0].log_softmax(-1)[len(answer.prompt_ids) - 1:-1]
    assert [entry.id for entry in answer.logprobs] == answer.ids
    for entry, row in zip(answer.logprobs, expected, strict=True):
        assert entry.logprob == pytest.approx(float(row[entry.id]), abs=1e-3)
        assert (len(entry.top) == 5
                and [id for id, _ in entry.top] == row.topk(5).indices.tolist())
        assert dict(entry.top).get(entry.id, entry.logprob) == entry.logprob


def test_a_seed_means_the_same_text_however_it_is_asked_for(small):
    """Streamed or not, with log-probabilities or without, warm or cold,
    with a stop string that never comes."""
    params, context = SamplingParams(temperature=1.3, top_p=0.95, seed=5), Context(small.model)
    plain = small.generate("one two", max_tokens=9, params=params)
    for options in ({"top_logprobs": 0}, {"top_logprobs": 20}, {"top_logprobs": 10**6},
                    {"on_text": str}, {"context": context}, {"context": context},
                    {"stop": ["never in there"]}, {"stop_ids": {1}}):
        answer = small.generate("one two", max_tokens=9, params=params, **options)
        assert (answer.ids, answer.text) == (plain.ids, plain.text)
        if "top_logprobs" in options:
            assert [entry.id for entry in answer.logprobs] == plain.ids
            assert ({len(entry.top) for entry in answer.logprobs}
                    == {min(options["top_logprobs"], 49152)})
    whole = small.generate("a", max_tokens=1, top_logprobs=49152).logprobs[0].top
    assert sum(np.exp(value) for _, value in whole) == pytest.approx(1, abs=1e-4)


WARM = [SamplingParams(temperature=1.3, seed=5),
        SamplingParams(temperature=0.9, top_p=0.9, seed=5), SamplingParams(),
        SamplingParams(temperature=2.0, top_k=50, presence_penalty=1.0, seed=6)]


def test_a_request_draws_the_same_whatever_its_neighbours_do(small):
    """A generator for each request: one that is answered amid another changes nothing."""
    alone = [small.generate(prompt, max_tokens=8, params=params).ids
             for prompt, params in zip(PROMPTS, WARM)]
    for prompt, params, expected in zip(PROMPTS, WARM, alone):
        neighbours = []

        def interrupt(_):
            neighbours.append(small.generate(PROMPTS[0], max_tokens=8, params=WARM[0]).ids)
        assert (small.generate(prompt, max_tokens=8, params=params, on_text=interrupt).ids
                == expected)
        assert len(neighbours) > 3 and all(ids == alone[0] for ids in neighbours)


def test_in_a_batch_a_seed_gives_the_text_that_it_gives_alone(small):
    """All requests share each forward pass;
    each has a generator, settings and ids of its own."""
    alone = [small.generate(prompt, max_tokens=8, params=params)
             for prompt, params in zip(PROMPTS, WARM)]
    prompts = [answer.prompt_ids for answer in alone]
    draws = [np.random.default_rng(params.seed) for params in WARM]
    caches, texts, new = [small.model.new_cache(100)
                          for _ in prompts], [[] for _ in prompts], prompts
    for _ in range(8):
        lengths = [len(ids) for ids in new]
        positions = np.concatenate([len(cache) + np.arange(length)
                                    for cache, length in zip(caches, lengths)])
        logits = small.model.forward(np.concatenate(new), positions,
                                     RaggedBatch(caches, lengths),
                                     logits_at=np.cumsum(lengths) - 1)  # (B, V)
        for row, params, prompt, text, rng in zip(logits, WARM, prompts, texts, draws):
            text.append(choose(row, params, [*prompt, *text], rng, text))
        new = [text[-1:] for text in texts]
    assert texts == [answer.ids for answer in alone]
