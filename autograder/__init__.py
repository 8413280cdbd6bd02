"""The autograder: from one chapter source to every edition, from one set of checks to every grade."""

from autograder.notebook import check

__all__ = ["check"]
