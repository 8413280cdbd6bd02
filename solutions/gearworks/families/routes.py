"""Which families each way of running a model takes, and which it refuses.

This is the one list of it. Whoever refuses a family asks here, and the book's table is made of
it. `solutions/tests/test_routes.py` tries every cell: what is said to run gives the logits of
the NumPy engine, and what is said to be refused is refused by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gearworks.config import GGUF_NAMES, SUPPORTED_ARCHITECTURES

# The families whose layers are those of `model.decoder_layer`, without experts.
PLAIN = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM",
         "Phi3ForCausalLM", "SmolLM3ForCausalLM")


def _all_but(*refused: str) -> tuple[str, ...]:
    return tuple(name for name in SUPPORTED_ARCHITECTURES if name not in refused)


@dataclass(frozen=True)
class Route:
    """A way to run or to write a model. families: the architectures that it takes."""

    title: str
    families: tuple[str, ...]


ROUTES: Mapping[str, Route] = {
    "numpy": Route("NumPy, with a cache in one piece or in blocks; the server", _all_but()),
    "compare": Route("`compare`", _all_but()),
    "gguf": Route("read from GGUF", _all_but()),
    "kv": Route("KV cache in 8 or 4 bits", _all_but("DeepseekV2ForCausalLM",
                                                    "DeepseekV3ForCausalLM")),
    "compiled": Route("`exact`, `fast`", _all_but()),
    "torch": Route("`torch`", _all_but("GPT2LMHeadModel", "DeepseekV2ForCausalLM",
                                       "DeepseekV3ForCausalLM")),
    "parallel": Route("several processes", _all_but()),
    "round": Route("rounded to the nearest", _all_but("GPT2LMHeadModel", "GptOssForCausalLM")),
    "calibrate": Route("GPTQ, AWQ", PLAIN),
    "write": Route("written to GGUF", tuple(GGUF_NAMES)),
    "onnx": Route("ONNX", PLAIN),
}


def runs(route: str, architecture: str) -> bool:
    """Whether a way of running models takes a family.

    >>> runs("torch", "LlamaForCausalLM"), runs("torch", "GPT2LMHeadModel")
    (True, False)
    """
    return architecture in ROUTES[route].families


def table() -> tuple[list[str], list[list[str]]]:
    """The head of the book's table, and its rows: of each family, where it runs."""
    head = ["Family", *(route.title for route in ROUTES.values())]
    return head, [[name, *("yes" if runs(route, name) else "refused" for route in ROUTES)]
                  for name in SUPPORTED_ARCHITECTURES]
