"""What stands between the products of a step: norms, activations, rotary positions.

Each takes one row, or one head, of the step's memory.
"""

import numpy as np

from gearworks.kernels.cpu.compiling import part_of_another
from gearworks.kernels.cpu.lanes import (
    added, divide, exponential, load, multiply, multiply_add, splat, store)
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


@part_of_another
def soften(memory, start, count, scale, cap):
    """`count` numbers s, times scale, become cap · tanh(s / cap): none is beyond the cap.
    They are read and written in whole vectors."""
    one, limit, twice = splat(np.float32(1)), splat(cap), splat(np.float32(-2) * cap)
    inward = splat(np.float32(2) * scale / cap)
    for place in range(start, start + count, LANES):
        grown = exponential(multiply(load(memory, place), inward))
        store(memory, place, multiply_add(limit, twice, divide(one, added(grown, one))))


@part_of_another
def layer_norm(memory, source, size, numbers, weight, bias, eps, target, end):
    """As `rms_norm`, of what is left without the mean, and with a bias."""
    x, out = memory[source:source + size], memory[target:target + size]
    scales, biases = numbers[weight:weight + size], numbers[bias:bias + size]
    mean, squares = np.float32(0), np.float32(0)
    for value in x:
        mean += value
    mean /= np.float32(size)
    for value in x:
        squares += (value - mean) * (value - mean)
    inverse = np.float32(1) / np.sqrt(squares / np.float32(size) + eps)
    for place in range(size):
        out[place] = (x[place] - mean) * inverse * scales[place] + biases[place]
    for place in range(target + size, end):
        memory[place] = 0


@part_of_another
def gelu(memory, source, size, target, end):
    """`layers.gelu` of one row; zeros behind it up to `end`. There is room for whole
    vectors up to it."""
    # x · (1 + tanh(u)) / 2 is x / (1 + exp(-2u))
    one, cubic = splat(np.float32(1)), splat(np.float32(0.044715))
    factor = splat(np.float32(-2 * (2 / np.pi) ** 0.5))
    for place in range(0, size, LANES):
        x = load(memory, source + place)
        inner = multiply(x, multiply_add(one, cubic, multiply(x, x)))
        below = added(one, exponential(multiply(factor, inner)))
        store(memory, target + place, divide(x, below))
    for place in range(target + size, end):
        memory[place] = 0


@part_of_another
def geglu(memory, gate, size, target, end):
    """gelu(gate) · up of one row, as `swiglu`."""
    gelu(memory, gate, size, target, end)
    activated, ups = memory[target:target + size], memory[gate + size:gate + 2 * size]
    for place in range(size):
        activated[place] *= ups[place]


@part_of_another
def limited_swiglu(memory, source, size, alpha, limit, target, end):
    """`gpt_oss.limited_swiglu` of one row, in which gate and up go by turns; else as
    `swiglu`."""
    both, gates = memory[source:source + 2 * size], memory[target:target + size]
    for place in range(size):
        gates[place] = min(both[2 * place], limit)
    one, steep = splat(np.float32(1)), splat(-alpha)
    for place in range(target, target + size, LANES):
        gate = load(memory, place)
        below = added(one, exponential(multiply(gate, steep)))
        store(memory, place, divide(gate, below))
    for place in range(size):
        gates[place] *= max(min(both[2 * place + 1], limit), -limit) + np.float32(1)
    for place in range(target + size, end):
        memory[place] = 0
