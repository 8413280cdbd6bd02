"""Mutants that nobody thought of: every small change of what a learner writes, and trials."""
