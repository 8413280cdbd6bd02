"""Sandboxes: what a worker sees, what it may use up, and which one a class gets. A quarter of
a minute."""

import json
import os
import shutil
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import nbformat
import psutil
import pytest

from autograder.chapters import editions
from autograder.chapters.chapter import chapter_paths, read_chapter
from autograder.chapters.outline import outline
from autograder.judge.attempt import Attempt
from autograder.judge.holds import WorkerEnded
from autograder.judge.judging import judge
from autograder.judge.workers import Workers
from autograder.sandbox import bubblewrap, kubernetes, view
from autograder.sandbox.choice import NotSandboxed, sandbox_of_a_class, sandboxes
from autograder.sandbox.containers import Container
from autograder.sandbox.limits import MEMORY, PROCESSES
from autograder.sandbox.system_calls import REFUSED, container_profile, filter_program
from autograder.submissions.answers import answer_to, report_on
from autograder.submissions.attempts import find_components
from autograder.submissions.intake import notebook_of

NORM = "layers.rms_norm"
REPOSITORY = Path(__file__).resolve().parents[2]


def told(expression, workers):
    """What an expression gives inside, by an error whose text the judge reads."""
    code = ("import json, os, sys\ndef rms_norm(x, weight, eps):\n"
            f"    raise ValueError(json.dumps({expression}))")
    attempt = Attempt(NORM, code)
    worker = workers.start(attempt.module)
    with worker:
        [subject] = worker.lend(attempt)
        with pytest.raises(ValueError) as raised:
            subject(1, 2, 3)
    return json.loads(str(raised.value))


@pytest.fixture(scope="module")
def workers(sandbox):
    with Workers(sandbox) as supply:
        yield supply


STEMS = [path.stem for path in chapter_paths(REPOSITORY / "book" / "chapters")]
# Exercises for which the sandbox is in the way of something: long texts, files, a function of
# the engine that calls one of the exercise, a compiler.
DELICATE = {"gguf.read_value", "weights.load_checkpoint", "kernels.cpu.int4_matvec",
            "gguf_k_quants.unpack_scales+dequantize_q4_k"}


def solved(stem):
    """The answers in a chapter's notebook whose exercises are all solved."""
    [chapter] = [each for each in outline() if each.stem == stem]
    source = read_chapter(REPOSITORY / "book" / "chapters" / f"{stem}.md")
    notebook = editions.solve(editions.learner_edition(source, REPOSITORY),
                              editions.solutions(source))
    read = notebook_of(f"{stem}.ipynb", nbformat.writes(notebook, version=4))
    components = find_components([chapter], [read])
    return [answer_to(exercise, components) for exercise in chapter.exercises]


def expect_all_points(answers, workers):
    assert answers
    for answer in answers:
        report = report_on(answer, workers, seed=5)
        assert report.score == report.total, report


def test_a_solution_earns_all_points_inside(workers):
    answers = [answer for stem in STEMS for answer in solved(stem)
               if answer.exercise.name in DELICATE]
    assert len(answers) == len(DELICATE)
    expect_all_points(answers, workers)


def test_a_right_version_with_torch_inside_has_room_enough(workers):
    folder = REPOSITORY / "autograder" / "accept" / "attention"
    code = (folder / "attention__torch.py").read_text(encoding="utf-8")
    report = judge(Attempt("attention.attention", code), workers, seed=4)
    assert report.score == report.total, report


@pytest.mark.long
@pytest.mark.parametrize("stem", STEMS)
def test_every_solution_earns_all_points_inside(stem, workers):
    expect_all_points([answer for answer in solved(stem)
                       if answer.exercise.name not in DELICATE], workers)


