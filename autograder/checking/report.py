"""What a learner reads: a report as plain text, and as a table.

Notebooks and screen readers know how to show it. Nothing is told by colour alone, and no colour
is set: text and lines take those of the page, light or dark.
"""

import html
import re
import textwrap
from dataclasses import dataclass

from autograder.checking.examples import NAME as EXAMPLE
from autograder.checking.running import Outcome, Report, Status

WIDTH = 92                  # columns of the plain text
FIRST_THINGS = "First comes what fails above."

_MARKS = dict.fromkeys(Status, "✗") | {Status.PASSED: "✓", Status.NOT_ATTEMPTED: "–"}


@dataclass(frozen=True)
class Display:
    """A report, ready to be shown: `str()` is its plain text, and a notebook takes its HTML."""

    report: Report

    def __str__(self) -> str:
        return text(self.report)

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        return {"text/plain": text(self.report), "text/html": markup(self.report)}


def text(report: Report) -> str:
    """The report as plain text.

    >>> passed = Outcome("doubles", "Twice a number.", 2, True, Status.PASSED)
    >>> print(text(Report("arithmetic.double", (passed,), 2.0, seed=7)))
    arithmetic.double: 2 of 2 points, its check passed
    ✓ Twice a number. (passed)                                                      2 / 2 points
    Seed 7. To run the same checks on the same inputs: check("arithmetic.double", …, seed=7)
    """
    lines = [f"{report.exercise}: {_headline(report)}"]
    for outcome, message_parts in _told(report):
        points = f"{outcome.earned:g} / {outcome.points:g} points"
        title = textwrap.wrap(f"{_MARKS[outcome.status]} {outcome.title} ({result(outcome)})",
                              WIDTH - len(points) - 2, subsequent_indent="  ")
        lines += [f"{title[0]:<{WIDTH - len(points)}}{points}", *title[1:]]
        for part, message in message_parts:
            lines += textwrap.wrap(message, WIDTH, initial_indent=f"  {part:<8}  ",
                                   subsequent_indent=" " * 12)
    for note in _notes(report) + _footnotes(report):
        lines += textwrap.wrap(note, WIDTH, subsequent_indent="  ")
    return "\n".join(lines)


