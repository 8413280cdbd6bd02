"""Loading: names, layouts, and that nothing less than a complete match is accepted."""

import json
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from gearworks.config import ModelConfig
from gearworks.errors import FormatError, GearworksError, ModelError, NotAvailableError
from gearworks.formats import safetensors
from gearworks.formats.safetensors import SafetensorsFile
from gearworks.weights import (expected_shapes, gguf_name, load_checkpoint, map_names, reserve,
                               unpermute_rope)

CONFIG = ModelConfig("LlamaForCausalLM", 31, 24, 20, 2, 6, 2, 4, 64, 1e-5, 1e4, False)
TIED = ModelConfig("LlamaForCausalLM", 31, 24, 20, 2, 6, 2, 4, 64, 1e-5, 1e4, True)


def test_every_weight_is_where_its_name_says(tiny_llama):
    hf_model, folder = tiny_llama(0, head_dim=10)
    config, weights = load_checkpoint(folder)
    state = {name: tensor.numpy() for name, tensor in hf_model.state_dict().items()}
    assert state.keys() == expected_shapes(config).keys()
    np.testing.assert_array_equal(weights.embed_tokens, state["model.embed_tokens.weight"])
    np.testing.assert_array_equal(weights.lm_head, state["lm_head.weight"])
    np.testing.assert_array_equal(weights.norm, state["model.norm.weight"])
    for i, layer in enumerate(weights.layers):
        names = {"input_layernorm": ["input_layernorm"],
                 "post_attention_layernorm": ["post_attention_layernorm"],
                 "qkv_proj": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
                 "o_proj": ["self_attn.o_proj"],
                 "gate_up_proj": ["mlp.gate_proj", "mlp.up_proj"],
                 "down_proj": ["mlp.down_proj"]}
        assert (names.keys()
                == {field for field, array in vars(layer).items() if array is not None})
        for field, parts in names.items():
            expected = np.concatenate([state[f"model.layers.{i}.{part}.weight"]
                                       for part in parts])
            np.testing.assert_array_equal(getattr(layer, field), expected)
    assert weights.nbytes() == 4 * hf_model.num_parameters()


def test_tied_weights_are_one_array(tiny_llama):
    hf_model, folder = tiny_llama(1, tie_word_embeddings=True)
    _, weights = load_checkpoint(folder)
    assert weights.lm_head is weights.embed_tokens
    assert weights.nbytes() == 4 * hf_model.num_parameters()


