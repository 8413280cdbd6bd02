"""The script for a GPU: without one it says so, and all of its code runs in a rehearsal.
About 30 s."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gearworks.kernels.triton import has_triton_gpu

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "gpu.py"


def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess:
    path = os.pathsep.join(filter(None, [str(SCRIPT.parents[1]), os.environ.get("PYTHONPATH")]))
    return subprocess.run([sys.executable, str(SCRIPT), *map(str, arguments)],
                          capture_output=True, encoding="utf-8", timeout=600,
                          env=os.environ | {"PYTHONPATH": path} | environment)


@pytest.mark.skipif(has_triton_gpu(), reason="there is a GPU here")
def test_without_a_gpu_it_says_so(tmp_path):
    done = run("--json", tmp_path / "gpu.json")
    assert done.returncode == 1 and not (tmp_path / "gpu.json").exists()
    assert done.stderr.startswith("gpu.py: cannot measure a GPU\n  Why  there is no GPU of "
                                  "compute capability 8.0 or later here")


def test_an_unknown_part_is_refused(tmp_path):
    done = run("--only", "time_flush", "--json", tmp_path / "gpu.json")
    assert done.returncode == 1 and "there is no part 'time_flush'" in done.stderr


needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None,
                                  reason="Triton exists for Linux only")


@needs_triton
def test_a_rehearsal_runs_every_part(tmp_path):
    """So that the few minutes on a real card are not spent on a misspelled name."""
    done = run("--rehearse", "--json", tmp_path / "gpu.json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))
    assert report["machine"]["rehearsal"] and report["date"] and report["not_run"] == {}
    assert all(report["results"][name] for name in report["seconds"] if name != "time_compiled")
    checks = [row for rows in report["results"].values() for row in rows if "check" in row]
    assert len(checks) > 25 and all(row["passed"] for row in checks)
    flash = report["results"]["time_flash"]
    assert {row["head_size"] for row in flash} == {64, 128}
    assert all(row["differs_by"] < 1e-5 for row in flash)


@needs_triton
def test_what_there_is_no_time_for_is_said(tmp_path):
    done = run("--rehearse", "--seconds", 12, "--only", "bandwidth", "--only", "time_decode",
               "--json", tmp_path / "gpu.json")
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))
    assert report["results"]["bandwidth"][0]["gb_per_second"] > 0
    assert report["not_run"]["time_decode"].endswith("seconds were left")
    assert report["not_run"]["time_flash"] == "not asked for"


@needs_triton
def test_a_failure_is_kept_and_the_rest_goes_on(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import gpu

    def broken(bench):
        yield {"measure": "first", "gb_per_second": 2.0}
        raise RuntimeError("out of tiles")

    monkeypatch.setattr(gpu, "PARTS", {"broken": (broken, 0),
                                       "bandwidth": (gpu.bandwidth, 0)})
    assert gpu.main(["--rehearse", "--json", str(tmp_path / "gpu.json")]) == 1
    report = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))
    first, failure = report["results"]["broken"]
    assert failure["error"] == "RuntimeError: out of tiles" and "broken" in failure["traceback"]
    copied = report["results"]["bandwidth"][0]["gb_per_second"]
    assert first["gb_per_second_of_copy"] == pytest.approx(2.0 / copied)
