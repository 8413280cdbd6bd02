"""The command `gearworks`.

Answers go to standard output, everything about them to standard error. Exit codes: 0 done, 1 a
failure with a message that says what to try, 2 wrong usage, 130 interrupted.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from gearworks import __version__
from gearworks.backends import NAMES
from gearworks.cli import (
    chat, console, generate, inspect, load, profile, quantize, serve)
from gearworks.errors import GearworksError, NotAvailableError, UsageError

MODEL_HELP = ("smollm2, the path of a GGUF file or of a Hugging Face folder, or an id on the "
              "Hugging Face Hub")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    return console.run("gearworks",
                       lambda: _main(sys.argv[1:] if arguments is None else arguments))


def _main(arguments: Sequence[str]) -> int | None:
    options = _parser().read(arguments)
    engine = getattr(options, "engine", None)
    if engine is not None and not _runs_in(engine):
        return _run_in(engine, arguments)
    return options.run(options)


def _parser() -> console.Parser:
    parser = console.Parser(prog="gearworks",
                            description="An LLM inference engine that you can read.")
    parser.add_argument("--version", action="version", version=f"gearworks {__version__}")

    command = parser.add_command("generate", "continue a prompt", "Continue a prompt.")
    command.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    _add_engine(command)
    generate.add_options(command)
    command.set_defaults(run=lambda options: generate.run(options, _load))

    command = parser.add_command("chat", "talk with a model", "Talk with a model.")
    command.add_argument("model", metavar="MODEL", nargs="?", default="smollm2",
                         help=MODEL_HELP)
    _add_engine(command)
    chat.add_options(command)
    command.set_defaults(run=lambda options: chat.run(options, _load))

    command = parser.add_command(
        "serve", "serve a model through an OpenAI-compatible API",
        "Serve a model through an OpenAI-compatible API. When it is ready it prints one line, "
        "with its address.")
    command.add_argument("model", metavar="MODEL", nargs="?", default="smollm2",
                         help=MODEL_HELP)
    _add_engine(command)
    serve.add_options(command)
    command.set_defaults(run=_serve)

    command = parser.add_command("bench", "measure this engine beside Hugging Face's",
                                 "Measure this engine beside Hugging Face's, in one run.")
    command.add_argument("--json", type=Path, metavar="FILE", help="where to save the figures")
    command.add_argument("--only", metavar="NAME", action="append",
                         help="decode, prefill, sampling, speculation, load, tokenizer, "
                              "memory, batching, sharing or race; may be repeated")
    command.add_argument("--publish", action="store_true",
                         help="replace the repository's results.json and the README's table")
    command.add_argument("--threads", type=console.count,
                         help="threads for both engines; by default one for each core")
    command.set_defaults(run=_bench)

    command = parser.add_command(
        "profile", "show where the time of a step goes",
        "Show where the time of a step goes: each operator's, with the bytes and FLOPs that it "
        "cannot do without, beside what this machine allows. A decoding step, one of a batch, "
        "and a prefill.")
    command.add_argument("model", metavar="MODEL", nargs="?", default="smollm2",
                         help=MODEL_HELP)
    _add_engine(command)
    profile.add_options(command)
    command.set_defaults(run=profile.run)

    command = parser.add_command(
        "compare", "find the first place where this engine and Hugging Face's part",
        "Run this engine and Hugging Face's side by side, and show the first layer, operator, "
        "position and head that differ. The exit code is 1 when one does.")
    command.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    command.add_argument("--prompt", metavar="TEXT", type=_prompt,
                         help="the text that both run over "
                              "(default: a short one, or random ids without a tokenizer)")
    command.add_argument("--tolerance", type=console.number_above_0, default=1e-4, metavar="E",
                         help="relative to the largest number in each array "
                              "(default %(default)s)")
    command.add_argument("--json", action="store_true",
                         help="print one JSON object instead of the table")
    _add_engine(command, backends=False)
    command.set_defaults(run=_compare)

    command = parser.add_command(
        "quantize", "save a model in fewer bits",
        "Save a model in fewer bits: as a folder in a published layout, or as a GGUF "
        "file. This engine loads both, and so do programs that know the layout.")
    command.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    _add_engine(command, backends=False)
    quantize.add_quantize(command)
    command.set_defaults(run=quantize.quantize)

    command = parser.add_command(
        "quality", "measure what fewer bits cost",
        "Run a text through a model and through its rounded versions, and compare what they "
        "say comes next: perplexity, KL divergence, and how often the likeliest token is the "
        "same.")
    command.add_argument("model", metavar="MODEL", nargs="?", default="smollm2",
                         help=MODEL_HELP)
    _add_engine(command, backends=False)
    quantize.add_quality(command)
    command.set_defaults(run=quantize.quality)

    load.add_load(parser)

    command = parser.add_command(
        "inspect", "show what is in a model's files",
        "Show what is in a model's files, settings, tensors and sizes, and what this engine "
        "would make of it. No weight is read.")
    command.add_argument("model", metavar="MODEL",
                         help=f"{MODEL_HELP}; or a single file of weights")
    inspect.add_options(command)
    command.set_defaults(run=inspect.run)

    command = parser.add_command("fetch", "get a model ready for use",
                                 "Get a model ready for use.")
    command.add_argument("model", metavar="MODEL", nargs="?", default="smollm2",
                         help=MODEL_HELP)
    command.set_defaults(run=_fetch)
    return parser


class _Engine(argparse.Action):
    """Tells what runs a model from whose operators do: a name, or the folder of an engine."""

    def __call__(self, parser, options, value, name=None) -> None:
        if value in NAMES:
            options.backend = value
        else:
            options.engine = Path(value)


def _add_engine(command: argparse.ArgumentParser, backends: bool = True) -> None:
    own = "an engine of your own gears, the folder that `autograder assemble` made"
    if not backends:
        command.add_argument("--engine", type=Path, metavar="FOLDER", help=f"run {own}")
        return
    command.set_defaults(engine=None, backend="auto")
    command.add_argument("--engine", action=_Engine, metavar="ENGINE",
                         default=argparse.SUPPRESS,
                         help=f"what runs the model: {', '.join(NAMES)} (default auto: exact "
                              f"where it can run, else numpy); or {own}; may be given twice, "
                              "for both")


def _runs_in(engine: Path) -> bool:
    return Path(__file__).resolve().parents[2] == engine.resolve()


def _run_in(engine: Path, arguments: Sequence[str]) -> int:
    """Run a command where that engine is found first; returns its exit code, if at all."""
    try:
        gears = json.loads((engine / "gears.json").read_text(encoding="utf-8"))["gears"]
        own = [name for name, gear in gears.items() if gear["from"] == "learner"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise NotAvailableError(f"there is no engine in {engine}",
                                "no gears.json is there that can be read",
                                f"autograder assemble chapters --to {engine}") from None
    if os.environ.get("GEARWORKS_ENGINE") == str(engine.resolve()):
        raise NotAvailableError(f"cannot run the engine in {engine}",
                                f"this Python prefers {Path(__file__).parents[1]}",
                                "unset PYTHONPATH, and run it again")
    print(f"[yours: {', '.join(own)}; the rest is the reference's]" if own
          else "[all of it is the reference's]", file=sys.stderr, flush=True)
    paths = [str(engine.resolve()), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths),
                                "GEARWORKS_ENGINE": str(engine.resolve())}
    command = [sys.executable, "-P", "-m", "gearworks", *arguments]
    if os.name != "nt":
        os.execve(command[0], command, environment)
    import subprocess                                       # Windows has no exec

    with console.interrupts_raise():
        process = subprocess.Popen(command, env=environment)
        while True:                                         # deaf to Ctrl-C, which both get
            try:
                return process.wait()
            except KeyboardInterrupt:
                continue


def _prompt(argument: str) -> str:
    """An argument that a model can continue."""
    if not argument:
        raise argparse.ArgumentTypeError("the prompt is empty; some text, or no --prompt")
    return console.text(argument)


def _load(name: str, chat: bool, backend: str):
    """Find and load a model, with a progress bar on standard error.
    chat: if it is to chat; backend: what runs it, as `backends` names it."""
    from gearworks.hub import find_model
    from gearworks.language_model import LanguageModel

    with console.interrupts_raise():                        # it may have to be fetched
        path = find_model(name)

    def bar(tensors: Iterable) -> Iterable:
        if not sys.stderr.isatty():
            return tensors
        from tqdm import tqdm
        return tqdm(tensors, desc="Loading", unit=" tensors", leave=False)
    return LanguageModel.load(path, bar, chat, backend,
                              lambda line: print(line, file=sys.stderr, flush=True))


def _serve(options: argparse.Namespace) -> int:
    return serve.serve(options, lambda: _load(options.model, False, options.backend))


def _bench(options: argparse.Namespace) -> None:
    if options.publish and options.only:
        raise UsageError("cannot publish",
                         "the published table holds all measurements, and --only asks for some",
                         "leave out --publish or --only")
    # Beside the package; of an assembled engine, beside the reference, later on the path
    places = [Path(folder) / "benchmarks"
              for folder in (Path(__file__).resolve().parents[2], *sys.path)]
    benchmarks = next((place for place in places if (place / "bench.py").is_file()), None)
    if benchmarks is None:
        raise GearworksError("cannot measure",
                             "the benchmarks are part of the repository, not of the package",
                             "run this from a checkout of the course")
    sys.path.insert(0, str(benchmarks))
    try:
        import bench
    except ImportError as error:
        raise NotAvailableError("cannot measure", f"a package is missing: {error}",
                                "python -m pip install -r requirements.txt") from None
    with console.interrupts_raise():
        bench.run(only=options.only, json_path=options.json, threads=options.threads,
                  publish=options.publish)


def _compare(options: argparse.Namespace) -> None:
    from gearworks.comparison.compare import require_hf

    require_hf()
    with console.interrupts_raise():
        _run_side_by_side(options)


def _run_side_by_side(options: argparse.Namespace) -> None:
    import tempfile
    from dataclasses import asdict

    from tqdm import tqdm

    from gearworks.comparison.compare import compare, load_hf
    from gearworks.hub import find_model
    from gearworks.hub.convert import convert_gguf

    path = find_model(options.model)
    # Windows keeps what is still mapped
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        folder = path
        if path.is_file():                 # transformers would take minutes to open a GGUF file
            folder = Path(scratch) / "model"
            with tqdm(desc="Converting for Hugging Face", unit=" tensors", leave=False,
                      disable=None) as bar:
                convert_gguf(path, folder, on_tensor=bar.update)
        model, ids = _model_and_ids(path, options.prompt)
        found = compare(model, load_hf(folder), ids, options.tolerance)
    if options.json:
        divergence = None if found.divergence is None else asdict(found.divergence)
        print(json.dumps(_finite({"tokens": found.tokens, "largest_errors": found.errors,
                                  "divergence": divergence})))
    else:
        print(f"Largest difference of each operator, over all layers and {found.tokens} "
              "tokens, relative to its array:")
        print(found.table())
    if found.divergence is not None:
        raise GearworksError("this engine and Hugging Face's part", str(found.divergence),
                             "what comes before it in a layer agrees: look at what makes this "
                             "one")
    print(f"No operator differs by more than {options.tolerance:g}.", file=sys.stderr)


def _model_and_ids(path: Path, prompt: str | None):
    """A model, and ids for it to run over: the prompt's, or random ones without a tokenizer."""
    import random

    from gearworks.language_model import LanguageModel
    from gearworks.model import Model

    if prompt is None and path.is_dir() and not (path / "tokenizer.json").exists():
        model = Model.load(path)
        ids = random.Random(0).choices(range(model.config.vocab_size),
                                       k=min(24, model.config.max_position_embeddings))
        print(f"There is no tokenizer.json, so both run over {len(ids)} random ids.",
              file=sys.stderr)
        return model, ids
    ours = LanguageModel.load(path)
    if prompt is None:
        prompt = "The engine is made of gears, and each of them was tested alone."
    ids = ours.tokenizer.encode(prompt)
    limit = ours.model.config.max_position_embeddings
    if not ids:
        raise GearworksError("cannot compare", "the prompt has no tokens in this vocabulary",
                             "give another --prompt")
    if len(ids) > limit:
        raise GearworksError("cannot compare",
                             f"the prompt has {len(ids)} tokens, and the context {limit}",
                             "give a shorter --prompt")
    return ours.model, ids


def _finite(value):
    """A value for JSON, which knows neither nan nor infinity: null stands for them."""
    import math

    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _fetch(options: argparse.Namespace) -> None:
    from gearworks.hub import find_model

    with console.interrupts_raise():
        print(find_model(options.model))
