"""A few prompts by hand, with pytest's way of saying that something fails."""

import pytest

CACHED = {(1,), (1, 2), (1, 2, 3), (2,), (3, 1)}


def prefix_hit_test(prefix_hit):
    for ids, known in (([1, 2, 3], 2), ([1], 0), ([1, 2, 3, 4], 3), ([2, 1, 5], 1),
                       ([3, 1, 1], 0), ([1, 3, 2, 3], 1)):
        got = prefix_hit(ids, CACHED, 1)
        if (got["cached_tokens"], list(got["input_ids"])) != (known, ids[known:]):
            pytest.fail(f"{ids}: {got}")
        if list(got["positions"]) != list(range(len(ids)))[known:]:
            pytest.fail("positions")
    if prefix_hit([1, 2, 3, 4], {(1, 2), (1, 2, 3, 4)}, 2)["cached_tokens"] != 2:
        pytest.fail("a whole block is computed again")
    wide = prefix_hit([1, 2, 3, 4, 5, 6, 7, 8, 9], {(1, 2, 3, 4), (1, 2, 3, 4, 5, 6, 7, 8)}, 4)
    if wide["cached_tokens"] != 8 or list(wide["positions"]) != [8]:
        pytest.fail("one token is enough to compute")
