"""Rounded models on disk: as a folder in a published layout, or as a GGUF file.

    int8           compressed-tensors, packed: a code of 8 bits, a scale for each row
    int4, gptq     GPTQ's: codes packed along inputs, scales and zero points in groups
    awq            AWQ's: codes packed along outputs
    fp8            compressed-tensors: E4M3, a scale for each row
    mxfp4          compressed-tensors, packed: gpt-oss's layout is for its experts only
    a GGUF file    Q8_0, Q4_0, Q4_1 or MXFP4

In a folder all that is not rounded is float16, as in most published ones; in a GGUF file the
embedding and the head are Q8_0 and the rest float32, as llama.cpp has it. Either appears under
its name when it is complete.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gearworks.config import ModelConfig
from gearworks.errors import ModelError, NotAvailableError
from gearworks.families.layouts import NORMS_FROM_ONE
from gearworks.families.phi3 import row_order
from gearworks.families.gguf_layouts import PERMUTED, ROPE_FACTORS
from gearworks.formats import safetensors
from gearworks.formats.codes import Codes
from gearworks.formats.files import read_json, whole_folder
from gearworks.formats.gguf import TensorType
from gearworks.formats.gguf_parts import open_gguf
from gearworks.formats.gguf_quantize import QUANTIZE, join_q4_0, join_q4_1
from gearworks.formats.gguf_writer import (
    TensorToWrite, encode_value, encoded_metadata, write_gguf)
from gearworks.formats.packed_words import pack_awq, pack_words, zeros_to_v1
from gearworks.formats.quantized import FIELDS
from gearworks.formats.safetensors import LazyTensor
from gearworks.hub.convert import folder_contents
from gearworks.language_model import LanguageModel
from gearworks.quantization.methods import (
    MXFP4, Blocks, Float8, Rounded, RoundedModel, some_rows)
from gearworks.quantization.rounding import unpack_int4
from gearworks.vocabularies.to_gguf import vocabulary_to_gguf
from gearworks.weights import gguf_name, named_tensors, permute_rope

FOLDER_METHODS = ("int8", "int4", "gptq", "awq", "fp8", "mxfp4")
# What each method's matrices become in a GGUF file, where they can be kept: a method of
# `methods.METHODS`, and how the file calls its type as a whole.
GGUF_METHODS = {"int8": ("q8_0", 7), "int4": ("q4_1", 3), "gptq": ("gptq", 3),
                "awq": ("awq", 3), "mxfp4": ("mxfp4", 38), "q8_0": ("q8_0", 7),
                "q4_0": ("q4_0", 2), "q4_1": ("q4_1", 3)}
CARRIED = ("generation_config.json", "tokenizer.json", "tokenizer_config.json",
           "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
           "chat_template.jinja")

Tensors = dict[str, LazyTensor]


# --- folders ----------------------------------------------------------------------------------

def save_folder(rounded: RoundedModel, source: Path, folder: Path, method: str,
                group_size: int = 32, on_tensor: Callable[[], object] = lambda: None) -> None:
    """Write a folder in a published layout, for this engine and for others.

    source: the folder or GGUF file that the model came from, whose tokenizer goes along.
    method: one of `FOLDER_METHODS`. folder: made here, and must not exist. on_tensor: called
    before each tensor is written. Raises NotAvailableError where it cannot be written, and
    ModelError for a model that the layout cannot hold.
    """
    settings, pack = _layout(rounded.matrices, method, group_size)
    tensors: Tensors = {}
    matrices = in_files_order(rounded)
    for name, array in named_tensors(rounded.model.config, rounded.model.weights).items():
        if name in matrices:
            tensors |= pack(name.removesuffix(".weight"), matrices[name])
        else:
            tensors[name] = _plain(name, array, rounded.model.config)
    contents = {}
    if source.is_file():
        with closing(open_gguf(source)) as file:
            contents = folder_contents(file, rounded.model.config)
    else:
        contents["config.json"] = read_json(source / "config.json")
    config = {key: value for key, value in contents["config.json"].items()
              if key not in (*FIELDS, "torch_dtype")}
    contents["config.json"] = config | {"dtype": "float16", "quantization_config": settings}
    with whole_folder(folder) as unfinished:
        for name, value in contents.items():
            text = json.dumps(value, ensure_ascii=False, indent=2) + "\n"
            (unfinished / name).write_text(text, encoding="utf-8")
        for name in CARRIED if source.is_dir() else ():
            if (source / name).is_file():
                shutil.copyfile(source / name, unfinished / name)
        safetensors.write(unfinished / "model.safetensors", {
            name: replace(tensor, load=_counted(tensor.load, on_tensor))
            for name, tensor in tensors.items()}, metadata={"format": "pt"})


def in_files_order(rounded: RoundedModel) -> dict[str, Rounded]:
    """The rounded matrices by name, with their rows as files have them: `phi3.row_order`."""
    matrices = dict(rounded.matrices)
    for name, matrix in rounded.matrices.items():
        order = row_order(name, rounded.model.config)
        if order is not None:
            matrices[name] = some_rows(matrix, np.argsort(order))
    return matrices


def _counted(load: Callable[[], np.ndarray],
             on_tensor: Callable[[], object]) -> Callable[[], np.ndarray]:
    def counted() -> np.ndarray:
        on_tensor()
        return load()
    return counted


def _plain(name: str, array: np.ndarray, config: ModelConfig) -> LazyTensor:
    """A tensor that is not rounded, in float16 unless that would make it infinite."""
    if config.architecture in NORMS_FROM_ONE and name.endswith("norm.weight"):
        array = array - 1                           # as the family's files count from zero
    large = np.abs(array).max(initial=0) > np.finfo(np.float16).max
    dtype = np.dtype(np.float32 if large else np.float16)
    return LazyTensor(array.shape, dtype, lambda: array.astype(dtype))


def _layout(matrices: Mapping[str, Rounded], method: str, group_size: int) -> tuple[
        dict[str, Any], Callable[[str, Any], Tensors]]:
    """The quantization_config of a method's layout, and what packs a matrix of a module."""
    if method == "awq":
        return {"quant_method": "awq", "bits": 4, "group_size": group_size, "version": "gemm",
                "zero_point": True}, _pack_awq
    if method in ("int4", "gptq"):
        # the first version stores a zero point less one, and no program agrees on 0 less one
        first = all(zero_points(matrix).min() > 0 for matrix in matrices.values())
        return {"quant_method": "gptq", "bits": 4, "group_size": group_size, "sym": False,
                "desc_act": False, "lm_head": False,
                "checkpoint_format": "gptq" if first else "gptq_v2"
                }, partial(_pack_gptq, first_version=first)
    kind, pack, weights = {
        "int8": ("pack-quantized", _pack_int8, {"num_bits": 8, "type": "int",
                                                "strategy": "channel", "group_size": None}),
        "fp8": ("float-quantized", _pack_fp8, {"num_bits": 8, "type": "float",
                                               "strategy": "channel", "group_size": None}),
        "mxfp4": ("mxfp4-pack-quantized", _pack_mxfp4,
                  {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32,
                   "scale_dtype": "torch.uint8"})}[method]
    return {"quant_method": "compressed-tensors", "format": kind,
            "quantization_status": "compressed", "ignore": ["lm_head"],
            "config_groups": {"group_0": {
                "targets": ["Linear"], "input_activations": None, "output_activations": None,
                "weights": weights | {"symmetric": True, "dynamic": False}}}}, pack


