"""Tries the mutants of exercises, and keeps what became of them in a file.

An exercise whose hash is in the file already is not tried again; whatever ends a run, what it
has found so far is there for the next one.
"""

import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tqdm.auto import tqdm

from autograder.chapters.chapter import Exercise, chapter_paths, read_chapter
from autograder.checking.levels import why_not_here
from autograder.machine_mutants.fingerprint import fingerprint
from autograder.machine_mutants.mutants import mutants_of
from autograder.machine_mutants.results import Row, Survivor, read, summary, write
from autograder.machine_mutants.trials import OUT_OF_TIME, TrialError, Worker, in_order
from autograder.variants import kill_matrix

COMMAND = "autograder mutants --generated"

# Fills a row with a worker's help; a step is one mutant.
Work = Callable[[Worker], Iterator[None]]


def exercises_of(root: Path, name: str | None = None) -> list[Exercise]:
    """The exercises of a repository's chapters, in their order.

    name: of an exercise, a component, a module, or of a chapter, such as "04"; None for all.
    Raises VariantError when no exercise is meant.
    """
    paths = chapter_paths(root / "book" / "chapters")
    chapters = [path for path in paths if name and path.name.startswith(f"{name}_")]
    found = [exercise for path in chapters or paths
             for exercise in read_chapter(path).exercises]
    if name is None or chapters:
        return found
    known = {*kill_matrix.named(name)}
    return [exercise for exercise in found if exercise.name in known]


def stale(exercises: Sequence[Exercise], rows: dict[str, Row]) -> dict[str, str]:
    """The exercises whose rows are missing, unfinished or of something else: name -> hash."""
    found = {}
    for exercise in exercises:
        now = fingerprint(exercise.name, mutants_of(exercise.name, exercise.methods))
        row = rows.get(exercise.name)
        if row is None or row.problem or row.made_from != now:
            found[exercise.name] = now
    return found


def run(exercises: Sequence[Exercise], path: Path, order: Sequence[str], jobs: int = 1,
        tell: Callable[[str], None] = lambda text: None) -> dict[str, Row]:
    """Try the mutants of those exercises that are stale, then compare what survives.

    Each result is written to the file at once. order: of all exercises in the file. jobs: how
    many processes work side by side. tell: hears of each exercise that is finished.
    """
    rows = {name: row for name, row in read(path).items() if name in order}

    def keep(row: Row) -> None:
        rows[row.exercise] = row
        write(path, rows, order)
        tell(summary(row))

    here = [exercise for exercise in exercises if not why_not_here(exercise.name)]
    made_from = stale(here, rows)
    new = [(exercise, _new_row(exercise, made_from[exercise.name])) for exercise in here
           if exercise.name in made_from]
    _side_by_side("trials", [(row, _tried(exercise, row)) for exercise, row in new],
                  sum(len(mutants_of(each.name, each.methods)) for each, _ in new), jobs, keep)
    left = [(rows[exercise.name], _compared(exercise, rows[exercise.name]))
            for exercise in here if _uncompared(rows[exercise.name])]
    _side_by_side("comparisons", left, sum(len(_uncompared(row)) for row, _ in left), jobs,
                  keep)
    return rows


def _new_row(exercise: Exercise, made_from: str) -> Row:
    checks = in_order(exercise.name)
    return Row(exercise.name, made_from, [check.name for check in checks],
               sum(check.public for check in checks))


def _uncompared(row: Row) -> list[Survivor]:
    return [survivor for survivor in row.survivors
            if not survivor.found and survivor.kind == "open"]


def _tried(exercise: Exercise, row: Row) -> Work:
    """Tries all mutants of an exercise."""
    def work(worker: Worker) -> Iterator[None]:
        start = time.monotonic()
        counts: dict[str, Counter] = {}
        mutants = mutants_of(exercise.name, exercise.methods)
        keys = [mutant.key for mutant in mutants]
        outcomes = worker.outcomes(exercise.name, exercise.methods, keys)
        for outcome, mutant in zip(outcomes, mutants):
            row.outcomes += row.letter(outcome)
            row.out_of_time += outcome.how == OUT_OF_TIME
            counts.setdefault(mutant.operator, Counter()).update(
                made=1, survived=not outcome.check)
            if not outcome.check:
                row.survivors.append(Survivor(mutant.key, mutant.component, mutant.operator,
                                              mutant.line, mutant.diff))
            yield
        row.operators = {name: [count["made"], count["survived"]]
                         for name, count in counts.items()}
        row.seconds = round(time.monotonic() - start, 1)
    return work


def _compared(exercise: Exercise, row: Row) -> Work:
    """Compares the survivors of an exercise with the reference."""
    def work(worker: Worker) -> Iterator[None]:
        survivors = _uncompared(row)
        keys = [survivor.key for survivor in survivors]
        comparisons = worker.comparisons(exercise.name, exercise.methods, keys)
        for found, survivor in zip(comparisons, survivors):
            survivor.found, survivor.check = found.found, found.check
            survivor.calls, survivor.wide, survivor.shows = found.calls, found.wide, found.shows
            yield
    return work


def _side_by_side(title: str, works: Sequence[tuple[Row, Work]], steps: int, jobs: int,
                  keep: Callable[[Row], None]) -> None:
    """Do all works, `jobs` at a time, each with a process of its own, and keep their rows."""
    if not works:
        return
    free: queue.SimpleQueue[Worker] = queue.SimpleQueue()
    workers = [Worker() for _ in range(jobs)]
    for worker in workers:
        free.put(worker)
    stop = threading.Event()
    bar = tqdm(total=steps, desc=title, unit=" mutants", file=sys.stderr, delay=2, leave=False,
               disable=None)

    def done(row: Row, work: Work) -> Row | None:
        worker = free.get()
        try:
            for _ in work(worker):
                bar.update()
                if stop.is_set():
                    return None
        except TrialError as error:
            row.problem = str(error)
        finally:
            free.put(worker)
        return row

    with bar, ThreadPoolExecutor(jobs) as pool:
        try:
            for each in as_completed([pool.submit(done, *work) for work in works]):
                if (row := each.result()) is not None:
                    keep(row)
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)
            for worker in workers:
                worker.__exit__()
