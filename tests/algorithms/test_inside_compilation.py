"""`record` and the like compile once for each function and names, as ``jax.jit(f)`` does, and keep none alive."""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import d_transformer
from algorithms.inside import at, gradients, intervene, record
from tests import cases
from tests.algorithms.test_inside import BATCH, D, X
from tests.cases import assert_close
from training.interpretability import patching

pytestmark = pytest.mark.sampled(2, tests=2)


class Counted:
    """A function that counts how often it is traced; what is compiled needs no trace."""

    def __init__(self):
        self.traces = 0

    def __call__(self, x, theta, *, tau=1.0):
        self.traces += 1
        return tau * jnp.log(d_transformer(x, theta)[2, ..., -1]).sum()


def doubled(value):
    return 2 * value


X_OTHER, OTHER = jax.device_put(((np.asarray(X) + 1) % 14, jax.tree.map(lambda a: np.asarray(a) + 0.01, D)))
OBSERVERS = {
    "record": lambda f, i: record(f, "A", at("X@8", layer=1)),
    "intervene by numbers": lambda f, i: intervene(f, {at("Y@2", layer=1, head=0): 0.5 * i}),
    "intervene by arrays": lambda f, i: intervene(f, {at("X@8", layer=1, token=0): np.full(11, i + 0.5)}),
    "intervene by a function": lambda f, i: intervene(f, {"X@6": doubled}),
    "gradients": lambda f, i: gradients(f, "A", "X@6"),
    "record of intervene": lambda f, i: record(intervene(f, {at("Y@2", layer=0, head=1): 1.0 + i}), "X@6"),
    "gradients of intervene of intervene": lambda f, i: gradients(
        intervene(intervene(f, {at("Y@2", layer=0, head=1): 1.0 + i}), {"X@6": doubled}), "X_tilde@7"
    ),
}
PATCHING = {
    "activation patching": lambda f, i: patching.activation_patching(f, "X@8", *runs(i)),
    "attribution patching": lambda f, i: patching.attribution_patching(f, "X@8", *runs(i)),
    "path patching": lambda f, i: patching.path_patching(
        f, at("Y@2", layer=0, head=1), at("Q", layer=1, head=0), *runs(i)
    ),
    "causal tracing": lambda f, i: patching.causal_tracing(f, runs(i)[0], slice(0, 2), np.full((11, 2), 1.0 + i)),
}


def runs(i):
    return ((X, D), (X_OTHER, D)) if i else ((X_OTHER, OTHER), (X, OTHER))


CALLS = {name: lambda f, i, of=of: of(f, i)(X, D) for name, of in OBSERVERS.items()} | PATCHING


@pytest.mark.sampled(2, tests=2)
@pytest.mark.parametrize("name", [*OBSERVERS, *(pytest.param(name, marks=pytest.mark.end_to_end) for name in PATCHING)])
def test_made_and_called_again_nothing_is_traced_or_compiled(name):
    f, of = Counted(), CALLS[name]
    expected = [of(lambda *args, f=f: f(*args), i) for i in (0, 1)]  # each a function of its own
    got = [of(f, 0)]
    traces = f.traces
    assert cases.compilations(lambda: got.append(of(f, 1))) == []
    assert f.traces == traces
    for one, other in zip(got, expected, strict=True):
        jax.tree.map(assert_close, one, other)


def test_other_names_shapes_settings_and_observers_have_programs_of_their_own():
    f = Counted()
    values, _ = record(f, "A")(X, D)
    assert_close(record(f, "A")(X, D, tau=2.0)[0], 2 * values)
    assert_close(record(f, "A")(X, D, tau=2)[0], 2 * values)
    assert record(f, "X@8")(X, D)[1]["X@8"].shape == (2, 11, len(X))
    assert record(f, "A")(BATCH, D)[1]["A"].ndim == 5
    assert_close(record(f, "A")(X, D)[0], values)
    changed = intervene(f, {"X@8": doubled})
    _, seen = record(changed, "X@8")(X, D)
    _, plain = record(f, at("X@8", layer=0))(X, D)
    assert_close(seen["X@8"][0], 2 * plain[at("X@8", layer=0)])


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", OBSERVERS)
def test_what_was_compiled_ends_with_the_function(name):
    theta = jnp.arange(3.0)

    def f(x, theta, held=theta):
        return jnp.log(d_transformer(x, theta)[2, ..., -1]).sum() + held.sum()

    CALLS[name](f, 0)
    ended = weakref.ref(f)
    del f
    gc.collect()
    assert ended() is None
