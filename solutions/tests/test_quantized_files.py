"""Quantized checkpoints: read as the programs mean them that write them, and refused where they
say something else. About 10 s; with --long, whole models.

`data/quantized_layouts.json` holds what those programs' own packing code gave for known codes.
"""

import base64
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from gearworks.errors import FormatError, ModelError
from gearworks.formats.safetensors import SafetensorsFile
from gearworks.formats.quantized import QuantizedFile, open_quantized, split_config

PINS = json.loads((Path(__file__).parent / "data" / "quantized_layouts.json").read_text("utf-8"))
INTEGERS = [name for name, pin in PINS.items() if "codes" in pin["inputs"]]
DTYPES = {"I8": "i1", "U8": "u1", "I32": "<i4", "I64": "<i8", "F16": "<f2", "F32": "<f4"}


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
    assert hashlib.sha256((weight + np.float32(0)).tobytes()).hexdigest() == pin["weight_sha256"]


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
