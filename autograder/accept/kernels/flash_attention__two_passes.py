"""The maximum first, then sums and mixtures: keys are read twice, nothing is rescaled."""

from gearworks.kernels.triton.attention import attend
from gearworks.kernels.triton.language import launched_by, tl, triton


@launched_by(attend)
@triton.jit
def flash_attention(q, k, v, out, query_starts, key_starts, H, K, window, scale,
                    d: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
                    HEAD: tl.constexpr, WINDOWED: tl.constexpr):
    first = tl.program_id(0) * ROWS
    which = tl.program_id(2)
    T = tl.load(query_starts + which + 1) - tl.load(query_starts + which)
    S = tl.load(key_starts + which + 1) - tl.load(key_starts + which)
    if first < T:
        rows = first + tl.arange(0, ROWS)
        parts = tl.arange(0, HEAD)
        q_at = (tl.load(query_starts + which) + rows) * H + tl.program_id(1)
        q_at = q_at[:, None] * d + parts[None, :]
        rows_in = (rows < T)[:, None] & (parts < d)[None, :]
        queries = tl.load(q + q_at, mask=rows_in, other=0.0)
        own = rows + S - T
        base = tl.load(key_starts + which)
        shared = tl.program_id(1) // (H // K)
        low = tl.maximum(0, S - T + first - window + 1) // KEYS * KEYS
        peak = tl.full([ROWS], float("-inf"), tl.float32)
        for start in range(low, tl.minimum(S, S - T + first + ROWS), KEYS):
            keys = start + tl.arange(0, KEYS)
            at = ((base + keys) * K + shared)[None, :] * d + parts[:, None]
            block = tl.load(k + at, mask=(keys < S)[None, :] & (parts < d)[:, None], other=0.0)
            scores = tl.dot(queries, block, input_precision="ieee") * scale
            gap = own[:, None] - keys[None, :]
            scores = tl.where((gap >= 0) & (gap < window), scores, float("-inf"))
            peak = tl.maximum(peak, tl.max(scores, 1))
        peak = tl.where(peak == float("-inf"), 0.0, peak)
        total = tl.zeros([ROWS], tl.float32)
        mixed = tl.zeros([ROWS, HEAD], tl.float32)
        for start in range(low, tl.minimum(S, S - T + first + ROWS), KEYS):
            keys = start + tl.arange(0, KEYS)
            at = ((base + keys) * K + shared)[:, None] * d + parts[None, :]
            there = (keys < S)[:, None] & (parts < d)[None, :]
            block = tl.load(k + at, mask=there, other=0.0)
            scores = tl.dot(queries, tl.trans(block), input_precision="ieee") * scale
            gap = own[:, None] - keys[None, :]
            scores = tl.where((gap >= 0) & (gap < window), scores, float("-inf"))
            weights = tl.exp(scores - peak[:, None])
            total += tl.sum(weights, 1)
            values = tl.load(v + at, mask=there, other=0.0)
            mixed += tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        mixed = mixed / tl.maximum(total, 1e-20)[:, None]
        tl.store(out + q_at, mixed.to(out.dtype.element_ty), mask=rows_in)
