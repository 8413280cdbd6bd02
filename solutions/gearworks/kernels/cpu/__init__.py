"""The decoder's inner loops as machine code for the processor, written in Python.

Numba compiles them when they are called for the first time, and keeps what it made. A whole
step of the model is one compiled call (`step`); its weights stay in 4 or 8 bits (`layout`), and
every thread runs the same step over its own share of the outputs (`threads`).
"""
