"""The command line as a shell user meets it:
real processes, exit codes, standard output and standard error."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from gearworks import hub
from gearworks.beam import beam_search
from gearworks.cli import chat
from gearworks.cli import commands as cli
from gearworks.cli.sampling import OTHERS
from gearworks.contrastive import contrastive_search
from gearworks.language_model import LanguageModel, gguf_recommended

GEARWORKS = [sys.executable, "-m", "gearworks"]


def run(*arguments, **more):
    return subprocess.run([*GEARWORKS, *arguments], capture_output=True, encoding="utf-8",
                          timeout=120, **more)


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
    assert (result.stdout
            == smollm2.generate("The capital of France is", max_tokens=12).text + "\n")


def test_generate_json_is_one_object(smollm2):
    result = run("generate", "smollm2", "Say hello.", "--chat", "--json", "--max-tokens", "20")
    answer = json.loads(result.stdout)
    expected = smollm2.chat([{"role": "user", "content": "Say hello."}], max_tokens=20)
    assert answer.keys() == {"prompt_ids", "ids", "text", "finish_reason", "usage", "seconds"}
    assert ((answer["prompt_ids"], answer["ids"], answer["text"])
            == (expected.prompt_ids, expected.ids, expected.text))
    assert (answer["usage"] == expected.usage
            and answer["finish_reason"] == expected.finish_reason)
    assert answer["seconds"]["prefill"] > 0 and answer["seconds"]["decode"] > 0


def test_generate_reads_standard_input_and_a_seed(smollm2_gguf):
    warm = ["generate", str(smollm2_gguf), "-", "--max-tokens", "8", "--temperature", "1.2",
            "--seed", "3", "--top-p", "0.9", "--top-k", "50"]
    first = run(*warm, input="深度学习是 😀\n")
    assert first.returncode == 0 and first.stdout.strip()
    assert run(*warm, input="深度学习是 😀\n").stdout == first.stdout
    assert run(*warm, input="Something else").stdout != first.stdout


@pytest.mark.parametrize(
    "arguments, code, complaint",
    [(["generate", "no-such-model", "x"], 1, "no model 'no-such-model'"),
     (["generate", "x" * 5000, "x"], 1, "name too long" if os.name == "posix" else "x"),
     (["generate", "~nobody-of-this-name/model", "x"], 1, "~nobody-of-this-name"),
     (["bench", "--only", "load", "--json", os.path.join("no", "such", "folder.json")], 1,
      "folder does not exist"), (["generate", __file__, "x"], 1, "GGUF"),
     (["generate", os.path.dirname(__file__), "x"], 1, "config.json"),
     (["bench", "--only", "nothing"], 1, "nothing")],
    ids=lambda value: " ".join(map(os.path.basename,
                                   value))[:60] if isinstance(value, list) else None)
def test_failures_have_a_message_and_a_code(arguments, code, complaint):
    result = run(*arguments)
    assert result.returncode == code
    assert (complaint in result.stderr and "Traceback" not in result.stderr
            and result.stdout == "")


@pytest.fixture
def no_model(monkeypatch):
    """In this process, commands that look for a model fail the test."""
    def reached(*_, **__):
        raise AssertionError("a model is looked for before the command is refused")
    monkeypatch.setattr(hub, "find_model", reached)
    monkeypatch.setattr(LanguageModel, "load", reached)


BAD_TEXT = "caf\udce9"                                  # so Python shows what is no UTF-8
SAMPLING = [
    ("--temperature", "-1", 1), ("--temperature", "1e-45", 1), ("--temperature", "warm", 2),
    ("--top-k", "-5", 1), ("--top-k", "1.5", 2), ("--top-p", "nan", 1), ("--top-p", "0", 1),
    ("--min-p", "7", 1), ("--min-p", "x", 2),
    ("--repetition-penalty", "0", 1), ("--repetition-penalty", "", 2),
    ("--presence-penalty", "inf", 1), ("--presence-penalty", "much", 2),
    ("--frequency-penalty", "nan", 1), ("--frequency-penalty", "-", 2),
    ("--seed", "-1", 1), ("--seed", "x", 2),
    ("--max-tokens", "-3", 2), ("--max-tokens", "many", 2), ("--max-tokens", "9" * 5000, 2),
    ("--stop", "", 2), ("--stop", BAD_TEXT, 2), ("--dry-sequence-breaker", BAD_TEXT, 2),
    *((f"--{name.replace('_', '-')}", "x", 2) for name, *_ in OTHERS)]

GENERATE = [
    (["x", "--prompt-file", "y"], 2, "PROMPT and --prompt-file say what to continue"),
    (["x", "--batch", "y"], 2, "PROMPT and --batch"),
    (["--prompt-file", "no-such-file"], 1, "cannot read the prompt no-such-file"),
    (["--batch", os.path.dirname(__file__)], 1, "cannot read the prompt"),
    (["--batch", os.devnull], 1, "prompt is empty"),
    (["x", "--system", "y"], 2, "--chat"), (["x", "--system", BAD_TEXT], 2, "--system"),
    (["x", "--logprobs", "-1"], 2, "--logprobs"), (["x", "--beams", "0"], 2, "--beams"),
    (["x", "--length-penalty", "2"], 2, "it belongs to --beams"),
    (["x", "--beams", "2", "--length-penalty", "long"], 2, "--length-penalty"),
    (["x", "--candidates", "2"], 2, "it belongs to --contrastive"),
    (["x", "--contrastive", "0.6", "--candidates", "0"], 2, "--candidates"),
    (["x", "--contrastive", "1.1"], 2, "not between 0 and 1"),
    (["x", "--contrastive", "nan"], 2, "not between 0 and 1"),
    (["x", "--contrastive", "0.6", "--beams", "2"], 2, "one of the two"),
    (["x", "--contrastive", "0.6", "--engine", "exact"], 2, "--engine numpy"),
    *[(["x", "--beams", "2", flag, *value], 2, flag) for flag, *value in (
        ("--temperature", "1"), ("--stop", "y"), ("--logprobs", "2"), ("--model-settings",),
        ("--seed", "3"), ("--schema", "y"), ("--min-tokens", "3"))],
    (["--beams", "2", "--batch", "y"], 2, "--batch")]

LOCAL = "http://127.0.0.1:9"                            # where nobody is asked
LOAD = {"--rate": ["0", "-1", "nan", "fast"], "--burstiness": ["0", "inf"],
        "--concurrency": ["0", "x"], "--max-requests": ["0"], "--duration": ["0", "inf"],
        "--timeout": ["0", "nan"], "--warmup": ["-1"], "--endpoint": ["embeddings"],
        "--prompt-tokens": ["", "0", "x", "1:2:3:4", "9:-1", "9:1:0", "nan", "inf"],
        "--output-tokens": ["0"], "--prefix": ["0.5", "2:9", "x:9", "0.5:1e99"],
        "--goodput": ["ttft", "ttft:x", "ttft:0", "itl:5", "ttft:nan", LOCAL],
        "--seed": ["x"], "--api-key": ["two\nlines", "ä"], "--model": [BAD_TEXT],
        "--trace": [BAD_TEXT]}

SERVE = {"--host": ["a b", "http://x", ""], "--port": ["-1", "65536", "x"],
         "--api-key": ["", "two words", "ä"], "--served-model-name": ["", BAD_TEXT],
         "--max-num-seqs": ["0", "x"], "--max-num-batched-tokens": ["0", "63"],
         "--max-model-len": ["0"], "--block-size": ["0"], "--num-blocks": ["0"],
         "--max-queue": ["-1"], "--grace": ["-1", "nan"], "--speculative-tokens": ["-1"],
         "--allow-origin": ["nonsense", ""], "--kv-cache-dtype": ["int3", "fp8", ""]}

QUANTIZE = {"--method": ["", "int3"], "--output": ["", BAD_TEXT], "--group-size": ["0", "x"]}
QUALITY = {"--methods": ["", "int3", "int4:", "int8:32", "int4,,fp8"],
           "--tokens": ["1", "all"]}
NEW = os.path.join("no", "such", "x")
TO = ["quantize", "smollm2", "--method"]


@pytest.mark.parametrize("arguments, code, says", [
    ([], 2, "COMMAND is missing"),
    *[(["generate", "smollm2", *arguments], code, says) for arguments, code, says in GENERATE],
    (["genrate", "smollm2"], 2, "Try  gearworks generate"),
    (["frobnicate"], 2, "Try  gearworks --help"),
    (["--versoin"], 2, "Try  --version"), (["", "x"], 2, "no command ''"),
    (["generate"], 2, "MODEL is missing"),
    (["generate", "smollm2"], 2, "PROMPT is missing"),
    (["generate", "smollm2", "one", "two"], 2, "'two'"), (["fetch", "smollm2", "x"], 2, "'x'"),
    (["generate", "smollm2", "x", "--max-token", "3"], 2, "Try  --max-tokens"),
    (["generate", "smollm2", "x", "--top", "3"], 2, "Try  --top-k or --top-p"),
    (["generate", "smollm2", "x", "--json=3"], 2, "it takes no value"),
    (["generate", "smollm2", "--", "-x", "--json"], 2, "--json before the --"),
    (["generate", "smollm2", ""], 1, "prompt is empty"),
    (["generate", "smollm2", BAD_TEXT], 2, "character 4"),
    (["generate", "smollm2", "x", "--schema", "no-such-file"], 1, "cannot read the schema"),
    (["generate", "smollm2", "x", "--schema", __file__], 1, "cannot read the schema"),
    (["generate", "smollm2", "x", "--engine", "no-such-folder"], 1, "no engine"),
    (["chat", "--engine", "no-such-folder"], 1, "no engine"),
    (["chat", "--context", "0"], 2, "--context"),
    (["chat", "--context", "all"], 2, "--context"),
    (["chat", "--system", BAD_TEXT], 2, "--system"), (["chat", "smollm2", "more"], 2, "'more'"),
    *[([*command, flag, value], code, flag if code == 2 else flag[2:].replace("-", "_"))
      for command in (["generate", "smollm2", "x"], ["chat"])
      for flag, value, code in SAMPLING],
    *[([*command, flag], 2, "its value is missing")
      for command, flags in (
          (["generate", "smollm2", "x"], ["--seed", "--stop", "--schema", "--engine"]),
          (["chat"], ["--system", "--context", "--top-k"]),
          (["compare", "smollm2"], ["--prompt", "--tolerance"]))
      for flag in flags],
    (["compare"], 2, "MODEL is missing"),
    (["compare", "smollm2", "--prompt", ""], 2, "prompt is empty"),
    (["compare", "smollm2", "--prompt", BAD_TEXT], 2, "--prompt"),
    *[(["compare", "smollm2", "--tolerance", value], 2, "--tolerance")
      for value in ("0", "-1", "nan", "inf", "little")],
    (["load"], 2, "URL is missing"), (["load", "localhost:8000"], 2, "not the address"),
    (["load", "http://203.0.113.7:8000"], 2, "--allow-remote"),
    (["load", LOCAL, "--trace", "no-such-file"], 1, "cannot read the trace"),
    (["load", LOCAL, "--trace", "chat", "--rate", "2"], 2, "--rate"),
    (["load", LOCAL, "--concurrency", "2", "--burstiness", "2"], 2, "--burstiness"),
    (["load", LOCAL, "--rate", "inf", "--duration", "2"], 2, "--max-requests"),
    (["load", LOCAL, "--json", os.path.join("no", "such", "x")], 1, "folder does not exist"),
    (["load", LOCAL, "--plot", "x.png"], 2, "SVG"),
    (["load", LOCAL, "--record", os.path.dirname(__file__)], 1, "it is a folder"),
    (["load", "--compare", "no-such-file", __file__], 1, "cannot read no-such-file"),
    (["load", "--compare", "one"], 2, "2 behind --compare"),
    (["load", "--goodput"], 2, "values are missing"),
    *[(["load", LOCAL, flag, value], 2, flag) for flag, values in LOAD.items()
      for value in values],
    *[(["serve", "smollm2", flag, value], 2, flag) for flag, values in SERVE.items()
      for value in values],
    (["quantize"], 2, "MODEL and --method and --output are missing"),
    *[([*TO, "int8", "--output", "x", flag, value], 2, flag)
      for flag, values in QUANTIZE.items() for value in values],
    ([*TO, "int8", "--output", NEW], 1, "folder does not exist"),
    ([*TO, "int8", "--output", os.path.dirname(__file__)], 1, "exists already"),
    ([*TO, "int4", "--output", __file__], 1, "exists already"),
    ([*TO, "fp8", "--output", "x.gguf"], 2, "GGUF has no such type"),
    ([*TO, "q4_0", "--output", "x"], 2, "type of GGUF files"),
    ([*TO, "int8", "--output", "x", "--group-size", "64"], 2, "--group-size"),
    ([*TO, "gptq", "--output", "x.gguf", "--group-size", "48"], 2, "blocks of 32"),
    ([*TO, "int4", "--output", "x.gguf", "--group-size", "64"], 2, "blocks of 32"),
    ([*TO, "gptq", "--output", "x", "--calibration", "no-such-file"], 1, "no-such-file"),
    *[(["quality", flag, value], 2, flag) for flag, values in QUALITY.items()
      for value in values],
    (["quality", "--text", "no-such-file"], 1, "cannot read no-such-file"),
    (["quality", "--text", os.path.dirname(__file__)], 1, "cannot read"),
    (["quality", "--json", NEW], 1, "folder does not exist"),
    (["quality", "--plot", os.path.dirname(__file__)], 1, "it is a folder"),
    (["quality", "--plot", "x.pdf"], 2, "SVG or PNG"),
    (["bench", "--threads", "-1"], 2, "--threads"),
    *[(["profile", "smollm2", flag, value], 2, flag)
      for flag in ("--batch", "--context", "--prefill", "--rounds") for value in ("0", "x")],
    (["profile", "--figure", os.path.join("no", "such", "x")], 1, "folder does not exist"),
    (["profile", "--figure", os.path.dirname(__file__)], 1, "it is a folder"),
    (["profile", "--figure"], 2, "its value is missing"),
    (["bench", "--publish", "--only", "load"], 2, "--only"),
    (["inspect"], 2, "MODEL is missing"), (["inspect", "one", "two"], 2, "'two'"),
    (["inspect", "smollm2", "--json=3"], 2, "it takes no value"),
    (["inspect", "smollm2", "--al"], 2, "Try  --all"),
], ids=lambda value: " ".join(map(ascii, value))[:60] if isinstance(value, list) else None)
def test_what_needs_no_model_is_refused_without(no_model, capsys, arguments, code, says):
    assert cli.main(arguments) == code
    output, error = capsys.readouterr()
    assert says in error and output == "" and "usage:" not in error
    first, why, hint = error.splitlines()
    assert first.startswith("gearworks: ")
    assert why.startswith("  Why  ") and hint.startswith("  Try  ")


def test_every_option_of_every_command_is_refused_somewhere_above():
    """A new option needs a line there: what of it can be refused, or that nothing can."""
    refused = {"--schema", "--engine", "--context", "--system", "--prompt", "--tolerance",
               "--threads", "--only", "MODEL", "PROMPT", "--prompt-file",
               "--logprobs", "--beams", "--length-penalty", "--contrastive", "--candidates",
               *(flag for flag, _, _ in SAMPLING),
               "--batch", "--prefill", "--rounds", "--figure", "URL", "--plot", "--record",
               "--compare", *LOAD, *SERVE, *QUANTIZE, *QUALITY, "--calibration", "--text"}
    never = {"--model-settings", "--help", "-h", "--version", "--chat", "--json", "--publish",
             "--ignore-eos",
             "--allow-remote", "--no-prefix-caching", "--batch-invariant", "--all"}
    parser = cli._parser()
    for command in [parser, *parser._commands.values()]:
        for action in command._actions:
            names = {*action.option_strings} or {action.metavar}
            assert names <= refused | never | {"COMMAND"}, names


def test_an_empty_standard_input_is_refused_without_a_model(no_model, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", open(os.devnull, encoding="utf-8"))
    assert cli.main(["generate", "smollm2", "-"]) == 1
    assert "prompt is empty" in capsys.readouterr().err


# What `generate` has no use for; each would cost every start between 10 ms and several seconds
IDLE = ["asyncio", "filelock", "gearworks.chat", "gearworks.comparison.compare",
        "gearworks.hub.convert", "gearworks.inspection.contents",
        "gearworks.profiling.profile", "huggingface_hub",
        "importlib.metadata", "jinja2",
        "llguidance", "matplotlib",
        "multiprocessing", "psutil", "subprocess", "tokenizers", "torch", "tqdm",
        "transformers", "unittest", "urllib.request"]


def test_generate_reads_no_module_that_it_does_not_use(smollm2_folder):
    program = ("import sys\nfrom gearworks.cli import commands\nassert "
               "commands.main(sys.argv[1:]) == 0\nprint(*sys.modules, sep='\\n', "
               "file=sys.stderr)")
    command = ["generate", str(smollm2_folder), "x", "--max-tokens", "1"]
    result = subprocess.run([sys.executable, "-c", program, *command], capture_output=True,
                            encoding="utf-8", timeout=120)
    assert result.returncode == 0, result.stderr
    assert {*IDLE} & {*result.stderr.split()} == set()
    assert "gearworks.model" in result.stderr


def test_help_and_version():
    assert run("--version").stdout.startswith("gearworks ")
    for command in ([], ["generate"], ["chat"], ["bench"], ["load"], ["fetch"], ["quantize"],
                    ["quality"]):
        result = run(*command, "--help")
        assert result.returncode == 0 and "usage: gearworks" in result.stdout


def test_chat_remembers_resets_and_ends():
    result = run("chat", "--temperature", "0", "--max-tokens", "40",
                 input="My name is Ada.\n\nWhat is my name?\n/reset\nWhat is 2+2?\n/quit\n"
                       "never read\n")
    assert result.returncode == 0, result.stderr
    answers = result.stdout.splitlines()
    assert "Ada" in result.stdout and len(answers) >= 3 and "> " not in result.stdout
    reports = [line for line in result.stderr.splitlines()
               if "tokens" in line and line.startswith("[")]
    assert len(reports) == 3
    cached = [int(report.split("; ")[-1].split(" of ")[0]) for report in reports]
    assert cached[0] == 0 and cached[1] > 30    # the second question found the first one's keys


def test_chat_knows_its_commands_and_sends_none_of_them():
    result = run("chat", "--max-tokens", "2",
                 input="/help\n/foo bar\n/ \n /foo\n/quit now\nnever read\n")
    assert result.returncode == 0
    assert result.stderr.count("[2 tokens") == 1        # for the line that begins with a space
    for command in chat.COMMANDS:
        assert f"  {command}" in result.stderr
    assert "there is no command /foo\n  Why" in result.stderr
    assert "there is no command /\n" in result.stderr


def test_chat_at_the_end_of_input_and_without_a_template(tiny, tmp_path):
    assert run("chat", input="").returncode == 0
    shutil.copytree(tiny, tmp_path / "model")
    (tmp_path / "model" / "tokenizer_config.json").write_text("{}", encoding="utf-8")
    result = run("chat", str(tmp_path / "model"), input="hello\n")
    assert result.returncode == 1 and "no chat template" in result.stderr


@pytest.mark.skipif(os.name != "posix", reason="signals and pipes as POSIX has them")
def test_interrupts_and_closed_pipes():
    process = subprocess.Popen([*GEARWORKS, "generate", "smollm2", "Count: 1, 2, 3, 4,",
                                "--max-tokens", "2000"], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, encoding="utf-8")
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 130 and "Traceback" not in error

    process = subprocess.Popen([*GEARWORKS, "generate", "smollm2", "Count: 1, 2, 3, 4,",
                                "--max-tokens", "2000"], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, encoding="utf-8")
    process.stdout.read(1)
    process.stdout.close()
    started = time.monotonic()
    error = process.stderr.read()
    assert (process.wait(timeout=30) == 1 and "Traceback" not in error
            and "Exception ignored" not in error)
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
    assert (result.returncode == code and says in result.stderr
            and "Traceback" not in result.stderr)


def test_output_on_a_console_without_unicode():
    """An ASCII-only terminal gets a question mark for what it cannot show, not a crash."""
    result = subprocess.run([*GEARWORKS, "generate", "smollm2", "深度学习是", "--max-tokens",
                             "8"], capture_output=True,
                            env=os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
                            timeout=120)
    assert (result.returncode == 0 and b"?" in result.stdout
            and b"Traceback" not in result.stderr)


def test_generate_stops_before_a_text_and_follows_a_schema(smollm2_folder, tmp_path):
    counted = run("generate", str(smollm2_folder), "1, 2, 3, 4, 5,", "--max-tokens", "30",
                  "--stop", " 8", "--stop", "never")
    assert counted.returncode == 0 and counted.stdout == " 6, 7,\n"
    line = run("generate", str(smollm2_folder), "Name three gears, a line for each.", "--chat",
               "--stop", r"\n")
    assert line.returncode == 0 and line.stdout.count("\n") == 1
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object", "properties": {"sky": {"enum": ["blue", "green"]}}, '
                      '"required": ["sky"], "additionalProperties": false}', encoding="utf-8")
    answer = run("generate", str(smollm2_folder), "What colour is the sky?", "--chat",
                 "--schema", str(schema))
    assert answer.returncode == 0 and json.loads(answer.stdout)["sky"] in ("blue", "green")


def said(capsys, *arguments) -> dict:
    """What `generate … --json` prints."""
    assert cli.main(["generate", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_generate_tells_log_probabilities(smollm2, capsys):
    prompt = "The capital of France is"
    expected = smollm2.generate(prompt, max_tokens=3, top_logprobs=2)
    told = said(capsys, "smollm2", prompt, "--max-tokens", "3", "--logprobs", "2",
                "--engine", "numpy")["logprobs"]
    assert [(one["id"], one["logprob"]) for one in told] == [
        (one.id, one.logprob) for one in expected.logprobs]
    assert [[(one["id"], one["logprob"]) for one in each["top"]] for each in told] == [
        list(each.top) for each in expected.logprobs]
    assert told[0]["text"] == " Paris"
    assert cli.main(["generate", "smollm2", prompt, "--max-tokens", "3", "--logprobs", "2"]
                    ) == 0
    output, error = capsys.readouterr()
    assert output == expected.text + "\n" and '" Paris"' in error
    assert len(error.splitlines()) == 3


def test_generate_searches(tiny, capsys):
    model = LanguageModel.load(tiny)
    ids = model.tokenizer.encode("Once upon")
    found = said(capsys, tiny, "Once upon", "--beams", "3", "--length-penalty", "0.5",
                 "--max-tokens", "6")
    expected = beam_search(model.model, ids, 3, 6, model.eos_ids, 0.5)
    assert found["prompt_ids"] == ids
    assert [(one["ids"], one["score"]) for one in found["found"]] == [
        (list(each.ids), pytest.approx(each.score)) for each in expected]
    found = said(capsys, tiny, "Once upon", "--contrastive", "0.4", "--candidates", "3",
                 "--max-tokens", "6")["found"]
    assert [one["ids"] for one in found] == [
        contrastive_search(model.model, ids, 6, 3, 0.4, model.eos_ids)]
    assert found[0]["text"] == model.tokenizer.decode(found[0]["ids"])


def test_generate_reads_a_file_and_a_system_message(smollm2, tmp_path, capsys):
    path = tmp_path / "prompt"
    path.write_text("\ufeffThe capital\nof France is", encoding="utf-8")
    assert (said(capsys, "smollm2", "--prompt-file", str(path), "--max-tokens", "2")
            ["prompt_ids"] == smollm2.tokenizer.encode("The capital\nof France is"))
    asked = said(capsys, "smollm2", "Hi", "--chat", "--system", "Be brief.", "--max-tokens",
                 "2")["prompt_ids"]
    assert asked == smollm2.chat([{"role": "system", "content": "Be brief."},
                                  {"role": "user", "content": "Hi"}], max_tokens=1).prompt_ids


def test_a_batch_is_answered_as_each_prompt_alone(tiny, tmp_path, capsys):
    """In the order of the lines, whatever ends first; one that cannot run stops no other."""
    prompts = ["Once upon a time", "x", "The gears of an engine turn", "word " * 400, "One two"]
    files = tmp_path / "prompts.txt", tmp_path / "prompts.jsonl"
    files[0].write_text("\n\n".join(prompts) + "\n", encoding="utf-8")
    files[1].write_text("\n".join(json.dumps({"prompt": each} if number % 2 else each)
                                  for number, each in enumerate(prompts)), encoding="utf-8")
    options = ["--temperature", "1.1", "--seed", "5", "--max-tokens", "9", "--logprobs", "1"]
    for path in files:
        assert cli.main(["generate", tiny, "--batch", str(path), *options]) == 1
        output, error = capsys.readouterr()
        assert "1 of 5 prompts were not answered" in error
        told = [json.loads(line) for line in output.splitlines()]
        assert [one["prompt"] for one in told] == prompts
        for one in told:
            if one["prompt"].startswith("word"):
                assert one["finish_reason"] == "error" and "400" not in one["text"]
                continue
            alone = said(capsys, tiny, one["prompt"], *options)
            assert (one["ids"], one["text"], one["finish_reason"]) == (
                alone["ids"], alone["text"], alone["finish_reason"])
            assert [each["id"] for each in one["logprobs"]] == one["ids"]
    files[1].write_text('"one"\n{"text": "two"}\n', encoding="utf-8")
    assert cli.main(["generate", tiny, "--batch", str(files[1])]) == 1
    assert "in line 2 of" in capsys.readouterr().err


def test_the_models_own_settings_are_shown_and_taken_by_choice(tiny, tmp_path, capsys):
    shutil.copytree(tiny, tmp_path / "model")
    (tmp_path / "model" / "generation_config.json").write_text(json.dumps({
        "do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95,
        "repetition_penalty": None, "eos_token_id": 2}))
    model = [str(tmp_path / "model"), "Once upon", "--max-tokens", "12", "--seed", "1"]
    greedy, own = said(capsys, *model)["ids"], said(capsys, *model, "--model-settings")["ids"]
    given = ["--temperature", "0.6", "--top-k", "20"]
    assert own == said(capsys, *model, *given, "--top-p", "0.95")["ids"] != greedy
    assert (said(capsys, *model, "--model-settings", "--temperature", "0")["ids"] == greedy)
    result = run("chat", *model[:1], input="")
    assert ("[the model's own settings: temperature 0.6, top_k 20, top_p 0.95; "
            "--model-settings takes them]") in result.stderr
    (tmp_path / "model" / "generation_config.json").write_text('{"do_sample": false}')
    assert LanguageModel.load(tmp_path / "model").recommended == {"temperature": 0.0}
    assert gguf_recommended({"general.sampling.temp": np.float32(0.6).item(),
                             "general.sampling.top_k": 20}) == {"temperature": 0.6, "top_k": 20}


def test_chat_takes_several_lines_and_saves(tmp_path, tiny):
    path = tmp_path / "talk.json"
    result = run("chat", "--max-tokens", "3", "--temperature", "0",
                 input=f'"""\nOne\n\ntwo"""\n/save {path}\n/save\n/save {tmp_path}\n'
                       '"""never ended\n')
    assert result.returncode == 0
    messages = json.loads(path.read_text(encoding="utf-8"))
    assert messages[0] == {"role": "user", "content": "One\n\ntwo"}
    assert messages[1] == {"role": "assistant", "content": result.stdout.rstrip("\n")}
    assert f"[2 messages in {path}]" in result.stderr
    assert result.stderr.count("cannot save the conversation") == 2
    assert result.stderr.count("[3 tokens") == 1


