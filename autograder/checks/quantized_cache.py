"""Checks of the KV cache in few bits: what is rounded when, and what is read back."""

import numpy as np

from autograder.checking import check, expect, expect_close, expect_equal, expect_error
from autograder.checking.examples import docstring_example
from autograder.checks.kv_cache import PLACES, config, new_tokens, sequence
from gearworks.attention import attention, causal_mask
from gearworks.errors import ModelError
from gearworks.quantization.quantized_cache import round_along, widen

EXERCISE = "quantized_cache.QuantizedKVCache"
AXES = ["head", "token", "channel"]


def uneven(rng: np.random.Generator, shape, count: int):
    """Queries, keys and values of so many tokens; some channels of the keys are far larger."""
    q, k, v = sequence(rng, shape, count)
    sizes = np.exp(rng.uniform(-2, 1.5, (1, *k.shape[1:]))).astype(np.float32)
    return q, k * sizes + sizes * rng.choice([-2, 0, 2], sizes.shape).astype(np.float32), v


def back(x: np.ndarray, bits: int, axis: int) -> np.ndarray:
    """What is left of numbers that were rounded along an axis."""
    return widen(*round_along(x, bits, axis), bits)


def stored(k: np.ndarray, v: np.ndarray, bits: int,
           group: int) -> tuple[np.ndarray, np.ndarray]:
    """What a cache holds of tokens that it was given: keys and values, (K, S, d)."""
    keys = k.transpose(1, 0, 2).copy()
    for start in range(0, len(k) // group * group, group):
        keys[:, start:start + group] = back(keys[:, start:start + group], bits, 1)
    return keys, back(v.transpose(1, 0, 2), bits, 2)


def expect_stored(cache, layer: int, k: np.ndarray, v: np.ndarray, when: str,
                  hint: str = "") -> None:
    """Fail unless the layer holds these tokens, rounded as they should be."""
    got = cache.read(layer)
    expect(isinstance(got, (tuple, list)) and len(got) == 2,
           "two arrays, keys and values, from `read`", repr(got)[:60])
    for name, mine, right in zip(("keys", "values"), got,
                                 stored(k, v, cache.bits, cache.group_size)):
        expect_close(mine, right, of=f"the {name} of layer {layer} {when}", axes=AXES,
                     hint=hint)


example_of_quantizedkvcache = docstring_example(EXERCISE, points=1)


@check(EXERCISE, points=2, public=True)
def values_by_token(QuantizedKVCache, rng):
    """Values are rounded as they come, each token and head with a scale of its own."""
    for bits in (8, 4):
        shape = config(layers=1)
        cache, (_, k, v) = QuantizedKVCache(shape, 12, bits, 16), sequence(rng, shape, 5)
        v *= np.float32([[[1]], [[100]], [[1e-2]], [[1]], [[10]]])
        cache.store(0, k.copy(), v.copy())
        expect_equal(list(cache.lengths), [5], of="the lengths after five new tokens",
                     hint="`store` counts the tokens that it has taken in, for its layer.")
        mine, right = cache.read(0)[1], stored(k, v, bits, 16)[1]
        expect_close(mine, right, axes=AXES, of=f"the values of five tokens in {bits} bits",
                     hint="`round_along(v, self.bits, axis)` gives codes, scales and minimums, "
                          "`widen` leads back. Along which axis are a token's own numbers? The "
                          "memory has heads before tokens.")


@check(EXERCISE, points=3, public=True)
def keys_by_channel(QuantizedKVCache, rng):
    """A full group of keys is rounded channel by channel; what is newer is as it came."""
    for bits in (8, 4):
        shape = config(layers=1)
        cache, (_, k, v) = QuantizedKVCache(shape, 12, bits, 4), uneven(rng, shape, 10)
        for start, end, when in ((0, 3, "after 3 tokens, where a group has 4"),
                                 (3, 4, "when the fourth has come"),
                                 (4, 10, "after 10")):
            cache.store(0, k[start:end].copy(), v[start:end].copy())
            expect_stored(cache, 0, k[:end], v[:end], f"{when}, in {bits} bits",
                          "Which keys wait in `newest_keys`, and how many? When is a group "
                          "full? Its scales are shared by tokens, not by channels.")


@check(EXERCISE, points=3, public=True)
def in_any_pieces(QuantizedKVCache, rng):
    """However the tokens come, one by one or in pieces, the cache holds the same in the
    end."""
    for steps in ([11], [1] * 11, [2, 5, 4], [3, 1, 7], [6, 0, 5], [4, 4, 3]):
        shape = config(layers=1)
        cache, (_, k, v) = QuantizedKVCache(shape, 11, 8, 3), uneven(rng, shape, 11)
        start = 0
        for count in steps:
            cache.store(0, k[start:start + count].copy(), v[start:start + count].copy())
            start += count
            expect_equal(list(cache.lengths), [start],
                         of=f"the lengths after {new_tokens(count)}")
            expect_stored(cache, 0, k[:start], v[:start],
                          f"after {' + '.join(map(str, steps))} tokens, groups of 3"
                          if start == 11 else f"after {start} of 11 tokens, groups of 3",
                          "Put the keys that wait and the new ones together: how many groups "
                          "are full now, and which is the first of them?")


@check(EXERCISE, points=2, public=True)
def attends_to_what_is_stored(QuantizedKVCache, rng):
    """In every layer, the queries see all tokens up to their own, as they are stored."""
    shape = config(layers=2, windows=(None, 5))
    cache, tokens = QuantizedKVCache(shape, 9, 8, 4), [uneven(rng, shape, 9) for _ in range(2)]
    start = 0
    for count in (3, 1, 5):
        end = start + count
        for layer, (q, k, v) in enumerate(tokens):
            keys, values = (x.transpose(1, 0, 2) for x in stored(k[:end], v[:end], 8, 4))
            mask = causal_mask(count, end, shape.windows[layer])
            expect_close(cache.attend(layer, q[start:end], k[start:end], v[start:end]),
                         attention(q[start:end], keys, values, mask), axes=PLACES,
                         hint="`attend` is given: it stores, then it looks at what `read` "
                              "gives. Does each layer keep and count its own tokens?",
                         of=f"the output for {new_tokens(count)} after {start}, in layer "
                            f"{layer},")
        start = end


@check(EXERCISE, points=2, public=True)
def forgets(QuantizedKVCache, rng):
    """After a cut the cache goes on from there, in every layer, also from within a group."""
    shape = config(layers=2)
    for keep in (9, 8, 6, 4, 2, 0):
        cache = QuantizedKVCache(shape, 12, 8, 4)
        first, second = ([uneven(rng, shape, 12) for _ in range(2)] for _ in range(2))
        for layer, (_, k, v) in enumerate(first):
            cache.store(layer, k[:10].copy(), v[:10].copy())
        cache.truncate(keep)
        expect_equal(len(cache), keep, of=f"the length after 10 tokens and truncate({keep})")
        for layer in range(2):
            (_, k, v), (_, other_k, other_v) = first[layer], second[layer]
            kept = stored(k[:10], v[:10], 8, 4)[0]
            whole = keep // 4 * 4                        # tokens whose group loses nothing
            k = np.concatenate([kept[:, :keep].transpose(1, 0, 2), other_k[keep:]])
            v = np.concatenate([v[:keep], other_v[keep:]])
            for end in (keep, keep + 1, 12):
                start = cache.lengths[layer]
                cache.store(layer, k[start:end].copy(), v[start:end].copy())
                later, values = stored(k[whole:end], v[:end], 8, 4)[0], stored(k, v, 8, 4)[1]
                right = np.concatenate([kept[:, :whole], later], axis=1), values[:, :end]
                for name, mine, wanted in zip(("keys", "values"), cache.read(layer), right):
                    expect_close(
                        mine, wanted, axes=AXES,
                        of=f"the {name} of layer {layer} after 10 tokens in groups of 4, "
                           f"truncate({keep}) and {new_tokens(end - keep)}",
                        hint="Of a group that loses tokens, the keys that are left must be "
                             "newest keys again. What do their codes stand for?")


@check(EXERCISE, points=1, public=True)
def refuses(QuantizedKVCache, rng):
    """Lengths that make no sense are refused, and so are tokens that do not fit, which leave
    no trace."""
    shape = config(layers=2)
    cache, (q, k, v) = QuantizedKVCache(shape, 6, 8, 4), uneven(rng, shape, 9)
    for layer in range(2):
        cache.store(layer, k[:5].copy(), v[:5].copy())
    for length in (6, -1):
        with expect_error(ValueError, when=f"5 tokens are cut to {length}",
                          hint="A cache cannot be cut to more than it has. `len` of it is what "
                               "every layer has."):
            cache.truncate(length)
    with expect_error(ModelError, when="4 tokens come and 1 fits",
                      hint="`attend` is given, and asks before it calls `store`."):
        cache.attend(0, q[5:9], k[5:9], v[5:9])
    for layer in range(2):
        expect_stored(cache, layer, k[:5], v[:5], "after a step that was refused")
    cache.store(0, k[5:6].copy(), v[5:6].copy())               # a layer that is ahead
    with expect_error(ValueError, when="layers hold 6 and 5 tokens, and are cut to 6",
                      hint="One of them has no sixth token."):
        cache.truncate(6)
    cache.truncate(5)
    expect_equal(list(cache.lengths), [5, 5], of="the lengths of both layers, cut to 5")
    expect_stored(cache, 0, k[:5], v[:5], "after the cut")


@check(EXERCISE, points=1, public=False)
def of_all_shapes(QuantizedKVCache, rng):
    """Groups of one token, groups larger than the text, one head, channels that never
    change."""
    for H, K, d, group, bits in ((3, 1, 6, 1, 8), (4, 4, 2, 50, 4), (5, 5, 8, 7, 4),
                                 (6, 2, 4, 2, 8)):
        shape = config(layers=1, H=H, K=K, d=d)
        cache, (_, k, v) = QuantizedKVCache(shape, 31, bits, group), uneven(rng, shape, 31)
        k[:, :, 0], v[4] = 7, 0
        for start, end in ((0, 16), (16, 17), (17, 31)):
            with np.errstate(all="ignore"):
                cache.store(0, k[start:end].copy(), v[start:end].copy())
            expect_stored(cache, 0, k[:end], v[:end], f"after {end} tokens")
