"""The gated delta rule: in chunks, token by token and by steps, against loops of NumPy."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import UNIDIRECTIONAL, documents, padding
from algorithms.lines import GatedDelta, Given, RMSNorm
from algorithms.model import delta
from tests.cases import assert_close, assert_trees_close
from training.crosscheck.oracle.lines import gated_delta

pytestmark = pytest.mark.sampled(1, tests=4)

LINE, D_E, B, L = GatedDelta(n=4, n_keys=2, d_key=5, d_value=3, norm=RMSNorm(epsilon=1e-3)), 7, 2, 13
NUMBERS = jnp.array([[1, 1, 1, 1, 1, 1, 2, 2, 3, 3, 3, 3, 3], [5, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6]])
RULES = ("paper", "auto")


def parameters(line=LINE, seed=0) -> Any:
    sizes, rng = {**line.sizes(), "d_e": D_E}, np.random.default_rng(seed)
    sizes["N_delta*d_delta_v"] = line.n * line.d_value

    def drawn(shape):
        return jnp.asarray(0.6 * rng.standard_normal([sizes[axis] for axis in shape.axes.split()]) + shape.start)

    return jax.tree.map(drawn, line.shapes())


W, X = parameters(), jnp.asarray(np.random.default_rng(1).standard_normal((D_E, B, L)))


def by_loops(X, mask, line=LINE, W=W):
    dense = np.broadcast_to(mask.dense(X.shape[-1], X.shape[-1]), (B, *(X.shape[-1],) * 2))
    arrays = SimpleNamespace(**{name: np.asarray(a) for name, a in W._asdict().items()})
    options = {"epsilon": line.norm.epsilon}
    return np.stack([gated_delta(np.asarray(X[:, b]), arrays, dense[b], options) for b in range(B)], axis=1)


def given(implementation="auto", until=None):
    return Given(jnp.arange(L), implementation, until=until)


@pytest.fixture(params=[5, 64])
def chunk(request, monkeypatch):
    monkeypatch.setattr(delta, "CHUNK", request.param)


@pytest.mark.parametrize("implementation", RULES)
@pytest.mark.parametrize("mask", [UNIDIRECTIONAL, UNIDIRECTIONAL & documents(NUMBERS)], ids=["one", "documents"])
def test_the_rule_is_that_of_loops(implementation, mask, chunk):
    Y, _ = LINE.whole(X, W, mask, given(implementation))
    assert_close(Y, by_loops(X, mask), 1e-10)


def test_gradients_of_chunks_are_those_of_tokens(chunk):
    mask = UNIDIRECTIONAL & documents(NUMBERS)

    def score(W, X, implementation):
        Y, _ = LINE.whole(X, W, mask, given(implementation))
        return (Y * jnp.sin(jnp.arange(Y.size)).reshape(Y.shape)).sum()

    assert_trees_close(*(jax.grad(score, (0, 1))(W, X, rule) for rule in RULES), 1e-9)


def test_steps_continue_what_was_kept(chunk):
    """Prompts of different lengths, also shorter than the convolution."""
    lengths, whole = np.array([9, 2]), by_loops(X, UNIDIRECTIONAL)
    _, kept = LINE.whole(X[..., :10], W, UNIDIRECTIONAL & padding(jnp.asarray(lengths)), given(until=lengths))
    for i in range(4):
        x = jnp.stack([X[:, b, lengths[b] + i] for b in range(B)], axis=1)
        y, kept = LINE.step(x, W, kept, given())
        assert_close(y, np.stack([whole[:, b, lengths[b] + i] for b in range(B)], axis=1), 1e-10)


def test_steps_begin_with_nothing():
    kept = LINE.begin(W, B)
    for t in range(6):
        y, kept = LINE.step(X[..., t], W, kept, given())
        assert_close(y, by_loops(X[..., :6], UNIDIRECTIONAL)[..., t], 1e-10)
    _, expected = LINE.whole(X[..., :6], W, UNIDIRECTIONAL, given())
    assert_trees_close(kept, expected, 1e-10)


def test_no_token_reads_a_later_one_or_another_document():
    mask = UNIDIRECTIONAL & documents(NUMBERS[0])
    of_token = jax.grad(lambda X: LINE.whole(X, W, mask, given())[0][:, 0, 9].sum())(X)[:, 0]
    assert np.flatnonzero(np.abs(of_token).max(axis=0) > 1e-12).tolist() == [8, 9]


def test_what_is_refused():
    for mask in (jnp.ones((L, L), bool), padding(3), UNIDIRECTIONAL & padding(3) & np.ones((L, L), bool)):
        with pytest.raises(ValueError, match=r"mask: expected UNIDIRECTIONAL, with padding\(\) and documents\(\)"):
            LINE.whole(X, W, mask, given())
    with pytest.raises(ValueError, match=r"GatedDelta.n_keys: expected a divisor of n = 4, got 3"):
        LINE.but(n_keys=3)
