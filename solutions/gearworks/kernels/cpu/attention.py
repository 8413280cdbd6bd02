"""Attention of a step's rows over keys that lie in one piece or in blocks.

Every query is computed by itself, key after key from the first one that it sees. So its result
has the same bits however a text was cut into steps, wherever its blocks lie, and whoever else
is in the step.

Shapes: d head size, S keys that a query sees. All float32.
"""

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

from gearworks.kernels.cpu.compiling import part_of_another
from gearworks.kernels.cpu.lanes import (
    added, everywhere, exponential, highest, largest_of, load, multiply_add, splat, store,
    store_sums, sum_of)
from gearworks.kernels.cpu.layout import LANES, NONE
from gearworks.kernels.cpu.operators import soften

TOGETHER = 64               # tokens whose keys, then values, meet all heads before the next

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
def lane_sums(a, at_a, b, at_b, size):
    """The product of two rows of `size` numbers, in sixteen sums; what follows whole vectors of
    them is left out."""
    first, second = splat(np.float32(0)), splat(np.float32(0))
    place = 0
    while place + 2 * LANES <= size:                # two sums: neither waits for the other
        first = multiply_add(first, load(a, at_a + place), load(b, at_b + place))
        second = multiply_add(second, load(a, at_a + place + LANES),
                              load(b, at_b + place + LANES))
        place += 2 * LANES
    if place + LANES <= size:
        first = multiply_add(first, load(a, at_a + place), load(b, at_b + place))
    return added(first, second)


@part_of_another
def score(memory, query, keys, at, stride, count, size, scores):
    """The products of a query with `count` keys."""
    number = 0
    while number + 4 <= count:
        key = at + number * stride
        store_sums(memory, scores + number, lane_sums(memory, query, keys, key, size),
                   lane_sums(memory, query, keys, key + stride, size),
                   lane_sums(memory, query, keys, key + 2 * stride, size),
                   lane_sums(memory, query, keys, key + 3 * stride, size))
        number += 4
    while number < count:
        memory[scores + number] = sum_of(lane_sums(memory, query, keys, at + number * stride,
                                                   size))
        number += 1
    whole = size // LANES * LANES
    if whole < size:
        for number in range(count):
            for place in range(whole, size):
                memory[scores + number] += (memory[query + place]
                                            * keys[at + number * stride + place])


@part_of_another
def softmax(memory, scores, count, scale, sink):
    """Scores, times scale, become weights; returns their sum, and in it what is given to the
    sink: a score for no key, or -inf.
    They are read and written in whole vectors; what is behind them means nothing."""
    largest = np.float32(-np.inf)
    whole = count // LANES * LANES
    if whole:
        peaks = load(memory, scores)
        for number in range(LANES, whole, LANES):
            peaks = highest(peaks, load(memory, scores + number))
        largest = largest_of(peaks)
    for number in range(whole, count):
        largest = max(largest, memory[scores + number])
    peak = max(largest * scale, sink)
    factor, shift = splat(scale), splat(-peak)
    for number in range(0, count, LANES):
        store(memory, scores + number,
              exponential(multiply_add(shift, load(memory, scores + number), factor)))
    total = np.float32(0)
    for weight in memory[scores:scores + count]:
        total += weight
    if sink > -np.inf:
        total += np.exp(sink - peak)
    return total


@part_of_another
def mix_four(values, at, stride, memory, weights, count, out):
    """Add `count` rows of 64 values, each times its weight, to `out`."""
    first, second = load(memory, out), load(memory, out + LANES)
    third, fourth = load(memory, out + 2 * LANES), load(memory, out + 3 * LANES)
    for number in range(count):
        weight = everywhere(memory, weights + number)
        first = multiply_add(first, load(values, at), weight)
        second = multiply_add(second, load(values, at + LANES), weight)
        third = multiply_add(third, load(values, at + 2 * LANES), weight)
        fourth = multiply_add(fourth, load(values, at + 3 * LANES), weight)
        at += stride
    store(memory, out, first)
    store(memory, out + LANES, second)
    store(memory, out + 2 * LANES, third)
    store(memory, out + 3 * LANES, fourth)


@part_of_another
def mix_some(values, at, stride, memory, weights, count, out, size):
    """As `mix_four`, for rows of any size: token after token, so that the order is one."""
    for number in range(count):
        weight = memory[weights + number]
        for place in range(size):
            memory[out + place] += values[at + place] * weight
        at += stride


@part_of_another
def attend(sequence, tables, one, kv_head, heads, token, size, value_size, memory, query,
           scores, stride, out, numbers, sinks):
    """The attention of `heads` neighbouring heads of one token, which share a key/value head.

    one: the instruction, with its layer, its window and its cap; token: the query's place in
    its sequence; size, value_size: of a key and of a value; query, out: where `memory` has the
    first head's query, and gets its result; scores: where S numbers can be kept for each head,
    one head every `stride`; sinks: where `numbers` has those of the heads, or NONE.
    """
    window = one.window
    first = max(0, token + 1 - window) if window else 0
    count = token + 1 - first
    base = one.layer * sequence.of_layer + kv_head * sequence.of_head
    keys, values = numbers_at(sequence.keys, 1), numbers_at(sequence.values, 1)
    scale = np.float32(1) / np.sqrt(np.float32(size))
    for place in range(heads * value_size):
        memory[out + place] = 0

    at = first
    while at <= token:
        run = run_from(sequence, at, token)
        there = base + place_of(sequence, tables, at, size)
        for head in range(heads):
            score(memory, query + head * size, keys, there, size, run, size,
                  scores + head * stride + at - first)
        at += run

    factor = scale
    if one.cap > 0:
        factor = np.float32(1)
    for head in range(heads):
        of_head, sink = scores + head * stride, np.float32(-np.inf)
        if one.cap > 0:
            soften(memory, of_head, count, scale, one.cap)
        if sinks != NONE:
            sink = numbers[sinks + head]
        # behind the scores, and all that is written with them
        memory[of_head + stride - 1] = softmax(memory, of_head, count, factor, sink)

    at = first
    while at <= token:
        run = run_from(sequence, at, token)
        there = base + place_of(sequence, tables, at, size)
        for head in range(heads):
            mix(values, there, size, value_size, memory, scores + head * stride + at - first,
                run, out + head * value_size)
        at += run

    for head in range(heads):
        inverse = np.float32(1) / memory[scores + (head + 1) * stride - 1]
        mixed = memory[out + head * value_size:out + (head + 1) * value_size]
        for place in range(value_size):
            mixed[place] *= inverse


@part_of_another
def run_from(sequence, at, last):
    """How many tokens from `at` on, up to the last one, are read at once: they lie together,
    and are few enough to stay in the nearest cache until all heads have seen them."""
    return min(sequence.block_size - at % sequence.block_size, TOGETHER - at % TOGETHER,
               last + 1 - at)


@part_of_another
def mix(values, there, stride, size, memory, weights, count, out):
    """Add `count` rows of `size` values, one every stride, each times its weight, to `out`."""
    place = 0
    while place + 4 * LANES <= size:
        mix_four(values, there + place, stride, memory, weights, count, out + place)
        place += 4 * LANES
    if place < size:
        mix_some(values, there + place, stride, memory, weights, count, out + place,
                 size - place)
