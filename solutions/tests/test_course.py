"""course.py, run for real: in a copy of the course whose requirements are one tiny wheel,
so that no network is needed.

The wheel stands in for the installed course: its `gearworks` and `jupyterlab` print how they
were started. Only the last test starts the real JupyterLab. 40 to 55 s on two idle cores, most
of it spent in `python -m venv` and pip.
"""

import ast
import contextlib
import errno
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import tomllib
import urllib.error
import urllib.request
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# The interpreter outside of the environment that runs the tests.
OUTSIDE = sys._base_executable if sys.prefix != sys.base_prefix else sys.executable
WHEEL = "gearworks-{}-py3-none-any.whl"
POSIX_ONLY = pytest.mark.skipif(os.name == "nt", reason="POSIX signals and permissions")

STAND_IN = """\
import json, os, sys
call = {"prefix": sys.prefix, "version": VERSION, "path": os.environ["PATH"],
        "argv": ["MODULE", *sys.argv[1:]], "jupyter": os.environ.get("JUPYTER_CONFIG_PATH")}
print(json.dumps(call), file=sys.stderr)
print("a path" if sys.argv[1:2] == ["fetch"] else "an answer")
sys.exit(int(os.environ.get("FETCH_EXIT_CODE", 0)) if sys.argv[1:2] == ["fetch"] else 0)
"""

# A build backend, so that pip can be met in the middle of its work: it counts its builds and
# waits for the file `go`.
SLOW_BACKEND = """\
import os, pathlib, shutil, time
HERE = pathlib.Path(__file__).resolve().parent

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    with open(HERE / "builds", "a", encoding="utf-8") as file:
        file.write("build\\n")
    end = time.monotonic() + 300
    while not (HERE / "go").exists() and time.monotonic() < end:
        time.sleep(0.05)
    [wheel] = HERE.glob("*.whl")
    return os.path.basename(shutil.copy(wheel, wheel_directory))
"""


@pytest.fixture(scope="module")
def course():
    """The module course.py itself."""
    spec = importlib.util.spec_from_file_location("course", ROOT / "course.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Copy:
    """A copy of the course in `root` whose requirements.txt asks for the stand-in only."""

    def __init__(self, root):
        self.root = root
        self.venv = root / ".venv"
        self.record = self.venv / "gearworks-setup.json"
        self.log = self.venv / "gearworks-setup.log"
        self.environment = {name: value for name, value in os.environ.items()
                            if not name.startswith(("PIP_", "CONDA", "GEARWORKS"))
                            and name not in ("VIRTUAL_ENV", "PYTHONPATH")}
        self.environment.update(PIP_CONFIG_FILE=os.devnull, PIP_NO_INDEX="1",
                                PIP_NO_CACHE_DIR="1")

    def create(self):
        self.root.mkdir()
        for name in ("course.py", "pyproject.toml"):
            shutil.copy(ROOT / name, self.root)
        self.ask_for_version("0.1")
        return self

    def ask_for_version(self, version):
        write_wheel(self.root / WHEEL.format(version), version)
        self.require("./" + WHEEL.format(version))

    def require(self, line):
        (self.root / "requirements.txt").write_text(line + "\n", encoding="utf-8")

    def start(self, *arguments, python=OUTSIDE, **environment):
        return subprocess.Popen(
            [python, self.root / "course.py", *arguments],
            env={**self.environment, **environment}, cwd=self.root.parent,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            encoding="utf-8", errors="replace",
            start_new_session=os.name != "nt",    # so that the whole tree can be killed
        )

    def run(self, *arguments, **options):
        """The finished command; `.calls` are the lines that the stand-in printed, on stderr."""
        process = self.start(*arguments, **options)
        stdout, stderr = process.communicate(timeout=300)
        assert "Traceback" not in stderr
        done = subprocess.CompletedProcess(arguments, process.returncode, stdout, stderr)
        done.calls = [json.loads(line) for line in stderr.splitlines()
                      if line.startswith('{"prefix"')]
        return done

    def slow_down_pip(self):
        """Ask for a package whose build waits for the file `go` (see SLOW_BACKEND);
        returns its folder."""
        folder = self.root / "slow"
        folder.mkdir()
        write_wheel(folder / WHEEL.format("0.2"), "0.2")
        (folder / "slow_backend.py").write_text(SLOW_BACKEND, encoding="utf-8")
        (folder / "pyproject.toml").write_text(
            '[build-system]\nrequires = []\nbuild-backend = "slow_backend"\nbackend-path = '
            '["."]\n[project]\nname = "gearworks"\nversion = "0.2"\n',
            encoding="utf-8")
        self.require("./slow")
        return folder


def write_wheel(path, version):
    """Write the stand-in: `gearworks` and `jupyterlab`, which print how they were run."""
    info = f"gearworks-{version}.dist-info"
    files = {f"{info}/METADATA": "Metadata-Version: 2.1\nName: gearworks\nVersion: "
                                 f"{version}\n",
             f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\n"
                              "Tag: py3-none-any\n"}
    for module in ("gearworks", "jupyterlab", "autograder"):
        files[f"{module}/__init__.py"] = ""
        files[f"{module}/__main__.py"] = STAND_IN.replace(
            "VERSION", repr(version)).replace("MODULE", module)
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)


