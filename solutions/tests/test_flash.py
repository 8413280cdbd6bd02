"""FlashAttention on a counting memory: plain attention, with fewer bytes. About 3 s."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gearworks.attention import attention, causal_mask
from gearworks.errors import ModelError
from gearworks.kernels.flash import (Partial, SlowMemory, in_tiles, merge, online_softmax,
                                     plain_bytes, tiled_bytes)


def qkv(rng, T, S, H, K, d, e=None, scale=1.0):
    return ((scale * rng.standard_normal((T, H, d))).astype(np.float32),
            (scale * rng.standard_normal((S, K, d))).astype(np.float32),
            rng.standard_normal((S, K, e or d)).astype(np.float32))


@settings(max_examples=60, deadline=None)
@given(T=st.integers(1, 20), past=st.integers(-6, 20), K=st.integers(1, 3),
       group=st.integers(1, 3), d=st.integers(1, 9), e=st.integers(1, 9),
       tiles=st.tuples(st.integers(1, 9), st.integers(1, 9)),
       window=st.none() | st.integers(1, 25), scale=st.sampled_from([0.01, 1.0, 4.0]),
       seed=st.integers(0, 1000))
def test_tiled_equals_plain_and_moves_what_the_formula_says(T, past, K, group, d, e, tiles,
                                                            window, scale, seed):
    """Ragged tails, groups, windows, and with fewer keys than queries rows that see nothing."""
    S = max(1, T + past)
    arrays = qkv(np.random.default_rng(seed), T, S, K * group, K, d, e, scale)
    out, memory = in_tiles(*arrays, *tiles, window)
    np.testing.assert_allclose(out, attention(*arrays, causal_mask(T, S, window)), rtol=0,
                               atol=1e-5)
    assert out.dtype == np.float32
    assert (memory.bytes_read + memory.bytes_written
            == tiled_bytes(T, S, K * group, K, d, e, tiles[0], window))
    assert memory.bytes_written == out.nbytes
    largest = max(tiles[0] * group * max(d, e), tiles[1] * max(d, e))
    assert all(move.nbytes <= 4 * largest for move in memory.moves)


def test_rows_without_keys_are_zero(rng):
    out, _ = in_tiles(*qkv(rng, 6, 2, 2, 1, 4), 4, 4)
    assert not out[:4].any() and out[4:].all()
    nothing = in_tiles(*qkv(rng, 3, 0, 2, 1, 4), 2, 2)[0]
    assert nothing.shape == (3, 2, 4) and not nothing.any()


def test_the_saving_at_real_sizes():
    """4,096 tokens, one head of 64: a tile of 128 queries moves a tenth of the bytes, and less
    with larger tiles, whatever the tile of keys."""
    shape = 4096, 4096, 1, 1, 64, 64
    assert plain_bytes(*shape) / tiled_bytes(*shape, query_tile=128) == pytest.approx(7.5, 0.1)
    small, large = (tiled_bytes(*shape, query_tile=tile) for tile in (64, 256))
    assert small > 3 * large
    assert tiled_bytes(*shape, 128, window=256) < tiled_bytes(*shape, 128) / 4


def test_parts_merge_to_the_whole(rng):
    scores = (3 * rng.standard_normal((5, 40))).astype(np.float32)
    values = rng.standard_normal((40, 3)).astype(np.float32)
    scores[2, :20] = scores[3] = -np.inf
    whole = online_softmax(Partial.nothing(5, 3), scores, values)
    parts = [online_softmax(Partial.nothing(5, 3), scores[:, keys], values[keys])
             for keys in (slice(0, 20), slice(20, 21), slice(21, 40))]
    got = merge(parts)
    for ours, theirs in zip((got.peak, got.total, got.mixed),
                            (whole.peak, whole.total, whole.mixed)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
        assert ours.dtype == np.float32
    assert not got.result()[3].any()


# --- the memory


@pytest.fixture
def slow():
    memory = SlowMemory()
    return memory, memory.place("k", np.arange(24, dtype=np.float32).reshape(6, 2, 2), tile=3)


def test_a_tile_is_a_copy_and_is_counted(slow):
    memory, k = slow
    tile = k[3:6, 1]
    tile[:] = 0
    assert k[3:4, 1].tolist() == [[14, 15]] and k[4:9, :].shape == (2, 2, 2)
    assert [move.nbytes for move in memory.moves] == [24, 8, 32] and memory.bytes_written == 0
    k[0:2, 0] = np.ones((2, 2), np.float32)
    assert memory.bytes_written == 16 and memory.moves[-1].rows == (0, 2)
    assert k[0:3, 0].tolist() == [[1, 1], [1, 1], [8, 9]]


@pytest.mark.parametrize("place, why", [
    ((slice(0, 4), 0), "room for a tile of 3"), ((slice(None), 0), "room for a tile of 3"),
    ((slice(0, 6, 2), 0), "room for a tile"), ((2, 0), "in tiles"), (slice(0, 2), "in tiles"),
    ((slice(0, 2), 0, 1), "in tiles"), (np.zeros((6, 2), bool), "in tiles")], ids=str)
def test_only_tiles_fit(slow, place, why):
    memory, k = slow
    with pytest.raises(ModelError, match=why):
        k[place]
    assert memory.moves == []


def test_a_tile_of_another_shape_is_not_written(slow):
    _, k = slow
    with pytest.raises(ModelError, match=r"shape \(2,\), its place \(2, 2\)"):
        k[0:2, 0] = np.zeros(2, np.float32)
