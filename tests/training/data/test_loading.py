"""What the user is told about the data of a run, and how often files are read."""

import json
import re

import numpy as np
import pytest

from tests.training_cases import settings_for
from training.data import files
from training.data.formats import opened
from training.data.loading import load_run_data
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