def test_generate_has_the_samplers_of_other_engines(smollm2_folder):
    asked = ["generate", str(smollm2_folder), "1, 2, 1, 2, 1, 2,", "--max-tokens", "4"]
    assert run(*asked).stdout.startswith(" 1,")
    dry = run(*asked, "--dry-multiplier", "100", "--dry-sequence-breaker", r"\n")
    assert dry.returncode == 0 and not dry.stdout.startswith(" 1,")
    refused = run("generate", "no such model", "x", "--dry-base", "9")
    assert refused.returncode == 1 and "dry_base is 9" in refused.stderr


def test_json_that_a_limit_cuts_off_is_no_success(tiny, tmp_path):
    schema = tmp_path / "schema.json"
    schema.write_text('{"const": "a long text, of more than three tokens"}', encoding="utf-8")
    asked = "generate", tiny, "x", "--schema", str(schema), "--max-tokens", "3"
    cut = run(*asked)
    assert (cut.returncode == 1 and cut.stdout.startswith('"a')
            and "cut off after 3 tokens" in cut.stderr)
    told = run(*asked, "--json")
    assert told.returncode == 0 and json.loads(told.stdout)["finish_reason"] == "length"


@pytest.mark.parametrize(
    "content, complaint",
    [(b"{", "cannot read the schema"), (None, "cannot read the schema"),
     (b"\xff\xfe", "cannot read the schema"), (b"[" * 100_000, "cannot read the schema"),
     (b"3", "cannot use this JSON schema"),
     (b"false", "accepts no value"), (b'{"if": {}}', 'uses "if"'),
     (b'{"type": "integer", "minimum": 2, "maximum": 1}',
      "minimum (2) is greater than maximum (1)")],
    ids=["cut-off", "missing", "not-utf-8", "too-deep", "a-number", "false", "unsupported",
         "unsatisfiable"])
def test_schemas_that_cannot_be_used(no_model, capsys, tmp_path, content, complaint):
    schema = tmp_path / "schema.json"
    if content is not None:
        schema.write_bytes(content)
    assert cli.main(["generate", "smollm2", "x", "--schema", str(schema)]) == 1
    assert complaint in capsys.readouterr().err


def test_a_schema_file_may_begin_with_a_byte_order_mark(smollm2_folder, tmp_path):
    schema = tmp_path / "schema.json"
    schema.write_text('{"const": "ü"}', encoding="utf-8-sig")
    assert (json.loads(run("generate", str(smollm2_folder), "x", "--schema",
                           str(schema)).stdout) == "ü")
