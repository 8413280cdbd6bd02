"""A KV cache in 8 or 4 bits.

Keys and values are rounded differently, since they are spread differently. A few channels of
the keys are large for every token, so each channel has a scale of its own, shared by a group of
neighbouring tokens. Values have no such channels; each token has a scale of its own. A group of
keys can be rounded only when it is full, so the newest keys wait in float32.

             keys of one head                        values of one head
             channel 0   1   2  …                    channel 0   1   2  …
    token 0        ╷   ╷   ╷                 token 0       ←── one scale ──→
    token 1        one scale for each        token 1       ←── one scale ──→
    …              ╵   ╵   ╵  of a group     …
    newest   float32 until the group is full

Shapes: T new tokens, S stored tokens, G tokens in a group, L layers, H query heads, K key/value
heads, d head size.
Left out on purpose: several sequences in blocks of one memory, which `serving.quantized_paged`
has, and dropping tokens.
Source: Liu et al. 2024, "KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache".
"""

import numpy as np

from gearworks.attention import (QUERY_BLOCK, AttentionRules, attention_over_views,
                                 causal_mask)
from gearworks.config import ModelConfig
from gearworks.errors import ModelError
from gearworks.families.routes import runs
from gearworks.kv_cache import KVCache, attention_rules
from gearworks.quantization.rounding import pack_int4, unpack_int4

GROUP_SIZE = 32


