"""A step of the model, compiled: it runs a program of a few hundred instructions.

An instruction is one operator of one layer: which, with what weights, and where in the step's
memory its input and its output are. The program is written once (`program`); what changes from
step to step are the ids, and where the sequences' keys lie. Every thread runs the whole program
over its own share: of a product the outputs, of attention heads, of everything else rows. After
an instruction all threads meet. Where a step has a single row, what is quickly done each thread
does for itself: its own copy lies in the row of its number, and nobody waits. Nothing here
reserves memory.

Shapes: T rows of the step, R rows whose logits are wanted.
"""

import numpy as np

from gearworks.kernels.cpu.attention import attend, remember
from gearworks.kernels.cpu.compiling import kernel, part_of_another
from gearworks.kernels.cpu.layout import LANES, NONE
from gearworks.kernels.cpu.operators import rms_norm, swiglu, turn
from gearworks.kernels.cpu.products import SCRATCH, product, quantize_row, sum_groups
from gearworks.kernels.cpu.threads import barrier, share

EMBED, NORM, MULTIPLY, TURN, ATTEND, READY, SWIGLU = range(7)
NAMES = ("embed", "norm", "multiply", "turn", "attend", "ready", "swiglu")

# What an instruction does, and to what. layer: its number in the caches. matrix: the one that
# it multiplies by, or that its result is made ready for. source, target: where rows begin in
# the step's memory, or NONE for the array of logits; a row every `_stride`. size: numbers of a
# row; of a product, whether a single row has copies; of a turn, whether heads turn at all.
# weight, second: a norm's, a bias, the norms of queries and keys; where they begin in the
# model's array, or NONE. add_to: rows that a product is added to, or NONE. window: of
# attention, 0 for all tokens. wanted: whether it is about the R rows whose logits are wanted.
INSTRUCTION = np.dtype([(name, np.int64) for name in (
    "op", "layer", "matrix", "source", "source_stride", "target", "target_stride", "size",
    "weight", "second", "add_to", "window", "wanted")])

# quantize: whether activations become bytes before a product; alike: whether a row alone is
# computed as one of several is, to the last bit
SHAPE = np.dtype([("heads", np.int64), ("kv_heads", np.int64), ("head_dim", np.int64),
                  ("quantize", np.int64), ("alike", np.int64), ("eps", np.float32),
                  ("unused", np.float32)])

