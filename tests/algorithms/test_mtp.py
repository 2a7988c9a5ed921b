"""The head for the token after the next: its losses and their gradient against the oracle, and where it has none."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import algorithms as alg
from algorithms.lines import MTP
from tests import cases
from tests.family_cases import config_of
from training import oracle
from training.crosscheck.models import family_parameters
from training.oracle import family
from training.oracle.training import descend

ROWS = ("DEEPSEEK", "QWEN3_NEXT", "GEMMA3", "BLOOM", "LAYERS", "GLM4_MOE", "ETTIN", "GPT3_SHARED")


@functools.cache
def model(name):
    """A model with a head; of PAPER a tiny one, for complex steps."""
    if name == "PAPER":
        config = alg.DTransformerConfig(L=1, **cases.TINY, variant=alg.PAPER.but(mtp=MTP(weight=0.7)))
        return cases.random_theta(config)
    config = config_of(name)
    return cases.random_theta(config_of(name, variant=config.variant.but(mtp=MTP())), scale=0.3)


def expected_of(x, theta, **where):
    return family.mtp_losses([int(v) for v in x], family_parameters(theta), theta.variant, **where)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ROWS)
def test_losses_are_the_oracles_with_padding_and_documents(name):
    theta = model(name)
    x, lengths = cases.random_tokens(2, 7, n=theta.W_e.shape[1]), cases.array([7, 4])
    segments = np.array([[0, 0, 0, 0, 1, 1, 1], [3, 3, 3, 5, 5, 5, 5]])

    @jax.jit
    def losses(x, theta):
        X = alg.d_hidden_state(x, theta, length=lengths)
        of_documents = alg.d_hidden_state(x, theta, segments=segments)
        found = alg.mtp_token_losses(of_documents, x, theta, segments=segments)
        return alg.mtp_token_losses(X, x, theta, length=lengths), found

    padded, of_documents = losses(x.at[1, 4:].set(-1), theta)[0], losses(x, theta)[1]
    for row, found, length in zip(x, padded, (7, 4), strict=True):
        cases.assert_close(found, expected_of(row, theta, length=length), 1e-9)
    for row, found, documents in zip(x, of_documents, segments.tolist(), strict=True):
        cases.assert_close(found, expected_of(row, theta, documents=documents), 1e-9)
        assert (np.asarray(found) > 0).sum() == 3


@pytest.mark.end_to_end
def test_training_descends_on_both_losses_as_the_oracles_complex_steps():
    theta, x = model("PAPER"), cases.random_tokens(5, n=cases.TINY["N_V"])
    tokens = x[:4].tolist()

    def loss(theta):
        return oracle.d_loss(tokens, theta) + 0.7 * sum(family.mtp_losses(tokens, theta, alg.PAPER))

    expected = oracle.flatten(descend(loss, family_parameters(theta), 0.05))
    padded, lengths = x.at[4].set(-1)[None], np.array([4])
    trained = oracle.flatten(family_parameters(alg.d_training(padded, theta, N_epochs=1, eta=0.05, length=lengths)))
    for name, W in expected.items():
        cases.assert_close(trained[name], W, 1e-10, name)


@pytest.mark.end_to_end
def test_meshes_of_explicit_axes_divide_its_parameters_and_change_nothing():
    config = config_of("GLM4_MOE", N_V=16, d_e=8, d_mlp=16)
    theta = cases.random_theta(dataclasses.replace(config, variant=config.variant.but(mtp=MTP())), scale=0.3)
    x, mesh = cases.random_tokens(4, 6, n=16), jax.make_mesh((2, 2, 2), ("data", "context", "model"))

    @jax.value_and_grad
    def loss(theta, x):
        return alg.mtp_token_losses(alg.d_hidden_state(x, theta), x, theta).sum()

    expected = jax.jit(loss)(theta, x)
    specs = alg.partition_specs(theta, mesh)
    assert specs.mtp.W_m == P(None, "data")
    assert specs.mtp.layers.attention.heads.W_q == P(None, "model", None, "data")
    with jax.set_mesh(mesh):
        places = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
        found = jax.jit(loss)(jax.device_put(theta, places), jax.device_put(x, NamedSharding(mesh, P("data"))))
    cases.assert_trees_close(jax.device_get(found), jax.device_get(expected), 1e-10)
