"""`gearworks inspect`: what is in a model's files, and what the engine would make of it."""

import argparse
import json
import math
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from gearworks.cli import console
from gearworks.errors import GearworksError, ModelError

if TYPE_CHECKING:                   # what needs NumPy is imported late
    from gearworks.inspection.contents import Contents, StoredTensor
    from gearworks.inspection.verdict import Verdict

LONGEST = 16                        # items of a list that are shown whole
WIDTH = 70                          # characters of a value


def add_options(command: console.Parser) -> None:
    """The options of the command."""
    command.add_argument("--all", action="store_true",
                         help="a line for each tensor; without it, tensors that differ by the "
                              "number of their layer or expert only share one")
    command.add_argument("--json", action="store_true",
                         help="print one JSON object instead of the tables, with each tensor; "
                              f"of lists of more than {LONGEST} items the first ones")


def run(options: argparse.Namespace) -> None:
    """Print what is in a model's files."""
    from gearworks.hub import find_model
    from gearworks.inspection.contents import read_contents

    with console.interrupts_raise():                        # it may have to be fetched
        path = find_model(options.model)
    contents = read_contents(path)
    verdict = _verdict(contents)
    if options.json:
        print(json.dumps(_as_json(contents, verdict), ensure_ascii=False))
    else:
        print("\n".join(_table(contents, verdict, options.all)))


def _verdict(contents: "Contents") -> "Verdict | GearworksError":
    from gearworks.inspection.verdict import judge

    path = contents.path
    if path.is_file() and not contents.format.startswith("GGUF"):
        path = path.parent
        if not (path / "config.json").is_file():
            return ModelError("this file alone is no model",
                              "there is no config.json beside it, which says how it computes",
                              "fetch the whole folder of the model")
    try:
        return judge(path)
    except GearworksError as error:
        return error


# --- as JSON ----------------------------------------------------------------------------------

def _as_json(contents: "Contents", verdict: "Verdict | GearworksError") -> dict[str, Any]:
    return {
        "path": str(contents.path), "format": contents.format, "files": dict(contents.files),
        "metadata": _plain(contents.metadata),
        "tensors": [{"name": tensor.name, "type": tensor.type, "shape": list(tensor.shape),
                     "bytes": tensor.nbytes} for tensor in contents.tensors],
        "totals": {"tensors": len(contents.tensors), "values": contents.values,
                   "bytes": contents.nbytes,
                   "by_type": {type: {"tensors": count, "bytes": size}
                               for type, (count, size) in contents.by_type().items()}},
        "engine": _verdict_as_json(verdict)}


def _verdict_as_json(verdict: "Verdict | GearworksError") -> dict[str, Any]:
    from dataclasses import asdict

    if isinstance(verdict, GearworksError):
        return {"runs": False, "what": verdict.what, "why": verdict.why, "try": verdict.hint}
    return {"runs": True} | asdict(verdict)


def _plain(value: Any) -> Any:
    """A value of a file's metadata for JSON, which knows no arrays, nan or infinity."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, (str, int, float)) or value is None:
        return value
    if len(value) > LONGEST:
        return {"items": len(value), "first": [_plain(item) for item in _items(value)]}
    return [_plain(item) for item in _items(value)]


def _items(values: Any, count: int = LONGEST) -> list:
    """The first items of a list, or of an array of NumPy's."""
    first = values[:count]
    return first if isinstance(first, list) else first.tolist()


# --- as tables --------------------------------------------------------------------------------

def _table(contents: "Contents", verdict: "Verdict | GearworksError",
           each: bool) -> Iterator[str]:
    size = sum(contents.files.values())
    files = f"{len(contents.files)} files, " if len(contents.files) > 1 else ""
    yield f"{contents.path}: {contents.format}, {files}{_bytes(size)}"
    if contents.metadata:
        yield "\nSettings"
        yield from _aligned((f"  {_shown(key)}", _brief(value))
                            for key, value in contents.metadata.items())
    yield f"\nTensors: {len(contents.tensors)}, {contents.values:,} values"
    rows = [(f"  {_shown(name)}", f"{count} ×" if count > 1 else "", tensor.type,
             " × ".join(map(str, tensor.shape)), _bytes(tensor.nbytes * count))
            for name, count, tensor in _grouped(contents.tensors, each)]
    yield from _aligned(rows)
    yield "\nTypes"
    yield from _aligned((f"  {type}", f"{count} tensors", _bytes(nbytes))
                        for type, (count, nbytes) in contents.by_type().items())
    yield "\nWhat this engine makes of it"
    yield from _aligned((f"  {name}", value) for name, value in _judged(verdict))


