"""The front door of Gearworks: `python course.py COMMAND` sets up what it needs, then runs it.

Commands run in the active environment, else in the .venv beside this file, which the first one
makes. What was installed is recorded in gearworks-setup.json inside that environment, so that
the next run goes straight to its command. Only the standard library is needed, and the syntax
keeps to Python 3.8, so that an old Python can say which one is wanted. Left out on purpose:
upgrading pip, choosing a build of PyTorch, removing anything outside .venv.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
# there from the first moment of .venv until pip works in it
UNFINISHED = VENV / "gearworks-unfinished"
TESTS = [ROOT / "autograder" / "tests", ROOT / "solutions" / "tests"]    # longest first
# A process for each processor, up to four, since one needs 2 GB. A file stays in its process,
# where what its tests share is made once.
SIDE_BY_SIDE = ["-p", "xdist", "-n", "logical", "--maxprocesses", "4",
                "--dist", "loadfile", "--no-loadscope-reorder"]
CLIENTS = "requirements-clients.txt"
MODEL = "smollm2"
WORLD = "https://github.com"                              # who reaches it is on the network
LAB_CONFIG = ROOT / "autograder" / "learner_lab"          # of JupyterLab, as learners see it
OLDEST, NEWEST = (3, 11), (3, 13)
MB, GB = 10**6, 10**9
READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)

HELP = """\
usage: python course.py COMMAND [arguments]

  lab [--no-browser] [-- ARGS]   open the course in JupyterLab (ARGS go to JupyterLab)
  test [--long] [ARGS]           run the test suite, with --long all of it (ARGS go to pytest)
  chat [MODEL] [ARGS]            talk with the model in this terminal
  book [--publish] [ARGS]        build the HTML book; to publish it, figures that were measured
                                 on a busy machine are measured again, or refused
  links [ARGS]                   ask every page that the book links to whether it is there
  serve [MODEL] [ARGS]           serve the model through an OpenAI-compatible API
  grade SUBMITTED [ARGS]         grade what a class has handed in, a folder or a zip file
  progress                       show which gears of your engine are finished
  certificate [ARGS]             try your engine, and write a page that shows it

Each command first sets up what it needs: a Python environment (the active one, else .venv in
this folder), the packages of requirements.txt, and the model. The first time takes minutes,
after that a moment.

  GEARWORKS_SETUP=off            trust this interpreter as it is: install and fetch nothing
"""


class Stop(Exception):
    """The command cannot go on. Three parts: what could not be done, why, and what to try."""

    def __init__(self, what, why, hint, code=1):
        why, hint = why.replace("\n", "\n       "), hint.replace("\n", "\n       ")
        super().__init__("{}\n  Why  {}\n  Try  {}".format(what, why, hint))
        self.code = code


def say(text):
    # unflushed text would be lost when another program takes this process over
    print(text, flush=True)


# --- which Python -----------------------------------------------------------------------------


def require_supported_python():
    """Stop unless this interpreter is one that the course's packages are built for."""
    version = "{}.{}.{}".format(*sys.version_info[:3])
    needed = "Python {}.{}-{}.{}".format(*OLDEST, *NEWEST)
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        others = ["python3.{}".format(minor) for minor in range(NEWEST[1], OLDEST[1] - 1, -1)]
        found = [name for name in others if answers(name)]
        arguments = " ".join(sys.argv[1:])
        hint = "install Python 3.12 and run this command with it"
        if found:
            hint = "{} course.py {}".format(found[0], arguments)
        elif os.name == "nt":
            hint = "install Python 3.12, then: py -3.12 course.py {}".format(arguments)
        if Path(sys.prefix).resolve() == VENV:
            hint = "delete the folder {}, then: {}".format(VENV, hint)
        elif sys.prefix != sys.base_prefix:
            hint = "leave this environment (deactivate), then: {}".format(hint)
        raise Stop("The course needs {}".format(needed),
                   "this is Python {} ({})".format(version, sys.executable), hint)
    if sys.maxsize < 2**32:
        raise Stop("The course needs a 64-bit {}".format(needed),
                   "this is a 32-bit Python ({}), and PyTorch is built for 64 bits only".format(
                       sys.executable),
                   "install the 64-bit Python 3.12 and run this command with it")


