"""Checks of the KV cache: the contiguous one, and the blocks of the paged one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st

from autograder.checking import (CheckFailure, check, expect, expect_close, expect_equal,
                                 expect_error, expect_unchanged)
from autograder.checking.examples import docstring_example
from autograder.checking.differential import Seen, attempted, expect_agreement
from autograder.checks.model import truth
from autograder.checks.scheduler import SIZES, expect_served, served_texts
from gearworks import kv_cache
from gearworks.attention import attention, causal_mask
from gearworks.config import ModelConfig
from gearworks.errors import ModelError
from gearworks.serving.scheduler import Scheduler

EXERCISE = "kv_cache.KVCache"
ALLOCATE, HASH = "kv_cache.BlockPool.allocate+free", "kv_cache.hash_blocks"
SHARE = "kv_cache.BlockPool.share+keep+find+evict"
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


example_of_kvcache = docstring_example(EXERCISE, points=1)


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


@check(EXERCISE, points=1, public=True, always=(0,))
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


@dataclass(frozen=True)
class CacheScript:
    """A new cache, and what is done with it: steps of a layer, and cuts.

    Each step is ("attend", layer, tokens) or ("truncate", length).
    """

    layers: int
    heads: int
    kv_heads: int
    size: int
    capacity: int
    windows: tuple
    softcap: float | None
    steps: tuple[tuple, ...]

    def typed(self) -> str:
        calls = "; ".join(f"attend(layer {step[1]}, {new_tokens(step[2])})"
                          if step[0] == "attend" else f"truncate({step[1]})"
                          for step in self.steps)
        window = f", windows {self.windows}" if self.windows else ""
        softcap = f", softcap {self.softcap:g}" if self.softcap else ""
        return (f"KVCache of {self.layers} layers, H {self.heads}, K {self.kv_heads}, "
                f"d {self.size}, capacity {self.capacity}{window}{softcap}: {calls}")


@st.composite
def cache_scripts(draw) -> CacheScript:
    """Layers that are filled in turn or apart, cut, filled up, and asked for too much."""
    def one_of(*likely):
        return draw(st.sampled_from(likely))

    layers, kv_heads, capacity = one_of(2, 1, 3), one_of(1, 2), one_of(4, 3, 7)
    step = st.one_of(
        st.tuples(st.just("attend"), st.integers(0, layers - 1), st.integers(0, 3)),
        st.tuples(st.just("attend"), st.integers(0, layers - 1), st.integers(1, 3)),
        st.tuples(st.just("truncate"), st.sampled_from([1, 0, 2, 1, 3, 5])))
    windows = draw(st.sampled_from([(), (), (2, None, 3)[:layers]]))
    return CacheScript(layers, kv_heads * one_of(1, 2, 3), kv_heads, one_of(2, 3), capacity,
                       windows, one_of(None, None, 0.5),
                       tuple(draw(st.lists(step, min_size=1, max_size=7))))


def life_of(KVCache, script: CacheScript) -> Seen:
    """What each step gives, and how long the cache is after it."""
    shape = replace(config(script.layers, script.heads, script.kv_heads, script.size,
                           script.windows), attention_softcap=script.softcap)
    cache, seen = KVCache(shape, script.capacity), []
    rng = np.random.default_rng(0)
    for number, (method, first, *rest) in enumerate(script.steps, start=1):
        arguments = ((first, *sequence(rng, shape, *rest)) if rest else (first,))
        with expect_unchanged(*arguments):
            given = attempted(getattr(cache, method), args=arguments)
        seen.append((f"what step {number} gives in the", given))
        seen.append((f"the length after step {number} of the", len(cache)))
    return seen


@check(EXERCISE, points=1, public=True)
def any_life(KVCache, rng):
    """Layers that are filled in turn or apart, cut, filled up, and asked for too much,
    with windows and a soft cap, in steps of several tokens and of none."""
    expect_agreement(KVCache, kv_cache.KVCache, cache_scripts(), rng, run=life_of,
                     examples=250, hint={
                         "what": "Keep the books with a pencil: how many tokens has each layer "
                                 "after each step? `self.rules[layer]` has its window and its "
                                 "soft cap, and the given `look` obeys both.",
                         "the length": "How long is the cache, which a token belongs to when "
                                       "every layer has it?"})


@check(EXERCISE, points=0.5, public=False)
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


@check(EXERCISE, points=0.5, public=False)
def long_prompts(KVCache, rng):
    """Prompts of hundreds of tokens, with and without sliding windows,
    in heads of odd shapes."""
    shape = config(H=3, K=1, d=6, windows=(None, 5))
    cache, tokens = KVCache(shape, 150), sequence(rng, shape, 150)
    for layer, window in enumerate(shape.windows):
        expect_steps(cache, tokens, (131, 1, 18), layer, window=window)


@check(EXERCISE, points=0.5, public=False)
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


@check(EXERCISE, points=0.5, public=False)
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


# --- which block is whose ---------------------------------------------------------------------


def expect_books(pool, tables: Sequence[Sequence[int]], when: str, hint: str = "") -> None:
    """Every block is in one state, and counted once for each table that holds it."""
    try:
        pool.check([list(table) for table in tables])
    except AssertionError as error:
        raise CheckFailure(f"the pool's books to be right {when}", str(error), hint) from None


def full_pool(BlockPool, num_blocks: int, block_size: int = 2):
    """A pool, and all its blocks, which are in use."""
    pool = BlockPool(num_blocks, block_size)
    return pool, [pool.allocate() for _ in range(num_blocks)]


def letters(rng: np.random.Generator, count: int) -> list[int]:
    """A text of two letters, so that many texts begin alike."""
    return rng.integers(0, 2, count).tolist()


def clashing(ids: Sequence[int], block_size: int) -> list[bytes]:
    """Hashes that tell little apart: every text has one of three."""
    return [bytes([sum(ids[:end]) % 3])
            for end in range(block_size, len(ids) + 1, block_size)]


def told(prefixes) -> list[list]:
    """Prefixes as the blocks and tokens that they stand for."""
    return [[prefix.block, list(prefix.ids)] for prefix in prefixes]


def expect_life(BlockPool, rng: np.random.Generator, hashes, calls: int, hint: str) -> None:
    """Sequences come, are forked, and go, in two pools: both must say the same.

    A sequence is its table, and in each pool the prefix that its full blocks have come to.
    """
    pools = BlockPool(6, 2), kv_cache.BlockPool(6, 2)
    tables: list[list[int]] = []
    history: list[str] = []

    def both(name: str, *arguments, of: str = ""):
        """What both pools give. arguments: a pair is for each its own."""
        history.append(name)
        mine, right = ([one[side] if isinstance(one, tuple) else one for one in arguments]
                       for side in range(2))
        recent = ", ".join(history[-4:])
        try:
            answer = getattr(pools[1], name)(*right)
        except ModelError:
            with expect_error(ModelError, when=f"all blocks are in use, after {recent}",
                              hint=hint):
                getattr(pools[0], name)(*mine)
            return None
        got = getattr(pools[0], name)(*mine)
        is_prefix = isinstance(answer, kv_cache.Prefix)
        plain = [told([one]) if is_prefix else told(one) if name == "find" else one
                 for one in (got, answer)]
        expect_equal(*plain, of=f"what {name} gives, after the calls {recent},", hint=hint)
        return got, answer

    for _ in range(calls):
        kind = rng.choice(["begin", "begin", "fork", "end", "evict"])
        if kind == "begin":
            text = letters(rng, int(rng.integers(1, 9)))
            names = hashes(text, 2)
            found = both("find", names, text)
            parents = tuple(one[-1] if one else None for one in found)
            table = [prefix.block for prefix in found[1]]
            for block in table:
                both("share", block)
            for start in range(2 * len(table), len(text), 2):
                given = both("allocate", table[-1] if table else None)
                if given is None:
                    break
                table.append(given[1])
                if start + 2 <= len(text):
                    parents = both("keep", given[1], names[start // 2], text[start:start + 2],
                                   parents)
            tables.append(table)
        elif kind == "fork" and tables:
            table = tables[int(rng.integers(len(tables)))]
            for block in table:
                both("share", block)
            tables.append(list(table))
        elif kind == "end" and tables:
            for block in reversed(tables.pop(int(rng.integers(len(tables))))):
                both("free", block)
        elif kind == "evict" and pools[1].kept:
            both("evict")
        when = f"after the calls {', '.join(history[-4:])}"
        expect_equal(pools[0].available, pools[1].available, hint=hint,
                     of=f"how many blocks are available {when}")
        expect_books(pools[0], tables, when, hint)


example_of_blockpool_allocate_free = docstring_example(ALLOCATE, points=1)


@check(ALLOCATE, points=1, public=True)
def gives_each_once(BlockPool, rng):
    """Every block is given out once, from the first on; then there is none."""
    size = int(rng.integers(4, 9))
    pool = BlockPool(size, 2)
    given = [pool.allocate() for _ in range(size)]
    expect_equal(given, list(range(size)), of=f"{size} blocks out of a pool of {size}",
                 hint="`self.empty` is a dictionary whose keys are blocks, in the order in "
                      "which they go out. What is its first key, and does it leave?")
    expect_equal(list(pool.references), [1] * size, of="the references, one sequence to each,")
    with expect_error(ModelError, when="all blocks are in use",
                      hint="`evict` raises it, where it finds no block that is kept."):
        pool.allocate()
    expect_equal(list(pool.references), [1] * size, of="the references after that error")


@check(ALLOCATE, points=1, public=True)
def takes_back(BlockPool, rng):
    """What nobody uses any more is empty, and goes out again behind what was empty before."""
    pool = BlockPool(5, 2)
    blocks = [pool.allocate() for _ in range(3)]
    order = rng.permutation(blocks).tolist()
    for at, block in enumerate(order):
        expect_equal(pool.available, 2 + at,
                     of=f"how many blocks are available after {at} of 3 were freed")
        pool.free(block)
        expect_books(pool, [[other] for other in order[at + 1:]], f"after block {block} was "
                     "freed", hint="One reference less; without any, into `self.empty`.")
    expect_equal([pool.allocate() for _ in range(5)], [3, 4, *order],
                 of=f"five blocks after {', '.join(map(str, order))} were freed in this order",
                 hint="A dictionary's new keys come last.")


@check(ALLOCATE, points=1, public=True)
def neighbours(BlockPool, rng):
    """A sequence that grows gets the block that follows its last one, if that is empty."""
    pool, tables = BlockPool(9, 2), ([], [])
    tables[0].append(pool.allocate())
    tables[1].append(pool.allocate(after=4))
    for _ in range(2):
        for table in tables:
            table.append(pool.allocate(after=table[-1]))
    expect_equal(list(tables), [[0, 1, 2], [5, 6, 7]],
                 of="the blocks of two sequences that grow in turns",
                 hint="Attention reads neighbours as one array: `after + 1` comes first.")
    expect_equal([pool.allocate(after=2), pool.allocate(after=7), pool.allocate(after=8)],
                 [3, 8, 4], of="blocks after 2, 7 and 8, which is the last of all")
    expect_books(pool, [range(9)], "when all are in use")
    for block in (6, 3, 1):
        pool.free(block)
    expect_equal([pool.allocate(after=4), pool.allocate(after=0)], [6, 1],
                 of="blocks after 4 and 0, when 6, 3 and 1 were freed in this order",
                 hint="Block 5 is in use; block 1 is not, and 0 is a block like any other.")
    pool.free(0)
    expect_equal(pool.allocate(after=8), 3, hint="Nothing follows the last block of all.",
                 of="the block after 8, the last of all, when 3 was freed, and then 0")


@check(ALLOCATE, points=1, public=True)
def nobody_uses(BlockPool, rng):
    """A block that nobody uses cannot be freed; nothing changes then."""
    pool, blocks = full_pool(BlockPool, 3)
    pool.free(blocks[1])
    for times in ("twice", "three times"):
        with expect_error(ValueError, when=f"block 1 is freed {times}, and had one user",
                          hint="Below 0 there are no references."):
            pool.free(1)
        expect_books(pool, [[0], [2]], "after that error", "Ask before you count.")


@check(ALLOCATE, points=2, public=True)
def shared_and_kept(BlockPool, rng):
    """A block is free when its last user has left; one that has a prefix is kept then,
    and goes out after the empty ones."""
    pool, blocks = full_pool(BlockPool, 4)
    hint = "Three ways to go on after `free`: others use the block, it is kept, it is empty."
    prefixes = [pool.keep(block, bytes([block]), [block, 7], None) for block in (1, 2)]
    pool.share(1)
    pool.free(1)
    expect_equal(pool.available, 0, hint=hint,
                 of="how many blocks are available when one of two users has left")
    for block in (2, 1, 3):
        pool.free(block)
    expect_books(pool, [[0]], "after blocks 2, 1 and 3 were freed", hint)
    expect_equal(told(pool.find([bytes([1])], [1, 7])), told(prefixes[:1]), hint=hint,
                 of="what can be found of block 1, which was kept and then freed,")
    expect_equal([pool.allocate() for _ in range(3)], [3, 2, 1],
                 of="the next blocks, of which 3 is empty, and 2 was freed before 1",
                 hint="While there is an empty block, what is kept may still be of use to "
                      "somebody. When there is none, `evict` gives one up.")
    expect_books(pool, [range(4)], "when all are in use again",
                 "What `evict` has given up is empty, and must leave `self.empty`, too.")
    pool, blocks = full_pool(BlockPool, 4)
    kept = pool.keep(2, b"kept", [2, 7], None)
    for block in (2, 0):
        pool.free(block)
    expect_equal(pool.allocate(after=1), 0, of="the block after 1, when 0 is empty, and 2 kept",
                 hint=hint)
    expect_equal(told(pool.find([b"kept"], [2, 7])), told([kept]),
                 of="what can be found of block 2 then", hint=hint)


@check(ALLOCATE, points=1, public=True)
def as_fast_in_a_large_pool(BlockPool, rng):
    """A pool of a million blocks takes no longer for each call."""
    pool = BlockPool(1_000_000, 16)
    allocate, free = pool.allocate, pool.free            # through a wire each look is a message
    for _ in range(2_000):
        free(allocate(after=allocate()) - 1)
    expect_equal(pool.available, 998_000, of="how many blocks are available")


@check(ALLOCATE, points=1, public=False, always=(6, 4))
def any_use(BlockPool, rng):
    """Whatever sequences come, are forked and go: each block has its users, and no others."""
    expect_life(BlockPool, rng, kv_cache.hash_blocks, 120, "")


# --- names of texts ---------------------------------------------------------------------------


example_of_hash_blocks = docstring_example(HASH, points=1)


@check(HASH, points=1, public=True)
def full_blocks_have_one(hash_blocks, rng):
    """Five tokens in blocks of two have two hashes: what is left over has none."""
    first, second = hash_blocks([7, 8, 7, 8, 7], block_size=2)
    expect(isinstance(first, bytes), "a hash to be bytes", f"a {type(first).__name__}",
           "`hashlib.sha256(data).digest()` gives bytes.")
    expect(len(first) >= 16, "a hash of 16 bytes at least, which no two texts share by chance",
           f"one of {len(first)}", "SHA-256 has 32 of them: why throw some away?")
    expect(first != second, "two hashes, since before the second block stands something else",
           f"{first!r} twice", "A block's hash stands for all tokens up to the block's end.")
    size = int(rng.integers(3, 6))
    for count in (0, 1, size - 1, size, size + 1, 3 * size - 1, 3 * size):
        expect_equal(len(hash_blocks(list(range(count)), size)), count // size,
                     of=f"how many hashes {count} tokens have in blocks of {size}",
                     hint="A block that is not full is written to later: its hash would lie.")


@check(HASH, points=2, public=True)
def all_that_came_before(hash_blocks, rng):
    """Two texts have the same hash for a block exactly when they are the same up to its end."""
    for _ in range(60):
        texts = [letters(rng, 8) for _ in range(2)]
        same = int(rng.integers(0, 9))
        texts[1][:same] = texts[0][:same]
        hashes = [hash_blocks([*text], 2) for text in texts]
        expect_equal([*map(len, hashes)], [4, 4], of="the numbers of hashes of two such texts")
        for place, (one, other) in enumerate(zip(*hashes)):
            end = 2 * place + 2
            expect_equal(one == other, texts[0][:end] == texts[1][:end],
                         of=f"whether the hashes of block {place} of {texts[0]} and {texts[1]} "
                            "are equal",
                         hint="What must go into the hash, beside the block's own tokens and "
                              "their order? And the same text must get the same hash again.")


@check(HASH, points=1, public=True)
def in_two_parts(hash_blocks, rng):
    """A text that grows is hashed on from where it was: `parent` is what came before."""
    text = rng.integers(0, 50_000, 12).tolist()
    with expect_unchanged(text):
        whole = hash_blocks(text, 3)
    for blocks in range(5):
        first = hash_blocks(text[:3 * blocks], 3)
        rest = hash_blocks(text[3 * blocks:], 3, first[-1] if first else b"")
        expect_equal([*first, *rest], whole, of=f"the hashes in two parts, of {blocks} and "
                                                f"{4 - blocks} blocks,",
                     hint="The first block of the second part has the hash `parent` before it, "
                          "as every other block has that of the block before.")


@check(HASH, points=1, public=True)
def numbers_stay_apart(hash_blocks, rng):
    """12, 3 is not 1, 23, and large ids are not cut."""
    large = int(rng.integers(256, 50_000))
    for one, other in (([12, 3], [1, 23]), ([1, 0], [0, 1]), ([large, 5], [large % 256, 5]),
                       ([large + 65_536, 5], [large, 5]), ([0, 0], [0, 256])):
        expect(hash_blocks(one, 2) != hash_blocks(other, 2),
               f"the hashes of {one} and {other} to differ", "that they are equal",
               "As bytes, each id must take equally many of them, and enough for any id.")


@check(HASH, points=1, public=False)
def any_ids(hash_blocks, rng):
    """Ids as lists, tuples and arrays; long texts; blocks of one token."""
    for size in (1, 2, 16):
        ids = rng.integers(0, 150_000, int(rng.integers(30, 70)))
        hashes = hash_blocks(ids.tolist(), size)
        expect_equal(len(set(hashes)), len(ids) // size, of="how many hashes there are")
        for other in (tuple(ids.tolist()), ids, ids.astype(np.int32)):
            expect_equal(list(hash_blocks(other, size)), hashes,
                         of=f"the hashes of {type(other).__name__} instead of list")
        at = int(rng.integers(len(hashes)))
        changed = ids.copy()
        changed[at * size] += 1
        expect_equal([one == other for one, other in zip(hash_blocks(changed.tolist(), size),
                                                         hashes)],
                     [place < at for place in range(len(hashes))],
                     of=f"which hashes stay after a change in block {at}")
    expect_equal(len(hash_blocks([], 4)), 0, of="how many hashes no tokens have")


# --- what blocks hold -------------------------------------------------------------------------


example_of_blockpool_share_keep_find_evict = docstring_example(SHARE, points=1)


@check(SHARE, points=2, public=True)
def one_more_user(BlockPool, rng):
    """A block that is in use, or kept, gets one more user; an empty one cannot."""
    pool, blocks = full_pool(BlockPool, 3)
    pool.share(0)
    expect_books(pool, [[0, 1, 2], [0]], "after block 0 was shared")
    pool.keep(1, b"one", [4, 5], None)
    pool.free(1)
    pool.share(1)
    expect_books(pool, [[0, 2], [0], [1]], "after block 1, which was kept unused, was shared",
                 "A kept block that is used again is not unused any more.")
    expect_equal(told(pool.find([b"one"], [4, 5])), [[1, [4, 5]]],
                 of="what can be found while block 1 is in use")
    pool.free(2)
    with expect_error(ValueError, when="an empty block is shared",
                      hint="What would the two share?"):
        pool.share(2)
    expect_books(pool, [[0], [0], [1]], "after that error", "Ask before you count.")


@check(SHARE, points=2, public=True)
def the_longest_beginning(BlockPool, rng):
    """Of a text, as many full blocks are found as are kept in a row from its beginning."""
    text = rng.permutation(9)[:8].tolist()
    names = kv_cache.hash_blocks(text, 2)
    pool, blocks = full_pool(BlockPool, 5)
    expect_equal(told(pool.find(names, text)), [], of="what an empty pool finds")
    parent, blocks = None, rng.permutation(blocks).tolist()
    for place in range(3):
        ids = text[2 * place:2 * place + 2]
        with expect_unchanged(ids):
            parent = pool.keep(blocks[place], names[place], ids, parent)
        expect_equal(told([parent]), [[blocks[place], ids]],
                     of="the prefix that `keep` returns", hint="Its block, and its tokens.")
    full = [[blocks[place], text[2 * place:2 * place + 2]] for place in range(3)]
    hint = "Walk along the hashes, and stop at the first that is not there."
    with expect_unchanged(names, text):
        found = told(pool.find(names, text))
    expect_equal(found, full, hint=hint,
                 of="what is found of a text of four blocks, of which three are kept,")
    expect_equal(told(pool.find(names[:2], text)), full[:2], hint=hint,
                 of="what is found for two hashes")
    other = [*text[:2], text[0], text[1], *text[4:]]
    expect_equal(told(pool.find(kv_cache.hash_blocks(other, 2), other)), full[:1], hint=hint,
                 of="what is found of a text whose second block is another")
    for block in blocks[:4]:
        pool.free(block)
    expect_equal(told(pool.find(names, text)), full, of="what is found when nobody uses it",
                 hint="What `free` keeps can be found.")
    expect_books(pool, [[blocks[4]]], "after all this")


@check(SHARE, points=1, public=True)
def the_oldest_goes(BlockPool, rng):
    """The kept block that nobody has used for the longest time is given up; it is empty then,
    and its text is not found any more."""
    pool, blocks = full_pool(BlockPool, 4, 1)
    for block in blocks[:3]:
        pool.keep(block, bytes([block]), [block], None)
    order = rng.permutation(3).tolist()
    for block in order:
        pool.free(block)
    pool.share(order[0])                                         # used once more
    pool.free(order[0])
    pool.find([bytes([order[1]])], [order[1]])                   # only looked for
    for at, block in enumerate([order[1], order[2], order[0]]):
        expect_equal(pool.evict(), block, hint="`self.kept` is in the order in which blocks "
                     "were freed: its first key has waited longest.",
                     of=f"what is given up, in turn {at + 1}, when {order} were freed in this "
                        f"order, {order[0]} was used once more, and {order[1]} was found and "
                        "not used")
        expect_equal(told(pool.find([bytes([block])], [block])), [],
                     of=f"what is found of block {block} after it was given up",
                     hint="Its next content will be another.")
        expect_books(pool, [[3]], f"after {block} was given up",
                     "The given `forget` keeps the four dictionaries in step.")
    with expect_error(ModelError, when="no block is kept"):
        pool.evict()


@check(SHARE, points=2, public=True)
def the_same_text_twice(BlockPool, rng):
    """Where a block holds the text already, its prefix stands for both; and a text is found
    again after its beginning was given up."""
    pool, text = BlockPool(3, 2), rng.permutation(9)[:4].tolist()
    names = kv_cache.hash_blocks(text, 2)
    first, second, child = (pool.allocate() for _ in range(3))
    root = pool.keep(first, names[0], text[:2], None)
    again = pool.keep(second, names[0], text[:2], None)
    expect_equal(told([again]), told([root]), of="the prefix of what a block holds already",
                 hint="Two blocks may hold one text; it is enough to find one of them.")
    expect_books(pool, [[first, second, child]], "when two blocks hold one text",
                 "A block has a prefix, or it has none: the second has none.")
    pool.keep(child, names[1], text[2:], again)
    expect_equal(told(pool.find(names, text)), [[first, text[:2]], [child, text[2:]]],
                 of="what is found of a text that goes on from the second of two equal blocks",
                 hint="Which prefix is the parent of what follows?")
    pool.free(first)
    pool.evict()
    expect_equal(told(pool.find(names, text)), [], of="what is found without its beginning")
    table = [pool.allocate()]
    parent = pool.keep(table[0], names[0], text[:2], None)
    pool.free(second)
    table.append(pool.allocate())
    pool.keep(table[1], names[1], text[2:], parent)
    expect_equal(told(pool.find(names, text)), [[table[0], text[:2]], [table[1], text[2:]]],
                 of="what is found after the text was written once more",
                 hint="Its old second block has a parent that is gone: what has the hash, and "
                      "is not the same prefix, makes way for the new one.")
    expect_books(pool, [[child], table], "after all this",
                 "The given `forget` takes a block's prefix from it.")


@check(SHARE, points=1, public=True)
def never_another_text(BlockPool, rng):
    """Two texts of one hash are never taken for each other, whatever stands before them."""
    pool, clash = BlockPool(4, 1), b"all the same"
    blocks = [pool.allocate() for _ in range(4)]
    hint = "The hash leads to a prefix quickly. Whether it is the right one, its `ids` and its "
    hint += "`parent` say."
    one = pool.keep(blocks[0], b"one", [1], None)
    pool.keep(blocks[1], clash, [7], one)
    expect_equal(told(pool.find([b"one", clash], [1, 8])), [[blocks[0], [1]]], hint=hint,
                 of="what is found of 1, 8 when the hash of 8 is that of 7")
    expect_equal(told(pool.find([b"one"], [2])), [], hint=hint,
                 of="what is found of 2 when its hash is that of 1")
    two = pool.keep(blocks[2], b"two", [2], None)
    expect_equal(told(pool.find([b"two", clash], [2, 7])), [[blocks[2], [2]]], hint=hint,
                 of="what is found of 2, 7 when 7 was kept after 1")
    pool.keep(blocks[3], clash, [7], two)
    expect_books(pool, [blocks], "when two texts of one hash were kept",
                 "What has the hash already is forgotten first.")
    expect_equal(told(pool.find([b"two", clash], [2, 7])), [[blocks[2], [2]], [blocks[3], [7]]],
                 hint=hint, of="what is found of 2, 7 after it was kept")
    expect_equal(told(pool.find([b"one", clash], [1, 7])), [[blocks[0], [1]]], hint=hint,
                 of="what is found of 1, 7 when its hash stands for 2, 7 now")
    pool, blocks = full_pool(BlockPool, 3, 1)
    pool.keep(blocks[1], b"child", [7], pool.keep(blocks[0], clash, [1], None))
    pool.keep(blocks[2], clash, [2], None)
    expect_equal(told(pool.find([clash, b"child"], [2, 7])), [[blocks[2], [2]]],
                 of="what is found of 2, 7 when 7 was kept after 1, and 2 has the hash of 1",
                 hint="Parents of one hash may be two texts. Are they the same *object*?")


@check(SHARE, points=2, public=True)
def as_hugging_face(BlockPool, rng):
    """Six texts in an engine with so few blocks that they share, and push each other out:
    every row's logits are Hugging Face's for that text alone."""
    case = truth("Llama", rng)
    for num_blocks in (9, 7):
        pool = BlockPool(num_blocks, 4)
        expect_served(case, Scheduler(pool, **SIZES), pool, served_texts(rng),
                      "A text has read keys of another. Are the checks above passed? What is "
                      "found must be what the block holds at that time.")


@check(SHARE, points=2, public=False, always=(4,))
def any_texts(BlockPool, rng):
    """Whatever texts come and go, under honest hashes and under hashes that clash:
    what is found is the right text, and as much of it as there is."""
    for hashes in (kv_cache.hash_blocks, clashing):
        expect_life(BlockPool, rng, hashes, 150, "")
