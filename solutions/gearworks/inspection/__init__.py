"""What is in a model's files, and what the engine makes of them, without loading a weight."""
