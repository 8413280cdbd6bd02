"""The families that a Llama-like decoder does not describe:
how their weights are kept, and their own forward."""
