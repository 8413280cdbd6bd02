"""A computation as the graph that a runtime sees: operators, and what flows between them."""

from collections import Counter
from collections.abc import Sequence
from html import escape

from gearworks.onnx_export import Node
from gearworks.viz.figure import Figure, framed
from gearworks.viz.trace import FigureError

MOST = 150                                  # nodes that can be told apart
_WIDTH, _BOX, _HEIGHT, _ROW = 640, 132, 34, 56


def operator_graph(nodes: Sequence[Node], title: str = "A graph of operators") -> Figure:
    """The nodes of a graph from top to bottom, each below all those whose results it takes.

    Raises FigureError for no nodes, for more than `MOST`, and for nodes out of order.

    >>> from gearworks.onnx_export import Node
    >>> operator_graph([Node("MatMul", ("weight",), ()), Node("Add", ("bias",), (0,))],
    ...                "Linear")
    Linear: 2 operators, 1 Add, 1 MatMul
    1 MatMul with weight
    2 Add with bias, of 1
    """
    if not 1 <= len(nodes) <= MOST:
        raise FigureError("cannot draw this graph", f"it has {len(nodes)} nodes",
                          f"draw one of 1 to {MOST}")
    levels: list[int] = []
    for place, node in enumerate(nodes):
        if any(not 0 <= taken < place for taken in node.takes):
            raise FigureError("cannot draw this graph",
                              f"node {place} takes what comes after it", "sort it first")
        levels.append(1 + max((levels[taken] for taken in node.takes), default=-1))
    places = _places(nodes, levels)
    counted = ", ".join(f"{count} {name}" for name, count
                        in sorted(Counter(node.operator for node in nodes).items(),
                                  key=lambda item: (-item[1], item[0])))
    words = [f"{title}: {len(nodes)} operators, {counted}"]
    edges, boxes = [], []
    width = {level: min(_BOX, _WIDTH / levels.count(level) - 8) for level in levels}
    for place, (node, (x, y)) in enumerate(zip(nodes, places)):
        with_weights = f" with {', '.join(node.weights)}" if node.weights else ""
        of = f", of {', '.join(str(taken + 1) for taken in node.takes)}" if node.takes else ""
        words.append(f"{place + 1} {node.operator}{with_weights}{of}")
        edges += [_edge(places[taken], (x, y)) for taken in node.takes]
        boxes.append(_box(node, x, y, width[levels[place]]))
    height = _ROW * (max(levels) + 1)
    svg = (f'<svg aria-hidden="true" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
           f'height="{height}" fill="none" stroke="currentColor" font-size="13">'
           f'{"".join(edges)}{"".join(boxes)}</svg>')
    body = (f'<div class="gw-scroll" tabindex="0">{svg}</div>'
            '<details class="gw-words"><summary>In words</summary>'
            f'<pre tabindex="0">{escape(chr(10).join(words), quote=False)}</pre></details>')
    return Figure(framed(title, body), "\n".join(words))


def _places(nodes: Sequence[Node], levels: Sequence[int]) -> list[tuple[float, float]]:
    """The middle of each node's box. In a row, nodes stand as those that they take from do."""
    places: list[tuple[float, float]] = [(0.0, 0.0)] * len(nodes)
    for level in range(max(levels) + 1):
        row = [place for place, own in enumerate(levels) if own == level]

        def middle(place: int) -> float:
            taken = [places[other][0] for other in nodes[place].takes]
            return sum(taken) / len(taken) if taken else _WIDTH / 2
        for slot, place in enumerate(sorted(row, key=middle)):
            places[place] = (_WIDTH * (slot + 0.5) / len(row), _ROW * (level + 0.5))
    return places


def _edge(start: tuple[float, float], end: tuple[float, float]) -> str:
    top, bottom = start[1] + _HEIGHT / 2, end[1] - _HEIGHT / 2
    half = (top + bottom) / 2
    return (f'<path d="M{start[0]:.0f} {top:.0f}C{start[0]:.0f} {half:.0f} {end[0]:.0f} '
            f'{half:.0f} {end[0]:.0f} {bottom:.0f}" opacity="0.6"/>')


def _box(node: Node, x: float, y: float, width: float) -> str:
    """A rounded box, filled where the operator has a weight."""
    name, size = escape(node.operator), 13 if width == _BOX else 12
    lines = [f'<text x="{x:.0f}" y="{y + (-2 if node.weights else 5):.0f}" '
             f'font-size="{size}">{name}</text>']
    if node.weights:
        lines.append(f'<text x="{x:.0f}" y="{y + 11:.0f}" font-size="12">'
                     f'{escape(node.weights[0][:24])}</text>')
    fill = "var(--gw-raised)" if node.weights else "var(--gw-paper)"
    return (f'<g><rect x="{x - width / 2:.0f}" y="{y - _HEIGHT / 2:.0f}" width="{width:.0f}" '
            f'height="{_HEIGHT}" rx="6" fill="{fill}"/><g fill="currentColor" stroke="none" '
            f'text-anchor="middle">{"".join(lines)}</g></g>')
