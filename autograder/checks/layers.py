"""Checks of the operators of a decoder."""

from collections.abc import Callable

import numpy as np
from hypothesis import strategies as st

from autograder.checking import check, expect_close, expect_unchanged
from autograder.checking.examples import docstring_example
from autograder.checking.differential import expect_agreement
from autograder.generators.arrays import VALUES, Numbers, numbers, rows, sizes
from autograder.generators.calls import Call
from autograder.generators.configurations import EPS
from gearworks import layers as layers_reference
from gearworks.layers import rms_norm as reference

IN_PLACE = "An operator such as `x -= …` or `x /= …` writes into the caller's array."


def exact(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """The norm computed in float64, as float32."""
    return reference(x.astype(np.float64), weight.astype(np.float64), eps).astype(np.float32)


def exact_softmax(x: np.ndarray) -> np.ndarray:
    """The probabilities in float64, row by row; zeros for a row without any possibility."""
    out = np.zeros(x.shape)
    for place in np.ndindex(x.shape[:-1]):
        row = x[place].astype(np.float64)
        if np.max(row) > -np.inf:
            powers = np.exp(row - np.max(row))
            out[place] = powers / powers.sum()
    return out.astype(np.float32)


def exact_layer_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray,
                     eps: float) -> np.ndarray:
    """Layer normalization computed in float64."""
    wide = x.astype(np.float64)
    mean = wide.mean(axis=-1, keepdims=True)
    variance = ((wide - mean) ** 2).mean(axis=-1, keepdims=True)
    return ((wide - mean) / np.sqrt(variance + eps) * weight + bias).astype(np.float32)


def exact_silu(x: np.ndarray) -> np.ndarray:
    """SiLU computed in float64, by way of tanh, which has no limits."""
    wide = x.astype(np.float64)
    return wide * (0.5 + 0.5 * np.tanh(wide / 2))


def unchanged(function: Callable[..., np.ndarray], *arguments,
              hint: str = IN_PLACE) -> np.ndarray:
    """What the function gives, once it is sure that it left its arguments as they were."""
    with expect_unchanged(*arguments, hint=hint):
        return function(*arguments)


