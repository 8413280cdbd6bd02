"""Checks of a decoder layer and of the forward pass, against tiny models of Hugging Face."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from hypothesis import strategies as st

from autograder.checking import (CheckFailure, check, expect, expect_close, expect_equal,
                                 expect_returned, expect_unchanged)
from autograder.checking.examples import docstring_example
from autograder.checking.differential import Seen, attempted, expect_agreement
from gearworks import model
from gearworks.attention import apply_rope
from gearworks.comparison.compare import first_divergence
from gearworks.config import ModelConfig, RopeScaling
from gearworks.config.architectures import ExpertsConfig
from gearworks.families.layouts import LayerWeights, Weights
from gearworks.kv_cache import KVCache, RaggedBatch
from gearworks.layers import linear, rms_norm
from gearworks.model import rotations

LAYER, FORWARD = "model.decoder_layer", "model.forward"
PLACES = ["token", "element"]


@dataclass(frozen=True)
class Truth:
    """A random model, and what Hugging Face makes of a text with it.

    hidden: the residual stream before each layer, and after the last one but the final norm is
    done; (L + 1, T, D). hf: the model itself, for other texts.
    """

    config: ModelConfig
    weights: Weights
    ids: np.ndarray
    hidden: np.ndarray
    logits: np.ndarray
    hf: Any

    def logits_of(self, ids: Sequence[int]) -> np.ndarray:
        """What Hugging Face gives for another text, alone: (T, V)."""
        import torch

        with torch.no_grad():
            return self.hf(torch.tensor(ids)[None]).logits[0].numpy()

    def angles(self, start: int = 0, end: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        return rotations(self.config, np.arange(len(self.ids))[start:end])

    def queries_keys_values(self, layer: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What this layer gives to the cache: (T, H, d), (T, K, d) and (T, K, d)."""
        config = self.config
        H, K, d = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        weights = self.weights.layers[layer]
        normed = rms_norm(self.hidden[layer], weights.input_layernorm, self.config.rms_norm_eps)
        heads = linear(normed, weights.qkv_proj, weights.qkv_bias)
        heads = heads.reshape(len(self.ids), H + 2 * K, d)
        q, k = heads[:, :H], heads[:, H:H + K]
        if weights.k_norm is not None:
            q = rms_norm(q, weights.q_norm, self.config.rms_norm_eps)
            k = rms_norm(k, weights.k_norm, self.config.rms_norm_eps)
        return apply_rope(q, *self.angles()), apply_rope(k, *self.angles()), heads[:, H + K:]


def truth(family: str, rng: np.random.Generator, tokens: int = 7, scale: float = 1.0,
          **settings) -> Truth:
    """A random model of a family, such as "Llama", with sizes that tell wrong from right.

    scale: of the embeddings, and so of the activations.
    """
    import torch
    import transformers

    sizes = ({"vocab_size": 41, "hidden_size": 24, "intermediate_size": 34,
              "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
              "head_dim": 10, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
              "rope_theta": 500.0, "tie_word_embeddings": False} | settings)
    rope = {"rope_theta": sizes.pop("rope_theta"), "rope_type": "default"}
    special = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}
    config = getattr(transformers, f"{family}Config")(**sizes, **special, rope_parameters=rope)
    config._attn_implementation = "eager"
    with torch.no_grad():
        model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
        for name, tensor in model.named_parameters():
            values = rng.standard_normal(tuple(tensor.shape))
            if name.endswith("norm.weight"):
                values = rng.uniform(0.4, 1.8, tuple(tensor.shape))
            elif name.endswith("proj.weight") or name == "lm_head.weight":
                values *= 1.6 / np.sqrt(tensor.shape[1])
            elif name.endswith("embed_tokens.weight"):
                values *= scale
            tensor.copy_(torch.from_numpy(values))
        ids = rng.choice(sizes["vocab_size"], tokens, replace=False)
        streams: list[np.ndarray] = []
        hooks = [part.register_forward_pre_hook(
            lambda module, args: streams.append(args[0][0].numpy().copy()))
            for part in (*model.model.layers, model.model.norm)]
        logits = model(torch.from_numpy(ids)[None]).logits[0].numpy()
        for hook in hooks:
            hook.remove()
        arrays = {name: tensor.numpy().copy() for name, tensor in model.named_parameters()}
    ours = ModelConfig.from_hf(config.to_dict() | {"architectures": [f"{family}ForCausalLM"]})
    return Truth(ours, _weights(arrays, ours), ids, np.stack(streams), logits, model)


