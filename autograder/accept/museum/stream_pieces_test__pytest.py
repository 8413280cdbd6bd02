"""With pytest's own way of saying that something fails."""

import pytest


def stream_pieces_test(stream_pieces):
    right = {("STOP", ("go ST", "OP now")): ["go ", "", ""],
             ("STOP", ("go STOP now", "and", "STOP")): ["go ", "", "", ""],
             ("STOP", ("STARS S", "T")): ["STARS ", "", "ST"],
             ("##-", ("#", "##", "-#")): ["", "#", "", ""]}
    for (stop, pieces), shown in right.items():
        if list(stream_pieces(list(pieces), stop)) != shown:
            pytest.fail(f"{pieces} with {stop}")
