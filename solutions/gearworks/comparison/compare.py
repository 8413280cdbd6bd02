"""Two engines side by side, and the first place where they part.

A wrong operator spoils everything after it, so the logits say only *that* something is wrong.
Here both engines leave a trail, the arrays that pass between their operators, and the trails
are compared in the order in which they came to be. The first that differs is where to look.

Shapes: T tokens, D hidden size, H query heads, K key/value heads, d head size. All float32.
Left out on purpose: what the engines do inside a feed-forward network, and the queries, keys
and values of latent attention, for which Hugging Face has other arrays than this engine.
"""

import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gearworks.errors import ModelError, NotAvailableError
from gearworks.families.phi3 import head_order
from gearworks.kv_cache import Cache
from gearworks.model import Model

if TYPE_CHECKING:
    import torch

Trail = dict[tuple[int | None, str], np.ndarray]
"""From (layer, operator) to its output, in the order of the computation; None: no layer's."""

AXES = {"queries": ("position", "head", "element"), "keys": ("position", "head", "element"),
        "values": ("position", "head", "element"), "attention": ("position", "head", "element")}


@dataclass(frozen=True)
class Divergence:
    """Where an array differs from the one it should be.
    place: axis by axis, of the first element that does."""

    layer: int | None
    operator: str
    place: Mapping[str, int]
    got: float
    expected: float
    differing: int                  # elements beyond the tolerance
    size: int                       # elements of the array
    error: float                    # the largest difference; inf for nan or another shape
    tolerance: float
    # got and expected, where these differ
    shapes: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    def __str__(self) -> str:
        begin = f"{self.operator} {_where(self.layer)} is the first to differ: "
        if self.shapes is not None:
            return begin + f"its shape is {self.shapes[0]}, expected {self.shapes[1]}"
        place = ", ".join(f"{axis} {index}" for axis, index in self.place.items())
        return begin + (f"{self.differing} of {self.size} elements, the first at {place}: got "
                        f"{self.got:.6g}, expected {self.expected:.6g}; the largest difference "
                        f"is {self.error:.3g}, and {self.tolerance:.3g} is tolerated")