def zero_points(matrix: Codes) -> np.ndarray:
    """The code of 0 in each group, (out, groups) uint8; 1 where all of a group are zeros.

    >>> zero_points(Codes(np.zeros((1, 2), np.uint8), np.array([[0.5, 0]], np.float32),
    ...                   np.array([[-2, 0]], np.float32), bits=4))
    array([[4, 1]], dtype=uint8)
    """
    found = np.ones_like(matrix.scales)
    np.divide(-matrix.minimums, matrix.scales, out=found, where=matrix.scales > 0)
    return np.rint(found).astype(np.uint8)


def _pack_gptq(module: str, matrix: Codes, first_version: bool) -> Tensors:
    out, inputs = _require_eights(module, matrix)
    groups = matrix.scales.shape[1]

    def zeros() -> np.ndarray:
        words = pack_words(zero_points(matrix).T, 4, axis=1)
        return zeros_to_v1(words, 4) if first_version else words
    return {
        f"{module}.qweight": LazyTensor((inputs // 8, out), np.dtype(np.int32),
                                        lambda: pack_words(matrix.codes.T, 4, axis=0)),
        f"{module}.qzeros": LazyTensor((groups, out // 8), np.dtype(np.int32), zeros),
        f"{module}.scales": _float16(f"{module}.scales", matrix.scales.T),
        f"{module}.g_idx": LazyTensor(
            (inputs,), np.dtype(np.int32),
            lambda: (np.arange(inputs) // matrix.group_size).astype(np.int32))}


def _pack_awq(module: str, matrix: Codes) -> Tensors:
    out, inputs = _require_eights(module, matrix)
    return {
        f"{module}.qweight": LazyTensor((inputs, out // 8), np.dtype(np.int32),
                                        lambda: pack_awq(matrix.codes.T)),
        f"{module}.qzeros": LazyTensor((matrix.scales.shape[1], out // 8), np.dtype(np.int32),
                                       lambda: pack_awq(zero_points(matrix).T)),
        f"{module}.scales": _float16(f"{module}.scales", matrix.scales.T)}


def _pack_int8(module: str, matrix: Codes) -> Tensors:
    out, inputs = matrix.codes.shape

    def words() -> np.ndarray:
        # stored as the distance from the smallest code, so that none is negative
        return pack_words(matrix.codes.view(np.uint8) + np.uint8(128), 8, axis=1)
    return {
        f"{module}.weight_packed": LazyTensor((out, -(-inputs // 4)), np.dtype(np.int32),
                                              words),
        f"{module}.weight_scale": LazyTensor((out, 1), np.dtype(np.float32),
                                             lambda: matrix.scales),
        f"{module}.weight_shape": LazyTensor((2,), np.dtype(np.int64),
                                             lambda: np.array([out, inputs]))}


def _pack_fp8(module: str, matrix: Float8) -> Tensors:
    return {
        f"{module}.weight": LazyTensor(matrix.codes.shape, np.dtype(np.uint8),
                                       lambda: matrix.codes, "F8_E4M3"),
        f"{module}.weight_scale": LazyTensor(matrix.scales.shape, np.dtype(np.float32),
                                             lambda: matrix.scales)}


def _pack_mxfp4(module: str, matrix: MXFP4) -> Tensors:
    out, groups = matrix.scales.shape
    return {
        f"{module}.weight_packed": LazyTensor((out, groups * 16), np.dtype(np.uint8),
                                              lambda: matrix.blocks.reshape(out, -1)),
        f"{module}.weight_scale": LazyTensor((out, groups), np.dtype(np.uint8),
                                             lambda: matrix.scales)}


def _require_eights(module: str, matrix: Codes) -> tuple[int, int]:
    out, inputs = matrix.codes.shape
    if out % 8 or inputs % 8:
        raise ModelError("cannot save this model in the layout of its method",
                         f"{module} is {out} by {inputs}, and a word holds eight codes",
                         "a GGUF file, or --method int8")
    return out, inputs


def _float16(name: str, scales: np.ndarray) -> LazyTensor:
    if scales.max(initial=0) > np.finfo(np.float16).max:
        raise ModelError("cannot save this model in the layout of its method",
                         f"{name} reach {scales.max():.3g}, beyond float16",
                         "--method int8, whose scales are float32")
    return LazyTensor(scales.shape, np.dtype(np.float16), lambda: scales.astype(np.float16))


# --- GGUF files -------------------------------------------------------------------------------

def save_gguf(rounded: RoundedModel, language_model: LanguageModel, source: Path, path: Path,
              file_type: int, on_tensor: Callable[[], object] = lambda: None) -> None:
    """Write a GGUF file, for this engine and for llama.cpp.

    rounded: by a method that `GGUF_METHODS` names on its right side, with its number as
    file_type. source: where the model came from; of a GGUF file all metadata is carried over.
    The rest as `save_folder`.
    """
    config = rounded.model.config
    if config.experts is not None or config.latent is not None:
        raise ModelError(f"cannot write a model of the architecture {config.architecture} to a "
                         "GGUF file",
                         "such a file has other tensors than this engine's, and it does not "
                         "make them", "save it as a folder")
    metadata = _metadata(config, language_model, source)
    metadata |= {"general.file_type": encode_value(file_type),
                 "general.quantization_version": encode_value(2)}
    tensors, matrices = {}, in_files_order(rounded)
    for name, array in named_tensors(config, rounded.model.weights).items():
        file_name = gguf_name(name, config.architecture)
        matrix = matrices.get(name)
        heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads
                 }.get(file_name.split(".")[-2])
        if heads and config.architecture in PERMUTED:
            order = permute_rope(np.arange(len(array)), heads)
            matrix = matrix and some_rows(matrix, order)
        if matrix is not None:
            type, load = _blocks_of(name, matrix)
        elif array.ndim == 2 and array.shape[1] % 32 == 0:
            type, load = TensorType.Q8_0, partial(_q8_0, array)
        else:
            type = TensorType.F32 if array.ndim == 1 else TensorType.F16
            load = partial(array.astype, np.float32 if array.ndim == 1 else np.float16)
        tensors[file_name] = TensorToWrite(type, array.shape, _counted(load, on_tensor))
    scaling = config.rope_scaling
    if scaling is not None and scaling.kind == "factors":
        factors = np.array(scaling.factors, np.float32)
        tensors[ROPE_FACTORS[0]] = TensorToWrite(TensorType.F32, factors.shape, lambda: factors)
    write_gguf(path, metadata, tensors)


def _metadata(config: ModelConfig, language_model: LanguageModel,
              source: Path) -> dict[str, bytes]:
    if source.is_file():
        with closing(open_gguf(source)) as file:
            metadata = encoded_metadata(file.path)          # of part 1, if there are several
        return {key: value for key, value in metadata.items()
                if key != "general.alignment" and not key.startswith("split.")}
    values = config.to_gguf() | {"general.name": source.resolve().name}
    template = language_model.settings.get("chat_template")
    values |= vocabulary_to_gguf(language_model.tokenizer.vocabulary, config.vocab_size,
                                 language_model.eos_ids,
                                 template if isinstance(template, str) else None)
    back = ModelConfig.from_gguf(values, config.tie_word_embeddings)
    if replace(back, architecture=config.architecture) != config:
        raise ModelError("cannot write this model to a GGUF file",
                         "its configuration has something that the format's keys do not say, "
                         "such as scaled RoPE or windows",
                         "save it as a folder")
    return {key: encode_value(value) for key, value in values.items()}


def _q8_0(array: np.ndarray) -> np.ndarray:
    return QUANTIZE[TensorType.Q8_0](np.ascontiguousarray(array).reshape(-1, 32))


def _blocks_of(name: str, matrix: Rounded) -> tuple[TensorType, Callable[[], np.ndarray]]:
    """A matrix as the blocks of a type that can hold it."""
    if isinstance(matrix, Blocks):
        return matrix.type, lambda: matrix.raw
    if isinstance(matrix, MXFP4):
        return TensorType.MXFP4, partial(_mxfp4_blocks, matrix)
    if matrix.group_size % 32:
        raise ModelError("cannot save this model as a GGUF file",
                         f"{name} has groups of {matrix.group_size}, and the format's blocks "
                         "are of 32", "--group-size 32")
    centred = np.array_equal(matrix.minimums, -8 * matrix.scales)
    return (TensorType.Q4_0 if centred else TensorType.Q4_1), partial(_q4_blocks, matrix,
                                                                      centred)


def _q4_blocks(matrix: Codes, centred: bool) -> np.ndarray:
    times = matrix.group_size // 32
    codes = matrix.codes.reshape(-1, 32)
    scales = np.repeat(matrix.scales, times, axis=1).reshape(-1, 1)
    if centred:
        return join_q4_0(codes, scales)
    return join_q4_1(codes, scales, np.repeat(matrix.minimums, times, axis=1).reshape(-1, 1))


def _mxfp4_blocks(matrix: MXFP4) -> np.ndarray:
    codes = unpack_int4(matrix.blocks).reshape(-1, 32)
    return np.concatenate([matrix.scales.reshape(-1, 1), codes[:, :16] | codes[:, 16:] << 4],
                          axis=1)


def require_free(path: Path) -> None:
    """Raise NotAvailableError where a folder or file of that name cannot be made, before the
    work is done."""
    if path.is_dir() or (path.exists() and path.suffix != ".gguf"):
        raise NotAvailableError(f"cannot write {path}", "it exists already",
                                "another name, or delete it first")
    if not path.absolute().parent.is_dir():
        raise NotAvailableError(f"cannot write {path}", "its folder does not exist",
                                "a name in a folder that exists")
