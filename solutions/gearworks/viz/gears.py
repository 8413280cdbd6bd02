"""The engine's map: the seven steps of a request, the gears that take them, what is built."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from html import escape

from gearworks.viz.figure import Figure, framed
from gearworks.viz.trace import FigureError


@dataclass(frozen=True)
class Gear:
    """A part of the engine: name in `engine_map`, title on the map, chapter, what it does."""

    name: str
    title: str
    chapter: int
    does: str


GEARS = {gear.name: gear for gear in (
    Gear("pipeline", "Pipeline", 1, "runs the loop"),
    Gear("tokenizer", "Tokenizer", 2, "turns text into ids and back"),
    Gear("weights", "Weights", 3, "reads the model's files"),
    Gear("transformer", "Transformer", 4, "turns ids into logits"),
    Gear("kv_cache", "KV cache", 4, "keeps keys and values of past tokens"),
    Gear("sampler", "Sampler", 5, "chooses the next token"),
    Gear("scheduler", "Scheduler", 6, "lets many requests share each step"),
    Gear("server", "Server", 6, "answers over HTTP, token by token"),
    Gear("quantization", "Quantization", 7, "makes the weights small"),
    Gear("kernels", "Kernels", 7, "make the inner loops fast"),
)}

# Each step of a request, what happens, and the gear that does it.
STEPS = (("Encode", "text to ids", "tokenizer"),
         ("Embed", "ids to vectors", "transformer"),
         ("Layers", "N blocks, with the KV cache", "transformer"),
         ("Head", "vectors to logits", "transformer"),
         ("Choose", "logits to one id", "sampler"),
         ("Append", "the id, or stop", "pipeline"),
         ("Decode", "ids to text", "tokenizer"))
LOOP = "for every new token"

_AROUND = ("Around the loop: many requests at a time", ("scheduler", "server"))
_BELOW = ("Under the loop: what the steps need, and what makes them fast",
          ("weights", "kv_cache", "quantization", "kernels"))


def engine_map(lit: Collection[str] = (), building: Collection[str] = (),
               chapters: Mapping[int, str] | None = None) -> Figure:
    """The engine as a map, with the finished gears lit.

    lit: names of the gears that are finished. building: those that the reader is building now.
    The names are the keys of `GEARS`. chapters: number -> address; a gear of such a chapter is
    a link to it. Raises FigureError for another name.

    >>> print(repr(engine_map(lit=["pipeline"], building=["tokenizer"])).splitlines()[1])
    Step 1, Encode: text to ids. Gear: Tokenizer (you build it now)
    """
    lit, building = ([names] if isinstance(names, str) else list(names)
                     for names in (lit, building))
    for name in [*lit, *building]:
        if name not in GEARS:
            raise FigureError("cannot draw the map", f"the engine has no gear {name!r}",
                              f"use names of {', '.join(GEARS)}")

    def state(name: str) -> str:
        if name in building:
            return "you build it now"
        return "built" if name in lit else f"chapter {GEARS[name].chapter}"

    def title_of(name: str) -> str:
        gear = GEARS[name]
        address = (chapters or {}).get(gear.chapter)
        return (f'<a href="{escape(address)}">{gear.title}</a>' if address is not None
                else gear.title)

    def look(name: str) -> str:
        return ("gw-gear"
                + (" gw-building" if name in building else " gw-lit" if name in lit else ""))

    def band(title: str, names: Collection[str]) -> str:
        boxes = "".join(f'<li class="{look(name)}">'
                        f'<span class="gw-gear-name">{_COG}{title_of(name)}</span> '
                        f'<small>{GEARS[name].does}</small> <small>{state(name)}</small></li>'
                        for name in names)
        return (f'<div class="gw-band"><p class="gw-band-title">{title}</p>'
                f'<ul class="gw-gears gw-gears-{len(names)}">{boxes}</ul></div>')

    steps = "".join(f'<li class="{look(gear)}"><strong>{i} {title}</strong> '
                    f'<small>{happens}</small> '
                    f'<span class="gw-gear-name gw-of-step">{_COG}{title_of(gear)}</span> '
                    f'<small>{state(gear)}</small></li>'
                    for i, (title, happens, gear) in enumerate(STEPS, start=1))
    loop = f'<li class="gw-loop"><span>{LOOP}</span></li>'
    body = (f'<div class="gw-map">{band(*_AROUND)}<div class="gw-band">'
            '<p class="gw-band-title">The loop of one request</p>'
            f'<ol class="gw-steps">{steps}{loop}</ol></div>{band(*_BELOW)}</div>')

    words = ["The engine: the steps of a request"]
    words += [f"Step {i}, {title}: {happens}. Gear: {GEARS[gear].title} ({state(gear)})"
              for i, (title, happens, gear) in enumerate(STEPS, start=1)]
    words.append(f"Steps 2 to 6 come again {LOOP}")
    for title, names in (_AROUND, _BELOW):
        gears = (f"{GEARS[name].title} {GEARS[name].does} ({state(name)})" for name in names)
        words.append(f"{title}: {'; '.join(gears)}")
    finished = f"{len(set(lit) - set(building))} of {len(GEARS)} gears built"
    words.append(finished)
    return Figure(framed(f"The engine, {finished}", body), "\n".join(words))


def _cog(teeth: int = 8, outer: float = 10.5, inner: float = 7.5, hole: float = 3) -> str:
    """A cogwheel around 0, 0 as an SVG."""
    corners = []
    for tooth in range(teeth):
        for part, radius in ((-0.28, inner), (-0.16, outer), (0.16, outer), (0.28, inner)):
            angle = 2 * math.pi * (tooth + part) / teeth
            corners.append(f"{radius * math.sin(angle):.2f},{-radius * math.cos(angle):.2f}")
    outline = (f"M{' '.join(corners)}Z"
               f"M{hole},0A{hole},{hole} 0 1 0 -{hole},0A{hole},{hole} 0 1 0 {hole},0Z")
    return f'<svg viewBox="-12 -12 24 24" aria-hidden="true"><path d="{outline}"/></svg>'


_COG = _cog()
