"""The command `autograder`: it looks after interrupts before it reads anything else."""

import sys


def main() -> None:
    """Run the command, and end the process with its exit code."""
    try:
        from gearworks.cli import console
    except BaseException as error:      # of a class being made: a RuntimeError, with its cause
        if not {KeyboardInterrupt} & {type(error), type(error.__cause__)}:
            raise
        print("\nautograder: interrupted", file=sys.stderr)
        sys.exit(130)
    console.start("autograder", "autograder.cli")


if __name__ == "__main__":
    main()
