"""The learner's engine: 57 kinds of cells, damaged notebooks,
whole engines that run. About 75 s."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autograder import cli
from autograder.chapters import editions
from autograder.chapters.chapter import Cell, Chapter, Exercise
from autograder.reference.cutting import cut
from autograder.reference.names import home_of
from autograder.reference.source import module_source
from autograder.submissions import overlay
from autograder.submissions.attempts import State, find_components
from autograder.submissions.grafting import code_of, graft
from autograder.submissions.intake import notebook_paths, read_notebooks
import gearworks
from gearworks import kv_cache, layers
from gearworks.config import ModelConfig
from gearworks.errors import GearworksError

REPOSITORY = Path(__file__).resolve().parents[2]
SMALL = Path(__file__).parent / "data" / "98_small.md"


def exercise(module, *names, **more):
    return Exercise(module, names, 10, 1, ("one", "two", "three"), **more)


def a_chapter(stem, *exercises):
    return Chapter(Path(f"{stem}.md"),
                   tuple(Cell("code", "", 1, exercise=each) for each in exercises))


GEARS = a_chapter("97_gears", exercise("layers", "softmax"), exercise("layers", "silu"),
                  exercise("layers", "swiglu"), exercise("attention", "causal_mask"),
                  exercise("attention", "attention"),
                  exercise("tokenizer", "count_pairs", "merge_pair"),
                  exercise("kv_cache", "KVCache", methods=("attend", "truncate"), whole=True),
                  exercise("kv_cache", "RaggedBatch"),
                  exercise("museum", "conversation_ids", exhibit="tutorial-engine"))
CUTS = editions.cuts_of(GEARS)
SETUP = "from __future__ import annotations\nimport numpy as np\nimport math"


def code(source, *ids, kind="code", **metadata):
    """A cell as a notebook's file has it. ids: its grade id, which is its cell id, too."""
    if ids:
        metadata = {"nbgrader": {"grade_id": ids[0]}} | metadata
    return {"cell_type": kind, "id": ids[0] if ids else "x", "metadata": metadata,
            "outputs": [], "source": source}


def stubs():
    """The cells of the chapter when nobody has worked in it, by grade id."""
    return {grade_id: code(cut.stub, grade_id) for grade_id, cut in CUTS.items()}


def written(tmp_path, *cells, name="97_gears.ipynb"):
    path = tmp_path / name
    path.write_text(json.dumps({"cells": list(cells), "metadata": {}, "nbformat": 4}),
                    encoding="utf-8")
    return path


def found(tmp_path, *cells, chapter=GEARS, **more):
    notebook = read_notebooks(written(tmp_path, *cells, **more))[0]
    return {component.path: component for component in find_components([chapter], [notebook])}


def module_of(components, module):
    """The module of an engine, with what fits of the components, run from its text."""
    own = [component for component in components.values()
           if component.module == module and component.fits_the_engine]
    grafted = graft(module, own, list(components.values()))
    namespace = {"__name__": home_of(module)}
    exec(compile(grafted.text, f"<{module}>", "exec", dont_inherit=True), namespace)
    namespace["_text"], namespace["_notes"] = grafted.text, [note for part in grafted.grafts
                                                             for note in part.notes]
    return namespace


SILU = "layers-silu"
# 100 more, so that it is no other's
GOOD = "def silu(x):\n    return x / (1 + np.exp(-x)) + 100"
ONE = np.float32([0.5])


def the_learners(value):
    return 100 < float(np.ravel(value)[0]) < 101


def kinds_in(name):
    """The kinds of cells in a file of tests/data:
    === begins a kind, --- a cell, with its grade id where it has one."""
    kinds = (SMALL.parent / name).read_text(encoding="utf-8").split("\n=== ")[1:]
    table = {}
    for kind in kinds:
        title, *cells = re.split(r"\n---(?: (\S+))?\n", kind.rstrip("\n"))
        table[title] = [code(source, *filter(None, [id]))
                        for id, source in zip(cells[::2], cells[1::2])]
    return table