def test_a_worker_sees_python_the_engine_and_itself(workers):
    assert {*told("os.listdir('/course/autograder')", workers)} == {
        "__init__.py", "judge", "sandbox", "reference", "checking", "generators", "processes"}
    assert "checks" not in told("os.listdir('/course/autograder/checking')", workers)
    environment = told("dict(os.environ)", workers)
    assert environment == view.environment() | {"PWD": view.SCRATCH}
    inside = {*told("os.listdir('/')", workers)}
    assert not inside & {"home", "mnt", "media", "srv", "var", "run", "sys", "boot", "old_root"}
    home = {str(Path.home()), str(REPOSITORY)}
    assert told(f"[p for p in {sorted(home)} if os.path.isdir(p) and "
                "{'autograder', '.git', '.ssh', 'book'} & {*os.listdir(p)}]", workers) == []
    assert told("sorted(os.listdir('/proc/self/fd'))[:3]", workers) == ["0", "1", "2"]
    assert len(told("os.listdir('/proc/self/fd')", workers)) == 6       # two pipes, the listing


def test_a_worker_reads_the_files_that_a_check_gives_it(workers):
    from autograder.checking.files import files_in, temporary_folder
    with files_in(workers.given), temporary_folder() as folder:
        (folder / "a.txt").write_text("given")
        (folder / "a.txt").chmod(0o600)
        assert told(f"open({str(folder / 'a.txt')!r}).read()", workers) == "given"
        assert told(f"os.access({str(folder)!r}, os.W_OK)", workers) is False
        assert workers.given.parent.stat().st_mode & 0o077 == 0
    with files_in(None), temporary_folder() as folder:
        assert told(f"os.path.exists({str(folder)!r})", workers) is False


def test_a_worker_is_nobody_and_may_do_nothing(workers):
    status = told("open('/proc/self/status').read()", workers)
    fields = dict(line.split(":\t") for line in status.splitlines())
    assert int(fields["CapEff"], 16) == int(fields["CapPrm"], 16) == 0
    assert fields["NoNewPrivs"] == "1" and fields["Seccomp"] == "2"
    assert told("os.getuid()", workers) not in (0, 1000)


def test_a_worker_has_limits(workers):
    import resource
    numbers = [resource.RLIMIT_NPROC, resource.RLIMIT_CORE, resource.RLIMIT_DATA]
    limits = told(f"[__import__('resource').getrlimit(n) for n in {numbers}]", workers)
    assert limits == [[PROCESSES, PROCESSES], [0, 0], [MEMORY, MEMORY]]


def test_a_sandbox_serves_until_somebody_leaves_a_file(workers):
    """What is as new is used again; what is not ends, and another takes its place."""
    assert told("1", workers) == 1
    first = workers._guard          # a namespace's name may be given again once it has ended
    assert told("2", workers) == 2 and workers._guard is first
    told("open('/scratch/here', 'w').write('x')", workers)
    assert told("os.listdir('/scratch')", workers) == []
    assert workers._guard is not first


def test_a_worker_ends_with_everything_that_it_has_started(workers):
    pids = told("[os.fork() or os.setsid() or __import__('time').sleep(60) for _ in '12']",
                workers)
    assert len(pids) == 2
    assert told("[p for p in os.listdir('/proc') if p.isdigit() and int(p) not in "
                "(1, os.getpid())]", workers) == []


def test_whoever_is_late_with_an_earlier_worker_does_nothing_to_the_next(sandbox):
    """The clock of a check is read by a thread of its own, which may ask after the end."""
    with Workers(sandbox) as workers:
        earlier = workers.start("layers")._hold
        assert earlier.seconds() >= 0
        later = workers.start("layers")
        with later:
            before = later.seconds()
            earlier._has_ended = False              # as that thread still has it
            earlier.seconds()
            earlier._has_ended = False
            earlier.end()
            [subject] = later.lend(Attempt("layers.rms_norm", ""))
            assert callable(subject) and later.seconds() >= before


def test_time_counts_children_and_is_known_after_the_end(sandbox):
    code = ("import os\nif os.fork() == 0:\n    while True:\n        pass\n"
            "def rms_norm(x, weight, eps):\n    return x")
    with Workers(sandbox) as supply, supply.start("layers") as worker:
        worker.lend(Attempt(NORM, code))
        while worker.seconds() < 0.3:
            pass
        worker.end()
        assert 0.3 <= worker.seconds() < 30
        with pytest.raises(WorkerEnded):
            worker.lend(Attempt(NORM, code))


