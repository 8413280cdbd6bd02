"""Weights and caches in fewer bits: what is stored, how it is found, what it costs."""
