"""Algorithms 8, 9 and 10 and their parts against the oracle: values, padding, dtypes, packing; and what must hold for
any parameters: causality, equivariance, what each sublayer may see.
"""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import algorithms as alg
from algorithms.lines import Attention, Embedding, Rotary
from algorithms.ops.attention.dispatch import RULES
from tests import cases
from tests.family_cases import oracle_logits
from training import oracle

pytestmark = pytest.mark.sampled(2)

implementations = pytest.mark.parametrize("implementation", cases.EXACT_AND_DEFAULT)
z, x = cases.random_tokens(19, seed=1), cases.random_tokens(13)


def run(config, z, x, theta, **options):
    """The transformer of a configuration; only an encoder-decoder reads z."""
    if config is cases.ED:
        return alg.ed_transformer(z, x, theta, **options)
    return (alg.e_transformer if config is cases.E else alg.d_transformer)(x, theta, **options)


def expected(config, z, x, theta):
    """What the oracle says."""
    theta = oracle.unstack(theta)
    if config is cases.ED:
        return oracle.ed_transformer(z, x, theta)
    return (oracle.e_transformer if config is cases.E else oracle.d_transformer)(x, theta)


architectures = pytest.mark.parametrize("config", [cases.ED, cases.E, cases.D], ids=["ed", "e", "d"])


@pytest.mark.sampled(1)
@implementations
@architectures
def test_the_transformers_are_the_oracles(implementation, config):
    theta = cases.random_theta(config)
    P = run(config, z, x, theta, implementation=implementation)
    assert P.dtype == jnp.float64
    np.testing.assert_allclose(P, expected(config, z, x, theta), rtol=1e-10, atol=0)
    np.testing.assert_allclose(P.sum(axis=0), 1, rtol=1e-14)


@pytest.mark.end_to_end
@architectures
def test_without_an_unembedding_matrix_the_embedding_is_tied_and_a_single_token_is_a_sequence(config):
    theta = cases.random_theta(dataclasses.replace(config, tied=True, **({"d_f": 11} if config is cases.E else {})))
    assert theta.W_u is None
    P = run(config, z[:1], x[:1], theta)
    np.testing.assert_allclose(P, expected(config, z[:1], x[:1], theta), rtol=1e-10, atol=0)


def test_a_sequence_of_l_max_tokens_uses_every_position():
    theta, longest = cases.random_theta(cases.D), cases.random_tokens(cases.L_MAX)
    cases.assert_close(alg.d_transformer(longest, theta), oracle.d_transformer(longest, oracle.unstack(theta)))


@pytest.mark.sampled(1)
@architectures
@pytest.mark.parametrize(("dtype", "bound"), [pytest.param("float32", 1e-5, marks=pytest.mark.slow), ("bfloat16", 0.1)])
def test_small_dtypes_are_near_the_oracle(config, dtype, bound):
    """The bound is absolute, on probabilities; well-conditioned parameters, as initializers make them."""
    theta = cases.random_theta(config, dtype=dtype, scale=0.2)
    P = run(config, z, x, theta)
    assert P.dtype == jnp.promote_types(dtype, jnp.float32)
    np.testing.assert_allclose(np.asarray(P, np.float64), expected(config, z, x, theta), rtol=0, atol=bound)


FILLERS = (0, -1, cases.N_V, 2**31 - 1)  # what may stand in padding: invalid IDs too


def test_padding_is_not_there():
    """Of the context, and of an encoder's sequence."""
    theta, of_e = cases.random_theta(cases.ED), cases.random_theta(cases.E)
    for filler in FILLERS:
        padded = jnp.concatenate([z[:7], jnp.full(4, filler, z.dtype)])
        P = alg.ed_transformer(padded, x, theta, z_length=7)
        np.testing.assert_allclose(P, oracle.ed_transformer(z[:7], x, oracle.unstack(theta)), rtol=1e-10)
        padded = jnp.concatenate([x[:5], jnp.full(8, filler, x.dtype)])
        P = alg.e_transformer(padded, of_e, length=jnp.asarray(5))[:, :5]
        np.testing.assert_allclose(P, oracle.e_transformer(x[:5], oracle.unstack(of_e)), rtol=1e-10)


@pytest.mark.end_to_end
@architectures
def test_padding_sends_no_gradient(config):
    """The embedding of the token that fills the padding, which stands nowhere else, gets exactly none."""
    theta, filler = cases.random_theta(config), 4
    real = jnp.where(x == filler, 5, x)
    padded = jnp.where(jnp.arange(13) < 5, real, filler)

    def loss(theta):
        if config is cases.ED:
            P = alg.ed_transformer(padded, real, theta, z_length=5)
        elif config is cases.E:
            P = alg.e_transformer(padded, theta, length=5)[:, :5]
        else:  # unidirectional: what stands behind is padding to what stands before
            P = alg.d_transformer(padded, theta)[:, :5]
        return (P**2).sum()

    gradient = jax.jit(jax.grad(loss))(theta)
    np.testing.assert_array_equal(gradient.W_e[:, filler], 0)
    chex.assert_tree_all_finite(gradient)


def softmax(A):
    return oracle.softmax(np.asarray(A))


def test_the_hidden_states_of_an_encoder_are_what_is_unembedded():
    """Those of the others are in `test_entry`."""
    theta = cases.random_theta(cases.E)
    cases.assert_close(softmax(theta.W_u @ alg.e_hidden_state(x, theta)), expected(cases.E, z, x, theta))
    X = oracle.gelu(np.asarray(theta.W_f @ alg.e_encoding(x, theta)) + np.asarray(theta.b_f)[:, None])  # line 10
    X = np.stack([oracle.layer_norm(column, *map(np.asarray, theta.norm)) for column in X.T], axis=1)  # line 11
    cases.assert_close(softmax(np.asarray(theta.W_u) @ X), expected(cases.E, z, x, theta))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary"])
