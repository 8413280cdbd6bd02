"""What runs a model: the NumPy operators that the course is about, or something faster.

Every engine has the interface of `gearworks.model.Model` (config, new_cache, forward), so all
that stands above it stays as it is. An engine is named everywhere in the same way:

    numpy   float32 throughout; the code of chapters 3 to 6
    exact   compiled kernels over the weights in their own bits, activations in float32: what
            numpy says, but for the order of sums
    fast    as exact, with activations rounded to 8 bits before each product: other last digits,
            now and then another token
    torch   PyTorch, on the fastest device that it finds: bfloat16 or float16 on a GPU
    auto    exact for a quantized model where Numba is there, else numpy

In an engine that `autograder assemble` has put together, auto is numpy: it is there to run the
learner's operators.
"""

from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gearworks.errors import NotAvailableError, UsageError

if TYPE_CHECKING:                   # an engine is imported when it is asked for
    from gearworks.config import ModelConfig
    from gearworks.model import Model

Progress = Callable[[Iterable], Iterable]
Say = Callable[[str], None]
Loader = Callable[[Path, Progress, Say], Any]

ASSEMBLED = Path(__file__).parents[1] / "gears.json"


def load_model(path: Path, engine: str = "numpy", progress: Progress = iter,
               say: Say = lambda line: None) -> "Model":
    """Load a model for an engine.

    path: a GGUF file or a Hugging Face folder. progress: wraps the iteration over the tensors,
    as `tqdm` does. say: is told, in one line, what `auto` could not do, and what is done before
    the first step. Raises UsageError for an engine of another name, NotAvailableError where its
    package is missing, ModelError for a model that it does not run; else errors as
    `weights.load_checkpoint`.
    """
    if engine == "auto":
        engine = _best(path, say)
    if engine not in LOADERS:
        raise UsageError(f"there is no engine {engine!r:.80}",
                         f"engines are {', '.join(NAMES)}",
                         "--engine numpy, which runs every model")
    return LOADERS[engine](Path(path), progress, say)


def _best(path: Path, say: Say) -> str:
    """The engine that `auto` stands for."""
    from gearworks.weights import open_checkpoint

    if ASSEMBLED.exists():
        return "numpy"
    _, file = open_checkpoint(Path(path))
    in_codes = any(map(_in_codes, file.tensors.values()))
    file.close()
    if not in_codes:
        return "numpy"                      # float32 is what NumPy multiplies best
    try:
        _require_numba()
    except NotAvailableError as error:
        say(f"The NumPy engine runs this model: {error.why}.")
        return "numpy"
    return "exact"


def what_runs(config: "ModelConfig") -> dict[str, str | None]:
    """Of each engine, why it does not run a model of this configuration; None if it does.
    Nothing is loaded for it."""
    from gearworks.families.routes import runs

    missing = {name: f"{package} is missing" for name, package in NEEDED.items()
               if find_spec(package) is None}
    return {name: missing.get(name) if runs(ROUTE.get(name, name), config.architecture)
            else f"it does not run a {config.architecture}" for name in LOADERS}


def _in_codes(tensor: object) -> bool:
    """Whether a tensor of an open file is in codes that the kernels can take."""
    from gearworks.formats.gguf_codes import is_quantized
    from gearworks.formats.quantized import PackedExperts, PackedMatrix

    if isinstance(tensor, PackedExperts):
        tensor = tensor.expert(0)
    if not isinstance(tensor, PackedMatrix):
        return is_quantized(getattr(tensor, "type", None))
    row = tensor.codes(slice(0, 1))
    return row is not None and (row.group_size % 16 == 0 or row.scales.shape[1] == 1)


def _require_numba() -> None:
    try:
        import numba  # noqa: F401
    except ImportError as error:
        raise NotAvailableError("cannot run compiled kernels",
                                f"the compiled kernels need Numba, which is missing ({error})",
                                "pip install 'gearworks[fast]', or --engine numpy") from None


def _numpy(path: Path, progress: Progress, say: Say) -> "Model":
    from gearworks.model import Model
    from gearworks.weights import load_checkpoint

    return Model(*load_checkpoint(path, progress))


def _compiled(mode: str) -> Loader:
    def load(path: Path, progress: Progress, say: Say) -> "Model":
        _require_numba()
        from gearworks.kernels.cpu.model import CompiledModel

        model = CompiledModel.load(path, mode, progress=progress)
        model.warm_up(say)
        return model
    return load


def _torch(path: Path, progress: Progress, say: Say) -> "Model":
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise NotAvailableError("cannot run the torch engine", f"PyTorch is missing ({error})",
                                "pip install 'gearworks[truth]', or --engine numpy") from None
    from gearworks.kernels.torch_model import TorchModel

    model = TorchModel.load(path, progress=progress)
    kind = str(model.dtype).removeprefix("torch.")
    say(f"PyTorch computes on {model.device} in {kind}"
        + (", with Triton's kernels." if model.use_triton else "."))
    return model


LOADERS: dict[str, Loader] = {"numpy": _numpy, "exact": _compiled("exact"),
                              "fast": _compiled("fast"), "torch": _torch}
NAMES = ("auto", *LOADERS)
ROUTE = {"exact": "compiled", "fast": "compiled"}       # of `families.routes`, else as here
NEEDED = {"exact": "numba", "fast": "numba", "torch": "torch"}
