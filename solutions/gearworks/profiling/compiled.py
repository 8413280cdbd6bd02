"""One step of the compiled engine, instruction by instruction.

Its step is one call of machine code, inside of which nothing can be watched from Python. But it
runs a program, and a program can be run one instruction at a time. What it costs to start the
threads for each is measured too, by running none, and taken off.
"""

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np

from gearworks.kernels.cpu.instructions import (
    ABSORB, ADD_NORM, ATTEND, GATE_EXPERTS, GEGLU, GELU, LATENT_KEYS, LAYER_NORM, MULTIPLY,
    MULTIPLY_EXPERTS, NORM, NORM_PART, SWIGLU, TURN, UNFOLD)
from gearworks.kernels.cpu.layout import NONE
from gearworks.profiling.operators import ATTENTION, BETWEEN, NORMS, Operator, attended

# READY only brings rows into the form in which a product takes them
NAMES = {**dict.fromkeys((NORM, LAYER_NORM, ADD_NORM, NORM_PART), NORMS), TURN: "rope",
         **dict.fromkeys((SWIGLU, GEGLU, GELU, GATE_EXPERTS), "activation"),
         LATENT_KEYS: "rope", ABSORB: "kv_b_proj", UNFOLD: "kv_b_proj", ATTEND: ATTENTION}
STARTS = 50                                 # of no instruction, to know what a start costs


def step_operators(model: Any, inputs: Sequence[np.ndarray], cache: Any, starts: Sequence[int],
                   counts: Sequence[int],
                   clock: Callable[[], float] = time.perf_counter) -> list[Operator]:
    """Run a step; returns its operators, in the order in which each came first, and as the last
    one what lies between them.

    model: a `kernels.cpu.model.CompiledModel`; inputs: ids, positions, and the rows whose
    logits are wanted; starts, counts: (B,) the tokens of each sequence before the step, and
    those of the step.
    """
    sums: dict[str, list] = {}
    own = 0.0
    fields = {number: name for owner in (*model.weights.layers, model.weights.model)
              for name, number in owner.items()
              if name.endswith(("_proj", "lm_head", "router")) and name != "kv_b_proj"}
    run = model._run

    def one_by_one(program: np.ndarray, *arguments: Any) -> None:
        nonlocal own
        begun = clock()
        empty = []
        for _ in range(STARTS):
            started = clock()
            run(program[:0], *arguments)
            empty.append(clock() - started)
        start = median(empty)
        own += clock() - begun
        for place, instruction in enumerate(program):
            started = clock()
            run(program[place:place + 1], *arguments)
            ended = clock()
            name, moved, flops = _described(model, fields, instruction, inputs, starts, counts)
            seconds = max(ended - started - start, 0.0)
            entry = sums.setdefault(name, [0, 0.0, 0, 0])
            for index, amount in enumerate((1, seconds, moved, flops)):
                entry[index] += amount
            own += clock() - started - seconds

    ids, positions, wanted = inputs
    model._run = one_by_one
    try:
        begun = clock()
        model.forward(ids, positions, cache, wanted)
        seconds = clock() - begun - own
    finally:
        del model._run
    operators = [Operator(name, *entry) for name, entry in sums.items()]
    between = max(seconds - sum(each.seconds for each in operators), 0.0)
    return [*operators, Operator(BETWEEN, 0, between)]


def _described(model: Any, fields: dict[int, str], instruction: np.void,
               inputs: Sequence[np.ndarray], starts: Sequence[int],
               counts: Sequence[int]) -> tuple[str, int, int]:
    """An instruction's name, the bytes that it must move, and its FLOPs."""
    config, op = model.config, instruction["op"]
    if op == MULTIPLY:
        number = int(instruction["matrix"])
        matrix = model.weights.matrices[number]
        rows = len(inputs[2] if instruction["wanted"] else inputs[0])
        bias = 0 if instruction["weight"] == NONE else 4 * int(matrix["rows"])
        return (fields[number], matrix_bytes(matrix) + bias,
                2 * rows * int(matrix["rows"]) * int(matrix["columns"]))
    if op == MULTIPLY_EXPERTS:                  # of those that this step's tokens have chosen
        number, rows = int(instruction["matrix"]), len(inputs[0])
        matrix, family = model.weights.matrices[number], model.arena.family[0]
        visits = rows * int(family["per_token"])
        start = int(family["chosen"])
        seen = len(np.unique(model.arena.words[start:start + visits]))
        return (fields[number], seen * matrix_bytes(matrix),
                2 * visits * int(matrix["rows"]) * int(matrix["columns"]))
    if op == ATTEND:
        pairs, tokens = attended(starts, counts, config.window(int(instruction["layer"])))
        H, K, d, e = (int(model.arena.shape[name][0])
                      for name in ("heads", "kv_heads", "head_dim", "value_dim"))
        kept = d if config.latent is not None else d + e
        return ATTENTION, 4 * tokens * K * kept, 2 * H * (d + e) * pairs
    if op in (ABSORB, UNFOLD):
        latent, H = config.latent, config.num_attention_heads
        numbers = H * latent.kv_lora_rank * (latent.qk_nope_head_dim if op == ABSORB
                                             else latent.v_head_dim)
        return NAMES[op], 4 * numbers, 2 * len(inputs[0]) * numbers
    if NAMES.get(int(op)) == NORMS:
        biases = 2 if op == LAYER_NORM else 1
        return NORMS, 4 * biases * int(instruction["size"]), 0
    if op == TURN:                          # with the norms of heads, where there are any
        norms = sum(4 * config.head_dim for name in ("weight", "second")
                    if instruction[name] != NONE)
        return NAMES[op], norms, 0
    return NAMES.get(int(op), "other"), 0, 0


def matrix_bytes(matrix: np.void) -> int:
    """What a matrix takes in the kernels' layout: codes, scales, minimums.

    matrix: of `kernels.cpu.layout.MATRIX`.
    """
    groups = int(matrix["blocks"]) * 16 * int(matrix["groups"])
    codes = groups * int(matrix["group"]) * int(matrix["bits"]) // 8
    there = sum(int(matrix[part] != NONE) for part in ("scales", "minimums"))
    return codes + 4 * groups * there
