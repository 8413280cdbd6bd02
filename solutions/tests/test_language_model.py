"""A model as it was published: files that say strange things are refused, not guessed at."""

import json
import shutil

import pytest

from gearworks.errors import FormatError, GearworksError, ModelError
from gearworks.language_model import LanguageModel, gguf_eos_ids


@pytest.fixture
def folder(tiny_llama, smollm2_folder, tmp_path):
    """A tiny model with SmolLM2's tokenizer, in a folder to damage."""
    _, made = tiny_llama(5, vocab_size=49152, num_hidden_layers=1)
    folder = shutil.copytree(made, tmp_path / "model")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(smollm2_folder / name, folder)
    return folder


def write(path, value):
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")


@pytest.mark.parametrize("ids, expected", [(2, {2}), ([2, 7], {2, 7}), ([], set()), (None, set())])
def test_eos_ids_come_from_generation_config(folder, ids, expected):
    write(folder / "generation_config.json", {"eos_token_id": ids})
    assert LanguageModel.load(folder).eos_ids == expected


def test_without_generation_config_they_come_from_config(folder):
    (folder / "generation_config.json").unlink()
    assert LanguageModel.load(folder).eos_ids == {2}


@pytest.mark.parametrize("ids", ["2", ["</s>"], 1.5, [None], -5, 10**9, True, {}, [[1]], [{"a": 1}]], ids=str)
def test_eos_ids_that_cannot_be_are_refused(folder, ids):
    write(folder / "generation_config.json", {"eos_token_id": ids})
    with pytest.raises(FormatError, match="end a text"):
        LanguageModel.load(folder)


def test_eos_ids_of_a_gguf_file():
    eos, eot = "tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"
    assert gguf_eos_ids({eos: 2}) == gguf_eos_ids({eos: 2, eot: 2}) == [2]
    assert gguf_eos_ids({eos: 2, eot: 5}) == [2, 5] and gguf_eos_ids({}) == []


def test_the_chat_template_may_be_a_file_or_one_of_several(folder):
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "named {{ messages[0].content }}"}]
    write(folder / "tokenizer_config.json", settings | {"chat_template": named})
    ask = [{"role": "user", "content": "hi"}]
    assert LanguageModel.load(folder).chat_prompt(ask) == "named hi"
    write(folder / "chat_template.jinja", "file {{ messages[0].content }}")
    assert LanguageModel.load(folder).chat_prompt(ask) == "file hi"


@pytest.mark.parametrize("template", [["x"], [[1]], [{"a": 1}], [{"name": "default"}], [{"name": ["x"], "template": "y"}],
                                      7, None], ids=str)
def test_a_strange_chat_template_hinders_chat_alone(folder, template):
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    write(folder / "tokenizer_config.json", settings | {"chat_template": template, "bos_token": {}})
    model = LanguageModel.load(folder)
    assert len(model.generate("hi", max_tokens=2).ids) <= 2
    with pytest.raises(ModelError, match="no chat template"):
        model.chat_prompt([{"role": "user", "content": "hi"}])


def test_a_template_that_is_no_text_is_refused(folder):
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(GearworksError, match="chat_template.jinja"):
        LanguageModel.load(folder)


def test_generation_needs_no_tokenizer_config(folder):
    (folder / "tokenizer_config.json").unlink()
    assert LanguageModel.load(folder).generate("hi", max_tokens=1).prompt_ids


def test_a_tokenizer_with_more_tokens_than_the_embedding_is_refused(tiny_llama, smollm2_folder):
    _, folder = tiny_llama(6, vocab_size=1000)
    shutil.copy(smollm2_folder / "tokenizer.json", folder)
    with pytest.raises(ModelError, match="49152 tokens, and its embedding only 1000"):
        LanguageModel.load(folder)
