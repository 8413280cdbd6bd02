"""Text with separators, and accumulate."""

import hashlib
from itertools import accumulate


def hash_blocks(ids, block_size, parent=b""):
    full = len(ids) // block_size
    texts = [",".join(str(int(id)) for id in ids[at * block_size:(at + 1) * block_size])
             for at in range(full)]

    def chain(before, text):
        return hashlib.sha256(before + b"|" + text.encode()).digest()
    return list(accumulate(texts, chain, initial=parent))[1:]