def answers(name):
    """Whether a program of this name starts: it may be a version manager's empty shell."""
    path = shutil.which(name)
    return (path is not None
            and subprocess.run([path, "-c", ""], capture_output=True).returncode == 0)


def python_of(prefix):
    """The interpreter of the environment in the folder `prefix`, or None if there is none."""
    # POSIX; venv and conda on Windows
    for name in ("bin/python", "Scripts/python.exe", "python.exe"):
        if (prefix / name).is_file():
            return prefix / name
    return None


def active_prefix():
    """The folder of the active venv or conda environment, or None.

    conda's `base` does not count: shells activate it unasked, and our pins could break the
    conda that lives in it.
    """
    if sys.prefix != sys.base_prefix:
        return Path(sys.prefix)
    activated = [("VIRTUAL_ENV", "pyvenv.cfg")]
    if os.environ.get("CONDA_DEFAULT_ENV") != "base":
        activated.append(("CONDA_PREFIX", "conda-meta"))
    # without its mark the interpreter in a folder belongs to another folder
    for variable, mark in activated:
        prefix = Path(os.environ.get(variable, ""))
        if variable in os.environ and (prefix / mark).exists() and python_of(prefix):
            return prefix
    return None


def enter_environment():
    """Go on where the packages belong: return if that is here, else run this command there.

    Returns False where nothing may be installed and nothing need be: `pip install -r
    requirements.txt` was run outside of any environment.
    """
    prefix = active_prefix()
    if prefix is None:
        if not usable(VENV):
            require_supported_python()
            if not unmet_requirements():
                return False
            make_venv()
        prefix = VENV
    if prefix.resolve() != Path(sys.prefix).resolve():
        # as its activate script does: JupyterLab's terminals and `!pip` then use it too
        if prefix == VENV:
            os.environ["VIRTUAL_ENV"] = str(VENV)
            os.environ["PATH"] = os.pathsep.join([str(python_of(VENV).parent),
                                                  os.environ.get("PATH", os.defpath)])
        hand_over([python_of(prefix), ROOT / "course.py", *sys.argv[1:]])
    require_supported_python()
    return True


def usable(venv):
    """Whether `venv` is whole: with its interpreter, the Python it was made from, and pip."""
    try:
        lines = (venv / "pyvenv.cfg").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return False
    home = dict(line.partition(" = ")[::2] for line in lines).get("home", "")
    return (python_of(venv) is not None and os.path.isdir(home)
            and not (venv / UNFINISHED.name).exists())


def make_venv():
    """Make .venv, in place of a half-made one if there is one."""
    with locked(ROOT / ".venv.lock"):
        if usable(VENV):
            return    # another run of this program made it while we waited
        if VENV.exists():
            remove_broken_venv()
        say("Making a Python environment in {} (30 MB, about 10 seconds)".format(VENV))
        VENV.mkdir()
        UNFINISHED.touch()
        made = subprocess.run([sys.executable, "-m", "venv", "--prompt", "gearworks",
                               str(VENV)],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              encoding="utf-8", errors="replace")
        if any(sign in made.stdout for sign in SPACE):
            raise no_space(last_lines(made.stdout))
        if made.returncode != 0:
            raise Stop("Could not make a Python environment in {}".format(VENV),
                       last_lines(made.stdout)
                       or "python -m venv ended with exit code {}".format(made.returncode),
                       "on Debian and Ubuntu: sudo apt install python{}.{}-venv\n".format(
                           *sys.version_info[:2])
                       + "elsewhere: install Python from python.org, or activate an "
                         "environment of your own first")
        UNFINISHED.unlink()


