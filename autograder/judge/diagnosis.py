"""Says which known mistake a wrong result comes from.

When a check has failed, the public checks are run again with the same seed, in turn with the
learner's code, the reference and each mutant as the subject, and every word between check and
subject is recorded, on all inputs that a search draws. When a mutant's records are the
learner's, in the checks that passed as well, and the reference's are not, the mutant's story
is the learner's. Of errors that Python or a library raised the words count, too: many mistakes
end as a ValueError.
"""

import math
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from typing import Any

import numpy as np

from autograder.checking import MESSAGE_WORDS, Check, checks_of
from autograder.checking.differential import Search, searches
from autograder.checking.learner_code import begins_with
from autograder.checking.running import (Outcome, Report, Status, collected_remarks, cut,
                                         run_check)
from autograder.judge.peer import Peer
from autograder.judge.wire import Message, decode
from autograder.variants.mutation import Mutant, load_mutant, mutants_of, reference_subjects
from gearworks.errors import GearworksError

REPLAY_SECONDS = 2          # of processor time, for one replay
DIAGNOSIS_SECONDS = 6       # and for all of an exercise
LONGEST_RECORD = 20_000     # messages

Record = list[Message]


def with_diagnosis(report: Report, subjects: Sequence[Any]) -> Report:
    """The report; where a known mistake explains what its public checks saw, they name it."""
    failed = [outcome.name for outcome in report.outcomes
              if outcome.public and outcome.status is Status.FAILED]
    if not failed:
        return report
    endless = {outcome.name for outcome in report.outcomes
               if outcome.status is Status.OUT_OF_TIME}
    checks = [check for check in checks_of(report.exercise)
              if check.public and check.name not in endless]
    checks.sort(key=lambda check: check.name not in failed)       # these tell mistakes apart
    try:
        mutant = diagnose(checks, subjects, report.seed)
    except Exception:                      # whatever it stumbles on, the report itself is right
        return report
    if mutant is None:
        return report
    says = dict.fromkeys(failed, "The same mistake as above gives this.")
    says[failed[0]] = mutant.says or f"A known mistake gives exactly this: {mutant.story}."
    return replace(report, mistake=mutant.name, outcomes=tuple(
        _with_sentence(outcome, says[outcome.name]) if outcome.name in says else outcome
        for outcome in report.outcomes))


def diagnose(checks: Sequence[Check], subjects: Sequence[Any], seed: int) -> Mutant | None:
    """The known mistake behind the results in all of these checks; the first one has failed."""
    deadline = time.process_time() + DIAGNOSIS_SECONDS
    exercise = checks[0].exercise
    records = [(check, own) for check in checks
               if (own := record(check, subjects, seed)) is not None]
    if not records or records[0][0] is not checks[0]:
        return None
    truth = record(checks[0], reference_subjects(exercise), seed)
    if truth is None or agree(records[0][1], truth) or asserts_otherwise(records[0][1], truth):
        return None
    for mutant in mutants_of(exercise):
        try:
            mutated = load_mutant(exercise, mutant)
        except GearworksError:
            continue
        for check, own in records:
            if time.process_time() > deadline:
                return None
            theirs = record(check, mutated, seed)
            if theirs is None or not agree(own, theirs) or not fail_alike(own, theirs):
                break
        else:
            return mutant
    return None


def record(check: Check, subjects: Sequence[Any], seed: int) -> Record | None:
    """All that a check and its subjects say to each other; None if too much, or endless."""
    messages, outcome = conversation(check, subjects, seed)
    return (None if outcome.status is Status.OUT_OF_TIME or len(messages) >= LONGEST_RECORD
            else messages)


