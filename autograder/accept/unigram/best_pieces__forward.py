"""From the left: every piece that begins at a place offers a better cut to where it ends."""

from gearworks.vocabularies.unigram import UNKNOWN_PENALTY


def best_pieces(text, scores):
    lowest = min(scores.values()) - UNKNOWN_PENALTY
    total, origin = [0.0] + [None] * len(text), [0] * (len(text) + 1)
    for start in range(len(text)):
        ends = [end for end in range(start + 1, len(text) + 1) if text[start:end] in scores]
        offers = [(end, scores[text[start:end]]) for end in ends]
        if start + 1 not in ends:
            offers.append((start + 1, lowest))
        for end, score in offers:
            if total[end] is None or total[start] + score > total[end]:
                total[end], origin[end] = total[start] + score, start
    cuts = [len(text)]
    while cuts[-1]:
        cuts.append(origin[cuts[-1]])
    out = []
    for start, end in zip(cuts[:0:-1], cuts[-2::-1]):
        piece = text[start:end]
        if out and out[-1][1] and piece not in scores:
            out[-1] = (out[-1][0] + piece, True)
        else:
            out.append((piece, piece not in scores))
    return [piece for piece, _ in out]
