"""`gearworks inspect`: what it says of files is what other readers say of them."""

import json
import math
import shutil

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from gearworks.cli import commands as cli
from gearworks.inspection.contents import read_contents
from gearworks.inspection.verdict import cache_bytes, judge
from gearworks.model import Model


def told(capsys, *arguments):
    """What the command prints; it must succeed."""
    capsys.readouterr()                                     # what making a model has printed
    assert cli.main(["inspect", *map(str, arguments)]) == 0
    output, error = capsys.readouterr()
    assert error == ""
    return output


def refused(capsys, path):
    """The error with which the command ends."""
    capsys.readouterr()
    assert cli.main(["inspect", str(path)]) == 1
    output, error = capsys.readouterr()
    assert output == "" and error.splitlines()[1].startswith("  Why  ")
    return error


def test_smollm2_as_json(smollm2_gguf, capsys):
    found = json.loads(told(capsys, smollm2_gguf, "--json"))
    assert found["format"] == "GGUF, version 3"
    assert found["files"] == {smollm2_gguf.name: smollm2_gguf.stat().st_size}
    assert found["metadata"]["llama.block_count"] == 30
    tokens = found["metadata"]["tokenizer.ggml.tokens"]
    assert tokens["items"] == 49152 and tokens["first"][0] == "<|endoftext|>"
    by_type = found["totals"]["by_type"]
    assert {kind: entry["tensors"] for kind, entry in by_type.items()} == {
        "Q4_1": 210, "F32": 61, "Q8_0": 1}
    assert found["totals"]["tensors"] == len(found["tensors"]) == 272
    assert found["totals"]["bytes"] == sum(each["bytes"] for each in found["tensors"])
    engine = found["engine"]
    assert engine["runs"] and engine["parameters"] == found["totals"]["values"] == 134_515_008
    assert engine["config"]["architecture"] == "LlamaForCausalLM"
    assert engine["cache_bytes"] == 30 * 2 * 3 * 64 * 4
    assert engine["tokenizer"] == 49152 and engine["has_template"]
    assert engine["engines"] == dict.fromkeys(["numpy", "exact", "fast", "torch"])


def test_smollm2_as_a_table(smollm2_gguf, smollm2_folder, capsys):
    table = told(capsys, smollm2_gguf)
    lines = table.splitlines()
    assert any(line.split() == ["blk.*.attn_q.weight", "30", "×", "Q4_1", "576", "×", "576",
                                "6.2", "MB"] for line in lines)
    assert any("134,515,008" in line for line in lines) and "refused" not in table
    assert max(map(len, lines)) < 160 and len(lines) < 100
    each = told(capsys, smollm2_gguf, "--all").splitlines()
    assert sum(".attn_q.weight" in line for line in each) == 30
    folder = told(capsys, smollm2_folder)
    assert "model.layers.*.self_attn.q_proj.weight" in folder and "safetensors" in folder


def test_what_a_folder_has_is_what_the_package_says(tiny_model, capsys):
    _, folder = tiny_model("DeepseekV3", 41)
    found = json.loads(told(capsys, folder, "--json"))
    arrays = load_file(folder / "model.safetensors")
    assert {each["name"]: (each["shape"], each["bytes"], each["type"])
            for each in found["tensors"]} == {
        name: (list(array.shape), array.nbytes, "F32") for name, array in arrays.items()}
    assert found["metadata"]["kv_lora_rank"] == 20
    engine = found["engine"]
    assert engine["config"]["experts"]["num_experts"] == 12 and engine["tokenizer"] is None
    assert "tokenizer.json" in engine["no_text"]
    assert engine["engines"]["numpy"] is None
    assert "DeepseekV3" in engine["engines"]["torch"]
    alone = json.loads(told(capsys, folder / "model.safetensors", "--json"))
    assert alone["engine"] == engine and alone["tensors"] == found["tensors"]


