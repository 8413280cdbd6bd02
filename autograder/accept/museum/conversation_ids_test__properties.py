"""Properties instead of expected lists."""

from gearworks.errors import GearworksError


def conversation_ids_test(conversation_ids):
    alphabet = "nopqrst"
    first = conversation_ids([], "stop", alphabet)
    ids = first["input_ids"]
    assert ids[0] == 1 and len(ids) == 5
    assert not {0, 1, 2} & set(ids[1:])
    assert "".join(alphabet[id - 3] for id in ids[1:]) == "stop"
    assert first["positions"] == [0, 1, 2, 3, 4]
    second = conversation_ids(ids, "no", alphabet)
    assert second["input_ids"][:5] == ids and len(second["input_ids"]) == 7
    positions = second["positions"]
    assert positions == sorted(set(positions)) and positions[-1] == 6
    assert conversation_ids(ids, "/reset", alphabet)["input_ids"] == []
    refused = False
    try:
        conversation_ids(ids, "no way", alphabet)
    except GearworksError:
        refused = True
    assert refused
