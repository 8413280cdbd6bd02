"""The maximum of the part first, then its sums; keys are loaded as columns."""

from gearworks.kernels.triton.attention import decode
from gearworks.kernels.triton.language import launched_by, tl, triton


@launched_by(decode)
@triton.jit
def paged_decode(q, keys, values, tables, lengths, mixed, peaks, totals, group, width, slots,
                 size, window, scale, splits, d: tl.constexpr, GROUP: tl.constexpr,
                 KEYS: tl.constexpr, HEAD: tl.constexpr):
    part = tl.program_id(0)
    head = tl.program_id(1)
    batch = tl.program_id(2)
    count = tl.load(lengths + batch)
    first = tl.where(count > window, count - window, 0)
    step = tl.cdiv(count - first, splits)
    low = first + part * step
    high = tl.minimum(low + step, count)
    rows = tl.arange(0, GROUP)
    cells = tl.arange(0, HEAD)
    lines = (batch * tl.num_programs(1) + head) * group + rows
    inside = (rows[:, None] < group) & (cells[None, :] < d)
    queries = tl.load(q + lines[:, None] * d + cells[None, :], mask=inside, other=0.0)
    peak = tl.full([GROUP], float("-inf"), tl.float32)
    for start in range(low, high, KEYS):
        token = start + tl.arange(0, KEYS)
        block = tl.load(tables + batch * width + token // size, mask=token < high, other=0)
        at = (head * slots + block * size + token % size) * d
        real = (token < high)[None, :] & (cells < d)[:, None]
        key = tl.load(keys + at[None, :] + cells[:, None], mask=real, other=0.0)
        score = tl.dot(queries, key, input_precision="ieee") * scale
        peak = tl.maximum(peak, tl.max(tl.where((token < high)[None, :], score, float("-inf")),
                                       1))
    total = tl.zeros([GROUP], tl.float32)
    sums = tl.zeros([GROUP, HEAD], tl.float32)
    for start in range(low, high, KEYS):
        token = start + tl.arange(0, KEYS)
        block = tl.load(tables + batch * width + token // size, mask=token < high, other=0)
        at = (head * slots + block * size + token % size) * d
        real = (token < high)[:, None] & (cells < d)[None, :]
        key = tl.load(keys + at[:, None] + cells[None, :], mask=real, other=0.0)
        score = tl.dot(queries, tl.trans(key), input_precision="ieee") * scale
        weight = tl.where((token < high)[None, :], tl.exp(score - peak[:, None]), 0.0)
        value = tl.load(values + at[:, None] + cells[None, :], mask=real, other=0.0)
        total += tl.sum(weight, 1)
        sums += tl.dot(weight.to(value.dtype), value, input_precision="ieee")
    place = lines * splits + part
    tl.store(peaks + place, peak, mask=rows < group)
    tl.store(totals + place, total, mask=rows < group)
    tl.store(mixed + place[:, None] * d + cells[None, :], sums, mask=inside)
