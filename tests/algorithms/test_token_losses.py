"""The losses of (x, θ) are those of the probabilities, also if the unembedding scales, caps or has a bias."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import algorithms as alg
from tests import cases
from tests.family_cases import oracle_logits

pytestmark = pytest.mark.sampled(1, tests=6)

SIZES = {"N_V": 11, "l_max": 7, "H": 2, "d_e": 8, "d_mlp": 5}
X = cases.array([[1, 4, 2, 7, 10], [5, 0, 3, 6, 9]])
Z = cases.array([[3, 1, 2, 0], [2, 2, 7, 0]])
LENGTHS, Z_LENGTHS = cases.array([5, 3]), cases.array([3, 4])


def picked(P, targets):
    """−log P[targets[b, t], b, t] as NumPy computes it."""
    P = np.asarray(P)
    return np.array([[-np.log(P[v, b, t]) for t, v in enumerate(row)] for b, row in enumerate(np.asarray(targets))])


def following(losses):
    """The losses of next tokens, 0 where there is none."""
    return np.array(
        [[l if t + 1 < n else 0 for t, l in enumerate(row)] for row, n in zip(losses, LENGTHS, strict=True)]
    )


@pytest.mark.parametrize("name", ["PAPER", "GEMMA2", "OPT", "GOPHER"])
@pytest.mark.parametrize("implementation", ["paper", "auto"])
def test_a_decoders_losses_are_those_of_its_probabilities(name, implementation):
    theta = cases.random_theta(alg.DTransformerConfig(**SIZES, L=2, variant=alg.VARIANTS[name]))
    found = alg.d_token_losses(X, theta, length=LENGTHS, implementation=implementation)
    P = alg.d_transformer(X, theta, length=LENGTHS)
    np.testing.assert_allclose(found, following(picked(P, jnp.roll(X, -1, 1))), rtol=1e-9)
    whole = alg.d_token_losses(X, theta, length=jnp.array([5, 5]), implementation=implementation)
    np.testing.assert_allclose(whole[0], found[0], rtol=1e-9)
    one = alg.d_token_losses(X[1, :3], theta, implementation=implementation)
    np.testing.assert_allclose(found[1, :3], one, rtol=1e-9)


@pytest.mark.parametrize("variant", [alg.PAPER, alg.T5, alg.VARIANTS["BART"]], ids=["PAPER", "T5", "BART"])
def test_an_encoder_decoders_losses_are_those_of_its_probabilities(variant):
    theta = cases.random_theta(alg.EDTransformerConfig(**SIZES, L_enc=1, L_dec=2, variant=variant))
    found = alg.ed_token_losses(Z, X, theta, z_length=Z_LENGTHS, length=LENGTHS)
    P = alg.ed_transformer(Z, X, theta, z_length=Z_LENGTHS)
    np.testing.assert_allclose(found, following(picked(P, jnp.roll(X, -1, 1))), rtol=1e-9)


@pytest.mark.parametrize("variant", [alg.PAPER, alg.BERT], ids=["PAPER", "BERT"])
def test_an_encoders_losses_are_those_of_the_masked_tokens(variant):
    theta = cases.random_theta(alg.ETransformerConfig(**SIZES, L=2, variant=variant))
    x_tilde = X.at[0, 1].set(8).at[0, 3].set(8).at[1, 2].set(8).at[1, 4].set(8)  # 8 is mask_token; [1, 4] is padding
    found = alg.e_token_losses(X, theta, x_tilde=x_tilde, length=LENGTHS)
    expected = picked(alg.e_transformer(x_tilde, theta, length=LENGTHS), X)
    where = np.array([[0, 1, 0, 1, 0], [0, 0, 1, 0, 0]])
    np.testing.assert_allclose(found, np.where(where, expected, 0), rtol=1e-9)


@pytest.mark.end_to_end
def test_the_last_token_of_a_document_has_no_loss():
    theta = cases.random_theta(alg.DTransformerConfig(**SIZES, L=2, variant=alg.GEMMA2))
    segments = jnp.array([0, 0, 0, 1, 1])
    found = alg.d_token_losses(X[0], theta, segments=segments)
    expected = [*alg.d_token_losses(X[0, :3], theta), *alg.d_token_losses(X[0, 3:], theta)]
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert found[2] == found[4] == 0
    cases.assert_close(alg.d_token_losses(X[0], theta, segments=0 * segments), alg.d_token_losses(X[0], theta))


@pytest.mark.parametrize(("kind", "name"), [("d", "PAPER"), ("e", "BERT"), ("ed", "PAPER"), ("ed", "T5")])
def test_documents_targets_weights_and_label_smoothing_are_as_the_oracle_has_them(kind, name):
    layers, variant = {"L_enc": 1, "L_dec": 1} if kind == "ed" else {"L": 1}, alg.VARIANTS[name]
    config = {"d": alg.DTransformerConfig, "e": alg.ETransformerConfig, "ed": alg.EDTransformerConfig}[kind]
    theta = cases.random_theta(config(**SIZES, **layers, variant=variant))
    x, z, segments, z_segments = X[0], Z[0], np.array([0, 0, 0, 1, 1]), np.array([0, 1, 1, 1])
    targets, weights = jnp.array([2, 0, 3, 10, 5]), jnp.array([0.5, 2.0, 0.0, 1.0, 1.0])
    documents = {"x_documents": segments.tolist(), "z_documents": z_segments.tolist(), "z": z}
    documents = documents if kind == "ed" else {"documents": segments.tolist()}
    logits = oracle_logits(x, theta, variant, **documents)
    log_P = logits - np.log(np.exp(logits).sum(axis=0))
    expected = -(0.9 * log_P[targets, np.arange(5)] + 0.1 / 11 * log_P.sum(axis=0))
    inputs, apart = ((z, x), {"z_segments": z_segments}) if kind == "ed" else ((x,), {})
    losses = functools.partial(getattr(alg, f"{kind}_token_losses"), *inputs, theta, segments=segments, **apart)
    found = losses(targets=targets, weights=weights, label_smoothing=0.1)
    np.testing.assert_allclose(found, weights * expected, rtol=1e-9)


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["PAPER", "GEMMA2"])
def test_targets_weights_and_a_mask_of_ones_own_and_columns(name):
    """With targets, every column before the padding has a loss; where a weight is 0, the target may be anything."""
    theta = cases.random_theta(alg.DTransformerConfig(**SIZES, L=2, variant=alg.VARIANTS[name]))
    mask, targets = np.triu(np.ones((5, 5), bool), -1), jnp.array([[3, 1, 4, 1, 5], [9, 2, 6, -1, 99]])
    P = alg.d_transformer(X, theta, length=LENGTHS, mask=mask)
    before = np.arange(5) < np.asarray(LENGTHS)[:, None]
    expected = np.where(before, picked(P, jnp.clip(targets, 0, 10)), 0)
    options = {"length": LENGTHS, "mask": mask, "targets": targets}
    E = theta.W_e[:, X] * (8**0.5 if theta.variant.embedding.scaled else 1.0)
    np.testing.assert_allclose(alg.d_token_losses(E, theta, **options), expected, rtol=1e-9)
    segments = jnp.array([[0, 0, 1, 1, 1], [0, 0, 0, 0, 0]])
    np.testing.assert_array_equal(alg.d_token_losses(X, theta, segments=segments, **options) > 0, before)
    weights = jnp.array([[0.5, 0, 2, 1, -1], [1, 0, 1, 1, 1]])
    invalid = options | {"weights": weights, "targets": jnp.where(weights == 0, 77, targets)}

    @functools.partial(jax.jit, static_argnames="weigh")
    def losses_and_gradient(theta, weigh, options):
        def total(theta):
            losses = alg.d_token_losses(X, theta, **options)
            return (losses * (weights if weigh else 1)).sum(), losses

        (_, losses), gradient = jax.value_and_grad(total, has_aux=True)(theta)
        return losses, gradient

    losses, found = losses_and_gradient(theta, False, invalid)
    np.testing.assert_allclose(losses, weights * expected, rtol=1e-9)
    losses, by_hand = losses_and_gradient(theta, True, options)
    np.testing.assert_allclose(losses, expected, rtol=1e-9)
    cases.assert_trees_close(found, by_hand)
    assert alg.d_token_losses(X, theta, weights=weights > 0)[0, 4] == 0


def functions_of(kind, variant, dtype=jnp.float64):
    """θ of an architecture, and its logits and probabilities as functions of it."""
    layers = {"L_enc": 1, "L_dec": 2} if kind == "ed" else {"L": 2}
    config = {"d": alg.DTransformerConfig, "e": alg.ETransformerConfig, "ed": alg.EDTransformerConfig}[kind]
    x, length = ((Z, X), {"z_length": Z_LENGTHS}) if kind == "ed" else ((X,), {"length": LENGTHS})
    logits, P = (getattr(alg, f"{kind}_{name}") for name in ("logits", "transformer"))
    theta = cases.random_theta(config(**SIZES, **layers, variant=variant), dtype=dtype)
    return theta, lambda theta: logits(*x, theta, **length), lambda theta: P(*x, theta, **length)


@pytest.mark.parametrize(
    ("kind", "name"),
    [("d", "PAPER"), ("d", "GEMMA2"), ("d", "OPT"), ("e", "PAPER"), ("e", "BERT"), ("ed", "T5"), ("ed", "BART")],
)
def test_logits_are_those_of_the_probabilities(kind, name):
    """Scaled, capped and with the bias of the variant."""
    theta, logits, P = functions_of(kind, alg.VARIANTS[name])
    cases.assert_close(jax.nn.softmax(logits(theta), axis=0), P(theta))
    if kind == "d":
        line, hidden = theta.variant.unembedding, alg.d_hidden_state(X, theta, length=LENGTHS)
        y = np.einsum("vd,dbl->vbl", line.matrix(theta), hidden)
        y = y if theta.b_u is None else y + np.asarray(theta.b_u)[:, None, None]
        cases.assert_close(logits(theta), y if line.cap is None else line.cap * np.tanh(y / line.cap))


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["d", "e", "ed"])
def test_large_logits_have_finite_logarithms_entropies_and_gradients(kind):
    """At ±150 in float32, where the logarithm of the probabilities is −∞."""
    theta, logits, P = functions_of(kind, alg.PAPER, jnp.float32)
    theta = theta._replace(W_u=theta.W_u * (150 / jnp.abs(logits(theta)).max()))

    def entropy(theta):
        log_P = jax.nn.log_softmax(logits(theta), axis=0)
        return -(jnp.exp(log_P) * log_P).sum() - log_P.mean()

    exact = np.asarray(logits(theta), np.float64)
    exact = exact - exact.max(0) - np.log(np.exp(exact - exact.max(0)).sum(0))
    value, gradient = jax.jit(jax.value_and_grad(entropy))(theta)
    np.testing.assert_allclose(value, -(np.exp(exact) * exact).sum() - exact.mean(), rtol=1e-4)
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(gradient))
    assert np.any(np.asarray(P(theta)) == 0)
