"""A container of podman or docker for each question, for systems without bubblewrap.

The image, which AUTOGRADER_IMAGE names, holds Python and the course's packages; `Containerfile`
beside this module makes one. Of the course it sees what a worker needs (see `view`), no more.
"""

import json
import os
import secrets
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil

from autograder.sandbox import view
from autograder.sandbox.limits import (DISK_BYTES, FILE_BYTES, MEMORY, OPEN_FILES, PROCESSES,
                                       PROCESSOR_SECONDS)
from autograder.sandbox.system_calls import container_profile

IMAGE = "AUTOGRADER_IMAGE"
DEFAULT_IMAGE = "localhost/gearworks-worker"
ENGINE_SECONDS = 60         # by the wall clock, in which podman or docker answers


class Container:
    """Containers that one engine runs, each from nothing. engine: "podman" or "docker"."""

    def __init__(self, engine: str):
        self.name = engine
        self.image = os.environ.get(IMAGE, DEFAULT_IMAGE)

    def command(self, container: str, module: str, given: Path, profile: Path) -> list[str]:
        """What runs a module of the worker's on standard input and output."""
        seen = [word for path, place in (*view.course_files(), (given, given))
                for word in ("--mount", f"type=bind,source={path},target={place},readonly")]
        environment = [word for pair in view.environment().items()
                       for word in ("--env", "=".join(pair))]
        limits = {"cpu": PROCESSOR_SECONDS, "nofile": OPEN_FILES, "fsize": FILE_BYTES,
                  "core": 0}
        return [self.name, "run", "--rm", "--interactive", f"--name={container}",
                "--network=none", "--read-only", "--cap-drop=ALL", "--ipc=private",
                "--security-opt=no-new-privileges", f"--security-opt=seccomp={profile}",
                "--user=65534:65534", "--stop-timeout=0",
                f"--pids-limit={PROCESSES}", f"--memory={MEMORY}", f"--memory-swap={MEMORY}",
                *(f"--ulimit={name}={limit}:{limit}" for name, limit in limits.items()),
                f"--tmpfs={view.SCRATCH}:rw,size={DISK_BYTES},mode=1777",
                f"--workdir={view.SCRATCH}", "--log-driver=none", *environment, *seen,
                self.image, "python", "-P", "-m", module]

    def start(self, module: str, given: Path) -> "tuple[subprocess.Popen, ContainerHold]":
        """A worker on two pipes, and what holds it. given: a folder that it reads.

        Raises OSError where it does not start.
        """
        profile = given.parent / "system_calls.json"
        profile.write_text(json.dumps(container_profile()), encoding="utf-8")
        container = f"gearworks-{secrets.token_hex(8)}"
        process = subprocess.Popen(self.command(container, module, given, profile),
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, start_new_session=True)
        return process, ContainerHold(self.name, container, process)

    def problem(self) -> str:
        """Why it cannot be used here; "" where it can."""
        if shutil.which(self.name) is None:
            return f"{self.name} is not installed"
        if _ask(self.name, "info") is None:
            return f"{self.name} does not answer; does it run?"
        if _ask(self.name, "image", "inspect", self.image) is None:
            return f"{self.name} has no image {self.image}; {IMAGE} names another"
        return ""


class ContainerHold:
    """Of a container with one worker."""

    def __init__(self, engine: str, container: str, client: subprocess.Popen):
        self._engine, self._container, self._client = engine, container, client
        self._first: psutil.Process | None = None       # the container's own, on this machine
        self._seconds = 0.0

    def seconds(self) -> float:
        """The processor time of all its processes, where they are this machine's.

        Where they are a virtual machine's, the wall clock alone limits the worker, and its own
        limits.
        """
        with suppress(psutil.Error):
            if self._first is None:
                told = _ask(self._engine, "inspect", "--format", "{{.State.Pid}}",
                            self._container) or ""
                if not told.strip().isdigit() or int(told) == 0:
                    return self._seconds
                self._first = psutil.Process(int(told))
            times = [process.cpu_times()
                     for process in (self._first, *self._first.children(recursive=True))]
            used = sum(each.user + each.system + each.children_user + each.children_system
                       for each in times)
            self._seconds = max(self._seconds, used)
        return self._seconds

    def end(self) -> None:
        """End the container."""
        _ask(self._engine, "rm", "--force", self._container)
        self._client.kill()
        self._client.wait()


def _ask(*command: str) -> str | None:
    """What podman or docker says; None where it fails."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True,
                              timeout=ENGINE_SECONDS, encoding="utf-8", errors="replace")
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
