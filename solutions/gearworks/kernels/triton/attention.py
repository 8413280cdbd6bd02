"""Attention on a GPU: FlashAttention for prompts, and split-KV decoding from paged memory.

A kernel is one program, of which thousands run side by side; each computes a tile of the result
in the GPU's fast memory, as in `kernels.flash`. What a kernel takes are pointers to the first
elements of tensors, and sizes; a pointer plus an array of offsets is an array of pointers,
which `tl.load` and `tl.store` take with a mask for those that lead nowhere.

Shapes: T queries, S keys, H query heads, K key/value heads, d head size (128 at most), B
sequences. float32, float16 or bfloat16; sums are float32. Names in capitals are constants of a
compilation: sizes of blocks, which are powers of two.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gearworks.errors import ModelError
from gearworks.kernels.triton import LARGEST_HEAD, power_of_two
from gearworks.kernels.triton.language import level, launched_by, tl, torch, triton

NO_WINDOW = 2**30                  # a window that no sequence fills


def attend(kernel: Any, q: Any, k: Any, v: Any, query_lens: Sequence[int] | None = None,
           context_lens: Sequence[int] | None = None, window: int | None = None,
           tiles: tuple[int, int, int, int] | None = None) -> Any:
    """Launch `flash_attention`: one program for each tile of queries, head and sequence.

    q: (T, H, d), by sequence; k, v: (S, K, d), by sequence. query_lens, context_lens: (B,) how
    many of them each sequence has, by default one sequence has all; its queries are its last
    tokens, and each sees the keys up to its own. window: with a number, at most so many.
    tiles: queries and keys of a tile, warps and stages, by default what suits the head size.
    Returns (T, H, d) in q's dtype. Raises ModelError for heads of more than 128.
    """
    (T, H, d), (S, K, _) = q.shape, k.shape
    out, kept = torch.empty_like(q, memory_format=torch.contiguous_format), q.dtype
    q, k, v, out = _computable(d, q, k, v, out)
    lens = [list(query_lens) if query_lens is not None else [T],
            list(context_lens) if context_lens is not None else [S]]
    starts = [torch.tensor(np.cumsum([0, *each]), dtype=torch.int32, device=q.device)
              for each in lens]
    rows, keys, warps, stages = tiles or _tiles(d, q.dtype)
    grid = (triton.cdiv(max([*lens[0], 1]), rows), H, len(lens[0]))
    kernel[grid](q, k, v, out, *starts, H, K, NO_WINDOW if window is None else window,
                 d ** -0.5, d, rows, keys, power_of_two(d), window is not None,
                 num_warps=warps, num_stages=stages)
    return out.to(kept)


def _tiles(d: int, dtype: Any) -> tuple[int, int, int, int]:
    """Queries and keys of a tile, warps, stages: what has room in a processor's fast memory."""
    if level() == "interpreter":
        return 16, 16, 4, 1
    if dtype == torch.float32:               # products without tensor cores, unrolled
        return 32, 32, 8, 1
    return (128, 64, 4, 3) if d <= 64 else (128, 64, 8, 3)


def _computable(d: int, *tensors: Any) -> list[Any]:
    """The tensors as kernels take them: each in one piece, and of a dtype that they compute."""
    if d > LARGEST_HEAD:
        raise ModelError("cannot run this kernel", f"heads have {d} elements, and it takes at "
                         f"most {LARGEST_HEAD}", "use the torch backend without Triton")
    tensors = [tensor.contiguous() for tensor in tensors]
    if level() == "interpreter":
        # it multiplies bfloat16 as if they were integers
        tensors = [tensor.float() if tensor.dtype == torch.bfloat16 else tensor
                   for tensor in tensors]
        tensors[-1].fill_(math.nan)                     # what is not written shows
    return tensors


