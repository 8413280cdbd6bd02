"""Models in several GGUF files, split by the `gguf` package and by hand. A few seconds."""

import shutil

import gguf
import numpy as np
import pytest

from gearworks.errors import FormatError, GearworksError, NotAvailableError
from gearworks.formats.gguf import GGUFFile
from gearworks.formats.gguf_parts import open_gguf
from gearworks.language_model import LanguageModel
from gearworks.model import Model


def split(source, folder, name="tiny", **how):
    """Write a file again, in parts. how: of the package's writer."""
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(folder / f"{name}.gguf", architecture, **how)
    for key, field in reader.fields.items():
        if not key.startswith(("GGUF.", "general.architecture")):
            items = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(key, field.contents(), field.types[0], items)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file(writer.path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(folder.glob(f"{name}-*.gguf"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory, tiny_model):
    """The file of a tiny model of random weights."""
    from test_gguf_families import write_gguf

    path = tmp_path_factory.mktemp("whole") / "whole.gguf"
    write_gguf(path, "Mixtral", tiny_model("Mixtral", 31, num_hidden_layers=2))
    return path


@pytest.fixture
def parts(tmp_path, whole):
    """The same model in three files or more, in a folder of its own."""
    found = split(whole, tmp_path, split_max_tensors=9)
    assert len(found) >= 3
    return found


def logits(path):
    model = Model.load(path)
    return model.forward(np.arange(20), np.arange(20), model.new_cache(20))


@pytest.mark.parametrize("how", [{"split_max_tensors": 9}, {"split_max_size": 60_000},
                                 {"split_max_tensors": 9, "small_first_shard": True}], ids=str)
def test_all_parts_are_one_model_by_the_name_of_any(tmp_path, whole, how):
    """Also where part 1 has the settings alone."""
    paths = split(whole, tmp_path, **how)
    assert len(paths) >= 3
    expected = logits(whole)
    for path in (paths[0], paths[1], paths[-1]):
        np.testing.assert_array_equal(logits(path), expected)
    with open_gguf(paths[1]) as file, GGUFFile.open(whole) as single:
        assert file.tensors.keys() == single.tensors.keys()
        assert file.path == paths[0] and file.metadata["split.count"] == len(paths)
        for name in file.tensors:
            np.testing.assert_array_equal(file.raw(name), single.raw(name))
        with pytest.raises(FormatError, match="no part has a tensor"):
            file.tensor("blk.0.attn_query.weight")


def test_a_file_that_is_whole_is_opened_as_it_is(whole):
    with open_gguf(whole) as file:
        assert type(file) is GGUFFile


@pytest.mark.parametrize("lost", [0, 1, -1])
def test_a_part_that_is_missing_is_named(parts, lost):
    parts[lost].unlink()
    number = range(len(parts))[lost] + 1
    for load in (Model.load, LanguageModel.load):
        with pytest.raises(NotAvailableError) as error:
            load(parts[1 if lost == 0 else 0])
        assert f"part {number} of {len(parts)} is missing" in error.value.why
        assert f"tiny-{number:05}-of-{len(parts):05}.gguf" in error.value.why


def test_parts_that_do_not_belong_together_are_refused(parts, tmp_path, whole):
    first, second, *_ = parts
    shutil.copy(first, tmp_path / "kept")
    shutil.copy(second, first)                          # part 2 under part 1's name
    with pytest.raises(FormatError, match="by its name it is part 1 .*it says .*part 2"):
        open_gguf(parts[2])
    with pytest.raises(FormatError, match="part 2 of .*does not end in -00002"):
        open_gguf(first)
    shutil.copy(tmp_path / "kept", first)
    shutil.copy(whole, second)
    with pytest.raises(FormatError, match="by its name it is part 2"):
        open_gguf(first)


def test_a_part_under_another_name_says_which_it_is(parts, tmp_path):
    renamed = tmp_path / "model.gguf"
    shutil.copy(parts[1], renamed)
    with pytest.raises(FormatError, match=f"part 2 of {len(parts)}, and its name") as error:
        Model.load(renamed)
    assert "llama-gguf-split --merge" in error.value.hint


def test_a_part_that_is_damaged_is_named(parts):
    parts[1].write_bytes(parts[1].read_bytes()[:-40])
    with pytest.raises(FormatError, match=parts[1].name):
        open_gguf(parts[0])
    parts[1].write_text("version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 30\n")
    with pytest.raises(NotAvailableError, match=f"{parts[1].name}\n.*Git LFS pointer"):
        open_gguf(parts[0])


@pytest.mark.parametrize("key, value", [("split.count", "2"), ("split.no", 0.5),
                                        ("split.no", 7), ("split.count", 2**31),
                                        ("split.tensors.count", 7)])
def test_settings_that_cannot_be_are_refused(tmp_path, whole, key, value):
    kinds = gguf.GGUFValueType
    kind = {str: kinds.STRING, float: kinds.FLOAT32, int: kinds.UINT32}[type(value)]
    for number in (1, 2):
        writer = gguf.GGUFWriter(tmp_path / f"m-{number:05}-of-00002.gguf", "llama")
        settings = {"split.no": number - 1, "split.count": 2, "split.tensors.count": 2}
        for each, right in settings.items():
            if each == key:
                writer.add_key_value(key, value, kind)
            else:
                writer.add_uint32(each, right)
        writer.add_tensor(f"w{number}", np.ones(4, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    with pytest.raises(GearworksError) as error:
        open_gguf(tmp_path / "m-00001-of-00002.gguf")
    assert error.value.hint and str(tmp_path) in error.value.what


def test_a_tensor_in_two_parts_is_refused(parts):
    second, third = parts[1:3]
    tensors = gguf.GGUFReader(second).tensors
    with GGUFFile.open(third) as file:
        place = {key: file.metadata[key] for key in ("split.no", "split.count")}
    writer = gguf.GGUFWriter(third.with_name("new"), "llama")
    for key, value in place.items():
        writer.add_uint32(key, value)
    writer.add_tensor(tensors[0].name, tensors[0].data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    third.with_name("new").replace(third)
    with pytest.raises(FormatError, match="twice"):
        open_gguf(parts[0])
