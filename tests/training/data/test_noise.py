"""Noise in what a model reads: how much of it, where none is, and that targets stay."""

import jax
import numpy as np
import pytest

from algorithms import d_hidden_state, ed_transformer, unembedding
from tests import training_cases as cases
from tests.training_cases import batched, token_store_of
from training.data.batches import Batches, LabeledTexts, NextTokens, Noise, SequencePairs
from training.data.token_store import LabeledStore, PairStore
from training.tasks import TASKS
from training.tasks.models import model_config

N_V = 23
MASK, BOS, EOS = 20, 21, 22
rng = np.random.default_rng(0)
TEXTS = [[BOS, *rng.integers(20, size=rng.integers(5, 30)).tolist(), EOS] for _ in range(200)]
STORE = token_store_of(TEXTS, N_V, n_bytes=9)
SIZES = {"l_max": 31, "batch_size": 64, "seed": 1}
LABELS = np.arange(200, dtype=np.int32) % 2


def noisy(data, noise=0.0, deletion=0.0):
    added = Noise(special=(MASK, BOS, EOS), N_V=N_V, noise=noise, deletion=deletion)
    return Batches(data.source, batch_size=data.batch_size, seed=data.seed, noise=added)


def test_of_text_the_model_reads_noise_and_predicts_what_was_there():
    data = batched(NextTokens, STORE, mode="chunks", **SIZES)
    plain, batch = data.batch(3), noisy(data, 0.3).batch(3)
    for name, array in plain.items():
        np.testing.assert_array_equal(batch[name], array)
    changed = batch["x_read"] != plain["x"]
    special = plain["x"] >= MASK
    assert not changed[special].any()
    assert batch["x_read"][~special].max() < MASK
    assert abs(changed[~special].mean() - 0.3 * 19 / 20) < 0.04  # one in twenty is replaced by itself


def test_a_source_has_noise_and_lacks_tokens_and_its_target_is_whole():
    data = batched(SequencePairs, PairStore(STORE, STORE), **SIZES)
    plain, batch = data.batch(0), noisy(data, 0.0, 0.25).batch(0)
    np.testing.assert_array_equal(batch["x"], plain["x"])
    left_out = 0
    for b in range(64):
        before, after = plain["z"][b, : plain["z_length"][b]], batch["z"][b, : batch["z_length"][b]]
        assert (after[0], after[-1]) == (BOS, EOS)
        remaining = iter(before.tolist())
        assert all(token in remaining for token in after.tolist())  # a part of it, in its order
        assert np.all(batch["z"][b, batch["z_length"][b] :] == EOS)
        left_out += len(before) - len(after)
    assert abs(left_out / (plain["z_length"] - 2).sum() - 0.25) < 0.04


def test_a_text_to_classify_has_both_and_keeps_its_label():
    data = batched(LabeledTexts, LabeledStore(STORE, LABELS, ("a", "b")), **SIZES)
    plain, batch = data.batch(0), noisy(data, 0.5, 0.5).batch(0)
    np.testing.assert_array_equal(batch["label"], plain["label"])
    assert "x_read" not in batch
    assert batch["length"].sum() < 0.7 * plain["length"].sum()
    assert np.all(batch["x"][:, 0] == BOS)


def test_each_step_has_other_noise():
    """What else a batch and its fingerprint depend on is in `test_batches`."""
    data = noisy(batched(NextTokens, STORE, mode="chunks", **SIZES), 0.3)
    assert not np.array_equal(data.batch(6)["x_read"], data.batch(5)["x_read"])


def test_nothing_that_is_evaluated_has_noise():
    data = batched(NextTokens, STORE, mode="chunks", **SIZES)
    for plain, batch in zip(data.evaluation_batches(), noisy(data, 0.5).evaluation_batches(), strict=True):
        assert plain.keys() == batch.keys()
        np.testing.assert_array_equal(plain["x"], batch["x"])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("task", ["d", "ed"])
def test_the_loss_of_a_task_reads_the_noise_and_predicts_the_text(task):
    """Column t is the loss of x[t + 1] by the distribution of what is read up to t: as Algorithms 8 and 10 say."""
    settings = cases.settings_for(task)
    batch = cases.data_for(settings).train.batch(0)
    read = np.where(batch["x"] < cases.LETTERS, (batch["x"] + 1) % cases.LETTERS, batch["x"])
    config = model_config(settings, cases.N_V)
    theta = TASKS[task].init(jax.random.key(0), config)
    mask = np.asarray(TASKS[task].objective.weights(batch))
    found = TASKS[task].objective.losses(theta, {**batch, "x_read": read}).nats
    if task == "ed":
        P = ed_transformer(batch["z"], read, theta, z_length=batch["z_length"])
    else:
        X = d_hidden_state(read, theta, segments=batch["segment_ids"])
        P = unembedding(X, theta.variant.unembedding.matrix(theta))
    B, l = batch["x"].shape
    targets = np.roll(batch["x"], -1, axis=1)
    nats = -np.log(np.asarray(P)[targets, np.arange(B)[:, None], np.arange(l)])
    np.testing.assert_allclose(found, (mask * nats).sum(), rtol=1e-4)
