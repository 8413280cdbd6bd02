"""A model as its publisher ships it: network, tokenizer, chat template, ids that end a text."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gearworks.backends import load_model
from gearworks.config.fields import says_nothing
from gearworks.config.settings import GENERATION_REFUSED
from gearworks.decoding import Generation, generate
from gearworks.errors import FormatError, ModelError
from gearworks.formats.files import read_json, refuse_lfs_pointer
from gearworks.formats.gguf import GGUFFile
from gearworks.model import Model
from gearworks.sentencepiece import AnyTokenizer
from gearworks.tokenizer import Tokenizer
from gearworks.vocabularies.vocabulary import tokenizer_config_from_gguf
from gearworks.weights import open_checkpoint


@dataclass(frozen=True)
class LanguageModel:
    """Everything needed to answer a request.

    `settings` is the content of tokenizer_config.json; `recommended`, how the publisher would
    choose tokens: settings of `SamplingParams`, which nothing heeds by itself.
    """

    model: Model
    tokenizer: Tokenizer
    settings: Mapping[str, Any]
    eos_ids: frozenset[int]
    recommended: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path, progress: Callable[[Iterable], Iterable] = iter,
             chat: bool = False, engine: str = "numpy",
             say: Callable[[str], None] = lambda line: None) -> "LanguageModel":
        """Load a GGUF file or a Hugging Face folder; progress, errors as `load_checkpoint`.

        chat: whether it is to chat, for which it needs a chat template. Whatever can be refused
        without the weights is refused before they are read. engine: what runs the model, as
        `backends` names it; say: is told in a line what that has to say.

        A text ends at every EOS id of generation_config.json (of config.json, where there is no
        such file), and at the tokenizer's own EOS too, as in vLLM. Hugging Face's generate runs
        on past that where generation_config.json lists others only. A GGUF file's ends are its
        EOS, end of turn and end of message. How tokens are chosen, and how many, is up to each
        request; what the model's files recommend is in `recommended`.

        Raises ModelError too for a setting of generation_config.json or tokenizer_config.json
        that would change the answers to all requests, and that the engine does not heed.
        """
        path = Path(path)
        config, file = open_checkpoint(path)
        with closing(file):
            if isinstance(file, GGUFFile):
                tokenizer = AnyTokenizer.from_gguf(file.metadata)
                settings = tokenizer_config_from_gguf(file.metadata)
                eos_ids = gguf_eos_ids(file.metadata)
                recommended = gguf_recommended(file.metadata)
            else:
                tokenizer = AnyTokenizer.from_file(path / "tokenizer.json")
                settings = read_settings(path)
                eos_ids = _eos_ids(path, tokenizer)
                recommended = recommended_settings(path)
                _require_added_tokens(settings, tokenizer)
        wrong = [id for id in eos_ids if type(id) is not int or not 0 <= id < config.vocab_size]
        if wrong:
            raise FormatError(f"cannot use the model in {path}",
                              f"{wrong[0]!r:.80} is no id that could end a text",
                              "compare eos_token_id in the model's JSON files with those on "
                              "its page, or fetch the model again")
        if tokenizer.vocab_size > config.vocab_size:
            raise ModelError(f"cannot use the model in {path}",
                             f"its tokenizer knows {tokenizer.vocab_size} tokens, and its "
                             f"embedding only {config.vocab_size}",
                             "fetch tokenizer.json and the weights again, from one place")
        if chat:
            _chat_text(settings, [{"role": "user", "content": "?"}])
        return cls(load_model(path, engine, progress, say), tokenizer, settings,
                   frozenset(eos_ids), recommended)

    def chat_prompt(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str:
        """The text of a conversation as the model was trained to read it, ready for its answer.

        Raises ModelError when the model has no chat template, or the template refuses the
        messages.
        """
        return _chat_text(self.settings, messages, **variables)

    def generate(self, prompt: str, **options: Any) -> Generation:
        """Continue a text until the model ends it; options as `decoding.generate`."""
        return generate(self.model, self.tokenizer, prompt, eos_ids=self.eos_ids, **options)

    def chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Generation:
        """Answer messages, {"role": ..., "content": ...}; options as `decoding.generate`."""
        return self.generate(self.chat_prompt(messages), add_special_tokens=False, **options)


def read_settings(folder: Path) -> dict[str, Any]:
    """What tokenizer_config.json holds, if it exists, and the chat template, wherever it is.

    Raises FormatError or NotAvailableError for files that cannot be read.
    """
    # transformers 5 writes both
    path, separate = folder / "tokenizer_config.json", folder / "chat_template.jinja"
    settings = read_json(path) if path.exists() else {}
    template = settings.get("chat_template")
    if separate.is_file():
        try:
            settings["chat_template"] = separate.read_text(encoding="utf-8")
            refuse_lfs_pointer(separate, settings["chat_template"].encode("utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise FormatError(f"cannot read {separate}", str(error),
                              "fetch the model again") from None
    elif isinstance(template, list):                        # several named ones
        named = {str(entry.get("name")): entry.get("template") for entry in template
                 if isinstance(entry, dict)}
        settings["chat_template"] = named.get("default")
    return settings


RECOMMENDED = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


def recommended_settings(folder: Path) -> dict[str, float]:
    """How tokens are to be chosen by a model's generation_config.json, if it says so; what is
    no number is left out. With do_sample false that is greedily."""
    path = folder / "generation_config.json"
    said = read_json(path) if path.exists() else {}
    found = {name: said[name] for name in RECOMMENDED if type(said.get(name)) in (int, float)}
    return found | ({"temperature": 0.0} if said.get("do_sample") is False else {})


def gguf_recommended(metadata: Mapping[str, Any]) -> dict[str, float]:
    """The same of a GGUF file's metadata."""
    keys = {"temperature": "temp", "repetition_penalty": "penalty_repeat"}
    said = {name: metadata.get(f"general.sampling.{keys.get(name, name)}")
            for name in RECOMMENDED}
    # six digits restore the 0.6 that was meant
    return {name: value if type(value) is int else float(f"{value:.6g}")
            for name, value in said.items() if type(value) in (int, float)}


