"""Quantized files: read as the programs mean them that write them, written so that these read
them, and refused where they say something else. About 30 s; with --long, SmolLM2 too.

`data/quantized_layouts.json` holds what those programs' own packing code gave for known codes.
"""

import base64
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import gguf as oracle
import numpy as np
import pytest

from gearworks.cli import commands as cli
from gearworks.errors import FormatError, ModelError, NotAvailableError
from gearworks.families.phi3 import row_order
from gearworks.formats.codes import Codes
from gearworks.formats.gguf import GGUFFile, TensorType
from gearworks.formats.gguf_quantize import QUANTIZE
from gearworks.formats.gguf_writer import encode_value, encoded_metadata
from gearworks.formats.quantized import QuantizedFile, open_quantized, split_config
from gearworks.formats.safetensors import SafetensorsFile
from gearworks.formats.shards import ShardedSafetensors
from gearworks.language_model import LanguageModel
from gearworks.model import Model
from gearworks.quantization import saving
from gearworks.quantization.methods import MXFP4, Float8, round_model
from gearworks.quantization.mxfp4 import quantize_mxfp4
from gearworks.quantization.quality import TEXTS, compare, log_probabilities
from gearworks.quantization.rounding import from_zero_points, quantize_fp8
from gearworks.tokenizer import bytes_to_unicode
from gearworks.vocabularies.to_gguf import vocabulary_to_gguf
from gearworks.vocabularies.vocabulary import Vocabulary
from gearworks.weights import (
    load_checkpoint, named_tensors, open_checkpoint, permute_rope, unpermute_rope)

DATA = Path(__file__).parent / "data"
PINS = json.loads((DATA / "quantized_layouts.json").read_text("utf-8"))
INTEGERS = [name for name, pin in PINS.items() if "codes" in pin["inputs"]]
DTYPES = {"I8": "i1", "U8": "u1", "F8_E4M3": "u1", "I32": "<i4", "I64": "<i8", "F16": "<f2",
          "F32": "<f4"}


def array(stored: dict) -> np.ndarray:
    """An array of the pinned file."""
    return np.frombuffer(base64.b64decode(stored["data"]), DTYPES[stored["dtype"]]).reshape(
        stored["shape"])


