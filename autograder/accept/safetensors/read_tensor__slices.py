"""By slicing the bytes, and with bfloat16 written between zeros."""

import numpy as np

from gearworks.errors import FormatError
from gearworks.formats.float8 import widen_e4m3, widen_e5m2
from gearworks.formats.safetensors import DTYPES, UNREADABLE


def read_tensor(data, info):
    if info.dtype in UNREADABLE:
        raise FormatError("cannot read this tensor", f"it is {info.dtype}", "use another copy")
    raw = data[info.start:info.end]
    if info.dtype == "BF16":
        halves = np.zeros((len(raw) // 2, 2), "<u2")
        halves[:, 1] = np.frombuffer(raw, "<u2")
        return halves.view("<f4").reshape(info.shape)
    array = np.frombuffer(raw, DTYPES[info.dtype])
    if info.dtype == "F8_E4M3":
        array = widen_e4m3(array)
    if info.dtype == "F8_E5M2":
        array = widen_e5m2(array)
    if info.dtype in {"F16", "F64"}:
        array = np.array(array, np.float32)
    return array.reshape(info.shape)
