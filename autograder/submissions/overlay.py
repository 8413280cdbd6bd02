"""Assembles the learner's engine: the reference, with the learner's definitions in its own.

`my_engine/gearworks/` is a package like the reference. It stands first on the path of a child
process, so everything that runs there runs what the learner wrote: `gearworks chat --engine
my_engine`, `pytest solutions/tests --engine my_engine`. What is unfinished, and what cannot be
loaded, is the reference's, and gears.json lists which is whose.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autograder.reference.names import home_of
from autograder.submissions.attempts import Component, State
from autograder.submissions.grafting import GraftedModule, graft
from autograder.submissions.intake import Notebook
from gearworks.errors import GearworksError

LIST = "gears.json"
LOADING_SECONDS = 60        # by the wall clock, for one module: far above what any needs
PARTS = {"gearworks", LIST, "__pycache__", ".DS_Store"}


@dataclass(frozen=True)
class Gear:
    """A component of the assembled engine.

    why: where it is the reference's, what is wrong with the learner's. notes: where it is the
    learner's, what was strange about it.
    """

    component: Component
    is_learners: bool
    why: str = ""
    notes: tuple[str, ...] = ()


def assemble(components: Sequence[Component], folder: Path) -> list[Gear]:
    """Make the engine of a learner's components in a folder, in place of the one that is there.

    components: what was found of every component of the course. Returns its parts. The folder
    is complete or as it was before. Raises GearworksError when it holds anything else than an
    engine, or cannot be written; never because of what the notebooks hold.
    """
    reference = _reference()
    _require_engine_or_nothing(folder)
    components = _one_of_each(components)
    draft = folder.parent / f".{folder.name}.{os.getpid()}"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(draft, ignore_errors=True)
        package = draft / "gearworks"
        shutil.copytree(reference, package, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        gears = _fill(package, components)
        content = {"gears": {gear.component.path: _listed(gear) for gear in gears}}
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        (draft / LIST).write_text(text, encoding="utf-8", newline="\n")
        _swap(draft, folder)
    except OSError as error:
        raise GearworksError(f"cannot make an engine in {folder}", str(error),
                             "close programs that use the folder, or name another one that you "
                             "may write to") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return gears


def summary(gears: Sequence[Gear], notebooks: Sequence[Notebook] = ()) -> str:
    """What an engine is made of, one line for each component."""
    lines = [f"{sum(gear.is_learners for gear in gears)} of {len(gears)} parts are yours"]
    for gear in gears:
        component = gear.component
        told = component.place if gear.is_learners else gear.why
        if gear.is_learners and component.open_methods:
            told += f"; the reference's in it: {', '.join(component.open_methods)}"
        lines.append(f"  {'yours' if gear.is_learners else 'reference':<9}  {component.path}  "
                     f"({told})")
        lines += [f"             Note: {note}" for note in gear.notes]
    lines += [f"{notebook.name}: {note}" for notebook in notebooks for note in notebook.notes]
    return "\n".join(lines)


def _reference() -> Path:
    """The folder of the reference. The module is not asked: an engine may be what runs."""
    package = Path(importlib.util.find_spec("gearworks").origin).parent
    if (package.parent / LIST).exists():
        raise GearworksError("cannot assemble an engine from an engine",
                             f"gearworks is the one in {package.parent}",
                             "run this without that folder on PYTHONPATH")
    return package


def _require_engine_or_nothing(folder: Path) -> None:
    if not folder.exists():
        return
    held = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    strange = [name for name in held if name not in PARTS]
    if not folder.is_dir() or strange or held and LIST not in held:
        raise GearworksError(f"{folder} would be lost",
                             f"it holds {strange[0]}" if strange
                             else "it is no assembled engine",
                             "name a folder that is not there yet, such as my_engine")


def _one_of_each(components: Sequence[Component]) -> list[Component]:
    """The components; where two chapters exercise the same, the last one that fits."""
    chosen: dict[str, Component] = {}
    for component in components:
        before = chosen.get(component.path)
        if before is None or component.fits_the_engine or not before.fits_the_engine:
            chosen[component.path] = component
    return list(chosen.values())


def _fill(package: Path, components: Sequence[Component]) -> list[Gear]:
    """Write the modules that hold learners' definitions, as far as they can be loaded."""
    refused: dict[str, str] = {}
    while True:
        fitting = [component for component in components
                   if component.fits_the_engine and component.path not in refused]
        modules = {}
        for module in dict.fromkeys(component.module for component in fitting):
            own = [component for component in fitting if component.module == module]
            modules[module] = graft(module, own, components)
        for module, grafted in modules.items():
            path = package / _file_of(module)
            path.write_text(grafted.text, encoding="utf-8", newline="\n")
        more = _refused(package, modules)
        if not more:
            break
        refused |= more
        for module in modules:            # those without a graft left are the reference's again
            shutil.copyfile(_reference() / _file_of(module), package / _file_of(module))
    notes = {part.component.path: part.notes
             for grafted in modules.values() for part in grafted.grafts}
    return [Gear(component, is_learners=component.path in notes,
                 why=refused.get(component.path) or _why(component),
                 notes=component.notes + notes.get(component.path, ()))
            for component in components]


