"""Custom lines: what they compute, what their parameters are, and what is refused."""

import dataclasses
import functools
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

import algorithms as alg
from algorithms.inside import at, gradients, intervene, record
from algorithms.lines import Attention, Embedding, LayerNorm, array
from algorithms.model.mixer import MixerMetadata
from tests.cases import by, random_theta
from tests.mixing_lines import Convolution, Neighbors, Ordered, Pooled
from tests.own_lines import loops
from tests.own_lines.differential import DIFFERENTIAL
from tests.own_lines.experts import EXPERTS
from tests.own_lines.latent import LATENT
from tests.own_lines.retention import Retention
from tests.own_lines.sinks import SINKS
from tests.own_lines.slopes import SLOPES

pytestmark = pytest.mark.sampled(1, tests=5)

OWN = {"EXPERTS": EXPERTS, "SINKS": SINKS, "DIFFERENTIAL": DIFFERENTIAL, "LATENT": LATENT, "SLOPES": SLOPES}
OWN["ORDERED"] = alg.PAPER.but(attention=Ordered(biases=False))
SIZES = {"N_V": 17, "l_max": 23, "L": 2, "H": 6, "H_kv": 3, "d_e": 10, "d_mlp": 11, "d_attn": 4, "d_mid": 5}
own = pytest.mark.parametrize("name", OWN)


def config_of(variant):
    return alg.DTransformerConfig(**SIZES, variant=variant)


@functools.cache
def theta_of(name):
    return random_theta(config_of(OWN[name]))


def of_layer(tree, l):
    return jax.tree.map(lambda a: jax.device_put(np.asarray(a)[l]), tree)


def as_numpy(tree):
    return jax.tree.map(lambda a: np.asarray(a, np.float64), tree)


def attention_of(line, X, W, mask, implementation):
    t = np.arange(X.shape[-1])
    return by(implementation, line.whole, X, W, mask, MixerMetadata(t))[0]


def layer_of(name):
    """The line, its parameters in a layer, the code as a function of X and W, and its loops."""
    variant, layers = OWN[name], theta_of(name).layers
    line = variant.mlp if name == "EXPERTS" else variant.attention
    by_loops = functools.partial(getattr(loops, name.lower()), line)
    if name == "EXPERTS":
        W = of_layer(layers.mlp, 1)
        return W, lambda X, W, how: by(how, line, X, W, activation="silu"), by_loops
    W = of_layer(layers.attention, 1)
    mask = np.triu(np.ones((7, 7), bool))

    def code(X, W, how):
        return attention_of(line, X, W, jnp.asarray(mask), how)

    return W, code, lambda X, W: by_loops(X, X, W, mask)


WITHOUT_WEIGHTS = ("DIFFERENTIAL", "LATENT", "SLOPES")  # of their own, so that every kernel can serve


@pytest.mark.parametrize(
    ("name", "how"),
    [*itertools.product(OWN, ("auto", "paper")), *itertools.product(WITHOUT_WEIGHTS, ("dense", "blockwise"))],
)
def test_values_are_those_of_loops(name, how):
    W, code, by_loops = layer_of(name)
    X = np.random.default_rng(1).normal(size=(10, 2, 7))
    Y = jax.jit(code, static_argnums=2)(jnp.asarray(X), W, how)
    for b in range(2):
        np.testing.assert_allclose(Y[:, b], by_loops(X[:, b], as_numpy(W)), rtol=0, atol=1e-11)


@own
def test_gradients_are_those_of_loops(name):
    """By finite differences of the loops, for every parameter and for X."""
    W, code, by_loops = layer_of(name)
    rng = np.random.default_rng(2)
    X, E = rng.normal(size=(10, 7)), rng.normal(size=(10, 7))
    point = {"X": X, "W": as_numpy(W)}
    gradient = jax.jit(jax.grad(lambda p: (code(p["X"], p["W"], "auto") * E).sum()))({"X": jnp.asarray(X), "W": W})
    paths = jax.tree_util.tree_leaves_with_path(jax.tree.map(np.asarray, gradient))
    leaves, tree = jax.tree.flatten(point)
    for i, (path, g) in enumerate(paths):
        v, epsilon = rng.normal(size=g.shape), 1e-5

        def loss(step, i=i, v=v):
            moved = jax.tree.unflatten(tree, [*leaves[:i], leaves[i] + step * v, *leaves[i + 1 :]])
            return (by_loops(moved["X"], moved["W"]) * E).sum()

        expected = (loss(epsilon) - loss(-epsilon)) / (2 * epsilon)
        np.testing.assert_allclose((g * v).sum(), expected, rtol=1e-6, atol=1e-7, err_msg=str(path))