def test_unpermute_rope_brings_neighbours_back_to_halves(rng):
    """Against the permutation as converters to GGUF write it,
    for more than one head and a head of more than two pairs."""
    heads, d, columns = 3, 10, 7
    weight = rng.standard_normal((heads * d, columns)).astype(np.float32)
    in_file = weight.reshape(heads, 2, d // 2, columns).swapaxes(1, 2).reshape(weight.shape)
    assert not np.array_equal(in_file, weight)
    np.testing.assert_array_equal(unpermute_rope(in_file, heads), weight)
    row = heads * d - 1
    # the last pair's second half stays last
    np.testing.assert_array_equal(in_file[row], weight[row])


@pytest.mark.parametrize("config", [CONFIG, TIED], ids=["untied", "tied"])
def test_names_of_three_kinds_of_files(config):
    shapes = expected_shapes(config)
    assert map_names(shapes, config) == {name: name for name in shapes}
    bare = {name.removeprefix("model."): shape for name, shape in shapes.items()}
    assert map_names(bare, config)["model.norm.weight"] == "norm.weight"
    in_gguf = {gguf_name(name): shape for name, shape in shapes.items()}
    assert (map_names(in_gguf, config)["model.layers.1.self_attn.o_proj.weight"]
            == "blk.1.attn_output.weight")
    assert len(in_gguf) == len(shapes)


def test_what_carries_no_information_may_be_left_over():
    shapes = expected_shapes(TIED) | {"lm_head.weight": (31, 24),
                                      "model.layers.0.self_attn.rotary_emb.inv_freq": (2,)}
    assert map_names(shapes, TIED).keys() == expected_shapes(TIED).keys()


@pytest.mark.reference("words")
def test_all_faults_are_listed_at_once():
    shapes = expected_shapes(CONFIG)
    del shapes["lm_head.weight"], shapes["model.layers.1.mlp.up_proj.weight"]
    shapes["model.layers.1.mlp.up_projection.weight"] = (20, 24)
    shapes["model.layers.0.self_attn.k_proj.weight"] = (24, 8)
    with pytest.raises(ModelError) as failure:
        map_names(shapes, CONFIG)
    assert failure.value.why == (
        "2 missing: lm_head.weight, model.layers.1.mlp.up_proj.weight; "
        "1 unexpected: model.layers.1.mlp.up_projection.weight; "
        "1 misshapen: model.layers.0.self_attn.k_proj.weight is (24, 8), expected (8, 24)")


def test_a_huge_number_of_layers_is_refused_before_anything_is_made_of_it():
    with pytest.raises(ModelError,
                       match="3000000 layers are announced, and the file holds 20 tensors"):
        map_names(expected_shapes(TIED), replace(TIED, num_hidden_layers=3_000_000))


def test_a_prefix_that_was_not_stripped_is_an_error():
    shapes = {f"module.{name}": shape for name, shape in expected_shapes(CONFIG).items()}
    with pytest.raises(ModelError, match="21 missing.*and 13 more; 21 unexpected"):
        map_names(shapes, CONFIG)


@pytest.fixture
def folder(tiny_llama, tmp_path):
    _, made = tiny_llama(2)
    return shutil.copytree(made, tmp_path / "model")


def rewrite(folder, change):
    with SafetensorsFile.open(folder / "model.safetensors") as file:
        tensors = {name: file.tensor(name).copy() for name in file.tensors}
    change(tensors)
    safetensors.write(folder / "model.safetensors", tensors)


def break_config(folder, text):
    (folder / "config.json").write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    "fault, error, complaint",
    [(lambda f: (f / "config.json").unlink(), NotAvailableError, "config.json"),
     (lambda f: break_config(f, "{"), FormatError, "not JSON"),
     (lambda f: break_config(f, "[1]"), FormatError, "JSON object"),
     (lambda f: break_config(f, "[" * 100_000), FormatError, "not JSON"),
     (lambda f: (f / "config.json").write_bytes(b"\xff\xfe{}"), FormatError, "not JSON"),
     (lambda f: (f / "model.safetensors").unlink(), NotAvailableError, "no weights"),
     (lambda f: rewrite(f, lambda t: t.pop("model.norm.weight")), ModelError,
      "1 missing: model.norm.weight"),
     (lambda f: rewrite(f, lambda t: t.update(extra=np.zeros(3, np.float32))), ModelError,
      "1 unexpected: extra"),
     (lambda f: rewrite(f,
                        lambda t: t.update({"lm_head.weight": t["lm_head.weight"].T.copy()})),
      ModelError, "misshapen"),
     (lambda f: rewrite(f, lambda t: t.update({"model.norm.weight": np.zeros(48, np.int64)})),
      GearworksError, "model.norm"),
     (lambda f: (f / "model.safetensors").rename(f / "model-00001-of-00002.safetensors") and (
         f / "model.safetensors.index.json").write_text("{}"), FormatError, "weight_map")],
    ids=["no-config", "broken-config", "config-list", "config-nested", "config-bytes",
         "no-weights", "missing", "extra", "transposed", "integers", "sharded"])
def test_damaged_folders_are_refused(folder, fault, error, complaint):
    fault(folder)
    with pytest.raises(error, match=complaint) as failure:
        load_checkpoint(folder)
    assert failure.value.hint


