"""Sphinx extension: two directives for pages that show what the course knows about itself.

    {engine-map}     the engine's map, with nothing built yet
    {kill-matrix}    how good the checks are, from book/kill_matrix.json
"""

import json
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import autograder
from autograder.checking import checks_of
from autograder.variants.mutation import mutants_of
from gearworks import viz

MATRIX = Path("book") / "kill_matrix.json"


class EngineMap(SphinxDirective):
    """The figure that every chapter shows, drawn by the same function."""

    def run(self) -> list[nodes.Node]:
        for path in filter(Path.is_file, Path(viz.__file__).parent.iterdir()):
            self.env.note_dependency(str(path))
        return [nodes.raw("", viz.engine_map().html, format="html")]


class KillMatrix(SphinxDirective):
    """A table of exercises, and below it what each mutant was and which check caught it."""

    def run(self) -> list[nodes.Node]:
        path = Path(self.env.srcdir) / MATRIX
        folder = Path(autograder.__file__).parent
        for source in (path, *folder.glob("mutants/*.toml"), *folder.glob("checks/*.py")):
            self.env.note_dependency(str(source))
        rows = json.loads(path.read_text(encoding="utf-8"))["exercises"]
        return [_summary(rows),
                nodes.container("", *(_details(row) for row in rows), classes=["kill-details"])]


def _summary(rows: list[dict]) -> nodes.container:
    body = []
    for row in rows:
        count = len({**row["killed"], **row["survived"]})
        passed = sum(not failed for failed in row["accepted"].values())
        found = checks_of(row["exercise"])
        body.append([nodes.literal("", row["exercise"]), f"{len(found)}",
                     f"{sum(not check.public for check in found)}",
                     f"{count - len(row['survived'])} of {count}",
                     f"{passed} of {len(row['accepted'])}",
                     f"{row['reference']:.0%} / {row['stub']:.0%}"])
    return _table(["Exercise", "Checks", "Hidden", "Mutants killed", "Right versions passed",
                   "Reference / stub"], body)


def _details(row: dict) -> nodes.container:
    titles = {check.name: check.title for check in checks_of(row["exercise"])}
    body = [[f"{mutant.story}.",
             " · ".join(titles.get(name, name)
                        for name in row["killed"].get(f"{mutant.component}:{mutant.name}", []))]
            for mutant in mutants_of(row["exercise"])]
    table = _table(["A plausible mistake", "Caught by the check"], body)
    opening = nodes.raw("", f"<details><summary><code>{row['exercise']}</code></summary>",
                        format="html")
    return nodes.container("", opening, table, nodes.raw("", "</details>", format="html"))


def _table(head: list[str], body: list[list[str | nodes.Node]]) -> nodes.container:
    group = nodes.tgroup("", *(nodes.colspec(colwidth=1) for _ in head), cols=len(head))
    group += nodes.thead("", _row(head))
    group += nodes.tbody("", *map(_row, body))
    return nodes.container("", nodes.table("", group), classes=["kill-matrix"])


def _row(cells: list[str | nodes.Node]) -> nodes.row:
    shown = [nodes.Text(cell) if isinstance(cell, str) else cell for cell in cells]
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", node)) for node in shown))


def setup(app: Sphinx) -> dict:
    app.add_directive("engine-map", EngineMap)
    app.add_directive("kill-matrix", KillMatrix)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
