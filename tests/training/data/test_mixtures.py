"""Mixtures: shares by weight, every example of a file equally often, and the same batch for the same step."""

import json

import numpy as np
import pytest

from tests.training_cases import N_V, settings_for, token_store_of
from training.data.batches import Batches, LabeledTexts, MaskedTokens, NextTokens, SequencePairs
from training.data.loading import load_run_data
from training.data.mixtures import Mixture, documents, weighted, weights_of
from training.data.records import DataError
from training.data.token_store import LabeledStore, PairStore

SIZES = {"batch_size": 16, "seed": 3}


def store_of(letter, n):
    """Texts of one letter, told apart by their lengths."""
    return token_store_of([[N_V - 2, *[letter] * (1 + i % 4), N_V - 1] for i in range(n)], N_V)


def mixed(weights=(3.0, 1.0), sizes=(150, 600), **options):
    stores = [store_of(letter, n) for letter, n in enumerate(sizes)]
    return Batches(Mixture([NextTokens(store, l_max=7, **options) for store in stores], weights), **SIZES)


@pytest.mark.parametrize("mode", ["chunks", "windows", "packed"])
def test_shares_are_the_weights_however_large_the_files(mode):
    data = mixed(mode=mode)
    rows = np.concatenate([data.batch(step)["x"] for step in range(40)])
    has = [(rows == letter).any(axis=1) for letter in (0, 1)]
    assert not (has[0] & has[1]).any()
    assert abs(has[0].sum() / (has[0] | has[1]).sum() - 0.75) < 0.05


def test_every_stretch_of_positions_has_each_file_as_often_as_its_share():
    indices = mixed(weights=(1.0, 2.5, 0.02), sizes=(30, 600, 7)).source.order(3)(np.arange(200_000))
    starts = np.array([0, 30, 630])
    for k, share in enumerate(np.array([1.0, 2.5, 0.02]) / 3.52):
        of_part = np.cumsum(np.searchsorted(starts, indices, side="right") - 1 == k)
        assert abs(of_part - share * np.arange(1, 200_001)).max() < 3


def test_every_example_of_a_file_comes_equally_often_and_once_in_an_evaluation():
    data = mixed()
    indices = data.source.order(3)(np.arange(2500))
    for first, n in ((0, 150), (150, 600)):
        own = indices[(first <= indices) & (indices < first + n)]
        for epoch in range(len(own) // n):
            assert sorted(own[epoch * n : (epoch + 1) * n]) == list(range(first, first + n))
    rows = np.concatenate([batch["x"][batch["length"] > 0] for batch in data.evaluation_batches()])
    assert len(rows) == data.n_examples == 750


def test_the_fingerprint_depends_on_the_ratio_of_the_weights():
    """What a batch of a step depends on is in `test_batches`."""
    assert mixed().fingerprint == mixed().fingerprint != mixed(weights=(2.0, 1.0)).fingerprint
    assert mixed(weights=(6.0, 2.0)).fingerprint == mixed().fingerprint


def test_every_kind_of_data_is_mixed():
    stores = [store_of(0, 9), store_of(1, 9)]
    for make in (
        lambda s: MaskedTokens(s, l_max=7),
        lambda s: SequencePairs(PairStore(s, s), l_max=7),
        lambda s: LabeledTexts(LabeledStore(s, np.full(9, s.tokens[1], np.int32), ("a", "b")), l_max=7),
    ):
        parts = [make(store) for store in stores]
        batch = Batches(Mixture(parts, [1, 1]), **SIZES).batch(2)
        alone = Batches(parts[0], **SIZES).batch(0)
        assert {name: a.dtype for name, a in batch.items()} == {name: a.dtype for name, a in alone.items()}
        letters = batch["x"][:, 1]
        assert set(letters) == {0, 1}
        if "label" in batch:
            np.testing.assert_array_equal(batch["label"], letters)
        if "z" in batch:
            np.testing.assert_array_equal(batch["z"], batch["x"])


def test_documents_are_a_part_of_a_store():
    store = store_of(2, 11)
    part = documents(store, 3, 7)
    assert [part[i].tolist() for i in range(4)] == [store[i].tolist() for i in range(3, 7)]
    labeled = documents(LabeledStore(store, np.arange(11, dtype=np.int32), ("a",)), 3, 7)
    assert labeled.labels.tolist() == [3, 4, 5, 6]
    assert part.fingerprint != documents(store, 3, 8).fingerprint


def test_names_and_weights(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "odd=0.5").touch()
    assert weighted("odd=0.5") == ("odd=0.5", None)
    assert weighted("a=b.txt") == ("a=b.txt", None)
    assert weighted("a=b.txt=2") == ("a=b.txt", 2.0)
    with pytest.raises(DataError, match=r"a\.txt=-1: expected a positive weight"):
        weighted("a.txt=-1")
    with pytest.raises(DataError, match=r"b\.txt has no weight, but others have"):
        weights_of([weighted("a.txt=1"), weighted("b.txt")])
    with pytest.raises(DataError, match="a file is given twice"):
        weights_of([weighted("a.txt=1"), weighted("a.txt=2")])


def test_files_are_mixed_by_their_weights(tmp_path):
    """Whatever is held out, and however often the tokens are read from the cache."""
    for letter, n in (("a", 40), ("b", 400)):
        lines = (json.dumps({"text": " ".join(letter * (1 + i % 7) for i in range(k, k + 9))}) for k in range(n))
        (tmp_path / f"{letter}.jsonl").write_text("\n".join(lines) + "\n")
    data = tuple(f"{tmp_path / letter}.jsonl={weight}" for letter, weight in (("a", 3), ("b", 1)))
    settings = settings_for("d", data=data, tokenizer="bytes", batch_size=16, rows="chunks", l_max=30)
    told = []
    for _ in range(2):
        run = load_run_data(settings, cache_dir=tmp_path / "cache", progress=lambda n, total: told.append((n, total)))
        starts = np.concatenate([run.train.batch(step)["x"][:, 1] for step in range(12)])
        assert abs(((starts == ord("a")).sum()) / np.isin(starts, [ord("a"), ord("b")]).sum() - 0.75) < 0.05
        assert len(told) == 2  # training and validation, once
    size = sum((tmp_path / f"{letter}.jsonl").stat().st_size for letter in "ab")
    assert {total for _, total in told} == {size}
    with pytest.raises(DataError, match="docs is a named data set with its own held-out part"):
        load_run_data(settings_for("d", data=("docs=1",)), cache_dir=tmp_path / "cache")