def write(path: Path, tensors: dict[str, dict]) -> Path:
    """A safetensors file of tensors as the pinned file holds them."""
    header, data = {}, b""
    for name, stored in tensors.items():
        raw = base64.b64decode(stored["data"])
        header[name] = {"dtype": stored["dtype"], "shape": stored["shape"],
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def opened(tmp_path: Path, pin: dict, **changes) -> QuantizedFile:
    """A pinned case as an open file. changes: to its quantization_config."""
    settings = {"quantization_config": pin["quantization_config"] | changes}
    _, layout = split_config(settings)
    file = SafetensorsFile.open(write(tmp_path / "model.safetensors", pin["tensors"]))
    return open_quantized(file, layout, {"layer.weight"})


@pytest.mark.parametrize("pin", PINS.values(), ids=PINS)
def test_weights_are_those_that_their_program_reads(tmp_path, pin):
    with opened(tmp_path, pin) as file:
        assert [*file.tensors] == ["layer.weight"]
        weight = file.tensor("layer.weight")
        assert weight.dtype == np.float32 and weight.shape == (32, 96)
        assert file.tensors["layer.weight"].shape == weight.shape
    digest = hashlib.sha256((weight + np.float32(0)).tobytes()).hexdigest()
    assert digest == pin["weight_sha256"]


@pytest.mark.parametrize("pin", [PINS[name] for name in INTEGERS], ids=INTEGERS)
def test_codes_are_those_that_were_packed(tmp_path, pin):
    """And in the form of the kernels they stand for the same weights, bit for bit."""
    with opened(tmp_path, pin) as file:
        codes, weight = file.matrices["layer.weight"].codes(), file.tensor("layer.weight")
    if pin["quantization_config"].get("desc_act"):
        assert codes is None                        # its groups are no neighbours
        return
    inputs = {name: array(stored) for name, stored in pin["inputs"].items()}
    if codes.codes.dtype == np.uint8 and inputs["codes"].dtype == np.int8:
        inputs["codes"] = inputs["codes"].astype(int) + 2 ** (codes.bits - 1)
    np.testing.assert_array_equal(codes.codes, inputs["codes"])
    np.testing.assert_array_equal(codes.scales, inputs["scales"])
    np.testing.assert_array_equal(codes.dequantize(), weight)


@pytest.mark.parametrize("pin", PINS.values(), ids=PINS)
def test_every_piece_of_a_matrix_is_the_same(tmp_path, pin):
    """A large matrix is read some rows at a time, wherever they begin."""
    with opened(tmp_path, pin) as file:
        matrix, weight = file.matrices["layer.weight"], file.tensor("layer.weight")
    for rows in (slice(0, 1), slice(3, 7), slice(5, 32), slice(31, 32)):
        np.testing.assert_array_equal(matrix.dequantize(rows), weight[rows])
    place = np.zeros((96, 32), np.float32).T                    # as the engine may lay it out
    assert file.tensor("layer.weight", out=place) is place
    np.testing.assert_array_equal(place, weight)


# --- written as those programs write ----------------------------------------------------------

def packed(pin: dict) -> dict[str, np.ndarray]:
    """What this engine writes for the codes of a pinned case."""
    inputs = {name: array(stored) for name, stored in pin["inputs"].items()}
    settings = pin["quantization_config"]
    if "weight" in inputs:
        bits = settings["config_groups"]["group_0"]["weights"]["num_bits"]
        matrix = (Float8(*quantize_fp8(inputs["weight"])) if bits == 8
                  else MXFP4(*quantize_mxfp4(inputs["weight"])))
        pack = saving._pack_fp8 if bits == 8 else saving._pack_mxfp4
    else:
        codes, scales = inputs["codes"], inputs["scales"].astype(np.float32)
        if codes.dtype == np.int8:
            matrix, pack = Codes(codes, scales, None, 8), saving._pack_int8
        else:
            matrix, pack = from_zero_points(codes, scales, inputs["zeros"]), saving._pack_awq
    if settings["quant_method"] == "gptq":
        first = settings["checkpoint_format"] == "gptq"

        def pack(module, matrix):
            return saving._pack_gptq(module, matrix, first)
    return {name: tensor.load() for name, tensor in pack("layer", matrix).items()}


@pytest.mark.parametrize("name", [
    "AutoGPTQ, 4 bits", "GPTQModel, version 2", "GPTQModel, version 1", "AutoAWQ, GEMM",
    "compressed-tensors, int8 by row", "compressed-tensors, float8",
    "compressed-tensors, MXFP4"])
def test_packed_as_their_program_packs(name):
    pin = PINS[name]
    got = packed(pin)
    assert got.keys() == pin["tensors"].keys()
    for tensor, stored in pin["tensors"].items():
        bytes_of = np.ascontiguousarray(got[tensor])
        if tensor.endswith("weight_scale") and stored["dtype"] == "F16":
            bytes_of = bytes_of.astype(np.float16)
        assert bytes_of.tobytes() == base64.b64decode(stored["data"]), tensor
        assert list(bytes_of.shape) == stored["shape"]


# --- refused ----------------------------------------------------------------------------------

@pytest.mark.parametrize("name, change, says", [
    ("AutoGPTQ, 4 bits", {"bits": 3}, "bits is 3"),
    ("AutoGPTQ, 4 bits", {"bits": "4"}, "bits is '4'"),
    ("AutoGPTQ, 4 bits", {"group_size": 0}, "group_size is 0"),
    ("AutoGPTQ, 4 bits", {"group_size": True}, "group_size is True"),
    ("AutoGPTQ, 4 bits", {"group_size": -1.0}, "group_size is -1.0"),
    ("AutoGPTQ, 4 bits", {"group_size": 2**63}, "group_size is 9223372036854775808"),
    ("AutoGPTQ, 4 bits", {"quant_method": ["gptq"]}, "['gptq']"),
    ("AutoGPTQ, 4 bits", {"quant_method": "fp8", "weight_block_size": [2**63, 1]}, "two sizes"),
    ("AutoGPTQ, 4 bits", {"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'"),
    ("AutoGPTQ, 4 bits", {"dynamic": {"-:lm_head": {}}}, "dynamic"),
    ("AutoGPTQ, 4 bits", {"pack_dtype": "int16"}, "pack_dtype"),
    ("AutoAWQ, GEMM", {"version": "gemv"}, "version is 'gemv'"),
    ("AutoAWQ, GEMM", {"zero_point": False}, "zero_point"),
    ("AutoAWQ, GEMM", {"bits": 8}, "bits is 8"),
    ("AutoAWQ, GEMM", {"quant_method": "exl2"}, "'exl2'"),
    ("compressed-tensors, float8", {"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme"),
    ("compressed-tensors, float8", {"config_groups": {}}, "config_groups"),
    ("compressed-tensors, float8", {"config_groups": {"group_0": {"weights": None}}},
     "nothing of weights"),
    ("compressed-tensors, float8", {"config_groups": {"group_0": {
        "weights": {"num_bits": 8}, "input_activations": {"dynamic": False}}}}, "activations"),
    ("compressed-tensors, float8", {"config_groups": {"group_0": {
        "weights": {"num_bits": 8, "type": "float", "strategy": "block",
                    "block_structure": [0, 2]}}}}, "block_structure"),
    ("compressed-tensors, float8", {"config_groups": {"group_0": {
        "format": "nvfp4-pack-quantized", "weights": {"num_bits": 8}}}}, "nvfp4")])
def test_settings_that_mean_something_else_are_refused(tmp_path, name, change, says):
    with pytest.raises(ModelError, match="weights are quantized") as caught:
        opened(tmp_path, PINS[name], **change)
    assert says in caught.value.why and caught.value.hint


def without(name: str) -> Callable[[dict], None]:
    return lambda tensors: tensors.pop(f"layer.{name}")


def stored_as(name: str, dtype: str, *shape: int) -> Callable[[dict], None]:
    def change(tensors: dict) -> None:
        nbytes = int(np.prod(shape)) * np.dtype(DTYPES[dtype]).itemsize
        tensors[f"layer.{name}"] = {"dtype": dtype, "shape": list(shape),
                                    "data": base64.b64encode(bytes(nbytes)).decode()}
    return change


def beyond_all_groups(tensors: dict) -> None:
    tensors["layer.g_idx"]["data"] = base64.b64encode(np.full(96, 3, "<i4").tobytes()).decode()


@pytest.mark.parametrize("name, change, says", [
    ("AutoGPTQ, 4 bits", without("scales"), "layer.scales"),
    ("AutoGPTQ, 4 bits", without("qzeros"), "layer.qzeros"),
    ("AutoGPTQ, 4 bits, act order", without("g_idx"), "desc_act is true"),
    ("AutoGPTQ, 4 bits", stored_as("g_idx", "I32", 95), "(95,), expected (96,)"),
    ("AutoGPTQ, 4 bits", beyond_all_groups, "groups 3 to 3, and there are 3"),
    ("AutoGPTQ, 4 bits", stored_as("scales", "F16", 2, 32), "(2, 32), expected (3, 32)"),
    ("AutoGPTQ, 4 bits", stored_as("qzeros", "I32", 3, 5), "(3, 5), expected (3, 4)"),
    ("AutoGPTQ, 4 bits", stored_as("qweight", "I64", 12, 32), "it is I64"),
    ("AutoGPTQ, 4 bits", stored_as("qweight", "I32", 384), "expected 2 axes"),
    ("AutoGPTQ, 4 bits", stored_as("qweight", "I32", 0, 32), "no inputs"),
    ("AutoAWQ, GEMM", without("qzeros"), "layer.qzeros"),
    ("AutoAWQ, GEMM", stored_as("scales", "F16", 3, 31), "(3, 31), expected (3, 32)"),
    ("compressed-tensors, int8 by row", without("weight_shape"), "layer.weight_shape"),
    ("compressed-tensors, int8 by row", stored_as("weight_shape", "I64", 2), "says (0, 0)"),
    ("compressed-tensors, int4 in groups", without("weight_zero_point"), "weight_zero_point"),
    ("compressed-tensors, float8", without("weight_scale"), "no layer.weight_scale"),
    ("compressed-tensors, float8", stored_as("weight_scale", "F32", 31, 1), "(31, 1)"),
    ("compressed-tensors, float8", stored_as("weight", "I32", 32, 96), "it is I32"),
    ("compressed-tensors, float8", stored_as("weight", "F8_E4M3", 32, 0), "(32, 0)"),
    ("compressed-tensors, MXFP4", stored_as("weight_packed", "U8", 32, 40), "blocks of 32"),
    ("compressed-tensors, MXFP4", stored_as("weight_scale", "U8", 32, 4), "(32, 4)")],
    ids=lambda value: value if isinstance(value, str) else "")
def test_layers_whose_parts_do_not_fit_are_refused(tmp_path, name, change, says):
    pin = json.loads(json.dumps(PINS[name]))
    change(pin["tensors"])
    with pytest.raises(FormatError) as caught:
        opened(tmp_path, pin)
    assert "model.safetensors" in caught.value.what and caught.value.hint
    assert says in str(caught.value)


def test_a_bias_of_zeros_that_no_model_asked_for_is_left_out(tmp_path):
    """AutoGPTQ writes one for every layer."""
    pin = json.loads(json.dumps(PINS["AutoGPTQ, 4 bits"]))
    stored_as("bias", "F16", 32)(pin["tensors"])
    with opened(tmp_path, pin) as file:
        assert [*file.tensors] == ["layer.weight"]
    pin["tensors"]["layer.bias"]["data"] = base64.b64encode(np.ones(32, "<f2").tobytes()
                                                            ).decode()
    with opened(tmp_path, pin) as file:
        assert "layer.bias" in file.tensors         # and `map_names` says that it is unexpected


def test_one_scale_for_all_and_tiles_of_scales(tmp_path):
    """The fp8 method of transformers, of DeepSeek's and Qwen's files."""
    rng = np.random.default_rng(5)
    codes = rng.integers(0, 127, (5, 7), dtype=np.uint8)
    for tile, scales in ((None, rng.uniform(1, 2, ())), ([2, 3], rng.uniform(1, 2, (3, 3)))):
        scales = np.asarray(scales, np.float32)
        tensors = {"layer.weight": {"dtype": "F8_E4M3", "shape": [5, 7], "data":
                                    base64.b64encode(codes.tobytes()).decode()},
                   "layer.weight_scale_inv": {"dtype": "F32", "shape": list(scales.shape),
                                              "data": base64.b64encode(scales.tobytes()
                                                                       ).decode()}}
        pin = {"tensors": tensors, "quantization_config": {
            "quant_method": "fp8", "weight_block_size": tile, "activation_scheme": "dynamic"}}
        with opened(tmp_path, pin) as file:
            weight = file.tensor("layer.weight")
            assert file.matrices["layer.weight"].codes() is None
        import torch
        plain = torch.tensor(codes).view(torch.float8_e4m3fn).float().numpy()
        spread = scales if tile is None else scales.repeat(2, 0)[:5].repeat(3, 1)[:, :7]
        np.testing.assert_array_equal(weight, plain * spread)
    for change, says in (({"weight_block_size": [0, 1]}, "weight_block_size"),
                         ({"activation_scheme": "static"}, "activation_scheme"),
                         ({"scale_fmt": "x"}, "scale_fmt")):
        with pytest.raises(ModelError, match="weights are quantized\n.*" + says):
            opened(tmp_path, pin, **change)


@pytest.mark.parametrize("name", ["AutoGPTQ, 4 bits", "compressed-tensors, float8"])
def test_a_checkpoint_in_several_files(tmp_path, name):
    """The parts of one layer may lie in different ones."""
    pin = PINS[name]
    weight_map = {}
    for number, (tensor, stored) in enumerate(pin["tensors"].items()):
        weight_map[tensor] = f"model-{number}.safetensors"
        write(tmp_path / weight_map[tensor], {tensor: stored})
    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": weight_map}), "utf-8")
    _, layout = split_config({"quantization_config": pin["quantization_config"]})
    with open_quantized(ShardedSafetensors.open(tmp_path), layout, {"layer.weight"}) as file:
        weight = file.tensor("layer.weight") + np.float32(0)
    assert hashlib.sha256(weight.tobytes()).hexdigest() == pin["weight_sha256"]


def test_a_tensor_that_is_not_there(tmp_path):
    with opened(tmp_path, PINS["AutoAWQ, GEMM"]) as file:
        with pytest.raises(FormatError, match="such as layer.weight"):
            file.tensor("layer.qweight")


def test_what_is_quantized_in_a_pickle_is_refused(tiny_llama, tmp_path):
    import torch

    model, folder = tiny_llama(4)
    shutil.copy(folder / "config.json", tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    config = json.loads((tmp_path / "config.json").read_text("utf-8"))
    config["quantization_config"] = PINS["AutoGPTQ, 4 bits"]["quantization_config"]
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    with pytest.raises(ModelError, match="safetensors"):
        open_checkpoint(tmp_path)


# --- whole models, there and back -------------------------------------------------------------

SIZES = {"vocab_size": 300, "hidden_size": 64, "intermediate_size": 96,
         "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
TEXT = "All of it must come back: codes, scales, zero points, and the 深度 between them. " * 12


def add_tokenizer(folder: Path) -> None:
    """256 bytes, a few merges, two special tokens; a template."""
    characters = [*bytes_to_unicode().values()]
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the")]
    tokens = {token: id for id, token in enumerate([*characters, *map("".join, merges)])}
    added = [{"id": len(tokens) + place, "content": content, "special": True,
              "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
             for place, content in enumerate(("<s>", "</s>"))]
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "added_tokens": added, "normalizer": None, "post_processor": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False,
                          "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                    "use_regex": True},
        "model": {"type": "BPE", "vocab": tokens, "merges": [list(pair) for pair in merges]}}),
        "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "bos_token": "<s>", "eos_token": "</s>",
        "chat_template": "{% for m in messages %}{{ m['content'] }}{% endfor %}"}), "utf-8")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [260, 7]}),
                                                   "utf-8")


