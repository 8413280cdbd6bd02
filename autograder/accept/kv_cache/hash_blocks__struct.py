"""Bytes by struct, and another hash function."""

import hashlib
import struct


def hash_blocks(ids, block_size, parent=b""):
    hashes = []
    ids = [int(id) for id in ids]
    while len(ids) >= block_size:
        block, ids = ids[:block_size], ids[block_size:]
        packed = struct.pack(f">{block_size}q", *block)
        hashes.append(hashlib.blake2b(parent + packed, digest_size=20).digest())
        parent = hashes[-1]
    return hashes