@launched_by(attend)
@triton.jit
def flash_attention(q, k, v, out, query_starts, key_starts, H, K, window, scale,
                    d: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
                    HEAD: tl.constexpr, WINDOWED: tl.constexpr):
    """Attention of one head over up to ROWS queries of one sequence.

    Program (i, head, sequence) has the queries from i · ROWS on, as far as there are so many.
    q, out: (T, H, d) and k, v: (S, K, d), each in one piece, the sequences one after the other:
    element e of head h of token t of q is at q + (t · H + h) · d + e. query_starts, key_starts:
    (B + 1,) int32, where each sequence begins, and where the last one ends. A sequence's
    queries are its last tokens. Each sees the keys up to its own, and with WINDOWED at most
    `window` of them, its own included; one that sees none gets zeros. Keys that lie KEYS or
    more beyond those that the queries see are not read. Scores are multiplied by `scale`.
    H / K neighbouring query heads share a key/value head. HEAD is the next power of two from d
    on; sums are float32, and so are the scores.

    `attend` launches it, from NumPy too:

    >>> q, k = np.zeros((2, 1, 2), np.float32), np.zeros((3, 1, 2), np.float32)
    >>> v = np.array([[[1, 0]], [[2, 3]], [[6, 3]]], np.float32)
    >>> flash_attention(q, k, v)[:, 0]    # equal scores: the mean of the values that it sees
    array([[1.5, 1.5],
           [3. , 2. ]], dtype=float32)

    Source: Dao et al. 2022, "FlashAttention"; Dao 2023, "FlashAttention-2".
    """
    first = tl.program_id(0) * ROWS
    head = tl.program_id(1)
    sequence = tl.program_id(2)
    q_start = tl.load(query_starts + sequence)
    T = tl.load(query_starts + sequence + 1) - q_start
    k_start = tl.load(key_starts + sequence)
    S = tl.load(key_starts + sequence + 1) - k_start
    if first >= T:
        return
    rows = first + tl.arange(0, ROWS)
    elements = tl.arange(0, HEAD)
    in_head = (elements < d)[None, :]
    at_rows = ((q_start + rows)[:, None] * H + head) * d + elements[None, :]
    queries = tl.load(q + at_rows, mask=(rows < T)[:, None] & in_head, other=0.0)
    places = S - T + rows                                   # of the queries in the sequence
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, HEAD], tl.float32)
    scale = scale * 1.4426950408889634                      # exp(x) is exp2(x · log2(e))
    begin = tl.maximum(S - T + first - window + 1, 0)
    end = tl.minimum(S - T + first + ROWS, S)
    # what every query sees is not masked, which most of a long sequence is
    whole = begin if WINDOWED else tl.maximum(S - T + first + 1, 0) // KEYS * KEYS
    for edge in tl.static_range(2):
        for start in range(whole if edge else begin, end if edge else whole, KEYS):
            seen = start + tl.arange(0, KEYS)
            at_keys = (k_start + seen)[:, None] * K + head // (H // K)
            at_keys = at_keys * d + elements[None, :]
            there = (seen < S)[:, None] & in_head if edge else in_head
            keys = tl.load(k + at_keys, mask=there, other=0.0)                # (KEYS, HEAD)
            scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
            if edge:
                distance = places[:, None] - seen[None, :]
                scores = tl.where((distance >= 0) & (distance < window), scores, float("-inf"))
            higher = tl.maximum(peak, tl.max(scores, 1))
            safe = tl.where(higher == float("-inf"), 0.0, higher)    # -inf - -inf is nan
            weights = tl.exp2(scores - safe[:, None])
            rescale = tl.exp2(peak - safe)
            total = total * rescale + tl.sum(weights, 1)
            values = tl.load(v + at_keys, mask=there, other=0.0)
            mixed = tl.dot(weights.to(values.dtype), values, mixed * rescale[:, None],
                           input_precision="ieee")
            peak = higher
    mixed = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(out + at_rows, mixed.to(out.dtype.element_ty), mask=(rows < T)[:, None] & in_head)


