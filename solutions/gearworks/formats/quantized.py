"""Quantized checkpoints of Hugging Face's kind, read as if their matrices were plain.

`config.json` says under "quantization_config" which program packed the matrices, and how. Of a
linear layer X the file then holds, in place of X.weight (out, in):

    gptq                  X.qweight, X.qzeros, X.scales, X.g_idx     codes packed along inputs
    awq                   X.qweight, X.qzeros, X.scales              codes packed along outputs
    fp8                   X.weight (E4M3), X.weight_scale_inv        a scale for each tile
    compressed-tensors    X.weight (int8 or E4M3), X.weight_scale, or
                          X.weight_packed, X.weight_scale, …         codes packed along inputs
    mxfp4                 X_blocks, X_scales, of all experts         codes packed along inputs

A weight is scale · (code - zero point), with one scale and one zero point for each group of
neighbouring inputs of an output. What a file leaves unquantized (embedding, norms, head) stands
in it as it does everywhere.

Left out on purpose: bits that do not divide 32, kernels' own orders (Marlin, AWQ's GEMV), and
bitsandbytes. Activations, which some of these schemes round too, stay float32 here.
Sources: AutoGPTQ, GPTQModel, AutoAWQ, compressed-tensors; `integrations` in transformers.
"""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from gearworks.errors import FormatError, ModelError
from gearworks.formats.files import names_like
from gearworks.formats.float8 import TWICE_E2M1, widen_e4m3
from gearworks.formats.pickled import PickledFile
from gearworks.formats.safetensors import PIECE_VALUES, SafetensorsFile
from gearworks.formats.shards import ShardedPickled, ShardedSafetensors
from gearworks.formats.codes import Codes
from gearworks.formats.packed_words import unpack_awq, unpack_words, zeros_from_v1

FIELDS = ("quantization_config", "compression_config")      # the second is an older name
FLOATS = ("F32", "F16", "BF16")
FETCH_AGAIN = "fetch the model again, or use its GGUF file or its BF16 weights"

Rows = tuple[np.ndarray, np.ndarray, np.ndarray | None]


