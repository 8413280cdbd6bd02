"""The engine beside Hugging Face: operator by operator, and step by step."""
