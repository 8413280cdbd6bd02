"""One step of the model, compiled: from token ids to logits, for any mix of sequences.

Every thread runs all of this. A product's outputs are shared out by blocks, attention by rows
and heads, what stands between by rows; a barrier follows wherever one thread needs another's
result. Nothing here reserves memory: a step's activations have their places in one array, the
same for all layers (`Plan`).

Shapes: T rows of the step, R rows whose logits are wanted; D, H, K, d, F, V as in `model`.
"""

import numpy as np

from gearworks.kernels.cpu.attention import attend, remember
from gearworks.kernels.cpu.compiling import kernel, part_of_another
from gearworks.kernels.cpu.layout import LANES, MATRIX, NONE
from gearworks.kernels.cpu.operators import rms_norm, swiglu, turn
from gearworks.kernels.cpu.products import SCRATCH, product, quantize_rows, sum_groups
from gearworks.kernels.cpu.threads import barrier, share

# Norms, biases: where they begin in the model's array, or NONE. window: 0 for all tokens.
LAYER = np.dtype([("input_layernorm", np.int64), ("post_attention_layernorm", np.int64),
                  ("qkv_bias", np.int64), ("q_norm", np.int64), ("k_norm", np.int64),
                  ("window", np.int64), ("qkv", MATRIX), ("o", MATRIX), ("gate_up", MATRIX),
                  ("down", MATRIX)])

# quantize: whether activations become bytes before products
SHAPE = np.dtype([("layers", np.int64), ("hidden", np.int64), ("heads", np.int64),
                  ("kv_heads", np.int64), ("head_dim", np.int64), ("feed_forward", np.int64),
                  ("norm", np.int64), ("quantize", np.int64), ("eps", np.float32),
                  ("unused", np.float32), ("embed", MATRIX), ("head", MATRIX)])

# Where each of a step's arrays begins in its memory. A name that ends in `_stride` says how far
# a row is from the next. `codes` counts in words, all else in float32, both of the same memory.
PLAN = np.dtype([(name, np.int64) for name in (
    "x", "x_stride", "normed", "normed_stride", "qkv", "qkv_stride", "attended",
    "attended_stride", "output", "gate_up", "gate_up_stride", "hidden", "hidden_stride", "codes",
    "scales", "sums", "cos", "sin", "scores", "scores_stride", "scratch")])


