"""Code that may not end: limits within a process, and processes that can be ended."""
