"""The decoder against Hugging Face, and against itself:
cached = uncached, chunked = whole, batched = alone."""

import numpy as np
import pytest
import torch

from gearworks.accounting import ModelShape, forward_flops
from gearworks.config import ModelConfig
from gearworks.config.to_hf import hf_config
from gearworks.errors import ModelError
from gearworks.attention import QUERY_BLOCK
from gearworks.kv_cache import RaggedBatch
from gearworks.model import Model

SHAPES = {
    "grouped": {},
    "odd-head-size": {"head_dim": 10, "num_attention_heads": 6, "num_key_value_heads": 3},
    "wide-heads": {"head_dim": 16, "num_attention_heads": 4, "num_key_value_heads": 1,
                   "rope_theta": 500000.0},
    "multi-head": {"num_attention_heads": 4, "num_key_value_heads": 4, "rms_norm_eps": 1e-2},
    "tied": {"tie_word_embeddings": True, "num_attention_heads": 6, "num_key_value_heads": 2},
    "tall": {"hidden_size": 40, "head_dim": 6, "num_attention_heads": 5,
             "num_key_value_heads": 1, "intermediate_size": 23, "tie_word_embeddings": True,
             "vocab_size": 37},
    "wide-vocabulary": {"hidden_size": 24, "num_attention_heads": 3, "num_key_value_heads": 1,
                        "vocab_size": 1009}}


def whole(model: Model, ids: np.ndarray) -> np.ndarray:
    return model.forward(ids, np.arange(len(ids)), model.new_cache(len(ids)))


def hf_logits(hf_model, ids: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return hf_model(torch.from_numpy(ids)[None]).logits[0].numpy()


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_equal_hf_on_tiny_models(tiny_llama, rng, shape):
    hf_model, folder = tiny_llama(len(shape), **SHAPES[shape])
    model = Model.load(folder)
    for length in (1, 2, 67, 131):
        ids = rng.integers(0, model.config.vocab_size, length)
        expected = hf_logits(hf_model, ids)
        assert np.abs(expected).max() > 1                # else the tolerance would mean nothing
        np.testing.assert_allclose(whole(model, ids), expected, rtol=0, atol=1e-4)


def test_logits_equal_hf_on_smollm2(smollm2, hf_smollm2, rng):
    words = smollm2.tokenizer.encode("It was a bright cold day in April, and the clocks were "
                                     "striking thirteen. " * 40)
    ids = np.array(words[:448] + rng.integers(0, smollm2.model.config.vocab_size, 64).tolist())
    ours, expected = whole(smollm2.model, ids), hf_logits(hf_smollm2, ids)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-3)
    assert (ours.argmax(-1) == expected.argmax(-1)).all()


@pytest.mark.parametrize("pieces", [[1] * 90, [64, 1, 25], [7, 70, 13], [89, 1]], ids=str)
def test_cached_and_chunked_equal_whole(tiny_llama, rng, pieces):
    """However a sequence is cut into steps, its logits are the same."""
    _, folder = tiny_llama(1, head_dim=10)
    model = Model.load(folder)
    ids = rng.integers(0, model.config.vocab_size, sum(pieces))
    cache, positions = model.new_cache(len(ids)), np.arange(len(ids))
    logits, start = [], 0
    for piece in pieces:
        logits.append(model.forward(ids[start:start + piece], positions[start:start + piece],
                                    cache))
        start += piece
    np.testing.assert_allclose(np.concatenate(logits), whole(model, ids), rtol=0, atol=1e-5)
    assert len(cache) == len(ids)


def test_cached_equals_uncached_on_smollm2(smollm2):
    ids = np.array(smollm2.tokenizer.encode("The lighthouse keeper climbed the stairs, as he "
                                            "did every evening, and looked out over the water. "
                                            "It was getting dark, and the wind rose."))
    model, positions = smollm2.model, np.arange(len(ids))
    cache = model.new_cache(len(ids))
    steps = [model.forward(ids[:9], positions[:9], cache)]
    steps += [model.forward(ids[i:i + 1], positions[i:i + 1], cache)
              for i in range(9, len(ids))]
    np.testing.assert_allclose(np.concatenate(steps), whole(model, ids), rtol=0, atol=5e-4)


