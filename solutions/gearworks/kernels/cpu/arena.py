"""One piece of memory for all activations of a step.

What a layer computes is needed until its end at most, and the next layer's same array can take
the same place. So a step of up to so many rows has a fixed plan: where each array begins. It is
made once, and no step reserves memory again unless it has more rows or a longer sequence than
any before.
"""

import numpy as np

from gearworks.config import ModelConfig
from gearworks.kernels.cpu.layout import LANES, aligned
from gearworks.kernels.cpu.products import SCRATCH
from gearworks.kernels.cpu.step import PLAN

LINE = 16                   # float32 numbers of a cache line: every array begins with one


def up_to(size: int, whole: int) -> int:
    """The next multiple of `whole`.

    >>> up_to(33, 32)
    64
    """
    return -(-size // whole) * whole


class Arena:
    """The memory of a model's steps.

    memory: float32; words: the same bytes as uint32; plan: (1,) of `PLAN`; reserved: how often
    memory was reserved.
    """

    def __init__(self, config: ModelConfig, threads: int):
        self.config = config
        self.threads = threads
        self.rows = self.context = self.reserved = 0
        self.memory = np.empty(0, np.float32)
        self.words = self.memory.view(np.uint32)
        self.plan = np.zeros(1, PLAN)

    def make_room(self, rows: int, context: int) -> None:
        """Reserve memory for steps of `rows` rows over `context` tokens, if there is not enough.

        What is reserved is at least twice what was there, so that a growing text does not
        reserve at each step.
        """
        if rows <= self.rows and context <= self.context:
            return
        if rows > self.rows:
            self.rows = max(rows, 2 * self.rows)
        if context > self.context:
            self.context = max(context, 2 * self.context)
        self.words = aligned(self._lay_out())
        self.memory = self.words.view(np.float32)
        self.reserved += 1

    def _lay_out(self) -> int:
        """Fill in the plan; returns how many numbers it takes."""
        config, rows, plan = self.config, self.rows, self.plan[0]
        heads, kv_heads, d = (config.num_attention_heads, config.num_key_value_heads,
                              config.head_dim)
        D, F = config.hidden_size, config.intermediate_size
        # Inputs of products are whole groups, outputs whole blocks; 32 numbers are both
        widths = {"x": D, "normed": D, "qkv": (heads + 2 * kv_heads) * d, "attended": heads * d,
                  "gate_up": 2 * F, "hidden": F}
        strides = {name: up_to(width, 2 * LANES) for name, width in widths.items()}
        widest = max(strides[name] for name in ("normed", "attended", "hidden"))
        sizes = {name: rows * stride for name, stride in strides.items()}
        sizes |= {"output": rows * strides["x"],
                  "codes": rows * widest // 4, "scales": rows * widest // 16,
                  "sums": rows * widest // 16, "cos": rows * d, "sin": rows * d,
                  "scores": self.threads * up_to(self.context, LINE),
                  "scratch": self.threads * SCRATCH}
        # Nobody looks at these two at the same time
        shared = {"gate_up": "qkv"}
        sizes["qkv"] = max(sizes["qkv"], sizes.pop("gate_up"))
        used = 0
        for name, size in sizes.items():
            plan[name] = used
            used += up_to(size, LINE)
        for name, place in shared.items():
            plan[name] = plan[place]
        for name, stride in strides.items():
            plan[f"{name}_stride"] = stride
        plan["scores_stride"] = up_to(self.context, LINE)
        return used
