"""Attention over blocks is attention over one array, and nothing is put together for it."""

import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward as gemma2
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward as gpt_oss

from gearworks import attention as attention_module
from gearworks.attention import (QUERY_BLOCK, AttentionRules, adjacent_blocks, attention,
                                 attention_over_views, causal_mask, paged_attention)
from gearworks.config import ModelConfig
from gearworks.kv_cache import KVCache, attention_rules
from gearworks.serving.paged_cache import PagedBatch, PagedKVCache

SHAPES = [(6, 2, 10, 10), (5, 5, 7, 7), (4, 1, 1, 3), (8, 8, 3, 3), (9, 3, 64, 64)]  # H K d e
# pairs of (tokens in the blocks, queries), one for each sequence
BATCHES = [[(1, 1)], [(70, 1), (1, 1), (33, 1), (12, 1)], [(7, 7), (40, 1), (20, 13), (9, 0)],
           [(3, 0), (8, 0)], [(200, QUERY_BLOCK + 3), (66, 66), (31, 1), (32, 2)], [(5, 5)]]


def write_tables(rng, kind: str, needs: list[int], spare: int) -> tuple[list[list[int]], int]:
    """Block tables of sequences that need so many blocks, and how many blocks there are."""
    total = sum(needs) + 3 * len(needs) + 2
    order = list(range(total))
    if kind == "scattered":
        rng.shuffle(order)
    elif kind == "reversed":
        order.reverse()
    tables, at = [], 1
    for need in needs:
        tables.append(order[at:at + need + spare])
        at += need + spare
    return tables, total


def memories(rng, blocks: int, size: int, K: int, d: int, e: int, latent: bool):
    """Keys and values full of nan: whoever reads what nobody wrote, sees it."""
    keys = np.full((K, blocks, size, d), np.nan, np.float32)
    if latent:
        return keys, keys[..., :e]
    return keys, np.full((K, blocks, size, e), np.nan, np.float32)


