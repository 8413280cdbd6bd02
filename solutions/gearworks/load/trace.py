"""Traces: requests with their arrivals, as JSON Lines, one request a line.

    {"arrival": 0.4, "output_tokens": 40, "prompt_tokens": 96, "group": "a", "prefix_tokens": 9}
    {"arrival": 1.1, "prompt": "Why is the sky blue?", "output_tokens": 25}

arrival: seconds after the start. A prompt is a text, or a length, for which words are found.
output_tokens: how many the answer may have at most. group: prompts of one group begin with the
same words, `prefix_tokens` of them.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from gearworks.errors import FormatError, NotAvailableError

TRACES = Path(__file__).parent / "traces"
BUILT_IN = ("chat",)
LONGEST, LATEST = 10_000_000, 1e9               # tokens and seconds; more must be a slip


@dataclass(frozen=True)
class TraceRequest:
    """One request of a trace: it has a `prompt`, or `prompt_tokens` and perhaps a group."""

    arrival: float
    output_tokens: int
    prompt_tokens: int | None = None
    prompt: str | None = None
    group: str | None = None
    prefix_tokens: int = 0


_NAMES = [field.name for field in fields(TraceRequest)]


def find_trace(name: str) -> Path:
    """The file of that name; `chat` is the trace that comes with the package."""
    return TRACES / f"{name}.jsonl" if name in BUILT_IN else Path(name)


def read_trace(path: Path) -> list[TraceRequest]:
    """The requests of a trace, in the order of their arrivals.

    Raises NotAvailableError when the file cannot be read, FormatError with the line's number
    for what is no request.
    """
    try:
        lines = path.read_bytes().removeprefix(b"\xef\xbb\xbf").splitlines()
    except OSError as error:
        raise NotAvailableError(f"cannot read the trace {path}", str(error),
                                f"the path of a file, or {' or '.join(BUILT_IN)}") from None
    requests = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                requests.append(_request(line))
            except ValueError as error:
                raise FormatError(
                    f"cannot use the trace {path}", f"line {number}: {error}",
                    'a line such as {"arrival": 0.4, "prompt_tokens": 96, "output_tokens": 40}'
                ) from None
    if not requests:
        raise FormatError(f"cannot use the trace {path}", "it has no requests",
                          "one JSON object a line, each a request")
    return sorted(requests, key=lambda request: request.arrival)


def _request(line: bytes) -> TraceRequest:
    """What a line says. Raises ValueError with one complaint about it."""
    try:
        found = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    for name in found:
        if name not in _NAMES:
            raise ValueError(f"nobody knows {name!r:.40} there; the names are "
                             f"{', '.join(_NAMES)}")
    arrival = found.get("arrival")
    if type(arrival) not in (int, float) or not 0 <= arrival <= LATEST:
        raise ValueError(f"arrival is {arrival!r:.40}, and not a number of seconds")
    _count(found, "output_tokens", least=1)
    for name in ("prompt", "group"):
        if name in found and not isinstance(found[name], str):
            raise ValueError(f"{name} is {found[name]!r:.40}, and not a text")
        if _half_character(found.get(name, "")):
            raise ValueError(f"{name} holds half a character")
    if found.get("prompt"):
        if "prompt_tokens" in found or "prefix_tokens" in found:
            raise ValueError("it has a prompt, and the length of one")
    else:
        _count(found, "prompt_tokens", least=1)
        _count({"prefix_tokens": 0} | found, "prefix_tokens", least=0)
        if found.get("prefix_tokens", 0) > found["prompt_tokens"]:
            raise ValueError("its prefix is longer than its prompt")
        if found.get("prefix_tokens") and "group" not in found:
            raise ValueError("it has prefix_tokens, and no group that shares them")
    return TraceRequest(**found)


def _half_character(text: str) -> bool:
    """Whether a surrogate stands alone, which JSON can write and UTF-8 cannot."""
    return any("\ud800" <= character <= "\udfff" for character in text)


def _count(found: dict, name: str, least: int) -> None:
    value = found.get(name)
    if type(value) is not int or not least <= value <= LONGEST:
        raise ValueError(f"{name} is {value!r:.40}, and not a count of at least {least}")


def write_trace(path: Path, requests: Iterable[TraceRequest]) -> None:
    """Write requests so that `read_trace` gives them back; arrivals to the microsecond."""
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        for request in requests:
            kept = {name: value for name, value in asdict(request).items()
                    if value is not None and not (name == "prefix_tokens" and value == 0)}
            kept["arrival"] = round(request.arrival, 6)
            file.write(json.dumps(kept, ensure_ascii=False) + "\n")