def wait_for(condition, what):
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end, f"waited for {what} in vain"
        time.sleep(0.02)


def kill_tree(process):
    if os.name == "nt":
        subprocess.run(["taskkill", "/T", "/F", "/PID", str(process.pid)], capture_output=True)
    else:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def site_packages(prefix):
    return Path(sysconfig.get_path("purelib", "venv",
                                   {"base": str(prefix), "platbase": str(prefix)}))


@pytest.fixture(scope="module")
def first_run(tmp_path_factory):
    """A copy of the course and its first command that came to its end:
    the one before was killed early.

    The console is ASCII, the folder's name is not.
    """
    copy = Copy(tmp_path_factory.mktemp("first") / "Kurs Ω für alle").create()
    process = copy.start("chat")
    wait_for((copy.venv / "pyvenv.cfg").exists, "the first files of .venv")
    kill_tree(process)
    assert (copy.venv / "gearworks-unfinished").exists()
    return copy, copy.run("chat", "--seed", "1", PYTHONIOENCODING="ascii")


@pytest.fixture
def new(tmp_path):
    """A copy of the course in which nothing has been set up."""
    return Copy(tmp_path / "course").create()


@pytest.fixture
def ready(tmp_path, first_run):
    """A copy of the course that has been set up and then moved here;
    its environment is its own."""
    shutil.copytree(first_run[0].root, tmp_path / "course", symlinks=True)
    copy = Copy(tmp_path / "course")
    copy.log.unlink(missing_ok=True)    # so that it is there only if pip runs again
    return copy


@pytest.fixture
def settled(ready, course, monkeypatch):
    """A copy of the course in which nothing is left to set up."""
    monkeypatch.setattr(course, "ROOT", ready.root)
    ready.record.write_text(json.dumps({"key": course.setup_key(), "complete": True}),
                            encoding="utf-8")
    yield ready
    assert not ready.log.exists()


# --- the environment --------------------------------------------------------------------------


def test_the_first_command_sets_up_and_runs(first_run):
    """One command makes .venv, installs, checks, fetches the model, and runs in .venv."""
    copy, done = first_run
    assert done.returncode == 0, done.stdout + done.stderr
    assert [call["argv"] for call in done.calls] == [
        ["gearworks", "fetch", "smollm2"], ["gearworks", "chat", "smollm2", "--seed", "1"],
    ]
    assert {Path(call["prefix"]) for call in done.calls} == {copy.venv}
    assert done.calls[0]["path"].split(os.pathsep)[0] == str(site_packages_scripts(copy.venv))
    assert json.loads(copy.record.read_text(encoding="utf-8"))["complete"] is True
    assert copy.log.exists()


