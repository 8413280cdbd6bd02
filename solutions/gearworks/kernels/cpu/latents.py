"""Multi-head latent attention in a step: what is cached of a token, and what meets it.

`families.deepseek` says it in NumPy. The matrix that makes keys and values of latents lies in
the model's array as float32, row after row: H times n rows of a key, then the rows of a value,
each of r numbers.

Shapes: H heads, r latent size, n and t the still and the turning part of a head's query.
"""

import numpy as np

from gearworks.kernels.cpu.attention import numbers_at, place_of
from gearworks.kernels.cpu.compiling import part_of_another
from gearworks.kernels.cpu.operators import rms_norm, turn
from gearworks.kernels.cpu.threads import share


@part_of_another
def turn_part(family, memory, at, size, angles):
    """Rotate the turning part of a query or a key. Where neighbours are a pair, they stay where
    they are: queries and keys have one order, whichever it is."""
    if not family.neighbours:
        turn(memory, at, size, angles, angles + size)
        return
    half = size // 2
    for pair in range(half):
        first, second = memory[at + 2 * pair], memory[at + 2 * pair + 1]
        memory[at + 2 * pair] = (first * memory[angles + pair]
                                 - second * memory[angles + size + pair])
        memory[at + 2 * pair + 1] = (second * memory[angles + half + pair]
                                     + first * memory[angles + size + half + pair])


@part_of_another
def latent_keys(one, shape, family, numbers, memory, sequences, tables, rows, part, parts):
    """Norm each token's latent, turn what stands behind it, and store both as its one key.

    one: its source has both, its target the angles; `scale` is the norm's eps. sequences: none,
    where another will store them.
    """
    first_row, last_row = share(rows, part, parts)
    size, turning = shape.head_dim, shape.head_dim - family.rank
    for sequence in sequences:
        end = sequence.first_row + sequence.rows
        for row in range(max(first_row, sequence.first_row), min(last_row, end)):
            at = one.source + row * one.source_stride
            rms_norm(memory, at, family.rank, numbers, one.weight, one.scale, at, at)
            turn_part(family, memory, at + family.rank, turning,
                      one.target + row * one.target_stride)
            if sequence.keys:
                token = sequence.start + row - sequence.first_row
                to = one.layer * sequence.of_layer + place_of(sequence, tables, token, size)
                keys, key = numbers_at(sequence.keys, to + size)[to:], memory[at:at + size]
                for place in range(size):
                    keys[place] = key[place]


@part_of_another
def absorb(one, shape, family, numbers, memory, rows, part, parts):
    """Carry every head's query to the cached vectors.

    one: its source are queries, (H, n + t), its target (H, r + t); `weight` is where the matrix
    of keys and values begins; `add_to` where the angles do, a row every `size`; `scale`
    multiplies the result.
    """
    rank, still, turning = family.rank, family.still, shape.head_dim - family.rank
    first_head, last_head = share(shape.heads, part, parts)
    for head in range(first_head, last_head):
        weight = one.weight + head * (still + family.value) * rank
        for row in range(rows):
            source = one.source + row * one.source_stride + head * (still + turning)
            target = one.target + row * one.target_stride + head * shape.head_dim
            carried = memory[target:target + rank]
            for place in range(rank):
                carried[place] = 0
            for number in range(still):
                query, key = memory[source + number], numbers[weight + number * rank:
                                                              weight + (number + 1) * rank]
                for place in range(rank):
                    carried[place] += query * key[place]
            for number in range(turning):
                memory[target + rank + number] = memory[source + still + number]
            turn_part(family, memory, target + rank, turning, one.add_to + row * one.size)
            whole = memory[target:target + shape.head_dim]
            for place in range(shape.head_dim):
                whole[place] *= one.scale


@part_of_another
def unfold(one, shape, family, numbers, memory, rows, part, parts):
    """Make of every head's mixture of latents the mixture of its values, (H, value).

    one: its source are the mixtures, (H, r); `weight` is where the matrix of keys and values
    begins.
    """
    rank = family.rank
    first_head, last_head = share(shape.heads, part, parts)
    for head in range(first_head, last_head):
        weight = one.weight + (head * (family.still + family.value) + family.still) * rank
        for row in range(rows):
            source = one.source + row * one.source_stride + head * rank
            target = one.target + row * one.target_stride + head * family.value
            mixed = memory[source:source + rank]
            for number in range(family.value):
                value = numbers[weight + number * rank:weight + (number + 1) * rank]
                total = np.float32(0)
                for place in range(rank):
                    total += mixed[place] * value[place]
                memory[target + number] = total
