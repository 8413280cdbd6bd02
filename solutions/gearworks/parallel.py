"""Tensor parallelism: one model in several processes, each with a part of every matrix.

All processes run the same program on the same tokens. Query heads, key/value heads, the columns
of the feed-forward network and the vocabulary are dealt out; a process computes with its own
and nobody else's. A matrix that makes heads or feed-forward columns is cut by its outputs
(`column_linear`), the matrix that takes them by its inputs (`row_linear`), so the two halves
of a layer need one sum over all processes each, and nothing else. The KV cache is cut with the
heads.

Shapes: T tokens, D hidden size, F feed-forward size, H query heads, K key/value heads, d head
size, V vocabulary, n processes. All float32.
Families whose layers are not Llama's bring their own forward pass (families/dealt.py).
Left out on purpose: heads that n does not divide (key/value heads can be copied), experts as a
whole in one process each, and how processes find each other (process_group.py).
Source: Shoeybi et al. 2019, "Megatron-LM", section 3.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from gearworks.attention import apply_rope
from gearworks.config import ModelConfig
from gearworks.errors import ModelError
from gearworks.families.dealt import dealt, forward_of_part
from gearworks.families.gpt_oss import with_sinks
from gearworks.families.layouts import LayerWeights, Weights, layout
from gearworks.families.routes import PLAIN
from gearworks.kv_cache import Cache, KVCache, Rows
from gearworks.layers import linear, rms_norm, swiglu
from gearworks.model import Model, family_forward, rotations
from gearworks.moe import mixture, route
from gearworks.rope_scaling import angles_in_layer
from gearworks.weights import map_names, open_checkpoint, read_into, reserve

# Families whose layers `decoder_layer` below knows; others run by `families.dealt`
LIKE_LLAMA = (*PLAIN, "MixtralForCausalLM", "Qwen3MoeForCausalLM")

AllReduce = Callable[[np.ndarray], np.ndarray]
AllGather = Callable[[np.ndarray], Sequence[np.ndarray]]


class Group(Protocol):
    """The processes that run one model together, as one of them sees them.

    rank: its own number, from 0; size: how many there are. Every process must call the same
    methods in the same order, since each call waits for all of them.
    """

    rank: int
    size: int

    def all_reduce(self, array: np.ndarray) -> np.ndarray:
        """The sum of all processes' arrays, which have one shape; the same in all of them."""
        ...

    def all_gather(self, array: np.ndarray) -> Sequence[np.ndarray]:
        """All processes' arrays, which have one shape, in the order of their ranks."""
        ...


def column_linear(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None,
                  all_gather: AllGather | None = None) -> np.ndarray:
    """One process's part in a linear layer whose outputs are dealt out.

    x: (T, in), the same in all n processes; weight: (out / n, in), this process's rows of the
    matrix; bias: (out / n,), its part of the bias, or None. Returns (T, out / n), this
    process's outputs. With all_gather, which gives the arrays of all processes in the order of
    their ranks, returns all outputs instead, (T, out), the same in all processes. The first
    rows of the matrix are in the first process.
    Source: Shoeybi et al. 2019, "Megatron-LM", section 3; there weights are (in, out), so what
    is cut are columns.

    >>> column_linear(np.array([[1., 2.]], np.float32), np.array([[3., 4.]], np.float32),
    ...               all_gather=lambda own: [own, 10 * own])
    array([[ 11., 110.]], dtype=float32)
    """
    own = linear(x, weight, bias)                                              # (T, out / n)
    return own if all_gather is None else np.concatenate(all_gather(own), axis=-1)


def row_linear(x: np.ndarray, weight: np.ndarray, all_reduce: AllReduce,
               bias: np.ndarray | None = None) -> np.ndarray:
    """One process's part in a linear layer whose inputs are dealt out.

    x: (T, in / n), this process's inputs, as `column_linear` gave them; weight: (out, in / n),
    the columns of the matrix that belong to them; all_reduce: gives the sum of the arrays of
    all processes, and is called once; bias: (out,), the whole bias in every process, or None.
    Returns (T, out), the same in all processes.
    Source: Shoeybi et al. 2019, "Megatron-LM", section 3.

    >>> row_linear(np.array([[1., 2.]], np.float32), np.array([[3., 4.]], np.float32),
    ...            all_reduce=lambda own: own + 100, bias=np.array([0.5], np.float32))
    array([[111.5]], dtype=float32)
    """
    whole = all_reduce(linear(x, weight))
    return whole if bias is None else whole + bias


