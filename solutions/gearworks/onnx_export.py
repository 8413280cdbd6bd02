"""A decoder layer as an ONNX graph, which other runtimes execute without Python or PyTorch.

ONNX is a format for computations: a file lists operators, what flows between them, and the
weights. PyTorch writes it by running a module once on symbols in the place of tensors. Here a
layer of our engine becomes such a module, a file, and a session of ONNX Runtime; a model whose
layers are sessions gives the same logits.

A graph has no memory, so keys and values go in with every call and come out longer.

Shapes: T tokens, S cached tokens, D hidden size, H query heads, K key/value heads, d head size.
All float32.
Left out on purpose: families other than Llama's, sliding windows, whole models in one file.
Needs the packages onnx, onnxscript (to write) and onnxruntime (to run).
"""

import importlib
import logging
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gearworks.config import ModelConfig
from gearworks.errors import ModelError, NotAvailableError
from gearworks.families.layouts import LayerWeights, Weights
from gearworks.families.routes import ROUTES, runs
from gearworks.kv_cache import Rows
from gearworks.layers import linear, rms_norm
from gearworks.model import Model, rotations
from gearworks.rope_scaling import angles_in_layer

if TYPE_CHECKING:
    import torch

OPSET = 23                                  # the first with RMSNormalization and Attention
INPUTS = ("x", "cos", "sin", "past_keys", "past_values")
OUTPUTS = ("y", "keys", "values")


def require_onnx() -> None:
    """Raise NotAvailableError where the packages are not installed."""
    try:
        for package in ("torch", "onnx", "onnxscript", "onnxruntime"):
            importlib.import_module(package)
    except ImportError as error:
        raise NotAvailableError("cannot use ONNX", str(error),
                                "python -m pip install torch onnx onnxscript onnxruntime"
                                ) from None


