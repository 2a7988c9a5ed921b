"""The loop over the layers: the keys of each, what its backward pass recomputes on a GPU, layers that share parameters,
and those whose parameters have different shapes, each kind a stack of its own.
"""

import functools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import algorithms as alg
from algorithms import layers
from algorithms.inside import at, intervene, record
from algorithms.layers import lines_of
from algorithms.lines import MLP, Attention, Experts, Rotary
from algorithms.machinery.options import using
from algorithms.model.theta import every_layer, places
from tests import cases
from tests.cases import assert_close, by, random_theta
from tests.own_lines import loops
from tests.own_lines.retention import HYBRID, Retention
from training.loop.cost import active_parameters
from training.tasks import TASKS

pytestmark = pytest.mark.sampled(1, tests=4)


def test_every_draw_of_every_layer_has_its_own_key():
    theta, L = type("theta", (), {"distances": None, "variant": alg.PAPER}), 4
    f = lines_of("Algorithm 10", cases.array([0]), theta)
    with using(key=jax.random.key(0)):

        @f.each_layer(jnp.zeros((2, L)), jnp.arange(L))
        def drawn(X, l, f):
            for i in range(2):
                X = X.at[i, l].set(jax.random.uniform(f._key(i), dtype=X.dtype))
            return X

    assert np.unique(drawn).size == L * 2


@pytest.mark.thorough
def test_on_a_gpu_norms_and_activations_are_computed_again_but_no_product(monkeypatch):
    """As many products, less memory, the same gradients; unrolled, nothing is computed again."""
    theta = cases.random_theta(alg.DTransformerConfig(N_V=11, l_max=64, L=2, H=2, d_e=4, d_mlp=32))
    x = cases.random_tokens(4, 64, n=11)

    def gradient(unroll=False):
        jax.clear_caches()
        options = {"unroll": unroll, "implementation": "blockwise"}
        return jax.jit(jax.grad(lambda theta: jnp.square(alg.d_hidden_state(x, theta, **options)).sum())).trace(theta)

    stored = gradient()
    monkeypatch.setattr(layers, "platform_of", lambda _: "gpu")
    again, unrolled = gradient(), gradient(unroll=True)
    assert str(again.jaxpr).count("dot_general[") == str(stored.jaxpr).count("dot_general[")
    assert "prevent_cse" in str(again.jaxpr)
    assert "prevent_cse" not in str(unrolled.jaxpr)
    programs = [traced.lower().compile() for traced in (again, stored)]
    memory = [program.memory_analysis().temp_size_in_bytes for program in programs]
    assert memory[0] < 0.9 * memory[1]
    chex.assert_trees_all_close(*(program(theta) for program in programs), rtol=1e-10, atol=1e-13)


# Layers that share parameters.

x, z = cases.random_tokens(2, 7, seed=3), cases.random_tokens(2, 5, seed=4)
TWO, THREE = ({**cases.SHARED, "variant": alg.PAPER.but(shared_layers=n)} for n in (2, 3))
SHARED = {
    "d": (alg.DTransformerConfig(L=4, **TWO), functools.partial(alg.d_transformer, x)),
    "e": (alg.ETransformerConfig(L=6, **THREE), functools.partial(alg.e_transformer, x)),
    "ed": (alg.EDTransformerConfig(L_enc=2, L_dec=4, **TWO), functools.partial(alg.ed_transformer, z, x)),
}


def written_out(theta):
    """The same parameters layer by layer."""
    stacks = [field for field in ("layers", "encoder", "decoder") if hasattr(theta, field)]
    each = {field: theta.variant.of_every_layer(getattr(theta, field)) for field in stacks}
    return theta._replace(**each, variant=theta.variant.but(shared_layers=1))


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize(("config", "f"), SHARED.values(), ids=SHARED)
def test_layers_that_share_parameters_are_layers_whose_parameters_are_equal(config, f):
    def score(theta, implementation):
        P = f(theta, implementation=implementation)
        return jnp.sin(P).sum(), P

    theta = cases.random_theta(config)
    (_, P), gradient = jax.jit(jax.value_and_grad(lambda theta: score(theta, "auto"), has_aux=True))(theta)
    of_each = jax.jit(jax.value_and_grad(lambda theta: score(written_out(theta), "paper"), has_aux=True))
    (_, expected), expected_gradient = of_each(theta)
    cases.assert_close(P, expected, 1e-12)
    cases.assert_trees_close(gradient, expected_gradient)


# Layers that differ: two recurrences to one attention, and first layers with another MLP.

SIZES: Any = {"N_V": 13, "l_max": 29, "H": 2, "d_e": 8, "d_mlp": 5}
X = np.random.default_rng(0).integers(0, 10, (2, 7))

GATED = MLP(activation="silu", gated=True, biases=False)
EXPERTS = Experts(n=4, k=2, activation="silu", gated=True, biases=False, shared=1)
LINE = Attention(positions=Rotary(base=100.0), biases=False)
FIRST = alg.LLAMA.but(mlp=EXPERTS, first=(GATED.but(d_mlp=9),) * 2, attention=(LINE.but(window=2), LINE))


def model(L, variant=HYBRID):
    return random_theta(alg.DTransformerConfig(L=L, variant=variant, **SIZES))


def layer_of(theta, l, L):
    stack, row = places(theta.variant, L)[l]
    return jax.tree.map(lambda a: jax.device_put(np.asarray(a)[row]), theta.layers[stack])


