"""Induction heads: the tokens that repeat, what heads are worth, and the models of the example."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from docs.examples import induction_heads as example
from tests import cases
from training.interpretability import induction


@pytest.fixture(scope="module")
def theta():
    return cases.random_theta(example.CONFIG, dtype=jnp.float32)


@pytest.fixture(scope="module")
def repeated():
    return example.repeating(jax.random.key(3))


def test_what_repeats_can_be_told_and_nothing_else(repeated):
    x, repeats = np.asarray(repeated.x), np.asarray(repeated.repeats)
    for row, of in zip(x, repeats, strict=True):
        period = next(p for p in range(12, 33) if (row[p:] == row[:-p]).all())
        assert of.tolist() == [t > period for t in range(1, 64)]


def test_sequences_stand_there_twice():
    drawn = np.arange(6).reshape(2, 3) + 4
    tokens = induction.twice(drawn, np.array([1]))
    assert tokens.x.tolist() == [[1, 4, 5, 6, 4, 5, 6], [1, 7, 8, 9, 7, 8, 9]]
    expected = [False] * 4 + [True] * 2  # the second 4 follows 6, which occurs for the first time
    assert tokens.repeats.tolist() == [expected] * 2


def test_losses_are_those_of_the_tokens(theta, repeated):
    """A model that always predicts one distribution, which its bias-free unembedding of a constant column has."""
    theta = jax.tree.map(np.zeros_like, theta)
    norm = theta.norm._replace(beta=np.ones_like(theta.norm.beta))
    W_u = (np.outer(np.arange(48.0), np.ones(64)) / 640).astype(theta.W_u.dtype)
    theta = jax.device_put(theta._replace(norm=norm, W_u=W_u))
    log_p = np.arange(48) / 10 - np.log(np.exp(np.arange(48) / 10).sum())
    of_targets = -log_p[np.asarray(repeated.x[:, 1:])]
    first, again = induction.losses(theta, repeated)
    repeats = np.asarray(repeated.repeats)
    np.testing.assert_allclose([first, again], [of_targets[~repeats].mean(), of_targets[repeats].mean()], rtol=1e-5)


def test_without_heads_is_with_their_output_weights_at_0(theta, repeated):
    heads = jnp.array([[0, 1], [1, 3]])
    attention = theta.layers.attention
    cut = attention._replace(W_o=attention.W_o.at[0, :, 16:32].set(0).at[1, :, 48:].set(0))
    expected = induction.losses(theta._replace(layers=theta.layers._replace(attention=cut)), repeated)[1]
    np.testing.assert_allclose(induction.loss_without(theta, repeated, heads), expected, rtol=1e-5)
    assert abs(expected - induction.losses(theta, repeated)[1]) > 1e-3


def test_heads_by_score_and_as_many_others_of_their_layers():
    scores = jnp.array([[0.1, 0.3, 0.2], [0.9, 0.5, 0.0], [0.0, 0.0, 0.0]])
    heads = induction.induction_heads(scores, 0.3)
    assert heads.tolist() == [[1, 0], [1, 1], [0, 1]]
    drawn = [induction.others(heads, (3, 3), np.random.default_rng(i)) for i in range(20)]
    found = {tuple(head) for one in drawn for head in one.tolist()}
    assert found == {(0, 0), (0, 2), (1, 2)}
    assert all(len({tuple(head) for head in one.tolist()}) == 3 for one in drawn)
    few = induction.others(np.array([[0, 0], [0, 1]]), (2, 2), np.random.default_rng(0))
    assert sorted(few.tolist()) == [[1, 0], [1, 1]]
    with pytest.raises(ValueError, match="heads: expected at most half of the 4 heads, got 3"):
        induction.others(np.array([[0, 0], [0, 1], [1, 1]]), (2, 2), np.random.default_rng(0))


@pytest.mark.end_to_end
@pytest.mark.usefixtures("x32")
def test_the_example_draws_its_pictures(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    example.main(1, 25)
    assert "2 layers, seed 0: loss on repeats 3." in capsys.readouterr().out
    for name in ("induction.png", "circuits.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
