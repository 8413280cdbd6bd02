"""Many requests through one model: blocks, a scheduler, and the engine that runs its steps."""
