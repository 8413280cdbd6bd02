"""The KV cache in 8 and 4 bits: contiguous, in blocks, and in the serving engine."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gearworks.attention import QUERY_BLOCK, attention, causal_mask
from gearworks.config import ModelConfig
from gearworks.errors import ModelError
from gearworks.kv_cache import RaggedBatch
from gearworks.language_model import LanguageModel
from gearworks.model import Model
from gearworks.quantization.quantized_cache import (QuantizedKVCache, quantized_bytes_per_token,
                                                    round_along, widen)
from gearworks.serving.engine import LLMEngine
from gearworks.serving.paged_cache import PagedBatch, bytes_per_token
from gearworks.serving.quantized_paged import QuantizedPagedKVCache, paged_bytes_per_token
from gearworks.serving.request import Request
from gearworks.tokenizer import Tokenizer
from gearworks.vocabularies.vocabulary import Vocabulary

H, K, d, L = 6, 2, 10, 3


def config(windows=()):
    return ModelConfig("LlamaForCausalLM", 11, H * d, 8, L, H, K, d, 512, 1e-5, 1e4, False,
                       windows=windows)


CONFIG = config()


def step(rng, T):
    return [rng.standard_normal((T, heads, d), dtype=np.float32) for heads in (H, K, K)]


def outlying(rng, T):
    """Tokens whose keys have channels that are large for every token, as real models' have."""
    q, k, v = step(rng, T)
    k[:, :, 3] += 40
    k[:, 1, 7] *= 25
    return q, k, v


@given(st.integers(0, 2**32 - 1), st.integers(-60, 60), st.sampled_from([8, 4]),
       st.sampled_from([0, 1, 2, -1]))
