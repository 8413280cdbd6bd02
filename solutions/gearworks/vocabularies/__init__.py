"""What a tokenizer is made from: vocabularies of files, Unicode as `tokenizers` knows it,
and other ways to cut words."""
