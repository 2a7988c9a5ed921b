"""Where a command takes a model, it takes a run, a checkpoint's directory, a GGUF file and a name on the hub alike."""

import json
import os
import shutil
import sys
import time
import types

import chex
import jax
import numpy as np
import pytest

from tests import gguf_cases, interchange_cases
from tests.run_cases import make_run
from training.command_line.named_models import run_of
from training.data.tokenizers import build_tokenizer
from training.interchange import InterchangeError, convert, load_pretrained
from training.interchange.names import as_run
from training.runs.directory import RunDirectory
from training.runs.trained_model import load_run

TEXT = "".join(f"The {n}th paragraph says that {n} and {n + 1} are {2 * n + 1}.\n\n" for n in range(60))


COMMITS = {None: "a" * 40, "main": "a" * 40, "v2": "b" * 40}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    make_run(root / "run", "d", build_tokenizer("bpe", [TEXT], N_V=290), variant="GPT2", d_e=12, H=3, dropout=0.0)
    convert(root / "run", root / "checkpoint")
    (root / "checkpoint" / "README.md").write_text("---\nlicense: cc0-1.0\n---\n")
    return root


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "formal-algorithms"


@pytest.fixture
def hub(models, tmp_path, monkeypatch):
    """A hub with one model; the list of the names that were downloaded."""
    asked = []

    def snapshot_download(name, allow_patterns, revision):
        asked.append(name if revision is None else f"{name}@{revision}")
        if name != "someone/small":
            raise ConnectionError("404: no such model")
        snapshot = tmp_path / "snapshots" / COMMITS.get(revision, revision)
        if not snapshot.exists():
            shutil.copytree(models / "checkpoint", snapshot)
        return str(snapshot)

    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(snapshot_download=snapshot_download))
    return asked


@pytest.fixture(params=[pytest.param("checkpoint", marks=pytest.mark.thorough), "hub"])
def name(request, models, hub, cache):
    """A model that is not a run."""
    return models / "checkpoint" if request.param == "checkpoint" else "hf:someone/small"


def test_generate(name, models, called):
    flags = ("--prompt", "The 3th", "--l_gen", "5", "--tau", "0", "--json")
    expected = called("generate", models / "run", *flags)
    status, out, error = called("generate", name, *flags)
    assert (status, out) == (0, expected[1])
    assert "which the scripts accept as a run" in error
    assert "license: cc0-1.0" in error
    assert called("generate", name, *flags) == (0, expected[1], "")  # converted once


@pytest.mark.sampled(2)
@pytest.mark.parametrize("flags", [(), ("--lora-rank", "2")])
def test_train_from(name, flags, models, called, tmp_path, cache):
    (tmp_path / "data.txt").write_text(TEXT)
    arguments = ["d", "--from", name, "--run", tmp_path / "run", "--data", tmp_path / "data.txt", *flags, "--quiet"]
    arguments += ["--steps", "1", "--l_max", "16" if not flags else "40", "--peak", "1e9", "--no-tensorboard"]
    status, _, error = called("train", *arguments)
    assert status == 0, error
    assert called("train", *arguments)[0] == 0  # the same command resumes the run
    settings = RunDirectory(tmp_path / "run").description().settings
    assert settings.start_from.startswith(str(cache / "models") if flags else str(name))
    assert load_run(tmp_path / "run").task == "d"


def test_load_pretrained(models, hub, cache):
    expected = load_run(models / "run")
    for name in (models / "checkpoint", "hf:someone/small"):
        theta, config, tokenizer = load_pretrained(name)
        assert (config.L, tokenizer.N_V) == (2, expected.tokenizer.N_V)
        chex.assert_trees_all_equal(*map(jax.tree.leaves, (theta, expected.theta)))


def test_a_changed_checkpoint_is_converted_anew(models, cache, tmp_path):
    shutil.copytree(models / "checkpoint", tmp_path / "checkpoint")
    first = as_run(tmp_path / "checkpoint")
    assert as_run(tmp_path / "checkpoint") == first
    config = tmp_path / "checkpoint" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"layer_norm_epsilon": 1e-3}))
    second = as_run(tmp_path / "checkpoint")
    assert second != first
    assert load_run(second).config.variant.norm.epsilon == 1e-3


def test_the_hub_is_asked_once_and_its_errors_are_sentences(hub, cache, called, tmp_path):
    as_run("hf:someone/small")
    as_run("hf:someone/small")
    assert hub == ["someone/small"]
    for words in (
        ["generate", "hf:someone/large", "--prompt", "The"],
        ["convert", "hf:someone/large", tmp_path / "out"],
    ):
        status, _, error = called(*words)
        assert (status, error.count("\n"), (tmp_path / "out").exists()) == (2, 1, False)
        assert error.startswith(f"{words[0]}.py: cannot download someone/large: ")
    assert called("convert", "hf:someone/small", tmp_path / "out")[0] == 0
    assert load_run(tmp_path / "out").task == "d"
    for wrong in ("hf:", "hf:..", "hf:a/b/c", "hf:/etc", "hf:a@", "hf:a@/b", "hf:a@b@c", "hf:a:b"):
        with pytest.raises(InterchangeError, match="expected hf:OWNER/NAME"):
            as_run(wrong)