def remove_broken_venv():
    """Remove what an interrupted `python -m venv` left, nothing that could be somebody's."""
    parts = {"bin", "include", "lib", "lib64", "scripts", "share", "etc", "pyvenv.cfg",
             ".gitignore"}
    names = [entry.name for entry in VENV.iterdir()]
    strange = [name for name in names
               if name.lower() not in parts and not name.startswith("gearworks-")]
    if strange and not (VENV / "pyvenv.cfg").exists():
        raise Stop(
            "Cannot make a Python environment in {}".format(VENV),
            "that folder is no Python environment: it holds {}".format(strange[0]),
            "move it away, or activate an environment of your own first",
        )
    say("Removing a Python environment that does not work: {}".format(VENV))
    shutil.rmtree(VENV)


# --- packages ---------------------------------------------------------------------------------


def is_set_up():
    """Whether this environment's record says that it is as requirements.txt wants it."""
    return read_record(Path(sys.prefix) / "gearworks-setup.json") == {"key": setup_key(),
                                                                      "complete": True}


def set_up():
    """Bring this environment to requirements.txt, unless its record says it is there."""
    if is_set_up():
        return
    record = Path(sys.prefix) / "gearworks-setup.json"
    wanted = {"key": setup_key(), "complete": True}
    try:
        with locked(Path(sys.prefix) / "gearworks-setup.lock") as lock_file:
            before = read_record(record)
            if before == wanted:
                return    # another run of this program did it while we waited
            if before.get("complete") is False:
                forget_half_installed(since=record.stat().st_mtime)
            # without a record: the packages may have been installed by hand
            if before or unmet_requirements():
                write_record(record, {**wanted, "complete": False})
                install(lock_file)
            write_record(record, wanted)
            if record.parent.resolve() == VENV:
                UNFINISHED.unlink(missing_ok=True)
    except OSError as error:
        if error.errno not in READ_ONLY or unmet_requirements():
            raise
        # Somebody else's environment, and nothing is missing from it: no record can be kept,
        # none is needed.


def setup_key():
    """A digest of what decides what is installed: change any of it, and set-up runs again."""
    import hashlib
    import tomllib

    with open(ROOT / "pyproject.toml", "rb") as file:
        project = tomllib.load(file)
    build = {"build-system": project.get("build-system"),
             "hatch": project.get("tool", {}).get("hatch")}
    parts = [
        (ROOT / "requirements.txt").read_text(encoding="utf-8"),
        json.dumps([project["project"], build], sort_keys=True),
        sys.version,
        str(ROOT),    # the editable install points here, and breaks when the folder is moved
    ]
    return hashlib.sha256("\0".join(parts).encode("utf-8")).hexdigest()


def read_record(path):
    """What was recorded about this environment's set-up; {} when nothing readable was."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def write_record(path, record):
    """Replace the record at once: a reader sees the old one or the new one, never a half."""
    draft = path.with_name(path.name + ".new")
    draft.write_text(json.dumps(record) + "\n", encoding="utf-8")
    os.replace(draft, path)


def unmet_requirements(name="requirements.txt"):
    """The lines of a requirements file that this interpreter does not meet yet."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    lines = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    try:
        from packaging.requirements import InvalidRequirement, Requirement
    except ImportError:
        return lines    # packaging is itself one of the pins
    unmet = []
    for line in lines:
        try:
            met = editable_is_here() if line == "-e ." else is_met(Requirement(line))
        except InvalidRequirement:    # a path or an option: pip's business
            met = False
        if not met:
            unmet.append(line)
    return unmet


def is_met(requirement):
    """Whether `requirement` is met (2.13.0+cpu meets ==2.13.0), or asks for nothing here."""
    if requirement.marker and not requirement.marker.evaluate():
        return True
    version = installed_version(requirement.name)
    return version is not None and requirement.specifier.contains(version, prereleases=True)


