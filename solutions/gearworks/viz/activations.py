"""What passes through the engine while it answers: every activation of the token that decides.

Nothing in the engine knows of it. The operators are watched by their names as they are called
and as they return, and the cache and the model are asked through the methods that every engine
has. So an engine with a learner's gears is recorded like any other, whoever calls what.

Shapes: T tokens of a pass, S tokens stored by then, D hidden size, H query heads, K key/value
heads, d head size, F feed-forward size, V vocabulary. All float32.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gearworks import model as engine
from gearworks.decoding import Generation
from gearworks.kv_cache import Cache, Rows
from gearworks.language_model import LanguageModel
from gearworks.model import Model
from gearworks.viz.attention import weights_of
from gearworks.viz.trace import FigureError

# Attention is a mixture of the values; so far may it be off, relative to its largest number
MIXTURE_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Pass:
    """One call of the model: its tokens, and what became of the last of them.

    ids: (T,) the tokens that went in. stored: how many were in the cache before. layers: by
    layer, from a name to an array of the last token:

        stream        (D,)    as the layer finds it
        normed        (D,)    after the first norm
        queries       (H, d)  before they turn; missing where `apply_rope` is never called
        keys          (K, d)  before they turn; missing likewise
        turned        (H, d)  the queries as attention gets them
        scores        (H, S)  with every key, over the root of d
        weights       (H, S)  of a softmax: what attention did with the scores
        attended      (H, d)  the values, mixed
        from_heads    (D,)    what attention adds to the stream
        middle        (D,)    the stream with it
        normed_again  (D,)    after the second norm
        gate, up      (F,)    missing where `swiglu` is not called once, as among experts
        gated         (F,)    swiglu of the two
        from_network  (D,)    what the feed-forward network adds

    and of all T tokens what the cache was given: stored_keys, stored_values (T, K, d).
    stream: (D,) after the last layer. normed: (D,) after the final norm. logits: (V,).
    """

    ids: tuple[int, ...]
    stored: int
    layers: tuple[Mapping[str, np.ndarray], ...]
    stream: np.ndarray
    normed: np.ndarray
    logits: np.ndarray


def record(language_model: LanguageModel, prompt: str,
           **options: Any) -> tuple[Generation, list[Pass]]:
    """Generate, as `LanguageModel.generate`, and keep what passed through the model.

    Raises FigureError for an engine or a family whose layers are not two pre-norm halves in
    NumPy, and where what attention gave is no mixture of the values it was given.
    """
    if not isinstance(language_model.model, Model):
        raise FigureError("cannot record this engine",
                          f"it is a {type(language_model.model).__name__}, whose operators "
                          "do not pass through Python",
                          'load the model with engine="numpy"')
    watched = WatchedModel(language_model.model)
    generation = replace(language_model, model=watched).generate(prompt, **options)
    return generation, watched.passes


class WatchedModel(Model):
    """A model that keeps its passes. Its caches must come from its own `new_cache`."""

    def __init__(self, model: Model):
        self.config, self.weights = model.config, model.weights
        self.passes: list[Pass] = []

    def new_cache(self, capacity: int) -> "WatchedCache":
        """As `Model.new_cache`, watched."""
        return WatchedCache(super().new_cache(capacity))

    def forward(self, input_ids: np.ndarray, positions: np.ndarray, cache: "WatchedCache",
                logits_at: Rows = slice(None)) -> np.ndarray:
        """As `Model.forward`; the last row's logits are kept."""
        watch, stored = Watch(self.config.hidden_size), cache.stored
        cache.watch, before = watch, sys.getprofile()
        sys.setprofile(watch.on_event)
        try:
            logits = super().forward(input_ids, positions, cache, logits_at)
        finally:
            sys.setprofile(before)
        self.passes.append(_pass(watch, self.config, input_ids, stored, logits[-1]))
        return logits