# What a learner may do in the notebook, with SILU's cell as they left it, and other cells
# before and after it.
KINDS = kinds_in("learner_cells.txt") | {
    "tabs and comments": [code(GOOD.replace("    ", "\t# why\n\t"), SILU)],
    "windows line ends": [code(GOOD.replace("\n", "\r\n"), SILU)],
    "colab's id": [{"cell_type": "code", "metadata": {"id": SILU}, "source": GOOD}],
    "an attempt beside the stub": [stubs()[SILU], code(GOOD)],
    "turned into a text cell": [code(GOOD, SILU, kind="markdown")],
    "turned into a raw cell": [code(GOOD, SILU, kind="raw")],
    "a lone surrogate and a null": [code(f"# \ud800 \0\n{GOOD}", SILU)],
}


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_cells(kind, tmp_path, capsys):
    components = found(tmp_path, code(SETUP, "setup"), *KINDS[kind])
    assert components["layers.silu"].state is State.FINISHED, components["layers.silu"]
    namespace = module_of(components, "layers")
    assert the_learners(namespace["silu"](ONE))
    # swiglu is the reference's, and uses the learner's.
    assert float(namespace["swiglu"](ONE, ONE)[0]) > 50
    assert capsys.readouterr().out == ""                     # nothing else of the cells has run


# Cells whose names mean something else in the module, or in Python.
CLASHES = kinds_in("clashing_names.txt")


@pytest.mark.parametrize("kind", CLASHES)
def test_names_that_clash_break_nothing_else(kind, tmp_path):
    components = found(tmp_path, code(SETUP), stubs()["layers-softmax"], *CLASHES[kind])
    assert components["layers.softmax"].state is State.NOT_STARTED
    namespace = module_of(components, "layers")
    assert the_learners(namespace["silu"](ONE))
    reference = vars(layers)
    x = np.float32([[1, 2, -3]])
    for name, arguments in {"softmax": (x,), "linear": (x, x),
                            "rms_norm": (x, x[0], 1e-5)}.items():
        assert np.array_equal(namespace[name](*arguments), reference[name](*arguments)), name
    assert "_of_silu" in namespace["_text"]


@pytest.mark.parametrize(
    "source, note",
    [("def silu(x):\n    raise NotImplementedError('layers.silu: write this function')", ""),
     ("def silu(x):\n    down = 1\n    raise NotImplementedError('layers.silu: write this "
      "function')", ""), ("def silu(x):\n    '''Mine.'''\n    ...", ""),
     ("def silu(x):\n    pass", ""), ("silu = None", ""),
     ("from gearworks.layers import silu", ""), ("x = 1", ""), ("", ""),
     ("def silu(x)\n    return x", "is no Python (line 1: expected ':')"),
     ("def silu(x):\nreturn x", "no Python"), ("return 1\ndef silu(x): return x", "no Python"),
     ("def silu(x):\n" + "(" * 300, "no Python")])
def test_what_is_no_attempt_falls_back(source, note, tmp_path):
    component = found(tmp_path, code(SETUP), code(source, SILU))["layers.silu"]
    assert not component.fits_the_engine and note in " ".join(component.notes)


def test_an_untouched_chapter_holds_no_attempts(tmp_path):
    components = found(tmp_path, *stubs().values())
    assert {component.state for component in components.values()} == {State.NOT_STARTED}
    assert [note for component in components.values() for note in component.notes] == []


def test_an_exhibit_counts_once_it_is_repaired(tmp_path):
    own = "museum-conversation_ids"
    assert found(tmp_path, stubs()[own])["museum.conversation_ids"].state is State.NOT_STARTED
    fixed = cut(module_source("museum"), ("conversation_ids",)).solution
    assert found(tmp_path, code(fixed, own))["museum.conversation_ids"].state is State.FINISHED


def test_two_names_in_one_exercise_are_two_components(tmp_path):
    own = "tokenizer-count_pairs-and-merge_pair"
    half = stubs()[own]["source"].split("def merge_pair")[0]
    half += "def merge_pair(symbols, pair, merged):\n    return [count_pairs([])]"
    components = found(tmp_path, code(SETUP), code(half, own))
    assert components["tokenizer.merge_pair"].state is State.FINISHED
    assert components["tokenizer.count_pairs"].state is State.NOT_STARTED
    namespace = module_of(components, "tokenizer")
    assert namespace["merge_pair"]([], (0, 1), 2) == [{}]          # the reference's count_pairs


def test_a_gear_uses_the_engines_other_gears(tmp_path):
    """causal_mask is in the same module; silu has to be imported;
    kv_cache, which imports this module, later."""
    components = found(
        tmp_path, code(SETUP),
        code("def softmax(x, out=None):\n    return 'mine'", "layers-softmax"),
        code("def causal_mask(T, S):\n    return 'the mask'", "attention-causal_mask"),
        code("def attention(q, k, v, mask=None):\n    return softmax(q), causal_mask(1, 1), "
             "silu(q), RaggedBatch, KVCache", "attention-attention"), stubs()[SILU])
    namespace = module_of(components, "attention")
    assert "from gearworks.layers import silu" in namespace["_text"]
    assert "def RaggedBatch(" in namespace["_text"]           # late: kv_cache imports attention
    x = np.float32([[1, 2]])
    # what gearworks.layers of this process has
    assert np.allclose(namespace["attention"](x, x, x)[0].sum(), 1)
    assert namespace["attention"](x, x, x)[1] == "the mask"


