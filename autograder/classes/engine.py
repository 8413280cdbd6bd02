"""Grades many submissions: one after the other here, or side by side with Dask.

What runs learners' code is neither this process nor a worker of Dask, but a process that each
of them forks for an exercise. Records are written here, one after the other, each whole. So
whatever is killed, whenever, costs what was being judged at that moment: the next run finds the
records that are there, and makes the others.
"""

import logging
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Protocol

from autograder.chapters.chapter import Chapter
from autograder.classes.grading import grade
from autograder.classes.keys import environment_hash, submission_key
from autograder.classes.record import Record, Records, Status
from autograder.classes.submitted import Submission, contents_of, notebooks_of
from autograder.judge.memory import Memory
from autograder.judge.workers import Workers
from autograder.sandbox.choice import Sandbox
from autograder.submissions.intake import Notebook
from gearworks.errors import GearworksError, NotAvailableError

if TYPE_CHECKING:
    import distributed

AHEAD = 4               # tasks for each of Dask's threads: none waits, and few wait in memory
LEAST_AHEAD = 32        # so that a cluster that grows with its work has some to see
ANSWER_SECONDS = 30     # by the wall clock, for a scheduler to answer
PLUGIN = "autograder"
RETRIES = 2             # of a task whose worker was lost with it, on another worker


@dataclass(frozen=True)
class Course:
    """What all submissions are graded with.

    secret: from which graded checks take their seeds. sandbox: what learners' code runs in;
    None for code of one's own.
    """

    chapters: tuple[Chapter, ...]
    secret: str
    sandbox: Sandbox | None

    def key(self, submission: Submission) -> str:
        """The name of a submission's record."""
        return submission_key(contents_of(submission), submission.chapter, self.secret,
                              self.sandbox.name if self.sandbox is not None else "none")


@dataclass(frozen=True)
class Task:
    """A submission, read and ready to be judged. It may travel to another machine."""

    key: str
    notebooks: tuple[Notebook, ...]
    chapter: str                    # its stem, or "" for none that is known


class Engine(Protocol):
    """Judges tasks; which one is done first, nobody knows."""

    def judged(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Record]]:
        """Each task with its record. Tasks are taken as there is room for them."""


def graded(submissions: Sequence[Submission], course: Course, records: Records, engine: Engine,
           again: bool = False) -> Iterator[tuple[Submission, Record]]:
    """Each submission with its record, which is on the disk by then; known ones come first.

    Of equal submissions one is judged. again: to make all records anew.
    """
    same: dict[str, list[Submission]] = {}
    for submission in submissions:
        same.setdefault(course.key(submission), []).append(submission)
    waiting = []
    for key, own in same.items():
        record = None if again else records.get(key)
        if record is None or not record.is_final:
            waiting.append(key)
        else:
            yield from ((submission, record) for submission in own)
    tasks = (Task(key, tuple(notebooks_of(same[key][0])), same[key][0].stem)
             for key in waiting)
    for task, record in engine.judged(tasks):
        record = records.put(task.key, record)
        yield from ((submission, record) for submission in same[task.key])


class Here:
    """Judges one task after the other, in this process and the workers that it forks."""

    def __init__(self, course: Course):
        self._course = course

    def judged(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Record]]:
        memory = Memory()
        with Workers(self._course.sandbox) as workers:
            for task in tasks:
                yield task, _record(task, self._course, workers, memory)


