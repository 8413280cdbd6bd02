"""A decoder on compiled kernels, with the interface of `gearworks.model.Model`.

Its weights stay in the codes of their file. Two modes: `exact` computes with float32
activations, and says what the NumPy engine says, but for the order of its sums; `fast` rounds
the activations to signed bytes before each product, so that four products are one instruction.
In `fast` a row's logits have the same bits whatever other rows are in a step.

Shapes: T tokens of a step, R rows whose logits are wanted, V vocabulary.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
from numba.core import types

from gearworks.config import ModelConfig
from gearworks.errors import ModelError
from gearworks.families import gpt2
from gearworks.families.gguf_layouts import PERMUTED, Made
from gearworks.families.layouts import Part
from gearworks.families.phi3 import row_order
from gearworks.formats.gguf import BLOCK_FORMATS, GGUFFile
from gearworks.kernels.cpu.arena import Arena, up_to
from gearworks.kernels.cpu.attention import SEQUENCE
from gearworks.kernels.cpu.compiling import FOLDER, is_compiled, keeps_code
from gearworks.kernels.cpu.instructions import ATTEND
from gearworks.kernels.cpu.layout import GROUP, LANES, Form
from gearworks.kernels.cpu.memory import Recycled, described
from gearworks.kernels.cpu.step import run
from gearworks.kernels.cpu.store import Weight, WeightStore
from gearworks.kernels.cpu.threads import Team, default_threads
from gearworks.kv_cache import Cache, KVCache, Rows
from gearworks.model import rotations
from gearworks.rope_scaling import scaled_angles
from gearworks.formats.codes import Codes, joined
from gearworks.formats.quantized import PackedExperts, PackedMatrix
from gearworks.formats.gguf_codes import codes_of, is_quantized
from gearworks.weights import (
    Checkpoint, map_names, open_checkpoint, read_into, unpermute_rope)

MODES = ("exact", "fast")


class CompiledModel:
    """A configuration and its weights, ready to run. Its steps run one at a time."""

    def __init__(self, config: ModelConfig, weights: WeightStore, mode: str = "exact",
                 threads: int | None = None):
        """mode: "exact" or "fast"; threads: by default `default_threads()`."""
        if mode not in MODES:
            raise ValueError(f"the mode is {mode!r}, not one of {MODES}")
        self.config = with_sinks(config, weights)
        self.weights = weights
        self.mode = mode
        self.threads = default_threads() if threads is None else threads
        self.arena = Arena(config, weights, self.threads, quantize=mode == "fast")
        self._team = Team(self.threads)
        self._logits = Recycled()

    @classmethod
    def load(cls, path: Path, mode: str = "exact", threads: int | None = None,
             progress: Callable[[Iterable], Iterable] = iter) -> "CompiledModel":
        """Load a GGUF file or an HF folder, in the bits that it has.

        Errors as `weights.load_checkpoint`. progress: wraps the iteration over the matrices.
        """
        config, file = open_checkpoint(Path(path))
        with closing(file):
            names = map_names({name: info.shape for name, info in file.tensors.items()}, config)
            weights = WeightStore(config, _File(config, file, names), progress)
        return cls(config, weights, mode, threads)

    @classmethod
    def from_tensors(cls, config: ModelConfig, tensors: Mapping[str, Weight],
                     mode: str = "exact", threads: int | None = None) -> "CompiledModel":
        """tensors: by Hugging Face's names, each in codes or in float32."""
        return cls(config, WeightStore(config, _Given(tensors)), mode, threads)

    def warm_up(self, say: Callable[[str], None] = lambda line: None) -> None:
        """Run a step of one token, for which the kernels are compiled or found.

        say: is told when they have to be compiled, which happens once on a machine.
        """
        self.arena.make_room(1, 1)
        plain = self.arena.family is None
        if not is_compiled(run, lambda signature: (types.none in signature) == plain):
            say("Compiling the kernels for this processor, "
                + ("once" if keeps_code(run) else f"each time, for {FOLDER} cannot be written")
                + ": some ten seconds …")
        self.forward(np.zeros(1, np.int64), np.zeros(1, np.int64), self.new_cache(1))

    def new_cache(self, capacity: int) -> KVCache:
        """An empty cache for one sequence of up to `capacity` tokens."""
        return KVCache(self.config, capacity)

    def forward(self, input_ids: np.ndarray, positions: np.ndarray, cache: Cache,
                logits_at: Rows = slice(None)) -> np.ndarray:
        """See `gearworks.model.forward`. input_ids, positions: (T,); returns (R, V).

        Raises as `Model.forward`, and as the cache does.
        """
        ids, positions = np.asarray(input_ids, np.int64), np.asarray(positions)
        if ids.shape != positions.shape or ids.ndim != 1:
            raise ValueError(f"ids of shape {ids.shape} and positions of shape "
                             f"{positions.shape}; both are (T,)")
        V = self.config.vocab_size
        if len(ids) and not 0 <= ids.min() <= ids.max() < V:
            raise ModelError("cannot run the model on these token ids",
                             f"they go from {ids.min()} to {ids.max()}, and the vocabulary has "
                             f"{V}", "does the tokenizer belong to this model?")
        wanted = np.arange(len(ids))[logits_at]
        stride = up_to(V, LANES)
        out = self._logits.take(len(wanted) * stride)
        logits = out[:len(wanted) * stride].reshape(-1, stride)[:, :V]
        if not len(ids):
            return logits
        sequences = described(cache, len(ids))
        arena = self.arena
        arena.make_room(max(len(ids), len(wanted)),
                        0 if sequences is None else sequences.longest)
        self._place(positions)
        arena.shape["alike"] = getattr(cache, "fixed_shapes", False)
        if sequences is None:
            self._ask(cache, ids, wanted, out, stride)
        else:
            self._run(arena.program, ids, wanted, sequences.sequences, sequences.tables, out,
                      stride)
            sequences.commit()
        return logits

    def _place(self, positions: np.ndarray) -> None:
        """Bring what belongs to the tokens' positions into the step's memory: learned vectors,
        or cosines and sines. Raises ModelError for a position that has none."""
        config, arena, T = self.config, self.arena, len(positions)
        if "positions" in arena.starts:
            D = config.hidden_size
            learned = self.weights.vector(self.weights.model["embed_positions"],
                                          config.max_position_embeddings * D).reshape(-1, D)
            gpt2.require_learned(positions, learned)
            arena.array("positions", T)[:, :D] = learned[positions]
            return
        d = config.head_dim
        angles = {"angles": rotations(config, positions)}
        if config.rope_local_theta is not None:
            angles["local_angles"] = scaled_angles(positions, d, config.rope_local_theta, None)
        for name, (cos, sin) in angles.items():
            rows = arena.array(name, T)
            rows[:, :d], rows[:, d:2 * d] = cos[:, 0], sin[:, 0]

    def _run(self, program: np.ndarray, *arguments) -> None:
        """Run instructions in all threads."""
        weights, arena = self.weights, self.arena
        self._team.run(run, program, weights.matrices, arena.shape, weights.words,
                       weights.numbers, arena.places, arena.memory, arena.words, *arguments,
                       arena.family)

    def _ask(self, cache: Cache, ids: np.ndarray, wanted: np.ndarray, out: np.ndarray,
             stride: int) -> None:
        """A step over a cache that only its own `attend` knows: it stops in every layer."""
        arena, T = self.arena, len(ids)
        program = arena.program
        H, K, d, e = (int(arena.shape[name][0])
                      for name in ("heads", "kv_heads", "head_dim", "value_dim"))
        without_keys = np.zeros(1, SEQUENCE)
        without_keys["rows"] = T
        arguments = (ids, wanted, without_keys, np.zeros(1, np.int64), out, stride)
        heads = arena.array("qkv", T)[:, :(H + 2 * K) * d].reshape(T, H + 2 * K, d)
        attended = arena.array("attended", T)
        start = 0
        for stop in np.flatnonzero(program["op"] == ATTEND):
            self._run(program[start:stop], *arguments)
            q, k, v = heads[:, :H], heads[:, H:H + K], heads[:, H + K:]
            if self.config.latent is not None:              # the one key has its value in it
                k = arena.array("latents", T)[:, None, :d]
                v = k[..., :e]
            attended[:, :H * e] = cache.attend(int(program[stop]["layer"]), q, k,
                                               v).reshape(T, H * e)
            start = stop + 1
        self._run(program[start:], *arguments)


