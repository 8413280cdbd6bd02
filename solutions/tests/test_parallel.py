"""A model in several processes is the model in one.
About 30 s, most of it starting processes."""

import multiprocessing
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gearworks.errors import ModelError, NotAvailableError
from gearworks.model import Model
from gearworks.parallel import (
    LIKE_LLAMA, ParallelModel, greedy, load_part, own_config, own_part)
from gearworks.process_group import LostOthers, launch
from gearworks.weights import expected_shapes

SIZES = {"vocab_size": 216, "num_attention_heads": 12, "num_key_value_heads": 6,
         "intermediate_size": 84, "head_dim": 10}
CASES = [("Llama", {}, 2), ("Llama", {"num_key_value_heads": 12, "head_dim": 4}, 3),
         ("Mistral", {"sliding_window": 7}, 2), ("Qwen2", {"tie_word_embeddings": True}, 3),
         ("SmolLM3", {"no_rope_layers": [1, 0, 0]}, 2), ("Phi3", {"head_dim": 16}, 3),
         ("Mixtral", {}, 2), ("Mixtral", {"sliding_window": 7, "num_local_experts": 3}, 3),
         ("Qwen3Moe", {"moe_intermediate_size": 24, "mlp_only_layers": [1]}, 6),
         ("Qwen3", {}, 6), ("Qwen3", {"tie_word_embeddings": True}, 2),
         ("Qwen3", {"attention_bias": True}, 3)]
# whose own forward pass asks for more: of each expert a sum, of heads a norm
OTHERS = [("Olmo2", {}, 2), ("Olmo2", {"num_key_value_heads": 12}, 3), ("Gemma2", {}, 2),
          ("Gemma3", {"tie_word_embeddings": True}, 3), ("GptOss", {}, 2),
          ("GptOss", {"attention_bias": False, "num_local_experts": 3}, 3),
          ("DeepseekV2", {"moe_intermediate_size": 24, "head_dim": None}, 2),
          ("DeepseekV3", {"moe_intermediate_size": 24, "head_dim": 6, "q_lora_rank": None}, 3),
          ("GPT2", {"n_embd": 60}, 2), ("GPT2", {"tie_word_embeddings": False}, 3)]


class ThreadGroup:
    """A process of a group, played by a thread; counts how often they meet."""

    def __init__(self, rank: int, arrays: list, barrier: threading.Barrier):
        self.rank, self.size = rank, len(arrays)
        self.arrays, self.barrier = arrays, barrier
        self.reduced = self.gathered = 0

    def all_gather(self, array):
        self.gathered += 1
        self.arrays[self.rank] = array
        self.barrier.wait(timeout=60)
        found = [each.copy() for each in self.arrays]
        self.barrier.wait(timeout=60)
        return found

    def all_reduce(self, array):
        self.reduced += 1
        self.gathered -= 1
        return sum(self.all_gather(array))


def together(work, size: int) -> list:
    """What `work(group)` returns in each of `size` threads."""
    arrays, barrier = [None] * size, threading.Barrier(size)
    groups = [ThreadGroup(rank, arrays, barrier) for rank in range(size)]
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(work, groups))


@pytest.mark.parametrize("family, settings, size", CASES + OTHERS)
def test_logits_are_those_of_one_process(tiny_model, family, settings, size):
    sizes = {"vocab_size": 216} if family == "GPT2" else SIZES
    if family.startswith("Deepseek"):
        sizes = SIZES | {"num_key_value_heads": 12}
    settings = {name: value for name, value in (sizes | settings).items()
                if value is not None or name == "q_lora_rank"}
    _, folder = tiny_model(family, 11, **settings)
    whole = Model.load(folder)
    ids = np.random.default_rng(0).integers(216, size=17)

    def logits(model) -> list[np.ndarray]:
        cache = model.new_cache(len(ids))
        chunks = (slice(0, 9), slice(9, 16), slice(16, 17))
        return [model.forward(ids[chunk], np.arange(len(ids))[chunk], cache,
                              [-1] if chunk.stop == 16 else slice(None)) for chunk in chunks]
    expected = logits(whole)

    def work(group):
        model = ParallelModel.load(folder, group)
        before = group.reduced, group.gathered
        found = logits(model)
        return found, (group.reduced - before[0], group.gathered - before[1])
    layers = whole.config.num_hidden_layers
    for found, meetings in together(work, size):
        for got, right in zip(found, expected, strict=True):
            assert got.dtype == np.float32
            np.testing.assert_allclose(got, right, atol=1e-5, rtol=1e-5)
        # a sum for the embedding, two in each layer, and the logits, once in each pass
        if whole.config.architecture in LIKE_LLAMA:
            assert meetings == (3 * (2 * layers + 1), 3)


