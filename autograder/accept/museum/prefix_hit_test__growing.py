"""A conversation that grows by a token at a time, everything before it cached."""


def prefix_hit_test(prefix_hit):
    text = [7, 3, 9, 4, 8, 1, 2, 6, 5]
    cached = {tuple(text[:3]), tuple(text[:6]), tuple(text[:9])}
    known = [0, 0, 0, 3, 3, 3, 6, 6, 6]
    for length in range(1, 10):
        got = prefix_hit(text[:length], cached, 3)
        assert got["cached_tokens"] == known[length - 1], length
        assert [*got["input_ids"]] == text[:length][got["cached_tokens"]:]
        assert [*got["positions"]] == [*range(known[length - 1], length)]
    other = prefix_hit([0, 0, 0, *text[3:6], 1], cached | {tuple(text[3:6])}, 3)
    assert other["cached_tokens"] == 0
    assert prefix_hit([*text[:3], 0, 0, 0, *text[6:], 1], cached, 3)["cached_tokens"] == 3
    again = prefix_hit([*text[:3], *text[:3], 1], cached, 3)
    assert again["cached_tokens"] == 3 and len(again["positions"]) == 4