def test_a_token_with_nothing_to_attend_to_takes_the_sink():
    line, W = SINKS.attention, of_layer(theta_of("SINKS").layers.attention, 0)
    X, mask = jnp.ones((10, 3)), jnp.zeros((3, 3), bool)

    @jax.jit
    def pulled(X, W):
        Y, pullback = jax.vjp(lambda X, W: attention_of(line, X, W, mask, "auto"), X, W)
        return Y, pullback(jnp.ones_like(Y))

    Y, gradients = pulled(X, W)
    assert np.all(np.asarray(Y) == 0)
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(gradients))


@pytest.mark.end_to_end
def test_names_are_those_of_the_tags():
    x = jnp.array([3, 1, 4, 1, 5])
    _, seen = record(alg.d_transformer, "A_sink", "A")(x, theta_of("SINKS"))
    assert seen["A_sink"].shape == (2, 6, 6, 5)
    np.testing.assert_array_equal(seen["A_sink"][:, :, :-1], seen["A"])
    np.testing.assert_allclose(seen["A_sink"].sum(2), 1)
    _, seen = record(alg.d_transformer, "router", "G")(x, theta_of("EXPERTS"))
    assert seen["router"].shape == seen["G"].shape == (2, 4, 5)
    assert jnp.all((seen["G"] > 0).sum(1) == 2)
    np.testing.assert_allclose(seen["G"].sum(1), 1)
    assert record(alg.d_transformer, "D")(x, theta_of("DIFFERENTIAL"))[1]["D"].shape == (2, 6, 5, 5)
    assert record(alg.d_transformer, "c")(x, theta_of("LATENT"))[1]["c"].shape == (2, 8, 5)


def test_a_value_of_ones_own_can_be_changed():
    x, theta = jnp.array([3, 1, 4, 1, 5]), theta_of("EXPERTS")
    closed = intervene(alg.d_transformer, {at("G", layer=1): 0.0})(x, theta)
    mlp = jax.tree.map(lambda a: a.at[1].set(0), theta.layers.mlp.experts)
    without = theta._replace(layers=theta.layers._replace(mlp=theta.layers.mlp._replace(experts=mlp)))
    np.testing.assert_allclose(closed, alg.d_transformer(x, without))
    _, _, by_G = gradients(lambda x, theta: alg.d_transformer(x, theta)[3, -1], "G")(x, theta)
    assert by_G["G"].shape == (2, 4, 5)
    assert jnp.any(by_G["G"] != 0)


@pytest.mark.end_to_end
def test_initial_parameters():
    for name, variant in OWN.items():
        theta = alg.init_d_transformer(jax.random.key(0), config_of(variant))
        assert jax.tree.structure(theta) == jax.tree.structure(theta_of(name))
        counted = alg.count_params(alg.init_d_transformer, config_of(variant))
        assert counted == sum(a.size for a in jax.tree.leaves(theta))
    W = alg.init_d_transformer(jax.random.key(0), config_of(DIFFERENTIAL)).layers.attention
    assert jnp.all(W.gamma == 1)
    assert 0.05 < jnp.std(W.vectors) < 0.15
    experts = alg.init_d_transformer(jax.random.key(0), config_of(EXPERTS)).layers.mlp.experts
    assert experts.W_mlp1.shape == (2, 4, 11, 10)
    bound = (6 / (10 + 11)) ** 0.5
    assert 0.9 * bound < jnp.abs(experts.W_mlp1).max() <= bound  # of each expert's matrix, not of all together


class ScaledParams(NamedTuple):
    attention: alg.MHAttentionParams
    factor: Array | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scaled(Attention):
    """An attention whose output has a factor, which parameters may lack."""

    def shapes(self):
        return ScaledParams(super().shapes(), array("", start=2.0, may_lack=True))

    def inputs(self, at):
        X, Z, W = super().inputs(at._replace(W=at.W.attention))
        factor = 1.0 if at.W.factor is None else at.W.factor
        return X, Z, W._replace(W_o=factor * W.W_o, b_o=factor * W.b_o)

    def read(self, Q, K, V, at):
        return super().read(Q, K, V, at._replace(W=at.W.attention))


