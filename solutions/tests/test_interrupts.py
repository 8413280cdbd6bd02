"""Ctrl-C at any moment of any command: exit code 130, a message, no traceback. About 40 s."""

import os
import signal
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")

# Runs a module as a program. When the n-th module is looked for after its first one it sends
# itself SIGINT, or, where n is 0, says that the first one comes now.
WATCHED = """
import os, runpy, sys

program, at, *sys.argv[1:] = sys.argv[1:]

class Watch:
    seen = 0

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == "gearworks.cli.console" and at == "0":
            print("go", file=sys.stderr, flush=True)
        if name == "gearworks.cli.console" or cls.seen:
            cls.seen += 1
            if cls.seen == int(at):
                os.kill(os.getpid(), 2)

sys.meta_path.insert(0, Watch)
runpy.run_module(program, run_name="__main__", alter_sys=True)
"""
COMMANDS = [
    ("gearworks", "generate", "smollm2", "hi", "--max-tokens", "1"), ("gearworks", "chat"),
    ("gearworks", "compare", "smollm2"), ("gearworks", "bench", "--only", "load"),
    ("gearworks", "fetch"), ("gearworks", "--version"),
    ("autograder", "build", "--check"), ("autograder", "progress"),
    ("autograder", "mutants", "tokenizer.encode"), ("autograder", "--help"),
    ("gearworks", "quality"),
    ("gearworks", "quantize", "smollm2", "--method", "int8", "--output", "never")]


def assert_interrupted(process: subprocess.Popen, program: str) -> None:
    _, error = process.communicate(timeout=120)
    assert process.returncode == 130, error
    assert error.endswith(f"{program}: interrupted\n")
    assert "Traceback" not in error and "ignored" not in error


def start(*command: str) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, *command], stdin=subprocess.DEVNULL,
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, encoding="utf-8")


@pytest.mark.parametrize("at", [1, 14, *(pytest.param(moment, marks=pytest.mark.long)
                                         for moment in (3, 8, 18, 40))])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_an_interrupt_while_modules_are_read(command, at):
    if at > 18 and command[1].startswith("--"):
        pytest.skip("it reads fewer modules")
    program, *arguments = command
    assert_interrupted(start("-c", WATCHED, program, str(at), *arguments), program)


@pytest.mark.parametrize("command", [
    COMMANDS[0], pytest.param(COMMANDS[1], marks=pytest.mark.long),
    pytest.param(COMMANDS[8], marks=pytest.mark.long)], ids=" ".join)
def test_an_interrupt_at_many_moments(command):
    """Each a little later, from the first module of ours until the command is done."""
    program, *arguments = command
    for moment in range(12):
        process = start("-c", WATCHED, program, "0", *arguments)
        assert process.stderr.readline() == "go\n"
        time.sleep(0.01 * moment ** 2)
        process.send_signal(signal.SIGINT)
        if process.wait(timeout=120) == 0:                  # it was done before
            break
        assert_interrupted(process, program)


def test_an_interrupt_that_the_caller_ignores_is_ignored():
    process = subprocess.Popen(
        [sys.executable, "-m", "gearworks", "--version"], stdout=subprocess.PIPE,
        encoding="utf-8", preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[0].startswith("gearworks ")
    assert process.returncode == 0


def test_an_interrupt_ends_what_a_closed_standard_error_cannot_show():
    command = f"exec {sys.executable} -m gearworks generate smollm2 hi --max-tokens 9999 2>&-"
    process = subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE)
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
