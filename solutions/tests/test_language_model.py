"""A model as it was published: files that say strange things are refused, not guessed at."""

import json
import shutil

import numpy as np
import pytest

from gearworks.errors import FormatError, GearworksError, ModelError, NotAvailableError
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


@pytest.mark.parametrize("ids, expected", [
    (2, {2}), ([2, 7], {2, 7}), (7, {2, 7}), ([7, 9], {2, 7, 9}), ([], {2}), (None, {2})])
def test_eos_ids_are_those_of_generation_config_and_the_tokenizer_s_own(folder, ids, expected):
    """SmolLM2's tokenizer names the id 2."""
    write(folder / "generation_config.json", {"eos_token_id": ids})
    assert LanguageModel.load(folder).eos_ids == expected
    (folder / "tokenizer_config.json").unlink()
    listed = set(ids) if isinstance(ids, list) else {ids} - {None}
    assert LanguageModel.load(folder).eos_ids == listed


def test_without_generation_config_they_come_from_config(folder):
    (folder / "generation_config.json").unlink()
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    write(folder / "config.json", config | {"eos_token_id": 5})
    assert LanguageModel.load(folder).eos_ids == {2, 5}


def test_the_tokenizer_s_eos_ends_an_answer(folder, monkeypatch):
    """Whatever generation_config.json lists: nothing follows the token."""
    write(folder / "generation_config.json", {"eos_token_id": 7})
    model = LanguageModel.load(folder)
    said = iter([20, 21, 2, 22, 23])
    real = type(model.model).forward

    def forward(self, *args, **options):
        logits = np.zeros_like(real(self, *args, **options))
        logits[..., next(said)] = 9
        return logits
    monkeypatch.setattr(type(model.model), "forward", forward)
    generation = model.generate("hi", max_tokens=5)
    assert (generation.ids, generation.finish_reason) == ([20, 21], "stop")


@pytest.mark.parametrize("name, value", [
    ("stop_strings", ["END"]), ("suppress_tokens", [1, 2]), ("forced_eos_token_id", 2),
    ("bad_words_ids", [[3]]), ("begin_suppress_tokens", [7])])
def test_generation_settings_that_change_every_answer_are_refused(folder, name, value):
    write(folder / "generation_config.json", {"eos_token_id": 2, name: value})
    with pytest.raises(ModelError) as error:
        LanguageModel.load(folder)
    assert f"{name} in generation_config.json is {value!r}" in error.value.why
    advice = {"temperature": 0.6, "top_k": 20, "repetition_penalty": 1.1, "max_length": 99}
    write(folder / "generation_config.json", advice | {"eos_token_id": 2, name: None, "x": "y"})
    assert LanguageModel.load(folder).eos_ids == {2}


@pytest.mark.parametrize("name, value, says", [
    ("split_special_tokens", True, "split_special_tokens is True"),
    ("extra_special_tokens", ["<|im_end|>", "<new>"], "extra_special_tokens has '<new>'"),
    ("extra_special_tokens", {"image_token": "<image>"}, "extra_special_tokens has '<image>'"),
    ("additional_special_tokens", [{"content": "<new>"}], "additional_special_tokens has"),
    ("added_tokens_decoder", {"49999": {"content": "<new>"}}, "added_tokens_decoder has"),
    ("extra_special_tokens", "<new>", "'<new>'"),
    ("extra_special_tokens", [["x"]], "has ['x']"),
])
def test_tokens_that_tokenizer_config_alone_knows_are_refused(folder, name, value, says):
    """transformers would give them ids, or find them in a text, which changes its ids."""
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    write(folder / "tokenizer_config.json", settings | {name: value})
    with pytest.raises(ModelError) as error:
        LanguageModel.load(folder)
    assert says in error.value.why


def test_tokens_that_both_files_know_are_welcome(folder):
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    write(folder / "tokenizer_config.json", settings | {
        "split_special_tokens": False,
        "additional_special_tokens": ["<|im_start|>", {"content": "<|im_end|>"}],
        "extra_special_tokens": {"end": "<|im_end|>"},
        "added_tokens_decoder": {"2": {"content": "<|im_end|>"}}})
    assert LanguageModel.load(folder).eos_ids == {2}


@pytest.mark.parametrize(
    "ids", ["2", ["</s>"], 1.5, [None], -5, 10**9, True, {}, [[1]], [{"a": 1}]], ids=str)
