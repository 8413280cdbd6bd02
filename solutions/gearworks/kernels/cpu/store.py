"""The weights of a model in one array, in the layout of the kernels.

Names and shapes are those of `families.layouts`: matrices that read the same input (q, k and v;
gate and up) are one. How many bits each takes is known from the file's table alone, so the
array is reserved once, and no weight is ever held as float32 that the file holds in fewer bits.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gearworks.config import ModelConfig
from gearworks.families.layouts import Part, layout
from gearworks.kernels.cpu.layout import LANES, MATRIX, NONE, Form, aligned, pack
from gearworks.formats.codes import Codes

Weight = Codes | np.ndarray                 # in codes, or float32

class Source(Protocol):
    """Where tensors come from: a file, or a dictionary."""

    def form(self, part: Part) -> Form:
        """The form of a matrix, without reading it."""

    def read(self, part: Part) -> Weight:
        """One tensor, in Hugging Face's shape."""


@dataclass(frozen=True)
class Place:
    """Where some tensors of a file belong: one matrix, or one row of float32 numbers."""

    parts: Sequence[Part]
    form: Form | None           # None: they are vectors
    start: int                  # in words

    def views(self, words: np.ndarray) -> list[np.ndarray | None]:
        """A matrix's words, scales and minimums in the model's array."""
        rows, columns = sum(part.shape[0] for part in self.parts), self.parts[0].shape[1]
        views, at = [], self.start
        for number, shape in enumerate(self.form.shapes(rows, columns)):
            size = int(np.prod(shape)) if shape else 0
            view = words[at:at + size].reshape(shape) if shape else None
            views.append(view if number == 0 or view is None else view.view(np.float32))
            at += size
        return views


class WeightStore:
    """All weights of a model.

    words: (n,) uint32, all of them; numbers: the same bytes as float32; matrices: (m,) of
    `MATRIX`; layers, model: for each field of `families.layouts` a matrix's number, or where a
    vector begins.
    """

    def __init__(self, config: ModelConfig, source: Source,
                 progress: Callable[[Iterable], Iterable] = iter):
        """progress: wraps the iteration over the tensors, as `tqdm` does."""
        model, layers = layout(config)
        self._used = 0
        self._matrices: list[tuple[int, ...]] = []
        places: list[Place] = []
        self.layers = [{name: self._reserve(parts, source, places)
                        for name, parts in fields.items()} for fields in layers]
        self.model = {name: self._reserve(parts, source, places)
                      for name, parts in model.items()}
        self.model.setdefault("lm_head", self.model["embed_tokens"])
        self.matrices = np.array(self._matrices, MATRIX)
        self.words = aligned(self._used)
        self.numbers = self.words.view(np.float32)
        for place in progress(places):
            self._fill(place, source)

    def _reserve(self, parts: Sequence[Part], source: Source, places: list[Place]) -> int:
        """Decide where tensors go; returns a matrix's number, or where a vector begins."""
        start = self._used
        if len(parts[0].shape) == 1:
            places.append(Place(parts, None, start))
            self._used += -(-sum(part.shape[0] for part in parts) // LANES) * LANES
            return start
        form = source.form(parts[0])
        for part in parts[1:]:
            form = form.joined(source.form(part))
        places.append(Place(parts, form, start))
        rows, columns = sum(part.shape[0] for part in parts), parts[0].shape[1]
        shapes = form.shapes(rows, columns)
        words, scales, minimums = (int(np.prod(shape)) if shape else 0 for shape in shapes)
        self._used += words + scales + minimums
        blocks, groups = shapes[0][:2]
        self._matrices.append((
            rows, columns, blocks, groups, form.group, form.bits, start,
            start + words if scales else NONE, start + words + scales if minimums else NONE))
        return len(self._matrices) - 1

    def _fill(self, place: Place, source: Source) -> None:
        """Bring tensors to their place."""
        read = [source.read(part) for part in place.parts]
        if place.form is None:
            vector = np.concatenate(read)
            self.numbers[place.start:place.start + len(vector)] = vector
        else:
            pack(_stacked(read, place.form), place.form, *place.views(self.words))


def _stacked(weights: Sequence[Weight], form: Form) -> Weight:
    """Matrices one below the other; of several kinds, in one that holds them all."""
    if len(weights) == 1:
        return weights[0]
    if form.bits == 32:
        return np.concatenate([weight if isinstance(weight, np.ndarray) else weight.dequantize()
                               for weight in weights])
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