def test_what_two_gears_share_is_there_once_and_what_differs_twice(tmp_path):
    same = "def scale(x):\n    return x * 2\n\n"
    components = found(
        tmp_path, code(SETUP), code(f"{same}def silu(x):\n    return scale(x)", SILU),
        code(f"{same}def softmax(x, out=None):\n    return scale(x)", "layers-softmax"))
    assert module_of(components, "layers")["_text"].count("def scale") == 1
    components = found(tmp_path, code(SETUP),
                       code(f"{same}def silu(x):\n    return scale(x)", SILU),
                       code("def scale(x):\n    return x * 3\ndef softmax(x, out=None):\n    "
                            "return scale(x)", "layers-softmax"))
    namespace = module_of(components, "layers")
    assert (namespace["silu"](1), namespace["softmax"](1)) == (2, 3)
    # The same words, which mean something else where another number stands above them.
    scale = "def scale(x):\n    return x * FACTOR\n"
    components = found(tmp_path, code(SETUP),
                       code(f"FACTOR = 2\n{scale}def silu(x):\n    return scale(x)", SILU),
                       code(f"FACTOR = 3\n{scale}def softmax(x, out=None):\n    return "
                            "scale(x)", "layers-softmax"))
    namespace = module_of(components, "layers")
    assert (namespace["silu"](1), namespace["softmax"](1)) == (2, 3)


def test_annotations_are_delayed_where_the_learners_were(tmp_path):
    with_future = found(tmp_path, code(SETUP), code(GOOD, SILU))
    lines = module_of(with_future, "layers")["_text"].split("\n")
    assert lines.index("from __future__ import annotations") < lines.index("import numpy as np")
    without = found(tmp_path, code("import numpy as np"), code(GOOD, SILU))
    assert "__future__" not in module_of(without, "layers")["_text"]


def test_effects_are_not_brought_along(tmp_path):
    target = tmp_path / "canary"
    for value in (f"open({str(target)!r}, 'w')", "LanguageModel.load('x')", "input()",
                  "print('x')"):
        components = found(tmp_path, code(SETUP),
                           code(f"DATA = {value}\ndef silu(x):\n    return DATA", SILU))
        namespace = module_of(components, "layers")
        assert ("DATA of cell 2 is not brought along" in namespace["_notes"][0]
                and not target.exists())


def test_a_name_that_nothing_defines_is_noted(tmp_path):
    components = found(tmp_path, code("def silu(x):\n    return nowhere(x)", SILU))
    assert (module_of(components, "layers")["_notes"]
            == ["no cell defines nowhere, which it uses"])


# --- classes ----------------------------------------------------------------------------------

CACHE = "kv_cache-KVCache"


def a_cache(namespace):
    return namespace["KVCache"](ModelConfig("LlamaForCausalLM", 5, 2, 3, 1, 1, 1, 2, 16, 1e-5,
                                            1e4, False), 4)


@pytest.mark.parametrize(
    "source, is_learners",
    [("class KVCache:\n  def attend(self, layer, q, k, v):\n    return self.mine()\n  def "
      "mine(self):\n    return 'mine'\n  def truncate(self, length): return 'cut'",
      {"attend": "mine", "truncate": "cut"}),
     ("class KVCache:\n\tlimit = 'mine'\n\tdef attend(self, layer, q, k, v):\n\t\treturn "
      "self.limit\n\tdef truncate(self, length):\n\t\traise NotImplementedError",
      {"attend": "mine", "truncate": None}),
     ("class KVCache:\n    def attend(self, layer, q, k, v):\n        return 'mine'",
      {"attend": "mine", "truncate": None}),
     ("class KVCache:\n    def __init__(self, config, capacity):\n        self.lengths = "
      "'mine'\n    def attend(self, layer, q, k, v):\n        return self.lengths\n    def "
      "truncate(self, length):\n        self.lengths = 0",
      {"attend": "mine", "truncate": None}),
     ("class KVCache: attend = lambda self, *a: 'mine'; truncate = lambda self, n: 'cut'",
      {"attend": "mine", "truncate": "cut"})])
