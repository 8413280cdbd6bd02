"""Finds models, and makes of a GGUF file the folder that other programs load."""

from gearworks.hub.models import find_model, home, smollm2_folder, smollm2_gguf

__all__ = ["find_model", "home", "smollm2_folder", "smollm2_gguf"]
