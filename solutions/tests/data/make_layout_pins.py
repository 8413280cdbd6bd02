"""Make quantized_layouts.json again: what other programs write for codes that are known.

    pip download --no-deps -d FOLDER auto-gptq==0.7.1 autoawq==0.2.9 gptqmodel==7.7.0
    pip install compressed-tensors==0.20.1
    python make_layout_pins.py FOLDER

Their own packing code runs here, taken out of the packages (they want a GPU to be installed),
and then their own code that reads it back. Nothing of the engine is used. Every case holds the
codes, scales and zero points that went in, the tensors that a file would hold, and the sha256
of the weights that the other program reads from them, as contiguous little-endian float32.
"""

import ast
import base64
import contextlib
import hashlib
import json
import math
import sys
import tarfile
import types
import zipfile
from pathlib import Path

import numpy as np
import torch
import transformers
from torch import nn

TARGET = Path(__file__).parent / "quantized_layouts.json"
OUT, IN, GROUP = 32, 96, 32


def source(folder: Path, package: str, ending: str) -> str:
    """The text of a file in a package that was downloaded."""
    path, = folder.glob(f"{package}-*")
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            name, = (name for name in archive.namelist() if name.endswith(ending))
            return archive.read(name).decode()
    with tarfile.open(path) as archive:
        name, = (name for name in archive.getnames() if name.endswith(ending))
        return archive.extractfile(name).read().decode()


def defined(text: str, name: str, names: dict) -> object:
    """A class or function of a source text, alone, with these names around it."""
    tree = ast.parse(text)
    node = next(node for node in ast.walk(tree) if getattr(node, "name", "") == name)
    module = ast.Module([node], [])
    exec(compile(module, name, "exec"), names)
    return names[name]


