"""The benchmarks run, and the figures in the README are those that were measured."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gearworks.errors import GearworksError

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def bench():
    sys.path.insert(0, str(BENCHMARKS))
    import bench
    return bench


def test_the_readme_shows_what_was_measured(bench):
    report = json.loads(bench.RESULTS.read_text(encoding="utf-8"))
    assert (bench.BEGIN + bench.table(report) + bench.END
            in bench.README.read_text(encoding="utf-8"))
    assert {entry["what"].split(",")[0].split(" ")[0] for entry in report["results"]} == {
        "decode", "memory", "prefill", "choose", "rewrite", "load", "encode", "peak"}


def test_every_promise_was_kept_when_measured(bench):
    report = json.loads(bench.RESULTS.read_text(encoding="utf-8"))
    assert ([entry["what"] for entry in report["results"] if entry["ratio"] < entry["target"]]
            == [])


ONE_ROUND = f"""
import sys
sys.path.insert(0, {str(BENCHMARKS)!r})
import bench
from gearworks.cli.commands import main
bench.alternate.__kwdefaults__["rounds"] = 1
sys.exit(main())
"""


@pytest.mark.parametrize("start", [
    pytest.param(["-c", ONE_ROUND], id="one round"),
    pytest.param(["-m", "gearworks"], id="all rounds", marks=pytest.mark.long)])
def test_one_measurement_runs_and_is_saved(tmp_path, smollm2_folder, start):
    target = tmp_path / "figures.json"
    command = [sys.executable, *start, "bench", "--only", "load", "--json", str(target)]
    result = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=300)
    assert result.returncode == 0, result.stderr
    assert ("| load the GGUF |" in result.stdout
            and "Measured by `gearworks bench`" in result.stdout)
    report = json.loads(target.read_text(encoding="utf-8"))
    assert report["results"][0]["ours"] > 0
    assert report["versions"]["numpy"] and report["machine"]["processor"]


def test_a_run_on_a_busy_machine_is_not_published(bench, monkeypatch, tmp_path):
    busy = bench.Result.of(bench.QUIET, "GB/s", [1.2], "their median", [1.0], 0.9)
    monkeypatch.setattr(bench, "MEASUREMENTS", {"decode": lambda setting: [busy]})
    for name in ("RESULTS", "README"):
        monkeypatch.setattr(bench, name, tmp_path / name)
    with pytest.raises(GearworksError, match="not quiet"):
        bench.run(publish=True)
    assert not [*tmp_path.iterdir()]
