"""What is recorded is a dictionary and a pytree, and shows itself, as the list of what can be recorded does."""

import copy
import pickle

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from algorithms import d_transformer
from algorithms.inside import Recorded, at, gradients, intermediates, record
from tests import cases
from tests.algorithms.test_inside import D, X

NAMES = ("X@8", "A", at("X@6", layer=1))
KEYS = ("A", "X@6[layer=1]", "X@8")


def of(x):
    return record(d_transformer, *NAMES)(x, D)[1]


def through_scan(x):
    return jax.tree.map(lambda a: a[0], jax.lax.scan(lambda _, x: (None, of(x)), None, x[None])[1])


def through_carry(x):
    return jax.lax.fori_loop(0, 2, lambda _, seen: jax.tree.map(lambda a, b: a + b, seen, of(x)), zeros(of(x)))


def through_branches(x):
    other = Recorded({name: 2 * value for name, value in reversed(of(x).items())})  # of the same names in another order
    return jax.lax.cond(x[0] >= 0, lambda: of(x), lambda: other)


def zeros(seen):
    return jax.tree.map(jnp.zeros_like, seen)


def through_grad(x):
    return jax.grad(record(lambda theta: d_transformer(x, theta)[0, 0], *NAMES), has_aux=True)(D)[1]


def as_what_is_differentiated_by(x):
    """The gradient of a function of it is one, too."""
    return jax.grad(lambda seen: sum(jnp.square(a).sum() for a in seen.values()) / 2)(of(x))


def through_shard_map(x):
    mesh = jax.make_mesh((1,), ("data",), devices=jax.devices()[:1])
    f = jax.shard_map(of, mesh=mesh, in_specs=P(), out_specs=Recorded(dict.fromkeys(KEYS, P())))
    return jax.jit(f)(x)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("f", "times"),
    [
        (jax.jit(of), 1),
        (lambda x: jax.vmap(jax.vmap(of))(x[None, None])["A"].shape and of(x), 1),
        (lambda x: jax.tree.map(lambda a: a[0, 0], jax.vmap(jax.jit(jax.vmap(of)))(x[None, None])), 1),
        (through_scan, 1),
        (through_carry, 2),
        (through_branches, 1),
        (through_grad, 1),
        (as_what_is_differentiated_by, 1),
        (through_shard_map, 1),
        (lambda x: jax.jit(zeros)(of(x)), 0),
        (jax.checkpoint(of), 1),
        (lambda x: jax.device_put(of(x)), 1),
        (lambda x: copy.deepcopy(of(x)), 1),
        (lambda x: pickle.loads(pickle.dumps(jax.device_get(of(x)))), 1),
    ],
)
def test_it_stays_what_it_is_through(f, times):
    found, expected = f(X), of(X)
    assert type(found) is Recorded
    assert set(found) == set(KEYS)
    cases.assert_trees_close(found, jax.tree.map(lambda a: times * a, expected))


def test_it_is_a_dictionary_whose_leaves_have_its_names():
    seen = of(X)
    assert isinstance(seen, dict)
    assert seen[at("X@6", layer=1)] is seen["X@6[layer=1]"]
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(seen)[0]]
    assert jax.tree.leaves(seen)[2] is seen["X@8"]
    assert [jax.tree_util.keystr(path) for path in paths] == [f"[{name!r}]" for name in KEYS]
    assert {**seen} == dict(seen)


def test_gradients_are_two_of_them():
    value, seen, gradient = gradients(lambda x: d_transformer(x, D)[0, 0], "A", "X@6")(X)
    assert value.shape == ()
    assert type(seen) is type(gradient) is Recorded
    assert jax.tree.structure(seen) == jax.tree.structure(gradient)


def test_what_can_be_recorded_is_listed_with_its_shape_and_line():
    found = {i.name: i for i in intermediates(d_transformer)(X, D)}
    assert found["A"].shape == (2, 3, 6, 6)
    assert found["A"].lines == "return of Algorithm 4 in line 2 of Algorithm 5 in line 6 of Algorithm 10"