def installed_version(name):
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def editable_is_here():
    """Whether `gearworks` is installed as an editable package of this very folder."""
    from importlib import metadata

    try:
        origin = json.loads(metadata.distribution("gearworks").read_text("direct_url.json")
                            or "{}")
    except metadata.PackageNotFoundError:
        return False
    return (origin.get("dir_info", {}).get("editable", False)
            and origin.get("url") == ROOT.as_uri())


def forget_half_installed(since):
    """Drop the metadata of packages that a pip killed after the time `since` left incomplete.

    pip takes whatever has metadata for installed. It copies a package's files, then writes
    INSTALLER, and last a RECORD of every file's size; so a package that the RECORD does not fit
    is one that pip had not finished.
    """
    import sysconfig

    for folder in {Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")}:
        # where pip keeps an old version while it installs the new one
        for leftover in folder.glob("~*"):
            shutil.rmtree(leftover, ignore_errors=True)
        for metadata in folder.glob("*.dist-info"):
            if metadata.stat().st_mtime >= since - 2 and not is_whole(metadata):
                package = metadata.name.split("-")[0]
                say("Installing again, since it was interrupted: {}".format(package))
                shutil.rmtree(metadata)


def is_whole(metadata):
    """Whether every file in a .dist-info folder's RECORD is there, with the recorded size."""
    import csv

    try:
        rows = list(csv.reader((metadata / "RECORD").read_text(encoding="utf-8").splitlines()))
        sizes = {row[0]: row[2] for row in rows if row}
        return (metadata.name + "/INSTALLER" in sizes
                and all((metadata.parent / name).stat().st_size == int(size)
                        for name, size in sizes.items() if size))
    except (OSError, ValueError, IndexError):
        return False


def install(lock_file):
    """Run pip on requirements.txt, its progress shown; on failure stop with what it logged."""
    require_pip()
    torch_missing = ("torch==" in (ROOT / "requirements.txt").read_text(encoding="utf-8")
                     and not torch_is_pinned())
    require_space(3 * GB if torch_missing else 500 * MB)
    if torch_missing and sys.platform == "darwin" and os.uname().machine == "x86_64":
        raise Stop(
            "PyTorch cannot be installed here",
            "there are no builds of it for Macs with an Intel processor (or for an Intel "
            "Python on an Apple one)",
            "on Apple silicon: install the arm64 or universal Python 3.12 from python.org\n"
            "on an Intel Mac: use conda's PyTorch in an active conda environment, or run the "
            "course on Colab")
    if torch_missing:
        say("Installing the course's packages: about 400 MB to download, 1.7 GB on disk, 2 to "
            "10 minutes")
    else:
        say("Installing what is missing of the course's packages: up to 250 MB, 1 to 5 minutes")
    if torch_missing and sys.platform == "linux":
        say(LINUX_NOTE.format(python=sys.executable))
    say("pip's last step, when everything is downloaded, takes a minute or two without a word")
    log = Path(sys.prefix) / "gearworks-setup.log"
    log.unlink(missing_ok=True)
    pip = [sys.executable, "-m", "pip"]
    code = run([*pip, "install", "--disable-pip-version-check", "--no-input", "--log", log,
                "-r", "requirements.txt"], env=pip_environment(), keep_open=lock_file)
    if code != 0:
        logged = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        raise pip_failure(code, logged)
    say("Checking that the packages fit together (a few seconds)")
    checked = subprocess.run(
        [*pip, "check", "--disable-pip-version-check"],
        env=pip_environment(), stdout=subprocess.PIPE, encoding="utf-8", errors="replace",
    )
    if checked.returncode != 0:
        report_conflicts(checked.stdout)


def add_clients():
    """Install other people's clients and Ray, which only the long tests need."""
    if not unmet_requirements(CLIENTS):
        return
    require_space(GB)
    say("Installing other people's clients for the long tests: about 250 MB to download, 1 GB "
        "on disk, 1 to 5 minutes")
    with locked(Path(sys.prefix) / "gearworks-setup.lock") as lock_file:
        log = Path(sys.prefix) / "gearworks-clients.log"
        log.unlink(missing_ok=True)
        code = run([sys.executable, "-m", "pip", "install", "--disable-pip-version-check",
                    "--no-input", "--log", log, "-r", CLIENTS], env=pip_environment(),
                   keep_open=lock_file)
        if code != 0:
            raise pip_failure(code, log.read_text(encoding="utf-8", errors="replace")
                              if log.exists() else "")


LINUX_NOTE = """\
  Note  On Linux pip's own choice of PyTorch is the CUDA build: several GB more, of use only
        with an NVIDIA GPU. For the small CPU build stop here (Ctrl-C) and run the command that
        pytorch.org shows for Linux, Pip and CPU, with the version of torch that
        requirements.txt names and with this in place of its pip or pip3:
          {python} -m pip
        Then run the present command again: it keeps that build."""


def torch_is_pinned():
    """Whether the installed PyTorch is the version that requirements.txt names."""
    version = installed_version("torch")
    pins = (ROOT / "requirements.txt").read_text(encoding="utf-8").split()
    return version is not None and "torch==" + version.partition("+")[0] in pins


def require_pip():
    """Stop unless this interpreter has pip; a venv gets it first, if Python brings it along."""
    if module_runs("pip", "help"):
        return
    if (sys.prefix != sys.base_prefix and module_runs("ensurepip", "--upgrade")
        and module_runs("pip", "help")):
        return
    raise Stop("Cannot install the course's packages",
               "this Python has no pip: {}".format(sys.executable),
               "conda: conda install pip    uv: uv pip install pip    "
               "Debian and Ubuntu: sudo apt install python3-pip\n"
               "or leave this environment (deactivate) and run this command again: it makes "
               "one of its own")


def module_runs(*command):
    """Run `python -m ...` without a word and say whether it succeeded."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    ended = subprocess.run([sys.executable, "-m", *command], env=pip_environment(), **quiet)
    return ended.returncode == 0


def pip_environment():
    """Variables with which pip does not fail over a character that the console cannot show."""
    encoding = os.environ.get("PYTHONIOENCODING", "").partition(":")[0]
    return {**os.environ, "PYTHONIOENCODING": encoding + ":replace"}


def require_space(needed):
    """Stop unless `needed` bytes are free for the packages, and 1 GB where pip unpacks them."""
    for folder, bytes_needed in ((Path(sys.prefix), needed),
                                 (Path(tempfile.gettempdir()), min(needed, 1 * GB))):
        free = shutil.disk_usage(folder).free
        if free < bytes_needed:
            raise no_space("{:.1f} GB are free on the disk of {}, {:.1f} GB are needed".format(
                free / GB, folder, bytes_needed / GB))


def no_space(why):
    return Stop("There is not enough disk space to set the course up", why,
                "free some space (pip cache purge empties pip's cache), or move the course to "
                "a larger disk;\n"
                "for more room for temporary files set TMPDIR (Windows: TEMP) to a folder on a "
                "larger disk")


# What pip's log says, most telling first, and what to make of it.
SPACE = ("No space left on device", "[Errno 28]", "[WinError 112]",
         "not enough space on the disk")
MANAGED = ("externally-managed-environment",)
CERTIFICATE = ("CERTIFICATE_VERIFY_FAILED", "certificate verify failed")
NETWORK = ("NewConnectionError", "Failed to establish a new connection", "ConnectTimeoutError",
           "ReadTimeoutError", "ProxyError", "SSLError", "Connection refused",
           "Name or service not known", "name resolution", "getaddrinfo failed",
           "ConnectionResetError", "Network is unreachable", "RemoteDisconnected",
           "IncompleteRead")
DENIED = ("[Errno 13]", "[WinError 5]", "[WinError 32]", "[Errno 30]")
NO_BUILD = ("No matching distribution found", "Could not find a version that satisfies")
RESUME = "run this command again: what pip has downloaded is kept"


def pip_failure(code, log):
    """The Stop that tells what pip's log says went wrong."""
    why = "pip ended with exit code {}\n{}".format(code, told_by(log))

    def logged(signs):
        return any(sign in log for sign in signs)

    # On a disk that is quite full not even the log gets its last lines.
    if logged(SPACE) or shutil.disk_usage(sys.prefix).free < 20 * MB:
        return no_space(why)
    if logged(MANAGED):
        return Stop("This Python may not be changed by pip", why,
                    "leave the active environment (deactivate) and run this command again: it "
                    "makes one of its own in .venv")
    if logged(CERTIFICATE):
        return Stop("Cannot download the course's packages: the connection is not trusted", why,
                    "check the clock; behind a company's or school's proxy, set PIP_CERT to "
                    "the file of its certificate;\n"
                    "then " + RESUME)
    if logged(NETWORK):
        return Stop(
            "Cannot download the course's packages: no connection", why,
            "check the network (and HTTPS_PROXY behind a proxy), then " + RESUME,
        )
    if logged(DENIED):
        return Stop("Cannot write to the Python environment {}".format(sys.prefix), why,
                    "close programs that use it (JupyterLab, editors), or copy the course into "
                    "a folder of your own;\n"
                    "then run this command again")
    if logged(NO_BUILD):
        return Stop("A package has no build for this Python or system", why,
                    "use Python 3.12 on a current 64-bit Linux, macOS or Windows (delete .venv "
                    "to change Python);\n"
                    "the same message comes when the network is cut off: check that too")
    return Stop(
        "The course's packages could not be installed", why,
        "{}; the whole log is in {}".format(RESUME, Path(sys.prefix) / "gearworks-setup.log"),
    )


def told_by(log):
    """The lines of pip's log that name errors: its first exception, and pip's last words."""
    import re

    # without the time stamps
    lines = [re.sub(r"^\S+T\S+ ", "", line).strip() for line in log.splitlines()]
    raised = [line for line in lines if re.match(r"(?!pip\.)[\w.]*(Error|Exception): ", line)]
    errors = [line for line in lines
              if line.startswith("ERROR: ") and "[present-rich]" not in line]
    return last_lines("\n".join(raised[:1] + errors[-3:])) or last_lines("\n".join(lines))


def last_lines(text, count=4):
    """The last `count` lines of `text` that say something."""
    return "\n".join([line.strip()[:200] for line in text.splitlines()
                      if line.strip()][-count:])


def report_conflicts(conflicts):
    """Stop on a conflict of the course's packages; mention others, which were there before."""
    import re

    def normalised(name):
        return re.sub("[-_.]+", "-", name).lower()

    pins = {normalised(line.partition("==")[0])
            for line in (ROOT / "requirements.txt").read_text("utf-8").splitlines()}
    ours = [line for line in conflicts.splitlines()
            if normalised(line.split(" ")[0]) in {*pins, "gearworks"}]
    if ours:
        raise Stop("The course's packages do not fit together in this environment",
                   last_lines("\n".join(ours), 3),
                   "leave this environment (deactivate) and run this command again: it makes "
                   "one of its own in .venv")
    say("  Note  Other packages in this environment wanted other versions:\n        {}".format(
        last_lines(conflicts, 3).replace("\n", "\n        ")))


# --- processes --------------------------------------------------------------------------------


def run(command, keep_open=None, **options):
    """Run a program in the course's folder to its end, or to Ctrl-C; returns its exit code.

    keep_open: a file that the program inherits where the system can, and with it the lock on
    it; should this process be killed, the lock lasts as long as the program. options: as of
    subprocess.Popen.
    """
    if keep_open is not None and os.name != "nt":
        options["pass_fds"] = [keep_open.fileno()]
    process = subprocess.Popen([str(part) for part in command], cwd=str(ROOT), **options)
    try:
        return process.wait()
    except KeyboardInterrupt:
        # a terminal's Ctrl-C reached it too
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)
        process.terminate()
        process.wait()
        raise