def test_a_revision_is_fetched_and_recorded(hub, cache, called, tmp_path):
    for name, commit in (("hf:someone/small@v2", "b" * 40), ("hf:someone/small", "a" * 40)):
        run = as_run(name)
        assert RunDirectory(run).description().origin == f"hf:someone/small@{commit}"
    assert hub == ["someone/small@v2", "someone/small"]
    assert called("convert", "hf:someone/small@v2", tmp_path / "out")[0] == 0
    assert json.loads((tmp_path / "out" / "config.json").read_text())["origin"] == f"hf:someone/small@{'b' * 40}"


def test_a_training_records_the_commit_and_resumes_by_the_same_command(hub, cache, called, tmp_path):
    (tmp_path / "data.txt").write_text(TEXT)
    rest = ["--run", tmp_path / "run", "--data", tmp_path / "data.txt", "--l_max", "16", "--quiet", "--no-tensorboard"]
    rest += ["--peak", "1e9", "--schedule", "constant", "--steps"]
    assert called("train", "d", "--from", "hf:someone/small@v2", *rest, "1")[0] == 0
    settings = RunDirectory(tmp_path / "run").description().settings
    assert settings.start_from == f"hf:someone/small@{'b' * 40}"
    for steps, same in enumerate(("v2", "main", "b" * 40), 2):  # main may be the same; another commit is not
        assert called("train", "d", "--from", f"hf:someone/small@{same}", *rest, steps)[0] == 0
    assert RunDirectory(tmp_path / "run").description().settings.start_from == settings.start_from
    status, _, error = called("train", "d", "--from", f"hf:someone/small@{'c' * 40}", *rest, "9")
    assert (status, "began with other settings" in error) == (2, True)


@pytest.mark.parametrize(
    ("form", "dtype"), [("F32", "float32"), ("F16", "float16"), ("BF16", "bfloat16"), ("Q8_0", "bfloat16")]
)
def test_the_cache_keeps_a_files_precision(form, dtype, cache, tmp_path, capsys):
    """And says how much it keeps, and until when."""
    _, transformers = interchange_cases.libraries()
    sizes = {"n_positions": 16, "n_embd": 64, "n_layer": 1, "n_head": 2, "vocab_size": 96}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
    file = gguf_cases.write(tmp_path / "m.gguf", model, kind=lambda name: form if "norm" not in name else "F32")
    run = run_of(str(file))
    theta = load_run(run).theta
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(theta)} == {dtype}
    whole, _, _ = load_pretrained(file)  # in float32
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b.astype(dtype)), theta, whole)
    n = sum(leaf.size for leaf in jax.tree.leaves(theta))
    size = (run / "parameters.safetensors").stat().st_size
    assert n * np.dtype(theta.W_e.dtype).itemsize <= size < n * np.dtype(theta.W_e.dtype).itemsize + 9000
    said = capsys.readouterr().err
    assert f"{n:,} parameters" in said
    assert f"MB in {dtype}" in said
    assert "It is kept there until 30 days after its last use, or until --clear-models." in said


def test_what_nothing_uses_is_removed(models, cache, called, tmp_path):
    for name in ("a", "b", "c"):
        shutil.copytree(models / "checkpoint", tmp_path / name)
    old, used, other = (run_of(str(tmp_path / name)) for name in ("a", "b", "c"))
    for run, days in ((old, 31), (used, 31), (other, 29)):
        os.utime(run / "config.json", (0, time.time() - 24 * 3600 * days))
    run_of(str(tmp_path / "b"))  # is used again
    shutil.copytree(models / "checkpoint", tmp_path / "d")
    new = run_of(str(tmp_path / "d"))
    assert [run.exists() for run in (old, used, other, new)] == [False, True, True, True]
    (cache / "models" / ".unfinished").mkdir()
    (cache / "models" / ".unfinished" / "config.json").write_text("{}")
    status, _, error = called("generate", tmp_path / "d", "--prompt", "The", "--l_gen", "2", "--clear-models")
    assert (status, "Converted" in error) == (0, True)
    assert [run.exists() for run in (old, used, other, new)] == [False, False, False, True]
    assert (cache / "models" / ".unfinished").exists()  # another process may be writing it
    assert not [path for path in (cache / "models").iterdir() if path.name.startswith(".removed")]


def test_an_adapters_model_is_in_use(models, cache, called, tmp_path):
    (tmp_path / "data.txt").write_text(TEXT)
    for name in ("base", "another"):
        shutil.copytree(models / "checkpoint", tmp_path / name)
    flags = ["--run", tmp_path / "run", "--data", tmp_path / "data.txt", "--lora-rank", "1", "--steps", "1", "--quiet"]
    assert called("train", "d", "--from", tmp_path / "base", *flags, "--l_max", "40", "--no-tensorboard")[0] == 0
    base = run_of(str(tmp_path / "base"))
    os.utime(base / "config.json", (0, 0))
    load_run(tmp_path / "run")
    run_of(str(tmp_path / "another"))
    assert base.exists()
