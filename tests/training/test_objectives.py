"""The objectives' losses against −log of the probabilities that Algorithms 8, 9 and 10 give, sequence by sequence."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import d_transformer, e_encoding, e_transformer, ed_transformer
from tests import cases
from tests.training_cases import TOKEN_TASKS, data_for, settings_for
from training.crosscheck.models import family_parameters
from training.loop.train_step import batch_loss
from training.oracle import family
from training.settings import REMAT
from training.tasks import TASKS
from training.tasks.classify import class_probabilities, init_classifier
from training.tasks.models import model_config, model_shapes

pytestmark = pytest.mark.sampled(1)

N_V = 17


def model(task, **settings):
    """Settings, data, and parameters in float64 none of which is 0 or 1."""
    settings = settings_for(task, **settings)
    data = data_for(settings)
    config = model_config(settings, N_V)
    shapes = model_shapes(task, config, N_C=len(data.labels))
    return settings, data, config, cases.random_like(shapes, scale=0.3)


@functools.cache
def case(task):
    """The same, where each sequence has a row, and the compiled loss (params, batch, keys) with its gradient."""
    settings, data, config, theta = model(task, batch_size=6, **({"rows": "chunks"} if task == "d" else {}))
    value_and_grad = jax.value_and_grad(lambda *of: TASKS[task].objective.losses(*of).nats)
    return settings, data, config, theta, jax.jit(value_and_grad)


def probabilities(task, theta, batch):
    """What the algorithms predict, ``[N, B, l]``, what there is to predict, and in which columns, ``[B, l]``."""
    next_tokens = np.roll(batch["x"], -1, axis=1)
    t = np.arange(batch["x"].shape[1])
    if task == "d":
        return d_transformer(batch["x"], theta), next_tokens, t < batch["length"][:, None] - 1
    if task == "e":
        P = e_transformer(batch["x_masked"], theta, length=batch["length"])
        return P, batch["x"], batch["loss_mask"]
    if task == "ed":
        P = ed_transformer(batch["z"], batch["x"], theta, z_length=batch["z_length"])
        return P, next_tokens, t < batch["x_length"][:, None] - 1
    e = np.asarray(e_encoding(batch["x"], theta.encoder, length=batch["length"]))[..., 0]
    powers = np.exp(theta.W_c @ e + theta.b_c[:, None])
    return (powers / powers.sum(axis=0))[..., None], batch["label"][:, None], np.full((len(e.T), 1), True)


@pytest.mark.parametrize("task", cases.quick_of(["d"], TOKEN_TASKS))
def test_loss_is_minus_log_of_the_algorithms_probabilities(task):
    _, data, _, theta, value_and_grad = case(task)
    batch = data.train.batch(0)
    P, targets, predicted = (np.asarray(a) for a in probabilities(task, theta, batch))
    nats = -np.log(np.take_along_axis(P, targets[None], axis=0)[0])[predicted].sum()
    np.testing.assert_allclose(value_and_grad(theta, batch)[0], nats, rtol=1e-10)
    totals = jax.jit(TASKS[task].objective.totals)(theta, batch)
    np.testing.assert_allclose(totals.nats, nats, rtol=1e-10)
    correct = (P.argmax(axis=0) == targets)[predicted].sum()
    assert (int(totals.weight), int(totals.correct)) == (predicted.sum(), correct)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rows", ["packed", "chunks", "windows"])
def test_the_head_for_the_token_after_the_next_has_the_oracles_loss(rows):
    _, data, config, theta = model("d", rows=rows, mtp_weight=0.4, variant="LLAMA")
    batch, expected = data.train.batch(0), 0.0
    losses = jax.jit(TASKS["d"].objective.losses)(theta, batch)
    for r, weights in enumerate(np.asarray(TASKS["d"].objective.weights(batch))):
        documents = batch["segment_ids"][r].tolist() if "segment_ids" in batch else None
        each = family.mtp_losses(batch["x"][r].tolist(), family_parameters(theta), config.variant, documents=documents)
        expected += np.dot(each[:-1], weights[1:])
    np.testing.assert_allclose(losses.mtp, expected, rtol=1e-9)
    np.testing.assert_allclose(losses.total, losses.nats + 0.4 * expected, rtol=1e-9)


@pytest.mark.parametrize("task", TOKEN_TASKS)
def test_padding_and_empty_rows_count_nothing(task):
    settings, data, _, theta, value_and_grad = case(task)
    *_, batch = data.validation.evaluation_batches()
    other = dict(batch)
    for tokens, length in (("x", "length"), ("x_masked", "length"), ("z", "z_length"), ("x", "x_length")):
        if tokens in batch and length in batch:
            padding = np.arange(settings.l_max)[None] >= batch[length][:, None]
            assert padding.any()
            assert padding.all(axis=1).any()
            other[tokens] = np.where(padding, 5, batch[tokens])
    results = [value_and_grad(theta, b) for b in (batch, other)]
    chex.assert_tree_all_finite(results[0])
    chex.assert_trees_all_equal(*results)
    empty = batch["x_length" if task == "ed" else "length"] == 0
    weights = np.asarray(TASKS[task].objective.weights(batch))
    assert not weights[empty].any()
    assert weights[~empty].any(axis=1).all() or task == "e"


def test_label_smoothing_spreads_its_share_over_all_classes():
    _, data, _, theta, _ = case("classify")
    batch = data.train.batch(0)
    P = np.asarray(class_probabilities(batch["x"], theta, length=batch["length"]))
    Q = 0.1 / 2 + 0.9 * (batch["label"] == np.arange(2)[:, None])
    losses = functools.partial(TASKS["classify"].objective.losses, label_smoothing=0.1)
    np.testing.assert_allclose(jax.jit(losses)(theta, batch).nats, -(Q * np.log(P)).sum(), rtol=1e-10)


def assert_same_loss(task, of_model, name, values):
    """The loss and its gradient are the same with several values of a setting; return what is traced and compiled."""
    settings, data, _, theta = of_model
    object.__setattr__(settings, "dtype", "float64")
    arguments, lowered, compiled = (theta, data.train.batch(0), np.int32(3), jax.random.key(0)), [], []
    for value in values:
        object.__setattr__(settings, name, value)
        lowered.append(jax.jit(batch_loss(TASKS[task].objective, settings)).lower(*arguments))
        compiled.append(lowered[-1].compile())
    chex.assert_trees_all_close(*(update(*arguments) for update in compiled), rtol=1e-9, atol=1e-12)
    return lowered, compiled


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("task", "options"), [("d", {"rows": "chunks", "dropout": 0.3}), pytest.param("e", {}, marks=pytest.mark.slow)]
)
def test_a_batch_in_parts_is_the_batch(task, options):
    of_model = model(task, label_smoothing=0.1, **options)
    batch = of_model[1].train.batch(0)
    assert len(set(np.asarray(TASKS[task].objective.weights(batch)).sum(axis=1))) > 1
    assert_same_loss(task, of_model, "accumulation_steps", (1, 2))


@pytest.mark.thorough
@pytest.mark.parametrize("task", ["d", *(pytest.param(task, marks=pytest.mark.slow) for task in ("e", "ed"))])
def test_remat_computes_the_same_in_less_memory(task):
    layers = {"L_enc": 6, "L_dec": 6} if task == "ed" else {"L": 6}
    _, compiled = assert_same_loss(task, model(task, dropout=0.3, d_mlp=64, **layers), "remat", REMAT)
    temporary = [update.memory_analysis().temp_size_in_bytes for update in compiled]
    assert temporary[3] <= temporary[2] < 0.5 * temporary[0]
    assert temporary[2] < temporary[1] < temporary[0]


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("task", ["d", *(pytest.param(task, marks=pytest.mark.slow) for task in ("e", "ed"))])
@pytest.mark.parametrize("remat", ["nothing", pytest.param("all", marks=pytest.mark.slow)])
def test_unrolled_layers_compute_the_same_without_a_loop(task, remat):
    layers = {"L_enc": 3, "L_dec": 3} if task == "ed" else {"L": 3}
    lowered, _ = assert_same_loss(task, model(task, dropout=0.3, remat=remat, **layers), "unroll", (False, True))
    loops = [update.as_text().count("stablehlo.while") for update in lowered]
    assert loops[1] == loops[0] - 2 * (1 + (task == "ed"))  # forward and backward


@pytest.mark.end_to_end
def test_dropout_depends_on_the_step_and_on_the_sequence():
    settings, data, _, theta = model("classify", dropout=0.5)
    batch = {name: np.repeat(array[:1], settings.batch_size, axis=0) for name, array in data.train.batch(0).items()}
    whole = jax.jit(batch_loss(TASKS["classify"].objective, settings))
    losses = [float(whole(theta, batch, np.int32(step), jax.random.key(0))[0].nats) for step in (0, 1, 0)]
    assert losses[0] == losses[2] != losses[1]
    key = jax.random.key(1)
    keys = jnp.stack([key, key, jax.random.key(2), key])
    columns = TASKS["classify"].objective.columns
    X = jax.jit(lambda *of: columns(*of, {"dropout": 0.5, "key": keys}))(theta, batch).X
    np.testing.assert_allclose(X[:, 0], X[:, 1], rtol=0, atol=1e-12)  # a matrix product may add its columns differently
    assert np.abs(X[:, 0] - X[:, 2]).max() > 0.01


def test_a_classifier_begins_with_equal_probabilities():
    _, data, config, _, _ = case("classify")
    params = jax.tree.map(lambda a: a.astype(float), init_classifier(jax.random.key(0), config, N_C=3))
    batch = data.train.batch(0)
    P = class_probabilities(batch["x"], params, length=batch["length"])
    np.testing.assert_allclose(P, np.full((3, 6), 1 / 3), rtol=1e-6)