def hand_over(command, folder=None):
    """End as this program: it takes this process over; on Windows, none can: we wait for it."""
    command = [str(part) for part in command]
    if folder is not None:
        os.chdir(str(folder))
    if os.name != "nt":
        os.execv(command[0], command)
    process = subprocess.Popen(command)
    while True:
        try:
            sys.exit(process.wait())
        except KeyboardInterrupt:   # the program got the same Ctrl-C, and decides what it means
            continue


@contextlib.contextmanager
def locked(path):
    """Hold the lock on the file `path`, waiting for it if need be; yields the open file.

    The operating system keeps the lock and drops it when its holders end, however they end:
    none is ever stale.
    """
    with open(path, "a+b") as file:
        waiting = False
        while not try_lock(file):
            if not waiting:
                say("Another set-up of this environment is running: waiting for it (Ctrl-C to "
                    "stop)")
            waiting = True
            time.sleep(0.2)
        yield file


def try_lock(file):
    """Take the lock on an open file if it is free, and say whether it was.
    Closing the file gives it back."""
    if os.name == "nt":
        import msvcrt

        file.seek(0)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:    # a network disk without locks: go on without, as a single user may
        return True
    return True


# --- commands ---------------------------------------------------------------------------------


def prepare(model=None, may_install=True):
    """Be in the right interpreter, with the packages installed and `model` on this disk.

    Without `may_install`, raise Stop where packages are missing.
    """
    if os.environ.get("GEARWORKS_SETUP") == "off":
        require_supported_python()
        return
    if not may_install and active_prefix() is None and not usable(VENV):
        require_packages()
    if enter_environment():
        if may_install:
            set_up()
        elif not is_set_up():
            require_packages()
    if model is not None:
        code = run([sys.executable, "-m", "gearworks", "fetch", model],
                   stdout=subprocess.DEVNULL)
        if code != 0:
            sys.exit(code)    # it has said why on stderr, where its progress bar is too


