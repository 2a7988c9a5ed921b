"""``log_loss`` and ``token_losses`` against −log of the oracle's probabilities; gradients against complex steps."""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import log_loss, token_losses
from algorithms.ops import chunked_log_loss
from algorithms.ops.log_loss import log_loss as uncompiled_log_loss
from algorithms.ops.log_loss import token_losses as uncompiled_token_losses
from tests import cases
from training import oracle

pytestmark = pytest.mark.sampled(3)

implementations = pytest.mark.parametrize("implementation", cases.EXACT_AND_DEFAULT)  # one rule for all others
N_V, D_E, L = 17, 5, 13
X, W_u, b_u = cases.normal(D_E, L), cases.normal(N_V, D_E, seed=1), cases.normal(N_V, seed=2)
targets = cases.random_tokens(L, seed=3)
weights = jax.device_put(np.random.default_rng(4).random(L) * (np.arange(L) != 2))
p = SimpleNamespace(X=np.asarray(X), W_u=np.asarray(W_u), b_u=np.asarray(b_u))
UNBIASED = SimpleNamespace(X=p.X, W_u=p.W_u, b_u=np.zeros(N_V))


def expected_of_each(p, label_smoothing):
    log_P = np.log(oracle.softmax(p.W_u @ p.X + np.asarray(p.b_u)[:, None]))
    s = label_smoothing
    return [-(1 - s) * log_P[int(v), t] - s / N_V * log_P[:, t].sum() for t, v in enumerate(np.asarray(targets))]


def expected(p, weights, label_smoothing):
    return sum(weights[t] * loss for t, loss in enumerate(expected_of_each(p, label_smoothing)))


def assert_is_the_oracles(loss, expected):
    """A function of X, W_u and b_u, and the same of all three in one argument: its value, and complex steps."""
    value, gradients = jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(X, W_u, b_u)
    assert float(value) == pytest.approx(expected(p), rel=1e-12)
    of_oracle = oracle.complex_step_gradient(expected, p)
    for name, gradient in zip(("X", "W_u", "b_u"), gradients, strict=True):
        cases.assert_close(gradient, getattr(of_oracle, name), 1e-10, name)


@implementations
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_the_loss_and_its_gradients(implementation, label_smoothing):
    options = {"weights": weights, "label_smoothing": label_smoothing, "implementation": implementation}
    assert_is_the_oracles(
        lambda X, W_u, b_u: log_loss(X, W_u, targets, b_u=b_u, **options),
        functools.partial(expected, weights=np.asarray(weights), label_smoothing=label_smoothing),
    )


@pytest.mark.sampled(1)
@implementations
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_the_loss_of_each_token(implementation, label_smoothing):
    options = {"b_u": b_u, "label_smoothing": label_smoothing, "implementation": implementation}
    losses = token_losses(X, W_u, targets, **options)
    cases.assert_close(losses, expected_of_each(p, label_smoothing), 1e-12)
    with_padding = np.concatenate([W_u, np.full((3, D_E), 5.0)])  # rows after the vocabulary's
    options_padded = options | {"b_u": np.pad(b_u, (0, 3)), "N_V": N_V}
    cases.assert_close(token_losses(X, with_padding, targets, **options_padded), losses, 1e-12)
    gradient, of_padded = (
        jax.jit(jax.grad(lambda X, W=W, o=o: (weights * token_losses(X, W, targets, **o)).sum()))(X)
        for W, o in ((W_u, options), (with_padding, options_padded))
    )
    cases.assert_close(of_padded, gradient, 1e-12)

    @jax.jit
    def one_outside(X):
        outside, vjp = jax.vjp(lambda X: token_losses(X, W_u, targets.at[4].set(N_V), **options), X)
        return outside, *vjp(weights)[0]

    for spoilt in one_outside(X):
        np.testing.assert_array_equal(np.isnan(spoilt), np.arange(L) == 4)


@implementations
def test_the_gradient_by_a_weight_is_the_loss_of_its_token(implementation):
    """Of weight 0, too, so that a model can learn to raise it; 0 where weight 0 hides padding."""
    none = weights.at[jnp.array([5, 8])].set(0.0)
    of_weights = jax.jit(jax.grad(lambda w, X, t: log_loss(X, W_u, t, weights=w, implementation=implementation)))
    losses = np.array(expected_of_each(UNBIASED, 0.0))
    cases.assert_close(of_weights(none, X, targets), losses, 1e-12)
    losses[[5, 8]] = 0
    cases.assert_close(of_weights(none, X.at[1, 5].set(jnp.nan), targets.at[8].set(-1)), losses, 1e-12)
    cases.assert_close(of_weights(none, X.at[:, 5].set(jnp.inf), targets.at[8].set(N_V)), losses, 1e-12)


@implementations
def test_what_weight_0_hides_is_not_in_any_gradient(implementation):
    def loss(X, W_u, b_u, t):
        return log_loss(X, W_u, t, b_u=b_u, weights=weights, implementation=implementation)

    by_all = jax.jit(jax.grad(loss, (0, 1, 2)))
    expected_gradients = by_all(X, W_u, b_u, targets)
    for hidden, target in ((jnp.nan, 3), (-jnp.inf, N_V), (0.0, -1)):
        actual = by_all(X.at[0, 2].set(hidden), W_u, b_u, targets.at[2].set(target))
        for a, b in zip(actual, expected_gradients, strict=True):
            cases.assert_close(a, b, 1e-12)


