"""The instructions that only some families' programs have.

The step calls these where it finds one that it does not have itself. Of a single row not every
thread makes a copy here: one thread has it, and the others wait.
"""

from gearworks.kernels.cpu.compiling import part_of_another
from gearworks.kernels.cpu.instructions import (
    ABSORB, ADD_NORM, COMBINE, GATE_EXPERTS, GATHER, GEGLU, LATENT_KEYS, LAYER_NORM,
    MULTIPLY_EXPERTS, NORM_PART, ROUTE, UNFOLD)
from gearworks.kernels.cpu.latents import absorb, latent_keys, unfold
from gearworks.kernels.cpu.mixtures import combine, gather, multiply_experts, route
from gearworks.kernels.cpu.operators import (
    geglu, gelu, layer_norm, limited_swiglu, rms_norm, swiglu)
from gearworks.kernels.cpu.products import ready
from gearworks.kernels.cpu.threads import share


@part_of_another
def own_row(one, shape, numbers, memory, source, target, end):
    """One row from `source` on, normed or activated, from `target` on; zeros up to `end`."""
    if one.op == LAYER_NORM:
        layer_norm(memory, source, one.size, numbers, one.weight, one.second, shape.eps, target,
                   end)
    elif one.op == GEGLU:
        geglu(memory, source, one.size, target, end)
    else:
        gelu(memory, source, one.size, target, end)


@part_of_another
def perform(one, matrices, shape, places, family, words, numbers, memory, memory_words,
            sequences, tables, rows, part, parts):
    """Run one instruction, as the thread `part` of `parts`; all but `family` as in
    `step.run`."""
    if one.op == ROUTE:
        if part == 0:
            route(one, family, numbers, memory, memory_words, rows)
    elif one.op == GATHER:
        gather(one, matrices[one.matrix], shape, places, family, memory, memory_words, rows,
               part, parts)
    elif one.op == MULTIPLY_EXPERTS:
        multiply_experts(one, matrices, shape, places, family, words, numbers, memory,
                         memory_words, part, parts)
    elif one.op == GATE_EXPERTS:
        gate_experts(one, matrices[one.matrix], shape, places, family, memory, memory_words,
                     rows, part, parts)
    elif one.op == COMBINE:
        combine(one, family, memory, memory_words, rows, part, parts)
    elif one.op == LATENT_KEYS:
        latent_keys(one, shape, family, numbers, memory, sequences, tables, rows, part, parts)
    elif one.op == ABSORB:
        absorb(one, shape, family, numbers, memory, rows, part, parts)
    elif one.op == UNFOLD:
        unfold(one, shape, family, numbers, memory, rows, part, parts)
    else:
        first, last = share(rows, part, parts)
        for row in range(first, last):
            change_row(one, shape, numbers, memory, one.source + row * one.source_stride,
                       one.target + row * one.target_stride)


@part_of_another
def change_row(one, shape, numbers, memory, source, target):
    """A norm of a part of a row, in place, whose eps is the instruction's `scale`; or what is
    added to a row of the stream: another row as it is, or its norm."""
    if one.op == NORM_PART:
        rms_norm(memory, source, one.size, numbers, one.weight, one.scale, source, source)
        return
    if one.op == ADD_NORM:
        rms_norm(memory, source, one.size, numbers, one.weight, shape.eps, source, source)
    added, stream = memory[source:source + one.size], memory[target:target + one.size]
    for place in range(one.size):
        stream[place] += added[place]


@part_of_another
def gate_experts(one, matrix, shape, places, family, memory, words, rows, part, parts):
    """The activation of every visit. Where `cap` is given, gpt-oss's: it is the limit, and
    `scale` the slope."""
    first, last = share(rows * family.per_token, part, parts)
    for visit in range(first, last):
        source = one.source + visit * one.source_stride
        target = one.target + visit * one.target_stride
        end = target + one.target_stride
        if one.cap > 0:
            limited_swiglu(memory, source, one.size, one.scale, one.cap, target, end)
        else:
            swiglu(memory, source, one.size, target, end)
        ready(matrix, shape, places, memory, words, target, one.target_stride, visit)
