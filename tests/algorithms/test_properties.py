"""What must hold of a transformer for any parameters: causality, equivariance, what each sublayer may see."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import algorithms as alg
from tests import cases

x, z = cases.random_tokens(7), cases.random_tokens(5, seed=1)
# Every position has a token of its own, so that the column of W_e it reads is a gradient by position.
OWN = cases.array([3, 1, 4, 0, 5, 9, 2])


def influence(f, theta, tokens):
    """[t_out, t_in]: whether the hidden state at t_out depends on the token at t_in, by gradient, exactly.

    A function of what ``f`` takes besides θ.
    """
    probe = cases.normal(theta.W_e.shape[0], seed=5)  # a sum over a normalized column would be constant

    @jax.jit
    def jacobian(*others):
        def hidden(W_e):
            return jnp.tensordot(probe, f(theta._replace(W_e=W_e), *others)[: len(probe)], 1)

        return jnp.abs(jax.jacrev(hidden)(theta.W_e)).sum(axis=1)[:, tokens] != 0

    return jacobian


@pytest.mark.sampled(1)
@pytest.mark.parametrize("implementation", cases.EXACT_AND_DEFAULT)
def test_a_decoder_sees_itself_and_what_came_before(implementation):
    theta = cases.random_theta(cases.D)
    seen = influence(lambda theta: alg.d_hidden_state(OWN, theta, implementation=implementation), theta, OWN)()
    np.testing.assert_array_equal(seen, np.tril(np.ones((7, 7), bool)))


def test_an_encoder_sees_everything():
    theta = cases.random_theta(cases.ED)
    assert influence(lambda theta: alg.ed_encoding(OWN, theta), theta, OWN)().all()


def test_an_encoder_sees_everything_but_padding():
    theta = cases.random_theta(cases.E)
    of_length = influence(lambda theta, length: alg.e_hidden_state(OWN, theta, length=length), theta, OWN)
    assert of_length(7).all()
    seen = of_length(4)
    np.testing.assert_array_equal(seen[:4, 4:], False)
    assert seen[:4, :3].all()


@pytest.mark.end_to_end
def test_a_decoder_of_a_context_sees_all_of_it_and_only_its_own_past():
    theta, Z = cases.random_theta(cases.ED), cases.normal(11, 5)
    seen = influence(lambda theta: alg.ed_decoding(Z, OWN, theta), theta, OWN)()
    np.testing.assert_array_equal(seen, np.tril(np.ones((7, 7), bool)))
    jacobian = jax.jit(jax.jacrev(lambda Z, length: alg.ed_decoding(Z, OWN, theta, z_length=length)[0]))
    for length in (3, 5):
        seen = np.asarray(jnp.abs(jacobian(Z, length)).sum(axis=1) != 0)
        np.testing.assert_array_equal(seen, np.broadcast_to(np.arange(5) < length, (7, 5)))


def test_without_positions_an_encoder_is_equivariant_and_with_them_it_is_not():
    permutation = np.random.default_rng(0).permutation(7)
    theta = cases.random_theta(cases.E)
    without = theta._replace(W_p=jnp.zeros_like(theta.W_p))
    f = alg.e_hidden_state
    cases.assert_close(f(x[permutation], without), f(x, without)[:, permutation], 1e-12)
    assert np.abs(f(x[permutation], theta) - f(x, theta)[:, permutation]).max() > 0.1
