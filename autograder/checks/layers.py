"""Checks of the operators of a decoder."""

import numpy as np

from autograder.checking import check, expect_close, expect_unchanged
from gearworks.layers import rms_norm as reference


def exact(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """The norm computed in float64, as float32."""
    return reference(x.astype(np.float64), weight.astype(np.float64), eps).astype(np.float32)


def vectors(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    return (scale * rng.standard_normal(shape)).astype(np.float32)


def weights(rng: np.random.Generator, size: int) -> np.ndarray:
    """Weights far from one, of both signs."""
    return (rng.uniform(0.3, 2.0, size) * rng.choice([-1, 1], size)).astype(np.float32)


@check("layers.rms_norm", points=1, public=True)
def one_vector(rms_norm, rng):
    """A vector by hand: after the norm, the mean of its squares is one."""
    x = np.array([3, 4, 0, 0], np.float32) * np.float32(rng.integers(2, 9))
    expect_close(rms_norm(x, np.ones(4, np.float32), 0.0), np.array([1.2, 1.6, 0, 0], np.float32),
                 of=f"the norm of {x.tolist()} with weights of one and eps 0", axes=["element"],
                 hint="Square the elements and take their mean. What must the vector be divided by so that it is one?")


@check("layers.rms_norm", points=2, public=True)
def each_vector_alone(rms_norm, rng):
    """Each token's vector is scaled by itself, then by the weights."""
    x, weight = vectors(rng, 5, 12) * np.float32([[0.2], [1], [7], [30], [200]]), weights(rng, 12)
    expect_close(rms_norm(x, weight, 1e-5), exact(x, weight, 1e-5), axes=["token", "element"],
                 hint="Tokens know nothing of each other here: which axis is the mean taken over, and is it kept?")


@check("layers.rms_norm", points=2, public=True)
def small_activations(rms_norm, rng):
    """With activations near zero, eps decides, and it is the eps that was given."""
    for eps in (1e-3, 1e-5):
        x, weight = vectors(rng, 3, 10, scale=3e-3), weights(rng, 10)
        expect_close(rms_norm(x, weight, eps), exact(x, weight, eps), of=f"the norm of small vectors with eps {eps:g}",
                     axes=["token", "element"], hint="The docstring says what eps is added to, and when.")


@check("layers.rms_norm", points=1, public=True)
def shifted_vectors(rms_norm, rng):
    """A vector far from zero keeps its mean: nothing is subtracted."""
    x, weight = vectors(rng, 4, 14) + np.float32(5), weights(rng, 14)
    expect_close(rms_norm(x, weight, 1e-6), exact(x, weight, 1e-6), axes=["token", "element"],
                 hint="Layer normalization centres its input. This one scales it, and does nothing else.")


@check("layers.rms_norm", points=1, public=True)
def input_stays(rms_norm, rng):
    """The input, which the residual still needs, is left as it was."""
    x, weight = vectors(rng, 3, 8), weights(rng, 8)
    with expect_unchanged(x, weight, hint="An operator such as `x /= …` writes into the caller's array."):
        rms_norm(x, weight, 1e-5)


@check("layers.rms_norm", points=1, public=False)
def any_shape(rms_norm, rng):
    """Vectors in an array of any shape: one alone, heads of tokens, none at all."""
    for shape in ((7,), (3, 2, 6), (2, 3, 1, 5), (4, 1), (0, 9)):
        x, weight = vectors(rng, *shape, scale=2.0), weights(rng, shape[-1])
        expect_close(rms_norm(x, weight, 1e-5), exact(x, weight, 1e-5))


@check("layers.rms_norm", points=1, public=False)
def zeros(rms_norm, rng):
    """A vector of zeros stays one, and no other vector notices."""
    x, weight = vectors(rng, 3, 11), weights(rng, 11)
    x[1] = 0
    expect_close(rms_norm(x, weight, 1e-6), exact(x, weight, 1e-6))


@check("layers.rms_norm", points=1, public=False)
def large_activations(rms_norm, rng):
    """Activations in the thousands, as real models have them, lose nothing."""
    x, weight = vectors(rng, 4, 64, scale=5e3), weights(rng, 64)
    x[:, int(rng.integers(64))] *= 300
    expect_close(rms_norm(x, weight, 1e-5), exact(x, weight, 1e-5), rtol=1e-4)
