"""The file formats of weights, read by hand: safetensors, GGUF, and pickles that never run."""
