"""Layers that share parameters are layers whose parameters are equal, in all architectures and whatever uses them."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

import algorithms as alg
from tests import cases

pytestmark = pytest.mark.sampled(1)

SIZES = {"N_V": 17, "l_max": 23, "H": 3, "d_e": 12, "d_mlp": 13}
SHARED = alg.PAPER.but(shared_layers=2)
X, Z = cases.random_tokens(2, 7, seed=3), cases.random_tokens(2, 5, seed=4)
MODELS = {
    "d": (alg.DTransformerConfig(**SIZES, L=4, variant=SHARED), alg.d_transformer),
    "e": (alg.ETransformerConfig(**SIZES, L=6, variant=SHARED.but(shared_layers=3)), alg.e_transformer),
    "ed": (alg.EDTransformerConfig(**SIZES, L_enc=2, L_dec=4, variant=SHARED), alg.ed_transformer),
}


def written_out(theta):
    """The same parameters layer by layer."""
    stacks = [field for field in ("layers", "encoder", "decoder") if hasattr(theta, field)]
    each = {field: theta.variant.of_every_layer(getattr(theta, field)) for field in stacks}
    return theta._replace(**each, variant=theta.variant.but(shared_layers=1))


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", MODELS)
def test_values_and_gradients_are_those_of_equal_layers(name):
    config, f = MODELS[name]

    def score(theta, implementation):
        P = f(*((Z, X) if name == "ed" else (X,)), theta, implementation=implementation)
        return jnp.sin(P).sum(), P

    theta = cases.random_theta(config)
    (_, P), gradient = jax.jit(jax.value_and_grad(lambda theta: score(theta, "auto"), has_aux=True))(theta)
    of_each = jax.jit(jax.value_and_grad(lambda theta: score(written_out(theta), "paper"), has_aux=True))
    (_, expected), expected_gradient = of_each(theta)
    cases.assert_close(P, expected, 1e-12)
    cases.assert_trees_close(gradient, expected_gradient)


@pytest.mark.parametrize("name", MODELS)
def test_a_layer_is_counted_once_for_all_that_share_it(name):
    config, init = MODELS[name][0], cases.initializer(MODELS[name][0])
    L = {field: getattr(config, field) for field in ("L", "L_enc", "L_dec") if hasattr(config, field)}
    of_each = dataclasses.replace(
        config,
        **{n: size // config.shared_layers for n, size in L.items()},
        variant=config.variant.but(shared_layers=1),
    )
    assert alg.count_params(init, config) == alg.count_params(init, of_each)
