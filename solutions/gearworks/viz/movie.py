"""The moving picture: a text on its way through the engine, with the numbers that it met there.

One figure at three distances. The whole model: a tower of layers, through which the last token
of each pass goes. One layer: every array between two of its operators. One head: its query, the
keys, scores, weights and values. What is shown was recorded (`activations`), and is kept
small:

    codes     an array's numbers as integers of a byte or two, times one scale. Of vectors,
              which have a few large numbers and many small ones, the code is that of the square
              root (`pack`), so that small ones keep their sign and size.
    chunk     the codes of one layer, or of what all layers share, one array after the other,
              compressed by zlib: {"arrays": [[name, pass, shape, kind, scale, size], ...],
              "codes": base64}. A size is the root mean square of the exact numbers.

Shapes: as in `activations`; L layers.
"""

import json
import zlib
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gearworks.decoding import Generation
from gearworks.language_model import LanguageModel
from gearworks.viz.activations import Pass, read_early, record
from gearworks.viz.figure import Figure, interactive
from gearworks.viz.trace import FigureError

# of one figure in a notebook, which has other cells to keep as well
MOST_MOVIE_BYTES = 300_000
MOST_TOKENS = 32                      # of prompt and text, as many as a head's view can show
LIKELIEST = 8                         # entries of the vocabulary beside the one that was chosen
# (integer type, its largest code, whether codes are of square roots)
PACKINGS = {"vector": (np.int8, 63, True), "numbers": (np.int16, 32767, False)}
NUMBERS = ("scores", "weights")       # few, and shown as numbers
# Names of steps, for `step`; the same words stand above the picture.
LAYER_STEPS = ("norm", "queries, keys, values", "rotation", "cache", "attention", "heads mixed",
               "added", "second norm", "gate and up", "SwiGLU", "down", "added again")
HEAD_STEPS = ("rotation", "scores", "softmax", "values")
MODEL_STEPS = ("encode", "embed", "layers", "head", "choose", "append")


def engine_movie(language_model: LanguageModel, prompt: str = "The capital of France is", *,
                 title: str = "A text goes through the engine", layer: int | None = None,
                 head: int | None = None, step: str = "", most_bytes: int = MOST_MOVIE_BYTES,
                 **options: Any) -> Figure:
    """A prompt's way through the engine, with every activation of the tokens that decide.

    The model runs once, as `LanguageModel.generate` runs it, with `options` for that; by
    default it generates two tokens. What runs is recorded: a learner's functions, where they
    stand in the engine's place.
    layer, head: where the figure opens; without them it shows the whole model. step: with which
    step, one of `MODEL_STEPS`, `LAYER_STEPS` or `HEAD_STEPS`, by default the first. Layer 0 is
    the first.
    Keys, where the figure has the focus: left and right for the step before and the next, down
    and up to go nearer and away, Home and End.
    most_bytes: of the figure. Where not all layers fit, the first, the last, `layer` and others
    evenly between them can be opened; the tower shows them all.
    Raises FigureError for a place or a step that there is not, more than `MOST_TOKENS` tokens,
    no token at all, and what `record` refuses; ModelError as `generate`.
    """
    steps = MODEL_STEPS if layer is None else LAYER_STEPS if head is None else HEAD_STEPS
    if step and step not in steps:
        raise FigureError("cannot open the picture there", f"there is no step {step!r}",
                          "at this distance the steps are " + "; ".join(steps))
    config = language_model.model.config
    for name, number, count in (("layer", layer, config.num_hidden_layers),
                                ("head", head, config.num_attention_heads)):
        if number is not None and not 0 <= number < count or layer is None and head is not None:
            raise FigureError("cannot open the picture there", f"there is no {name} {number}",
                              f"give one from 0 to {count - 1}, and a layer with every head")
    generation, passes = record(language_model, prompt, **{"max_tokens": 2, **options})
    if not passes or len(generation.prompt_ids) + len(generation.ids) > MOST_TOKENS:
        raise FigureError("cannot draw this text",
                          f"the model was called {len(passes)} times, for "
                          f"{len(generation.prompt_ids)} + {len(generation.ids)} tokens",
                          f"at least one must be generated, and no more than {MOST_TOKENS} be "
                          "there")
    data = _shared(language_model, generation, passes)
    data["at"] = {"layer": layer, "head": head, "step": step}
    words = _words(title, data, passes)
    empty = interactive("movie", title, json.dumps(data), words, most_bytes=most_bytes)
    chunks = [_json(layer_chunk(passes, index)) for index in range(config.num_hidden_layers)]
    left = most_bytes - len(empty.html.encode())
    kept = _that_fit([len(chunk) + 8 for chunk in chunks], left, layer)
    whole = _json(data)[:-1] + ',"details":{' + ",".join(
        f'"{index}":{chunks[index]}' for index in kept) + "}}"
    return interactive("movie", title, whole, words, most_bytes=most_bytes)


