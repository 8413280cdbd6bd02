"""From the tensors of a file to the weights of a decoder: names, layouts, and strict loading.

Shapes: V vocabulary, D hidden size, F feed-forward size, H query heads, K key/value heads, d head size.
Names and (out, in) shapes are Hugging Face's. Underneath, matrices that read the same input share one block of memory,
so that one product computes q, k and v, and one computes gate and up; `q_proj` and the others are views of it.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from gearworks.config import ModelConfig
from gearworks.errors import FormatError, ModelError, NotAvailableError
from gearworks.gguf import GGUFFile
from gearworks.safetensors import SafetensorsFile


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer. Matrices are (out, in); norms are (D,)."""

    input_layernorm: np.ndarray
    qkv_proj: np.ndarray                        # ((H + 2K) · d, D): queries, then keys, then values
    o_proj: np.ndarray                          # (D, H · d)
    post_attention_layernorm: np.ndarray
    gate_up_proj: np.ndarray                    # (2F, D): gate, then up
    down_proj: np.ndarray                       # (D, F)


@dataclass(frozen=True)
class Weights:
    """All weights of a decoder, in float32."""

    embed_tokens: np.ndarray                    # (V, D)
    layers: tuple[LayerWeights, ...]
    norm: np.ndarray                            # (D,)
    lm_head: np.ndarray                         # (V, D); the very array `embed_tokens` where the two are tied

    def nbytes(self) -> int:
        """Bytes of memory, tied weights counted once."""
        layers = sum(array.nbytes for layer in self.layers for array in vars(layer).values())
        head = 0 if self.lm_head is self.embed_tokens else self.lm_head.nbytes
        return self.embed_tokens.nbytes + layers + self.norm.nbytes + head


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that a checkpoint of this configuration must hold: Hugging Face's name to shape."""
    D, F, V = config.hidden_size, config.intermediate_size, config.vocab_size
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    shapes = {"model.embed_tokens.weight": (V, D)}
    for i in range(config.num_hidden_layers):
        shapes |= {f"model.layers.{i}.{name}.weight": shape for name, shape in {
            "input_layernorm": (D,),
            "self_attn.q_proj": (queries, D),
            "self_attn.k_proj": (keys, D),
            "self_attn.v_proj": (keys, D),
            "self_attn.o_proj": (D, queries),
            "post_attention_layernorm": (D,),
            "mlp.gate_proj": (F, D),
            "mlp.up_proj": (F, D),
            "mlp.down_proj": (D, F),
        }.items()}
    shapes["model.norm.weight"] = (D,)
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (V, D)
    return shapes


_GGUF_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """What a GGUF file calls the tensor that Hugging Face calls `name`.

    >>> gguf_name("model.layers.7.mlp.up_proj.weight")
    'blk.7.ffn_up.weight'
    """
    stem = name.removesuffix(".weight")
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        return f"blk.{layer}.{_GGUF_NAMES[part]}.weight"
    return f"{_GGUF_NAMES[stem]}.weight"


def map_names(found: Mapping[str, tuple[int, ...]], config: ModelConfig) -> dict[str, str]:
    """Decide which tensor of a file is which weight, and accept nothing less than a complete match.

    found: the file's names and shapes, in Hugging Face's naming (with or without the prefix `model.`) or in GGUF's.
    Returns Hugging Face's name to the file's name, for every weight of `expected_shapes`.
    Raises ModelError with all missing, unexpected and misshapen tensors. Only what carries no information may be
    left over: RoPE frequencies that can be computed, and the second copy of a tied head.
    """
    if config.num_hidden_layers > len(found):            # a number in a file must not decide how much memory is taken
        raise ModelError("the checkpoint does not match its configuration",
                         f"{config.num_hidden_layers} layers are announced, and the file holds {len(found)} tensors",
                         "check that the file and the configuration are of the same model, and that the file is whole")
    expected = expected_shapes(config)
    if any(name.startswith("blk.") for name in found):
        names = {name: gguf_name(name) for name in expected}
    elif not any(name.startswith("model.") for name in found):
        names = {name: name.removeprefix("model.") for name in expected}
    else:
        names = {name: name for name in expected}
    missing = sorted(file_name for file_name in names.values() if file_name not in found)
    redundant = {"lm_head.weight", "output.weight"} if config.tie_word_embeddings else set()
    unexpected = sorted(name for name in found.keys() - set(names.values()) - redundant
                        if not name.endswith("rotary_emb.inv_freq"))
    misshapen = [f"{file_name} is {found[file_name]}, expected {expected[name]}"
                 for name, file_name in names.items()
                 if file_name in found and tuple(found[file_name]) != expected[name]]
    if missing or unexpected or misshapen:
        raise ModelError("the checkpoint does not match its configuration",
                         "; ".join(_listed(title, items) for title, items in
                                   (("missing", missing), ("unexpected", unexpected), ("misshapen", misshapen)) if items),
                         "check that the file and the configuration are of the same model, and that the file is whole")
    return names


def _listed(title: str, items: list[str], at_most: int = 8) -> str:
    more = f" and {len(items) - at_most} more" if len(items) > at_most else ""
    return f"{len(items)} {title}: " + ", ".join(items[:at_most]) + more


