"""What the user is told about the data of a run; the parts of cross-validation: disjoint, together all of the data, and
equal texts in one.
"""

import json
import re

import numpy as np
import pytest

from tests.training_cases import settings_for
from training.data import files
from training.data.folds import folded
from training.data.formats import opened
from training.data.loading import load_run_data
from training.data.records import Corpus, DataError, Labeled
from training.data.tokenizers import build_tokenizer
from training.evaluation.report import summary

FIGURES = ("loss", "perplexity", "accuracy", "bits_per_byte")
KNOWN = "the cat sat on the mat\n"


@pytest.mark.parametrize(("text", "noted"), [(KNOWN, False), (KNOWN + 4 * "a dog ran to me now\n", True)])
def test_training_data_that_are_mostly_unknown_to_the_tokenizer_are_noted(tmp_path, text, noted):
    train, validation = tmp_path / "train.txt", tmp_path / "validation.txt"
    train.write_text(text * 40, "utf-8")
    validation.write_text("the mat sat on the cat\n" * 40, "utf-8")
    words = build_tokenizer("words", [KNOWN] * 9, N_V=20)
    settings = settings_for("d", data=(str(train),), validation_data=(str(validation),), l_max=8)
    notes = load_run_data(settings, tokenizer=words, cache_dir=tmp_path / "cache").notes
    assert ("more than half of the tokens of the training data are unknown to the tokenizer" in notes) == noted


@pytest.fixture
def openings(monkeypatch):
    """Each file that is opened."""
    found = []
    monkeypatch.setattr(files, "opened", lambda path: found.append(path) or opened(path))
    return found


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
@pytest.mark.parametrize("suffix", [".txt", ".jsonl"])
def test_a_file_is_read_once_for_each_purpose_and_once_if_the_tokens_are_cached(tmp_path, openings, kind, suffix):
    """To check it, to find its records, and for the held-out part, the tokenizer and the training part."""
    path = tmp_path / f"a{suffix}"
    texts = [f"Paragraph {i} of {i * i} é.\n" + 30 * f"w{i % 97} " for i in range(900)]
    path.write_text("\n\n".join(texts) if suffix == ".txt" else "".join(json.dumps({"text": t}) + "\n" for t in texts))
    settings = settings_for("d", data=(str(path),), tokenizer=kind, N_V=300, l_max=8)
    data = load_run_data(settings, cache_dir=tmp_path / "cache")
    looks = int(suffix == ".jsonl")  # whether it has messages
    assert openings == [path] * (looks + (5 if kind == "bpe" else 4))
    openings.clear()
    again = load_run_data(settings, tokenizer=data.tokenizer, cache_dir=tmp_path / "cache")
    assert again.fingerprints == data.fingerprints
    assert openings == [path] * (looks + 1)


def test_the_overlap_of_held_out_text_is_measured_and_noted(tmp_path):
    """Text without blank lines that repeats at another offset is in both parts, whatever is held out."""
    draw, notes, lines = np.random.default_rng(0).choice, {}, {}
    repeats, other = "".join(draw([*"abcdefgh "], 997)), "".join(draw([*"abc d"], 90_000))
    for name, text in (("repeats", "\r".join([repeats] * 90)), ("not", other)):
        (tmp_path / f"{name}.txt").write_text(text)
        settings = settings_for("d", data=(str(tmp_path / f"{name}.txt"),), tokenizer="bytes", l_max=8)
        data = load_run_data(settings, cache_dir=tmp_path / "cache")
        notes[name], lines[name] = data.notes, [*summary(settings, data, dict.fromkeys(FIGURES, 0.5))]
    assert any(
        re.match("(98|99|100) % of the held-out text is in the training text, too", note) for note in notes["repeats"]
    )
    assert not any("held-out text is in" in note for note in notes["not"])
    said = r"([\d.]+) % of the held-out windows of 60 characters are in the training data, too"
    found = {name: re.fullmatch(said, reported[-1]) for name, reported in lines.items()}
    assert float(found["not"][1]) == 0 < 98 <= float(found["repeats"][1])


def corpus(n=500, **changes):
    records = [Labeled("ab"[i % 2], f"text {i % (n - 40)}", f"f:{i}") for i in range(n)]
    test = [Labeled("a", "of the test", "t:1")]
    parts = {"train": records[:400], "validation": records[400:], "test": test}
    return Corpus(name="c", kind="labeled", fingerprint="f", **{**parts, **changes})


def test_every_record_is_held_out_once():
    folds = [folded(corpus(), f"{i}/5") for i in range(1, 6)]
    everything = {record.where for record in (*corpus().train, *corpus().validation)}
    held_out = [{record.where for record in fold.validation} for fold in folds]
    assert (sum(map(len, held_out)), set.union(*held_out)) == (500, everything)
    for fold, of_fold in zip(folds, held_out, strict=True):
        assert {record.where for record in fold.train} == everything - of_fold
        assert 70 <= len(of_fold) <= 130
        assert not {r.text for r in fold.train} & {r.text for r in fold.validation}
        assert fold.test == corpus().test
    assert len({fold.fingerprint for fold in folds}) == 5


@pytest.mark.parametrize("fold", ["6/5", "0/5", "1/1", "1", "one/5", "-1/5", "1/5/2"])
def test_a_part_that_is_not_there_is_refused(fold):
    with pytest.raises(DataError, match=rf"^--fold: expected I/K such as 1/5, the first of five parts, got '{fold}'"):
        folded(corpus(), fold)


def test_too_many_parts_and_weights_are_refused():
    few = corpus(train=[Labeled("a", "x", "f:1")], validation=[Labeled("b", "y", "f:2")])
    with pytest.raises(DataError, match=r"^--fold: expected fewer parts, got 40 of 2 records"):
        [folded(few, f"{i}/40") for i in range(1, 41)]
    with pytest.raises(DataError, match=r"^--fold: expected data without weights"):
        folded(corpus(files=("a.tsv",)), "1/5")
