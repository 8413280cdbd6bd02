"""What a step of the engine did, as plain data: for metrics, pictures and tests."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """The tokens of one sequence in one step.

    name: of the sequence, "request/answer". start: the first token's place in the sequence.
    count: how many tokens, guesses included. prompt: whether they belong to the prompt, or to
    what is computed again after a preemption. blocks: the sequence's block table.
    """

    name: str
    start: int
    count: int
    guesses: int
    prompt: bool
    blocks: tuple[int, ...]


@dataclass(frozen=True)
class StepRecord:
    """One step. Blocks are in use, or kept for a prefix that may come again, or empty.

    admitted: the sequences that began to run, each with its number of cached tokens.
    model_seconds: spent in the forward pass, of `seconds` in all.
    """

    number: int
    seconds: float
    model_seconds: float
    rows: tuple[Row, ...]
    admitted: tuple[tuple[str, int], ...] = ()
    preempted: tuple[str, ...] = ()
    finished: tuple[str, ...] = ()
    waiting: int = 0
    blocks_used: int = 0
    blocks_kept: int = 0
    blocks_empty: int = 0
    generated: int = 0

    @property
    def tokens(self) -> int:
        """How many rows the model computed."""
        return sum(row.count for row in self.rows)
