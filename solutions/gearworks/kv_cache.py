"""Where keys and values of past tokens live.

`model.forward` never looks at sequence borders: every layer hands its new keys and values to
`cache.attend`, which stores them and lets the new queries look at all that it holds. `KVCache`
is one sequence in contiguous memory; `RaggedBatch` puts several caches behind the same call.
`BlockPool` is the bookkeeping of the other way to keep many sequences: in blocks of one memory,
of which each sequence has a table (the memory itself is `serving.paged_cache`).

Shapes: T new tokens, S stored tokens, L layers, H query heads, K key/value heads, d head size.
All float32.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from gearworks.attention import (
    QUERY_BLOCK, AttentionRules, attention, attention_over_views, causal_mask)
from gearworks.config import ModelConfig
from gearworks.errors import ModelError

Rows = np.ndarray | Sequence[int] | slice


class Cache(Protocol):
    """What a model needs of a cache: `KVCache` for one sequence, `RaggedBatch` for several."""

    def attend(self, layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Store this step's keys and values; returns its attention over all that is stored."""
        ...


def attention_rules(config: ModelConfig) -> list[AttentionRules]:
    """The rules of each layer, as the configuration has them."""
    return [AttentionRules(window=config.window(layer), softcap=config.attention_softcap,
                           sinks=config.sinks[layer] if config.sinks else None)
            for layer in range(config.num_hidden_layers)]


