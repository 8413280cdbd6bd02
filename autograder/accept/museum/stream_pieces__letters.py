"""Letter by letter: as long as what waits is a beginning of the stop string, it waits."""


def stream_pieces(pieces, stop):
    waiting, ended, result = "", False, []
    for piece in pieces:
        ready = ""
        for letter in piece:
            if ended:
                break
            waiting += letter
            while not stop.startswith(waiting):
                ready, waiting = ready + waiting[0], waiting[1:]
            if waiting == stop:
                ended, waiting = True, ""
        result.append(ready)
    return result + [waiting]
