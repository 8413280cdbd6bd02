"""Checkpoints in several files, as transformers writes them;
indices that lie are refused. About 5 s."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from gearworks.errors import FormatError, NotAvailableError
from gearworks.formats.shards import ShardedPickled, ShardedSafetensors, read_index

KINDS = {ShardedSafetensors: (save_file, "model-0000{}-of-00003.safetensors"),
         ShardedPickled: (torch.save, "pytorch_model-0000{}-of-00003.bin")}


def tensors_of(rng: np.random.Generator) -> dict[str, torch.Tensor]:
    dtypes = [torch.float32, torch.bfloat16, torch.float16]
    return {f"layers.{i}.w": torch.from_numpy(rng.normal(size=(i + 2, 5))).to(dtypes[i % 3])
            for i in range(7)}


def write_shards(folder: Path, kind: type, tensors: dict[str, torch.Tensor]) -> dict[str, str]:
    """Write three files and their index. Returns its weight_map."""
    save, pattern = KINDS[kind]
    names = list(tensors)
    weight_map = {name: pattern.format(1 + i % 3) for i, name in enumerate(names)}
    for file_name in set(weight_map.values()):
        save({name: tensors[name] for name in names if weight_map[name] == file_name},
             folder / file_name)
    write_index(folder, kind, weight_map)
    return weight_map


def write_index(folder: Path, kind: type, weight_map: object) -> None:
    index = json.dumps({"metadata": {"total_size": 0}, "weight_map": weight_map})
    (folder / kind.index_name).write_text(index, encoding="utf-8")


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def kind(request):
    return request.param


def test_reads_all_files_as_one(tmp_path, rng, kind):
    tensors = tensors_of(rng)
    write_shards(tmp_path, kind, tensors)
    with kind.open(tmp_path) as file:
        assert list(file.tensors) == list(tensors)
        for name, tensor in tensors.items():
            assert file.tensors[name].shape == tuple(tensor.shape)
            for got in (file.tensor(name),
                        file.tensor(name, out=np.zeros(tensor.shape, np.float32))):
                np.testing.assert_array_equal(got, tensor.float().numpy())
        with pytest.raises(FormatError, match=r"'no\.such'.*index\.json"):
            file.tensor("no.such")
        view = file.tensor("layers.0.w")
    np.testing.assert_array_equal(view, tensors["layers.0.w"].numpy())
    with pytest.raises(ValueError, match="closed"):
        file.tensor("layers.0.w")


def test_reads_what_transformers_splits(tmp_path):
    """A tiny Llama in files of at most 40 KB."""
    from transformers import LlamaConfig, LlamaForCausalLM
    config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48,
                         num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2)
    LlamaForCausalLM(config).save_pretrained(tmp_path, max_shard_size="40KB")
    files = list(tmp_path.glob("*.safetensors"))
    assert len(files) > 2
    expected = {name: tensor for path in files for name, tensor in load_file(path).items()}
    with ShardedSafetensors.open(tmp_path) as file:
        assert file.tensors.keys() == expected.keys()
        for name, tensor in expected.items():
            np.testing.assert_array_equal(file.tensor(name), tensor.numpy())


def test_an_index_that_does_not_match_its_files(tmp_path, rng, kind):
    tensors = tensors_of(rng)
    weight_map = write_shards(tmp_path, kind, tensors)
    first = weight_map["layers.0.w"]

    write_index(tmp_path, kind, weight_map | {"layers.9.w": first})
    with pytest.raises(FormatError,
                       match=rf"index\.json[^$]*'layers\.9\.w'[^$]*{first}[^$]*no such tensor"):
        kind.open(tmp_path)
    write_index(tmp_path, kind,
                {name: place for name, place in weight_map.items() if name != "layers.3.w"})
    with pytest.raises(FormatError, match=r"'layers\.3\.w'[^$]*no file"):
        kind.open(tmp_path)
    write_index(tmp_path, kind, weight_map)
    KINDS[kind][0]({"layers.0.w": tensors["layers.0.w"], "layers.1.w": tensors["layers.1.w"],
                    "layers.3.w": tensors["layers.3.w"], "layers.6.w": tensors["layers.6.w"]},
                   tmp_path / first)
    with pytest.raises(FormatError,
                       match=rf"'layers\.1\.w'[^$]*places in {weight_map['layers.1.w']}"):
        kind.open(tmp_path)                                 # the same name in two files
    (tmp_path / first).write_bytes(b"damaged")
    with pytest.raises(FormatError, match=first):
        kind.open(tmp_path)
    (tmp_path / first).unlink()
    with pytest.raises(NotAvailableError, match=first):
        kind.open(tmp_path)
    (tmp_path / kind.index_name).unlink()
    with pytest.raises(NotAvailableError, match=kind.index_name):
        kind.open(tmp_path)


@pytest.mark.parametrize("place",
                         ["../model.safetensors", "/etc/passwd", "a/b.safetensors", "..", ".",
                          "", ".hidden", "C:model.safetensors", "..\\x", "\\\\host\\share",
                          "C:\\x", "a\0b", "model\n.safetensors", "ｍodel.safetensors",
                          "x" * 300, 7, None, ["a"], {"a": 1}])
def test_names_that_reach_outside_are_refused(tmp_path, rng, kind, place):
    """Even where there is such a file: it is never opened."""
    (tmp_path / "folder").mkdir()
    weight_map = write_shards(tmp_path / "folder", kind, tensors_of(rng))
    write_index(tmp_path / "folder", kind, weight_map | {"layers.0.w": place})
    with pytest.raises(FormatError, match="layers.0.w") as caught:
        kind.open(tmp_path / "folder")
    assert kind.index_name in caught.value.what


@pytest.mark.parametrize(
    "raw",
    [b"", b"[]", b"{}", b"null", b'{"weight_map": []}', b'{"weight_map": {}, "metadata": 3}',
     b'{"weight_map": "a"}', b'{"weight_map": {"a": "x", "a": "y"}}',
     b'{"weight_map": {}, "weight_map": {"a": "x"}}', b'{"weight_map": {"a": NaN}}',
     b'\xff{"weight_map": {}}', b'{"weight_map": ' + b"[" * 100_000])
def test_hostile_indices(raw):
    with pytest.raises(FormatError, match="index"):
        read_index(raw)
