"""The long way, which is right for short pieces too."""

from gearworks.tokenizer import encode_long_piece


def encode_piece(symbols, merges):
    if len(symbols) < 2:
        return list(symbols)
    return encode_long_piece(symbols, merges)
