"""Random texts of two letters, with what is right computed from the definition."""

import random


def stream_pieces_test(stream_pieces):
    dice = random.Random(7)
    for _ in range(400):
        stop = "".join(dice.choices("ab", k=dice.randint(1, 4)))
        pieces = ["".join(dice.choices("ab", k=dice.randint(0, 4)))
                  for _ in range(dice.randint(0, 5))]
        got = stream_pieces(list(pieces), stop)
        assert len(got) == len(pieces) + 1
        text, seen = "", ""
        for piece, new in zip(pieces, got):
            text, seen = text + piece, seen + new
            before, found, _ = text.partition(stop)
            if not found:
                held = max(length for length in range(len(stop))
                           if text.endswith(stop[:length]))
                before = text[:len(text) - held]
            assert seen == before
        assert seen + got[-1] == text.partition(stop)[0]
