"""Checks of multi-head latent attention: what is cached, and the queries that can read it."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from autograder.checking import check, expect_close, expect_returned, expect_unchanged
from autograder.checking.examples import docstring_example
from autograder.checking.differential import expect_on_all
from autograder.checks.layers import vectors, weights
from autograder.generators.calls import typed
from gearworks.attention import attention, rope_angles
from gearworks.config import LatentConfig, ModelConfig, RopeScaling
from gearworks.families.layouts import LatentLayer

KEYS, QUERIES = "deepseek.latent_keys", "deepseek.absorbed_queries"
PLACES = ["token", "head", "element"]
THETA, EPS = 300.0, 1e-6


@dataclass(frozen=True)
class Case:
    """A layer, the vectors that come in, and what plain attention makes of them in float64.

    positions: (T,) integers; hidden: (T, D) float32.
    """

    config: ModelConfig
    layer: LatentLayer
    hidden: np.ndarray
    positions: np.ndarray

    @property
    def arguments(self) -> tuple:
        t = self.config.latent.qk_rope_head_dim
        frequencies = (THETA ** (-np.arange(0, t, 2) / t)).astype(np.float32)
        return self.hidden, self.layer, self.config, *rope_angles(self.positions, frequencies)

    def turned(self, x: np.ndarray) -> np.ndarray:
        """(T, heads, t) by complex numbers; pairs come out half a vector apart."""
        t = x.shape[-1]
        if self.config.rope_interleaved:
            first, second = x[..., ::2], x[..., 1::2]
        else:
            first, second = x[..., :t // 2], x[..., t // 2:]
        angles = self.positions[:, None, None] * THETA ** (-np.arange(0, t, 2) / t)
        pairs = (first + 1j * second) * np.exp(1j * angles)
        return np.concatenate([pairs.real, pairs.imag], axis=-1)

    def cached(self) -> np.ndarray:
        """(T, 1, r + t) in float64."""
        r = self.config.latent.kv_lora_rank
        both = self.hidden.astype(np.float64) @ self.layer.kv_a_proj.T
        latent = normed(both[:, :r], self.layer.kv_a_layernorm)
        return np.concatenate([latent[:, None], self.turned(both[:, None, r:])], axis=-1)

    def queries(self) -> np.ndarray:
        """(T, H, n + t) in float64, turned, not scaled."""
        latent, x = self.config.latent, self.hidden.astype(np.float64)
        if self.layer.q_proj is None:
            x = normed(x @ self.layer.q_a_proj.T, self.layer.q_a_layernorm)
        q = x @ (self.layer.q_b_proj if self.layer.q_proj is None else self.layer.q_proj).T
        n = latent.qk_nope_head_dim
        q = q.reshape(len(x), self.config.num_attention_heads, n + latent.qk_rope_head_dim)
        return np.concatenate([q[..., :n], self.turned(q[..., n:])], axis=-1)

    def expanded(self) -> tuple[np.ndarray, np.ndarray]:
        """Keys (T, H, n + t) and values (T, H, value), every head's own, in float64."""
        latent, cached, keys, values = self.config.latent, self.cached(), [], []
        r, n, value = latent.kv_lora_rank, latent.qk_nope_head_dim, latent.v_head_dim
        for head in range(self.config.num_attention_heads):
            first = head * (n + value)
            made = cached[:, 0, :r] @ self.layer.kv_b_proj[first:first + n + value].T
            keys.append(np.concatenate([made[:, :n], cached[:, 0, r:]], axis=-1))
            values.append(made[:, n:])
        return np.stack(keys, axis=1), np.stack(values, axis=1)

    def scale(self) -> float:
        latent, scaling = self.config.latent, self.config.rope_scaling
        scale = 1 / math.sqrt(latent.qk_nope_head_dim + latent.qk_rope_head_dim)
        return (scale if scaling is None
                else scale * (0.1 * scaling.mscale_all_dim * math.log(scaling.factor) + 1) ** 2)

    def absorbed(self) -> np.ndarray:
        """(T, H, r + t) float32, head by head."""
        latent, q, carried = self.config.latent, self.queries(), []
        n, value, r = latent.qk_nope_head_dim, latent.v_head_dim, latent.kv_lora_rank
        for head in range(self.config.num_attention_heads):
            first = head * (n + value)
            still = q[:, head, :n] @ self.layer.kv_b_proj[first:first + n]
            carried.append(np.concatenate([still, q[:, head, n:]], axis=-1))
        scale = self.scale() * math.sqrt(r + latent.qk_rope_head_dim)
        return (np.stack(carried, axis=1) * scale).astype(np.float32)


def normed(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + EPS) * weight