@part_of_another
def prepare(matrix, shape, plan, memory, memory_words, source, stride, first, last):
    """Make rows ready for a product: in bytes, or with the sums of their groups."""
    if shape.quantize and matrix.bits != 32:
        quantize_rows(matrix, memory, memory_words, source, stride, first, last, plan.codes,
                      stride // 4, plan.scales, plan.sums)
    elif matrix.bits != 32:
        sum_groups(matrix, memory, source, stride, first, last, plan.sums)


@part_of_another
def multiply(matrix, shape, words, numbers, plan, memory, memory_words, source, stride, rows,
             part, parts, out, out_at, out_stride):
    """This thread's share of a product; returns its first and last output."""
    first, last = share(matrix.blocks, part, parts)
    product(matrix, words, numbers, first, last, shape.quantize and matrix.bits != 32, memory,
            memory_words, source, stride, plan.codes, plan.scales, plan.sums, rows,
            plan.scratch + part * SCRATCH, out, out_at, out_stride)
    return LANES * first, min(LANES * last, matrix.rows)


@kernel
def first_part(shapes, words, numbers, plans, memory, memory_words, ids, meeting, part, parts):
    """The rows of the embedding that the ids name."""
    matrix, plan = shapes[0].embed, plans[0]
    per_word, size = 32 // matrix.bits, matrix.group * matrix.bits // 32
    first, last = share(len(ids), part, parts)
    for row in range(first, last):
        block, lane = ids[row] // LANES, ids[row] % LANES
        for place in range(matrix.columns):
            number, inside = place // matrix.group, place % matrix.group
            of_group = block * matrix.groups + number
            at = matrix.words + (of_group * size + inside // per_word) * LANES + lane
            if matrix.bits == 32:
                value = numbers[at]
            else:
                word, code = words[at], inside % per_word
                scale = numbers[matrix.scales + of_group * LANES + lane]
                if matrix.bits == 4:
                    value = np.float32(np.int32(word >> (code % 4 * 8 + code // 4 * 4) & 15))
                else:
                    value = np.float32(np.int32(np.int8(word >> code * 8 & 255)))
                value *= scale
                if matrix.minimums != NONE:
                    value += numbers[matrix.minimums + of_group * LANES + lane]
            memory[plan.x + row * plan.x_stride + place] = value
    barrier(meeting, parts)


@kernel
def before(layers, number, shapes, words, numbers, plans, memory, memory_words, rows, meeting,
           part, parts):
    """Of one layer, what comes before attention: norm, the products q, k and v, rotations."""
    layer, shape, plan = layers[number], shapes[0], plans[0]
    first_row, last_row = share(rows, part, parts)
    rms_norm(memory, plan.x, plan.x_stride, first_row, last_row, shape.hidden, numbers,
             layer.input_layernorm, shape.eps, plan.normed, plan.normed_stride)
    prepare(layer.qkv, shape, plan, memory, memory_words, plan.normed, plan.normed_stride,
            first_row, last_row)
    barrier(meeting, parts)
    first, last = multiply(layer.qkv, shape, words, numbers, plan, memory, memory_words,
                           plan.normed, plan.normed_stride, rows, part, parts, memory, plan.qkv,
                           plan.qkv_stride)
    if layer.qkv_bias != NONE:
        for row in range(rows):
            for place in range(first, last):
                memory[plan.qkv + row * plan.qkv_stride + place] += (
                    numbers[layer.qkv_bias + place])
    barrier(meeting, parts)
    heads, size = shape.heads + shape.kv_heads, shape.head_dim
    for item in range(part, rows * heads, parts):
        row, head = item // heads, item % heads
        at = plan.qkv + row * plan.qkv_stride + head * size
        norm = layer.q_norm if head < shape.heads else layer.k_norm
        if norm != NONE:
            rms_norm(memory, at, size, 0, 1, size, numbers, norm, shape.eps, at, size)
        turn(memory, at, size, plan.cos + row * size, plan.sin + row * size)
    barrier(meeting, parts)


@kernel
def attention(layer, number, shape, plan, memory, sequences, tables, rows, meeting, part, parts):
    """Store the step's keys and values, then let every query look at its sequence."""
    size, heads, kv_heads = shape.head_dim, shape.heads, shape.kv_heads
    item = 0
    for sequence in sequences:
        for row in range(sequence.first_row, sequence.first_row + sequence.rows):
            token = sequence.start + row - sequence.first_row
            for head in range(kv_heads):
                if item % parts == part:
                    key = plan.qkv + row * plan.qkv_stride + (heads + head) * size
                    remember(sequence, tables, number, head, token, size, memory, key,
                             key + kv_heads * size)
                item += 1
    barrier(meeting, parts)
    item = 0
    for sequence in sequences:
        for row in range(sequence.first_row, sequence.first_row + sequence.rows):
            token = sequence.start + row - sequence.first_row
            for head in range(heads):
                if item % parts == part:
                    attend(sequence, tables, number, head // (heads // kv_heads), token,
                           layer.window, size, memory,
                           plan.qkv + row * plan.qkv_stride + head * size,
                           plan.scores + part * plan.scores_stride,
                           plan.attended + row * plan.attended_stride + head * size)
                item += 1
    barrier(meeting, parts)


@kernel
def after(layers, number, shapes, words, numbers, plans, memory, memory_words, rows, meeting,
          part, parts):
    """Of one layer, what comes after it: the output product, norm, feed-forward network."""
    layer, shape, plan = layers[number], shapes[0], plans[0]
    first_row, last_row = share(rows, part, parts)
    prepare(layer.o, shape, plan, memory, memory_words, plan.attended, plan.attended_stride,
            first_row, last_row)
    barrier(meeting, parts)
    first, last = multiply(layer.o, shape, words, numbers, plan, memory, memory_words,
                           plan.attended, plan.attended_stride, rows, part, parts, memory,
                           plan.output, plan.x_stride)
    add_output(plan, memory, rows, first, last)
    barrier(meeting, parts)
    rms_norm(memory, plan.x, plan.x_stride, first_row, last_row, shape.hidden, numbers,
             layer.post_attention_layernorm, shape.eps, plan.normed, plan.normed_stride)
    prepare(layer.gate_up, shape, plan, memory, memory_words, plan.normed, plan.normed_stride,
            first_row, last_row)
    barrier(meeting, parts)
    multiply(layer.gate_up, shape, words, numbers, plan, memory, memory_words, plan.normed,
             plan.normed_stride, rows, part, parts, memory, plan.gate_up, plan.gate_up_stride)
    barrier(meeting, parts)
    swiglu(memory, plan.gate_up, plan.gate_up_stride, first_row, last_row, shape.feed_forward,
           plan.hidden, plan.hidden_stride)
    prepare(layer.down, shape, plan, memory, memory_words, plan.hidden, plan.hidden_stride,
            first_row, last_row)
    barrier(meeting, parts)
    first, last = multiply(layer.down, shape, words, numbers, plan, memory, memory_words,
                           plan.hidden, plan.hidden_stride, rows, part, parts, memory,
                           plan.output, plan.x_stride)
    add_output(plan, memory, rows, first, last)
    barrier(meeting, parts)


@part_of_another
def add_output(plan, memory, rows, first, last):
    """Add this thread's outputs to the residual stream."""
    for row in range(rows):
        x = memory[plan.x + row * plan.x_stride:plan.x + (row + 1) * plan.x_stride]
        output = memory[plan.output + row * plan.x_stride:
                        plan.output + (row + 1) * plan.x_stride]
        for place in range(first, last):
            x[place] += output[place]


@kernel
def last_part(shapes, words, numbers, plans, memory, memory_words, wanted, logits,
              logits_stride, meeting, part, parts):
    """The last norm and the logits of the rows that are wanted."""
    shape, plan = shapes[0], plans[0]
    first_row, last_row = share(len(wanted), part, parts)
    for row in range(first_row, last_row):
        rms_norm(memory, plan.x + wanted[row] * plan.x_stride, 0, 0, 1, shape.hidden, numbers,
                 shape.norm, shape.eps, plan.normed + row * plan.normed_stride,
                 plan.normed_stride)
    prepare(shape.head, shape, plan, memory, memory_words, plan.normed, plan.normed_stride,
            first_row, last_row)
    barrier(meeting, parts)
    multiply(shape.head, shape, words, numbers, plan, memory, memory_words, plan.normed,
             plan.normed_stride, len(wanted), part, parts, logits, 0, logits_stride)
    barrier(meeting, parts)


@kernel
def step(layers, shapes, words, numbers, plans, memory, memory_words, ids, wanted, sequences,
         tables, logits, logits_stride, meeting, part, parts):
    """All of it, for sequences whose memory the compiled code knows."""
    first_part(shapes, words, numbers, plans, memory, memory_words, ids, meeting, part, parts)
    shape, plan, rows = shapes[0], plans[0], len(ids)
    for number in range(shape.layers):
        before(layers, number, shapes, words, numbers, plans, memory, memory_words, rows,
               meeting, part, parts)
        attention(layers[number], number, shape, plan, memory, sequences, tables, rows, meeting,
                  part, parts)
        after(layers, number, shapes, words, numbers, plans, memory, memory_words, rows, meeting,
              part, parts)
    last_part(shapes, words, numbers, plans, memory, memory_words, wanted, logits, logits_stride,
              meeting, part, parts)
