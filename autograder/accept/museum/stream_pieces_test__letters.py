"""Letter by letter, by hand."""


def stream_pieces_test(stream_pieces):
    *shown, rest = stream_pieces(list("xaaab!"), "aab")
    assert shown == ["x", "", "", "a", "", ""]
    assert rest == ""
    *shown, rest = stream_pieces(list("abaa"), "aab")
    assert "".join(shown) == "ab" and rest == "aa"
    assert stream_pieces(["one", "two"], "\n") == ["one", "two", ""]
