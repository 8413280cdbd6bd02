"""The weights of a model in one array, in the layout of the kernels.

Names and shapes are those of `families.layouts`: matrices that read the same input (q, k and v;
gate and up) are one. Those of a layer's experts follow each other. How many bits each takes is
known from the file's table alone, so the array is reserved once, and no matrix of a product is
ever held as float32 that the file holds in fewer bits.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gearworks.config import ModelConfig
from gearworks.families.layouts import Fields, Part, layout
from gearworks.kernels.cpu.layout import LANES, MATRIX, NONE, Form, aligned, pack
from gearworks.formats.codes import Codes

# A matrix in codes, (out, in), of all experts with their rows one below the other; or float32
# in the file's shape
Weight = Codes | np.ndarray

# Matrices that are no product's: rows are read one by one, or head by head
READ_AS_FLOATS = ("kv_b_proj", "embed_positions")


class Source(Protocol):
    """Where tensors come from: a file, or a dictionary."""

    def form(self, part: Part) -> Form:
        """The form of a matrix, without reading it."""

    def read(self, part: Part) -> Weight:
        """One tensor."""


@dataclass(frozen=True)
class Place:
    """Where some tensors of a file belong: one matrix, or `count` of experts, or one row of
    float32 numbers. rows, columns: of a matrix."""

    parts: Sequence[Part]
    form: Form | None           # None: they are numbers
    start: int                  # in words
    count: int = 1
    rows: int = 0
    columns: int = 0

    def sizes(self) -> list[int]:
        """How many words, scales and minimums a matrix has."""
        return [int(np.prod(shape)) if shape else 0
                for shape in self.form.shapes(self.rows, self.columns)]

    def views(self, words: np.ndarray, number: int) -> list[np.ndarray | None]:
        """A matrix's words, scales and minimums in the model's array."""
        views, sizes = [], self.sizes()
        at = self.start + number * sum(sizes)
        for shape, size in zip(self.form.shapes(self.rows, self.columns), sizes):
            view = words[at:at + size].reshape(shape) if shape else None
            views.append(view.view(np.float32) if views and view is not None else view)
            at += size
        return views


class WeightStore:
    """All weights of a model.

    words: (n,) uint32, all of them; numbers: the same bytes as float32; matrices: (m,) of
    `MATRIX`; layers, model: for each field of `families.layouts` a matrix's number, of experts
    the first one's, or where a vector begins.
    """

    def __init__(self, config: ModelConfig, source: Source,
                 progress: Callable[[Iterable], Iterable] = iter):
        """progress: wraps the iteration over the tensors, as `tqdm` does."""
        model, layers = layout(config)
        self._used = 0
        self._matrices: list[tuple[int, ...]] = []
        places: list[Place] = []
        self.layers = [self._reserve_fields(fields, source, places, config)
                       for fields in layers]
        self.model = self._reserve_fields(model, source, places, config)
        self.model.setdefault("lm_head", self.model["embed_tokens"])
        self.matrices = np.array(self._matrices, MATRIX)
        self.words = aligned(self._used)
        self.numbers = self.words.view(np.float32)
        for place in progress(places):
            self._fill(place, source)

    def vector(self, start: int, size: int) -> np.ndarray:
        """A vector that begins there, (size,) float32, a view."""
        return self.numbers[start:start + size]

    def _reserve_fields(self, fields: Fields, source: Source, places: list[Place],
                        config: ModelConfig) -> dict[str, int]:
        experts = config.experts.num_experts if "router" in fields else 0
        return {name: self._reserve(name, parts, source, places,
                                    experts if name in ("gate_up_proj", "down_proj") else 0)
                for name, parts in fields.items()}

    def _reserve(self, name: str, parts: Sequence[Part], source: Source, places: list[Place],
                 experts: int) -> int:
        """Decide where tensors go; returns a matrix's number, or where a vector begins."""
        start = self._used
        if len(parts[0].shape) == 1 or name in READ_AS_FLOATS or name.endswith("_bias"):
            places.append(Place(parts, None, start))
            size = sum(int(np.prod(part.shape)) for part in parts)
            self._used += -(-size // LANES) * LANES
            return start
        form = source.form(parts[0])
        for part in parts[1:]:
            form = form.joined(source.form(part))
        first, count = len(self._matrices), max(experts, 1)
        rows, columns = (sum(int(np.prod(part.in_engine[:-1])) for part in parts) // count,
                         parts[0].in_engine[-1])
        if len(parts) == 1:                                 # one matrix, or all experts'
            places.append(Place(parts, form, start, count, rows, columns))
        else:
            each, size = len(parts) // count, sum(Place((), form, 0, 1, rows, columns).sizes())
            places += [Place(parts[number * each:(number + 1) * each], form,
                             start + number * size, 1, rows, columns)
                       for number in range(count)]
        blocks, groups = form.shapes(rows, columns)[0][:2]
        for number in range(count):
            words, scales, minimums = places[-1].sizes()
            at = self._used
            self._used += words + scales + minimums
            self._matrices.append((
                rows, columns, blocks, groups, form.group, form.bits, at,
                at + words if scales else NONE, at + words + scales if minimums else NONE))
        return first

    def _fill(self, place: Place, source: Source) -> None:
        """Bring tensors to their place."""
        read = [source.read(part) for part in place.parts]
        if place.form is None:
            vector = np.concatenate([_floats(weight).ravel() for weight in read])
            self.numbers[place.start:place.start + len(vector)] = vector
            return
        whole = _stacked([_rows(weight, part) for weight, part in zip(read, place.parts)],
                         place.form)
        for number in range(place.count):
            rows = slice(number * place.rows, (number + 1) * place.rows)
            one = whole[rows] if isinstance(whole, np.ndarray) else whole.rows(rows)
            pack(one, place.form, *place.views(self.words, number))


def _floats(weight: Weight) -> np.ndarray:
    return weight if isinstance(weight, np.ndarray) else weight.dequantize()


def _rows(weight: Weight, part: Part) -> Weight:
    """A tensor as one matrix, (rows, in); that of all experts with their rows one below the
    other."""
    if not isinstance(weight, np.ndarray):
        return weight
    weight = weight.swapaxes(-1, -2) if part.transposed else weight
    return weight.reshape(-1, weight.shape[-1])


def _stacked(weights: Sequence[Weight], form: Form) -> Weight:
    """Matrices one below the other; of several kinds, in one that holds them all."""
    if len(weights) == 1:
        return weights[0]
    if form.bits == 32:
        return np.concatenate([_floats(weight) for weight in weights])
    bits = max(weight.bits for weight in weights)
    signed = all(weight.codes.dtype == np.int8 for weight in weights)
    alike = [weight if signed else _unsigned(weight) for weight in weights]
    groups = max(weight.scales.shape[1] for weight in alike)
    scales = [np.repeat(weight.scales, groups // weight.scales.shape[1], axis=1)
              for weight in alike]
    minimums = None
    if any(weight.minimums is not None for weight in alike):
        minimums = np.concatenate([
            np.zeros_like(scale) if weight.minimums is None
            else np.repeat(weight.minimums, groups // weight.scales.shape[1], axis=1)
            for weight, scale in zip(alike, scales)])
    return Codes(np.concatenate([weight.codes for weight in alike]), np.concatenate(scales),
                 minimums, bits)


def _unsigned(weight: Codes) -> Codes:
    """The same matrix in codes from 0 on."""
    if weight.codes.dtype == np.uint8:
        return weight
    below = np.float32(1 << weight.bits - 1)
    codes = (weight.codes.astype(np.int16) + np.int16(below)).astype(np.uint8)
    minimums = -below * weight.scales
    if weight.minimums is not None:
        minimums += weight.minimums
    return Codes(codes, weight.scales, minimums, weight.bits)
