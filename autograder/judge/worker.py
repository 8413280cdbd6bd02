"""The process that runs learners' code, `python -m autograder.judge.worker`.

It loads one attempt and lends its functions and classes to the judge, by calls over two pipes.
No check, no expected value and no seed ever comes here, and nothing that is printed here is
read by anybody.

Where forking is safe, one process loads the engine and then forks a worker for each attempt. It
is told to by a socket, with the two ends of the pipes. In a sandbox that process is the warden.
"""

import importlib
import json
import os
import random
import signal
import socket
import sys
from contextlib import suppress
from typing import BinaryIO

import numpy as np

from autograder.checking import error_text
from autograder.judge import wire
from autograder.judge.attempt import Attempt, load
from autograder.judge.peer import Peer, connect
from autograder.judge.wire import Message
from autograder.reference.names import home_of
from autograder.sandbox.limits import restrict


def main() -> None:
    """Serve forks on the socket that is named; without one, be a worker on stdin and stdout."""
    if len(sys.argv) > 1:
        _serve(socket.socket(fileno=int(sys.argv[1])))
        return
    ends = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(null, stream)
    work(*ends)


def _serve(control: socket.socket) -> None:
    """Fork a worker for every request, until the judge is gone; none of them outlives it."""
    children: set[int] = set()
    while True:
        request, ends, _, _ = socket.recv_fds(control, 4096, 2)
        children -= {child for child in children if os.waitpid(child, os.WNOHANG)[0]}
        if not request:
            break
        importlib.import_module(home_of(json.loads(request)["module"]))
        child = os.fork()
        if child == 0:
            control.close()
            os.setsid()                     # with all that it starts, it is ended as a group
            restrict(walled=False)
            work(*ends)
        for end in ends:
            os.close(end)
        children.add(child)
        control.sendall(json.dumps({"worker": child}).encode() + b"\n")
    for child in children:
        with suppress(OSError):
            os.killpg(child, signal.SIGKILL)


def work(reading: int, writing: int) -> None:
    """Load the attempt that comes, lend its subjects, serve calls; the process ends with it."""
    with suppress(BaseException):           # the judge sees that no answer comes, and no more
        with open(reading, "rb") as reader, open(writing, "wb") as writer:
            _lend(reader, writer)
    os._exit(0)                             # a thread of the learner's keeps nothing alive


def _lend(reader: BinaryIO, writer: BinaryIO) -> None:
    random.seed(0)                          # the same attempt does the same in every run
    np.random.seed(0)
    peer = Peer(open_objects=True)
    connect(peer, reader, writer)
    told = wire.read(reader).data
    attempt = Attempt(**told | {"missing": tuple(told["missing"])})
    try:
        lent = {"subjects": [peer.give(subject) for subject in load(attempt, alone=True)]}
    except BaseException as error:
        lent = {"error": f"{type(error).__name__}: {error_text(error)}".removesuffix(": ")}
    wire.write(writer, Message(lent))
    while True:
        wire.write(writer, peer.answer(wire.read(reader)))


if __name__ == "__main__":
    main()