def markup(report: Report) -> str:
    """The report as HTML: a table with caption and headers, without style sheet or script, and
    below it the figure of the first check that has one."""
    cell = ("text-align:left;vertical-align:top;padding:.35em .8em .35em 0;"
            "white-space:normal;overflow-wrap:break-word")
    head = f'<th scope="col" style="{cell};width:'
    rows = []
    for outcome, message_parts in _told(report):
        message = "".join(
            f'<dt style="font-weight:600">{part}</dt>'
            f'<dd style="margin:0 0 .3em 1em;white-space:pre-line">'
            f"{_with_code(content) if part == 'Try' else html.escape(content)}</dd>"
            for part, content in message_parts)
        message = f'<dl style="margin:.3em 0 0">{message}</dl>' if message else ""
        weight = 400 if outcome.status is Status.PASSED else 600
        rows.append(
            f'<tr><th scope="row" style="{cell};font-weight:{weight}">'
            f"{_with_code(outcome.title)}</th>"
            f'<td style="{cell}"><span aria-hidden="true">{_MARKS[outcome.status]} </span>'
            f"<strong>{html.escape(result(outcome))}</strong>{message}</td>"
            f'<td style="{cell};white-space:nowrap">'
            f"{outcome.earned:g} of {outcome.points:g}</td></tr>")
    table = "" if not rows else (
        '<table style="table-layout:fixed;width:100%;max-width:64em;border-collapse:collapse;'
        'margin:.3em 0;color:inherit">'
        '<caption style="text-align:left;color:inherit">'
        f"Checks of {html.escape(report.exercise)}</caption>"
        '<thead><tr style="border-bottom:1px solid currentColor">'
        f'{head}33%">Check</th>{head}auto">Result</th>{head}5em">Points</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>")
    notes, footnotes = ("".join(f'<p style="margin:.2em 0">{html.escape(note)}</p>'
                                for note in some)
                        for some in (_notes(report), _footnotes(report)))
    shown = next((outcome for outcome in report.outcomes if outcome.figure), None)
    figure = "" if shown is None else (
        f'<p style="margin:.8em 0 .2em">In pictures, “{_with_code(shown.title)}”:</p>'
        f"{shown.figure}")
    headline = (f"<strong>{html.escape(report.exercise)}</strong>: "
                f"{html.escape(_headline(report))}")
    if table and all(outcome.status in (Status.PASSED, Status.NOT_ATTEMPTED)
                     for outcome in report.outcomes):
        # nothing in it asks to be read now: one line, until somebody opens it
        content = (f'<details style="margin:.2em 0"><summary>{headline}</summary>'
                   f"{table}{footnotes}</details>{notes}")
    else:
        content = f'<p style="margin:.2em 0">{headline}</p>{table}{notes}{footnotes}'
    return ('<div class="gearworks-report" style="color:inherit;overflow-wrap:break-word">'
            f"{content}</div>{figure}")


def result(outcome: Outcome) -> str:
    """How a check ended, in words."""
    return f"raised {outcome.error}" if outcome.status is Status.RAISED else str(outcome.status)


def parts(outcome: Outcome) -> list[tuple[str, str]]:
    """The parts of a check's message: what was expected, what was found, what to try."""
    named = (("Expected", outcome.expected), ("Found", outcome.found), ("Try", outcome.hint))
    return [(part, message if message.endswith((".", "?", "…")) else f"{message}.")
            for part, message in named if message]


def _with_code(words: str) -> str:
    """Words as HTML, with what stands between backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(words))


def _told(report: Report) -> list[tuple[Outcome, list[tuple[str, str]]]]:
    """Each outcome with its message; one that was told before, word for word, is not again.

    Checks go from the simple to the special. So what to try is of the first that fails; with
    the others it is for later. An example of a docstring says nothing of the cause.
    """
    told, rows, first = set(), [], True
    for outcome in report.outcomes:
        message = parts(outcome)
        is_known = message and tuple(message) in told
        told.add(tuple(message))
        if is_known:
            message = [("Found", "as above.")]
        elif outcome.status is Status.FAILED and outcome.hint and not first:
            message = [*message[:-1], ("Try", f"{message[-1][1]} {FIRST_THINGS}")]
        first &= outcome.status is Status.PASSED or outcome.name == EXAMPLE
        rows.append((outcome, message))
    return rows


def _headline(report: Report) -> str:
    if report.problem:
        return f"not checked; 0 of {report.total:g} points"
    score = f"{round(report.score, 2):g} of {report.total:g} points"
    if report.outcomes and not report.attempted:
        return f"not attempted yet; {score}"
    if report.outcomes and all(outcome.status is Status.PASSED for outcome in report.outcomes):
        return f"{score}, {_count(report)} passed"
    return score


def _count(report: Report) -> str:
    count = len(report.outcomes)
    return "its check" if count == 1 else f"all {count} checks"


def _notes(report: Report) -> list[str]:
    """What is strange about it."""
    notes = list(filter(None, [report.problem, report.level, *report.notes]))
    if report.remarks:
        notes.append("Your code also said, at no cost: " + "; ".join(report.remarks))
    return notes


def _footnotes(report: Report) -> list[str]:
    """What is always so: how points are counted, how to repeat it."""
    notes = []
    public = [outcome for outcome in report.outcomes if outcome.public]
    possible = sum(outcome.points for outcome in public)
    are_all_public = report.outcomes and len(public) == len(report.outcomes)
    if are_all_public and possible < report.total and report.attempted:
        earned = sum(outcome.earned for outcome in public)
        notes.append(f"These are the public checks: {earned:g} of their {possible:g} points "
                     f"count as {round(report.score, 2):g} of {report.total:g} here. Hidden "
                     "checks join them when it is graded.")
    if report.outcomes and report.attempted and report.seed is not None:
        notes.append(f"Seed {report.seed}. To run the same checks on the same inputs: "
                     f'check("{report.exercise}", …, seed={report.seed})')
    return notes
