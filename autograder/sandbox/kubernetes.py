"""A Kubernetes job for each question, on a cluster that `kubectl` knows.

The image, which AUTOGRADER_IMAGE names, holds all that a worker needs: nothing is mounted. No
network is asked for; the policy that refuses it is a manifest of its own, for the namespace.
"""

import json
import os
import secrets
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

from autograder.sandbox import view
from autograder.sandbox.containers import DEFAULT_IMAGE, IMAGE
from autograder.sandbox.limits import DISK_BYTES, MEMORY, PROCESSOR_SECONDS

NAMESPACE = "gearworks-workers"
WALL_SECONDS = 15 * PROCESSOR_SECONDS       # after which the cluster ends a job by itself
STARTING_SECONDS = 120
LABEL = {"app.kubernetes.io/name": "gearworks-worker"}


class KubernetesJob:
    """Jobs on a cluster, each from nothing."""

    name = "kubernetes"

    def __init__(self):
        self.image = os.environ.get(IMAGE, DEFAULT_IMAGE)

    def start(self, module: str, given: Path) -> "tuple[subprocess.Popen, JobHold]":
        """A worker on two pipes, and what holds it. Raises OSError where it does not start.

        given: is not seen there, so that exercises that read files cannot be graded.
        """
        job = f"gearworks-{secrets.token_hex(8)}"
        _ask("apply", "--filename", "-", told=json.dumps(manifest(job, module, self.image)))
        hold = JobHold(job)
        try:
            _ask("wait", "--for=condition=Ready", f"--timeout={STARTING_SECONDS}s", "pod",
                 f"--selector=job-name={job}")
            hold.client = subprocess.Popen(
                ["kubectl", f"--namespace={NAMESPACE}", "attach", "--quiet", "--stdin",
                 f"job/{job}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, start_new_session=True)
        except BaseException:
            hold.end()
            raise
        return hold.client, hold

    def problem(self) -> str:
        """Why it cannot be used here; "" where it can."""
        if shutil.which("kubectl") is None:
            return "kubectl is not installed"
        try:
            _ask("get", "networkpolicy", network_policy()["metadata"]["name"])
        except OSError as error:
            return f"{error}. `autograder doctor --manifests` prints what the cluster needs"
        return ""


class JobHold:
    """Of a job with one worker."""

    def __init__(self, job: str):
        self._job = job
        self.client: subprocess.Popen | None = None

    def seconds(self) -> float:
        """0: no cluster tells in time. The worker's own limits and the wall clock hold."""
        return 0.0

    def end(self) -> None:
        """End the job, with its pod."""
        with suppress(OSError):
            _ask("delete", "job", self._job, "--wait=false", "--grace-period=0", "--force",
                 "--ignore-not-found", "--cascade=background")
        if self.client is not None:
            self.client.kill()
            self.client.wait()


def manifest(job: str, module: str, image: str) -> dict:
    """A job that runs a module of the worker's once, on the standard input of its pod."""
    environment = [{"name": name, "value": value}
                   for name, value in view.environment().items()]
    container = {
        "name": "worker", "image": image, "command": ["python", "-P", "-m", module],
        "stdin": True, "stdinOnce": True, "workingDir": view.SCRATCH, "env": environment,
        "resources": {"limits": {"cpu": "1", "memory": str(MEMORY),
                                 "ephemeral-storage": str(DISK_BYTES)},
                      "requests": {"cpu": "500m", "memory": str(2**30)}},
        "securityContext": {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                            "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "scratch", "mountPath": view.SCRATCH}]}
    pod = {
        "restartPolicy": "Never", "automountServiceAccountToken": False,
        "enableServiceLinks": False, "hostNetwork": False, "hostPID": False, "hostIPC": False,
        "hostUsers": False, "dnsPolicy": "None", "dnsConfig": {"nameservers": ["127.0.0.1"]},
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65534, "runAsGroup": 65534,
                            "fsGroup": 65534, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": [{"name": "scratch",
                     "emptyDir": {"medium": "Memory", "sizeLimit": str(DISK_BYTES)}}]}
    return {"apiVersion": "batch/v1", "kind": "Job",
            "metadata": {"name": job, "namespace": NAMESPACE, "labels": LABEL},
            "spec": {"backoffLimit": 0, "activeDeadlineSeconds": WALL_SECONDS,
                     "ttlSecondsAfterFinished": 60,
                     "template": {"metadata": {"labels": LABEL}, "spec": pod}}}


def cluster_manifests() -> list[dict]:
    """What the cluster needs before: a namespace that refuses any other pod, and no network."""
    level = "pod-security.kubernetes.io/enforce"
    return [{"apiVersion": "v1", "kind": "Namespace",
             "metadata": {"name": NAMESPACE, "labels": {level: "restricted"}}},
            network_policy()]


def network_policy() -> dict:
    """A policy by which no pod of the namespace reaches anything, or is reached."""
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"name": "no-network", "namespace": NAMESPACE},
            "spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}}


def _ask(*command: str, told: str = "") -> str:
    """What kubectl says. Raises OSError where it fails."""
    try:
        done = subprocess.run(["kubectl", f"--namespace={NAMESPACE}", *command], input=told,
                              capture_output=True, timeout=STARTING_SECONDS + 30,
                              encoding="utf-8", errors="replace")
    except subprocess.TimeoutExpired as error:
        raise OSError("kubectl gives no answer") from error
    if done.returncode != 0:
        raise OSError(f"kubectl says: {' '.join(done.stderr.split())[:300]}")
    return done.stdout
