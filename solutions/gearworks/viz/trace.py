"""What happened, step by step, as data: the trace that a player replays.

A trace is written once, by whoever ran the thing (a tokenizer, a scheduler, a cache), and drawn
by one of a few views:

    view     draws                                             uses
    lanes    rows of boxes: requests, slots, blocks, symbols   Step.lanes
    text     the same boxes without gaps, as running text      Step.lanes
    table    one row a lane, one column a cell                 Step.lanes, Trace.columns
    bars     one stacked bar a lane, of cells of some `size`   Step.lanes, Trace.marks, .limit
    plot     points and lines on two logarithmic axes          Step.points, Trace.lines,
                                                               Trace.x_label, .y_label
    timeline a row a lane, a column a step: all that came      Trace.timeline
             before the step, and the step
    blocks   the first lane as a pool of vessels, the others   Step.lanes
             beside it, as tables that point into it
    tiles    lanes by group: the first as a grid, the last as  Step.lanes, Trace.columns
             bars of some `size`, the others beside the grid

Every view also shows the step's caption and its named values. A kind is a name that the legend
explains; its place there decides colour and pattern. Only plain numbers and strings are in a
trace, so that it can be kept as JSON (`to_json`, `from_json`); the format of another version is
refused.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from itertools import groupby
from numbers import Real
from typing import Any, NoReturn, get_args, get_origin, get_type_hints

from gearworks.errors import GearworksError

SCHEMA = "gearworks.trace/2"
VIEWS = ("lanes", "text", "table", "bars", "plot", "timeline", "blocks", "tiles")
EMPHASES = ("", "chosen", "new", "faded")
KINDS = 8                             # as many as there are colours with a pattern of their own


class FigureError(GearworksError, ValueError):
    """A figure cannot be drawn from what it was given."""


class _Frozen:
    def __post_init__(self):
        for known in fields(self):
            object.__setattr__(self, known.name, _tuples(getattr(self, known.name)))


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, (list, tuple)) else value


@dataclass(frozen=True)
class Cell(_Frozen):
    """One box, or one segment of a bar.

    kind: a key of the trace's legend, or "". emphasis: "", "chosen" (what happens next concerns
    it), "new" or "faded".
    note: what the reader sees on pointing at it. size: its length in a bar, in the unit of the
    trace's marks; in a timeline its height, in a vessel how full it is, in a bar of the view
    tiles its length, at most 1; in that view's grid, 0 is a gap. rest: in a timeline, the kind
    of what is above it.
    A block's first line is its number, by which the pool and the tables belong together.

    >>> Cell("he", emphasis="new", note="id 258")
    Cell(text='he', kind='', emphasis='new', note='id 258', size=1, rest='')
    """

    text: str
    kind: str = ""
    emphasis: str = ""
    note: str = ""
    size: float = 1
    rest: str = ""


@dataclass(frozen=True)
class Lane(_Frozen):
    """A row of cells with a name. note: a remark on the whole row, shown beside the name.
    group: in a timeline and beside a grid, a heading above the first lane that has it. In a
    grid, a lane without cells is a gap."""

    label: str
    cells: Sequence[Cell] = ()
    note: str = ""
    group: str = ""


@dataclass(frozen=True)
class Point(_Frozen):
    """A point of a plot; x and y are positive, for the axes are logarithmic."""

    label: str
    x: float
    y: float
    kind: str = ""


@dataclass(frozen=True)
class Line(_Frozen):
    """A line of a plot through (x, y) pairs, which stays the same in every step."""

    label: str
    points: Sequence[Sequence[float]]


@dataclass(frozen=True)
class Mark(_Frozen):
    """A place on the scale of a bar view, such as the memory of a machine."""

    at: float
    label: str


@dataclass(frozen=True)
class Step(_Frozen):
    """One state. caption: what has just happened, in a sentence or two.

    label: names the step beside the slider ("batch 4"); without it the steps are counted.
    values: named facts.
    """

    caption: str
    lanes: Sequence[Lane] = ()
    points: Sequence[Point] = ()
    values: Mapping[str, str] = field(default_factory=dict)
    label: str = ""


@dataclass(frozen=True)
class Trace(_Frozen):
    """A title and the steps.

    The fields from `view` on say how to draw them; see the table above. legend: kind -> what it
    means, at most `KINDS` of them. limit: where the scale of a bar view ends; longer bars fade
    out there (0: no limit). step_name: what the slider selects. timeline: its lanes, where cell
    i belongs to step i; steps for which no cell is left show the whole. first: the step at
    which the figure opens, from 0.
    Raises FigureError, naming the place, when something is not as described here.

    >>> trace = Trace("Hi", [Step("one letter", [Lane("word", [Cell("h")])])])
    >>> Trace.from_json(trace.to_json()) == trace
    True
    """

    title: str
    steps: Sequence[Step]
    view: str = "lanes"
    legend: Mapping[str, str] = field(default_factory=dict)
    step_name: str = "Step"
    columns: Sequence[str] = ()
    marks: Sequence[Mark] = ()
    limit: float = 0
    lines: Sequence[Line] = ()
    x_label: str = ""
    y_label: str = ""
    timeline: Sequence[Lane] = ()
    first: float = 0

    def __post_init__(self):
        super().__post_init__()
        _check(self, Trace, "")
        _require(self.view in VIEWS, "view", f"is {self.view!r}",
                 f"the views are {', '.join(VIEWS)}")
        _require(len(self.steps) > 0, "steps", "is empty", "a trace has at least one step")
        _require(len(self.legend) <= KINDS, "legend", f"has {len(self.legend)} kinds",
                 f"at most {KINDS} can be told apart")
        _require(self.first in range(len(self.steps)), "first", f"is {self.first}",
                 f"the steps are 0 to {len(self.steps) - 1}")
        for j, lane in enumerate(self.timeline):
            _require(len(lane.cells) <= len(self.steps), f"timeline[{j}].cells",
                     f"has {len(lane.cells)} cells", f"there are {len(self.steps)} steps")
            self._check_cells(lane, f"timeline[{j}]")
        for i, step in enumerate(self.steps):
            groups = len({lane.group for lane in step.lanes})
            _require(self.view != "tiles" or groups > 1, f"steps[{i}].lanes",
                     f"has {groups} groups", "the first is drawn as a grid, the last as bars")
            for j, lane in enumerate(step.lanes):
                if self.view == "table":
                    _require(len(lane.cells) == len(self.columns),
                             f"steps[{i}].lanes[{j}].cells", f"has {len(lane.cells)} cells",
                             f"the table has {len(self.columns)} columns")
                self._check_cells(lane, f"steps[{i}].lanes[{j}]")
            for j, point in enumerate(step.points):
                self._require_kind(point.kind, f"steps[{i}].points[{j}].kind")
                _require_positive((point.x, point.y), f"steps[{i}].points[{j}]")
        for i, line in enumerate(self.lines):
            for j, pair in enumerate(line.points):
                _require(isinstance(pair, Sequence) and len(pair) == 2
                         and all(map(_is_number, pair)), f"lines[{i}].points[{j}]",
                         f"is {pair!r}", "it is a pair of numbers, x and y")
                _require_positive(pair, f"lines[{i}].points[{j}]")

    def _check_cells(self, lane: Lane, where: str) -> None:
        for k, cell in enumerate(lane.cells):
            place = f"{where}.cells[{k}]"
            self._require_kind(cell.kind, f"{place}.kind")
            self._require_kind(cell.rest, f"{place}.rest")
            _require(cell.emphasis in EMPHASES, f"{place}.emphasis", f"is {cell.emphasis!r}",
                     f"use one of {EMPHASES}")
            _require(cell.size >= 0, f"{place}.size", f"is {cell.size}",
                     "a length is not negative")
            _require(self.view not in ("timeline", "blocks", "tiles") or cell.size <= 1,
                     f"{place}.size", f"is {cell.size}", "here it is a share, at most 1")

    def _require_kind(self, kind: str, place: str) -> None:
        _require(not kind or kind in self.legend, place, f"is {kind!r}",
                 f"the legend explains {', '.join(map(repr, self.legend)) or 'no kinds'}")

    def to_json(self) -> str:
        """The trace as JSON in ASCII, with its version.
        Fields that have their default value are left out.

        Most cells come again and again, so each one is written once, in a list "pool", and the
        lanes hold places in it.
        """
        pool: dict[Cell, int] = {}
        return json.dumps({"schema": SCHEMA, **_plain(self, pool),
                           "pool": [_fields(cell, pool) for cell in pool]},
                          separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> "Trace":
        """Read what `to_json` wrote.
        Raises FigureError, naming the place, for anything else."""
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            _refuse("the text", f"is not JSON ({error})", "give what `Trace.to_json` wrote")
        _require(isinstance(value, dict), "the text", "is not an object",
                 "give what `Trace.to_json` wrote")
        version = value.pop("schema", None)
        _require(version == SCHEMA, "schema", f"is {version!r}",
                 f"this version of gearworks reads {SCHEMA!r}")
        pool = _read(value.pop("pool", None), Sequence[Cell], "pool", None)
        _require(isinstance(pool, tuple), "pool", "is missing", "it is a list of cells")
        return _read(value, cls, "", pool)

    def in_words(self) -> str:
        """The same as the picture, for those who cannot see it or have no browser."""
        lines = [self.title]
        for i, step in enumerate(self.steps, start=1):
            label = step.label or f"{i} of {len(self.steps)}"
            lines.append(f"{self.step_name} {label}: {step.caption}" if len(self.steps) > 1
                         else step.caption)
            tables = step.lanes[1 if self.view == "blocks" else 0:]    # they tell the pool, too
            if self.view == "tiles":                         # captions tell what the grid shows
                tables = [lane for lane in step.lanes if lane.group != step.lanes[0].group]
            lines += [f"  {_with_remarks(lane.label, [lane.note])}: "
                      f"{self._cells_in_words(lane)}" for lane in tables]
            lines += [f"  {label}: {text}" for label, text in step.values.items()]
        for group, lanes in groupby(self.timeline, key=lambda lane: lane.group):
            lines += [group] if group else []
            lines += [f"  {_with_remarks(lane.label, [lane.note])}: {self._runs_in_words(lane)}"
                      for lane in lanes]
        if self.marks:
            lines.append("Marks: " + ", ".join(mark.label for mark in self.marks))
        return "\n".join(lines)

    def _runs_in_words(self, lane: Lane) -> str:
        """The cells of a timeline, equal ones that follow each other as one."""
        def words(cell: Cell, count: int) -> str:
            kinds = filter(None, map(self.legend.get, [cell.kind, cell.rest]))
            what = ", ".join(filter(None, [" + ".join(kinds), cell.note])) or "nothing"
            return (f"{cell.text}: {what}" if cell.text else what) + (
                f", for {count} steps" if count > 1 else "")
        return " | ".join(words(cell, len(list(same))) for cell, same in groupby(lane.cells))

    def _cells_in_words(self, lane: Lane) -> str:
        if self.view == "blocks":
            return " | ".join(cell.text for cell in lane.cells) or "empty"
        columns = self.columns if self.view == "table" else [""] * len(lane.cells)
        cells = [_with_remarks(cell.text, [self.legend.get(cell.kind, ""), cell.emphasis])
                 for cell in lane.cells]
        return (" | ".join(f"{column} {cell}" if column else cell
                           for column, cell in zip(columns, cells)) or "empty")


def _with_remarks(text: str, remarks: Sequence[str]) -> str:
    remarks = ", ".join(filter(None, remarks))
    return f"{text} ({remarks})" if remarks else text


# The fields' annotations are the schema: str, float, a class of this module, Sequence of these,
# or Mapping[str, str].
_SCHEMAS: dict[type, dict[str, Any]] = {
    kind: get_type_hints(kind) for kind in (Cell, Lane, Point, Line, Mark, Step, Trace)}


def _check(value: Any, schema: Any, place: str) -> None:
    if schema is float:
        _require(_is_number(value), place, f"is {_short(value)}", "it is a finite number")
    elif schema is str:
        _require(isinstance(value, str), place, f"is {_short(value)}", "it is a string")
        _require(not any("\ud800" <= character <= "\udfff" for character in value), place,
                 "holds half a surrogate pair", "show the bytes of what is not a character")
    elif get_origin(schema) is Sequence:
        _require(isinstance(value, Sequence) and not isinstance(value, str), place,
                 f"is {_short(value)}", "it is a list")
        for i, element in enumerate(value):
            _check(element, get_args(schema)[0], f"{place}[{i}]")
    elif get_origin(schema) is Mapping:
        _require(isinstance(value, Mapping), place, f"is {_short(value)}",
                 "it holds names and what they mean")
        for name, words in value.items():
            _check(name, str, f"a name in {place}")
            _check(words, str, f"{place}[{_short(name)}]")
    else:
        _require(isinstance(value, schema), place or "the trace", f"is {_short(value)}",
                 f"it is a {schema.__name__}")
        for name, inner in _SCHEMAS[schema].items():
            _check(getattr(value, name), inner, f"{place}.{name}".lstrip("."))


def _read(value: Any, schema: Any, place: str, pool: Sequence[Cell] | None) -> Any:
    """What JSON holds, with objects of this module's classes where the schema names one."""
    if get_origin(schema) is Sequence and isinstance(value, list):
        return tuple(_read(element, get_args(schema)[0], f"{place}[{i}]", pool)
                     for i, element in enumerate(value))
    if get_origin(schema) is Mapping:
        _require(isinstance(value, list)
                 and all(isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)
                         for pair in value), place, f"is {_short(value)}",
                 "it is a list of pairs, a name and what it means")
        return dict(value)
    if schema not in _SCHEMAS:
        return value
    if schema is Cell and pool is not None:
        _require(type(value) is int and 0 <= value < len(pool), place, f"is {_short(value)}",
                 "it is a place in the pool")
        return pool[value]
    name_of = f"a {schema.__name__}"
    _require(isinstance(value, dict), place or "the trace", f"is {_short(value)}",
             f"it is an object, {name_of}")
    inner = _SCHEMAS[schema]
    for name in value:
        _require(name in inner, f"{place}.{name}".lstrip("."), "is unknown",
                 f"{name_of} has {', '.join(inner)}")
    for known in fields(schema):
        required = known.default is MISSING and known.default_factory is MISSING
        _require(known.name in value or not required, f"{place}.{known.name}".lstrip("."),
                 "is missing", f"{name_of} needs it")
    return schema(**{name: _read(part, inner[name], f"{place}.{name}".lstrip("."), pool)
                     for name, part in value.items()})


