"""What a student reads about a graded submission: a page made from its record.

It has the total that the gradebook has, and names exercises as the chapter does. Of a hidden
check it shows the title and the kind of error, which is all that a record holds.
"""

from autograder.classes.pages import number, page
from autograder.classes.record import CheckRecord, Record
from autograder.classes.table import Row


def feedback(row: Row, record: Record) -> str:
    """The page about a result. Texts of the learner's are escaped."""
    total = (f"{number(row.total)} of {number(row.required_max)} points"
             if row.total is not None else f"No points yet: {row.status}")
    exercises = [{"name": each.exercise, "optional": each.optional, "place": each.place,
                  "points": number(each.points) if each.is_final else "no points yet",
                  "total": number(each.total),
                  "problem": each.problem, "attempted": each.attempted, "notes": each.notes,
                  "checks": [_check(check) for check in each.checks]}
                 for each in record.exercises if row.status.has_points]
    return page("feedback", row=row, headline=total, exercises=exercises,
                required=number(row.required), required_max=number(row.required_max),
                bonus=number(row.bonus), bonus_max=number(row.bonus_max),
                penalty=number(row.penalty))


def _check(check: CheckRecord) -> dict[str, object]:
    parts = [(name, text) for name, text in (("Expected", check.expected), (
        "Found", check.found), ("Try", check.hint)) if text]
    result = f"{check.status}, {check.error}" if check.error and not check.public else (
        check.status)
    return {"title": check.title, "public": check.public, "result": result, "parts": parts,
            "points": number(check.points), "earned": number(check.earned)}
