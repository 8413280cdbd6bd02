"""GGUF files of every architecture that is read from them,
written with the `gguf` package and its own tensor names."""

import gguf
import numpy as np
import pytest
import torch

from gearworks.config import gguf_settings, model_config
from gearworks.config import ModelConfig
from gearworks.config.gguf_settings import heeded
from gearworks.errors import FormatError, GearworksError, ModelError
from gearworks.formats.gguf import GGUFFile
from gearworks.language_model import LanguageModel, gguf_eos_ids
from gearworks.model import Model
from gearworks.tokenizer import Tokenizer

ARCHITECTURES = {"Llama": gguf.MODEL_ARCH.LLAMA, "Qwen2": gguf.MODEL_ARCH.QWEN2,
                 "Qwen3": gguf.MODEL_ARCH.QWEN3, "Gemma3": gguf.MODEL_ARCH.GEMMA3}


def permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k as converters write them for the llama architecture."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def add(writer, key, value):
    types = gguf.GGUFValueType
    kind = {bool: types.BOOL, int: types.UINT32, float: types.FLOAT32, str: types.STRING,
            list: types.ARRAY}[type(value)]
    writer.add_key_value(key, value, kind, types.INT32 if kind == types.ARRAY else None)


def write_gguf(path, family, hf_model, permute=None, more_tensors=(), notes=(), **extra):
    """What a converter makes of a model, in float32.

    permute: whether rows of q and k are; by default as it should be.
    extra: keys of the model, without its architecture; notes: other keys.
    """
    config, architecture = hf_model.config, ARCHITECTURES[family]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim if getattr(config, "head_dim", None)
                          else config.hidden_size // config.num_attention_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    if family == "Gemma3":
        writer.add_sliding_window(config.sliding_window)
    for key, value in extra.items():
        add(writer, f"{gguf.MODEL_ARCH_NAMES[architecture]}.{key}", value)
    for key, value in dict(notes).items():
        add(writer, key, value)
    writer.add_token_list([str(id) for id in range(config.vocab_size)])
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    for name, tensor in hf_model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = tensor.numpy()
        if family == "Gemma3" and name.endswith("norm.weight"):
            array = array + 1
        is_permuted = family == "Llama" if permute is None else permute
        for part, heads in (("q_proj", config.num_attention_heads),
                            ("k_proj", config.num_key_value_heads)):
            if is_permuted and name.endswith(f"{part}.weight"):
                array = permuted(array, heads)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")),
                          np.ascontiguousarray(array))
    for name, array in dict(more_tensors).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def logits(model, ids):
    return model.forward(ids, np.arange(len(ids)), model.new_cache(len(ids)))


@pytest.mark.parametrize(
    "family, settings",
    [("Llama", {"head_dim": 10}),
     ("Llama", {"tie_word_embeddings": True, "num_key_value_heads": 3}),
     ("Qwen2", {}), ("Qwen2", {"tie_word_embeddings": True}), ("Qwen3", {"head_dim": 14}),
     ("Gemma3", {"num_hidden_layers": 7, "query_pre_attn_scalar": 10})], ids=str)
def test_logits_equal_hf(tmp_path, tiny_model, rng, family, settings):
    hf_model, _ = tiny_model(family, 21, **settings)
    write_gguf(tmp_path / "model.gguf", family, hf_model)
    ids = rng.integers(0, 211, 50)
    with torch.no_grad():
        expected = hf_model(torch.from_numpy(ids)[None]).logits[0].numpy()
    np.testing.assert_allclose(logits(Model.load(tmp_path / "model.gguf"), ids), expected,
                               rtol=0, atol=1e-4)


@pytest.mark.parametrize("family", ["Llama", "Qwen2"])
def test_only_llama_files_are_permuted(tmp_path, tiny_model, rng, family):
    """With the rows the other way round the model still runs, and says something else."""
    hf_model, folder = tiny_model(family, 22)
    write_gguf(tmp_path / "model.gguf", family, hf_model, permute=family != "Llama")
    ids = rng.integers(0, 211, 50)
    assert (np.abs(logits(Model.load(tmp_path / "model.gguf"), ids)
                   - logits(Model.load(folder), ids)).max() > 0.1)


def test_linear_rope_scaling_is_read(tmp_path, tiny_model, rng):
    hf_model, folder = tiny_model(
        "Llama", 23, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0})
    write_gguf(tmp_path / "model.gguf", "Llama", hf_model, **{"rope.scaling.factor": 4.0})
    ids = rng.integers(0, 211, 50)
    np.testing.assert_allclose(logits(Model.load(tmp_path / "model.gguf"), ids),
                               logits(Model.load(folder), ids), atol=1e-5)


