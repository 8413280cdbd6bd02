"""Products of a few rows, which go through the matrix one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gearworks import layers
from gearworks import products
from gearworks.products import BLOCK, EVEN, FEW, MANY, fixed_shapes, matmul


def float64(a, b):
    return a.astype(np.float64) @ b.astype(np.float64)


@given(rows=st.integers(0, 20), inner=st.integers(1, 40), columns=st.integers(0, 90),
       block=st.integers(1, 200), by_column=st.booleans(), seed=st.integers(0, 2**32 - 1))
def test_any_shape_layout_and_block(rows, inner, columns, block, by_column, seed):
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((rows, 2 * inner), np.float32)[:, ::2]       # strided, as views are
    b = rng.standard_normal((inner, columns), np.float32)
    b = np.asfortranarray(b) if by_column else b
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "BLOCK", block)
        patch.setattr(products, "FEW", 4)
        patch.setattr(products, "EVEN", 8)
        patch.setattr(products, "MANY", 16)
        got = matmul(a, b)
    assert got.dtype == np.float32 and got.shape == (rows, columns)
    np.testing.assert_allclose(got, float64(a, b), atol=1e-4)


@pytest.mark.parametrize("shape", [(40,), (1, 40), (2, 3, 40), (8, 40),
                                   (MANY + 1, 40)])
def test_other_shapes_are_left_to_numpy(shape, rng):
    a, b = rng.standard_normal(shape, np.float32), rng.standard_normal((40, 30), np.float32)
    np.testing.assert_array_equal(matmul(a, b), a @ b)


@pytest.mark.reference("the same bits")
@pytest.mark.parametrize("columns", [960, 3072])
def test_a_row_does_not_feel_its_neighbours(columns, rng):
    """One vector after the other goes through the routine that a single token goes through;
    here, with OpenBLAS.

    Of a matrix of several blocks this holds to rounding only: threads divide a block in another
    way than the whole.
    """
    assert FEW > 1 or "openblas" not in str(np.show_config(mode="dicts"))
    a, weight = rng.standard_normal((FEW, 576), np.float32), rng.standard_normal((columns, 576),
                                                                                 np.float32)
    for laid in (weight, np.asfortranarray(weight)):
        alone = np.concatenate([layers.linear(row[None], laid) for row in a])
        for count in range(2, FEW + 1):
            np.testing.assert_array_equal(layers.linear(a[:count], laid), alone[:count])


def test_the_matrix_is_taken_in_blocks_that_a_cache_holds(rng, monkeypatch):
    """All rows meet a block before the next one is read,
    so that a large matrix comes from memory once."""
    sizes = []

    def vecmat(a, b, out):
        sizes.append(b.size)
        return np.matmul(a, b, out=out)
    b = np.zeros((64, 3 * BLOCK // 64 + 5), np.float32)
    with monkeypatch.context() as patch:
        patch.setattr(np, "vecmat", vecmat)
        patch.setattr(products, "FEW", 8)
        matmul(np.ones((2, 64), np.float32), b)
    assert sizes == [BLOCK, BLOCK, BLOCK, 64 * 5]


def test_shapes_that_do_not_meet_are_refused(rng):
    with pytest.raises(ValueError):
        matmul(np.zeros((3, 5), np.float32), np.zeros((6, 2), np.float32))


def test_mixed_dtypes_widen_as_with_numpy():
    a, b = np.ones((2, 3), np.float32), np.ones((3, 4), np.float64)
    assert matmul(a, b).dtype == (a @ b).dtype == np.float64


@pytest.mark.skipif(EVEN == 1, reason="only OpenBLAS likes some numbers of rows better")
@pytest.mark.parametrize("rows, multiplied", [(FEW + 1, 8), (9, 16), (MANY - 1, 64)])
def test_uneven_numbers_of_rows_are_filled_up(rows, multiplied, rng):
    class Counted(np.ndarray):
        seen = []

        def __matmul__(self, other):
            self.seen.append(len(self))
            return np.asarray(self) @ other

        def __rmatmul__(self, other):
            self.seen.append(len(other))
            return other @ np.asarray(self)
    a = rng.standard_normal((rows, 40), np.float32)
    b = rng.standard_normal((40, 30), np.float32)
    got = matmul(a, b.view(Counted))
    assert Counted.seen.pop() == multiplied and got.shape == (rows, 30)
    np.testing.assert_allclose(got, float64(a, b), atol=1e-4)


@pytest.mark.reference("the same bits")
@given(counts=st.lists(st.integers(1, 9), min_size=1, max_size=8), seed=st.integers(0, 99))
def test_in_fixed_shapes_a_group_does_not_feel_the_others(counts, seed):
    """Each group's product has the same bits alone and beside others; single rows always."""
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((sum(counts), 64), np.float32)
    b = rng.standard_normal((64, 50), np.float32)
    with fixed_shapes(counts):
        together = matmul(a, b)
    start = 0
    for count in counts:
        with fixed_shapes([count]):
            np.testing.assert_array_equal(matmul(a[start:start + count], b),
                                          together[start:start + count])
        start += count
    np.testing.assert_allclose(together, float64(a, b), atol=1e-4)
    with fixed_shapes([sum(counts) + 1]):
        alone = matmul(a, b)
    with fixed_shapes([1]):
        for row, product in zip(a, alone):
            np.testing.assert_array_equal(matmul(row[None], b)[0], product)