@pytest.mark.parametrize("tied", [True, False])
def test_the_parts_are_the_whole_and_no_more(tiny_model, tied):
    _, folder = tiny_model("Qwen2", 12, **SIZES, tie_word_embeddings=tied)
    whole = Model.load(folder)
    parts = [load_part(folder, rank, 3)[1] for rank in range(3)]
    H, K, d, F = (SIZES[name] for name in ("num_attention_heads", "num_key_value_heads",
                                           "head_dim", "intermediate_size"))
    for index, layer in enumerate(whole.weights.layers):
        own = [part.layers[index] for part in parts]

        def stacked(name, pieces):
            """One process's pieces of a stack, beside each other with those of the others."""
            split = [np.split(getattr(each, name), np.cumsum(pieces)[:-1]) for each in own]
            return np.concatenate([np.concatenate(same) for same in zip(*split)])
        heads = [H // 3 * d, K // 3 * d, K // 3 * d]
        for name, pieces in (("qkv_proj", heads), ("qkv_bias", heads),
                             ("gate_up_proj", [F // 3, F // 3])):
            np.testing.assert_array_equal(stacked(name, pieces), getattr(layer, name))
        for name in ("o_proj", "down_proj"):
            np.testing.assert_array_equal(
                np.concatenate([getattr(each, name) for each in own], axis=1),
                getattr(layer, name))
        for each in own:
            np.testing.assert_array_equal(each.input_layernorm, layer.input_layernorm)
    for name in ("embed_tokens", "lm_head"):
        np.testing.assert_array_equal(np.concatenate([getattr(part, name) for part in parts]),
                                      getattr(whole.weights, name))
    assert all((part.lm_head is part.embed_tokens) == tied for part in parts)
    norms = 4 * whole.config.hidden_size * (2 * whole.config.num_hidden_layers + 1)
    assert (sum(part.nbytes() for part in parts) == whole.weights.nbytes() + 2 * norms)


def test_a_cache_holds_the_own_heads_only(tiny_model):
    _, folder = tiny_model("Llama", 11, **SIZES)

    def work(group):
        return ParallelModel.load(folder, group).new_cache(5).keys.shape
    assert together(work, 2) == [(3, 3, 5, 10)] * 2


@pytest.mark.parametrize("settings, size, what", [
    ({"num_attention_heads": 6}, 4, "6 query heads"),
    ({"num_key_value_heads": 3}, 2, "3 key/value heads"),
    ({"intermediate_size": 81}, 2, "81 feed-forward columns"),
    ({"vocab_size": 211}, 2, "211 rows of its vocabulary"),
    ({"moe_intermediate_size": 21, "decoder_sparse_step": 2}, 2, "21 columns of each expert")])
def test_what_cannot_be_dealt_out_is_refused(tiny_model, settings, size, what):
    family = "Qwen3Moe" if "moe_intermediate_size" in settings else "Llama"
    _, folder = tiny_model(family, 13, **SIZES | settings)
    config = Model.load(folder).config
    with pytest.raises(ModelError, match=what):
        load_part(folder, 0, size)
    assert own_config(config, 1) == config


def test_the_refusal_says_what_would_work(smollm2):
    with pytest.raises(ModelError, match="9 query heads.*\n.*run it in 1 or 3"):
        own_config(smollm2.model.config, 2)
    assert own_config(smollm2.model.config, 3).num_attention_heads == 3


@pytest.mark.parametrize("family", ["Qwen3", "Olmo2", "GptOss", "DeepseekV3"])
def test_every_tensor_is_cut_or_known_to_be_whole(tiny_model, family):
    """Of one process more, no tensor grows; and only norms, latents, routers and biases that
    are added to a sum stay as they are."""
    _, folder = tiny_model(family, 15, **SIZES | {
        "Qwen3": {}, "Olmo2": {}, "GptOss": {},
        "DeepseekV3": {"num_key_value_heads": 12, "moe_intermediate_size": 24,
                       "head_dim": 6}}[family])
    config = Model.load(folder).config
    whole, parts = expected_shapes(config), expected_shapes(own_config(config, 2))
    for name, shape in whole.items():
        part = own_part(np.empty(shape), parts[name], 1)
        same = "norm" in name and (family != "Olmo2" or "self_attn" not in name) or (
            name.endswith(("mlp.gate.weight", "correction_bias", "q_a_proj.weight",
                           "kv_a_proj_with_mqa.weight", "router.weight", "router.bias",
                           "down_proj_bias", "o_proj.bias")))
        assert part.shape == parts[name]
        assert part.size == np.prod(shape) // (1 if same else 2), name


def test_two_real_processes_say_what_one_says(tiny_model):
    _, folder = tiny_model("Llama", 16, **SIZES)
    model, ids = Model.load(folder), [5, 77, 3, 201, 9]
    expected = list(ids)
    for _ in range(12):
        cache = model.new_cache(len(expected))
        logits = model.forward(np.array(expected), np.arange(len(expected)), cache, [-1])
        expected.append(int(logits[0].argmax()))
    assert launch(greedy, 2, folder, ids, 12, timeout=60) == expected[5:]


def sums(group, count):
    return [group.all_reduce(np.full(3, group.rank + 1 + n, np.float32)).tolist()
            for n in range(count)], [part.tolist()
                                     for part in group.all_gather(np.array([group.rank]))]


def ends_early(group, how):
    group.all_reduce(np.ones(2, np.float32))
    if group.rank == 1:
        if how == "without a word":
            os._exit(3)
        if how == "with an error":
            raise ModelError("no more", "rank 1 has had enough", "ask rank 0")
        if how == "late":
            time.sleep(60)
    return group.all_reduce(np.ones(2, np.float32)).tolist()


def test_three_processes_meet():
    assert launch(sums, 3, 2) == ([[6, 6, 6], [9, 9, 9]], [[0], [1], [2]])


@pytest.mark.parametrize("how, error, says", [
    ("without a word", NotAvailableError, "process 1 of 2 is gone"),
    ("with an error", ModelError, "rank 1 has had enough"),
    ("late", LostOthers, "process 0 of 2 lost the others")])
def test_a_process_that_fails_ends_all_and_nobody_hangs(how, error, says):
    with pytest.raises(error, match=says):
        launch(ends_early, 2, how, timeout=4)
    assert multiprocessing.active_children() == []