def _file_of(module: str) -> Path:
    """Where a module's file lies within the package."""
    origin = Path(importlib.util.find_spec(home_of(module)).origin)
    return origin.relative_to(_reference())


def _refused(package: Path, modules: dict[str, GraftedModule]) -> dict[str, str]:
    """The components, by path, on account of which a module cannot be loaded, and why."""
    refused: dict[str, str] = {}
    waiting = {home_of(module): grafted for module, grafted in modules.items()}
    files = {(package / _file_of(module)).resolve(): grafted
             for module, grafted in modules.items()}
    while waiting:
        names = {home: ",".join(part.component.name for part in grafted.grafts)
                 for home, grafted in waiting.items()}
        news, stack = _load(package.parent, [f"{home}:{names[home]}" for home in waiting])
        for each in news:
            grafted = waiting.pop(each["module"])
            if each["error"]:
                refused |= _culprits(each["lines"], each["error"], files, grafted)
        if waiting:                                          # it ended within the next one
            places = re.findall(r'File "(.+?)", line (\d+)', stack)
            lines = [[file, int(line)] for file, line in reversed(places)]
            why = (f"loading it takes more than {LOADING_SECONDS} seconds" if lines
                   else "loading it ends the process")
            refused |= _culprits(lines, why, files, waiting.pop(next(iter(waiting))))
    return refused


def _load(folder: Path, modules: Sequence[str]) -> tuple[list[dict], str]:
    """Load modules in a child process: what it told of each, and its standard error.

    modules: `package.module:name,name`, with the names that each must define.
    """
    environment = os.environ | {"PYTHONPATH": engine_path(folder), "PYTHONIOENCODING": "utf-8"}
    trial = Path(__file__).with_name("import_trial.py")
    command = [sys.executable, "-P", "-B", str(trial), str(LOADING_SECONDS), *modules]
    try:
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL,
                              capture_output=True, encoding="utf-8", errors="replace",
                              timeout=LOADING_SECONDS * (1 + len(modules)))
    except subprocess.TimeoutExpired:
        return [], ""
    return [json.loads(line) for line in done.stdout.splitlines()
            if line.startswith('{"module"')], done.stderr


def engine_path(folder: Path) -> str:
    """The value of PYTHONPATH that puts an engine first."""
    before = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join(filter(None, [str(folder.resolve()), before]))


def _culprits(lines: Sequence[Sequence], why: str, files: Mapping[Path, GraftedModule],
              loaded: GraftedModule) -> dict[str, str]:
    """The graft that holds the last of these lines that any holds; else all of the module."""
    for file, line in reversed(lines):
        grafted = files.get(Path(file))
        part = grafted and grafted.graft_at(line)
        if part:
            return {part.component.path: f"it cannot be loaded: {why}"}
    return {part.component.path: f"its module cannot be loaded: {why}"
            for part in loaded.grafts}


def _why(component: Component) -> str:
    """Why a component is the reference's; "" when it need not be."""
    if component.fits_the_engine:
        return ""
    if component.state is State.NOT_STARTED:
        return "not started"
    if component.open_methods:
        return f"still to be written: {', '.join(component.open_methods)}"
    return "begun" if component.statements else "its cell is no Python"


def _listed(gear: Gear) -> dict:
    entry: dict = {"from": "learner" if gear.is_learners else "reference"}
    if gear.component.cell is not None:
        entry |= {"notebook": gear.component.notebook.name, "cell": gear.component.cell.number}
    if gear.is_learners and gear.component.open_methods:
        entry["reference_methods"] = list(gear.component.open_methods)
    if gear.why:
        entry["why"] = gear.why
    if gear.notes:
        entry["notes"] = list(gear.notes)
    return entry


def _swap(draft: Path, folder: Path) -> None:
    """Put the draft in the place of the folder. When that fails, the folder is as it was."""
    old = folder.parent / f".{folder.name}.{os.getpid()}.old"
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        os.replace(folder, old)
    try:
        os.replace(draft, folder)
    except OSError:
        if old.exists():
            os.replace(old, folder)
        raise
    shutil.rmtree(old, ignore_errors=True)