def test_a_parameter_may_be_absent():
    theta = alg.init_d_transformer(jax.random.key(0), config_of(alg.PAPER.but(attention=Scaled())), dtype=jnp.float64)
    W = theta.layers.attention
    assert jnp.all(W.factor == 2)
    halved = W.attention._replace(W_o=2 * W.attention.W_o, b_o=2 * W.attention.b_o)
    absent = theta._replace(layers=theta.layers._replace(attention=ScaledParams(halved, None)))
    x = jnp.array([3, 1, 4])
    np.testing.assert_allclose(alg.d_transformer(x, absent), alg.d_transformer(x, theta))


@pytest.mark.end_to_end
def test_a_norm_of_ones_own():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Scale(LayerNorm):
        """γ ⊙ e."""

        def __call__(self, X, norm):
            return X * norm.gamma.reshape(-1, *(1,) * (X.ndim - 1)) + 0 * norm.beta.sum()

    theta = random_theta(config_of(alg.PAPER.but(norm=Scale())))
    _, seen = record(alg.d_transformer, "X@3", "X_tilde@5")(jnp.array([3, 1, 4]), theta)
    np.testing.assert_allclose(seen["X_tilde@5"][0], theta.layers.norm1.gamma[0][:, None] * seen["X@3"])


@pytest.mark.parametrize("batch", [(6, 6), (2, 3, 5), (1, 6)])
def test_what_replaces_the_softmax_reads_the_gates_of_its_own_sequence(batch):
    """Also if there are as many sequences as tokens; and numbers of heads alone serve all of them."""
    theta, rng = random_theta(config_of(alg.PAPER.but(attention=Ordered()))), np.random.default_rng(4)
    x = rng.integers(0, 14, batch)
    found = alg.d_token_losses(jnp.asarray(x), theta)
    each = [alg.d_token_losses(jnp.asarray(row), theta) for row in x.reshape(-1, batch[-1])]
    np.testing.assert_allclose(found, np.reshape(each, batch), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("lines", "method"),
    [
        ({"mlp": Convolution()}, "Convolution.__call__"),
        ({"attention": Neighbors(tap=4, share=0.04)}, "Neighbors.read"),
        ({"norm": Pooled()}, "Pooled.__call__"),
    ],
)
def test_lines_that_mix_columns_do_not_read_packed_documents(lines, method):
    """They would read each other; one document a row is right."""
    theta, x = random_theta(config_of(alg.PAPER.but(**lines))), jnp.array([3, 1, 4, 1, 5])
    alone = alg.d_token_losses(x, theta)
    padded = alg.d_token_losses(jnp.pad(x, (0, 2)), theta, length=5) if "mlp" in lines else alone
    np.testing.assert_allclose(padded[:5], alone, atol=1e-12)
    for f in (alg.d_token_losses, alg.d_hidden_state, alg.d_logits):
        packed = jax.jit(jax.grad(lambda theta, f=f: f(x, theta, segments=jnp.array([0, 0, 0, 1, 1])).sum()))
        with pytest.raises(ValueError, match=rf"^segments: expected None, since {method} mixes columns, .*; give each"):
            packed(theta)


class Leaking(Retention):
    """One that does not read its mask."""

    def whole(self, X, W, mask, metadata, context=None):
        return super().whole(X, W, alg.UNIDIRECTIONAL, metadata)


@pytest.mark.end_to_end
def test_a_mixer_that_reads_other_documents_is_refused_and_one_that_does_not_reads_them():
    segments, x = jnp.array([0, 0, 0, 1, 1]), jnp.array([3, 1, 4, 1, 5])
    for line in (Retention(), Leaking()):
        theta = random_theta(config_of(alg.PAPER.but(embedding=Embedding(positions=None), attention=line)))
        if type(line) is Retention:
            alone = [*alg.d_token_losses(x[:3], theta), *alg.d_token_losses(x[3:], theta)]
            np.testing.assert_allclose(alg.d_token_losses(x, theta, segments=segments), alone, rtol=0, atol=1e-12)
        else:
            with pytest.raises(ValueError, match=r"^segments: expected None, since Leaking.whole mixes columns, also"):
                alg.d_token_losses(x, theta, segments=segments)