@pytest.fixture(scope="module")
def small(tiny_model) -> Callable[..., Path]:
    """A function that makes the folder of a random model with a tokenizer:
    small("Llama", **config)."""
    made: dict = {}

    def folder(family: str = "Llama", **settings) -> Path:
        key = family, str(settings)
        if key not in made:
            made[key] = tiny_model(family, 8, **SIZES | settings)[1]
            add_tokenizer(made[key])
        return made[key]
    return folder


def logits(model: Model) -> np.ndarray:
    ids = np.random.default_rng(3).integers(0, 258, 30)
    return model.forward(ids, np.arange(30), model.new_cache(30))


def quantize(source: Path, method: str, output: Path, *more: str) -> int:
    return cli.main(["quantize", str(source), "--method", method, "--output", str(output),
                     *more])


@pytest.fixture(scope="module")
def calibration(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("calibration") / "text"
    path.write_text(TEXT, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("method", saving.FOLDER_METHODS)
def test_a_folder_there_and_back(small, tmp_path, calibration, capsys, method):
    """Every code, and the logits up to float16's rounding of what is not rounded further."""
    source = small()
    assert quantize(source, method, tmp_path / "q", "--calibration", calibration) == 0
    assert str(tmp_path / "q") in capsys.readouterr().out
    before, after = LanguageModel.load(source), LanguageModel.load(tmp_path / "q")
    assert after.settings == before.settings and after.eos_ids == before.eos_ids
    assert after.tokenizer.encode(TEXT) == before.tokenizer.encode(TEXT)
    rounded = cli.quantize._round(before, method, 32, TEXT)
    found = logits(after.model)
    np.testing.assert_allclose(found, logits(rounded.model), atol=0.02 * np.abs(found).max())
    _, file = open_checkpoint(tmp_path / "q")
    with file:
        assert file.matrices.keys() == rounded.matrices.keys()
        for name, matrix in rounded.matrices.items():
            codes = file.matrices[name].codes()
            if isinstance(matrix, Codes):
                np.testing.assert_array_equal(codes.codes, matrix.codes)
                np.testing.assert_allclose(codes.scales, matrix.scales, rtol=2**-11, atol=1e-7)
            else:
                np.testing.assert_array_equal(file.tensor(name), matrix.dequantize())


@pytest.mark.parametrize("method", saving.GGUF_METHODS)
def test_a_gguf_file_there_and_back(small, tmp_path, calibration, method):
    source, path = small(), tmp_path / "q.gguf"
    assert quantize(source, method, path, "--calibration", calibration) == 0
    before, after = LanguageModel.load(source), LanguageModel.load(path)
    assert after.eos_ids == before.eos_ids
    assert after.tokenizer.encode(TEXT) == before.tokenizer.encode(TEXT)
    assert after.settings["chat_template"] == before.settings["chat_template"]
    inner, _ = saving.GGUF_METHODS[method]
    rounded = cli.quantize._round(before, inner, 32, TEXT)
    expected = named_tensors(rounded.model.config, rounded.model.weights)
    found = named_tensors(after.model.config, after.model.weights)
    exact = method not in ("gptq", "awq")           # whose scales are rounded to float16
    for name in rounded.matrices:
        np.testing.assert_allclose(found[name], expected[name], rtol=0,
                                   atol=0 if exact else 2e-3 * np.abs(expected[name]).max())
    for name in expected.keys() - rounded.matrices.keys():
        np.testing.assert_allclose(found[name], expected[name], rtol=0,
                                   atol=0.005 * np.abs(expected[name]).max())


@pytest.mark.parametrize("method", ["int8", "int4", "awq", "mxfp4", "fp8"])
def test_the_compiled_engine_takes_the_codes_as_they_are(small, tmp_path, calibration, method):
    """Without ever holding them as float32; of float8, which has none, the float32."""
    pytest.importorskip("numba")
    assert quantize(small(), method, tmp_path / "q", "--calibration", calibration) == 0
    exact = LanguageModel.load(tmp_path / "q", engine="exact").model
    expected = logits(Model.load(tmp_path / "q"))
    np.testing.assert_allclose(logits(exact), expected, atol=1e-4 * np.abs(expected).max())
    bits = {int(matrix["bits"]) for matrix in exact.weights.matrices}
    rounded = {"int8": 8, "int4": 4, "awq": 4, "mxfp4": 8, "fp8": 32}[method]
    assert bits == {rounded, 32}                    # 32: the embedding
    chosen = LanguageModel.load(tmp_path / "q", engine="auto").model
    assert isinstance(chosen, Model) == (method == "fp8")


def test_the_gguf_package_reads_the_same_file(small, tmp_path):
    path = tmp_path / "q.gguf"
    assert quantize(small(), "int4", path) == 0
    reader = oracle.GGUFReader(path)
    with GGUFFile.open(path) as file:
        assert {field for field in reader.fields if not field.startswith("GGUF.")
                } == file.metadata.keys()
        for key, value in file.metadata.items():
            found = reader.fields[key].contents()
            assert np.array_equal(found, value), key
        assert [tensor.name for tensor in reader.tensors] == [*file.tensors]
        for tensor in reader.tensors:
            values = oracle.dequantize(tensor.data, tensor.tensor_type)
            np.testing.assert_array_equal(file.tensor(tensor.name), values)
        kinds = {name: info.type for name, info in file.tensors.items()}
    assert kinds["blk.1.ffn_down.weight"] == TensorType.Q4_1
    assert kinds["token_embd.weight"] == TensorType.Q8_0
    assert kinds["blk.0.attn_norm.weight"] == TensorType.F32


@pytest.mark.parametrize("kind", QUANTIZE, ids=lambda kind: kind.name)
def test_blocks_are_those_of_the_gguf_package(kind):
    """Zeros, equal values, halves, and values of every size."""
    rng = np.random.default_rng(kind)
    for size in (1, 1e-3, 1e3, 1e-7, 1e-30):
        values = (rng.normal(size=(200, 32)) * size).astype(np.float32)
        values[0], values[1], values[2, :20] = 0, values[1, 0], 0
        values[3] = np.rint(values[3] / size * 2) * size / 2
        values[4] = np.arange(32) * np.float32(size / 2)
        values[5, 1:] = -np.abs(values[5, 1:])
        with np.errstate(all="ignore"):
            expected = oracle.quants.quantize(values, oracle.GGMLQuantizationType(kind))
        np.testing.assert_array_equal(QUANTIZE[kind](values), expected)


def test_subnormal_blocks_are_zeros_and_not_nan():
    for quantize_blocks in QUANTIZE.values():
        blocks = quantize_blocks(np.full((1, 32), 1e-44, np.float32))
        assert not blocks[:, :2].view("<f2").any()


@pytest.mark.parametrize("family, method", [
    ("Qwen2", "int4"), ("Qwen3", "awq"), ("Mistral", "gptq"), ("Gemma3", "int8"),
    ("Mixtral", "int4"), ("DeepseekV3", "fp8"), ("SmolLM3", "gptq"), ("Phi3", "awq"),
    ("Phi3", "mxfp4"), ("Olmo2", "int8")])
def test_families(small, tmp_path, calibration, family, method):
    """Biases, norms of heads, norms counted from one, experts."""
    settings = {"head_dim": 16} if family in ("Qwen3", "Gemma3", "Mistral") else {}
    settings |= {"intermediate_size": 96, "sliding_window": None} if family == "Mistral" else {}
    if family.startswith("Deepseek"):
        settings = {"num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 2,
                    "kv_lora_rank": 32, "q_lora_rank": 32, "moe_intermediate_size": 32}
    source = small(family, **settings)
    assert quantize(source, method, tmp_path / "q", "--calibration", calibration) == 0
    before = LanguageModel.load(source)
    rounded = cli.quantize._round(before, method, 32, TEXT)
    after = Model.load(tmp_path / "q")
    if method != "awq":                     # whose scales are folded into other matrices
        for folder in (source, tmp_path / "q"):
            _, file = open_checkpoint(folder)
            with file:
                stored = {name: file.tensor(name) for name in rounded.matrices}
            if folder == source:
                originals = stored
        for name, original in originals.items():
            error = np.abs(stored[name] - original).mean(axis=1)
            assert (error < 0.5 * np.abs(original).mean(axis=1)).all()
    expected = named_tensors(rounded.model.config, rounded.model.weights)
    for name, found in named_tensors(after.config, after.weights).items():
        # float16 of the scales, or of what is not rounded
        np.testing.assert_allclose(found, expected[name], rtol=0,
                                   atol=2**-10 * max(1, np.abs(expected[name]).max()))


@pytest.mark.parametrize("family, method", [("Phi3", "int4"), ("SmolLM3", "int8")])
def test_rows_in_another_order_keep_their_codes(small, tmp_path, calibration, family, method):
    """The compiled engine brings the codes of Phi-3's queries and keys into its own order."""
    pytest.importorskip("numba")
    assert quantize(small(family), method, tmp_path / "q", "--calibration", calibration) == 0
    exact = LanguageModel.load(tmp_path / "q", engine="exact").model
    assert {int(matrix["bits"]) for matrix in exact.weights.matrices} > {32}
    expected = logits(Model.load(tmp_path / "q"))
    np.testing.assert_allclose(logits(exact), expected, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("family", ["Llama", "Gemma2", "Gemma3", "GPT2", "Mixtral", "GptOss",
                                    "DeepseekV3", "SmolLM3", "Olmo2", "Phi3"])
def test_a_model_names_its_tensors_as_its_file_did(tiny_model, family):
    """So that a model that was loaded can be saved."""
    import safetensors.numpy as oracle_tensors

    _, folder = tiny_model(family, 5)
    config, weights = load_checkpoint(folder)
    tensors = named_tensors(config, weights)
    stored = oracle_tensors.load_file(folder / "model.safetensors")
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    assert tensors.keys() == stored.keys() - tied
    for name, tensor in tensors.items():
        one = np.float32(family.startswith("Gemma") and name.endswith("norm.weight"))
        order = row_order(name, config)
        rows = slice(None) if order is None else order
        np.testing.assert_array_equal(tensor, (stored[name] + one)[rows])


@pytest.mark.parametrize("vocabulary, eos_ids, says", [
    (Vocabulary({"a": 0}, {}, splitters=("digits",)), [], "rules that have no name"),
    (Vocabulary({"a": 0}, {}, normalization=("NFC",)), [], "rules that have no name"),
    (Vocabulary({"a": 0}, {}, ignore_merges=True), [], "ignore_merges"),
    (Vocabulary({"a": 0}, {}), [0, 1, 2, 3], "4 tokens end its answers"),
    (Vocabulary({"a": 0, "b": 1}, {}, prefix=(1, 0), specials={"bos": 1}), [],
     "the ids [1, 0] around")])
def test_vocabularies_that_gguf_cannot_say(vocabulary, eos_ids, says):
    with pytest.raises(ModelError, match="cannot write this vocabulary") as caught:
        vocabulary_to_gguf(vocabulary, 4, eos_ids, None)
    assert says in caught.value.why


def test_rows_of_q_and_k_go_to_their_places_and_back():
    rows = np.random.default_rng(2).normal(size=(6 * 10, 3))
    np.testing.assert_array_equal(unpermute_rope(permute_rope(rows, 6), 6), rows)
    assert not np.array_equal(permute_rope(rows, 6), rows)


def test_a_gguf_file_carries_its_metadata_over(small, tmp_path):
    first, second = tmp_path / "first.gguf", tmp_path / "second.gguf"
    assert quantize(small(), "q8_0", first) == 0
    assert quantize(first, "q4_0", second) == 0
    before, after = encoded_metadata(first), encoded_metadata(second)
    assert before.pop("general.file_type") == encode_value(7)
    assert after.pop("general.file_type") == encode_value(2)
    assert before == after
    assert quantize(second, "int8", tmp_path / "folder") == 0
    ours, theirs = LanguageModel.load(tmp_path / "folder"), LanguageModel.load(second)
    assert ours.tokenizer.encode(TEXT) == theirs.tokenizer.encode(TEXT)
    np.testing.assert_allclose(logits(ours.model), logits(theirs.model),
                               atol=0.05 * np.abs(logits(theirs.model)).max())


def rewritten(source: Path, path: Path, more: dict[str, np.ndarray], **how) -> None:
    """A GGUF file written again by the package, with more tensors, or in parts."""
    reader = oracle.GGUFReader(source)
    writer = oracle.GGUFWriter(path, "llama", **how)
    for key, field in reader.fields.items():
        if not key.startswith(("GGUF.", "general.architecture")):
            items = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(key, field.contents(), field.types[0], items)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    for name, array in more.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_the_factors_of_a_rope_go_along(small, tmp_path):
    """From a GGUF file that has them, as those of Llama 3.1 do, in several parts."""
    factors = np.linspace(1, 8, SIZES["hidden_size"] // SIZES["num_attention_heads"] // 2,
                          dtype=np.float32)
    assert quantize(small(), "q8_0", tmp_path / "plain.gguf") == 0
    rewritten(tmp_path / "plain.gguf", tmp_path / "scaled.gguf",
              {"rope_freqs.weight": factors}, split_max_tensors=11)
    parts = sorted(tmp_path.glob("scaled-*.gguf"))
    assert len(parts) > 1
    assert quantize(parts[1], "int8", tmp_path / "again.gguf") == 0
    before, after = Model.load(parts[0]), Model.load(tmp_path / "again.gguf")
    assert after.config == before.config
    assert after.config.rope_scaling.factors == tuple(map(float, factors))
    keys = encoded_metadata(tmp_path / "again.gguf").keys()
    assert not any(key.startswith("split.") for key in keys)
    np.testing.assert_allclose(logits(after), logits(before),
                               atol=0.05 * np.abs(logits(before)).max())
    assert quantize(parts[0], "int8", tmp_path / "folder") == 1     # config.json cannot say it


def test_hugging_face_loads_the_folder_of_plain_weights(small, tmp_path):
    """What is not rounded stands where it always does, and config.json says the rest."""
    assert quantize(small(), "int4", tmp_path / "q") == 0
    config = json.loads((tmp_path / "q" / "config.json").read_text("utf-8"))
    from transformers import GPTQConfig

    understood = GPTQConfig.from_dict(config["quantization_config"])
    assert (understood.bits, understood.group_size, understood.desc_act) == (4, 32, False)
    assert understood.format == "gptq" and config["dtype"] == "float16"
    import safetensors.numpy as oracle_tensors
    tensors = oracle_tensors.load_file(tmp_path / "q" / "model.safetensors")
    assert tensors["model.embed_tokens.weight"].dtype == np.float16
    assert tensors["model.layers.0.mlp.down_proj.qweight"].shape == (12, 64)


def test_zero_points_of_zero_ask_for_the_second_version(small, tmp_path):
    """The first cannot say 0, and programs do not agree on what comes out instead."""
    model = Model.load(small())
    layer = model.weights.layers[0]
    layer.o_proj[:, :32] = np.abs(layer.o_proj[:, :32]) + 1
    rounded = round_model(model, "int4", 32)
    settings, _ = saving._layout(rounded.matrices, "int4", 32)
    assert settings["checkpoint_format"] == "gptq_v2"
    saving.save_folder(rounded, small(), tmp_path / "q", "int4")
    np.testing.assert_allclose(
        Model.load(tmp_path / "q").weights.layers[0].o_proj,
        rounded.model.weights.layers[0].o_proj, rtol=2**-10, atol=1e-6)


def test_groups_of_zeros_cost_nothing(small):
    model = Model.load(small())
    model.weights.layers[0].o_proj[3, :32] = 0
    matrix = round_model(model, "int4", 32).matrices["model.layers.0.self_attn.o_proj.weight"]
    assert saving.zero_points(matrix)[3, 0] == 1    # any would do, and 0 has its price


@pytest.mark.parametrize("output", ["q", "q.gguf"])
def test_a_full_disk_leaves_nothing_behind(small, tmp_path, monkeypatch, capsys, output):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(os, "fsync", full)
    assert quantize(small(), "int8", tmp_path / output) == 1
    error = capsys.readouterr().err
    assert "No space left" in error and "Try  " in error and "Traceback" not in error
    assert [*tmp_path.iterdir()] == []


def test_what_exists_is_not_overwritten_unless_it_is_a_gguf_file(small, tmp_path, capsys):
    (tmp_path / "q").mkdir()
    assert quantize(small(), "int8", tmp_path / "q") == 1
    assert "exists already" in capsys.readouterr().err
    (tmp_path / "q.gguf").write_bytes(b"old")
    assert quantize(small(), "int8", tmp_path / "q.gguf") == 0
    assert LanguageModel.load(tmp_path / "q.gguf")
    with pytest.raises(NotAvailableError, match="exists already"):
        saving.save_folder(round_model(Model.load(small()), "int8"), small(), tmp_path / "q",
                           "int8")


def test_models_that_a_method_or_a_format_cannot_hold_are_refused(small, tmp_path, tiny_model,
                                                                  capsys, calibration):
    def refused(source: Path, method: str, name: str, *more: str) -> str:
        assert quantize(source, method, tmp_path / name, *more) == 1
        assert [*tmp_path.iterdir()] == []
        return capsys.readouterr().err

    _, gpt2 = tiny_model("GPT2", 2, vocab_size=300)
    add_tokenizer(gpt2)
    assert "GPT2LMHeadModel" in refused(gpt2, "int8", "q")
    assert "not whole groups of 40" in refused(small(), "int4", "q", "--group-size", "40")
    odd = small(intermediate_size=88)
    assert "88 numbers" in refused(odd, "mxfp4", "q")
    scaled = small(rope_scaling={"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e4})
    assert "RoPE" in refused(scaled, "int8", "q.gguf")
    assert "writes" in refused(small("Gemma3", head_dim=16), "int8", "q.gguf")
    assert "experts" in refused(small("Mixtral"), "gptq", "q", "--calibration", calibration)
    tokenizer = json.loads((small() / "tokenizer.json").read_text("utf-8"))
    tokenizer["added_tokens"][0]["lstrip"] = True
    other = tmp_path.parent / "lstrip"
    shutil.copytree(small(), other)
    (other / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    assert "takes white space along" in refused(other, "int8", "q.gguf")
    assert quantize(other, "int8", tmp_path / "q") == 0


@pytest.mark.long
@pytest.mark.parametrize("method, name", [("int4", "q"), ("awq", "q"), ("int8", "q.gguf")])
def test_smollm2_there_and_back(smollm2, smollm2_folder, tmp_path, method, name):
    """The model that is loaded predicts a text as the rounded one in memory did."""
    assert quantize(smollm2_folder, method, tmp_path / name) == 0
    inner = saving.GGUF_METHODS[method][0] if name.endswith("gguf") else method
    rounded = cli.quantize._round(smollm2, inner, 32, None).model
    ids = np.array(smollm2.tokenizer.encode((TEXTS / "held.txt").read_text("utf-8"))[:128])
    expected = list(log_probabilities(rounded, ids, rounded.new_cache(128)))
    del rounded
    after = LanguageModel.load(tmp_path / name)
    assert after.tokenizer.encode(TEXT) == smollm2.tokenizer.encode(TEXT)
    log_p = np.concatenate(expected)[np.arange(127), ids[1:]]
    perplexity, kl, same = compare(expected, after.model, ids, after.model.new_cache(128))
    assert perplexity == pytest.approx(np.exp(-log_p.mean()), rel=5e-3)
    assert kl < 1e-3 and same > 0.97
