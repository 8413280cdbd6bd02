"""The program of a model's steps.

It is written when the plan of the step's memory is made (`arena`), since it names places there.
What a family computes otherwise than Llama stands here, and only here: another instruction, or
the same one with other weights. What a layer has is read from its weights; what these do not
tell, the configuration does.
"""

import numpy as np

from gearworks.config import ModelConfig
from gearworks.families.deepseek import LATENT_NORM_EPS, score_scale
from gearworks.kernels.cpu.instructions import (
    ABSORB, ADD, ADD_NORM, ATTEND, COMBINE, EMBED, GATE_EXPERTS, GATHER, GEGLU, GELU,
    INSTRUCTION, LATENT_KEYS, LAYER_NORM, MULTIPLY, MULTIPLY_EXPERTS, NORM, NORM_PART, READY,
    ROUTE, SWIGLU, TURN, UNFOLD)
from gearworks.kernels.cpu.layout import NONE
from gearworks.kernels.cpu.store import WeightStore

Fields = dict[str, int]             # of a layer's weights, or the model's: where each is


def write_program(config: ModelConfig, weights: WeightStore, starts: dict[str, int],
                  strides: dict[str, int]) -> np.ndarray:
    """The instructions of a step, (n,) of `INSTRUCTION`.

    starts, strides: of the arrays in the step's memory, by name.
    """
    program, whole = Program(config, starts, strides), weights.model
    scale = config.hidden_size ** 0.5 if _is_gemma(config) else 1
    program.add(EMBED, whole["embed_tokens"], scale=scale)
    if "embed_positions" in whole:
        program.add(ADD, 0, "positions", size=config.hidden_size)
    for number, layer in enumerate(weights.layers):
        if config.latent is None:
            program.attention(number, layer)
        else:
            program.latent_attention(number, layer)
        program.feed_forward(layer)
    program.norm(whole, "norm", whole["lm_head"], wanted=True)
    program.add(MULTIPLY, whole["lm_head"], "normed", None, size=1, wanted=True,
                cap=config.logit_softcap or 0)
    return np.array(program.written, INSTRUCTION)


def _is_gemma(config: ModelConfig) -> bool:
    return config.query_pre_attn_scalar is not None


