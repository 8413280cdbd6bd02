"""Errors that a user can meet, each in three parts: what happened, why, and what to try.

`assert` and plain `ValueError` are for programmers; everything that a file, an argument or a
machine can cause is a `GearworksError`. The command line prints the three parts and no
traceback.
"""


class GearworksError(Exception):
    """A failure that the user can act on.

    what: one line, what could not be done. why: what was found. hint: what to try next.

    >>> print(GearworksError("cannot open model.gguf", "the file ends early", "fetch it again"))
    cannot open model.gguf
      Why  the file ends early
      Try  fetch it again
    """

    def __init__(self, what: str, why: str, hint: str):
        super().__init__(f"{what}\n  Why  {why}\n  Try  {hint}")
        self.what, self.why, self.hint = what, why, hint

    def __reduce__(self):
        return type(self), (self.what, self.why, self.hint)


class FormatError(GearworksError, ValueError):
    """A file is truncated, corrupt, hostile, or of a kind that is not supported."""


class ModelError(GearworksError, ValueError):
    """A model is incomplete, of an unsupported architecture, or used outside its limits."""


class NotAvailableError(GearworksError):
    """Something outside the program is missing: a file, the network, disk space, a package."""


class UsageError(GearworksError, ValueError):
    """A command was called with arguments that it does not know or cannot use."""