def unpermute_rope(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Undo the order in which GGUF's llama architecture keeps the rows of q and k.

    weight: (num_heads · d, in); returns the same shape. In the file the two rows of each RoPE pair are neighbours
    within their head; Hugging Face's layout keeps the first halves of all pairs, then the second halves.
    num_heads is K for k_proj.

    >>> unpermute_rope(np.array([[0.], [2.], [1.], [3.]]), num_heads=1).ravel()
    array([0., 1., 2., 3.])
    """
    rows, columns = weight.shape
    pairs = weight.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def load_checkpoint(path: Path, progress: Callable[[Iterable], Iterable] = iter) -> tuple[ModelConfig, Weights]:
    """Load every weight of a model as float32.

    path: a GGUF file, or a folder with `config.json` and `model.safetensors`. progress: wraps the iteration over the
    tensors, as `tqdm` does. Raises FormatError for a damaged file, ModelError for one that does not fit its
    configuration, NotAvailableError for one that is not there. All checks come before any weight is read.
    """
    if path.is_dir():
        config = ModelConfig.from_hf(read_json(path / "config.json"))
        if (path / "model.safetensors.index.json").is_file() and not (path / "model.safetensors").is_file():
            raise ModelError(f"cannot load {path}", "its weights are split into several files, which is not supported",
                             "use a model that keeps them in one model.safetensors")
        with closing(SafetensorsFile.open(path / "model.safetensors")) as file:
            names = map_names({name: info.shape for name, info in file.tensors.items()}, config)
            weights = _assemble(config, progress(names.items()), file.tensor)
            if config.tie_word_embeddings and "lm_head.weight" in file.tensors and not np.array_equal(
                    file.tensor("lm_head.weight"), weights.embed_tokens):
                raise ModelError(f"cannot load {path}", "its configuration ties the head to the embedding, and the file "
                                 "holds a head of its own", "set tie_word_embeddings to false in config.json")
            return config, weights
    with closing(GGUFFile.open(path)) as file:
        config = ModelConfig.from_gguf(file.metadata, tied="output.weight" not in file.tensors)
        names = map_names({name: info.shape for name, info in file.tensors.items()}, config)
        return config, _assemble(config, progress(names.items()), lambda name: gguf_tensor(file, name, config))


def gguf_tensor(file: GGUFFile, name: str, config: ModelConfig) -> np.ndarray:
    """One tensor of a GGUF file as float32, in Hugging Face's layout."""
    weight = file.tensor(name)
    if name.endswith(".attn_q.weight"):
        return unpermute_rope(weight, config.num_attention_heads)
    if name.endswith(".attn_k.weight"):
        return unpermute_rope(weight, config.num_key_value_heads)
    return weight


def read_json(path: Path) -> dict:
    """Read a JSON object from a file. Raises NotAvailableError or FormatError, with the file's name."""
    try:
        if path.exists() and not path.is_file():             # a pipe or a device could be read for ever
            raise NotAvailableError(f"cannot read {path}", "it is no plain file", "fetch the model again")
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise NotAvailableError(f"cannot read {path}", "there is no such file",
                                f"is {path.parent} a complete model folder?") from None
    except OSError as error:
        raise NotAvailableError(f"cannot read {path}", error.strerror or str(error),
                                "check the path and its permissions") from None
    except (ValueError, RecursionError) as error:
        raise FormatError(f"cannot read {path}", f"it is not JSON: {error}", "fetch the model again") from None
    if not isinstance(value, dict):
        raise FormatError(f"cannot read {path}", "it does not hold a JSON object", "fetch the model again")
    return value


def _assemble(config: ModelConfig, names: Iterable[tuple[str, str]],
              read: Callable[[str], np.ndarray]) -> Weights:
    """Reserve the engine's memory and copy each tensor to its place; no tensor is held twice."""
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    F = config.intermediate_size
    D = config.hidden_size

    # One block for everything: the operating system can back it with large pages, which a stream of reads likes.
    block = np.empty(sum(map(prod, expected_shapes(config).values())), np.float32)
    used = 0

    def vector() -> np.ndarray:
        nonlocal used
        used += D
        return block[used - D:used]

    def matrix(out_features: int, in_features: int) -> np.ndarray:
        # The longer side is contiguous: BLAS streams along it fastest when it multiplies one token
        # (seen: 28 against 20 GB/s for 3072 by 576). The shape is the same either way.
        nonlocal used
        start, used = used, used + out_features * in_features
        if out_features >= in_features:
            return block[start:used].reshape(in_features, out_features).T
        return block[start:used].reshape(out_features, in_features)

    layers = tuple(
        LayerWeights(
            input_layernorm=vector(),
            qkv_proj=matrix(queries + 2 * keys, D),
            o_proj=matrix(D, queries),
            post_attention_layernorm=vector(),
            gate_up_proj=matrix(2 * F, D),
            down_proj=matrix(D, F),
        ) for _ in range(config.num_hidden_layers))
    embed_tokens = matrix(config.vocab_size, D)
    lm_head = embed_tokens if config.tie_word_embeddings else matrix(config.vocab_size, D)
    weights = Weights(embed_tokens, layers, vector(), lm_head)

    places = {"model.embed_tokens": embed_tokens, "model.norm": weights.norm, "lm_head": lm_head}
    for i, layer in enumerate(layers):
        places |= {f"model.layers.{i}.{name}": place for name, place in {
            "input_layernorm": layer.input_layernorm,
            "self_attn.q_proj": layer.qkv_proj[:queries],
            "self_attn.k_proj": layer.qkv_proj[queries:queries + keys],
            "self_attn.v_proj": layer.qkv_proj[queries + keys:],
            "self_attn.o_proj": layer.o_proj,
            "post_attention_layernorm": layer.post_attention_layernorm,
            "mlp.gate_proj": layer.gate_up_proj[:F],
            "mlp.up_proj": layer.gate_up_proj[F:],
            "mlp.down_proj": layer.down_proj,
        }.items()}
    for name, file_name in names:
        tensor = read(file_name)
        if tensor.dtype.kind != "f":
            raise FormatError(f"cannot use the tensor {file_name}", f"it holds {tensor.dtype}, which is no weight",
                              "fetch the model again, or use one whose weights are not quantized in a way of its own")
        places[name.removesuffix(".weight")][...] = tensor
    return weights
