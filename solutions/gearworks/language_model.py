"""A model as its publisher ships it: the network, its tokenizer, its chat template, and the ids that end a text."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gearworks.decoding import Generation, generate
from gearworks.errors import FormatError, ModelError
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
        """Load a GGUF file, or a folder as Hugging Face lays it out; progress and errors as `load_checkpoint`.

        Of generation_config.json only the EOS ids count: how tokens are chosen is up to each request.
        """
        path = Path(path)
        if path.is_dir():
            tokenizer = Tokenizer.from_file(path / "tokenizer.json")
            settings = read_settings(path)
            eos_ids = _eos_ids(path)
        else:
            with closing(GGUFFile.open(path)) as file:
                tokenizer = Tokenizer.from_gguf(file.metadata)
                settings = tokenizer_config_from_gguf(file.metadata)
                eos_ids = gguf_eos_ids(file.metadata)
        config, weights = load_checkpoint(path, progress)
        wrong = [id for id in eos_ids if type(id) is not int or not 0 <= id < config.vocab_size]
        if wrong:
            raise FormatError(f"cannot use the model in {path}", f"{wrong[0]!r:.80} is no id that could end a text",
                              "check eos_token_id against the model's publisher")
        if tokenizer.vocab_size > config.vocab_size:
            raise ModelError(f"cannot use the model in {path}",
                             f"its tokenizer knows {tokenizer.vocab_size} tokens, and its embedding only "
                             f"{config.vocab_size}", "is the tokenizer that of another model?")
        return cls(Model(config, weights), tokenizer, settings, frozenset(eos_ids))

    def chat_prompt(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str:
        """The text of a conversation as the model was trained to read it, ready for its answer.

        Raises ModelError when the model has no chat template, or the template refuses the messages.
        """
        from gearworks.chat import render_chat      # Jinja, which only conversations need

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
    """The content of tokenizer_config.json, if there is one, with the chat template from wherever this folder keeps it.

    Raises FormatError or NotAvailableError for files that cannot be read.
    """
    path, separate = folder / "tokenizer_config.json", folder / "chat_template.jinja"     # transformers 5 writes both
    settings = read_json(path) if path.exists() else {}
    template = settings.get("chat_template")
    if separate.is_file():
        try:
            settings["chat_template"] = separate.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise FormatError(f"cannot read {separate}", str(error), "fetch the model again") from None
    elif isinstance(template, list):                        # several named ones
        named = {str(entry.get("name")): entry.get("template") for entry in template if isinstance(entry, dict)}
        settings["chat_template"] = named.get("default")
    return settings


def gguf_eos_ids(metadata: Mapping[str, Any]) -> list[Any]:
    """The ids that end a text, as a GGUF file names them, unchecked."""
    keys = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
    ids = [metadata[key] for key in keys if key in metadata]
    return ids[:1] if ids[:1] == ids[1:] else ids


def _eos_ids(folder: Path) -> list[Any]:
    """The EOS ids of generation_config.json, or of config.json where there is no such file, unchecked."""
    path = folder / "generation_config.json"
    ids = read_json(path if path.exists() else folder / "config.json").get("eos_token_id")
    return ids if isinstance(ids, list) else [] if ids is None else [ids]


def _token_text(token: Any) -> str:
    """A special token in tokenizer_config.json is a string, or an object with its flags, or missing."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else ""
