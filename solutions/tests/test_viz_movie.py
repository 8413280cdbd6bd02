"""The moving picture without a browser: what it shows is what the engine computed, whoever's
gears it is made of, and it keeps to its size. About 20 s."""

import gzip
import json
import zlib
from base64 import b64decode
from dataclasses import replace
from html import unescape
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gearworks import viz
from gearworks.comparison.compare import record_ours
from gearworks.kv_cache import KVCache
from gearworks.language_model import LanguageModel
from gearworks.layers import linear, rms_norm, silu
from gearworks.model import Model, rotations
from gearworks.sampling import SamplingParams
from gearworks.viz import FigureError
from gearworks.viz.activations import read_early, record
from gearworks.viz.movie import MOST_MOVIE_BYTES, engine_movie, pack

PROMPT = "w3 w5 ab"
LANDING = 860_000                   # what the book's first page gives it, in course_directives


@pytest.fixture(scope="module")
def whole(smollm2):
    """As the book's first page shows it."""
    return engine_movie(smollm2, most_bytes=LANDING)


def data_of(figure) -> dict:
    """What a figure's script reads."""
    text = figure.html.split('class="gw-data">')[1].split("</script>")[0]
    return json.loads(unescape(text))


def unpacked(chunk) -> dict[tuple[str, int], tuple[np.ndarray, np.ndarray, float]]:
    """By name and pass: an array, how far each number may be from the engine's, its size."""
    codes, found = zlib.decompress(b64decode(chunk["codes"])), {}
    for name, number, shape, kind, scale, size in chunk["arrays"]:
        dtype, most = {"vector": ("i1", 63), "numbers": ("<i2", 32767)}[kind]
        taken = np.frombuffer(codes, dtype, int(np.prod(shape))).reshape(shape)
        assert np.abs(taken.astype(int)).max() <= most
        codes = codes[taken.nbytes + taken.nbytes % 2:]
        share = taken / most
        if kind == "vector":
            wide = (np.abs(share) + 0.5 / most) ** 2 - share ** 2       # half a code's step
            values = scale * share * np.abs(share)
        else:
            wide, values = np.full(shape, 0.5 / most), scale * share
        found[name, number] = values, scale * wide + 1e-5 * scale, size
    assert codes == b""
    return found


def same(shown, truth):
    """Whether what is shown is the truth, within a step of its codes, and its size too."""
    values, tolerance, size = shown
    assert values.shape == truth.shape
    assert (np.abs(values - truth) <= tolerance).all()
    assert size == pytest.approx(np.sqrt((truth.astype(float) ** 2).mean()), rel=1e-4)


# --- what is shown is what was computed


