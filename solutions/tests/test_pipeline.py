"""The request loop over black boxes:
what it asks for, when it stops, and what it hands back."""

import pytest

from gearworks.pipeline import run_request


class Machine:
    """A model that says a fixed text, and remembers what it was asked."""

    def __init__(self, says):
        self.says, self.asked = list(says), []

    def run(self, **options):
        return run_request("abc", encode=lambda text: [ord(letter) for letter in text],
                           forward=self.forward, choose=lambda step: self.says[step],
                           decode=lambda ids: "".join(map(chr, ids)), **options)

    def forward(self, ids):
        self.asked.append(list(ids))
        return len(self.asked) - 1


def test_the_prompt_goes_in_once_and_then_one_token_at_a_time():
    machine = Machine([120, 121, 122, 10])
    completion = machine.run(eos_ids={10}, max_tokens=9)
    assert machine.asked == [[97, 98, 99], [120], [121], [122]]
    assert (completion.prompt_ids, completion.ids) == ([97, 98, 99], [120, 121, 122])
    assert (completion.text, completion.finish_reason) == ("xyz", "stop")


@pytest.mark.parametrize("eos", [10, 11, 12])
def test_any_of_several_eos_ids_stops(eos):
    completion = Machine([120, eos, 121]).run(eos_ids={10, 11, 12}, max_tokens=9)
    assert (completion.ids, completion.finish_reason) == ([120], "stop")


def test_eos_as_the_very_first_token_gives_an_empty_answer():
    completion = Machine([10]).run(eos_ids=[10], max_tokens=9)
    assert (completion.ids, completion.text, completion.finish_reason) == ([], "", "stop")


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_the_limit_stops_and_asks_for_no_token_too_many(limit):
    machine = Machine([120] * 9)
    completion = machine.run(eos_ids=(), max_tokens=limit)
    assert ((len(completion.ids), completion.finish_reason, len(machine.asked))
            == (limit, "length", limit))


def test_eos_right_after_the_last_wanted_token_is_not_waited_for():
    machine = Machine([120, 10])
    assert machine.run(eos_ids={10}, max_tokens=1).finish_reason == "length"
    assert len(machine.asked) == 1


def test_the_reader_sees_each_token_and_can_stop():
    seen = []

    def on_token(token):
        seen.append(token)
        return token == 121
    completion = Machine([120, 121, 122]).run(eos_ids={10}, max_tokens=9, on_token=on_token)
    assert seen == completion.ids == [120, 121] and completion.finish_reason == "stop"