def layer_module(weights: LayerWeights, config: ModelConfig) -> "torch.nn.Module":
    """A layer of `model.decoder_layer` as a module of PyTorch, with the same weights.

    Its forward takes x (T, D), cos and sin (T, 1, d), past_keys and past_values (K, S, d), and
    returns y (T, D), keys and values (K, S + T, d).
    Raises ModelError for a layer of another kind.
    """
    import torch
    from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

    if not runs("onnx", config.architecture) or any(map(config.window,
                                                        range(config.num_hidden_layers))):
        raise ModelError("cannot export this model",
                         f"it is a {config.architecture}, and a layer of it is not like "
                         "Llama's",
                         "export a model of one of " + ", ".join(ROUTES["onnx"].families)
                         + ", without a sliding window")
    H, K, d = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    eps, F = config.rms_norm_eps, config.intermediate_size

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, weight.shape, weight, eps)

    def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        quarter = torch.cat([-x[..., d // 2:], x[..., :d // 2]], dim=-1)
        return x * cos + quarter * sin

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for name, array in vars(weights).items():
                # matrices as (in, out), so that no product has to transpose
                self.register_buffer(name, None if array is None else torch.from_numpy(
                    np.ascontiguousarray(array.T)))

        def forward(self, x, cos, sin, past_keys, past_values):
            qkv = norm(x, self.input_layernorm) @ self.qkv_proj
            if self.qkv_bias is not None:
                qkv = qkv + self.qkv_bias
            qkv = qkv.unflatten(-1, (H + 2 * K, d))                          # (T, H + 2K, d)
            q, k, v = qkv[:, :H], qkv[:, H:H + K], qkv[:, H + K:]
            if self.q_norm is not None:
                q, k = norm(q, self.q_norm), norm(k, self.k_norm)
            keys = torch.cat([past_keys, turned(k, cos, sin).transpose(0, 1)], dim=1)
            values = torch.cat([past_values, v.transpose(0, 1)], dim=1)      # (K, S + T, d)
            T, S = x.shape[0], keys.shape[1]
            visible = torch.arange(S)[None, :] - torch.arange(T)[:, None] <= S - T
            attended = scaled_dot_product_attention(
                turned(q, cos, sin).transpose(0, 1)[None], keys[None], values[None], visible,
                enable_gqa=True)[0]                                          # (H, T, d)
            x = x + attended.transpose(0, 1).flatten(1) @ self.o_proj
            if self.o_bias is not None:
                x = x + self.o_bias
            hidden = norm(x, self.post_attention_layernorm)
            gate_up = hidden @ self.gate_up_proj
            gate, up = gate_up[:, :F], gate_up[:, F:]
            return x + (silu(gate) * up) @ self.down_proj, keys, values

    return Layer().eval()


def export_layer(weights: LayerWeights, config: ModelConfig, path: Path) -> None:
    """Write a layer to an ONNX file, for any number of tokens and of cached ones.

    Errors as `require_onnx` and `layer_module`.
    """
    require_onnx()
    import torch

    K, d = config.num_key_value_heads, config.head_dim
    T, S = torch.export.Dim("T", min=1), torch.export.Dim("S", min=0)
    past = torch.zeros(K, 5, d)
    example = (torch.zeros(3, config.hidden_size), torch.ones(3, 1, d), torch.zeros(3, 1, d),
               past, past.clone())
    shapes = dict(zip(INPUTS, ({0: T}, {0: T}, {0: T}, {1: S}, {1: S})))
    with _quiet():
        program = torch.onnx.export(layer_module(weights, config), example,
                                    input_names=INPUTS, output_names=OUTPUTS,
                                    dynamic_shapes=shapes, dynamo=True,
                                    opset_version=OPSET, verbose=False)
        program.save(path)


@contextmanager
def _quiet() -> Iterator[None]:
    """Within this the exporter keeps to itself what is about its own inside: packages that it
    could export from, axes that have one name twice."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


class OnnxCache:
    """The keys and values of one sequence, as the sessions hand them back: new arrays in every
    step."""

    def __init__(self, config: ModelConfig):
        empty = np.empty((config.num_key_value_heads, 0, config.head_dim), np.float32)
        self.layers = [(empty, empty)] * config.num_hidden_layers

    def __len__(self) -> int:
        return self.layers[-1][0].shape[1]


class OnnxModel(Model):
    """A model whose layers ONNX Runtime computes; embedding, last norm and head are ours."""

    def __init__(self, config: ModelConfig, weights: Weights, folder: Path):
        """Export every layer into a folder, and open them. Errors as `export_layer`."""
        super().__init__(config, weights)
        require_onnx()
        self.sessions = []
        for index, layer in enumerate(weights.layers):
            path = Path(folder) / f"layer_{index}.onnx"
            export_layer(layer, config, path)
            self.sessions.append(open_session(path))

    def new_cache(self, capacity: int) -> OnnxCache:
        """An empty cache for one sequence; it grows as long as there is memory."""
        return OnnxCache(self.config)

    def run(self, input_ids: np.ndarray, positions: np.ndarray, cache: OnnxCache,
            logits_at: Rows) -> np.ndarray:
        """As `Model.run`."""
        turning = rotations(self.config, positions)
        x = np.ascontiguousarray(self.weights.embed_tokens[input_ids])
        for index, session in enumerate(self.sessions):
            x, keys, values = run_layer(
                session, x, *angles_in_layer(self.config, index, *turning),
                *cache.layers[index])
            cache.layers[index] = keys, values
        x = rms_norm(x[logits_at], self.weights.norm, self.config.rms_norm_eps)
        return linear(x, self.weights.lm_head)


def open_session(path: Path, threads: int = 0) -> Any:
    """ONNX Runtime's session for a file, on the CPU. threads: 0 for one a core."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3                          # errors only
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def run_layer(session: Any, *inputs: np.ndarray) -> list[np.ndarray]:
    """One call of a layer. inputs: as `INPUTS` orders them; returns the arrays of `OUTPUTS`."""
    return session.run(OUTPUTS, dict(zip(INPUTS, inputs)))


@dataclass(frozen=True)
class Node:
    """One operator of a graph. weights: the names of the weights that go into it; takes: the
    places of the nodes whose results it takes."""

    operator: str
    weights: tuple[str, ...]
    takes: tuple[int, ...]


def nodes(path: Path) -> list[Node]:
    """The operators of a file, in an order in which they can run; constants are left out, and
    so are lengths and places among the weights."""
    import onnx

    graph = onnx.load(path).graph
    weights = {tensor.name for tensor in graph.initializer
               if tensor.dims and tensor.data_type == onnx.TensorProto.FLOAT}
    made: dict[str, int] = {}
    found: list[Node] = []
    for node in graph.node:
        if node.op_type == "Constant":
            continue
        names = tuple(name for name in node.input if name in weights)
        takes = tuple(dict.fromkeys(made[name] for name in node.input if name in made))
        made |= dict.fromkeys(node.output, len(found))
        found.append(Node(node.op_type, names, takes))
    return found


def operators(path: Path) -> dict[str, int]:
    """How often each operator occurs in a file, the most frequent first."""
    return dict(Counter(node.operator for node in nodes(path)).most_common())