def site_packages_scripts(prefix):
    return Path(sysconfig.get_path("scripts", "venv", {"base": str(prefix)}))


def test_the_second_command_goes_straight_on(first_run):
    """Nothing is made, installed or recorded again: the output is the stand-in's alone."""
    copy, _ = first_run
    copy.log.unlink()    # pip would write it again
    recorded = copy.record.stat().st_mtime_ns
    done = copy.run("chat", "another-model")
    assert [call["argv"] for call in done.calls] == [["gearworks", "chat", "another-model"]]
    assert len(done.stderr.splitlines()) == 1 and done.stdout == "an answer\n"
    assert copy.record.stat().st_mtime_ns == recorded
    assert not copy.log.exists()


def test_changed_requirements_are_installed(ready):
    """A folder that was moved, and then requirements that changed,
    are each installed once more."""
    assert ready.run("chat").returncode == 0 and ready.log.exists()
    ready.ask_for_version("0.3")
    assert [call["version"] for call in ready.run("chat").calls] == ["0.3", "0.3"]
    ready.log.unlink()
    assert ready.run("chat").returncode == 0 and not ready.log.exists()


def test_what_decides_about_set_up(course, new, monkeypatch):
    """The requirements, the package's metadata and the place count;
    settings of other tools do not."""
    monkeypatch.setattr(course, "ROOT", new.root)
    pyproject = new.root / "pyproject.toml"
    text = pyproject.read_text(encoding="utf-8")
    key = course.setup_key()
    pyproject.write_text(text + "\n[tool.other]\nx = 1\n", encoding="utf-8")
    assert course.setup_key() == key
    pyproject.write_text(text.replace('"numpy', '"another", "numpy'), encoding="utf-8")
    assert course.setup_key() != key
    pyproject.write_text(text, encoding="utf-8")
    new.require("another==1.0")
    assert course.setup_key() != key


@pytest.mark.parametrize("how", ["interpreter", "VIRTUAL_ENV", "CONDA_PREFIX"])
def test_an_active_environment_is_used(ready, tmp_path, course, how):
    """The packages go where the user already is, and no .venv is made."""
    active = tmp_path / "active"
    ready.venv.rename(active)
    if how == "interpreter":
        done = ready.run("chat", python=course.python_of(active))
    else:
        (active / "conda-meta").mkdir()
        done = ready.run("chat", **{how: str(active)})
    assert done.returncode == 0, done.stderr
    assert {Path(call["prefix"]) for call in done.calls} == {active}
    assert not ready.venv.exists()


def test_what_does_not_count_as_active(course, tmp_path, monkeypatch):
    """An environment that was deleted or is none, and conda's base."""
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    monkeypatch.setenv("VIRTUAL_ENV", sys.base_prefix)
    (tmp_path / "conda-meta").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path))
    monkeypatch.setenv("CONDA_DEFAULT_ENV", "base")
    assert course.active_prefix() is None
    monkeypatch.setenv("CONDA_DEFAULT_ENV", "course")
    assert course.active_prefix() == tmp_path
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path / "deleted"))
    assert course.active_prefix() is None


def test_packages_installed_by_hand_are_not_installed_again(ready):
    """The conventional route first, then course.py:
    everything is there, so pip is not called."""
    see_the_packages_of_this_environment(ready)
    pins = ["gearworks==0.1", f"packaging=={metadata.version('packaging')}",
            "nothing==1.0 ; sys_platform == 'amiga'"]
    ready.require("\n".join(pins))
    ready.record.unlink()
    assert ready.run("chat").returncode == 0
    assert not ready.log.exists()
    assert json.loads(ready.record.read_text(encoding="utf-8"))["complete"] is True
    pyproject = ready.root / "pyproject.toml"
    text = pyproject.read_text(encoding="utf-8").replace(
        'name = "gearworks"', 'name = "gearworks"\nkeywords = ["new"]')
    pyproject.write_text(text, encoding="utf-8")
    assert ready.run("chat").returncode == 0
    assert ready.log.exists()    # every pin is met, but the package itself has changed


