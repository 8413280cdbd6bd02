"""The torch backend is the NumPy engine in other clothes: same logits, same texts, behind the
same cache, scheduler and loops. About 60 s."""

import sys
from functools import partial
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from gearworks.beam import beam_search
from gearworks.config import ModelConfig
from gearworks.decoding import Context
from gearworks.errors import ModelError, NotAvailableError
from gearworks.kernels.torch_graphs import PATIENCE
from gearworks.kernels.torch_model import TorchModel, place_for
from gearworks.kv_cache import RaggedBatch
from gearworks.language_model import LanguageModel
from gearworks.model import Model
from gearworks.sampling import SamplingParams, log_softmax
from gearworks.serving.engine import LLMEngine
from gearworks.serving.request import Request
from gearworks.speculative import NgramProposer, speculate
from gearworks.weights import load_checkpoint, reserve

# with a GPU, graphs are recorded and Triton's kernels compiled
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0,
        "original_max_position_embeddings": 64}
LONGROPE = {"rope_type": "longrope", "rope_theta": 10_000.0,
            "short_factor": [1.0, 1.3, 0.9, 2.0], "long_factor": [1.5, 4.0, 9.0, 30.0]}
FAMILIES = [
    ("Llama", {}), ("Llama", {"head_dim": 10, "num_attention_heads": 6,
                              "num_key_value_heads": 1, "tie_word_embeddings": True}),
    ("Llama", {"rope_parameters": YARN}), ("Qwen2", {}), ("Qwen3", {"head_dim": 10}),
    ("Mistral", {"sliding_window": 9}),
    ("Qwen2", {"use_sliding_window": True, "sliding_window": 11, "max_window_layers": 1}),
    ("Mixtral", {}), ("Mixtral", {"sliding_window": 10, "num_experts_per_tok": 1}),
    ("Qwen3Moe", {}), ("Qwen3Moe", {"norm_topk_prob": True, "mlp_only_layers": [1]}),
    ("GptOss", {}), ("GptOss", {"attention_bias": False, "num_key_value_heads": 6,
                                "swiglu_limit": 0.4}),
    ("Olmo2", {}), ("Olmo2", {"head_dim": 10, "num_key_value_heads": 1}), ("Gemma2", {}),
    ("Gemma2", {"head_dim": 16, "num_key_value_heads": 1, "final_logit_softcapping": None}),
    ("Gemma3", {}), ("Gemma3", {"num_hidden_layers": 7, "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 500.0}}}),
    ("SmolLM3", {}), ("SmolLM3", {"no_rope_layers": [0, 1, 0], "head_dim": 10}),
    ("Phi3", {}), ("Phi3", {"rope_parameters": LONGROPE, "sliding_window": 9,
                            "original_max_position_embeddings": 20})]
BOTH = pytest.mark.parametrize("options", [
    {}, {"graphs": True}, pytest.param({"use_triton": True}, marks=pytest.mark.skipif(
        find_spec("triton") is None, reason="Triton exists for Linux only"))], ids=str)


def pair(folder, device=DEVICE, dtype="float32", **options) -> tuple[Model, TorchModel]:
    return Model.load(folder), TorchModel.load(folder, device, dtype, **options)


def whole(model, ids) -> np.ndarray:
    return model.forward(ids, np.arange(len(ids)), model.new_cache(len(ids)))


@pytest.mark.parametrize("family, settings", FAMILIES, ids=str)
def test_logits_equal_the_numpy_engines(tiny_model, rng, family, settings):
    _, folder = tiny_model(family, 5, **settings)
    ours, theirs = pair(folder)
    ids = rng.integers(0, 211, 77)
    expected = whole(ours, ids)
    assert np.abs(expected).max() > 1
    got = whole(theirs, ids)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-4)


@BOTH
@pytest.mark.parametrize("family, settings", [
    ("Mistral", {"sliding_window": 20}), ("SmolLM3", {}), ("Olmo2", {}),
    ("Gemma3", {"sliding_window": 20}), ("Gemma2", {"sliding_window": 20}),
    ("GptOss", {"sliding_window": 20})], ids=str)
def test_however_a_sequence_is_cut(tiny_model, rng, options, family, settings):
    """Prompts in pieces, single tokens, rewound in between, chosen rows."""
    _, folder = tiny_model(family, 6, **settings)
    if family in ("Gemma2", "GptOss") and options.get("use_triton"):
        with pytest.raises(ModelError, match="no soft cap"):
            pair(folder, **options)
        return
    ours, theirs = pair(folder, **options)
    ids = rng.integers(0, 211, 60 + 2 * PATIENCE)
    expected, cache = whole(ours, ids), theirs.new_cache(len(ids))
    for start, end in [(0, 30), (30, 31), (31, 59), *((i, i + 1) for i in range(59, len(ids)))]:
        got = theirs.forward(ids[start:end], np.arange(start, end), cache, [-1])
        np.testing.assert_allclose(got, expected[end - 1:end], rtol=0, atol=1e-4)
    assert len(cache) == len(ids)
    cache.truncate(40)
    again = theirs.forward(ids[40:50], np.arange(40, 50), cache, np.array([9, 0]))
    np.testing.assert_allclose(again, expected[[49, 40]], rtol=0, atol=1e-4)
    with pytest.raises(ValueError, match="truncate 50"):
        cache.truncate(51)
    with pytest.raises(ModelError, match="cache is full"):
        theirs.forward(ids, np.arange(len(ids)), cache)
    assert len(cache) == 50


def test_several_caches_in_one_batch(tiny_llama, rng):
    _, folder = tiny_llama(7)
    ours, theirs = pair(folder)
    texts = [rng.integers(0, 211, length) for length in (20, 1, 9)]
    caches = [theirs.new_cache(30) for _ in texts]
    got = theirs.forward(np.concatenate(texts),
                         np.concatenate([np.arange(len(text)) for text in texts]),
                         RaggedBatch(caches, [len(text) for text in texts]))
    expected = np.concatenate([whole(ours, text) for text in texts])
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-4)
    nothing = np.empty(0, int)
    assert theirs.forward(nothing, nothing, caches[0]).shape == (0, 211)


