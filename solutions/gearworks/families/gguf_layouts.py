"""How GGUF files keep each family's tensors: under other names, and some in another form.

The engine asks for the tensors of `layouts`, with Hugging Face's names and shapes. In GGUF
    all experts' matrices of a layer are one tensor, (E, out, in): `blk.0.ffn_up_exps.weight`.
        Here they come apart, under the names that older files have: `blk.0.ffn_up.3.weight`;
    GPT-2's matrices are (out, in), as everyone else's;
    gpt-oss's gate and up are two tensors, (E, F, D), and its biases likewise, (E, F); its down
        is (E, D, F);
    DeepSeek's `kv_b_proj` may be two tensors: of each head the part for the keys, transposed,
        (H, r, n), and the part for the values, (H, value, r).
What is not listed stands in the file as the engine wants it, but for the rows of q and k in the
architecture llama: `weights.unpermute_rope`.

Shapes: E experts, F feed-forward size, D hidden size, H heads, r latent size, n the still part
of a head's key.
Source: gguf-py/gguf/tensor_mapping.py and convert_hf_to_gguf.py of llama.cpp.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np

from gearworks.config import ModelConfig
from gearworks.errors import FormatError
from gearworks.families.layouts import layout
from gearworks.formats.codes import Codes, joined
from gearworks.formats.gguf import GGUFFile, TensorRow, TensorType, dequantize
from gearworks.formats.gguf_codes import codes_of

_DECODER = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down"}
_GEMMA = _DECODER | {
    "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm"}
_EXPERTS = {
    "mlp.gate": "ffn_gate_inp", "mlp.experts.gate_proj": "ffn_gate",
    "mlp.experts.up_proj": "ffn_up", "mlp.experts.down_proj": "ffn_down"}
_DEEPSEEK = _DECODER | _EXPERTS | {
    "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b", "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm", "self_attn.kv_b_proj": "attn_kv_b",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp"}

# Where a family has other names than Llama.
_NAMES: Mapping[str, Mapping[str, str]] = {
    "MixtralForCausalLM": _DECODER | {
        "block_sparse_moe.gate": "ffn_gate_inp", "block_sparse_moe.experts.w1": "ffn_gate",
        "block_sparse_moe.experts.w3": "ffn_up", "block_sparse_moe.experts.w2": "ffn_down"},
    "Qwen3MoeForCausalLM": _DECODER | _EXPERTS,
    "GptOssForCausalLM": _DECODER | {
        "post_attention_layernorm": "post_attention_norm", "mlp.router": "ffn_gate_inp",
        "self_attn.sinks": "attn_sinks.weight",
        "mlp.experts.gate_up_proj": "ffn_gate_up_exps.weight",
        "mlp.experts.gate_up_proj_bias": "ffn_gate_up_exps.bias",
        "mlp.experts.down_proj": "ffn_down_exps.weight",
        "mlp.experts.down_proj_bias": "ffn_down_exps.bias"},
    "Olmo2ForCausalLM": _DECODER | {"post_attention_layernorm": "post_attention_norm",
                                    "post_feedforward_layernorm": "post_ffw_norm"},
    "Phi3ForCausalLM": _DECODER | {"self_attn.qkv_proj": "attn_qkv",
                                   "mlp.gate_up_proj": "ffn_up"},
    "GPT2LMHeadModel": {
        "transformer.wte": "token_embd", "transformer.wpe": "position_embd",
        "transformer.ln_f": "output_norm", "lm_head": "output", "ln_1": "attn_norm",
        "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_2": "ffn_norm",
        "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"},
    "Gemma2ForCausalLM": _GEMMA, "Gemma3ForCausalLM": _GEMMA,
    "DeepseekV2ForCausalLM": _DEEPSEEK, "DeepseekV3ForCausalLM": _DEEPSEEK,
}

# The families of GGUF's architectures llama and smollm3, whose files have the rows of q and k
# permuted.
PERMUTED = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM",
                      "SmolLM3ForCausalLM"})

# No weights: by how much each pair is slowed, always, or in short texts and in long ones.
ROPE_FACTORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")

_LAYER = re.compile(r"(?:model\.layers|transformer\.h)\.(\d+)\.(.+)")
_STACKED = re.compile(r"(.+)_exps\.weight")


def gguf_name(name: str, architecture: str = "LlamaForCausalLM") -> str:
    """What a GGUF file calls the tensor that Hugging Face calls `name`.
    architecture: Hugging Face's, of the config.

    >>> gguf_name("model.layers.7.mlp.up_proj.weight")
    'blk.7.ffn_up.weight'
    >>> gguf_name("model.layers.0.self_attn.q_proj.bias")
    'blk.0.attn_q.bias'
    >>> gguf_name("model.layers.2.mlp.experts.3.up_proj.weight", "Qwen3MoeForCausalLM")
    'blk.2.ffn_up.3.weight'
    """
    names = _NAMES.get(architecture, _DECODER)
    layer = _LAYER.fullmatch(name)
    before, part = (f"blk.{layer[1]}.", layer[2]) if layer else ("", name)
    if part in names:
        return before + names[part]
    stem, _, kind = part.rpartition(".")
    module, expert, of_expert = stem.partition(".experts.")
    if expert:
        number, _, matrix = of_expert.partition(".")
        return f"{before}{names[f'{module}.experts.{matrix}']}.{number}.{kind}"
    return f"{before}{names[stem]}.{kind}"


@dataclass(frozen=True)
class Made:
    """A tensor as the engine wants it, made of what the file has.

    fill(out): writes it to float32 memory of that shape, which may be strided. type, codes():
    where the file has it in codes, of which type, and these, (rows, in): of a matrix as the
    engine has it, of experts one below the other.
    """

    shape: tuple[int, ...]
    fill: Callable[[np.ndarray], object]
    type: TensorType | None = None
    codes: Callable[[], Codes] | None = None


class ArrangedGGUF(GGUFFile):
    """A GGUF file some of whose tensors are `Made`; the others are read as they are."""

    def __init__(self, file: GGUFFile, tensors: Mapping[str, TensorRow | Made]):
        self.path, self.version, self.metadata = file.path, file.version, file.metadata
        self.tensors = dict(tensors)
        self._file = file

    def raw(self, name: str) -> np.ndarray:
        """As `GGUFFile.raw`, of a tensor that is not made."""
        return self._file.raw(name)

    def tensor(self, name: str, out: np.ndarray | None = None) -> np.ndarray:
        """As `GGUFFile.tensor`."""
        made = self.tensors.get(name)
        if not isinstance(made, Made):
            return self._file.tensor(name, out)
        out = np.empty(made.shape, np.float32) if out is None else out
        made.fill(out)
        return out

    def release(self, name: str) -> None:
        """As `GGUFFile.release`."""
        self._file.release(name)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


def arranged(file: GGUFFile, config: ModelConfig) -> GGUFFile:
    """The file as the engine reads it: with a tensor for each that `layouts` asks for.

    Raises FormatError for a tensor of experts that is not stacked as announced. What is missing
    or of another shape is `weights.map_names`' to tell.
    """
    made: dict[str, Made] = {}
    taken: set[str] = set()
    for name, row in file.tensors.items():
        stacked = _STACKED.fullmatch(name)
        if config.architecture == "GptOssForCausalLM":
            if name.endswith((".ffn_gate_exps.weight", ".ffn_gate_exps.bias")):
                up = name.replace("_gate_", "_up_")
                joined = _by_turns(file, name, up)
                if joined is not None:
                    made[name.replace("_gate_", "_gate_up_")] = joined
                    taken |= {name, up}
            elif name.endswith(".ffn_down_exps.weight"):
                made |= _turned_experts(file, name)
        elif stacked and config.experts is not None:
            made |= _experts(file, row, stacked[1], config.experts.num_experts)
            taken.add(name)
    if config.architecture == "GPT2LMHeadModel":
        made |= _turned(file, config)
    if config.latent is not None:
        for name, row in file.tensors.items():
            if name.endswith(".attn_k_b.weight"):
                values = name.replace(".attn_k_b.", ".attn_v_b.")
                joined = _keys_and_values(file, name, values, config)
                if joined is not None:
                    made[name.replace(".attn_k_b.", ".attn_kv_b.")] = joined
                    taken |= {name, values}
    if not made:
        return file
    rows = {name: row for name, row in file.tensors.items() if name not in taken}
    return ArrangedGGUF(file, rows | made)


def _experts(file: GGUFFile, row: TensorRow, before: str, experts: int) -> dict[str, Made]:
    if len(row.shape) != 3 or row.shape[0] != experts:
        raise FormatError(f"cannot use tensor {row.name!r} of {file.path}",
                          f"its shape is {row.shape}, and the model has {experts} experts",
                          "fetch another copy of the model, or convert it again")

    def fill(expert: int, out: np.ndarray) -> None:
        dequantize(file.raw(row.name).reshape(experts, -1)[expert], row.type, row.shape[1:],
                   out)
        if expert == experts - 1:           # nobody reads the others after the last
            file.release(row.name)

    def codes(expert: int) -> Codes:
        return codes_of(file.raw(row.name).reshape(experts, -1)[expert], row.type,
                        row.shape[1:])
    return {f"{before}.{expert}.weight": Made(row.shape[1:], partial(fill, expert), row.type,
                                              partial(codes, expert))
            for expert in range(experts)}


def _by_turns(file: GGUFFile, gate: str, up: str) -> Made | None:
    """gpt-oss's gate and up as one tensor, its rows by turns: (E, D, 2F), or (E, 2F) of biases;
    None where the two do not make it."""
    shape = file.tensors[gate].shape
    if up not in file.tensors or file.tensors[up].shape != shape or len(shape) not in (2, 3):
        return None

    def fill(out: np.ndarray) -> None:
        rows = out.swapaxes(1, -1)                                      # (E, 2F) or (E, 2F, D)
        for first, name in enumerate((gate, up)):
            _fill_each(file, name, rows[:, first::2])

    def codes() -> Codes:
        gates, ups = (_rows_in_codes(file, name) for name in (gate, up))
        places = np.arange(2 * len(gates.codes)).reshape(2, -1).T.ravel()
        return joined([gates, ups]).rows(places)
    types = {file.tensors[name].type for name in (gate, up)}
    return Made((shape[0], *shape[:1:-1], 2 * shape[1]), fill,
                types.pop() if len(types) == 1 else None, codes)


def _rows_in_codes(file: GGUFFile, name: str) -> Codes:
    """A tensor of all experts in codes, their rows one below the other."""
    row = file.tensors[name]
    codes = codes_of(file.raw(name), row.type, (prod(row.shape[:-1]), row.shape[-1]))
    file.release(name)
    return codes


def _turned_experts(file: GGUFFile, name: str) -> dict[str, Made]:
    """gpt-oss's down, (E, F, D) of (E, D, F)."""
    E, *matrix = file.tensors[name].shape
    if len(matrix) != 2:
        return {}
    return {name: Made((E, *matrix[::-1]),
                       lambda out: _fill_each(file, name, out.swapaxes(1, 2)),
                       file.tensors[name].type, partial(_rows_in_codes, file, name))}


