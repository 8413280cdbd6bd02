"""With `batch_invariant`, a request's logits have the same bits whoever else is there."""

import numpy as np
import pytest

from gearworks.errors import ModelError
from gearworks.language_model import LanguageModel
from gearworks.model import Model
from gearworks.serving.answer import Answer
from gearworks.serving.engine import LLMEngine
from gearworks.serving.request import Request
from gearworks.tokenizer import Tokenizer
from gearworks.vocabularies.vocabulary import Vocabulary

BLOCK = 8
WIDE = {"num_hidden_layers": 2, "hidden_size": 204, "intermediate_size": 300, "head_dim": 10}
LATENT = {"num_hidden_layers": 2, "hidden_size": 204, "kv_lora_rank": 44}
FAMILIES = [("Llama", WIDE), ("Qwen2", WIDE), ("Qwen3", WIDE),
            ("Mistral", WIDE | {"sliding_window": 13}), ("Gemma3", WIDE), ("GPT2", {}),
            ("Mixtral", WIDE), ("Qwen3Moe", WIDE), ("SmolLM3", WIDE), ("Olmo2", WIDE),
            ("Phi3", WIDE | {"head_dim": 16}), ("Gemma2", WIDE), ("GptOss", WIDE),
            ("DeepseekV2", LATENT | {"topk_method": "greedy"}), ("DeepseekV3", LATENT)]


@pytest.fixture
def logits(monkeypatch):
    """The logits that each token of an answer was chosen from, by the sequence's name."""
    seen: dict[str, list[np.ndarray]] = {}
    forward = Answer.forward

    def recorded(answer, ids):
        row = forward(answer, ids)
        seen.setdefault(answer.sequence.name, []).append(np.array(row))
        return row
    monkeypatch.setattr(Answer, "forward", recorded)
    return seen


def requests(rng):
    """Prompts of many lengths, some of them behind one beginning that blocks can hold."""
    shared = rng.integers(3, 211, 3 * BLOCK + 5).tolist()
    lengths = [1, 2, BLOCK, BLOCK + 1, 3 * BLOCK - 1, 50, 3, 31]
    return [Request((shared if number % 3 == 0 else []) + rng.integers(3, 211, length).tolist(),
                    max_tokens=9, ignore_eos=True, id=str(number))
            for number, length in enumerate(lengths)]


def run(model, wanted, logits, together=True, **options):
    logits.clear()
    engines = []
    for group in ([wanted] if together else [[request] for request in wanted]):
        engine = LLMEngine(model, block_size=BLOCK, **options)
        for number, request in enumerate(group):
            engine.add_request(request)
            if number % 3 == 2:
                engine.step()
        while engine.has_unfinished():
            engine.step()
        engines.append(engine)
    return {name: np.array(rows) for name, rows in logits.items()}, engines[0]


@pytest.mark.reference("the same bits")
@pytest.mark.parametrize("family, settings", FAMILIES, ids=lambda part: str(part)[:8])
def test_the_same_bits_alone_and_in_any_batch(family, settings, tiny_model, logits, rng):
    _, folder = tiny_model(family, 5, **settings)
    pieces = {f"w{number}": number for number in range(211)}
    model = LanguageModel(Model.load(folder), Tokenizer(Vocabulary(pieces, merges={})), {},
                          frozenset())
    wanted = requests(rng)
    alone, _ = run(model, wanted, logits, together=False, batch_invariant=True)
    preempted = hits = 0
    for options in ({}, {"num_blocks": 16, "max_num_seqs": 8, "max_num_batched_tokens": 26},
                    {"speculative_tokens": 3}):
        together, engine = run(model, wanted, logits, batch_invariant=True, **options)
        preempted += sum(len(record.preempted) for record in engine.records)
        hits += sum(cached for record in engine.records for _, cached in record.admitted)
        for name, rows in alone.items():
            np.testing.assert_array_equal(together[name], rows, err_msg=f"{name} {options}")
    assert hits > 0 and preempted > 0


@pytest.mark.reference("the same bits")
def test_an_expert_takes_every_row_alone(tiny_model, logits, rng):
    """All rows of a step may go to one expert, or some of them: that must not show. A text of
    one token again and again has the same hidden state, and the same expert, everywhere."""
    _, folder = tiny_model("Mixtral", 5, **WIDE | {"num_local_experts": 2,
                                                  "num_experts_per_tok": 1})
    pieces = {f"w{number}": number for number in range(211)}
    model = LanguageModel(Model.load(folder), Tokenizer(Vocabulary(pieces, merges={})), {},
                          frozenset())
    wanted = [Request([7] * 30, max_tokens=3, ignore_eos=True, id="same"), *requests(rng)]
    alone, _ = run(model, wanted, logits, together=False, batch_invariant=True)
    together, _ = run(model, wanted, logits, batch_invariant=True)
    for name, rows in alone.items():
        np.testing.assert_array_equal(together[name], rows, err_msg=name)


def test_without_it_bits_do_differ(tiny_model, logits, rng):
    """Otherwise the test above could not fail."""
    _, folder = tiny_model("Llama", 5, **WIDE)
    pieces = {f"w{number}": number for number in range(211)}
    model = LanguageModel(Model.load(folder), Tokenizer(Vocabulary(pieces, merges={})), {},
                          frozenset())
    wanted = requests(rng)
    alone, _ = run(model, wanted, logits, together=False)
    together, _ = run(model, wanted, logits)
    assert any((together[name] != rows).any() for name, rows in alone.items())
    for name, rows in alone.items():
        np.testing.assert_allclose(together[name], rows, atol=1e-4)


def test_what_cannot_be_offered_is_refused(tiny_model, monkeypatch):
    _, folder = tiny_model("Llama", 5)
    pieces = {f"w{number}": number for number in range(211)}
    llama = LanguageModel(Model.load(folder), Tokenizer(Vocabulary(pieces, merges={})), {},
                          frozenset())
    with pytest.raises(ModelError, match="at least 144"):
        LLMEngine(llama, batch_invariant=True, max_num_seqs=16, max_num_batched_tokens=100)
    monkeypatch.setattr(Model, "has_fixed_shapes", False)
    with pytest.raises(ModelError, match="this backend"):
        LLMEngine(llama, batch_invariant=True)
