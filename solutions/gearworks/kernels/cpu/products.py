"""Products of activations with a matrix in the layout of `layout`, a share of its outputs.

Two ways. With float32 activations a group's codes become float32, and every product is one of
float32. With activations in signed bytes, four products are one instruction (`lanes.dot4`), and
only the group's sum becomes float32. Either way a group's codes are unpacked once and meet all
rows of the step, and a row's result has the same bits whatever other rows are there.

Shapes: T rows of activations. `numbers` and `words` are the model's one array as float32 and as
uint32; `memory` and `memory_words` likewise those of the step.
"""

import numpy as np

from gearworks.kernels.cpu.compiling import part_of_another
from gearworks.kernels.cpu.int4 import int4_matvec
from gearworks.kernels.cpu.lanes import (
    add_words, added, bits, dot4, everywhere, fetch, flip_signs, highest, largest_of, load,
    magnitude, multiply, multiply_add, nibbles, no_words, rounded, signed_byte, splat, store,
    store_bytes, sum_of, to_floats)
from gearworks.kernels.cpu.layout import GROUP, LANES, NONE
from gearworks.kernels.cpu.operators import soften

ROWS = 32                   # of activations at a time: they stay in the nearest cache
# Groups of the matrix that are under way from memory while one is computed: a processor looks
# ahead by itself, but not beyond a page of 4 KiB, nor while it is busy
AHEAD = 16
# Of each thread: a group's unpacked codes, then the sums of so many rows; 16 numbers each
SCRATCH = (GROUP + ROWS) * LANES


@part_of_another
def fetch_all(array, at, size):
    """Let `size` elements of an array, from `at` on, come nearer, or those beyond its end."""
    for line in range(0, size, LANES):
        fetch(array, at + line)


@part_of_another
def fetch_group(matrix, words, numbers, place, size):
    """Let the group at this place of a matrix come nearer. size: words of a group."""
    fetch_all(words, matrix.words + place * size, size)
    if matrix.bits != 32:
        fetch(numbers, matrix.scales + LANES * place)
        if matrix.minimums != NONE:
            fetch(numbers, matrix.minimums + LANES * place)