def _weights(arrays: dict[str, np.ndarray], config: ModelConfig) -> Weights:
    """The tensors of Hugging Face's model as the engine's weights."""
    def stacked(layer: int, kind: str, *names: str) -> np.ndarray | None:
        parts = [arrays.get(f"model.layers.{layer}.{name}.{kind}") for name in names]
        return None if parts[0] is None else np.concatenate(parts)

    qkv = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    layers = tuple(LayerWeights(
        input_layernorm=stacked(i, "weight", "input_layernorm"),
        qkv_proj=stacked(i, "weight", *qkv),
        o_proj=stacked(i, "weight", "self_attn.o_proj"),
        post_attention_layernorm=stacked(i, "weight", "post_attention_layernorm"),
        gate_up_proj=stacked(i, "weight", "mlp.gate_proj", "mlp.up_proj"),
        down_proj=stacked(i, "weight", "mlp.down_proj"),
        qkv_bias=stacked(i, "bias", *qkv),
        q_norm=stacked(i, "weight", "self_attn.q_norm"),
        k_norm=stacked(i, "weight", "self_attn.k_norm"),
    ) for i in range(config.num_hidden_layers))
    embedding = arrays["model.embed_tokens.weight"]
    return Weights(embedding, layers, arrays["model.norm.weight"],
                   arrays.get("lm_head.weight", embedding))


def span(start: int, end: int) -> str:
    """The tokens from `start` to before `end`, in words."""
    return f"token {start}" if end == start + 1 else f"tokens {start} to {end - 1}"