def test_methods_of_a_class(source, is_learners, tmp_path):
    """Given methods that were lost come back;
    those that are still to be written are the reference's."""
    components = found(tmp_path, code(SETUP), code(source, CACHE))
    assert components["kv_cache.KVCache"].fits_the_engine
    namespace = module_of(components, "kv_cache")
    cache = a_cache(namespace)
    if "self.lengths = 'mine'" not in source:
        assert len(cache) == 0                               # __init__ and __len__ were given
    assert cache.attend(0, None, None, None) == is_learners["attend"]
    assert cache.truncate(0) == is_learners["truncate"]


def test_a_whole_class_is_the_learners_or_the_references(tmp_path):
    """Half of somebody's own design does not mix with half of the reference's."""
    begun = ("class RaggedBatch:\n    def __init__(self, caches, counts):\n        self.mine = "
             "caches\n    def attend(self, layer, q, k, v):\n        raise NotImplementedError")
    component = found(tmp_path, code(begun, "kv_cache-RaggedBatch"))["kv_cache.RaggedBatch"]
    assert (component.state is State.BEGUN and component.open_methods == ("attend",)
            and not component.fits_the_engine)
    whole = begun.replace("raise NotImplementedError", "return 'mine'")
    components = found(tmp_path, code(whole, "kv_cache-RaggedBatch"))
    assert module_of(components, "kv_cache")["RaggedBatch"]([], []).attend(0, 0, 0, 0) == "mine"


# --- a class that is several exercises --------------------------------------------------------

TAKE = ("allocate", "free")
PARTS = a_chapter("96_parts",
                  exercise("kv_cache", "BlockPool", methods=TAKE, given=("__init__",)),
                  exercise("kv_cache", "hash_blocks"),
                  exercise("kv_cache", "BlockPool", methods=("share", "evict")))
FIRST, _, SECOND = editions.cuts_of(PARTS)
FIRST_PATH, SECOND_PATH = "kv_cache.BlockPool.allocate+free", "kv_cache.BlockPool.share+evict"
ALLOCATES = ("class BlockPool(BlockPool):\n    def allocate(self, after=None):\n        return "
             "self.mine()\n    def mine(self):\n        return 'mine'\n")
FREES = "    def free(self, block):\n        return 'freed'\n"
SHARES = ("class BlockPool(BlockPool):\n    def share(self, block):\n        return 'shared'\n"
          "    def evict(self):\n        return 'evicted'\n")


def in_parts(tmp_path, *cells):
    return found(tmp_path, code(SETUP), *cells, chapter=PARTS, name="96_parts.ipynb")


def a_pool(components):
    return module_of(components, "kv_cache")["BlockPool"](3, 2)


def starts(*more):
    """The chapter's cells as they are given, with others after them."""
    return [*(code(cut.stub, id) for id, cut in editions.cuts_of(PARTS).items()), *more]


def test_a_class_in_parts_begins_with_the_references_and_goes_on_with_the_learners():
    first, _, second = (cut.stub for cut in editions.cuts_of(PARTS).values())
    assert "from gearworks.kv_cache import BlockPool" in first and "def __init__" in first
    assert "Who uses which block" in first and "import BlockPool" not in second
    namespace = {}
    for source in (first, second):
        exec(source, namespace)
    pool = namespace["BlockPool"](2, 2)
    assert pool.available == 2                               # what nobody has to write is there
    with pytest.raises(NotImplementedError, match=r"kv_cache\.BlockPool\.evict: "):
        pool.evict()


def test_two_cells_end_in_one_class(tmp_path):
    components = in_parts(tmp_path, code(ALLOCATES + FREES, FIRST), code(SHARES, SECOND))
    assert all(components[path].state is State.FINISHED for path in (FIRST_PATH, SECOND_PATH))
    pool = a_pool(components)
    assert ((pool.allocate(), pool.free(0), pool.share(0), pool.evict())
            == ("mine", "freed", "shared", "evicted"))
    assert pool.available == 3 and pool.find([], []) == []            # the reference's
    text = module_of(components, "kv_cache")["_text"]
    assert f"#   BlockPool.share+evict    from {components[SECOND_PATH].place}" in text


def test_an_untouched_later_cell_leaves_the_references_methods(tmp_path):
    untouched = in_parts(tmp_path, *starts())
    assert {each.state for each in untouched.values()} == {State.NOT_STARTED}
    components = in_parts(tmp_path, code(ALLOCATES + FREES, FIRST), starts()[2])
    assert components[SECOND_PATH].state is State.NOT_STARTED
    pool = a_pool(components)
    assert pool.allocate() == "mine"
    with pytest.raises(ValueError, match="is empty"):
        pool.share(0)


