"""Which sandbox learners' code runs in.

The variable AUTOGRADER_SANDBOX names it: bubblewrap, podman, docker, kubernetes, or none.
Without it a class gets the first of the first three that works here. `none` is for one's own
notebook.
"""

import os
import subprocess
from pathlib import Path
from typing import Any, Protocol

from autograder.sandbox.bubblewrap import Bubblewrap
from autograder.sandbox.containers import Container
from autograder.sandbox.kubernetes import KubernetesJob
from gearworks.errors import GearworksError

VARIABLE = "AUTOGRADER_SANDBOX"
NONE = "none"
INSTALL = ("install bubblewrap (`apt install bubblewrap`, `dnf install bubblewrap`), or podman "
           "or docker with the image of autograder/sandbox/Containerfile")


class NotSandboxed(GearworksError):
    """There is no sandbox for a class. It says nothing about what anybody handed in."""


class ColdSandbox(Protocol):
    """A sandbox that is made for each worker anew."""

    name: str

    def start(self, module: str, given: Path) -> tuple[subprocess.Popen, Any]:
        """A worker on two pipes, and its hold. given: a folder that it reads.

        Raises OSError where it does not start.
        """

    def problem(self) -> str:
        """Why it cannot be used here; "" where it can."""


Sandbox = Bubblewrap | ColdSandbox


def sandboxes() -> list[Sandbox]:
    """All kinds, the preferred ones first."""
    return [Bubblewrap(), Container("podman"), Container("docker"), KubernetesJob()]


def sandbox_of_a_class(kind: str | None = None) -> Sandbox:
    """The sandbox for code that others have written.

    kind: its name; by default what AUTOGRADER_SANDBOX says, else the first that works, though
    never a cluster's. Raises NotSandboxed where there is none, and for "none".
    """
    kind = os.environ.get(VARIABLE, "") if kind is None else kind
    if kind == NONE:
        raise NotSandboxed("no class is graded without a sandbox",
                           f"{VARIABLE} is none, and what others wrote would run with your "
                           "rights", INSTALL)
    known = {each.name: each for each in sandboxes()}
    if kind and kind not in known:
        raise NotSandboxed(f"there is no sandbox {kind!r}", f"{VARIABLE} names it",
                           f"one of {', '.join([*known, NONE])}")
    chosen = [known[kind]] if kind else [each for each in known.values()
                                         if not isinstance(each, KubernetesJob)]
    problems = []
    for sandbox in chosen:
        problem = sandbox.problem()
        if not problem:
            return sandbox
        problems.append(problem)
    raise NotSandboxed("there is no sandbox to run what others wrote", "; ".join(problems),
                       INSTALL)
