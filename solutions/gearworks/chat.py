"""Chat templates: from a conversation to the text that a model was trained to read.

A template is a small program in the Jinja language that comes with the model, from somebody you
do not know. So it runs in a sandbox, as in Hugging Face, and sees nothing but plain data:
strings, numbers, lists, dictionaries.

The trap: a template writes the special tokens itself, BOS included. Encode its output with
`Tokenizer.encode(text)`, never with `add_special_tokens=True`: that puts a second BOS in front,
no error appears, and the answers get a little worse.

Left out on purpose: pictures and sound, Python functions as tools, several templates by name,
and limits on the time and memory of a hostile template (the sandbox bounds neither; run models
of strangers in a process of their own).

Source: Hugging Face's `apply_chat_template`.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gearworks.errors import FormatError, ModelError


def render_chat(messages: Sequence[Mapping[str, Any]], template: str, *,
                tools: Sequence[Mapping[str, Any]] | None = None,
                add_generation_prompt: bool = True, bos_token: str = "", eos_token: str = "",
                **extra: Any) -> str:
    """The text of a conversation, written by the model's chat template.

    messages: each has a "role" and a "content", which is text, or a list of {"type": "text",
    "text": ...} for templates that know such lists; a message with "tool_calls" needs no
    content. Other keys are passed on, unless they are None.
    tools: JSON schemas of functions, for templates that offer them to the model.
    add_generation_prompt: end with the words that open the assistant's answer. extra: what else
    a template may ask for.

    The text holds its special tokens, BOS too if the model wants one: encode it without adding
    another.
    Raises FormatError for a template that is no Jinja, or leaves the sandbox; ModelError for
    messages that are no conversation, that the template refuses (`raise_exception`), or on
    which it fails.

    >>> render_chat([{"role": "user", "content": "Hi"}],
    ...             "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    ...             "{% if add_generation_prompt %}<assistant>{% endif %}")
    '<user>Hi<assistant>'
    """
    variables = {"messages": _conversation(messages), "tools": _plain("tools", tools),
                 "documents": None, "add_generation_prompt": add_generation_prompt,
                 "bos_token": bos_token, "eos_token": eos_token,
                 **{name: _plain(name, value) for name, value in extra.items()}}
    compiled = _compile(template)
    try:
        return compiled.render(variables)
    except jinja2.sandbox.SecurityError as error:
        raise FormatError("cannot use this chat template",
                          f"it tries to leave its sandbox: {error}",
                          "do not trust this model, and use another") from None
    except _Refusal as error:
        raise ModelError("the chat template refuses these messages", str(error),
                         "do as it asks, for example without a system message, or put "
                         "another template into its chat_template.jinja") from None
    except Exception as error:
        # a template is a program: it may fail in any way that Python knows
        raise ModelError("the chat template fails on these messages",
                         f"{type(error).__name__}: {error}"[:500],
                         "try it without a system message, compare the model's page, or put "
                         "another template into its chat_template.jinja") from None


class _Refusal(jinja2.TemplateError):
    """What `raise_exception` in a template raises."""


class _Generation(Extension):
    """{% generation %} ... {% endgeneration %}: the assistant's words, for training only."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True),
                           lineno=line)


def _raise_exception(message: str) -> None:
    raise _Refusal(message)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None,
            separators: tuple[str, str] | None = None, sort_keys: bool = False) -> str:
    # Jinja's own filter escapes < > & and ' for HTML, which no model has seen in training.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


@lru_cache(maxsize=16)
def _compile(template: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                extensions=[_Generation, loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    try:
        return environment.from_string(template)
    except jinja2.TemplateSyntaxError as error:
        raise _bad_template(f"line {error.lineno}: {error.message}") from None
    except (RecursionError, SyntaxError, ValueError, MemoryError) as error:
        # from Python, which Jinja compiles to
        raise _bad_template(f"{type(error).__name__}: {error}") from None


def _conversation(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    plain = _plain("messages", messages)
    if not isinstance(plain, list) or not plain:
        raise _bad_messages("there are none", "give a list with at least one message")
    for number, message in enumerate(plain):
        if not isinstance(message, dict):
            raise _bad_messages(f"message {number} is a {type(message).__name__}",
                                'write {"role": ..., "content": ...}')
        if not isinstance(message.get("role"), str):
            raise _bad_messages(f"message {number} has no role",
                                'add "role": "system", "user", "assistant" or "tool"')
        if not _is_text(message):
            raise _bad_messages(
                f"the content of message {number} ({message['role']}) is not text",
                'give "content" as a string; pictures and sound are not supported')
    # Clients send "tool_calls": null and the like, and a template that asks `is defined` would
    # take it for a value.
    return [{key: value for key, value in message.items() if value is not None}
            for message in plain]


def _is_text(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    if isinstance(content, list):
        return all(isinstance(part, dict) and part.get("type") == "text"
                   and isinstance(part.get("text"), str) for part in content)
    return isinstance(content, str) or (content is None and bool(message.get("tool_calls")))


def _plain(name: str, value: Any) -> Any:
    """A copy of JSON's types only: other objects have methods that the sandbox cannot judge."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise _bad_messages(f"{name} cannot be written as JSON ({error})",
                            "use strings, numbers, lists and dictionaries") from None


def _bad_template(why: str) -> FormatError:
    return FormatError("cannot read this chat template", why,
                       "fetch the model again, or put another template into its "
                       "chat_template.jinja")


def _bad_messages(why: str, hint: str) -> ModelError:
    return ModelError("cannot write this conversation", why, hint)
