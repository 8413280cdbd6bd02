"""Gearworks: an LLM inference engine small enough to read, gear by gear,
and exact enough to trust."""

__version__ = "0.1.0"