@dataclass(frozen=True)
class PackedMatrix:
    """One quantized matrix of a file, (out, in).

    bits: of its codes. unpack(rows): for some rows, codes (rows, in) of any dtype, scales
    (rows, groups) float32, and zero points (rows, groups) or None. group_of: which group each
    input belongs to, (in,), or None where the groups are neighbours and of one size.
    """

    shape: tuple[int, int]
    bits: int
    unpack: Callable[[slice], Rows]
    group_of: np.ndarray | None = None
    dtype: str = "F32"                      # what it is read as

    def dequantize(self, rows: slice) -> np.ndarray:
        """Some rows, (rows, in) float32."""
        codes, scales, zeros = self.unpack(rows)
        values = codes.astype(np.float32)
        if self.group_of is not None:
            if zeros is not None:
                values -= zeros[:, self.group_of]
            values *= scales[:, self.group_of]
            return values
        grouped = values.reshape(*scales.shape, -1)
        if zeros is not None:
            grouped -= zeros[..., None]
        grouped *= scales[..., None]
        return values

    def read(self, out: np.ndarray) -> None:
        """Dequantize all of it, in place. out: (out, in) float32."""
        step = max(1, PIECE_VALUES // max(1, self.shape[1]))
        for row in range(0, self.shape[0], step):
            rows = slice(row, min(row + step, self.shape[0]))
            out[rows] = self.dequantize(rows)

    def codes(self, rows: slice = slice(None)) -> Codes | None:
        """Some rows in the form that kernels take; None if there is none for this matrix:
        codes that are floats, or groups that are no neighbours."""
        codes, scales, zeros = self.unpack(rows)
        if self.group_of is not None or codes.dtype.kind == "f":
            return None
        minimums = None if zeros is None else -zeros.astype(np.float32) * scales
        return Codes(np.ascontiguousarray(codes), np.ascontiguousarray(scales, np.float32),
                     minimums, self.bits)


@dataclass(frozen=True)
class PackedExperts:
    """A quantized matrix of each of E experts, which files of plain weights keep as one tensor,
    (E, in, out).

    expert(number): the matrix of one, (out, in).
    """

    shape: tuple[int, int, int]
    expert: Callable[[int], PackedMatrix]
    dtype: str = "F32"

    def read(self, out: np.ndarray) -> None:
        """Dequantize all of them, in place. out: (E, in, out) float32."""
        for number, place in enumerate(out):
            self.expert(number).read(place.T)


class QuantizedFile:
    """An open checkpoint whose quantized matrices are read as plain ones: a context manager.

    path: the file or the index; tensors: shape and dtype by name, of what is quantized as
    float32; matrices: a PackedMatrix, or PackedExperts, by name, such as
    "model.layers.0.self_attn.q_proj.weight".
    """

    def __init__(self, file: SafetensorsFile | ShardedSafetensors, layout: "Layout",
                 expected: Set[str]):
        self._file = file
        self.path = file.path
        self.matrices: dict[str, PackedMatrix | PackedExperts] = {}
        taken = set()
        for name in file.tensors:
            module, _, part = name.rpartition(layout.joint)
            if part == layout.mark:
                self.matrices[module + layout.plain] = layout.read(file, module)
                taken |= {f"{module}{layout.joint}{each}" for each in layout.parts}
                # AutoGPTQ gives every layer a bias, of zeros where the model has none
                bias = f"{module}.bias"
                idle = bias in file.tensors and bias not in expected
                if idle and not file.tensor(bias).any():
                    taken.add(bias)
        plain = {name: info for name, info in file.tensors.items() if name not in taken}
        for name, info in plain.items():
            if info.dtype.startswith("F8"):
                raise _damaged(file, name, f"it is {info.dtype}, and has no "
                               f"{name.removesuffix('weight')}{layout.mark}")
        self.tensors = plain | self.matrices

    def tensor(self, name: str, out: np.ndarray | None = None) -> np.ndarray:
        """One tensor as float32, or as the file's own reader gives it; in place if `out`.

        Raises FormatError if the file has none of that name.
        """
        matrix = self.matrices.get(name)
        if matrix is None:
            if name not in self.tensors:
                raise FormatError(f"cannot read tensor {name!r} from {self.path}",
                                  "the file has no tensor of that name",
                                  names_like(name, self.tensors))
            return self._file.tensor(name, out)
        out = np.empty(matrix.shape, np.float32) if out is None else out
        matrix.read(out)
        return out

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def __enter__(self) -> "QuantizedFile":
        return self

    def __exit__(self, *exception) -> None:
        self.close()


@dataclass(frozen=True)
class Layout:
    """How a program lays a quantized linear layer out: the tensors that replace its weight.

    mark: the one that only a quantized layer has; parts: all of them; read(file, module): the
    matrix of one layer, its shapes checked. joint: what stands between the layer's name and the
    part's; plain: what follows it in a file of plain weights.
    """

    mark: str
    parts: tuple[str, ...]
    read: Callable[[Any, str], PackedMatrix | PackedExperts]
    joint: str = "."
    plain: str = ".weight"


def split_config(config: Mapping[str, Any]) -> tuple[dict[str, Any], Layout | None]:
    """What config.json says without its quantization, and the layout that this asks for.

    None stands for plain weights. Raises ModelError for a layout that is not read here.

    >>> split_config({"vocab_size": 9})
    ({'vocab_size': 9}, None)
    """
    field = next((field for field in FIELDS if config.get(field) is not None), None)
    if field is None:
        return dict(config), None
    settings = config[field]
    method = settings.get("quant_method") if isinstance(settings, Mapping) else None
    if not isinstance(method, str) or method not in READERS:
        raise _other(f"{field} names the method {method!r:.80}, which this engine does not "
                     f"read; it reads {', '.join(READERS)}")
    rest = {name: value for name, value in config.items() if name != field}
    try:
        return rest, READERS[method](settings)
    except ModelError as error:
        raise ModelError(error.what, f"by {method}: {error.why}", error.hint) from None


def open_quantized(file: SafetensorsFile | ShardedSafetensors | PickledFile | ShardedPickled,
                   layout: Layout, expected: Set[str]) -> QuantizedFile:
    """Read an open file in a layout. expected: the names of the weights that the model has.

    Raises FormatError for a layer with a part missing, or of a shape or dtype that does not fit
    the others. The file is closed then.
    """
    try:
        if not isinstance(file, SafetensorsFile | ShardedSafetensors):
            raise _other("its file is a pickle, and quantized weights are read from "
                         "safetensors only")
        return QuantizedFile(file, layout, expected)
    except BaseException:
        file.close()
        raise


# --- what quantization_config says, method by method ------------------------------------------

def _gptq_layout(settings: Mapping[str, Any]) -> Layout:
    bits, group_size = _bits(settings, (2, 4, 8)), _group_size(settings)
    kind = settings.get("checkpoint_format") or settings.get("format") or "gptq"
    if kind not in ("gptq", "gptq_v2"):
        raise _other(f"its checkpoint_format is {kind!r:.80}; gptq and gptq_v2 are read")
    _require_nothing(settings, "dynamic", "adapter", "rotation", "is_marlin_format")
    if settings.get("pack_dtype") not in (None, "int32"):
        raise _other(f"its pack_dtype is {settings['pack_dtype']!r:.80}; int32 is read")
    ordered = settings.get("desc_act") is True

    def read(file, module: str) -> PackedMatrix:
        packed = _tensor(file, f"{module}.qweight", ("I32",), 2)
        out, inputs = packed.shape[1], packed.shape[0] * 32 // bits
        groups = _groups(file, module, inputs, group_size)
        scales = _tensor(file, f"{module}.scales", FLOATS, (groups, out))
        words = _tensor(file, f"{module}.qzeros", ("I32",), (groups, -(-out * bits // 32)))
        words = zeros_from_v1(words, bits) if kind == "gptq" else words
        zeros = unpack_words(words, bits, axis=1)[:, :out].astype(np.float32)
        return PackedMatrix(
            (out, inputs), bits,
            lambda rows: (unpack_words(packed[:, rows], bits, axis=0).T, scales[:, rows].T,
                          zeros[:, rows].T),
            _gptq_groups(file, module, inputs, groups, group_size, ordered))
    return Layout("qweight", ("qweight", "qzeros", "scales", "g_idx"), read)


def _gptq_groups(file, module: str, inputs: int, groups: int, group_size: int,
                 ordered: bool) -> np.ndarray | None:
    """What g_idx says, or None where it says what its absence would.

    With desc_act the inputs were grouped in the order of their activations, and only g_idx
    knows which went where.
    """
    name = f"{module}.g_idx"
    in_turn = np.arange(inputs) // (inputs if group_size == -1 else group_size)
    if name not in file.tensors:
        if ordered:
            raise _damaged(file, name, "it is missing, and desc_act is true: without it nobody "
                           "knows which input belongs to which group")
        group_of = in_turn
    else:
        group_of = _tensor(file, name, ("I32",), (inputs,))
        if inputs and not 0 <= group_of.min() <= group_of.max() < groups:
            raise _damaged(file, name, f"it names groups {group_of.min()} to {group_of.max()}, "
                           f"and there are {groups}")
    if inputs % groups == 0 and np.array_equal(group_of, in_turn):
        return None
    return group_of


def _awq_layout(settings: Mapping[str, Any]) -> Layout:
    bits, group_size = _bits(settings, (4,)), _group_size(settings)
    kind = str(settings.get("version") or settings.get("format") or "gemm").lower()
    if kind != "gemm":
        raise _other(f"its version is {kind!r:.80}; only AWQ's gemm layout is read")
    if settings.get("zero_point", True) is not True:
        raise _other(f"its zero_point is {settings['zero_point']!r:.80}; only AWQ with zero "
                     "points is read")

    def read(file, module: str) -> PackedMatrix:
        packed = _tensor(file, f"{module}.qweight", ("I32",), 2)
        inputs, out = packed.shape[0], packed.shape[1] * 8
        groups = _groups(file, module, inputs, group_size)
        scales = _tensor(file, f"{module}.scales", FLOATS, (groups, out))
        words = _tensor(file, f"{module}.qzeros", ("I32",), (groups, out // 8))
        zeros = unpack_awq(words).astype(np.float32)
        # a word holds eight rows of the matrix, and a piece may begin between two words
        return PackedMatrix(
            (out, inputs), bits,
            lambda rows: (_awq_rows(packed, rows), scales[:, rows].T, zeros[:, rows].T),
            _uneven(inputs, groups, group_size))
    return Layout("qweight", ("qweight", "qzeros", "scales"), read)


def _awq_rows(packed: np.ndarray, rows: slice) -> np.ndarray:
    first, stop, _ = rows.indices(packed.shape[1] * 8)
    words = packed[:, first // 8:-(-stop // 8)]
    return unpack_awq(words)[:, first % 8:first % 8 + stop - first].T


def _fp8_layout(settings: Mapping[str, Any]) -> Layout:
    tile = settings.get("weight_block_size")
    if tile is not None and not _is_tile(tile):
        raise _other(f"its weight_block_size is {tile!r:.80}, not two sizes")
    if settings.get("activation_scheme", "dynamic") != "dynamic":
        raise _other(f"its activation_scheme is {settings['activation_scheme']!r:.80}; only "
                     "dynamic is read")
    if settings.get("scale_fmt", "float") not in ("float", "ue8m0"):
        raise _other(f"its scale_fmt is {settings['scale_fmt']!r:.80}")
    return _scaled_layout("weight_scale_inv", tuple(tile) if tile else None, None)


def _compressed_layout(settings: Mapping[str, Any]) -> Layout:
    _require_nothing(settings, "kv_cache_scheme", "sparsity_config", "transform_config",
                     "moe_sparsity_config")
    groups = settings.get("config_groups")
    if not isinstance(groups, Mapping) or len(groups) != 1:
        raise _other("it does not have exactly one of config_groups")
    scheme, = groups.values()
    weights = scheme.get("weights") if isinstance(scheme, Mapping) else None
    if not isinstance(weights, Mapping):
        raise _other("its config_groups say nothing of weights")
    kind = scheme.get("format") or settings.get("format")
    inputs = scheme.get("input_activations")
    if inputs is not None and (not isinstance(inputs, Mapping) or not inputs.get("dynamic")):
        raise _other("its activations have a fixed scale; only dynamic ones are read")
    if weights.get("actorder") not in (None, False, "weight", "static"):
        raise _other(f"its actorder is {weights['actorder']!r:.80}")
    strategy, number = weights.get("strategy"), weights.get("type", "int")
    symmetric = weights.get("symmetric", True)
    if type(symmetric) is not bool:
        raise _other(f"symmetric is {symmetric!r:.80}")
    group_size = _group_size(weights) if strategy == "group" else -1
    if kind == "mxfp4-pack-quantized" and (number, group_size) == ("float", 32):
        return _mxfp4_layout()
    if kind == "pack-quantized" and number == "int" and strategy in ("group", "channel"):
        return _compressed_packed(_bits(weights, (2, 4, 8), "num_bits"), group_size, symmetric)
    bits = _bits(weights, (8,), "num_bits")
    if kind in ("int-quantized", "float-quantized", "naive-quantized") and (
            strategy in ("tensor", "channel", "group", "block")):
        tile = {"tensor": None, "channel": (1, -1), "group": (1, group_size),
                "block": weights.get("block_structure")}[strategy]
        if strategy == "block" and not _is_tile(tile):
            raise _other(f"its block_structure is {tile!r:.80}, not two sizes")
        return _scaled_layout("weight_scale", tile and tuple(tile),
                              None if symmetric else "weight_zero_point", bits)
    raise _other(f"its format is {kind!r:.80} with {number!r:.80} weights and a scale for each "
                 f"{strategy!r:.80}, which this engine does not read")


def _compressed_packed(bits: int, group_size: int, symmetric: bool) -> Layout:
    def read(file, module: str) -> PackedMatrix:
        packed = _tensor(file, f"{module}.weight_packed", ("I32",), 2)
        shape = _tensor(file, f"{module}.weight_shape", ("I64", "I32"), (2,))
        out, inputs = (int(size) for size in shape)
        if packed.shape != (out, -(-inputs * bits // 32)) or min(out, inputs) < 1:
            raise _damaged(file, f"{module}.weight_packed", f"it is {packed.shape}, and "
                           f"weight_shape says {(out, inputs)}")
        groups = _groups(file, module, inputs, group_size)
        scales = _tensor(file, f"{module}.weight_scale", FLOATS, (out, groups))
        zeros = None
        if not symmetric:
            words = _tensor(file, f"{module}.weight_zero_point", ("I32",),
                            (-(-out * bits // 32), groups))
            zeros = unpack_words(words, bits, axis=0)[:out].astype(np.float32)

        def unpack(rows: slice) -> Rows:
            codes = unpack_words(packed[rows], bits, axis=1)[:, :inputs]
            if zeros is not None:
                return codes, scales[rows], zeros[rows]
            # a code is stored as its distance from the smallest, so that it is never negative
            return (codes - np.uint8(2 ** (bits - 1))).view(np.int8), scales[rows], None
        return PackedMatrix((out, inputs), bits, unpack, _uneven(inputs, groups, group_size))
    return Layout("weight_packed", ("weight_packed", "weight_scale", "weight_shape",
                                    "weight_zero_point"), read)


def _mxfp4_matrix(packed: np.ndarray, exponents: np.ndarray) -> PackedMatrix:
    """Codes of E2M1, two to a byte, the first in the low bits; scales are powers of two.
    packed: (out, in/2); exponents: (out, in/32), both uint8."""
    inputs = packed.shape[1] * 2
    # the codes stand for twice their values, so the scales for half of theirs
    scales = np.ldexp(np.float32(1), exponents.astype(np.int32) - 128)
    scales[exponents == 255] = np.nan

    def unpack(rows: slice) -> Rows:
        nibbles = np.stack([packed[rows] & 15, packed[rows] >> 4], axis=-1)
        return TWICE_E2M1[nibbles.reshape(-1, inputs)], scales[rows], None
    return PackedMatrix((len(packed), inputs), 5, unpack)       # from -12 to 12


def _mxfp4_layout() -> Layout:
    def read(file, module: str) -> PackedMatrix:
        packed = _tensor(file, f"{module}.weight_packed", ("U8",), 2)
        out, inputs = packed.shape[0], packed.shape[1] * 2
        if inputs % 32:
            raise _damaged(file, f"{module}.weight_packed", f"it is {packed.shape}: its rows "
                           "are not whole blocks of 32 values")
        return _mxfp4_matrix(packed, _tensor(file, f"{module}.weight_scale", ("U8",),
                                             (out, inputs // 32)))
    return Layout("weight_packed", ("weight_packed", "weight_scale"), read)


def _gpt_oss_layout(settings: Mapping[str, Any]) -> Layout:
    """MXFP4 as OpenAI's models have it: of experts only, whatever else a file may list."""
    def read(file, module: str) -> PackedExperts:
        blocks = _tensor(file, f"{module}_blocks", ("U8",), 4, raw=True)
        E, out, groups, size = blocks.shape
        if size != 16 or min(blocks.shape) < 1:
            raise _damaged(file, f"{module}_blocks", f"it is {blocks.shape}: its blocks are "
                           "not of 16 bytes")
        exponents = _tensor(file, f"{module}_scales", ("U8",), (E, out, groups), raw=True)
        return PackedExperts((E, groups * 32, out), lambda expert: _mxfp4_matrix(
            blocks[expert].reshape(out, -1), exponents[expert]))
    return Layout("blocks", ("blocks", "scales"), read, joint="_", plain="")


def _scaled_layout(scale_name: str, tile: tuple[int, int] | None, zero_name: str | None,
                   bits: int = 8) -> Layout:
    """Codes of a byte, unpacked. tile: (rows, inputs) that share a scale, -1 for all inputs;
    None for one scale in all."""
    def read(file, module: str) -> PackedMatrix:
        name = f"{module}.weight"
        codes = _tensor(file, name, ("I8", "F8_E4M3"), 2, raw=True)
        out, inputs = codes.shape
        if min(out, inputs) < 1:
            raise _damaged(file, name, f"its shape is {codes.shape}")
        height, width = tile or (out, inputs)
        width = inputs if width == -1 else width
        grid = (-(-out // height), -(-inputs // width))
        # a single scale may have no axes at all
        shape = file.tensors[f"{module}.{scale_name}"].shape
        expected = shape if tile is None and shape in ((), (1,)) else grid
        scales = _tensor(file, f"{module}.{scale_name}", FLOATS, expected).reshape(grid)
        zeros = None
        if zero_name is not None:
            zeros = _tensor(file, f"{module}.{zero_name}", ("I8",), expected).reshape(grid)
        floats = file.tensors[name].dtype == "F8_E4M3"

        def unpack(rows: slice) -> Rows:
            of = np.arange(*rows.indices(out)) // height
            return (widen_e4m3(codes[rows]) if floats else codes[rows], scales[of],
                    None if zeros is None else zeros[of])
        return PackedMatrix((out, inputs), bits, unpack, _uneven(inputs, grid[1], width))
    parts = ("weight", scale_name, *([zero_name] if zero_name else []))
    return Layout(scale_name, parts, read)


READERS: Mapping[str, Callable[[Mapping[str, Any]], Layout]] = {
    "gptq": _gptq_layout, "awq": _awq_layout, "fp8": _fp8_layout, "mxfp4": _gpt_oss_layout,
    "compressed-tensors": _compressed_layout}


# --- reading what nobody has checked yet ------------------------------------------------------

def _tensor(file, name: str, dtypes: tuple[str, ...], shape: int | tuple[int, ...],
            raw: bool = False) -> np.ndarray:
    """A tensor of one of these dtypes, and of this shape or with so many axes.

    raw: as it is stored, float8 in bytes.
    """
    if name not in file.tensors:
        raise _damaged(file, name, "it is missing, and other parts of the same layer are there")
    info = file.tensors[name]
    if info.dtype not in dtypes:
        raise _damaged(file, name, f"it is {info.dtype}, expected {' or '.join(dtypes)}")
    if (len(info.shape) != shape) if isinstance(shape, int) else (info.shape != shape):
        raise _damaged(file, name, f"its shape is {info.shape}, expected "
                       + (f"{shape} axes" if isinstance(shape, int) else f"{shape}"))
    return file.raw(name) if raw else file.tensor(name)


def _groups(file, module: str, inputs: int, group_size: int) -> int:
    if inputs < 1:
        raise _damaged(file, module, "it has no inputs")
    return 1 if group_size == -1 else -(-inputs // group_size)


def _uneven(inputs: int, groups: int, group_size: int) -> np.ndarray | None:
    """The group of each input where the last group is smaller, else None."""
    return np.arange(inputs) // group_size if inputs % groups else None


def _bits(settings: Mapping[str, Any], known: tuple[int, ...], name: str = "bits") -> int:
    bits = settings.get(name, settings.get("w_bit"))
    if type(bits) is not int or bits not in known:
        raise _other(f"its {name} is {bits!r:.80}, and this engine reads "
                     f"{', '.join(map(str, known))}")
    return bits


def _group_size(settings: Mapping[str, Any]) -> int:
    group_size = settings.get("group_size", settings.get("q_group_size"))
    if type(group_size) is not int or group_size != -1 and not _is_size(group_size):
        raise _other(f"its group_size is {group_size!r:.80}, not a size or -1")
    return group_size


def _is_size(value: Any) -> bool:
    """Whether a number can be a number of rows or inputs: NumPy counts no larger ones."""
    return type(value) is int and 0 < value < 2**31


def _is_tile(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_size, value))


def _require_nothing(settings: Mapping[str, Any], *names: str) -> None:
    for name in names:
        if settings.get(name):
            raise _other(f"its {name} is {settings[name]!r:.80}, and what that does to the "
                         "weights is not known here")


def _other(why: str) -> ModelError:
    return ModelError("the model's weights are quantized", why,
                      "use the publisher's BF16 or FP16 weights, or a GGUF file of the model")


def _damaged(file, name: str, why: str) -> FormatError:
    return FormatError(f"cannot read the quantized tensor {name} of {file.path}", why,
                       FETCH_AGAIN)
