"""From the whole text so far: how much of it may be shown by now, and what is new of that."""


def stream_pieces(pieces, stop):
    text, shown, out = "", 0, []
    for piece in pieces:
        if stop not in text:
            text += piece
        if stop in text:
            safe = text.index(stop)
        else:
            safe = len(text)
            for start in range(max(0, len(text) - len(stop) + 1), len(text)):
                if stop.startswith(text[start:]):
                    safe = start
                    break
        out.append(text[shown:safe])
        shown = safe
    out.append("" if stop in text else text[shown:])
    return out
