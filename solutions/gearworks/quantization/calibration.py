"""Rounding a whole model by what its layers really read.

A text goes through the model layer by layer. Each layer is run once as it is, to see what its
matrices are multiplied with; then they are rounded, and the layer is run again as it will be,
so that the next one meets the errors that it will meet.

Shapes: N texts of equal length, T tokens in each, D hidden size; a weight is (out, in).
Left out on purpose: mixtures of experts, of which each would need a text that reaches it, and
families with a forward pass of their own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from gearworks.attention import attention_over_views, causal_mask
from gearworks.config import ModelConfig
from gearworks.errors import ModelError
from gearworks.families import output_bias
from gearworks.families.layouts import LayerWeights
from gearworks.families.routes import runs
from gearworks.kv_cache import attention_rules
from gearworks.model import Model, decoder_layer, rotations
from gearworks.quantization.awq import awq_scale
from gearworks.formats.codes import Codes
from gearworks.quantization.gptq import gptq_hessian, gptq_quantize
from gearworks.quantization.rounding import from_zero_points, int4_codes
from gearworks.rope_scaling import angles_in_layer

MATRICES = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
# What AWQ's search looks at: so many tokens, and so many outputs of a matrix. More hardly
# change what it finds, since one scale must do for all of them.
AWQ_TOKENS, AWQ_OUTPUTS = 512, 256


class Recorded(np.ndarray):
    """A matrix that keeps what it is multiplied with: `inputs`, a list of arrays (rows, in).

    It is what a layer takes for its weight, so nothing in the engine knows of it.
    """

    inputs: list[np.ndarray]

    def __array_finalize__(self, source: object) -> None:
        # a transpose or a slice records into the same list
        self.inputs = getattr(source, "inputs", [])

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *operands: np.ndarray,
                        **options: object) -> object:
        if ufunc is np.matmul:
            self.inputs.append(np.array(operands[0]))
        plain = (one.view(np.ndarray) if isinstance(one, Recorded) else one
                 for one in operands)
        return getattr(ufunc, method)(*plain, **options)


class WholeTexts:
    """A cache that keeps nothing: texts of equal length, each in one piece, side by side."""

    def __init__(self, config: ModelConfig, length: int):
        self.rules = attention_rules(config)
        self.length = length

    def attend(self, layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """The attention of each token to those of its text up to itself: `kv_cache.Cache`.
        q: (N · T, H, d); k, v: (N · T, K, d); returns (N · T, H, d)."""
        rules = self.rules[layer]
        mask = causal_mask(self.length, self.length, rules.window)
        ends = range(self.length, len(q) + 1, self.length)
        return np.concatenate([
            attention_over_views(q[end - self.length:end],
                                 [k[end - self.length:end].transpose(1, 0, 2)],
                                 [v[end - self.length:end].transpose(1, 0, 2)], mask, rules)
            for end in ends])


def calibration_texts(ids: Sequence[int], length: int = 256, count: int = 8) -> np.ndarray:
    """Cut a text into pieces: (count, length), or fewer pieces where the text is shorter.
    Raises ModelError when there is not even one.

    >>> calibration_texts(range(9), length=4, count=3)
    array([[0, 1, 2, 3],
           [4, 5, 6, 7]])
    """
    count = min(count, len(ids) // length)
    if not count:
        raise ModelError("cannot calibrate on this text",
                         f"it has {len(ids)} tokens, and {length} are needed",
                         "give a longer text, or a shorter length")
    return np.array(ids[:count * length]).reshape(count, length)


def run_layer(model: Model, layer: LayerWeights, index: int,
              hidden: np.ndarray) -> np.ndarray:
    """Run all texts through one layer. hidden: (N, T, D), returns the same shape."""
    count, length, _ = hidden.shape
    turning = rotations(model.config, np.tile(np.arange(length), count))
    run = decoder_layer if layer.o_bias is None else output_bias.decoder_layer
    return run(hidden.reshape(count * length, -1), layer, model.config,
                         *angles_in_layer(model.config, index, *turning),
                         WholeTexts(model.config, length), index).reshape(hidden.shape)


def layer_inputs(model: Model, layer: LayerWeights, index: int,
                 hidden: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Run all texts through a layer, and keep what each of its matrices is multiplied with.

    hidden: (N, T, D), what the layer reads; returns (N · T, in) for each of `MATRICES`, and
    what the layer gives, as `run_layer`.
    """
    recorded = {name: getattr(layer, name).view(Recorded) for name in MATRICES}
    after = run_layer(model, replace(layer, **recorded), index, hidden)
    rows = hidden.shape[0] * hidden.shape[1]
    # a product of few rows is made even with rows of zeros
    return {name: matrix.inputs[0][:rows] for name, matrix in recorded.items()}, after


