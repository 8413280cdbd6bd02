"""What is watched of the loop of `transformers`. Four seconds, most of them for imports."""

import time
from collections import Counter

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from gearworks.comparison.hf_generate import decode_step_operators, decode_step_seconds

PROMPT = torch.tensor([[5, 3, 9, 4]])


def network(layers: int) -> LlamaForCausalLM:
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=64, hidden_size=24, intermediate_size=32, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, head_dim=6, eos_token_id=1)).eval()


def test_the_operators_are_those_of_one_step():
    counts = {layers: Counter(decode_step_operators(network(layers), PROMPT))
              for layers in (1, 3)}
    products = {layers: count["mm"] + count["linear"] for layers, count in counts.items()}
    assert products == {1: 7 + 1, 3: 3 * 7 + 1}
    assert counts[3].total() > counts[1].total() > 7 + 1


def test_a_longer_prompt_asks_for_no_more():
    assert (decode_step_operators(network(2), PROMPT)
            == decode_step_operators(network(2), PROMPT.tile(1, 5)))


@pytest.mark.parametrize("slow_call, slow", [("each", True), ("first", False)])
def test_the_time_is_that_of_the_fastest_decode_step(slow_call, slow):
    calls = []

    def pause(*_):
        calls.append(len(calls))
        if slow_call == "each" or len(calls) == 1:               # the first call is the prefill
            time.sleep(0.5 if slow_call == "first" else 0.05)
    watched = network(1)
    watched.register_forward_pre_hook(pause)
    seconds = decode_step_seconds(watched, PROMPT, tokens=4)
    assert len(calls) == 4
    assert seconds >= 0.05 if slow else seconds < 0.5
