"""The checks of every exercise, one module for each module of the engine.
See `autograder.checking`."""
