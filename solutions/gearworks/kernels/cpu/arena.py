"""The plan of a step's memory.

What a layer computes is needed until its end at most, and the next layer's same array can take
the same place. So a step of up to so many rows has a fixed plan: where each array begins. The
program, which names these places, is written when the plan is made. No step reserves memory
again unless it has more rows or a longer sequence than any before.
"""

import numpy as np

from gearworks.config import ModelConfig
from gearworks.kernels.cpu.instructions import FAMILY, PLACES, SHAPE, SWIGLU
from gearworks.kernels.cpu.layout import LANES, aligned
from gearworks.kernels.cpu.products import SCRATCH
from gearworks.kernels.cpu.program import write_program
from gearworks.kernels.cpu.store import WeightStore

LINE = 16                   # float32 numbers of a cache line: every array begins with one

# Arrays that products read, each row of which is made ready for them
READ = ("x", "normed", "attended", "hidden", "q_latent", "values", "visitors", "visit_hidden")
# Where a mixture's choice is kept
CHOICE = ("chosen", "gates", "visit", "row", "ends", "ranking", "taken", "strength")


def up_to(size: int, whole: int) -> int:
    """The next multiple of `whole`.

    >>> up_to(33, 32)
    64
    """
    return -(-size // whole) * whole


class Arena:
    """The memory of a model's steps, and the program that runs in it.

    memory: float32; words: the same bytes as uint32; shape, places: (1,) of `SHAPE` and
    `PLACES`; family: (1,) of `FAMILY`, or None for a program that needs nothing of it; starts,
    strides: of each array by name; program: (n,) of `INSTRUCTION`; reserved: how often memory
    was reserved.
    """

    def __init__(self, config: ModelConfig, weights: WeightStore, threads: int,
                 quantize: bool):
        """quantize: whether activations become bytes before a product."""
        self.config = config
        self.weights = weights
        self.threads = threads
        self.rows = self.context = self.reserved = 0
        self.shape = shape_of(config, quantize)
        self.places = np.zeros(1, PLACES)
        self.family: np.ndarray | None = None
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
        needed = self.program["op"].max() > SWIGLU
        self.family = family_of(self.config, self.starts) if needed else None
        self.reserved += 1

    def array(self, name: str, count: int) -> np.ndarray:
        """The first rows of an array, (count, stride)."""
        start, stride = self.starts[name], self.strides[name]
        return self.memory[start:start + count * stride].reshape(count, stride)

    def _lay_out(self) -> int:
        """Make the plan; returns how many numbers it takes."""
        experts, widths = self.config.experts, self._widths()
        # Inputs of products are whole groups, outputs whole blocks; 32 numbers are both
        self.strides = {name: up_to(width, 2 * LANES) for name, width in widths.items()}
        visits = 0 if experts is None else self.rows * experts.num_experts_per_tok
        sizes = {name: (visits if name.startswith("visit") else self.rows) * stride
                 for name, stride in self.strides.items()}
        widest = max(sizes[name] for name in READ if name in sizes)
        together = int(self.shape["heads"][0] // self.shape["kv_heads"][0])
        of_head = up_to(self.context, LINE) + LINE         # scores, and behind them their sum
        sizes |= {"codes": widest // 4, "scales": widest // 16, "sums": widest // 16,
                  "of_scores": self.threads * together * of_head,
                  "scratch": self.threads * SCRATCH}
        if experts is not None:
            E = experts.num_experts
            sizes |= dict(zip(CHOICE, (*[visits] * 4, E, E, max(E, experts.groups),
                                       experts.groups)))
        # Gates are made when queries, keys and values have been used
        sizes["qkv"] = max(sizes["qkv"], sizes.pop("gate_up"))
        used = 0
        for name, size in sizes.items():
            self.starts[name] = used
            used += up_to(size, LINE)
        self.starts["gate_up"] = self.starts["qkv"]
        for name in ("codes", "scales", "sums", "scratch"):
            self.places[name] = self.starts[name]
        self.places["scores"] = self.starts["of_scores"]
        self.places["scores_of_head"] = of_head
        self.places["scores_of_thread"] = together * of_head
        return used

    def _widths(self) -> dict[str, int]:
        """How many numbers a row of each array has."""
        config, shape = self.config, {name: int(self.shape[name][0])
                                      for name in ("heads", "kv_heads", "head_dim",
                                                   "value_dim")}
        D, F, experts, latent = (config.hidden_size, config.intermediate_size, config.experts,
                                 config.latent)
        if experts is not None:
            F = max(F, experts.shared_size)
        widths = {"x": D, "output": D, "normed": D,
                  "qkv": (shape["heads"] + 2 * shape["kv_heads"]) * shape["head_dim"],
                  "attended": shape["heads"] * shape["value_dim"], "gate_up": 2 * F,
                  "hidden": F, "angles": 2 * config.head_dim}
        if "embed_positions" in self.weights.model:
            widths["positions"] = D
        if config.rope_local_theta is not None:
            widths["local_angles"] = widths["angles"]
        if experts is not None:
            each = experts.intermediate_size
            widths |= {"router_scores": experts.num_experts, "visitors": D,
                       "visit_gate_up": 2 * each, "visit_hidden": each}
        if latent is not None:
            heads = config.num_attention_heads
            still, turning = latent.qk_nope_head_dim, latent.qk_rope_head_dim
            widths |= {"latents": latent.cached_size, "q_latent": latent.q_lora_rank or 1,
                       "queries": heads * (still + turning),
                       "values": heads * latent.v_head_dim}
        return widths


def shape_of(config: ModelConfig, quantize: bool) -> np.ndarray:
    """A model's shape, (1,) of `SHAPE`, as its attention sees it."""
    shape = np.zeros(1, SHAPE)
    shape["heads"], shape["kv_heads"] = config.num_attention_heads, config.num_key_value_heads
    shape["head_dim"] = shape["value_dim"] = config.head_dim
    if config.latent is not None:               # all heads look at one key, which is its value
        shape["kv_heads"], shape["head_dim"] = 1, config.latent.cached_size
        shape["value_dim"] = config.latent.kv_lora_rank
    shape["quantize"], shape["eps"] = quantize, config.rms_norm_eps
    return shape


def family_of(config: ModelConfig, starts: dict[str, int]) -> np.ndarray:
    """What only some families need, (1,) of `FAMILY`. starts: of arrays, by name."""
    family, experts, latent = np.zeros(1, FAMILY), config.experts, config.latent
    if experts is not None:
        for name in CHOICE:
            family[name] = starts[name]
        for name, value in (
                ("experts", experts.num_experts), ("per_token", experts.num_experts_per_tok),
                ("normalize", experts.normalize), ("sigmoid", experts.scoring == "sigmoid"),
                ("groups", experts.groups), ("kept_groups", experts.kept_groups),
                ("best_of_group", experts.best_of_group), ("scale", experts.scale)):
            family[name] = value
    if latent is not None:
        family["still"], family["value"] = latent.qk_nope_head_dim, latent.v_head_dim
        family["rank"], family["neighbours"] = latent.kv_lora_rank, config.rope_interleaved
    return family