# --- the loops that run a model


def test_the_loops_give_the_same_texts(tiny_llama):
    _, folder = tiny_llama(8)
    ours, theirs = pair(folder, graphs=True)
    prompt = [5, 6, 7, 8] * 5 + [5, 6]
    texts = []
    for model in (ours, theirs):
        guessed, _ = speculate(Context(model, 200), prompt, NgramProposer(), max_tokens=30)
        context, greedy, unseen = Context(model, 200), [], prompt
        for _ in range(30):
            unseen = [int(context.forward(unseen).argmax())]
            greedy += unseen
        beams = beam_search(model, prompt, num_beams=3, max_tokens=8)
        texts.append((guessed, [hypothesis.ids for hypothesis in beams]))
        assert guessed == greedy
    assert texts[0] == texts[1]


def served(language_model, requests, **options) -> dict:
    engine = LLMEngine(language_model, **options)
    for request in requests:
        engine.add_request(request)
    texts: dict = {}
    while engine.has_unfinished():
        for delta in engine.step():
            assert delta.error is None, delta.error
            texts.setdefault((delta.request_id, delta.index), []).extend(delta.ids)
    assert engine.pool.available == len(engine.pool.references)
    return texts


@BOTH
def test_the_engine_serves_it(tiny, rng, options):  # noqa: F811
    """Prefixes shared, prompts in pieces, preemption, copies, guesses, draws: as with NumPy."""
    model = TorchModel.of(tiny.model.config, tiny.model.weights, torch.device(DEVICE),
                          torch.float32, **options)
    other = LanguageModel(model, tiny.tokenizer, {}, tiny.eos_ids)
    shared = rng.integers(3, 200, 17).tolist()
    slow = options.get("use_triton", False)                  # an interpreter takes its time
    requests = [
        Request([*shared, 4], max_tokens=12, id="a", ignore_eos=True),
        Request([*shared, 5, 6], max_tokens=9, id="b", n=2, ignore_eos=True,
                params=SamplingParams(temperature=0.8, seed=3)),
        Request(rng.integers(3, 200, 30).tolist(), max_tokens=14, id="c", ignore_eos=True),
        Request([9, 8, 7] * 6, max_tokens=20, id="d", ignore_eos=True)][:2 if slow else 4]
    sizes = {"block_size": 4, "num_blocks": 22, "max_num_batched_tokens": 24, "max_num_seqs": 6}
    for speculative in (3,) if slow else (0, 3):
        expected, got = (served(one, requests, speculative_tokens=speculative, **sizes)
                         for one in (tiny, other))
        assert got == expected


def test_batch_invariance_is_refused(tiny):  # noqa: F811
    model = TorchModel.of(tiny.model.config, tiny.model.weights, torch.device(DEVICE),
                          torch.float32)
    with pytest.raises(ModelError, match="this backend"):
        LLMEngine(LanguageModel(model, tiny.tokenizer, {}, tiny.eos_ids), batch_invariant=True)
    with pytest.raises(ModelError, match="other sums"):
        model.new_paged_cache(2, 4).batch([[0]], [0], [1], fixed_shapes=True)


def test_a_language_model_is_loaded_for_it(tiny_folder, monkeypatch):
    said = []
    torch_engine = LanguageModel.load(tiny_folder, engine="torch", say=said.append)
    model = torch_engine.model
    assert type(model) is TorchModel and f"PyTorch computes on {model.device} in " in said[0]
    plain = LanguageModel.load(tiny_folder)
    if model.dtype == torch.float32:
        assert (torch_engine.generate("One, two,", max_tokens=8).ids
                == plain.generate("One, two,", max_tokens=8).ids)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(NotAvailableError, match="PyTorch is missing"):
        LanguageModel.load(tiny_folder, engine="torch")


# --- precision


