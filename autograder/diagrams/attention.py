"""Attention: numbers worked by hand, heads in groups, the mask's corner, pairs that turn."""

import numpy as np

from autograder.diagrams.canvas import Canvas
from gearworks.attention import attention, causal_mask
from gearworks.layers import softmax

CELL, ROW = 44, 28


def attention_by_hand() -> Canvas:
    """One head of three tokens and two numbers, from the queries to what comes out."""
    q = np.array([[1, 0], [0, 2], [2, 1]], np.float32)
    k = np.array([[1, 1], [2, 0], [0, 2]], np.float32)
    v = np.array([[10, 0], [0, 10], [20, 20]], np.float32)
    scores = q @ k.T / np.sqrt(2)
    seen = causal_mask(3, 3)
    shares = softmax(np.where(seen, scores, np.float32(-np.inf)))
    out = attention(q[:, None], k[:, None], v[:, None])[:, 0]
    canvas = Canvas(760, 344, (
        "Attention of one head with three tokens and two numbers each, worked out. Query 3 is "
        f"{_words(q[2])}; its products with the three keys, divided by the root of 2, are "
        f"{_words(scores[2])}; their softmax is {_words(shares[2])}; that mean of the values "
        f"is {_words(out[2])}. Token 1 sees itself alone, so its output is its value; what a "
        "token must not see has no share."))
    canvas.text(0, 14, "Q, a query for each token", bold=True)
    canvas.text(330, 14, "Kᵀ, a key for each token", bold=True)
    for column, key in enumerate(k):
        for row, number in enumerate(key):
            canvas.cells(330 + column * CELL, 26 + row * ROW, [f"{number:g}"], CELL, ROW, 2)
        canvas.text(330 + column * CELL + CELL / 2, 98, str(column + 1), "middle", muted=True)
    top = 118
    for row in range(3):
        y = top + row * ROW
        canvas.text(0, y + 18, str(row + 1), muted=True)
        canvas.cells(20, y, [f"{number:g}" for number in q[row]], CELL, ROW, 1)
        canvas.cells(330, y, [f"{score:.2f}" if visible else "−∞"
                              for score, visible in zip(scores[row], seen[row])], CELL, ROW,
                     faded=[not visible for visible in seen[row]])
    canvas.text(135, top + 32, "q · k / √d", muted=True)
    canvas.arrow((120, top + 42), (320, top + 42))
    canvas.text(490, top + 32, "softmax", muted=True)
    canvas.text(490, top + 60, "of each row", muted=True, size=12)
    canvas.arrow((474, top + 42), (590, top + 42))
    for row in range(3):
        canvas.cells(604, top + row * ROW, [f"{share:.2f}" for share in shares[row]], CELL, ROW,
                     4, faded=[not visible for visible in seen[row]])
    canvas.text(330, top + 3 * ROW + 18, "scores, (3, 3)", muted=True)
    canvas.text(604, top + 3 * ROW + 18, "shares: a row sums to 1", muted=True)
    below = 250
    canvas.text(0, below + 14, "V, a value for each token", bold=True)
    for row in range(3):
        canvas.cells(190, below + row * ROW, [f"{number:g}" for number in v[row]], CELL, ROW, 3)
    canvas.text(300, below + 36, "the shares' mean of the values", muted=True)
    canvas.arrow((290, below + 46), (500, below + 46))
    for row in range(3):
        canvas.cells(514, below + row * ROW, [f"{number:.1f}" for number in out[row]], 54, ROW)
    canvas.text(634, below + 50, "out, (3, 2)", muted=True)
    return canvas


