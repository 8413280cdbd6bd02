"""The decoder in torch: on processors, on CUDA and on Apple's GPUs, in float32 and below.

It has the interface of `model.Model`, so `generate`, speculation, beam search and the serving
engine run it as they run NumPy's. Ids and logits are NumPy arrays, everything between lies on
the device. Which families it runs, `families.routes` says.

Shapes: T tokens, D hidden size, H query heads, K key/value heads, d head size, F feed-forward
size, V vocabulary.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from gearworks.config import ModelConfig
from gearworks.errors import ModelError, NotAvailableError
from gearworks.families import gpt_oss
from gearworks.families.layouts import LayerWeights, Weights
from gearworks.families.routes import PLAIN, ROUTES, runs
from gearworks.kernels.torch_attention import TorchBatch, TorchKVCache, TorchPagedCache
from gearworks.kernels.torch_families import LAYERS
from gearworks.kernels.torch_graphs import DecodeGraphs
from gearworks.kernels.torch_operators import TORCH, Operators
from gearworks.kernels.triton import LARGEST_HEAD, has_triton_gpu
from gearworks.kv_cache import Cache, Rows
from gearworks.model import checked_ids, rotations
from gearworks.rope_scaling import scaled_angles
from gearworks.weights import load_checkpoint

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class TorchModel:
    """A configuration and its weights on a device, ready to run.

    weights: those of `families.layouts`, with tensors for arrays.
    """

    has_fixed_shapes = False            # what a row gives depends on its neighbours' number

    def __init__(self, config: ModelConfig, weights: Weights, *, compile: bool = False,
                 graphs: bool | None = None, use_triton: bool | None = None):
        """compile: whether torch compiles what is between attentions. graphs: whether decoding
        steps are recorded, by default with CUDA. use_triton: whether attention and norms are
        `kernels.triton`'s, by default where there is a GPU that Triton compiles for.
        """
        self.config, self.weights = gpt_oss.with_sinks(config, weights), weights
        self.device, self.dtype = weights.embed_tokens.device, weights.embed_tokens.dtype
        is_cuda = self.device.type == "cuda"
        self.graphs = (is_cuda if graphs is None else graphs) and config.experts is None
        plain = config.attention_softcap is None and not self.config.sinks
        if use_triton is None:
            use_triton = (is_cuda and has_triton_gpu() and config.head_dim <= LARGEST_HEAD
                          and plain)
        elif use_triton and not plain:
            raise ModelError(f"Triton's kernels do not run a {config.architecture}",
                             "their attention has no soft cap, and no sinks",
                             "leave use_triton out")
        self.use_triton = use_triton
        before, after = LAYERS.get(config.architecture, (None, None))
        self._before, self._after = before or before_attention, after or after_attention
        self._operators = TORCH
        if compile:                                    # it makes kernels of its own of these
            self._before, self._after = map(torch.compile, (self._before, self._after))
        elif use_triton:
            from gearworks.kernels.triton.elementwise import swiglu, turn
            from gearworks.kernels.triton.rms_norm import rms_norm
            self._operators = Operators(rms_norm, turn, swiglu)

    @classmethod
    def load(cls, path: Path, device: str | None = None, dtype: str | None = None,
             progress: Callable[[Iterable], Iterable] = iter, **options: bool) -> "TorchModel":
        """Load a GGUF file or an HF folder; errors as `load_checkpoint`.

        device: "cpu", "cuda" or "mps", by default the fastest there is. dtype: "float32",
        "float16" or "bfloat16", by default float32 on a processor, bfloat16 on GPUs that
        compute it, float16 on others. The weights pass through main memory in float32.
        options: as for the class. Raises ModelError for a family that it does not run,
        NotAvailableError for a device that is not there.
        """
        where, kind = place_for(device, dtype)
        return cls.of(*load_checkpoint(Path(path), progress), where, kind, **options)

    @classmethod
    def of(cls, config: ModelConfig, weights: Weights, device: torch.device,
           dtype: torch.dtype, **options: bool) -> "TorchModel":
        """Of NumPy's weights. Raises ModelError for a family that it does not run."""
        refuse_family(config)

        def tensor(array: np.ndarray) -> torch.Tensor:
            there = torch.from_numpy(array).to(device, dtype)
            # NumPy's layout, long side first, is the faster one on processors alone
            return there if device.type == "cpu" else there.contiguous()

        layers = tuple(type(layer)(**{each.name: tensor(array) for each in fields(layer)
                                      if (array := getattr(layer, each.name)) is not None})
                       for layer in weights.layers)
        embed = tensor(weights.embed_tokens)
        head = embed if weights.lm_head is weights.embed_tokens else tensor(weights.lm_head)
        return cls(config, Weights(embed, layers, tensor(weights.norm), head), **options)

    @classmethod
    def random(cls, config: ModelConfig, device: torch.device, dtype: torch.dtype,
               seed: int = 0, **options: bool) -> "TorchModel":
        """A model of this shape that says nothing: for measurements without a file."""
        if config.architecture not in PLAIN:
            raise ModelError(f"no random {config.architecture} is made here",
                             "it makes " + ", ".join(PLAIN), "load a model")
        draw = torch.Generator(device).manual_seed(seed)

        def tensor(*shape: int) -> torch.Tensor:
            values = torch.empty(shape, dtype=dtype, device=device)
            return values.normal_(0, shape[-1] ** -0.5, generator=draw)

        D, heads = config.hidden_size, config.num_attention_heads
        queries, keys = heads * config.head_dim, config.num_key_value_heads * config.head_dim

        def ones(size: int) -> torch.Tensor:
            return torch.ones(size, dtype=dtype, device=device)

        layers = tuple(LayerWeights(
            ones(D), tensor(queries + 2 * keys, D), tensor(D, queries), ones(D),
            tensor(2 * config.intermediate_size, D), tensor(D, config.intermediate_size),
            qkv_bias=tensor(queries + 2 * keys) if config.qkv_bias else None,
            o_bias=tensor(D) if config.o_bias else None,
            **{name: ones(config.head_dim) for name in ("q_norm", "k_norm") if config.qk_norm})
            for _ in range(config.num_hidden_layers))
        embed = tensor(config.vocab_size, D)
        head = embed if config.tie_word_embeddings else tensor(config.vocab_size, D)
        return cls(config, Weights(embed, layers, ones(D), head), **options)

    def new_cache(self, capacity: int) -> TorchKVCache:
        """An empty cache for one sequence of up to `capacity` tokens."""
        return TorchKVCache(self.config, capacity, self.device, self.dtype, self.use_triton)

    def new_paged_cache(self, num_blocks: int, block_size: int) -> TorchPagedCache:
        """The memory of an engine that serves this model."""
        return TorchPagedCache(self.config, num_blocks, block_size, self.device, self.dtype,
                               self.use_triton)

    @torch.inference_mode()
    def forward(self, input_ids: np.ndarray, positions: np.ndarray, cache: Cache,
                logits_at: Rows = slice(None)) -> np.ndarray:
        """As `model.Model.forward`: ids and positions (T,), returns (rows, V) float32."""
        input_ids, positions = checked_ids(self.config, input_ids, positions)
        if not len(input_ids):
            return np.empty((0, self.config.vocab_size), np.float32)
        ids = self._tensor(input_ids.astype(np.int64))
        cos, sin = map(self._tensor, self._angles(positions))
        rows = (logits_at if isinstance(logits_at, slice)
                else self._tensor(np.asarray(logits_at, np.int64)))
        batch = self._decoding_step(cache, len(input_ids))
        if batch is None:
            logits = self._compute(ids, cos, sin, cache, rows)
        else:
            logits = batch.memory.graphs.run(ids, cos, sin, batch)[rows]
            if isinstance(cache, TorchKVCache):
                cache.lengths = [length + 1 for length in cache.lengths]
        return logits.float().cpu().numpy()

    def _angles(self, positions: np.ndarray) -> Sequence[np.ndarray]:
        """The cosine and sine of each token's rotations, (T, n, d): of all layers, or of those
        without and those with a window."""
        whole = rotations(self.config, positions)
        if self.config.rope_local_theta is None:
            return whole
        local = scaled_angles(positions, self.config.head_dim, self.config.rope_local_theta,
                              None)
        return [np.concatenate(both, axis=1) for both in zip(whole, local)]

    def _decoding_step(self, cache: Cache, count: int) -> TorchBatch | None:
        """The step as a batch, where it is one that graphs compute, and recording pays."""
        if not self.graphs:
            return None
        if isinstance(cache, TorchKVCache):
            if count > 1:
                return None
            cache.require_room(0, count)
            cache = cache.step(0, count)
        if not isinstance(cache, TorchBatch) or cache.prompts is not None:
            return None
        memory = cache.memory
        if memory.graphs is None:
            memory.graphs = DecodeGraphs(memory, self._decode)
        return cache if memory.graphs.ready() else None

    def _decode(self, ids: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor,
                batch: TorchBatch) -> torch.Tensor:
        return self._compute(ids, cos, sin, batch, slice(None))

    def _compute(self, ids: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, cache: Cache,
                 rows: torch.Tensor | slice) -> torch.Tensor:
        """The logits, (rows, V), as `model.forward` computes them."""
        config, weights = self.config, self.weights
        x = F.embedding(ids, weights.embed_tokens)                                    # (T, D)
        if config.query_pre_attn_scalar is not None:                            # Gemma's
            x = x * config.hidden_size ** 0.5
        kinds = [(cos[:, kind:kind + 1].contiguous(), sin[:, kind:kind + 1].contiguous())
                 for kind in range(cos.shape[1])]
        for index, layer in enumerate(weights.layers):
            angles = kinds[0 if config.window(index) is None else -1]
            if not config.turns(index):
                angles = torch.ones_like(angles[0]), torch.zeros_like(angles[1])
            q, k, v = self._before(x, layer, config, *angles, self._operators)
            attended = cache.attend(index, q, k, v)                                # (T, H, d)
            if index + 1 == len(weights.layers):
                x, attended = x[rows], attended[rows]
            x = self._after(x, attended, layer, config, self._operators)
        normed = self._operators.norm(x, weights.norm, config.rms_norm_eps)
        logits = F.linear(normed, weights.lm_head)
        cap = config.logit_softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)