def conversation(check: Check, subjects: Sequence[Any], seed: int,
                 seconds: float = REPLAY_SECONDS) -> tuple[Record, Outcome]:
    """What a check and its subjects say to each other, to LONGEST_RECORD, and how it ends."""
    messages: Record = []
    theirs, ours = Peer(open_objects=True), Peer(open_objects=False)

    def note(message: Message) -> Message:
        if len(messages) >= LONGEST_RECORD:
            raise OverflowError("a conversation that is too long to record")
        messages.append(message)
        return message

    ours.ask = lambda request: note(theirs.answer(note(request)))
    theirs.ask = lambda request: note(ours.answer(note(request)))
    proxies = [ours.take(theirs.give(subject)) for subject in subjects]
    with collected_remarks(), redirect_stdout(StringIO()), searches(Search.ALL):
        return messages, run_check(check, proxies, seed, seconds=seconds)


def agree(first: Record, second: Record) -> bool:
    """Whether two records say the same, but for rounding and for the words of errors."""
    return len(first) == len(second) and all(
        _same(a.data, b.data, a.blobs, b.blobs) for a, b in zip(first, second))


def asserts_otherwise(own: Record, truth: Record) -> bool:
    """Whether the first thing that is wrong is an AssertionError. It says nothing of the cause:
    so fails every test of a learner's that is wrong about right code."""
    at = next((at for at, (a, b) in enumerate(zip(own, truth)) if not agree([a], [b])), None)
    return (at is not None and "error" in own[at].data and "error" not in truth[at].data
            and "AssertionError" in own[at].data["error"].get("kinds", ()))


def fail_alike(own: Record, theirs: Record) -> bool:
    """Whether the errors of two records that agree say the same; those that the code itself
    raises may say it in other words."""
    errors = [(a.data["error"], b.data["error"]) for a, b in zip(own, theirs)
              if "error" in a.data]
    return all(begins_with("raise", mine.get("line", ""))
               or mine.get("text") == other.get("text") for mine, other in errors)


def _same(a: Any, b: Any, a_blobs: list[bytes], b_blobs: list[bytes]) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        if a.get("kind") in ("array", "scalar") and b.get("kind") == a["kind"]:
            return _same_array(decode(a, a_blobs, _no_handles), decode(b, b_blobs, _no_handles))
        if "kinds" in a and "kinds" in b:                    # two exceptions
            return a["kinds"] == b["kinds"]
        if "blob" in a and "blob" in b:
            return a_blobs[a["blob"]] == b_blobs[b["blob"]]
        if a.get("kind") == b.get("kind") == "dataclass":
            a, b = _without_times(a), _without_times(b)
        ignored = {"type"} if a.get("kind") == "handle" else set()
        return a.keys() == b.keys() and all(
            _same(a[key], b[key], a_blobs, b_blobs) for key in a if key not in ignored)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(_same(x, y, a_blobs, b_blobs) for x, y in zip(a, b))
    if isinstance(a, float) and isinstance(b, float):
        return (math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-12)
                or (math.isnan(a) and math.isnan(b)))
    return type(a) is type(b) and a == b


def _without_times(data: dict) -> dict:
    """A dataclass's fields by name: no two runs take equally long."""
    fields = zip(data["keys"], data["values"])
    return {"class": data.get("class"),
            **{name: value for name, value in fields if not name.endswith("seconds")}}


def _same_array(a: np.ndarray, b: np.ndarray) -> bool:
    if np.shape(a) != np.shape(b) or a.dtype != b.dtype:
        return False
    if a.dtype.kind != "f":
        return np.array_equal(a, b)
    scale = float(np.max(np.abs(a), where=np.isfinite(a), initial=0))
    return np.allclose(a, b, rtol=1e-5, atol=1e-6 * scale, equal_nan=True)


def _no_handles(data: dict) -> None:
    raise LookupError("an array is no handle")


def _with_sentence(outcome: Outcome, sentence: str) -> Outcome:
    others = (outcome.expected, outcome.hint, sentence)
    room = MESSAGE_WORDS - sum(len(part.split()) for part in others) - 10
    found = outcome.found if outcome.found.endswith(".") else outcome.found + "."
    return replace(outcome, found=f"{cut(found, max(20, room))} {sentence}")
