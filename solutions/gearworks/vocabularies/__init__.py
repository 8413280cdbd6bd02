"""What a tokenizer is made from: vocabularies, Unicode tables, other ways to cut words."""