def before_attention(x: torch.Tensor, layer: LayerWeights, config: ModelConfig,
                     cos: torch.Tensor, sin: torch.Tensor, operators: Operators
                     ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The queries, keys and values of a layer, turned: (T, H, d), (T, K, d), (T, K, d).
    x: (T, D); cos, sin: (T, 1, d) float32."""
    H, K, d = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    hidden = operators.norm(x, layer.input_layernorm, config.rms_norm_eps)
    qkv = F.linear(hidden, layer.qkv_proj, layer.qkv_bias).view(len(x), H + 2 * K, d)
    qk, v = qkv.split([H + K, K], dim=1)
    if layer.q_norm is not None:
        qk = torch.cat([operators.norm(qk[:, :H], layer.q_norm, config.rms_norm_eps),
                        operators.norm(qk[:, H:], layer.k_norm, config.rms_norm_eps)], dim=1)
    q, k = operators.turn(qk, cos, sin).split([H, K], dim=1)
    return q, k, v


def after_attention(x: torch.Tensor, attended: torch.Tensor, layer: LayerWeights,
                    config: ModelConfig, operators: Operators) -> torch.Tensor:
    """The rest of a layer, (T, D). x: (T, D), which is used up; attended: (T, H, d)."""
    update = F.linear(attended.flatten(1), layer.o_proj, layer.o_bias)
    hidden = operators.norm(update, layer.post_attention_layernorm, config.rms_norm_eps, x)
    gated = operators.swiglu(F.linear(hidden, layer.gate_up_proj))
    return x + F.linear(gated, layer.down_proj)


def place_for(device: str | None, dtype: str | None) -> tuple[torch.device, torch.dtype]:
    """Where a model runs, and in what.

    Raises NotAvailableError for a device that is not there, ModelError for another dtype.
    """
    has_mps = torch.backends.mps.is_available()
    there = ["cuda"] * torch.cuda.is_available() + ["mps"] * has_mps + ["cpu"]
    device = there[0] if device is None else device
    if device.partition(":")[0] not in there:
        raise NotAvailableError(f"cannot run a model on {device!r:.40}",
                                f"torch finds {', '.join(there)} here",
                                "leave the device out, or install a torch built for it")
    if dtype is None:
        if device.startswith("cuda"):
            # older ones have bfloat16 by emulation only
            dtype = ("bfloat16" if torch.cuda.get_device_capability() >= (8, 0) else "float16")
        else:
            dtype = "float16" if device == "mps" else "float32"
    if dtype not in DTYPES:
        raise ModelError(f"cannot run a model in {dtype!r:.40}",
                         "torch's decoder computes in " + ", ".join(DTYPES),
                         "take one of these")
    return torch.device(device), DTYPES[dtype]


def refuse_family(config: ModelConfig) -> None:
    """Raise ModelError for a model that is no plain decoder."""
    if not runs("torch", config.architecture):
        raise ModelError(f"torch's decoder does not run a {config.architecture}",
                         "it runs " + ", ".join(ROUTES["torch"].families),
                         "run it with --engine numpy")
