"""From the tensors of a file to the weights of a decoder: names, layouts, and strict loading.

Shapes: V vocabulary, D hidden size, F feed-forward size, H query heads, K key/value heads, d
head size.
Names and (out, in) shapes are Hugging Face's. Underneath, matrices that read the same input
share one block of memory, so that one product computes q, k and v, and one computes gate and
up; `q_proj` and the others are views of it.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from math import prod
from pathlib import Path

import numpy as np

from gearworks.config import ModelConfig
from gearworks.errors import FormatError, ModelError, NotAvailableError
from gearworks.families.gguf_layouts import PERMUTED, ROPE_FACTORS, arranged, gguf_name
from gearworks.families.phi3 import row_order
from gearworks.families.layouts import (
    NORMS_FROM_ONE, Fields, Part, Weights, layer_class, layout)
from gearworks.formats.gguf import GGUFFile
from gearworks.formats.gguf_parts import open_gguf
from gearworks.formats.pickled import PickledFile
from gearworks.formats.files import read_json
from gearworks.formats.safetensors import SafetensorsFile
from gearworks.formats.shards import ShardedPickled, ShardedSafetensors
from gearworks.formats.quantized import QuantizedFile, open_quantized, split_config

Checkpoint = (GGUFFile | SafetensorsFile | ShardedSafetensors | PickledFile | ShardedPickled
              | QuantizedFile)

FLOATS = {"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"}


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that such a checkpoint must hold: Hugging Face's name to shape."""
    model, layers = layout(config)
    return {part.name: part.shape for fields in (model, *layers) for parts in fields.values()
            for part in parts}


def map_names(found: Mapping[str, tuple[int, ...]], config: ModelConfig) -> dict[str, str]:
    """Decide which tensor of a file is which weight; accept nothing less than a complete match.

    found: the file's names and shapes, in Hugging Face's naming or in GGUF's. Hugging Face's
    comes with or without its prefix, which is `transformer.` for a GPT2LMHeadModel, and
    `model.` for all others.
    Returns Hugging Face's name to the file's name, for every weight of `expected_shapes`.
    Raises ModelError with all missing, unexpected and misshapen tensors, under the file's names
    or under Hugging Face's. Only what carries no information may be left over: what `is_idle`
    names, such as RoPE frequencies that can be computed, and the second copy of a tied head.

    >>> config = ModelConfig("LlamaForCausalLM", vocab_size=9, hidden_size=8,
    ...                      intermediate_size=12, num_hidden_layers=1, num_attention_heads=2,
    ...                      num_key_value_heads=1, head_dim=4, max_position_embeddings=16,
    ...                      rms_norm_eps=1e-5, rope_theta=1e4, tie_word_embeddings=True)
    >>> found = {gguf_name(name): shape for name, shape in expected_shapes(config).items()}
    >>> map_names(found, config)["model.layers.0.mlp.up_proj.weight"]
    'blk.0.ffn_up.weight'
    >>> found.pop("blk.0.ffn_up.weight")
    (12, 8)
    >>> map_names(found, config)
    Traceback (most recent call last):
    gearworks.errors.ModelError: the checkpoint does not match its configuration
    """
    require_plausible(config, len(found))
    expected = expected_shapes(config)
    prefix = "transformer." if config.architecture == "GPT2LMHeadModel" else "model."
    if any(name.startswith("blk.") for name in found):
        names = {name: gguf_name(name, config.architecture) for name in expected}
    elif not any(name.startswith(prefix) for name in found):
        names = {name: name.removeprefix(prefix) for name in expected}
    else:
        names = {name: name for name in expected}
    missing = sorted(file_name for file_name in names.values() if file_name not in found)
    redundant = {"lm_head.weight", "output.weight"} if config.tie_word_embeddings else set()
    unexpected = sorted(name for name in found.keys() - set(names.values()) - redundant
                        if not is_idle(name, config))
    misshapen = [f"{file_name} is {found[file_name]}, expected {expected[name]}"
                 for name, file_name in names.items()
                 if file_name in found and tuple(found[file_name]) != expected[name]]
    if missing or unexpected or misshapen:
        wrong = {"missing": missing, "unexpected": unexpected, "misshapen": misshapen}
        raise ModelError("the checkpoint does not match its configuration",
                         "; ".join(listed(title, items) for title, items in wrong.items()
                                   if items),
                         "check that the file and the configuration are of the same model, and "
                         "that the file is whole")
    return names