@pytest.mark.parametrize("family", ["Llama", "DeepseekV2", "GPT2", "Mixtral"])
def test_what_it_takes_is_what_is_reserved(tiny_model, family):
    own = {"topk_method": "greedy"} if family == "DeepseekV2" else {}
    _, folder = tiny_model(family, 42, **own)
    verdict, model = judge(folder), Model.load(folder)
    assert 4 * verdict.parameters == model.weights.nbytes()
    cache = model.new_cache(7)
    shared = cache.values.base is cache.keys                # latents are keys and values in one
    assert 7 * cache_bytes(model.config) == (
        cache.keys.nbytes + (0 if shared else cache.values.nbytes))


def test_files_without_a_configuration(tmp_path, tiny_model, capsys):
    """A file of weights alone is shown, and is no model; a pickle is not run."""
    import torch

    hf_model, _ = tiny_model("Llama", 43)
    torch.save(hf_model.state_dict(), tmp_path / "weights.pth")
    save_file({"w": np.zeros((2, 3), np.float16)}, tmp_path / "one.safetensors",
              {"made by": "a test"})
    found = json.loads(told(capsys, tmp_path / "weights.pth", "--json"))
    assert found["format"] == "PyTorch" and len(found["tensors"]) == len(hf_model.state_dict())
    assert "no config.json" in found["engine"]["why"]
    found = json.loads(told(capsys, tmp_path / "one.safetensors", "--json"))
    assert found["metadata"] == {"made by": "a test"}
    assert found["tensors"] == [{"name": "w", "type": "F16", "shape": [2, 3], "bytes": 12}]
    assert not found["engine"]["runs"]
    assert "refused" in told(capsys, tmp_path / "one.safetensors")


