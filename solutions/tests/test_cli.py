"""The command line as a shell user meets it: real processes, exit codes, standard output and standard error."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest

GEARWORKS = [sys.executable, "-m", "gearworks"]


def run(*arguments, **more):
    return subprocess.run([*GEARWORKS, *arguments], capture_output=True, encoding="utf-8", timeout=120, **more)


@pytest.fixture(scope="module")
def tiny(tiny_llama, smollm2_folder):
    """The folder of a random model with SmolLM2's vocabulary, which is loaded in a moment."""
    _, folder = tiny_llama(3, vocab_size=49152)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(smollm2_folder / name, folder)
    return str(folder)


def test_generate_prints_the_text_and_nothing_else(smollm2):
    result = run("generate", "smollm2", "The capital of France is", "--max-tokens", "12")
    assert result.returncode == 0 and result.stderr == ""
    assert result.stdout == smollm2.generate("The capital of France is", max_tokens=12).text + "\n"


def test_generate_json_is_one_object(smollm2):
    result = run("generate", "smollm2", "Say hello.", "--chat", "--json", "--max-tokens", "20")
    answer = json.loads(result.stdout)
    expected = smollm2.chat([{"role": "user", "content": "Say hello."}], max_tokens=20)
    assert answer.keys() == {"prompt_ids", "ids", "text", "finish_reason", "usage", "seconds"}
    assert (answer["prompt_ids"], answer["ids"], answer["text"]) == (expected.prompt_ids, expected.ids, expected.text)
    assert answer["usage"] == expected.usage and answer["finish_reason"] == expected.finish_reason
    assert answer["seconds"]["prefill"] > 0 and answer["seconds"]["decode"] > 0


def test_generate_reads_standard_input_and_a_seed(smollm2_gguf):
    warm = ["generate", str(smollm2_gguf), "-", "--max-tokens", "8", "--temperature", "1.2", "--seed", "3",
            "--top-p", "0.9", "--top-k", "50"]
    first = run(*warm, input="深度学习是 😀\n")
    assert first.returncode == 0 and first.stdout.strip()
    assert run(*warm, input="深度学习是 😀\n").stdout == first.stdout
    assert run(*warm, input="Something else").stdout != first.stdout


@pytest.mark.parametrize("arguments, code, complaint", [
    ([], 2, "COMMAND"),
    (["generate"], 2, "MODEL"),
    (["generate", "smollm2", "x", "--max-tokens", "many"], 2, "--max-tokens"),
    (["unknown"], 2, "unknown"),
    (["generate", "no-such-model", "x"], 1, "no model 'no-such-model'"),
    (["generate", "smollm2", ""], 1, "prompt is empty"),
    (["generate", "smollm2", "x", "--temperature", "-1"], 1, "temperature is -1"),
    (["generate", "smollm2", "x", "--max-tokens", "-1"], 2, "--max-tokens"),
    (["generate", "smollm2", "x", "--temperature", "1e-45"], 1, "temperature is 1e-45"),
    (["generate", "x" * 5000, "x"], 1, "name too long" if os.name == "posix" else "x"),
    (["generate", "~nobody-of-this-name/model", "x"], 1, "~nobody-of-this-name"),
    (["bench", "--only", "load", "--json", os.path.join("no", "such", "folder.json")], 1, "folder does not exist"),
    (["generate", __file__, "x"], 1, "GGUF"),
    (["generate", os.path.dirname(__file__), "x"], 1, "tokenizer.json"),
    (["bench", "--only", "nothing"], 1, "nothing"),
], ids=lambda value: " ".join(map(os.path.basename, value))[:60] if isinstance(value, list) else None)
def test_failures_have_a_message_and_a_code(arguments, code, complaint):
    result = run(*arguments)
    assert result.returncode == code
    assert complaint in result.stderr and "Traceback" not in result.stderr and result.stdout == ""


def test_help_and_version():
    assert run("--version").stdout.startswith("gearworks ")
    for command in ([], ["generate"], ["chat"], ["bench"], ["fetch"]):
        result = run(*command, "--help")
        assert result.returncode == 0 and "usage: gearworks" in result.stdout


def test_chat_remembers_resets_and_ends():
    result = run("chat", "--temperature", "0", "--max-tokens", "40",
                 input="My name is Ada.\n\nWhat is my name?\n/reset\nWhat is 2+2?\n/quit\nnever read\n")
    assert result.returncode == 0, result.stderr
    answers = result.stdout.splitlines()
    assert "Ada" in result.stdout and len(answers) >= 3 and "> " not in result.stdout
    reports = [line for line in result.stderr.splitlines() if "tokens" in line and line.startswith("[")]
    assert len(reports) == 3
    cached = [int(report.split("; ")[-1].split(" of ")[0]) for report in reports]
    assert cached[0] == 0 and cached[1] > 30           # the second question found the first one's keys


def test_chat_at_the_end_of_input_and_without_a_template(tiny, tmp_path):
    assert run("chat", input="").returncode == 0
    shutil.copytree(tiny, tmp_path / "model")
    (tmp_path / "model" / "tokenizer_config.json").write_text("{}", encoding="utf-8")
    result = run("chat", str(tmp_path / "model"), input="hello\n")
    assert result.returncode == 1 and "no chat template" in result.stderr