def decode(kernel: Any, q: Any, keys: Any, values: Any, block_tables: Any, context_lens: Any,
           window: int | None = None, splits: int | None = None) -> Any:
    """Launch `paged_decode`, then merge what its programs have come to.

    q: (B, H, d), one query for each sequence, its last token; keys, values: (K, blocks,
    block_size, d), one layer of `serving.paged_cache.PagedKVCache`; block_tables: (B, width)
    int32, or lists of block numbers; context_lens: (B,) int32, or a list; window: as for
    `attend`. splits: in how many parts the keys of a sequence are cut, by default so many that
    the GPU is busy. Returns (B, H, d) in q's dtype.
    Raises ModelError for heads of more than 128.
    """
    (B, H, d), (K, blocks, size, _) = q.shape, keys.shape
    if not torch.is_tensor(block_tables):
        width = max([1, *map(len, block_tables)])
        block_tables = torch.tensor([[*table, *[0] * (width - len(table))]
                                     for table in block_tables], dtype=torch.int32)
        block_tables = block_tables.reshape(B, width).to(q.device)
    if not torch.is_tensor(context_lens):
        context_lens = torch.tensor(context_lens, dtype=torch.int32, device=q.device)
    width = block_tables.shape[1]
    splits = splits or _splits(q.device, B * K, width * size)
    kept, out = q.dtype, torch.empty_like(q, memory_format=torch.contiguous_format)
    q, keys, values, out = _computable(d, q, keys, values, out)
    mixed, peaks, totals = (torch.empty(shape, dtype=torch.float32, device=q.device)
                            for shape in ((B, H, splits, d), (B, H, splits), (B, H, splits)))
    if level() == "interpreter":
        for part in (mixed, peaks, totals):
            part.fill_(math.nan)
    if B:
        kernel[(splits, K, B)](
            q, keys, values, block_tables, context_lens, mixed, peaks, totals, H // K, width,
            blocks * size, size, NO_WINDOW if window is None else window, d ** -0.5, splits, d,
            power_of_two(H // K), 64 if level() == "GPU" else 16, power_of_two(d))
        merge_splits[(H, B)](mixed, peaks, totals, out, splits, d, power_of_two(splits, 1),
                             power_of_two(d))
    return out.to(kept)


def _splits(device: Any, programs: int, longest: int) -> int:
    """Parts of a sequence, so that all processors have something to do: a power of two."""
    if level() == "interpreter":
        return 2
    busy = 2 * torch.cuda.get_device_properties(device).multi_processor_count
    wanted = min(-(-busy // max(1, programs)), -(-longest // 128), 64)
    return 1 << max(0, wanted - 1).bit_length()


@launched_by(decode)
@triton.jit
def paged_decode(q, keys, values, tables, lengths, mixed, peaks, totals, group, width, slots,
                 size, window, scale, splits, d: tl.constexpr, GROUP: tl.constexpr,
                 KEYS: tl.constexpr, HEAD: tl.constexpr):
    """Attention of the query heads that share a key/value head, over one part of a sequence.

    Program (split, head, sequence) goes through part `split` of `splits` of the sequence's
    keys. q: (B, H, d), one query for each sequence, its last token, which sees all of its keys,
    or the last `window` of them; H is K · group. keys, values: (K, slots, d): the token at
    place i of a sequence is in slot table[i // size] · size + i % size, where table is the
    sequence's row of `tables`, (B, width) int32; lengths: (B,) int32, its tokens. Nothing but
    its own slots may be read. Scores are multiplied by `scale`. GROUP is at least `group`,
    HEAD at least d.

    Written are the partial results of `kernels.flash.Partial`, in float32: peaks, totals:
    (B, H, splits), the largest score, and the sum of exp(score - peak); mixed: (B, H, splits,
    d), the sum of exp(score - peak) times the value. A part without keys has a peak of -inf,
    and zeros.

    `decode` launches it and merges the parts, from NumPy too:

    >>> q, keys = np.zeros((1, 1, 2), np.float32), np.zeros((1, 2, 2, 2), np.float32)
    >>> values = np.array([[[[1, 0], [9, 9]], [[3, 3], [5, 0]]]], np.float32)
    >>> paged_decode(q, keys, values, [[1, 0]], [3])[0]         # the mean of three values
    array([[3., 1.]], dtype=float32)

    Source: Dao et al. 2023, "Flash-Decoding for long-context inference"; Kwon et al. 2023.
    """
    split = tl.program_id(0)
    head = tl.program_id(1)
    sequence = tl.program_id(2)
    length = tl.load(lengths + sequence)
    first = tl.maximum(length - window, 0)
    each = tl.cdiv(tl.cdiv(length - first, splits), KEYS) * KEYS
    begin = first + split * each
    end = tl.minimum(begin + each, length)
    rows = tl.arange(0, GROUP)                              # query heads
    elements = tl.arange(0, HEAD)
    in_head = (elements < d)[None, :]
    heads = (sequence * tl.num_programs(1) + head) * group + rows
    queries = tl.load(q + heads[:, None] * d + elements[None, :],
                      mask=(rows < group)[:, None] & in_head, other=0.0)
    peak = tl.full([GROUP], float("-inf"), tl.float32)
    total = tl.zeros([GROUP], tl.float32)
    weighted = tl.zeros([GROUP, HEAD], tl.float32)
    for start in range(begin, end, KEYS):
        places = start + tl.arange(0, KEYS)
        there = places < end
        block = tl.load(tables + sequence * width + places // size, mask=there, other=0)
        # more elements than int32 can count
        slot = head.to(tl.int64) * slots + block.to(tl.int64) * size + places % size
        at_keys = slot[:, None] * d + elements[None, :]
        own = there[:, None] & in_head
        seen = tl.load(keys + at_keys, mask=own, other=0.0)                   # (KEYS, HEAD)
        scores = tl.dot(queries, tl.trans(seen), input_precision="ieee") * scale
        scores = tl.where(there[None, :], scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))                # a key is there: not -inf
        weights = tl.exp(scores - higher[:, None])
        rescale = tl.exp(peak - higher)
        total = total * rescale + tl.sum(weights, 1)
        value = tl.load(values + at_keys, mask=own, other=0.0)
        weighted = tl.dot(weights.to(value.dtype), value, weighted * rescale[:, None],
                          input_precision="ieee")
        peak = higher
    at = heads * splits + split
    tl.store(peaks + at, peak, mask=rows < group)
    tl.store(totals + at, total, mask=rows < group)
    tl.store(mixed + at[:, None] * d + elements[None, :], weighted,
             mask=(rows < group)[:, None] & in_head)


@triton.jit
def merge_splits(mixed, peaks, totals, out, splits, d: tl.constexpr, SPLITS: tl.constexpr,
                 HEAD: tl.constexpr):
    """What the parts of one head's keys come to together: `kernels.flash.merge`.

    Program (head, sequence) reads its (splits, d) of `mixed`, and writes its (d,) of out.
    """
    at = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    parts = tl.arange(0, SPLITS)
    elements = tl.arange(0, HEAD)
    there = parts < splits
    peak = tl.load(peaks + at * splits + parts, mask=there, other=float("-inf"))
    highest = tl.max(peak, 0)
    scales = tl.exp(peak - tl.where(highest == float("-inf"), 0.0, highest))
    total = tl.sum(scales * tl.load(totals + at * splits + parts, mask=there, other=0.0), 0)
    part = tl.load(mixed + (at * splits + parts)[:, None] * d + elements[None, :],
                   mask=there[:, None] & (elements < d)[None, :], other=0.0)
    whole = tl.sum(scales[:, None] * part, 0) / tl.where(total == 0.0, 1.0, total)
    tl.store(out + at * d + elements, whole.to(out.dtype.element_ty), mask=elements < d)
