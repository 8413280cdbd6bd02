"""Traces that come with the package, each beside the program that drew it."""