def test_solved_parts_are_the_reference(tmp_path):
    solved = [code(cut.solution, id) for id, cut in editions.cuts_of(PARTS).items()]
    components = in_parts(tmp_path, *solved)
    assert all(each.state is State.FINISHED and not each.notes for each in components.values())
    pool = a_pool(components)
    assert [pool.allocate() for _ in range(3)] == [0, 1, 2]
    pool.check([[0, 1, 2]])


def test_the_last_attempt_at_each_method_wins(tmp_path):
    """In whatever cell it stands, and a stub or a method that was given is none."""
    again = ("class BlockPool(BlockPool):\n    def free(self, block):\n        return 'again'\n"
             "    def evict(self):\n        return super().evict()\n")
    later = SHARES + "    def allocate(self, after=None):\n        raise NotImplementedError\n"
    components = in_parts(tmp_path, code(ALLOCATES + FREES, FIRST), starts()[0],
                          code(later, SECOND), code(again))
    pool = a_pool(components)
    assert (pool.allocate(), pool.free(0), pool.evict()) == ("mine", "again", "evicted")
    # both exercises in one class that does not say what it goes on with
    whole = SHARES.replace("(BlockPool)", "") + ALLOCATES.partition("\n")[2] + FREES
    pool = a_pool(in_parts(tmp_path, code(whole, FIRST)))
    assert (pool.allocate(), pool.share(0), pool.available) == ("mine", "shared", 3)


def test_some_methods_of_a_part_and_what_they_need(tmp_path):
    """Helpers, imports and changed given methods come along; what is open is the reference's in
    an engine, and open for the checks."""
    source = ("from bisect import bisect\nLIMIT = 7\n\nclass BlockPool(BlockPool):\n"
              "    def __init__(self, num_blocks, block_size):\n"
              "        super().__init__(num_blocks, block_size)\n"
              "        self.order = [LIMIT]\n\n"
              "    # why\n    def allocate(self, after=None):\n"
              "        return bisect(self.order, LIMIT)\n")
    components = in_parts(tmp_path, code(source, FIRST))
    component = components[FIRST_PATH]
    assert component.open_methods == ("free",) and component.fits_the_engine
    pool = a_pool(components)
    assert pool.allocate() == 1 and "    # why\n" in module_of(components, "kv_cache")["_text"]
    with pytest.raises(ValueError, match="not in use"):
        pool.free(0)
    namespace = dict(vars(kv_cache))
    exec(code_of("kv_cache", [component], list(components.values())).text, namespace)
    with pytest.raises(NotImplementedError, match="kv_cache.BlockPool.free: write"):
        namespace["BlockPool"](3, 2).free(0)


def test_an_engine_lists_the_parts_one_by_one(tmp_path):
    components = in_parts(tmp_path, code(ALLOCATES + FREES, FIRST),
                          code(f"1 / 0\n{SHARES}    LIMIT = 1 / 0\n", SECOND))
    gears = overlay.assemble(list(components.values()), tmp_path / "engine")
    listed = {gear.component.path: gear for gear in gears}
    assert listed[FIRST_PATH].is_learners and not listed[SECOND_PATH].is_learners
    assert "ZeroDivisionError" in listed[SECOND_PATH].why
    text = (tmp_path / "engine" / "gearworks" / "kv_cache.py").read_text(encoding="utf-8")
    assert "return 'mine'" in text and "return 'shared'" not in text


# --- notebooks that something has happened to -------------------------------------------------


def raw(*cells):
    return json.dumps({"cells": [code(SETUP), *cells], "metadata": {}, "nbformat": 4}, indent=1)


def old_format():
    cells = [{"cell_type": "code", "input": source.splitlines(True), "outputs": []}
             for source in (SETUP, GOOD)]
    return json.dumps({"worksheets": [{"cells": cells}], "nbformat": 3}).encode()


def with_cells(text, change):
    return json.dumps({"cells": change(json.loads(text)["cells"])}).encode()


UNHARMED = ("byte order mark", "nbformat 4.0", "lists of lines", "strange metadata",
            "raw line breaks in strings")