def test_packed_documents_are_as_each_by_itself(positions):
    """Positions restart, also where a number comes back; given ones are taken, and narrow ones do not overflow."""
    first = 2 if positions == "sinusoidal" else 0  # 255 + 2 is 1 in a uint8
    if positions == "rotary":
        variant = alg.PAPER.but(embedding=Embedding(positions=None), attention=Attention(positions=Rotary()))
    else:
        variant = alg.PAPER.but(embedding=Embedding(positions=positions, first_position=first))
    theta = cases.random_theta(dataclasses.replace(cases.D, d_e=12, d_attn=6, variant=variant))
    packed, segments = cases.random_tokens(11, seed=3), np.repeat(np.array([7, 2, 7]), (4, 1, 6))
    X = np.asarray(alg.d_hidden_state(packed, theta, segments=segments))
    for part in (slice(0, 4), slice(4, 5), slice(5, 11)):
        alone = oracle_logits(packed[part], theta, variant)
        cases.assert_close(np.asarray(theta.W_u) @ X[:, part], alone)
    given = np.array([3, 1, 4, 1] if positions == "learned" else [254, 255, 0, 1], np.uint8)
    X = alg.d_hidden_state(packed[:4], theta, positions=given)
    expected = oracle_logits(packed[:4], theta, variant, positions=given.tolist())
    cases.assert_close(np.asarray(theta.W_u) @ np.asarray(X), expected)


@pytest.mark.sampled(1)
@architectures
def test_a_token_outside_the_vocabulary_gives_nan(config):
    theta = cases.random_theta(config)
    for invalid in (-1, cases.N_V):
        bad = x.at[6].set(invalid)
        assert np.isnan(run(config, z, bad, theta)[:, 6:]).all()
        if config is cases.ED:
            assert np.isnan(run(config, z.at[6].set(invalid), x, theta)).all()


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("implementation", RULES)
def test_what_the_backward_pass_computes_again_is_the_same(implementation):
    """All of a layer, or all but what attention's rule or products give; these are computed once more, or not."""
    theta, dY = cases.random_theta(cases.D), cases.random_like(x.astype(float))

    def gradient(remat):
        def loss(theta):
            return (alg.d_hidden_state(x, theta, implementation=implementation, remat=remat) * dY[None]).sum()

        return jax.jit(jax.grad(loss)).trace(theta)

    programs = [gradient(remat) for remat in (False, "all but products", "all but attention", True)]
    expected = programs[0].lower().compile()(theta)
    for other in programs[1:]:
        chex.assert_trees_all_close(other.lower().compile()(theta), expected, rtol=1e-10, atol=1e-13)
    texts = [str(program.jaxpr) for program in programs]
    softmaxes = [text.count("reduce_max[") for text in texts]  # forward passes alone look for the largest score
    assert softmaxes[0] == softmaxes[1] == softmaxes[2] < softmaxes[3]
    products = [text.count("dot_general[") for text in texts]
    assert products[0] + 1 == products[1] < products[2] < products[3]  # that of W_o, whose result is only added


# Every position has a token of its own, so that the column of W_e it reads is a gradient by position.
OWN = cases.array([3, 1, 4, 0, 5, 9, 2])


def influence(f, theta):
    """[t_out, t_in]: whether the hidden state at t_out depends on the token at t_in, by gradient, exactly.

    A function of what ``f`` takes besides θ.
    """
    probe = cases.normal(theta.W_e.shape[0], seed=5)  # a sum over a normalized column would be constant

    @jax.jit
    def jacobian(*others):
        def hidden(W_e):
            return jnp.tensordot(probe, f(theta._replace(W_e=W_e), *others)[: len(probe)], 1)

        return jnp.abs(jax.jacrev(hidden)(theta.W_e)).sum(axis=1)[:, OWN] != 0

    return jacobian


@pytest.mark.sampled(1)
@implementations
def test_a_decoder_sees_itself_and_what_came_before(implementation):
    theta = cases.random_theta(cases.D)
    seen = influence(lambda theta: alg.d_hidden_state(OWN, theta, implementation=implementation), theta)()
    np.testing.assert_array_equal(seen, np.tril(np.ones((7, 7), bool)))


@pytest.mark.parametrize(
    ("config", "f"),
    [
        (cases.ED, lambda theta, length: alg.ed_encoding(OWN, theta, z_length=length)),
        (cases.E, lambda theta, length: alg.e_hidden_state(OWN, theta, length=length)),
    ],
    ids=["ed", "e"],
)
def test_an_encoder_sees_everything_but_padding(config, f):
    of_length = influence(f, cases.random_theta(config))
    assert of_length(7).all()
    seen = of_length(4)
    np.testing.assert_array_equal(seen[:4, 4:], False)
    assert seen[:4, :3].all()


@pytest.mark.end_to_end
def test_a_decoder_of_a_context_sees_all_of_it_and_only_its_own_past():
    theta, Z = cases.random_theta(cases.ED), cases.normal(11, 5)
    seen = influence(lambda theta: alg.ed_decoding(Z, OWN, theta), theta)()
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
    cases.assert_close(f(OWN[permutation], without), f(OWN, without)[:, permutation], 1e-12)
    assert np.abs(f(OWN[permutation], theta) - f(OWN, theta)[:, permutation]).max() > 0.1
