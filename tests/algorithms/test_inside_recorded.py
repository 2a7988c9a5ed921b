"""What is recorded is a dictionary and a pytree, and shows itself, as the list of what can be recorded does."""

import pickle

import jax
import pytest
from jax.sharding import PartitionSpec as P

from algorithms import d_transformer
from algorithms.inside import Recorded, at, record
from tests import cases
from tests.algorithms.test_inside import D, X

NAMES = ("X@8", "A", at("X@6", layer=1))
KEYS = ("A", "X@6[layer=1]", "X@8")


def of(x):
    return record(d_transformer, *NAMES)(x, D)[1]


def through_scan(x):
    return jax.tree.map(lambda a: a[0], jax.lax.scan(lambda _, x: (None, of(x)), None, x[None])[1])


def through_branches(x):
    other = Recorded({name: 2 * value for name, value in reversed(of(x).items())})  # of the same names in another order
    return jax.lax.cond(x[0] >= 0, lambda: of(x), lambda: other)


def through_grad(x):
    return jax.grad(record(lambda theta: d_transformer(x, theta)[0, 0], *NAMES), has_aux=True)(D)[1]


def through_shard_map(x):
    mesh = jax.make_mesh((1,), ("data",), devices=jax.devices()[:1])
    f = jax.shard_map(of, mesh=mesh, in_specs=P(), out_specs=Recorded(dict.fromkeys(KEYS, P())))
    return jax.jit(f)(x)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "f",
    [
        jax.jit(of),
        lambda x: jax.tree.map(lambda a: a[0, 0], jax.vmap(jax.vmap(of))(x[None, None])),
        through_scan,
        through_branches,
        through_grad,
        through_shard_map,
        lambda x: pickle.loads(pickle.dumps(jax.device_get(of(x)))),
    ],
)
def test_it_stays_what_it_is_through(f):
    found, expected = f(X), of(X)
    assert type(found) is Recorded
    assert set(found) == set(KEYS)
    cases.assert_trees_close(found, expected)


def test_it_is_a_dictionary_whose_leaves_have_its_names():
    seen = of(X)
    assert isinstance(seen, dict)
    assert seen[at("X@6", layer=1)] is seen["X@6[layer=1]"]
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(seen)[0]]
    assert jax.tree.leaves(seen)[2] is seen["X@8"]
    assert [jax.tree_util.keystr(path) for path in paths] == [f"[{name!r}]" for name in KEYS]
    assert {**seen} == dict(seen)
