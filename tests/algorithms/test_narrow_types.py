"""Narrow dtypes and values out of range: what is drawn, counted or refused does not depend on the dtype."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import algorithms as alg
from algorithms.lines import Attention
from algorithms.model.mixer import MixerMetadata
from tests import cases
from tests.algorithms.test_batch_axes import loss_and_gradients

pytestmark = pytest.mark.sampled(2)

implementations = pytest.mark.parametrize("implementation", cases.EXACT_AND_DEFAULT)  # one rule for all others
KEY = cases.key(0)
N_V = 300  # beyond what 8 bits tell apart
SIZES = {"N_V": N_V, "l_max": 7, "H": 1, "d_e": 4, "d_mlp": 3, "d_attn": 2, "d_mid": 2}
D = cases.random_theta(alg.DTransformerConfig(L=1, **SIZES))
E = cases.random_theta(alg.ETransformerConfig(L=1, d_f=5, **SIZES))
# Each with a vocabulary that has more tokens than the dtype has numbers.
narrow = pytest.mark.parametrize(("dtype", "n"), [("uint8", 300), ("int8", 300), ("uint16", 70_000)])


def tokens(dtype, *shape, below=2**32):
    """Token IDs that the dtype can hold, the largest one among them: in that dtype, and in int32."""
    largest = min(np.iinfo(dtype).max, below - 1)
    ids = np.random.default_rng(0).integers(largest, size=shape)
    ids.flat[0] = largest
    return jnp.asarray(ids, dtype), jnp.asarray(ids, jnp.int32)


# Sampling.
SMALL = {"l_max": 2, "H": 1, "d_e": 2, "d_mlp": 1}


def assert_drawn_from(drawn, p):
    """By how many different tokens come, and by how often each does."""
    n = drawn.size
    counts = np.bincount(drawn, minlength=len(p))
    appears = -np.expm1(n * np.log1p(-p))  # the probability that a token appears at all
    assert abs((counts > 0).sum() - appears.sum()) < 6 * np.sqrt((appears * (1 - appears)).sum())
    statistic = ((counts - n * p) ** 2 / (n * p)).sum()
    deviation = np.sqrt(2 * len(p) + (1 / (n * p)).sum())  # of Pearson's statistic where tokens are rare
    assert norm.sf((statistic - len(p)) / deviation) > 1e-6, (statistic, deviation)


@pytest.mark.sampled(1)
@pytest.mark.usefixtures("x32")
@pytest.mark.parametrize(("draws", "many"), cases.quick_of([(2000, 1024)], [(2000, 1024), (20_000, 4096)]))
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", pytest.param("float32", marks=pytest.mark.slow)])
@pytest.mark.parametrize("tau", [1.0, pytest.param(2.0, marks=pytest.mark.slow)])
def test_what_is_drawn_in_half_precision_follows_its_distribution(dtype, tau, draws, many):
    """Of a θ whose norm gives the first unit vector: each of its distributions is that of the first column of W_u."""
    theta = cases.random_theta(alg.DTransformerConfig(L=1, N_V=many, **SMALL), dtype=dtype)
    W_u = jnp.zeros((many, 2), dtype).at[:, 0].set(cases.normal(many, seed=1, dtype="float32").astype(dtype))
    norm = theta.norm._replace(gamma=jnp.zeros(2, dtype), beta=jnp.array([1, 0], dtype))
    theta = theta._replace(W_u=W_u, norm=norm)
    p = np.exp(np.asarray(W_u[:, 0], np.float64))
    p = p / p.sum()

    @jax.jit
    def draw(theta, keys):
        return jax.vmap(lambda key: alg.d_inference(jnp.array([3]), theta, l_gen=1, tau=tau, key=key)[0])(keys)

    keys = jax.random.split(jax.random.key(2), (draws // 500, 500))
    q = p ** (1 / tau)
    assert_drawn_from(np.concatenate([draw(theta, some) for some in keys]), q / q.sum())


# Numbers that no narrow float has: 1/√192 in bfloat16 is 1.0013 times as much, and √(256/224) 1.0012 times.
BFLOAT16 = [cases.normal(192, 64, seed=seed, dtype="bfloat16") for seed in range(4)]


def value_and_gradients(attend, dtype):
    return jax.jit(functools.partial(cases.pulled, attend))(*(a.astype(dtype) for a in BFLOAT16[:3]))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("implementation", cases.IMPLEMENTATIONS)
def test_scores_are_scaled_in_float32(implementation):
    attend = functools.partial(alg.scaled_dot_product_attention, mask=alg.BIDIRECTIONAL)
    actual = value_and_gradients(functools.partial(attend, implementation=implementation), "bfloat16")
    for name, a, b in zip(("Ṽ", *"QKV"), actual, value_and_gradients(attend, "float64"), strict=True):
        assert abs(cases.common_factor(a, b) - 1) < 3e-4, name


def test_the_scores_of_a_single_query_are_scaled_in_float32():
    I, o = jnp.eye(192, dtype="bfloat16"), jnp.zeros(192, "bfloat16")
    e, E = BFLOAT16[:2]
    to_itself = alg.AttentionParams(I, o, I, o, I, o)
    actual = jax.vmap(lambda e: alg.single_query_attention(e, E, to_itself), 1, 1)(e)
    e, E = (np.asarray(a, np.float64) for a in (e, E))
    A = np.exp(E.T @ e / np.sqrt(192))
    assert abs(cases.common_factor(actual, E @ (A / A.sum(0))) - 1) < 3e-4


def test_queries_are_multiplied_by_a_lines_scale_in_float32():
    line = Attention(scale=224**-0.5, biases=False)
    shapes = line.shapes()
    W = jax.tree.map(
        lambda s: jnp.ones(s.of({"H": 1, "H_kv": 1, "d_e": 1, "d_attn": 256, "d_mid": 1}), "bfloat16"), shapes
    )
    X = BFLOAT16[0].reshape(1, -1)
    read = line.reading(X, W, MixerMetadata(jnp.arange(X.size)))
    expected = np.sqrt(256 / 224) * np.broadcast_to(np.asarray(X, np.float64), (256, X.size))
    assert abs(cases.common_factor(read.Q[0], expected) - 1) < 3e-4


# Token IDs of few bits.
@narrow
def test_an_embedding(dtype, n):
    W = cases.normal(3, n)
    few, wide = tokens(dtype, 5)
    np.testing.assert_array_equal(alg.token_embedding(few, W), W[:, wide])
    np.testing.assert_array_equal(alg.positional_embedding(few, W), W[:, wide])


@narrow
@implementations
def test_the_targets_of_a_loss(implementation, dtype, n):
    X, W_u = cases.normal(2, 5), cases.normal(n, 2, seed=1)
    few, wide = tokens(dtype, 5)
    value, (dX, dW_u) = loss_and_gradients(implementation, label_smoothing=0.1)(X, W_u, few, None)
    P = np.exp(W_u @ X) / np.exp(W_u @ X).sum(axis=0)
    q = 0.1 / n + 0.9 * (np.arange(n)[:, None] == np.asarray(wide))
    cases.assert_close(value, -(q * np.log(P)).sum(), 1e-12)
    cases.assert_close(dX, np.asarray(W_u).T @ (P - q), 1e-10)
    cases.assert_close(dW_u, (P - q) @ np.asarray(X).T, 1e-10)


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_training(dtype):
    """Algorithm 12 hides tokens behind mask_token, which these cannot hold."""
    few, wide = tokens(dtype, 2, 5, below=N_V)
    trained, expected = (alg.e_training(x, E, N_epochs=1, eta=0.1, p_mask=0.5, key=KEY) for x in (few, wide))
    cases.assert_trees_close(trained, expected, 1e-13)
    assert any((a != b).any() for a, b in zip(*map(jax.tree.leaves, (trained, E)), strict=True))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("dtype", "tau"), [("uint8", 0.0), ("int8", 1.0)])
def test_what_a_narrow_prompt_is_continued_by(dtype, tau):
    """In a dtype that holds every token of the vocabulary, which the prompt's does not."""
    y = alg.d_inference(jnp.array([3, 1], dtype), cases.certain(D, 258), l_gen=3, tau=tau, key=KEY)
    assert y.tolist() == [258, 258, 258]


