"""What `nbgrader export` writes here: required points, bonus points, and no silent zero."""

import csv
from pathlib import Path

import nbformat
from nbgrader.api import Gradebook, MissingEntry, SubmittedAssignment
from nbgrader.plugins.export import ExportPlugin

from autograder.chapters.editions import BONUS_TAG

COLUMNS = ("assignment", "student_id", "last_name", "first_name", "email", "timestamp",
           "status", "required", "required_max", "bonus", "bonus_max", "late_penalty", "total")


class PointsExport(ExportPlugin):
    """A CSV file with a row for each student and assignment.

    total: required and bonus points together, never above `required_max`, less the late
    penalty. It is empty where nothing was graded; status says why: "graded", "not submitted",
    or "not graded" (run autograde, or read its log).
    """

    def export(self, gradebook: Gradebook) -> None:
        """Write the file that `--to` names, or grades.csv."""
        with open(self.to or "grades.csv", "w", encoding="utf-8", newline="") as file:
            table = csv.DictWriter(file, COLUMNS, restval="")
            table.writeheader()
            for assignment in gradebook.assignments:
                if self.assignment and assignment.name not in map(str, self.assignment):
                    continue
                bonus = self._bonus_cells(assignment.name)
                for student in gradebook.students:
                    if self.student and student.id not in map(str, self.student):
                        continue
                    row = {"assignment": assignment.name, "student_id": student.id,
                           "last_name": student.last_name, "first_name": student.first_name,
                           "email": student.email}
                    try:
                        submission = gradebook.find_submission(assignment.name, student.id)
                        row |= _points(submission, bonus)
                    except MissingEntry:
                        row |= {"status": "not submitted"}
                    table.writerow(row)

    def _bonus_cells(self, assignment: str) -> set[str]:
        course = self.parent.coursedir
        folder = Path(course.format_path(course.source_directory, ".", assignment))
        return {cell.metadata["nbgrader"]["grade_id"] for path in folder.glob("*.ipynb")
                for cell in nbformat.read(path, as_version=4).cells
                if BONUS_TAG in cell.metadata.get("tags", []) and "nbgrader" in cell.metadata}


def _points(submission: SubmittedAssignment, bonus: set[str]) -> dict[str, object]:
    grades = [grade for notebook in submission.notebooks for grade in notebook.grades]
    row: dict[str, object] = {
        "timestamp": submission.timestamp or "",
        "required_max": sum(grade.max_score for grade in grades if grade.name not in bonus),
        "bonus_max": sum(grade.max_score for grade in grades if grade.name in bonus)}
    open_ones = [grade for grade in grades
                 if grade.auto_score is None and grade.manual_score is None]
    if not grades or open_ones:
        return row | {"status": "not graded"}
    required = sum(grade.score for grade in grades if grade.name not in bonus)
    extra = sum(grade.score for grade in grades if grade.name in bonus)
    penalty = submission.late_submission_penalty or 0.0
    total = max(0.0, min(required + extra, row["required_max"]) - penalty)
    return row | {"status": "graded", "required": required, "bonus": extra,
                  "late_penalty": penalty, "total": total}
