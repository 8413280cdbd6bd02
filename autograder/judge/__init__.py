"""The judge: a process that runs the hidden checks, and calls the learner's code from there.

Hidden checks, their seeds and what they expect stay in that process. The kernel receives calls
with arguments, and at the end titles and points. The nbgrader source edition arms it in a line
between the marks for hidden tests:

    from autograder.judge import arm; arm("tokenizer.train_bpe")
"""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from autograder.checking.running import (CHECK_SECONDS, EXERCISE_SECONDS, Outcome, Status,
                                         never_reached)
from autograder.judge import wire
from autograder.judge.peer import Peer, connect
from autograder.judge.wire import Message, WireError
from autograder.processes.limits import TimeLimit, time_limit
from gearworks.errors import GearworksError

_armed: set[str] = set()


class JudgeError(GearworksError):
    """The judge itself could not work. It says nothing about the code that was to be judged."""


def arm(exercise: str) -> None:
    """Let the next `check` of this exercise run its hidden checks too."""
    _armed.add(exercise)


def disarm(exercise: str) -> bool:
    """Whether the exercise was armed. It is not any more."""
    was_armed = exercise in _armed
    _armed.discard(exercise)
    return was_armed


def judge(exercise: str, subjects: Sequence[Any], *, public: bool | None = False,
          seed: int | None = None) -> list[Outcome]:
    """Run checks of an exercise in the judge, which calls these subjects.

    public: which checks; None means all. A subject that does not end costs the check that met
    it; the others keep their points. Of hidden checks the outcomes hold the title and the kind
    of error, nothing else. Raises JudgeError when the judge cannot work.
    """
    outcomes: list[Outcome] = []
    plan: list[dict] = []
    start = time.process_time()

    def seconds() -> float:
        return min(CHECK_SECONDS, EXERCISE_SECONDS - (time.process_time() - start))

    while not _conversation(exercise, subjects, public, seed, plan, outcomes, seconds):
        if seconds() <= 0:
            outcomes += [never_reached(**check).hidden() for check in plan[len(outcomes):]]
            break
    return outcomes


def _conversation(exercise: str, subjects: Sequence[Any], public: bool | None, seed: int | None,
                  plan: list[dict], outcomes: list[Outcome],
                  seconds: Callable[[], float]) -> bool:
    """Talk with one judge process: learn its plan, append the outcomes. False: it was ended."""
    child = subprocess.Popen([sys.executable, "-P", "-m", "autograder.judge"],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL)
    peer = Peer(open_objects=True)
    connect(peer, child.stdout, child.stdin)
    try:
        start = {"exercise": exercise, "public": public, "seed": seed, "skip": len(outcomes),
                 "subjects": [peer.give(subject) for subject in subjects]}
        wire.write(child.stdin, Message(start))
        while True:
            with time_limit(seconds(), also=child.kill):
                news = _next_news(peer, child)
            match news["op"]:
                case "plan":
                    plan[:] = [check | {"points": float(check["points"])}
                               for check in news["checks"]]
                case "outcome":
                    told = news["outcome"]
                    outcomes.append(Outcome(**told | {"status": Status(told["status"])}))
                case "end":
                    return True
                case "broken":
                    raise JudgeError("the hidden checks could not run", str(news["why"]),
                                     "tell your instructor")
            if seconds() <= 0:
                return len(outcomes) == len(plan)
    except TimeLimit:
        if len(plan) <= len(outcomes):
            raise JudgeError("the judge did not start", "nothing came from its process",
                             "run the cell again") from None
        outcomes.append(never_reached(**plan[len(outcomes)]).hidden())
        return len(outcomes) == len(plan)
    except (EOFError, OSError, WireError, KeyError, TypeError) as error:
        raise JudgeError(
            "the judge ended before its time",
            f"{type(error).__name__}; its exit code is {child.poll()}",
            "run the cell again; when it happens again, tell your instructor") from error
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
        try:
            child.stdin.close()
        except OSError:                                    # it could not be told the last words
            pass


def _next_news(peer: Peer, child: subprocess.Popen) -> dict:
    """Serve the judge's calls until it has something to tell."""
    while True:
        message = wire.read(child.stdout)
        if message.data["op"] in ("plan", "outcome", "end", "broken"):
            return message.data
        wire.write(child.stdin, peer.answer(message))
