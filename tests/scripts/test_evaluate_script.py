"""scripts/evaluate.py: the figures of a run and of what it is compared with, against other libraries and by hand."""

import errno
import gzip
import itertools
import json
import math
import pathlib
import re

import numpy as np
import pytest
import sacrebleu
from sklearn.metrics import accuracy_score, precision_recall_fscore_support

from algorithms import d_transformer
from tests.run_cases import BYTES, make_run
from training.commands import evaluate
from training.data.records import Pair
from training.evaluation import report
from training.runs.trained_model import load_run

pytestmark = pytest.mark.usefixtures("compile_once")

TRAIN = "".join(f"The {n}th paragraph says that {n} and {n + 1} are {2 * n + 1}.\n\n" for n in range(200))
HELD_OUT = "A paragraph that says: 7 and 8 are 15. The next says that 9 and 10 are 19.\n" * 4
SIZES = {"--tokenizer": "bytes", "--L": 1, "--H": 2, "--d_e": 8, "--d_mlp": 8, "--l_max": 32}
SIZES |= {"--batch-size": 4, "--steps": 3, "--peak": 1e9}


@pytest.fixture
def evaluated(tmp_path, printed):
    """Evaluate a run, trained for three steps or random; return what was printed, the rows, samples and directory."""

    def run(task, train_lines, held_out_lines, *, trained=False, **options):
        files = [str(tmp_path / "train.txt"), str(tmp_path / "held-out.txt")]
        for file, lines in zip(files, (train_lines, held_out_lines), strict=True):
            pathlib.Path(file).write_text(lines)
        directory, cache = tmp_path / "run", ["--cache", tmp_path / "cache"]
        if trained:
            flags = SIZES | {"--run": directory, "--data": files[0], "--validation-data": files[1]}
            printed("train", task, "--quiet", *cache, *itertools.chain(*flags.items()))
        else:
            make_run(directory, task, BYTES, data=files[:1], validation_data=files[1:], batch_size=4, **options)
        out = printed("evaluate", directory, *cache)  # there are no test data
        found = json.loads((directory / "evaluation-validation.json").read_text())
        return out, found["rows"], found["samples"], directory

    return run


def test_a_decoder_beside_compressors(evaluated):
    out, rows, samples, directory = evaluated("d", TRAIN, HELD_OUT, trained=True)
    trained = json.loads((directory / "results.json").read_text())
    assert rows["this model"]["loss"] == pytest.approx(trained["loss"], rel=1e-6)
    assert rows["this model"]["perplexity"] == pytest.approx(math.exp(trained["loss"]), rel=1e-6)
    data = HELD_OUT.encode()
    assert rows["gzip -9"]["bits_per_byte"] == pytest.approx(8 * len(gzip.compress(data, 9)) / len(data), rel=0.01)
    assert rows["3-gram, Witten-Bell"]["bits_per_byte"] < rows["this model"]["bits_per_byte"]  # of three steps
    assert f"{trained['loss']:.4f}" in out
    assert re.fullmatch("the 3-gram model learned from [0-9,]+ tokens of the training data of .*train.txt", samples[0])


def test_an_encoder_beside_the_most_frequent_token(evaluated):
    _, rows, _, _ = evaluated("e", "a" * 4000, "a" * 900, l_max=100)
    guess = rows["token frequencies"]
    assert guess["accuracy"] > 0.9  # all but bos and eos
    assert guess["perplexity"] == pytest.approx(math.exp(guess["loss"]))
    assert guess["loss"] < 0.5 < rows["this model"]["loss"]


@pytest.mark.parametrize("has_words", [True, False])
def test_a_classifier_beside_logistic_regression(evaluated, has_words):
    """Of words of one letter scikit-learn finds none."""
    kinds = [("good", "fine") if n % 3 else ("bad", "broken") for n in range(90)]
    lines = []
    for n, (label, word) in enumerate(kinds):
        lines.append(
            f"{label}\tthis is {word} number {n}\n" if has_words else f"{label}\t{n % 7} ! {n % 5} ? {n % 9}\n"
        )
    _, rows, samples, _ = evaluated("classify", "".join(lines[:-40]), "".join(lines[-40:]), labels=("bad", "good"))
    assert 0 <= rows["this model"]["accuracy"] <= 1
    if has_words:
        assert rows["TF-IDF and logistic regression"]["accuracy"] == 1
        assert len(samples) == report.SHOWN
    else:
        assert list(rows) == ["this model"]
        said = "TF-IDF and logistic regression are left out: the training texts have no words of two letters or more"
        assert samples[0] == said


@pytest.mark.parametrize("classes", [2, 4])
def test_classification_figures_are_those_of_scikit_learn(classes):
    rng = np.random.default_rng(0)
    truth, predicted = rng.integers(classes, size=(2, 200))
    figures = report.classification_figures(truth, predicted, positive=1, classes=classes)
    average = "binary" if classes == 2 else "macro"
    expected = precision_recall_fscore_support(truth, predicted, average=average)[:3]
    assert [figures[name] for name in ("precision", "recall", "F1")] == pytest.approx(expected)
    assert figures["accuracy"] == pytest.approx(accuracy_score(truth, predicted))