def see_the_packages_of_this_environment(copy):
    """Let the copy's .venv import what the tests' own environment holds,
    after its own packages."""
    (site_packages(copy.venv) / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n",
                                                        encoding="utf-8")


def test_requirements_that_are_met(course, new, monkeypatch):
    monkeypatch.setattr(course, "ROOT", new.root)
    version = metadata.version("packaging")
    new.require(f"# a comment\n\npackaging=={version}\npackaging==0.1\nnot-installed-at-all\n"
                "./x.whl")
    assert course.unmet_requirements() == ["packaging==0.1", "not-installed-at-all", "./x.whl"]


@pytest.mark.parametrize("version, met",
                         [("2.13.0", True), ("2.13.0+cpu", True), ("2.14.0", False)])
def test_any_build_of_the_pinned_pytorch_will_do(course, new, monkeypatch, version, met):
    monkeypatch.setattr(course, "ROOT", new.root)
    monkeypatch.setattr(course, "installed_version", lambda name: version)
    new.require("torch==2.13.0")
    assert (course.unmet_requirements() == []) is met
    assert course.torch_is_pinned() is met


@pytest.mark.parametrize("place", ["here", "elsewhere"])
def test_an_editable_install_of_another_folder_does_not_count(course, tmp_path, monkeypatch,
                                                              place):
    info = tmp_path / "gearworks-9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gearworks\nVersion: 9\n",
                                   encoding="utf-8")
    origin = {"here": course.ROOT, "elsewhere": tmp_path}[place].as_uri()
    text = json.dumps({"url": origin, "dir_info": {"editable": True}})
    (info / "direct_url.json").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert course.editable_is_here() is (place == "here")


# --- interruptions ----------------------------------------------------------------------------


def test_a_half_made_environment_is_made_again(first_run):
    """The command before the first was killed in the middle of `python -m venv`:
    no pip yet, perhaps no Python."""
    copy, done = first_run
    assert done.stdout.startswith("Removing a Python environment that does not work")
    assert not (copy.venv / "gearworks-unfinished").exists()


def test_an_environment_whose_python_is_gone_is_not_used(course, ready):
    """As after the system's Python was replaced by a newer one."""
    assert course.usable(ready.venv)
    config = ready.venv / "pyvenv.cfg"
    lines = config.read_text(encoding="utf-8").splitlines()
    moved = [f"home = {ready.root / 'gone'}" if line.startswith("home") else line
             for line in lines]
    config.write_text("\n".join(moved), encoding="utf-8")
    assert not course.usable(ready.venv)


def test_a_folder_of_somebody_else_is_left_alone(new):
    new.venv.mkdir()
    (new.venv / "thesis.txt").write_text("my only copy", encoding="utf-8")
    done = new.run("chat")
    assert done.returncode == 1 and "holds thesis.txt" in done.stderr
    assert (new.venv / "thesis.txt").exists()


def test_killed_in_the_middle_of_pip(ready):
    """The next run takes up the work, and only then is the set-up recorded as complete."""
    slow = ready.slow_down_pip()
    process = ready.start("chat")
    wait_for((slow / "builds").exists, "pip to build the package")
    kill_tree(process)
    assert json.loads(ready.record.read_text(encoding="utf-8"))["complete"] is False
    (slow / "go").touch()
    done = ready.run("chat")
    assert done.returncode == 0, done.stderr
    assert [call["version"] for call in done.calls] == ["0.2", "0.2"]
    assert json.loads(ready.record.read_text(encoding="utf-8"))["complete"] is True