@implementations
@pytest.mark.parametrize("padding", [0, 3])
def test_capped_logits(implementation, padding):
    """``c tanh(Y/c)`` in place of the logits Y, as `unembedding` has it, in value and gradients."""
    cap, targets_onehot = 1.5, np.arange(N_V)[:, None] == np.asarray(targets)

    def expected_loss(p):
        Y = cap * np.tanh((p.W_u @ p.X + np.asarray(p.b_u)[:, None]) / cap)
        return -(np.asarray(weights) * (np.log(oracle.softmax(Y)) * targets_onehot).sum(axis=0)).sum()

    rows = ((0, padding), (0, 0))
    options = {"weights": weights, "N_V": N_V, "cap": cap, "implementation": implementation}

    def loss(X, W_u, b_u):
        return log_loss(X, jnp.pad(W_u, rows), targets, b_u=jnp.pad(b_u, rows[0]), **options)

    assert_is_the_oracles(loss, expected_loss)


def test_on_a_gpu_the_log_sum_exp_is_taken_in_one_pass(monkeypatch):
    """Like JAX's with rows of padding, infinities and NaN, and in its derivatives; the loss is still the oracle's."""
    monkeypatch.setattr(chunked_log_loss, "platform_of", lambda _: "gpu")
    Y = 30 * np.array(cases.normal(N_V, 6))
    Y[12:] = Y[:, 1] = -np.inf
    Y[3, 2], Y[4, 3] = np.inf, np.nan
    one_pass = chunked_log_loss.log_sum_exp_of
    both = jax.jit(lambda Y: (one_pass(Y), jax.nn.logsumexp(Y, axis=0)))(Y)
    np.testing.assert_allclose(*both, rtol=1e-14)
    second = jax.jit(lambda rows: (jax.hessian(one_pass)(rows), jax.hessian(jax.nn.logsumexp)(rows)))(cases.normal(4))
    np.testing.assert_allclose(*second, atol=1e-15)
    loss = jax.jit(lambda: uncompiled_log_loss(X, W_u, targets, b_u=b_u))()
    assert float(loss) == pytest.approx(expected(p, np.ones(L), 0.0), rel=1e-12)


@pytest.mark.parametrize(("platform", "rows", "tokens"), [("gpu", 2**20, 512), ("tpu", 2**20, 128), ("tpu", 64, 4096)])
def test_where_not_all_logits_fit_a_tpu_computes_fewer_at_once(platform, rows, tokens, monkeypatch):
    """2³², in chunks of 2²⁹ or of about 2²⁷; and 2¹⁸, which fit."""
    monkeypatch.setattr(chunked_log_loss, "platform_of", lambda _: platform)
    assert chunked_log_loss.chunk_size(X, 4096, 2**29, rows) == tokens


def in_small_chunks(monkeypatch, platform="cpu"):
    monkeypatch.setattr(chunked_log_loss, "platform_of", lambda _: platform)
    for name in chunked_log_loss.LOGITS_AT_ONCE:
        monkeypatch.setitem(chunked_log_loss.LOGITS_AT_ONCE, name, 5 * N_V)
    monkeypatch.setattr(chunked_log_loss, "COLUMNS_WITH_GRADIENTS", 1)
    assert chunked_log_loss.chunk_size(X, L, 5 * N_V, N_V) == 5


def test_a_chunk_of_tokens_that_overlaps_the_one_before_counts_once(monkeypatch):
    """13 tokens in chunks of 5: the last chunk begins at token 8, so its first two tokens are done already."""
    in_small_chunks(monkeypatch)

    def of_tokens(*inputs, weights, **options):
        return weights @ uncompiled_token_losses(*inputs, **options)

    of_weights = functools.partial(expected, weights=np.asarray(weights), label_smoothing=0.1)
    for loss in (uncompiled_log_loss, of_tokens):
        of_targets = functools.partial(loss, targets=targets, label_smoothing=0.1, weights=weights)
        assert_is_the_oracles(lambda X, W_u, b_u, f=of_targets: f(X, W_u, b_u=b_u), of_weights)


@pytest.mark.end_to_end
def test_second_derivatives_through_chunks_and_a_scan_are_those_of_the_printed_lines(monkeypatch):
    """As on a GPU, whose log-sum-exp has a derivative of its own: JAX forgets a ``jax.custom_jvp`` in such a loop."""
    in_small_chunks(monkeypatch, "gpu")
    v = cases.normal(D_E, L, seed=7)

    def product(how):
        def step(total, a):
            options = {"b_u": b_u, "weights": weights, "implementation": how}
            return total + jnp.sin(uncompiled_log_loss(a[0] * X + a[1] * v, W_u, targets, **options)), None

        def score(a):
            return jax.lax.scan(step, 0.0, jnp.array([[0.3, a], [1.1, a**2]]))[0]

        return jax.jit(jax.grad(jax.grad(score)))(0.4)

    assert float(product("auto")) == pytest.approx(float(product("paper")), rel=1e-11)


@implementations
def test_large_logits_do_not_overflow(implementation):
    loss = log_loss(jnp.ones((1, 2)), jnp.array([[1e5], [0.0]]), jnp.array([0, 1]), implementation=implementation)
    assert float(loss) == 1e5


@implementations
def test_bfloat16_sums_in_float32(implementation):
    small = [a.astype(jnp.bfloat16) for a in (X, W_u)]
    loss = log_loss(*small, targets, implementation=implementation)
    assert loss.dtype == jnp.float32
    p = SimpleNamespace(
        **{n: np.asarray(a, np.float64) for n, a in zip(("X", "W_u"), small, strict=True)}, b_u=np.zeros(N_V)
    )
    assert float(loss) == pytest.approx(expected(p, np.ones(L), 0.0), rel=1e-5)
