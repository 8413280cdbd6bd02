"""Only words that hold the pair are looked at again,
and counts are corrected instead of made anew."""

from collections import Counter, defaultdict

from gearworks.errors import ModelError
from gearworks.tokenizer import bytes_to_unicode, pre_tokenize, splitter
from gearworks.vocabularies.vocabulary import Vocabulary


def _merged(word, pair, id):
    out, fresh = [], False
    for symbol in word:
        if out and (out[-1], symbol) == pair and not fresh:
            out[-1] = id
            fresh = True
        else:
            out.append(symbol)
            fresh = False
    return out


def train_bpe(texts, vocab_size, splitters=("gpt2",)):
    if vocab_size < 256:
        raise ModelError("cannot train", "256 tokens are the least", "ask for more")
    characters = bytes_to_unicode()
    written = sorted(characters.values())
    id_of = {character: id for id, character in enumerate(written)}
    pieces = Counter()
    for text in texts:
        pieces.update(pre_tokenize(text, [splitter(name) for name in splitters]))
    words = [[id_of[characters[byte]] for byte in piece.encode("utf-8")] for piece in pieces]
    times = list(pieces.values())

    counts, where = Counter(), defaultdict(set)
    for number, word in enumerate(words):
        for pair in zip(word, word[1:]):
            counts[pair] += times[number]
            where[pair].add(number)
    merges = {}
    while len(written) < vocab_size:
        counts = +counts
        if not counts:
            break
        pair = sorted(counts, key=lambda pair: (-counts[pair], *pair))[0]
        id = len(written)
        merges[pair] = (id - 256, id)
        written.append(written[pair[0]] + written[pair[1]])
        for number in where.pop(pair):
            old, new = words[number], _merged(words[number], pair, id)
            for gone in zip(old, old[1:]):
                counts[gone] -= times[number]
            for come in zip(new, new[1:]):
                counts[come] += times[number]
                where[come].add(number)
            words[number] = new
    return Vocabulary({token: id for id, token in enumerate(written)}, merges,
                      splitters=tuple(splitters))
