"""The model: a layer and its stream, the two phases of a request, the cache that fills."""

from autograder.diagrams.canvas import Canvas


def layer() -> Canvas:
    """A layer with its residual stream, in SmolLM2's sizes."""
    canvas = Canvas(760, 356, (
        "A layer. The residual stream, (T, 576), runs through from left to right. Twice "
        "something reads it, and adds to it: first a norm, the product with qkv_proj to 9 "
        "heads of queries and 3 each of keys and values of 64 numbers, the rotation of "
        "queries and keys, attention with the KV cache, o_proj; then a norm with other "
        "weights, gate and up to 1536 numbers each, SwiGLU, down."))
    stream = 40
    canvas.text(0, stream - 14, "residual stream, (T, 576)", bold=True)
    first, second = 408, 724
    canvas.line((0, stream), (first - 10, stream), kind=1)
    canvas.line((first + 10, stream), (second - 10, stream), kind=1)
    canvas.arrow((second + 10, stream), (760, stream), kind=1)
    canvas.plus(first, stream)
    canvas.plus(second, stream)

    def path(x, title, steps, plus):
        canvas.arrow((x + 78, stream), (x + 78, 74), kind=1)
        y = 74
        for place, (name, shape, kind) in enumerate(steps):
            canvas.box(x, y, 156, 34, name, kind)
            canvas.text(x + 164, y + 21, shape, muted=True, size=12)
            if place + 1 < len(steps):
                canvas.arrow((x + 78, y + 34), (x + 78, y + 46))
            y += 46
        canvas.line((x + 78, y - 12), (x + 78, y), (plus, y), kind=1)
        canvas.arrow((plus, y), (plus, stream + 10), kind=1)
        canvas.text(x + 92, y + 16, title, muted=True)

    path(110, "the tokens look at each other",
         [("RMSNorm", "(T, 576)", 4), ("qkv_proj", "(T, 15, 64)", 2),
          ("turn q and k (RoPE)", "(T, 9 + 3, 64)", 3),
          ("attention", "(T, 9, 64)", 3), ("o_proj", "(T, 576)", 2)], first)
    canvas.box(0, 212, 78, 34, "KV cache", 1)
    canvas.line((78, 229), (110, 229), dashed=True, kind=1)
    path(450, "each token by itself",
         [("RMSNorm", "(T, 576)", 4), ("gate and up", "2 × (T, 1536)", 2),
          ("SiLU(gate) × up", "(T, 1536)", 3), ("down", "(T, 576)", 2)], second)
    return canvas


def prefill_and_decode() -> Canvas:
    """A prompt in one pass, then a pass for each token: what is read, and what for."""
    canvas = Canvas(760, 240, (
        "Prefill: all six tokens of a prompt go through the model in one pass, which reads the "
        "weights once and leaves six columns in the cache. Decode: each new token is a pass of "
        "its own, which reads all weights and the whole cache again, for one token."))
    canvas.text(0, 14, "prefill: one pass", bold=True)
    canvas.cells(0, 26, ["The", "cap", "of", "Fr", "ance", "is"], 44, 30, 1, size=12)
    canvas.arrow((132, 58), (132, 84))
    canvas.box(0, 86, 264, 44, "all weights, read once", 2)
    canvas.arrow((132, 130), (132, 156))
    canvas.cells(0, 158, ["k v"] * 6, 44, 30, 3, size=12)
    canvas.text(0, 208, "six columns of the cache; six tokens", muted=True)
    canvas.text(0, 226, "share the reading of each weight", muted=True)
    canvas.text(330, 14, "decode: a pass for every token", bold=True)
    for place, word in enumerate(("Paris", ".", "It")):
        x = 330 + place * 148
        canvas.cells(x + 36, 26, [word], 60, 30, 1, size=12)
        canvas.arrow((x + 66, 58), (x + 66, 84))
        canvas.box(x, 86, 132, 44, "all weights, again", 2)
        canvas.arrow((x + 66, 130), (x + 66, 156))
        count = 7 + place
        width = 132 / 9
        canvas.cells(x, 158, [""] * count, width, 30,
                     [3] * (count - 1) + [4])
        canvas.text(x, 208, f"reads {count - 1}, adds 1", muted=True)
        if place < 2:
            canvas.arrow((x + 132, 108), (x + 148, 108))
    return canvas


def cache_fills() -> Canvas:
    """The arrays of keys and values of a layer, while a text grows."""
    canvas = Canvas(760, 232, (
        "The cache of a layer has room for twelve tokens. After a prompt of five, columns 0 to "
        "4 are written and length is 5. Each decoded token writes one column. To take tokens "
        "back, only length is lowered: what lies beyond it is never read and is written over."))
    width = 36
    for row, (title, length, new, text) in enumerate((
            ("new, capacity 12", 0, 0, "length 0"),
            ("after a prompt of 5", 5, 5, "length 5"),
            ("after one more token", 6, 1, "length 6"),
            ("after truncate(4)", 4, 0, "length 4: columns 4 and 5 are old"))):
        y = 8 + row * 50
        canvas.text(0, y + 21, title, bold=row == 0)
        for column in range(12):
            is_new = length - new <= column < length
            old = row == 3 and column in (4, 5)
            canvas.cells(160 + column * width, y,
                         [str(column) if column < length or old else ""], width, 32,
                         4 if is_new else 3 if column < length else 0,
                         faded=[column >= length])
        canvas.text(160 + 12 * width + 10, y + 14, text.partition(":")[0], muted=True, size=12)
        canvas.text(160 + 12 * width + 10, y + 30, text.partition(": ")[2], muted=True, size=12)
    canvas.text(160, 222, "a column: K heads × d numbers of the key, as many of the value; "
                "violet is new", muted=True, size=12)
    return canvas