def test_translations_are_counted_and_scored(evaluated, monkeypatch, tmp_path):
    pairs = [Pair(f"line {n}", f"this is the line {n} of all") for n in range(60)]
    lines = [f"{pair.source}\t{pair.target}\n" for pair in pairs]
    pairs, held_out = pairs[:6], "".join(lines[:6])
    _, rows, samples, directory = evaluated("ed", "".join(lines[6:]), held_out)
    assert (rows["this model"]["exact_match"], rows["this model"]["pairs"]) == (0, 6)
    assert samples[0].startswith("line 0 → ")

    class Answerer:
        def answers(self, sources, first):
            return [[{"text": answers[source]}] for source in sources]

    answers = {pair.source: pair.target if n < 4 else "this is not the line at all" for n, pair in enumerate(pairs)}
    monkeypatch.setattr(report, "answerer_for", lambda run, options: Answerer())
    run = load_run(directory)
    found = report._translator(run, None, None, "validation", pairs, lambda n, total: None)
    figures = found.rows["this model"]
    assert figures["exact_match"] == pytest.approx(4 / 6)
    reference = [[pair.target for pair in pairs]]
    assert figures["BLEU"] == pytest.approx(sacrebleu.corpus_bleu([*answers.values()], reference).score)
    assert found.samples[4] == "line 4 → this is not the line at all   (not this is the line 4 of all)"
    longer = [Pair("line " * 99, "this is a line that is too long"), *pairs, Pair("line " * 98, "")]
    found = report._translator(run, None, None, "validation", longer, lambda n, total: None)
    figures = found.rows["this model"]
    assert (figures["pairs"], figures["exact_match"]) == (8, pytest.approx(4 / 8))
    reference = [[pair.target for pair in longer]]
    assert figures["BLEU"] == pytest.approx(sacrebleu.corpus_bleu(["", *answers.values(), ""], reference).score)
    assert found.samples[0].startswith("2 of the 8 sources have more than l_max = ")
    assert found.samples[5] == "line 4 → this is not the line at all   (not this is the line 4 of all)"


def test_other_data_and_a_read_only_run_leave_its_own_record_as_it_is(
    evaluated, monkeypatch, tmp_path, called, printed
):
    """Also from another directory."""
    lines = "".join(f"line {n}\tthis is the line {n}\n" for n in range(9))
    out, _, _, directory = evaluated("ed", lines, "line 70\tthis is the line 70\nline 71\tthis is the line 71\n")
    kept = directory / "evaluation-validation.json"
    own = kept.read_bytes()
    other = tmp_path / "other.tsv"
    other.write_text("".join(f"word {n}\tthis is a word {n}\n" for n in range(40)))
    printed("evaluate", directory, "--data", other, "--cache", tmp_path / "cache")
    assert kept.read_bytes() == own
    (found,) = directory.glob("evaluation-validation-*.json")
    assert json.loads(found.read_text())["data"] == [str(other)]

    def refuse(path, write):
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    kept.unlink()
    monkeypatch.setattr(evaluate, "write_atomically", refuse)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    status, again, err = called("evaluate", "../run", "--cache", "../cache")
    assert (status, again.partition("\n")[2]) == (0, out.partition("\n")[2])
    assert err == "note: cannot write ../run/evaluation-validation.json: Read-only file system\n"
    assert not kept.exists()


def test_a_decoder_is_measured_in_rows_of_another_length(evaluated, tmp_path, printed):
    """The loss is that of Algorithm 10's own probabilities, chunk by chunk."""
    _, own, _, directory = evaluated("d", TRAIN, HELD_OUT, trained=True)
    files = ("--data", tmp_path / "train.txt", "--validation-data", tmp_path / "held-out.txt")
    found = {}
    for l_max in (32, 11):
        printed("evaluate", directory, "--cache", tmp_path / "cache", *files, "--l_max", l_max)
        (kept,) = directory.glob("evaluation-validation-*.json")
        found[l_max] = json.loads(kept.read_text())["rows"]["this model"]["loss"]
    assert found[32] == pytest.approx(own["this model"]["loss"], rel=1e-6)
    run = load_run(directory)
    x = np.array(run.tokenizer.framed(run.tokenizer.encode(HELD_OUT)))
    nats = []
    for i in range(0, len(x) - 1, 10):
        P = d_transformer(x[i : i + 11], run.theta)
        nats += [-math.log(P[x[t + 1], t - i]) for t in range(i, min(i + 10, len(x) - 1))]
    assert found[11] == pytest.approx(np.mean(nats), rel=1e-5)


def test_a_class_that_the_run_does_not_have_is_named(evaluated, tmp_path, called):
    lines = "".join(f"{'good' if n % 3 else 'bad'}\tthe number {n}\n" for n in range(60))
    held_out = "good\tanother text\nbad\tsome other text\n"
    _, _, _, directory = evaluated("classify", lines, held_out, labels=("bad", "good"))
    other = tmp_path / "other.tsv"
    other.write_text(lines.replace("good", "fine"))
    status, _, error = called("evaluate", directory, "--data", other, "--cache", tmp_path / "cache")
    assert (status, "label: expected one of the run's classes, bad, good, got 'fine'" in error) == (2, True)
