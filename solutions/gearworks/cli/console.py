"""How a command meets its terminal: arguments, interrupts, closed streams, error messages."""

import argparse
import difflib
import importlib
import io
import os
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from gearworks.errors import GearworksError, UsageError


def start(program: str, module: str) -> NoReturn:
    """Run the function `main` of a module as a program; an interrupt means exit code 130.

    It ends the program at once. While Python reads modules, an interrupt that is raised can
    come up as any other exception, or be lost in a callback. What leaves files or processes, or
    goes on afterwards, asks for KeyboardInterrupt: `interrupts_raise`.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:   # else they are unwanted
        signal.signal(signal.SIGINT, _EndAtOnce(program))
    code = importlib.import_module(module).main()
    signal.signal(signal.SIGINT, signal.SIG_IGN)            # all is done and said
    sys.exit(code)


class _EndAtOnce:
    """Ends the process when it is interrupted."""

    def __init__(self, program: str):
        self._program = program

    def __call__(self, signal_number: int, frame: object) -> NoReturn:
        try:
            os.write(2, f"\n{self._program}: interrupted\n".encode())
        finally:                                            # even if standard error is closed
            os._exit(130)


@contextmanager
def interrupts_raise() -> Iterator[None]:
    """Within this an interrupt raises KeyboardInterrupt, as it does without `start`."""
    before = signal.getsignal(signal.SIGINT)
    if not isinstance(before, _EndAtOnce):
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def run(program: str, command: Callable[[], int | None]) -> int:
    """Run a command; returns its exit code.

    That is its own or 0, 1 for an error that is told, 2 for wrong usage, 130 for an interrupt.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:                      # the shell closed it: `>&-`
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))
        if isinstance(getattr(sys, name), io.TextIOWrapper):
            # what cannot be read or shown is no reason to end
            getattr(sys, name).reconfigure(errors="replace")
    try:
        code = command() or 0
        sys.stdout.flush()
        return code
    except GearworksError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        print(f"\n{program}: interrupted", file=sys.stderr)
        return 130
    except OSError as error:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")    # so nothing is flushed at exit
        if not isinstance(error, BrokenPipeError):              # else `head` has seen enough
            failure = GearworksError("the result could not be written", str(error),
                                     "free some space, or write it to another place")
            print(f"{program}: {failure}", file=sys.stderr)
        return 1


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors have three parts, and name what is near to a wrong name.

    Options cannot be abbreviated: a new one would change what an old script means.
    """

    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **settings, allow_abbrev=False)
        self._commands: dict[str, Parser] = {}

    def add_command(self, name: str, help: str, description: str) -> "Parser":
        """A command of this program, as a parser of its own."""
        if not self._commands:
            self._group = self.add_subparsers(required=True, metavar="COMMAND")
        self._commands[name] = self._group.add_parser(name, help=help, description=description)
        return self._commands[name]

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """What these arguments mean. Raises UsageError."""
        command = next((each for each in arguments if not each.startswith("-")), None)
        if command is not None and command not in self._commands:
            raise UsageError(f"there is no command {command!r}",
                             f"the commands are {', '.join(self._commands)}",
                             f"{self.prog} {_nearest(command, self._commands) or '--help'}")
        if command is None:                                 # argparse would only miss it
            unknown = [each for each in arguments if each not in self._option_names()]
            if unknown:
                self.refuse(unknown)
        options, unknown = self.parse_known_args(arguments)
        if unknown:
            self._commands.get(command, self).refuse(unknown)
        return options

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """Raise UsageError for arguments that nothing takes."""
        option = next((argument for argument in unknown if argument.startswith("-")), None)
        if option is None:
            raise UsageError(f"cannot run {self.prog}",
                             f"nothing takes the argument {unknown[0]!r}",
                             f"quotes around a text with spaces; {self._help()}")
        name = option.partition("=")[0]
        if name in self._option_names():
            raise UsageError(f"cannot use {name} here",
                             "behind -- everything is a text, not an option",
                             f"{name} before the --")
        near = _nearest(name, self._option_names()) or self._help()
        raise UsageError(f"there is no option {name}", f"{self.prog} does not know it",
                         f"{near}; or -- before a text that begins with -")

    def _option_names(self) -> list[str]:
        return [name for action in self._actions for name in action.option_strings]

    def _help(self) -> str:
        return f"{self.prog} --help, which lists what it takes"

    def error(self, message: str) -> NoReturn:
        """Raise UsageError; argparse calls this for what is missing, or refused by its type."""
        what, why, hint = f"cannot run {self.prog}", message, self._help()
        missing = message.removeprefix("the following arguments are required: ")
        argument, colon, complaint = message.removeprefix("argument ").partition(": ")
        if missing != message:
            are = "are" if "," in missing else "is"
            why = f"{missing.replace(', ', ' and ')} {are} missing"
        elif colon:
            what = f"cannot use this {argument}"
            why, _, own_hint = complaint.partition("; ")    # the functions below may give one
            hint = own_hint or hint
            if complaint.startswith("expected one"):
                why, hint = "its value is missing", f"{argument}=VALUE, which fits every value"
            elif complaint.startswith("expected"):          # "at least one argument", "2 ..."
                count = complaint.removeprefix("expected ").rpartition(" ")[0]
                why, hint = "its values are missing", f"{count} behind {argument}"
            elif complaint.startswith("ignored explicit argument"):
                why, hint = "it takes no value", f"{argument} alone"
        raise UsageError(what, why, hint)


def _nearest(name: str, known: Collection[str]) -> str:
    """Names that begin like this one, or the one that is most like it, or nothing."""
    bare = {each.strip("-"): each for each in known}
    name = name.strip("-")
    near = [each for each in bare if each.startswith(name)] if name else []
    near = near or difflib.get_close_matches(name, bare, n=1)
    return " or ".join(bare[each] for each in near)


def text(argument: str) -> str:
    """An argument that is a text; a shell can pass any bytes."""
    try:
        argument.encode("utf-8")
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError(
            f"its character {error.start + 1} is a byte that is no UTF-8; "
            "a terminal set to UTF-8") from None
    return argument


def whole_number(argument: str, least: int | None = None) -> int:
    """An argument that is a whole number."""
    try:
        value = int(argument)
    except ValueError:                                      # also for thousands of digits
        value = None
    if value is None or (least is not None and value < least):
        bound = "" if least is None else f" of at least {least}"
        raise argparse.ArgumentTypeError(f"{argument:.80} is not a whole number{bound}")
    return value


def count(argument: str) -> int:
    """An argument that is a number of things, at least 0."""
    return whole_number(argument, least=0)


def positive_count(argument: str) -> int:
    """An argument that is a number of things, at least 1."""
    return whole_number(argument, least=1)


def number(argument: str) -> float:
    """An argument that is a number."""
    try:
        return float(argument)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{argument:.80} is not a number") from None


def number_above_0(argument: str) -> float:
    """An argument that is a number above 0, and finite."""
    value = number(argument)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{argument:.80} is not a number above 0")
    return value