@dataclass(frozen=True)
class RoundedLayer:
    """A layer after rounding.

    codes: of each of `MATRICES`. weights: what they stand for, in float32, with the norms that
    go with them. error: the mean squared error of the layer's output on the texts against the
    layer as it was, on the same inputs.
    """

    codes: dict[str, Codes]
    weights: LayerWeights
    error: float


class Method(Protocol):
    """A way to round a layer that has seen its inputs."""

    def __call__(self, layer: LayerWeights, inputs: dict[str, np.ndarray],
                 group_size: int) -> tuple[dict[str, Codes], LayerWeights]:
        """Codes of each of `MATRICES`, and the layer with those of its norms that changed."""
        ...


def gptq_layer(layer: LayerWeights, inputs: dict[str, np.ndarray],
               group_size: int) -> tuple[dict[str, Codes], LayerWeights]:
    """Round a layer's matrices by GPTQ, columns with large inputs first."""
    return {name: from_zero_points(*gptq_quantize(
        getattr(layer, name), gptq_hessian(inputs[name]), group_size, act_order=True))
        for name in MATRICES}, layer


def awq_layer(layer: LayerWeights, inputs: dict[str, np.ndarray],
              group_size: int) -> tuple[dict[str, Codes], LayerWeights]:
    """Round a layer's matrices by AWQ.

    What the columns of a matrix are multiplied with is taken out of what makes its inputs: the
    norm before it, or for `down_proj` the rows of `up_proj`, whose outputs pass the gate as
    factors. Before `o_proj` stand the values, which several query heads share: it is rounded as
    it is.
    """
    def search(name: str) -> np.ndarray:
        weight, rows = getattr(layer, name), inputs[name]
        return awq_scale(weight[::-(-len(weight) // AWQ_OUTPUTS)],
                         rows[::-(-len(rows) // AWQ_TOKENS)], group_size)

    half = len(layer.gate_up_proj) // 2                          # gate, then up
    scale = search("down_proj")
    gate_up = layer.gate_up_proj.copy()
    gate_up[half:] /= scale[:, None]
    layer = replace(layer, down_proj=layer.down_proj * scale, gate_up_proj=gate_up)
    for norm, name in (("input_layernorm", "qkv_proj"),
                       ("post_attention_layernorm", "gate_up_proj")):
        scale = search(name)
        layer = replace(layer, **{name: getattr(layer, name) * scale,
                                  norm: getattr(layer, norm) / scale})
    return {name: int4_codes(getattr(layer, name), group_size) for name in MATRICES}, layer


METHODS: dict[str, Method] = {"gptq": gptq_layer, "awq": awq_layer}


def rounded_layers(model: Model, texts: np.ndarray, method: str,
                   group_size: int = 32) -> Iterator[RoundedLayer]:
    """Round a model to 4 bits, layer by layer; each one comes as soon as it is done.

    texts: (N, T) ids to calibrate on, as `calibration_texts` cuts them; method: one of
    `METHODS`. The model itself stays as it is; its embedding and its head are not rounded.
    Raises ModelError for families that this does not know, or sizes that the groups do not
    divide.
    """
    config = model.config
    for layer in model.weights.layers:
        if not runs("calibrate", config.architecture):
            raise ModelError(f"cannot quantize {config.architecture} by {method}",
                             "it has experts or a forward pass of its own, which the "
                             "calibration does not know",
                             "round to the nearest: that needs no calibration")
    hidden = model.weights.embed_tokens[texts]                                   # (N, T, D)
    for index, layer in enumerate(model.weights.layers):
        inputs, wanted = layer_inputs(model, layer, index, hidden)
        codes, changed = METHODS[method](layer, inputs, group_size)
        weights = replace(changed, **{name: one.dequantize() for name, one in codes.items()})
        hidden = run_layer(model, weights, index, hidden)
        yield RoundedLayer(codes, weights, float(np.mean((hidden - wanted) ** 2)))


def with_layers(model: Model, layers: Sequence[RoundedLayer]) -> Model:
    """The model with these layers in place of its own, in float32, to be run as any other."""
    weights = replace(model.weights, layers=tuple(layer.weights for layer in layers))
    return Model(model.config, weights)
