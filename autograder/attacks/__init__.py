"""Attacks and cheats, each a small file, and what shows that the judge and its sandbox hold."""
