"""All ends of blocks that may be used; then the first of them that is not there."""


def prefix_hit(prompt_ids, cached, block_size):
    ids = list(prompt_ids)
    ends = range(block_size, len(ids), block_size)       # the prompt's own end is none of them
    missing = [end for end in ends if tuple(ids[:end]) not in cached]
    known = missing[0] - block_size if missing else max(ends, default=0)
    return {"positions": [*range(len(ids))][known:], "cached_tokens": known,
            "input_ids": ids[known:]}
