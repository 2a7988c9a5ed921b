"""The gated delta rule by chunks, and its backward pass derived by hand, against the rule token by token."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms.ops.delta_rule import delta_rule
from tests.cases import assert_close, assert_trees_close, by

H, D_K, D_V, B, L = 3, 5, 7, 2, 13
NUMBERS = jax.device_put(np.array([[0] * 6 + [1] * 2 + [2] * 5, [0] + [1] * 12]))
ROWS = {"one decay for a head": 1, "a decay for each row": D_K, "no corrections": 1}
ORDINARY = 0.5, 0.0
"""Of the decays: how far they spread, and the smallest of −log α."""


def drawn(kind, seed=0, l=L, decays=ORDINARY, dtype=jnp.float64):
    rng = np.random.default_rng(seed)
    Q, K, V, decay, beta = (
        rng.standard_normal(shape)
        for shape in ((H, D_K, B, l), (H, D_K, B, l), (H, D_V, B, l), (H, ROWS[kind], B, l), (H, B, l))
    )
    K, beta = K / np.linalg.norm(K, axis=1, keepdims=True), 1 / (1 + np.exp(-beta))
    inputs = {"Q": Q, "K": K, "V": V, "log_alpha": -decays[1] - decays[0] * np.square(decay), "beta": beta}
    if kind == "no corrections":
        del inputs["beta"]
    return {name: jnp.asarray(a, dtype) for name, a in inputs.items()}


@functools.partial(jax.jit, static_argnames=("implementation", "chunk"))
def computed(inputs, implementation="auto", numbers=NUMBERS, chunk=4):
    return by(implementation, delta_rule, **{"beta": None, **inputs}, document=numbers, chunk=chunk)


def score(inputs, implementation="auto", chunk=4):
    """A number that every o_t and the last state matter for, not linearly."""
    O, S = computed(inputs, implementation, chunk=chunk)
    weights = (jnp.cos(jnp.arange(a.size, dtype=a.dtype)).reshape(a.shape) for a in (O, S))
    return sum((w * jnp.sin(a)).sum() for w, a in zip(weights, (O, S), strict=True))


gradient = jax.jit(jax.grad(score), static_argnums=(1, 2))


@pytest.fixture(params=ROWS)
def kind(request):
    return request.param


@pytest.mark.end_to_end
@pytest.mark.parametrize("chunk", [1, 4, 64])
@pytest.mark.parametrize("decays", [ORDINARY, (60.0, 200.0)], ids=["ordinary", "to nothing"])
def test_values_and_gradients_are_those_of_tokens(kind, chunk, decays):
    inputs = drawn(kind, decays=decays)
    assert_trees_close(computed(inputs, chunk=chunk), computed(inputs, "paper"), 1e-11)
    assert_trees_close(gradient(inputs, "auto", chunk), gradient(inputs, "paper"), 1e-10)


@pytest.mark.parametrize("strong", [{3: -1000.0}, dict.fromkeys(range(0, 64, 2), -160.0)], ids=["one", "every second"])
def test_strong_decays_cost_no_digits_of_others_in_float32(kind, strong):
    """Sums of log α are not differences of larger ones."""
    exact = drawn(kind, l=64)
    for t, log_alpha in strong.items():
        exact["log_alpha"] = exact["log_alpha"].at[..., t].set(log_alpha)
    narrow, numbers = jax.tree.map(lambda a: a.astype(jnp.float32), exact), jnp.zeros((B, 64), int)
    with jax.default_matmul_precision("highest"):
        found = computed(narrow, numbers=numbers, chunk=64)
    expected = computed(jax.tree.map(lambda a: a.astype(float), narrow), "paper", numbers)
    assert_trees_close(found, expected, 4e-6)


def by_loops(Q, K, V, log_alpha, beta=None):
    """The rule of one head of one sequence, as printed, in NumPy: also of complex numbers."""
    S, columns = np.zeros((D_K, D_V)), []
    for t in range(L):
        begins = t == 0 or NUMBERS[0, t] != NUMBERS[0, t - 1]
        S = 0 * S if begins else np.exp(log_alpha[:, t, None]) * S
        delta = V[:, t] if beta is None else beta[t] * (V[:, t] - S.T @ K[:, t])
        S = S + np.outer(K[:, t], delta)
        columns.append(S.T @ Q[:, t])
    return np.stack(columns, axis=1), S


@pytest.mark.sampled(1)
def test_gradients_are_complex_steps_of_numpy_loops(kind):
    inputs, h = {name: np.asarray(a[:1, ..., :1, :]) for name, a in drawn(kind).items()}, 1e-30
    steps = {name: np.asarray(a[:1, ..., :1, :]) for name, a in drawn(kind, seed=1).items()}

    def of(a):
        return (a * np.cos(np.arange(a.size)).reshape(a.shape)).sum()

    def of_chunks(inputs):
        O, S = computed(inputs, numbers=NUMBERS[:1])
        return of(O[0, :, 0]) + of(S[0, ..., 0])

    by_hand = jax.jit(jax.grad(of_chunks))(inputs)
    moved = {name: (a + h * 1j * steps[name])[0, ..., 0, :] for name, a in inputs.items()}
    expected = sum(map(of, by_loops(**moved))).imag / h
    assert_close(sum(np.vdot(g, steps[name]) for name, g in by_hand.items()), expected, 1e-11)


@pytest.mark.end_to_end
def test_second_derivatives_are_those_of_tokens(kind):
    inputs, step = drawn(kind), drawn(kind, seed=1)

    def along(inputs, implementation):
        gradients = jax.grad(score)(inputs, implementation)
        return sum(jnp.vdot(g, step[name]) for name, g in gradients.items())

    of_second = (jax.jit(jax.grad(along), static_argnums=1)(inputs, way) for way in ("auto", "paper"))
    assert_trees_close(*of_second, 1e-9)


def test_no_tokens_leave_the_state_at_nothing(kind):
    inputs, nobody = drawn(kind, l=0), jnp.zeros((B, 0), int)
    for way in ("paper", "auto"):
        O, S = computed(inputs, way, nobody)
        assert O.shape == (H, D_V, B, 0)
        np.testing.assert_array_equal(S, np.zeros((H, D_K, D_V, B)))
    gradients = jax.jit(jax.grad(lambda inputs: sum(a.sum() for a in computed(inputs, numbers=nobody))))(inputs)
    assert jax.tree.map(jnp.shape, gradients) == jax.tree.map(jnp.shape, inputs)


@pytest.mark.sampled(1)
def test_float32_is_as_exact_by_hand_as_by_jax(kind):
    exact = gradient(drawn(kind), "paper")
    for way in ("auto", "paper"):
        found = gradient(drawn(kind, dtype=jnp.float32), way)
        for name, g in exact.items():
            assert float(jnp.abs(found[name] - g).max()) < 2e-5 * float(jnp.abs(g).max()), (way, name)


def test_what_is_kept_for_the_backward_pass_is_the_arguments_and_a_state_for_each_chunk(kind):
    inputs = drawn(kind)
    kept = jax.eval_shape(lambda inputs: jax.vjp(computed, inputs)[1], inputs)
    numbers = [leaf.size for leaf in jax.tree.leaves(kept) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    assert sum(numbers) <= sum(a.size for a in inputs.values()) + 4 * H * D_K * D_V * B


@pytest.mark.end_to_end
def test_equal_keys_do_not_make_large_numbers():
    """With β = 1 and no decay, powers of the matrix that is solved would reach 1e17."""
    K = jnp.ones((1, 1, 1, 64), jnp.float32)
    V = jnp.asarray(np.random.default_rng(0).standard_normal((1, D_V, 1, 64)), jnp.float32)
    rates = K, K, V, 0 * K, K[:, 0], np.zeros((1, 64), int)
    assert_close(jax.jit(delta_rule, static_argnums=6)(*rates, 64)[0], V, 1e-5)
