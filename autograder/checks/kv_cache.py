"""Checks of the KV cache."""

import numpy as np

from autograder.checking import check, expect_close, expect_equal, expect_error
from gearworks.attention import attention, causal_mask
from gearworks.config import ModelConfig
from gearworks.errors import ModelError

EXERCISE = "kv_cache.KVCache"
PLACES = ["query", "head", "element"]


def config(layers: int = 2, H: int = 6, K: int = 2, d: int = 4,
           windows: tuple = ()) -> ModelConfig:
    return ModelConfig("LlamaForCausalLM", vocab_size=11, hidden_size=14, intermediate_size=9,
                       num_hidden_layers=layers, num_attention_heads=H, num_key_value_heads=K,
                       head_dim=d, max_position_embeddings=512, rms_norm_eps=1e-5,
                       rope_theta=1e4, tie_word_embeddings=True, windows=windows)


def sequence(rng: np.random.Generator, shape: ModelConfig,
             count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Queries, keys and values of so many tokens."""
    H, K, d = shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim
    return tuple(rng.standard_normal((count, heads, d)).astype(np.float32)
                 for heads in (H, K, K))


def new_tokens(count: int) -> str:
    return "1 new token" if count == 1 else f"{count} new tokens"


def expect_steps(cache, qkv, steps: tuple[int, ...], layer: int = 0, start: int = 0,
                 window: int | None = None, hint: str = "") -> None:
    """Feed tokens from `start` on in steps, each of which must see all up to its own."""
    q, k, v = qkv
    for count in steps:
        end = start + count
        right = attention(q[start:end], k[:end], v[:end], causal_mask(count, end, window))
        got = cache.attend(layer, *(array[start:end].copy() for array in qkv))
        expect_close(got, right, axes=PLACES, hint=hint,
                     of=f"the output for {new_tokens(count)} after {start}, in layer {layer},")
        start = end


@check(EXERCISE, points=1, public=True)
def a_prompt(KVCache, rng):
    """An empty cache: the tokens of a prompt see each other, each one those up to itself."""
    shape = config()
    expect_steps(KVCache(shape, 8), sequence(rng, shape, 5), (5,),
                 hint="Store first, then look. `self.look` is given; what must it know about "
                      "the layer by then? And which axis of the memory counts heads, which one "
                      "tokens?")


@check(EXERCISE, points=2, public=True)
def token_by_token(KVCache, rng):
    """After a prompt, tokens one by one and several at a time:
    each sees all that was stored, and itself."""
    shape = config()
    expect_steps(KVCache(shape, 10), sequence(rng, shape, 10), (3, 1, 1, 2, 3),
                 hint="Where does the first new token go when 3 are stored? How many keys are "
                      "there for it to see?")


@check(EXERCISE, points=1, public=True)
def layers_apart(KVCache, rng):
    """Each layer keeps its own tokens; the cache is as long as its shortest layer."""
    shape = config(layers=3)
    cache, tokens = KVCache(shape, 9), [sequence(rng, shape, 7) for _ in range(3)]
    expect_equal(len(cache), 0, of="the length of a new cache")
    start = 0
    for count in (4, 1, 2):
        for layer in range(3):
            expect_steps(cache, tokens[layer], (count,), layer, start,
                         hint="Within one forward pass, layer 0 has its new tokens before "
                              "layer 1 has them.")
            stored = start + count if layer == 2 else start
            expect_equal(len(cache), stored, hint="A token counts when every layer has it.",
                         of=f"the length after layer {layer} of 3 has got {new_tokens(count)} "
                            f"after {start}")
        start += count


@check(EXERCISE, points=1, public=True)
def forgets(KVCache, rng):
    """What was cut off is as if it had never been there, in every layer."""
    shape = config()
    cache, first, second = KVCache(shape, 8), sequence(rng, shape, 6), sequence(rng, shape, 8)
    keep = int(rng.integers(2, 5))
    for array, other in zip(first, second):
        other[:keep] = array[:keep]
    for layer in range(2):
        expect_steps(cache, first, (6,), layer, hint="The checks above are about this step.")
    cache.truncate(keep)
    expect_equal(len(cache), keep, of=f"the length after truncate({keep})")
    for layer in range(2):
        expect_steps(cache, second, (1, 7 - keep), layer, keep,
                     hint=f"After truncate({keep}), the next token is number {keep}. Nothing "
                          "must be erased for that.")


@check(EXERCISE, points=1, public=True)
def full(KVCache, rng):
    """What fits to the last place is stored;
    one token more is refused, and nothing of its step is stored."""
    shape = config()
    cache, tokens = KVCache(shape, 6), sequence(rng, shape, 8)
    for layer in range(2):
        expect_steps(cache, tokens, (4,), layer, hint="The checks above are about this step.")
    with expect_error(ModelError, when="3 tokens come and 2 fit",
                      hint="Which given method knows whether they fit?"):
        cache.attend(0, *(array[4:7] for array in tokens))
    expect_equal(len(cache), 4, of="the length after a step that was refused",
                 hint="Ask before you write or count.")
    for layer in range(2):
        expect_steps(cache, tokens, (2,), layer, 4,
                     hint="The tokens that were refused must have left no trace.")


@check(EXERCISE, points=1, public=False)
def impossible_lengths(KVCache, rng):
    """A cache cannot be cut to more than it holds, nor to less than nothing;
    to all or nothing it can."""
    shape = config()
    cache, tokens = KVCache(shape, 7), sequence(rng, shape, 7)
    for layer in range(2):
        expect_steps(cache, tokens, (5,), layer)
    for length in (6, -1):
        with expect_error(ValueError, when=f"5 tokens are cut to {length}"):
            cache.truncate(length)
    cache.truncate(5)
    expect_equal(len(cache), 5, of="the length")
    cache.truncate(0)
    expect_equal(len(cache), 0, of="the length")
    for layer in range(2):
        expect_steps(cache, tokens, (2, 5), layer)


@check(EXERCISE, points=1, public=False)
def long_prompts(KVCache, rng):
    """Prompts of hundreds of tokens, with and without sliding windows,
    in heads of odd shapes."""
    shape = config(H=3, K=1, d=6, windows=(None, 5))
    cache, tokens = KVCache(shape, 150), sequence(rng, shape, 150)
    for layer, window in enumerate(shape.windows):
        expect_steps(cache, tokens, (131, 1, 18), layer, window=window)


@check(EXERCISE, points=1, public=False)
def written_in_place(KVCache, rng):
    """The reserved memory holds the tokens, each head's together,
    and what lies beyond them stays as it was."""
    shape = config(layers=2, H=4, K=4, d=6)
    cache, tokens = KVCache(shape, 9), sequence(rng, shape, 5)
    before = [np.array(cache.keys), np.array(cache.values)]
    for start, end in ((0, 4), (4, 5)):
        cache.attend(1, *(array[start:end] for array in tokens))
    for name, old, new in (("keys", before[0], tokens[1]), ("values", before[1], tokens[2])):
        memory = np.array(getattr(cache, name))
        expect_equal(memory.shape, old.shape, of=f"the shape of the {name}")
        expect_close(memory[1, :, :5], new.transpose(1, 0, 2), atol=0, rtol=0)
        old[1, :, :5] = memory[1, :, :5]
        expect_equal(memory.tobytes() == old.tobytes(), True,
                     of="whether all other memory is untouched")


@check(EXERCISE, points=1, public=False)
def two_caches(KVCache, rng):
    """Two caches know nothing of each other."""
    shape = config(layers=1, H=5, K=5, d=2)
    caches = [KVCache(shape, 6) for _ in range(2)]
    tokens = [sequence(rng, shape, 6) for _ in range(2)]
    for start, count in ((0, 2), (2, 1), (3, 3)):
        for cache, mine in zip(caches, tokens):
            expect_steps(cache, mine, (count,), 0, start)
    caches[0].truncate(1)
    expect_equal([len(cache) for cache in caches], [1, 6], of="the lengths of both")
