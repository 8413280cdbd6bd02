"""The inner loops: what the operators of `layers` are computed with."""
