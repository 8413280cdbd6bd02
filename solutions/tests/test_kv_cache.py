"""The contiguous cache: what it stores, what it forgets, and what it refuses."""

import numpy as np
import pytest

from gearworks.attention import QUERY_BLOCK, attention
from gearworks.config import ModelConfig
from gearworks.errors import ModelError
from gearworks.kv_cache import KVCache, RaggedBatch

H, K, d, L = 6, 2, 10, 3
CONFIG = ModelConfig("LlamaForCausalLM", 11, H * d, 8, L, H, K, d, 512, 1e-5, 1e4, False)


def step(rng, T):
    return [rng.standard_normal((T, heads, d), dtype=np.float32) for heads in (H, K, K)]


@pytest.mark.parametrize("T", [1, QUERY_BLOCK, QUERY_BLOCK + 1, 3 * QUERY_BLOCK - 5])
def test_attend_is_attention_over_everything_stored(rng, T):
    cache, past = KVCache(CONFIG, 5 + T), step(rng, 5)
    cache.attend(1, *past)
    q, k, v = step(rng, T)
    expected = attention(q, np.concatenate([past[1], k]), np.concatenate([past[2], v]))
    np.testing.assert_allclose(cache.attend(1, q, k, v), expected, rtol=0, atol=1e-6)


def test_layers_do_not_see_each_other(rng):
    cache = KVCache(CONFIG, 4)
    first, second = step(rng, 2), step(rng, 2)
    cache.attend(0, *first)
    np.testing.assert_allclose(cache.attend(2, *second), attention(*second), rtol=0, atol=1e-6)


def test_truncate_forgets_the_end_only(rng):
    cache, tokens = KVCache(CONFIG, 12), step(rng, 12)
    for layer in range(L):
        cache.attend(layer, *(x[:10] for x in tokens))
    assert len(cache) == 10
    cache.truncate(7)
    assert len(cache) == 7
    out = cache.attend(0, *(x[7:] for x in tokens))
    np.testing.assert_allclose(out, attention(*tokens)[7:], rtol=0, atol=1e-6)
    for length in (13, -1, 8):
        with pytest.raises(ValueError, match="truncate"):
            cache.truncate(length)


def test_a_full_cache_refuses_and_stays_as_it_was(rng):
    cache, tokens = KVCache(CONFIG, 8), step(rng, 8)
    cache.attend(0, *(x[:6] for x in tokens))
    with pytest.raises(ModelError, match="holds 8 tokens, and 9 are needed"):
        cache.attend(0, *step(rng, 3))
    np.testing.assert_allclose(cache.attend(0, *(x[6:] for x in tokens)),
                               attention(*tokens)[6:], rtol=0, atol=1e-6)


def test_tokens_are_written_in_place(rng):
    """Appending a token copies none of those that are there: the memory is reserved once."""
    cache = KVCache(CONFIG, 50)
    keys, values = cache.keys, cache.values
    for _ in range(50):
        cache.attend(0, *step(rng, 1))
    assert cache.keys is keys and cache.values is values
    assert keys.nbytes + values.nbytes == 2 * L * K * 50 * d * 4


def test_a_step_that_does_not_fit_stores_nothing_in_any_cache(rng):
    """The first sequence has room, the second has not:
    after the error both are as they were."""
    roomy, full = KVCache(CONFIG, 50), KVCache(CONFIG, 2)
    with pytest.raises(ModelError, match="full"):
        RaggedBatch([roomy, full], [3, 3]).attend(0, *step(rng, 6))
    assert roomy.lengths == full.lengths == [0] * L


def test_a_sequence_may_have_no_token_in_a_step(rng):
    caches, tokens = [KVCache(CONFIG, 9) for _ in range(3)], step(rng, 5)
    out = RaggedBatch(caches, [0, 5, 0]).attend(0, *tokens)
    np.testing.assert_allclose(out, attention(*tokens), rtol=0, atol=1e-6)


@pytest.mark.parametrize("capacity", [10**13, 10**30])
def test_more_memory_than_there_is_is_refused(capacity):
    with pytest.raises(ModelError, match="GB"):
        KVCache(CONFIG, capacity)


def test_ragged_batch_refuses_what_does_not_add_up(rng):
    caches = [KVCache(CONFIG, 9), KVCache(CONFIG, 9)]
    with pytest.raises(ValueError, match="below 0"):
        RaggedBatch(caches, [-1, 4])
    with pytest.raises(ValueError, match="once"):
        RaggedBatch([caches[0], caches[0]], [1, 2])
    with pytest.raises(ValueError, match="one count"):
        RaggedBatch(caches, [3])
    with pytest.raises(ValueError, match="4 tokens came in"):
        RaggedBatch(caches, [1, 2]).attend(0, *step(rng, 4))
