"""Speculative decoding: a round of guesses, of which some are kept."""

from autograder.diagrams.canvas import Canvas


def guess_check_rewind() -> Canvas:
    """Four guesses, one pass of the target, two kept, the cache rewound."""
    canvas = Canvas(760, 292, (
        "A round of speculation. The draft guesses four tokens. One pass of the target gives a "
        "row of logits after each of them. The first two guesses are what the target would "
        "have said, the third is not: it is replaced by the target's own token, and the "
        "fourth is dropped, since it followed a token that is gone. Three tokens are new for "
        "one pass, and the cache is rewound to what is kept."))
    width, x0 = 96, 176

    def row(y, title, values, kinds, faded=()):
        canvas.text(0, y + 21, title, bold=True)
        canvas.cells(x0, y, values, width, 32, kinds, faded or [False] * len(values), gap=6,
                     size=12)

    row(6, "the text", ["The sky"], [0])
    row(60, "1  the draft guesses", ["is", "blue", "and", "clear"], [2] * 4)
    row(114, "2  one pass of the", ["is", "blue", "because", "skies", "…"], [1] * 5)
    canvas.text(18, 152, "target: its choices", bold=True)
    for place, (mark, kind) in enumerate((("same", 3), ("same", 3), ("differs", 2))):
        x = x0 + place * (width + 6) + width / 2
        canvas.line((x, 92), (x, 114), kind=kind)
        canvas.text(x + 6, 108, mark, muted=True, size=12)
    row(180, "3  kept", ["is", "blue", "because", "clear"], [3, 3, 1, 0],
        [False, False, False, True])
    canvas.text(x0 + 4 * (width + 6) + 4, 194, "dropped: it followed", muted=True, size=12)
    canvas.text(x0 + 4 * (width + 6) + 4, 210, "a token that is gone", muted=True, size=12)
    row(256, "4  the cache", ["The sky", "is", "blue", "and", "clear"],
        [3, 3, 3, 0, 0], [False, False, False, True, True])
    canvas.brace(x0 + 3 * (width + 6), x0 + 5 * (width + 6) - 6, 254, "rewound", below=False)
    return canvas
