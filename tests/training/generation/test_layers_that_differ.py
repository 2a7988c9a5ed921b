"""Cached generation from layers that differ: recurrent states beside keys and values, each of its own size."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from algorithms import FALCON_H1, LLAMA, DTransformerConfig, d_token_losses, d_transformer, partition_specs
from algorithms.inside import at, intervene
from algorithms.lines import Attention, GatedDelta, KimiDelta, Latent, Mamba2, Rotary
from algorithms.machinery.record import Record
from tests.cases import assert_drawn, assert_trees_close, later, random_theta
from tests.own_lines.retention import HYBRID
from training.crosscheck.models import few
from training.generation import Generator
from training.generation.cache import RecurrentState, rows_of
from training.generation.prefixes import Prefixes

pytestmark = pytest.mark.sampled(1, tests=3)

RECURRENT = {"n": 4, "n_keys": 2, "d_key": 3, "d_value": 5}
IN_TURN = (GatedDelta(**RECURRENT), Mamba2(**RECURRENT), Attention(positions=Rotary(), biases=False))
LATENT = (KimiDelta(**RECURRENT, rank=2), Latent(d_c=6, d_r=4, positions=None))
VARIANTS = {
    "retention": HYBRID,
    "delta and mamba": LLAMA.but(attention=IN_TURN),
    "latent": LLAMA.but(attention=LATENT),
    "side by side": few(FALCON_H1),
}
X, LENGTHS = np.random.default_rng(0).integers(0, 10, (3, 9)), np.array([9, 1, 5])
KEY = later(lambda: jax.random.key(3))


@functools.cache
def model(name):
    config = DTransformerConfig(N_V=13, l_max=130, L=4, H=2, d_e=8, d_mlp=6, variant=VARIANTS[name])
    return random_theta(config), config


def begun(generator, l_gen, **options):
    return generator.begin(X, lengths=LENGTHS, l_gen=l_gen, key=KEY(), **options)


@pytest.mark.parametrize(
    ("name", "stacked"),
    [
        ("retention", False),
        pytest.param("retention", True, marks=pytest.mark.thorough),
        *(pytest.param(name, False, marks=pytest.mark.end_to_end) for name in ("delta and mamba", "latent")),
    ],
)
def test_tokens_are_algorithm_14s(name, stacked):
    """Of prompts also shorter than a convolution, beyond a window and a chunk, and until the slots have grown; from
    layers one by one, as on a CPU, and in loops.
    """
    theta, config = model(name)
    generator = Generator(theta, config)
    generator.apart = theta if stacked else generator.apart
    tokens = generator.generate(X, lengths=LENGTHS, l_gen=80, tau=0.8, key=KEY())
    assert_drawn(theta, [x[:n] for x, n in zip(X, LENGTHS, strict=True)], tokens, 0.8, KEY())


def test_every_layer_keeps_as_much_as_it_needs():
    for l, cache in enumerate(begun(Generator(*model("retention")), 80, tau=0.8)._state.caches):
        assert isinstance(cache, RecurrentState) == (l % 3 < 2)
        assert cache.state.shape == (7, 3) if l % 3 < 2 else rows_of(cache) == 5


@pytest.mark.end_to_end
def test_a_custom_mixer_is_changed_as_in_whole_texts():
    """By its own name."""
    theta, config = model("retention")
    changes = {at("values", layer=1): lambda values: -2 * values}
    changed = begun(Generator(theta, config, changes=changes), 6)
    changed.extend(6)
    f = intervene(d_transformer, changes)
    for x, n, y, log_p in zip(X, LENGTHS, changed.tokens, changed.log_p, strict=True):
        padded = np.pad(np.concatenate([x[:n], y])[:-1], (0, 9 - n))  # no token attends to those after it
        P = np.asarray(f(padded, theta))[y, n - 1 + np.arange(6)]
        np.testing.assert_allclose(log_p, np.log(P), rtol=1e-8)


def test_a_state_cannot_be_cut_at_a_prefix():
    with pytest.raises(
        ValueError, match=r"prefixes: expected .* keys and values, got one with Retention and Attention"
    ):
        Generator(*model("retention"), prefixes=Prefixes(1 << 20))


@pytest.mark.end_to_end
@pytest.mark.parametrize("name", ["delta and mamba", "side by side"])
def test_the_heads_of_recurrences_are_divided_by_a_mesh(name):
    theta, config = model(name)
    assert Record.from_json(config.variant.to_json()) == config.variant
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    specs = partition_specs(theta, mesh)
    stacks = [layer.attention for layer in specs.layers] if type(specs.layers) is tuple else [*specs.layers.attention]
    for W in stacks:
        first, last = (W.heads.W_v, W.W_o) if hasattr(W, "heads") else (W.W_v, W.W_out)
        assert (first, last) == (PartitionSpec(None, "model", None, "data"), PartitionSpec(None, "data", "model"))
        assert not hasattr(W, "W_b") or W.W_b == PartitionSpec(None, "model", "data")

    def loss(theta):
        return d_token_losses(jnp.asarray(X), theta).sum()

    expected = jax.jit(jax.grad(loss))(theta)
    with jax.set_mesh(mesh):
        placed = jax.tree.map(lambda a, spec: jax.device_put(a, NamedSharding(mesh, spec)), theta, specs)
        assert_trees_close(jax.jit(jax.grad(loss))(placed), expected, 1e-9)
