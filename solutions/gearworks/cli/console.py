"""How a command meets its terminal: streams that are closed or full, interrupts, and errors told as messages."""

import io
import os
import sys
from collections.abc import Callable

from gearworks.errors import GearworksError


def run(program: str, command: Callable[[], int | None]) -> int:
    """Run a command; returns its exit code: its own or 0, 1 for an error that is told, 130 when it is interrupted."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:                      # the shell closed it: `>&-`
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))
        if isinstance(getattr(sys, name), io.TextIOWrapper):
            getattr(sys, name).reconfigure(errors="replace")        # what cannot be read or shown is no reason to end
    try:
        code = command() or 0
        sys.stdout.flush()
        return code
    except GearworksError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\n{program}: interrupted", file=sys.stderr)
        return 130
    except OSError as error:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")        # nothing may be left to flush at exit
        if not isinstance(error, BrokenPipeError):          # that is a reader, such as `head`, who has seen enough
            failure = GearworksError("the result could not be written", str(error), "another place for it")
            print(f"{program}: {failure}", file=sys.stderr)
        return 1