def test_a_second_copy_of_a_tied_head_must_be_one(tiny_llama, tmp_path):
    _, made = tiny_llama(3, tie_word_embeddings=True)
    folder = shutil.copytree(made, tmp_path / "tied")
    rewrite(folder,
            lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].copy()}))
    load_checkpoint(folder)
    rewrite(folder,
            lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"][::-1].copy()}))
    with pytest.raises(ModelError, match="head of its own"):
        load_checkpoint(folder)


@pytest.mark.skipif(os.name != "posix", reason="has no named pipes in its file system")
def test_a_pipe_in_place_of_a_file_is_not_waited_for(folder):
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    with pytest.raises(NotAvailableError, match="no plain file"):
        load_checkpoint(folder)


def test_sharing_a_config_with_another_model_is_caught(folder):
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    break_config(folder, json.dumps(config | {"num_hidden_layers": 4}))
    with pytest.raises(ModelError, match="9 missing"):
        load_checkpoint(folder)


def same_weights(folder, other) -> None:
    for mine, theirs in zip(arrays_of(load_checkpoint(folder)[1]),
                            arrays_of(load_checkpoint(other)[1]), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def arrays_of(weights):
    own = [array for name, array in vars(weights).items() if name != "layers"]
    return [array
            for array
            in [*own, *(array for layer in weights.layers for array in vars(layer).values())]
            if array is not None]


@pytest.mark.parametrize("kind", ["sharded", "pickled", "pickled-shards"])
def test_other_formats_hold_the_same_weights(tiny_model, tmp_path, kind):
    hf_model, folder = tiny_model("Qwen2", 6)
    other = tmp_path / "other"
    if kind == "sharded":
        hf_model.save_pretrained(other, max_shard_size="60KB")
        assert len(list(other.glob("model-*.safetensors"))) > 2
    else:
        other.mkdir()
        shutil.copy(folder / "config.json", other)
        state = list(hf_model.state_dict().items())
        parts = {"pytorch_model.bin": state} if kind == "pickled" else {
            f"pytorch_model-0000{number}-of-00002.bin": state[number::2] for number in range(2)}
        for name, part in parts.items():
            torch.save(dict(part), other / name)
        if len(parts) > 1:
            weight_map = {tensor: name for name, part in parts.items() for tensor, _ in part}
            (other / "pytorch_model.bin.index.json").write_text(json.dumps({
                "weight_map": weight_map}), encoding="utf-8")
    same_weights(other, folder)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn], ids=str)
def test_lower_precisions_are_widened_exactly(tiny_model, tmp_path, dtype):
    hf_model, folder = tiny_model("Qwen3", 7, tie_word_embeddings=True)
    other = shutil.copytree(folder, tmp_path / "other")
    state = {name: tensor.to(dtype) for name, tensor in hf_model.state_dict().items()
             if name != "lm_head.weight"}
    save_file(state, other / "model.safetensors")
    _, weights = load_checkpoint(other)
    for name, tensor in state.items():
        if name.endswith("down_proj.weight"):
            layer = weights.layers[int(name.split(".")[2])]
            np.testing.assert_array_equal(layer.down_proj, tensor.to(torch.float32).numpy())
    np.testing.assert_array_equal(weights.embed_tokens,
                                  state["model.embed_tokens.weight"].to(torch.float32).numpy())


def test_every_place_is_of_its_own_and_together_they_are_everything():
    """Written one after the other with different numbers, no place changes another,
    and no number is left over."""
    config = ModelConfig("LlamaForCausalLM", 31, 24, 20, 2, 6, 2, 4, 64, 1e-5, 1e4, False,
                         qkv_bias=True, qk_norm=True)
    weights, places = reserve(config)
    for number, place in enumerate(places.values(), start=1):
        place[...] = number
    for number, (name, place) in enumerate(places.items(), start=1):
        assert place.shape == expected_shapes(config)[name] and (place == number).all()
    assert sum(place.size for place in places.values()) * 4 == weights.nbytes()
