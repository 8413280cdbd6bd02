"""The file formats of weights, read by hand:
safetensors, GGUF, and pickles without running them."""
