"""First layers with another MLP: equal to a loop over single layers, wherever layers are looped over."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import algorithms as alg
from algorithms.inside import at, intervene, record
from algorithms.layers import lines_of
from algorithms.lines import MLP, Attention, Experts, Rotary
from tests.cases import by, random_theta
from training.generation import Generator, generate
from training.generation.prefixes import Prefixes
from training.loop.cost import active_parameters
from training.tasks import TASKS

pytestmark = pytest.mark.sampled(1, tests=1)

N, L = 2, 5
GATED = MLP(activation="silu", gated=True, biases=False)
EXPERTS = Experts(n=4, k=2, activation="silu", gated=True, biases=False, shared=1)
LINE = Attention(positions=Rotary(base=100.0), biases=False)
VARIANT = alg.LLAMA.but(mlp=EXPERTS, first=(GATED.but(d_mlp=9),) * N, attention=(LINE.but(window=2), LINE))
CONFIG = alg.DTransformerConfig(N_V=11, l_max=24, L=L, H=2, d_e=8, d_mlp=6, variant=VARIANT)
THETA = random_theta(CONFIG)
X = jax.device_put(np.array([[1, 3, 4, 2], [5, 5, 0, 7]]))


def mlp_of(theta, l):
    return layer_of(theta, l).mlp


def layer_of(theta, l):
    stack, i = (0, l) if l < N else (1, l - N)
    return jax.tree.map(lambda a: a[i], theta.layers[stack])


@functools.partial(functools.partial, by, "paper")
def layer_by_layer(theta, x, seen=None):
    """Algorithm 10 with a Python loop, each layer's MLP chosen by its number."""
    f = lines_of("Algorithm 10", x, theta)
    X = f.embedding(x, theta)
    for l in range(L):
        W = layer_of(theta, l)
        X_tilde = f.layer_norm(X, W.norm1)
        X = X + f._replace(l=l, run=(VARIANT.lines(l),)).mh_attention(X_tilde, W.attention, alg.UNIDIRECTIONAL)
        line = GATED if l < N else EXPERTS
        X = X + line(f.layer_norm(X, W.norm2), mlp_of(theta, l), activation="silu")
        if seen is not None:
            seen.append(X)
    return theta.variant.unembedding(f.layer_norm(X, theta.norm), theta)


@pytest.mark.parametrize("implementation", ["paper", "dense", "blockwise", "auto"])
def test_values_and_gradients_are_those_of_single_layers(implementation):
    weights = jnp.asarray(np.random.default_rng(0).normal(size=(11, *X.shape)))
    score = jax.jit(jax.value_and_grad(lambda f, theta: (weights * f(theta)).sum(), argnums=1), static_argnums=0)
    expected, of_loop = score(lambda theta: layer_by_layer(theta, X), THETA)
    found, gradients = score(lambda theta: alg.d_transformer(X, theta, implementation=implementation), THETA)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-11), gradients, of_loop)


def test_records_and_changes_count_all_layers():
    @jax.jit
    def looped(theta, x):
        seen = []
        return layer_by_layer(theta, x, seen), seen

    P, expected = looped(THETA, X)
    names = "X@8", "A", at("X@8", layer=3), at("X@8", layer=slice(1, 3)), "router", at("router", layer=0)
    found, seen = record(alg.d_transformer, *names)(X, THETA)
    np.testing.assert_allclose(found, P, atol=1e-12)
    np.testing.assert_allclose(seen["X@8"], expected, atol=1e-12)
    np.testing.assert_array_equal(seen[names[2]], seen["X@8"][3])
    np.testing.assert_array_equal(seen[names[3]], seen["X@8"][1:3])
    assert seen["A"].shape == (L, 2, 4, 2, 4)
    assert seen["router"].shape == (L - N, 4, 2, 4)
    np.testing.assert_array_equal(seen[names[5]], seen["router"][0])
    for l in (1, 3):  # in either stack
        changed = intervene(alg.d_transformer, {at("X@8", layer=l): 0.0})(X, THETA)
        same = intervene(alg.d_transformer, {at("X@8", layer=l): expected[l]})(X, THETA)
        np.testing.assert_allclose(same, P, atol=1e-12)
        assert abs(changed - P).max() > 1e-3
    np.testing.assert_allclose(intervene(alg.d_transformer, {"X@8": jnp.stack(expected)})(X, THETA), P, atol=1e-12)


@pytest.mark.thorough
def test_cached_tokens_are_those_of_algorithm_14():
    texts, lengths = np.random.default_rng(1).integers(0, 8, size=(2, 20)), np.array([20, 18])
    options = {"l_gen": 4, "tau": 0.0, "key": jax.random.key(0)}
    rows = zip(texts, lengths, strict=True)
    expected = [alg.d_inference(jnp.asarray(x[:n]), THETA, **options) for x, n in rows]
    np.testing.assert_array_equal(generate(THETA, texts, lengths=lengths, config=CONFIG, **options), expected)
    generator = Generator(THETA, CONFIG, prefixes=Prefixes(1 << 20))
    begun = [generator.generate(texts[:, :17], lengths=np.array([17, 17]), **options) for _ in range(2)]
    np.testing.assert_array_equal(*begun)
    np.testing.assert_array_equal(generator.generate(texts, lengths=lengths, **options), expected)


def test_counts_and_the_mesh_know_both_kinds():
    assert alg.count_params(alg.init_d_transformer, CONFIG) == sum(a.size for a in jax.tree.leaves(THETA))
    of_experts = 3 * 8 * 6
    inactive = (L - N) * 2 * of_experts
    assert active_parameters(THETA) == alg.count_params(alg.init_d_transformer, CONFIG) - inactive
    alike = alg.DTransformerConfig(N_V=11, l_max=24, L=L, H=2, d_e=8, d_mlp=6, variant=VARIANT.but(first=()))
    more = 2 * 3 * 8 * 9 - 2 * (3 * of_experts + 4 * 8)  # an MLP for two chosen experts, a shared one, and a router
    assert TASKS["d"].flops(CONFIG, 7) - TASKS["d"].flops(alike, 7) == N * 7 * more
    specs = alg.partition_specs(THETA, jax.sharding.AbstractMesh((2, 2), ("data", "model")))
    assert specs.layers[0].mlp.W_mlp1 == P(None, None, "data")  # their number of hidden units is odd
    assert specs.layers[1].mlp.experts.W_mlp1 == P(None, "model", None, "data")
    assert alg.Variant.from_json(VARIANT.to_json()) == VARIANT