def case(rng: np.random.Generator, T: int = 5, H: int = 3, D: int = 14, r: int = 8, n: int = 5,
         t: int = 6, value: int = 7, query_latent: int | None = None, neighbours: bool = False,
         start: int | None = None, scale: float = 1.0,
         scaling: RopeScaling | None = None) -> Case:
    config = ModelConfig(architecture="DeepseekV3ForCausalLM", vocab_size=41, hidden_size=D,
                         intermediate_size=16, num_hidden_layers=1, num_attention_heads=H,
                         num_key_value_heads=H, head_dim=t, max_position_embeddings=4_096,
                         rms_norm_eps=3e-3, rope_theta=THETA, rope_scaling=scaling,
                         tie_word_embeddings=False, rope_interleaved=neighbours,
                         latent=LatentConfig(query_latent, r, n, t, value))
    into = 1.5 / math.sqrt(D)
    queries = ({"q_proj": vectors(rng, H * (n + t), D, scale=into)} if query_latent is None
               else {"q_a_proj": vectors(rng, query_latent, D, scale=into),
                     "q_a_layernorm": weights(rng, query_latent),
                     "q_b_proj": vectors(rng, H * (n + t), query_latent,
                                         scale=1 / math.sqrt(query_latent))})
    layer = LatentLayer(
        input_layernorm=weights(rng, D), kv_a_proj=vectors(rng, r + t, D, scale=into),
        kv_a_layernorm=weights(rng, r),
        kv_b_proj=vectors(rng, H * (n + value), r, scale=1 / math.sqrt(r)),
        o_proj=vectors(rng, D, H * value), post_attention_layernorm=weights(rng, D),
        gate_up_proj=vectors(rng, 32, D), down_proj=vectors(rng, D, 16), **queries)
    start = int(rng.integers(1, 40)) if start is None else start
    return Case(config, layer, vectors(rng, T, D, scale=scale), np.arange(start, start + T))


def hugging_face(given: Case) -> tuple[np.ndarray, np.ndarray]:
    """Of Hugging Face's attention the normed latents (T, r), and heads' shares (H, T, T)."""
    import torch
    from transformers import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import (DeepseekV3Attention,
                                                                      DeepseekV3RotaryEmbedding)

    ours, latent, T = given.config, given.config.latent, len(given.hidden)
    config = DeepseekV3Config(
        hidden_size=ours.hidden_size, num_attention_heads=ours.num_attention_heads,
        num_hidden_layers=1, num_key_value_heads=ours.num_attention_heads,
        q_lora_rank=latent.q_lora_rank, v_head_dim=latent.v_head_dim,
        kv_lora_rank=latent.kv_lora_rank, qk_nope_head_dim=latent.qk_nope_head_dim,
        qk_rope_head_dim=latent.qk_rope_head_dim, rope_interleave=ours.rope_interleaved,
        rope_parameters={"rope_type": "default", "rope_theta": THETA})
    config._attn_implementation = "eager"
    attend = DeepseekV3Attention(config, 0).eval()
    latents: list[np.ndarray] = []
    attend.kv_a_layernorm.register_forward_hook(
        lambda module, args, out: latents.append(out.numpy().copy()))
    with torch.no_grad():
        for name, tensor in attend.named_parameters():
            field = name.removesuffix(".weight").replace("_with_mqa", "")
            tensor.copy_(torch.from_numpy(getattr(given.layer, field)))
        hidden = torch.from_numpy(given.hidden.copy())[None]
        positions = torch.from_numpy(given.positions)[None]
        angles = DeepseekV3RotaryEmbedding(config)(hidden, positions)
        _, shares = attend(hidden, angles, torch.full((1, 1, T, T), -np.inf).triu(1))
    return latents[0].reshape(T, -1), shares[0].numpy()


def shares_of(queries: np.ndarray, cached: np.ndarray) -> np.ndarray:
    """(H, T, T): each head's weights of the cached vectors, causal, by `attention`."""
    T, H, size = queries.shape
    identity = np.broadcast_to(np.eye(T, dtype=np.float32)[:, None], (T, 1, T))
    return attention(queries, cached, identity).transpose(1, 0, 2)


def unchanged(function, given: Case) -> np.ndarray:
    """What the function gives, once it is sure that it left what it was given as it was."""
    arguments = given.arguments
    arrays = [array for array in vars(given.layer).values() if array is not None]
    with expect_unchanged(given.hidden, *arguments[3:], *arrays):
        got = function(*arguments)
    expect_returned(got, "an array of float32")
    return got


