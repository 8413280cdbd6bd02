"""With pytest's own tools."""

import pytest

from gearworks.errors import ModelError


def conversation_ids_test(conversation_ids):
    assert conversation_ids([], "cab", "abc")["input_ids"] == [1, 5, 3, 4]
    assert conversation_ids([1, 5], "a", "abc") == {"positions": [0, 1, 2],
                                                    "input_ids": [1, 5, 3]}
    assert not any(conversation_ids([1, 5], "/reset", "abc").values())
    with pytest.raises(ModelError):
        conversation_ids([1, 5], "abcd", "abc")
