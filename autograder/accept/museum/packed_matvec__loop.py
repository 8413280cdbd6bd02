"""Number by number."""

import numpy as np


def packed_matvec(packed, scales, zeros, x):
    group = len(x) // scales.shape[1]
    out = []
    for row in range(len(packed)):
        total = 0.0
        for column in range(len(x)):
            byte = int(packed[row, column // 2])
            code = byte // 16 if column % 2 else byte % 16
            at = column // group
            total += float(scales[row, at]) * (code - int(zeros[row, at])) * float(x[column])
        out.append(total)
    return np.array(out, np.float32)
