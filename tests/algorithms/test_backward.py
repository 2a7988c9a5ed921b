"""The hand-derived backward passes, every input by name, against jax.grad of the printed lines and differences."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import algorithms as alg
from algorithms.ops import chunked_log_loss
from algorithms.ops.linear import linear
from algorithms.ops.log_loss import token_losses  # not compiled, so that each size of chunks is traced
from tests import cases

pytestmark = pytest.mark.sampled(4)

RULES = ("dense", "blockwise", "strips")
F64 = 1e-9


@pytest.fixture(scope="module", autouse=True)
def small_blocks():
    """Also blocks that no mask cuts."""
    with cases.small_blocks(4, LEAST=2, LARGEST=2, RANGES=3):
        yield


def value_and_gradients(f):
    """A function of named inputs, and its pullback: one program."""
    return jax.jit(lambda inputs: cases.pulled(lambda i: f(**i), inputs))


def assert_same(actual, expected, tolerance=F64):
    assert actual.keys() == expected.keys()
    for name in expected:
        a, b = np.asarray(actual[name], np.float64), np.asarray(expected[name], np.float64)
        scale = max(np.abs(b).max(initial=0), 1e-3)
        assert np.isfinite(a).all(), name
        np.testing.assert_allclose(a / scale, b / scale, rtol=0, atol=tolerance, err_msg=name)


def assert_as_printed(found, expected):
    """Values and gradients; returns those found."""
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-12, atol=1e-13)
    assert_same(found[1], expected[1])
    return found


POSITION_WISE = {
    "linear": (lambda how: lambda W, X, b: cases.by(how, linear, W, X, b), {"W": (3, 2, 5), "X": (5, 7), "b": (3, 2)}),
    "layer norm": (
        lambda how: lambda X, gamma, beta: alg.layer_norm(X, gamma, beta, epsilon=1e-3, implementation=how),
        {"X": (5, 7), "gamma": (5,), "beta": (5,)},
    ),
    "layer norm of a batch": (
        lambda how: lambda X, gamma, beta: alg.layer_norm(X, gamma, beta, implementation=how),
        {"X": (5, 3, 7), "gamma": (5,), "beta": (5,)},
    ),
    "rms norm": (
        lambda how: lambda X, gamma: alg.rms_norm(X, gamma, epsilon=1e-3, implementation=how),
        {"X": (5, 7), "gamma": (5,)},
    ),
}


@pytest.mark.parametrize("name", POSITION_WISE)
def test_position_wise_rules(name):
    function, shapes = POSITION_WISE[name]
    rule, printed = (value_and_gradients(function(how)) for how in ("auto", "paper"))
    inputs = {k: cases.normal(*shape, seed=i) for i, (k, shape) in enumerate(shapes.items())}
    (out, actual), (expected_out, expected) = rule(inputs), printed(inputs)
    np.testing.assert_allclose(out, expected_out, rtol=1e-13, atol=1e-14)
    assert_same(actual, expected)
    for dtype, bound in (("float32", 2e-6), ("bfloat16", 3e-2)):
        low = {k: np.asarray(a).astype(dtype) for k, a in inputs.items()}
        exact = {k: a.astype("float64") for k, a in low.items()}
        _, actual = rule(low)
        assert all(actual[k].dtype == dtype for k in actual)
        assert_same(actual, printed(exact)[1], bound)


def test_log_loss_of_more_sequences_than_logits_fit(monkeypatch):
    monkeypatch.setitem(chunked_log_loss.LOGITS_AT_ONCE, "cpu", 23)  # 4 sequences times 7 tokens of the vocabulary
    targets = jnp.array([[3, 0, 6], [2, 1, 5], [4, 4, 0], [6, 1, 2]])
    inputs = {"X": cases.normal(5, 4, 3, seed=0), "W_u": cases.normal(7, 5, seed=1), "b_u": cases.normal(7, seed=2)}

    def compiled(how):
        return value_and_gradients(
            lambda X, W_u, b_u: token_losses(X, W_u, targets, b_u=b_u, label_smoothing=0.1, implementation=how)
        )

    (losses, gradients), (expected, of_paper) = compiled("auto")(inputs), compiled("paper")(inputs)
    np.testing.assert_allclose(losses, expected, rtol=1e-12)
    assert_same(gradients, of_paper)


@pytest.mark.parametrize(
    "columns", [(1024,), (32, 4, 64), *(pytest.param(n, marks=pytest.mark.slow) for n in [(1, 1024), (8192, 1)])]
)
def test_log_loss_never_holds_all_logits(columns):
    N_V, d = 50257, 768
    X, W_u, targets = (
        jax.ShapeDtypeStruct(s, t) for s, t in (((d, *columns), jnp.float32), ((N_V, d), jnp.float32), (columns, int))
    )

    gradient = jax.jit(jax.grad(alg.log_loss, (0, 1))).lower(X, W_u, targets).compile()
    held = 4 * N_V * (d + chunked_log_loss.COLUMNS_WITH_GRADIENTS)  # the gradient of W_u, and the logits of a chunk
    assert gradient.memory_analysis().temp_size_in_bytes < 1.05 * held


HOLES = np.random.default_rng(5).random((11, 13)) < 0.6
HOLES[:, [0, 4]] = False  # wholly masked columns
BLOCKS = cases.array([1, 1, 0, 0, 2, 2, 2, 1, 5, 5, 3, 0, 4])
MASKS = {
    "none": (alg.BIDIRECTIONAL, 11, 13),
    "unidirectional": (alg.UNIDIRECTIONAL, 13, 13),
    "unidirectional, more context": (alg.UNIDIRECTIONAL, 13, 7),
    "unidirectional, less context": (alg.UNIDIRECTIONAL, 7, 13),
    "banded": (alg.banded(3), 13, 13),
    "banded, wholly masked columns": (alg.banded(2), 5, 13),
    "near": (alg.near(3), 13, 13),
    "near, wholly masked columns": (alg.near(2), 5, 13),
    "near, more context": (alg.near(4), 13, 7),
    "padding": (alg.padding(7), 11, 13),
    "padding of everything": (alg.padding(0), 11, 13),
    "conjunction": (alg.banded(6) & alg.padding(9), 13, 13),
    "documents": (alg.UNIDIRECTIONAL & cases.documents([0, 0, 0, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3]), 13, 13),
    "prefix": (alg.prefix(6), 13, 13),
    "prefix, more context": (alg.prefix(9), 13, 7),
    "prefix, near, with padding": (alg.prefix(6) & alg.near(4) & alg.padding(9), 13, 13),
    "blocks": (alg.blocks(cases.array(np.arange(13) // 4)), 13, 13),
    "blocks in any order, with padding": (alg.blocks(BLOCKS) & alg.padding(9), 13, 13),
    "holes": (cases.array(HOLES), 11, 13),
    "single token": (alg.UNIDIRECTIONAL, 1, 1),
}
QUICK = (
    *("unidirectional", "banded, wholly masked columns", "near", "conjunction", "documents", "holes"),
    *("prefix, near, with padding", "blocks in any order, with padding"),
)


def tile(l_z, l_x, dtype=jnp.float64):
    return {
        "Q": cases.normal(3, l_x, dtype=dtype, seed=0),
        "K": cases.normal(3, l_z, dtype=dtype, seed=1),
        "V": cases.normal(5, l_z, dtype=dtype, seed=2),
    }


def attend(how, mask, **options):
    return lambda Q, K, V: alg.scaled_dot_product_attention(Q, K, V, mask, implementation=how, **options)


@functools.partial(jax.jit, static_argnums=0)
def attention_and_gradients(how, mask, inputs):
    """With the mask as an argument, so that masks of one structure are one program."""
    return cases.pulled(lambda i: attend(how, mask)(**i), inputs)


@functools.partial(jax.jit, static_argnums=(1, 2))
def as_array(mask, l_z, l_x):
    return jnp.asarray(mask if isinstance(mask, jax.Array) else mask.dense(l_z, l_x))


def printed(mask, inputs):
    """By the lines as printed; the mask as an array, so that there is one program for each shape."""
    return attention_and_gradients("paper", as_array(mask, inputs["K"].shape[1], inputs["Q"].shape[1]), inputs)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", cases.quick_of(QUICK, MASKS))
def test_attention(rule, name):
    mask, l_z, l_x = MASKS[name]
    inputs = tile(l_z, l_x)
    out, actual = assert_as_printed(attention_and_gradients(rule, mask, inputs), printed(mask, inputs))
    dense = np.asarray(as_array(mask, l_z, l_x))
    attends_nothing, unattended = ~dense.any(axis=0), ~dense.any(axis=1)
    assert (np.asarray(out)[:, attends_nothing] == 0).all()
    assert (np.asarray(actual["Q"])[:, attends_nothing] == 0).all()
    assert (np.asarray(actual["K"])[:, unattended] == 0).all()
    assert (np.asarray(actual["V"])[:, unattended] == 0).all()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rule", RULES)
def test_attention_with_capped_scores(rule):
    mask, l_z, l_x = MASKS["unidirectional"]
    options, inputs = {"heads": False, "cap": 0.5}, tile(l_z, l_x)

    def by(how):
        return value_and_gradients(lambda Q, K, V: cases.by(how, cases.attended, Q, K, V, mask, **options))(inputs)

    assert_as_printed(by(rule), by("paper"))


@pytest.mark.parametrize("rule", ["paper", *RULES])
@pytest.mark.parametrize(
    ("dtype", "bound", "name"),
    cases.quick_of(
        [("float32", 1e-5, "holes"), ("bfloat16", 4e-2, "conjunction")],
        [(*low, name) for low in (("float32", 1e-5), ("bfloat16", 4e-2)) for name in ("holes", "conjunction")],
    ),
)
def test_attention_in_low_precision(rule, dtype, bound, name):
    mask, l_z, l_x = MASKS[name]
    low = tile(l_z, l_x, dtype)
    out, actual = printed(mask, low) if rule == "paper" else attention_and_gradients(rule, mask, low)
    expected_out, expected = printed(mask, {k: a.astype(jnp.float64) for k, a in low.items()})
    assert out.dtype == dtype
    assert all(actual[k].dtype == dtype for k in actual)
    assert_same({"out": out}, {"out": expected_out}, bound)
    assert_same(actual, expected, bound)


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("rule", ["paper", *RULES])
def test_large_scores_are_finite(rule):
    inputs = {k: a * s for (k, a), s in zip(tile(13, 13).items(), (1e4, 1, 1), strict=True)}
    mask = jnp.asarray(np.random.default_rng(1).random((13, 13)) < 0.5).at[:, 3].set(False)
    for m in (mask, alg.UNIDIRECTIONAL):
        out, actual = attention_and_gradients(rule, m, inputs)
        assert np.isfinite(out).all()
        assert_same(actual, printed(m, inputs)[1], 1e-7)
