"""What an assembled engine goes through before its certificate is written.

Both trials run in processes of their own, in which the engine's package comes first. An engine
may be wrong, slow or endless: that is a result, not an error.
"""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from autograder.submissions.overlay import engine_path

SUITE_SECONDS, RACE_SECONDS = 5400, 1200        # by the wall clock: far above what any needs
# a process for each processor, up to four; a file's tests share what is made once
SIDE_BY_SIDE = ("-p", "xdist", "-n", "logical", "--maxprocesses", "4", "--dist", "loadfile")
NAMED = 12                                      # of the tests that did not pass


@dataclass(frozen=True)
class Suite:
    """What the reference's tests found of an engine.

    not_passed: names of the first tests that did not pass. problem: why there is no result.
    """

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    not_passed: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class Lane:
    """One engine in the race. times_hf: its speed as a multiple of Hugging Face's."""

    name: str
    tokens_per_second: float
    times_hf: float


@dataclass(frozen=True)
class Race:
    """A question, the engine's answer, and its speed beside others, on SmolLM2.

    equal: of so many `tokens` of the answer, how many are Hugging Face's, from the first one.
    notes: what could not run. problem: why there is no result.
    """

    question: str = ""
    answer: str = ""
    equal: int = 0
    tokens: int = 0
    threads: int = 0
    lanes: tuple[Lane, ...] = ()
    notes: tuple[str, ...] = ()
    problem: str = ""


def run_suite(engine: Path, tests: Path, arguments: tuple[str, ...] = SIDE_BY_SIDE) -> Suite:
    """Run the reference's tests on an engine; what they print goes to standard error.

    engine: a folder that `assemble` made. tests: a folder or file of the reference's tests.
    arguments: more of pytest's.
    """
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        command = [sys.executable, "-m", "pytest", str(tests), "--engine", str(engine), "-q",
                   "-p", "no:cacheprovider", "--junitxml", str(report), *arguments]
        try:
            subprocess.run(command, env=os.environ | {"PYTHONPATH": engine_path(engine)},
                           stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno(),
                           timeout=SUITE_SECONDS)
        except subprocess.TimeoutExpired:
            return Suite(problem=f"the tests did not end within {SUITE_SECONDS // 60} minutes")
        if not report.is_file():
            return Suite(problem="the tests did not begin")
        return suite_of(report.read_text(encoding="utf-8"))


def suite_of(report: str) -> Suite:
    """What a report in JUnit's format says.

    >>> suite_of('<testsuites><testsuite tests="3" failures="1" errors="0" skipped="1" '
    ...          'time="2.5"><testcase classname="t.test_a" name="b"><failure/></testcase>'
    ...          '</testsuite></testsuites>')
    Suite(passed=1, failed=1, skipped=1, seconds=2.5, not_passed=('test_a.b',), problem='')
    """
    [suite] = ElementTree.fromstring(report).iter("testsuite")
    tests, failures, errors, skipped = (int(suite.get(name, 0)) for name in
                                        ("tests", "failures", "errors", "skipped"))
    names = [f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name', '')}"
             for case in suite.iter("testcase")
             if case.find("failure") is not None or case.find("error") is not None]
    failed = failures + errors
    return Suite(tests - failed - skipped, failed, skipped, float(suite.get("time", 0)),
                 tuple(names[:NAMED]))


def run_race(engine: Path, benchmarks: Path) -> Race:
    """Let an engine answer a question and race.

    engine: a folder that `assemble` made. benchmarks: the folder with the repository's.
    """
    script = Path(__file__).with_name("engine_race.py")
    try:
        done = subprocess.run([sys.executable, "-P", str(script), str(benchmarks)],
                              env=os.environ | {"PYTHONPATH": engine_path(engine),
                                                "PYTHONIOENCODING": "utf-8"},
                              stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8",
                              errors="replace", timeout=RACE_SECONDS)
    except subprocess.TimeoutExpired:
        return Race(problem=f"it did not end within {RACE_SECONDS // 60} minutes")
    told = done.stdout.strip()
    if not told:
        last = [line for line in done.stderr.splitlines() if line.strip()][-1:]
        return Race(problem=last[0].strip() if last else "it ended without a word")
    return race_of(json.loads(told))


def race_of(told: dict) -> Race:
    """What `engine_race.py` told."""
    seconds = told["lanes"]
    hf = next(iter(seconds.values()))
    lanes = tuple(Lane(name, 1 / each, hf / each) for name, each in seconds.items())
    return Race(told["question"], told["answer"], told["equal"], told["tokens"],
                told["threads"], lanes, tuple(told["notes"]))
