"""Figures: drawn in Python from what the engine did, replayed in a notebook or on a page.

Every function returns a `Figure`. `player` replays any `Trace`; the others make theirs from
domain objects.
"""

from gearworks.viz.acceptance import Pass, RecordingProposer, acceptance_timeline
from gearworks.viz.attention import RecordingCache, attention_explorer, attention_weights
from gearworks.viz.batch import batch_timeline
from gearworks.viz.batching import BatchCounts, batching_counts, static_and_continuous
from gearworks.viz.blocks import page_table
from gearworks.viz.cache import cache_growth
from gearworks.viz.distribution import distribution
from gearworks.viz.divergence import Divergence, first_divergence
from gearworks.viz.figure import Figure, player
from gearworks.viz.formats import FLOAT_FORMATS, FloatFormat, number_formats
from gearworks.viz.gears import GEARS, engine_map
from gearworks.viz.hardware import Machine, Workload, memory_budget, roofline
from gearworks.viz.movie import engine_movie
from gearworks.viz.operator_graph import operator_graph
from gearworks.viz.rotation import rope_rotation
from gearworks.viz.step_profile import step_profile
from gearworks.viz.tiles import attention_tiles
from gearworks.viz.tokens import merge_stepper, merge_steps, token_borders
from gearworks.viz.trace import Cell, FigureError, Lane, Line, Mark, Point, Step, Trace

__all__ = ["BatchCounts", "Cell", "Divergence", "FLOAT_FORMATS", "Figure", "FigureError",
           "FloatFormat", "GEARS", "Lane", "Line", "Machine", "Mark", "Pass", "Point",
           "RecordingCache", "RecordingProposer", "Step", "Trace", "Workload",
           "acceptance_timeline", "attention_explorer", "attention_tiles", "attention_weights",
           "batch_timeline", "batching_counts", "cache_growth", "distribution", "engine_map",
           "engine_movie", "first_divergence", "memory_budget", "merge_stepper", "merge_steps",
           "number_formats", "operator_graph", "page_table", "player", "roofline",
           "rope_rotation", "static_and_continuous", "step_profile", "token_borders"]
