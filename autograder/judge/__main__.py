"""The judge's process, `python -m autograder.judge`: its pipes lead to the subjects."""

import dataclasses
import os
import sys
from typing import BinaryIO

from autograder.checking import checks_of
from autograder.checking.running import fresh_seed, run_check
from autograder.judge import wire
from autograder.judge.peer import Peer, connect
from autograder.judge.wire import Message


def main() -> None:
    """Run the checks that the first message names, and tell their outcomes one by one."""
    reader = sys.stdin.buffer
    writer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)                               # what a check or a library prints is no message
    try:
        _run(reader, writer)
    except EOFError:
        pass
    except BaseException as error:
        why = f"{type(error).__name__} in the judge"
        wire.write(writer, Message({"op": "broken", "why": why}))
        raise


def _run(reader: BinaryIO, writer: BinaryIO) -> None:
    start = wire.read(reader).data
    checks = [check for check in checks_of(start["exercise"])
              if start["public"] in (None, check.public)]
    seed = fresh_seed() if start["seed"] is None else start["seed"]
    peer = Peer(open_objects=False)
    connect(peer, reader, writer)
    subjects = [peer.take(data) for data in start["subjects"]]
    plan = [{name: getattr(check, name) for name in ("name", "title", "points", "public")}
            for check in checks]
    wire.write(writer, Message({"op": "plan", "checks": plan}))
    for check in checks[start["skip"]:]:
        outcome = run_check(check, subjects, seed)
        told = dataclasses.asdict(outcome if outcome.public else outcome.hidden())
        wire.write(writer, Message({"op": "outcome", "outcome": told}))
    wire.write(writer, Message({"op": "end"}))


if __name__ == "__main__":
    main()
