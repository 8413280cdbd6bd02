"""Sphinx extension: directives for pages that show what the course knows about itself.

    {engine-map}         the engine's map, whose gears lead to their chapters; with nothing
                         built yet, or with `:lit: all`
    {chapter-table}      the chapters, with their links, exercises and hours
    {engine-movie}       a text's way through SmolLM2, whole: viz.engine_movie
    {diagram}            a still picture of `autograder.diagrams`, by its name
    {kill-matrix}        how good the checks are, from book/kill_matrix.json
    {machine-mutants}    the same of mutants made by machine, from book/machine_mutants.json
    {mutation-operators} by what operators those are made, and what became of them
    {runs-where}         which families run on which engine, from gearworks.families.routes
"""

import json
import re
from collections import Counter
from html import escape
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import directives
from figure_files import with_data_apart
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import autograder
from autograder import diagrams
from autograder.chapters.chapter import chapter_paths
from autograder.checking import checks_of
from autograder.machine_mutants import results
from autograder.machine_mutants.equivalents import PATH as EQUIVALENTS
from autograder.machine_mutants.operators import DOMAIN, OPERATORS
from autograder.variants.mutation import mutants_of
from gearworks import hub, viz
from gearworks.families import routes
from gearworks.language_model import LanguageModel

CHAPTERS = "chapters/"
MATRIX = Path("book") / "kill_matrix.json"
MOST_MOVIE_BYTES = 860_000            # every layer and pass; 600 kB as a server sends it


class EngineMap(SphinxDirective):
    """The figure that every chapter shows, drawn by the same function; its gears are links."""

    option_spec = {"lit": lambda value: directives.choice(value, ("all",))}

    def run(self) -> list[nodes.Node]:
        _depend_on_figures(self.env)
        chapters = {int(name[len(CHAPTERS):][:2]):
                    self.env.app.builder.get_relative_uri(self.env.docname, name)
                    for name in self.env.found_docs if name.startswith(CHAPTERS)}
        lit = viz.GEARS if "lit" in self.options else ()
        return [nodes.raw("", viz.engine_map(lit, chapters=chapters).html, format="html")]


class ChapterTable(SphinxDirective):
    """A table of the chapters. Each line of its content is `NN | what one writes in it`; the
    rest is from the chapters themselves."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        body = []
        writes = dict(line.split(" | ", 1) for line in self.content)
        paths = chapter_paths(Path(self.env.srcdir) / "book" / "chapters")
        if [*writes] != [path.stem[:2] for path in paths]:
            raise self.error(f"chapters are {', '.join(path.stem[:2] for path in paths)}")
        for path in paths:
            self.env.note_dependency(str(path))
            title, hours, exercises = _head_of(path)
            link = nodes.reference("", title, refuri=self.env.app.builder.get_relative_uri(
                self.env.docname, f"{CHAPTERS}{path.stem}"))
            required = sum(not optional for optional in exercises)
            more = len(exercises) - required
            body.append([path.stem[1], link, writes[path.stem[:2]],
                         f"{required}" + (f" + {more}" if more else ""), hours])
        return [_table(["No.", "Chapter", "You write", "Exercises (+ optional)", "Hours"], body,
                       "chapter-table")]


class EngineMovie(SphinxDirective):
    """The moving picture of the engine, with all layers; its data lies beside the page."""

    def run(self) -> list[nodes.Node]:
        _depend_on_figures(self.env)
        movie = viz.engine_movie(LanguageModel.load(hub.smollm2_folder()),
                                 most_bytes=MOST_MOVIE_BYTES)
        return [nodes.raw("", with_data_apart(movie.html, self.env.docname, self.env),
                          format="html")]


class Diagram(SphinxDirective):
    """A diagram of a chapter; on a phone it scrolls."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        for path in Path(diagrams.__file__).parent.glob("*.*"):
            self.env.note_dependency(str(path))
        try:
            canvas = diagrams.draw(self.arguments[0])
        except LookupError as error:
            raise self.error(str(error.args[0])) from None
        name = escape(canvas.words.partition(". ")[0])
        frame = f'<div class="flow" tabindex="0" role="group" aria-label="{name}">'
        return [nodes.raw("", f"{frame}{canvas.svg()}</div>", format="html")]


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


class MachineMutants(SphinxDirective):
    """A table of exercises: how many of their mutants are killed, by public checks too."""

    def run(self) -> list[nodes.Node]:
        rows = _machine_rows(self.env)
        return [_machine_summary(rows),
                nodes.container("", *(_survivors(row) for row in rows if row.survivors),
                                classes=["kill-details"])]


class MutationOperators(SphinxDirective):
    """A table of operators, what each does, and how many of its mutants are killed."""

    def run(self) -> list[nodes.Node]:
        counts = {operator.name: [0, 0] for operator in OPERATORS}
        for row in _machine_rows(self.env):
            for name, (made, survived) in row.operators.items():
                counts[name][0] += made
                counts[name][1] += survived
        body = [[nodes.literal("", operator.name), *_with_code(operator.says),
                 "of inference" if operator in DOMAIN else "general",
                 f"{counts[operator.name][0]}",
                 f"{counts[operator.name][0] - counts[operator.name][1]}"]
                for operator in OPERATORS]
        return [_table(["Operator", "What it changes", "Kind", "Mutants", "Killed"], body)]


class RunsWhere(SphinxDirective):
    """A table of families: by which ways each runs, and which refuse it."""

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(routes.__file__)
        head, rows = routes.table()
        return [_table([_with_code(title)[0] for title in head],
                       [[nodes.literal("", name), *cells] for name, *cells in rows])]