def example(rng: np.random.Generator, bits: int, least_zero: int):
    """Codes that use all their range, float16 scales, zero points, and the weights."""
    codes = rng.integers(0, 2**bits, (OUT, IN))
    scales = rng.uniform(0.01, 0.1, (OUT, IN // GROUP)).astype(np.float16)
    zeros = rng.integers(least_zero, 2**bits, scales.shape)
    zeros[0], zeros[1] = least_zero, 2**bits - 1
    return codes, scales, zeros


def weights_of(codes, scales, zeros, g_idx) -> torch.Tensor:
    values = (codes - zeros[:, g_idx]) * scales.astype(np.float32)[:, g_idx]
    return torch.tensor(values, dtype=torch.float32)


def layer_of(weight: torch.Tensor) -> nn.Linear:
    layer = nn.Linear(IN, OUT, bias=False)
    layer.weight.data = weight
    return layer


def stored(array) -> dict:
    """An array or tensor as a file would hold it."""
    if isinstance(array, torch.Tensor):
        array = array.detach().contiguous()
        if array.dtype == torch.float8_e4m3fn:
            return stored(array.view(torch.uint8)) | {"dtype": "F8_E4M3"}
        array = array.numpy()
    kind = {"i": "I", "u": "U", "f": "F"}[array.dtype.kind] + str(8 * array.dtype.itemsize)
    return {"dtype": kind, "shape": list(array.shape),
            "data": base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()}


def case(settings: dict, inputs: dict, tensors: dict, weight: torch.Tensor) -> dict:
    # 0.0: some readers give -0.0 where others give 0.0
    weight = np.ascontiguousarray(weight.float().numpy() + np.float32(0), "<f4")
    for name in ("codes", "zeros", "g_idx"):
        if name in inputs:
            signed = inputs[name].min() < 0
            inputs[name] = inputs[name].astype(np.int8 if signed else np.uint8)
    return {"quantization_config": settings,
            "inputs": {name: stored(array) for name, array in inputs.items()},
            "tensors": {f"layer.{name}": stored(tensor) for name, tensor in tensors.items()},
            "weight_sha256": hashlib.sha256(weight.tobytes()).hexdigest()}


def gptq_v1(folder: Path, rng, bits: int, ordered: bool) -> dict:
    """AutoGPTQ's QuantLinear packs, and its forward pass over the identity reads."""
    names: dict = {}
    exec(source(folder, "auto_gptq", "nn_modules/qlinear/qlinear_cuda.py"), names)
    codes, scales, zeros = example(rng, bits, least_zero=1)
    g_idx = np.arange(IN) // GROUP
    g_idx = rng.permutation(g_idx) if ordered else g_idx
    weight = weights_of(codes, scales, zeros, g_idx)
    layer = names["QuantLinear"](bits, GROUP, IN, OUT, bias=False)
    layer.pack(layer_of(weight), torch.tensor(scales).float(), torch.tensor(zeros).float(),
               torch.tensor(g_idx, dtype=torch.int32))
    read = layer.forward(torch.eye(IN)).T
    settings = {"quant_method": "gptq", "bits": bits, "group_size": GROUP, "sym": False,
                "desc_act": ordered, "checkpoint_format": "gptq"}
    return case(settings, {"codes": codes, "scales": scales, "zeros": zeros, "g_idx": g_idx},
                {"qweight": layer.qweight, "qzeros": layer.qzeros,
                 "scales": layer.scales.half(), "g_idx": layer.g_idx}, read)


def gptq_of_gptqmodel(folder: Path, rng, version: int) -> dict:
    """GPTQModel's own packing, which is of version 2, and its step from that to version 1."""
    class Layer(nn.Module):
        pass

    @contextlib.contextmanager
    def limits(_):
        yield
    text = source(folder, "gptqmodel", "gptqmodel/nn_modules/qlinear/__init__.py")
    pack = defined(text, "pack_original", {
        "THREADPOOLCTL": types.SimpleNamespace(threadpool_limits=limits), "t": torch,
        "nn": nn, "np": np, "math": math, "transformers": transformers,
        "_ConvNd": nn.modules.conv._ConvNd})
    silent = types.SimpleNamespace(info=types.SimpleNamespace(once=print))
    to_v1 = defined(source(folder, "gptqmodel", "gptqmodel/utils/model.py"),
                    "convert_gptq_v2_to_v1_format_module",
                    {"BaseQuantLinear": Layer, "QuantizeConfig": object, "log": silent,
                     "torch": torch})
    codes, scales, zeros = example(rng, 4, least_zero=0)
    g_idx = np.arange(IN) // GROUP
    layer = Layer()
    for name, value in {"bits": 4, "maxq": 15, "pack_factor": 8, "pack_dtype_bits": 32,
                        "pack_np_math_dtype": np.uint32, "pack_np_dtype": np.int32,
                        "pack_dtype": torch.int32, "planar": False,
                        "qzero_format": lambda format: None}.items():
        setattr(layer, name, value)
    layer.register_buffer("g_idx", torch.tensor(g_idx, dtype=torch.int32))
    weight = weights_of(codes, scales, zeros, g_idx)
    pack(layer, layer_of(weight), torch.tensor(scales).float(), torch.tensor(zeros).float())
    if version == 1:
        to_v1(layer, layer)
    settings = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": False,
                "desc_act": False, "checkpoint_format": "gptq" if version == 1 else "gptq_v2"}
    return case(settings, {"codes": codes, "scales": scales, "zeros": zeros, "g_idx": g_idx},
                {"qweight": layer.qweight, "qzeros": layer.qzeros, "scales": layer.scales,
                 "g_idx": layer.g_idx}, weight)


def awq(folder: Path, rng) -> dict:
    """AutoAWQ's WQLinear_GEMM packs, and its dequantize_gemm reads."""
    linear = defined(source(folder, "autoawq", "awq/modules/linear/gemm.py"), "WQLinear_GEMM",
                     {"nn": nn, "torch": torch, "get_best_device": lambda: "cpu"})
    reading: dict = {}
    exec(source(folder, "autoawq", "awq/utils/packing_utils.py"), reading)
    codes, scales, zeros = example(rng, 4, least_zero=0)
    g_idx = np.arange(IN) // GROUP
    layer = linear.from_linear(layer_of(weights_of(codes, scales, zeros, g_idx)), 4, GROUP,
                               scales=torch.tensor(scales).float().T.contiguous(),
                               zeros=torch.tensor(zeros).float().T.contiguous())
    read = reading["dequantize_gemm"](layer.qweight, layer.qzeros, layer.scales.float(), 4,
                                      GROUP).T
    settings = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm",
                "zero_point": True}
    return case(settings, {"codes": codes, "scales": scales, "zeros": zeros, "g_idx": g_idx},
                {"qweight": layer.qweight, "qzeros": layer.qzeros, "scales": layer.scales},
                read)


