"""Checks: what they demand, how they are run, and what is told of them."""

from autograder.checking.check import (MESSAGE_WORDS, Check, CheckFailure, check, checks_of,
                                       exercises, methods_of_others)
from autograder.checking.expectations import (NOTHING, error_text, expect, expect_close,
                                              expect_equal, expect_error, expect_returned,
                                              expect_same, expect_unchanged)

__all__ = ["MESSAGE_WORDS", "NOTHING", "Check", "CheckFailure", "check", "checks_of",
           "error_text", "exercises", "expect", "expect_close", "expect_equal", "expect_error",
           "expect_returned", "expect_same", "expect_unchanged", "methods_of_others"]