class WatchedCache:
    """A KV cache that keeps what it was given, for checks to look at."""

    def __init__(self, config: ModelConfig, capacity: int):
        self.cache = KVCache(config, capacity)
        self.calls: list[tuple] = []

    def attend(self, layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        self.calls.append((layer, np.array(q), np.array(k), np.array(v)))
        return self.cache.attend(layer, q, k, v)


def expect_layer(decoder_layer, case: Truth, steps: tuple[int, ...], hint: str, layer: int = 0,
                 **tolerance) -> None:
    """Run the layer over the text in steps, with one cache: each must give the right rows."""
    cache, start = KVCache(case.config, len(case.ids)), 0
    for count in steps:
        end = start + count
        x, angles = case.hidden[layer, start:end].copy(), case.angles(start, end)
        with expect_unchanged(x, hint="The stream is still needed: an operator such as "
                                      "`x += …` writes into it."):
            with expect_unchanged(angles):
                got = decoder_layer(x, case.weights.layers[layer], case.config, *angles, cache,
                                    layer)
        expect_close(got, case.hidden[layer + 1, start:end], axes=PLACES, hint=hint,
                     of=f"the output of layer {layer} for {span(start, end)}",
                     **{"atol": 1e-4} | tolerance)
        start = end


example_of_decoder_layer = docstring_example(LAYER, points=1)


@check(LAYER, points=1, public=True, always=(0,))
def a_whole_prompt(decoder_layer, rng):
    """A layer of a random Llama, with fewer key/value heads than query heads,
    gives what Hugging Face gives."""
    expect_layer(decoder_layer, truth("Llama", rng), (7,),
                 "Two halves, each of them: norm, network, added to what came in. Does the "
                 "next check fail, too? It is about what reached the cache. If it passes, the "
                 "fault comes later.")


@check(LAYER, points=1, public=True)
def what_the_cache_gets(decoder_layer, rng):
    """The cache gets this layer's number, queries and keys that have turned,
    and values that have not."""
    case = truth("Llama", rng, tokens=5)
    cache, layer = WatchedCache(case.config, 5), 1
    queries, keys, values = case.queries_keys_values(layer)
    x = case.hidden[layer].copy()
    got = decoder_layer(x, case.weights.layers[layer], case.config, *case.angles(), cache,
                        layer)
    expect_returned(got, "the residual stream after the layer")
    expect(cache.calls, "cache.attend to be called", "no call of it",
           "It stores keys and values, and gives attention's output.")
    expect_equal(sorted({index for index, *_ in cache.calls}), [layer],
                 of="the layer's number in cache.attend",
                 hint="`index` says which layer this is.")
    q, k, v = (np.concatenate(parts) for parts in list(zip(*cache.calls))[1:])
    expect_equal(q.shape, (5, 6, 10), of="the shape of the queries, (T, H, d)")
    places = ["token", "head", "element"]
    expect_close(v, values, of="the values", axes=places, atol=1e-4,
                 hint="The last K·d outputs of qkv_proj, of the normed input. They do not "
                      "turn.")
    expect_close(k, keys, of="the keys", axes=places, atol=1e-4,
                 hint="The K·d outputs of qkv_proj between queries and values; they turn by "
                      "their token's position.")
    expect_close(q, queries, of="the queries", axes=places, atol=1e-4,
                 hint="The first H·d outputs of qkv_proj; they turn as the keys do.")


@check(LAYER, points=2, public=True, always=(4,))
def with_a_past(decoder_layer, rng):
    """A prompt in a first step, then one token, then two: the same rows."""
    expect_layer(decoder_layer, truth("Llama", rng, tokens=8), (5, 1, 2),
                 "Is a whole prompt right, above? Then: the layer does not know how long the "
                 "past is. cos and sin say where its tokens stand.")


@check(LAYER, points=1, public=True, always=(0,))
def biases_of_qwen2(decoder_layer, rng):
    """A layer of a random Qwen2: the products q, k and v have a bias."""
    expect_layer(decoder_layer, truth("Qwen2", rng, hidden_size=36, head_dim=6), (5, 2),
                 "Is the layer of Llama right, above? Then: `linear` takes a bias, and None "
                 "for none.")


@check(LAYER, points=1, public=True)
def norms_of_qwen3(decoder_layer, rng):
    """A layer of a random Qwen3: each head of queries and keys is normed
    by itself, then turned."""
    expect_layer(decoder_layer, truth("Qwen3", rng), (5, 2),
                 "Is the layer of Llama right, above? Then: q_norm and k_norm have d weights, "
                 "so they norm one head at a time. What is not None decides.")


@dataclass(frozen=True)
class Steps:
    """A random model of a family, a text that comes in steps, and the rows that are wanted of
    the last one."""

    family: str
    scale: float
    eps: float
    tied: bool
    steps: tuple[int, ...]
    rows: Any

    @property
    def truth(self) -> Truth:
        return _model(self.family, self.scale, self.eps, self.tied)

    def typed(self) -> str:
        return (f"a {self.family} with embeddings × {self.scale:g}, eps {self.eps:g}"
                f"{', tied' * self.tied}: a text in steps of {[*self.steps]} tokens, of whose "
                f"last step the rows {self.rows} are wanted")


@cache
def _model(family: str, scale: float, eps: float, tied: bool) -> Truth:
    sizes = {"hidden_size": 36, "head_dim": 6} if family == "Qwen2" else {}
    return truth(family, np.random.default_rng(0), 9, scale, rms_norm_eps=eps,
                 tie_word_embeddings=tied, **sizes)


@st.composite
def stepped(draw) -> Steps:
    """A family, one to three steps, and some rows, one, several times one, none, or all."""
    family = draw(st.sampled_from(["Llama", "Qwen2", "Qwen3"]))
    scale, eps = draw(st.sampled_from([(1.0, 1e-5), (3e-3, 1e-4)]))
    steps = (*draw(st.lists(st.integers(0, 3), max_size=2)), draw(st.integers(1, 3)))
    rows = draw(st.sampled_from([slice(None), [-1], [0], slice(0, 1), [0, 0], [],
                                 [steps[-1] - 1, 0]]))
    return Steps(family, scale, eps, draw(st.booleans()), steps, rows)


def layer_of(decoder_layer, case: Steps) -> Seen:
    """What the second layer gives for the rows that are wanted, and what reached the cache."""
    given, store, start = case.truth, KVCache(case.truth.config, 9), 0
    seen = []
    for number, count in enumerate(case.steps, start=1):
        end = start + count
        x = given.hidden[1, start:end].copy()
        rows = (case.rows,) if number == len(case.steps) else ()
        got = attempted(decoder_layer, args=(x, given.weights.layers[1], given.config,
                                             *given.angles(start, end), store, 1, *rows))
        seen += [(f"the output of step {number} of", got), ("the stream that came in, after,",
                                                            x)]
        start = end
    return [*seen, ("the keys in the cache after", store.keys[1, :, :start].copy()),
            ("how much each layer of the cache holds after", [*map(int, store.lengths)])]


@check(LAYER, points=1, public=True)
def any_step(decoder_layer, rng):
    """Every family, a text in any steps, activations near zero, and only some rows wanted."""
    expect_agreement(decoder_layer, model.decoder_layer, stepped(), rng, run=layer_of,
                     examples=40, atol=1e-4, hint={
                         "the output": "`rows` says whose output is wanted. Which of the two "
                                       "halves needs all tokens, and up to where?",
                         "the stream": "Add to a copy: what came in is the caller's.",
                         "the keys": "They are stored when they have turned, of every token.",
                         "how much": "Is this layer's number the one that you were given?"})


@check(LAYER, points=0.5, public=True)
def mixture_of_experts(decoder_layer, rng):
    """A layer whose second half is a mixture of experts, for some tokens and for none."""
    case = truth("Llama", rng)
    D, F = case.config.hidden_size, 14
    layer = replace(case.weights.layers[0], router=rng.standard_normal((5, D)).astype("f4"),
                    gate_up_proj=0.3 * rng.standard_normal((5, 2 * F, D)).astype("f4"),
                    down_proj=0.3 * rng.standard_normal((5, D, F)).astype("f4"))
    config = replace(case.config, intermediate_size=F,
                     experts=ExpertsConfig(5, 2, F, normalize=True, sparse_layers=(True,) * 3))
    for count in (4, 0):
        x = case.hidden[0, :count].copy()
        stores = [KVCache(config, 7) for _ in range(2)]
        got, right = (function(x.copy(), layer, config, *case.angles(0, count), store, 0)
                      for function, store in zip((decoder_layer, model.decoder_layer), stores))
        expect_close(got, right, atol=1e-4, axes=PLACES,
                     of=f"the output of a layer with 5 experts for {count} tokens",
                     hint="`feed_forward` is given, and knows a mixture by its router.")


@check(LAYER, points=0.5, public=False)
def wanted_rows(decoder_layer, rng):
    """Only some rows are wanted: the others still reach the cache."""
    case = truth("Llama", rng, tokens=6)
    for rows in (slice(None), [-1], [4, 0, 4], slice(2, 5), np.array([3])):
        cache = KVCache(case.config, 7)
        got = decoder_layer(case.hidden[0].copy(), case.weights.layers[0], case.config,
                            *case.angles(), cache, 0, rows)
        expect_close(got, case.hidden[1][rows], atol=1e-4)
        expect_close(np.array(cache.keys[0, :, :6]),
                     case.queries_keys_values(0)[1].transpose(1, 0, 2), atol=1e-4)


@check(LAYER, points=0.5, public=False)
def other_shapes(decoder_layer, rng):
    """Layers of every family and shape: one key head for all, as many as query heads,
    D equal to H · d."""
    for family, sizes in (
            ("Llama", {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 8}),
            ("Qwen2", {"num_attention_heads": 4, "num_key_value_heads": 4, "hidden_size": 20}),
            ("Qwen3", {"num_attention_heads": 8, "head_dim": 6, "rms_norm_eps": 1e-3}),
            ("Mistral", {"num_attention_heads": 4, "sliding_window": None})):
        expect_layer(decoder_layer, truth(family, rng, **sizes), (1, 5, 1), "", layer=1)


@check(LAYER, points=0.5, public=False)
def small_and_large(decoder_layer, rng):
    """Activations near zero, where eps decides, and in the hundreds."""
    expect_layer(decoder_layer, truth("Llama", rng, scale=3e-3, rms_norm_eps=1e-4), (4, 3), "",
                 atol=2e-5)
    expect_layer(decoder_layer, truth("Qwen3", rng, scale=200.0), (6, 1), "", atol=5e-3)


def expect_same_cache(cache: KVCache, case: Truth, end: int, step: str) -> None:
    """Fail at the first layer whose keys or values are wrong: what came before it was right."""
    got, right = {}, {}
    for layer in range(case.config.num_hidden_layers):
        for name, memory, true in zip(("keys", "values"), (cache.keys, cache.values),
                                      case.queries_keys_values(layer)[1:]):
            got[layer, name] = memory[layer, :, :end].transpose(1, 0, 2)
            right[layer, name] = true[:end]
    found = first_divergence(got, right, tolerance=2e-5)
    if found is None:
        return
    before = ("embedding, positions and this layer's number are what it depends on"
              if found.layer == 0 else
              f"layer {found.layer - 1} and all before it got the right input: look at what is "
              "handed on")
    place = ", ".join(f"{axis} {index}" for axis, index in found.place.items())
    raise CheckFailure(f"the {found.operator} that layer {found.layer} has in the cache {step} "
                       "to be Hugging Face's",
                       f"{found.differing} of {found.size} elements differ; first: {place}: "
                       f"got {found.got:.6g}, expected {found.expected:.6g}",
                       f"This is the first place that differs; {before}.")


def expect_logits(forward, case: Truth, steps: tuple[int, ...], hint: str,
                  atol: float = 1e-4) -> None:
    """Run the model in steps; report the first layer that goes wrong, or else the logits."""
    room = len(case.ids) * case.config.num_hidden_layers        # should all layers write to one
    cache, start = KVCache(case.config, room), 0
    for count in steps:
        end = start + count
        positions = np.arange(start, end)
        with expect_unchanged(case.ids, positions, case.weights.embed_tokens):
            got = forward(case.weights, case.config, case.ids[start:end], positions, cache)
        expect_returned(got, f"logits of shape {case.logits[start:end].shape}")
        step = f"after {span(start, end)}"
        expect_equal([int(length) for length in cache.lengths],
                     [end] * case.config.num_hidden_layers,
                     of=f"the tokens in each layer of the cache {step}",
                     hint="Every layer runs once, with its own number.")
        expect_same_cache(cache, case, end, step)
        expect_close(got, case.logits[start:end], of=f"the logits {step}", axes=["token", "id"],
                     atol=atol, hint=f"Every layer had the right input. {hint}")
        start = end


example_of_forward = docstring_example(FORWARD, points=1)


@check(FORWARD, points=1, public=True)
def logits_of_llama(forward, rng):
    """A random Llama with a head of its own gives Hugging Face's logits."""
    expect_logits(forward, truth("Llama", rng), (7,),
                  "What comes between the last layer and the head? Which table is the head?")


@check(FORWARD, points=1, public=True)
def tied_head(forward, rng):
    """A model whose head is its embedding table, and embeddings of any size."""
    expect_logits(forward, truth("Llama", rng, tie_word_embeddings=True, scale=0.3), (6, 1),
                  "The head is `weights.lm_head`, tied or not.")


@check(FORWARD, points=1, public=True)
def in_steps(forward, rng):
    """A prompt, one token, two more: each at its own position, with one cache."""
    expect_logits(forward, truth("Llama", rng, tokens=9), (6, 1, 2),
                  "Are the logits of a whole prompt right, above? Then: positions are given; a "
                  "step's first token is not at position 0.")


@check(FORWARD, points=1, public=True)
def wanted_logits(forward, rng):
    """`logits_at` names the rows whose logits are wanted,
    and the cache gets all tokens nevertheless."""
    case = truth("Llama", rng, tokens=6)
    for rows in ([-1], [0, 3], slice(None)):
        cache = KVCache(case.config, 6 * case.config.num_hidden_layers)
        got = forward(case.weights, case.config, case.ids, np.arange(6), cache, rows)
        expect_close(got, case.logits[rows], of=f"the logits at {rows}", axes=["row", "id"],
                     atol=1e-4,
                     hint="Are the logits of all rows right, above? Then: the row of a token "
                          "is picked before the head, which is the costly part.")
        expect_equal(len(cache), 6, of="the length of the cache")


def logits_of(forward, case: Steps) -> Seen:
    """The logits of each step, of the last one those that are wanted, and the cache."""
    given, start, seen = case.truth, 0, []
    store = KVCache(given.config, 9 * given.config.num_hidden_layers)
    for number, count in enumerate(case.steps, start=1):
        end = start + count
        rows = (case.rows,) if number == len(case.steps) else ()
        got = attempted(forward, args=(given.weights, given.config, given.ids[start:end].copy(),
                                       np.arange(start, end), store, *rows))
        seen.append((f"the logits of step {number} of", got))
        start = end
    return [*seen, ("how much each layer of the cache holds after", [*map(int, store.lengths)])]


@check(FORWARD, points=0.5, public=True)
def stretched_rope(forward, rng):
    """A model that stretches its RoPE, so that far positions look like near ones."""
    case = truth("Llama", rng)
    config = replace(case.config, rope_scaling=RopeScaling("linear", 4.0, 32))
    # the reference first: the subject may change what it is given
    right, got = (function(case.weights, config, case.ids, np.arange(7),
                           KVCache(config, 7 * config.num_hidden_layers))
                  for function in (model.forward, forward))
    expect_close(got, right, of="the logits with RoPE stretched to four times its length",
                 axes=["row", "id"], atol=1e-4,
                 hint="`rotations(config, positions)` knows how a model stretches its RoPE.")


@check(FORWARD, points=1, public=True)
def any_text(forward, rng):
    """Every family, a text in any steps, tied heads, and the logits of some rows only."""
    expect_agreement(forward, model.forward, stepped(), rng, run=logits_of, examples=40,
                     atol=1e-4,
                     hint="Embedding, layers, last norm, head: which of them is given another "
                          "thing here than in the checks above?")


@check(FORWARD, points=0.5, public=False)
def other_families(forward, rng):
    """Qwen2 with its biases, Qwen3 with its norms, other shapes, thetas and tied heads."""
    for family, sizes in (
            ("Qwen2", {"hidden_size": 36, "head_dim": 6, "rope_theta": 1e4,
                       "tie_word_embeddings": True}),
            ("Qwen3", {"num_attention_heads": 4, "num_key_value_heads": 1, "rope_theta": 1e6}),
            ("Llama", {"num_attention_heads": 3, "num_key_value_heads": 3,
                       "num_hidden_layers": 1})):
        expect_logits(forward, truth(family, rng, **sizes), (5, 1, 1), "")


@check(FORWARD, points=0.5, public=False)
def several_sequences(forward, rng):
    """Tokens of two sequences in one call, each at its own positions:
    the logits are those of each alone."""
    case = truth("Llama", rng, tokens=9)
    first, second = KVCache(case.config, 9), KVCache(case.config, 9)
    forward(case.weights, case.config, case.ids[:4], np.arange(4), first)
    ids = np.concatenate([case.ids[4:6], case.ids])
    positions = np.concatenate([np.arange(4, 6), np.arange(9)])
    got = forward(case.weights, case.config, ids, positions,
                  RaggedBatch([first, second], [2, 9]))
    expect_close(got, np.concatenate([case.logits[4:6], case.logits]), atol=1e-4)
    second.truncate(6)
    got = forward(case.weights, case.config, case.ids[[6, 6]], np.array([6, 6]),
                  RaggedBatch([first, second], [1, 1]), [1])
    expect_close(got, case.logits[[6]], atol=1e-4)


@check(FORWARD, points=0.5, public=False)
def cut_and_moved(forward, rng):
    """Cutting the cache and going on, far positions, small embeddings:
    still Hugging Face's logits."""
    case = truth("Llama", rng, tokens=8, scale=3e-3, rms_norm_eps=1e-6)
    cache = KVCache(case.config, 8)
    others = np.concatenate([case.ids[:3], case.ids[5:]])
    forward(case.weights, case.config, others, np.arange(6), cache)
    cache.truncate(3)
    got = forward(case.weights, case.config, case.ids[3:], np.arange(3, 8), cache, [-1, 0])
    expect_close(got, case.logits[[-1, 3]], atol=1e-4)
    moved = forward(case.weights, case.config, case.ids, np.arange(8) + 50,
                    KVCache(case.config, 8))
    expect_close(moved, case.logits, atol=1e-3)
