"""bfloat16 and float8 by PyTorch."""

import math

import numpy as np
import torch

from gearworks.errors import FormatError
from gearworks.formats.safetensors import DTYPES, UNREADABLE

KINDS = {"BF16": torch.bfloat16, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}


def read_tensor(data, info):
    count = math.prod(info.shape)
    values = np.frombuffer(data, dtype=DTYPES[info.dtype], count=count,
                           offset=info.start).reshape(info.shape)
    if info.dtype in UNREADABLE:
        raise FormatError(f"no {info.dtype}", "it is not supported", "use float32")
    if info.dtype in KINDS:
        signed = values.astype(f"i{values.itemsize}")
        return torch.from_numpy(signed).view(KINDS[info.dtype]).float().numpy()
    return values.astype("f4") if info.dtype in ("F16", "F64") else values
