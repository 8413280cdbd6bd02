"""A step of the model, compiled: it runs a program of a few hundred `instructions`.

The program is written once (`program`); what changes from step to step are the ids, and where
the sequences' keys lie. Every thread runs the whole program
over its own share: of a product the outputs, of attention heads, of everything else rows. After
an instruction all threads meet. Where a step has a single row, what is quickly done each thread
does for itself: its own copy lies in the row of its number, and nobody waits. Nothing here
reserves memory.

Shapes: T rows of the step, R rows whose logits are wanted.
"""

import numpy as np

from gearworks.kernels.cpu.attention import attend, remember
from gearworks.kernels.cpu.compiling import kernel, part_of_another
from gearworks.kernels.cpu.family_step import own_row, perform
from gearworks.kernels.cpu.instructions import (
    ATTEND, EMBED, GELU, MULTIPLY, NORM, READY, SWIGLU, TURN)
from gearworks.kernels.cpu.layout import LANES, NONE
from gearworks.kernels.cpu.operators import rms_norm, swiglu, turn
from gearworks.kernels.cpu.products import SCRATCH, finish_product, product, ready
from gearworks.kernels.cpu.threads import barrier, share

@part_of_another
def embed(matrix, words, numbers, token, memory, target, scale):
    """The row of the embedding that belongs to a token, times scale."""
    per_word, size = 32 // matrix.bits, matrix.group * matrix.bits // 32
    block, lane = token // LANES, token % LANES
    for place in range(matrix.columns):
        number, inside = place // matrix.group, place % matrix.group
        of_group = block * matrix.groups + number
        at = matrix.words + (of_group * size + inside // per_word) * LANES + lane
        if matrix.bits == 32:
            memory[target + place] = numbers[at] * scale
            continue
        word, code = words[at], inside % per_word
        if matrix.bits == 4:
            value = np.float32(np.int32(word >> (code % 4 * 8 + code // 4 * 4) & 15))
        else:
            value = np.float32(np.int32(np.int8(word >> code * 8 & 255)))
        value *= numbers[matrix.scales + of_group * LANES + lane]
        if matrix.minimums != NONE:
            value += numbers[matrix.minimums + of_group * LANES + lane]
        memory[target + place] = value * scale


@part_of_another
def turn_heads(one, shape, numbers, memory, sequences, tables, rows, part, parts):
    """Norms and rotations of queries and keys, a factor for queries; then keys and values are
    stored.

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
                    angles = one.target + row * one.target_stride
                    turn(memory, at, size, angles, angles + size)
                if one.scale != 1 and head < heads:
                    for place in range(at, at + size):
                        memory[place] *= one.scale
                if head >= heads and sequence.keys:
                    remember(sequence, tables, one.layer, head - heads,
                             sequence.start + row - sequence.first_row, size, memory, at,
                             at + kv_heads * size)


@part_of_another
def attend_all(one, shape, places, numbers, memory, sequences, tables, rows, part, parts):
    """Every query looks at its sequence: heads that share their keys together, where that
    leaves something to do for every thread."""
    size, value_size, heads, kv_heads = (shape.head_dim, shape.value_dim, shape.heads,
                                         shape.kv_heads)
    together = heads // kv_heads if rows * kv_heads >= 4 * parts else 1
    item = 0
    for sequence in sequences:
        for row in range(sequence.first_row, sequence.first_row + sequence.rows):
            token = sequence.start + row - sequence.first_row
            for head in range(0, heads, together):
                item += 1
                if item % parts == part:
                    attend(sequence, tables, one, head // (heads // kv_heads), together, token,
                           size, value_size, memory,
                           one.source + row * one.source_stride + head * size,
                           places.scores + part * places.scores_of_thread,
                           places.scores_of_head,
                           one.target + row * one.target_stride + head * value_size, numbers,
                           NONE if one.weight == NONE else one.weight + head)


@kernel
def run(program, matrices, shapes, words, numbers, all_places, memory, memory_words, ids,
        wanted, sequences, tables, logits, logits_stride, families, meeting, parts, part):
    """Run instructions, as the thread `part` of `parts`.

    matrices: of `MATRIX`; shapes, all_places: (1,) of `SHAPE` and `PLACES`; words, numbers: the
    model's one array, as uint32 and as float32; memory, memory_words: the step's, likewise;
    ids: (T,) int64; wanted: (R,) int64, rows; sequences: (B,) of `SEQUENCE`, and their tables.
    One without keys has a memory that others write. logits: R rows, one every logits_stride.
    families: (1,) of `FAMILY`, or None, for which nothing is compiled that only some families
    need.
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
            start, stride = max(one.target, 0), (logits_stride if one.target == NONE
                                                 else one.target_stride)
            product(matrix, words, numbers, first, last,
                    shape.quantize != 0 and matrix.bits != 32, shape.alike, memory,
                    memory_words, one.source + one.size * copy * one.source_stride,
                    one.source_stride, places.codes + copy * (one.source_stride // 4),
                    places.scales + copy * matrix.groups, places.sums + copy * matrix.groups,
                    rows, places.scratch + part * SCRATCH, target, start, stride)
            finish_product(one, one.weight, numbers, memory, target, start, stride,
                           LANES * first, min(LANES * last, matrix.rows), rows)
        elif one.op == TURN:
            turn_heads(one, shape, numbers, memory, sequences, tables, rows, part, parts)
        elif one.op == ATTEND:
            attend_all(one, shape, places, numbers, memory, sequences, tables, rows, part,
                       parts)
        elif one.op > GELU:
            if families is not None:
                perform(one, matrices, shape, places, families[0], words, numbers, memory,
                        memory_words, sequences, tables, rows, part, parts)
        else:
            for row in range(first_row, last_row):
                target = one.target + (row + copy) * one.target_stride
                end = target + one.target_stride
                if one.op == EMBED:
                    embed(matrix, words, numbers, ids[row], memory, target, one.scale)
                    continue
                source = one.source
                source += (wanted[row] if one.wanted else row) * one.source_stride
                if one.op == NORM:
                    rms_norm(memory, source, one.size, numbers, one.weight, shape.eps, target,
                             end)
                elif one.op == SWIGLU:
                    swiglu(memory, source, one.size, target, end)
                elif one.op == READY:
                    target = source
                elif families is not None:
                    own_row(one, shape, numbers, memory, source, target, end)
                ready(matrix, shape, places, memory, memory_words, target, one.target_stride,
                      row + copy)
            if rows == 1 and one.op != EMBED:
                continue
        barrier(meeting, parts)
