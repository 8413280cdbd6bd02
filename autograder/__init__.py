"""The autograder: from one chapter source to every edition, from one set of checks to every
grade."""

from autograder.notebook import check, optional

__all__ = ["check", "optional"]