def require_packages():
    """Raise Stop where packages are missing, for a command that installs nothing."""
    missing = unmet_requirements()
    if missing:
        raise Stop("the course is not set up here",
                   "{} packages are missing, and this command installs nothing".format(
                       len(missing)),
                   "python course.py lab    (it installs what is missing, and opens the "
                   "chapters)")


def lab(arguments):
    ours, _, theirs = partition(arguments, "--")
    unknown = [argument for argument in ours if argument != "--no-browser"]
    if unknown:
        raise Stop("python course.py lab: unknown argument {}".format(unknown[0]),
                   "of its own it knows --no-browser only",
                   "python course.py lab -- {}    (what follows -- goes to JupyterLab)".format(
                       " ".join(unknown)),
                   code=2)
    prepare(MODEL)
    chapters = any((ROOT / "chapters").glob("*.ipynb"))
    if not chapters:
        say("There are no chapters here yet: opening the course's folder")
    command = [sys.executable, "-m", "jupyterlab", "--ServerApp.root_dir={}".format(ROOT),
               *ours]
    command.append("--LabApp.default_url=/lab{}".format("/tree/chapters" if chapters else ""))
    if os.name != "nt" and os.geteuid() == 0:
        command.append("--allow-root")    # in a container there is nobody else to be
    # without the menus of nbgrader, which are an instructor's
    places = [str(LAB_CONFIG), os.environ.get("JUPYTER_CONFIG_PATH")]
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(filter(None, places))
    hand_over([*command, *theirs], ROOT)


