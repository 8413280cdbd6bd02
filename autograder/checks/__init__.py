"""The checks of every exercise, a file for each module; see `autograder.checking`."""
