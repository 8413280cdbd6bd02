"""Which tokens are computed in the next step: one budget, shared by all sequences.

Every sequence wants to catch up with its tokens (`Sequence.num_pending_tokens`). A step has
room for `max_num_batched_tokens`. First come the sequences that run, in order of rank, then as
many of those that wait as the budget, the number of places and the blocks allow. When blocks
run out, the running sequence of the last rank gives up its own, and is computed again later.

Source: Yu et al. 2022, "Orca" (scheduling by iterations); Agrawal et al. 2023, "Sarathi"
(chunked prefill); vLLM's scheduler, version 1 (one budget for both phases).
"""

from bisect import insort
from dataclasses import dataclass, field

from gearworks.kv_cache import BlockPool, Prefix, hash_blocks
from gearworks.serving.sequence import Sequence


@dataclass
class Plan:
    """What one step does: for each sequence how many tokens, after these blocks are copied."""

    rows: list[tuple[Sequence, int]] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)       # from block, to block
    admitted: list[Sequence] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)


class Scheduler:
    """The sequences that run and those that wait, in order of rank, and who gets what.

    pool: the blocks. running, waiting: lists of sequences, the first in rank first.
    max_num_batched_tokens, max_num_seqs: of a step; `places` says how many more may run.
    """

    def __init__(self, pool: BlockPool, *, max_num_batched_tokens: int, max_num_seqs: int,
                 enable_prefix_caching: bool = True, tiled: bool = False):
        """max_num_batched_tokens: of a step, at least max_num_seqs, so that every running
        sequence can go on in every step. max_num_seqs: that run at once. tiled: prompts are
        computed in tiles, see `tiles`; then a step needs room for two blocks more."""
        self.pool = pool
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_num_seqs = max_num_seqs
        self.enable_prefix_caching = enable_prefix_caching
        self.tiled = tiled
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []

    @property
    def places(self) -> int:
        """How many more sequences may run, beside the answers that running ones will have."""
        return self.max_num_seqs - sum(sequence.answers for sequence in self.running)

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait for its turn."""
        insort(self.waiting, sequence, key=lambda other: other.rank)

    def schedule(self) -> Plan:
        """Decide about the next step, and take the blocks that it needs."""
        plan = Plan()
        budget = self.max_num_batched_tokens
        for place, sequence in enumerate(list(self.running)):
            if not sequence.running:
                break                          # preempted by one before it, as are all after it
            count = self.chunk(sequence, budget - (len(self.running) - place - 1))
            if count and self.make_room(sequence, count, plan):
                count = min(count, self.tokens_in(sequence))
                plan.rows.append((sequence, count))
                budget -= count
        # Whoever was preempted comes before whoever has not begun, but not in the same step:
        # the blocks that it gave up are needed.
        if not plan.preempted:
            self.admit(budget, plan)
        return plan

    def chunk(self, sequence: Sequence, budget: int) -> int:
        """How many of a sequence's tokens the next step computes. It has tokens pending.

        budget: tokens that the step has left for it. Where one is pending, it and the guesses
        behind it, as far as the budget goes; no guesses while the request has other answers to
        come (`answers`). Where more are pending, as many of them as the budget allows, and no
        guesses. While another running sequence has more than one pending, or somebody waits and
        there is a place, that is at most half of `max_num_batched_tokens`, rounded down, but
        not below 1: a long prompt does not hold up all that come after it.
        The sequence's first `tiles_end` tokens are computed in whole blocks: a chunk that would
        end before there ends at the last border of blocks that it reaches, perhaps at none.

        >>> from gearworks.serving.request import Request
        >>> scheduler = Scheduler(BlockPool(num_blocks=9, block_size=2),
        ...                       max_num_batched_tokens=8, max_num_seqs=2)
        >>> answer = Sequence(Request([1, 2, 3], id="a"), 0, [1, 2, 3], (0, 0, 0), 9)
        >>> scheduler.add(answer)
        >>> scheduler.chunk(answer, budget=8), scheduler.chunk(answer, budget=2)
        (3, 2)
        """
        pending = sequence.num_pending_tokens
        if pending == 1:
            # the end of a prompt belongs to all its answers: none of them runs ahead in there
            ahead = len(sequence.guesses) if sequence.answers == 1 else 0
            return min(1 + ahead, budget)
        unfinished = [other for other in self.running if other.num_pending_tokens > 1]
        if unfinished not in ([], [sequence]) or self.waiting and self.places:
            budget = min(budget, max(1, self.max_num_batched_tokens // 2))
        start, border = sequence.num_computed_tokens, self.tiles_end(sequence)
        if start + budget < border:                             # no tile is cut
            return (start + budget) // self.pool.block_size * self.pool.block_size - start
        return min(pending, budget)

    def tiles_end(self, sequence: Sequence) -> int:
        """How many tokens of a sequence are computed in tiles: all of the prompt but its last
        one, or none where tiles are not wanted, or logits of the prompt are."""
        return (sequence.prompt_length - 1
                if self.tiled and sequence.request.prompt_logprobs is None else 0)

    def tiles(self, sequence: Sequence, count: int) -> list[int]:
        """How a sequence's next `count` tokens are grouped, if products keep fixed shapes.

        The groups depend on the sequence alone: its prompt in tiles as large as a block, each
        token after that by itself. Without tiles, all are one group.
        """
        if not self.tiled:
            return [count]
        start, border = sequence.num_computed_tokens, self.tiles_end(sequence)
        inside = max(0, min(count, border - start))
        size = self.pool.block_size
        return [*(min(size, inside - at) for at in range(0, inside, size)),
                *[1] * (count - inside)]

    def tokens_in(self, sequence: Sequence) -> int:
        """How many more tokens the sequence's blocks have room for."""
        return (len(sequence.block_table) * self.pool.block_size
                - sequence.num_computed_tokens)

    def make_room(self, sequence: Sequence, count: int, plan: Plan) -> bool:
        """Give a running sequence the blocks for its next `count` tokens; whether it goes on.

        `blocks_needed` says how many. While the pool has fewer, first all guesses are given up:
        room is made for `num_pending_tokens` only, and the caller sees by `tokens_in` what has
        room. Then the running sequences of the last rank are preempted, one by one. That may be
        the sequence itself: then the answer is False, and nothing is taken for it.
        A block that others use too is not written to: where the first of the tokens would go
        into one, the sequence gets a block of its own in its place, `plan.copies` says from
        which to which, and the old one has one user less. Further blocks come to the end of the
        table, no more than are needed, each `after` the one before it.

        >>> from gearworks.serving.request import Request
        >>> scheduler = Scheduler(BlockPool(num_blocks=9, block_size=2),
        ...                       max_num_batched_tokens=8, max_num_seqs=2)
        >>> answer = Sequence(Request([1, 2, 3], id="a"), 0, [1, 2, 3], (0, 0, 0), 9)
        >>> scheduler.add(answer)
        >>> scheduler.admit(1, Plan())                # it has a block, for its first token
        >>> answer = scheduler.running[0]
        >>> scheduler.make_room(answer, 3, Plan()), len(answer.block_table)
        (True, 2)
        """
        while (needed := self.blocks_needed(sequence, count)) > self.pool.available:
            if count > sequence.num_pending_tokens:
                count = sequence.num_pending_tokens
                continue
            victim = self.running[-1]
            self.preempt(victim, plan)
            if victim is sequence:
                return False
        if not needed:
            return True
        table, size = sequence.block_table, self.pool.block_size
        place = sequence.num_computed_tokens // size
        if place < len(table) and self.pool.references[table[place]] > 1:
            copy = self.pool.allocate()
            plan.copies.append((table[place], copy))
            self.pool.free(table[place])
            table[place] = copy
        while len(table) * size < sequence.num_computed_tokens + count:
            table.append(self.pool.allocate(after=table[-1] if table else None))
        return True

    def blocks_needed(self, sequence: Sequence, count: int) -> int:
        """How many blocks must be taken before the sequence can compute `count` more tokens."""
        table, size = sequence.block_table, self.pool.block_size
        place = sequence.num_computed_tokens // size
        shared = place < len(table) and self.pool.references[table[place]] > 1
        return shared + max(0, -(-(sequence.num_computed_tokens + count) // size) - len(table))

    def preempt(self, sequence: Sequence, plan: Plan) -> None:
        """Let a running sequence wait again, without its blocks; its tokens are not lost.

        What its full blocks hold stays known, so unless they are needed, little of it will be
        computed again.
        """
        self.running.remove(sequence)
        sequence.running = False
        sequence.guesses.clear()
        self.release(sequence)
        plan.preempted.append(sequence)
        self.add(sequence)

    def admit(self, budget: int, plan: Plan) -> None:
        """Let waiting sequences run, in order of rank, while there is room for them.

        budget: tokens that the step has left. There is room for a sequence when the step has a
        token left, there is a place for each of its request's answers (`places`, `answers`),
        and the pool has blocks for all its tokens, with one to spare for each sequence that
        runs. Blocks of `cached_blocks` that are in use need not be taken. Who is first and
        finds no room holds up the others: nobody is overtaken for ever.
        Who comes in shares its cached blocks: they begin its table, and their tokens are
        computed. `prefix` is the last of them or None, `kept_blocks` their number;
        `cached_tokens` is noted at the first admission and stays. It is `running`, in the list
        at its rank, and in `plan.admitted`. Then it gets a `chunk` of the budget, room for it,
        and a row of the plan, unless the chunk is 0.

        >>> from gearworks.serving.request import Request
        >>> scheduler = Scheduler(BlockPool(num_blocks=9, block_size=2),
        ...                       max_num_batched_tokens=8, max_num_seqs=2)
        >>> answer = Sequence(Request([1, 2, 3], id="a"), 0, [1, 2, 3], (0, 0, 0), 9)
        >>> scheduler.add(answer)
        >>> plan = Plan()
        >>> scheduler.admit(8, plan)
        >>> [count for _, count in plan.rows]
        [3]
        >>> len(scheduler.running[0].block_table), len(scheduler.waiting)
        (2, 0)
        """
        size = self.pool.block_size
        while self.waiting and budget > 0 and self.waiting[0].answers <= self.places:
            sequence = self.waiting[0]
            found = self.cached_blocks(sequence)
            taken = sum(self.pool.references[prefix.block] > 0 for prefix in found)
            spare = len(self.running)
            if -(-len(sequence.ids) // size) - taken + spare > self.pool.available:
                break
            del self.waiting[0]
            for prefix in found:
                self.pool.share(prefix.block)
            sequence.block_table = [prefix.block for prefix in found]
            sequence.num_computed_tokens = len(found) * size
            sequence.prefix = found[-1] if found else None
            sequence.kept_blocks = len(found)
            if sequence.cached_tokens is None:
                sequence.cached_tokens = sequence.num_computed_tokens
            sequence.running = True
            insort(self.running, sequence, key=lambda other: other.rank)
            plan.admitted.append(sequence)
            count = self.chunk(sequence, budget)
            if count:
                self.make_room(sequence, count, plan)
                plan.rows.append((sequence, count))
            budget -= count

    def cached_blocks(self, sequence: Sequence) -> list[Prefix]:
        """The prefixes of the blocks that hold the beginning of a sequence, but for its last
        token. With log-probabilities of the prompt wanted, nothing may be left out."""
        if not self.enable_prefix_caching or sequence.request.prompt_logprobs is not None:
            return []
        self.hash(sequence)
        size = self.pool.block_size
        known = self.tiles_end(sequence) if self.tiled else len(sequence.ids) - 1
        return self.pool.find(sequence.hashes[:known // size], sequence.ids)

    def hash(self, sequence: Sequence) -> None:
        """Bring the hashes of a sequence's full blocks up to date."""
        hashes, size = sequence.hashes, self.pool.block_size
        hashes += hash_blocks(sequence.ids[len(hashes) * size:], size,
                              hashes[-1] if hashes else b"")

    def computed(self, sequence: Sequence, count: int) -> None:
        """Take note that `count` more tokens of a sequence are in its blocks.

        Full blocks can be found by others from now on.
        """
        sequence.num_computed_tokens += count
        known = sequence.num_computed_tokens
        if self.tiled:                        # the same text has other bits when not in tiles
            known = min(known, self.tiles_end(sequence))
        full = known // self.pool.block_size
        if not self.enable_prefix_caching or full <= sequence.kept_blocks:
            return
        self.hash(sequence)
        size = self.pool.block_size
        for place in range(sequence.kept_blocks, full):
            sequence.prefix = self.pool.keep(
                sequence.block_table[place], sequence.hashes[place],
                sequence.ids[place * size:(place + 1) * size], sequence.prefix)
            sequence.kept_blocks = place + 1

    def fork(self, sequence: Sequence, sibling: Sequence) -> None:
        """Let another answer run from where this one is, on the same blocks."""
        used = -(-sequence.num_computed_tokens // self.pool.block_size)
        sibling.block_table = sequence.block_table[:used]
        for block in sibling.block_table:
            self.pool.share(block)
        sibling.num_computed_tokens = sequence.num_computed_tokens
        sibling.hashes = list(sequence.hashes)
        sibling.prefix, sibling.kept_blocks = sequence.prefix, sequence.kept_blocks
        sibling.running = sequence.forked = sibling.forked = True
        insort(self.running, sibling, key=lambda other: other.rank)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, wherever it is, and free its blocks."""
        (self.running if sequence.running else self.waiting).remove(sequence)
        sequence.running = False
        self.release(sequence)

    def release(self, sequence: Sequence) -> None:
        """Free the blocks of a sequence, the last one first: it is the first to be given up."""
        for block in reversed(sequence.block_table):
            self.pool.free(block)
        sequence.block_table = []
        sequence.num_computed_tokens = sequence.kept_blocks = 0
        sequence.prefix = None
