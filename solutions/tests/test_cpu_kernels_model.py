"""The compiled model: NumPy's logits, the laws of batches and caches, and what a step costs."""

import json
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba")

from numba.core.dispatcher import Dispatcher
from numba.core.runtime import _nrt_python, rtsys

from gearworks import backends
from gearworks.cli.commands import _parser, main
from gearworks.decoding import generate
from gearworks.errors import ModelError, NotAvailableError, UsageError
from gearworks.families.layouts import layout
from gearworks.kernels.cpu import model, products
from gearworks.kernels.cpu.int4 import int4_matvec
from gearworks.kernels.cpu.model import CompiledModel
from gearworks.kernels.cpu.own_product import with_product
from gearworks.kv_cache import KVCache, RaggedBatch
from gearworks.language_model import LanguageModel
from gearworks.layers import softmax
from gearworks.model import Model
from gearworks.formats.codes import Codes
from gearworks.serving.engine import LLMEngine
from gearworks.serving.paged_cache import PagedBatch, PagedKVCache
from gearworks.serving.request import Request
from gearworks.weights import load_checkpoint, named_tensors, reserve

HELD = json.loads((Path(__file__).parent / "data" / "llamacpp_smollm2.json")
                  .read_text(encoding="utf-8"))["perplexity"]
