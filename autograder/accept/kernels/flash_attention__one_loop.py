"""One loop from the first key to the last that a query sees, every tile masked."""

from gearworks.kernels.triton.attention import attend
from gearworks.kernels.triton.language import launched_by, tl, triton


@launched_by(attend)
@triton.jit
def flash_attention(q, k, v, out, query_starts, key_starts, H, K, window, scale,
                    d: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
                    HEAD: tl.constexpr, WINDOWED: tl.constexpr):
    tile = tl.program_id(0)
    head = tl.program_id(1)
    begin_q = tl.load(query_starts + tl.program_id(2))
    begin_k = tl.load(key_starts + tl.program_id(2))
    T = tl.load(query_starts + tl.program_id(2) + 1) - begin_q
    S = tl.load(key_starts + tl.program_id(2) + 1) - begin_k
    row = tile * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, HEAD)
    address = (begin_q + row[:, None]) * H * d + head * d + column[None, :]
    inside = (row[:, None] < T) & (column[None, :] < d)
    Q = tl.load(q + address, mask=inside, other=0.0)
    m = tl.full([ROWS], -1e30, tl.float32)
    length = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, HEAD], tl.float32)
    least = tl.maximum(0, S - T + tile * ROWS - window + 1)
    for j in range(least // KEYS * KEYS, tl.minimum(S, S - T + (tile + 1) * ROWS), KEYS):
        key = j + tl.arange(0, KEYS)
        where = (begin_k + key[:, None]) * K * d + (head * K // H) * d + column[None, :]
        real = (key[:, None] < S) & (column[None, :] < d)
        X = tl.load(k + where, mask=real, other=0.0)
        Y = tl.load(v + where, mask=real, other=0.0)
        s = tl.dot(Q, tl.trans(X), input_precision="ieee") * scale
        ok = (key[None, :] < S) & (key[None, :] <= row[:, None] + S - T)
        ok = ok & (key[None, :] > row[:, None] + S - T - window)
        s = tl.where(ok, s, -1e30)
        top = tl.maximum(m, tl.max(s, 1))
        p = tl.where(ok, tl.exp(s - top[:, None]), 0.0)
        shrink = tl.exp(m - top)
        length = length * shrink + tl.sum(p, 1)
        acc = acc * shrink[:, None] + tl.dot(p.to(Y.dtype), Y, input_precision="ieee")
        m = top
    acc = tl.where(length[:, None] > 0, acc / tl.maximum(length, 1e-30)[:, None], 0.0)
    tl.store(out + address, acc.to(out.dtype.element_ty), mask=inside)