@pytest.mark.skipif(os.name != "posix", reason="signals and pipes as POSIX has them")
def test_interrupts_and_closed_pipes():
    process = subprocess.Popen([*GEARWORKS, "generate", "smollm2", "Count: 1, 2, 3, 4,", "--max-tokens", "2000"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8")
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 130 and "Traceback" not in error

    process = subprocess.Popen([*GEARWORKS, "generate", "smollm2", "Count: 1, 2, 3, 4,", "--max-tokens", "2000"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8")
    process.stdout.read(1)
    process.stdout.close()
    started = time.monotonic()
    error = process.stderr.read()
    assert process.wait(timeout=30) == 1 and "Traceback" not in error and "Exception ignored" not in error
    assert time.monotonic() - started < 20             # the client is gone, so the engine stops


@pytest.mark.skipif(os.name != "posix", reason="streams are closed by a POSIX shell")
@pytest.mark.parametrize("command, code, says", [
    ("{} --version >&-", 0, ""),
    ("{} generate {} hi --max-tokens 2 2>&-", 0, ""),
    ("{} generate {} - <&-", 1, "prompt is empty"),
    ("{} chat {} <&-", 0, "Type a message"),
    ("{} generate {} hi --max-tokens 2 >/dev/full", 1, "could not be written"),
    ("printf '\\377\\376\\n/quit\\n' | {} chat {} --max-tokens 2", 0, "tokens"),
])
def test_closed_full_and_binary_streams(command, code, says, tiny):
    command = command.format(shlex.join(GEARWORKS), shlex.quote(tiny))
    result = subprocess.run(["sh", "-c", command], capture_output=True, encoding="utf-8",
                            timeout=120)
    assert result.returncode == code and says in result.stderr and "Traceback" not in result.stderr


def test_output_on_a_console_without_unicode():
    """An ASCII-only terminal gets a question mark for what it cannot show, not a crash."""
    result = subprocess.run([*GEARWORKS, "generate", "smollm2", "深度学习是", "--max-tokens", "8"], capture_output=True,
                            env=os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}, timeout=120)
    assert result.returncode == 0 and b"?" in result.stdout and b"Traceback" not in result.stderr


def test_generate_stops_before_a_text_and_follows_a_schema(smollm2_folder, tmp_path):
    counted = run("generate", str(smollm2_folder), "1, 2, 3, 4, 5,", "--max-tokens", "30", "--stop", " 8", "--stop", "never")
    assert counted.returncode == 0 and counted.stdout == " 6, 7,\n"
    line = run("generate", str(smollm2_folder), "Name three gears, a line for each.", "--chat", "--stop", r"\n")
    assert line.returncode == 0 and line.stdout.count("\n") == 1
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object", "properties": {"sky": {"enum": ["blue", "green"]}}, "required": ["sky"], '
                      '"additionalProperties": false}', encoding="utf-8")
    answer = run("generate", str(smollm2_folder), "What colour is the sky?", "--chat", "--schema", str(schema))
    assert answer.returncode == 0 and json.loads(answer.stdout)["sky"] in ("blue", "green")


def test_json_that_a_limit_cuts_off_is_no_success(tiny, tmp_path):
    schema = tmp_path / "schema.json"
    schema.write_text('{"const": "a long text, of more than three tokens"}', encoding="utf-8")
    asked = "generate", tiny, "x", "--schema", str(schema), "--max-tokens", "3"
    cut = run(*asked)
    assert cut.returncode == 1 and cut.stdout.startswith('"a') and "cut off after 3 tokens" in cut.stderr
    told = run(*asked, "--json")
    assert told.returncode == 0 and json.loads(told.stdout)["finish_reason"] == "length"


@pytest.mark.parametrize("content, complaint", [
    (b"{", "cannot read the schema"), (None, "cannot read the schema"), (b"\xff\xfe", "cannot read the schema"),
    (b"[" * 100_000, "cannot read the schema"), (b"3", "cannot use this JSON schema"),
    (b'{"type": "integer", "minimum": 2, "maximum": 1}', "minimum (2) is greater than maximum (1)"),
], ids=["cut-off", "missing", "not-utf-8", "too-deep", "a-number", "unsatisfiable"])
def test_schemas_that_cannot_be_used(tiny, tmp_path, content, complaint):
    schema = tmp_path / "schema.json"
    if content is not None:
        schema.write_bytes(content)
    broken = run("generate", tiny, "x", "--schema", str(schema))
    assert broken.returncode == 1 and complaint in broken.stderr and broken.stdout == ""
    assert "Traceback" not in broken.stderr


def test_a_schema_file_may_begin_with_a_byte_order_mark(smollm2_folder, tmp_path):
    schema = tmp_path / "schema.json"
    schema.write_text('{"const": "ü"}', encoding="utf-8-sig")
    assert json.loads(run("generate", str(smollm2_folder), "x", "--schema", str(schema)).stdout) == "ü"


@pytest.mark.parametrize("flag, value", [
    ("--top-k", "-5"), ("--top-p", "nan"), ("--min-p", "7"), ("--presence-penalty", "inf"), ("--seed", "-1")])
def test_settings_that_make_no_sense_are_told_before_a_model_is_looked_for(flag, value):
    result = run("generate", "no-such-model", "x", flag, value)
    name = flag.removeprefix("--").replace("-", "_")
    assert result.returncode == 1 and f"Why  {name} is {float(value):g}" in result.stderr.replace(".0\n", "\n")
