"""What the engine would make of a model: its shape, what it takes, what runs it, or why not."""

from contextlib import closing
from dataclasses import dataclass
from math import prod
from pathlib import Path

from gearworks.backends import what_runs
from gearworks.config import ModelConfig
from gearworks.errors import GearworksError
from gearworks.formats.gguf import GGUFFile
from gearworks.language_model import read_settings
from gearworks.sentencepiece import AnyTokenizer
from gearworks.vocabularies.vocabulary import tokenizer_config_from_gguf
from gearworks.weights import expected_shapes, map_names, open_checkpoint


@dataclass(frozen=True)
class Verdict:
    """A model that the engine runs.

    parameters: numbers in its weights, tied ones once; cache_bytes: what a token takes in a
    float32 cache. engines: of each, why it does not run the model, or None. tokenizer: how many
    tokens it knows, or None and the reason in no_text: then the network runs from ids only.
    has_template: whether it brings a chat template.
    """

    config: ModelConfig
    parameters: int
    cache_bytes: int
    engines: dict[str, str | None]
    tokenizer: int | None
    no_text: str | None
    has_template: bool


def judge(path: Path) -> Verdict:
    """What the engine would make of a GGUF file or a Hugging Face folder.

    No weight is read. Raises GearworksError, as `load_checkpoint` would, for a model that it
    refuses.
    """
    config, file = open_checkpoint(path)
    with closing(file):
        map_names({name: info.shape for name, info in file.tensors.items()}, config)
        tokens, no_text, template = None, None, False
        try:
            if isinstance(file, GGUFFile):
                settings = tokenizer_config_from_gguf(file.metadata)
                tokenizer = AnyTokenizer.from_gguf(file.metadata)
            else:
                settings = read_settings(path)
                tokenizer = AnyTokenizer.from_file(path / "tokenizer.json")
            tokens, template = tokenizer.vocab_size, bool(settings.get("chat_template"))
        except GearworksError as error:
            no_text = f"{error.what}: {error.why}"
    return Verdict(config, sum(map(prod, expected_shapes(config).values())),
                   cache_bytes(config), what_runs(config), tokens, no_text, template)


def cache_bytes(config: ModelConfig) -> int:
    """Bytes that the keys and values of one token take, in float32, in all layers."""
    row = (config.latent.cached_size if config.latent is not None
           else 2 * config.num_key_value_heads * config.head_dim)
    return 4 * config.num_hidden_layers * row
