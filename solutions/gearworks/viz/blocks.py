"""Where the keys and values are: the pool's blocks, and each sequence's table of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gearworks.serving.record import StepRecord
from gearworks.viz.batch import step_in_words, window
from gearworks.viz.divergence import Divergence
from gearworks.viz.figure import Figure, player
from gearworks.viz.moments import Moment, count, labels, listed, moments
from gearworks.viz.trace import Cell, FigureError, Lane, Step, Trace

_LEGEND = {"used": "of one sequence, filled as far as it is written",
           "kept": "unused, kept for a prefix that may come again",
           "shared": "of several sequences with the same beginning"}
_STEPS, _BLOCKS = 40, 64                    # as many as can be taken in at once
_CELLS = 6000                               # of all steps together: a figure's size is limited
_LEVELS = 4                                 # how full a block is, is drawn in quarters


def page_table(records: Sequence[StepRecord], num_blocks: int, block_size: int,
               names: Mapping[str, str] | None = None, first: int | Divergence | None = None,
               title: str = "Who is in which block") -> Figure:
    """The pool of blocks in each step, and the block tables of the sequences that run.

    records: `LLMEngine.records` from the first one on. num_blocks, block_size: of the engine's
    pool. names, first: as for `batch_timeline`; without `first`, the figure opens with its
    first step. Of a long run 40 steps are shown, or fewer where they hold much, and of a large
    pool the blocks that are used in these. The records count the blocks that are kept for a
    prefix; which they are is worked out: the last full ones that nobody uses any more.
    Raises FigureError when there are no records, or a block that the pool does not have.

    >>> from gearworks.serving.record import Row
    >>> step = StepRecord(0, 0.1, 0.1, (Row("chat/0", 0, 5, 0, True, (0, 1)),), blocks_used=2,
    ...                   blocks_empty=1)
    >>> print(repr(page_table([step], num_blocks=3, block_size=4)).splitlines()[2:])
    ['  chat (5 tokens): 0 | 1', '  blocks: 2 in use, 0 kept for a prefix, 1 empty']
    """
    records = list(records)
    told = moments(records)
    called = labels([*told], names)
    if isinstance(first, Divergence):
        first = min(first.step, len(records) - 1)
    states = _pool_states(records, told, block_size)
    used = {block for state in states for table, _ in state.tables.values() for block in table}
    if used and max(used) >= num_blocks:
        raise FigureError("cannot draw these blocks", f"block {max(used)} is in use, and the "
                          f"pool has {num_blocks}", "give the engine's own num_blocks")
    start, end = window(len(records), first, _STEPS)
    weight = max(min(num_blocks, _BLOCKS) + sum(12 + len(table) for table, _
                                                in state.tables.values())
                 for state in states[start:end])
    most = max(1, min(_STEPS, _CELLS // weight))
    while True:
        start, end = window(len(records), first, most)
        steps = _drawn(records, states, told, called, num_blocks, block_size, start, end)
        try:
            return player(Trace(title, steps, "blocks", _LEGEND,
                                first=0 if first is None else first - start))
        except FigureError:                     # a block that many share has a long note
            if most == 1:
                raise
            most = most * 3 // 4


def _drawn(records: Sequence[StepRecord], states: Sequence["_Pool"],
           told: Mapping[str, Sequence[Moment]], called: Mapping[str, str], num_blocks: int,
           block_size: int, start: int, end: int) -> list[Step]:
    """The steps from `start` to `end`; of a large pool, the blocks that are used in them."""
    shown = [*range(num_blocks)]
    if num_blocks > _BLOCKS:
        shown = sorted({block for state in states[start:end]
                        for block in [*state.kept, *(block for table, _ in state.tables.values()
                                                     for block in table)]})
    pool_note = f"{count(block_size, 'token')} a block; double lines: new in this step"
    steps, before = [], states[start - 1].in_use if start else frozenset()
    for place in range(start, end):
        record, state = records[place], states[place]
        now = {name: told[name][place] for name in told}
        new = state.in_use - before
        pool = [_vessel(block, state, called, block_size, block in new) for block in shown]
        steps.append(Step(
            step_in_words(record, now, called),
            [Lane("pool", pool, pool_note),
             *(Lane(called[name], [_entry(block, i, state, name, block_size, block in new)
                                   for i, block in enumerate(table)], count(tokens, "token"))
               for name, (table, tokens) in state.tables.items())],
            values={"blocks": ", ".join(
                [f"{record.blocks_used} in use", f"{record.blocks_kept} kept for a prefix",
                 f"{record.blocks_empty} empty"])}, label=str(record.number)))
        before = state.in_use
    return steps


@dataclass(frozen=True)
class _Pool:
    """Who has which blocks in a step, and how many tokens are in them when it is over."""

    tables: Mapping[str, tuple[tuple[int, ...], int]]
    kept: frozenset[int]
    users: Mapping[int, Sequence[str]]

    @property
    def in_use(self) -> frozenset[int]:
        return frozenset(self.users)


def _pool_states(records: Sequence[StepRecord], told: Mapping[str, Sequence[Moment]],
                 block_size: int) -> list[_Pool]:
    tables: dict[str, tuple[tuple[int, ...], int]] = {}
    kept: dict[int, None] = {}                               # the least recently used first

    def release(name: str) -> None:
        blocks, tokens = tables.pop(name, ((), 0))
        for block in reversed(blocks[:tokens // block_size]):
            kept.pop(block, None)
            kept[block] = None

    states = []
    for step, record in enumerate(records):
        for name in [*tables]:
            if told[name][step].state in ("", "waiting", "preempted"):
                release(name)
        for row in record.rows:
            tables[row.name] = row.blocks, row.start + row.count
        users: dict[int, list[str]] = {}
        for name, (blocks, _) in tables.items():
            for block in blocks:
                users.setdefault(block, []).append(name)
        for block in [*kept]:
            if block in users:
                del kept[block]
        # of two blocks with equal content only one is kept, and the records do not say which
        latest = [*kept][max(0, len(kept) - record.blocks_kept):]
        states.append(_Pool({name: tables[name] for name in told if name in tables},
                            frozenset(latest), users))
        for name in record.finished:
            release(name)
    return states


def _level(place: int, tokens: int, block_size: int) -> float:
    """How full the block at a place of a table is, in steps that the eye can tell apart."""
    inside = max(0, min(block_size, tokens - place * block_size))
    return -(-_LEVELS * inside // block_size) / _LEVELS


def _vessel(block: int, pool: _Pool, called: Mapping[str, str], block_size: int,
            new: bool) -> Cell:
    users = pool.users.get(block, [])
    if not users:
        return (Cell(str(block), "kept") if block in pool.kept else
                Cell(str(block), emphasis="faded", note="empty", size=0))
    level = max(_level(table.index(block), tokens, block_size)
                for table, tokens in (pool.tables[name] for name in users))
    owner = called[users[0]] + (f" +{len(users) - 1}" if len(users) > 1 else "")
    return Cell(f"{block}\n{owner}", "shared" if len(users) > 1 else "used",
                "new" if new else "", listed([called[name] for name in users]), level)


def _entry(block: int, place: int, pool: _Pool, name: str, block_size: int,
           new: bool) -> Cell:
    return Cell(str(block), "shared" if len(pool.users[block]) > 1 else "used",
                "new" if new else "", size=_level(place, pool.tables[name][1], block_size))