def _plain(value: Any, pool: dict[Cell, int]) -> Any:
    """What JSON can hold; NumPy's numbers become Python's. Cells go into the pool."""
    if isinstance(value, Cell):
        return pool.setdefault(value, len(pool))
    if type(value) in _SCHEMAS:
        return _fields(value, pool)
    if isinstance(value, Real):
        number = float(value)
        return int(number) if number.is_integer() else number
    # pairs: a browser would put the name "10" before the name "b"
    if isinstance(value, Mapping):
        return [list(pair) for pair in value.items()]
    return value if isinstance(value, str) else [_plain(element, pool) for element in value]


def _fields(value: Any, pool: dict[Cell, int]) -> dict[str, Any]:
    return {known.name: _plain(part, pool) for known in fields(value)
            if not _is_default(part := getattr(value, known.name), known)}


def _is_default(value: Any, known: Field) -> bool:
    return value == (known.default_factory() if known.default_factory is not MISSING
                     else known.default)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _require_positive(values: Sequence[float], place: str) -> None:
    _require(all(value > 0 for value in values), place, f"is at {tuple(values)}",
             "logarithmic axes hold positive numbers")


def _require(condition: bool, place: str, found: str, rule: str) -> None:
    if not condition:
        _refuse(place, found, rule)


def _refuse(place: str, found: str, rule: str) -> NoReturn:
    raise FigureError("cannot use this trace", f"{place} {found}", rule)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