def round_along(x: np.ndarray, bits: int,
                axis: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Round to 8 or 4 bits, with one scale and one minimum for all numbers along an axis.

    x: (..., d) float32; returns codes, scales and minimums. The codes are uint8 in the shape of
    x; of 4 bits, two stand in a byte, and the last axis is half as long. In the others the axis
    has the length 1. A code stands for scale · code + minimum.

    >>> round_along(np.array([[1, 2, 4, 1], [0, 0, 0, 0]], np.float32), bits=4, axis=1)
    (array([[80, 15],
           [ 0,  0]], dtype=uint8), array([[0.2],
           [0. ]], dtype=float32), array([[1.],
           [0.]], dtype=float32))
    """
    minimums = x.min(axis=axis, keepdims=True)
    scales = (x.max(axis=axis, keepdims=True) - minimums) / np.float32(2**bits - 1)
    codes = np.rint((x - minimums) / np.where(scales > 0, scales, np.float32(1)))
    codes = np.minimum(codes, 2**bits - 1).astype(np.uint8)
    return pack_int4(codes) if bits == 4 else codes, scales, minimums


def widen(codes: np.ndarray, scales: np.ndarray, minimums: np.ndarray,
          bits: int) -> np.ndarray:
    """The float32 numbers that the result of `round_along` stands for, (..., d).

    >>> widen(np.array([[80, 15]], np.uint8), np.array([[0.2]], np.float32),
    ...       np.array([[1]], np.float32), bits=4)
    array([[1., 2., 4., 1.]], dtype=float32)
    """
    return (unpack_int4(codes) if bits == 4 else codes) * scales + minimums


def quantized_bytes_per_token(config: ModelConfig, bits: int,
                              group_size: int = GROUP_SIZE) -> float:
    """What one token's keys and values take in all layers, scales and minimums included, when
    it has left the float32 part."""
    d = config.head_dim
    keys = d * bits / 8 + 8 * d / group_size             # a scale and a minimum, 4 bytes each
    values = d * bits / 8 + 8
    return config.num_hidden_layers * config.num_key_value_heads * (keys + values)


def attention_of_last(q: np.ndarray, keys: np.ndarray, values: np.ndarray,
                      rules: AttentionRules) -> np.ndarray:
    """Attention of the last T of S tokens over all of them, or the window that rules allow.

    q: (T, H, d); keys, values: (K, S, d); returns (T, H, d). Queries go in blocks, each over
    the keys that some of them can see.
    """
    out = np.empty((*q.shape[:2], values.shape[-1]), np.float32)
    start = keys.shape[1] - len(q)
    for first in range(0, len(q), QUERY_BLOCK):
        block = q[first:first + QUERY_BLOCK]
        end = start + first + len(block)
        begin = 0 if rules.window is None else max(0, end - len(block) - rules.window + 1)
        out[first:first + len(block)] = attention_over_views(
            block, [keys[:, begin:end]], [values[:, begin:end]],
            causal_mask(len(block), end - begin, rules.window), rules)
    return out


class QuantizedKVCache:
    """The keys and values of one sequence in few bits, behind the interface of
    `kv_cache.KVCache`.

    Of each layer, the keys of whole groups are in `keys`, those of the tokens after them, fewer
    than G, in `newest_keys`, from its beginning on. The values of all tokens are in `values`.

    >>> config = ModelConfig("LlamaForCausalLM", vocab_size=3, hidden_size=2,
    ...                      intermediate_size=2, num_hidden_layers=1, num_attention_heads=1,
    ...                      num_key_value_heads=1, head_dim=2, max_position_embeddings=9,
    ...                      rms_norm_eps=1e-9, rope_theta=1e4, tie_word_embeddings=False)
    >>> cache = QuantizedKVCache(config, capacity=4, bits=8, group_size=2)
    >>> zeros, values = np.zeros((2, 1, 2), np.float32), np.array([[[2, 0]], [[4, 8]]])
    >>> cache.attend(0, zeros, zeros, values.astype(np.float32))[:, 0].round(2)
    array([[2., 0.],
           [3., 4.]], dtype=float32)
    >>> cache.truncate(1)
    >>> len(cache)
    1
    """

    require_room = KVCache.require_room

    def __init__(self, config: ModelConfig, capacity: int, bits: int = 8,
                 group_size: int = GROUP_SIZE):
        """Reserve room for `capacity` tokens in 8 or 4 bits. Keys are rounded in groups of
        `group_size` tokens, G.
        Raises ModelError for other bits, for latent attention, or when memory is too small.
        """
        require_quantizable(config, bits)
        L, K, d = config.num_hidden_layers, config.num_key_value_heads, config.head_dim
        groups, stored = -(-capacity // group_size), d * bits // 8
        try:
            self.keys = np.empty((L, K, groups, group_size, stored), np.uint8)
            self.key_scales = np.empty((L, K, groups, 1, d), np.float32)
            self.key_minimums = np.empty((L, K, groups, 1, d), np.float32)
            self.newest_keys = np.empty((L, K, group_size, d), np.float32)
            self.values = np.empty((L, K, capacity, stored), np.uint8)
            self.value_scales = np.empty((L, K, capacity, 1), np.float32)
            self.value_minimums = np.empty((L, K, capacity, 1), np.float32)
        except (MemoryError, ValueError):
            size = 1e-9 * capacity * quantized_bytes_per_token(config, bits, group_size)
            raise ModelError(f"cannot reserve a KV cache for {capacity} tokens",
                             f"it would take {size:,.1f} GB",
                             "make do with fewer tokens") from None
        self.bits, self.group_size, self.capacity = bits, group_size, capacity
        self.rules = attention_rules(config)
        self.lengths = [0] * L

    def __len__(self) -> int:
        """How many tokens are stored in every layer; the last layer gets its own last."""
        return self.lengths[-1]

    def nbytes(self) -> int:
        """Bytes of all that is reserved."""
        return sum(array.nbytes for array in vars(self).values()
                   if isinstance(array, np.ndarray))

    def attend(self, layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Store this step's keys and values, then let its queries look at all stored tokens, as
        they are stored.

        q: (T, H, d); k, v: (T, K, d), the T tokens that follow those already stored; returns
        (T, H, d).
        Raises ModelError when the tokens do not fit; then nothing is stored.
        """
        T = len(k)
        self.require_room(layer, T)
        self.store(layer, k, v)
        return attention_of_last(q, *self.read(layer), self.rules[layer])

    def store(self, layer: int, k: np.ndarray, v: np.ndarray) -> None:
        """Take in the T tokens that follow those already stored, and count them.

        k, v: (T, K, d); there is room for them. Each token's values are rounded at once, with a
        scale and a minimum for each head. Keys are rounded in groups of G tokens, with a scale
        and a minimum for each head and channel, when the group's last token comes; group g has
        the tokens from g · G on. Until then they stay in `newest_keys`, as they came.
        """
        start, G = self.lengths[layer], self.group_size
        end = start + len(k)
        (self.values[layer, :, start:end], self.value_scales[layer, :, start:end],
         self.value_minimums[layer, :, start:end]) = round_along(
             v.transpose(1, 0, 2), self.bits, axis=-1)
        waiting = self.newest_keys[layer, :, :start % G]
        keys = np.concatenate([waiting, k.transpose(1, 0, 2)], axis=1)      # from a border on
        first, last = start // G, end // G
        if last > first:
            grouped = keys[:, :(last - first) * G].reshape(len(keys), last - first, G, -1)
            (self.keys[layer, :, first:last], self.key_scales[layer, :, first:last],
             self.key_minimums[layer, :, first:last]) = round_along(grouped, self.bits, axis=2)
        self.newest_keys[layer, :, :end % G] = keys[:, (last - first) * G:]
        self.lengths[layer] = end

    def read(self, layer: int) -> tuple[np.ndarray, np.ndarray]:
        """All that the layer holds, in float32: keys and values, (K, S, d) each.

        Keys whose group is full and all values are what their codes stand for; the newest keys
        are as they came.
        """
        end, G = self.lengths[layer], self.group_size
        groups = end // G
        rounded = widen(self.keys[layer, :, :groups], self.key_scales[layer, :, :groups],
                        self.key_minimums[layer, :, :groups], self.bits)     # (K, groups, G, d)
        newest = self.newest_keys[layer, :, :end % G]                       # (K, fewer, d)
        keys = np.concatenate([rounded.reshape(len(newest), groups * G, newest.shape[-1]),
                               newest], axis=1)
        values = widen(self.values[layer, :, :end], self.value_scales[layer, :, :end],
                       self.value_minimums[layer, :, :end], self.bits)
        return keys, values

    def truncate(self, length: int) -> None:
        """Forget every token from position `length` on.

        A group that loses tokens is not full any more: its keys that are left are newest keys
        again, as what their codes stand for. Raises ValueError when fewer tokens are stored.
        """
        if not 0 <= length <= len(self):
            raise ValueError(f"cannot truncate {len(self)} stored tokens to {length}")
        group = length // self.group_size
        for layer, stored in enumerate(self.lengths):
            if group < stored // self.group_size:
                self.newest_keys[layer] = widen(
                    self.keys[layer, :, group], self.key_scales[layer, :, group],
                    self.key_minimums[layer, :, group], self.bits)
        self.lengths = [length] * len(self.lengths)


def require_quantizable(config: ModelConfig, bits: int) -> None:
    """Raise ModelError unless the cache of such a model can be kept in so many bits."""
    if bits not in (4, 8):
        raise ModelError("cannot make this KV cache", f"it is to have {bits} bits",
                         "choose 8 or 4")
    if not runs("kv", config.architecture):
        raise ModelError(f"cannot quantize the KV cache of a {config.architecture}",
                         "with latent attention, one array is key and value at once",
                         "use the cache in float32; it is small already")
