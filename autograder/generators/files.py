"""Files that are right, and files that have one thing wrong: nothing in them is believed."""

import json
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

# What stands where something else was due: of another type, missing, negative, huge.
ODD = (None, True, False, -1, 1.0, "2", "", [], {}, 2**63, 2**64, [None], 1e300)


@dataclass(frozen=True)
class Parts:
    """Bytes, from parts that a message can show: the bytes themselves, or how many zeros."""

    parts: tuple[bytes | int, ...]
    view: bool = False

    def made(self) -> bytes | memoryview:
        data = b"".join(bytes(part) for part in self.parts)
        return memoryview(data) if self.view else data

    def typed(self) -> str:
        text = " + ".join(f"bytes({part})" if isinstance(part, int) else repr(part)
                          for part in self.parts) or "b''"
        return f"memoryview({text})" if self.view else text


@st.composite
def with_fault(draw, document: Any) -> Any:
    """A JSON document with one of its members or items replaced, left out, or added."""
    if isinstance(document, dict) and document:
        key = draw(st.sampled_from([*document]))
        kind = draw(st.sampled_from(["deeper", "replaced", "missing", "more"]))
        if kind == "missing":
            return {name: value for name, value in document.items() if name != key}
        if kind == "more":
            return document | {"more": draw(st.sampled_from(ODD))}
        inner = (draw(with_fault(document[key])) if kind == "deeper"
                 else draw(st.sampled_from(ODD)))
        return document | {key: inner}
    if isinstance(document, list) and document:
        at = draw(st.integers(0, len(document) - 1))
        return [*document[:at], draw(with_fault(document[at])), *document[at + 1:]]
    if type(document) is int:
        return draw(st.sampled_from([*ODD, document + 1, document - 1, document + 8]))
    return draw(st.sampled_from(ODD))


def twice(document: dict) -> str:
    """A JSON object in which its first key stands a second time."""
    key, value = next(iter(document.items()))
    text = json.dumps(document)
    return f"{text[:-1]}, {json.dumps(key)}: {json.dumps(value)}}}"