def test_ragged_batch_equals_solo_runs(tiny_llama, rng):
    """Sequences in different phases, of different lengths, share a call and nothing else."""
    _, folder = tiny_llama(2, num_attention_heads=6, num_key_value_heads=3, head_dim=14)
    model = Model.load(folder)
    pasts, counts = [0, 33, 5, 0], [70, 1, 8, 1]
    sequences = [rng.integers(0, model.config.vocab_size, past + count)
                 for past, count in zip(pasts, counts)]
    caches = [model.new_cache(len(ids) + 3) for ids in sequences]
    for cache, ids, past in zip(caches, sequences, pasts):
        if past:
            model.forward(ids[:past], np.arange(past), cache, logits_at=[-1])
    step = np.concatenate([ids[past:] for ids, past in zip(sequences, pasts)])
    positions = np.concatenate([np.arange(past, len(ids))
                                for ids, past in zip(sequences, pasts)])
    logits = model.forward(step, positions, RaggedBatch(caches, counts))
    expected = np.concatenate([whole(model, ids)[past:] for ids, past in zip(sequences, pasts)])
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5)


def test_logits_at_chooses_rows(tiny_llama, rng):
    _, folder = tiny_llama(3)
    model = Model.load(folder)
    ids = rng.integers(0, model.config.vocab_size, 12)
    logits = model.forward(ids, np.arange(12), model.new_cache(12), logits_at=np.array([11, 3]))
    np.testing.assert_allclose(logits, whole(model, ids)[[11, 3]], rtol=0, atol=1e-5)


@pytest.mark.parametrize("ids", [[5, 211], [-1, 5]], ids=str)
def test_ids_outside_the_vocabulary_are_refused(tiny_llama, ids):
    _, folder = tiny_llama(5)
    model = Model.load(folder)
    with pytest.raises(ModelError, match="vocabulary has 211"):
        whole(model, np.array(ids))


def test_no_warning_on_extreme_inputs(tiny_llama, rng):
    """A warning on standard error costs a learner the exercise,
    so large activations must pass quietly."""
    _, folder = tiny_llama(6)
    model = Model.load(folder)
    for layer in model.weights.layers:
        layer.qkv_proj[...] *= 50
        layer.gate_up_proj[...] *= 1000
    with np.errstate(all="raise", under="ignore"):
        assert np.isfinite(whole(model, rng.integers(0, model.config.vocab_size, 70))).all()


def test_every_token_needs_a_position_of_its_own(tiny_llama):
    _, folder = tiny_llama(5)
    model = Model.load(folder)
    with pytest.raises(ValueError, match="positions"):
        model.forward(np.array([5, 6]), np.array([5]), model.new_cache(4))
    assert model.forward([5, 6], [0, 1], model.new_cache(4)).shape == (2, 211)


@pytest.mark.parametrize(
    "change",
    [{"general.architecture": "mamba"}, {"general.architecture": [1]},
     {"llama.block_count": "many"}, {"llama.block_count": None},
     {"llama.attention.head_count": -1}, {"llama.attention.key_length": [4]},
     {"llama.attention.value_length": 6}, {"llama.rope.dimension_count": 2},
     {"llama.rope.scaling.type": "longrope"},
     {"llama.rope.freq_base": "fast"}, {"llama.expert_count": 8},
     {"llama.attention.layer_norm_rms_epsilon": "x"}, {"tokenizer.ggml.tokens": 7},
     {"llama.context_length": True}], ids=str)
def test_gguf_metadata_that_cannot_be_computed_is_refused(change):
    metadata = {"general.architecture": "llama", "llama.block_count": 2,
                "llama.embedding_length": 48, "llama.feed_forward_length": 64,
                "llama.attention.head_count": 6, "llama.attention.head_count_kv": 2,
                "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.context_length": 64,
                "llama.rope.freq_base": 1e4, "tokenizer.ggml.tokens": ["a", "b"]}
    assert ModelConfig.from_gguf(metadata, tied=True).head_dim == 8
    with pytest.raises(ModelError):
        ModelConfig.from_gguf({key: value for key, value in (metadata | change).items()
                               if value is not None}, tied=True)


@pytest.mark.parametrize("change, complaint",
                         [({"architectures": ["MambaForCausalLM"]},
                           "(?s)MambaForCausalLM.*LlamaForCausalLM"),
                          ({"architectures": []}, "names no architecture"),
                          ({"rope_parameters": {"rope_type": "longrope"}}, "longrope"),
                          ({"rope_scaling": {"type": "linear", "factor": "2"}}, "factor"),
                          ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
                            "rope_scaling": {"type": "linear", "factor": 2.0}}, "contradict"),
                          ({"rope_scaling": [2]}, "rope_scaling"),
                          ({"rope_theta": 10**400}, "rope_theta"),
                          ({"hidden_act": "gelu"}, "gelu"),
                          ({"attention_bias": 1}, "attention_bias"),
                          ({"num_attention_heads": 5}, "divide"),
                          ({"num_key_value_heads": 4}, "evenly"),
                          ({"head_dim": 9}, "head_dim"),
                          ({"vocab_size": "many"}, "vocab_size"),
                          ({"num_hidden_layers": -1}, "num_hidden_layers"),
                          ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
                          ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
                          ({"intermediate_size": None}, "intermediate_size")],
                         ids=lambda value: value if isinstance(value, str) else "-".join(value))