def decoder_layer(x: np.ndarray, weights: LayerWeights, config: ModelConfig, cos: np.ndarray,
                  sin: np.ndarray, cache: Cache, index: int, group: Group) -> np.ndarray:
    """As `model.decoder_layer`, with this process's part of the weights, in two sums.

    x: (T, D), the same in all processes; config: of this process's part (`own_config`); returns
    (T, D), the same in all processes.
    """
    H, K, d = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    eps = config.rms_norm_eps
    hidden = rms_norm(x, weights.input_layernorm, eps)
    qkv = column_linear(hidden, weights.qkv_proj, weights.qkv_bias)
    qkv = qkv.reshape(len(x), H + 2 * K, d)
    qk, v = qkv[:, :H + K], qkv[:, H + K:]
    if weights.q_norm is not None:
        qk = np.concatenate([rms_norm(qk[:, :H], weights.q_norm, eps),
                             rms_norm(qk[:, H:], weights.k_norm, eps)], axis=1)
    qk = apply_rope(qk, cos, sin)
    attended = cache.attend(index, qk[:, :H], qk[:, H:], v)                          # (T, H, d)
    x = x + row_linear(attended.reshape(len(x), H * d), weights.o_proj, group.all_reduce,
                       weights.o_bias)

    hidden = rms_norm(x, weights.post_attention_layernorm, eps)
    if weights.router is not None:          # all choose alike, and have a part of each expert
        chosen, gates = route(linear(hidden, weights.router),
                              config.experts.num_experts_per_tok, config.experts.normalize)
        return x + group.all_reduce(mixture(hidden, chosen, gates, weights.gate_up_proj,
                                            weights.down_proj))
    gate_up = column_linear(hidden, weights.gate_up_proj)                          # (T, 2F / n)
    gate, up = gate_up[:, :config.intermediate_size], gate_up[:, config.intermediate_size:]
    return x + row_linear(swiglu(gate, up), weights.down_proj, group.all_reduce)


def embed(table: np.ndarray, input_ids: np.ndarray, group: Group) -> np.ndarray:
    """The embedding of tokens whose rows are dealt out.

    table: (V / n, D), this process's rows; input_ids: (T,); returns (T, D), the same in all
    processes: whoever has a token's row brings it, the others bring zeros.
    """
    rows = input_ids - group.rank * len(table)
    own = (0 <= rows) & (rows < len(table))
    x = np.zeros((len(input_ids), table.shape[1]), np.float32)
    x[own] = table[rows[own]]
    return group.all_reduce(x)


class ParallelModel(Model):
    """One process's part of a model; together they are `model.Model`, and give its logits.

    config: of the whole model; own: of this process's part.
    """

    def __init__(self, config: ModelConfig, weights: Weights, group: Group):
        super().__init__(config, weights)
        self.own = with_sinks(own_config(config, group.size), weights)
        self.group = group
        if config.architecture not in LIKE_LLAMA:
            self._forward = partial(
                forward_of_part(family_forward(self.own), self.own, group.all_reduce),
                dealt(weights, group.all_reduce, partial(embed, group=group)), self.own)

    @classmethod
    def load(cls, path: Path, group: Group) -> "ParallelModel":
        """Load this process's part of a GGUF file or an HF folder; errors as `load_checkpoint`,
        and ModelError for a model that cannot be dealt out."""
        return cls(*load_part(Path(path), group.rank, group.size), group)

    def new_cache(self, capacity: int) -> KVCache:
        """An empty cache for this process's heads of one sequence."""
        return KVCache(self.own, capacity)

    def run(self, input_ids: np.ndarray, positions: np.ndarray, cache: Cache,
            logits_at: Rows = slice(None)) -> np.ndarray:
        """As `Model.run`, in all processes at once; each gets all logits."""
        if self.own.architecture not in LIKE_LLAMA:
            own = self._forward(input_ids, positions, cache, logits_at)
            return np.concatenate(self.group.all_gather(np.ascontiguousarray(own)), axis=-1)
        turning = rotations(self.own, positions)
        x = embed(self.weights.embed_tokens, input_ids, self.group)
        for index, layer in enumerate(self.weights.layers):
            cos, sin = angles_in_layer(self.own, index, *turning)
            x = decoder_layer(x, layer, self.own, cos, sin, cache, index, self.group)
        hidden = rms_norm(x[logits_at], self.weights.norm, self.own.rms_norm_eps)
        return column_linear(hidden, self.weights.lm_head, all_gather=self.group.all_gather)


