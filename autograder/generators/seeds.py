"""Random generators: of any seed, 0 among them; and the two whose next number is an extreme."""

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

# The step of PCG64, NumPy's default generator: state · FACTOR + INCREMENT, modulo 2**128.
FACTOR, INCREMENT = 0x2360ED051FC65DA44385DF649FCCF645, 1
LEAST, MOST = 0, 2**64 - 1               # what the two halves of a state differ in: its number


@dataclass(frozen=True)
class Generator:
    """A random generator: of a seed, or the one whose next `random()` is the least there is,
    0, or the most, 1 - 2**-53."""

    seed: int = 0
    next: str = ""

    def made(self) -> np.random.Generator:
        generator = np.random.default_rng(self.seed)
        if self.next:
            wanted = LEAST if self.next == "least" else MOST          # one half is 0
            before = (wanted - INCREMENT) * pow(FACTOR, -1, 2**128) % 2**128
            generator.bit_generator.state = generator.bit_generator.state | {
                "state": {"state": before, "inc": INCREMENT}}
        return generator

    def typed(self) -> str:
        extreme = {"least": "0.0", "most": "1 - 2**-53"}.get(self.next)
        return (f"<a generator whose next number is {extreme}>" if extreme
                else f"np.random.default_rng({self.seed})")


def generators() -> st.SearchStrategy[Generator]:
    """Generators of any seed, and the two extremes."""
    seeds = st.builds(Generator, st.integers(0, 2**32 - 1))
    extremes = st.sampled_from([Generator(), Generator(next="least"), Generator(next="most")])
    return st.one_of(extremes, extremes, seeds)
