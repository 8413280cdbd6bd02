"""Two loops, as in most books."""


def longest_match(word, pieces, *, prefix="##", unknown="[UNK]", longest_word=100):
    if len(word) > longest_word:
        return [unknown]
    out, start = [], 0
    while start < len(word):
        end = len(word)
        while end > start:
            piece = word[start:end]
            if start > 0:
                piece = prefix + piece
            if piece in pieces:
                break
            end -= 1
        if end == start:
            return [unknown]
        out.append(piece)
        start = end
    return out
