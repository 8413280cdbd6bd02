"""Operators of the decoder for particular machines, beside NumPy's: other code, same results."""