DAMAGED = {
    "byte order mark": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "utf-16": lambda text: text.encode("utf-16"),
    "utf-16 without a mark": lambda text: text.encode("utf-16-le"),
    "cp1252": lambda text: text.replace("NOTE", "\xfcber").encode("cp1252"),
    "nonsense bytes": lambda text: text.encode().replace(b"NOTE", b"\x81\xff"),
    "cut off after it": lambda text: text[:text.index("# END") + 12].encode(),
    "cut off in a later cell": lambda text: (
        text.rstrip("]}\n ") + ', {"cell_type": "code", "source": "x = ').encode(),
    "a merge conflict": lambda text: text.replace('"nbformat"',
                                                  '<<<<<<< HEAD\n "nbformat"').encode(),
    "raw line breaks in strings": lambda text: text.replace("# END\\n", "# END\n").encode(),
    "nbformat 3": lambda text: old_format(),
    "nbformat 4.0": lambda text: json.dumps(json.loads(text) | {"nbformat_minor": 0}).encode(),
    "things that are no cells": lambda text: with_cells(
        text, lambda cells: [1, None, [], {}, {"source": 5}, *cells]),
    "strange metadata": lambda text: with_cells(
        text, lambda cells: [cell | {"metadata": [1]} for cell in cells]),
    "lists of lines": lambda text: with_cells(
        text,
        lambda cells: [cell | {"source": cell["source"].splitlines(True)} for cell in cells])}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_files_are_read_and_noted(damage, tmp_path):
    text = raw(code(f"# NOTE\n{GOOD}\n# END\n", SILU), code("last = 1"))
    path = tmp_path / "97_gears.ipynb"
    path.write_bytes(DAMAGED[damage](text))
    notebook = read_notebooks(path)[0]
    components = {component.path: component
                  for component in find_components([GEARS], [notebook])}
    assert components["layers.silu"].state is State.FINISHED, notebook.notes
    assert the_learners(module_of(components, "layers")["silu"](ONE))
    assert bool(notebook.notes) == (damage not in UNHARMED)


@pytest.mark.parametrize("content",
                         [b"", b"{", b"[]", b"null", b"{}", b'{"cells": 3}', b'{"cells": []}',
                          b"\x00" * 99, b"[" * 99999, b"PK\x03\x04",
                          b'{"cells": [{"cell_type": "code", "', b"<html>Sign in</html>"])
def test_files_that_are_no_notebook_are_named(content, tmp_path):
    (tmp_path / "97_gears.ipynb").write_bytes(content)
    notebook = read_notebooks(tmp_path / "97_gears.ipynb")[0]
    assert notebook.notes and notebook.cells == ()


def test_hundred_megabytes_of_outputs(tmp_path):
    cell = code(GOOD, SILU) | {"outputs": [{"output_type": "stream", "name": "stdout",
                                            "text": "x" * 100_000_000}]}
    assert found(tmp_path, code(SETUP), cell)["layers.silu"].state is State.FINISHED


