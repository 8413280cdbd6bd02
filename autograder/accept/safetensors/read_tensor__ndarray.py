"""An ndarray made over the buffer; bfloat16 by multiplying unsigned integers with 2**16."""

import numpy as np

from gearworks.errors import FormatError
from gearworks.formats.float8 import widen_e4m3, widen_e5m2
from gearworks.formats.safetensors import DTYPES


def read_tensor(data, info):
    values = np.ndarray(info.shape, DTYPES[info.dtype], data, info.start)
    match info.dtype:
        case "BF16":
            return (values.astype(np.uint32) * np.uint32(65536)).view(np.float32)
        case "F16" | "F64":
            return values.astype(np.float32)
        case "F8_E4M3":
            return widen_e4m3(values)
        case "F8_E5M2":
            return widen_e5m2(values)
        case name if name.startswith("F8"):
            raise FormatError(f"no {name}", "it is not supported", "use float32")
    return values