# Token IDs outside of the vocabulary.
OUTSIDE = [*((n, "int32") for n in (-1, -2, -7, -8, 7, 8, 2**31 - 1, -(2**31))), (-1, "int8"), (127, "int8")]
OUTSIDE += [(255, "uint8"), (2**16 - 1, "uint16"), (2**32 - 1, "uint32"), (2**32, "int64"), (2**32 + 3, "int64")]
outside = pytest.mark.parametrize(("token", "dtype"), OUTSIDE)


@outside
def test_a_token_outside_of_the_vocabulary_has_no_embedding(token, dtype):
    W = cases.normal(3, 7)
    for function in (alg.token_embedding, alg.positional_embedding):
        assert np.isnan(function(jnp.asarray(token, dtype), W)).all()
        several = function(jnp.asarray([2, token], dtype), W)
        np.testing.assert_array_equal(several[:, 0], W[:, 2])
        assert np.isnan(several[:, 1]).all()


X, W_U = cases.normal(3, 5), cases.normal(7, 3, seed=1)
TARGETS, WEIGHTS = cases.array([0, 6, 2, 1, 3]), cases.array([1.0, 0.5, 1.0, 0.0, 2.0])


@functools.cache
def weighted_loss(implementation):
    def loss(X, W_u, b_u, targets):
        options = {"weights": WEIGHTS, "b_u": b_u, "label_smoothing": 0.1, "implementation": implementation}
        return alg.log_loss(X, W_u, targets, **options)

    f = jax.jit(jax.value_and_grad(loss, (0, 1, 2)))
    return lambda targets: f(X, W_U, W_U[:, 0], targets)