def head_groups() -> Canvas:
    """SmolLM2's nine query heads and three key/value heads."""
    canvas = Canvas(760, 190, (
        "Nine query heads in three groups of three neighbours. Heads 0, 1 and 2 read the first "
        "key and value head, heads 3, 4 and 5 the second, heads 6, 7 and 8 the third. With one "
        "for each of them it would be multi-head attention, with one for all multi-query."))
    canvas.text(0, 31, "queries", bold=True)
    canvas.text(0, 151, "keys, values", bold=True)
    for head in range(9):
        group = head // 3
        x = 110 + head * 66 + group * 20
        canvas.box(x, 10, 56, 34, f"head {head}", 1)
        target = 110 + group * (3 * 66 + 20) + 94
        canvas.arrow((x + 28, 44), (target + (head % 3 - 1) * 40, 128))
    for group in range(3):
        canvas.box(110 + group * (3 * 66 + 20) + 24, 130, 140, 34, f"head {group}", 2)
    canvas.text(110, 186, "head h of the queries reads head h // (H // K); H = 9, K = 3",
                muted=True)
    return canvas


def mask_corner() -> Canvas:
    """Three new tokens and a cache of five keys: which keys each of them sees."""
    T, S = 3, 8
    seen = causal_mask(T, S)
    canvas = Canvas(760, 230, (
        "A square of eight tokens by eight, as in training, of which only the last three rows "
        "are computed in this step. Token 5 sees keys 0 to 5, token 6 keys 0 to 6, token 7 all "
        "eight. The triangle of the new tokens hangs in the lower right corner."))
    size = 24
    for row in range(S):
        new = row >= S - T
        canvas.text(118, 36 + row * size + 17, f"token {row}", "end", muted=not new)
        for column in range(S):
            visible = new and seen[row - (S - T), column]
            canvas.cells(130 + column * size, 36 + row * size,
                         ["•" if visible else ""], size, size, 1 if visible else 0,
                         faded=[not new])
    for column in range(S):
        canvas.text(130 + column * size + size / 2, 28, str(column), "middle", muted=True)
    canvas.text(130, 10, "keys", bold=True)
    canvas.line((352, 36), (362, 36), (362, 36 + 5 * size - 3), (352, 36 + 5 * size - 3))
    canvas.text(376, 36 + 2.5 * size, "these rows were computed in earlier steps;", muted=True)
    canvas.text(376, 36 + 2.5 * size + 18, "only their keys and values are left", muted=True)
    canvas.line((352, 36 + 5 * size + 3), (362, 36 + 5 * size + 3), (362, 36 + 8 * size),
                (352, 36 + 8 * size))
    canvas.text(376, 36 + 6.3 * size, "this step's mask, (3, 8):", bold=True)
    canvas.text(376, 36 + 6.3 * size + 18, "the last rows of the square")
    return canvas


def rope_pairs() -> Canvas:
    """Which numbers of a head turn together: halves in one layout, neighbours in the other."""
    d = 8
    canvas = Canvas(760, 212, (
        "Two rows of eight numbers of a head. Above, halves: number 0 turns with 4, 1 with 5, "
        "2 with 6, 3 with 7, as in Hugging Face's files. Below, neighbours: 0 turns with 1, 2 "
        "with 3, 4 with 5, 6 with 7, as in Meta's files and in GGUF files of Llama models."))
    for top, title, where, pairs in (
            (40, "halves", "Hugging Face: i with i + d/2", [(i, i + d // 2) for i in range(4)]),
            (150, "neighbours", "Meta and GGUF: 2i with 2i + 1",
             [(2 * i, 2 * i + 1) for i in range(4)])):
        kinds = [0] * d
        for number, pair in enumerate(pairs, start=1):
            for i in pair:
                kinds[i] = number
        canvas.text(0, top + 14, title, bold=True)
        canvas.text(0, top + 34, where, muted=True, size=12)
        canvas.cells(230, top, [str(i) for i in range(d)], 52, 30, kinds)
        for number, (a, b) in enumerate(pairs, start=1):
            height = 8 * number if title == "halves" else 10
            xa, xb = (230 + i * 52 + 26 for i in (a, b))
            canvas.line((xa, top), (xa, top - height), (xb, top - height), (xb, top),
                        kind=number)
    canvas.text(230, 100, "a pair of one colour turns by one angle; the numbers are the same, "
                "and so is d", muted=True, size=12)
    return canvas


def _words(numbers: np.ndarray) -> str:
    return ", ".join(f"{number:.2f}".rstrip("0").rstrip(".") for number in numbers)