def pack(array: np.ndarray, kind: str) -> tuple[bytes, float]:
    """An array's codes, and the scale to multiply with what they stand for.

    A code c of a largest code m stands for scale · c / m, or, for a "vector", for
    scale · c · |c| / m².

    >>> codes, scale = pack(np.array([8.0, -2.0, 0.5, 0.0]), "vector")
    >>> list(np.frombuffer(codes, np.int8)), scale
    ([np.int8(63), np.int8(-32), np.int8(16), np.int8(0)], 8.0)
    """
    dtype, most, of_roots = PACKINGS[kind]
    scale = float(np.abs(array).max(initial=0)) or 1.0
    share = np.asarray(array, np.float64) / scale
    if of_roots:
        share = np.sign(share) * np.sqrt(np.abs(share))
    return np.rint(share * most).astype(dtype).tobytes(), scale


def chunk(arrays: Sequence[tuple[str, int, np.ndarray]]) -> dict[str, Any]:
    """Arrays, each with its name and its pass (-1: of all passes), as one chunk."""
    listed, codes = [], []
    for name, number, array in arrays:
        kind = "numbers" if name in NUMBERS else "vector"
        packed, scale = pack(array, kind)
        size = float(np.sqrt(np.mean(np.square(array, dtype=np.float64))))
        listed.append([name, number, list(array.shape), kind, _short(scale), _short(size)])
        codes.append(packed + b"\0" * (len(packed) % 2))   # two-byte codes begin at even places
    return {"arrays": listed,
            "codes": b64encode(zlib.compress(b"".join(codes), 9)).decode("ascii")}


def layer_chunk(passes: Sequence[Pass], index: int) -> dict[str, Any]:
    """All that was recorded of one layer."""
    arrays = []
    for number, one in enumerate(passes):
        arrays += [(name, number, array) for name, array in one.layers[index].items()
                   if name not in ("stream", "stored_keys", "stored_values")]
    for name in ("stored_keys", "stored_values"):
        arrays.append((name, -1, np.concatenate([one.layers[index][name] for one in passes])))
    return chunk(arrays)


def _that_fit(sizes: Sequence[int], room: int, wanted: int | None) -> list[int]:
    """The places of as many chunks as there is room for, evenly apart, and the wanted one's.
    """
    for count in range(len(sizes), 0, -1):
        places = {*np.rint(np.linspace(0, len(sizes) - 1, count)).astype(int).tolist()}
        places |= set() if wanted is None else {wanted}
        if sum(sizes[place] for place in places) <= room:
            return sorted(places)
    raise FigureError("cannot draw this figure", "not one layer has room in it",
                      "give a shorter prompt, or fewer tokens to generate")


