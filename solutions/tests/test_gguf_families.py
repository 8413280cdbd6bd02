"""GGUF files of every architecture that is read from them, written with the `gguf` package and its own tensor names."""

import gguf
import numpy as np
import pytest
import torch

from gearworks.errors import ModelError
from gearworks.model import Model

ARCHITECTURES = {"Llama": gguf.MODEL_ARCH.LLAMA, "Qwen2": gguf.MODEL_ARCH.QWEN2, "Qwen3": gguf.MODEL_ARCH.QWEN3,
                 "Gemma3": gguf.MODEL_ARCH.GEMMA3}


def permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k as converters write them for the llama architecture."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(path, family, hf_model, permute=None, more_tensors=(), **extra):
    """What a converter makes of a model, in float32. permute: whether rows of q and k are; by default as it should be."""
    config, architecture = hf_model.config, ARCHITECTURES[family]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim if getattr(config, "head_dim", None) else config.hidden_size // config.num_attention_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    if family == "Gemma3":
        writer.add_sliding_window(config.sliding_window)
    for key, value in extra.items():
        writer.add_key_value(f"{gguf.MODEL_ARCH_NAMES[architecture]}.{key}", value, gguf.GGUFValueType.FLOAT32)
    writer.add_token_list([str(id) for id in range(config.vocab_size)])
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    for name, tensor in hf_model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = tensor.numpy()
        if family == "Gemma3" and name.endswith("norm.weight"):
            array = array + 1
        for part, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
            if name.endswith(f"{part}.weight") and (family == "Llama" if permute is None else permute):
                array = permuted(array, heads)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), np.ascontiguousarray(array))
    for name, array in dict(more_tensors).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def logits(model, ids):
    return model.forward(ids, np.arange(len(ids)), model.new_cache(len(ids)))


@pytest.mark.parametrize("family, settings", [
    ("Llama", {"head_dim": 10}), ("Llama", {"tie_word_embeddings": True, "num_key_value_heads": 3}),
    ("Qwen2", {}), ("Qwen2", {"tie_word_embeddings": True}), ("Qwen3", {"head_dim": 14}),
    ("Gemma3", {"num_hidden_layers": 7, "query_pre_attn_scalar": 10}),
], ids=str)
def test_logits_equal_hf(tmp_path, tiny_model, rng, family, settings):
    hf_model, _ = tiny_model(family, 21, **settings)
    write_gguf(tmp_path / "model.gguf", family, hf_model)
    ids = rng.integers(0, 211, 50)
    with torch.no_grad():
        expected = hf_model(torch.from_numpy(ids)[None]).logits[0].numpy()
    np.testing.assert_allclose(logits(Model.load(tmp_path / "model.gguf"), ids), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("family", ["Llama", "Qwen2"])
def test_only_llama_files_are_permuted(tmp_path, tiny_model, rng, family):
    """With the rows the other way round the model still runs, and says something else."""
    hf_model, folder = tiny_model(family, 22)
    write_gguf(tmp_path / "model.gguf", family, hf_model, permute=family != "Llama")
    ids = rng.integers(0, 211, 50)
    assert np.abs(logits(Model.load(tmp_path / "model.gguf"), ids) - logits(Model.load(folder), ids)).max() > 0.1


def test_linear_rope_scaling_is_read(tmp_path, tiny_model, rng):
    hf_model, folder = tiny_model("Llama", 23, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0})
    write_gguf(tmp_path / "model.gguf", "Llama", hf_model, **{"rope.scaling.factor": 4.0})
    ids = rng.integers(0, 211, 50)
    np.testing.assert_allclose(logits(Model.load(tmp_path / "model.gguf"), ids), logits(Model.load(folder), ids), atol=1e-5)


def test_the_scaled_rope_of_llama_3_is_refused_as_such(tmp_path, tiny_model):
    hf_model, _ = tiny_model("Llama", 25)
    write_gguf(tmp_path / "model.gguf", "Llama", hf_model, more_tensors={"rope_freqs.weight": np.ones(4, np.float32)})
    with pytest.raises(ModelError, match="as Llama 3.1 does"):
        Model.load(tmp_path / "model.gguf")


def test_soft_caps_are_refused(tmp_path, tiny_model):
    hf_model, _ = tiny_model("Gemma3", 24)
    write_gguf(tmp_path / "model.gguf", "Gemma3", hf_model, **{"final_logit_softcapping": 30.0})
    with pytest.raises(ModelError, match="soft caps"):
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
