"""Recurrences and a short convolution: at once, token by token and by steps, against loops of NumPy."""

import math
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import algorithms as alg
from algorithms.lines import RGLRU, Attention, GatedDelta, KimiDelta, Mamba2, MixerMetadata, RMSNorm, ShortConvolution
from algorithms.model import recurrence
from algorithms.model.rg_lru import _root
from tests import cases
from tests.cases import assert_close, assert_trees_close, by
from training.oracle.lines import gated_delta, mamba2, rg_lru, short_convolution

pytestmark = pytest.mark.sampled(1, tests=4)

SIZES = {"n": 4, "n_keys": 2, "d_key": 5, "d_value": 3, "norm": RMSNorm(epsilon=1e-3)}
LINES = {
    "delta": (GatedDelta(**SIZES, beta_factor=1.5), gated_delta),
    "mamba": (Mamba2(**SIZES, delta_min=0.6, factors=(0.5, 0.6, 0.7, 0.8, 0.9)), mamba2),
}
LINES["kimi"] = (KimiDelta(**SIZES, rank=2), gated_delta)
LINES["lru"] = (RGLRU(n=3, d=4, width=3), lambda X, W, mask, _: rg_lru(X, W, mask))
LINES["convolution"] = (ShortConvolution(d=5, biases=True), lambda X, W, mask, _: short_convolution(X, W, mask))
D_E, B, L = 7, 2, 13
NUMBERS = cases.array([[1, 1, 1, 1, 1, 1, 2, 2, 3, 3, 3, 3, 3], [5, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6]])
RULES = ("paper", "auto")


def parameters(line, seed=0) -> Any:
    sizes, rng = {**line.sizes(), "d_e": D_E}, np.random.default_rng(seed)

    def drawn(shape):
        return jnp.asarray(0.6 * rng.standard_normal(shape.of(sizes)) + shape.start)

    return jax.tree.map(drawn, line.shapes())


X = cases.array(np.random.default_rng(1).standard_normal((D_E, B, L)))


@pytest.fixture(params=LINES)
def case(request):
    """A line, its parameters, and its loops."""
    line, loops = LINES[request.param]
    W = parameters(line)

    def by_loops(X, mask):
        dense = np.broadcast_to(mask.dense(X.shape[-1], X.shape[-1]), (B, *(X.shape[-1],) * 2))
        arrays = SimpleNamespace(**{name: np.asarray(a) for name, a in W._asdict().items()})
        return np.stack([loops(np.asarray(X[:, b]), arrays, dense[b], line) for b in range(B)], axis=1)

    return line, W, by_loops


def metadata(cache_length=None):
    return MixerMetadata(jnp.arange(L), cache_length=cache_length)


def whole(line, implementation="auto", cache_length=None):
    """`line.whole` as one program, by chunks as they are now."""
    return jax.jit(lambda X, W, mask: by(implementation, line.whole, X, W, mask, metadata(cache_length)))


def step(line):
    return jax.jit(lambda x, W, cache: line.step(x, W, cache, metadata()))


@pytest.fixture(params=[5, 64])
def chunk(request, monkeypatch):
    monkeypatch.setattr(recurrence, "CHUNK", request.param)


@pytest.mark.parametrize("implementation", RULES)
@pytest.mark.parametrize(
    "mask", [alg.UNIDIRECTIONAL, alg.UNIDIRECTIONAL & alg.documents(NUMBERS)], ids=["one", "documents"]
)
def test_the_rule_is_that_of_loops(case, implementation, mask, chunk):
    line, W, by_loops = case
    Y, _ = whole(line, implementation)(X, W, mask)
    assert_close(Y, by_loops(X, mask), 1e-10)


