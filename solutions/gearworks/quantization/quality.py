"""What fewer bits cost: the same text through a model and through its rounded versions.

    perplexity   e to the mean -log p of the right next token: how well the text is predicted
    KL           mean of Σ p (log p - log q) over all tokens that could come next, p the
                 model's distribution and q the rounded one's: how far the two are apart
    top-1        the share of places where both find the same token likeliest

Perplexity can fall by luck; the KL divergence cannot, and needs fewer tokens to tell two
methods apart.

Shapes: T tokens of the text, V vocabulary.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from gearworks.errors import ModelError
from gearworks.kv_cache import Cache
from gearworks.model import Model
from gearworks.quantization import calibration
from gearworks.quantization.methods import (
    GROUPED, METHODS, bits_per_weight, require_method, round_model)
from gearworks.quantization.quantized_cache import (
    QuantizedKVCache, quantized_bytes_per_token)
from gearworks.weights import expected_shapes

TEXTS = Path(__file__).parent / "texts"
STEP = 64           # tokens that run at once: their logits are all that is held of a model
CACHES = {"kv-int8": 8, "kv-int4": 4}


@dataclass(frozen=True)
class Way:
    """A way to have fewer bits: a method of `methods.METHODS` with the size of its groups, or
    the weights as they are with a cache in fewer bits."""

    method: str
    group_size: int | None = None

    def __str__(self) -> str:
        return self.method + (f":{self.group_size}" if self.group_size else "")


@dataclass(frozen=True)
class Quality:
    """One line of the table. bits: for each weight of the layers, or for each number in the
    cache; kl in nats; top1: a share."""

    way: str
    bits: float
    perplexity: float
    kl: float
    top1: float


def parse_way(text: str) -> Way:
    """A way by its name: a method, with a group size behind a colon where it takes one.

    Raises ValueError with what is wrong.

    >>> parse_way("gptq:64"), parse_way("int4")
    (Way(method='gptq', group_size=64), Way(method='int4', group_size=32))
    """
    method, colon, size = text.partition(":")
    if method not in METHODS and method not in CACHES:
        raise ValueError(f"{method:.40} is none of {', '.join((*METHODS, *CACHES))}")
    if method not in GROUPED:
        if colon:
            raise ValueError(f"{method} has no groups of a size that could be chosen")
        return Way(method)
    if colon and not (size.isascii() and size.isdigit() and 0 < int(size) < 10**6):
        raise ValueError(f"{size!r:.40} is no size of a group")
    return Way(method, int(size) if colon else 32)


def log_probabilities(model: Model, ids: np.ndarray, cache: Cache) -> Iterator[np.ndarray]:
    """log p of every token at every place, in pieces (up to `STEP`, V).
    ids: (T,); the cache is empty and has room for them."""
    for start in range(0, len(ids), STEP):
        positions = np.arange(start, min(start + STEP, len(ids)))
        logits = model.forward(ids[positions], positions, cache)
        logits = logits - logits.max(axis=-1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        yield logits


def compare(reference: Sequence[np.ndarray], model: Model, ids: np.ndarray,
            cache: Cache) -> tuple[float, float, float]:
    """Perplexity, KL divergence from the reference, and the share of equal likeliest tokens.

    reference: what `log_probabilities` gave for the model as it was; ids: (T,), T > 1. The last
    token's distribution is not counted: nothing follows it.
    """
    nll, kl, same, start = 0.0, 0.0, 0, 0
    for log_p, log_q in zip(reference, log_probabilities(model, ids, cache)):
        stop = min(start + len(log_q), len(ids) - 1)
        log_p, log_q = log_p[:stop - start], log_q[:stop - start]
        nll -= float(log_q[np.arange(stop - start), ids[start + 1:stop + 1]].sum())
        kl += float(np.vecdot(np.exp(log_p), log_p - log_q).sum())
        same += int((log_p.argmax(axis=-1) == log_q.argmax(axis=-1)).sum())
        start = stop
    count = len(ids) - 1
    return float(np.exp(nll / count)), max(0.0, kl / count), same / count


def measure(model: Model, ways: Sequence[Way], ids: np.ndarray,
            texts: Callable[[], np.ndarray],
            progress: Callable[[Iterable, str], Iterable] = lambda items, _: items
            ) -> Iterator[Quality]:
    """The model as it is, then each way, one by one.

    ids: (T,) of the held text. texts: gives the ids (N, T) that GPTQ and AWQ are calibrated on,
    which must not be of the same text. progress: wraps the layers that are rounded, and is told
    for which way. Raises ModelError for a text that is too short or too long, and for a way
    that the model's sizes do not allow.
    """
    limit = model.config.max_position_embeddings
    if not 2 <= len(ids) <= limit:
        raise ModelError("cannot measure on this text",
                         f"it has {len(ids)} tokens, and 2 to {limit} can be used",
                         "another text, or other --tokens")
    for way in ways:                            # before the first has taken its time
        if way.method not in CACHES:
            require_method(model, way.method, way.group_size or 32)
    read = texts() if any(way.method in calibration.METHODS for way in ways) else None
    reference = list(log_probabilities(model, ids, model.new_cache(len(ids))))
    yield Quality("float32", 32.0, *compare(reference, model, ids, model.new_cache(len(ids))))
    for way in ways:
        if way.method in CACHES:
            bits = CACHES[way.method]
            cache = QuantizedKVCache(model.config, len(ids), bits)
            numbers = (2 * model.config.num_hidden_layers * model.config.num_key_value_heads
                       * model.config.head_dim)
            nbytes = quantized_bytes_per_token(model.config, bits, cache.group_size)
            yield Quality(str(way), 8 * nbytes / numbers,
                          *compare(reference, model, ids, cache))
            continue
        rounded = round_model(model, way.method, way.group_size or 32, read,
                              lambda layers, way=way: progress(layers, str(way)))
        shapes = expected_shapes(model.config)
        counts = {name: prod(shapes[name]) for name in rounded.matrices}
        bits = sum(bits_per_weight(matrix) * counts[name]
                   for name, matrix in rounded.matrices.items()) / sum(counts.values())
        yield Quality(str(way), bits, *compare(reference, rounded.model, ids,
                                               rounded.model.new_cache(len(ids))))


def table(rows: Iterable[Quality]) -> Iterator[str]:
    """The lines of a table for people, each as soon as its row is there."""
    for number, row in enumerate(rows):
        if number == 0:
            yield f"{'':<12}{'bits':>8}{'perplexity':>14}{'KL':>12}{'top-1':>10}"
        yield (f"{row.way:<12}{row.bits:>8.2f}{row.perplexity:>14.3f}{row.kl:>12.5f}"
               f"{100 * row.top1:>9.1f}%")
