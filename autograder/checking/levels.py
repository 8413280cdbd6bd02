"""Where the code of an exercise runs: a report says it, so that nothing is skipped silently.

What is written for a GPU can be tried without one: in NumPy (the tile simulator), or in
Triton's interpreter.
"""

from gearworks.errors import NotAvailableError

TRITON = "kernels.triton."
_SIMULATOR = ("Level: simulator. NumPy stands for a GPU's fast memory, and what moves is "
              "counted.")


def level_of(exercise: str) -> str:
    """Where an exercise runs here, in a sentence; "" for what runs as it is everywhere."""
    if exercise.startswith(TRITON):
        from gearworks.kernels.triton.language import level_in_words
        return level_in_words()
    return _SIMULATOR if exercise.startswith("kernels.flash.") else ""


def why_not_here(exercise: str) -> str:
    """Why an exercise cannot be run on this machine; "" where it can."""
    if not exercise.startswith(TRITON):
        return ""
    from gearworks.kernels.triton.language import level
    try:
        level()
    except NotAvailableError as error:
        return f"{error.why}. To try: {error.hint}."
    return ""
