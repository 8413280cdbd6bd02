"""The best pair by sorting, everything in plain lists."""

from gearworks.errors import ModelError
from gearworks.tokenizer import (bytes_to_unicode, count_pairs, merge_pair, pre_tokenize,
                                 splitter)
from gearworks.vocabularies.vocabulary import Vocabulary


def train_bpe(texts, vocab_size, splitters=("gpt2",)):
    if vocab_size < 256:
        raise ModelError("too small", f"{vocab_size} < 256", "ask for more tokens")
    table = bytes_to_unicode()
    tokens = {character: id
              for id, character in enumerate(sorted(table[byte] for byte in range(256)))}
    occurrences = {}
    for text in texts:
        for piece in pre_tokenize(text, [splitter(name) for name in splitters]):
            occurrences[piece] = occurrences.get(piece, 0) + 1
    words = [([tokens[table[byte]] for byte in piece.encode()], n)
             for piece, n in occurrences.items()]
    names = {id: token for token, id in tokens.items()}
    merges = {}
    for id in range(256, vocab_size):
        ranking = sorted((-n, left, right) for (left, right), n in count_pairs(words).items())
        if not ranking:
            break
        _, left, right = ranking[0]
        names[id] = names[left] + names[right]
        tokens[names[id]] = id
        merges[left, right] = (id - 256, id)
        words = [(merge_pair(symbols, (left, right), id), n) for symbols, n in words]
    return Vocabulary(tokens=tokens, merges=merges, splitters=tuple(splitters))
