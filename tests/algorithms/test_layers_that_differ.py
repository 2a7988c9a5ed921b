"""Layers whose parameters have different shapes: two recurrences to one attention, each a stack of its own."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import algorithms as alg
from algorithms.inside import at, intervene, record
from algorithms.layers import lines_of
from algorithms.lines import Mixer
from algorithms.model.theta import every_layer, places
from tests.cases import assert_close, assert_trees_close, by, random_theta
from tests.own_lines import loops
from tests.own_lines.retention import HYBRID, Retention

pytestmark = pytest.mark.sampled(1, tests=4)

SIZES: Any = {"N_V": 13, "l_max": 29, "H": 2, "d_e": 8, "d_mlp": 5}
X = np.random.default_rng(0).integers(0, 10, (2, 7))


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
@pytest.mark.parametrize("L", [2, 7])
def test_values_are_those_of_single_layers(L):
    theta = model(L)
    expected = one_by_one(X, theta, L)
    assert_close(alg.d_transformer(X, theta), expected)
    assert_close(alg.d_transformer(X, theta, implementation="paper"), expected)


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
def test_gradients_do_not_depend_on_what_is_computed_again():
    theta = model(4)

    def gradient(**options):
        return jax.jit(jax.grad(lambda theta: alg.d_token_losses(X, theta, **options).sum()))(theta)

    expected = gradient()
    assert all(np.isfinite(g).all() and np.any(np.asarray(g) != 0) for g in jax.tree.leaves(expected))
    for options in ({"remat": True}, {"unroll": True}):
        assert_trees_close(gradient(**options), expected)


@pytest.mark.end_to_end
def test_documents_and_padding_are_each_by_themselves():
    theta = model(4)
    segments = jnp.asarray([[1, 1, 1, 2, 2, 2, 2]])
    packed = alg.d_hidden_state(X[:1], theta, segments=segments)
    assert_close(packed[:, :, 3:], alg.d_hidden_state(X[:1, 3:], theta))
    padded = alg.d_hidden_state(X, theta, length=np.array([7, 4]))
    assert_close(padded[:, 1:, :4], alg.d_hidden_state(X[1:, :4], theta))


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"shared_layers: expected 1, since layers that share parameters cannot"):
        HYBRID.but(shared_layers=3)
    config = alg.EDTransformerConfig(L_enc=1, L_dec=1, variant=HYBRID, **SIZES)
    with pytest.raises(ValueError, match=r"variant\.attention: expected mixers that read a context in Algorithm 8"):
        alg.init_ed_transformer(jax.random.key(0), config)
    theta = model(4)
    with pytest.raises(ValueError, match=r"theta\.layers: expected 2 of the stacks .*, got one; use the variant that"):
        alg.d_transformer(X, theta._replace(layers=theta.layers[0]))
    wrong = theta.layers[0].attention._replace(W_v=jnp.zeros((2, 7, 5)))
    wrong = theta._replace(layers=(theta.layers[0]._replace(attention=wrong), *theta.layers[1:]))
    with pytest.raises(ValueError, match=r"theta\.layers\[0\]\.attention\.W_v"):
        alg.d_transformer(X, wrong)


@pytest.mark.parametrize("method", ["whole", "step", "begin"])
def test_a_method_that_a_mixer_lacks_is_named(method):
    """Without steps it trains; what needs them says so."""

    class Short(Retention):
        pass

    setattr(Short, method, getattr(Mixer, method))
    config = alg.DTransformerConfig(L=1, variant=alg.PAPER.but(attention=Short()), **SIZES)
    theta = random_theta(config)
    if method != "whole":
        assert alg.d_logits(X, theta).shape == (13, 2, 7)
    with pytest.raises(NotImplementedError, match=f"Short.{method}: expected a method of its own, got none; define it"):
        alg.d_logits(X, theta) if method == "whole" else alg.read_tokens(theta, alg.empty_cache(config, 2), X, 0)
