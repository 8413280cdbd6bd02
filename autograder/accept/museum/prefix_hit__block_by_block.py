"""Block by block, and the last one given back where nothing would be left."""


def prefix_hit(prompt_ids, cached, block_size):
    prompt_ids = list(prompt_ids)
    blocks = 0
    while True:
        end = (blocks + 1) * block_size
        if end > len(prompt_ids) or tuple(prompt_ids[:end]) not in cached:
            break
        blocks += 1
    if blocks * block_size == len(prompt_ids):
        blocks -= 1
    known = blocks * block_size
    rest = list(enumerate(prompt_ids))[known:]
    return {"cached_tokens": known, "input_ids": [token for _, token in rest],
            "positions": [place for place, _ in rest]}