@pytest.mark.parametrize("keys, factor", [
    ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, 1.0),
    ({"rope.scaling.type": "none", "rope.scale_linear": 4.0}, 1.0),
    ({"rope.scaling.factor": 1.0, "rope.scale_linear": 4.0}, 1.0),
    ({"rope.scaling.factor": 0.0, "rope.scale_linear": 4.0}, 1.0),
    ({"rope.scaling.factor": 2.0, "rope.scale_linear": 4.0}, 2.0),
    ({"rope.scale_linear": 4.0}, 4.0), ({"rope.scaling.factor": 4.0}, 4.0),
    ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, 4.0),
    ({"rope.scaling.attn_factor": 1.0}, 1.0),
], ids=str)
def test_rope_is_scaled_as_llama_cpp_scales_it(tmp_path, tiny_model, rng, keys, factor):
    """The type "none" scales nothing; the old key counts only where the new one is missing."""
    rope = {"rope_type": "linear", "rope_theta": 1e4, "factor": factor}
    hf_model, folder = tiny_model("Llama", 23, rope_parameters=rope)
    write_gguf(tmp_path / "model.gguf", "Llama", hf_model, **keys)
    ids, model = rng.integers(0, 211, 50), Model.load(tmp_path / "model.gguf")
    assert (model.config.rope_scaling is None) == (factor == 1)
    np.testing.assert_allclose(logits(model, ids), logits(Model.load(folder), ids), atol=1e-5)


@pytest.mark.parametrize("key, value", [
    ("rope.scaling.attn_factor", 2.0), ("rope.scaling.type", "yarn"),
    ("rope.scaling.yarn_ext_factor", 1.0), ("attention.causal", False),
    ("attention.scale", 0.3),
    ("logit_scale", 0.5), ("rope.freq_base_swa", 1e4), ("rope.dimension_sections", [2, 2]),
    ("attention.key_length_swa", 4), ("invented_in_2027", "yes"),
])
def test_what_is_not_computed_is_refused_by_its_key_and_value(tmp_path, tiny_model, key, value):
    hf_model, _ = tiny_model("Llama", 26)
    write_gguf(tmp_path / "model.gguf", "Llama", hf_model, **{key: value})
    with pytest.raises(ModelError) as error:
        Model.load(tmp_path / "model.gguf")
    assert f"llama.{key} is " in error.value.why and repr(value)[:2] in error.value.why


def test_what_says_nothing_hinders_nothing(tmp_path, tiny_model, rng):
    """Keys that are off, of another family, notes of programs: the same logits as without."""
    hf_model, folder = tiny_model("Llama", 26)
    write_gguf(tmp_path / "model.gguf", "Llama", hf_model, **{
        "attention.causal": True, "logit_scale": 0.0, "attention.scale": 0.0, "expert_count": 0,
        "expert_used_count": 0, "use_parallel_residual": False,
        "rope.dimension_sections": [0, 0, 0, 0],
        "rope.scaling.yarn_log_multiplier": 0.0, "tensor_data_layout": "Meta AI original pth",
        "vocab_size": 211, "pooling_type": 3}, notes={
        "general.type": "model", "general.name": "x", "general.sampling.temp": 0.6,
        "quantize.imatrix.chunks_count": 128, "gemma3.logit_scale": 0.5, "split.count": 1,
        "split.no": 0, "split.tensors.count": 30, "mine": "x",
        "tokenizer.chat_template.tool_use": "x", "tokenizer.ggml.padding_token_id": 3})
    ids, model = rng.integers(0, 211, 50), Model.load(tmp_path / "model.gguf")
    np.testing.assert_allclose(logits(model, ids), logits(Model.load(folder), ids), atol=1e-5)


@pytest.mark.parametrize("notes, says", [
    ({"split.count": 2, "split.no": 0, "split.tensors.count": 30}, "part 1 of 2"),
    ({"split.count": 3, "split.no": 2, "split.tensors.count": 30}, "part 3 of 3"),
    ({"split.count": 2}, "part 1 of 2"), ({"split.count": "2"}, "not an integer"),
    ({"general.type": "adapter"}, "general.type is 'adapter'"),
    ({"tokenizer.ggml.add_sep_token": True}, "tokenizer.ggml.add_sep_token is True"),
], ids=str)
def test_a_file_that_is_not_the_whole_model_says_so(tmp_path, tiny_model, notes, says):
    hf_model, _ = tiny_model("Llama", 26)
    write_gguf(tmp_path / "model.gguf", "Llama", hf_model, notes=notes)
    with pytest.raises(GearworksError, match=says) as error:
        Model.load(tmp_path / "model.gguf")
    assert error.value.hint
    if "split.count" in notes:              # whatever is asked of the file, this comes first
        with pytest.raises(FormatError, match=says):
            LanguageModel.load(tmp_path / "model.gguf")