@settings(deadline=None)
def test_what_is_rounded_comes_back_within_half_a_step(seed, size, bits, axis):
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((3, 4, 6)) + 3 * rng.standard_normal((1, 1, 6))) * 2.0**size
    x = x.astype(np.float32)
    x[rng.random(x.shape) < 0.3] = rng.choice([0, x[0, 0, 0]])
    codes, scales, minimums = round_along(x, bits, axis)
    assert codes.shape == (3, 4, 6 * bits // 8)
    back = widen(codes, scales, minimums, bits)
    assert back.dtype == np.float32
    magnitude = np.abs(x).max(axis=axis, keepdims=True)
    assert (np.abs(back - x) <= 0.5001 * scales + 1e-6 * magnitude + 1e-40).all()


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("T", [1, 5, 8, QUERY_BLOCK, 2 * QUERY_BLOCK + 3])
@pytest.mark.parametrize("windows", [(), (None, 12, 1)])
def test_attend_is_attention_over_what_is_read(rng, bits, T, windows):
    cache = QuantizedKVCache(config(windows), 21 + T, bits, group_size=8)
    for count in (13, 8):
        for layer in range(L):
            cache.attend(layer, *outlying(rng, count))
    for layer in range(L):
        q, k, v = outlying(rng, T)
        got = cache.attend(layer, q, k, v)
        keys, values = (x.transpose(1, 0, 2) for x in cache.read(layer))
        mask = causal_mask(T, 21 + T, windows[layer] if windows else None)
        np.testing.assert_allclose(got, attention(q, keys, values, mask), rtol=0, atol=2e-5)
    assert len(cache) == 21 + T


def test_each_channel_of_the_keys_has_its_own_step(rng):
    cache, (_, k, v) = QuantizedKVCache(CONFIG, 64, 4, 32), outlying(rng, 64)
    cache.store(0, k, v)
    keys, values = cache.read(0)
    error = np.abs(keys - k.transpose(1, 0, 2))
    for group in (slice(0, 32), slice(32, 64)):
        step = np.ptp(k[group], axis=0) / 15                                     # (K, d)
        assert (error[:, group] <= 0.501 * step[:, None]).all()
    step = np.ptp(v, axis=-1).T[..., None] / 15                                  # (K, T, 1)
    assert (np.abs(values - v.transpose(1, 0, 2)) <= 0.501 * step).all()


@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.sampled_from([1, 3, 4, 16]),
       st.sampled_from([8, 4]), st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_pieces_do_not_change_what_is_stored(counts, group, bits, seed):
    rng = np.random.default_rng(seed)
    total = sum(counts)
    whole, pieces = (QuantizedKVCache(CONFIG, total + 1, bits, group) for _ in range(2))
    _, k, v = outlying(rng, total)
    whole.store(1, k, v)
    start = 0
    for count in counts:
        pieces.store(1, k[start:start + count], v[start:start + count])
        start += count
    for mine, right in zip(pieces.read(1), whole.read(1)):
        np.testing.assert_array_equal(mine, right)
    assert pieces.lengths == [0, total, 0]


@given(st.integers(0, 20), st.integers(0, 20), st.sampled_from([1, 4, 7]),
       st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_a_cut_keeps_what_is_left_as_it_was(stored, keep, group, seed):
    keep = min(keep, stored)
    cache = QuantizedKVCache(CONFIG, 24, 8, group)
    tokens = outlying(np.random.default_rng(seed), 24)
    for layer in range(L):
        cache.store(layer, tokens[1][:stored], tokens[2][:stored])
    before = [cache.read(layer) for layer in range(L)]
    cache.truncate(keep)
    assert cache.lengths == [keep] * L
    for layer in range(L):
        for mine, old in zip(cache.read(layer), before[layer]):
            np.testing.assert_allclose(mine, old[:, :keep], rtol=0, atol=0)
        cache.store(layer, tokens[1][keep:], tokens[2][keep:])
        keys, values = cache.read(layer)
        step = np.ptp(tokens[1], axis=0)[:, None] / 255
        assert (np.abs(keys - tokens[1].transpose(1, 0, 2)) <= 1.01 * step + 1e-5).all()
        assert keys.shape == values.shape == (K, 24, d)


def test_what_does_not_fit_is_refused_and_leaves_no_trace(rng):
    cache, tokens = QuantizedKVCache(CONFIG, 8, 8, 4), step(rng, 8)
    cache.attend(0, *(x[:6] for x in tokens))
    before = cache.read(0)
    with pytest.raises(ModelError, match="holds 8 tokens, and 9 are needed"):
        cache.attend(0, *step(rng, 3))
    for mine, old in zip(cache.read(0), before):
        np.testing.assert_array_equal(mine, old)
    assert len(cache) == 0                                   # the other layers have nothing
    for length in (1, -1):
        with pytest.raises(ValueError, match="truncate"):
            cache.truncate(length)


@pytest.mark.parametrize("make", [
    lambda config, bits: QuantizedKVCache(config, 8, bits),
    lambda config, bits: QuantizedPagedKVCache(config, 2, 4, bits)])
def test_other_bits_and_latent_attention_are_refused(make, tiny_model):
    with pytest.raises(ModelError, match="choose 8 or 4"):
        make(CONFIG, 5)
    latent = Model.load(tiny_model("DeepseekV3", 1)[1]).config
    with pytest.raises(ModelError, match="latent attention"):
        make(latent, 8)


@pytest.mark.parametrize("make", [
    lambda size: QuantizedKVCache(CONFIG, size),
    lambda size: QuantizedPagedKVCache(CONFIG, size, 4)])
def test_what_memory_cannot_hold_is_refused(make):
    with pytest.raises(ModelError, match="GB"):
        make(2**60)


@pytest.mark.parametrize("bits", [8, 4])
def test_bytes_are_counted_as_they_are(bits):
    """What a token costs is the growth of what is reserved, scales and minimums included."""
    small, large = (QuantizedKVCache(CONFIG, capacity, bits).nbytes() for capacity in (64, 96))
    assert (large - small) / 32 == quantized_bytes_per_token(CONFIG, bits)
    memory = QuantizedPagedKVCache(CONFIG, 5, 4, bits)
    reserved = sum(array.nbytes for array in (memory.codes, memory.scales, memory.minimums))
    assert reserved == 20 * paged_bytes_per_token(CONFIG, bits)
    smollm2 = ModelConfig("LlamaForCausalLM", 49152, 576, 1536, 30, 9, 3, 64, 8192, 1e-5, 1e5,
                          True)
    plain = bytes_per_token(smollm2)
    assert plain / quantized_bytes_per_token(smollm2, bits) > {8: 3.3, 4: 5.8}[bits]
    assert plain / paged_bytes_per_token(smollm2, bits) > {8: 3.5, 4: 6.3}[bits]


# --- whole models ---


@pytest.fixture(scope="module")
def model(tiny_model):
    return Model.load(tiny_model("Llama", 7)[1])


IDS = np.random.default_rng(2).integers(0, 211, 60)


def logits(model, cache, steps):
    rows, start = [], 0
    for count in steps:
        rows.append(model.forward(IDS[start:start + count],
                                  np.arange(start, start + count), cache))
        start += count
    return np.concatenate(rows)


def divergence(p, q):
    """The mean KL divergence of the next token's distribution."""
    p, q = (x.astype(np.float64) - np.logaddexp.reduce(x, axis=-1, keepdims=True)
            for x in (p, q))
    return float((np.exp(p) * (p - q)).sum(-1).mean())


@pytest.mark.parametrize("steps", [[60], [30, 1, 1, 28], [1] * 60])
def test_a_model_answers_nearly_as_with_the_float_cache(model, steps):
    right = logits(model, model.new_cache(60), [60])
    far = {bits: divergence(right, logits(model, QuantizedKVCache(model.config, 60, bits, 8),
                                          steps)) for bits in (8, 4)}
    spread = divergence(right, np.zeros_like(right))
    assert 0 < far[8] < 0.002 * spread
    assert far[8] < far[4] < 0.2 * spread


HELD = json.loads((Path(__file__).parent / "data" / "llamacpp_smollm2.json").read_text(
    encoding="utf-8"))["perplexity"]


def test_smollm2_reads_a_held_text_nearly_as_well(smollm2):
    """Perplexity and divergence within stated bounds of float32: contiguous, and in blocks."""
    text = max((each["text"] for each in HELD), key=len)
    ids = np.array(smollm2.tokenizer.encode(text))[:256]
    model, places = smollm2.model, np.arange(len(ids))
    config, blocks = model.config, list(range(16))

    def surprise(logits):
        logits = logits.astype(np.float64)
        log_p = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
        return np.exp(-log_p[places[:-1], ids[1:]].mean())

    right = model.forward(ids, places, model.new_cache(len(ids)))
    for bits, blockwise, worse, far in ((8, False, 1.005, 5e-4), (8, True, 1.02, 3e-3),
                                        (4, False, 1.10, 0.05), (4, True, 1.25, 0.25)):
        cache = (QuantizedPagedKVCache(config, 16, 16, bits).batch([blocks], [0], [len(ids)])
                 if blockwise else QuantizedKVCache(config, len(ids), bits))
        got = model.forward(ids, places, cache)
        assert surprise(got) < worse * surprise(right), (bits, blockwise)
        assert divergence(right, got) < far, (bits, blockwise)


def test_several_sequences_stand_behind_one_call(model):
    """`RaggedBatch` takes these caches as it takes the plain ones."""
    caches = [QuantizedKVCache(model.config, 40, 8, 8) for _ in range(2)]
    ids = np.concatenate([IDS[:11], IDS[20:39]])
    positions = np.concatenate([np.arange(11), np.arange(19)])
    got = model.forward(ids, positions, RaggedBatch(caches, [11, 19]))
    for rows, own in ((got[:11], IDS[:11]), (got[11:], IDS[20:39])):
        alone = model.forward(own, np.arange(len(own)),
                              QuantizedKVCache(model.config, 40, 8, 8))
        np.testing.assert_allclose(rows, alone, rtol=0, atol=2e-4)


# --- blocks ---


def paged(model, sequences, bits=8, size=4):
    """Run sequences of (ids, steps) side by side, over blocks that are scattered."""
    config = model.config
    memory = QuantizedPagedKVCache(config, 64, size, bits)
    memory.codes[...], memory.scales[...], memory.minimums[...] = 255, np.nan, np.nan
    free = np.random.default_rng(9).permutation(64).tolist()
    tables = [[free.pop() for _ in range(-(-len(ids) // size))] for ids, _ in sequences]
    out = [[] for _ in sequences]
    for number in range(max(len(steps) for _, steps in sequences)):
        now = [(one, sum(steps[:number]), steps[number])
               for one, (_, steps) in enumerate(sequences) if number < len(steps)]
        batch = memory.batch([tables[one] for one, _, _ in now], [start for _, start, _ in now],
                             [count for _, _, count in now])
        ids = np.concatenate([sequences[one][0][start:start + count]
                              for one, start, count in now])
        positions = np.concatenate([np.arange(start, start + count) for _, start, count in now])
        rows = model.forward(ids, positions, batch)
        end = 0
        for one, _, count in now:
            end += count
            out[one].append(rows[end - count:end])
    return [np.concatenate(rows) for rows in out], memory, tables


@pytest.mark.parametrize("bits", [8, 4])
def test_blocks_hold_each_token_by_itself(rng, bits):
    memory = QuantizedPagedKVCache(CONFIG, 6, 4, bits)
    _, k, v = step(rng, 7)
    slots = np.array([21, 3, 0, 8, 9, 10, 23])
    memory.write(2, slots, k, v)
    for x, kind in ((k, 0), (v, 1)):
        right = widen(*round_along(x.transpose(1, 0, 2), bits, -1), bits)
        for at, slot in enumerate(slots):
            got = memory.read(2, [slot // 4], 4)[kind][:, slot % 4]
            np.testing.assert_array_equal(got, right[:, at])
    memory.copy_block(2, 1)
    for mine, other in zip(memory.read(2, [1], 3), memory.read(2, [2], 3)):
        np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("bits", [8, 4])
def test_chunks_neighbours_and_places_change_nothing(model, bits):
    """What a token is stored as depends on nothing else, so the equivalences of serving hold
    as they do in float32."""
    first, second = IDS[:27], IDS[30:49]
    (alone,), _, _ = paged(model, [(first, [27])], bits)
    (chunked,), _, _ = paged(model, [(first, [9, 1, 1, 16])], bits, size=7)
    both, _, _ = paged(model, [(second, [5, 14]), (first, [20, 7])], bits)
    np.testing.assert_allclose(chunked, alone, rtol=0, atol=2e-4)
    np.testing.assert_allclose(both[1], alone, rtol=0, atol=2e-4)
    right = logits(model, model.new_cache(60), [60])[:27]
    assert 0 < divergence(right, alone) < {8: 0.05, 4: 3}[bits]


def test_a_prefix_in_blocks_is_as_good_as_its_own(model):
    (whole,), memory, (table,) = paged(model, [(IDS[:27], [27])])
    batch = memory.batch([[*table[:3], 0, 1, 2, 3]], [12], [15])
    np.testing.assert_allclose(model.forward(IDS[12:27], np.arange(12, 27), batch), whole[12:],
                               rtol=0, atol=2e-4)


def test_windows_reach_as_far_in_blocks(tiny_model):
    model = Model.load(tiny_model("Mistral", 3, sliding_window=9)[1])
    (blocks,), _, _ = paged(model, [(IDS[:30], [12, 1, 17])])
    right = model.forward(IDS[:30], np.arange(30), model.new_cache(30))
    assert 0 < divergence(right, blocks) < 0.05


def test_the_counts_of_a_step_must_add_up(rng):
    memory = QuantizedPagedKVCache(CONFIG, 4, 4)
    batch = memory.batch([[0], [1]], [0, 0], [2, 1])
    assert isinstance(batch, PagedBatch)
    with pytest.raises(ValueError, match="add up to 3"):
        batch.attend(0, *step(rng, 2))


# --- the engine ---


def answers(engine, requests):
    """What the engine makes of requests that come at once: id -> tokens."""
    got = {request.id: [] for request in requests}
    for request in requests:
        engine.add_request(request)
    while engine.has_unfinished():
        for delta in engine.step():
            got[delta.request_id] += delta.ids
    return got


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_many_requests_get_what_each_gets_alone(model, dtype):
    """Shared prefixes, chunks, and a memory that is too small for all: in fewer bits, too."""
    tokenizer = Tokenizer(Vocabulary({chr(256 + id): id for id in range(211)}, merges={}))
    language_model = LanguageModel(model, tokenizer, {}, frozenset())
    prompts = [IDS[:20], IDS[:20], [*IDS[:16], 5, 6], IDS[30:34], IDS[10:40], IDS[:20]]
    requests = [Request(prompt.tolist() if isinstance(prompt, np.ndarray) else prompt,
                        max_tokens=12, ignore_eos=True, id=str(number))
                for number, prompt in enumerate(prompts)]

    def engine(blocks):
        return LLMEngine(language_model, block_size=4, num_blocks=blocks, max_num_seqs=8,
                         max_num_batched_tokens=16, kv_cache_dtype=dtype)

    small = engine(20)
    together = answers(small, requests)
    assert any(record.preempted for record in small.records)
    for request in requests:
        assert together[request.id] == answers(engine(40), [request])[request.id]
    assert len({*map(tuple, together.values())}) >= 4


def test_other_dtypes_are_refused(model):
    tokenizer = Tokenizer(Vocabulary({"a": 0}, merges={}))
    with pytest.raises(ModelError, match="choose one of float32, int8, int4|kv_cache_dtype"):
        LLMEngine(LanguageModel(model, tokenizer, {}, frozenset()), kv_cache_dtype="fp8")
