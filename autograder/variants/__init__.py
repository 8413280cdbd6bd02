"""Wrong and right versions of every component, and the trials that measure the checks."""
