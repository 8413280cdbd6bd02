"""Checks and what they are about in two processes: the judge's, and the learner's."""
