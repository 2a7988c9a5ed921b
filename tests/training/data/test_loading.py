"""What the user is told about the data of a run; the parts of cross-validation: disjoint, together all of the data, and
equal texts in one.
"""

import pytest

from tests.training_cases import settings_for
from training.data.loading import folded, load_run_data
from training.data.records import Corpus, DataError, Labeled
from training.data.tokenizers import build_tokenizer

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


def corpus(n=500, **changes):
    records = [Labeled("ab"[i % 2], f"text {i % (n - 40)}", f"f:{i}") for i in range(n)]
    test = [Labeled("a", "of the test", "t:1")]
    parts = {"train": records[:400], "validation": records[400:], "test": test}
    return Corpus(name="c", kind="labeled", source="", license="", fingerprint="f", **{**parts, **changes})


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