# Where arrays that several instructions use begin. codes: activations in bytes, in words; the
# rest in float32: their scales and sums, cosines and sines, a thread's scores and scratch.
PLACES = np.dtype([(name, np.int64) for name in (
    "codes", "scales", "sums", "cos", "sin", "scores", "scores_of_thread", "scores_of_head",
    "scratch")])


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
def embed(matrix, words, numbers, token, memory, target):
    """The row of the embedding that belongs to a token."""
    per_word, size = 32 // matrix.bits, matrix.group * matrix.bits // 32
    block, lane = token // LANES, token % LANES
    for place in range(matrix.columns):
        number, inside = place // matrix.group, place % matrix.group
        of_group = block * matrix.groups + number
        at = matrix.words + (of_group * size + inside // per_word) * LANES + lane
        if matrix.bits == 32:
            memory[target + place] = numbers[at]
            continue
        word, code = words[at], inside % per_word
        if matrix.bits == 4:
            value = np.float32(np.int32(word >> (code % 4 * 8 + code // 4 * 4) & 15))
        else:
            value = np.float32(np.int32(np.int8(word >> code * 8 & 255)))
        value *= numbers[matrix.scales + of_group * LANES + lane]
        if matrix.minimums != NONE:
            value += numbers[matrix.minimums + of_group * LANES + lane]
        memory[target + place] = value


@part_of_another
def finish_product(one, numbers, memory, first, last, rows):
    """What follows a thread's outputs `first` to `last`: the bias, or the residual stream."""
    for row in range(rows):
        start = one.target + row * one.target_stride
        outputs = memory[start + first:start + last]
        if one.weight != NONE:
            bias = numbers[one.weight + first:one.weight + last]
            for place in range(len(outputs)):
                outputs[place] += bias[place]
        if one.add_to != NONE:
            start = one.add_to + row * one.target_stride
            stream = memory[start + first:start + last]
            for place in range(len(outputs)):
                stream[place] += outputs[place]


@part_of_another
def turn_heads(one, shape, places, numbers, memory, sequences, tables, rows, part, parts):
    """Norms and rotations of queries and keys; then keys and values are stored.

    sequences: none, where another will store them.
    """
    size, heads, kv_heads = shape.head_dim, shape.heads, shape.kv_heads
    first_row, last_row = share(rows, part, parts)
    first_head, last_head = 0, heads + kv_heads
    if rows == 1:
        first_row, last_row = 0, 1
        first_head, last_head = share(heads + kv_heads, part, parts)
    for sequence in sequences:
        end = sequence.first_row + sequence.rows
        for row in range(max(first_row, sequence.first_row), min(last_row, end)):
            for head in range(first_head, last_head):
                at = one.source + row * one.source_stride + head * size
                norm = one.weight if head < heads else one.second
                if norm != NONE:
                    rms_norm(memory, at, size, numbers, norm, shape.eps, at, at)
                if one.size:
                    turn(memory, at, size, places.cos + row * size, places.sin + row * size)
                if head >= heads and sequence.keys:
                    remember(sequence, tables, one.layer, head - heads,
                             sequence.start + row - sequence.first_row, size, memory, at,
                             at + kv_heads * size)


@part_of_another
def attend_all(one, shape, places, memory, sequences, tables, rows, part, parts):
    """Every query looks at its sequence: heads that share their keys together, where that
    leaves something to do for every thread."""
    size, heads, kv_heads = shape.head_dim, shape.heads, shape.kv_heads
    together = heads // kv_heads if rows * kv_heads >= 4 * parts else 1
    item = 0
    for sequence in sequences:
        for row in range(sequence.first_row, sequence.first_row + sequence.rows):
            token = sequence.start + row - sequence.first_row
            for head in range(0, heads, together):
                item += 1
                if item % parts == part:
                    attend(sequence, tables, one.layer, head // (heads // kv_heads), together,
                           token, one.window, size, memory,
                           one.source + row * one.source_stride + head * size,
                           places.scores + part * places.scores_of_thread,
                           places.scores_of_head,
                           one.target + row * one.target_stride + head * size)


@kernel
def run(program, matrices, shapes, words, numbers, all_places, memory, memory_words, ids,
        wanted, sequences, tables, logits, logits_stride, meeting, parts, part):
    """Run instructions, as the thread `part` of `parts`.

    matrices: of `MATRIX`; shapes, all_places: (1,) of `SHAPE` and `PLACES`; words, numbers: the
    model's one array, as uint32 and as float32; memory, memory_words: the step's, likewise;
    ids: (T,) int64; wanted: (R,) int64, rows; sequences: (B,) of `SEQUENCE`, and their tables.
    One without keys has a memory that others write. logits: R rows, one every logits_stride.
    """
    shape, places = shapes[0], all_places[0]
    for one in program:
        matrix = matrices[one.matrix]
        rows = len(wanted) if one.wanted else len(ids)
        first_row, last_row = share(rows, part, parts)
        copy = 0                             # the row in which this thread keeps its own
        if rows == 1 and one.op != EMBED:
            first_row, last_row, copy = 0, 1, part
        if one.op == MULTIPLY:
            first, last = share(matrix.blocks, part, parts)
            target = logits if one.target == NONE else memory
            product(matrix, words, numbers, first, last,
                    shape.quantize != 0 and matrix.bits != 32, shape.alike, memory,
                    memory_words, one.source + one.size * copy * one.source_stride,
                    one.source_stride, places.codes + copy * (one.source_stride // 4),
                    places.scales + copy * matrix.groups, places.sums + copy * matrix.groups,
                    rows, places.scratch + part * SCRATCH, target,
                    max(one.target, 0),
                    logits_stride if one.target == NONE else one.target_stride)
            if one.target != NONE:
                finish_product(one, numbers, memory, LANES * first,
                               min(LANES * last, matrix.rows), rows)
        elif one.op == TURN:
            turn_heads(one, shape, places, numbers, memory, sequences, tables, rows, part,
                       parts)
        elif one.op == ATTEND:
            attend_all(one, shape, places, memory, sequences, tables, rows, part, parts)
        else:
            for row in range(first_row, last_row):
                target = one.target + (row + copy) * one.target_stride
                if one.op == EMBED:
                    embed(matrix, words, numbers, ids[row], memory, target)
                    continue
                source = one.source
                source += (wanted[row] if one.wanted else row) * one.source_stride
                if one.op == NORM:
                    rms_norm(memory, source, one.size, numbers, one.weight, shape.eps, target,
                             target + one.target_stride)
                elif one.op == SWIGLU:
                    swiglu(memory, source, one.size, target, target + one.target_stride)
                else:
                    target = source
                ready(matrix, shape, places, memory, memory_words, target, one.target_stride,
                      row + copy)
            if rows == 1 and one.op != EMBED:
                continue
        barrier(meeting, parts)
