"""Inputs that nobody listed: strategies of hypothesis, shared by kind of input.

What a docstring leaves undefined is never drawn.
"""
