"""What our nbgrader does differently from stock nbgrader, one preprocessor a difference.

Seen with nbgrader 0.9.6: its stub names no component; a repeated cell stops the whole class;
correct code that writes to stderr gets 0, while text, several numbers or no output at all get
full points; a kernel without the course gives everybody 0 without a word.
"""

import math
import re
import subprocess
from functools import cache

from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
from nbconvert.exporters.exporter import ResourcesDict
from nbformat import NotebookNode
from nbformat.v4 import new_output
from nbgrader import utils
from nbgrader.converters.base import NbGraderException
from nbgrader.preprocessors import ClearSolutions, NbGraderPreprocessor

from autograder.reference.cutting import BEGIN, END, starting_lines
from autograder.reference.names import module_of
from autograder.variants.mutation import exhibit_source

_COURSE_IMPORTS = "from autograder import check; import gearworks"


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


class RequireCourse(NbGraderPreprocessor):
    """Stops before anything is graded when the kernel cannot import the course."""

    def preprocess(self, nb: NotebookNode,
                   resources: ResourcesDict) -> tuple[NotebookNode, ResourcesDict]:
        name = nb.metadata.get("kernelspec", {}).get("name", "python3")
        try:
            interpreter = KernelSpecManager().get_kernel_spec(name).argv[0]
        except NoSuchKernel:
            raise NbGraderException(f"there is no kernel {name!r}: nothing was graded; run "
                                    f"`python -m ipykernel install --user --name {name}` in "
                                    "the environment of the course") from None
        error = _import_error(interpreter)
        if error:
            raise NbGraderException(f"the kernel {name!r} ({interpreter}) cannot "
                                    f"`{_COURSE_IMPORTS}`: nothing was graded; install the "
                                    f"course there\n{error}")
        return nb, resources


@cache
def _import_error(interpreter: str) -> str:
    """Why a Python cannot import the course; "" when it can. One look serves a whole class."""
    result = subprocess.run([interpreter, "-c", _COURSE_IMPORTS], capture_output=True,
                            encoding="utf-8", errors="replace")
    return result.stderr.strip() if result.returncode else ""


class RequireOneScore(NbGraderPreprocessor):
    """Lets a check cell score by one number between 0 and its points; all else is an error.

    What a learner's code writes to stderr is dropped from these cells, since nbgrader would
    take it for a failure.
    """

    def preprocess_cell(self, cell: NotebookNode, resources: ResourcesDict,
                        cell_index: int) -> tuple[NotebookNode, ResourcesDict]:
        if cell.cell_type != "code" or not utils.is_grade(cell) or utils.is_solution(cell):
            return cell, resources
        cell.outputs = [output for output in cell.outputs
                        if not (output.output_type == "stream" and output.name == "stderr")]
        results = [output["data"].get("text/plain", "") for output in cell.outputs
                   if output.output_type == "execute_result"]
        points = float(cell.metadata["nbgrader"]["points"])
        if any(output.output_type == "error" for output in cell.outputs):
            return cell, resources
        if len(results) != 1 or not 0 <= _number(results[0]) <= points:
            found = ", ".join(map(str, results)) or "nothing"
            said = (f"a check cell gives one number from 0 to {points:g}, and this one gave "
                    f"{found[:200]}")
            # nbgrader reads the first output that says anything; a text is worth full points.
            cell.outputs = [new_output("error", ename="NoScore", evalue=said,
                                       traceback=[f"NoScore: {said}"]),
                            *(output for output in cell.outputs
                              if output.output_type != "execute_result")]
        return cell, resources


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