def _head_of(path: Path) -> tuple[str, str, list[bool]]:
    """A chapter's title, its hours, and of each exercise whether it is optional."""
    text = path.read_text(encoding="utf-8")
    title = re.search(r"^# \d+ · (.+)$", text, re.M)[1]
    hours = re.search(r"\*\*Time\*\* (two sittings of )?about ([\d.]+) hours", text)
    optional = ["optional: true" in head
                for head in re.findall(r"^tags: \[exercise.*?^---$", text, re.M | re.S)]
    return title, f"{'2 × ' if hours[1] else ''}{hours[2]}", optional


def _depend_on_figures(env) -> None:
    for path in filter(Path.is_file, Path(viz.__file__).parent.iterdir()):
        env.note_dependency(str(path))


def _machine_rows(env) -> list[results.Row]:
    path = Path(env.srcdir) / results.PATH
    for source in (path, EQUIVALENTS, *Path(results.__file__).parent.rglob("*.py")):
        env.note_dependency(str(source))
    return [*results.read(path).values()]


def _machine_summary(rows: list[results.Row]) -> nodes.container:
    def cells(name: nodes.Node, chosen: list[results.Row]) -> list[str | nodes.Node]:
        def total(attribute: str) -> int:
            return sum(getattr(row, attribute) for row in chosen)

        distinct = total("distinct") or 1
        return [name, f"{total('made')}", f"{total('killed') / distinct:.0%}",
                f"{total('killed_by_public') / distinct:.0%}",
                *(f"{sum(row.count(kind) for row in chosen)}"
                  for kind in ("open", "rounds", "types", "test", "equivalent"))]

    body = [cells(nodes.literal("", row.exercise), [row]) for row in rows]
    return _table(["Exercise", "Mutants", "Killed", "By public checks", "Survive",
                   "Only round otherwise", "Other types", "Right tests", "Equivalent"],
                  [cells(nodes.strong("", "all"), rows), *body])


def _survivors(row: results.Row) -> nodes.container:
    """What lives, and why; not the changes themselves, which are lines of the solution."""
    body = [[nodes.literal("", survivor.component), f"{survivor.line}",
             nodes.literal("", survivor.operator), f"{survivor.reason}."]
            for survivor in row.survivors]
    table = _table(["Of", "Line", "Operator", "Why it lives"], body)
    opening = nodes.raw("", f"<details><summary><code>{row.exercise}</code></summary>",
                        format="html")
    return nodes.container("", opening, table, nodes.raw("", "</details>", format="html"))


def _with_code(text: str) -> list[nodes.Node]:
    """A sentence whose pieces between backticks are code, as one cell."""
    pieces = [nodes.literal("", part) if at % 2 else nodes.Text(part)
              for at, part in enumerate(text.split("`"))]
    return [nodes.inline("", "", *pieces)]


def _summary(rows: list[dict]) -> nodes.container:
    body, totals = [], Counter()
    for row in rows:
        found = checks_of(row["exercise"])
        public = {check.name for check in found if check.public}
        counts = Counter(
            checks=len(found), hidden=sum(not check.public for check in found),
            mutants=len({**row["killed"], **row["survived"]}), survive=len(row["survived"]),
            by_public=sum(bool(public & {*killers}) for name, killers in row["killed"].items()
                          if name not in row["survived"]),
            right=len(row["accepted"]), refused=sum(map(bool, row["accepted"].values())))
        totals += counts
        body.append([nodes.literal("", row["exercise"]), *_counted(counts),
                     f"{row['reference']:.0%} / {row['stub']:.0%}"])
    lowest = min(row["reference"] for row in rows)
    highest = max(row["stub"] for row in rows)
    return _table(["Exercise", "Checks", "Hidden", "Mutants killed", "By public checks",
                   "Right versions passed", "Reference / stub"],
                  [[nodes.strong("", "all"), *_counted(totals),
                    f"{lowest:.0%} / {highest:.0%}"], *body])


def _counted(counts: Counter) -> list[str]:
    """What stands in the columns of an exercise, or of all of them."""
    mutants, right = counts["mutants"], counts["right"]
    return [f"{counts['checks']}", f"{counts['hidden']}",
            f"{mutants - counts['survive']} of {mutants}",
            f"{counts['by_public']} ({counts['by_public'] / (mutants or 1):.0%})",
            f"{right - counts['refused']} of {right}"]


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


def _table(head: list[str | nodes.Node], body: list[list[str | nodes.Node]],
           kind: str = "kill-matrix") -> nodes.container:
    group = nodes.tgroup("", *(nodes.colspec(colwidth=1) for _ in head), cols=len(head))
    group += nodes.thead("", _row(head))
    group += nodes.tbody("", *map(_row, body))
    return nodes.container("", nodes.table("", group), classes=[kind])


def _row(cells: list[str | nodes.Node]) -> nodes.row:
    shown = [nodes.Text(cell) if isinstance(cell, str) else cell for cell in cells]
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", node)) for node in shown))


def setup(app: Sphinx) -> dict:
    app.add_directive("engine-map", EngineMap)
    app.add_directive("chapter-table", ChapterTable)
    app.add_directive("engine-movie", EngineMovie)
    app.add_directive("diagram", Diagram)
    app.add_directive("kill-matrix", KillMatrix)
    app.add_directive("machine-mutants", MachineMutants)
    app.add_directive("mutation-operators", MutationOperators)
    app.add_directive("runs-where", RunsWhere)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
