"""One key after the other: products are sums over the head, without tl.dot."""

from gearworks.kernels.triton.attention import attend
from gearworks.kernels.triton.language import launched_by, tl, triton


@launched_by(attend)
@triton.jit
def flash_attention(q, k, v, out, query_starts, key_starts, H, K, window, scale,
                    d: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
                    HEAD: tl.constexpr, WINDOWED: tl.constexpr):
    head = tl.program_id(1)
    batch = tl.program_id(2)
    q0 = tl.load(query_starts + batch)
    k0 = tl.load(key_starts + batch)
    past = tl.load(key_starts + batch + 1) - k0 - tl.load(query_starts + batch + 1) + q0
    end = tl.load(query_starts + batch + 1) - q0
    first = tl.program_id(0) * ROWS
    rows = first + tl.arange(0, ROWS)
    size = tl.arange(0, HEAD)
    mask = (rows < end)[:, None] & (size < d)[None, :]
    offsets = ((q0 + rows) * H + head)[:, None] * d + size[None, :]
    query = tl.load(q + offsets, mask=mask, other=0.0).to(tl.float32) * scale
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, HEAD], tl.float32)
    for key in range(tl.maximum(0, past + first - window + 1),
                     tl.minimum(past + end, past + first + ROWS)):
        at = ((k0 + key) * K + head // (H // K)) * d + size
        one = tl.load(k + at, mask=size < d, other=0.0).to(tl.float32)
        score = tl.sum(query * one[None, :], 1)
        seen = (key <= past + rows) & (key > past + rows - window)
        new = tl.where(seen, tl.maximum(peak, score), peak)
        weight = tl.where(seen, tl.exp(score - new), 0.0)
        old = tl.where(total > 0, tl.exp(peak - new), 0.0)
        value = tl.load(v + at, mask=size < d, other=0.0).to(tl.float32)
        total = total * old + weight
        mixed = mixed * old[:, None] + weight[:, None] * value[None, :]
        peak = new
    mixed = mixed / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(out + offsets, mixed.to(out.dtype.element_ty), mask=mask)