@pytest.mark.end_to_end
def test_gradients_of_chunks_are_those_of_tokens(case, chunk):
    line, W, _ = case
    mask = alg.UNIDIRECTIONAL & alg.documents(NUMBERS)

    def score(W, X, implementation):
        Y, _ = by(implementation, line.whole, X, W, mask, metadata())
        return (Y * jnp.sin(jnp.arange(Y.size)).reshape(Y.shape)).sum()

    gradient = jax.jit(jax.grad(score, (0, 1)), static_argnums=2)
    assert_trees_close(*(gradient(W, X, rule) for rule in RULES), 1e-9)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_types_round_what_comes_out_and_the_gradients_alone(case, dtype):
    """The rule itself is in float32: within eight roundings of the same numbers in float64, also by steps."""
    line, W, _ = case
    mask, size = alg.UNIDIRECTIONAL & alg.documents(NUMBERS), float(jnp.finfo(dtype).eps)
    narrow = jax.tree.map(lambda a: a.astype(dtype), (W, X))

    def score(W, X):
        Y, cache = line.whole(X, W, mask, metadata())
        return (Y * jnp.sin(jnp.arange(Y.size)).reshape(Y.shape)).sum(), (Y, cache)

    @jax.jit
    def of_numbers(numbers):
        (_, (Y, _)), gradients = jax.value_and_grad(score, (0, 1), has_aux=True)(*numbers)
        cache, columns = line.begin(numbers[0], B), []
        for t in range(6):
            y, cache = line.step(numbers[1][..., t], numbers[0], cache, metadata())
            columns.append(y)
        return {"Y": Y, "steps": jnp.stack(columns, axis=-1), "gradients": gradients}

    found, expected = of_numbers(narrow), of_numbers(jax.tree.map(lambda a: a.astype(float), narrow))
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(expected), strict=True):
        assert a.dtype == dtype, path
        error = np.linalg.norm(np.asarray(a, float) - b) / np.linalg.norm(b)
        cancels = isinstance(line, Mamba2) and path[0].key == "gradients"  # much of what a norm of products gets back
        assert error < (64 if cancels else 8) * size, (jax.tree_util.keystr(path), error / size)


def test_steps_continue_what_was_kept(case, chunk):
    """Prompts of different lengths, also shorter than the convolution."""
    line, W, by_loops = case
    lengths, expected, next_step = np.array([9, 2]), by_loops(X, alg.UNIDIRECTIONAL), step(line)
    _, cache = whole(line, cache_length=lengths)(X[..., :10], W, alg.UNIDIRECTIONAL & alg.padding(jnp.asarray(lengths)))
    for i in range(4):
        x, y = (np.stack([a[:, b, lengths[b] + i] for b in range(B)], axis=1) for a in (np.asarray(X), expected))
        found, cache = next_step(x, W, cache)
        assert_close(found, y, 1e-10)


@pytest.mark.end_to_end
@pytest.mark.parametrize("implementation", RULES)
def test_of_packed_prompts_the_rule_is_computed_once_up_to_their_last_tokens(case, implementation, chunk):
    """What is kept is that of the prompts alone, whatever documents follow; so are the columns before."""
    line, W, _ = case
    lengths, mask = np.array([9, 2]), alg.UNIDIRECTIONAL & alg.documents(NUMBERS)
    Y, cache = jax.tree.map(np.asarray, whole(line, implementation, lengths)(X, W, mask))
    for b, n in enumerate(lengths):
        alone = alg.UNIDIRECTIONAL & alg.documents(NUMBERS[b : b + 1, :n])
        expected, state = whole(line, implementation)(X[:, b : b + 1, :n], W, alone)
        assert_close(Y[:, b : b + 1, :n], expected, 1e-10)
        assert_trees_close(jax.tree.map(lambda a, b=b: a[..., b : b + 1], cache), state, 1e-10)

    def loops(cache_length):
        of = jax.make_jaxpr(lambda X: by(implementation, line.whole, X, W, mask, metadata(cache_length)))
        return str(of(X)).count("scan[")

    assert loops(lengths) == loops(None) <= 1  # an associative scan has no loop


def test_steps_begin_with_nothing(case):
    line, W, by_loops = case
    cache, next_step, columns = line.begin(W, B), step(line), by_loops(X[..., :6], alg.UNIDIRECTIONAL)
    for t in range(6):
        y, cache = next_step(X[..., t], W, cache)
        assert_close(y, columns[..., t], 1e-10)
    _, expected = whole(line)(X[..., :6], W, alg.UNIDIRECTIONAL)
    assert_trees_close(cache, expected, 1e-10)