def require_plausible(config: ModelConfig, tensors: int) -> None:
    """Refuse a configuration with more layers and experts than the file has tensors, so that
    a number in a file reserves no memory. Raises ModelError."""
    announced = config.num_hidden_layers
    if config.experts is not None and config.architecture != "GptOssForCausalLM":
        announced += config.experts.num_experts * sum(config.experts.sparse_layers)
    if announced > tensors:
        raise ModelError("the checkpoint does not match its configuration",
                         f"{config.num_hidden_layers} layers"
                         + (" with experts" if config.experts else "")
                         + f" are announced, and the file holds {tensors} tensors",
                         "check that the file and the configuration are of the same model, and "
                         "that the file is whole")


def is_idle(name: str, config: ModelConfig) -> bool:
    """Whether a tensor that a checkpoint holds besides its weights may be left out."""
    if config.prediction_layers:
        layers = range(config.num_hidden_layers,
                       config.num_hidden_layers + config.prediction_layers)
        return any(name.startswith(f"model.layers.{layer}.") for layer in layers)
    if config.architecture == "GPT2LMHeadModel":  # the causal mask, kept as if it were a weight
        return name.endswith((".attn.bias", ".attn.masked_bias"))
    if config.rope_scaling is not None and config.rope_scaling.of_pairs:
        return name in ROPE_FACTORS                         # read with the configuration
    return name.endswith("rotary_emb.inv_freq")


def listed(title: str, items: list[str], at_most: int = 8) -> str:
    """How many items there are, and the first of them, for a message.

    >>> listed("missing", ["a", "b", "c"], at_most=2)
    '3 missing: a, b and 1 more'
    """
    more = f" and {len(items) - at_most} more" if len(items) > at_most else ""
    return f"{len(items)} {title}: " + ", ".join(items[:at_most]) + more


