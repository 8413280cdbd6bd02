"""What passes between a process and its child, and what does not. Two seconds."""

import os

import pytest

from autograder.processes.child import Child

ODD = """
import os
from autograder.processes.child import pipes

told, say = pipes()
for news in told:
    print("what is printed is no answer")
    if news["do"] == "end":
        os._exit(3)
    for pipe in range(3, 20):                   # the pipe to the parent is among them
        try:
            os.write(pipe, bytes(news.get("bytes", [])))
        except OSError:
            pass
    say(news)
"""


@pytest.fixture
def child(tmp_path, monkeypatch):
    (tmp_path / "odd_child.py").write_text(ODD, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with Child("odd_child") as child:
        yield child


@pytest.mark.parametrize("nonsense", [b"\xff\xfe\n", b"[1, 2]\n", b"{\n", b"\n", b"null\n"],
                         ids=str)
def test_after_a_line_of_nonsense_the_next_is_heard(child, nonsense):
    told = {"do": "answer", "bytes": list(nonsense)}
    child.tell(told)
    assert [child.hear(20), child.hear(20)] == [{}, told]


def test_one_that_ended_says_nothing_more_and_is_started_again(child):
    child.tell({"do": "end"})
    assert child.hear(20) is None and child.end() == 3
    child.tell({"do": "answer"})
    assert child.hear(20) == {"do": "answer"}
