"""SmolLM2 against independent truth: the gguf package's tensors and llama.cpp's losses.

Hugging Face loads what our own converter wrote, so it cannot see a fault of the converter.
`data/make_pins.py` made these files without our code, and can make them again.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from gearworks.formats.safetensors import SafetensorsFile
from gearworks.weights import load_checkpoint

DATA = Path(__file__).parent / "data"
PINS = json.loads((DATA / "smollm2_tensor_sha256.json").read_text(encoding="utf-8"))["tensors"]
LLAMA_CPP = json.loads((DATA / "llamacpp_smollm2.json").read_text(encoding="utf-8"))


def test_every_converted_tensor_is_the_pinned_one(smollm2_folder):
    with SafetensorsFile.open(smollm2_folder / "model.safetensors") as file:
        assert file.tensors.keys() == PINS.keys()
        for name, pin in PINS.items():
            tensor = file.tensor(name)
            assert list(tensor.shape) == pin["shape"], name
            assert hashlib.sha256(tensor.astype(
                "<f4").tobytes()).hexdigest() == pin["sha256"], name


def test_gguf_and_safetensors_load_into_the_same_arrays(smollm2, smollm2_gguf):
    config, weights = load_checkpoint(smollm2_gguf)
    assert config == smollm2.model.config
    np.testing.assert_array_equal(weights.embed_tokens, smollm2.model.weights.embed_tokens)
    np.testing.assert_array_equal(weights.norm, smollm2.model.weights.norm)
    for layer, expected in zip(weights.layers, smollm2.model.weights.layers, strict=True):
        for name, array in vars(layer).items():
            np.testing.assert_array_equal(array, getattr(expected, name))


def losses(model, ids):
    """Minus the log of the probability of each next token, in float64."""
    logits = model.forward(ids, np.arange(len(ids)),
                           model.new_cache(len(ids))).astype(np.float64)[:-1]
    peak = logits.max(-1)
    return (np.log(np.exp(logits - peak[:, None]).sum(-1)) + peak
            - logits[np.arange(len(logits)), ids[1:]])


@pytest.mark.parametrize("text", LLAMA_CPP["perplexity"], ids=lambda text: text["text"][:20])
def test_perplexity_agrees_with_llama_cpp(smollm2, text):
    """Within 5 %: llama.cpp rounds activations to 8 bits."""
    ids = smollm2.tokenizer.encode(text["text"])
    assert ids == text["ids"]
    ours = losses(smollm2.model, np.array(ids))
    assert np.exp(ours.mean()) == pytest.approx(text["perplexity_llamacpp"], rel=0.05)
    assert np.abs(ours - text["nll_llamacpp"]).max() < 1
