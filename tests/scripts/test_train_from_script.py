"""scripts/train.py --from: a training starts with the parameters, the sizes and the tokenizer of a trained model."""

import json

import numpy as np
import pytest

from algorithms.lines import MTP
from tests.run_cases import make_run
from training.data.tokenizers import build_tokenizer
from training.interchange import convert
from training.runs.metrics import read_metrics
from training.runs.trained_model import load_run

pytestmark = pytest.mark.usefixtures("compile_once")

TEXT = "".join(f"The {n}th paragraph says that {n} and {n + 1} are {2 * n + 1}.\n\n" for n in range(60))
LABELED = "".join(f"{('even', 'odd')[n % 2]}\tthe number {n} is what it is\n" for n in range(80))
BERT = {"variant": "BERT", "d_e": 12, "H": 3, "l_max": 40, "dropout": 0.0}
FLAGS = ["--quiet", "--batch-size", "4", "--eval-batches", "1", "--peak", "1e9", "--no-tensorboard", "--l_max", "16"]


@pytest.fixture
def train(tmp_path, called):
    """Run the command line; return what `called` does."""

    def run(task, start, data, *more, run="run", steps=1):
        (tmp_path / "data.txt").write_text(data)
        paths = ["--run", tmp_path / run, "--cache", tmp_path / "cache", "--data", tmp_path / "data.txt"]
        return called("train", task, *FLAGS, *paths, "--from", start, "--steps", steps, *more)

    return run


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A decoder as a run and as a GPT-2 checkpoint, and an encoder."""
    root = tmp_path_factory.mktemp("models")
    tokenizer = build_tokenizer("bpe", [TEXT, LABELED], N_V=290)
    make_run(root / "d", "d", tokenizer, d_e=12, H=3, dropout=0.0)
    make_run(root / "e", "e", tokenizer, **BERT)
    convert(root / "d", root / "gpt2")
    convert(root / "e", root / "bert")
    return root


def test_a_mesh_is_for_the_sizes_of_the_model(train, tmp_path):
    """The defaults of the task, which it does not divide, are those of another model."""
    make_run(tmp_path / "wide", "d", build_tokenizer("bpe", [TEXT], N_V=290), d_e=16, H=8, d_mlp=24, dropout=0.0)
    flags = ("--mesh", "model=8", "--vocabulary-multiple", 8)
    status, _, error = train("d", tmp_path / "wide", TEXT, *flags)
    assert status == 0, error
    assert load_run(tmp_path / "run").config.H == 8
    make_run(tmp_path / "narrow", "d", build_tokenizer("bpe", [TEXT], N_V=290), d_e=12, H=3, dropout=0.0)
    status, _, error = train("d", tmp_path / "narrow", TEXT, *flags, run="refused")
    assert (status, error) == (2, "train.py: H is 3, which model=8 does not divide: give H 8, or model=3\n")
    assert not (tmp_path / "refused").exists()


def test_a_classifier_goes_on_from_an_encoder_and_resumes(train, models, tmp_path):
    status, _, error = train("classify", models / "bert", LABELED, "--learning-rate", "1e-12")
    assert status == 0, error
    before, after = load_run(models / "e"), load_run(tmp_path / "run")
    np.testing.assert_allclose(after.theta.encoder.layers.mlp.W_mlp1, before.theta.layers.mlp.W_mlp1, atol=1e-9)
    assert after.theta.encoder.W_f is None
    assert after.labels == ("even", "odd")
    np.testing.assert_allclose(after.theta.W_c, np.zeros((2, 12)), atol=1e-9)
    status, _, error = train("classify", models / "bert", LABELED, "--learning-rate", "1e-12")
    assert (status, error) == (0, "resuming after step 1\n")
    status, _, error = train("classify", models / "e", LABELED, "--learning-rate", "1e-12")
    assert status == 2
    assert "began with other settings (--from:" in error
    status, _, error = train("classify", tmp_path / "run", LABELED, "--learning-rate", "1e-12", run="again")
    assert status == 0, error


def test_a_decoder_gets_a_head_for_the_token_after_the_next_or_keeps_its_own(train, models, tmp_path):
    status, _, error = train("d", models / "gpt2", TEXT, "--mtp-weight", 0.5, "--learning-rate", "1e-12", run="first")
    assert status == 0, error
    before, first = load_run(models / "d"), load_run(tmp_path / "first")
    np.testing.assert_allclose(first.theta.layers.mlp.W_mlp1, before.theta.layers.mlp.W_mlp1, atol=1e-9)
    assert first.config.variant.mtp == MTP(weight=0.5)
    status, _, error = train("d", models / "gpt2", TEXT, "--mtp-weight", 0.5, "--learning-rate", "1e-12", run="first")
    assert (status, error.endswith("resuming after step 1\n")) == (0, True)
    status, _, error = train("d", tmp_path / "first", TEXT, "--mtp-weight", 0.2, "--learning-rate", "1e-12")
    assert status == 0, error
    after = load_run(tmp_path / "run")
    assert after.theta.variant.mtp == MTP(weight=0.2)
    np.testing.assert_allclose(after.theta.mtp.W_m, first.theta.mtp.W_m, atol=1e-9)
    assert np.ptp(after.theta.mtp.W_m) > 0.01
    assert "mtp_loss" in read_metrics(tmp_path / "run" / "metrics.jsonl")[0]
    status, _, error = train("d", tmp_path / "first", TEXT, "--mtp-weight", 0.2, "--lora-rank", 2, run="refused")
    assert (status, error) == (2, "train.py: --lora-rank and --mtp-weight exclude each other: an adapter has no head\n")


def test_a_head_that_is_replaced_is_said(train, tmp_path):
    labels = ("one", "two", "three")
    tokenizer = build_tokenizer("bpe", [TEXT, LABELED], N_V=290)
    make_run(tmp_path / "three", "classify", tokenizer, labels, **BERT)
    status, _, error = train("classify", tmp_path / "three", LABELED)
    sentence = f"the 2 classes of the data differ from the 3 of {tmp_path / 'three'}: its head is replaced by a new one"
    assert (status, error) == (0, f"note: {sentence}\n")


def test_an_adapter_beside_a_run_is_resumed_from_elsewhere_and_exported(train, models, tmp_path, printed, monkeypatch):
    """Other commands are tested in test_low_rank_in_commands.py."""
    monkeypatch.chdir(models)  # the run remembers the absolute path
    flags = ("--lora-rank", 2, "--optimizer", "adamw", "--learning-rate", "0.05", "--checkpoint-every", 1)
    status, _, error = train("d", "d", TEXT, *flags, steps=3)
    assert status == 0, error
    run = tmp_path / "run"
    assert (run / "adapter.safetensors").is_file()
    assert not (run / "parameters.safetensors").exists()
    before, after = load_run(models / "d"), load_run(run)
    assert (after.config.l_max, before.config.l_max) == (40, 40)  # the rows of the training have 16
    np.testing.assert_array_equal(after.theta.W_e, before.theta.W_e)
    assert np.abs(after.theta.layers.mlp.W_mlp1 - before.theta.layers.mlp.W_mlp1).max() > 0.01
    monkeypatch.chdir(tmp_path)
    printed("train", "--run", run, "--cache", tmp_path / "cache")
    prompt = ("--prompt", "The", "--l_gen", 9, "--tau", 0)
    text = printed("generate", run, *prompt)
    printed("convert", run, tmp_path / "adapter")
    printed("convert", tmp_path / "adapter", tmp_path / "again", "--from", models / "d")
    assert printed("generate", tmp_path / "again", *prompt) == text
    assert train("d", models / "e", TEXT, *flags, run="other")[0] == 2


@pytest.mark.parametrize(
    ("task", "start", "more", "message"),
    [
        ("d", "d", ["--lora-rank", "99"], "--lora-rank: expected at most 12, that of W_q, got 99"),
        ("d", "d", ["--lora-rank", "2", "--lora-matrices", "W_e"], "--lora-matrices: expected some of W_q,"),
        ("d", "gpt2", ["--d_e", "16", "--L", "2"], "has other sizes (d_e 12 instead of 16): leave them out"),
        ("d", "gpt2", ["--config", "sizes.json"], "has other sizes (d_e 12 instead of 16): leave them out"),
        ("e", "gpt2", [], "holds a model of the task d, but this trains ETransformerParams"),
        ("d", "gpt2", ["--l_max", "41"], "l_max is 41, but"),
        ("d", "none", [], "there is no directory"),
    ],
)
def test_what_does_not_fit_is_said(train, models, tmp_path, monkeypatch, task, start, more, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sizes.json").write_text(json.dumps({"d_e": 16, "steps": 1}))
    status, out, error = train(task, models / start, TEXT, *more)
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert message in error
    assert not (tmp_path / "run").exists()
