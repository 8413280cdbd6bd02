"""By PyTorch's fused operator, rows that see nothing set to zero."""

import numpy as np
import torch


def attention(q, k, v, mask=None):
    T, H, _ = q.shape
    S, K, _ = k.shape
    visible = (torch.ones(T, S, dtype=torch.bool).tril(S - T) if mask is None
               else torch.from_numpy(np.array(mask)))
    q, k, v = (torch.from_numpy(np.ascontiguousarray(array.transpose(1, 0, 2)))[None]
               for array in (q, k, v))
    k, v = (array.repeat_interleave(H // K, dim=1) for array in (k, v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=visible)[0]
    out = torch.where(visible.any(dim=-1)[None, :, None], out, torch.zeros(()))
    return out.numpy().transpose(1, 0, 2)