def fill(rng, keys, values, table, length, latent):
    """Write a sequence into its blocks; returns its keys and values in one array each."""
    K, _, size, d = keys.shape
    k = rng.standard_normal((length, K, d), dtype=np.float32)
    v = (k[..., :values.shape[-1]] if latent
         else rng.standard_normal((length, K, values.shape[-1]), dtype=np.float32))
    positions = np.arange(length)
    blocks, places = np.array(table, int)[positions // size], positions % size
    keys[:, blocks, places] = k.transpose(1, 0, 2)
    values[:, blocks, places] = v.transpose(1, 0, 2)
    return k, v


def both(rng, batch, *, shape=SHAPES[0], size=32, kind="scattered", spare=0, latent=False,
         rules=AttentionRules(), one=None):
    """The attention of a batch over blocks, and of each sequence alone over one array."""
    H, K, d, e = shape
    tables, blocks = write_tables(rng, kind, [-(-length // size) for length, _ in batch], spare)
    keys, values = memories(rng, blocks, size, K, d, e, latent)
    counts = [count for _, count in batch]
    q = rng.standard_normal((sum(counts), H, d), dtype=np.float32)
    expected, start = [np.empty((0, H, e), np.float32)], 0
    for table, (length, count) in zip(tables, batch):
        k, v = fill(rng, keys, values, table, length, latent)
        if count:
            mask = causal_mask(count, length, rules.window)
            expected.append((one or attention)(q[start:start + count], k, v, mask))
        start += count
    before = keys.copy(), values.copy(), q.copy()
    found = paged_attention(q, keys, values, tables, [length for length, _ in batch], counts,
                            rules)
    for now, then in zip((keys, values, q), before):
        np.testing.assert_array_equal(now, then)                      # nothing is written to
    assert found.dtype == np.float32
    return found, np.concatenate(expected)


@pytest.mark.parametrize("window", [None, 1, 5, 40])
@pytest.mark.parametrize("size", [1, 3, 32])
@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_blocks_equal_one_array(rng, batch, size, window):
    kinds = ["scattered", "adjacent", "reversed", "scattered", "adjacent"]
    for spare, (kind, shape) in enumerate(zip(kinds, SHAPES)):
        found, expected = both(rng, batch, shape=shape, size=size, kind=kind, spare=spare % 3,
                               rules=AttentionRules(window=window))
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("size", [1, 3, 32])
@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_values_may_be_part_of_the_keys(rng, batch, size):
    """Latent attention: one key/value head, and a value is the beginning of its key."""
    for shape in ((6, 1, 26, 20), (5, 1, 7, 3)):
        found, expected = both(rng, batch, shape=shape, size=size, latent=True)
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_batch(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**31)))
    lengths = data.draw(st.lists(st.integers(1, 150), min_size=1, max_size=6))
    batch = [(length, data.draw(st.integers(0, length) | st.just(1))) for length in lengths]
    window = data.draw(st.none() | st.integers(1, 90))
    found, expected = both(
        rng, batch, shape=data.draw(st.sampled_from(SHAPES)),
        size=data.draw(st.integers(1, 40)),
        kind=data.draw(st.sampled_from(["scattered", "adjacent", "reversed"])),
        spare=data.draw(st.integers(0, 2)), rules=AttentionRules(window=window))
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)


# What Hugging Face's own functions make of a scale, a soft cap and sinks.
RULES = [AttentionRules(scale=0.37), AttentionRules(softcap=2.5),
         AttentionRules(softcap=0.8, scale=1.3, window=6),
         AttentionRules(sinks=np.array([0.3, -2, 4, 0, 1.5, -0.5], np.float32)),
         AttentionRules(sinks=np.linspace(-1, 2, 6), scale=0.2, window=11),
         AttentionRules(window=4, scale=0.9)]


def hf_attention(rules):
    """One sequence's attention, as Hugging Face computes it for gemma2 and for gpt-oss."""
    def one(q, k, v, mask):
        heads = [torch.from_numpy(np.ascontiguousarray(x.transpose(1, 0, 2)))[None]
                 for x in (q, k, v)]
        bias = torch.from_numpy(np.where(mask, 0, -np.inf).astype(np.float32))[None, None]
        module = SimpleNamespace(training=False, head_dim=q.shape[-1],
                                 num_key_value_groups=q.shape[1] // k.shape[1])
        scale = q.shape[-1] ** -0.5 if rules.scale is None else rules.scale
        if rules.sinks is None:
            out, _ = gemma2(module, *heads, bias, scaling=scale, softcap=rules.softcap)
        else:
            module.sinks = torch.from_numpy(np.asarray(rules.sinks, np.float32))
            out, _ = gpt_oss(module, *heads, bias, scaling=scale)
        return out[0].numpy()
    return one


@pytest.mark.parametrize("number", range(len(RULES)))
def test_rules_mean_what_hf_means(rng, number):
    rules = RULES[number]
    for batch in BATCHES:
        found, expected = both(rng, batch, size=17, rules=rules, one=hf_attention(rules))
        np.testing.assert_allclose(found, expected, rtol=0, atol=5e-6)


@pytest.mark.parametrize("number", range(len(RULES)))
def test_the_contiguous_cache_keeps_the_same_rules(rng, number):
    """KVCache, with the rules of a model that has them, in chunks of any size."""
    rules, (H, K, d, _) = RULES[number], SHAPES[0]
    config = ModelConfig("LlamaForCausalLM", 11, H * d, 8, 1, H, K, d, 512, 1e-5, 1e4, False)
    tokens = [rng.standard_normal((150, heads, d), dtype=np.float32) for heads in (H, K, K)]
    expected = hf_attention(rules)(*tokens, causal_mask(150, 150, rules.window))
    for borders in ([0, 150], [0, 1, 2, 70, 149, 150]):
        cache = KVCache(config, 150)
        cache.rules = [rules]
        for start, end in zip(borders, borders[1:]):
            found = cache.attend(0, *(x[start:end] for x in tokens))
            np.testing.assert_allclose(found, expected[start:end], rtol=0, atol=5e-6)


@pytest.mark.parametrize("counts", [[1, 1, 1, 1], [1, 3, 1, 2]], ids=str)
def test_large_scores_of_one_sequence_are_no_others_business(rng, counts):
    """Scores in the thousands overflow without a maximum taken off, and with one of the whole
    batch, those of the others vanish."""
    H, K, d, size, lengths = 6, 2, 10, 4, [9, 30, 5, 17]
    tables, blocks = write_tables(rng, "scattered", [-(-n // size) for n in lengths], 0)
    keys, values = memories(rng, blocks, size, K, d, d, False)
    q = rng.standard_normal((sum(counts), H, d), dtype=np.float32)
    expected, start = [], 0
    for table, length, count, factor in zip(tables, lengths, counts, (1, 3000, -500, 0)):
        q[start:start + count] *= factor
        k, v = fill(rng, keys, values, table, length, False)
        expected.append(attention(q[start:start + count], k, v))
        start += count
    found = paged_attention(q, keys, values, tables, lengths, counts)
    np.testing.assert_allclose(found, np.concatenate(expected), rtol=0, atol=2e-4)


def test_both_caches_have_the_rules_of_the_configuration(tiny_model):
    config = ModelConfig("LlamaForCausalLM", 11, 60, 8, 3, 6, 2, 10, 512, 1e-5, 1e4, False,
                         windows=(4, None, 9))
    for cache in (KVCache(config, 5), PagedKVCache(config, 2, 4)):
        assert [rules.window for rules in cache.rules] == [4, None, 9]
        assert all(rules.plain for rules in cache.rules)
    assert [rules.window for rules in attention_rules(config)] == [4, None, 9]


@pytest.mark.parametrize("size", [1, 3, 32])
def test_a_paged_batch_is_a_cache(rng, size):
    """What one step writes, the next one reads; two layers do not see each other."""
    H, K, d, L = 6, 2, 10, 2
    config = ModelConfig("LlamaForCausalLM", 11, H * d, 8, L, H, K, d, 512, 1e-5, 1e4, False)
    lengths = [40, 7, 95]
    needs = [-(-length // size) for length in lengths]
    tables, blocks = write_tables(rng, "scattered", needs, 1)
    memory = PagedKVCache(config, blocks, size)
    memory.keys.fill(np.nan)
    memory.values.fill(np.nan)
    tokens = [[[rng.standard_normal((length, heads, d), dtype=np.float32)
                for heads in (H, K, K)] for length in lengths] for _ in range(L)]
    done = [0, 0, 0]
    while done != lengths:
        counts = [min(int(rng.choice([0, 1, 5, 70])), length - start)
                  for length, start in zip(lengths, done)]
        batch = PagedBatch(memory, tables, done, counts)
        for layer in range(L):
            rows = [np.concatenate([x[part][start:start + count] for x, start, count
                                    in zip(tokens[layer], done, counts)]) for part in range(3)]
            out, at = batch.attend(layer, *rows), 0
            for x, start, count in zip(tokens[layer], done, counts):
                if count:
                    expected = attention(*(part[:start + count] for part in x))[start:]
                    np.testing.assert_allclose(out[at:at + count], expected, rtol=0, atol=2e-6)
                at += count
        done = [start + count for start, count in zip(done, counts)]


def test_a_step_without_tokens(rng):
    config = ModelConfig("LlamaForCausalLM", 11, 60, 8, 1, 6, 2, 10, 512, 1e-5, 1e4, False)
    memory = PagedKVCache(config, 3, 4)
    nothing = [np.empty((0, heads, 10), np.float32) for heads in (6, 2, 2)]
    for batch in (PagedBatch(memory, [], [], []),
                  PagedBatch(memory, [[], [1]], [0, 2], [0, 0])):
        assert batch.attend(0, *nothing).shape == (0, 6, 10)
        with pytest.raises(ValueError, match="1 tokens came in, and the counts add up to 0"):
            batch.attend(0, *(np.zeros((1, *x.shape[1:]), np.float32) for x in nothing))


def test_a_copied_block_is_the_block_in_every_layer(rng):
    config = ModelConfig("LlamaForCausalLM", 11, 60, 8, 3, 6, 2, 10, 512, 1e-5, 1e4, False)
    memory = PagedKVCache(config, 4, 5)
    for array in (memory.keys, memory.values):
        array[:] = rng.standard_normal(array.shape)
    before = memory.keys.copy(), memory.values.copy()
    memory.copy_block(3, 1)
    for now, then in zip((memory.keys, memory.values), before):
        np.testing.assert_array_equal(now[:, :, [0, 1, 2, 3]], then[:, :, [0, 3, 2, 3]])


class Watched(np.ndarray):
    """Memory that notes what of it goes into a product, and whether it is a copy by then."""

    memory: np.ndarray
    multiplied: list

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **options):
        for one in inputs:
            if isinstance(one, Watched) and ufunc in (np.matmul, np.matvec, np.vecmat):
                Watched.multiplied.append((one.size, any(np.shares_memory(one, memory)
                                                         for memory in Watched.memory)))
        plain = [one.view(np.ndarray) if isinstance(one, Watched) else one for one in inputs]
        return getattr(ufunc, method)(*plain, **options, **({"out": out} if out else {}))


@pytest.mark.parametrize("latent", [False, True])
@pytest.mark.parametrize("rules", [AttentionRules(), AttentionRules(softcap=3.0)],
                         ids=["plain", "softcap"])
def test_blocks_are_multiplied_where_they_lie(rng, rules, latent):
    """Everything that is looked at goes into the products itself, and no copy of it does."""
    H, K, d, e = (6, 1, 26, 20) if latent else (6, 2, 10, 10)
    lengths, counts, size = [70, 33, 120], [1, 1, 9], 16
    tables, blocks = write_tables(rng, "scattered", [-(-n // size) for n in lengths], 0)
    keys, values = memories(rng, blocks, size, K, d, e, latent)
    for table, length in zip(tables, lengths):
        fill(rng, keys, values, table, length, latent)
    Watched.memory, Watched.multiplied = (keys, values), []
    q = rng.standard_normal((sum(counts), H, d), dtype=np.float32)
    paged_attention(q, keys.view(Watched), values.view(Watched), tables, lengths, counts, rules)
    assert all(in_place for _, in_place in Watched.multiplied)
    assert sum(size for size, _ in Watched.multiplied) == sum(lengths) * K * (d + e)


@pytest.mark.parametrize("count", [1, 3])
def test_memory_beside_the_blocks_does_not_grow_with_them(rng, count):
    """Scores take one number a head and key; a gathered copy would take 2 · d of them."""
    H, K, d, size, length = 2, 2, 256, 16, 1024
    tables, blocks = write_tables(rng, "scattered", [length // size] * 4, 0)
    keys = np.zeros((K, blocks, size, d), np.float32)
    q = np.zeros((4 * count, H, d), np.float32)
    tracemalloc.start()
    try:
        paged_attention(q, keys, keys, tables, [length] * 4, [count] * 4)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < length * K * d * 4 / 2, "as if the keys of half a sequence were copied"


@given(st.lists(st.integers(0, 30), min_size=1, max_size=12, unique=True), st.integers(1, 5),
       st.data())
@example([7, 8, 3], 4, None)
def test_adjacent_blocks_are_the_slots_in_order(table, size, data):
    end = len(table) * size if data is None else data.draw(st.integers(1, len(table) * size))
    begin = 0 if data is None else data.draw(st.integers(0, end - 1))
    slices = adjacent_blocks(tuple(table), begin, end, size)
    slots = [slot for one in slices for slot in range(one.start, one.stop)]
    assert slots == [table[position // size] * size + position % size
                     for position in range(begin, end)]
    for left, right in zip(slices, slices[1:]):
        assert left.stop != right.start, "two slices that could be one"


def test_views_may_be_of_any_lengths(rng):
    H, K, d, e = 6, 2, 10, 8
    q = rng.standard_normal((5, H, d), dtype=np.float32)
    k, v = (rng.standard_normal((23, K, size), dtype=np.float32) for size in (d, e))
    for borders in ([0, 23], [0, 1, 2, 23], [0, 10, 11, 22, 23]):
        views = [[x[start:end].transpose(1, 0, 2) for start, end in zip(borders, borders[1:])]
                 for x in (k, v)]
        for window in (None, 3):
            mask = causal_mask(5, 23, window)
            np.testing.assert_allclose(attention_over_views(q, *views, mask),
                                       attention(q, k, v, mask), rtol=0, atol=2e-6)
        everything = np.ones((5, 23), bool)
        np.testing.assert_allclose(attention_over_views(q, *views, None),
                                   attention(q, k, v, everything), rtol=0, atol=2e-6)


def test_the_size_of_query_blocks_changes_nothing(rng, monkeypatch):
    batch = [(90, 60), (31, 31), (40, 1)]
    for window in (None, 7):
        rng = np.random.default_rng(0)
        whole, _ = both(rng, batch, rules=AttentionRules(window=window))
        with monkeypatch.context() as patch:
            patch.setattr(attention_module, "QUERY_BLOCK", 7)
            cut, _ = both(np.random.default_rng(0), batch, rules=AttentionRules(window=window))
        np.testing.assert_allclose(cut, whole, rtol=0, atol=2e-6)
