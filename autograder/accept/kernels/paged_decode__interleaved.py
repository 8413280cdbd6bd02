"""Part i has the tiles i, i + splits, i + 2 · splits … of the keys."""

from gearworks.kernels.triton.attention import decode
from gearworks.kernels.triton.language import launched_by, tl, triton


@launched_by(decode)
@triton.jit
def paged_decode(q, keys, values, tables, lengths, mixed, peaks, totals, group, width, slots,
                 size, window, scale, splits, d: tl.constexpr, GROUP: tl.constexpr,
                 KEYS: tl.constexpr, HEAD: tl.constexpr):
    batch = tl.program_id(2)
    head = tl.program_id(1)
    length = tl.load(lengths + batch)
    rows = tl.arange(0, GROUP)
    cells = tl.arange(0, HEAD)
    lines = (batch * tl.num_programs(1) + head) * group + rows
    inside = (rows < group)[:, None] & (cells < d)[None, :]
    queries = tl.load(q + lines[:, None] * d + cells[None, :], mask=inside, other=0.0)
    peak = tl.full([GROUP], -1e38, tl.float32)
    total = tl.zeros([GROUP], tl.float32)
    sums = tl.zeros([GROUP, HEAD], tl.float32)
    for start in range(tl.program_id(0) * KEYS, length, splits * KEYS):
        token = start + tl.arange(0, KEYS)
        there = (token < length) & (token >= length - window)
        block = tl.load(tables + batch * width + token // size, mask=there, other=0)
        at = head.to(tl.int64) * slots + block * size + token % size
        at = at[:, None] * d + cells[None, :]
        mask = there[:, None] & (cells < d)[None, :]
        key = tl.load(keys + at, mask=mask, other=0.0)
        score = tl.dot(queries, tl.trans(key), input_precision="ieee") * scale
        top = tl.maximum(peak, tl.max(tl.where(there[None, :], score, -1e38), 1))
        weight = tl.where(there[None, :], tl.exp(score - top[:, None]), 0.0)
        shrink = tl.exp(peak - top)
        value = tl.load(values + at, mask=mask, other=0.0)
        total = total * shrink + tl.sum(weight, 1)
        sums = sums * shrink[:, None] + tl.dot(weight.to(value.dtype), value,
                                               input_precision="ieee")
        peak = top
    place = lines * splits + tl.program_id(0)
    tl.store(peaks + place, tl.where(total > 0, peak, float("-inf")), mask=rows < group)
    tl.store(totals + place, total, mask=rows < group)
    tl.store(mixed + place[:, None] * d + cells[None, :], sums, mask=inside)