def test_eos_ids_that_cannot_be_are_refused(folder, ids):
    write(folder / "generation_config.json", {"eos_token_id": ids})
    with pytest.raises(FormatError, match="end a text"):
        LanguageModel.load(folder)


def test_eos_ids_of_a_gguf_file():
    eos, eot = "tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"
    assert gguf_eos_ids({eos: 2}) == gguf_eos_ids({eos: 2, eot: 2}) == [2]
    assert gguf_eos_ids({eos: 2, eot: 5}) == [2, 5] and gguf_eos_ids({}) == []
    assert gguf_eos_ids({eos: 2, eot: 5, "tokenizer.ggml.eom_token_id": 7}) == [2, 5, 7]
    assert len(gguf_eos_ids({eos: 2, eot: np.array([1, 2])})) == 2    # left to the loader


def test_the_chat_template_may_be_a_file_or_one_of_several(folder):
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    named = [{"name": "tool_use", "template": "no"},
             {"name": "default", "template": "named {{ messages[0].content }}"}]
    write(folder / "tokenizer_config.json", settings | {"chat_template": named})
    ask = [{"role": "user", "content": "hi"}]
    assert LanguageModel.load(folder).chat_prompt(ask) == "named hi"
    write(folder / "chat_template.jinja", "file {{ messages[0].content }}")
    assert LanguageModel.load(folder).chat_prompt(ask) == "file hi"


@pytest.mark.parametrize("template",
                         [["x"], [[1]], [{"a": 1}], [{"name": "default"}],
                          [{"name": ["x"], "template": "y"}], 7, None], ids=str)
def test_a_strange_chat_template_hinders_chat_alone(folder, template):
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    write(folder / "tokenizer_config.json",
          settings | {"chat_template": template, "bos_token": {}})
    model = LanguageModel.load(folder)
    assert len(model.generate("hi", max_tokens=2).ids) <= 2
    with pytest.raises(ModelError, match="no chat template"):
        model.chat_prompt([{"role": "user", "content": "hi"}])


def test_a_template_that_is_no_text_is_refused(folder):
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(GearworksError, match="chat_template.jinja"):
        LanguageModel.load(folder)


@pytest.mark.parametrize("name", [
    "chat_template.jinja", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
    "config.json", "model.safetensors"])
def test_a_pointer_in_place_of_any_file_is_called_so(folder, name):
    """Else a template that was not fetched would be the text of every prompt."""
    write(folder / name, "version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 30\n")
    with pytest.raises(NotAvailableError, match=f"{name}\n.*Git LFS pointer"):
        LanguageModel.load(folder)


def test_generation_needs_no_tokenizer_config(folder):
    (folder / "tokenizer_config.json").unlink()
    assert LanguageModel.load(folder).generate("hi", max_tokens=1).prompt_ids


def test_a_tokenizer_with_more_tokens_than_the_embedding_is_refused(tiny_llama, smollm2_folder):
    _, folder = tiny_llama(6, vocab_size=1000)
    shutil.copy(smollm2_folder / "tokenizer.json", folder)
    with pytest.raises(ModelError, match="49152 tokens, and its embedding only 1000"):
        LanguageModel.load(folder)


@pytest.mark.parametrize("damage, complaint", [
    ({"tokenizer_config.json": {}}, "no chat template"),
    ({"generation_config.json": {"eos_token_id": 10**6}}, "1000000 is no id"),
    ({"config.json": {"vocab_size": 40}}, "its embedding only 40"),
    ({"config.json": {"architectures": ["PhiForCausalLM"]}}, "PhiForCausalLM"),
    ({"config.json": {"hidden_act": "relu"}}, "hidden_act is 'relu'")],
    ids=["template", "end", "vocabulary", "architecture", "activation"])
def test_what_needs_no_weights_is_refused_before_they_are_read(
        folder, monkeypatch, damage, complaint):
    for name, change in damage.items():
        path = folder / name
        whole = json.loads(path.read_text(encoding="utf-8")) if change else {}
        write(path, whole | change)
    monkeypatch.setattr("gearworks.weights.load_checkpoint",
                        lambda *_: pytest.fail("the weights are read"))
    with pytest.raises(GearworksError) as error:
        LanguageModel.load(folder, chat=True)
    assert complaint in error.value.what + error.value.why
