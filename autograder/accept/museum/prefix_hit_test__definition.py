"""Every prompt of two letters, with what is right computed from the definition."""

from itertools import product


def prefix_hit_test(prefix_hit):
    cached = {(0, 1), (0, 1, 0, 1), (0, 0), (0, 0, 0, 0), (0, 0, 0, 0, 1, 1), (1, 0, 0, 0)}
    for length in range(1, 8):
        for ids in product((0, 1), repeat=length):
            got = prefix_hit(list(ids), cached, 2)
            known = got["cached_tokens"]
            usable = [blocks for blocks in range((length - 1) // 2 + 1)
                      if all(ids[:2 * each] in cached for each in range(1, blocks + 1))]
            assert known == 2 * max(usable)
            assert list(got["input_ids"]) == list(ids[known:])
            assert list(got["positions"]) == list(range(known, length))
