"""Walls around the process that runs learners' code: what it sees, and what it may use up."""