def test_no_token_reads_a_later_one_or_another_document(case):
    line, W, _ = case
    mask = alg.UNIDIRECTIONAL & alg.documents(NUMBERS[0])
    of_token = np.asarray(jax.jit(jax.grad(lambda X: line.whole(X, W, mask, metadata())[0][:, 0, 9].sum()))(X))[:, 0]
    assert np.flatnonzero(np.abs(of_token).max(axis=0) > 1e-12).tolist() == [8, 9]


@pytest.mark.end_to_end
def test_second_derivatives_through_a_scan_are_those_of_the_bounded_root():
    def score(x):  # as in a scan over layers
        return jax.lax.scan(lambda total, x: (total + jnp.sin(_root(x) + x), None), 0.0, x)[0]

    x = jnp.array([0.0, 0.25])
    product = jax.grad(lambda x: jax.grad(score)(x).sum())(x)
    r, of_r = np.array([0.0, 0.5]), np.array([1000.0, 1.0])
    expected = -np.sin(r + x) * (of_r + 1) ** 2 + np.cos(r + x) * np.array([0.0, -2.0])
    np.testing.assert_allclose(product, expected, rtol=1e-5)


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("batch", [(2, 1), (0,), ()])
def test_any_number_of_batch_axes_and_none_of_sequences(case, batch):
    line, W, _ = case
    columns = np.broadcast_to(np.asarray(X)[:, 0].reshape(D_E, *(1,) * len(batch), L), (D_E, *batch, L))
    mask = alg.UNIDIRECTIONAL & alg.documents(jnp.broadcast_to(NUMBERS[0], (*batch, L)))
    Y, cache = whole(line)(columns, W, mask)
    expected = whole(line)(X[:, :1], W, alg.UNIDIRECTIONAL & alg.documents(NUMBERS[:1]))[0][:, 0]
    assert Y.shape == (D_E, *batch, L)
    assert {a.shape[-1] for a in jax.tree.leaves(cache)} == {math.prod(batch)}
    for of_sequence in np.moveaxis(np.asarray(Y).reshape(D_E, math.prod(batch), L), 1, 0):
        assert_close(of_sequence, expected)


def test_a_model_of_no_sequences_and_one_without_gamma(case):
    line = case[0]
    attention = (line.but(norm=RMSNorm(gamma=False)) if hasattr(line, "norm") else line, Attention())
    variant = alg.PAPER.but(attention=attention)
    config = alg.DTransformerConfig(N_V=7, l_max=8, L=2, H=2, d_e=8, d_mlp=8, variant=variant)
    theta, none = cases.random_theta(config), jnp.zeros((0, 4), int)
    logits, _ = alg.read_tokens(theta, alg.empty_cache(config, 0), none, 0)
    assert logits.shape == (7, 0, 4)
    gradient = jax.jit(jax.grad(lambda theta: alg.d_token_losses(none, theta).sum()))(theta)
    assert all(not np.any(a) for a in jax.tree.leaves(gradient))
    assert np.isfinite(alg.d_token_losses(jnp.arange(4), theta)).all()
    symbolic = jax.ShapeDtypeStruct(jax.export.symbolic_shape("l"), jnp.int32)
    with pytest.raises(ValueError, match="x: expected a number of tokens, since a recurrence goes through chunks"):
        jax.export.export(alg.d_logits)(symbolic, theta)


def test_a_row_that_forgets_nothing_has_finite_gradients():
    """√(1 − α²) is 0 at α = 1, where its derivative is not finite."""
    line, _ = LINES["lru"]
    W = parameters(line)._replace(a=jnp.full((3, 4), -1e3))
    Y, of_W = jax.jit(jax.value_and_grad(lambda W: line.whole(X, W, alg.UNIDIRECTIONAL, metadata())[0].sum()))(W)
    assert np.isfinite(Y)
    for gradient in of_W:
        assert np.isfinite(gradient).all()
