"""A model as its publisher ships it: the network, its tokenizer, its chat template, and the ids that end a text."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gearworks.chat import render_chat
from gearworks.decoding import Generation, generate
from gearworks.errors import ModelError
from gearworks.gguf import GGUFFile
from gearworks.model import Model
from gearworks.tokenizer import Tokenizer
from gearworks.vocabulary import tokenizer_config_from_gguf
from gearworks.weights import load_checkpoint, read_json


@dataclass(frozen=True)
class LanguageModel:
    """Everything needed to answer a request. `settings` is the content of tokenizer_config.json."""

    model: Model
    tokenizer: Tokenizer
    settings: Mapping[str, Any]
    eos_ids: frozenset[int]

    @classmethod
    def load(cls, path: Path, progress: Callable[[Iterable], Iterable] = iter) -> "LanguageModel":
        """Load a GGUF file, or a folder as Hugging Face lays it out; progress and errors as `load_checkpoint`."""
        path = Path(path)
        if path.is_dir():
            tokenizer = Tokenizer.from_file(path / "tokenizer.json")
            settings = read_settings(path)
            eos_ids = _eos_ids(path)
        else:
            with closing(GGUFFile.open(path)) as file:
                tokenizer = Tokenizer.from_gguf(file.metadata)
                settings = tokenizer_config_from_gguf(file.metadata)
                eos_ids = frozenset(gguf_eos_ids(file.metadata))
        config, weights = load_checkpoint(path, progress)
        if tokenizer.vocab_size > config.vocab_size:
            raise ModelError(f"cannot use the model in {path}",
                             f"its tokenizer knows {tokenizer.vocab_size} tokens, and its embedding only "
                             f"{config.vocab_size}", "is the tokenizer that of another model?")
        return cls(Model(config, weights), tokenizer, settings, eos_ids)

    def chat_prompt(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str:
        """The text of a conversation as the model was trained to read it, ready for its answer.

        Raises ModelError when the model has no chat template, or the template refuses the messages.
        """
        template = self.settings.get("chat_template")
        if not isinstance(template, str):
            raise ModelError("cannot chat with this model", "it brings no chat template",
                             "use `gearworks generate` to let it continue a text")
        return render_chat(messages, template, add_generation_prompt=True,
                           bos_token=_token_text(self.settings.get("bos_token")),
                           eos_token=_token_text(self.settings.get("eos_token")), **variables)

    def generate(self, prompt: str, **options: Any) -> Generation:
        """Continue a text until the model ends it; options as `decoding.generate`."""
        return generate(self.model, self.tokenizer, prompt, eos_ids=self.eos_ids, **options)

    def chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Generation:
        """Answer a conversation, a list of {"role": ..., "content": ...}; options as `decoding.generate`."""
        return self.generate(self.chat_prompt(messages), add_special_tokens=False, **options)


def read_settings(folder: Path) -> dict[str, Any]:
    """The content of tokenizer_config.json, with the chat template from wherever this folder keeps it."""
    settings = read_json(folder / "tokenizer_config.json")
    separate = folder / "chat_template.jinja"               # where transformers 5 writes it
    if separate.is_file():
        settings["chat_template"] = separate.read_text(encoding="utf-8")
    elif isinstance(settings.get("chat_template"), list):   # several named templates
        named = {entry["name"]: entry["template"] for entry in settings["chat_template"]}
        settings["chat_template"] = named.get("default")
    return settings


def gguf_eos_ids(metadata: Mapping[str, Any]) -> list[int]:
    """The ids that end a text, as a GGUF file names them."""
    keys = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
    return sorted({int(metadata[key]) for key in keys if key in metadata})


def _eos_ids(folder: Path) -> frozenset[int]:
    """All EOS ids: those of generation_config.json, or of config.json where the former says nothing."""
    for name in ("generation_config.json", "config.json"):
        if (folder / name).is_file():
            ids = read_json(folder / name).get("eos_token_id")
            if ids is not None:
                return frozenset(ids if isinstance(ids, list) else [ids])
    return frozenset()


def _token_text(token: str | Mapping[str, Any] | None) -> str:
    """A special token in tokenizer_config.json is a string, or an object with its flags."""
    if token is None:
        return ""
    return token if isinstance(token, str) else token["content"]
