"""Values of a tokenizer.json or of GGUF metadata, which nobody has checked yet.

Each function here gives what was asked for, or raises FormatError in the three parts that
errors have.
"""

from collections.abc import Mapping
from reprlib import Repr
from typing import Any, NoReturn

from gearworks.errors import FormatError

FETCH_AGAIN = ("the file is damaged or made by a faulty program: fetch it again, or use "
               "another copy of the model")
OTHER_MODEL = ("use a model with byte-level BPE or SentencePiece, such as SmolLM2, Llama, "
               "Qwen, Mistral or Gemma")
OTHER_RULES = ("use a model that cuts text as GPT-2, SmolLM2, StarCoder, Llama 3, Qwen 2, "
               "GPT-4o, Mistral-Nemo or DeepSeek-V3 do")

_REQUIRED = object()
_TYPE_NAMES = {dict: "an object", list: "a list", str: "a string", int: "an integer",
               bool: "true or false"}


def get(holder: Mapping[str, Any], key: str, kind: type, default: Any = _REQUIRED) -> Any:
    value = holder.get(key, default)
    if value is _REQUIRED:
        malformed(f"{key!r} is missing")
    if value is default or (value is None and default is not _REQUIRED):
        return default
    if type(value) is not kind:                        # not isinstance: true is no integer here
        malformed(f"{key!r} is {short(value)}, where {_TYPE_NAMES[kind]} is needed")
    return value


def objects(holder: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    entries = get(holder, key, list)
    if not all(isinstance(entry, dict) for entry in entries):
        malformed(f"{key!r} is {short(entries)}, where a list of objects is needed")
    return entries


def steps_of(component: Mapping[str, Any] | None, key: str) -> list[Mapping[str, Any]]:
    """The steps of a Sequence, or the one step that this is, or none."""
    if component is None:
        return []
    return objects(component, key) if component.get("type") == "Sequence" else [component]


def strings(metadata: Mapping[str, Any], key: str) -> list[str]:
    values = get(metadata, key, list)
    if not all(isinstance(value, str) for value in values):
        malformed(f"{key!r} holds something that is not a string")
    return values


def require_characters(token: str) -> None:
    try:
        token.encode("utf-8")
    except UnicodeEncodeError:
        malformed(f"token {token[:40]!r} holds half a surrogate pair")


_brief = Repr()                        # a hostile value may be too large, or too deep, for repr
_brief.maxstring = _brief.maxother = 80
short = _brief.repr


def type_name(step: Mapping[str, Any]) -> str:
    return short(step["type"]) if "type" in step else "missing"


def malformed(why: str) -> NoReturn:
    raise FormatError("cannot read this vocabulary", why, FETCH_AGAIN)


def unsupported(why: str, hint: str = OTHER_MODEL) -> NoReturn:
    raise FormatError("cannot use this vocabulary", why, hint)
