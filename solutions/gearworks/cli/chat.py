"""The command `gearworks chat`: a conversation in the terminal.

Answers go to standard output, everything about them to standard error.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gearworks.cli import console, sampling
from gearworks.cli.generate import Load, print_now
from gearworks.errors import GearworksError

if TYPE_CHECKING:                       # slow to import, and not needed to print the help
    from gearworks.decoding import Generation
    from gearworks.language_model import LanguageModel
    from gearworks.sampling import SamplingParams

COMMANDS = {"/help": "shows these commands", "/reset": "forgets the conversation",
            "/save": "saves it in a file, as JSON: /save FILE",
            "/quit": "ends it, as Ctrl-D does"}
QUOTES = '"""'                           # around a message of several lines
HISTORY = 1000                          # lines that the terminal remembers


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of `chat`, but for the model and the engine."""
    command.add_argument("--system", metavar="TEXT", type=console.text,
                         help="what the model is told before the conversation")
    command.add_argument("--context", type=console.positive_count, default=8192, metavar="N",
                         help="longest conversation in tokens "
                              "(default %(default)s, or what the model was made for)")
    sampling.add_options(command, temperature=0.7)


def run(options: argparse.Namespace, load: Load) -> None:
    """Run the command. load(name, chat, backend): finds and loads a model."""
    params = sampling.params(options)
    model = load(options.model, True, options.backend)
    params = sampling.for_model(params, options, model)
    sampling.tell(options, model, always=True)
    with console.interrupts_raise():
        remember_lines()
        converse(model, params, options)


def remember_lines() -> None:
    """Let the arrow keys bring back earlier lines, those of earlier conversations, too.

    Only in a terminal, and where Python has `readline`. What cannot be kept is not.
    """
    if not sys.stdin.isatty():
        return
    try:
        import atexit
        import readline
    except ImportError:                                     # Windows
        return
    from gearworks.hub.models import home

    path = home() / "chat_history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            readline.read_history_file(path)
    except OSError:
        return
    readline.set_history_length(HISTORY)
    atexit.register(_write_history, path)


def _write_history(path: Path) -> None:
    import readline

    try:
        readline.write_history_file(path)
    except OSError:
        pass


def converse(model: LanguageModel, params: SamplingParams, options: argparse.Namespace) -> None:
    """Talk until the input ends, or the user has enough."""
    from gearworks.decoding import Context

    context = Context(model.model, options.context)
    beginning = [{"role": "system", "content": options.system}] if options.system else []
    messages = list(beginning)
    print("Type a message. /help lists what else you can do; Ctrl-C stops an answer.",
          file=sys.stderr)
    while True:
        try:
            message = read_message()
        except EOFError:
            return
        except KeyboardInterrupt:
            print(file=sys.stderr)
            continue
        if not message.strip():
            continue
        if message.startswith("/"):
            command, _, argument = message.partition(" ")
            command = command.split()[0]
            if command == "/quit":
                return
            if command == "/reset":
                messages = list(beginning)
            elif command == "/help":
                print(help_text(), file=sys.stderr)
            else:
                try:
                    if command != "/save":
                        raise GearworksError(f"there is no command {command}",
                                             "a line that begins with / is no message",
                                             "/help, or a space before the /")
                    save(messages, argument.strip())
                except GearworksError as error:
                    print(error, file=sys.stderr)
            continue
        pieces: list[str] = []

        def show(text: str) -> None:
            pieces.append(text)
            print_now(text)
        try:
            generation = model.chat([*messages, {"role": "user", "content": message}],
                                    params=params, max_tokens=options.max_tokens,
                                    stop=options.stop, on_text=show, context=context)
            print()
            print(f"[{summary(generation)}]", file=sys.stderr)
        except KeyboardInterrupt:               # what was said so far stays in the conversation
            print()
        except GearworksError as error:
            print(f"{error}\n  (the conversation is as before this message; /reset starts a "
                  "new one)", file=sys.stderr)
            continue
        messages += [{"role": "user", "content": message},
                     {"role": "assistant", "content": "".join(pieces)}]


def read_message() -> str:
    """The next message: a line, or all lines between two of `QUOTES`.

    Raises EOFError where the input ends, in the middle of several lines, too.
    """
    asks = sys.stdin.isatty()
    line = input("> " if asks else "")
    if not line.startswith(QUOTES):
        return line
    lines = [line.removeprefix(QUOTES)]
    while not lines[-1].endswith(QUOTES):
        lines.append(input("… " if asks else ""))
    lines[-1] = lines[-1].removesuffix(QUOTES)
    return "\n".join(lines).strip("\n")


def save(messages: Sequence[Mapping[str, str]], name: str) -> None:
    """Write a conversation as a JSON list of messages. Raises GearworksError."""
    if not name:
        raise GearworksError("cannot save the conversation", "no file is named",
                             "/save conversation.json")
    text = json.dumps(messages, ensure_ascii=False, indent=2) + "\n"
    try:
        Path(name).expanduser().write_text(text, encoding="utf-8")
    except (OSError, RuntimeError) as error:
        raise GearworksError("cannot save the conversation", str(error),
                             "a file in a folder that exists") from None
    print(f"[{len(messages)} messages in {name}]", file=sys.stderr)


def help_text() -> str:
    """What `/help` shows."""
    lines = [f"  {command:<8}{what}" for command, what in COMMANDS.items()]
    if "readline" in sys.modules:
        lines.append("  arrows  bring back earlier lines, which are kept in the cache folder's "
                     "chat_history")
    return "\n".join([*lines, f"  {QUOTES}     begins a message of several lines, and ends it",
                      "  Ctrl-C  stops an answer; what was said so far is remembered",
                      "All else is a message. One that begins with / needs a space before it."])


def summary(generation: Generation) -> str:
    """One line on what an answer took.

    Such as `12 tokens at 41.0/s after 0.25 s; 30 of 42 prompt tokens were cached`.
    """
    count = len(generation.ids)
    speed = (f" at {count / generation.decode_seconds:.1f}/s"
             if count > 1 and generation.decode_seconds else "")
    cut = ", cut off at the limit" if generation.finish_reason == "length" else ""
    return (f"{count} tokens{speed} after {generation.prefill_seconds:.2f} s{cut}; "
            f"{generation.cached_tokens} of {len(generation.prompt_ids)} prompt tokens were "
            "cached")
