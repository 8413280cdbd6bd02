"""Attention of a step's rows over keys that lie in one piece or in blocks.

Every query is computed by itself, key after key from the first one that it sees. So its result
has the same bits however a text was cut into steps, wherever its blocks lie, and whoever else is
in the step.

Shapes: d head size, S keys that a query sees. All float32.
"""

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

from gearworks.kernels.cpu.compiling import part_of_another
from gearworks.kernels.cpu.lanes import everywhere, load, multiply_add, splat, store, sum_of
from gearworks.kernels.cpu.layout import LANES
from gearworks.kernels.cpu.operators import exponential

# One sequence of a step. keys, values: addresses of its memory; of_layer, of_head: how far one
# layer and one head are from the next, in numbers; block_size: tokens that lie together; table:
# where `tables` begins to list its blocks; first_row, rows: which rows of the step are its own;
# start: tokens that were there before.
SEQUENCE = np.dtype([(name, np.int64) for name in (
    "keys", "values", "of_layer", "of_head", "block_size", "table", "first_row", "rows",
    "start")])


@intrinsic
def numbers_at(typing, address, size):
    """The `size` float32 numbers in memory from an address on, as an array."""
    kind = types.Array(types.float32, 1, "C")

    def generate(context, builder, signature, arguments):
        address, size = arguments
        array = context.make_array(kind)(context, builder)
        width = context.get_constant(types.intp, 4)
        populate_array(array, data=builder.inttoptr(address, ir.FloatType().as_pointer()),
                       shape=[size], strides=[width], itemsize=width, meminfo=None)
        return array._getvalue()
    return kind(types.int64, types.intp), generate


@part_of_another
def place_of(sequence, tables, token, size):
    """How far into a head's memory a token's key is."""
    block = tables[sequence.table + token // sequence.block_size]
    return (block * sequence.block_size + token % sequence.block_size) * size


@part_of_another
def remember(sequence, tables, layer, head, token, size, memory, key, value):
    """Store the key and the value of one token in one head of the sequence's memory."""
    at = layer * sequence.of_layer + head * sequence.of_head + place_of(sequence, tables, token,
                                                                        size)
    keys = numbers_at(sequence.keys, at + size)[at:]
    values = numbers_at(sequence.values, at + size)[at:]
    new_key, new_value = memory[key:key + size], memory[value:value + size]
    for place in range(size):
        keys[place] = new_key[place]
    for place in range(size):
        values[place] = new_value[place]


@part_of_another
def dot(a, at_a, b, at_b, size):
    """The product of two rows of `size` numbers."""
    total = splat(np.float32(0))
    whole = size // LANES * LANES
    for place in range(0, whole, LANES):
        total = multiply_add(total, load(a, at_a + place), load(b, at_b + place))
    product = sum_of(total)
    for place in range(whole, size):
        product += a[at_a + place] * b[at_b + place]
    return product


@part_of_another
def attend(sequence, tables, layer, head, token, window, size, memory, query, scores, out):
    """One query's attention: `size` numbers from `out` on.

    token: the query's place in its sequence; window: how many tokens it sees, itself included,
    0 for all; scores: where S numbers can be kept.
    """
    first = max(0, token + 1 - window) if window else 0
    count = token + 1 - first
    base = layer * sequence.of_layer + head * sequence.of_head
    keys, values = numbers_at(sequence.keys, 1), numbers_at(sequence.values, 1)
    scale = np.float32(1) / np.sqrt(np.float32(size))

    largest = np.float32(-np.inf)
    at = first
    while at <= token:
        there = base + place_of(sequence, tables, at, size)
        run = min(sequence.block_size - at % sequence.block_size, token + 1 - at)
        for number in range(run):
            score = dot(memory, query, keys, there + number * size, size) * scale
            memory[scores + at - first + number] = score
            largest = max(largest, score)
        at += run

    total = np.float32(0)
    weights = memory[scores:scores + count]
    for number in range(count):
        weights[number] = exponential(weights[number] - largest)
    for number in range(count):
        total += weights[number]
    inverse = np.float32(1) / total

    whole = size // LANES * LANES
    for chunk in range(0, whole, LANES):
        mixed = splat(np.float32(0))
        at = first
        while at <= token:
            there = base + place_of(sequence, tables, at, size) + chunk
            run = min(sequence.block_size - at % sequence.block_size, token + 1 - at)
            for number in range(run):
                mixed = multiply_add(mixed, load(values, there + number * size),
                                     everywhere(memory, scores + at - first + number))
            at += run
        store(memory, out + chunk, mixed)
    for place in range(whole, size):
        memory[out + place] = 0
    at = first
    while at <= token and whole < size:
        there = base + place_of(sequence, tables, at, size)
        run = min(sequence.block_size - at % sequence.block_size, token + 1 - at)
        for number in range(run):                # token after token, whatever lies together
            for place in range(whole, size):
                memory[out + place] += (values[there + number * size + place]
                                        * weights[at - first + number])
        at += run
    for place in range(size):
        memory[out + place] *= inverse
