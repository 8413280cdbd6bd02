"""Every piece of every text by itself, with a count of one."""

from gearworks.errors import ModelError
from gearworks.tokenizer import (bytes_to_unicode, count_pairs, merge_pair, pre_tokenize,
                                 splitter)
from gearworks.vocabularies.vocabulary import Vocabulary


def train_bpe(texts, vocab_size, splitters=("gpt2",)):
    if vocab_size - 256 < 0:
        raise ModelError("no room for the bytes", "vocab_size is too small",
                         "make it 256 or more")
    characters = bytes_to_unicode()
    names = sorted(characters.values())
    patterns = [*map(splitter, splitters)]
    words = []
    for text in texts:
        for piece in pre_tokenize(text, patterns):
            words.append(([names.index(characters[byte]) for byte in piece.encode("utf-8")], 1))
    merges = {}
    while len(names) < vocab_size:
        counts = count_pairs(words)
        if not counts:
            break
        most = max(counts.values())
        pair = min(pair for pair, count in counts.items() if count == most)
        merges[pair] = (len(merges), len(names))
        words = [(merge_pair(word, pair, len(names)), one) for word, one in words]
        names.append("".join(names[id] for id in pair))
    return Vocabulary({name: id for id, name in enumerate(names)}, merges,
                      splitters=tuple(splitters))