class Program:
    """Instructions as they are written, one after the other. written: in `INSTRUCTION`'s
    order."""

    def __init__(self, config: ModelConfig, starts: dict[str, int], strides: dict[str, int]):
        self.config, self.starts, self.strides = config, starts, strides
        self.written: list[tuple[float, ...]] = []

    def add(self, op: int, matrix: int = 0, source: str = "x", target: str | None = "x",
            layer: int = 0, size: int = 0, weight: int = NONE, second: int = NONE,
            add_to: int = NONE, window: int = 0, wanted: bool = False, scale: float = 1,
            cap: float = 0, offset: int = 0) -> None:
        """Write an instruction. source, target: arrays; offset: of the source, in its rows."""
        fields = {
            "op": op, "layer": layer, "matrix": matrix, "source": self.starts[source] + offset,
            "source_stride": self.strides[source],
            "target": NONE if target is None else self.starts[target],
            "target_stride": 0 if target is None else self.strides[target], "size": size,
            "weight": weight, "second": second, "add_to": add_to, "window": window,
            "wanted": wanted, "scale": scale, "cap": cap}
        self.written.append(tuple(fields[name] for name in INSTRUCTION.names))

    def norm(self, owner: Fields, name: str, matrix: int, wanted: bool = False) -> str:
        """The stream's norm, ready for a product, or the stream itself where there is none.
        Returns which array has it."""
        if name not in owner:
            self.add(READY, matrix)
            return "x"
        bias = owner.get(f"{name}_bias", NONE)
        self.add(NORM if bias == NONE else LAYER_NORM, matrix, "x", "normed",
                 size=self.config.hidden_size, weight=owner[name], second=bias, wanted=wanted)
        return "normed"

    def multiply(self, layer: Fields, name: str, source: str, target: str,
                 add_to: int = NONE) -> None:
        """A product with the matrix of this name, and its bias."""
        # what is made for a single row by every thread itself, each has in a row of its own
        copies = source in ("normed", "hidden")
        self.add(MULTIPLY, layer[name], source, target, size=copies, add_to=add_to,
                 weight=layer.get(name.replace("_proj", "_bias"), NONE))

    def give(self, layer: Fields, name: str, source: str, norm: str) -> None:
        """A product that the stream gets: its norm, where there is one of this name."""
        if norm not in layer:
            self.multiply(layer, name, source, "output", self.starts["x"])
            return
        self.multiply(layer, name, source, "output")
        self.add(ADD_NORM, 0, "output", size=self.config.hidden_size, weight=layer[norm])

    def attention(self, number: int, layer: Fields) -> None:
        """The first half of a layer."""
        config, d = self.config, self.config.head_dim
        window, scale = config.window(number), 1.0
        source = self.norm(layer, "input_layernorm", layer["qkv_proj"])
        self.multiply(layer, "qkv_proj", source, "qkv")
        norms = {"weight": layer.get("q_norm", NONE), "second": layer.get("k_norm", NONE)}
        if config.architecture == "Olmo2ForCausalLM":       # one of all heads, before they turn
            queries, keys = config.num_attention_heads * d, config.num_key_value_heads * d
            for name, size, offset in (("q_norm", queries, 0), ("k_norm", keys, queries)):
                self.add(NORM_PART, 0, "qkv", "qkv", size=size, weight=layer[name],
                         scale=config.rms_norm_eps, offset=offset)
            norms = {}
        if config.query_pre_attn_scalar is not None:
            scale = (d / config.query_pre_attn_scalar) ** 0.5
        local = config.rope_local_theta is not None and window is not None
        turns = config.turns(number) and config.architecture != "GPT2LMHeadModel"
        self.add(TURN, 0, "qkv", "local_angles" if local else "angles", number, size=turns,
                 scale=scale, **norms)
        self.add(ATTEND, 0, "qkv", "attended", number, window=window or 0,
                 weight=layer.get("sinks", NONE), cap=config.attention_softcap or 0)
        self.add(READY, layer["o_proj"], "attended", "attended")
        after = "post_attention_layernorm" if self.norms_after(layer) else ""
        self.give(layer, "o_proj", "attended", after)

    @staticmethod
    def norms_after(layer: Fields) -> bool:
        """Whether what a layer's halves give the stream is normed, as in Gemma and OLMo-2."""
        return "post_feedforward_layernorm" in layer

    def latent_attention(self, number: int, layer: Fields) -> None:
        """The first half of a layer of DeepSeek; see `latents`."""
        config, latent = self.config, self.config.latent
        source = self.norm(layer, "input_layernorm", layer["kv_a_proj"])
        self.multiply(layer, "kv_a_proj", source, "latents")
        self.add(LATENT_KEYS, 0, "latents", "angles", number, weight=layer["kv_a_layernorm"],
                 scale=LATENT_NORM_EPS)
        first = "q_proj" if "q_proj" in layer else "q_a_proj"
        self.norm(layer, "input_layernorm", layer[first])
        if first == "q_proj":
            self.multiply(layer, "q_proj", source, "queries")
        else:
            self.multiply(layer, "q_a_proj", source, "q_latent")
            self.add(NORM_PART, 0, "q_latent", "q_latent", size=latent.q_lora_rank,
                     weight=layer["q_a_layernorm"], scale=LATENT_NORM_EPS)
            self.add(READY, layer["q_b_proj"], "q_latent", "q_latent")
            self.multiply(layer, "q_b_proj", "q_latent", "queries")
        self.add(ABSORB, 0, "queries", "qkv", weight=layer["kv_b_proj"],
                 add_to=self.starts["angles"], size=self.strides["angles"],
                 scale=score_scale(config) * latent.cached_size ** 0.5)
        self.add(ATTEND, 0, "qkv", "attended", number)
        self.add(UNFOLD, 0, "attended", "values", weight=layer["kv_b_proj"])
        self.add(READY, layer["o_proj"], "values", "values")
        self.give(layer, "o_proj", "values", "")

    def feed_forward(self, layer: Fields) -> None:
        """The second half of a layer."""
        before = ("pre_feedforward_layernorm" if self.norms_after(layer)
                  else "post_attention_layernorm")
        if "router" in layer:
            self.mixture(layer, before)
            return
        first = "gate_up_proj" if "gate_up_proj" in layer else "up_proj"
        source = self.norm(layer, before, layer[first])
        self.gated(layer, first, "down_proj", source, self.config.intermediate_size)

    def gated(self, layer: Fields, first: str, last: str, source: str, size: int) -> None:
        """One feed-forward network, whose inner size is `size`."""
        activation = (GELU if first == "up_proj" else GEGLU if _is_gemma(self.config)
                      else SWIGLU)
        self.multiply(layer, first, source, "gate_up")
        self.add(activation, layer[last], "gate_up", "hidden", size=size)
        self.give(layer, last, "hidden", "post_feedforward_layernorm")

    def mixture(self, layer: Fields, norm: str) -> None:
        """A mixture of experts; see `mixtures`."""
        config, experts = self.config, self.config.experts
        D, size = config.hidden_size, experts.intermediate_size
        source = self.norm(layer, norm, layer["router"])
        bias = layer.get("router_bias", NONE)
        of_choice = experts.scoring == "sigmoid"        # DeepSeek's; gpt-oss's is of the scores
        self.add(MULTIPLY, layer["router"], source, "router_scores", size=1,
                 weight=NONE if of_choice else bias)
        self.add(ROUTE, 0, "router_scores", second=bias if of_choice else NONE)
        self.add(GATHER, layer["gate_up_proj"], source, "visitors")
        self.add(MULTIPLY_EXPERTS, layer["gate_up_proj"], "visitors", "visit_gate_up",
                 weight=layer.get("gate_up_bias", NONE))
        self.add(GATE_EXPERTS, layer["down_proj"], "visit_gate_up", "visit_hidden", size=size,
                 scale=experts.swiglu_alpha or 1, cap=experts.swiglu_limit or 0)
        self.add(MULTIPLY_EXPERTS, layer["down_proj"], "visit_hidden", "visitors",
                 weight=layer.get("down_bias", NONE))
        self.add(COMBINE, 0, "visitors", size=D)
        if experts.shared_size:
            self.add(READY, layer["shared_gate_up_proj"], source, source)
            self.add(MULTIPLY, layer["shared_gate_up_proj"], source, "gate_up")
            self.add(SWIGLU, layer["shared_down_proj"], "gate_up", "hidden",
                     size=experts.shared_size)
            self.give(layer, "shared_down_proj", "hidden", "")