def odd_file(path, name="starcoder2"):
    writer = gguf.GGUFWriter(path, name)
    writer.add_float32(f"{name}.scale", math.inf)
    writer.add_string("general.name", "steer\x1b[2J\x9b1m\nme")
    writer.add_array("numbers", list(range(40)))
    writer.add_array("few", [1.5, 2.5])
    writer.add_tensor("blk.0.w\x1b[31m", np.ones((3, 4), np.float32))
    writer.add_tensor("blk.1.bytes", np.ones((2, 34), np.uint8),
                      raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_model_that_the_engine_refuses_is_shown_all_the_same(tmp_path, capsys):
    odd_file(tmp_path / "odd.gguf")
    table = told(capsys, tmp_path / "odd.gguf")
    assert "'starcoder2' is not supported" in table
    assert "\x1b" not in table and "\x9b" not in table and r"\x1b[2J" in table
    assert "40 items: 0, 1, 2" in table and "1.5, 2.5" in table
    found = json.loads(told(capsys, tmp_path / "odd.gguf", "--json"))
    assert found["metadata"]["starcoder2.scale"] is None
    assert found["metadata"]["numbers"] == {"items": 40, "first": list(range(16))}
    assert found["metadata"]["few"] == [1.5, 2.5]
    assert found["engine"] == {
        "runs": False, "what": "the GGUF architecture 'starcoder2' is not supported",
        "why": found["engine"]["why"], "try": found["engine"]["try"]}
    assert found["tensors"][1] == {"name": "blk.1.bytes", "type": "Q8_0", "shape": [2, 32],
                                   "bytes": 68}


def test_a_file_in_types_that_are_not_read_is_shown_too(tmp_path, capsys):
    """And refused by the first of them; their bytes follow from where they lie."""
    kinds = gguf.GGMLQuantizationType
    writer = gguf.GGUFWriter(tmp_path / "few.gguf", "llama")
    for number, kind in enumerate([kinds.IQ2_XS, kinds.F32, kinds.TQ1_0, kinds.IQ1_S]):
        size, nbytes = gguf.GGML_QUANT_SIZES[kind]
        rows = 64 // np.gcd(64, nbytes)                     # so that nothing has to be padded
        raw = (np.ones((rows, 2), np.float32) if kind == kinds.F32
               else np.zeros((rows, nbytes), np.uint8))
        writer.add_tensor(f"blk.{number}.w", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = json.loads(told(capsys, tmp_path / "few.gguf", "--json"))
    assert [(each["name"], each["type"], each["shape"], each["bytes"])
            for each in found["tensors"]] == [
        (tensor.name, tensor.tensor_type.name, tensor.shape.tolist()[::-1], tensor.n_bytes)
        for tensor in gguf.GGUFReader(tmp_path / "few.gguf").tensors]
    assert "type 17 (IQ2_XS) is not supported" in found["engine"]["why"]
    assert "IQ4_XS" in found["engine"]["try"] and not found["engine"]["runs"]
    data = (tmp_path / "few.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(data[:120])
    assert "cut.gguf" in refused(capsys, tmp_path / "cut.gguf")


def test_parts_are_shown_as_one_model(tmp_path, tiny_model, capsys):
    from test_gguf_families import write_gguf
    from test_gguf_parts import split

    write_gguf(tmp_path / "whole.gguf", "Qwen2", tiny_model("Qwen2", 44))
    paths = split(tmp_path / "whole.gguf", tmp_path, split_max_tensors=12)
    found = json.loads(told(capsys, paths[1], "--json"))
    whole = json.loads(told(capsys, tmp_path / "whole.gguf", "--json"))
    assert found["files"] == {path.name: path.stat().st_size for path in paths}
    assert found["tensors"] == whole["tensors"] and found["engine"] == whole["engine"]
    assert f"{len(paths)} files" in told(capsys, paths[0])
    paths[2].unlink()
    assert f"part 3 of {len(paths)} is missing" in refused(capsys, paths[0])


def test_bad_files_get_clear_errors(tmp_path, tiny_model, capsys):
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF" + bytes(3))
    assert "bad.gguf" in refused(capsys, bad)
    bad.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 30\n")
    assert "Git LFS pointer" in refused(capsys, bad)
    bad.write_bytes(b"")
    assert "not with b'GGUF'" in refused(capsys, bad)
    (tmp_path / "bad.safetensors").write_bytes(b"\xff" * 40)
    assert "bad.safetensors" in refused(capsys, tmp_path / "bad.safetensors")
    (tmp_path / "bad.bin").write_bytes(b"PK" + bytes(40))
    assert "bad.bin" in refused(capsys, tmp_path / "bad.bin")
    assert "one of them, such as" in refused(capsys, tmp_path)
    bad.unlink()
    assert "config.json" in refused(capsys, tmp_path)
    _, folder = tiny_model("Llama", 43)
    assert "holds no tensors" in refused(capsys, folder / "config.json")
    shutil.copy(folder / "config.json", tmp_path)
    assert "no weights" in refused(capsys, tmp_path)
    assert "no model 'no-such-model'" in refused(capsys, "no-such-model")


def test_nothing_of_a_tensor_is_read(tiny_model, monkeypatch):
    """A file of any size is looked into at once."""
    from gearworks.formats import safetensors

    _, folder = tiny_model("Llama", 45)

    def reached(*_, **__):
        raise AssertionError("a weight is read")
    monkeypatch.setattr(safetensors, "read_tensor", reached)
    monkeypatch.setattr(safetensors, "read_tensor_into", reached)
    assert read_contents(folder).values == judge(folder).parameters


@pytest.mark.parametrize("family, settings, says", [
    ("Phi3", {}, "6 of a head's 8 elements turn"),
    ("SmolLM3", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
     "scaled: linear; no turn in 1 of 3 layers")])
def test_what_turns_is_said(tiny_model, capsys, family, settings, says):
    assert cli.main(["inspect", str(tiny_model(family, 2, **settings)[1])]) == 0
    assert f"  RoPE            {says}\n" in capsys.readouterr().out