def test_every_array_is_the_engines(smollm2, whole):
    """Against the trail that Hugging Face is compared with, and the layer written out here."""
    data, model = data_of(whole), smollm2.model
    weights, config = model.weights, model.config
    D, H, K, d, F, eps = 576, 9, 3, 64, 1536, config.rms_norm_eps
    ids = [id for _, id in data["tokens"]]
    assert ids == [504, 3575, 282, 4649, 314, 7042, 30] and data["prompt"] == 5
    shared = unpacked(data["shared"])
    assert [*map(int, data["details"])] == list(range(30))
    norms = ["input_layernorm", "post_attention_layernorm"]
    trail = record_ours(model, ids[:6], norms)
    # of the token after the prompt, row 4, and of the one that the model chose, row 5
    for number, row in enumerate((4, 5)):
        x = weights.embed_tokens[ids[row]]
        streams = [x]
        for index, layer in enumerate(weights.layers):
            shown = unpacked(data["details"][str(index)])
            normed = rms_norm(x, layer.input_layernorm, eps)
            unturned = linear(normed, layer.qkv_proj).reshape(H + 2 * K, d)
            turned, attended, keys = (trail[index, name] for name in (
                "queries", "attention", "keys"))
            scores = np.stack([keys[:row + 1, h // 3] @ turned[row, h] for h in range(H)]) / 8
            shares = np.exp(scores - scores.max(axis=1, keepdims=True))
            shares /= shares.sum(axis=1, keepdims=True)
            from_heads = linear(attended[row].ravel(), layer.o_proj)
            middle = x + from_heads
            again = rms_norm(middle, layer.post_attention_layernorm, eps)
            gate, up = linear(again, layer.gate_up_proj).reshape(2, F)
            from_network = linear(silu(gate) * up, layer.down_proj)
            expected = {
                "normed": normed, "queries": unturned[:H], "keys": unturned[H:H + K],
                "turned": turned[row], "scores": scores, "weights": shares,
                "attended": attended[row], "from_heads": from_heads, "middle": middle,
                "normed_again": again, "gate": gate, "up": up, "gated": silu(gate) * up,
                "from_network": from_network}
            assert {name for name, place in shown if place == number} == {*expected}
            for name, truth in expected.items():
                values, tolerance, size = shown[name, number]
                # cached and uncached, row by row and all at once: sums in another order
                same((values, tolerance + 2e-4 * np.abs(truth).max(), size), truth)
            for name, kept in (("stored_keys", "keys"), ("stored_values", "values")):
                same(shown[name, -1], trail[index, kept])
            x = trail[index, "output"][row]
            streams.append(x)
        values, tolerance, _ = shared["stream", number]
        assert (np.abs(values - streams) <= tolerance + 1e-3).all()
        told = data["passes"][number]
        assert told["sizes"] == pytest.approx(
            [np.sqrt((stream ** 2).mean()) for stream in streams], rel=1e-3)
        logits = trail[None, "logits"][row].astype(float)
        order = np.argsort(-logits)[:8]
        assert [id for _, id, *_ in told["listed"]] == order.tolist()
        assert [logit for *_, logit, _ in told["listed"]] == pytest.approx(logits[order],
                                                                           abs=1e-3)
        shares = np.exp(logits - logits.max())
        assert [share for *_, share in told["listed"]] == pytest.approx(
            shares[order] / shares.sum(), abs=1e-3)
        assert told["chosen"] == ids[row + 1] == order[0] and told["rank"] == 0
        assert (told["stored"], told["count"]) == ((0, 5), (5, 1))[number]
        (early, certain), (said, _, _, likely) = told["early"][-1], told["listed"][0]
        assert early == said and certain == pytest.approx(likely, rel=1e-4)
    assert D == config.hidden_size and data["text"] == " Paris."


@given(arrays.arrays(np.float32, st.integers(1, 40), elements=st.floats(
    -3e4, 3e4, width=32, allow_subnormal=False)), st.sampled_from(["vector", "numbers"]))
def test_a_code_is_the_nearest(array, kind):
    """Half a step off at most, never of the other sign, and in order."""
    codes, scale = pack(array, kind)
    dtype, most = {"vector": (np.int8, 63), "numbers": (np.int16, 32767)}[kind]
    share = np.frombuffer(codes, dtype) / most
    truth = np.array(array, float) / scale
    if kind == "vector":
        truth = np.sign(truth) * np.sqrt(np.abs(truth))
    assert np.abs(share - truth).max() <= 0.5 / most + 1e-9
    assert (share * truth >= 0).all() and np.abs(share).max() <= 1
    assert (np.diff(share[np.argsort(truth)]) >= 0).all()


def test_read_early_is_the_head_itself_at_the_end(smollm2):
    ids = [504, 3575, 282, 4649, 314]
    trail = record_ours(smollm2.model, ids, ["a", "b"])
    streams = np.stack([trail[layer, "output"][-1] for layer in (3, 29)])
    found, shares = read_early(smollm2.model, streams)
    logits = trail[None, "logits"][-1].astype(float)
    assert found[1] == logits.argmax() and found[0] != found[1]
    assert shares[1] == pytest.approx(1 / np.exp(logits - logits.max()).sum(), rel=1e-4)


# --- the learner's engine


def neighbours(x, cos, sin):
    """RoPE on neighbouring pairs: wrong for these weights."""
    turned = np.stack([-x[..., 1::2], x[..., ::2]], axis=-1).reshape(x.shape)
    frequencies = np.repeat(cos[..., :x.shape[-1] // 2], 2, axis=-1)
    return x * frequencies + turned * np.repeat(sin[..., :x.shape[-1] // 2], 2, axis=-1)


def first_layer(figure) -> dict:
    return unpacked(data_of(figure)["details"]["0"])


def test_a_learners_operator_is_recorded(tiny):
    own = first_layer(engine_movie(tiny, PROMPT))

    def apply_rope(x, cos, sin):
        return neighbours(x, cos, sin)

    with patch("gearworks.model.apply_rope", apply_rope):
        theirs = first_layer(engine_movie(tiny, PROMPT))
    assert (theirs["queries", 0][0] == own["queries", 0][0]).all()
    cos, sin = rotations(tiny.model.config, np.array([7]))
    turned = neighbours(own["queries", 0][0][None].astype(np.float32), cos, sin)[0]
    assert np.abs(theirs["turned", 0][0] - turned).max() < 0.05 * np.abs(turned).max()
    assert np.abs(theirs["turned", 0][0] - own["turned", 0][0]).max() > 0.3


def test_a_learners_forward_is_recorded_however_it_is_cut(tiny):
    """Products without `linear`, queries and keys turned apart, one function for all."""
    def forward(weights, config, input_ids, positions, cache, logits_at=slice(None)):
        H, K, d = (config.num_attention_heads, config.num_key_value_heads, config.head_dim)
        cos, sin = rotations(config, positions)
        x = weights.embed_tokens[input_ids]
        for index, layer in enumerate(weights.layers):
            qkv = (rms_norm(x, layer.input_layernorm, config.rms_norm_eps)
                   @ layer.qkv_proj.T).reshape(len(x), -1, d)
            q, k = apply_rope(qkv[:, :H], cos, sin), apply_rope(qkv[:, H:H + K], cos, sin)
            attended = cache.attend(index, q, k, qkv[:, H + K:])
            x = x + attended.reshape(len(x), -1) @ layer.o_proj.T
            hidden = rms_norm(x, layer.post_attention_layernorm, config.rms_norm_eps)
            gate, up = np.split(hidden @ layer.gate_up_proj.T, 2, axis=1)
            x = x + swiglu(gate, up) @ layer.down_proj.T
        return rms_norm(x[logits_at], weights.norm, config.rms_norm_eps) @ weights.lm_head.T

    from gearworks.attention import apply_rope
    from gearworks.layers import swiglu

    own = first_layer(engine_movie(tiny, PROMPT))
    with patch("gearworks.model.forward", forward):
        theirs = first_layer(engine_movie(tiny, PROMPT))
    assert theirs.keys() == own.keys()
    for place, (values, tolerance, _) in own.items():
        assert (np.abs(theirs[place][0] - values) <= 2 * tolerance).all(), place


def test_a_learners_attention_and_cache_are_recorded(tiny):
    def attention(q, k, v, mask=None):
        """Every query head looks through the first key head."""
        T, H, d = q.shape
        mask = np.tri(T, len(k), len(k) - T, dtype=bool) if mask is None else mask
        scores = np.where(mask, np.einsum("thd,sd->hts", q, k[:, 0]) / d ** 0.5, -np.inf)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        group = H // v.shape[1]
        return np.einsum("hts,she->the", shares, np.repeat(v, group, 1)).astype(np.float32)

    made = []

    class Mine(KVCache):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            made.append(self)

    with (patch("gearworks.kv_cache.attention", attention),
          patch("gearworks.model.KVCache", Mine)):
        theirs = first_layer(engine_movie(tiny, PROMPT))
    own = first_layer(engine_movie(tiny, PROMPT))
    assert made and np.abs(theirs["weights", 0][0] - own["weights", 0][0]).max() > 0.05
    assert np.abs(theirs["weights", 0][0].sum(-1) - 1).max() < 1e-3


def test_a_cache_that_forgets_is_told(tiny):
    class Forgets(KVCache):
        def attend(self, layer, q, k, v):
            out = super().attend(layer, q, k, v)
            self.keys[layer, :, 0] = 0
            return out

    with patch("gearworks.model.KVCache", Forgets), pytest.raises(FigureError) as caught:
        engine_movie(tiny, PROMPT)
    assert "does the cache store every key" in str(caught.value)


def test_the_profiler_that_was_there_comes_back(tiny):
    import sys
    before, seen = sys.getprofile(), []
    sys.setprofile(lambda *event: seen.append(event))
    try:
        mine = sys.getprofile()
        engine_movie(tiny, PROMPT)
        assert sys.getprofile() is mine
    finally:
        sys.setprofile(before)


def test_settings_of_the_choice_are_the_learners(tiny):
    """A token that the dice chose is listed with its place, likely or not."""
    figure = engine_movie(tiny, PROMPT, max_tokens=6,
                          params=SamplingParams(temperature=30.0, seed=5))
    data = data_of(figure)
    plain = replace(tiny).generate(PROMPT, max_tokens=6,
                                   params=SamplingParams(temperature=30.0, seed=5))
    assert [id for _, id in data["tokens"]] == [*plain.prompt_ids, *plain.ids]
    ranks = [told["rank"] for told in data["passes"]]
    assert max(ranks) > 8
    for told in data["passes"]:
        assert told["chosen"] in [id for _, id, *_ in told["listed"]]


def test_an_end_that_is_chosen_is_told(tiny):
    """Of the passes, the last has nothing after it when an end stops the text."""
    for seed in range(60):
        figure = engine_movie(tiny, PROMPT, max_tokens=20,
                              params=SamplingParams(temperature=20.0, seed=seed))
        data = data_of(figure)
        if data["finish"] == "stop":
            break
    assert data["passes"][-1]["chosen"] is None
    assert len(data["tokens"]) - data["prompt"] == len(data["passes"]) - 1
    if len(data["passes"]) <= 3:
        assert "the end is chosen" in repr(figure)


# --- sizes, words, and what is refused


def test_sizes_hold(smollm2, whole):
    """The book's file as a server sends it, and a notebook's figure as it is kept."""
    assert len(gzip.compress(whole.html.encode())) <= 600_000
    small = engine_movie(smollm2, "Name three things that have gears: a clock,", layer=17,
                         head=2, max_tokens=3)
    assert len(small.html.encode()) <= MOST_MOVIE_BYTES == 300_000
    kept = [*map(int, data_of(small)["details"])]
    assert kept[0] == 0 and kept[-1] == 29 and 17 in kept and 4 <= len(kept) < 30
    gaps = np.diff([layer for layer in kept if layer != 17])
    assert gaps.max() - gaps.min() <= 1


def test_less_room_means_fewer_layers(tiny):
    both = engine_movie(tiny, PROMPT)
    one = engine_movie(tiny, PROMPT, most_bytes=len(both.html) - 1)
    assert [*data_of(both)["details"]] == ["0", "1"] and len(data_of(one)["details"]) == 1
    with pytest.raises(FigureError):
        engine_movie(tiny, PROMPT, most_bytes=len(both.html) // 2)


def test_words_are_few_and_say_what_happened(whole):
    lines = repr(whole).splitlines()
    assert len(lines) <= 12
    assert "' France' is 4649" in lines[1]
    assert "Head 4 of layer 23 gives 90 % to ' France'" in repr(whole)
    assert "' Paris' 77 %" in repr(whole) and "' Paris' is chosen and appended" in repr(whole)


def test_hostile_texts_stay_texts(tiny):
    figure = engine_movie(tiny, "</script><b>", title="</script> & 'x'")
    assert figure.html.count("<script") == 2 and figure.html.count("</script>") == 2
    assert "<b>" not in figure.html


@pytest.mark.parametrize("options, said", [
    ({"layer": 2}, "from 0 to 1"), ({"layer": 0, "head": 6}, "from 0 to 5"),
    ({"head": 1}, "no layer None"), ({"step": "softmax"}, "encode; embed"),
    ({"layer": 1, "step": "choose"}, "norm; queries"), ({"max_tokens": 0}, "called 0 times"),
    ({"max_tokens": 40, "eos": ()}, "no more than 32")])
def test_what_cannot_be_drawn_is_refused(tiny, options, said):
    model = replace(tiny, eos_ids=frozenset()) if "eos" in options else tiny
    options.pop("eos", None)
    with pytest.raises(FigureError) as caught:
        engine_movie(model, PROMPT, **options)
    assert said in str(caught.value)


@pytest.mark.parametrize("family, drawn", [
    ("Qwen3", True), ("Mixtral", True), ("Gemma2", False), ("GPT2", False),
    ("GptOss", False)])
def test_families_are_drawn_or_refused(tiny_model, tokenizer, family, drawn):
    """Experts leave out the inside of the network; other norms and sinks are refused."""
    _, folder = tiny_model(family, 5, max_position_embeddings=64)
    model = LanguageModel(Model.load(folder), tokenizer, {}, frozenset())
    if not drawn:
        with pytest.raises(FigureError):
            engine_movie(model, PROMPT)
        return
    shown = first_layer(engine_movie(model, PROMPT))
    assert (("gated", 0) in shown) == (family != "Mixtral")
    assert ("weights", 0) in shown and ("queries", 0) in shown


def test_another_engine_is_refused(tiny):
    with pytest.raises(FigureError) as caught:
        record(replace(tiny, model=object()), PROMPT)
    assert "NumPy" in str(caught.value) or "numpy" in str(caught.value)


def test_it_is_a_figure_like_the_others(whole):
    assert whole.html.startswith('<div class="gw tex2jax_ignore')
    assert viz.engine_movie is engine_movie and " id=" not in whole.html.split("<script")[0]