class WatchedCache:
    """A cache that tells a watch what it was given, and what it gave.

    stored: how many tokens it has. Its keys and values so far are kept by layer, (S, K, d).
    """

    def __init__(self, cache: Cache):
        self.cache, self.watch = cache, None
        self.keys: dict[int, np.ndarray] = {}
        self.values: dict[int, np.ndarray] = {}

    @property
    def stored(self) -> int:
        """How many tokens the first layer has."""
        return len(self.keys.get(0, ()))

    @property
    def capacity(self) -> int:
        """As the cache's own."""
        return self.cache.capacity

    def truncate(self, length: int) -> None:
        """As the cache's own."""
        self.cache.truncate(length)
        for kept in (self.keys, self.values):
            kept.update({layer: array[:length] for layer, array in kept.items()})

    def attend(self, layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """As the cache's own."""
        for kept, new in ((self.keys, k), (self.values, v)):
            kept[layer] = np.concatenate([kept.get(layer, new[:0]), new])
        attended = self.cache.attend(layer, q, k, v)
        self.watch.on_attention(layer, q, k, v, attended, self.keys[layer], self.values[layer])
        return attended


@dataclass
class Watch:
    """What the operators of one pass were given and gave, in the order of their calls.

    norms: of the whole stream, (input, output) of the last row. Of the other operators, a list
    by layer, as far as attention has come: `turns` belong to the layer whose attention follows,
    `networks` to the one whose attention came before.
    """

    size: int
    norms: list[list[np.ndarray]] = field(default_factory=list)
    turns: list[list[np.ndarray]] = field(default_factory=lambda: [[]])
    networks: list[list[list[np.ndarray]]] = field(default_factory=list)
    attention: list[dict[str, np.ndarray]] = field(default_factory=list)
    _open: list[str] = field(default_factory=list)

    def on_event(self, frame: Any, event: str, result: Any) -> None:
        """For `sys.setprofile`."""
        name = frame.f_code.co_name
        if event not in ("call", "return") or name not in ("rms_norm", "apply_rope", "swiglu"):
            return
        if event == "call":
            self._open.append(name)
            if self._open.count(name) == 1:                # not one that calls another
                count = 2 if name == "swiglu" else 1
                arguments = [frame.f_locals[argument]
                             for argument in frame.f_code.co_varnames[:count]]
                self._called(name, arguments)
        else:
            self._open.remove(name)
            if name not in self._open and isinstance(result, np.ndarray):
                self._returned(name, result)

    def _called(self, name: str, arguments: Sequence[np.ndarray]) -> None:
        rows = [np.array(argument[-1]) for argument in arguments]
        if name == "swiglu":
            self.networks[-1].append(rows)
        elif name == "apply_rope":
            self.turns[-1].append(rows[0])
        elif rows[0].shape == (self.size,):                # others are norms of single heads
            self.norms.append(rows)

    def _returned(self, name: str, result: np.ndarray) -> None:
        row = np.array(result[-1])
        if name == "swiglu":
            self.networks[-1][-1].append(row)
        elif name == "rms_norm" and row.shape == (self.size,):
            self.norms[-1].append(row)

    def on_attention(self, layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray,
                     attended: np.ndarray, keys: np.ndarray, values: np.ndarray) -> None:
        """q, attended: (T, H, d); k, v: (T, K, d), new; keys, values: (S, K, d), all of them.
        """
        _, K, d = keys.shape
        weights = weights_of(q[-1:], keys)[:, 0]                                       # (H, S)
        group = len(weights) // K
        of_heads = [np.repeat(array, group, axis=1).transpose(1, 0, 2)             # (H, S, d)
                    for array in (keys, values)]
        mixed = (weights[:, None] @ of_heads[1])[:, 0]
        error = np.abs(mixed - attended[-1]).max()
        if not error <= MIXTURE_TOLERANCE * np.abs(values).max():
            raise FigureError(
                "cannot draw this attention",
                f"what layer {layer} got from its cache differs by {error:.3g} from the values "
                "that were stored, mixed by its weights",
                "does the cache store every key and value, and look at all of them? Windows, "
                "sinks and soft caps are not drawn")
        scores = (of_heads[0] @ q[-1][..., None])[..., 0] / np.float32(d ** 0.5)
        self.attention.append({"turned": np.array(q[-1]), "scores": scores, "weights": weights,
                               "attended": np.array(attended[-1]), "stored_keys": np.array(k),
                               "stored_values": np.array(v)})
        self.turns.append([])
        self.networks.append([])


def _pass(watch: Watch, config: Any, ids: np.ndarray, stored: int, logits: np.ndarray) -> Pass:
    """One pass, out of what a watch has seen of it."""
    L, H = config.num_hidden_layers, config.num_attention_heads
    if len(watch.attention) != L or len(watch.norms) != 2 * L + 1:
        raise FigureError(
            "cannot draw this model",
            f"its {L} layers called attention {len(watch.attention)} times and rms_norm "
            f"{len(watch.norms)} times, where two a layer and a last one are expected",
            "only pre-norm layers of the Llama kind are drawn, whose operators have the names "
            "that the chapters give them")
    layers = []
    for layer, arrays in enumerate(watch.attention):
        (stream, normed), (middle, normed_again) = watch.norms[2 * layer:2 * layer + 2]
        kept = {"stream": stream, "normed": normed, **arrays, "from_heads": middle - stream,
                "middle": middle, "normed_again": normed_again,
                "from_network": watch.norms[2 * layer + 2][0] - middle}
        if watch.turns[layer]:
            unturned = np.concatenate(watch.turns[layer])      # in one call, or two
            kept |= {"queries": unturned[:H], "keys": unturned[H:]}
        if len(watch.networks[layer]) == 1:
            kept |= dict(zip(("gate", "up", "gated"), watch.networks[layer][0]))
        layers.append(kept)
    stream, normed = watch.norms[-1]
    return Pass(tuple(map(int, ids)), stored, tuple(layers), stream, normed, np.array(logits))


def read_early(model: Model, streams: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the head would say to the stream after each layer, were it the last.

    streams: (L + 1, D). Returns the likeliest id and its probability, (L + 1,) each. Through
    the engine's final norm and head.
    Source: nostalgebraist 2020, "interpreting GPT: the logit lens".
    """
    normed = engine.rms_norm(streams, model.weights.norm, model.config.rms_norm_eps)
    logits = engine.linear(normed, model.weights.lm_head).astype(np.float64)
    logits -= logits.max(axis=-1, keepdims=True)
    return logits.argmax(axis=-1), 1 / np.exp(logits).sum(axis=-1)
