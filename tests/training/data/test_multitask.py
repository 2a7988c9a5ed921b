"""Text, pairs and labels for one decoder: which tokens a row has, and which of them are predicted."""

import numpy as np
import pytest

from training.data.loading import as_pairs, load_run_data, task_store
from training.data.records import Corpus, DataError, Labeled, Pair
from training.data.tokenizers import CharacterTokenizer
from training.tasks import settings_from

TOKENIZER = CharacterTokenizer("\tabcdefgh")
BOS, EOS, TAB = 10, 11, 0


def test_a_pair_is_source_separator_target_and_the_target_is_predicted():
    store = task_store([Pair("ab", "c"), Pair("d", "ef")], TOKENIZER, part="train")
    assert store.tokens.tolist() == [BOS, 1, 2, TAB, 3, EOS, BOS, 4, TAB, 5, 6, EOS]
    assert store.answers is not None
    assert store.answers.astype(int).tolist() == [0, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 1]
    assert store.offsets.tolist() == [0, 6, 12]


def test_a_labeled_text_is_a_pair_with_its_label():
    parts = {"train": [Labeled("h", "ab", "f:1")], "validation": [Labeled("g", "c", "f:2")], "test": []}
    corpus = Corpus(name="c", kind="labeled", fingerprint="", **parts)
    assert as_pairs(corpus).train == [Pair("ab", "h", "f:1")]
    assert as_pairs(as_pairs(corpus)).validation == [Pair("c", "g", "f:2")]


def test_a_source_with_the_separator_is_refused():
    with pytest.raises(DataError, match=r"^f:7: expected a source without TAB, which separates it from its target"):
        task_store([Pair("a\tb", "c", "f:7")], TOKENIZER, part="train")


@pytest.fixture
def files(tmp_path):
    text = "".join(f"{'ab'[i % 2]}{'abcdefgh'[i % 8]} {i} and more of it\n\n" for i in range(300))
    (tmp_path / "text.txt").write_text(text)
    (tmp_path / "pairs.tsv").write_text("".join(f"x{i}\ty{i}\n" for i in range(120)))
    (tmp_path / "labeled.tsv").write_text("".join(f"{'QZ'[i % 2]}\tw{i}\n" for i in range(120)))
    return tmp_path


def settings(files, **values):
    named = {"data": [str(files / "text.txt")], "tokenizer": "characters", "l_max": 32, "batch_size": 30}
    tasks = {"pairs": [str(files / "pairs.tsv")], "labeled": [str(files / "labeled.tsv")]}
    return settings_from({**named, **tasks, **values}, task="d")


def test_rows_of_text_of_pairs_and_of_labels_come_equally_often(files):
    data = load_run_data(settings(files), cache_dir=files / "cache")
    decode = data.tokenizer.decode
    kinds = {"text": 0, "pairs": 0, "labels": 0}
    for step in range(4):
        batch = data.train.batch(step)
        target = np.roll(batch["x"], -1, axis=1)
        for b in range(30):
            text, predicted = decode(batch["x"][b]), decode(target[b][batch["loss_mask"][b]])
            if "\t" not in text:
                kinds["text"] += 1
                assert len(text) - len(predicted) <= 4  # but the first tokens of chunks
            elif "x" in text:
                kinds["pairs"] += 1
                assert set(predicted) <= set("y0123456789")
                assert predicted.count("y") == text.count("x")
            else:
                kinds["labels"] += 1
                assert set(predicted) <= {"Q", "Z"}
                assert len(predicted) == text.count("w")
    assert all(35 <= n <= 45 for n in kinds.values())
    assert all("\t" not in decode(batch["x"].ravel()) for batch in data.validation.evaluation_batches())


def test_empty_pairs_are_left_out_and_counted(files):
    with (files / "pairs.tsv").open("a") as file:
        file.write("x\t\n\n")
    notes = load_run_data(settings(files), cache_dir=files / "cache").notes
    said = f"2 of 122 records are left out: a field is empty or null, as in {files / 'pairs.tsv'}:121"
    assert [note for note in notes if "left out" in note] == [said]


def test_what_does_not_fit_is_refused(files):
    with pytest.raises(DataError, match=r"^--rows: expected packed with --pairs, got chunks; leave it out"):
        load_run_data(settings(files, rows="chunks"), cache_dir=files / "cache")
    with pytest.raises(DataError, match=r"holds labeled, but .* trains on pairs"):
        load_run_data(settings(files, pairs=["sms-spam"]), cache_dir=files / "cache")
