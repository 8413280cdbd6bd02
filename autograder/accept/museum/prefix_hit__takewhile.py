"""takewhile over the prompt without its last token."""

from itertools import takewhile

import numpy as np


def prefix_hit(prompt_ids, cached, block_size):
    usable = (len(prompt_ids) - 1) // block_size
    hits = takewhile(lambda number: tuple(prompt_ids[:number * block_size]) in cached,
                     range(1, usable + 1))
    known = sum(1 for _ in hits) * block_size
    return {"cached_tokens": known, "input_ids": np.array(prompt_ids[known:]),
            "positions": np.arange(known, len(prompt_ids))}
