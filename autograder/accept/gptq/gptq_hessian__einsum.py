"""einsum over tokens, and the diagonal by a slice of the flat matrix."""

import numpy as np

from gearworks.errors import ModelError
from gearworks.quantization.rounding import require_finite


def gptq_hessian(inputs, damping=0.01):
    require_finite(inputs)
    hessian = np.einsum("ni,nj->ij", inputs, inputs) * np.float32(2 / inputs.shape[0])
    mean = float(hessian.diagonal().mean())
    if mean == 0:
        raise ModelError("every weight would do", "all inputs are zero", "use another text")
    hessian.reshape(-1)[::len(hessian) + 1] += damping * mean
    return hessian
