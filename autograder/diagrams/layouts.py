"""Bytes of a file: safetensors, GGUF, and blocks of four-bit codes."""

import json
import struct

import numpy as np

from autograder.diagrams.canvas import Canvas
from gearworks.formats.gguf import dequantize_q4_1


def safetensors_file() -> Canvas:
    """A small file of two tensors, with its real header."""
    header = json.dumps({"b": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]},
                         "w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [12, 28]}},
                        separators=(",", ":"))
    size = struct.pack("<Q", len(header))
    canvas = Canvas(760, 172, (
        f"A safetensors file of {8 + len(header) + 28} bytes in three parts. Eight bytes hold "
        f"the length of the header, {len(header)}. The header is JSON: for each tensor its "
        "dtype, its shape and where its bytes begin and end, counted from the end of the "
        "header. Then come 12 bytes of b and 16 of w."))
    canvas.box(0, 30, 170, 44, size.hex(" "), 1, mono=True, size=11)
    canvas.box(170, 30, 340, 44, '{"b": {…}, "w": {…}}', 2, mono=True)
    canvas.box(510, 30, 108, 44, "b", 3, mono=True)
    canvas.box(618, 30, 142, 44, "w", 4, mono=True)
    for x, offset in ((0, 0), (170, 8), (510, 8 + len(header)), (760, 8 + len(header) + 28)):
        canvas.text(x, 20, f"{offset:,}", "end" if x == 760 else "start", muted=True, size=12)
    canvas.text(0, 94, f"length: {len(header)},", muted=True, size=12)
    canvas.text(0, 110, "lowest byte first", muted=True, size=12)
    canvas.text(340, 94, "the header, in JSON", "middle", muted=True, size=12)
    for x, offset in ((510, "0"), (618, "12"), (760, "28")):
        canvas.text(x, 94, offset, "end" if x == 760 else "start", muted=True, size=12)
    canvas.text(510, 112, "offsets count from the data's beginning", muted=True, size=12)
    for place, line in enumerate(header[1:-1].replace("},", "},\n").splitlines()):
        canvas.text(170, 146 + 22 * place, line, mono=True, size=12)
    return canvas


def gguf_file() -> Canvas:
    """The parts of a GGUF file, in their order."""
    canvas = Canvas(760, 190, (
        "A GGUF file from its beginning: 24 bytes with the magic word, the version and two "
        "counts; the metadata, an entry after the other, each a key, a type and a value; a "
        "description of every tensor with its name, its dimensions, its type and its offset; "
        "padding up to a multiple of 32; then the tensors, each beginning at a multiple of 32, "
        "with offsets that count from the first."))
    parts = ((0, 150, "GGUF 3\n2 counts", 1, "24 bytes"),
             (150, 190, "metadata:\nkey, type, value …", 2, "length unknown"),
             (340, 180, "tensors' descriptions", 4, "until it is read"),
             (520, 40, "0…", 0, "pad"), (560, 200, "tensors' bytes", 3, "each at a × 32"))
    for x, width, text, kind, note in parts:
        canvas.box(x, 20, width, 52, text, kind)
        canvas.text(x + width / 2, 90, note, "middle", muted=True, size=12)
    canvas.text(0, 128, "an entry", bold=True)
    for x, width, text, kind in ((86, 64, "20", 1), (150, 190, "general.architecture", 2),
                                 (340, 36, "8", 4), (376, 64, "5", 1), (440, 70, "llama", 2)):
        canvas.box(x, 110, width, 28, text, kind, mono=True, round_=0, size=12)
    for x, width, text in ((86, 64, "8 bytes"), (150, 190, "the key, in 20 bytes"),
                           (340, 36, "type"), (376, 64, "8 bytes"), (440, 70, "5 bytes")):
        canvas.text(x + width / 2, 156, text, "middle", muted=True, size=12)
    canvas.text(530, 124, "a string is its length, then", muted=True, size=12)
    canvas.text(530, 140, "its characters; type 8 is a string", muted=True, size=12)
    canvas.text(0, 184, "where an entry begins is known only when the one before it has been "
                "read", muted=True, size=12)
    return canvas


