"""Figures of decoding, without a browser:
what they hold is what sampling and speculation did. About 3 s."""

import html
import re

import numpy as np
import pytest
from test_viz import HOSTILE, parse, tokenizer  # noqa: F401 (a fixture)

from gearworks import viz
from gearworks.decoding import Context
from gearworks.layers import softmax
from gearworks.model import Model
from gearworks.sampling import SamplingParams
from gearworks.speculative import NgramProposer, Proposal, Tally, speculate
from gearworks.viz import FigureError, Pass

V = 49_152


def steep(seed: int, V: int = V) -> np.ndarray:
    """Logits like a model's: a few tokens ahead, a long tail, ties at the top,
    and a token that is ruled out."""
    logits = (np.random.default_rng(seed).standard_normal(V) * 2.5).astype(np.float32)
    logits[100:140] += np.linspace(14, 4, 40, dtype=np.float32)
    logits[[7, 5, 9]] = logits[110]
    logits[17] = -np.inf
    return logits


# --- the distribution


def test_the_figure_holds_the_likeliest_and_loses_nobody():
    logits = steep(1)
    _, (held,) = parse(viz.distribution(logits, str).html)
    assert [logits[id] for id in held["ids"]] == sorted(logits, reverse=True)[:40]
    assert held["texts"] == [str(id) for id in held["ids"]]
    tied = [held["ids"].index(id) for id in (110, 9, 7, 5)]
    assert tied == [*range(tied[0], tied[0] + 4)], "of equal ones the higher id first"
    assert len(held["logits"]) + sum(count for count, _ in held["bins"]) == V - 1
    for heat in (0.5, 1, 2, 3):
        exact = np.exp(logits.astype(float) / heat).sum()
        page = sum(np.exp(value / heat) for value in held["logits"]) + sum(
            count * np.exp(value / heat) for count, value in held["bins"])
        assert page == pytest.approx(exact, rel=5e-4)


def test_small_vocabularies_and_flat_ones():
    _, (held,) = parse(viz.distribution(np.zeros(50, np.float32), str, shown=60).html)
    assert len(held["ids"]) == 50 and held["bins"] == []
    _, (held,) = parse(viz.distribution(np.zeros(3_000, np.float32), str).html)
    assert sum(count for count, _ in held["bins"]) == 2_200


@pytest.mark.parametrize("logits",
                         [np.full(5, -np.inf), np.array([1.0, np.nan]), np.array([1.0, np.inf]),
                          np.zeros(1), np.zeros((2, 5)), {}], ids=str)
def test_what_is_no_distribution_is_refused(logits):
    with pytest.raises(FigureError, match="cannot draw this distribution"):
        viz.distribution(logits, str)


def test_its_words_say_what_sampling_says():
    logits = steep(2)
    words = repr(viz.distribution({"here": logits}, lambda id: f"t{id}")).splitlines()
    best = int(np.argmax(logits))
    assert words[1].startswith(f'here: "t{best}" {100 * softmax(logits)[best]:.1f} %, ')
    assert re.fullmatch(
        r"With temperature 0.7, top-k 40 and top-p 0.9: \d+ of 49,152 tokens are left",
        words[2])


# --- the timeline


@pytest.fixture(scope="module")
def model(tiny_llama):
    return Model.load(tiny_llama(31, num_hidden_layers=2)[1])


class Half:
    """Guesses right, then wrong: what a script says, with every third guess off by one."""

    def __init__(self, text):
        self.text = text

    def propose(self, ids, count, rng):
        guesses = self.text[len(ids):len(ids) + count]
        return Proposal([id if (len(ids) + i) % 3 else (id + 1) % 211
                         for i, id in enumerate(guesses)])


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=1.0, seed=3)],
                         ids=["greedy", "sampled"])