def expect_keys(latent_keys, given: Case, *, of: str = "the cached vectors",
                hint: str = "") -> None:
    """What turns is a sum of products, which float32 rounds by the largest of them."""
    right = given.cached().astype(np.float32)
    largest = max(1, float(np.abs(right).max(initial=0)))
    expect_close(unchanged(latent_keys, given), right, axes=PLACES, of=of, hint=hint,
                 atol=1e-5 * largest)


def expect_queries(absorbed_queries, given: Case, *, of: str = "the carried queries",
                   hint: str = "", atol: float = 2e-5) -> None:
    expect_close(unchanged(absorbed_queries, given), given.absorbed(), axes=PLACES, of=of,
                 hint=hint, atol=atol)


example_of_latent_keys = docstring_example(KEYS, points=0.5)


@check(KEYS, points=0.5, public=True)
def at_the_beginning(latent_keys, rng):
    """At position 0 nothing turns: the normed latent, and behind it the rest as it is."""
    expect_keys(latent_keys, case(rng, T=1, start=0),
                of="what is cached of a token at position 0",
                hint="`kv_a_proj` gives r + t numbers. Which of them has a norm, and what is "
                     "its eps?")


@check(KEYS, points=1, public=True)
def by_position(latent_keys, rng):
    """Later tokens: the last t numbers are turned, each token's by its own position."""
    expect_keys(latent_keys, case(rng), of="what is cached of tokens further on",
                hint="The latent does not turn. `turn` wants (T, heads, t), and there is one "
                     "head.")


@check(KEYS, points=1, public=True)
def neighbours(latent_keys, rng):
    """A checkpoint in which the rows of a pair are neighbours, as DeepSeek-V2's."""
    expect_keys(latent_keys, case(rng, neighbours=True),
                of="what is cached where the rows of a pair are neighbours",
                hint="`turn` looks at `config.rope_interleaved`; `apply_rope` does not.")


@check(KEYS, points=1, public=True, always=(1,))
def as_hugging_face(latent_keys, rng):
    """Hugging Face's layer has the same latents,
    and the right queries give the cached vectors the same shares."""
    given = case(rng, T=5, H=2, neighbours=bool(rng.integers(2)))
    r, (latent, shares) = given.config.latent.kv_lora_rank, hugging_face(given)
    got = unchanged(latent_keys, given)
    expect_close(got, given.cached().astype(np.float32), axes=PLACES, of="the cached vectors",
                 hint="This one follows from the checks above.")
    expect_close(got[:, 0, :r], latent, axes=["token", "element"], of="the latents")
    expect_close(shares_of(given.absorbed(), got), shares, axes=["head", "query", "key"],
                 of="the shares of the keys")


@dataclass(frozen=True)
class Layer:
    """The layer and the vectors of `case` with these arguments."""

    arguments: tuple[tuple[str, Any], ...]
    seed: int

    def made(self) -> Case:
        return case(np.random.default_rng(self.seed), **dict(self.arguments))

    def typed(self) -> str:
        told = ", ".join(f"{name} {value}" for name, value in self.arguments)
        return f"a layer with {told}"


@st.composite
def latent_layers(draw) -> Layer:
    """Layers of any sizes, with pairs of both kinds, at any place of a text."""
    likely = {"T": [1, 2, 4, 0], "H": [1, 2, 3], "D": [5, 8, 14], "r": [4, 3, 16],
              "n": [2, 5, 4], "t": [2, 4, 10], "value": [3, 5, 2], "query_latent": [None, 5],
              "neighbours": [False, True], "start": [0, 1, 30], "scale": [1.0, 1e-2]}
    return Layer(tuple((name, draw(st.sampled_from(values)))
                       for name, values in likely.items()), draw(st.integers(0, 9)))


@check(KEYS, points=1, public=True)
def any_latents(latent_keys, rng):
    """Layers of any sizes, with pairs of both kinds, small activations, and no tokens."""
    def demand(layer: Layer) -> None:
        expect_keys(latent_keys, layer.made(),
                    of=f"what is cached for {typed(layer)}",
                    hint="Which r of the r + t numbers are the latent, and what is done to the "
                         "others?")
    expect_on_all(latent_layers(), demand, rng)


@check(KEYS, points=0.5, public=False)
def faint_activations(latent_keys, rng):
    """Small activations, where the eps of the norm decides, and large ones."""
    for scale in (1e-3, 1e-2, 200.0):
        expect_keys(latent_keys, case(rng, scale=scale))


@check(KEYS, points=0.5, public=False)
def odd_sizes(latent_keys, rng):
    """Latents smaller and larger than the turning part, one pair, one token, no token."""
    for T, D, r, t in ((4, 9, 3, 10), (1, 5, 16, 2), (0, 7, 4, 4), (6, 22, 6, 6)):
        for pairs in (False, True):
            expect_keys(latent_keys, case(rng, T=T, D=D, r=r, t=t, neighbours=pairs))