class KVCache:
    """The keys and values of one sequence, in memory reserved once and written in place.

    Each layer counts its own tokens, since within one forward pass the layers run one after the
    other. keys, values: (L, K, capacity, d), the memory, in which token i of layer l stands at
    [l, :, i]; what lies behind the tokens of a layer is left as it is.

    >>> config = ModelConfig("LlamaForCausalLM", vocab_size=3, hidden_size=2,
    ...                      intermediate_size=2, num_hidden_layers=1, num_attention_heads=1,
    ...                      num_key_value_heads=1, head_dim=2, max_position_embeddings=9,
    ...                      rms_norm_eps=1e-9, rope_theta=1e4, tie_word_embeddings=False)
    >>> cache, zeros = KVCache(config, capacity=4), np.zeros((2, 1, 2), np.float32)
    >>> values = np.array([[[2, 0]], [[4, 8]]], np.float32)
    >>> cache.attend(0, zeros, zeros, values)[:, 0]      # equal scores: means of what is seen
    array([[2., 0.],
           [3., 4.]], dtype=float32)
    >>> cache.truncate(1)
    >>> len(cache)
    1
    """

    def __init__(self, config: ModelConfig, capacity: int):
        """Reserve room for `capacity` tokens: 2 · L · K · capacity · d float32.
        Raises ModelError when that fails.

        With latent attention the one key of a token holds its value too, so there is a single
        array.
        """
        L, K, d = config.num_hidden_layers, config.num_key_value_heads, config.head_dim
        arrays = 2
        if config.latent is not None:
            K, d, arrays = 1, config.latent.cached_size, 1
        try:
            self.keys = np.empty((L, K, capacity, d), np.float32)   # a head's keys lie together
            self.values = (np.empty((L, K, capacity, d), np.float32) if config.latent is None
                           else self.keys[..., :config.latent.kv_lora_rank])
        except (MemoryError, ValueError):
            # ValueError: a size or a number of bytes beyond all memory
            raise ModelError(f"cannot reserve a KV cache for {capacity} tokens",
                             f"it would take {4e-9 * arrays * L * K * capacity * d:,.1f} GB",
                             "make do with fewer tokens") from None
        self.rules = attention_rules(config)
        self.lengths = [0] * L
        self.capacity = capacity

    def __len__(self) -> int:
        """How many tokens are stored, in every layer."""
        return min(self.lengths)

    def require_room(self, layer: int, count: int) -> None:
        """Raise ModelError unless `count` more tokens fit into `layer`."""
        if self.lengths[layer] + count > self.capacity:
            raise ModelError("the KV cache is full",
                             f"it holds {self.capacity} tokens, and "
                             f"{self.lengths[layer] + count} are needed",
                             "make it larger, or shorten the prompt or the answer")

    def attend(self, layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Store this step's keys and values, then let its queries look at all stored tokens.

        q: (T, H, d); k, v: (T, K, d), the T tokens that follow those already stored, where T
        may be 0; returns (T, H, d). `self.rules[layer]` says what a query sees and how its
        scores are changed; `look` knows it.
        Raises ModelError when the tokens do not fit; then nothing is stored.
        """
        self.require_room(layer, len(k))
        start = self.lengths[layer]
        end = start + len(k)
        self.keys[layer, :, start:end] = k.transpose(1, 0, 2)
        self.values[layer, :, start:end] = v.transpose(1, 0, 2)
        self.lengths[layer] = end
        return self.look(layer, q)

    def look(self, layer: int, q: np.ndarray) -> np.ndarray:
        """Attention of the last tokens over all that the layer holds, or its window of it.

        q: (T, H, d), the queries of the last T stored tokens; returns (T, H, d). Long prompts
        are cut into blocks of queries, each of which multiplies only with keys that some of its
        queries can see.
        """
        if not len(q):
            return np.empty((0, q.shape[1], self.values.shape[-1]), np.float32)
        start, rules = self.lengths[layer] - len(q), self.rules[layer]
        window = rules.window
        attended = []
        for first in range(0, len(q), QUERY_BLOCK):
            block = q[first:first + QUERY_BLOCK]
            end = start + first + len(block)
            begin = 0 if window is None else max(0, end - len(block) - window + 1)
            keys, values = self.keys[layer, :, begin:end], self.values[layer, :, begin:end]
            mask = None if window is None else causal_mask(len(block), end - begin, window)
            if rules.plain:
                attended.append(attention(block, keys.transpose(1, 0, 2),           # (S, K, d)
                                          values.transpose(1, 0, 2), mask))
            else:
                mask = causal_mask(len(block), end - begin) if mask is None else mask
                attended.append(attention_over_views(block, [keys], [values], mask, rules))
        return attended[0] if len(attended) == 1 else np.concatenate(attended)

    def truncate(self, length: int) -> None:
        """Forget every token from position `length` on.
        Raises ValueError when fewer tokens are stored."""
        if not 0 <= length <= len(self):
            raise ValueError(f"cannot truncate {len(self)} stored tokens to {length}")
        self.lengths = [length] * len(self.lengths)


class RaggedBatch:
    """Several sequences in one forward pass, each with its own cache, of any lengths.

    The rows of a step go by sequence: first `counts[0]` tokens of the first, and so on.
    """

    def __init__(self, caches: Sequence[KVCache], counts: Sequence[int]):
        """counts: (B,) how many of this step's tokens belong to each cache; their sum is T.
        A cache may appear once."""
        if (len(caches) != len(counts) or len({id(cache) for cache in caches}) != len(caches)
            or min(counts, default=0) < 0):
            raise ValueError("a ragged batch needs one count for each cache, none below 0, and "
                             "each cache once")
        used = [(cache, count) for cache, count in zip(caches, counts) if count]
        self.caches = [cache for cache, _ in used]
        self.borders = np.cumsum([0, *(count for _, count in used)]).tolist()

    def attend(self, layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """As `KVCache.attend`, once for each sequence.
        Raises ValueError when the counts do not add up to T."""
        if len(q) != self.borders[-1]:
            raise ValueError(f"{len(q)} tokens came in, and the counts add up to "
                             f"{self.borders[-1]}")
        parts = list(zip(self.caches, self.borders, self.borders[1:]))
        # before the first one writes: all of the step or nothing
        for cache, start, end in parts:
            cache.require_room(layer, end - start)
        attended = [cache.attend(layer, q[start:end], k[start:end], v[start:end])
                    for cache, start, end in parts]
        if not attended:
            return np.empty((0, q.shape[1], v.shape[-1]), np.float32)
        # a backend's own caches know how its rows are joined
        return getattr(self.caches[0], "join", np.concatenate)(attended)


def hash_blocks(ids: Sequence[int], block_size: int, parent: bytes = b"") -> list[bytes]:
    """A hash of each full block of a text, which stands for all tokens up to the block's end.

    ids: the tokens; what is left after the last full block has no hash. parent: the hash of
    what comes before `ids`, if anything does: a text can be hashed in two parts. Two texts have
    the same i-th hash only if they are the same up to the end of block i, but for collisions
    of SHA-256.

    >>> first, second = hash_blocks([7, 8, 7, 8, 7], block_size=2)
    >>> first == second, hash_blocks([7, 8], 2, parent=first) == [second]
    (False, True)
    """
    hashes = []
    for start in range(0, len(ids) - block_size + 1, block_size):
        block = np.asarray(ids[start:start + block_size], "<i8")
        parent = hashlib.sha256(parent + block.tobytes()).digest()
        hashes.append(parent)
    return hashes


class Prefix:
    """What a full block holds: its tokens, after those of all its ancestors.

    hash: of all of it; block: the block's number; ids: of the block, a tuple; parent: the
    prefix of the block before it, None for a text's first block.
    Two prefixes are the same text only if they are the same object, so a collision of hashes
    cannot pass one text's keys off as another's.
    """

    def __init__(self, hash: bytes, block: int, ids: Sequence[int], parent: "Prefix | None"):
        self.hash, self.block, self.ids, self.parent = hash, block, tuple(ids), parent


class BlockPool:
    """Who uses which block of a memory, and what the unused ones still hold.

    A block is in use, by one sequence or by several that share it; or it is kept, unused but
    with a prefix that may come again; or it is empty. A kept block is given up when no empty
    one is left, the least recently used first. Nothing here takes longer in a larger pool.
    """

    def __init__(self, num_blocks: int, block_size: int):
        """num_blocks: all of them, numbered from 0. block_size: tokens in each."""
        self.block_size = block_size
        self.references = [0] * num_blocks                 # how many sequences use each
        self.empty = dict.fromkeys(range(num_blocks))      # in the order in which they go out
        self.kept: dict[int, None] = {}                    # the least recently used first
        self.prefixes: dict[bytes, Prefix] = {}            # by hash
        self.prefix_of: dict[int, Prefix] = {}             # by block

    @property
    def available(self) -> int:
        """How many blocks `allocate` can give."""
        return len(self.empty) + len(self.kept)

    def allocate(self, after: int | None = None) -> int:
        """Take a block for one sequence; its content means nothing.

        An empty block is taken before a kept one; of the empty ones, the one that follows the
        block `after` if that is empty, else the first. Raises ModelError when all blocks are in
        use.

        >>> pool = BlockPool(num_blocks=4, block_size=2)
        >>> pool.allocate(), pool.allocate(after=1), pool.allocate(after=0)
        (0, 2, 1)
        """
        if after is not None and after + 1 in self.empty:
            block = after + 1
        elif self.empty:
            block = next(iter(self.empty))
        else:
            block = self.evict()
        del self.empty[block]
        self.references[block] = 1
        return block

    def free(self, block: int) -> None:
        """One sequence less uses a block. The last one leaves it kept, or empty.

        Raises ValueError when nobody uses it.

        >>> pool = BlockPool(num_blocks=4, block_size=2)
        >>> pool.free(pool.allocate())
        >>> pool.available, pool.allocate()
        (4, 1)
        """
        if not self.references[block]:
            raise ValueError(f"block {block} is not in use")
        self.references[block] -= 1
        if not self.references[block]:
            (self.kept if block in self.prefix_of else self.empty)[block] = None

    def share(self, block: int) -> None:
        """One sequence more uses a block, which is in use or kept.
        Raises ValueError for an empty one."""
        if block in self.empty:
            raise ValueError(f"block {block} is empty")
        self.kept.pop(block, None)
        self.references[block] += 1

    def keep(self, block: int, hash: bytes, ids: Sequence[int],
             parent: Prefix | None) -> Prefix:
        """Remember what a full block in use holds, so that another sequence can find it.

        hash, ids: of the block; parent: the prefix of the block before it, None for the first.
        Returns the prefix that stands for this text: where another block holds it already, that
        one's, and this block has none. What else has the hash is forgotten: another text, or
        the same one behind a prefix that was given up.

        >>> pool = BlockPool(num_blocks=4, block_size=2)
        >>> prefix = pool.keep(pool.allocate(), b"a hash", [7, 8], None)
        >>> prefix.block, prefix.ids
        (0, (7, 8))
        >>> pool.free(0)                              # nobody uses it, and it can be found
        >>> [found.block for found in pool.find([b"a hash"], [7, 8])]
        [0]
        >>> pool.share(0)
        >>> pool.references
        [1, 0, 0, 0]
        """
        known = self.prefixes.get(hash)
        if known is not None:
            if known.parent is parent and known.ids == tuple(ids):
                return known
            self.forget(known.block)
        prefix = Prefix(hash, block, ids, parent)
        self.prefixes[hash] = self.prefix_of[block] = prefix
        return prefix

    def find(self, hashes: Sequence[bytes], ids: Sequence[int]) -> list[Prefix]:
        """The longest beginning of a text that blocks hold, as the prefixes of these blocks.

        hashes: of the text's full blocks, as `hash_blocks` gives them; ids: the text.
        """
        found: list[Prefix] = []
        for place, hash in enumerate(hashes):
            prefix = self.prefixes.get(hash)
            block_ids = tuple(ids[place * self.block_size:(place + 1) * self.block_size])
            if (prefix is None or prefix.ids != block_ids
                or prefix.parent is not (found[-1] if found else None)):
                break
            found.append(prefix)
        return found

    def evict(self) -> int:
        """Give up the kept block that nobody has used for the longest time; it is empty then.

        Raises ModelError when there is none.
        """
        if not self.kept:
            raise ModelError("no block is free", f"all {len(self.references)} are in use",
                             "give the engine more memory, or shorter requests")
        block = next(iter(self.kept))
        self.forget(block)
        return block

    def forget(self, block: int) -> None:
        """Let a block have no prefix any more; one that was only kept for it is empty then."""
        del self.prefixes[self.prefix_of.pop(block).hash]
        if block in self.kept:
            del self.kept[block]
            self.empty[block] = None

    def check(self, block_tables: Iterable[Sequence[int]]) -> None:
        """Raise AssertionError unless the books are right.

        block_tables: of all sequences that hold any blocks.
        """
        used = [0] * len(self.references)
        for table in block_tables:
            assert len(set(table)) == len(table), f"a block is twice in one table: {table}"
            for block in table:
                used[block] += 1
        assert used == self.references, "a reference is not counted, or counted twice"
        for block, references in enumerate(self.references):
            states = (references > 0) + (block in self.empty) + (block in self.kept)
            assert states == 1, f"block {block} is in {states} states"
            assert block not in self.empty or block not in self.prefix_of, (
                f"block {block} is in `empty` and in `prefix_of`")
            assert block not in self.kept or block in self.prefix_of, (
                f"block {block} is in `kept` and not in `prefix_of`")
        assert len(self.prefixes) == len(self.prefix_of), (
            f"{len(self.prefixes)} in `prefixes`, {len(self.prefix_of)} in `prefix_of`")
        for block, prefix in self.prefix_of.items():
            assert prefix.block == block and self.prefixes[prefix.hash] is prefix, (
                f"the prefix of block {block} is another one in `prefixes`")
            assert len(prefix.ids) == self.block_size, (
                f"the prefix of block {block} has {len(prefix.ids)} ids")