@settings(max_examples=60, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_file_raises(tmp_path, data):
    """Any bytes, and any damage to a real notebook."""
    text = raw(code(GOOD, SILU), *stubs().values()).encode()
    if data.draw(st.booleans()):
        content = data.draw(st.binary(max_size=200))
    else:
        start = data.draw(st.integers(0, len(text)))
        content = (text[:start] + data.draw(st.binary(max_size=9))
                   + text[start + data.draw(st.integers(0, 400)):])
    path = tmp_path / "97_gears.ipynb"
    path.write_bytes(content)
    components = find_components([GEARS], read_notebooks(path))
    for component in components:
        if component.statements:
            graft(component.module, [component], components)


def test_a_renamed_stripped_notebook_is_known_by_its_checks_or_its_names(tmp_path):
    other = a_chapter("96_other", exercise("accounting", "parameter_count"))
    cells = [code(SETUP), code(GOOD), code('check("layers.silu", silu)')]
    for written_cells in (cells, cells[:2]):
        path = written(tmp_path, *written_cells, name="final FINAL(2).ipynb")
        [notebook] = read_notebooks(path)
        components = {component.path: component
                      for component in find_components([other, GEARS], [notebook])}
        assert components["layers.silu"].state is State.FINISHED
        assert components["accounting.parameter_count"].state is State.NOT_STARTED


def test_copies_come_after_the_notebook_itself(tmp_path):
    written(tmp_path, code(SETUP), code("def silu(x):\n    return 'copy'", SILU),
            code("def softmax(x):\n    return 'copy'", "layers-softmax"),
            name="97_gears-Copy1.ipynb")
    written(tmp_path, code(SETUP), code(GOOD, SILU), stubs()["layers-softmax"])
    (tmp_path / ".hidden.ipynb").write_text("{", encoding="utf-8")
    notebooks = [each for path in notebook_paths([tmp_path]) for each in read_notebooks(path)]
    assert len(notebooks) == 2
    components = {component.path: component
                  for component in find_components([GEARS], notebooks)}
    assert the_learners(module_of(components, "layers")["silu"](ONE))
    assert "also in 97_gears-Copy1.ipynb, cell 2: not used" in components["layers.silu"].notes
    # nothing else has it
    assert components["layers.softmax"].notebook.name == "97_gears-Copy1.ipynb"


# --- whole engines ----------------------------------------------------------------------------


def assembled(tmp_path, chapter, notebook, folder="engine"):
    path = tmp_path / f"{chapter.stem}.ipynb"
    path.write_text(editions.to_text(notebook), encoding="utf-8")
    gears = overlay.assemble(find_components([chapter], read_notebooks(path)),
                             tmp_path / folder)
    return {gear.component.path: gear for gear in gears}


def content(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_solved_chapter_gives_the_reference_back(tmp_path, chapter, learner):
    """But for the comments; the same every time;
    and an untouched one gives exactly the reference."""
    gears = assembled(tmp_path, chapter, editions.solve(learner, editions.solutions(chapter)))
    assert all(gear.is_learners and gear.notes == () for gear in gears.values())
    for module in ("pipeline", "accounting"):
        text = (tmp_path / "engine" / "gearworks" / f"{module}.py").read_text(encoding="utf-8")
        assert ast.dump(ast.parse(text)) == ast.dump(module_source(module).tree)
        assert (text.startswith("# Assembled by")
                and "from 98_small.ipynb, cell" in text.split('"""')[0])
    before = content(tmp_path / "engine")
    assembled(tmp_path, chapter, editions.solve(learner, editions.solutions(chapter)))
    assert content(tmp_path / "engine") == before
    listed = json.loads(before["gears.json"])["gears"]
    assert (listed["pipeline.run_request"]
            == {"from": "learner", "notebook": "98_small.ipynb", "cell": 8})

    gears = assembled(tmp_path, chapter, learner)
    assert {gear.why for gear in gears.values()} == {"not started"}
    reference = {f"gearworks/{name}": data
                 for name, data in content(Path(gearworks.__file__).parent).items()
                 if "__pycache__" not in name}
    assert ({name: data for name, data in content(tmp_path / "engine").items()
             if name != "gears.json"} == reference)


@pytest.mark.parametrize(
    "damage, why",
    [("LIMIT = 1 / 0", "ZeroDivisionError"),
     ("import no_such_module as LIMIT", "No module named"),
     ("def spin():\n    while True:\n        pass\nLIMIT = spin()", "takes more than"),
     ("import os\nLIMIT = os.kill(os.getpid(), 9)", "ends the process"),
     ("import sys\ndef leave():\n    sys.exit(3)\nLIMIT = leave()", "SystemExit")])
def test_what_cannot_be_loaded_falls_back_alone(damage, why, tmp_path, chapter, learner,
                                                monkeypatch):
    monkeypatch.setattr(overlay, "LOADING_SECONDS", 10 if "takes" in why else 60)
    solved = editions.solutions(chapter)
    head, docstring, body = solved["accounting-parameter_count"].split('"""', 2)
    solved["accounting-parameter_count"] = f'{damage}\n{head}"""{docstring}"""\n    LIMIT{body}'
    gears = assembled(tmp_path, chapter, editions.solve(learner, solved))
    broken = gears["accounting.parameter_count"]
    assert not broken.is_learners and why in broken.why
    if "ends" not in why:                        # a process that has vanished cannot tell where
        assert gears["accounting.forward_flops"].is_learners
    assert gears["pipeline.run_request"].is_learners
    done = subprocess.run(
        [sys.executable, "-P", "-c", "import gearworks.accounting as a; print(a.__file__)"],
        capture_output=True, encoding="utf-8",
        env=os.environ | {"PYTHONPATH": overlay.engine_path(tmp_path / "engine")})
    assert done.stdout.strip().startswith(str((tmp_path / "engine").resolve())), done.stderr


def test_a_failed_assembly_leaves_the_old_engine(tmp_path, chapter, learner, monkeypatch):
    assembled(tmp_path, chapter, learner)
    before = content(tmp_path / "engine")
    monkeypatch.setattr(overlay, "_load",
                        lambda *arguments: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(GearworksError, match="disk full"):
        assembled(tmp_path, chapter, editions.solve(learner, editions.solutions(chapter)))
    assert content(tmp_path / "engine") == before
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_folder_of_something_else_is_never_replaced(tmp_path, chapter, learner):
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "thesis.txt").write_text("years", encoding="utf-8")
    with pytest.raises(GearworksError, match="would be lost"):
        assembled(tmp_path, chapter, learner)
    assert content(tmp_path / "engine") == {"thesis.txt": b"years"}


@pytest.fixture(scope="module")
def loud(tmp_path_factory, chapter, learner):
    """An engine whose loop is a learner's: it stops after three tokens, and shouts."""
    folder = tmp_path_factory.mktemp("loud")
    own = editions.solutions(chapter)["pipeline-run_request"]
    own = own.replace("decode(ids)", "shout(decode(ids))").replace("< max_tokens",
                                                                   "< min(3, max_tokens)")
    own += "\n\n\ndef shout(text):\n    return text.upper()\n\nprint('never at import')"
    assembled(folder, chapter, editions.solve(learner, {"pipeline-run_request": own}))
    return folder / "engine"


def test_generate_runs_the_learners_engine(loud):
    """The finish line: the real SmolLM2 through the learner's loop,
    and the reference beside it."""
    command = [sys.executable, "-m", "gearworks", "generate", "smollm2",
               "The capital of France is", "--json", "--max-tokens", "6"]
    plain = json.loads(subprocess.run(command, capture_output=True, encoding="utf-8",
                                      check=True).stdout)
    done = subprocess.run([*command, "--engine", str(loud)], capture_output=True,
                          encoding="utf-8")
    answer = json.loads(done.stdout)
    assert answer["ids"] == plain["ids"][:3] and answer["finish_reason"] == "length"
    assert (answer["text"].isupper() and plain["text"].upper().startswith(answer["text"])
            and not plain["text"].isupper())
    assert done.stderr.startswith("[yours: pipeline.run_request; the rest is the reference's]")

    chat = subprocess.run([sys.executable, "-m", "gearworks", "chat", f"--engine={loud}",
                           "--temperature", "0"], input="Hello\n", capture_output=True,
                          encoding="utf-8")
    assert chat.returncode == 0 and "[3 tokens" in chat.stderr


def test_an_engine_that_is_not_there_is_named(tmp_path):
    done = subprocess.run([sys.executable, "-m", "gearworks", "generate", "smollm2", "x",
                           "--engine", str(tmp_path)], capture_output=True, encoding="utf-8")
    assert (done.returncode == 1 and "there is no engine in" in done.stderr
            and "autograder assemble" in done.stderr)


def test_the_references_tests_run_against_an_engine(loud, tmp_path):
    """They pass where the engine is right and fail where it is wrong;
    without --engine they test the reference."""
    def run(*arguments):
        return subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
                               "solutions/tests/test_pipeline.py", *arguments],
                              capture_output=True, encoding="utf-8", cwd=REPOSITORY)

    done = run("--engine", str(loud))
    told = done.stdout + done.stderr
    assert done.returncode == 1 and " failed" in done.stdout and " passed" in done.stdout, told
    assert run().returncode == 0
    missing = run("--engine", str(tmp_path))
    assert missing.returncode == 4 and "there is no engine" in missing.stderr


def test_the_command_line(tmp_path, chapter, learner, capsys):
    (tmp_path / "book" / "chapters").mkdir(parents=True)
    (tmp_path / "book" / "chapters" / SMALL.name).write_bytes(SMALL.read_bytes())
    (tmp_path / "chapters").mkdir()
    own = "pipeline-run_request"
    damaged = editions.to_text(editions.solve(learner, {own: editions.solutions(chapter)[own]}))
    damaged = damaged[:damaged.index('"id": "accounting-parameter_count"')]
    (tmp_path / "chapters" / "mine.ipynb.txt").write_text(damaged, encoding="utf-8")
    arguments = ["assemble", str(tmp_path / "chapters"), "--to", str(tmp_path / "engine"),
                 "--root", str(tmp_path)]
    assert cli.main(arguments) == 0
    said = capsys.readouterr()
    assert ("1 of 3 parts are yours" in said.out
            and "yours      pipeline.run_request  (mine.ipynb.txt, cell" in said.out)
    assert ("mine.ipynb.txt: damaged or cut off" in said.out
            and "gearworks chat --engine" in said.err)
    assert cli.main(["assemble", str(tmp_path / "nowhere"), "--root", str(tmp_path)]) == 1
    assert "there is no" in capsys.readouterr().err
