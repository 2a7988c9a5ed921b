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
from training.crosscheck.models import family_parameters
from training.oracle import family

ROWS = ("DEEPSEEK", "QWEN3_NEXT", "GEMMA3", "BLOOM", "LAYERS", "GLM4_MOE", "ETTIN", "GPT3_SHARED")


@functools.cache
def model(name):
    """A model with a head."""
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