def test_a_package_that_pip_left_half_installed(ready):
    """pip takes a package for installed as soon as its metadata is there;
    a killed pip may have got no further."""
    assert ready.run("chat").returncode == 0
    ready.record.write_text('{"key": "", "complete": false}\n', encoding="utf-8")
    packages = site_packages(ready.venv)
    (packages / "gearworks-0.1.dist-info" / "INSTALLER").unlink()
    (packages / "gearworks" / "__main__.py").unlink()
    ready.require("gearworks==0.1\n--find-links .")
    done = ready.run("chat")
    assert done.returncode == 0, done.stderr
    assert "Installing again, since it was interrupted: gearworks" in done.stdout
    assert len(done.calls) == 2


@POSIX_ONLY
def test_ctrl_c(ready, course):
    """Exit code 130 and a word on how to go on; pip does not live on."""
    slow = ready.slow_down_pip()
    process = ready.start("chat")
    wait_for((slow / "builds").exists, "pip to build the package")
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "Stopped by Ctrl-C" in stderr and "run this command again" in stderr
    with open(ready.venv / "gearworks-setup.lock", "a+b") as lock:
        assert course.try_lock(lock)


def test_two_at_once(ready):
    """The second waits for the first, and then has nothing to do."""
    slow = ready.slow_down_pip()
    first = ready.start("chat")
    wait_for((slow / "builds").exists, "pip to build the package")
    second = ready.start("chat")
    assert "Another set-up" in second.stdout.readline()
    (slow / "go").touch()
    for process in (first, second):
        process.communicate(timeout=300)
        assert process.returncode == 0
    assert (slow / "builds").read_text(encoding="utf-8") == "build\n"


@POSIX_ONLY
def test_the_lock_lasts_as_long_as_pip(ready):
    """course.py alone is killed and its pip lives on: the next run waits for that pip."""
    slow = ready.slow_down_pip()
    first = ready.start("chat")
    wait_for((slow / "builds").exists, "pip to build the package")
    first.kill()
    second = ready.start("chat")
    assert "Another set-up" in second.stdout.readline()
    (slow / "go").touch()
    _, stderr = second.communicate(timeout=300)
    assert second.returncode == 0 and stderr.count('"version": "0.2"') == 2
    first.communicate()


# --- failures, each with what, why and what to try --------------------------------------------


def test_no_network(ready):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    del ready.environment["PIP_NO_INDEX"]
    ready.require("gearworks-from-the-network==1.0")
    done = ready.run("chat", PIP_INDEX_URL=f"http://127.0.0.1:{port}/simple", PIP_RETRIES="0")
    assert done.returncode == 1
    assert "Cannot download the course's packages: no connection" in done.stderr
    assert "No matching distribution found" in done.stderr    # pip's last words
    assert "Try  check the network" in done.stderr
    assert json.loads(ready.record.read_text(encoding="utf-8"))["complete"] is False


def test_the_model_cannot_be_fetched(settled):
    """Fetching says itself what is wrong:
    its exit code is passed on, and the command is not run."""
    done = settled.run("chat", FETCH_EXIT_CODE="7")
    assert done.returncode == 7
    assert [call["argv"][1] for call in done.calls] == ["fetch"]


def test_too_little_space_is_said_before_pip_starts(course, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage",
                        lambda path: shutil._ntuple_diskusage(10**12, 10**12, 2 * 10**9))
    course.require_space(10**9)
    with pytest.raises(course.Stop,
                       match=r"2\.0 GB are free on the disk of .*, 3\.0 GB are needed"):
        course.require_space(3 * 10**9)


@pytest.mark.parametrize(
    "log, what",
    [("ERROR: Could not install packages due to an OSError: [Errno 28] No space left",
      "not enough disk space"),
     ("error: externally-managed-environment", "may not be changed by pip"),
     ("WARNING: Retrying: SSLError(SSLCertVerificationError(1, '[SSL: "
      "CERTIFICATE_VERIFY_FAILED]", "is not trusted"),
     ("WARNING: Retrying: NameResolutionError: Temporary failure in name resolution",
      "no connection"),
     ("ERROR: Could not install packages due to an OSError: [Errno 13] Permission denied: 'x'",
      "Cannot write"),
     ("ERROR: No matching distribution found for torch==2.13.0", "no build for this Python"),
     ("2026-01-01T10:00:00,000   OSError: Readme file does not exist",
      "OSError: Readme file does not exist"),
     ("", "could not be installed")])
