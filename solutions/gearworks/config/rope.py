"""What a configuration says about RoPE over contexts longer than a model was first trained on.

How the rotations are slowed is the subject of `gearworks.rope_scaling`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gearworks.errors import ModelError

SCALING_KINDS = ("linear", "dynamic", "llama3", "yarn")
# To Hugging Face, a zero here is as if it were missing.
_ZERO_IS_NONE = {"mscale", "mscale_all_dim", "beta_fast", "beta_slow"}


@dataclass(frozen=True)
class RopeScaling:
    """What a configuration says about its RoPE, in Hugging Face's names.

    kind: "linear", "dynamic", "llama3" or "yarn"; or "factors", which GGUF files have in place
    of llama3. original_max_position_embeddings: the context of the first training. The other
    fields belong to llama3 (low_freq_factor, high_freq_factor), to yarn (from beta_fast to
    truncate), and to factors: what the frequency of each pair is divided by.
    """

    kind: str
    factor: float
    original_max_position_embeddings: int
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    factors: tuple[float, ...] = ()

    @classmethod
    def from_hf(cls, parameters: Mapping[str, Any],
                max_position_embeddings: int) -> "RopeScaling | None":
        """Read `rope_parameters` (or the older `rope_scaling`); None where nothing is scaled.

        Raises ModelError for a kind that is not computed here, and for a parameter that is
        missing or impossible.
        """
        kind = parameters.get("rope_type", parameters.get("type", "default"))
        if kind == "default":
            return None
        if not isinstance(kind, str) or kind not in SCALING_KINDS:
            raise _bad_scaling(f"the RoPE scaling {kind!r:.80} is not supported; this engine "
                               "computes " + ", ".join(SCALING_KINDS))
        values: dict[str, Any] = {"original_max_position_embeddings": max_position_embeddings}
        if (kind == "yarn" and parameters.get("factor") is None
            and "original_max_position_embeddings" in parameters):
            values["factor"] = (max_position_embeddings
                                / _number(parameters, "original_max_position_embeddings"))
        for name in cls.__dataclass_fields__.keys() - {"kind", "truncate", "factors"}:
            given = parameters.get(name)
            if given is not None and not (name in _ZERO_IS_NONE and given in (0, False)):
                values[name] = _number(parameters, name)
        values["truncate"] = parameters.get("truncate", True)
        if values["truncate"] is None:                      # to Hugging Face, as false
            values["truncate"] = False
        if not isinstance(values["truncate"], bool):
            raise _bad_scaling(f"truncate is {values['truncate']!r:.80}, where true or false "
                               "is needed")
        # whatever the file says: Hugging Face measures from the whole context
        if kind == "dynamic":
            values["original_max_position_embeddings"] = max_position_embeddings
        if "factor" not in values:
            raise _bad_scaling("its factor is missing")
        if kind == "llama3":
            if not {"low_freq_factor", "high_freq_factor"} <= values.keys():
                raise _bad_scaling("its low_freq_factor or its high_freq_factor is missing")
            if values["low_freq_factor"] >= values["high_freq_factor"]:
                raise _bad_scaling("low_freq_factor is not below high_freq_factor")
        return cls(kind, **values)

    @classmethod
    def from_factors(cls, factors: Sequence[float], max_position_embeddings: int,
                     factor: float = 1.0) -> "RopeScaling":
        """RoPE whose pairs are slowed one by one, and all of them by `factor` besides.

        factors: (d/2,), for the fastest pair first.

        Raises ModelError for a factor that is not a positive number.
        """
        named = {f"factor {pair} of the RoPE": float(factor)
                 for pair, factor in enumerate(factors)}
        return cls("factors", factor, max_position_embeddings,
                   factors=tuple(_number(named, name) for name in named))


def _number(parameters: Mapping[str, Any], name: str) -> float:
    value = parameters[name]
    # Zero and less would divide by zero or turn backwards; the bounds are float32's
    if (not isinstance(value, (int, float)) or isinstance(value, bool)
        or not 1e-38 < value < 1e38):
        raise _bad_scaling(f"{name} is {value!r:.80}, where a positive number is needed")
    return value


def _bad_scaling(why: str) -> ModelError:
    return ModelError("the model's RoPE cannot be used", why,
                      "check rope_parameters (or rope_scaling) in config.json against the "
                      "model's publisher")
