"""Matrix products of a few rows, for which OpenBLAS has no routine of its own.

For one row it multiplies a vector by a matrix, and reads the matrix once. For several it
multiplies two matrices, and copies the larger into blocks first, which pays for hundreds of
rows and costs more than the product for two.
"""

import numpy as np

# Rows, up to which one after the other was faster, on one thread and on two (AMD EPYC). Other
# libraries: not measured.
FEW = 8 if "openblas" in str(np.show_config(mode="dicts").get("Build Dependencies")) else 1
# Numbers of the matrix at a time: 8 MiB, which stay in the last cache until all rows met them
BLOCK = 2**21


def matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """`a @ b`, where 2 to `FEW` rows go through `b` one by one, as a single row does.

    a: (..., n); b: (n, m), in any memory layout; returns (..., m).
    Raises ValueError as `@` does.

    >>> matmul(np.array([[1., 2.], [3., 4.]], np.float32),
    ...        np.array([[0., 1.], [1., 1.]], np.float32))
    array([[2., 3.],
           [4., 7.]], dtype=float32)
    """
    if a.ndim != 2 or not 1 < len(a) <= FEW:
        return a @ b
    product = np.empty((len(a), b.shape[1]), np.result_type(a, b))
    columns = max(1, BLOCK // len(b))
    for start in range(0, b.shape[1], columns):
        np.vecmat(a, b[:, start:start + columns], out=product[:, start:start + columns])
    return product