def test_what_pip_says_is_understood(course, log, what):
    stop = course.pip_failure(1, log)
    assert (what in str(stop) and "\n  Why  pip ended with exit code 1" in str(stop)
            and "\n  Try  " in str(stop))


@pytest.mark.parametrize("number, what",
                         [(errno.ENOSPC, "not enough disk space"),
                          (errno.EACCES, "Cannot write"), (errno.EROFS, "Cannot write"),
                          (errno.EIO, "The set-up failed")])
def test_what_the_system_says_is_understood(course, monkeypatch, capsys, number, what):
    def refuse(arguments):
        raise OSError(number, os.strerror(number), "the-file")

    monkeypatch.setitem(course.COMMANDS, "lab", refuse)
    assert course.main(["lab"]) == 1
    said = capsys.readouterr().err
    assert what in said and "the-file" in said and "\n  Try  " in said


@POSIX_ONLY
def test_a_read_only_folder(course, tmp_path, monkeypatch, capsys):
    """The system's real refusal, met as an ordinary user."""
    monkeypatch.setattr(course, "ROOT", tmp_path)
    monkeypatch.setattr(course, "VENV", tmp_path / ".venv")
    monkeypatch.setitem(course.COMMANDS, "lab", lambda arguments: course.make_venv())
    tmp_path.chmod(0o555)
    with ordinary_user():
        assert course.main(["lab"]) == 1
    tmp_path.chmod(0o755)
    assert "Permission denied" in capsys.readouterr().err