def _shared(language_model: LanguageModel, generation: Generation,
            passes: Sequence[Pass]) -> dict[str, Any]:
    """What all distances show: tokens, the stream from layer to layer, and the choices."""
    model, config = language_model.model, language_model.model.config
    ids = [*generation.prompt_ids, *generation.ids]

    def text(id: int) -> str:
        return language_model.tokenizer.decode([int(id)])

    arrays, told = [], []
    for number, one in enumerate(passes):
        streams = np.stack([layer["stream"] for layer in one.layers] + [one.stream])
        arrays += [("stream", number, streams), ("normed", number, one.normed)]
        shares = np.exp(one.logits.astype(np.float64) - one.logits.max())
        shares /= shares.sum()
        order = np.argsort(-one.logits, kind="stable")
        # without a next token, what was chosen ended the text
        after = one.stored + len(one.ids)
        chosen = ids[after] if after < len(ids) else None
        listed = [int(id) for id in order[:LIKELIEST]]
        if chosen is not None and chosen not in listed:
            listed.append(chosen)
        early = [[text(id), _short(share)] for id, share in zip(*read_early(model, streams))]
        told.append({
            "stored": one.stored, "count": len(one.ids), "chosen": chosen,
            "rank": None if chosen is None else int(np.flatnonzero(order == chosen)[0]),
            "listed": [[text(id), id, _short(one.logits[id]), _short(shares[id])]
                       for id in listed],
            "sizes": [_short(np.sqrt(np.mean(np.square(stream)))) for stream in streams],
            "early": early})
    return {"tokens": [[text(id), id] for id in ids], "prompt": len(generation.prompt_ids),
            "shape": {"L": config.num_hidden_layers, "D": config.hidden_size,
                      "H": config.num_attention_heads, "K": config.num_key_value_heads,
                      "d": config.head_dim, "F": config.intermediate_size,
                      "V": config.vocab_size},
            "text": generation.text, "finish": generation.finish_reason, "passes": told,
            "shared": chunk(arrays),
            "names": {"model": MODEL_STEPS, "layer": LAYER_STEPS, "head": HEAD_STEPS}}


def _words(title: str, data: Mapping[str, Any], passes: Sequence[Pass]) -> str:
    """The figure in at most twelve lines."""
    shape, tokens = data["shape"], data["tokens"]
    lines = [title, "Encode: " + ", ".join(f"{text!r} is {id}"
                                           for text, id in tokens[:data["prompt"]]),
             f"Embed: each id picks its row of a table, {shape['D']} numbers. "
             f"{shape['L']} layers then add to it, in turn attention, with {shape['H']} heads, "
             f"and a network of {shape['F']}."]
    for told, one in list(zip(data["passes"], passes))[:3]:
        last, sizes = tokens[told["stored"] + told["count"] - 1][0], told["sizes"]
        weights = np.stack([layer["weights"] for layer in one.layers])              # (L, H, S)
        others = f", after {told['count'] - 1} others" if told["count"] > 1 else ""
        lines.append(f"In goes {last!r}{others}; {told['stored']} are in the cache. Its stream "
                     f"grows from size {sizes[0]:.2f} to {sizes[-1]:.1f}.")
        if weights.shape[-1] > 2:      # the first token gets what is left over, the last is own
            seen = weights[..., 1:-1]
            layer, head, key = np.unravel_index(seen.argmax(), seen.shape)
            lines.append(f"  Head {head} of layer {layer} gives {seen.max():.0%} to "
                         f"{tokens[key + 1][0]!r}, the most that a token between the first and "
                         "the last gets.".replace("%", " %"))
        lines.append("  The head says " + ", ".join(
            f"{text!r} {share:.0%}".replace("%", " %") for text, _, _, share
            in told["listed"][:3]) + ("; the end is chosen." if told["chosen"] is None else
                                      f"; {_text_of(told)!r} is chosen and appended."))
    return "\n".join(lines)


def _text_of(told: Mapping[str, Any]) -> str:
    return next(text for text, id, *_ in told["listed"] if id == told["chosen"])


def _short(number: float) -> float:
    """Six significant digits: what a picture needs, and a page has room for."""
    return float(f"{float(number):.6g}")


def _json(data: Any) -> str:
    return json.dumps(data, separators=(",", ":"))
