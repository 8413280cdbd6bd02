"""The certificate of an engine: what it is made of, what it has gone through, and hashes.

It is a page of one file, and the same as JSON within it. It is made on the learner's machine
and proves nothing about who wrote what; the hashes say which notebooks and which engine it is
about, so that whoever has those can try them.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from autograder.certificate.trials import Race, Suite
from autograder.classes.pages import number, page
from autograder.submissions.overlay import Gear
from autograder.submissions.progress import ChapterProgress, ExerciseProgress, Stage
from gearworks import __version__, viz
from gearworks.profiling.machine import processor_name

YOURS, PARTLY, REFERENCE = "yours", "partly yours", "the reference's"
# A gear of the map, and the modules whose required exercises, in its chapter, make it.
MODULES = {"pipeline": ("pipeline",), "tokenizer": ("tokenizer",),
           "weights": ("safetensors", "gguf", "weights"),
           "transformer": ("layers", "attention", "model"), "kv_cache": ("kv_cache",),
           "sampler": ("sampling", "decoding", "speculative"),
           "scheduler": ("scheduler", "engine"), "server": ("server",),
           "quantization": ("quantization", "quantized_cache"), "kernels": ("kernels",)}


@dataclass(frozen=True)
class Part:
    """An exercise in the engine.

    whose: YOURS, PARTLY or REFERENCE. where: of the learner's, notebook and cell; else why it
    is the reference's.
    """

    exercise: str
    optional: bool
    whose: str
    where: str
    stage: str
    points: float
    total: float


@dataclass(frozen=True)
class ChapterParts:
    """A chapter's exercises, with the points of its required ones."""

    title: str
    points: float
    total: float
    bonus: float
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Certificate:
    """Everything that the page says.

    lit: names of the gears on the map of which all is the learner's, and passes. own, all: of
    the components. suite, race: None where they were not run. hashes: SHA-256 by name, of the
    notebooks and of the engine.
    """

    name: str
    made: str
    version: str
    machine: str
    own: int
    all: int
    lit: tuple[str, ...]
    chapters: tuple[ChapterParts, ...]
    suite: Suite | None
    race: Race | None
    hashes: dict[str, str]

    @property
    def points(self) -> float:
        return round(sum(chapter.points for chapter in self.chapters), 2)

    @property
    def total(self) -> float:
        return sum(chapter.total for chapter in self.chapters)

    def as_json(self) -> str:
        """The same as JSON, with the SHA-256 of what stands before it."""
        told = asdict(self)
        text = json.dumps(told, ensure_ascii=False, sort_keys=True)
        told["sha256"] = hashlib.sha256(text.encode()).hexdigest()
        return json.dumps(told, ensure_ascii=False, sort_keys=True, indent=1)

    def as_page(self) -> str:
        """The page: one file, which needs no other."""
        told = self.as_json()
        return page("certificate", certificate=self, number=number, map=self._map(),
                    told=told.replace("<", r"\u003c"), sha256=json.loads(told)["sha256"])

    def _map(self) -> str:
        return viz.engine_map(lit=self.lit).html


def certificate(name: str, gears: Sequence[Gear], chapters: Sequence[ChapterProgress],
                engine: Path, notebooks: Sequence[Path], made: datetime,
                suite: Suite | None = None, race: Race | None = None) -> Certificate:
    """The certificate of an engine.

    name: whose it is, or "". gears: of the engine, as `assemble` gives them. chapters: what
    public checks found. engine: its folder. notebooks: the files it was made of. made: when.
    """
    by_exercise: dict[str, list[Gear]] = {}
    for gear in gears:
        by_exercise.setdefault(gear.component.exercise.name, []).append(gear)
    shown = tuple(
        ChapterParts(chapter.title, round(chapter.points, 2), chapter.total,
                     round(chapter.bonus, 2),
                     tuple(_part(each, by_exercise.get(each.exercise, []))
                           for each in chapter.exercises))
        for chapter in chapters)
    return Certificate(
        name=name, made=made.isoformat(timespec="seconds"), version=__version__,
        machine=processor_name(), own=sum(gear.is_learners for gear in gears), all=len(gears),
        lit=lit_gears(chapters, shown), chapters=shown, suite=suite, race=race,
        hashes={path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in notebooks}
        | {"the engine": engine_hash(engine)})


def lit_gears(chapters: Sequence[ChapterProgress],
              shown: Sequence[ChapterParts]) -> tuple[str, ...]:
    """The gears of the map of which all required exercises are the learner's, and pass."""
    parts = {chapter.chapter: told.parts for chapter, told in zip(chapters, shown)}
    lit = []
    for name, gear in viz.GEARS.items():
        own = [part for stem, found in parts.items() if stem.startswith(f"{gear.chapter:02}_")
               for part in found
               if not part.optional
               and part.exercise.startswith(tuple(f"{module}." for module in MODULES[name]))]
        if own and all(part.whose == YOURS and part.stage == Stage.PASSED for part in own):
            lit.append(name)
    return tuple(lit)


def engine_hash(engine: Path) -> str:
    """One SHA-256 for all modules of an engine: of lines `HASH  path`, sorted by the path."""
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  "
             f"{path.relative_to(engine).as_posix()}\n"
             for path in sorted((engine / "gearworks").rglob("*.py"),
                                key=lambda path: path.relative_to(engine).as_posix())]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _part(progress: ExerciseProgress, gears: Sequence[Gear]) -> Part:
    own = [gear for gear in gears if gear.is_learners]
    partly = len(own) < len(gears) or any(gear.component.open_methods for gear in own)
    whose = REFERENCE if not own else PARTLY if partly else YOURS
    places = [gear.component.place for gear in own] or [gear.why for gear in gears]
    where = "; ".join(dict.fromkeys(filter(None, places)))
    return Part(progress.exercise, progress.optional, whose, where, str(progress.stage),
                round(progress.points, 2), progress.total)
