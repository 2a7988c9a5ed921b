"""The objectives' losses against −log of the probabilities that Algorithms 8, 9 and 10 give, sequence by sequence."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import d_transformer, e_encoding, e_transformer, ed_transformer
from tests import cases
from tests.training_cases import data_for, settings_for
from training.loop.train_step import batch_loss
from training.tasks import TASKS
from training.tasks.classify import class_probabilities, init_classifier
from training.tasks.models import model_config, model_shapes

N_V = 17


def model(task, **settings):
    """Settings, data, and parameters in float64 none of which is 0 or 1."""
    settings = settings_for(task, **settings)
    data = data_for(settings)
    config = model_config(settings, N_V)
    shapes = model_shapes(task, config, N_C=len(data.labels))
    return settings, data, config, cases.random_like(shapes, scale=0.3)


def loss_of(task, config, **options):
    """The compiled loss (params, batch, keys)."""
    return jax.jit(functools.partial(TASKS[task].objective.loss, variant=config.variant, **options))


def nats_by_sequence(task, theta, batch, r):
    """−log P of what sequence r of a batch has to predict, and whether the likeliest was right."""
    if task == "d":
        l = int(batch["length"][r])
        x = jnp.asarray(batch["x"][r, :l])
        P, targets, columns = d_transformer(x, theta), x[1:], np.arange(l - 1)
    elif task == "e":
        l = int(batch["length"][r])
        P = e_transformer(jnp.asarray(batch["x_masked"][r, :l]), theta)
        columns = np.flatnonzero(batch["loss_mask"][r])
        targets = batch["x"][r, columns]
    elif task == "ed":
        l_z, l_x = int(batch["z_length"][r]), int(batch["x_length"][r])
        x = jnp.asarray(batch["x"][r, :l_x])
        P, targets, columns = ed_transformer(jnp.asarray(batch["z"][r, :l_z]), x, theta), x[1:], np.arange(l_x - 1)
    else:
        l = int(batch["length"][r])
        e = e_encoding(jnp.asarray(batch["x"][r, :l]), theta.encoder)[:, 0]
        logits = np.asarray(theta.W_c @ e + theta.b_c)
        P = jnp.asarray(np.exp(logits) / np.exp(logits).sum())[:, None]
        targets, columns = batch["label"][r : r + 1], np.arange(1)
    p = np.asarray(P)[:, columns]
    return -np.log(p[np.asarray(targets), np.arange(len(columns))]), p.argmax(0) == np.asarray(targets)


@pytest.mark.parametrize("task", TASKS)
def test_loss_is_minus_log_of_the_algorithms_probabilities(task):
    rows = {"rows": "chunks"} if task == "d" else {}
    _, data, config, theta = model(task, **rows)
    batch = data.train.batch(0)
    batch = {name: array[:3] for name, array in batch.items()}
    expected = [nats_by_sequence(task, theta, batch, r) for r in range(3)]
    nats = np.concatenate([n for n, _ in expected])
    np.testing.assert_allclose(loss_of(task, config)(theta, batch, None), nats.sum(), rtol=1e-10)
    totals = jax.jit(functools.partial(TASKS[task].objective.totals, variant=config.variant))(theta, batch)
    np.testing.assert_allclose(totals.nats, nats.sum(), rtol=1e-10)
    assert (int(totals.weight), int(totals.correct)) == (len(nats), sum(int(c.sum()) for _, c in expected))


@pytest.mark.parametrize("task", TASKS)
def test_padding_and_empty_rows_count_nothing(task):
    settings, data, config, theta = model(
        task, batch_size=6 if task == "ed" else 5, **({"rows": "chunks"} if task == "d" else {})
    )
    *_, batch = data.validation.evaluation_batches()
    other = dict(batch)
    for tokens, length in (("x", "length"), ("x_masked", "length"), ("z", "z_length"), ("x", "x_length")):
        if tokens in batch and length in batch:
            padding = np.arange(settings.l_max)[None] >= batch[length][:, None]
            assert padding.any()
            assert padding.all(axis=1).any()
            other[tokens] = np.where(padding, 5, batch[tokens])
    value_and_grad = jax.jit(jax.value_and_grad(loss_of(task, config)))
    results = [value_and_grad(theta, b, None) for b in (batch, other)]
    for a, b in zip(*map(jax.tree.leaves, results), strict=True):
        assert np.isfinite(a).all()
        np.testing.assert_array_equal(a, b)
    empty = batch["x_length" if task == "ed" else "length"] == 0
    weights = np.asarray(TASKS[task].objective.weights(batch))
    assert not weights[empty].any()
    assert weights[~empty].any(axis=1).all() or task == "e"


def test_label_smoothing_spreads_its_share_over_all_classes():
    _, data, config, theta = model("classify")
    batch = data.train.batch(0)
    expected = 0.0
    probabilities = jax.jit(functools.partial(class_probabilities, variant=config.variant))
    for x, length, label in zip(batch["x"], batch["length"], batch["label"], strict=True):
        p = probabilities(x, theta, length=length)
        q = np.full(2, 0.1 / 2)
        q[label] += 0.9
        expected -= (q * np.log(np.asarray(p))).sum()
    loss = loss_of("classify", config, label_smoothing=0.1)(theta, batch, None)
    np.testing.assert_allclose(loss, expected, rtol=1e-10)


@pytest.mark.parametrize(("task", "options"), [("d", {"rows": "chunks", "dropout": 0.3}), ("e", {})])
def test_a_batch_in_parts_is_the_batch(task, options):
    settings, data, config, theta = model(task, label_smoothing=0.1, **options)
    object.__setattr__(settings, "dtype", "float64")
    batch = data.train.batch(0)
    assert len(set(np.asarray(TASKS[task].objective.weights(batch)).sum(axis=1))) > 1
    results = []
    for parts in (1, 2):
        object.__setattr__(settings, "accumulation_steps", parts)
        whole = jax.jit(batch_loss(TASKS[task].objective, settings, config.variant))
        results.append(whole(theta, batch, np.int32(3), jax.random.key(0)))
    for a, b in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("task", ["d", *(pytest.param(task, marks=pytest.mark.slow) for task in ("e", "ed"))])
def test_remat_computes_the_same_in_less_memory(task):
    layers = {"L_enc": 6, "L_dec": 6} if task == "ed" else {"L": 6}
    settings, data, config, theta = model(task, dropout=0.3, d_mlp=64, **layers)
    object.__setattr__(settings, "dtype", "float64")
    arguments = theta, data.train.batch(0), np.int32(3), jax.random.key(0)
    results, temporary = [], []
    for remat in (False, True):
        object.__setattr__(settings, "remat", remat)
        whole = jax.jit(batch_loss(TASKS[task].objective, settings, config.variant)).lower(*arguments).compile()
        results.append(whole(*arguments))
        temporary.append(whole.memory_analysis().temp_size_in_bytes)
    for a, b in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
    assert temporary[1] < 0.5 * temporary[0]


def test_dropout_depends_on_the_step_and_on_the_sequence():
    settings, data, config, theta = model("classify", dropout=0.5)
    batch = {name: np.repeat(array[:1], settings.batch_size, axis=0) for name, array in data.train.batch(0).items()}
    whole = jax.jit(batch_loss(TASKS["classify"].objective, settings, config.variant))
    losses = [float(whole(theta, batch, np.int32(step), jax.random.key(0))[0]) for step in (0, 1, 0)]
    assert losses[0] == losses[2] != losses[1]
    key = jax.random.key(1)
    keys = jnp.stack([key, key, jax.random.key(2), key])
    X = jax.jit(functools.partial(TASKS["classify"].objective.columns, variant=config.variant))(theta, batch, keys).X
    np.testing.assert_array_equal(X[0], X[1])
    assert np.abs(X[0] - X[2]).max() > 0.01


def test_a_classifier_begins_with_equal_probabilities():
    _, _, config, _ = model("classify")
    params = init_classifier(jax.random.key(0), config, N_C=3)
    p = class_probabilities(jnp.array([15, 1, 2]), params, variant=config.variant)
    np.testing.assert_allclose(p, np.full(3, 1 / 3), rtol=1e-6)
