"""Algorithms 3, 4 and 5 against the oracle, for every mask, implementation and dtype."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import algorithms as alg
from tests import cases
from training import oracle

pytestmark = pytest.mark.sampled(3)

implementations = pytest.mark.parametrize("implementation", cases.IMPLEMENTATIONS)
exact_and_default = pytest.mark.parametrize("implementation", cases.EXACT_AND_DEFAULT)


def head_params(d_attn=5, d_x=7, d_z=11, d_mid=3, H=None, seed=0, dtype="float64"):
    stack = () if H is None else (H,)
    shapes = [(d_attn, d_x), (d_attn,), (d_attn, d_z), (d_attn,), (d_mid, d_z), (d_mid,)]
    return cases.random_like(
        alg.AttentionParams(*(jax.ShapeDtypeStruct(stack + shape, dtype) for shape in shapes)), seed, dtype
    )


def mh_params(d_out=13, H=2, d_mid=3, seed=0, dtype="float64", **sizes):
    heads = head_params(H=H, d_mid=d_mid, seed=seed, dtype=dtype, **sizes)
    return alg.MHAttentionParams(
        heads, cases.normal(d_out, H * d_mid, seed=seed + 8, dtype=dtype), cases.normal(d_out, seed=9, dtype=dtype)
    )


def random_mask(l_z, l_x, seed=0):
    """Holes, a row that nothing attends, and a column that may attend nothing."""
    mask = np.random.default_rng(seed).random((l_z, l_x)) < 0.5
    mask[:, l_x // 2], mask[:, 0] = True, False
    if l_z > 2:
        mask[l_z // 2, :] = False
    return mask


LENGTHS = [(1, 5), (17, 13)]  # (l_z, l_x)


@pytest.mark.parametrize("T", [1, 2, 19])
def test_single_query_attention_is_the_oracles(T):
    e, E, W_qkv = cases.normal(7), cases.normal(7, T, seed=1), head_params(d_z=7)
    expected = oracle.single_query_attention(np.asarray(e), np.asarray(E), oracle.unstack(W_qkv))
    cases.assert_close(alg.single_query_attention(e, E, W_qkv), expected)
    cases.assert_close(alg.attention(e[:, None], E, W_qkv, alg.BIDIRECTIONAL)[:, 0], expected)


@implementations
@pytest.mark.parametrize(("l_z", "l_x"), LENGTHS)
def test_attention_is_the_oracles_where_columns_may_attend_nothing(implementation, l_z, l_x):
    X, Z, W_qkv, mask = cases.normal(7, l_x), cases.normal(11, l_z, seed=1), head_params(), random_mask(l_z, l_x)
    V_tilde = alg.attention(X, Z, W_qkv, jnp.asarray(mask), implementation=implementation)
    cases.assert_close(V_tilde, oracle.attention(np.asarray(X), np.asarray(Z), oracle.unstack(W_qkv), mask))
    np.testing.assert_array_equal(V_tilde[:, ~mask.any(axis=0)], 0)


@implementations
@pytest.mark.parametrize(("l_z", "l_x"), [(13, 17)])
def test_mh_attention_is_the_oracles(implementation, l_z, l_x):
    X, Z, W, mask = cases.normal(7, l_x), cases.normal(11, l_z, seed=1), mh_params(H=3), random_mask(l_z, l_x)
    expected = oracle.mh_attention(np.asarray(X), np.asarray(Z), oracle.unstack(W), mask)
    cases.assert_close(alg.mh_attention(X, Z, W, jnp.asarray(mask), implementation=implementation), expected)


@implementations
def test_scaled_dot_product_attention_is_lines_4_to_the_end(implementation):
    Q, K, V = cases.normal(5, 13), cases.normal(5, 17, seed=1), cases.normal(3, 17, seed=2)
    eye, zero = np.eye(5), np.zeros(5)
    mask = random_mask(17, 13)
    Z = np.concatenate([K, V])  # so that W_k and W_v pick K and V
    W_qkv = alg.AttentionParams(eye, zero, np.eye(5, 8), zero, np.eye(3, 8, 5), np.zeros(3))
    expected = oracle.attention(np.asarray(Q), Z, oracle.unstack(W_qkv), mask)
    cases.assert_close(
        alg.scaled_dot_product_attention(Q, K, V, jnp.asarray(mask), implementation=implementation), expected
    )


@exact_and_default
@pytest.mark.parametrize(("dtype", "bound"), [("float32", 2e-5), ("bfloat16", 5e-2)])
def test_every_dtype_is_near_the_oracle_and_stays(implementation, dtype, bound):
    X, Z, W = cases.normal(7, 13, dtype=dtype), cases.normal(11, 17, seed=1, dtype=dtype), mh_params(dtype=dtype)
    V_tilde = alg.mh_attention(X, Z, W, alg.UNIDIRECTIONAL, implementation=implementation)
    exact = [np.asarray(a, np.float64) for a in (X, Z)]
    expected = oracle.mh_attention(*exact, oracle.unstack(W), np.asarray(alg.UNIDIRECTIONAL.dense(17, 13)))
    assert V_tilde.dtype == dtype
    cases.assert_close(V_tilde, expected, bound)


@exact_and_default
def test_a_masked_token_is_not_read(implementation):
    """Behind the mask may stand anything finite: neither the output nor a gradient changes by a bit."""
    mask = jnp.asarray(random_mask(5, 7))  # nothing attends row 2

    def run(filler):
        K, V = cases.normal(3, 5, seed=1).at[:, 2].set(filler), cases.normal(2, 5, seed=2).at[:, 2].set(filler)
        return f(cases.normal(3, 7), K, V)

    f = jax.jit(
        jax.value_and_grad(
            lambda *a: (alg.scaled_dot_product_attention(*a, mask, implementation=implementation) ** 2).sum()
        )
    )
    for a, b in zip(run(0.0), run(1e30), strict=True):
        np.testing.assert_array_equal(a, b)


class TestDropout:
    """The weights A become visible with V = 1: then Ṽ = A."""

    Q, K, V = cases.normal(3, 67), cases.normal(3, 71, seed=1), jax.device_put(np.eye(71))  # more than one tile

    @exact_and_default
    def test_a_weight_is_dropped_or_divided_by_what_is_kept(self, implementation):
        def weights(**options):
            return np.asarray(
                alg.scaled_dot_product_attention(
                    self.Q, self.K, self.V, alg.UNIDIRECTIONAL, implementation=implementation, **options
                )
            )

        A, dropped = weights(), weights(dropout=0.3, key=jax.random.key(1))
        kept = dropped != 0
        np.testing.assert_allclose(dropped[kept], A[kept] / 0.7, rtol=1e-12)
        n = int((A > 0).sum())
        assert abs(kept.sum() - 0.7 * n) < 5 * np.sqrt(n * 0.3 * 0.7)
        np.testing.assert_array_equal(dropped, weights(dropout=0.3, key=jax.random.key(1)))
        assert (dropped != weights(dropout=0.3, key=jax.random.key(2))).any()
        np.testing.assert_array_equal(weights(dropout=0.0, key=jax.random.key(1)), A)

    def test_the_heads_drop_different_weights(self):
        W = mh_params(H=2)
        same = jax.tree.map(lambda a: jnp.broadcast_to(a[:1], a.shape), W.heads)
        W = W._replace(heads=same, W_o=jnp.eye(6), b_o=jnp.zeros(6))
        X, Z = cases.normal(7, 13), cases.normal(11, 17, seed=1)
        options = {"dropout": 0.5, "key": jax.random.key(0)}
        first, second = jnp.split(alg.mh_attention(X, Z, W, alg.BIDIRECTIONAL, **options), 2)
        assert (np.abs(first - second) > 1e-6).any()
