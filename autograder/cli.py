"""The command `autograder`.

Results go to standard output, everything about them to standard error. Exit codes: 0 done, 1 a
failure with a message that says what to try (for `build --check`: an edition is out of date), 2
wrong usage, 130 interrupted.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from gearworks.cli import console
from gearworks.errors import GearworksError

BAR_AFTER_SECONDS = 2
TRIALS = ("suite", "race")              # of an engine that gets a certificate


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    def command() -> int | None:
        options = _parser().read(sys.argv[1:] if arguments is None else arguments)
        return options.run(options)
    return console.run("autograder", command)


def _parser() -> console.Parser:
    parser = console.Parser(prog="autograder",
                            description="Makes the course's editions, and grades them.")

    command = parser.add_command("build", "make the notebooks from the chapters",
                                 "Make the learner notebooks and the sources of nbgrader from "
                                 "book/chapters and the reference.")
    command.add_argument("--check", action="store_true",
                         help="write nothing; exit 1 if a notebook is out of date")
    command.add_argument("--force", action="store_true",
                         help="also replace a notebook that somebody has run")
    _add_root(command)
    command.set_defaults(run=_build)

    command = parser.add_command("course", "make a folder for nbgrader",
                                 "Make or renew a folder in which nbgrader releases the "
                                 "chapters and grades what comes back.")
    command.add_argument("folder", type=Path, metavar="FOLDER",
                         help="where releases, submissions and grades will lie")
    _add_root(command)
    command.set_defaults(run=_course)

    command = parser.add_command("collect", "put what a class handed in where nbgrader looks",
                                 "Put submissions as a platform delivered them into the "
                                 "folders of nbgrader's course, as notebooks that it can read. "
                                 "`grade` does not need it; `nbgrader autograde` does.")
    _add_submitted(command)
    command.set_defaults(run=_collect)

    _add_grade(parser)

    command = parser.add_command("similarity", "lay out what a class wrote, to look for copies",
                                 "Write what a class has handed in as JPlag and Dolos read it, "
                                 "beside what everybody was given and the public reference. "
                                 "What they find is a hint, never a verdict.")
    _add_submitted(command)
    command.add_argument("--to", type=Path, default=Path("similarity"), metavar="FOLDER",
                         help="where it goes (default: %(default)s)")
    command.set_defaults(run=_similarity)

    command = parser.add_command("mutants", "measure how good the checks are",
                                 "Print the kill matrix: which wrong versions of each "
                                 "component are caught, and by which check.")
    command.add_argument("component", nargs="?", metavar="COMPONENT",
                         help="such as tokenizer.train_bpe; else all")
    command.add_argument("--json", action="store_true",
                         help="print one JSON object instead of the table")
    command.add_argument("--generated", action="store_true",
                         help="try the mutants that are made by machine, of exercises whose "
                              "code or checks have changed since, and keep the result in "
                              "book/machine_mutants.json; COMPONENT may be a chapter, as 04")
    command.add_argument("--jobs", type=int, default=1, metavar="N",
                         help="with --generated: processes side by side (default: %(default)s)")
    command.add_argument("--operators", action="store_true",
                         help="print by what operators mutants are made, and end")
    _add_root(command)
    command.set_defaults(run=_mutants)

    command = parser.add_command("assemble", "make an engine of your own gears",
                                 "Make the engine that your notebooks describe: the reference, "
                                 "with your definitions in place of its own.")
    _add_notebooks(command)
    command.add_argument("--to", type=Path, default=Path("my_engine"), metavar="FOLDER",
                         help="where to make it (default: %(default)s)")
    command.add_argument("--accepted", type=int, metavar="NUMBER",
                         help="instead of notebooks: of right versions of every exercise, "
                              "drawn by this number")
    command.set_defaults(run=_assemble)

    command = parser.add_command("doctor", "try the sandbox before a class is graded",
                                 "Try every attack of the corpus on the sandbox that a class "
                                 "gets here, and print what held. Exit code 1 if one did not.")
    command.add_argument("attacks", nargs="*", metavar="ATTACK",
                         help="names of attacks (default: all)")
    command.add_argument("--json", action="store_true",
                         help="print one JSON object instead of the text")
    command.add_argument("--jobs", type=int, metavar="N",
                         help="attacks side by side (default: two for each processor)")
    command.add_argument("--manifests", action="store_true",
                         help="print what a Kubernetes cluster needs for its sandbox, and end")
    command.set_defaults(run=_doctor)

    command = parser.add_command("bench", "measure what grading takes",
                                 "Grade solved submissions, all of them different, and print "
                                 "what that took, of processors and by the clock.")
    command.add_argument("chapters", nargs="*", metavar="NN",
                         help="numbers of chapters (default: all)")
    command.add_argument("--submissions", type=int, default=3, metavar="N",
                         help="of each chapter (default: %(default)s)")
    command.add_argument("--jobs", type=int, nargs="+", default=[1], metavar="N",
                         help="workers, one run for each number (default: 1)")
    command.add_argument("--stock", action="store_true",
                         help="stock nbgrader grades the same submissions, too")
    _add_root(command)
    command.set_defaults(run=_bench)

    command = parser.add_command("progress", "show which gears are finished",
                                 "Run the public checks on your notebooks, and show how far "
                                 "each exercise is.")
    _add_notebooks(command)
    command.add_argument("--json", action="store_true",
                         help="print one JSON object instead of the text")
    command.add_argument("--html", type=Path, metavar="FILE",
                         help="write it as a page, too")
    command.add_argument("--receipt", type=Path, metavar="FILE",
                         help="write points and the notebooks' hashes, to hand in")
    command.set_defaults(run=_show_progress)

    command = parser.add_command("certificate", "make a page that shows what you have built",
                                 "Assemble your engine, check its parts, run the reference's "
                                 "tests on it, let it answer and race, and write a page about "
                                 "all that. It takes some ten minutes.")
    _add_notebooks(command)
    command.add_argument("--to", type=Path, default=Path("certificate.html"), metavar="FILE",
                         help="where to write the page (default: %(default)s)")
    command.add_argument("--engine", type=Path, default=Path("my_engine"), metavar="FOLDER",
                         help="where to make the engine (default: %(default)s)")
    command.add_argument("--name", default="", metavar="NAME", help="whose engine it is")
    command.add_argument("--without", action="append", default=[], choices=TRIALS,
                         help="leave a trial out; the page says so. May be repeated")
    command.set_defaults(run=_certificate)
    return parser


def _add_submitted(command: argparse.ArgumentParser) -> None:
    command.add_argument("submitted", type=Path, metavar="SUBMITTED",
                         help="a folder or a zip file, as nbgrader, Canvas, Moodle or "
                              "Gradescope gives it")
    command.add_argument("--course", type=Path, metavar="FOLDER",
                         help="nbgrader's folder, with its gradebook (default: the one around "
                              "SUBMITTED, if any)")
    command.add_argument("--roster", type=Path, metavar="FILE",
                         help="the class's table, as nbgrader, Canvas or Moodle exports it; "
                              "who is missing shows with it only")
    command.add_argument("--chapter", metavar="NN",
                         help="all submissions are of this chapter, such as 04")


def _add_grade(parser: console.Parser) -> None:
    command = parser.add_command("grade", "grade what a class has handed in",
                                 "Grade the notebooks of a class: repair what happened to "
                                 "them, judge them, and write a table, a report and feedback. "
                                 "What is graded already is not graded again.")
    _add_submitted(command)
    command.add_argument("--to", type=Path, default=Path("graded"), metavar="FOLDER",
                         help="where results go (default: %(default)s)")
    command.add_argument("--due", default="", metavar="TIME", help="such as 2026-03-01T23:59")
    command.add_argument("--late", default="", metavar="RULE",
                         help="such as 10%%/day,max=50%%,grace=15min; needs --due")
    command.add_argument("--gradebook", default="", metavar="URL",
                         help="nbgrader's gradebook, sqlite:///… or postgresql://…, where it "
                              "is not the one of --course")
    command.add_argument("--canvas", type=Path, metavar="FILE",
                         help="fill in Canvas' gradebook, which --roster names")
    command.add_argument("--column", default="", metavar="NAME",
                         help="the chapter's column in it")
    command.add_argument("--moodle", type=Path, metavar="FILE",
                         help="fill in Moodle's grading worksheet, which --roster names")
    command.add_argument("--gradescope", type=Path, metavar="FOLDER",
                         help="write a results.json for each submission")
    command.add_argument("--jobs", type=int, default=0, metavar="N",
                         help="submissions side by side (default: one for each processor)")
    command.add_argument("--scheduler", default="", metavar="ADDRESS",
                         help="of Dask, such as tcp://10.0.0.1:8786, to grade on its workers")
    command.add_argument("--sandbox", metavar="KIND",
                         help="bubblewrap, podman, docker or kubernetes (default: "
                              "AUTOGRADER_SANDBOX, else the first that works here)")
    command.add_argument("--again", action="store_true",
                         help="grade those that are graded, too")
    command.set_defaults(run=_grade)


def _add_root(command: argparse.ArgumentParser) -> None:
    command.add_argument("--root", type=Path, metavar="FOLDER",
                         help="the repository (default: found from here)")


def _add_notebooks(command: argparse.ArgumentParser) -> None:
    command.add_argument("notebooks", nargs="*", type=Path, metavar="NOTEBOOKS",
                         help="a folder of notebooks, or files (default: chapters/ of the "
                              "repository)")
    _add_root(command)


def _root(options: argparse.Namespace) -> Path:
    """The repository: as named, or around the working directory, or around this package."""
    if options.root is not None:
        return options.root
    for folder in (Path.cwd(), *Path.cwd().parents, Path(__file__).resolve().parents[1]):
        if (folder / "book" / "chapters").is_dir() and (folder / "pyproject.toml").is_file():
            return folder
    raise GearworksError("cannot find the chapters",
                         "no folder around this one holds book/chapters",
                         "run this in a checkout of the course, or name it with --root")


def _progress(chapters: Sequence[Path]) -> Iterable[Path]:
    from tqdm.auto import tqdm

    return tqdm(chapters, desc="Building", unit=" chapters", delay=BAR_AFTER_SECONDS,
                leave=False, disable=None)


def _build(options: argparse.Namespace) -> int:
    from autograder.chapters.editions import build, drift

    root = _root(options)
    if not options.check:
        with console.interrupts_raise():
            for path in build(root, options.force, _progress):
                print(f"wrote {_relative(path)}")
        return 0
    with console.interrupts_raise():
        stale = drift(root, _progress)
    for path, why in stale.items():
        print(f"{_relative(path)}: {why}")
    if stale:
        print("autograder: learner notebooks and chapters differ\n"
              "  Why  a chapter, the reference or a check has changed since\n"
              "  Try  autograder build", file=sys.stderr)
    return 1 if stale else 0


def _course(options: argparse.Namespace) -> None:
    from autograder.classes.course_folder import make_course

    with console.interrupts_raise():
        written = make_course(options.folder, _root(options), _progress)
    for path in written:
        print(f"wrote {_relative(path)}")
    print(f"Next: cd {options.folder}, then nbgrader generate_assignment "
          f"{written[0].parent.name}", file=sys.stderr)


def _read_notebooks(options: argparse.Namespace) -> tuple[list, list]:
    """The chapters of the repository, and the notebooks that were named."""
    from autograder.chapters.chapter import chapter_paths, read_chapter
    from autograder.submissions.intake import notebook_paths, read_notebooks

    root = _root(options)
    paths = notebook_paths(options.notebooks or [root / "chapters"])
    if not paths:
        print("autograder: there are no notebooks there", file=sys.stderr)
    chapters = [read_chapter(path) for path in chapter_paths(root / "book" / "chapters")]
    return chapters, [notebook for path in paths for notebook in read_notebooks(path)]


def _assemble(options: argparse.Namespace) -> None:
    from autograder.submissions.attempts import find_components
    from autograder.submissions.overlay import assemble, summary

    if options.accepted is not None:
        options.notebooks = []
    chapters, notebooks = _read_notebooks(options)
    if options.accepted is not None:
        from autograder.submissions.accepted_engines import accepted_notebook

        notebooks = [accepted_notebook(chapter, options.accepted) for chapter in chapters]
    with console.interrupts_raise():
        print(summary(assemble(find_components(chapters, notebooks), options.to), notebooks))
    print(f"Next: gearworks chat --engine {options.to}", file=sys.stderr)


def _show_progress(options: argparse.Namespace) -> None:
    from datetime import datetime

    from autograder.submissions import progress
    from autograder.submissions.attempts import find_components
    from autograder.submissions.intake import notebook_paths

    chapters, notebooks = _read_notebooks(options)
    with console.interrupts_raise():
        found = progress.measure(chapters, find_components(chapters, notebooks), _checking)
    if options.html:
        from autograder.classes.pages import number, page

        options.html.write_text(page("progress", chapters=found, number=number,
                                     step=progress.next_step(found)), encoding="utf-8")
    if options.receipt:
        files = notebook_paths(options.notebooks or [_root(options) / "chapters"])
        options.receipt.write_text(progress.receipt(found, files, datetime.now().astimezone()),
                                   encoding="utf-8")
    print(json.dumps(progress.as_json(found, notebooks)) if options.json
          else progress.text(found, notebooks))


def _checking(exercises: Sequence) -> Iterable:
    from tqdm.auto import tqdm

    return tqdm(exercises, desc="Checking", unit=" exercises", delay=BAR_AFTER_SECONDS,
                leave=False, disable=None)


def _certificate(options: argparse.Namespace) -> None:
    from datetime import datetime

    from autograder.certificate import trials
    from autograder.certificate.certificate import certificate
    from autograder.submissions import progress
    from autograder.submissions.attempts import find_components
    from autograder.submissions.intake import notebook_paths
    from autograder.submissions.overlay import assemble

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    solutions = _root(options) / "solutions"
    missing = [solutions / name for name in ("tests", "benchmarks")
               if not (solutions / name).is_dir()]
    if missing and len(options.without) < len(TRIALS):
        raise GearworksError("cannot try the engine", f"there is no {missing[0]}",
                             "run this in a checkout of the course, or give --without suite "
                             "--without race")
    chapters, notebooks = _read_notebooks(options)
    files = notebook_paths(options.notebooks or [_root(options) / "chapters"])
    suite = race = None
    with console.interrupts_raise():
        components = find_components(chapters, notebooks)
        gears = assemble(components, options.engine)
        say(f"{sum(gear.is_learners for gear in gears)} of {len(gears)} parts of the engine "
            "are yours. Their checks:")
        found = progress.measure(chapters, components, _checking)
        if "race" not in options.without:
            say("The engine answers and races")
            race = trials.run_race(options.engine, solutions / "benchmarks")
        if "suite" not in options.without:
            say("The reference's tests, on the engine")
            suite = trials.run_suite(options.engine, solutions / "tests")
        told = certificate(options.name, gears, found, options.engine, files,
                           datetime.now().astimezone(), suite, race)
    options.to.write_text(told.as_page(), encoding="utf-8")
    print(options.to)


def _collect(options: argparse.Namespace) -> None:
    from autograder.classes.command import collect

    with console.interrupts_raise():
        for line in collect(options):
            print(line)


def _similarity(options: argparse.Namespace) -> None:
    from autograder.classes.command import similarity

    with console.interrupts_raise():
        for line in similarity(options):
            print(line)


def _grade(options: argparse.Namespace) -> None:
    from autograder.classes.command import grade

    def bar(found: Iterable, total: int) -> Iterable:
        from tqdm.auto import tqdm

        return tqdm(found, total=total, desc="Grading", unit=" submissions",
                    delay=BAR_AFTER_SECONDS, disable=None, smoothing=0.05)

    with console.interrupts_raise():
        for line in grade(options, bar):
            print(line)


def _doctor(options: argparse.Namespace) -> int:
    if options.manifests:
        from autograder.sandbox.kubernetes import cluster_manifests

        print(json.dumps({"apiVersion": "v1", "kind": "List", "items": cluster_manifests()},
                         indent=2))
        return 0
    from autograder.attacks import doctor
    from autograder.sandbox.choice import sandbox_of_a_class

    sandbox = sandbox_of_a_class()
    chosen = doctor.chosen_attacks(options.attacks)
    with console.interrupts_raise():
        results = doctor.examine(chosen, sandbox, options.jobs, lambda result: None
                                 if options.json else print(doctor.line(result), flush=True))
    print(json.dumps(doctor.as_json(results, sandbox)) if options.json
          else f"\n{doctor.summary(results, sandbox)}")
    return int(any(result.broken for result in results))


def _bench(options: argparse.Namespace) -> None:
    from autograder.chapters.chapter import chapter_paths
    from autograder.classes.benchmark import measure

    root = _root(options)
    wanted = {number.zfill(2) for number in options.chapters}
    paths = [path for path in chapter_paths(root / "book" / "chapters")
             if not wanted or path.stem[:2] in wanted]
    with console.interrupts_raise():
        for line in measure(paths, root, options.submissions, options.jobs, options.stock):
            print(line, flush=True)


def _mutants(options: argparse.Namespace) -> int | None:
    from autograder.variants import kill_matrix

    if options.operators:
        from autograder.machine_mutants.operators import OPERATORS

        for operator in OPERATORS:
            print(f"{operator.name}: {operator.says}")
        return None
    with console.interrupts_raise():
        return (_machine_mutants(options) if options.generated
                else kill_matrix.main(options.component, options.json))


def _machine_mutants(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    from autograder.machine_mutants import results, runs

    root = _root(options)
    chosen = runs.exercises_of(root, options.component)
    order = [each.name for each in runs.exercises_of(root)]
    rows = runs.run(chosen, root / results.PATH, order, options.jobs,
                    lambda text: print(text, file=sys.stderr, flush=True))
    found = [rows[each.name] for each in chosen if each.name in rows]
    print(json.dumps([asdict(row) for row in found]) if options.json
          else "\n".join(results.report(found)))
    return int(any(row.problem or row.count("open") for row in found))


def _relative(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
