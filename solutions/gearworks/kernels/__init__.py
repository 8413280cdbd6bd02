"""The decoder's operators for particular machines, beside NumPy's: other code, same results."""