@pytest.mark.parametrize("dtype, divergence", [("float16", 1e-3), ("bfloat16", 3e-2)])
def test_low_precision_says_nearly_the_same(tiny_llama, rng, dtype, divergence):
    """By the distance of distributions and the likeliest token, not by single logits."""
    _, folder = tiny_llama(9, initializer_range=0.08)
    ours, theirs = pair(folder, dtype=dtype)
    ids = rng.integers(0, 211, 120)
    true, got = (log_softmax(whole(model, ids)) for model in (ours, theirs))
    assert theirs.weights.lm_head.dtype == getattr(torch, dtype)
    assert float((np.exp(true) * (true - got)).sum(-1).mean()) < divergence
    assert (true.argmax(-1) == got.argmax(-1)).mean() > 0.9


@pytest.mark.parametrize("family", ["Olmo2", "Gemma2", "Gemma3", "SmolLM3", "Phi3", "Mixtral",
                                    "GptOss"])
def test_low_precision_of_every_kind_of_layer(tiny_model, rng, family):
    """A router that is nearly undecided may decide otherwise, so not every token must agree."""
    _, folder = tiny_model(family, 9, initializer_range=0.08)
    ours, theirs = pair(folder, dtype="bfloat16")
    ids = rng.integers(0, 211, 120)
    true, got = whole(ours, ids), whole(theirs, ids)
    assert np.isfinite(got).all()
    assert np.median(np.abs(got - true)) < 0.05 * true.std()
    assert (true.argmax(-1) == got.argmax(-1)).mean() > 0.8


@pytest.mark.long
def test_smollm2_in_bfloat16(smollm2, smollm2_folder):
    text = "The ferry leaves at nine, and the harbour master has already lit the lamps. " * 4
    ids = np.array(smollm2.tokenizer.encode(text))
    theirs = TorchModel.load(smollm2_folder, DEVICE, "bfloat16")
    true, got = (log_softmax(whole(model, ids)) for model in (smollm2.model, theirs))
    assert float((np.exp(true) * (true - got)).sum(-1).mean()) < 0.01
    assert (true.argmax(-1) == got.argmax(-1)).mean() > 0.95


# --- how it is made


def test_compiled_between_attentions(tiny_llama, rng, monkeypatch):
    """Without the compiler proper, which takes a minute: what it traces is what it computes."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    _, folder = tiny_llama(10)
    ours, theirs = pair(folder, compile=True)
    ids = rng.integers(0, 211, 21)
    np.testing.assert_allclose(whole(theirs, ids), whole(ours, ids), rtol=0, atol=1e-4)


@pytest.mark.parametrize("tied", [True, False])
def test_random_weights_have_a_checkpoints_shapes(tied):
    config = ModelConfig("Qwen2ForCausalLM", 50, 24, 40, 2, 4, 2, 6, 64, 1e-5, 1e4, tied,
                         qkv_bias=True)
    weights, _ = reserve(config)
    model = TorchModel.random(config, torch.device(DEVICE), torch.float32)
    assert model.weights.nbytes() == weights.nbytes()
    for ours, theirs in zip(model.weights.layers, weights.layers):
        assert ({name: tuple(x.shape) for name, x in vars(ours).items() if x is not None}
                == {name: x.shape for name, x in vars(theirs).items() if x is not None})
    assert np.isfinite(whole(model, np.arange(20))).all()


def test_other_families_are_refused(tiny_model):
    for family in ("GPT2", "DeepseekV2", "DeepseekV3"):
        _, folder = tiny_model(family, 1)
        with pytest.raises(ModelError, match=f"does not run a {family}"):
            TorchModel.of(*load_checkpoint(folder), torch.device("cpu"), torch.float32)


def test_places():
    assert place_for("cpu", None) == (torch.device("cpu"), torch.float32)
    assert place_for("cpu", "bfloat16")[1] == torch.bfloat16
    assert place_for(None, None)[0].type == ("cuda" if torch.cuda.is_available() else
                                             "mps" if torch.backends.mps.is_available()
                                             else "cpu")
    with pytest.raises(NotAvailableError, match="'tpu'"):
        place_for("tpu", None)
    with pytest.raises(ModelError, match="'int8'"):
        place_for("cpu", "int8")


@pytest.mark.parametrize("ids", [[5, 211], [-1, 5]], ids=str)
def test_ids_outside_the_vocabulary_are_refused(tiny_llama, ids):
    _, folder = tiny_llama(5)
    _, model = pair(folder)
    with pytest.raises(ModelError, match="vocabulary has 211"):
        whole(model, np.array(ids))
    with pytest.raises(ValueError, match="positions of shape"):
        model.forward(np.arange(3), np.arange(2), model.new_cache(3))


def test_memory_that_is_not_there(tiny_llama):
    _, folder = tiny_llama(5)
    _, model = pair(folder)
    with pytest.raises(ModelError, match=f"GB on {DEVICE}"):
        model.new_paged_cache(10**13, 64)
