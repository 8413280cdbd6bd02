"""The commands `gearworks quantize` and `gearworks quality`: their options, what they say."""

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path

from gearworks.cli import console
from gearworks.errors import FormatError, NotAvailableError, UsageError

# What needs NumPy is imported late: no other command has to wait for it

METHODS = ("int8", "int4", "gptq", "awq", "fp8", "mxfp4", "q8_0", "q4_0", "q4_1")
WAYS = "int8,fp8,int4:32,int4:64,gptq:32,awq:32,mxfp4,q8_0,q4_0,q4_1,kv-int8,kv-int4"


def add_quantize(command: console.Parser) -> None:
    """The options of `gearworks quantize`."""
    command.add_argument("--method", required=True, choices=METHODS, metavar="METHOD",
                         help=f"one of {', '.join(METHODS)}; the last three are GGUF's own")
    command.add_argument("--output", required=True, type=_place, metavar="PATH",
                         help="a new folder, or a file whose name ends in .gguf")
    command.add_argument("--group-size", type=console.positive_count, metavar="N",
                         help="weights that share a scale, for int4, gptq and awq (default 32)")
    _add_calibration(command)


def add_quality(command: console.Parser) -> None:
    """The options of `gearworks quality`."""
    command.add_argument("--methods", type=_ways, default=WAYS, metavar="LIST",
                         help="with commas between them, a group size behind a colon "
                              "(default %(default)s)")
    command.add_argument("--text", type=Path, metavar="FILE",
                         help="measure on this text (default: one that comes with gearworks)")
    command.add_argument("--tokens", type=_at_least_two, default=512, metavar="N",
                         help="so many of its tokens at most (default %(default)s)")
    _add_calibration(command)
    command.add_argument("--json", type=Path, metavar="FILE", help="save the table")
    command.add_argument("--plot", type=Path, metavar="FILE",
                         help="draw it, as an .svg or .png")


def _add_calibration(command: console.Parser) -> None:
    command.add_argument("--calibration", type=Path, metavar="FILE",
                         help="a text for gptq and awq to look at, like those that the model "
                              "will meet (default: one that comes with gearworks)")


def _place(argument: str) -> Path:
    if not argument:
        raise argparse.ArgumentTypeError("it is empty; the name of a new folder, or of a file "
                                         "that ends in .gguf")
    return Path(console.text(argument))


def _at_least_two(argument: str) -> int:
    return console.whole_number(argument, least=2)


def _ways(argument: str) -> list:
    from gearworks.quantization.quality import parse_way

    try:
        return [parse_way(way.strip()) for way in argument.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}; such as int4:64,gptq") from None


def quantize(options: argparse.Namespace) -> None:
    """Round a model and save it."""
    from gearworks.quantization.methods import GROUPED
    from gearworks.quantization.saving import (
        FOLDER_METHODS, GGUF_METHODS, require_free, save_folder, save_gguf)

    # What can be refused without the model is refused before it is looked for
    to_file = options.output.suffix == ".gguf"
    method, output = options.method, options.output
    if method not in (GGUF_METHODS if to_file else FOLDER_METHODS):
        raise UsageError(f"cannot save {method} to {output}",
                         "GGUF has no such type" if to_file
                         else "it is a type of GGUF files, which folders have not",
                         "a folder for --output" if to_file
                         else "a name that ends in .gguf for --output")
    if options.group_size is not None and method not in GROUPED:
        raise UsageError("cannot use this --group-size", f"{method} has one of its own",
                         "leave it out, or --method " + ", ".join(GROUPED))
    group_size = options.group_size or 32
    if options.group_size is not None and to_file and (method == "int4" or group_size % 32):
        raise UsageError("cannot use this --group-size",
                         "GGUF's types have blocks of 32",
                         "leave it out" if method == "int4" else "a multiple of 32")
    require_free(output)
    calibration = _read(options.calibration)
    with console.interrupts_raise():
        source, language_model = _load(options.model)
        inner, file_type = GGUF_METHODS[method] if to_file else (method, 0)
        rounded = _round(language_model, inner, group_size, calibration)
        with _bar("Saving", "tensors", _tensor_count(language_model)) as bar:
            if to_file:
                save_gguf(rounded, language_model, source, output, file_type, bar.update)
            else:
                save_folder(rounded, source, output, method, group_size, bar.update)
    size = sum(file.stat().st_size for file in ([output] if to_file else output.iterdir()))
    print(f"{output}  {size / 1e6:.1f} MB")


