"""Whole models in fewer bits: every method that there is, by name.

Rounding to the nearest looks at the weights alone, and works for every family; GPTQ and AWQ
look at what the layers read (`calibration`). All of them leave the embedding, the head, norms,
biases and routers as they are.

Left out on purpose: a different method, or number of bits, for some of the layers.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import numpy as np

from gearworks.errors import ModelError
from gearworks.families.layouts import Part, layout
from gearworks.families.routes import runs
from gearworks.formats.gguf import BLOCK_FORMATS, TensorType, dequantize
from gearworks.formats.gguf_quantize import QUANTIZE
from gearworks.model import Model
from gearworks.quantization import calibration
from gearworks.quantization.mxfp4 import BLOCK, dequantize_mxfp4, quantize_mxfp4
from gearworks.quantization.rounding import (
    dequantize_fp8, int4_codes, int8_codes, quantize_fp8, require_finite, require_groups)


class Rounded(Protocol):
    """A matrix (out, in) in fewer bits: `Codes`, or one of the three kinds below. Its arrays
    have the rows of the matrix as their first axis."""

    def dequantize(self) -> np.ndarray:
        """What it stands for, (out, in) float32."""
        ...


@dataclass(frozen=True)
class Float8:
    """Codes of E4M3, (out, in) uint8, and a scale for each row, (out, 1) float32."""

    codes: np.ndarray
    scales: np.ndarray

    def dequantize(self) -> np.ndarray:
        return dequantize_fp8(self.codes, self.scales)


@dataclass(frozen=True)
class MXFP4:
    """Blocks (out, in / 32, 16) and their scales (out, in / 32), both uint8."""

    blocks: np.ndarray
    scales: np.ndarray

    def dequantize(self) -> np.ndarray:
        return dequantize_mxfp4(self.blocks, self.scales)


@dataclass(frozen=True)
class Blocks:
    """GGUF's blocks of one type: raw, (out, bytes of a row) uint8."""

    type: TensorType
    raw: np.ndarray

    def dequantize(self) -> np.ndarray:
        block = BLOCK_FORMATS[self.type]
        rows, nbytes = self.raw.shape
        return dequantize(self.raw.reshape(-1), self.type,
                          (rows, nbytes // block.nbytes * block.size))


def to_blocks(weight: np.ndarray, type: TensorType) -> Blocks:
    """Round a matrix (out, in) to blocks of 32, as llama.cpp does it.
    Raises ModelError when a number is nan or infinite, or 32 does not divide `in`."""
    require_finite(weight)
    require_groups(weight, 32)
    raw = QUANTIZE[type](np.ascontiguousarray(weight).reshape(-1, 32))
    return Blocks(type, raw.reshape(len(weight), -1))


ROUNDING: Mapping[str, Callable[[np.ndarray, int], Rounded]] = {
    "int8": lambda weight, _: int8_codes(weight),
    "int4": int4_codes,
    "fp8": lambda weight, _: Float8(*quantize_fp8(weight)),
    "mxfp4": lambda weight, _: MXFP4(*quantize_mxfp4(weight)),
    "q8_0": lambda weight, _: to_blocks(weight, TensorType.Q8_0),
    "q4_1": lambda weight, _: to_blocks(weight, TensorType.Q4_1),
    "q4_0": lambda weight, _: to_blocks(weight, TensorType.Q4_0)}

METHODS = (*ROUNDING, *calibration.METHODS)
GROUPED = ("int4", *calibration.METHODS)            # whose groups may have any size


@dataclass(frozen=True)
class RoundedModel:
    """A model after rounding.

    model: what it stands for, in float32, to be run as any other. matrices: of what was
    rounded, by Hugging Face's name of the tensor.
    """

    model: Model
    matrices: Mapping[str, Rounded]


def round_model(model: Model, method: str, group_size: int = 32,
                texts: np.ndarray | None = None,
                progress: Callable[[Iterable], Iterable] = iter) -> RoundedModel:
    """Round every matrix of every layer by one of `METHODS`.

    group_size: how many neighbours share a scale, of `GROUPED`; others have a size of their
    own. texts: (N, T) ids to calibrate GPTQ and AWQ on. progress: wraps the iteration over
    layers, as `tqdm` does. The model itself stays as it is. Raises ModelError for a family or
    sizes that the method does not know, and for weights that are no numbers.
    """
    require_method(model, method, group_size)
    descriptions = layout(model.config)[1]
    layers, matrices = [], {}
    for (rounded, weights), description in zip(
            progress(_rounded_layers(model, method, group_size, texts)), descriptions):
        layers.append(weights)
        for field, matrix in rounded.items():
            row = 0
            for part in description[field]:
                matrices[part.name] = some_rows(matrix, slice(row, row + part.shape[0]))
                row += part.shape[0]
    changed = replace(model.weights, layers=tuple(layers))
    return RoundedModel(Model(model.config, changed), matrices)


def require_method(model: Model, method: str, group_size: int) -> None:
    """Raise ModelError unless a method can round a model, as far as its shapes tell."""
    if not runs("round", model.config.architecture):
        raise ModelError(
            f"cannot quantize a model of the architecture {model.config.architecture}",
            "its matrices are stored the other way round than in the layouts that are written "
            "here", "use a model of another family")
    sizes = {"int8": 1, "fp8": 1, "mxfp4": BLOCK, "q8_0": 32, "q4_0": 32, "q4_1": 32}
    size = sizes.get(method, group_size)
    for description in layout(model.config)[1]:
        for parts in _matrices(description).values():
            if parts[0].shape[1] % size:
                raise ModelError(f"cannot quantize this model by {method}",
                                 f"a row of {parts[0].name} has {parts[0].shape[1]} numbers, "
                                 f"which are not whole groups of {size}",
                                 "another --group-size, or --method int8, which has a scale "
                                 "for each row")


def some_rows(matrix: Rounded, rows: slice | np.ndarray) -> Any:
    """A matrix that has some rows of another, or all in another order."""
    return replace(matrix, **{field.name: value[rows] for field in fields(matrix)
                              if isinstance(value := getattr(matrix, field.name), np.ndarray)})


def bits_per_weight(matrix: Rounded) -> float:
    """What a file spends on each weight: the code, and its share of scales and zero points.

    Scales count as float16 in groups and as float32 for a row; zero points as codes.

    >>> bits_per_weight(int4_codes(np.ones((2, 64), np.float32), 32))
    4.625
    """
    if isinstance(matrix, Blocks):
        block = BLOCK_FORMATS[matrix.type]
        return 8 * block.nbytes / block.size
    if isinstance(matrix, MXFP4):
        return 4 + 8 / BLOCK
    columns = matrix.codes.shape[1]
    if isinstance(matrix, Float8) or matrix.minimums is None:
        return 8 + 32 / columns
    return matrix.bits + (16 + matrix.bits) / matrix.group_size


def _matrices(description: Mapping[str, Sequence[Part]]) -> dict[str, Sequence[Part]]:
    """Those fields of a layer that are rounded."""
    return {field: parts for field, parts in description.items()
            if len(parts[0].shape) == 2 and field != "router"}


def _rounded_layers(model: Model, method: str, group_size: int,
                    texts: np.ndarray | None) -> Iterator[tuple[dict[str, Rounded], Any]]:
    if method in calibration.METHODS:
        for layer in calibration.rounded_layers(model, texts, method, group_size):
            yield layer.codes, layer.weights
        return
    for layer, description in zip(model.weights.layers, layout(model.config)[1]):
        rounded, values = {}, {}
        for field in _matrices(description):
            array = getattr(layer, field)
            rounded[field] = ROUNDING[method](array.reshape(-1, array.shape[-1]), group_size)
            values[field] = rounded[field].dequantize().reshape(array.shape)
        yield rounded, replace(layer, **values)