@contextlib.contextmanager
def ordinary_user():
    """Be nobody instead of root, whom permissions do not bind."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_read_only_environment_that_lacks_nothing(course, new, monkeypatch):
    def refuse(path):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(course, "ROOT", new.root)
    monkeypatch.setattr(course, "locked", refuse)
    monkeypatch.setattr(sys, "prefix", str(new.root))
    new.require(f"packaging=={metadata.version('packaging')}")
    course.set_up()
    new.require("packaging==0.1")
    with pytest.raises(OSError, match="Read-only"):
        course.set_up()


def test_a_failing_disk_is_not_taken_for_a_read_only_one(course, new, monkeypatch):
    def fail(path):
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(course, "ROOT", new.root)
    monkeypatch.setattr(course, "locked", fail)
    monkeypatch.setattr(sys, "prefix", str(new.root))
    new.require(f"packaging=={metadata.version('packaging')}")
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        course.set_up()


@pytest.mark.parametrize("version, maxsize, why", [
    ((3, 10, 4), 2**63 - 1, "this is Python 3.10.4"),
    ((3, 14, 0), 2**63 - 1, "this is Python 3.14.0"),
    ((3, 12, 1), 2**31 - 1, "32-bit"),
])
def test_the_wrong_python(course, monkeypatch, version, maxsize, why):
    monkeypatch.setattr(sys, "version_info", (*version, "final", 0))
    monkeypatch.setattr(sys, "maxsize", maxsize)
    with pytest.raises(course.Stop) as stop:
        course.require_supported_python()
    assert ("Python 3.11-3.13" in str(stop.value) and why in str(stop.value)
            and "\n  Try  " in str(stop.value))


def test_an_old_python_can_say_so(course):
    """The file parses on Python 3.8, and its limits are those of the package."""
    ast.parse((ROOT / "course.py").read_text(encoding="utf-8"), feature_version=(3, 8))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    oldest, (major, minor) = course.OLDEST, course.NEWEST
    assert project["requires-python"] == f">={oldest[0]}.{oldest[1]},<{major}.{minor + 1}"


def test_only_the_standard_library_is_imported():
    """But for packaging, which is asked for only to see what is installed."""
    tree = ast.parse((ROOT / "course.py").read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import)
             for alias in node.names}
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert ({name.partition(".")[0] for name in names} - set(sys.stdlib_module_names)
            == {"packaging"})


def test_pip_is_missing(ready):
    """A venv without pip gets Python's own;
    where that is missing too, the message says how to get one."""
    for pip in site_packages(ready.venv).glob("pip*"):
        shutil.rmtree(pip)
    lacking = ready.root / "lacking"
    lacking.mkdir()
    (lacking / "ensurepip.py").write_text("raise SystemExit(1)\n", encoding="utf-8")
    done = ready.run("chat", PYTHONPATH=str(lacking))
    assert done.returncode == 1
    assert "this Python has no pip" in done.stderr and "\n  Try  " in done.stderr
    done = ready.run("chat")
    assert done.returncode == 0, done.stderr


def test_venv_is_missing(new):
    """As on Debian without python3-venv."""
    lacking = new.root / "lacking"
    lacking.mkdir()
    (lacking / "venv.py").write_text("raise SystemExit('ensurepip is not available')\n",
                                     encoding="utf-8")
    done = new.run("chat", PYTHONPATH=str(lacking))
    assert done.returncode == 1
    assert "Why  ensurepip is not available" in done.stderr and "-venv" in done.stderr


def test_conflicts_of_other_packages_are_only_mentioned(course, new, monkeypatch, capsys):
    monkeypatch.setattr(course, "ROOT", new.root)
    new.require("zope_interface==1.0")
    course.report_conflicts("their-package 1.0 has requirement numpy<2, but you have numpy "
                            "2.4.\n")
    assert "their-package 1.0" in capsys.readouterr().out
    with pytest.raises(course.Stop, match="zope.interface 1.0 requires six"):
        course.report_conflicts("zope.interface 1.0 requires six, which is not installed.\n")


# --- commands ---------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [[], ["help"], ["--help"], ["lab", "--help"]])
def test_help(new, arguments):
    done = new.run(*arguments)
    assert done.returncode == 0 and done.stdout.startswith("usage: python course.py COMMAND")
    assert not new.venv.exists()


@pytest.mark.parametrize("arguments, words",
                         [(["tset"], ["Unknown command: tset", "Try  python course.py test"]),
                          (["lab", "--port=9999"],
                           ["unknown argument --port=9999",
                            "python course.py lab -- --port=9999"])])
def test_usage_errors(new, arguments, words):
    done = new.run(*arguments)
    assert done.returncode == 2
    assert all(word in done.stderr for word in words)
    assert not new.venv.exists()


def test_grade_asks_the_autograder(settled):
    done = settled.run("grade", "submitted", "--jobs", "2")
    assert done.calls[-1]["argv"] == ["autograder", "grade", "submitted", "--jobs", "2"]


def test_progress_asks_the_autograder(settled):
    done = settled.run("progress")
    assert [call["argv"] for call in done.calls] == [["gearworks", "fetch", "smollm2"],
                                                     ["autograder", "progress"]]


def test_progress_installs_nothing(new):
    done = new.run("progress")
    assert done.returncode == 1 and not new.venv.exists() and not done.calls
    assert "this command installs nothing" in done.stderr
    assert "Try  python course.py lab" in done.stderr


def test_serve_serves_the_course_s_model(settled):
    done = settled.run("serve", "--port", "80")
    assert done.calls[-1]["argv"] == ["gearworks", "serve", "smollm2", "--port", "80"]
    assert done.stdout == "an answer\n"    # and not the path that `fetch` prints


def test_lab_opens_the_chapters(settled):
    """JupyterLab's root is the course; the chapters are in front once there are any."""
    done = settled.run("lab", "--no-browser")
    assert "There are no chapters here yet" in done.stdout
    assert {"--no-browser", "--LabApp.default_url=/lab"} < set(done.calls[-1]["argv"])
    # a learner's, without the menus of nbgrader
    assert (done.calls[-1]["jupyter"].split(os.pathsep)[0]
            == str(settled.root / "autograder" / "learner_lab"))
    (settled.root / "chapters").mkdir()
    (settled.root / "chapters" / "01_overview.ipynb").write_text("{}", encoding="utf-8")
    argv = settled.run("lab", "--", "--port=9999").calls[-1]["argv"]
    assert argv[0] == "jupyterlab" and argv[-1] == "--port=9999" and "--no-browser" not in argv
    assert ({f"--ServerApp.root_dir={settled.root}", "--LabApp.default_url=/lab/tree/chapters"}
            < set(argv))