class Cluster:
    """Judges tasks with Dask, side by side. Nothing is started when there are none.

    scheduler: the address of one that runs; without it, workers are started on this machine, as
    many as `jobs`. `judged` raises NotAvailableError without Dask, GearworksError where the
    scheduler does not answer, and where its workers run another version of the course.
    """

    def __init__(self, course: Course, jobs: int = 1, scheduler: str = ""):
        self._course, self._jobs, self._scheduler = course, jobs, scheduler

    def judged(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Record]]:
        waiting = iter(tasks)
        first = next(waiting, None)
        if first is None:
            return
        with self._client() as client:
            yield from _judged_by(client, chain([first], waiting))

    @contextmanager
    def _client(self) -> "Iterator[distributed.Client]":
        distributed = _distributed()
        with ExitStack() as stack:
            address = self._scheduler
            if not address:
                # else each worker keeps samples of all that it did: a growth of some megabytes
                import dask

                stack.enter_context(dask.config.set(
                    {"distributed.worker.profile.enabled": False}))
                address = stack.enter_context(distributed.LocalCluster(
                    n_workers=self._jobs, threads_per_worker=1, processes=True,
                    host="127.0.0.1", memory_limit=0, silence_logs=logging.ERROR,
                    scheduler_kwargs={"dashboard": False}))
            try:
                client = stack.enter_context(distributed.Client(
                    address, timeout=ANSWER_SECONDS, set_as_default=False))
            except (OSError, TimeoutError, ValueError) as error:
                raise GearworksError(f"no scheduler of Dask answers at {address}", str(error),
                                     "start it with `dask scheduler`, and workers with `dask "
                                     "worker ADDRESS --nthreads 1`") from None
            client.register_plugin(_plugin(self._course, environment_hash()))
            yield client


def _judged_by(client: "distributed.Client",
               tasks: Iterator[Task]) -> Iterator[tuple[Task, Record]]:
    running: dict[distributed.Future, Task] = {}
    finished = _distributed().as_completed(loop=client.loop)

    def fill() -> None:
        room = max(LEAST_AHEAD, AHEAD * sum(client.nthreads().values()))
        for task in islice(tasks, max(0, room - len(running))):
            future = client.submit(_judged_on_a_worker, task, pure=False, retries=RETRIES)
            running[future] = task
            finished.add(future)

    fill()
    for future in finished:
        task = running.pop(future)
        error = future.exception()
        yield task, future.result() if error is None else _failed(task, error)
        future.release()
        fill()


def _distributed() -> Any:
    try:
        import distributed
    except ImportError:
        raise NotAvailableError("cannot grade submissions side by side",
                                "Dask is not installed",
                                'pip install "dask[distributed]", or give --jobs 1') from None
    return distributed


def _plugin(course: Course, environment: str) -> "distributed.WorkerPlugin":
    """What a worker of Dask has as long as it lives: a supply of workers for learners' code."""
    from distributed import WorkerPlugin

    class Judging(WorkerPlugin):
        name = PLUGIN

        def __init__(self, course: Course, environment: str):
            self.course, self._environment = course, environment

        def setup(self, worker: "distributed.Worker") -> None:
            own = environment_hash()
            if own != self._environment:
                raise GearworksError(
                    f"the worker {worker.address} would give other grades",
                    f"its course, Python or libraries are others ({own[:8]}, not "
                    f"{self._environment[:8]})", "install the same versions on all machines")
            # Dask's own threads draw random numbers while a strategy of ours draws its own.
            warnings.filterwarnings("ignore", message="Do not use the `random` module")
            self.workers, self.memory = Workers(self.course.sandbox), Memory()

        def teardown(self, worker: "distributed.Worker") -> None:
            self.workers.__exit__()

    return Judging(course, environment)


def _judged_on_a_worker(task: Task) -> Record:
    from distributed import get_worker

    judging = get_worker().plugins[PLUGIN]
    return _record(task, judging.course, judging.workers, judging.memory)


def _record(task: Task, course: Course, workers: Workers, memory: Memory) -> Record:
    """A task's record. What goes wrong in it is its own misfortune, and not the class's."""
    try:
        chapter = next((each for each in course.chapters if each.stem == task.chapter), None)
        return grade(task.notebooks, chapter, course.chapters, workers, course.secret, memory)
    except Exception as error:
        return _failed(task, error)


def _failed(task: Task, error: BaseException) -> Record:
    return Record(task.chapter, Status.INFRASTRUCTURE,
                  (f"the grader failed: {type(error).__name__}: {error}",))
