"""A mixture of experts in a step: who visits whom, and products of some rows each.

Rows that go to one expert are brought together, so that its matrices meet all of them at once
and no other expert's are read. All of it is decided in the step: nothing reserves memory, and
no expert that nobody chose costs anything.

Shapes: E experts, k experts for each token. `gearworks.moe` says it in NumPy.
"""

import numpy as np

from gearworks.kernels.cpu.compiling import part_of_another
from gearworks.kernels.cpu.layout import LANES, NONE
from gearworks.kernels.cpu.products import SCRATCH, finish_product, product, ready
from gearworks.kernels.cpu.threads import share


@part_of_another
def weigh(family, memory, scores):
    """The router's scores of one token become weights, in place."""
    weights = memory[scores:scores + family.experts]
    if family.sigmoid:
        for expert in range(len(weights)):
            weights[expert] = np.float32(1) / (np.float32(1) + np.exp(-weights[expert]))
        return
    largest, total = weights[0], np.float32(0)
    for weight in weights:
        largest = max(largest, weight)
    for expert in range(len(weights)):
        weights[expert] = np.exp(weights[expert] - largest)
        total += weights[expert]
    for expert in range(len(weights)):
        weights[expert] /= total


@part_of_another
def keep_best_groups(family, memory, words):
    """As `moe.keep_best_groups`, of one token's ranking, in place."""
    size = family.experts // family.groups
    rest = np.float32(-np.inf) if family.sigmoid else np.float32(0)
    for group in range(family.groups):
        first, strength = family.ranking + group * size, np.float32(0)
        for expert in range(size):
            words[family.taken + expert] = 0
        for _ in range(family.best_of_group):
            best = next_best(memory, words, first, size, family.taken)
            words[family.taken + best] = 1
            strength += memory[first + best]
        memory[family.strength + group] = strength
    for group in range(family.groups):
        words[family.taken + group] = 0
    for _ in range(family.kept_groups):
        best = next_best(memory, words, family.strength, family.groups, family.taken)
        words[family.taken + best] = 1
    for group in range(family.groups):
        if not words[family.taken + group]:
            for expert in range(group * size, (group + 1) * size):
                memory[family.ranking + expert] = rest


@part_of_another
def next_best(memory, words, numbers, count, taken):
    """Which of `count` numbers is the largest that is not taken; of equal ones the first."""
    best = -1
    for number in range(count):
        if not words[taken + number] and (
                best < 0 or memory[numbers + number] > memory[numbers + best]):
            best = number
    return best


@part_of_another
def choose(family, numbers, bias, memory, words, scores, row):
    """One token's experts, in their own order, and their gates.
    scores: its weights; bias: of the ranking, where it begins in `numbers`, or NONE."""
    for expert in range(family.experts):
        ranking = memory[scores + expert]
        if bias != NONE:
            ranking += numbers[bias + expert]
        memory[family.ranking + expert] = ranking
    if family.groups > 1:
        keep_best_groups(family, memory, words)
    for expert in range(family.experts):
        words[family.taken + expert] = 0
    for _ in range(family.per_token):
        best = next_best(memory, words, family.ranking, family.experts, family.taken)
        words[family.taken + best] = 1
    at, total = row * family.per_token, np.float32(0)
    for expert in range(family.experts):
        if words[family.taken + expert]:
            words[family.chosen + at] = expert
            memory[family.gates + at] = memory[scores + expert]
            total += memory[scores + expert]
            at += 1
    factor = family.scale
    if family.normalize:
        factor /= total + np.float32(1e-20)                  # sigmoids may all be 0
    for place in range(row * family.per_token, at):
        memory[family.gates + place] *= factor


@part_of_another
def route(one, family, numbers, memory, words, rows):
    """Choose every token's experts, and put all visits into the experts' order.

    one: its source are the router's scores, its `second` a bias of the choice. It is quickly
    done, so one thread does it for all.
    """
    for row in range(rows):
        scores = one.source + row * one.source_stride
        weigh(family, memory, scores)
        choose(family, numbers, one.second, memory, words, scores, row)
    visits = rows * family.per_token
    for expert in range(family.experts):
        words[family.ends + expert] = 0
    for place in range(visits):
        words[family.ends + np.int64(words[family.chosen + place])] += 1
    total = 0
    for expert in range(family.experts):
        count = np.int64(words[family.ends + expert])
        words[family.ends + expert] = total                  # where its first visit stands
        total += count
    for place in range(visits):
        expert = np.int64(words[family.chosen + place])
        visit = np.int64(words[family.ends + expert])
        words[family.ends + expert] = visit + 1
        words[family.visit + place] = visit
        words[family.row + visit] = place // family.per_token


@part_of_another
def gather(one, matrix, shape, places, family, memory, words, rows, part, parts):
    """Bring every visit its token's row, ready for the experts' products."""
    first, last = share(rows * family.per_token, part, parts)
    for visit in range(first, last):
        source = one.source + np.int64(words[family.row + visit]) * one.source_stride
        target = one.target + visit * one.target_stride
        row, copy = memory[source:source + one.target_stride], (
            memory[target:target + one.target_stride])
        for place in range(len(copy)):
            copy[place] = row[place]
        ready(matrix, shape, places, memory, words, target, one.target_stride, visit)


@part_of_another
def multiply_experts(one, matrices, shape, places, family, words, numbers, memory, memory_words,
                     part, parts):
    """A product for each expert that somebody chose, and its bias: every thread takes a share
    of each one's outputs."""
    begin = 0
    for expert in range(family.experts):
        end = np.int64(memory_words[family.ends + expert])
        if end > begin:
            matrix = matrices[one.matrix + expert]
            first, last = share(matrix.blocks, part, parts)
            target = one.target + begin * one.target_stride
            product(matrix, words, numbers, first, last,
                    shape.quantize != 0 and matrix.bits != 32, shape.alike, memory,
                    memory_words, one.source + begin * one.source_stride, one.source_stride,
                    places.codes + begin * (one.source_stride // 4),
                    places.scales + begin * matrix.groups, places.sums + begin * matrix.groups,
                    end - begin, places.scratch + part * SCRATCH, memory, target,
                    one.target_stride)
            bias = NONE if one.weight == NONE else one.weight + expert * matrix.rows
            finish_product(one, bias, numbers, memory, memory, target, one.target_stride,
                           LANES * first, min(LANES * last, matrix.rows), end - begin)
        begin = end


@part_of_another
def combine(one, family, memory, words, rows, part, parts):
    """Add to each token what its experts say, each times its gate."""
    first, last = share(rows, part, parts)
    for row in range(first, last):
        start = one.target + row * one.target_stride
        stream = memory[start:start + one.size]
        for place in range(row * family.per_token, (row + 1) * family.per_token):
            gate = memory[family.gates + place]
            at = one.source + np.int64(words[family.visit + place]) * one.source_stride
            said = memory[at:at + one.size]
            for number in range(one.size):
                stream[number] += gate * said[number]
