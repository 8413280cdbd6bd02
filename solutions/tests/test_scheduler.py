"""Who gets what in a step, without a model: budget, blocks, order; no one waits for ever."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gearworks.kv_cache import BlockPool
from gearworks.serving import scheduler as scheduler_module
from gearworks.serving.request import Request
from gearworks.serving.scheduler import Scheduler
from gearworks.serving.sequence import Sequence


class Run:
    """A scheduler, and sequences whose tokens are computed by nobody.

    A token's worth is what it says and what stands before it: `written` holds that for each
    slot of the memory, so that a block that is shared, copied or found too early shows.
    """

    def __init__(self, num_blocks=64, block_size=4, max_num_batched_tokens=16, max_num_seqs=4,
                 **options):
        self.pool = BlockPool(num_blocks, block_size)
        self.scheduler = Scheduler(self.pool, max_num_batched_tokens=max_num_batched_tokens,
                                   max_num_seqs=max_num_seqs, **options)
        self.written: dict[int, tuple[int, ...]] = {}
        self.sequences: list[Sequence] = []
        self.steps = self.tokens = 0

    def add(self, ids, more=3, *, priority=0, n=1, **options) -> Sequence:
        """A sequence that wants `more` tokens after its prompt."""
        # what could never fit, the engine refuses before
        assert len(ids) + more <= len(self.pool.references) * self.pool.block_size
        assert n <= self.scheduler.max_num_seqs
        request = Request(ids, n=n, id=str(len(self.sequences)), **options)
        sequence = Sequence(request, 0, list(ids), (priority, len(self.sequences), 0),
                            limit=len(ids) + more)
        self.sequences.append(sequence)
        self.scheduler.add(sequence)
        return sequence

    def step(self, guesses=0, right=0):
        """One step: every running sequence guesses so many tokens, of which some are right."""
        for one in self.scheduler.running:
            if one.num_pending_tokens == 1:
                count = max(0, min(guesses, one.limit - len(one.ids) - 1))
                one.guesses = ([self.next_token(one)] * min(right, count)
                               + [-1] * max(0, count - right))
        before = list(self.scheduler.running)
        plan = self.scheduler.schedule()
        self.steps += 1
        self.check_plan(plan, before)
        for source, target in plan.copies:
            for place in range(self.pool.block_size):
                self.written[self.slot(target, place)] = self.written.get(
                    self.slot(source, place))
        for one, count in plan.rows:
            self.write(one, count)
        for one, count in plan.rows:
            self.catch_up(one, count)
        self.check()
        return plan

    @staticmethod
    def next_token(sequence):
        return 7                                      # every text ends alike, so guesses fit

    def slot(self, block, place):
        return block * self.pool.block_size + place

    def write(self, one, count):
        size, start = self.pool.block_size, one.num_computed_tokens
        text = [*one.ids, *one.guesses]
        for position in range(start):                       # what was there must be its own
            slot = self.slot(one.block_table[position // size], position % size)
            assert self.written[slot] == tuple(text[:position + 1]), "another text's keys"
        for position in range(start, start + count):
            slot = self.slot(one.block_table[position // size], position % size)
            self.written[slot] = tuple(text[:position + 1])
        self.tokens += count

    def catch_up(self, one, count):
        caught_up = count >= one.num_pending_tokens
        guessed = max(0, count - one.num_pending_tokens)
        del one.guesses[guessed:]
        self.scheduler.computed(one, count - guessed)
        if not caught_up:
            return
        siblings = []
        if not one.forked:
            one.forked = True
            for index in range(1, one.request.n):
                sibling = Sequence(one.request, index, list(one.ids), (*one.rank[:2], index),
                                   one.limit, forked=True)
                self.scheduler.fork(one, sibling)
                self.sequences.append(sibling)
                siblings.append(sibling)
        for each in [one, *siblings]:
            token = self.next_token(each)
            accepted = 0
            while accepted < len(each.guesses) and each.guesses[accepted] == token:
                each.ids.append(token)
                accepted += 1
            self.scheduler.computed(each, accepted)
            each.guesses.clear()
            # siblings go apart at once
            each.ids.append(token + each.index if len(each.ids) == each.prompt_length
                            else token)
            if len(each.ids) >= each.limit:
                self.scheduler.remove(each)

    def check_plan(self, plan, before):
        scheduler, size = self.scheduler, self.pool.block_size
        counts = dict(plan.rows)
        assert len(counts) == len(plan.rows), "one sequence, two rows"
        assert sum(counts.values()) <= scheduler.max_num_batched_tokens
        assert all(count >= 1 for count in counts.values())
        # whoever runs goes on, prompt or not, in every step; a whole tile may have no room
        halted = set(scheduler.running) - set(counts)
        assert set(counts) <= set(scheduler.running)
        assert not halted or scheduler.tiled and counts
        assert all(one.num_pending_tokens > 1 for one in halted)
        assert set(before) <= set(counts) | set(plan.preempted) | halted
        assert not set(plan.preempted) & (set(counts) | set(plan.admitted))
        # the last ones give way
        assert all(victim.rank > one.rank for victim in plan.preempted for one in counts)
        assert not (plan.preempted and plan.admitted)
        slots = set()
        for one, count in plan.rows:
            places = range(one.num_computed_tokens, one.num_computed_tokens + count)
            assert places.stop <= len(one.block_table) * size, "no block for a token"
            assert count <= one.num_pending_tokens + len(one.guesses)
            self.check_tiles(one, count)
            for position in places:
                block = one.block_table[position // size]
                slot = self.slot(block, position % size)
                assert slot not in slots, "two tokens for one slot"
                slots.add(slot)
                assert self.pool.references[block] == 1, "writes into a shared block"
                assert block not in self.pool.prefix_of, "writes into a block that is kept"
        self.check()

    def check_tiles(self, one, count):
        """How a prompt is cut depends on nothing but the prompt."""
        tiles, size = self.scheduler.tiles(one, count), self.pool.block_size
        assert sum(tiles) == count and min(tiles) > 0
        if not self.scheduler.tiled:
            assert tiles == [count]
            return
        start, border = one.num_computed_tokens, one.prompt_length - 1
        for tile in tiles:
            assert tile == (min(size, border - start) if start < border else 1)
            assert start >= border or start % size == 0
            start += tile

    def check(self):
        scheduler = self.scheduler
        alive = [*scheduler.running, *scheduler.waiting]
        self.pool.check([one.block_table for one in alive])
        for group in (scheduler.running, scheduler.waiting):
            assert [one.rank for one in group] == sorted(one.rank for one in group)
        assert all(one.running for one in scheduler.running)
        assert not any(one.running or one.block_table for one in scheduler.waiting)
        assert sum(one.answers for one in scheduler.running) <= scheduler.max_num_seqs

    def all(self, bound=2000, **options):
        """Steps until nothing is left to do."""
        while self.scheduler.running or self.scheduler.waiting:
            assert self.steps < bound, "it never ends"
            assert self.step(**options).rows, "a step in which nothing is computed"
        assert self.pool.available == len(self.pool.references), "a block is lost"


def test_a_step_is_full_and_never_more_than_full():
    run = Run(max_num_batched_tokens=10)
    for length in (23, 4, 9):
        run.add(range(100 * length, 100 * length + length))
    while run.scheduler.waiting:
        assert sum(count for _, count in run.step().rows) == 10
    run.all()


def test_a_long_prompt_comes_in_chunks_and_stops_nobody():
    """A sequence that decodes gets its token in every step, whatever prompts there are, and a
    short prompt does not wait for a long one that came before."""
    run = Run(max_num_batched_tokens=8, num_blocks=200)
    decoding = run.add([1, 2, 3], more=60)
    run.step()
    long, short = run.add(range(100, 200)), run.add(range(300, 303))
    began = None
    for _ in range(40):
        length = len(decoding.ids)
        plan = run.step()
        assert len(decoding.ids) == length + 1
        assert sum(count for _, count in plan.rows) <= 8
        if began is None and len(short.ids) > 3:
            began = run.steps
            assert long.num_computed_tokens < 20
    assert began is not None and len(long.ids) > 100
    run.all()


def test_one_prompt_alone_gets_the_whole_budget():
    run = Run(max_num_batched_tokens=16)
    one = run.add(range(40))
    assert [run.step().rows[0][1] for _ in range(3)] == [16, 16, 8]
    assert one.num_computed_tokens == 40


def test_they_begin_in_the_order_in_which_they_came():
    run = Run(max_num_seqs=2)
    names = [run.add(range(10 * n, 10 * n + 6)).name for n in range(6)]
    began = []
    while run.scheduler.waiting or run.scheduler.running:
        began += [one.name for one in run.step().admitted]
    assert began == names


def test_the_first_in_line_is_not_overtaken_by_small_ones():
    """A large prompt for which there is no room yet holds up those behind it; else there would
    always be a small one that fits."""
    run = Run(num_blocks=10, max_num_batched_tokens=40, max_num_seqs=8)
    holder = run.add(range(20), more=8)
    run.step()
    large = run.add(range(100, 130))                                    # 8 of 10 blocks
    small = [run.add([200 + n]) for n in range(3)]
    while holder in run.scheduler.running:
        assert not run.step().admitted
    assert run.step().admitted[0] is large
    run.all()
    assert all(len(one.ids) == 4 for one in small)


def test_places_are_kept_for_the_answers_to_come():
    """A request for three answers takes three places, its prompt being one row."""
    run = Run(max_num_seqs=4, max_num_batched_tokens=8)
    run.add(range(30), n=3)
    others = [run.add([50 + n]) for n in range(2)]
    last = run.add([60], n=4)
    run.step()
    assert others[0].running and not others[1].running
    while not last.running:
        run.step()
    # the one before it has gone first, and all four places are its own
    assert len(others[1].ids) == others[1].limit
    run.all()
    assert [len(one.ids) - one.prompt_length for one in run.sequences] == [3] * 9


def test_the_last_one_gives_way_and_loses_no_token():
    run = Run(num_blocks=6, block_size=2, max_num_batched_tokens=20)
    first, second = run.add([1, 2, 3, 4], more=6), run.add([5, 6, 7, 8], more=6)
    preempted = []
    while run.scheduler.running or run.scheduler.waiting:
        text = list(second.ids)
        plan = run.step()
        preempted += plan.preempted
        assert second.ids[:len(text)] == text
    assert preempted and set(preempted) == {second}
    assert len(first.ids) == len(second.ids) == 10


def test_who_gives_up_its_own_blocks_is_not_in_the_step():
    """The last sequence is the one that needs a block: it waits, and is not computed."""
    run = Run(num_blocks=5, block_size=2, max_num_batched_tokens=20)
    first = run.add([1, 2, 3], more=7)                                # all of the pool
    run.step()
    last = run.add([5, 6], more=6)
    run.step()
    while last.running:
        plan = run.step()
    assert plan.preempted == [last] and [one for one, _ in plan.rows] == [first]
    assert last.block_table == [] and last.num_computed_tokens == 0
    assert last in run.scheduler.waiting
    run.all()


def test_what_was_preempted_comes_back_before_newcomers_and_cheaply():
    """Its full blocks are still known, as long as nobody needed them."""
    run = Run(num_blocks=30, block_size=2, max_num_batched_tokens=20)
    first, second = run.add(range(10, 17), more=6), run.add(range(20, 27), more=6)
    run.step()
    run.step()
    newcomer = run.add(range(30, 33), more=2)
    run.scheduler.preempt(second, scheduler_module.Plan())
    plan = run.step()
    assert plan.admitted == [second, newcomer] and first.running
    assert dict(plan.rows)[second] == 1 and second.cached_tokens == 0
    run.all()


def test_a_prefix_is_found_but_for_the_last_token():
    """A text that is there whole is still computed for one token: its logits are wanted."""
    run = Run(block_size=4)
    text = list(range(16))
    run.add(text)
    run.all()
    for length, cached in ((16, 12), (17, 16), (3, 0), (4, 0), (5, 4), (14, 12)):
        one = run.add(text[:length] if length < 17 else [*text, 99])
        run.step()
        assert one.cached_tokens == cached
        run.all()
    assert run.add([99, *text]).cached_tokens is None
    run.step()
    assert run.sequences[-1].cached_tokens == 0                # the same block, another place


def test_nothing_is_left_out_where_all_logits_are_wanted():
    run = Run()
    for prompt_logprobs in (None, 0):
        one = run.add(range(16), prompt_logprobs=prompt_logprobs)
        run.all()
    assert one.cached_tokens == 0


def test_without_prefix_caching_nothing_is_found():
    run = Run(enable_prefix_caching=False)
    for _ in range(2):
        one = run.add(range(16))
        run.all()
    assert one.cached_tokens == 0 and not run.pool.kept


def test_prompts_come_in_whole_tiles_and_only_those_are_found():
    """The last token of a prompt and all that follow are computed one by one, and what was
    computed so is not found: it has other bits."""
    run = Run(block_size=4, max_num_batched_tokens=13, tiled=True)
    first, text = run.add(range(30), more=10), list(range(30))
    plan = run.step()
    assert plan.rows == [(first, 12)]
    run.all()
    for ids, cached in ((text, 28), (text[:13], 12), (text[:12], 8), (first.ids, 28)):
        one = run.add(ids)
        run.step()
        assert one.cached_tokens == cached
        run.all()


def test_a_sequence_that_runs_already_shares_its_blocks():
    run = Run(block_size=4)
    first = run.add(range(12), more=9)
    run.step()
    second = run.add(range(12))
    run.step()
    assert second.cached_tokens == 8 and second.block_table[:2] == first.block_table[:2]
    run.all()


def test_blocks_that_others_use_already_are_not_needed_again():
    """A prompt of nine blocks of which eight are in use begins where four are left."""
    run = Run(num_blocks=13, block_size=4, max_num_batched_tokens=40)
    run.add(range(34), more=9)
    run.step()
    second = run.add([*range(32), 99, 98])
    run.step()
    assert second.running and second.cached_tokens == 32
    run.all()


def test_answers_share_a_prompt_and_copy_what_they_write_into():
    """Three answers to a prompt of two and a half blocks: two of them get a copy of the half
    block, and the full ones are shared to the end."""
    run = Run(block_size=4)
    run.add(range(10), n=3, more=2)
    run.step()
    one, *others = run.sequences
    assert all(other.block_table == one.block_table for other in others)
    plan = run.step()
    assert len(plan.copies) == 2 and len({target for _, target in plan.copies}) == 2
    run.all()


def test_guesses_are_given_up_before_anybody_is():
    """With one block left, a sequence computes its token there, and no guess that would need
    another; nobody is preempted for a guess."""
    run = Run(num_blocks=5, block_size=2, max_num_batched_tokens=20)
    first, second = run.add([1, 2, 3], more=3), run.add([4, 5, 6], more=3)
    run.step()
    plan = run.step(guesses=4)
    counts = {one: count for one, count in plan.rows}
    assert not plan.preempted and set(counts) == {first, second}
    assert all(1 <= count <= 3 for count in counts.values())
    run.all(guesses=4)


def test_guesses_do_not_take_a_token_from_those_behind():
    run = Run(max_num_batched_tokens=4, max_num_seqs=4)
    many = [run.add([n], more=9) for n in range(4)]
    while any(one.num_pending_tokens > 1 or len(one.ids) == 1 for one in many):
        run.step()
    plan = run.step(guesses=3)
    assert sorted(count for _, count in plan.rows) == [1, 1, 1, 1]
    run.all(guesses=3)


def test_whoever_was_preempted_has_forgotten_its_guesses():
    """It comes back with one token to compute, the others found; guesses have no room."""
    run = Run(num_blocks=3, block_size=4, max_num_batched_tokens=8)
    one = run.add([1, 2, 3], more=9)
    run.step()
    run.step()
    assert one.num_pending_tokens == 1 and len(one.ids) == 5
    one.guesses = [7, 7, 7, 7]
    run.scheduler.preempt(one, scheduler_module.Plan())
    run.pool.allocate()                                           # two are left, which it needs
    (same, count), = run.scheduler.schedule().rows
    assert same is one and one.num_computed_tokens == 4
    assert count == 1 and run.scheduler.tokens_in(one) >= count


def test_no_answer_runs_ahead_in_a_block_that_is_to_be_shared():
    """The last chunk of a prompt for several answers is one token long. Guesses behind it would
    fill the block for one answer, and others would write into it after it is known as full."""
    run = Run(num_blocks=9, block_size=3, max_num_batched_tokens=6)
    run.add(range(13), n=3, more=3)
    run.all(guesses=4, right=3)


def test_speculation_takes_fewer_steps_and_the_same_tokens():
    texts, steps = [], []
    for guesses, right in ((0, 0), (3, 3), (3, 1), (3, 0)):
        run = Run()
        for n in range(3):
            run.add(range(10 * n, 10 * n + 5), more=12)
        run.all(guesses=guesses, right=right)
        texts.append([one.ids for one in run.sequences])
        steps.append(run.steps)
    assert texts.count(texts[0]) == 4 and steps[1] < steps[2] < steps[3] == steps[0]


def test_whoever_is_removed_leaves_nothing():
    run = Run(num_blocks=8, max_num_seqs=2)
    running, waiting = [run.add(range(9)) for _ in range(2)], run.add(range(9))
    run.step()
    for one in (waiting, *running):
        run.scheduler.remove(one)
        run.check()
    assert run.pool.available == 8 and not run.scheduler.schedule().rows


WISHES = st.lists(st.tuples(
    st.integers(0, 2),                              # which of three beginnings
    st.integers(1, 14),                             # how much of it
    st.integers(0, 3),                              # and so many tokens of its own
    st.integers(1, 8),                              # wanted tokens
    st.integers(-2, 2),                             # priority
    st.integers(1, 3),                              # answers
    st.integers(0, 12)),                            # arrives after so many steps
    min_size=1, max_size=8)


def trace(wishes, num_blocks, block_size, budget, seqs, caching, guesses, right, aborts, tiled):
    run = Run(num_blocks, block_size, max(budget, seqs + 2 * block_size * tiled), seqs,
              enable_prefix_caching=caching, tiled=tiled)
    room = num_blocks * block_size
    for step in range(3000):
        for begin, shared, own, more, priority, n, arrival in wishes:
            ids = [*range(100 * begin, 100 * begin + shared), *([9] * own)]
            if arrival == step and len(ids) + more <= room and n <= seqs:
                run.add(ids, more, priority=priority, n=n)
        alive = [*run.scheduler.running, *run.scheduler.waiting]
        if step in aborts and alive:
            run.scheduler.remove(alive[aborts[step] % len(alive)])
            run.check()
            continue
        if not alive and step > 12:
            break
        if alive:
            assert run.step(guesses, right).rows, "a step in which nothing is computed"
    else:
        raise AssertionError("it never ends")
    assert run.pool.available == num_blocks


TRACES = st.fixed_dictionaries({
    "wishes": WISHES, "num_blocks": st.integers(4, 16), "block_size": st.integers(1, 5),
    "budget": st.integers(1, 24), "seqs": st.integers(1, 5), "caching": st.booleans(),
    "guesses": st.integers(0, 4), "right": st.integers(0, 4), "tiled": st.booleans(),
    "aborts": st.dictionaries(st.integers(0, 20), st.integers(0, 9), max_size=3)})


@settings(max_examples=150, deadline=None)
@given(TRACES)
def test_any_trace(case):
    """Every law of `Run`, in every step of any trace, and every trace ends."""
    trace(**case)


@pytest.mark.long
@settings(max_examples=3000, deadline=None)
@given(TRACES)
def test_very_many_traces(case):
    trace(**case)


@settings(max_examples=60, deadline=None)
@given(TRACES)
def test_any_trace_with_hashes_that_collide(case):
    """Whatever has the same hash, nobody gets another text's keys: `Run.write` sees to it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler_module, "hash_blocks", lambda ids, size, parent=b"": [
            bytes([sum(ids[end - size:end]) % 2]) for end in range(size, len(ids) + 1, size)])
        trace(**case)
