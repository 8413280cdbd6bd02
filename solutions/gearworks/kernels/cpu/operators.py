"""What stands between the products of a step: norms, activations, rotary positions.

Each takes one row, or one head, of the step's memory.
"""

import numpy as np

from gearworks.kernels.cpu.compiling import part_of_another
from gearworks.kernels.cpu.lanes import added, divide, exponential, load, multiply, splat, store
from gearworks.kernels.cpu.layout import LANES


@part_of_another
def rms_norm(memory, source, size, numbers, weight, eps, target, end):
    """One row of `size` numbers from `source` on, normed and scaled, from `target` on.
    What follows there before `end` becomes 0."""
    # slices, since an index that might be negative keeps a loop from using vectors
    x, out = memory[source:source + size], memory[target:target + size]
    scales = numbers[weight:weight + size]
    squares = np.float32(0)
    for place in range(size):
        squares += x[place] * x[place]
    inverse = np.float32(1) / np.sqrt(squares / np.float32(size) + eps)
    for place in range(size):
        out[place] = x[place] * inverse * scales[place]
    for place in range(target + size, end):
        memory[place] = 0


@part_of_another
def swiglu(memory, gate, size, target, end):
    """silu(gate) · up of one row, whose `up` follows its `gate`; zeros behind it up to `end`.
    Up to `end` there is room for whole vectors."""
    one, minus = splat(np.float32(1)), splat(np.float32(-1))
    for place in range(0, size, LANES):
        gates, ups = load(memory, gate + place), load(memory, gate + size + place)
        below = added(one, exponential(multiply(gates, minus)))
        store(memory, target + place, multiply(divide(gates, below), ups))
    for place in range(target + size, end):
        memory[place] = 0


@part_of_another
def turn(memory, head, size, cos, sin):
    """Rotate one head in place: element i with element i + d/2."""
    half = size // 2
    firsts, seconds = memory[head:head + half], memory[head + half:head + size]
    cosines, sines = memory[cos:cos + size], memory[sin:sin + size]
    for place in range(half):
        first, second = firsts[place], seconds[place]
        firsts[place] = first * cosines[place] - second * sines[place]
        seconds[place] = second * cosines[half + place] + first * sines[half + place]