@pytest.mark.parametrize("count, max_tokens", [(4, 23), (1, 8), (6, 7), (3, 1), (0, 4)])
def test_passes_are_what_speculation_did(model, params, count, max_tokens):
    ids = [5, 6, 7, 8, 5, 6]
    plain, _ = speculate(Context(model), ids, NgramProposer(), count=0, max_tokens=40)
    for proposer in (NgramProposer(), Half([*ids, *plain])):
        tally, recorder = Tally(), viz.RecordingProposer(proposer)
        generated, _ = speculate(Context(model), ids, recorder, params=params, count=count,
                                 max_tokens=max_tokens, tally=tally)
        passes = recorder.passes([*ids, *generated])
        if not recorder.asked:                              # there was never room for a guess
            assert passes == []
            continue
        assert [id for one in passes for id in one.tokens] == generated
        assert len(passes) == tally.steps
        assert sum(len(one.guesses) for one in passes) == tally.proposed
        assert sum(one.accepted for one in passes) == tally.accepted
        assert len(repr(viz.acceptance_timeline(passes, str))) > 100


def test_recording_changes_nothing(model):
    ids = [5, 6, 7, 8, 5, 6]
    bare, recorded = (speculate(Context(model), ids, proposer, max_tokens=12)
                      for proposer in (NgramProposer(), viz.RecordingProposer(NgramProposer())))
    assert bare == recorded


def test_the_timeline_shows_who_said_what():
    figure = viz.acceptance_timeline([Pass((1, 2, 3), (1, 9)), Pass((), (4,)),
                                      Pass((5, 6), (5, 6, 7))], str)
    _, (whole, stepwise) = parse(figure.html)
    shown = [[(cell["text"], cell["kind"])
              for cell in (whole["pool"][place] for place in lane["cells"])]
             for lane in whole["steps"][0]["lanes"]]
    assert shown == [[("1", "accepted"), ("9", "own"), ("2", "rejected"), ("3", "rejected")],
                     [("4", "own")],
                     [("5", "accepted"), ("6", "accepted"), ("7", "own")]]
    assert (whole["steps"][0]["caption"]
            == "6 tokens in 3 passes, 2 a pass; 5 guesses, 3 accepted (60%).")
    assert len(stepwise["steps"]) == 3
    one = repr(viz.acceptance_timeline([Pass((1,), (2,))], str))
    assert "1 token in 1 pass, 1 a pass; 1 guess, 0 accepted (0%)." in one
    with pytest.raises(FigureError, match="no passes"):
        viz.acceptance_timeline([], str)


# --- both


def decoding_figures() -> dict[str, viz.Figure]:
    """Both figures, of a usual size, with a text that would break out of careless HTML."""
    def token(id):
        return HOSTILE if id % 5 == 0 else f" word{id}"
    places = {HOSTILE: steep(3), "second": steep(4), "third": steep(5)}
    return {"distribution": viz.distribution(places, token, title=HOSTILE),
            "acceptance_timeline": viz.acceptance_timeline([
                Pass((1, 2, 3, 4, 5, 6), (1, 2, 13)), Pass((), (4,)), Pass((5, 6), (5, 6, 7))]
                                                           * 8, token, HOSTILE)}


@pytest.mark.parametrize("name", ["distribution", "acceptance_timeline"])
def test_the_html_stands_alone(name):
    figure = decoding_figures()[name]
    page, data = parse(figure.html)
    assert page.tags[0] == "div" and not {"link", "img", "iframe", "b"} & {*page.tags}
    outside = re.sub(r'"http://www\.w3\.org/[^"]*"', "", figure.html)
    assert not re.search(r"https?:|url\(|@import|[\"'(=]\s*//", outside, re.I)
    assert dict(page.attributes)["role"] == "group"
    assert html.escape(figure.words, quote=False) in figure.html
    assert figure.html.count("</script>") == 2
    texts = data[0]["texts"] if name == "distribution" else [
        cell["text"].replace("␣", " ") for cell in data[0]["pool"]]
    assert HOSTILE in texts