def with_sinks(config: ModelConfig, weights: WeightStore) -> ModelConfig:
    """The configuration with each layer's sinks, (H,), where its weights have any: caches that
    compute attention themselves ask for them."""
    if not any("sinks" in layer for layer in weights.layers):
        return config
    return replace(config, sinks=tuple(
        weights.vector(layer["sinks"], config.num_attention_heads).copy()
        for layer in weights.layers))


class _File:
    """The tensors of a checkpoint, quantized where the file has them so."""

    def __init__(self, config: ModelConfig, file: Checkpoint, names: Mapping[str, str]):
        self.config, self.file, self.names = config, file, names

    def form(self, part: Part) -> Form:
        info = self.file.tensors[self.names[part.name]]
        if isinstance(self.file, GGUFFile) and is_quantized(info.type):
            block = BLOCK_FORMATS[info.type]                     # one says it of all
            return Form.of(codes_of(np.zeros(block.nbytes, np.uint8), info.type,
                                    (1, block.size)))
        if isinstance(info, PackedExperts):
            info = info.expert(0)
        if isinstance(info, PackedMatrix):
            row = info.codes(slice(0, 1))
            return Form(32, GROUP, False) if row is None else Form.of(row)
        return Form(32, GROUP, False)

    def read(self, part: Part) -> Weight:
        name = self.names[part.name]
        info = self.file.tensors[name]
        order = self._order(part, name)
        codes = self._codes(info, name, part)
        if codes is not None:
            return codes if order is None else codes.rows(order)
        weight = np.empty(part.shape, np.float32)
        read_into(weight, self.file, name, self.config)
        return weight

    def _codes(self, info: object, name: str, part: Part) -> Codes | None:
        """The codes of a tensor, in the order of the file; None for one of plain numbers."""
        if isinstance(info, PackedMatrix):
            return info.codes()
        if isinstance(info, PackedExperts):
            each = [info.expert(number).codes() for number in range(info.shape[0])]
            return None if None in each else joined(each)
        if not (isinstance(self.file, GGUFFile) and is_quantized(info.type)):
            return None
        if isinstance(info, Made):
            return info.codes()
        codes = codes_of(self.file.raw(name), info.type, part.shape)
        self.file.release(name)
        return codes

    def _order(self, part: Part, name: str) -> np.ndarray | None:
        """Where each row of a tensor stands in the file, or None: in the same order."""
        heads = {"attn_q": self.config.num_attention_heads,
                 "attn_k": self.config.num_key_value_heads}.get(name.split(".")[-2])
        if (heads is not None and isinstance(self.file, GGUFFile)
                and self.config.architecture in PERMUTED):
            return unpermute_rope(np.arange(part.shape[0])[:, None], heads).ravel()
        return row_order(part.name, self.config)


class _Given:
    """Tensors that are there."""

    def __init__(self, tensors: Mapping[str, Weight]):
        self.tensors = tensors

    def form(self, part: Part) -> Form:
        return Form.of(self.tensors[part.name])

    def read(self, part: Part) -> Weight:
        return self.tensors[part.name]