def _grouped(tensors: "Iterable[StoredTensor]",
             each: bool) -> "list[tuple[str, int, StoredTensor]]":
    """Tensors alike but for a number in their names, as one line: name, how many, the first."""
    groups: dict[tuple, list] = {}
    for tensor in tensors:
        name = tensor.name if each else re.sub(r"\.\d+(?=\.)", ".*", tensor.name)
        groups.setdefault((name, tensor.type, tensor.shape), []).append(tensor)
    return [(members[0].name if len(members) == 1 else name, len(members), members[0])
            for (name, *_), members in groups.items()]


def _judged(verdict: "Verdict | GearworksError") -> Iterator[tuple[str, str]]:
    if isinstance(verdict, GearworksError):
        yield "refused", _shown(verdict.what)
        yield "why", _shown(verdict.why)
        yield "try", _shown(verdict.hint)
        return
    config = verdict.config
    yield "family", config.architecture
    yield "shape", (f"{config.num_hidden_layers} layers, hidden size {config.hidden_size}, "
                    f"{config.num_attention_heads} query and {config.num_key_value_heads} "
                    f"key/value heads, vocabulary {config.vocab_size}")
    if config.experts is not None:
        experts = config.experts
        yield "experts", (f"{experts.num_experts} in {sum(experts.sparse_layers)} layers, "
                          f"{experts.num_experts_per_tok} for a token")
    yield "parameters", (f"{verdict.parameters:,}"
                         + (", head and embedding tied" if config.tie_word_embeddings else ""))
    yield "memory", f"{_bytes(4 * verdict.parameters)} of weights in float32"
    yield "context", (f"{config.max_position_embeddings:,} tokens; a token takes "
                      f"{_bytes(verdict.cache_bytes)} of cache, all of them "
                      f"{_bytes(verdict.cache_bytes * config.max_position_embeddings)}")
    rope = [f"scaled: {config.rope_scaling.kind}" if config.rope_scaling else "",
            f"{config.rotary_dim} of a head's {config.head_dim} elements turn"
            if config.rotary_dim is not None else "",
            f"no turn in {config.rope_layers.count(False)} of {config.num_hidden_layers} layers"
            if config.rope_layers else ""]
    if any(rope):
        yield "RoPE", "; ".join(filter(None, rope))
    if config.windows:
        windows = [window for window in config.windows if window is not None]
        yield "window", (f"{windows[0]} tokens in {len(windows)} of "
                         f"{config.num_hidden_layers} layers")
    yield "text", (f"{verdict.tokenizer:,} tokens" if verdict.no_text is None
                   else f"runs from ids only: {_shown(verdict.no_text)}")
    if verdict.no_text is None:
        yield "chat", "a template" if verdict.has_template else "no template"
    for name, why in verdict.engines.items():
        yield f"--engine {name}", "runs it" if why is None else why


def _aligned(rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Rows with their columns below each other."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()


def _brief(value: Any) -> str:
    """A value of the metadata in a line."""
    if isinstance(value, (str, int, float, dict)) or value is None:
        return _shortened(_shown(str(value)))
    shown = ", ".join(_shown(str(item)) for item in _items(value))
    return _shortened(f"{len(value):,} items: {shown}" if len(value) else "no items")


def _shortened(text: str) -> str:
    return text if len(text) <= WIDTH else text[:WIDTH - 2] + " …"


def _shown(text: str) -> str:
    """A text from a file, so that it cannot steer a terminal."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def _bytes(count: int) -> str:
    """A size, as people say it.

    >>> _bytes(812), _bytes(98_362_432), _bytes(4_700_000_000)
    ('812 bytes', '98.4 MB', '4.7 GB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