example_of_absorbed_queries = docstring_example(QUERIES, points=0.5)


@check(QUERIES, points=0.5, public=True)
def one_head_at_the_beginning(absorbed_queries, rng):
    """One head at position 0: its still part, carried by the rows that make keys,
    and the scale of the scores."""
    expect_queries(absorbed_queries, case(rng, T=1, H=1, start=0),
                   of="the query of a single head at position 0",
                   hint="Of `kv_b_proj`, the first n rows make this head's key: k = W c. Then "
                        "q · k = (Wᵀ q) · c. `attention` will divide by the root of r + t, and "
                        "the scores need `score_scale`.")


@check(QUERIES, points=1, public=True)
def heads_and_positions(absorbed_queries, rng):
    """Several heads, several tokens: each head has rows of its own,
    and the last t numbers turn."""
    expect_queries(absorbed_queries, case(rng, T=4, H=3),
                   hint="`kv_b_proj` holds head 0's key rows, head 0's value rows, head 1's "
                        "key rows, and so on.")


@check(QUERIES, points=1, public=True)
def equal_to_plain_attention(absorbed_queries, rng):
    """The law: attention over the latents is attention over the keys and values
    that could be made of them."""
    given = case(rng, T=5, H=4, query_latent=6, neighbours=True)
    r, n = given.config.latent.kv_lora_rank, given.config.latent.qk_nope_head_dim
    absorbed = unchanged(absorbed_queries, given)
    truth = given.absorbed()
    expect_close(absorbed, truth, axes=PLACES, of="the carried queries", atol=2e-5,
                 hint="The checks above right? Then look at pairs that are neighbours: `turn` "
                      "knows of them.")
    cached = given.cached().astype(np.float32)
    mixed = attention(absorbed, cached, cached[..., :r])
    to_values = given.layer.kv_b_proj.reshape(4, -1, r)[:, n:]
    keys, values = given.expanded()
    expect_close(np.einsum("thr,hvr->thv", mixed, to_values),
                 attention(given.queries(), keys, values).astype(np.float32), axes=PLACES,
                 atol=1e-4, of="attention over the latents")


@check(QUERIES, points=1, public=True, always=(0,))
def as_hugging_faces_heads(absorbed_queries, rng):
    """Each head looks at each token as much as Hugging Face's heads do,
    which have keys of their own."""
    given = case(rng, T=6, H=3, query_latent=int(rng.choice([5, 9])),
                 neighbours=bool(rng.integers(2)))
    got = unchanged(absorbed_queries, given)
    expect_close(got, given.absorbed(), axes=PLACES, of="the carried queries", atol=2e-5,
                 hint="This one follows from the checks above.")
    expect_close(shares_of(got, given.cached().astype(np.float32)), hugging_face(given)[1],
                 axes=["head", "query", "key"], of="the shares of the keys", atol=2e-5)


@check(QUERIES, points=1, public=True)
def any_queries(absorbed_queries, rng):
    """Layers of any sizes, with pairs of both kinds, and no tokens."""
    def demand(layer: Layer) -> None:
        expect_queries(absorbed_queries, layer.made(), of=f"the queries for {typed(layer)}",
                       hint="Which rows of `kv_b_proj` make head 0's keys, and which size does "
                            "`attention` divide by?", atol=1e-4)
    expect_on_all(latent_layers(), demand, rng)


@check(QUERIES, points=0.5, public=False)
def stretched_contexts(absorbed_queries, rng):
    """Under YaRN the scores have another scale."""
    yarn = RopeScaling("yarn", float(rng.choice([4.0, 40.0])),
                       original_max_position_embeddings=64, mscale=1.0, mscale_all_dim=0.8)
    expect_queries(absorbed_queries, case(rng, scaling=yarn))


@check(QUERIES, points=0.5, public=False)
def odd_queries(absorbed_queries, rng):
    """Sizes that happen to be equal and sizes that are far apart; one token, no token;
    large activations."""
    for sizes in ((3, 2, 9, 4, 4, 4, 4, None), (1, 5, 8, 12, 3, 2, 6, 4),
                  (0, 3, 6, 5, 4, 6, 3, None), (6, 6, 7, 3, 9, 8, 2, 5)):
        for pairs in (False, True):                     # sizes: T, H, D, r, n, t, value, latent
            expect_queries(absorbed_queries, case(rng, *sizes, pairs))
    expect_queries(absorbed_queries, case(rng, scale=100.0), atol=5e-3)