def test(arguments):
    prepare(MODEL)
    if "--long" in arguments and os.environ.get("GEARWORKS_SETUP") != "off":
        add_clients()
    named = any(folder == path or folder in path.parents for folder in TESTS
                for path in map(test_path, arguments))
    everything = [] if named else [*SIDE_BY_SIDE, *filter(Path.is_dir, TESTS)]
    hand_over([sys.executable, "-m", "pytest", *everything, *arguments], ROOT)


def test_path(argument):
    """The file or folder that a pytest argument names (`path::test`)."""
    return (ROOT / argument.partition("::")[0]).resolve()


def chat(arguments):
    talk(["chat"], arguments)


def serve(arguments):
    talk(["serve"], arguments)


def talk(command, arguments):
    """Run a `gearworks` command on the model that the first argument names, or the course's."""
    model = [] if arguments and not arguments[0].startswith("-") else [MODEL]
    prepare(*model)
    hand_over([sys.executable, "-m", "gearworks", *command, *model, *arguments])


def book(arguments):
    prepare(MODEL)
    if "--publish" in arguments:
        arguments = [argument for argument in arguments if argument != "--publish"]
        os.environ["GEARWORKS_PUBLISH"] = "1"
    hand_over([sys.executable, "-c", "from jupyter_book.cli.main import main; main()", "build",
               ".", *arguments], ROOT)


