"""Token by token within the part, the block looked up for each."""

from gearworks.kernels.triton.attention import decode
from gearworks.kernels.triton.language import launched_by, tl, triton


@launched_by(decode)
@triton.jit
def paged_decode(q, keys, values, tables, lengths, mixed, peaks, totals, group, width, slots,
                 size, window, scale, splits, d: tl.constexpr, GROUP: tl.constexpr,
                 KEYS: tl.constexpr, HEAD: tl.constexpr):
    length = tl.load(lengths + tl.program_id(2))
    low = tl.maximum(0, length - window)
    share = tl.cdiv(length - low, splits)
    own = tl.arange(0, GROUP)
    e = tl.arange(0, HEAD)
    line = tl.program_id(2) * tl.num_programs(1) * group + tl.program_id(1) * group + own
    mask = (own < group)[:, None] & (e < d)[None, :]
    query = tl.load(q + line[:, None] * d + e[None, :], mask=mask, other=0.0).to(tl.float32)
    peak = tl.full([GROUP], float("-inf"), tl.float32)
    total = tl.zeros([GROUP], tl.float32)
    sums = tl.zeros([GROUP, HEAD], tl.float32)
    start = low + tl.program_id(0) * share
    for token in range(start, tl.minimum(start + share, length)):
        block = tl.load(tables + tl.program_id(2) * width + token // size)
        at = (tl.program_id(1) * slots + block * size + token % size) * d + e
        key = tl.load(keys + at, mask=e < d, other=0.0).to(tl.float32)
        value = tl.load(values + at, mask=e < d, other=0.0).to(tl.float32)
        score = tl.sum(query * key[None, :], 1) * scale
        top = tl.maximum(peak, score)
        weight = tl.exp(score - top)
        rest = tl.exp(peak - top)
        total = total * rest + weight
        sums = sums * rest[:, None] + weight[:, None] * value[None, :]
        peak = top
    place = line * splits + tl.program_id(0)
    tl.store(peaks + place, peak, mask=own < group)
    tl.store(totals + place, total, mask=own < group)
    tl.store(mixed + place[:, None] * d + e[None, :], sums, mask=mask)
