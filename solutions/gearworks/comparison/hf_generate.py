"""The loop of `transformers` from outside: a decode step's time, and what it asks of PyTorch.

For comparisons on the page. Left out on purpose: batches, sampling, and everything that
`generate` can be configured to do; benchmarks are elsewhere.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel, StoppingCriteria


def decode_step_seconds(network: PreTrainedModel, input_ids: torch.Tensor,
                        tokens: int = 12) -> float:
    """Seconds of the fastest decode step among so many greedy tokens, the first the prefill's.

    input_ids: (1, T), at least one token. tokens: 2 or more.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> network = LlamaForCausalLM(LlamaConfig(vocab_size=32, hidden_size=8,
    ...                                        intermediate_size=16, num_hidden_layers=1,
    ...                                        num_attention_heads=2))
    >>> 0 < decode_step_seconds(network, torch.tensor([[3, 4]]), tokens=3) < 60
    True
    """
    steps = _Steps(time.perf_counter)
    _generate(network, input_ids, tokens, steps)
    return float(min(np.diff(steps.marks)))


def decode_step_operators(network: PreTrainedModel, input_ids: torch.Tensor) -> list[str]:
    """The operators that Python asks PyTorch for in one decode step: names, in their order.

    input_ids: (1, T), at least one token.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> network = LlamaForCausalLM(LlamaConfig(vocab_size=32, hidden_size=8,
    ...                                        intermediate_size=16, num_hidden_layers=1,
    ...                                        num_attention_heads=2))
    >>> decode_step_operators(network, torch.tensor([[3, 4]])).count("embedding")
    1
    """
    with _Operators() as operators:
        steps = _Steps(lambda: len(operators.names))
        _generate(network, input_ids, 3, steps)
    return operators.names[steps.marks[1]:steps.marks[2]]


def _generate(network: PreTrainedModel, input_ids: torch.Tensor, tokens: int,
              steps: "_Steps") -> None:
    with torch.inference_mode():
        network.generate(input_ids, attention_mask=torch.ones_like(input_ids),
                         max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False,
                         pad_token_id=0, stopping_criteria=[steps])


class _Steps(StoppingCriteria):
    """Never stops anything; measures something whenever a token is finished."""

    def __init__(self, measure: Callable[[], float]):
        self.measure, self.marks = measure, []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
        self.marks.append(self.measure())
        return torch.zeros(len(input_ids), dtype=torch.bool)


class _Operators(TorchDispatchMode):
    """Notes the name of each operator that Python asks for."""

    def __init__(self):
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.names.append(operator.overloadpacket.__name__)
        return operator(*args, **(kwargs or {}))