def test_configurations_that_cannot_be_computed_are_refused(change, complaint):
    config = {"architectures": ["LlamaForCausalLM"], "vocab_size": 9, "hidden_size": 48,
              "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 6,
              "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "max_position_embeddings": 16}
    assert ModelConfig.from_hf(config).head_dim == 8
    with pytest.raises(ModelError, match=complaint):
        ModelConfig.from_hf(config | change)
    del config["intermediate_size"]
    with pytest.raises(ModelError, match="intermediate_size.*missing"):
        ModelConfig.from_hf(config)


def test_configuration_survives_the_round_trip(tiny_llama):
    hf_model, _ = tiny_llama(7, head_dim=10, tie_word_embeddings=True, rope_theta=123456.0)
    config = ModelConfig.from_hf(hf_model.config.to_dict()
                                 | {"architectures": ["LlamaForCausalLM"]})
    assert (config.head_dim == 10 and config.tie_word_embeddings
            and config.rope_theta == 123456.0)
    assert ModelConfig.from_hf(hf_config(config)) == config


@pytest.fixture
def flops(monkeypatch):
    """Counts the floating-point operations of all matrix products of the engine,
    masked ones included."""
    import gearworks.attention
    import gearworks.kv_cache
    import gearworks.model
    counted = {"linear": 0, "attention": 0}

    def linear(x, weight, bias=None, real=gearworks.model.linear):
        counted["linear"] += 2 * len(x) * weight.size
        return real(x, weight, bias)

    def attend(q, k, v, mask=None, real=gearworks.attention.attention):
        counted["attention"] += 2 * len(q) * len(k) * q.shape[1] * (k.shape[2] + v.shape[2])
        return real(q, k, v, mask)
    monkeypatch.setattr(gearworks.model, "linear", linear)
    monkeypatch.setattr(gearworks.kv_cache, "attention", attend)
    return counted


def shape_of(config: ModelConfig) -> ModelShape:
    return ModelShape(config.vocab_size, config.hidden_size, config.intermediate_size,
                      config.num_hidden_layers, config.num_attention_heads,
                      config.num_key_value_heads, config.head_dim)


@pytest.mark.reference("products that go through `linear`")
def test_a_step_costs_what_accounting_says(tiny_llama, rng, flops):
    """With the cache a token costs O(S), in attention alone;
    without it, O(S) in the products and O(S^2) in attention."""
    _, folder = tiny_llama(9)
    model = Model.load(folder)
    shape, lengths, costs = shape_of(model.config), (64, 128, 256), {"with": [], "without": []}
    for length in lengths:
        ids, positions = rng.integers(0, 211, length), np.arange(length)
        cache = model.new_cache(length)
        model.forward(ids[:-1], positions[:-1], cache, logits_at=[-1])
        flops.update(linear=0, attention=0)
        model.forward(ids[-1:], positions[-1:], cache)
        costs["with"].append(dict(flops))
        # to the last operation
        assert sum(flops.values()) == forward_flops(shape, 1, length - 1)
        flops.update(linear=0, attention=0)
        model.forward(ids, positions, model.new_cache(length), logits_at=[-1])
        costs["without"].append(dict(flops))
        # Blocks of queries multiply with some keys that are masked, and the last layer leaves
        # rows out
        assert sum(flops.values()) == pytest.approx(forward_flops(shape, length), rel=0.35)
    growth = {kind: {part: costs[kind][2][part] / costs[kind][0][part] for part in flops}
              for kind in costs}
    assert growth["with"] == {"linear": 1, "attention": 4}
    assert (growth["without"]["linear"] == pytest.approx(4, rel=0.02)
            and growth["without"]["attention"] == 10)


@pytest.mark.reference("memory")
def test_no_scores_are_larger_than_a_block_needs(tiny_llama, rng, monkeypatch):
    """A long prompt never has an (H, T, S) array:
    at most a block of queries looks at all keys at a time."""
    import gearworks.attention
    _, folder = tiny_llama(10)
    model, largest, real = Model.load(folder), [], gearworks.attention.softmax

    def softmax(x, out=None):
        largest.append(x.size)
        return real(x, out)
    monkeypatch.setattr(gearworks.attention, "softmax", softmax)
    whole(model, rng.integers(0, 211, 256))
    assert max(largest) == model.config.num_attention_heads * QUERY_BLOCK * 256
