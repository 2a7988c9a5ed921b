"""What the user is told about the data of a run."""

import pytest

from tests.training_cases import settings_for
from training.data.loading import load_run_data
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
