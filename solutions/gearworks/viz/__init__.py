"""Figures for the chapters: drawn in Python from what the engine did, replayed in a notebook or on a page.

Every function returns a `Figure`. `player` replays any `Trace`; the others make theirs from domain objects.
"""

from gearworks.viz.gears import GEARS, engine_map
from gearworks.viz.figure import Figure, player
from gearworks.viz.hardware import Machine, Workload, memory_budget, roofline
from gearworks.viz.tokens import merge_stepper, merge_steps, token_borders
from gearworks.viz.trace import Cell, FigureError, Lane, Line, Mark, Point, Step, Trace

__all__ = ["GEARS", "Cell", "Figure", "FigureError", "Lane", "Line", "Machine", "Mark", "Point", "Step", "Trace",
           "Workload", "engine_map", "memory_budget", "merge_stepper", "merge_steps", "player", "roofline",
           "token_borders"]