@functools.partial(functools.partial, by, "paper")
def one_by_one(x, theta, L, seen=None):
    """Algorithm 10 with a Python loop, the recurrences by NumPy's loops."""
    f = lines_of("Algorithm 10", jnp.asarray(x), theta)
    X = f.embedding(jnp.asarray(x), theta)
    mask = np.triu(np.ones((x.shape[-1],) * 2, bool))
    for l in range(L):
        W, line = layer_of(theta, l, L), theta.variant.lines(l)
        X_tilde, f = f.layer_norm(X, W.norm1), f._replace(l=l, run=(line,))
        if isinstance(line.attention, Retention):
            each = [
                loops.retention(line.attention, Z, Z, W.attention, mask) for Z in np.moveaxis(np.asarray(X_tilde), 1, 0)
            ]
            X = X + np.stack(each, axis=1)
        else:
            X = X + f.mh_attention(X_tilde, W.attention, alg.UNIDIRECTIONAL)
        X = X + line.mlp(f.layer_norm(X, W.norm2), W.mlp, activation="silu")
        if seen is not None:
            seen.append(X)
    return theta.variant.unembedding(f.layer_norm(X, theta.norm), theta)


def test_the_stacks_and_their_layers():
    """Two cycles of three layers, and one layer more; fewer layers than a cycle; a single stack if all are alike."""
    assert [len(stack.norm1.gamma) for stack in model(7).layers] == [4, 2, 1]
    assert places(HYBRID, 7) == [(0, 0), (0, 1), (1, 0), (0, 2), (0, 3), (1, 1), (2, 0)]
    assert [len(stack.norm1.gamma) for stack in model(2).layers] == [2]
    assert len(model(3, HYBRID.but(attention=HYBRID.attentions[2])).layers.norm1.gamma) == 3
    theta = model(7)
    norms = every_layer(theta.layers, HYBRID, lambda W: W.norm1.gamma)
    np.testing.assert_array_equal(norms, [layer_of(theta, l, 7).norm1.gamma for l in range(7)])
    assert alg.count_params(alg.init_d_transformer, alg.DTransformerConfig(L=7, variant=HYBRID, **SIZES)) == sum(
        a.size for a in jax.tree.leaves(theta)
    )


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize(("L", "variant"), [(2, HYBRID), (7, HYBRID), (5, FIRST)])
def test_values_are_those_of_single_layers(L, variant):
    theta = model(L, variant)
    expected = one_by_one(X, theta, L)
    for implementation in ("paper", "dense", "blockwise", "auto"):
        assert_close(alg.d_transformer(X, theta, implementation=implementation), expected)


@pytest.mark.end_to_end
def test_records_and_changes_have_one_axis_of_layers():
    theta, L, expected = model(7), 7, []
    P, layers = one_by_one(X, theta, L, expected), np.array([0, 6])
    names = "X@8", at("X@8", layer=5), at("X@8", layer=layers), "A", "values", "X_tilde@5"
    found, seen = record(alg.d_transformer, *names)(X, theta)
    assert_close(found, P)
    assert_close(seen["X@8"], jnp.stack(expected))
    assert_close(seen[names[1]], expected[5])
    assert_close(seen[names[2]], jnp.stack([expected[0], expected[6]]))
    assert seen["A"].shape == (2, 2, 7, 2, 7)  # of the two layers with an attention
    own = [l for l in range(L) if l % 3 < 2]  # and of those with a custom mixer
    assert_close(
        seen["values"], [np.tensordot(layer_of(theta, l, L).attention.W_v, seen["X_tilde@5"][l], 1) for l in own]
    )
    for l in (2, 3):
        same = intervene(alg.d_transformer, {at("X@8", layer=l): expected[l]})(X, theta)
        assert_close(same, P)
        zeros = np.zeros_like(expected[l])  # of this shape, so that it is the same program
        assert np.abs(intervene(alg.d_transformer, {at("X@8", layer=l): zeros})(X, theta) - P).max() > 1e-3
    twice = record(lambda x: alg.d_transformer(x, theta) + alg.d_transformer(x[:, ::-1], theta), "X@8", names[1])(X)[1]
    assert_close(twice["X@8"][0], jnp.stack(expected))
    assert_close(twice[names[1]][0], expected[5])


@pytest.mark.end_to_end
def test_experts_are_recorded_in_the_layers_that_have_them():
    theta, expected = model(5, FIRST), []
    P, last = one_by_one(X, theta, 5, expected), at("router", layer=0)
    found, seen = record(alg.d_transformer, "X@8", "router", last)(X, theta)
    assert_close(found, P)
    assert_close(seen["X@8"], jnp.stack(expected))
    assert seen["router"].shape == (3, 4, 2, 7)
    np.testing.assert_array_equal(seen[last], seen["router"][0])
    assert_close(intervene(alg.d_transformer, {"X@8": jnp.stack(expected)})(X, theta), P)


def test_counts_and_the_mesh_know_both_kinds():
    theta, config = model(5, FIRST), alg.DTransformerConfig(L=5, variant=FIRST, **SIZES)
    of_experts = 3 * 8 * 5
    params = alg.count_params(alg.init_d_transformer, config)
    assert params == sum(a.size for a in jax.tree.leaves(theta))
    assert active_parameters(theta) == params - 3 * 2 * of_experts
    alike = alg.DTransformerConfig(L=5, variant=FIRST.but(first=()), **SIZES)
    more = 2 * 3 * 8 * 9 - 2 * (3 * of_experts + 4 * 8)  # an MLP for two chosen experts, a shared one, and a router
    assert TASKS["d"].flops(config, 7) - TASKS["d"].flops(alike, 7) == 2 * 7 * more
    specs = alg.partition_specs(theta, jax.sharding.AbstractMesh((2, 2), ("data", "model")))
    assert specs.layers[0].mlp.W_mlp1 == P(None, None, "data")  # their number of hidden units is odd
    assert specs.layers[1].mlp.experts.W_mlp1 == P(None, "model", None, "data")
    assert alg.Variant.from_json(FIRST.to_json()) == FIRST