def test_all_of_it_ends_with_the_judge(sandbox):
    """However it ends."""
    code = textwrap.dedent(f"""
        import os, signal
        from autograder.judge.attempt import Attempt
        from autograder.judge.workers import Workers
        from autograder.sandbox.choice import sandbox_of_a_class
        workers = Workers(sandbox_of_a_class({sandbox.name!r}))
        worker = workers.start("layers")
        worker.lend(Attempt("layers.rms_norm", "def rms_norm(x, weight, eps):\\n    return x"))
        print(workers.process_namespace(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8")
    namespace = done.stdout.strip()
    assert namespace.startswith("pid:")

    def left():
        for process in psutil.process_iter():
            try:
                if os.readlink(f"/proc/{process.pid}/ns/pid") == namespace:
                    yield process.pid
            except (OSError, psutil.Error):
                pass
    psutil.wait_procs([psutil.Process(pid) for pid in left() if psutil.pid_exists(pid)], 5)
    assert [*left()] == []


def test_it_holds_for_a_user_without_rights_too(sandbox):
    """Where root grades, as in CI, the tests above ran as root; here an ordinary user does."""
    if os.geteuid() != 0:
        return                          # then they ran as one
    trees = [*view.python_trees(), REPOSITORY]
    closed = {parent for tree in trees for parent in tree.parents
              if not parent.stat().st_mode & stat.S_IXOTH}
    options = [word for parent in sorted(closed) for word in ("--tmpfs", str(parent),
                                                              "--chmod", "0755", str(parent))]
    for tree in [tree for tree in trees if closed & {*tree.parents}]:
        options += [word for parent in reversed(tree.parents) if closed & {*parent.parents}
                    for word in ("--perms", "0755", "--dir", str(parent))]
        options += ["--ro-bind", str(tree), str(tree)]
    names = ["kills_everything", "limits_its_neighbours", "reads_the_judges_memory",
             "climbs_out", "looks_around_in_proc", "fork_bomb", "kills_its_parent"]
    done = subprocess.run(
        ["bwrap", "--dev-bind", "/", "/", *options, "--", "setpriv", "--reuid=54321",
         "--regid=54321", "--clear-groups", sys.executable, "-m", "autograder", "doctor",
         "--json", *names], capture_output=True, encoding="utf-8",
        env=os.environ | {"HOME": "/nonexistent", "AUTOGRADER_SANDBOX": "bubblewrap"})
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    assert [(each["attack"], each["broken"]) for each in found["attacks"]] == [
        (name, []) for name in names]


def test_a_class_without_a_sandbox_is_refused(monkeypatch):
    monkeypatch.setenv("AUTOGRADER_SANDBOX", "none")
    with pytest.raises(NotSandboxed, match="no class is graded without a sandbox") as refused:
        sandbox_of_a_class()
    assert "apt install bubblewrap" in str(refused.value)
    with pytest.raises(NotSandboxed, match="'chroot'"):
        sandbox_of_a_class("chroot")
    monkeypatch.delenv("AUTOGRADER_SANDBOX")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NotSandboxed, match="bubblewrap.*podman.*docker") as missing:
        sandbox_of_a_class()
    assert "apt install bubblewrap" in str(missing.value)
    assert [each.name for each in sandboxes()] == ["bubblewrap", "podman", "docker",
                                                   "kubernetes"]


@pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is Linux's")
def test_a_sandbox_that_does_not_work_says_why(monkeypatch):
    monkeypatch.setattr(bubblewrap, "walls", lambda given=(): ["--ro-bind", "/nowhere", "/x"])
    bubblewrap._trial.cache_clear()
    try:
        assert "nowhere" in bubblewrap.Bubblewrap().problem() or not shutil.which("bwrap")
        with Workers(bubblewrap.Bubblewrap()) as supply, pytest.raises(NotSandboxed):
            supply.start("layers")
    finally:
        bubblewrap._trial.cache_clear()


@pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is Linux's")
def test_an_older_bubblewrap_and_an_older_kernel(monkeypatch):
    monkeypatch.setattr(bubblewrap, "_knows", lambda option: False)
    assert not {"--size", "--disable-userns"} & {*bubblewrap.walls()}
    monkeypatch.setattr(bubblewrap, "_is_root", lambda: False)
    assert "--unshare-user" in bubblewrap.walls()
    monkeypatch.setattr(bubblewrap.platform, "release", lambda: "5.10.0-28-amd64")
    monkeypatch.setattr(bubblewrap.shutil, "which", lambda name: "/usr/bin/bwrap")
    assert "5.14" in bubblewrap.Bubblewrap().problem()


@pytest.mark.skipif(sys.platform != "linux", reason="what it looks for is Linux's")
def test_files_count_as_memory_where_nothing_else_limits_them(sandbox, monkeypatch):
    monkeypatch.setattr(bubblewrap, "_knows", lambda option: False)
    monkeypatch.setattr("autograder.judge.guard.MEMORY", 150 * 2**20)
    code = ("def rms_norm(x, weight, eps):\n    for n in range(99):\n"
            "        open(f'/scratch/{n}', 'wb').write(bytes(2**24))\n"
            "    while True:\n        pass")
    with Workers(sandbox) as supply:
        report = judge(Attempt(NORM, code), supply, seed=3)
    assert {outcome.error for outcome in report.outcomes} == {"SystemExit"}


def test_every_refused_call_is_in_the_filter_of_both_machines():
    for machine in ("x86_64", "aarch64"):
        program = filter_program(machine)
        assert len(program) % 8 == 0 and len(program) // 8 < 4096
    assert filter_program("riscv64") is None
    assert len({numbers[0] for numbers in REFUSED.values()}) == len(REFUSED)
    assert len({numbers[1] for numbers in REFUSED.values()}) == len(REFUSED)


ENGINE = '''#!{python}
"""Stands for podman or docker: it runs what the container would, and remembers its process."""
import os, pathlib, signal, sys

here, words = pathlib.Path({folder!r}), sys.argv[1:]
if words[0] == "run":
    [name] = [word.partition("=")[2] for word in words if word.startswith("--name=")]
    (here / name).write_text(str(os.getpid()))
    (here / "command").write_text("\\n".join(words))
    [profile] = [word.partition("seccomp=")[2] for word in words if "seccomp=" in word]
    (here / "profile").write_text(pathlib.Path(profile).read_text())
    module = words[words.index("-m") + 1]
    os.execve(sys.executable, [sys.executable, "-P", "-m", module],
              {{"PYTHONPATH": os.pathsep.join({paths!r}), "PATH": "/usr/bin:/bin"}})
elif words[0] == "inspect":
    print((here / words[-1]).read_text())
elif words[0] == "rm":
    os.kill(int((here / words[-1]).read_text()), signal.SIGKILL)
elif words[0] == "image":
    sys.exit(words[-1] != "of-the-course")
'''


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """A stand-in for podman, which is first on the path."""
    paths = [str(REPOSITORY / "solutions"), str(REPOSITORY)]
    script = tmp_path / "podman"
    script.write_text(ENGINE.format(python=sys.executable, folder=str(tmp_path), paths=paths))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("AUTOGRADER_IMAGE", "of-the-course")
    return tmp_path


@pytest.mark.skipif(os.name == "nt", reason="the stand-in is a script")
def test_a_worker_in_a_container(engine):
    podman = Container("podman")
    assert podman.problem() == ""
    wrong = "def rms_norm(x, weight, eps):\n    return x"
    loop = "def rms_norm(x, weight, eps):\n    while True:\n        pass"
    with Workers(podman) as supply:
        report = judge(Attempt(NORM, wrong), supply, seed=5)
        endless = judge(Attempt(NORM, loop), supply, seed=5, check_seconds=0.2)
    with Workers() as plain:
        assert report == judge(Attempt(NORM, wrong), plain, seed=5)
    assert {outcome.status for outcome in endless.outcomes} == {"out of time"}
    words = (engine / "command").read_text().split("\n")
    assert {"--network=none", "--read-only", "--cap-drop=ALL", "--user=65534:65534",
            "--security-opt=no-new-privileges", f"--pids-limit={PROCESSES}",
            f"--memory={MEMORY}"} <= {*words}
    mounts = [word for word in words if word.startswith("type=bind")]
    assert len(mounts) == 2 + len(view.WORKER)
    assert all(mount.endswith(",readonly") for mount in mounts)
    assert not [mount for mount in mounts if "autograder/checks" in mount]
    assert json.loads((engine / "profile").read_text()) == json.loads(
        json.dumps(container_profile()))


def test_a_container_that_cannot_be_used_says_why(engine, monkeypatch):
    monkeypatch.setenv("AUTOGRADER_IMAGE", "another")
    assert "no image another" in Container("podman").problem()
    assert "not installed" in Container("no-such-engine").problem()


def test_the_image_holds_what_a_worker_needs():
    text = (REPOSITORY / "autograder" / "sandbox" / "Containerfile").read_text(encoding="utf-8")
    copied = {word.removeprefix("autograder/") for word in text.split()
              if word.startswith("autograder/") and word.endswith(".py")}
    assert copied == {*view.WORKER}


def test_the_manifest_of_a_job_gives_a_worker_nothing():
    job = kubernetes.manifest("gearworks-1", "autograder.judge.worker", "image")
    assert json.loads(json.dumps(job)) == job and job["kind"] == "Job"
    pod = job["spec"]["template"]["spec"]
    [container] = pod["containers"]
    # what Kubernetes' own "restricted" level demands of a pod, and then some
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]}}
    assert pod["automountServiceAccountToken"] is False and pod["hostUsers"] is False
    assert not any(pod[name] for name in ("hostNetwork", "hostPID", "hostIPC"))
    assert {"memory", "cpu", "ephemeral-storage"} <= {*container["resources"]["limits"]}
    assert container["stdin"] and container["stdinOnce"]
    assert [volume for volume in pod["volumes"] if "emptyDir" not in volume] == []
    namespace, policy = kubernetes.cluster_manifests()
    assert policy["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    assert namespace["metadata"]["name"] == policy["metadata"]["namespace"]
    assert kubernetes.WALL_SECONDS == job["spec"]["activeDeadlineSeconds"]


KUBECTL = '''#!{python}
"""Stands for kubectl: an applied job's worker runs when somebody attaches to it."""
import json, os, pathlib, sys

here, words = pathlib.Path({folder!r}), sys.argv[2:]
with open(here / "log", "a") as log:
    log.write(" ".join(words) + "\\n")
if words[0] == "apply":
    (here / "job.json").write_text(sys.stdin.read())
elif words[0] == "attach":
    job = json.loads((here / "job.json").read_text())
    [container] = job["spec"]["template"]["spec"]["containers"]
    assert words[-1] == "job/" + job["metadata"]["name"]
    os.execve(sys.executable, [sys.executable, *container["command"][1:]],
              {{"PYTHONPATH": os.pathsep.join({paths!r}), "PATH": "/usr/bin:/bin"}})
elif words[0] == "get":
    sys.exit("no network policy" if (here / "no-policy").exists() else 0)
'''


@pytest.mark.skipif(os.name == "nt", reason="the stand-in is a script")
def test_a_worker_in_a_job_of_a_cluster(tmp_path, monkeypatch):
    paths = [str(REPOSITORY / "solutions"), str(REPOSITORY)]
    script = tmp_path / "kubectl"
    script.write_text(KUBECTL.format(python=sys.executable, folder=str(tmp_path), paths=paths))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    cluster = sandbox_of_a_class("kubernetes")
    with Workers(cluster) as supply:
        report = judge(Attempt(NORM, ""), supply, seed=5)
    assert report.score == report.total
    log = (tmp_path / "log").read_text()
    places = [log.index(word) for word in ("apply", "wait", "attach", "delete job")]
    assert places == sorted(places)
    (tmp_path / "no-policy").write_text("")
    with pytest.raises(NotSandboxed, match="no network policy"):
        sandbox_of_a_class("kubernetes")
