"""Printable bytes first, then the others, zipped with their characters."""


def bytes_to_unicode():
    printable = list(range(0x21, 0x7F)) + list(range(0xA1, 0xAD)) + list(range(0xAE, 0x100))
    others = [byte for byte in range(256) if byte not in printable]
    characters = printable + [256 + place for place in range(len(others))]
    return dict(zip(printable + others, map(chr, characters)))
