"""What generation does for custom lines besides what `test_memories` checks: translation, int8, sizes."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import PAPER, EDTransformerConfig, d_inference, ed_inference
from algorithms.lines import QKV, Attention
from tests import family_cases as cases
from tests.cases import random_theta
from tests.mixing_lines import (
    Convolution,
    Far,
    FourBack,
    Later,
    Neighbors,
    Numbered,
    Ordered,
    Pooled,
    StickBreaking,
)
from tests.own_lines.experts import Experts
from tests.own_lines.sinks import Sinks
from training.generation import generate, translate
from training.generation.layout import sizes_of_layers, unstacked
from training.generation.prefixes import Prefixes

pytestmark = pytest.mark.sampled(1, tests=4)

Z = np.random.default_rng(0).integers(14, size=(3, 9))
LENGTHS = np.array([9, 1, 4])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Direct(Attention):
    """The paper's attention, by a method of its own."""

    def read(self, Q, K, V, at):
        return QKV(Q, K, V)


LINES = {"sinks": {"attention": Sinks()}, "direct": {"attention": Direct()}, "experts": {"mlp": Experts(n=3)}}


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", LINES)
def test_translations_are_those_of_algorithm_15(name):
    sizes: dict[str, Any] = {"N_V": 17, "l_max": 11, "L_enc": 1, "L_dec": 2, "H": 4, "H_kv": 2, "d_e": 10}
    sizes |= {"d_mlp": 13, "d_mid": 7}
    config = EDTransformerConfig(**sizes, d_attn=5, variant=PAPER.but(**LINES[name]))
    theta = random_theta(config)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(7), jnp.arange(3))
    expected, lengths = ed_inference(jnp.asarray(Z), theta, z_length=jnp.asarray(LENGTHS), tau=0.8, key=keys)
    options = {"lengths": LENGTHS, "config": config, "l_max": 11, "tau": 0.8, "key": jax.random.key(7)}
    tokens, found, _ = translate(theta, Z, **options)
    np.testing.assert_array_equal(tokens, expected)
    np.testing.assert_array_equal(found, lengths)


@pytest.mark.end_to_end
def test_a_formula_that_reads_the_matrices_itself_continues_as_the_papers():
    configs = [cases.config_of("SINKS", variant=variant) for variant in (PAPER.but(attention=Direct()), PAPER)]
    theta = cases.theta_of(configs[0])
    options = {"lengths": np.array([5]), "l_gen": 9, "key": jax.random.key(1)}
    own, ours = (generate(theta._replace(variant=c.variant), Z[:1, :5], config=c, **options) for c in configs)
    np.testing.assert_array_equal(own, ours)


@pytest.mark.end_to_end
def test_what_int8_rounds():
    """The matrices of ours within the parameters of others, and no others."""
    config = cases.config_of("SINKS")
    theta: Any = cases.theta_of(config)

    def first_layer(theta, *, int8=True) -> Any:
        weights: Any = unstacked(theta, int8=int8)
        return weights.layers[0]

    exact, rounded = (first_layer(theta, int8=int8) for int8 in (False, True))
    assert jax.tree.leaves(rounded.attention.attention.W)[0].dtype == jnp.int8
    np.testing.assert_array_equal(rounded.attention.s, exact.attention.s)
    experts = first_layer(cases.theta_of(cases.config_of("EXPERTS")))
    assert {leaf.dtype for leaf in jax.tree.leaves(experts.mlp)} == {jnp.dtype("float64")}
    of = (cases.theta_of(cases.config_of("SINKS", variant=v)) for v in (PAPER, PAPER.but(attention=Direct())))
    jax.tree.map(np.testing.assert_array_equal, *map(first_layer, of))  # lines 1 to 3 are the same of every attention


def test_what_a_token_takes_in_a_cache():
    of = {name: sizes_of_layers(cases.theta_of(cases.config_of(name))) for name in ("SINKS", "DIFFERENTIAL", "LATENT")}
    assert of == {"SINKS": (6, 2, 4, 5), "DIFFERENTIAL": (12, 4, 4, 5), "LATENT": (6, 1, 12, 8)}
    config = cases.config_of("LATENT")
    prefixes = Prefixes.for_texts(1, cases.theta_of(config), config)
    assert prefixes.max_bytes == 64 * config.L * (12 + 8) * 8  # 17 tokens in 64 slots, float64


MIXING = {
    "Neighbors.read: expected a column of K": {"attention": Neighbors(tap=1, share=0.04)},
    "FourBack.read: expected a column of V": {"attention": FourBack(tap=4, share=1e-6)},
    "Later.read: expected a column of Q": {"attention": Later(tap=-1)},
    "Far.result: expected a column": {"attention": Far(tap=257)},
    "Convolution.__call__: expected a column": {"mlp": Convolution()},
    "Pooled.__call__: expected a column": {"norm": Pooled()},
    "Numbered.__call__: expected a column": {"mlp": Numbered()},
    "Ordered.read: expected arrays in `own`": {"attention": Ordered()},
}


@pytest.mark.parametrize("message", MIXING)
def test_a_line_that_mixes_columns_is_refused(message):
    """Whatever the share, and however far; `d_inference`, which reads all tokens, takes it."""
    config = cases.config_of("SINKS", variant=PAPER.but(**MIXING[message]))
    theta = cases.theta_of(config)
    d_inference(jnp.asarray(Z[0]), theta, l_gen=1, tau=0.0, key=jax.random.key(0))
    with pytest.raises(ValueError, match=rf"^{message} .*; .*use algorithms\.d_inference"):
        generate(theta, Z, lengths=LENGTHS, config=config, l_gen=1, key=jax.random.key(0))


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("window", [3, None])
def test_weights_by_the_order_of_keys_are_those_of_whole_sequences(window):
    """A cache of as many rows as the window turns; a breaking of sticks sees its keys in order."""
    config = cases.config_of("SINKS", variant=PAPER.but(attention=StickBreaking(window=window)), l_max=40)
    theta, key = cases.theta_of(config), jax.random.key(2)
    tokens = generate(theta, Z, lengths=LENGTHS, config=config, l_gen=17, key=key)
    for r, length in enumerate(LENGTHS):
        x, own = jnp.asarray(Z[r, :length]), jax.random.fold_in(key, r)
        np.testing.assert_array_equal(tokens[r], d_inference(x, theta, l_gen=17, tau=1.0, key=own))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Doubled(Attention):
    """Two values for each, so that a cache has more rows."""

    def read(self, Q, K, V, at):
        read = super().read(Q, K, V, at)
        return read._replace(V=jnp.concatenate([read.V, read.V], axis=1))

    def result(self, Y, at):
        return super().result(Y[:, : Y.shape[1] // 2], at)


def test_attentions_in_turn_with_other_caches_are_refused():
    config = cases.config_of("SINKS", variant=PAPER.but(attention=(Attention(), Doubled())))
    theta = cases.theta_of(config)
    d_inference(jnp.asarray(Z[0]), theta, l_gen=1, tau=0.0, key=jax.random.key(0))
    with pytest.raises(ValueError, match=r"got Attention and Doubled with .* \(6, 2, 4, 5\) and \(6, 2, 4, 10\); use"):
        generate(theta, Z, lengths=LENGTHS, config=config, l_gen=2, key=jax.random.key(0))