@part_of_another
def unpack_floats(words, at, width, group, tile, tile_at):
    """Sixteen rows of one group as float32: input by input sixteen lanes, into `tile`.

    at: the group's first word; width: bits of a code.
    """
    if width == 4:
        for word in range(group // 8):
            codes = load(words, at + LANES * word)
            for byte in range(4):
                to = tile_at + LANES * (8 * word + byte)
                store(tile, to, bits(codes, 8 * byte, 4))
                store(tile, to + 4 * LANES, bits(codes, 8 * byte + 4, 4))
    else:
        for word in range(group // 4):
            codes = load(words, at + LANES * word)
            for byte in range(4):
                store(tile, tile_at + LANES * (4 * word + byte), signed_byte(codes, 8 * byte))


@part_of_another
def group_bytes(words, at, narrow, whole):
    """Sixteen rows of one group as bytes from 0 to 255: eight vectors of words of four inputs.

    narrow: whether codes have four bits; whole: whether the group has 32 inputs, else 16, for
    which the last four vectors are 0.
    """
    a, b = load(words, at), load(words, at + LANES)
    c, d, e, f, g, h = no_words(), no_words(), no_words(), no_words(), no_words(), no_words()
    if whole or not narrow:
        c, d = load(words, at + 2 * LANES), load(words, at + 3 * LANES)
    if narrow:
        a, b, c, d, e, f, g, h = (nibbles(a, 0), nibbles(a, 1), nibbles(b, 0), nibbles(b, 1),
                                  nibbles(c, 0), nibbles(c, 1), nibbles(d, 0), nibbles(d, 1))
    else:
        a, b, c, d = flip_signs(a), flip_signs(b), flip_signs(c), flip_signs(d)
        if whole:
            e, f = load(words, at + 4 * LANES), load(words, at + 5 * LANES)
            g, h = load(words, at + 6 * LANES), load(words, at + 7 * LANES)
            e, f, g, h = flip_signs(e), flip_signs(f), flip_signs(g), flip_signs(h)
    return a, b, c, d, e, f, g, h


@part_of_another
def group_products(codes, x, at):
    """The sum of a group's products with one row of activations, from word `at` of x on.
    Where the group has 16 inputs, the next four words meet codes of 0."""
    a, b, c, d, e, f, g, h = codes
    total = dot4(no_words(), a, everywhere(x, at))
    total = dot4(total, b, everywhere(x, at + 1))
    total = dot4(total, c, everywhere(x, at + 2))
    total = dot4(total, d, everywhere(x, at + 3))
    total = dot4(total, e, everywhere(x, at + 4))
    total = dot4(total, f, everywhere(x, at + 5))
    total = dot4(total, g, everywhere(x, at + 6))
    return dot4(total, h, everywhere(x, at + 7))


@part_of_another
def group_minimum(scale, numbers, minimums, at, narrow):
    """A group's minimums for codes from 0 on, those of 8 bits after their signs are flipped."""
    minimum = splat(np.float32(0))
    if minimums != NONE:
        minimum = load(numbers, minimums + at)
    if not narrow:
        minimum = multiply_add(minimum, scale, splat(np.float32(-128)))
    return minimum


@part_of_another
def with_group(total, products, scale, minimum, x_scale, x_sum):
    """A row's total and one group more."""
    total = multiply_add(total, to_floats(products), multiply(scale, x_scale))
    return multiply_add(total, minimum, x_sum)


@part_of_another
def add_floats(total, weights, weights_at, x, at, group):
    """total + the group's products of one row, input after input."""
    for place in range(group):
        total = multiply_add(total, load(weights, weights_at + LANES * place),
                             everywhere(x, at + place))
    return total


@part_of_another
def multiply_floats(matrix, words, numbers, first, last, memory, x, stride, sums, rows, scratch,
                    out, out_at, out_stride):
    """Blocks `first` to `last` of a matrix, times float32 activations.

    x, stride: where `memory` holds the first row, and how far the next is; sums: where it has
    each row's sum of each group; scratch: where this thread may write; out: an array that gets
    the results, from out_at on, a row every out_stride.
    """
    group, groups = matrix.group, matrix.groups
    size = group * matrix.bits // 32 * LANES                        # words of a group
    tile, totals = scratch, scratch + GROUP * LANES
    zero = splat(np.float32(0))
    one = splat(np.float32(1))
    for start in range(0, rows, ROWS):
        count = min(ROWS, rows - start)
        for block in range(first, last):
            for row in range(count):
                store(memory, totals + LANES * row, zero)
            for group_number in range(groups):
                place = block * groups + group_number
                scale, minimum = one, zero
                weights, at = memory, tile
                fetch_group(matrix, words, numbers, place + AHEAD, size)
                if matrix.bits == 32:
                    weights, at = numbers, matrix.words + place * size
                else:
                    unpack_floats(words, matrix.words + place * size, matrix.bits, group,
                                  memory, tile)
                    scale = load(numbers, matrix.scales + LANES * place)
                    if matrix.minimums != NONE:
                        minimum = load(numbers, matrix.minimums + LANES * place)
                row = 0
                while row + 4 <= count:
                    x0 = x + (start + row) * stride + group * group_number
                    x1, x2, x3 = x0 + stride, x0 + 2 * stride, x0 + 3 * stride
                    total0, total1, total2, total3 = zero, zero, zero, zero
                    for number in range(group):
                        weight = load(weights, at + LANES * number)
                        total0 = multiply_add(total0, weight, everywhere(memory, x0 + number))
                        total1 = multiply_add(total1, weight, everywhere(memory, x1 + number))
                        total2 = multiply_add(total2, weight, everywhere(memory, x2 + number))
                        total3 = multiply_add(total3, weight, everywhere(memory, x3 + number))
                    sum_at = sums + (start + row) * groups + group_number
                    at_total = totals + LANES * row
                    scaled(memory, at_total, total0, scale, minimum, sum_at)
                    scaled(memory, at_total + LANES, total1, scale, minimum, sum_at + groups)
                    scaled(memory, at_total + 2 * LANES, total2, scale, minimum,
                           sum_at + 2 * groups)
                    scaled(memory, at_total + 3 * LANES, total3, scale, minimum,
                           sum_at + 3 * groups)
                    row += 4
                while row < count:
                    total = add_floats(zero, weights, at, memory,
                                       x + (start + row) * stride + group * group_number, group)
                    scaled(memory, totals + LANES * row, total, scale, minimum,
                           sums + (start + row) * groups + group_number)
                    row += 1
            for row in range(count):
                store(out, out_at + (start + row) * out_stride + LANES * block,
                      load(memory, totals + LANES * row))


@part_of_another
def scaled(memory, at, products, scale, minimum, sum_at):
    """Add a group to a row's total: scale · sum of x · code + minimum · sum of x."""
    total = multiply_add(load(memory, at), products, scale)
    store(memory, at, multiply_add(total, minimum, everywhere(memory, sum_at)))


@part_of_another
def int4_blocks(matrix, words, numbers, first, last, memory, x, out, out_at):
    """Blocks `first` to `last` of a matrix by `int4_matvec`; while it computes one, the next
    comes nearer."""
    groups, count = matrix.groups, matrix.blocks * matrix.groups * LANES
    codes = words[matrix.words:matrix.words + 4 * count].reshape(
        (matrix.blocks, groups, 4, LANES))
    scales = numbers[matrix.scales:matrix.scales + count].reshape(
        (matrix.blocks, groups, LANES))
    minimums = numbers[matrix.minimums:matrix.minimums + count].reshape(
        (matrix.blocks, groups, LANES))
    for block in range(first, last):
        for group in range(groups):
            fetch_group(matrix, words, numbers, (block + 1) * groups + group, 4 * LANES)
        at = out_at + LANES * block
        int4_matvec(codes[block:block + 1], scales[block:block + 1], minimums[block:block + 1],
                    memory[x:x + groups * GROUP], out[at:at + LANES])


@part_of_another
def int8_matvec(matrix, words, numbers, first, last, memory, x, sums, out, out_at):
    """As `int4_matvec`, for signed codes of eight bits, and blocks `first` to `last`."""
    group, per_group, zero = matrix.group, matrix.group // 4, splat(np.float32(0))
    for block in range(first, last):
        total = zero
        for number in range(matrix.groups):
            place = block * matrix.groups + number
            at, inputs = matrix.words + place * per_group * LANES, x + group * number
            # four sums: each waits for its own last product only
            first_bytes, second, third, fourth = zero, zero, zero, zero
            fetch_group(matrix, words, numbers, place + AHEAD, per_group * LANES)
            for word in range(per_group):
                codes = load(words, at + LANES * word)
                place_x = inputs + 4 * word
                first_bytes = multiply_add(first_bytes, signed_byte(codes, 0),
                                           everywhere(memory, place_x))
                second = multiply_add(second, signed_byte(codes, 8),
                                      everywhere(memory, place_x + 1))
                third = multiply_add(third, signed_byte(codes, 16),
                                     everywhere(memory, place_x + 2))
                fourth = multiply_add(fourth, signed_byte(codes, 24),
                                      everywhere(memory, place_x + 3))
            products = added(added(first_bytes, second), added(third, fourth))
            total = multiply_add(total, products, load(numbers, matrix.scales + LANES * place))
            if matrix.minimums != NONE:
                total = multiply_add(total, load(numbers, matrix.minimums + LANES * place),
                                     everywhere(memory, sums + number))
        store(out, out_at + LANES * block, total)


@part_of_another
def multiply_one_row(matrix, words, numbers, first, last, memory, memory_words, x, scales, sums,
                     out, out_at):
    """As `multiply_bytes`, for one row, whose totals stay in a register."""
    groups, quads, narrow, whole = (matrix.groups, matrix.group // 4, matrix.bits == 4,
                                    matrix.group == GROUP)
    size = matrix.group * matrix.bits // 32 * LANES
    minimums, place = matrix.minimums, first * groups
    at, scale_at = matrix.words + place * size, matrix.scales + LANES * place
    for block in range(first, last):
        total = splat(np.float32(0))
        for number in range(groups):
            fetch_group(matrix, words, numbers, place + AHEAD, size)
            codes = group_bytes(words, at, narrow, whole)
            scale = load(numbers, scale_at)
            minimum = group_minimum(scale, numbers, minimums, LANES * place, narrow)
            total = with_group(total, group_products(codes, memory_words, x + quads * number),
                               scale, minimum, everywhere(memory, scales + number),
                               everywhere(memory, sums + number))
            at, scale_at, place = at + size, scale_at + LANES, place + 1
        store(out, out_at + LANES * block, total)


@part_of_another
def multiply_bytes(matrix, words, numbers, first, last, memory, memory_words, x, stride, scales,
                   sums, rows, scratch, out, out_at, out_stride):
    """As `multiply_floats`, with activations in bytes.

    x, stride: in words of four; scales, sums: where `memory` has each row's scale and sum of
    each group.
    """
    groups, quads, narrow, whole = (matrix.groups, matrix.group // 4, matrix.bits == 4,
                                    matrix.group == GROUP)
    size = matrix.group * matrix.bits // 32 * LANES
    words_at, scales_at, minimums = matrix.words, matrix.scales, matrix.minimums
    for start in range(0, rows, ROWS):
        count = min(ROWS, rows - start)
        for block in range(first, last):
            for row in range(count):
                store(memory, scratch + LANES * row, splat(np.float32(0)))
            for number in range(groups):
                place = block * groups + number
                fetch_group(matrix, words, numbers, place + AHEAD, size)
                codes = group_bytes(words, words_at + place * size, narrow, whole)
                scale = load(numbers, scales_at + LANES * place)
                minimum = group_minimum(scale, numbers, minimums, LANES * place, narrow)
                x_at, about = x + start * stride + quads * number, start * groups + number
                total_at = scratch
                for row in range(count):
                    total = with_group(load(memory, total_at),
                                       group_products(codes, memory_words, x_at),
                                       scale, minimum, everywhere(memory, scales + about),
                                       everywhere(memory, sums + about))
                    store(memory, total_at, total)
                    x_at, about, total_at = x_at + stride, about + groups, total_at + LANES
            for row in range(count):
                store(out, out_at + (start + row) * out_stride + LANES * block,
                      load(memory, scratch + LANES * row))


@part_of_another
def quantize_row(matrix, memory, memory_words, source, x, scales, sums):
    """One row of activations in signed bytes, for a matrix.

    From `source` on in `memory`, they become words from `x` on in `memory_words`, with a scale
    and a sum for each of the matrix's groups, from `scales` and `sums` on. A group's largest
    number becomes 127 or -127. The sum is that of the rounded numbers.
    """
    group = matrix.group
    for number in range(matrix.groups):
        at, to = source + number * group, x + number * (group // 4)
        peaks = broken = nothing = splat(np.float32(0))
        for half in range(group // LANES):
            numbers = load(memory, at + LANES * half)
            peaks = highest(peaks, magnitude(numbers))
            broken = multiply_add(broken, numbers, nothing)      # nan, where a number is broken
        largest = largest_of(peaks) + sum_of(broken)
        scale = largest / np.float32(127)
        inverse = splat(np.float32(127) / largest if largest > 0 else np.float32(0))
        total = no_words()
        for half in range(group // LANES):
            codes = rounded(multiply(load(memory, at + LANES * half), inverse))
            store_bytes(memory_words, to + 4 * half, codes)
            total = add_words(total, codes)
        memory[scales + number] = scale
        memory[sums + number] = scale * sum_of(to_floats(total))


@part_of_another
def sum_groups(matrix, memory, source, sums):
    """The sum of every group of a row of float32 activations."""
    group = matrix.group
    for number in range(matrix.groups):
        total = np.float32(0)
        for value in memory[source + number * group:source + (number + 1) * group]:
            total += value
        memory[sums + number] = total


@part_of_another
def product(matrix, words, numbers, first, last, quantized, alike, memory, memory_words, x,
            stride, x_codes, scales, sums, rows, scratch, out, out_at, out_stride):
    """Blocks `first` to `last` of a matrix times all rows of a step, in the way that fits.

    quantized: whether the activations are there in bytes, from x_codes on in `memory_words`,
    a row every stride / 4, with their scales; if not, they are float32, from x on in `memory`.
    alike: whether the order of sums must not depend on the number of rows.
    """
    if quantized:
        if rows == 1:
            multiply_one_row(matrix, words, numbers, first, last, memory, memory_words, x_codes,
                             scales, sums, out, out_at)
        else:
            multiply_bytes(matrix, words, numbers, first, last, memory, memory_words, x_codes,
                           stride // 4, scales, sums, rows, scratch, out, out_at, out_stride)
    elif rows == 1 and not alike and matrix.bits == 4 and matrix.group == GROUP:
        int4_blocks(matrix, words, numbers, first, last, memory, x, out, out_at)
    elif rows == 1 and not alike and matrix.bits == 8:
        int8_matvec(matrix, words, numbers, first, last, memory, x, sums, out, out_at)
    else:
        multiply_floats(matrix, words, numbers, first, last, memory, x, stride, sums, rows,
                        scratch, out, out_at, out_stride)


@part_of_another
def ready(matrix, shape, places, memory, memory_words, source, stride, row):
    """Make a row, from `source` on, ready for a product as the row of this number: in bytes, or
    with the sums of its groups."""
    sums = places.sums + row * matrix.groups
    if shape.quantize and matrix.bits != 32:
        quantize_row(matrix, memory, memory_words, source, places.codes + row * (stride // 4),
                     places.scales + row * matrix.groups, sums)
    elif matrix.bits != 32:
        sum_groups(matrix, memory, source, sums)


@part_of_another
def finish_product(one, bias, numbers, memory, out, start, stride, first, last, rows):
    """What follows a thread's outputs `first` to `last`: a bias, a limit, the residual stream.

    bias: where it begins in `numbers`, or NONE; out: the array of the outputs, from start on, a
    row every stride.
    """
    for row in range(rows):
        outputs = out[start + first:start + last]
        if bias != NONE:
            biases = numbers[bias + first:bias + last]
            for place in range(len(outputs)):
                outputs[place] += biases[place]
        if one.cap > 0:
            soften(out, start + first, last - first, np.float32(1), one.cap)
        if one.add_to != NONE:
            to = one.add_to + row * stride
            stream = memory[to + first:to + last]
            for place in range(len(outputs)):
                stream[place] += outputs[place]
        start += stride