def compressed(rng, kind: str, **arguments) -> dict:
    """A scheme of compressed-tensors: its compressor packs, and reads back."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import (QuantizationArgs, QuantizationConfig,
                                                 QuantizationScheme)

    weights = QuantizationArgs(**arguments)
    scheme = QuantizationScheme(targets=["Linear"], weights=weights, format=kind)
    bits, inputs = weights.num_bits, {}
    groups = IN // weights.group_size if weights.group_size else 1
    if weights.type == "int":
        low = -2 ** (bits - 1)
        codes = rng.integers(low, -low, (OUT, IN))
        scales = rng.uniform(0.01, 0.1, (OUT, groups)).astype(np.float16)
        zeros = np.zeros(scales.shape, int) if weights.symmetric else (
            rng.integers(low, -low, scales.shape))
        inputs = {"codes": codes, "scales": scales, "zeros": zeros}
        weight = weights_of(codes, scales, zeros, np.arange(IN) * groups // IN)
        state = {"weight_zero_point": torch.tensor(zeros, dtype=torch.int8)}
        scale = torch.tensor(scales).float()
    else:
        weight = torch.tensor(rng.normal(size=(OUT, IN)), dtype=torch.float32)
        peaks = weight.reshape(OUT, groups, -1).abs().amax(-1)
        scale = peaks / 448 if bits == 8 else 2.0 ** (peaks.log2().floor() - 2)
        inputs, state = {"weight": weight.numpy()}, {}
    compressor = BaseCompressor.get_value_from_registry(kind)
    packed = compressor.compress({"weight": weight, "weight_scale": scale, **state}, scheme)
    read = compressor.decompress(packed, scheme)["weight"]
    config = QuantizationConfig(config_groups={"group_0": scheme}, format=kind)
    settings = json.loads(config.model_dump_json())
    names = compressor.compression_param_names(scheme)
    return case(settings, inputs, {name: packed[name] for name in names}, read)


def main(folder: Path) -> None:
    rng = np.random.default_rng(12)
    pins = {
        "AutoGPTQ, 4 bits": gptq_v1(folder, rng, 4, ordered=False),
        "AutoGPTQ, 8 bits": gptq_v1(folder, rng, 8, ordered=False),
        "AutoGPTQ, 4 bits, act order": gptq_v1(folder, rng, 4, ordered=True),
        "GPTQModel, version 2": gptq_of_gptqmodel(folder, rng, 2),
        "GPTQModel, version 1": gptq_of_gptqmodel(folder, rng, 1),
        "AutoAWQ, GEMM": awq(folder, rng),
        "compressed-tensors, int8 by row": compressed(
            rng, "pack-quantized", num_bits=8, type="int", strategy="channel", symmetric=True),
        "compressed-tensors, int4 in groups": compressed(
            rng, "pack-quantized", num_bits=4, type="int", strategy="group", group_size=GROUP,
            symmetric=False),
        "compressed-tensors, int8 unpacked": compressed(
            rng, "naive-quantized", num_bits=8, type="int", strategy="channel",
            symmetric=True),
        "compressed-tensors, float8": compressed(
            rng, "naive-quantized", num_bits=8, type="float", strategy="channel",
            symmetric=True),
        "compressed-tensors, MXFP4": compressed(
            rng, "mxfp4-pack-quantized", num_bits=4, type="float", strategy="group",
            group_size=32, symmetric=True)}
    text = ",\n".join(f" {json.dumps(name)}: {json.dumps(value)}"
                      for name, value in pins.items())
    TARGET.write_text("{\n" + text + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