class TrailCache:
    """A cache with a trail: the last step's queries, keys, values and attention, by layer."""

    def __init__(self, cache: Cache):
        self.cache = cache
        self.trail: Trail = {}

    def attend(self, layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """As the cache's own. q: (T, H, d); k, v: (T, K, d); returns (T, H, d)."""
        attended = self.cache.attend(layer, q, k, v)
        for operator, array in (("queries", q), ("keys", k), ("values", v),
                                ("attention", attended)):
            self.trail[layer, operator] = np.array(array)
        return attended


def first_divergence(got: Trail, expected: Trail, tolerance: float) -> Divergence | None:
    """The first array of `expected`, in its order, from which `got` differs; None if none does.

    tolerance: relative to the largest magnitude in the expected array, or to 1 where that is
    larger. Arrays that only one of the trails has are not compared. An array of another shape
    differs at its first element.
    """
    for (layer, operator), truth in expected.items():
        if (layer, operator) not in got:
            continue
        array = got[layer, operator]
        axes = AXES.get(operator, ("position", "element"))
        allowed = tolerance * max(1.0, float(np.abs(truth).max(initial=0)))
        if array.shape != truth.shape:
            first = (float(values.ravel()[0]) if values.size else float("nan")
                     for values in (array, truth))
            return Divergence(layer, operator, dict.fromkeys(axes, 0), *first, truth.size,
                              truth.size, float("inf"), allowed, (array.shape, truth.shape))
        error = _difference(array, truth)
        wrong = error > allowed
        if wrong.any():
            place = tuple(int(index) for index in np.argwhere(wrong)[0])
            return Divergence(layer, operator, dict(zip(axes, place)), float(array[place]),
                              float(truth[place]), int(wrong.sum()), truth.size,
                              float(error.max()), allowed)
    return None


def largest_errors(got: Trail, expected: Trail) -> dict[str, float]:
    """Each operator's largest difference over all layers, relative as for `first_divergence`.

    It is inf where a number is nan, or an array has another shape.
    """
    errors: dict[str, float] = {}
    for (layer, operator), truth in expected.items():
        array = got.get((layer, operator))
        if array is not None:
            scale = max(1.0, float(np.abs(truth).max(initial=0)))
            error = (float(_difference(array, truth).max(initial=0))
                     if array.shape == truth.shape else float("inf"))
            errors[operator] = max(errors.get(operator, 0.0), error / scale)
    return errors


def _difference(array: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """How far each element is from the truth; inf for nan, which exceeds every tolerance."""
    with np.errstate(invalid="ignore"):
        error = np.abs(array - truth)
    return np.where(np.isnan(error), np.float32(np.inf), error)


def _where(layer: int | None) -> str:
    return "outside of the layers" if layer is None else f"in layer {layer}"


def record_hf(network: "torch.nn.Module", ids: Sequence[int]) -> Trail:
    """The trail of a model of `transformers` over one sequence.
    network: in float32, from `from_pretrained`."""
    import torch
    from transformers import AttentionInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    trail: Trail = {}
    latent = getattr(network.config, "kv_lora_rank", None) is not None
    # PyTorch's own attention has no sinks, and no soft caps
    kind = "sdpa" if network._supports_sdpa else "eager"
    attend = (ALL_ATTENTION_FUNCTIONS["sdpa"] if kind == "sdpa"
              else sys.modules[type(network).__module__].eager_attention_forward)

    def attend_and_record(module, query, key, value, mask, **options):
        out, weights = attend(module, query, key, value, mask, **options)
        if not latent:
            # This engine's attention scales by the root of d alone, so what else a model scales
            # by is in its queries
            scale = (options.get("scaling") or query.shape[-1] ** -0.5) * query.shape[-1] ** 0.5
            for operator, tensor in (("queries", query * scale), ("keys", key),
                                     ("values", value)):
                trail[module.layer_idx, operator] = tensor[0].transpose(0, 1).numpy().copy()
            trail[module.layer_idx, "attention"] = out[0].numpy().copy()
        return out, weights

    def record(layer: int | None, operator: str):
        def hook(module, arguments, output):
            tensor = output[0] if isinstance(output, tuple) else output
            trail[layer, operator] = tensor[0].numpy().copy()
        return hook

    body = network.base_model
    layers = body.h if hasattr(body, "h") else body.layers
    hooks = []
    for index, layer in enumerate(layers):
        for name, module in layer.named_children():
            if _is_norm(name):
                hooks.append(module.register_forward_hook(record(index, name)))
        hooks.append(layer.register_forward_hook(record(index, "output")))
    final_norm = body.ln_f if hasattr(body, "ln_f") else body.norm
    hooks.append(final_norm.register_forward_hook(record(None, "final norm")))
    before = network.config._attn_implementation
    AttentionInterface.register("gearworks_recording", attend_and_record)
    AttentionMaskInterface.register("gearworks_recording", ALL_MASK_ATTENTION_FUNCTIONS[kind])
    network.set_attn_implementation("gearworks_recording")
    try:
        with torch.no_grad():
            trail[None, "logits"] = network(torch.tensor([list(ids)])).logits[0].numpy()
    finally:
        network.set_attn_implementation(before)
        for hook in hooks:
            hook.remove()
    return trail


def record_ours(model: Model, ids: Sequence[int], norms: Sequence[str]) -> Trail:
    """The trail of this engine over one sequence.

    norms: what the norms of a layer are called, in their order. The functions that make the
    arrays are watched as they return, so an engine with a learner's gears leaves a trail as
    well, whoever calls what.
    """
    cache = TrailCache(model.new_cache(len(ids)))
    trail, layer, norm = cache.trail, 0, 0
    size = model.config.hidden_size

    def watch(frame: Any, event: str, result: Any) -> None:
        nonlocal layer, norm
        if (event != "return" or not isinstance(result, np.ndarray)
            or result.shape != (len(ids), size)):
            return                          # a norm of heads, or of a latent, has another shape
        if frame.f_code.co_name in ("rms_norm", "layer_norm"):
            last = layer == model.config.num_hidden_layers
            name = ("final norm" if last else norms[norm] if norm < len(norms)
                    else f"norm {norm}")
            trail[None if last else layer, name] = np.array(result)
            norm += 1
        elif frame.f_code.co_name == "decoder_layer":
            trail[layer, "output"] = np.array(result)
            layer, norm = layer + 1, 0

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        logits = model.forward(np.asarray(ids), np.arange(len(ids)), cache)
    finally:
        sys.setprofile(before)
    trail[None, "logits"] = logits
    return trail


@dataclass(frozen=True)
class Comparison:
    """The first divergence, if any, and each operator's largest relative difference."""

    divergence: Divergence | None
    errors: Mapping[str, float]
    tokens: int

    def table(self) -> str:
        """The operators in order of computation, with their largest differences, as text."""
        width = max(map(len, self.errors))
        return "\n".join(f"{operator:<{width}}  {error:.1e}"
                         for operator, error in self.errors.items())


def compare(model: Model, network: "torch.nn.Module", ids: Sequence[int],
            tolerance: float = 1e-4) -> Comparison:
    """Run both engines over the same ids. tolerance: as for `first_divergence`.

    Raises ModelError when Hugging Face's own numbers are not finite, since then there is no
    truth to compare with.
    """
    expected = record_hf(network, ids)
    order = head_order(model.config)
    if order is not None:
        expected = {(layer, operator): truth[..., order] if operator in ("queries", "keys")
                    else truth for (layer, operator), truth in expected.items()}
    for (layer, operator), truth in expected.items():
        if not np.isfinite(truth).all():
            raise ModelError("there is nothing to compare with",
                             f"Hugging Face's own {operator} {_where(layer)} is not finite",
                             "some weights must be damaged: fetch the model again")
    norms = [operator for layer, operator in expected if layer == 0 and _is_norm(operator)]
    got = record_ours(model, ids, norms)
    return Comparison(first_divergence(got, expected, tolerance), largest_errors(got, expected),
                      len(ids))


def require_hf() -> None:
    """Raise NotAvailableError where `transformers` is not installed."""
    try:
        for package in ("torch", "transformers"):
            importlib.import_module(package)
    except ImportError as error:
        raise NotAvailableError("cannot compare with Hugging Face", str(error),
                                "pip install torch transformers") from None


def load_hf(folder: Path) -> "torch.nn.Module":
    """The same folder in `transformers`, in float32.

    Raises NotAvailableError where there is no `transformers`, ModelError for a folder that it
    does not load.
    """
    require_hf()
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        # The fast way through experts takes sizes that 4 divides only
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                    experts_implementation="eager").eval()
    except Exception as error:                              # it has no common class of errors
        why = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise ModelError(f"Hugging Face cannot load {folder}", why,
                         "this engine can; does the config.json fit the installed "
                         "transformers?") from error


def _is_norm(name: str) -> bool:
    return name.endswith("layernorm") or name in ("ln_1", "ln_2")