def links(arguments):
    prepare(MODEL)
    if not is_online():
        say("There is no network: links to other sites were not checked")
        return
    hand_over([sys.executable, "-c", "from jupyter_book.cli.main import main; main()", "build",
               ".", "--builder", "linkcheck", *arguments], ROOT)


def is_online():
    """Whether the world can be reached, through a proxy where one is set."""
    from urllib.error import HTTPError, URLError
    from urllib.request import urlopen

    try:
        urlopen(WORLD, timeout=10).close()
    except HTTPError:
        return True      # somebody has answered
    except (URLError, OSError):
        return False
    return True


def grade(arguments):
    prepare(MODEL)
    hand_over([sys.executable, "-m", "autograder", "grade", *arguments])


def progress(arguments):
    # some checks are about the model's vocabulary and its weights
    prepare(MODEL, may_install=False)
    hand_over([sys.executable, "-m", "autograder", "progress", *arguments])


def certificate(arguments):
    prepare(MODEL)
    hand_over([sys.executable, "-m", "autograder", "certificate", *arguments])


def partition(arguments, separator):
    """Split a list at the first `separator`, as str.partition does."""
    if separator not in arguments:
        return arguments, [], []
    at = arguments.index(separator)
    return arguments[:at], [separator], arguments[at + 1 :]


COMMANDS = {"lab": lab, "test": test, "chat": chat, "book": book, "links": links,
            "serve": serve, "grade": grade, "progress": progress, "certificate": certificate}


def main(arguments):
    """Run one command; returns the exit code, unless the command takes this process over."""
    if (not arguments or arguments[0] in ("help", "-h", "--help")
        or arguments[1:] in (["-h"], ["--help"])):
        print(HELP, end="")
        return 0
    try:
        if arguments[0] not in COMMANDS:
            raise unknown_command(arguments[0])
        COMMANDS[arguments[0]](arguments[1:])
        return 0
    except Stop as stop:
        failure = stop
    except KeyboardInterrupt:
        failure = Stop("Stopped by Ctrl-C", "the set-up is not finished", RESUME, code=130)
    except OSError as error:
        failure = os_failure(error)
    print("\n{}".format(failure), file=sys.stderr, flush=True)
    return failure.code


def unknown_command(name):
    import difflib

    close = difflib.get_close_matches(name, COMMANDS, n=1)
    hint = ("python course.py {}".format(close[0]) if close
            else "python course.py    (lists the commands)")
    return Stop("Unknown command: {}".format(name), "there are: {}".format(", ".join(COMMANDS)),
                hint, code=2)


def os_failure(error):
    """The Stop for a file or folder that the system does not let us use."""
    if error.errno == errno.ENOSPC or getattr(error, "winerror", None) == 112:
        return no_space(str(error))
    if error.errno in READ_ONLY:
        return Stop("Cannot write where the course is set up",
                    str(error),
                    "copy the course into a folder of your own, or activate an environment of "
                    "your own first;\n"
                    "if a program holds the file open (JupyterLab, an editor), close it")
    return Stop("The set-up failed", str(error),
                "check the file or folder named above, then run this command again")


if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            # paths may hold characters that a Windows console cannot show
            stream.reconfigure(errors="replace")
    sys.exit(main(sys.argv[1:]))
