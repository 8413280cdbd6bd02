"""The program of a model's steps, and the plan of their memory.

What a layer computes is needed until its end at most, and the next layer's same array can take
the same place. So a step of up to so many rows has a fixed plan: where each array begins. The
program, which names these places, is written when the plan is made. No step reserves memory
again unless it has more rows or a longer sequence than any before.
"""

import numpy as np

from gearworks.config import ModelConfig
from gearworks.kernels.cpu.layout import LANES, NONE, aligned
from gearworks.kernels.cpu.products import SCRATCH
from gearworks.kernels.cpu.step import (
    ATTEND, EMBED, INSTRUCTION, MULTIPLY, NORM, PLACES, READY, SWIGLU, TURN)
from gearworks.kernels.cpu.store import WeightStore

LINE = 16                   # float32 numbers of a cache line: every array begins with one


def up_to(size: int, whole: int) -> int:
    """The next multiple of `whole`.

    >>> up_to(33, 32)
    64
    """
    return -(-size // whole) * whole


class Arena:
    """The memory of a model's steps, and the program that runs in it.

    memory: float32; words: the same bytes as uint32; places: (1,) of `PLACES`; starts, strides:
    of each array by name; program: (n,) of `INSTRUCTION`; reserved: how often memory was
    reserved.
    """

    def __init__(self, config: ModelConfig, weights: WeightStore, threads: int):
        self.config = config
        self.weights = weights
        self.threads = threads
        self.rows = self.context = self.reserved = 0
        self.places = np.zeros(1, PLACES)
        self.starts: dict[str, int] = {}
        self.strides: dict[str, int] = {}

    def make_room(self, rows: int, context: int) -> None:
        """Have memory for steps of `rows` rows over `context` tokens.

        What is reserved is at least twice what was there, so that a growing text does not
        reserve at each step.
        """
        if rows <= self.rows and context <= self.context and self.reserved:
            return
        if rows > self.rows:
            self.rows = max(rows, 2 * self.rows, self.threads)
        if context > self.context:
            self.context = max(context, 2 * self.context)
        self.words = aligned(self._lay_out())
        self.memory = self.words.view(np.float32)
        self.program = write_program(self.config, self.weights, self.starts, self.strides)
        self.reserved += 1

    def _lay_out(self) -> int:
        """Make the plan; returns how many numbers it takes."""
        config, rows = self.config, self.rows
        heads, kv_heads, d = (config.num_attention_heads, config.num_key_value_heads,
                              config.head_dim)
        D, F = config.hidden_size, config.intermediate_size
        # Inputs of products are whole groups, outputs whole blocks; 32 numbers are both
        widths = {"x": D, "output": D, "normed": D, "qkv": (heads + 2 * kv_heads) * d,
                  "attended": heads * d, "gate_up": 2 * F, "hidden": F}
        self.strides = {name: up_to(width, 2 * LANES) for name, width in widths.items()}
        of_head = up_to(self.context, LINE) + LINE         # scores, and behind them their sum
        widest = max(self.strides[name] for name in ("normed", "attended", "hidden"))
        sizes = {name: rows * stride for name, stride in self.strides.items()}
        sizes |= {"codes": rows * widest // 4, "scales": rows * widest // 16,
                  "sums": rows * widest // 16, "cos": rows * d, "sin": rows * d,
                  "scores": self.threads * heads // kv_heads * of_head,
                  "scratch": self.threads * SCRATCH}
        # Gates are made when queries, keys and values have been used
        sizes["qkv"] = max(sizes["qkv"], sizes.pop("gate_up"))
        used = 0
        for name, size in sizes.items():
            self.starts[name] = used
            used += up_to(size, LINE)
        self.starts["gate_up"] = self.starts["qkv"]
        for name in PLACES.names:
            if name in self.starts:
                self.places[name] = self.starts[name]
        self.places["scores_of_head"] = of_head
        self.places["scores_of_thread"] = heads // kv_heads * of_head
        return used


def write_program(config: ModelConfig, weights: WeightStore, starts: dict[str, int],
                  strides: dict[str, int]) -> np.ndarray:
    """The instructions of a step, (n,) of `INSTRUCTION`.

    starts, strides: of the arrays in the step's memory, by name.
    """
    program: list[dict[str, int]] = []
    D, F = config.hidden_size, config.intermediate_size

    def add(op: int, matrix: int = 0, source: str = "x", target: str | None = "x",
            layer: int = 0, size: int = 0, weight: int = NONE, second: int = NONE,
            add_to: int = NONE, window: int = 0, wanted: bool = False) -> None:
        program.append({
            "op": op, "layer": layer, "matrix": matrix, "source": starts[source],
            "source_stride": strides[source],
            "target": NONE if target is None else starts[target],
            "target_stride": 0 if target is None else strides[target], "size": size,
            "weight": weight, "second": second, "add_to": add_to, "window": window,
            "wanted": wanted})

    whole = weights.model
    add(EMBED, whole["embed_tokens"])
    for number, layer in enumerate(weights.layers):
        add(NORM, layer["qkv_proj"], "x", "normed", size=D, weight=layer["input_layernorm"])
        add(MULTIPLY, layer["qkv_proj"], "normed", "qkv", size=1,
            weight=layer.get("qkv_bias", NONE))
        add(TURN, 0, "qkv", "qkv", number, size=config.turns(number),
            weight=layer.get("q_norm", NONE), second=layer.get("k_norm", NONE))
        add(ATTEND, 0, "qkv", "attended", number, window=config.window(number) or 0)
        add(READY, layer["o_proj"], "attended", "attended")
        add(MULTIPLY, layer["o_proj"], "attended", "output", add_to=starts["x"])
        add(NORM, layer["gate_up_proj"], "x", "normed", size=D,
            weight=layer["post_attention_layernorm"])
        add(MULTIPLY, layer["gate_up_proj"], "normed", "gate_up", size=1)
        add(SWIGLU, layer["down_proj"], "gate_up", "hidden", size=F)
        add(MULTIPLY, layer["down_proj"], "hidden", "output", size=1, add_to=starts["x"])
    add(NORM, whole["lm_head"], "x", "normed", size=D, weight=whole["norm"], wanted=True)
    add(MULTIPLY, whole["lm_head"], "normed", None, size=1, wanted=True)
    return np.array([tuple(one[name] for name in INSTRUCTION.names) for one in program],
                    INSTRUCTION)
