"""What a configuration says about RoPE over contexts longer than a model was first trained on.

How the rotations are slowed is the subject of `gearworks.rope_scaling`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gearworks.errors import ModelError

SCALING_KINDS = ("linear", "dynamic", "llama3", "yarn", "longrope")
# To Hugging Face, a zero here is as if it were missing.
_ZERO_IS_NONE = {"mscale", "mscale_all_dim", "beta_fast", "beta_slow"}


@dataclass(frozen=True)
class RopeScaling:
    """What a configuration says about its RoPE, in Hugging Face's names.

    kind: "linear", "dynamic", "llama3", "yarn" or "longrope"; or "factors", which GGUF files
    have in place of llama3. original_max_position_embeddings: the context of the first
    training. The other fields belong to llama3 (low_freq_factor, high_freq_factor), to yarn
    (from beta_fast to truncate), to factors (what the frequency of each pair is divided by),
    and to longrope: the same in texts up to that context, and in longer ones; and
    attention_factor.
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
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()

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
        if (parameters.get("factor") is None and (
                kind == "longrope"
                or kind == "yarn" and "original_max_position_embeddings" in parameters)):
            values["factor"] = max_position_embeddings / _number(
                values | parameters, "original_max_position_embeddings")
        if kind == "longrope":
            values |= {name: _factors(name, parameters.get(name))
                       for name in ("short_factor", "long_factor")}
        for name in cls.__dataclass_fields__.keys() - {"kind", "truncate", "factors",
                                                       "short_factor", "long_factor"}:
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
        if kind == "longrope" and values["original_max_position_embeddings"] <= 1:
            raise _bad_scaling("longrope needs an original context of several tokens")
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
        return cls("factors", factor, max_position_embeddings,
                   factors=_factors("factor", list(map(float, factors))))

    @property
    def of_pairs(self) -> dict[str, tuple[float, ...]]:
        """The lists that have a factor for each pair, by name; only those that are there."""
        return {name: getattr(self, name) for name in ("factors", "short_factor", "long_factor")
                if getattr(self, name)}


def _factors(name: str, factors: Any) -> tuple[float, ...]:
    if not isinstance(factors, list) or not factors:
        raise _bad_scaling(f"the longrope scaling has {factors!r:.80} for its {name}, where "
                           "a list of numbers is needed")
    named = {f"{name} {pair} of the RoPE": factor for pair, factor in enumerate(factors)}
    return tuple(_number(named, each) for each in named)


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
