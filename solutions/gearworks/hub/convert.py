"""From a GGUF file to `transformers`' folder: config, tokenizer, template, float32 weights."""

import json
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np

from gearworks.config import ModelConfig
from gearworks.config.to_hf import hf_config
from gearworks.errors import FormatError, NotAvailableError
from gearworks.formats import safetensors
from gearworks.formats.gguf import GGUFFile
from gearworks.formats.safetensors import LazyTensor
from gearworks.language_model import gguf_eos_ids
from gearworks.vocabularies.vocabulary import (tokenizer_config_from_gguf,
                                               tokenizer_json_from_gguf)
from gearworks.families.layouts import NORMS_FROM_ONE
from gearworks.weights import expected_shapes, gguf_tensor, map_names, open_checkpoint


def convert_gguf(gguf: Path, folder: Path,
                 on_tensor: Callable[[], object] = lambda: None) -> None:
    """Write a Hugging Face folder that holds the same model.

    folder: made here, and must not exist. on_tensor: called before each tensor is converted.
    Every weight is dequantized to float32, which loses nothing. Errors as `open_checkpoint`
    and `map_names`.
    """
    config, file = open_checkpoint(gguf)
    with closing(file):
        names = map_names({name: info.shape for name, info in file.tensors.items()}, config)

        def load(name: str) -> np.ndarray:
            on_tensor()
            weight = gguf_tensor(file, names[name], config)
            if config.architecture in NORMS_FROM_ONE and name.endswith("norm.weight"):
                weight = weight - 1                 # as such folders count from zero
            return weight

        contents = folder_contents(file, config)
        try:
            folder.mkdir()
            for name, value in contents.items():
                text = json.dumps(value, ensure_ascii=False, indent=2) + "\n"
                (folder / name).write_text(text, encoding="utf-8")
        except OSError as error:
            raise NotAvailableError(
                f"cannot write the model to {folder}", error.strerror or str(error),
                "give a folder that does not exist yet, where you may write") from None
        safetensors.write(folder / "model.safetensors", {
            name: LazyTensor(shape, np.dtype(np.float32), partial(load, name))
            for name, shape in expected_shapes(config).items()
        }, metadata={"format": "pt"})


def folder_contents(file: GGUFFile, config: ModelConfig) -> dict[str, dict]:
    """What the JSON files of such a folder hold, by name. config: that of the file.

    Raises FormatError for a vocabulary that cannot be read, ModelError as `hf_config`.
    """
    bos_id = file.metadata.get("tokenizer.ggml.bos_token_id")
    eos_ids = gguf_eos_ids(file.metadata)
    if type(bos_id) not in (int, type(None)) or not all(type(id) is int for id in eos_ids):
        raise FormatError(f"cannot convert {file.path}",
                          "the ids of its BOS and EOS tokens are no integers",
                          "use another copy of the model")
    special = {"bos_token_id": bos_id, "eos_token_id": eos_ids}
    return {"config.json": hf_config(config) | special,
            "generation_config.json": special,
            "tokenizer.json": tokenizer_json_from_gguf(file.metadata),
            "tokenizer_config.json": tokenizer_config_from_gguf(file.metadata)}
