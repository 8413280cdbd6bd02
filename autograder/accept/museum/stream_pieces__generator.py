"""A generator that yields what is ready, over `partition` and a set of beginnings."""


def stream_pieces(pieces, stop):
    beginnings = {stop[:length] for length in range(len(stop))}

    def ready():
        rest = ""
        stream = iter(pieces)
        for piece in stream:
            before, found, _ = (rest + piece).partition(stop)
            if found:
                yield before
                yield from ("" for _ in stream)
                yield ""
                return
            rest = max((end for end in beginnings if before.endswith(end)), key=len)
            yield before[:len(before) - len(rest)]
        yield rest

    return list(ready())
