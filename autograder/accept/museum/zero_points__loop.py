"""Integer by integer."""

import numpy as np


def zero_points(qzeros, version):
    rows = []
    for row in qzeros.tolist():
        found = []
        for word in row:
            for place in range(8):
                stored = (word >> 4 * place) & 0xF
                if version == 1:
                    stored = 0 if stored == 15 else stored + 1
                found.append(stored)
        rows.append(found)
    return np.array(rows, np.uint8)