ROPE = {"rope_type": "llama3", "rope_theta": 10_000.0, "factor": 4.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
LONGROPE = {"rope_type": "longrope", "rope_theta": 10_000.0,
            "short_factor": [1.0, 1.3, 0.9, 2.0], "long_factor": [1.5, 4.0, 9.0, 30.0]}
FAMILIES = [
    ("Llama", {}), ("Llama", {"head_dim": 10, "hidden_size": 36, "vocab_size": 37}),
    ("Llama", {"rope_parameters": ROPE, "tie_word_embeddings": True}),
    ("Llama", {"num_key_value_heads": 6, "head_dim": 34, "intermediate_size": 23}),
    ("Qwen2", {}), ("Qwen2", {"use_sliding_window": True, "sliding_window": 7,
                              "max_window_layers": 1}),
    ("Qwen3", {"head_dim": 16}), ("Mistral", {"sliding_window": 5}),
    ("Mistral", {"sliding_window": None, "num_attention_heads": 3, "num_key_value_heads": 1}),
    ("Qwen3", {"attention_bias": True}),
    ("SmolLM3", {}), ("SmolLM3", {"no_rope_layers": [0, 1, 0], "head_dim": 10}),
    ("Phi3", {}), ("Phi3", {"rope_parameters": LONGROPE, "sliding_window": 9,
                            "original_max_position_embeddings": 60})]
# what they need is compiled for them alone
OTHER_FAMILIES = [
    ("Olmo2", {}), ("Olmo2", {"num_key_value_heads": 6, "head_dim": 10, "vocab_size": 37}),
    ("Gemma3", {}), ("Gemma3", {"query_pre_attn_scalar": 7, "num_key_value_heads": 3,
                                "sliding_window": 4, "hidden_size": 36}),
    ("Gemma2", {}), ("Gemma2", {"attn_logit_softcapping": None, "intermediate_size": 23,
                                "final_logit_softcapping": 30.0}),
    ("Mixtral", {}), ("Mixtral", {"num_local_experts": 3, "num_experts_per_tok": 3,
                                  "intermediate_size": 23, "sliding_window": 5}),
    ("Qwen3Moe", {}), ("Qwen3Moe", {"norm_topk_prob": True, "decoder_sparse_step": 2,
                                    "num_experts_per_tok": 1, "mlp_only_layers": [1]}),
    ("GptOss", {}), ("GptOss", {"attention_bias": False, "num_key_value_heads": 6,
                                "num_experts_per_tok": 5}),
    ("DeepseekV2", {}), ("DeepseekV2", {"topk_method": "group_limited_greedy",
                                        "q_lora_rank": None, "kv_lora_rank": 37}),
    ("DeepseekV3", {}), ("DeepseekV3", {"rope_interleave": False, "n_shared_experts": 1,
                                        "first_k_dense_replace": 0}),
    ("GPT2", {}), ("GPT2", {"n_inner": 50, "n_embd": 36})]
ALL_FAMILIES = FAMILIES + OTHER_FAMILIES


def to_codes(weight: np.ndarray, bits: int, group: int) -> Codes:
    """Rounded to the nearest code, whatever group size divides."""
    groups = weight.reshape(len(weight), -1, group)
    low, high = groups.min(axis=-1, keepdims=True), groups.max(axis=-1, keepdims=True)
    scale = np.maximum(high - low, 1e-6) / np.float32((1 << bits) - 1)
    codes = np.clip(np.rint((groups - low) / scale), 0, (1 << bits) - 1).astype(np.uint8)
    return Codes(codes.reshape(weight.shape), scale[..., 0], low[..., 0], bits)


def quantized(folder: Path, bits: int) -> tuple[Model, dict]:
    """A model in NumPy whose weights are those of codes, and the tensors by name, in codes."""
    config, weights = load_checkpoint(folder)
    twin, places = reserve(config)
    model, layers = layout(config)
    parts = {part.name: part for fields in (model, *layers) for several in fields.values()
             for part in several}
    tensors: dict[str, Codes | np.ndarray] = {}
    for name, tensor in named_tensors(config, weights).items():
        part = parts[name]
        # routers are left as they are by every method, and in every file
        if tensor.ndim == 1 or name.endswith(("bias", "gate.weight", "router.weight")):
            tensors[name] = places[name][...] = np.array(tensor)
            continue
        matrix = tensor.swapaxes(-1, -2) if part.transposed else tensor
        columns = matrix.shape[-1]
        group = next((size for size in (32, 16) if columns % size == 0), columns)
        codes = to_codes(np.ascontiguousarray(matrix).reshape(-1, columns),
                         8 if "embed" in name else bits, group)
        tensors[name] = codes
        values = codes.dequantize().reshape(matrix.shape)
        places[name][...] = values.swapaxes(-1, -2) if part.transposed else values
    assert places.keys() == tensors.keys()
    return Model(config, twin), tensors


def whole(model, ids: np.ndarray, cache=None) -> np.ndarray:
    cache = model.new_cache(len(ids)) if cache is None else cache
    return np.array(model.forward(ids, np.arange(len(ids)), cache))


def in_parts(model, ids: np.ndarray, borders, cache) -> np.ndarray:
    return np.concatenate([np.array(model.forward(ids[start:end], np.arange(start, end), cache))
                           for start, end in zip([0, *borders], [*borders, len(ids)])])


@pytest.mark.parametrize("family, settings", ALL_FAMILIES, ids=lambda part: str(part)[:40])
def test_exact_gives_numpys_logits(tiny_model, rng, family, settings):
    _, folder = tiny_model(family, len(str(settings)), **settings)
    plain = Model.load(folder)
    # rounding is as large as NumPy's own, and in these it grows from layer to layer
    atol = 2e-5 if (family, settings) in FAMILIES else 1e-4
    for bits, threads in ((32, 1), (4, 2), (8, 3)):
        if bits == 32:
            model, numpys = CompiledModel.load(folder, threads=threads), plain
        else:
            numpys, tensors = quantized(folder, bits)
            model = CompiledModel.from_tensors(plain.config, tensors, threads=threads)
        ids = rng.integers(0, plain.config.vocab_size, 45)
        expected = whole(numpys, ids)
        assert np.abs(expected).max() > 0.5
        np.testing.assert_allclose(whole(model, ids), expected, rtol=0, atol=atol)
        cache = model.new_cache(45)
        np.testing.assert_allclose(in_parts(model, ids, [1, 2, 30, 31], cache), expected,
                                   rtol=0, atol=atol)
        assert cache.lengths == [45] * plain.config.num_hidden_layers
        cache.truncate(20)
        logits = model.forward(ids[20:], np.arange(20, 45), cache, logits_at=[-1, 3])
        np.testing.assert_allclose(logits, expected[[-1, 23]], rtol=0, atol=atol)


@pytest.fixture(params=FAMILIES[::4] + OTHER_FAMILIES[::2], ids=lambda part: str(part)[:40])
def coded(request, tiny_model):
    family, settings = request.param
    _, folder = tiny_model(family, len(str(settings)), **settings)
    numpys, tensors = quantized(folder, 4)
    return lambda mode, threads=2: CompiledModel.from_tensors(numpys.config, tensors, mode,
                                                              threads)


def test_fast_is_near_exact_and_has_laws_of_its_own(coded, rng):
    """The same bits whole, in parts, in any company, in blocks, by any number of threads."""
    exact, fast = coded("exact"), coded("fast")
    texts = [rng.integers(0, exact.config.vocab_size, length) for length in (29, 1, 14, 40)]
    expected = [whole(fast, ids) for ids in texts]
    gaps = np.abs(expected[0] - whole(exact, texts[0])).max(axis=-1)
    if exact.config.experts is not None:        # now and then another expert is chosen
        gaps = np.sort(gaps)[:len(gaps) // 2]
    assert 0 < gaps.max() < 0.1 * np.abs(expected[0]).max()
    assert np.array_equal(whole(coded("fast", 3), texts[0]), expected[0])
    for borders in ([1], [7, 8, 9], [28], list(range(1, 29))):
        parts = in_parts(fast, texts[0], borders, fast.new_cache(29))
        assert np.array_equal(parts, expected[0])

    def together(batch, counts, starts):
        ids = np.concatenate([ids[start:start + count]
                              for ids, start, count in zip(texts, starts, counts)])
        positions = np.concatenate([np.arange(start, start + count)
                                    for start, count in zip(starts, counts)])
        return np.split(np.array(fast.forward(ids, positions, batch)), np.cumsum(counts)[:-1])

    caches = [fast.new_cache(40) for _ in texts]
    memory = PagedKVCache(fast.config, num_blocks=40, block_size=4)
    memory.keys[:] = memory.values[:] = np.nan             # what nobody wrote means nothing
    free = rng.permutation(40).tolist()
    tables = [[free.pop() for _ in range(-(-len(ids) // 4))] for ids in texts]
    starts = [0, 0, 0, 0]
    for counts in ([5, 1, 14, 0], [23, 0, 0, 39], [1, 0, 0, 1]):
        for batch in (RaggedBatch(caches, counts), PagedBatch(memory, tables, starts, counts)):
            for got, right, start in zip(together(batch, counts, starts), expected, starts):
                assert np.array_equal(got, right[start:start + len(got)])
        starts = [start + count for start, count in zip(starts, counts)]
    assert [len(cache) for cache in caches] == [len(ids) for ids in texts]


def test_a_product_may_be_made_of_several_types(tiny_model, rng):
    """As in a file of Q4_K_M, whose v_proj has more bits than q_proj and k_proj."""
    _, folder = tiny_model("Llama", 8)
    numpys, tensors = quantized(folder, 4)
    kinds = {"q_proj": (4, 16), "k_proj": (8, 48), "v_proj": (6, 16), "up_proj": (3, 16)}
    config = numpys.config
    for name, tensor in tensors.items():
        bits, group = next((kind for part, kind in kinds.items() if part in name), (0, 0))
        if bits:
            tensor = to_codes(tensor.dequantize(), bits, group)
            if "v_proj" in name:                            # signed, as Q6_K has it
                tensor = Codes((tensor.codes.astype(np.int16) - 32).astype(np.int8),
                               tensor.scales, None, 6)
            tensors[name] = tensor
    tensors["lm_head.weight"] = tensors["lm_head.weight"].dequantize()        # float32
    twin, places = reserve(config)
    for name, tensor in tensors.items():
        places[name][...] = tensor if isinstance(tensor, np.ndarray) else tensor.dequantize()
    ids = rng.integers(0, config.vocab_size, 21)
    model = CompiledModel.from_tensors(config, tensors)
    assert set(model.weights.matrices["bits"]) == {4, 8, 32}
    np.testing.assert_allclose(whole(model, ids), whole(Model(config, twin), ids), rtol=0,
                               atol=1e-4)


def test_a_batch_invariant_engine_gives_the_same_bits(coded, rng):
    exact = coded("exact")
    memory = PagedKVCache(exact.config, num_blocks=8, block_size=8)
    ids = rng.integers(0, exact.config.vocab_size, 20)

    def one(rows, fixed):
        batch = PagedBatch(memory, [[3, 1, 0]], [0], [19], fixed)
        exact.forward(ids[:19], np.arange(19), batch)
        tables, starts, counts = [[3, 1, 0]], [19], [1]
        if rows > 1:
            tables, starts, counts = tables + [[5]], starts + [0], counts + [rows - 1]
        step = np.concatenate([ids[19:], ids[:rows - 1]])
        positions = np.concatenate([[19], np.arange(rows - 1)])
        return np.array(exact.forward(step, positions,
                                      PagedBatch(memory, tables, starts, counts, fixed)))[0]
    assert np.array_equal(one(1, True), one(6, True))


class Recorded(KVCache):
    """A cache of a kind that the compiled step does not know."""

    def attend(self, layer, q, k, v):
        self.seen = [*getattr(self, "seen", []), layer]
        return super().attend(layer, q, k, v)


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_other_caches_are_asked(coded, rng, mode):
    model = coded(mode)
    ids = rng.integers(0, model.config.vocab_size, 30)
    cache = Recorded(model.config, 30)
    atol = 2e-5 if mode == "exact" else 0.05
    expected = whole(model, ids)
    gaps = np.abs(in_parts(model, ids, [11, 12], cache) - expected).max(axis=-1)
    if mode == "fast" and model.config.experts is not None:     # they differ in more places
        assert gaps.max() < 0.1 * np.abs(expected).max()
        gaps = np.sort(gaps)[:len(gaps) // 2]
    assert gaps.max() <= atol
    assert cache.seen == 3 * list(range(model.config.num_hidden_layers))


def test_a_step_refuses_what_the_model_refuses(coded):
    model = coded("exact", 1)
    cache = model.new_cache(4)
    with pytest.raises(ModelError, match="vocabulary has"):
        model.forward(np.array([model.config.vocab_size]), np.array([0]), cache)
    with pytest.raises(ValueError, match="both are"):
        model.forward(np.array([1, 2]), np.array([0]), cache)
    with pytest.raises(ModelError, match="cache is full"):
        model.forward(np.arange(5), np.arange(5), cache)
    with pytest.raises(ValueError, match="counts add up"):
        model.forward(np.arange(2), np.arange(2), RaggedBatch([cache], [1]))
    assert len(cache) == 0
    assert model.forward(np.array([], int), np.array([], int), cache).shape == (
        0, model.config.vocab_size)
    with pytest.raises(ValueError, match="mode"):
        coded("quick")


def test_a_decode_step_reserves_no_memory(coded):
    """Numba's own counter, the arena's, and what NumPy tells tracemalloc."""
    _nrt_python.memsys_enable_stats()
    for mode in ("exact", "fast"):
        model = coded(mode)
        cache = model.new_cache(60)
        logits = model.forward(np.arange(20), np.arange(20), cache, [-1])
        for position in range(20, 24):                       # the arena finds its size
            logits = model.forward(np.array([3]), np.array([position]), cache)
        before = (model.arena.reserved, model._logits.reserved,
                  rtsys.get_allocation_stats().alloc)
        tracemalloc.start()
        try:
            for position in range(24, 30):
                logits = model.forward(np.array([logits[0].argmax()]), np.array([position]),
                                       cache)
            arrays = [trace for trace in tracemalloc.take_snapshot().traces
                      if trace.domain == np.lib.tracemalloc_domain]
        finally:
            tracemalloc.stop()
        assert sum(trace.size for trace in arrays) < 8_000       # ids, positions and the like
        assert (model.arena.reserved, model._logits.reserved,
                rtsys.get_allocation_stats().alloc) == before


def test_logits_that_are_kept_stay(coded):
    model = coded("exact")
    cache, kept = model.new_cache(12), []
    for position in range(12):
        kept.append(model.forward(np.array([position]), np.array([position]), cache)[0])
    np.testing.assert_allclose(np.stack(kept), whole(model, np.arange(12)), rtol=0, atol=2e-5)


# --- SmolLM2, from its file of four bits ------------------------------------------------------

@pytest.fixture(scope="module")
def engines(smollm2_gguf):
    return {mode: LanguageModel.load(smollm2_gguf, engine=mode) for mode in ("exact", "fast")}


def test_smollm2_keeps_its_bits(engines):
    for engine in engines.values():
        weights = engine.model.weights
        assert weights.words.nbytes < 112e6                 # 540 MB as float32
        assert sorted(set(weights.matrices["bits"])) == [4, 8]


def test_smollm2_exact_says_what_numpy_says(engines, smollm2_gguf):
    numpys = LanguageModel.load(smollm2_gguf)
    for text in HELD:
        ids = np.array(text["ids"][:200])
        expected, got = whole(numpys.model, ids), whole(engines["exact"].model, ids)
        np.testing.assert_allclose(got, expected, rtol=0, atol=5e-4)
    messages = [{"role": "user", "content": "Name three rivers in Europe, and one in Asia."}]
    assert engines["exact"].chat(messages, max_tokens=64).ids == numpys.chat(
        messages, max_tokens=64).ids


def test_smollm2_fast_is_near(engines):
    """On held texts: KL to exact below 0.01 on average, and 96 of 100 first choices."""
    divergences, agreed = [], []
    for text in HELD:
        ids = np.array(text["ids"])[:400]
        exact, fast = (whole(engines[mode].model, ids).astype(np.float64)
                       for mode in ("exact", "fast"))
        p, q = softmax(exact), softmax(fast)
        divergences.append((p * (np.log(p) - np.log(q))).sum(axis=-1))
        agreed.append(exact.argmax(axis=-1) == fast.argmax(axis=-1))
    print("KL", np.concatenate(divergences).mean(), "top-1", np.concatenate(agreed).mean())
    assert np.concatenate(divergences).mean() < 0.01
    assert np.concatenate(agreed).mean() > 0.96


def test_smollm2_serves(engines):
    """What the server's engine gives each request is what it gets alone."""
    fast = engines["fast"]
    prompts = ["One, two, three, four,", "The capital of Italy is", "def add(a, b):\n    re"]
    ids = [fast.tokenizer.encode(prompt) for prompt in prompts]
    alone = [generate(fast.model, fast.tokenizer, prompt, max_tokens=12,
                      eos_ids=fast.eos_ids).ids for prompt in prompts]
    engine = LLMEngine(fast, block_size=16, max_model_len=128)
    for number, prompt in enumerate(ids):
        engine.add_request(Request(prompt, max_tokens=12, id=str(number)))
    answers: dict[str, list[int]] = {}
    while engine.has_unfinished():
        for delta in engine.step():
            answers.setdefault(delta.request_id, []).extend(delta.ids)
    assert [answers[str(number)] for number in range(3)] == [list(answer) for answer in alone]


def test_a_step_takes_another_product_while_it_is_asked_to(tiny_model):
    """A learner's: where it is wrong, so are the logits of one row, and afterwards no more."""
    in_groups_of_32 = {"hidden_size": 96, "intermediate_size": 64}
    numpys, tensors = quantized(tiny_model("Llama", 0, **in_groups_of_32)[1], 4)
    model = CompiledModel.from_tensors(numpys.config, tensors, "exact")

    def logits():
        return model.forward(np.array([3]), np.array([0]), model.new_cache(1)).copy()

    def sevens(words, scales, minimums, x, y):
        y[:] = 7

    right = logits()
    with with_product(sevens):
        assert np.abs(logits() - right).max() > 0.1
    assert np.array_equal(logits(), right)


def test_with_another_product_all_that_call_it_are_new():
    """One that was compiled before holds the product that it was compiled with."""
    def called(function) -> list:
        """The compiled functions that one calls, itself and theirs among them."""
        found = function.py_func.__globals__
        names = [found.get(name) for name in function.py_func.__code__.co_names]
        return [function, *(each for other in names if isinstance(other, Dispatcher)
                            for each in called(other))]

    def that_call(product) -> set:
        return {each for each in called(model.run) if product in called(each)}
    before = that_call(int4_matvec)
    with with_product(lambda words, scales, minimums, x, y: None):
        own = products.int4_matvec
        assert {each.__name__ for each in that_call(own) - {own}} == {
            each.__name__ for each in before - {int4_matvec}}
        assert not that_call(int4_matvec) and not that_call(own) & before
    assert that_call(int4_matvec) == before


# --- engines by name --------------------------------------------------------------------------

def test_auto_takes_what_can_run(smollm2_gguf, tiny_model, monkeypatch):
    lines = []
    assert backends._best(smollm2_gguf, lines.append) == "exact" and not lines
    for family in ("Llama", "GPT2"):                        # float32
        assert backends._best(tiny_model(family, 0)[1], lines.append) == "numpy"
    assert not lines
    monkeypatch.setitem(sys.modules, "numba", None)
    assert backends._best(smollm2_gguf, lines.append) == "numpy"
    assert len(lines) == 1 and "Numba" in lines[0]
    with pytest.raises(NotAvailableError, match="Numba"):
        backends.load_model(smollm2_gguf, "fast")


def test_an_assembled_engine_runs_its_own_operators(smollm2_gguf, monkeypatch, tmp_path):
    (tmp_path / "gears.json").write_text("{}")
    monkeypatch.setattr(backends, "ASSEMBLED", tmp_path / "gears.json")
    assert backends._best(smollm2_gguf, print) == "numpy"


def test_an_engine_of_another_name_is_refused(tiny_model):
    with pytest.raises(UsageError, match="quick"):
        backends.load_model(tiny_model("GPT2", 0)[1], "quick")


def test_the_command_line_takes_an_engine_by_name(capsys):
    said = []
    for name in ("numpy", "exact", "auto"):
        assert main(["generate", "smollm2", "Two and two", "--max-tokens", "5", "--engine",
                     name]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] == said[2]
    options = _parser().read(["chat", "--engine", "fast", "--engine", "my_engine"])
    assert options.backend == "fast" and options.engine == Path("my_engine")
    assert _parser().read(["serve"]).backend == "auto"
