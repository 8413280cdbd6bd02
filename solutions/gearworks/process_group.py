"""Several processes that compute one thing together: how they start, talk, and end.

They talk by `torch.distributed` with its backend gloo, over this machine's loopback. Whoever
waits for the others waits for a limited time, and a process that ends before its time ends
them all: nobody is left behind.
"""

import datetime
import multiprocessing
import os
import socket
import tempfile
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np

from gearworks.errors import GearworksError, NotAvailableError


NOTICED = 1.0                       # seconds in which the others notice that one has failed


class LostOthers(NotAvailableError):
    """A process that waited for the others in vain; the reason is to be found with them."""


class ProcessGroup:
    """One process's view of all; see `parallel.Group`."""

    def __init__(self, rank: int, size: int, meeting_point: Path, timeout: float):
        """Meet the others. meeting_point: a file that does not exist yet, the same for all;
        timeout: seconds that any of them may keep the others waiting."""
        import torch.distributed as distributed

        self.rank, self.size = rank, size
        self._distributed = distributed
        if "GLOO_SOCKET_IFNAME" not in os.environ and os.name == "posix":
            loopback = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
            os.environ["GLOO_SOCKET_IFNAME"] = ",".join(loopback)
        self._call(distributed.init_process_group, "gloo", rank=rank, world_size=size,
                   store=distributed.FileStore(str(meeting_point), size),
                   timeout=datetime.timedelta(seconds=timeout))

    def all_reduce(self, array: np.ndarray) -> np.ndarray:
        """The sum of all processes' arrays.
        Raises LostOthers when one of them does not answer in time."""
        import torch

        summed = torch.from_numpy(np.array(array))
        self._call(self._distributed.all_reduce, summed)
        return summed.numpy()

    def all_gather(self, array: np.ndarray) -> list[np.ndarray]:
        """All processes' arrays, in the order of their ranks; errors as `all_reduce`."""
        import torch

        own = torch.from_numpy(np.ascontiguousarray(array))
        all_of_them = [torch.empty_like(own) for _ in range(self.size)]
        self._call(self._distributed.all_gather, all_of_them, own)
        return [tensor.numpy() for tensor in all_of_them]

    def _call(self, communicate: Callable, *arguments: Any, **options: Any) -> None:
        try:
            communicate(*arguments, **options)
        except RuntimeError as error:
            raise LostOthers(f"process {self.rank} of {self.size} lost the others",
                             str(error).partition("\n")[0],
                             "look at what the others say, and start all of them again"
                             ) from None

    def leave(self) -> None:
        """Close the connections. All processes do it at the end."""
        self._distributed.destroy_process_group()


def launch(work: Callable[..., Any], size: int, *arguments: Any, timeout: float = 60) -> Any:
    """Run `work(group, *arguments)` in so many new processes; returns what rank 0 returns.

    work: a function at the top level of a module; what it takes and returns can be pickled.
    timeout: seconds that one process may keep the others waiting.
    Raises the GearworksError of the first process that fails, and NotAvailableError when one
    ends without a word; then, or on Ctrl-C, all of them are ended.
    """
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        ends = [context.Pipe(duplex=False) for _ in range(size)]
        processes = [context.Process(target=_run, daemon=True,
                                     args=(mine, rank, size, Path(scratch) / "meeting-point",
                                           timeout, work, arguments))
                     for rank, (_, mine) in enumerate(ends)]
        try:
            for process, (_, mine) in zip(processes, ends):
                process.start()
                mine.close()                    # so that the other end knows when it is gone
            return _results([ours for ours, _ in ends])[0]
        finally:
            for process in processes:
                if process.pid is not None:
                    process.kill()
                    process.join()


def _run(connection: Connection, rank: int, size: int, meeting_point: Path, timeout: float,
         work: Callable[..., Any], arguments: Sequence[Any]) -> None:
    """What a process of the group does."""
    try:
        group = ProcessGroup(rank, size, meeting_point, timeout)
        result = work(group, *arguments)
        group.leave()
        connection.send((True, result))
    except GearworksError as error:
        connection.send((False, error))


def _results(connections: Sequence[Connection]) -> list[Any]:
    """What each process sends, in their order. One that fails ends the waiting."""
    found: dict[int, Any] = {}
    errors: list[GearworksError] = []
    while len(found) < len(connections) and not errors:
        errors += _receive(connections, found, None)
    if errors:
        # what failed in one process is soon noticed by the others, whose word tells less
        errors += _receive(connections, found, NOTICED)
        raise min(errors, key=lambda error: isinstance(error, LostOthers))
    return [found[rank] for rank in range(len(connections))]


def _receive(connections: Sequence[Connection], found: dict[int, Any],
             timeout: float | None) -> list[GearworksError]:
    """Add to `found` what processes send, by their ranks; returns the errors of the others."""
    errors: list[GearworksError] = []
    waiting = [end for rank, end in enumerate(connections)
               if rank not in found and not end.closed]
    for ready in wait(waiting, timeout):
        rank = connections.index(ready)
        try:
            done, value = ready.recv()
        except EOFError:
            done, value = False, NotAvailableError(
                f"process {rank} of {len(connections)} is gone", "it ended without a word",
                "look at what it printed; was there memory for it?")
        if done:
            found[rank] = value
        else:
            ready.close()
            errors.append(value)
    return errors