def quality(options: argparse.Namespace) -> None:
    """Print the table of a model and its rounded versions, line by line."""
    from gearworks.quantization.plot import plot, require_plot

    for path in (options.json, options.plot):
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise NotAvailableError(f"cannot save {path}",
                                    "it is a folder" if path.is_dir()
                                    else "its folder does not exist",
                                    "the name of a file in a folder that exists")
    if options.plot is not None:
        require_plot(options.plot)
    text, calibration = _read(options.text), _read(options.calibration)
    with console.interrupts_raise():
        rows, count = _measure(options, text, calibration)
    if options.json is not None:
        options.json.write_text(json.dumps(
            {"model": options.model, "tokens": count,
             "text": "gearworks" if options.text is None else options.text.name,
             "calibration": ("gearworks" if options.calibration is None
                             else options.calibration.name),
             "rows": [vars(row) for row in rows]}, indent=1) + "\n", encoding="utf-8")
    if options.plot is not None:
        plot(rows, f"{options.model}, {count} tokens", options.plot)


def _measure(options: argparse.Namespace, text: str | None,
             calibration: str | None) -> tuple[list, int]:
    import numpy as np

    from gearworks.quantization.quality import TEXTS, measure, table

    _, language_model = _load(options.model)
    encode = language_model.tokenizer.encode
    held = (TEXTS / "held.txt").read_text(encoding="utf-8") if text is None else text
    ids = np.array(encode(held)[:options.tokens])
    rows = []

    def progress(layers: Iterable, way: str) -> Iterable:
        return _bar(way, "layers", language_model.model.config.num_hidden_layers, layers)

    def shown() -> Iterable:
        for row in measure(language_model.model, options.methods, ids,
                           lambda: _texts(language_model, calibration), progress):
            rows.append(row)
            yield row
    for line in table(shown()):
        print(line, flush=True)
    return rows, len(ids)


def _round(language_model, method: str, group_size: int, calibration: str | None):
    from gearworks.quantization import calibration as calibrated
    from gearworks.quantization.methods import require_method, round_model

    model = language_model.model
    require_method(model, method, group_size)
    texts = _texts(language_model, calibration) if method in calibrated.METHODS else None
    return round_model(model, method, group_size, texts,
                       lambda layers: _bar(f"Quantizing by {method}", "layers",
                                           model.config.num_hidden_layers, layers))


def _texts(language_model, calibration: str | None):
    from gearworks.quantization.calibration import calibration_texts
    from gearworks.quantization.quality import TEXTS

    if calibration is None:
        calibration = (TEXTS / "calibration.txt").read_text(encoding="utf-8")
    length = min(256, language_model.model.config.max_position_embeddings)
    return calibration_texts(language_model.tokenizer.encode(calibration), length)


def _read(path: Path | None) -> str | None:
    """A text that is named by an option."""
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8-sig")     # editors on Windows put a mark in front
    except OSError as error:
        raise NotAvailableError(f"cannot read {path}", error.strerror or str(error),
                                "the name of a file that holds a text") from None
    except UnicodeDecodeError as error:
        raise FormatError(f"cannot read {path}", f"its byte {error.start} is no UTF-8",
                          "a text in UTF-8") from None


def _load(name: str):
    """Where a model is, and the model, with a progress bar on standard error."""
    from gearworks.hub import find_model
    from gearworks.language_model import LanguageModel

    path = find_model(name)
    return path, LanguageModel.load(
        path, lambda tensors: _bar("Loading", "tensors", None, tensors))


def _bar(title: str, unit: str, total: int | None, items: Iterable | None = None):
    from tqdm import tqdm

    return tqdm(items, desc=title, unit=f" {unit}", total=total, leave=False, disable=None,
                file=sys.stderr)


def _tensor_count(language_model) -> int:
    from gearworks.weights import expected_shapes

    return len(expected_shapes(language_model.model.config))
