"""What stands between the products of a step: norms, activations, rotary positions.

Each takes one row, or one head, of the step's memory.
"""

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from gearworks.kernels.cpu.compiling import part_of_another


@intrinsic
def float_of_bits(typing, bits):
    """The float32 that has these 32 bits."""
    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.FloatType())
    return types.float32(types.int32), generate


LOG2_E = np.float32(1.4426950408889634)
# 2^f for f from -0.5 to 0.5: the Taylor series of exp(f · ln 2), to less than a float32's last bit
SERIES = tuple(np.float32(each) for each in (
    1.0, 0.6931471805599453, 0.2402265069591007, 0.05550410866482158, 0.009618129107628477,
    0.0013333558146428443, 0.0001540353039338161, 1.525273380405984e-05))


@part_of_another
def exponential(x):
    """e to the power of x, float32, as part of a loop that the compiler can vectorize.

    2 to the power of a whole number is the exponent of a float32; a polynomial does the rest.
    """
    power = x * LOG2_E
    if power > np.float32(127):
        power = np.float32(127)
    if power < np.float32(-126):
        power = np.float32(-126)
    whole = np.floor(power + np.float32(0.5))
    f = power - whole
    series = SERIES[7]
    series = series * f + SERIES[6]
    series = series * f + SERIES[5]
    series = series * f + SERIES[4]
    series = series * f + SERIES[3]
    series = series * f + SERIES[2]
    series = series * f + SERIES[1]
    series = series * f + SERIES[0]
    return series * float_of_bits(np.int32((np.int32(whole) + 127) << 23))


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
    """silu(gate) · up of one row, whose `up` follows its `gate`; zeros behind it up to `end`."""
    gates, ups = memory[gate:gate + size], memory[gate + size:gate + 2 * size]
    out = memory[target:target + size]
    for place in range(size):
        out[place] = (gates[place] / (np.float32(1) + exponential(-gates[place]))
                      * ups[place])
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