def greedy(group: Group, path: Path, prompt_ids: Sequence[int], count: int) -> list[int]:
    """The likeliest next tokens, `count` of them, as all processes of a group find them
    together. For `process_group.launch`, which hands each process its group."""
    model = ParallelModel.load(path, group)
    cache = model.new_cache(len(prompt_ids) + count)
    ids, found = np.asarray(prompt_ids), []
    for _ in range(count):
        positions = np.arange(len(cache), len(cache) + len(ids))
        ids = model.forward(ids, positions, cache, [-1])[0].argmax(keepdims=True)
        found.append(int(ids[0]))
    return found


def own_config(config: ModelConfig, size: int) -> ModelConfig:
    """The configuration of one process's part, when `size` processes share a model.

    Raises ModelError when a number of heads, the feed-forward size or the vocabulary does not
    divide by `size`.
    """
    whole = {"num_attention_heads": (config.num_attention_heads, "query heads"),
             "num_key_value_heads": (config.num_key_value_heads, "key/value heads"),
             "intermediate_size": (config.intermediate_size, "feed-forward columns"),
             "vocab_size": (config.vocab_size, "rows of its vocabulary")}
    if config.experts is not None:
        whole["experts"] = config.experts.intermediate_size, "columns of each expert"
        whole["shared"] = config.experts.shared_size, "columns of the shared experts"
    for count, what in whole.values():
        if count % size:
            common = [ranks for ranks in range(1, config.num_key_value_heads + 1)
                      if not any(each % ranks for each, _ in whole.values())]
            raise ModelError(f"cannot run this model in {size} processes",
                             f"its {count:,} {what} cannot be dealt out evenly",
                             f"run it in {' or '.join(map(str, common))}")
    parts = {name: count // size for name, (count, _) in whole.items()}
    if config.experts is not None:
        parts["experts"] = replace(config.experts, intermediate_size=parts["experts"],
                                   shared_size=parts.pop("shared"))
    return replace(config, **parts)


def load_part(path: Path, rank: int, size: int) -> tuple[ModelConfig, Weights]:
    """The configuration of a whole model, and the weights of one process of `size`.

    No more than one tensor is ever in memory as a whole. Raises as `load_checkpoint` and
    `own_config` do.
    """
    config, file = open_checkpoint(path)
    with closing(file):
        names = map_names({name: info.shape for name, info in file.tensors.items()}, config)
        weights, places = reserve(own_config(config, size))
        parts = {part.name: part for fields in (layout(config)[0], *layout(config)[1])
                 for several in fields.values() for part in several}
        for name, file_name in names.items():
            whole = np.empty(parts[name].shape, np.float32)
            read_into(whole, file, file_name, config)
            place = places[name]
            place[...] = own_part(whole, place.shape, rank, parts[name].pieces)
    return config, weights


def own_part(whole: np.ndarray, shape: Sequence[int], rank: int,
             pieces: Sequence[int] = ()) -> np.ndarray:
    """The part of a tensor that the process `rank` holds, a view if it can be one.

    shape: of the part; where it is shorter than the whole, there it is cut, and where nowhere,
    all processes have all of it. Heads are whole: their rows are neighbours, and as many for
    each process. pieces: the lengths of each matrix where several are one tensor, side by side
    along the axis that is cut; each of them is cut.

    >>> own_part(np.array([[1, 2], [3, 4]]), (1, 2), rank=1)
    array([[3, 4]])
    >>> own_part(np.array([[1, 2], [3, 4]]), (2, 1), rank=1)
    array([[2],
           [4]])
    """
    axis = next((axis for axis, (all_of_it, own) in enumerate(zip(whole.shape, shape))
                 if own < all_of_it), None)
    if axis is None:
        return whole
    size = whole.shape[axis] // shape[axis]
    parts = [np.split(piece, size, axis)[rank]
             for piece in np.split(whole, np.cumsum(pieces)[:-1], axis)]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis)