def gguf_eos_ids(metadata: Mapping[str, Any]) -> list[Any]:
    """The ids that end a text, a turn or a message, as a GGUF file names them, unchecked."""
    keys = (f"tokenizer.ggml.{end}_token_id" for end in ("eos", "eot", "eom"))
    ids = [metadata[key] for key in keys if key in metadata]
    return list(dict.fromkeys(ids)) if all(type(id) is int for id in ids) else ids


def _chat_text(settings: Mapping[str, Any], messages: Sequence[Mapping[str, Any]],
               **variables: Any) -> str:
    """See `LanguageModel.chat_prompt`."""
    from gearworks.chat import render_chat          # Jinja, which only conversations need

    template = settings.get("chat_template")
    if not isinstance(template, str):
        raise ModelError("cannot chat with this model", "it brings no chat template",
                         "use `gearworks generate` to let it continue a text")
    return render_chat(messages, template, add_generation_prompt=True,
                       bos_token=_token_text(settings.get("bos_token")),
                       eos_token=_token_text(settings.get("eos_token")), **variables)


def _eos_ids(folder: Path, tokenizer: Tokenizer) -> list[Any]:
    """The ids that end a text, as the files of a folder name them, unchecked."""
    path = folder / "generation_config.json"
    generation = read_json(path) if path.exists() else {}
    for name in sorted(GENERATION_REFUSED):
        if not says_nothing(generation.get(name)):
            raise ModelError(f"cannot use the model in {folder}",
                             f"{name} in generation_config.json is {generation[name]!r:.80}, "
                             "and this engine does not heed it",
                             "if the model's page does not say that it is needed, take it out "
                             "of generation_config.json (what ends a text can be given with "
                             "each request)")
    source = generation if path.exists() else read_json(folder / "config.json")
    ids = source.get("eos_token_id")
    ids = ids if isinstance(ids, list) else [] if ids is None else [ids]
    own = tokenizer.eos_id
    return ids if own is None or own in ids else [*ids, own]


def _require_added_tokens(settings: Mapping[str, Any], tokenizer: Tokenizer) -> None:
    """Refuse special tokens that tokenizer_config.json alone knows: they would change ids."""
    if not says_nothing(settings.get("split_special_tokens")):
        raise _other_ids(f"split_special_tokens is {settings['split_special_tokens']!r:.80}")
    known = {token.content for token in tokenizer.vocabulary.added_tokens}
    for name in ("additional_special_tokens", "extra_special_tokens", "added_tokens_decoder"):
        tokens = settings.get(name) or []
        if isinstance(tokens, dict):                        # by a name, or by id
            tokens = list(tokens.values())
        for token in tokens if isinstance(tokens, list) else [tokens]:
            if _token_text(token) not in known:
                raise _other_ids(f"{name} has {token!r:.80}, which is no added token of "
                                 "tokenizer.json")


def _other_ids(why: str) -> ModelError:
    return ModelError("cannot use the model's tokenizer", f"in tokenizer_config.json, {why}",
                      "fetch both files again, from one place, or save the tokenizer again "
                      "with transformers, which writes all its tokens to tokenizer.json")


def _token_text(token: Any) -> str:
    """A special token in tokenizer_config.json: a string, an object with flags, or missing."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else ""
