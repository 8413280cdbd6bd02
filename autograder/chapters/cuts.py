"""The cuts of a chapter's exercises: each one's cell as the learner gets it, and solved."""

from collections.abc import Mapping

from autograder.chapters.chapter import Chapter, ChapterError, Exercise
from autograder.reference.cutting import Cut, cut
from autograder.reference.source import module_source
from autograder.variants.mutation import exhibit_source
from gearworks.errors import GearworksError


def cut_of(exercise: Exercise, own: Mapping[str, str] | None = None) -> Cut:
    """The cut of one exercise.

    own: name -> module, of what the learner has written before; it is not imported. Raises
    CuttingError and VariantError: a name that the reference lacks or that cannot be cut, an
    unknown exhibit.
    """
    mutant = exercise.exhibit
    exhibit = (mutant, exhibit_source(exercise.module, mutant)) if mutant else None
    return cut(module_source(exercise.module), exercise.names, exercise.methods, own, exhibit,
               given=exercise.given if exercise.is_part else None)


def cuts_of(chapter: Chapter) -> dict[str, Cut]:
    """The cuts of a chapter by grade id. Raises ChapterError, with file and line."""
    own: dict[str, str] = {}
    cuts = {}
    for exercise in chapter.exercises:
        before, own = own, own | dict.fromkeys(exercise.names, exercise.module)
        try:      # a part of a class goes on with the learner's, if there is one, or imports it
            cuts[exercise.grade_id] = cut_of(exercise, before if exercise.is_part else own)
        except GearworksError as error:
            raise ChapterError(f"{chapter.path.name}, line {exercise.line}: {error.what}",
                               error.why, error.hint) from None
    return cuts