def keys_of_the_package(keys=gguf.constants.Keys):
    for name, value in vars(keys).items():
        if isinstance(value, type):
            yield from keys_of_the_package(value)
        elif isinstance(value, str) and not name.startswith("__"):
            yield value


@pytest.mark.parametrize("name", gguf_settings.READ)
def test_every_key_that_the_gguf_package_can_write_is_decided(name):
    """Read, left out for a reason, or refused by name where it says anything."""
    known = gguf_settings.READ[name].union(*gguf_settings.LEFT_OUT.values())
    known_tokenizer = gguf_settings.TOKENIZER_READ.union(
        *gguf_settings.TOKENIZER_LEFT_OUT.values())
    keys = {key.replace("{arch}", name) for key in keys_of_the_package()}
    assert len(keys) > 150 and f"{name}.rope.scaling.attn_factor" in keys
    refused = set()
    for key in keys:
        for value in (7, 0.37, "seven", True, False, [3, 4], np.array([3, 4])):
            try:
                gguf_settings.heeded(name, {key: value})
            except ModelError as error:
                assert key in error.why
                refused.add(key)
    of_model = {key for key in keys if key.startswith(f"{name}.")}
    assert {key.removeprefix(f"{name}.") for key in of_model - refused} == {
        key.removeprefix(f"{name}.") for key in of_model} & known
    of_tokenizer = {key for key in keys if key.startswith("tokenizer.") and "{" not in key}
    assert of_tokenizer - refused == of_tokenizer & known_tokenizer
    assert refused - of_model - of_tokenizer == {"general.type"}
    # What the tables name is spelt as the package spells it, but for what only others wrote
    assert known - {key.removeprefix(f"{name}.") for key in of_model} == {"rope.scale_linear"}
    assert known_tokenizer - of_tokenizer == {"tokenizer.ggml.cls_token_id"}
    assert set(gguf_settings.COMPUTED) <= {key.removeprefix(f"{name}.") for key in of_model}


class Watched(dict):
    """A mapping that knows which of its keys were asked for."""

    def __init__(self, *args):
        super().__init__(*args)
        self.asked = set()

    def __getitem__(self, key):
        self.asked.add(key)
        return super().__getitem__(key)

    def get(self, key, default=None):
        self.asked.add(key)
        return super().get(key, default)

    def __contains__(self, key):
        self.asked.add(key)
        return super().__contains__(key)


def test_keys_that_are_said_to_be_read_are_read(smollm2_gguf, monkeypatch):
    with GGUFFile.open(smollm2_gguf) as file:
        metadata = Watched(file.metadata)
    Tokenizer.from_gguf(metadata)
    gguf_eos_ids(metadata)
    asked = {key for key in metadata.asked if key.startswith("tokenizer.")}
    assert asked == gguf_settings.TOKENIZER_READ
    watched = []
    monkeypatch.setattr(model_config, "heeded", lambda *args: (
        watched.append(Watched(heeded(*args))) or watched[-1]))
    settings = {"context_length": 64, "embedding_length": 32, "block_count": 2,
                "feed_forward_length": 48, "attention.head_count": 4,
                "attention.layer_norm_rms_epsilon": 1e-5, "attention.sliding_window": 64}
    for name in gguf_settings.READ:
        metadata = {f"{name}.{key}": value for key, value in settings.items()}
        metadata |= {"general.architecture": name, "tokenizer.ggml.tokens": ["a"]}
        ModelConfig.from_gguf(metadata, tied=True)
        assert watched[-1].asked == gguf_settings.READ[name]


def test_the_scaled_rope_of_llama_3_is_refused_as_such(tmp_path, tiny_model):
    hf_model, _ = tiny_model("Llama", 25)
    write_gguf(tmp_path / "model.gguf", "Llama", hf_model,
               more_tensors={"rope_freqs.weight": np.ones(4, np.float32)})
    with pytest.raises(ModelError, match="as Llama 3.1 does"):
        Model.load(tmp_path / "model.gguf")


def test_soft_caps_are_refused(tmp_path, tiny_model):
    hf_model, _ = tiny_model("Gemma3", 24)
    write_gguf(tmp_path / "model.gguf", "Gemma3", hf_model, **{"final_logit_softcapping": 30.0})
    with pytest.raises(ModelError, match="gemma3.final_logit_softcapping is 30.0"):
        Model.load(tmp_path / "model.gguf")


def test_another_architecture_is_refused_by_name(tmp_path, tiny_model):
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "starcoder2")
    writer.add_block_count(1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match="'starcoder2' is not supported") as error:
        Model.load(tmp_path / "model.gguf")
    assert all(name in str(error.value) for name in ("llama", "qwen2", "qwen3", "gemma3"))