def test_the_suite_runs_and_its_exit_code_is_passed_on(new):
    """All of solutions/tests, or the part of it that is named, from whatever folder."""
    tests = new.root / "solutions" / "tests"
    tests.mkdir(parents=True)
    (tests / "test_good.py").write_text("def test_good(): pass\n", encoding="utf-8")
    (tests / "test_bad.py").write_text("def test_bad(): assert False\n", encoding="utf-8")
    here = {"python": sys.executable, "GEARWORKS_SETUP": "off",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = new.run("test", **here)
    assert done.returncode == 1 and "1 failed, 1 passed" in done.stdout
    done = new.run("test", "solutions/tests/test_good.py::test_good", "-q", **here)
    assert done.returncode == 0 and "1 passed" in done.stdout


def test_the_long_tests_get_the_clients_that_they_need(ready):
    """Short tests want none of it, and where nothing is missing, pip is not asked."""
    write_wheel(ready.root / WHEEL.format("0.7"), "0.7")
    clients = ready.root / "requirements-clients.txt"
    clients.write_text("./" + WHEEL.format("0.7") + "\n", encoding="utf-8")
    log = ready.venv / "gearworks-clients.log"
    ready.run("test")
    assert not log.exists()
    ready.run("test", "--long")
    assert "0.7" in log.read_text(encoding="utf-8")
    log.unlink()
    clients.write_text("# nothing\n", encoding="utf-8")
    ready.run("test", "--long")
    assert not log.exists()


def test_the_real_jupyterlab_answers(new, tmp_path):
    """`lab --no-browser`, in the environment that runs these tests,
    serves the chapters until it is told to stop."""
    (new.root / "chapters").mkdir()
    (new.root / "chapters" / "01_overview.ipynb").write_text(
        '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}', encoding="utf-8"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = f"http://127.0.0.1:{port}"
    jupyter = {f"JUPYTER_{kind}_DIR": str(tmp_path / kind)
               for kind in ("CONFIG", "DATA", "RUNTIME")}
    process = new.start("lab", "--no-browser", "--", f"--ServerApp.port={port}",
                        "--ServerApp.port_retries=0", "--IdentityProvider.token=secret",
                        python=sys.executable, GEARWORKS_SETUP="off", **jupyter)
    try:
        def page():
            assert process.poll() is None, process.communicate()
            with contextlib.suppress(urllib.error.URLError):
                return ask(f"{server}/lab/tree/chapters")

        wait_for(lambda: page() is not None, "JupyterLab")
        assert b"JupyterLab" in page()[1]
        assert ask(server + "/")[0].startswith(server + "/lab/tree/chapters")
        listed = json.loads(ask(server + "/api/contents/")[1])["content"]
        assert {"course.py", "chapters"} <= {entry["name"] for entry in listed}
        ask(server + "/api/shutdown", method="POST")
        process.communicate(timeout=300)
        assert process.returncode == 0
    finally:
        if process.poll() is None:
            kill_tree(process)


def ask(url, method="GET"):
    """The address that finally answered, and its answer."""
    request = urllib.request.Request(url, headers={"Authorization": "token secret"},
                                     method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.url, answer.read()