def unpermute_rope(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Undo the order in which GGUF's llama architecture keeps the rows of q and k.

    weight: (num_heads · d, in); returns the same shape. In the file the two rows of each RoPE
    pair are neighbours within their head; Hugging Face's layout keeps the first halves of all
    pairs, then the second halves. num_heads is K for k_proj.

    >>> unpermute_rope(np.array([[0.], [2.], [1.], [3.]]), num_heads=1).ravel()
    array([0., 1., 2., 3.])
    """
    rows, columns = weight.shape
    pairs = weight.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def permute_rope(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Put rows of q or k into the order of GGUF's llama architecture; undoes `unpermute_rope`.

    rows: (num_heads · d, …); returns the same shape.

    >>> permute_rope(np.array([0, 1, 2, 3]), num_heads=1)
    array([0, 2, 1, 3])
    """
    halves = rows.reshape(num_heads, 2, len(rows) // num_heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def named_tensors(config: ModelConfig, weights: Weights) -> dict[str, np.ndarray]:
    """Every tensor of a model by Hugging Face's name, as a view: the reverse of `reserve`.

    Gemma's norms are as the engine has them, with the one added, and Phi-3's rows in the
    engine's order: `phi3.row_order`.
    """
    model, layers = layout(config)
    tensors: dict[str, np.ndarray] = {}
    for owner, fields in ((weights, model), *zip(weights.layers, layers)):
        for name, parts in fields.items():
            array = getattr(owner, name)
            if array.ndim > len(parts[0].shape):                # of experts, one by one
                array = array.reshape(-1, *array.shape[2:])
            row = 0
            for part in parts:
                place = array[row:row + part.in_engine[0]]
                tensors[part.name] = place.swapaxes(-1, -2) if part.transposed else place
                row += len(place)
    return tensors


def load_checkpoint(
        path: Path,
        progress: Callable[[Iterable], Iterable] = iter) -> tuple[ModelConfig, Weights]:
    """Load every weight of a model as float32.

    path: a GGUF file, or a folder as Hugging Face lays it out. progress: wraps the iteration
    over the tensors, as `tqdm` does. Raises FormatError for a damaged file, ModelError for one
    that does not fit its configuration, NotAvailableError for one that is not there. Names and
    shapes are checked before any weight is read, and no weight is held twice.

    >>> load_checkpoint(Path("no-such-model"))
    Traceback (most recent call last):
    gearworks.errors.NotAvailableError: cannot find no-such-model
    """
    config, file = open_checkpoint(path)
    with closing(file):
        names = map_names({name: info.shape for name, info in file.tensors.items()}, config)
        weights, places = reserve(config)
        for name, file_name in progress(names.items()):
            read_into(places[name], file, file_name, config)
        if config.tie_word_embeddings and "lm_head.weight" in file.tensors:
            require_same_head(file, weights, path)
    return config, weights


def open_checkpoint(path: Path) -> tuple[ModelConfig, Checkpoint]:
    """A model's configuration, and its open file of weights; errors as `load_checkpoint`.

    Of several formats in one folder, safetensors wins over pickles, and one file over several.
    Where config.json says that weights are quantized, they are read as plain ones.
    """
    if not path.is_dir():
        file = open_gguf(path)
        config = gguf_config(file)
        return config, arranged(file, config)
    settings, layout_of_codes = split_config(read_config(path))
    config = ModelConfig.from_hf(settings)
    file = open_weights(path)
    if layout_of_codes is not None:
        file = open_quantized(file, layout_of_codes, expected_shapes(config).keys())
    return config, file


def read_config(folder: Path) -> dict[str, object]:
    """What a folder's config.json holds. Errors as `files.read_json`."""
    files = sorted(folder.glob("*.gguf"))
    if files and not (folder / "config.json").exists():
        raise NotAvailableError(f"cannot load the model in {folder}",
                                "it has no config.json; of GGUF files each is a model by "
                                "itself, or a part of one", f"one of them, such as {files[0]}")
    return read_json(folder / "config.json")


def open_weights(folder: Path) -> Checkpoint:
    """The weights in a folder, as they are stored; which ones, `open_checkpoint` says.
    Errors as `load_checkpoint`."""
    for name, opened in (
        ("model.safetensors", lambda: SafetensorsFile.open(folder / "model.safetensors")),
        (ShardedSafetensors.index_name, lambda: ShardedSafetensors.open(folder)),
        ("pytorch_model.bin", lambda: PickledFile.open(folder / "pytorch_model.bin")),
        (ShardedPickled.index_name, lambda: ShardedPickled.open(folder))):
        if (folder / name).exists():
            return opened()
    raise NotAvailableError(f"cannot load the model in {folder}",
                            "it has a config.json and no weights",
                            "fetch it again, with its model.safetensors")


def gguf_config(file: GGUFFile) -> ModelConfig:
    """What a GGUF file says of its model. Raises ModelError as `ModelConfig.from_gguf`."""
    factors = {name: file.tensor(name).ravel().tolist() for name in ROPE_FACTORS
               if name in file.tensors}
    return ModelConfig.from_gguf(file.metadata, tied="output.weight" not in file.tensors,
                                 rope_factors=factors)


def reserve(config: ModelConfig) -> tuple[Weights, dict[str, np.ndarray]]:
    """The engine's memory for a model, still empty, and each tensor's place in it, a view.

    Places go by Hugging Face's names. A place has the shape that a file keeps. What the places
    do not cover is nothing: together they are all of it.
    """
    model, layers = layout(config)
    # One block for everything: the operating system can back it with large pages, which a
    # stream of reads likes.
    block = np.empty(sum(map(prod, expected_shapes(config).values())), np.float32)
    used = 0
    places: dict[str, np.ndarray] = {}

    def field(parts: list[Part], experts: int) -> np.ndarray:
        nonlocal used
        shapes = [part.in_engine for part in parts]
        rows, columns = sum(shape[0] for shape in shapes), shapes[0][1:]
        start, used = used, used + rows * prod(columns)
        array = block[start:used].reshape(rows, *columns)
        if len(columns) == 1 and rows >= columns[0] and not experts:
            # The longer side is contiguous: BLAS streams along it fastest when it multiplies
            # one token (seen: 28 against 20 GB/s for 3072 by 576). The shape is the same either
            # way.
            array = block[start:used].reshape(columns[0], rows).T
        row = 0
        for part, shape in zip(parts, shapes):
            place = array[row:row + shape[0]]
            places[part.name] = place.swapaxes(-1, -2) if part.transposed else place
            row += shape[0]
        return array.reshape(experts, -1, *columns) if experts and len(columns) == 1 else array

    def assemble_layer(fields: Fields) -> object:
        experts = config.experts.num_experts if "router" in fields else 0
        arrays = {name: field(parts, experts if name in ("gate_up_proj", "down_proj") else 0)
                  for name, parts in fields.items()}
        return layer_class(config)(**arrays)

    assembled = tuple(map(assemble_layer, layers))
    arrays = {name: field(parts, 0) for name, parts in model.items()}
    weights = Weights(layers=assembled, **({"lm_head": arrays["embed_tokens"]} | arrays))
    return weights, places


def read_into(place: np.ndarray, file: Checkpoint, name: str, config: ModelConfig) -> None:
    """Bring one tensor of a file to its place, as the engine computes with it.

    Raises FormatError as the file does.
    In GGUF files of the llama architecture, and of no other, the rows of q and k are permuted.
    Gemma's norms are stored as their distance from one, except in GGUF files, where the one
    has been added. Phi-3's rows may be in another order.
    """
    order = row_order(name, config)
    if order is not None:
        place[...] = file.tensor(name)[order]
        return
    if isinstance(file, GGUFFile):
        if (config.architecture in PERMUTED
            and name.endswith((".attn_q.weight", ".attn_k.weight"))):
            place[...] = gguf_tensor(file, name, config)
        else:
            file.tensor(name, out=place)
        return
    if file.tensors[name].dtype not in FLOATS:
        raise FormatError(f"cannot use the tensor {name}",
                          f"it holds {file.tensors[name].dtype}, which is no weight",
                          "fetch the model again, or use one whose weights are not quantized "
                          "in a way of its own")
    file.tensor(name, out=place)
    if config.architecture in NORMS_FROM_ONE and name.endswith("norm.weight"):
        place += 1


def gguf_tensor(file: GGUFFile, name: str, config: ModelConfig) -> np.ndarray:
    """One tensor of a GGUF file as float32, in Hugging Face's layout."""
    weight = file.tensor(name)
    if config.architecture in PERMUTED and name.endswith(".attn_q.weight"):
        return unpermute_rope(weight, config.num_attention_heads)
    if config.architecture in PERMUTED and name.endswith(".attn_k.weight"):
        return unpermute_rope(weight, config.num_key_value_heads)
    return weight


def require_same_head(file: Checkpoint, weights: Weights, path: Path) -> None:
    """Refuse a file of a tied model that holds another `lm_head.weight` than its embedding.
    Raises ModelError."""
    if not np.array_equal(file.tensor("lm_head.weight"), weights.embed_tokens):
        raise ModelError(f"cannot load {path}",
                         "its configuration ties the head to the embedding, and the file holds "
                         "a head of its own",
                         "set tie_word_embeddings to false in config.json")