def _fill_each(file: GGUFFile, name: str, out: np.ndarray) -> None:
    """Write a tensor of all experts to its place, one by one: together they are large."""
    row = file.tensors[name]
    for raw, place in zip(file.raw(name).reshape(len(out), -1), out):
        place[...] = dequantize(raw, row.type, row.shape[1:])
    file.release(name)


def _turned(file: GGUFFile, config: ModelConfig) -> dict[str, Made]:
    """The matrices that Hugging Face's GPT-2 keeps as (in, out)."""
    # of one layer: how many a file announces must not decide how long this takes
    (fields,) = layout(replace(config, num_hidden_layers=1))[1]
    turned = {gguf_name(part.name, config.architecture).removeprefix("blk.0")
              for parts in fields.values() for part in parts if part.transposed}

    def fill(name: str, out: np.ndarray) -> None:
        file.tensor(name, out=out.T)
    return {name: Made(row.shape[::-1], partial(fill, name), row.type,
                       partial(_rows_in_codes, file, name))
            for name, row in file.tensors.items()
            if len(row.shape) == 2 and re.sub(r"^blk\.\d+", "", name) in turned}


def _keys_and_values(file: GGUFFile, keys: str, values: str,
                     config: ModelConfig) -> Made | None:
    """DeepSeek's kv_b_proj, (H · (n + value), r); None where the two do not make it."""
    H, r, n = (config.num_attention_heads, config.latent.kv_lora_rank,
               config.latent.qk_nope_head_dim)
    value = config.latent.v_head_dim
    if (file.tensors[keys].shape != (H, r, n) or values not in file.tensors
            or file.tensors[values].shape != (H, value, r)):
        return None

    def fill(out: np.ndarray) -> None:
        heads = out.reshape((H, n + value, r), copy=False)
        heads[:, :n] = file.tensor(keys).transpose(0, 2, 1)
        heads[:, n:] = file.tensor(values)
    return Made((H * (n + value), r), fill)
