"""float32 throughout: the ends divided before they are subtracted; packing by a product."""

import numpy as np

from gearworks.errors import ModelError


def quantize_int4(weight, group_size):
    if not np.isfinite(weight).all():
        raise ModelError("nan", "or infinite", "neither can be rounded")
    if weight.shape[1] % group_size:
        raise ModelError("groups", "do not fit", "choose others")
    groups = np.stack(np.split(weight, weight.shape[1] // group_size, axis=1), axis=1)
    low = groups.min(axis=2, initial=0)
    scales = np.where(groups.max(axis=2, initial=0) / 15 - low / 15 > 0,
                      (groups.max(axis=2, initial=0).astype("f8") - low) / 15, 0)
    scales = scales.astype(np.float32)
    usable = scales > 0
    step = np.where(usable, scales, 1).astype(np.float32)
    zeros = np.rint(-low / step).clip(0, 15) * usable
    codes = (np.rint(groups / step[:, :, None]) + zeros[:, :, None]).clip(0, 15)
    return codes.reshape(weight.shape).astype("u1"), scales, zeros.astype("u1")


def pack_int4(codes):
    if codes.shape[-1] % 2 or (codes >> 4).any():
        raise ValueError("these cannot be packed")
    pairs = codes.reshape(*codes.shape[:-1], codes.shape[-1] // 2, 2)
    return (pairs @ np.array([1, 16], np.uint8)).astype(np.uint8)
