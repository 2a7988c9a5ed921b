"""Cached generation from a hybrid of recurrences and attentions, and its training across devices."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from algorithms import LLAMA, DTransformerConfig, d_token_losses, partition_specs
from algorithms.lines import Attention, GatedDelta, KimiDelta, Latent, Mamba2, Rotary
from algorithms.machinery.record import Record
from tests.cases import assert_drawn, assert_trees_close, later, random_theta
from training.generation import Generator

pytestmark = pytest.mark.sampled(1, tests=1)

DELTA = GatedDelta(n=4, n_keys=2, d_key=3, d_value=5)
MAMBA = Mamba2(n=4, n_keys=2, d_key=3, d_value=5)
KIMI = KimiDelta(n=4, n_keys=2, d_key=3, d_value=5, rank=2)
HYBRID = LLAMA.but(attention=(DELTA, MAMBA, Attention(positions=Rotary(), biases=False)))
OF_KIMI = LLAMA.but(attention=(KIMI, Latent(d_c=6, d_r=4, positions=None)))
CONFIG = DTransformerConfig(N_V=13, l_max=90, L=4, H=2, d_e=8, d_mlp=6, variant=HYBRID)
THETA = later(lambda: random_theta(CONFIG))
X, LENGTHS = np.random.default_rng(0).integers(0, 10, (3, 9)), np.array([9, 1, 5])
PROMPTS = [x[:n] for x, n in zip(X, LENGTHS, strict=True)]


@pytest.mark.end_to_end
def test_tokens_are_algorithm_14s():
    """Of prompts of several lengths, also shorter than the convolution, past a chunk."""
    generator, key = Generator(THETA(), CONFIG), jax.random.key(3)
    tokens = generator.generate(X, lengths=LENGTHS, l_gen=70, tau=0.8, key=key)
    assert_drawn(THETA(), PROMPTS, tokens, 0.8, key)


@pytest.mark.end_to_end
def test_tokens_of_latents_without_positions_are_algorithm_14s():
    config, key = dataclasses.replace(CONFIG, variant=OF_KIMI), jax.random.key(3)
    theta = random_theta(config)
    tokens = Generator(theta, config).generate(X, lengths=LENGTHS, l_gen=20, tau=0.8, key=key)
    assert_drawn(theta, PROMPTS, tokens, 0.8, key)


def test_the_heads_are_divided_by_a_mesh():
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    specs = partition_specs(THETA(), mesh)
    W, of_mamba = specs.layers[0].attention, specs.layers[1].attention
    assert W.W_v == PartitionSpec(None, "model", None, "data")
    assert W.W_b == PartitionSpec(None, "model", "data")
    assert W.W_out == of_mamba.W_out == PartitionSpec(None, "data", "model")
    assert of_mamba.W_v == PartitionSpec(None, "model", None, "data")

    def loss(theta):
        return d_token_losses(jnp.asarray(X), theta).sum()

    expected = jax.jit(jax.grad(loss))(THETA())
    with jax.set_mesh(mesh):
        placed = jax.tree.map(lambda a, spec: jax.device_put(a, NamedSharding(mesh, spec)), THETA(), specs)
        assert_trees_close(jax.jit(jax.grad(loss))(placed), expected, 1e-9)


def test_the_record_is_written_and_read():
    assert Record.from_json(HYBRID.to_json()) == HYBRID
