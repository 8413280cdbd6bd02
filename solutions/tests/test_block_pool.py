"""The pool of blocks against a slow and obvious one, under hashes that collide all the time."""

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (Bundle, RuleBasedStateMachine, consumes, initialize, invariant,
                                 precondition, rule)

from gearworks.errors import ModelError
from gearworks.kv_cache import BlockPool, hash_blocks

BLOCK_SIZE = 2
LETTERS = st.integers(0, 1)                     # two tokens, so that texts often begin alike
TEXTS = st.lists(LETTERS, min_size=1, max_size=9)


def terrible(ids, block_size):
    """Hashes of full blocks that tell little apart: all texts have one of three."""
    return [bytes([sum(ids[:end]) % 3])
            for end in range(block_size, len(ids) + 1, block_size)]


class Texts(RuleBasedStateMachine):
    """Sequences come, are forked, write, and go, as in an engine, in a pool of six blocks.

    The model: what each block holds is written down in full, `contents`; what is unused is a
    list in the order in which it was freed. Whatever the pool finds has to be true.
    """

    hash = staticmethod(terrible)
    sequences = Bundle("sequences")

    @initialize()
    def start(self):
        self.pool = BlockPool(6, BLOCK_SIZE)
        self.tables = {}                        # by sequence: the blocks that it uses
        self.contents = {}                      # by block: the whole text up to its end
        self.freed = []                         # unused blocks, the first freed first
        self.number = 0

    def users(self, block):
        return sum(table.count(block) for table in self.tables.values())

    def allocate(self, after=None):
        """Take a block, and hold it to be the right one; None where there is none."""
        unused = [block for block in range(6) if not self.users(block)]
        assert self.pool.available == len(unused)
        if not unused:
            with pytest.raises(ModelError, match="no block is free"):
                self.pool.allocate(after)
            return None
        remembered = [block for block in self.freed if block in self.pool.prefix_of]
        block = self.pool.allocate(after)
        assert block in unused
        if set(remembered) == set(unused):                  # nothing is empty: the oldest goes
            assert block == remembered[0]
        else:
            assert block not in remembered
            if after is not None and after + 1 in set(unused) - set(remembered):
                assert block == after + 1
        self.contents.pop(block, None)
        if block in self.freed:
            self.freed.remove(block)
        return block

    def release(self, table):
        for block in reversed(table):
            self.pool.free(block)
            if not self.users(block):
                self.freed.append(block)

    @rule(target=sequences, text=TEXTS)
    def begin(self, text):
        """A new text: what is there already is shared, the rest gets blocks and is kept."""
        hashes = self.hash(text, BLOCK_SIZE)
        found = self.pool.find(hashes, text)
        for place, prefix in enumerate(found):
            assert self.contents[prefix.block] == text[:(place + 1) * BLOCK_SIZE], (
                "found what is another text")
        assert len({prefix.block for prefix in found}) == len(found)
        name, self.number = self.number, self.number + 1
        table = self.tables[name] = []
        for prefix in found:
            self.pool.share(prefix.block)
            table.append(prefix.block)
            if prefix.block in self.freed:
                self.freed.remove(prefix.block)
        parent = found[-1] if found else None
        for start in range(len(found) * BLOCK_SIZE, len(text), BLOCK_SIZE):
            block = self.allocate(after=table[-1] if table else None)
            if block is None:
                break
            table.append(block)
            ids = text[start:start + BLOCK_SIZE]
            if len(ids) == BLOCK_SIZE:
                self.contents[block] = text[:start + BLOCK_SIZE]
                parent = self.pool.keep(block, hashes[start // BLOCK_SIZE], ids, parent)
                assert parent.ids == tuple(ids)
        return name

    @rule(target=sequences, one=sequences)
    def fork(self, one):
        """Another sequence on the same blocks."""
        for block in self.tables[one]:
            self.pool.share(block)
        name, self.number = self.number, self.number + 1
        self.tables[name] = list(self.tables[one])
        return name

    @rule(one=sequences)
    def write_into_the_last_block(self, one):
        """Copy on write: a block that others use is given back for one of its own."""
        table = self.tables[one]
        if table and self.pool.references[table[-1]] > 1:
            block = self.allocate()
            if block is not None:
                self.pool.free(table[-1])
                table[-1] = block

    @rule(one=consumes(sequences))
    def end(self, one):
        self.release(self.tables.pop(one))

    @precondition(lambda self: self.pool.kept)
    @rule()
    def evict(self):
        oldest = next(block for block in self.freed if block in self.pool.prefix_of)
        assert self.pool.evict() == oldest
        assert oldest not in self.pool.prefix_of
        del self.contents[oldest]

    @rule(block=st.integers(0, 5))
    def misuse(self, block):
        """What is not in use cannot be freed; what is empty cannot be shared."""
        if not self.users(block):
            with pytest.raises(ValueError, match="not in use"):
                self.pool.free(block)
            if block not in self.pool.prefix_of:
                with pytest.raises(ValueError, match="empty"):
                    self.pool.share(block)

    @invariant()
    def the_books_are_right(self):
        if not hasattr(self, "pool"):
            return
        self.pool.check(self.tables.values())
        assert self.pool.references == [self.users(block) for block in range(6)]
        assert self.pool.available == self.pool.references.count(0)
        for block, prefix in self.pool.prefix_of.items():
            whole, at = [], prefix
            while at is not None:
                whole, at = [*at.ids, *whole], at.parent
            assert self.contents[block] == whole, "a prefix stands for another text"


class HonestTexts(Texts):
    """With real hashes, whose only texts with one hash are the same texts."""

    hash = staticmethod(hash_blocks)

    @invariant()
    def what_is_held_whole_is_found(self):
        """A text is found as long as every prefix of it is there, whoever came and went."""
        if not hasattr(self, "pool"):
            return
        for prefix in self.pool.prefix_of.values():
            chain = [prefix]
            while chain[0].parent is not None:
                chain.insert(0, chain[0].parent)
            if all(self.pool.prefix_of.get(one.block) is one for one in chain):
                text = [id for one in chain for id in one.ids]
                assert self.pool.find(hash_blocks(text, BLOCK_SIZE), text) == chain


few = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestTexts, TestHonestTexts = Texts.TestCase, HonestTexts.TestCase
TestTexts.settings = TestHonestTexts.settings = few


@pytest.mark.long
@pytest.mark.parametrize("machine", [Texts, HonestTexts])
def test_long_lives(machine):
    from hypothesis.stateful import run_state_machine_as_test
    run_state_machine_as_test(machine, settings=settings(
        max_examples=500, stateful_step_count=80, deadline=None))


def test_a_text_is_found_again_after_its_beginning_was_given_up():
    """A block outlives the one before it, when that was another sequence's. The next to write
    the same text must not find it in the way."""
    pool, text = BlockPool(3, 2), [1, 2, 3, 4]
    hashes = hash_blocks(text, 2)
    first, second = pool.allocate(), pool.allocate()
    root = pool.keep(first, hashes[0], text[:2], None)
    assert pool.keep(second, hashes[0], text[:2], None) is root       # the same text, twice
    child = pool.allocate()
    pool.keep(child, hashes[1], text[2:], root)                         # goes on from `second`
    pool.free(first)
    assert pool.evict() == first and pool.find(hashes, text) == []
    table = [pool.allocate()]
    again = pool.keep(table[0], hashes[0], text[:2], None)
    pool.free(second)
    table.append(pool.allocate())
    last = pool.keep(table[1], hashes[1], text[2:], again)
    assert pool.find(hashes, text) == [again, last]
    pool.check([[child], table])


def test_two_texts_of_one_hash():
    """Neither is ever taken for the other, not even where only what came before differs."""
    pool, clash = BlockPool(4, 1), b"all the same"
    blocks = [pool.allocate() for _ in range(4)]
    one = pool.keep(blocks[0], b"one", [1], None)
    pool.keep(blocks[1], clash, [7], one)
    assert [prefix.block for prefix in pool.find([b"one", clash], [1, 7])] == blocks[:2]
    assert len(pool.find([b"one", clash], [1, 8])) == 1
    assert pool.find([b"one"], [2]) == []
    two = pool.keep(blocks[2], b"two", [2], None)
    assert [prefix.block for prefix in pool.find([b"two", clash], [2, 7])] == [blocks[2]]
    pool.keep(blocks[3], clash, [7], two)
    assert ([prefix.block for prefix in pool.find([b"one", clash], [1, 7])] == [blocks[0]]
            or [prefix.block for prefix in pool.find([b"two", clash], [2, 7])] == [blocks[2]])
    pool.check([blocks])


def test_the_least_recently_used_goes_first():
    pool = BlockPool(3, 1)
    blocks = [pool.allocate() for _ in range(3)]
    for block in blocks:
        pool.keep(block, bytes([block]), [block], None)
    for block in (1, 0, 2):
        pool.free(block)
    pool.share(1)                                              # used once more, and freed again
    pool.free(1)
    assert [pool.allocate() for _ in range(3)] == [0, 2, 1]
    with pytest.raises(ModelError, match="no block is free"):
        pool.allocate()
    pool.check([[0, 1, 2]])


def test_neighbours_are_given_to_one_sequence():
    """A sequence that grows gets the block that follows its last, as long as that is empty."""
    pool, tables = BlockPool(9, 4), ([], [])
    tables[0].append(pool.allocate())
    tables[1].append(pool.allocate(after=4))
    for _ in range(2):
        for table in tables:
            table.append(pool.allocate(after=table[-1]))
    assert tables == ([0, 1, 2], [5, 6, 7])


class Counted(dict):
    """A dictionary that counts what it is asked for, walks included."""

    def __init__(self, *args):
        super().__init__(*args)
        self.asked = 0

    def __iter__(self):
        for key in super().__iter__():
            self.asked += 1
            yield key


for operation in ("__contains__", "__getitem__", "__setitem__", "__delitem__", "get", "pop",
                  "__len__"):
    def counted(self, *args, _plain=getattr(dict, operation)):
        self.asked += 1
        return _plain(self, *args)
    setattr(Counted, operation, counted)


class CountedList(list):
    """A list that counts accesses, and refuses to be walked through."""

    asked = 0

    def __getitem__(self, place):
        self.asked += 1
        return super().__getitem__(place)

    def __iter__(self):
        raise AssertionError("walks over all blocks")

    __contains__ = count = index = None


def operations(num_blocks: int) -> dict[str, int]:
    """How many look-ups each kind of call takes at most, in a busy pool of so many blocks."""
    pool = BlockPool(num_blocks, 1)
    for name in ("empty", "kept", "prefixes", "prefix_of"):
        setattr(pool, name, Counted(getattr(pool, name)))
    pool.references = CountedList(pool.references)
    parts = [pool.empty, pool.kept, pool.prefixes, pool.prefix_of, pool.references]
    most = {}

    def call(name, *args, **options):
        before = sum(part.asked for part in parts)
        result = getattr(pool, name)(*args, **options)
        taken = sum(part.asked for part in parts) - before
        most[name] = max(most.get(name, 0), taken)
        return result
    for _ in range(3):                                 # the second and third time, by eviction
        blocks = [call("allocate") for _ in range(num_blocks)]
        for block in blocks:
            call("keep", block, b"%d" % block, [block], None)
            call("share", block)
            call("free", block)
        for block in blocks[::2] + blocks[1::2]:
            call("free", block)
            assert pool.available <= num_blocks
        call("find", [b"%d" % blocks[3]], [blocks[3]])
        for block in blocks[:num_blocks // 2]:
            call("share", block)
            call("free", block)
    return most


def test_nothing_takes_longer_in_a_larger_pool():
    assert operations(20) == operations(640) and max(operations(20).values()) < 20


@given(st.lists(st.integers(0, 2**31), max_size=40), st.integers(1, 9), st.data())
def test_a_text_hashed_in_parts_has_the_same_hashes(ids, block_size, data):
    hashes = hash_blocks(ids, block_size)
    assert len(hashes) == len(ids) // block_size                    # no partial block has one
    cut = data.draw(st.integers(0, len(hashes)))
    parent = hashes[cut - 1] if cut else b""
    assert hashes == hashes[:cut] + hash_blocks(ids[cut * block_size:], block_size, parent)
    assert hash_blocks(ids[:cut * block_size], block_size) == hashes[:cut]
    assert hash_blocks(tuple(ids), block_size) == hashes


@given(st.lists(LETTERS, max_size=12), st.lists(LETTERS, max_size=12), st.integers(1, 4))
def test_equal_hashes_mean_equal_texts_up_to_there(one, other, block_size):
    for place, (left, right) in enumerate(zip(hash_blocks(one, block_size),
                                              hash_blocks(other, block_size))):
        end = (place + 1) * block_size
        assert (left == right) == (one[:end] == other[:end])


def test_hashes_tell_blocks_apart_by_what_came_before():
    """A block's own tokens are not enough, nor is the hash of a block a hash of ids in a row
    (12, 3 is not 1, 23)."""
    first, second = hash_blocks([7, 8, 7, 8], 2)
    assert first != second and hash_blocks([7, 8], 2) == [first]
    assert hash_blocks([12, 3], 2) != hash_blocks([1, 23], 2)
    assert hash_blocks([1], 1) != hash_blocks([257], 1) != hash_blocks([1 + 2**32], 1)


@pytest.mark.reference("the hash function")
def test_hashes_are_of_sha256():
    assert len(hash_blocks([7, 8], 2)[0]) == hashlib.sha256().digest_size