def q4_1_block() -> Canvas:
    """A block of Q4_1: twenty bytes for 32 values, and one of them decoded."""
    scale, least = np.float16(0.25), np.float16(-1.5)
    codes = (np.arange(32) * 7 + np.arange(32) // 16 * 5 + 3) % 16
    packed = codes[:16] | codes[16:] << 4
    block = np.concatenate([np.array([scale, least]).view(np.uint8),
                            packed.astype(np.uint8)])
    values = dequantize_q4_1(block[None])[0]
    canvas = Canvas(760, 210, (
        "A Q4_1 block of 20 bytes: the scale in two, the minimum in two, then 16 bytes with "
        "two codes each. The low half of byte j is value j, the high half value j + 16. Here "
        f"the scale is {scale}, the minimum {least}; the first byte is {packed[0]:02x}, so "
        f"value 0 is {scale} times {codes[0]} plus {least}, {values[0]:g}, and value 16 is "
        f"{values[16]:g}."))
    canvas.box(0, 30, 78, 32, f"{scale}", 1, mono=True, round_=0)
    canvas.box(78, 30, 78, 32, f"{least}", 2, mono=True, round_=0)
    canvas.text(39, 20, "scale", "middle", muted=True, size=12)
    canvas.text(117, 20, "minimum", "middle", muted=True, size=12)
    canvas.cells(156, 30, [f"{byte:02x}" for byte in packed], 37, 32, 3, size=12)
    canvas.brace(0, 78, 66, "2 bytes", size=12)
    canvas.brace(78, 156, 66, "2 bytes", size=12)
    canvas.brace(156, 156 + 16 * 37, 66, "16 bytes, two codes each", size=12)
    canvas.text(0, 138, "byte 0", bold=True)
    canvas.cells(70, 120, [f"{codes[16]:04b}", f"{codes[0]:04b}"], 64, 28, [4, 3])
    canvas.text(102, 166, "high", "middle", muted=True, size=12)
    canvas.text(166, 166, "low", "middle", muted=True, size=12)
    canvas.text(220, 130, f"low, {codes[0]}: value 0 is {scale} × {codes[0]} + ({least}) = "
                f"{values[0]:g}", mono=True, size=12)
    canvas.text(220, 152, f"high, {codes[16]}: value 16 is {scale} × {codes[16]} + ({least}) = "
                f"{values[16]:g}", mono=True, size=12)
    canvas.text(0, 200, "not neighbours: the low halves are values 0 to 15, the high ones 16 "
                "to 31. 20 bytes for 32 values are 5 bits each", muted=True, size=12)
    return canvas


def q4_k_block() -> Canvas:
    """A block of Q4_K: 144 bytes for 256 values in eight sub-blocks."""
    canvas = Canvas(760, 226, (
        "A Q4_K block of 144 bytes for 256 values: a scale of the scales in two bytes, a scale "
        "of the minima in two, twelve bytes with eight scales and eight minima of six bits, "
        "and 128 bytes of codes. The codes come in four runs of 32 bytes. The low halves of a "
        "run are one sub-block of 32 values, the high halves the next one."))
    parts = ((0, 50, "d", 1, "2 bytes"), (50, 60, "dmin", 2, "2"),
             (110, 170, "8 scales, 8 minima", 4, "12 = 16 × 6 bits"),
             (280, 480, "codes of 256 values", 3, "128"))
    for x, width, text, kind, note in parts:
        canvas.box(x, 20, width, 36, text, kind, round_=0)
        canvas.text(x + width / 2, 12, note, "middle", muted=True, size=12)
    for run in range(4):
        x = run * 190
        canvas.line((280 + run * 120, 56), (x, 96), dashed=True)
        canvas.line((280 + (run + 1) * 120, 56), (x + 182, 96), dashed=True)
        canvas.box(x, 98, 182, 28, f"high: values {64 * run + 32} to {64 * run + 63}", 4,
                   round_=0, size=12)
        canvas.box(x, 126, 182, 28, f"low: values {64 * run} to {64 * run + 31}", 3, round_=0,
                   size=12)
        canvas.text(x + 91, 172, f"32 bytes: sub-blocks {2 * run}, {2 * run + 1}", "middle",
                    muted=True, size=12)
    canvas.text(0, 204, "a value of sub-block s: d × scale[s] × code − dmin × minimum[s]",
                mono=True, size=12)
    canvas.text(0, 224, "144 bytes for 256 values are 4.5 bits each", muted=True, size=12)
    return canvas
