"""A table of cases, and try with else."""

from gearworks.errors import ModelError


def conversation_ids_test(conversation_ids):
    cases = [
        ([], "hello", "ehlo", [1, 4, 3, 5, 5, 6]),
        ([1, 4], "o", "ehlo", [1, 4, 6]),
        ([], "", "ehlo", [1]),
        ([1, 4], "/reset", "ehlo", []),
    ]
    for past, message, characters, ids in cases:
        answer = conversation_ids(past, message, characters)
        assert list(answer["input_ids"]) == ids, (message, answer)
        assert list(answer["positions"]) == list(range(len(ids))), (message, answer)
    try:
        conversation_ids([], "hello?", "ehlo")
    except ModelError:
        pass
    else:
        assert False, "the question mark was dropped"
