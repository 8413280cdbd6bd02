"""What the tests share: the real SmolLM2, and tiny random models that Hugging Face makes on the spot.

`pytest solutions/tests --engine my_engine` runs them on an engine that `autograder assemble` has made.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:                                       # no engine is loaded before --engine has said which one
    from gearworks.language_model import LanguageModel


def pytest_addoption(parser):
    parser.addoption("--engine", type=Path, metavar="FOLDER", help="test this engine instead of the reference")


def pytest_configure(config):
    engine = config.getoption("--engine")
    if engine is None:
        return
    if not (engine / "gears.json").is_file():
        raise pytest.UsageError(f"there is no engine in {engine}: autograder assemble chapters --to {engine}")
    if "gearworks" in sys.modules:
        raise pytest.UsageError("--engine comes too late: gearworks is loaded already")
    path = str(engine.resolve())
    sys.path.insert(0, path)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [path, os.environ.get("PYTHONPATH")]))


def pytest_report_header(config):
    engine = config.getoption("--engine")
    return f"engine: {engine}" if engine is not None else None


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The real SmolLM2-135M-Instruct.Q4_1.gguf."""
    from gearworks import hub
    return hub.smollm2_gguf()


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """The same model as a Hugging Face folder."""
    from gearworks import hub
    return hub.smollm2_folder()


@pytest.fixture(scope="session")
def smollm2(smollm2_folder) -> LanguageModel:
    """The same model in our engine."""
    from gearworks.language_model import LanguageModel
    return LanguageModel.load(smollm2_folder)


@pytest.fixture(scope="session")
def hf_smollm2(smollm2_folder):
    """The same model in Hugging Face's."""
    import torch
    from transformers import AutoModelForCausalLM
    return AutoModelForCausalLM.from_pretrained(smollm2_folder, dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory) -> Callable:
    """A function that makes a random Llama: tiny_llama(seed, **config) -> (HF model, folder).

    The weights are large and the norms are not ones, so that a wrong formula shows in the logits.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    def make(seed: int, **settings):
        torch.manual_seed(seed)
        config = LlamaConfig(**{
            "vocab_size": 211, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
            "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
            "initializer_range": 0.15, "bos_token_id": 1, "eos_token_id": 2} | settings)
        model = LlamaForCausalLM(config).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" in name:
                    parameter.uniform_(0.5, 1.5)
        folder = tmp_path_factory.mktemp("tiny-llama")
        model.save_pretrained(folder)
        return model, folder
    return make


@pytest.fixture
def rng(request) -> np.random.Generator:
    """Random numbers that differ from test to test and are the same in every run."""
    return np.random.default_rng(int.from_bytes(request.node.name.encode("utf-8"), "little"))