def vectors(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    return (scale * rng.standard_normal(shape)).astype(np.float32)


def weights(rng: np.random.Generator, size: int) -> np.ndarray:
    """Weights far from one, of both signs."""
    return (rng.uniform(0.3, 2.0, size) * rng.choice([-1, 1], size)).astype(np.float32)


example_of_softmax = docstring_example("layers.softmax", points=0.5)


@check("layers.softmax", points=1, public=True)
def odds(softmax, rng):
    """Logits that are logarithms: each probability is the number's share of the sum."""
    numbers = rng.choice(np.arange(1, 12), 4, replace=False)
    expect_close(softmax(np.log(numbers).astype(np.float32)),
                 (numbers / numbers.sum()).astype(np.float32),
                 of=f"the probabilities of the logits log {', log '.join(map(str, numbers))}",
                 axes=["element"],
                 hint="Which power undoes a logarithm? Then the numbers are divided by their "
                      "sum.")


@check("layers.softmax", points=1, public=True)
def each_row(softmax, rng):
    """Each row of scores, of each head, sums to one by itself; the scores stay as they were."""
    x = vectors(rng, 3, 4, 6, scale=2.0)
    got = unchanged(softmax, x, hint="Without `out`, the result is new memory.")
    expect_close(got, exact_softmax(x), axes=["head", "query", "key"],
                 hint="Which axis do the probabilities of one query run along? Sum and peak "
                      "keep it, with length 1.")


@check("layers.softmax", points=1, public=True, always=(0,))
def large_logits(softmax, rng):
    """Logits of several hundred, of either sign, do not overflow,
    and no row notices another."""
    x = vectors(rng, 4, 7, scale=200.0) + np.float32([[0], [5_000], [-5_000], [300]])
    with np.errstate(all="ignore"):
        got = unchanged(softmax, x)
    expect_close(got, exact_softmax(x), axes=["row", "element"],
                 hint="exp(89) is too large for float32, and exp(-104) is zero. What can be "
                      "subtracted from a whole row without changing its probabilities?")


@check("layers.softmax", points=1, public=True)
def impossible(softmax, rng):
    """What is -inf gets nothing, and a row in which nothing is possible gets zeros, not nan."""
    x = vectors(rng, 4, 5, scale=3.0)
    x[0, int(rng.integers(5))] = x[2, :3] = x[1] = -np.inf
    with np.errstate(all="ignore"):
        got = unchanged(softmax, x)
    expect_close(got, exact_softmax(x), axes=["row", "element"],
                 hint="What is -inf minus -inf, and 0 divided by 0? Row 1 is the one without "
                      "any possibility.")


@check("layers.softmax", points=1, public=True)
def into_given_memory(softmax, rng):
    """With `out`, the probabilities are written there, and returned too."""
    x, out = vectors(rng, 3, 6), vectors(rng, 3, 6)
    right = exact_softmax(x)
    got = softmax(x.copy(), out=out)
    expect_close(got, right, of="what is returned", axes=["row", "element"],
                 hint="`out` is where the result goes; what it held before has no meaning.")
    expect_close(out, right, of="what is in `out` after the call",
                 axes=["row", "element"],
                 hint="NumPy's operators have an argument `out` as well.")
    itself = x.copy()
    got = softmax(itself, out=itself)
    expect_close(got, right, of="the result for softmax(x, out=x)",
                 axes=["row", "element"],
                 hint="When `out` is x itself, everything that you need of x must be read "
                      "before it is overwritten.")


@st.composite
def score_rows(draw) -> Call:
    """Scores along any axes, large, tied, and impossible ones; in new memory, or into given."""
    x = draw(rows(widths=(3, 1, 2, 5, 128), least=0, values=(*VALUES, "masked")))
    out = Numbers(x.shape, 7) if draw(st.sampled_from([False, False, True])) else None
    return Call((x,), {} if out is None else {"out": out})


@check("layers.softmax", points=1, public=True)
def any_rows(softmax, rng):
    """Rows along any axes, large, tied and impossible ones, in any layout."""
    with np.errstate(all="ignore"):
        expect_agreement(softmax, layers_reference.softmax, score_rows(), rng, examples=100,
                         hint="Work out this row by hand: its peak, the powers, their sum.")


@check("layers.softmax", points=0.5, public=False)
def any_scores(softmax, rng):
    """Scores of any shape: one number, one row, no rows at all, four axes."""
    for shape in ((1,), (9,), (0, 5), (4, 1), (2, 3, 2, 5)):
        x = vectors(rng, *shape, scale=4.0)
        with np.errstate(all="ignore"):
            got = unchanged(softmax, x)
        expect_close(got, exact_softmax(x))


@check("layers.softmax", points=0.5, public=False)
def small_differences(softmax, rng):
    """Logits that are nearly equal, and ties, keep their order and their small differences."""
    x = vectors(rng, 3, 40, scale=1e-3)
    x[1] = x[1, 0]
    expect_close(unchanged(softmax, x), exact_softmax(x), atol=1e-7)


@check("layers.softmax", points=0.5, public=False, always=(6,))
def masked_rows_among_others(softmax, rng):
    """Rows with and without possibilities, with scores of any size beside the masked ones."""
    x = vectors(rng, 2, 5, 8, scale=300.0) - np.float32(1_000)
    x[rng.random(x.shape) < 0.5] = -np.inf
    x[1, int(rng.integers(5))] = -np.inf
    with np.errstate(all="ignore"):
        got = unchanged(softmax, x)
    expect_close(got, exact_softmax(x))


example_of_rms_norm = docstring_example("layers.rms_norm", points=1)


@check("layers.rms_norm", points=1, public=True)
def one_vector(rms_norm, rng):
    """A vector by hand: after the norm, the mean of its squares is one."""
    x = np.array([3, 4, 0, 0], np.float32) * np.float32(rng.integers(2, 9))
    expect_close(rms_norm(x, np.ones(4, np.float32), 0.0),
                 np.array([1.2, 1.6, 0, 0], np.float32),
                 of=f"the norm of {x.tolist()} with weights of one and eps 0", axes=["element"],
                 hint="Square the elements and take their mean. What must the vector be "
                      "divided by so that it is one?")


@check("layers.rms_norm", points=1, public=True)
def each_vector_alone(rms_norm, rng):
    """Each token's vector is scaled by itself, then by the weights."""
    x = vectors(rng, 5, 12) * np.float32([[0.2], [1], [7], [30], [200]])
    weight = weights(rng, 12)
    expect_close(unchanged(rms_norm, x, weight, 1e-5), exact(x, weight, 1e-5),
                 axes=["token", "element"],
                 hint="Tokens know nothing of each other here: which axis is the mean taken "
                      "over, and is it kept?")


@check("layers.rms_norm", points=2, public=True)
def small_activations(rms_norm, rng):
    """With activations near zero, eps decides, and it is the eps that was given."""
    for eps in (1e-3, 1e-5):
        x, weight = vectors(rng, 3, 10, scale=3e-3), weights(rng, 10)
        expect_close(unchanged(rms_norm, x, weight, eps), exact(x, weight, eps),
                     axes=["token", "element"],
                     of=f"the norm of small vectors with eps {eps:g}",
                     hint="The docstring says what eps is added to, and when.")


@check("layers.rms_norm", points=1, public=True)
def shifted_vectors(rms_norm, rng):
    """A vector far from zero keeps its mean: nothing is subtracted."""
    x, weight = vectors(rng, 4, 14) + np.float32(5), weights(rng, 14)
    expect_close(unchanged(rms_norm, x, weight, 1e-6), exact(x, weight, 1e-6),
                 axes=["token", "element"],
                 hint="Layer normalization centres its input. This one scales it, and does "
                      "nothing else.")


@check("layers.rms_norm", points=1, public=True)
def input_stays(rms_norm, rng):
    """The input, which the residual still needs, is left as it was."""
    x, weight = vectors(rng, 3, 8), weights(rng, 8)
    unchanged(rms_norm, x, weight, 1e-5)


@st.composite
def norms(draw, has_bias: bool = False) -> Call:
    """Vectors along any axes, weights, perhaps a bias, and any eps."""
    x = draw(rows(widths=(3, 2, 5, 128), least=0))
    width = x.shape[-1]
    weight = draw(numbers(width, values=("plain", "ties", "tiny")))
    bias = (draw(numbers(width, values=("plain", "large"))),) if has_bias else ()
    return Call((x, weight, *bias, draw(EPS)))


def norm_slack(call: Call) -> float:
    """What float32 may lose: more where a vector hardly varies for its size."""
    (x, weight, *_, eps), _ = call.made()
    if not x.size:
        return 1e-6
    spread = np.sqrt(np.var(x.astype(np.float64), axis=-1) + eps)
    size = np.abs(x).max(axis=-1)
    more = max((np.abs(part).max() for part in call.made()[0][2:-1]), default=0)
    return float(2e-6 * ((1 + size / spread).max() * np.abs(weight).max() + more) + 1e-7)


@check("layers.rms_norm", points=1.5, public=True)
def any_norm(rms_norm, rng):
    """Vectors along any axes, large, tiny and zero, with any eps, in any layout."""
    expect_agreement(rms_norm, exact, norms(), rng, name="rms_norm", atol=norm_slack,
                     hint="The mean of the squares, over the last axis; eps; the root; the "
                          "weight. Which of these is another number here?")


@check("layers.rms_norm", points=0.5, public=False, always=(2,))
def any_shape(rms_norm, rng):
    """Vectors in an array of any shape: one alone, heads of tokens, none at all."""
    for shape in ((7,), (3, 2, 6), (2, 3, 1, 5), (4, 1), (0, 9)):
        x, weight = vectors(rng, *shape, scale=2.0), weights(rng, shape[-1])
        expect_close(unchanged(rms_norm, x, weight, 1e-5), exact(x, weight, 1e-5))


@check("layers.rms_norm", points=0.5, public=False)
def zeros(rms_norm, rng):
    """A vector of zeros stays one, and no other vector notices."""
    x, weight = vectors(rng, 3, 11), weights(rng, 11)
    x[1] = 0
    expect_close(unchanged(rms_norm, x, weight, 1e-6), exact(x, weight, 1e-6))


@check("layers.rms_norm", points=0.5, public=False)
def large_activations(rms_norm, rng):
    """Activations in the thousands, as real models have them, lose nothing."""
    x, weight = vectors(rng, 4, 64, scale=5e3), weights(rng, 64)
    x[:, int(rng.integers(64))] *= 300
    expect_close(unchanged(rms_norm, x, weight, 1e-5), exact(x, weight, 1e-5), rtol=1e-4)


example_of_layer_norm = docstring_example("layers.layer_norm", points=0.5)


@check("layers.layer_norm", points=1, public=True)
def centred_vector(layer_norm, rng):
    """A vector by hand: its mean becomes zero, its mean square one, then weight and bias."""
    x = (np.array([-3, -1, 1, 3], np.float32) * np.float32(rng.integers(2, 9))
         + np.float32(rng.integers(1, 9)))
    weight, bias = np.array([1, 1, 2, 2], np.float32), np.array([0, 5, 0, 5], np.float32)
    unit = np.array([-3, -1, 1, 3]) / np.sqrt(5)
    expect_close(unchanged(layer_norm, x, weight, bias, 0.0),
                 (unit * weight + bias).astype(np.float32),
                 of=f"the norm of {x.tolist()} with eps 0", axes=["element"],
                 hint="Subtract the mean; divide by the root of the mean square of what is "
                      "left; weight; bias.")


@check("layers.layer_norm", points=1, public=True, always=(1,))
def each_vector_centred(layer_norm, rng):
    """Each token's vector is centred and scaled by itself, and left as it was."""
    x = (vectors(rng, 5, 6) * np.float32([[0.2], [1], [7], [30], [200]])
         + vectors(rng, 5, 1, scale=20.0))
    weight, bias = weights(rng, 6), vectors(rng, 6)
    got = unchanged(layer_norm, x, weight, bias, 1e-5)
    expect_close(got, exact_layer_norm(x, weight, bias, 1e-5), axes=["token", "element"],
                 atol=1e-4,
                 hint="The docstring says over how many elements the mean of the squares goes.")


@check("layers.layer_norm", points=1, public=True)
def vectors_almost_constant(layer_norm, rng):
    """With vectors that hardly vary, eps decides, and it is the eps that was given."""
    for eps in (1e-3, 1e-5):
        x, weight, bias = vectors(rng, 3, 10, scale=3e-3), weights(rng, 10), vectors(rng, 10)
        expect_close(unchanged(layer_norm, x, weight, bias, eps),
                     exact_layer_norm(x, weight, bias, eps), atol=2e-5,
                     of=f"the norm of small vectors with eps {eps:g}",
                     axes=["token", "element"],
                     hint="The docstring says what eps is added to, and when.")


@check("layers.layer_norm", points=0.5, public=True)
def any_centred(layer_norm, rng):
    """Vectors along any axes, large, tiny and constant, with any eps, in any layout."""
    usual = norms(has_bias=True).filter(lambda call: call.args[-1] >= 1e-6)
    expect_agreement(layer_norm, exact_layer_norm, usual, rng, always=2, name="layer_norm",
                     atol=norm_slack,
                     hint="Mean, distances from it, the mean of their squares, eps, root; "
                          "weight, bias. Which of these is another number here?")


@check("layers.layer_norm", points=0.5, public=False)
def far_from_zero(layer_norm, rng):
    """Vectors whose mean is a thousand times larger than what they vary by."""
    x = vectors(rng, 4, 48) + np.float32(1_500)
    weight, bias = weights(rng, 48), vectors(rng, 48)
    expect_close(unchanged(layer_norm, x, weight, bias, 1e-5),
                 exact_layer_norm(x, weight, bias, 1e-5), atol=2e-3)


@check("layers.layer_norm", points=0.5, public=False)
def any_vectors(layer_norm, rng):
    """Vectors in an array of any shape: one alone, heads of tokens, none, and constant ones."""
    for shape in ((7,), (3, 2, 6), (2, 3, 1, 5), (0, 9)):
        x = vectors(rng, *shape, scale=2.0)
        weight, bias = weights(rng, shape[-1]), vectors(rng, shape[-1])
        x[:1] = x[:1] if len(shape) == 1 else 3
        expect_close(unchanged(layer_norm, x, weight, bias, 1e-5),
                     exact_layer_norm(x, weight, bias, 1e-5), atol=2e-5)


SILU_SWIGLU = "layers.silu+swiglu"


example_of_silu_swiglu = docstring_example(SILU_SWIGLU, points=1)


@check(SILU_SWIGLU, points=1, public=True)
def soft_switch(silu, swiglu, rng):
    """SiLU: close to x where x is large, close to 0 where it is small,
    and a little below 0 in between."""
    x = np.sort(vectors(rng, 3, 8, scale=3.0))
    got = unchanged(silu, x)
    expect_close(got, exact_silu(x).astype(np.float32), axes=["token", "feature"],
                 hint="x times sigmoid(x), and sigmoid(x) is 1 / (1 + exp(-x)).")


@check(SILU_SWIGLU, points=1, public=True)
def beyond_exp(silu, swiglu, rng):
    """Activations of several hundred, of either sign, give neither inf nor nan."""
    x = (np.float32([-5_000, -300, -90, -20, 0, 20, 90, 300, 5_000])
         + rng.uniform(0, 2, 9).astype(np.float32))
    with np.errstate(all="ignore"):
        got = unchanged(silu, x)
    expect_close(got, exact_silu(x).astype(np.float32), axes=["element"],
                 hint="exp(300) is inf in float32. A number divided by inf is right; inf "
                      "divided by inf is not.")


@check(SILU_SWIGLU, points=1, public=True)
def gated(silu, swiglu, rng):
    """The gate goes through SiLU, and the other branch is multiplied by what comes out."""
    gate, up = vectors(rng, 4, 9, scale=2.0), vectors(rng, 4, 9, scale=2.0)
    got = unchanged(swiglu, gate, up)
    expect_close(got, (exact_silu(gate) * up).astype(np.float32), axes=["token", "feature"],
                 hint="Only one of the two branches has an activation. The name of the other "
                      "says what it does not do.")


@st.composite
def branches(draw) -> Call:
    """Two branches of one shape, large, tiny and zero."""
    gate = draw(rows(widths=(3, 1, 5), axes=(2, 1), least=0))
    return Call((gate, draw(numbers(*gate.shape))))


def sizes_together(call: Call) -> float:
    """A tolerance for a product: a part of what the largest numbers would give."""
    return 1e-6 * float(np.prod([np.abs(x).max(initial=0) for x in call.made()[0]])) + 1e-9


@check(SILU_SWIGLU, points=1, public=True)
def any_activation(silu, swiglu, rng):
    """Activations along any axes, large, tiny and zero, in any layout."""
    def right_silu(x: np.ndarray) -> np.ndarray:
        return exact_silu(x).astype(np.float32)

    def right_swiglu(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
        return (exact_silu(gate) * up).astype(np.float32)

    with np.errstate(all="ignore"):
        expect_agreement(silu, right_silu, rows(widths=(3, 1, 5), least=0).map(
            lambda x: Call((x,))), rng, name="silu", atol=sizes_together,
                         hint="x · sigmoid(x), number by number.")
        expect_agreement(swiglu, right_swiglu, branches(), rng, name="swiglu",
                         atol=sizes_together,
                         hint="Which of the two goes through SiLU?")


@check(SILU_SWIGLU, points=0.5, public=False, always=(2,))
def many_activations(silu, swiglu, rng):
    """SiLU of arrays of any shape and size, none of them changed."""
    for shape, scale in (((5,), 1e-3), ((2, 3, 4), 40.0), ((0, 3), 1.0), ((1, 1), 5.0)):
        x = vectors(rng, *shape, scale=scale)
        with np.errstate(all="ignore"):
            got = unchanged(silu, x)
        expect_close(got, exact_silu(x).astype(np.float32), atol=1e-6)


@check(SILU_SWIGLU, points=0.5, public=False, always=(2,))
def far_gates(silu, swiglu, rng):
    """Gates and branches of any size, closed gates and no tokens among them."""
    for shape, scale in (((3, 5), 150.0), ((1, 7), 1e-3), ((0, 4), 1.0)):
        gate, up = vectors(rng, *shape, scale=scale), vectors(rng, *shape, scale=scale)
        gate[:1, 0] = -120
        with np.errstate(all="ignore"):
            got = unchanged(swiglu, gate, up)
        expect_close(got, (exact_silu(gate) * up).astype(np.float32),
                     atol=max(1e-9, 3e-7 * scale ** 2))


def exact_linear(x: np.ndarray, weight: np.ndarray,
                 bias: np.ndarray | None = None) -> np.ndarray:
    """A linear layer computed in float64, each output by itself."""
    y = np.einsum("...i,oi->...o", x.astype(np.float64), weight.astype(np.float64))
    return (y if bias is None else y + bias).astype(np.float32)


example_of_linear = docstring_example("layers.linear", points=1)


@check("layers.linear", points=1, public=True)
def one_output_per_row(linear, rng):
    """Each row of the weights makes one output: the sum of its products with the input."""
    x, weight = vectors(rng, 5), vectors(rng, 3, 5)
    right = exact_linear(x, weight)
    expect_close(linear(x, weight), right,
                 of="the outputs for one vector of 5 and weights (3, 5)", axes=["output"],
                 hint="The weights are (out, in): a row holds all that one output needs.")


@check("layers.linear", points=2, public=True)
def square_weights(linear, rng):
    """Square weights, where no shape tells rows from columns."""
    size = int(rng.integers(4, 8))
    x, weight = vectors(rng, 3, size), vectors(rng, size, size)
    right = exact_linear(x, weight)
    expect_close(linear(x, weight), right,
                 of=f"the outputs for weights ({size}, {size})", axes=["token", "output"],
                 hint="`x @ weight` runs, too. It sums over the wrong axis of the weights.")


@check("layers.linear", points=1, public=True)
def with_a_bias(linear, rng):
    """A bias is added, one number for each output, and nothing that was passed is changed."""
    x, weight, bias = vectors(rng, 4, 4), vectors(rng, 4, 4), vectors(rng, 4)
    with expect_unchanged(x, weight, bias,
                          hint="`y += bias` is fine where y is new, `x += …` is not."):
        got = linear(x, weight, bias)
    expect_close(got, exact_linear(x, weight, bias), of="the outputs with a bias",
                 axes=["token", "output"],
                 hint="Are they right without one, in the checks above? The bias belongs to "
                      "the outputs, the last axis, and is the same for every token.")


@check("layers.linear", points=1, public=True)
def any_layout(linear, rng):
    """The result does not depend on how the weights lie in memory:
    transposed, sliced, turned round."""
    x, weight = vectors(rng, 3, 6), vectors(rng, 8, 6)
    wide = np.zeros((16, 12), np.float32)
    wide[::2, 1::2] = weight
    right = exact_linear(x, weight)
    for name, same in (("column by column", np.asfortranarray(weight)),
                       ("as a slice with gaps", wide[::2, 1::2]),
                       ("backwards", weight[::-1, ::-1].copy()[::-1, ::-1])):
        expect_close(linear(x.copy(), same), right,
                     of=f"the outputs for weights that lie {name}", axes=["token", "output"],
                     hint="`.T` and `@` go by strides. What looks at the bytes in their order?")


@st.composite
def products(draw) -> Call:
    """An input along any axes, weights, and a bias or none, in any layout."""
    width = draw(sizes(2, 1, 5, 128))
    shape = draw(st.sampled_from([(), (2,), (1,), (0,), (2, 3), (3, 1, 2)]))
    out = draw(sizes(3, 1, 4, 5, width))
    x = draw(numbers(*shape, width))
    weight = draw(numbers(out, width, values=("plain", "ties", "large", "tiny", "zeros")))
    bias = draw(st.sampled_from([None, *[draw(numbers(out, values=("plain", "large")))] * 2]))
    given = draw(st.booleans()) or bias is not None
    return Call((x, weight, bias) if given else (x, weight))


def sum_of_sizes(call: Call) -> float:
    """A tolerance for sums of products: a part of what they are without their signs."""
    (x, weight, *_), _ = call.made()
    return 1e-6 * float((np.abs(x) @ np.abs(weight).T).max(initial=1e-3))


@check("layers.linear", points=1, public=True)
def any_product(linear, rng):
    """Inputs along any axes, large and tiny, with a bias and without, in any layout."""
    expect_agreement(linear, layers_reference.linear, products(), rng, always=2,
                     atol=sum_of_sizes,
                     hint="The last axis of x is what a row of the weights meets; all axes "
                          "before it stay. What is a bias of None?")


@check("layers.linear", points=0.5, public=False)
def leading_axes(linear, rng):
    """Inputs with any number of axes before the last, none and empty ones among them."""
    for shape in ((7,), (1, 7), (2, 3, 7), (2, 1, 3, 7), (0, 7)):
        x, weight, bias = vectors(rng, *shape), vectors(rng, 5, 7), vectors(rng, 5)
        right, biased = exact_linear(x, weight), exact_linear(x, weight, bias)
        expect_close(linear(x.copy(), weight.copy()), right)
        expect_close(linear(x, weight, bias), biased)


@check("layers.linear", points=0.5, public=False)
def large_and_narrow(linear, rng):
    """Many inputs, one output, no rounding to a narrower type on the way."""
    x, weight = vectors(rng, 4, 2048), vectors(rng, 3, 2048)
    right = exact_linear(x, weight)
    expect_close(linear(x, weight), right, atol=1e-3, rtol=1e-4)
    x, weight = vectors(rng, 2, 9, scale=3e4), vectors(rng, 1, 9, scale=100.0)
    right = exact_linear(x, weight)
    expect_close(linear(x, weight), right, atol=20.0, rtol=1e-4)
