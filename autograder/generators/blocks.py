"""Blocks of quantized values, as files keep them: float16 scales, then codes."""

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from autograder.generators.calls import Call, calls

# As float16: 0.5, 0, the largest, a negative one, the smallest, -1.
SCALES = (b"\0\x38", b"\0\0", b"\xff\x7b", b"\xcd\xae", b"\1\0", b"\0\xbc")


@dataclass(frozen=True)
class Blocks:
    """Blocks of these scales, with random codes. at: where in a block its float16 begin."""

    scales: tuple[tuple[bytes, ...], ...]
    nbytes: int
    seed: int
    at: int = 0
    locked: bool = False

    def made(self) -> np.ndarray:
        rng = np.random.default_rng(self.seed)
        blocks = rng.integers(0, 256, (len(self.scales), self.nbytes), np.uint8)
        for block, heads in zip(blocks, self.scales):
            head = b"".join(heads)
            block[self.at:self.at + len(head)] = np.frombuffer(head, np.uint8)
        blocks.flags.writeable = not self.locked
        return blocks

    def typed(self) -> str:
        heads = [[byte for head in heads for byte in head] for heads in self.scales]
        end = self.at + len(heads[0]) if heads else 0
        text = (f"np.random.default_rng({self.seed}).integers(0, 256, ({len(heads)}, "
                f"{self.nbytes}), np.uint8)")
        return f"blocks = {text} where blocks[:, {self.at}:{end}] = {heads}" if heads else text


def blocks(nbytes: int, count: int = 1, at: int = 0) -> st.SearchStrategy[Call]:
    """One to three blocks; count: of the float16 numbers at byte `at` of each."""
    heads = st.tuples(*[st.sampled_from(SCALES)] * count)
    return calls(st.builds(Blocks, st.lists(heads, min_size=1, max_size=3).map(tuple),
                           st.just(nbytes), st.integers(0, 2**16), st.just(at),
                           st.booleans()))
