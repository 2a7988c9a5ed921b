"""On meshes as `jax.make_mesh` makes them, with Explicit axes, functions compute the same, divided as their input."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import algorithms as alg
from algorithms.inside import record
from tests import cases
from tests.algorithms import functions

pytestmark = pytest.mark.sampled(2, tests=4)

B = 8
D = cases.random_theta(alg.DTransformerConfig(L=2, **cases.TINY | {"N_V": 12}))
X = cases.random_tokens(B, 4, n=12)
W = jax.device_put(jax.tree.map(lambda a: np.asarray(a)[0], D.layers.attention))
H = cases.normal(len(W.W_o), B, 4)


def placed(mesh, x=X, spec=("data",)):
    return jax.device_put(x, NamedSharding(mesh, P(*spec)))


def assert_spec(array, spec):
    entries = tuple(jax.typeof(array).sharding.spec)
    assert entries == tuple(spec) + (None,) * (array.ndim - len(spec))


QUICK = ("d_transformer", "ed_token_losses", "token_embedding", "d_inference", "log_loss", "mh_attention")


@pytest.mark.sampled(2, tests=4)
@pytest.mark.parametrize("in_use", [True, False], ids=["mesh in use", "of the arguments"])
@pytest.mark.parametrize("name", cases.quick_of(QUICK, functions.BATCHED))
def test_values_and_their_shardings(name, in_use):
    mesh, given = jax.make_mesh((4, 2), ("data", "model")), functions.of_batch(name, (B,))
    axes, returned = functions.batch_axes(name), functions.returned_axes(name)
    divided = {n: placed(mesh, a, (None,) * axes[n] + ("data",)) for n, a in given.items()}
    function = functools.partial(functions.called, name)
    expected = function(**given)
    if in_use:
        with jax.set_mesh(mesh):
            actual = jax.jit(function)(**divided)
    else:
        actual = function(**divided)
    cases.assert_trees_close(jax.device_get(actual), jax.device_get(expected), 1e-10)
    assert_spec(actual, ()) if returned is None else jax.tree.map(
        lambda a, axis: assert_spec(a, (None,) * axis + ("data",)), actual, returned
    )


def losses(x, D, how="auto"):
    return alg.d_token_losses(x, D, implementation=how)


TRANSFORMED = {
    "second order": lambda x, D: jax.grad(
        lambda D: (jax.grad(lambda D: losses(x, D, "paper").mean())(D).W_e ** 2).sum()
    )(D),
    "a sequence at a time": lambda x, D: jax.vmap(lambda x: alg.d_transformer(x, D))(x),
    "gradients of a sequence": lambda x, D: jax.vmap(lambda x: jax.grad(lambda D: losses(x, D).mean())(D).W_e)(x),
}


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", TRANSFORMED)
def test_transformations(name):
    function = TRANSFORMED[name]
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    with jax.set_mesh(mesh):
        actual = jax.jit(function)(placed(mesh), jax.tree.map(lambda array: placed(mesh, array, ()), D))
    cases.assert_trees_close(jax.device_get(actual), jax.device_get(function(X, D)), 1e-10)


@pytest.mark.sampled(1, tests=4)
@pytest.mark.parametrize(
    ("attention", "spec"),
    [
        (lambda X: alg.mh_attention(X, X, W, alg.UNIDIRECTIONAL), P(None, "data", "context")),
        (
            lambda X: alg.attention(X, X, jax.tree.map(lambda a: a[0], W.heads), alg.banded(2)),
            P(None, "data", "context"),
        ),
        (lambda X: alg.layer_norm(X, *jnp.ones((2, len(X)))), P(None, "data", "context")),
    ],
)
def test_tokens_that_are_divided(attention, spec):
    mesh = jax.make_mesh((2, 2, 2), ("data", "context", "model"))
    with jax.set_mesh(mesh):
        actual = attention(placed(mesh, H, (None, "data", "context")))
    cases.assert_close(jax.device_get(actual), attention(H), 1e-12)
    assert_spec(actual, spec)


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("types", [(AxisType.Explicit, AxisType.Auto), (AxisType.Auto, AxisType.Explicit)])
def test_axes_of_type_explicit_beside_auto(types):
    def value_and_gradient(x):
        return jax.jit(jax.value_and_grad(lambda D: (alg.d_token_losses(x, D) ** 2).mean()))(D)

    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=types)
    with jax.set_mesh(mesh):
        actual = value_and_gradient(placed(mesh))
    cases.assert_trees_close(jax.device_get(actual), jax.device_get(value_and_gradient(X)), 1e-10)


@pytest.mark.sampled(1, tests=4)
@pytest.mark.parametrize("manual", [{"data"}, {"data", "model"}])
def test_axes_of_type_explicit_beside_manual(manual):
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    with jax.set_mesh(mesh):
        options = {"in_specs": P("data"), "out_specs": P(None, "data"), "axis_names": manual}
        actual = jax.jit(jax.shard_map(lambda x: alg.d_transformer(x, D), **options))(placed(mesh))
    cases.assert_close(jax.device_get(actual), alg.d_transformer(X, D), 1e-10)


@pytest.mark.end_to_end
def test_parameters_come_back_divided_as_they_were_given():
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    theta = D._replace(W_e=placed(mesh, D.W_e, (None, "model")))
    actual = alg.d_training(placed(mesh), theta, N_epochs=1, eta=0.1)
    assert_spec(actual.W_e, P(None, "model"))
    cases.assert_trees_close(jax.device_get(actual), alg.d_training(X, D, N_epochs=1, eta=0.1), 1e-10)


@pytest.mark.end_to_end
def test_recorded_values():
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    with jax.set_mesh(mesh):
        _, seen = record(alg.d_transformer, "A")(placed(mesh), D)
    cases.assert_close(jax.device_get(seen["A"]), record(alg.d_transformer, "A")(X, D)[1]["A"], 1e-12)
