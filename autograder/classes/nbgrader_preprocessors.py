"""What our nbgrader does differently from stock nbgrader, one preprocessor a difference.

Seen with nbgrader 0.9.6: its stub names no component; a repeated cell stops the whole class; it
takes a score from what a notebook's own kernel shows, so one line forges every grade, and a
kernel that ends costs all questions.
"""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import nbformat
from nbconvert.exporters.exporter import ResourcesDict
from nbformat import NotebookNode
from nbformat.v4 import new_output
from nbgrader import utils
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import ClearSolutions, NbGraderPreprocessor, SaveAutoGrades

from autograder.chapters.outline import outline
from autograder.checking.report import Display
from autograder.checking.running import Report
from autograder.judge.memory import Memory
from autograder.judge.secret import course_secret, graded_seed
from autograder.judge.workers import Workers
from autograder.reference.cutting import BEGIN, END, starting_lines
from autograder.reference.names import module_of
from autograder.sandbox.choice import sandbox_of_a_class
from autograder.submissions.answers import answer_to, report_on
from autograder.submissions.attempts import chapter_of, find_components
from autograder.submissions.intake import notebook_of
from autograder.variants.mutation import exhibit_source
from gearworks.errors import GearworksError


class JudgeError(GearworksError):
    """A notebook could not be graded. It says nothing about what is written in it."""


class RestoreStubs(ClearSolutions):
    """Puts what a cell starts with, an error or an exhibit's body, in place of each solution.

    The begin mark says which: `### BEGIN SOLUTION module.name [mutant]`. A mark without a name
    leaves nothing.
    """

    def _replace_solution_region(self, cell: NotebookNode, language: str) -> bool:
        lines: list[str] = []
        inside = False
        for line in cell.source.split("\n"):
            mark = re.fullmatch(rf"(\s*){BEGIN}(?: ([\w.]+))?(?: (\S+))?\s*", line)
            if mark and not inside:
                inside = True
                margin, component, mutant = mark.groups()
                if component:
                    exhibit = exhibit_source(module_of(component), mutant) if mutant else None
                    lines += starting_lines(component, margin, exhibit)
            elif line.strip() == END and inside:
                inside = False
            elif mark or line.strip() == END:
                raise RuntimeError("the marks of a solution do not pair up, in the cell that "
                                   f"holds:\n{cell.source}")
            elif not inside:
                lines.append(line)
        if inside:
            raise RuntimeError(f"a solution has no end, in the cell that holds:\n{cell.source}")
        replaced = cell.source != (source := "\n".join(lines))
        cell.source = source
        return replaced


class DropNamelessCells(NbGraderPreprocessor):
    """Takes nbgrader's metadata from cells without a grade id, which editors, and it, leave."""

    def preprocess_cell(self, cell: NotebookNode, resources: ResourcesDict,
                        cell_index: int) -> tuple[NotebookNode, ResourcesDict]:
        if "nbgrader" in cell.metadata and not cell.metadata["nbgrader"].get("grade_id"):
            del cell.metadata["nbgrader"]
        return cell, resources


class JudgeChecks(NbGraderPreprocessor):
    """Gives every check cell what the judge finds, and its score. No cell is run.

    So nothing that a notebook shows, patches or ends changes a score, and it is the one that
    `autograder progress` would find with these checks. A notebook with graded cells that are no
    checks of the course is refused: nbgrader gives full points to what shows nothing. So is
    one of which nothing could be graded; what else could not be is left open (see
    `SaveJudgedGrades`).
    """

    def preprocess(self, nb: NotebookNode,
                   resources: ResourcesDict) -> tuple[NotebookNode, ResourcesDict]:
        name = resources["nbgrader"]["notebook"]
        notebook = notebook_of(f"{name}.ipynb", nbformat.writes(nb, version=4))
        chapter = chapter_of(notebook, outline())
        found = [] if chapter is None else find_components([chapter], [notebook])
        exercises = {} if chapter is None else {
            exercise.check_id: exercise for exercise in chapter.exercises}
        secret = course_secret(Path(CourseDirectory(config=self.config).root))
        finals = []
        for cell in nb.cells:
            if cell.cell_type != "code" or not utils.is_grade(cell) or utils.is_solution(cell):
                continue
            exercise = exercises.get(cell.metadata["nbgrader"]["grade_id"])
            if exercise is None:
                raise JudgeError(f"{name}: a cell that cannot be graded",
                                 f"{cell.metadata['nbgrader']['grade_id']} is no check of this "
                                 "course, and no other cell is run here",
                                 "give that cell manual points, or none")
            answer = answer_to(exercise, found)
            workers, memory = _judging()
            report = report_on(answer, workers, diagnose=True, memory=memory,
                               seed=graded_seed(secret, exercise.name))
            if answer.is_started:
                finals.append(report.is_final)
            enter_report(cell, replace(report, seed=None))
        if finals and not any(finals):
            raise JudgeError(f"{name}: nothing in it could be graded",
                             "the checks took too long by the wall clock, though not by "
                             "the processor's", "grade it again when the machine is free")
        return nb, resources


class SaveJudgedGrades(SaveAutoGrades):
    """Enters the scores into the gradebook; where there is none yet, none.

    nbgrader gives full points to a check cell that shows no number. Here that is one that could
    not be graded: it waits for a person, or for the next `nbgrader autograde`.
    """

    def _add_score(self, cell: NotebookNode, resources: ResourcesDict) -> None:
        super()._add_score(cell, resources)
        if utils.is_solution(cell) or cell.cell_type != "code" or any(
                output.output_type == "execute_result" for output in cell.outputs):
            return
        grade = self.gradebook.find_grade(
            cell.metadata["nbgrader"]["grade_id"], self.notebook_id, self.assignment_id,
            self.student_id)
        grade.auto_score, grade.needs_manual_grade = None, True
        self.gradebook.db.commit()


@cache
def _judging() -> tuple[Workers, Memory]:
    """One supply for all notebooks: what it has loaded, and seen, serves the whole class."""
    return Workers(sandbox_of_a_class()), Memory()


def enter_report(cell: NotebookNode, report: Report) -> None:
    """Write the outputs that a cell with this report has: the table, then the score, if any."""
    points = float(cell.metadata["nbgrader"]["points"])
    shown = Display(report)._repr_mimebundle_()
    score = points * report.score / report.total if report.total else 0.0
    cell.execution_count = None
    cell.outputs = [new_output("display_data", data=shown)]
    if report.is_final:
        cell.outputs.append(new_output("execute_result", data={"text/plain": repr(score)}))