@pytest.mark.sampled(1)
@outside
@implementations
def test_a_target_outside_of_the_vocabulary_is_nan_unless_its_weight_is_0(implementation, token, dtype):
    """In the value and the gradients, by every parameter and by its own column; never numbers that look like one."""
    f, token = weighted_loss(implementation), jnp.asarray(token, dtype)
    expected = f(TARGETS)
    value, (dX, dW_u, db_u) = f(TARGETS.astype(dtype).at[2].set(token))
    assert np.isnan(value)
    assert np.isnan(dX[:, 2]).all()
    assert np.isnan(dW_u).all()
    assert np.isnan(db_u).all()
    others, of_others = (np.delete(np.asarray(g), 2, axis=1) for g in (dX, expected[1][0]))
    np.testing.assert_allclose(others, np.where(np.isnan(others), np.nan, of_others), rtol=1e-12)
    actual = f(TARGETS.astype(dtype).at[3].set(token))
    jax.tree.map(np.testing.assert_array_equal, actual, expected)
    np.testing.assert_array_equal(actual[1][0][:, 3], 0)


def test_a_models_gradient_of_a_token_or_a_target_outside_of_the_vocabulary_is_nan():
    @jax.jit
    def gradient(theta, x, targets):
        return jax.grad(lambda theta: alg.log_loss(alg.d_hidden_state(x, theta), theta.W_u, targets))(theta)

    x = jnp.array([3, 0, 4, 1, 5], jnp.int32)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient(D, x, x)))
    for tokens, targets in ((x.at[4].set(-1), x), (x, x.at[4].set(N_V))):
        of_theta = gradient(D, tokens, targets)
        for W in (of_theta.W_u, of_theta.layers.attention.W_o, of_theta.W_e):
            assert np.isnan(W).any()
