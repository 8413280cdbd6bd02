"""Python's own idea of what is printable, which agrees on Latin-1 but for the space."""


def bytes_to_unicode():
    hidden = [byte for byte in range(256) if not chr(byte).isprintable() or chr(byte).isspace()]
    return {byte: chr(256 + hidden.index(byte)) if byte in hidden else chr(byte)
            for byte in range(256)}
