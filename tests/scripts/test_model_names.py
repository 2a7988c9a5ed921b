"""Where a command takes a model, it takes a run, a checkpoint's directory, a GGUF file and a name on the hub alike."""

import json
import shutil
import sys
import types

import chex
import jax
import pytest

from tests.run_cases import make_run
from training.data.tokenizers import build_tokenizer
from training.interchange import InterchangeError, convert, load_pretrained
from training.interchange.names import as_run
from training.runs.directory import RunDirectory, load_run

TEXT = "".join(f"The {n}th paragraph says that {n} and {n + 1} are {2 * n + 1}.\n\n" for n in range(60))


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

    def snapshot_download(name, allow_patterns):
        asked.append(name)
        if name != "someone/small":
            raise ConnectionError("404: no such model")
        if not (tmp_path / "snapshot").exists():
            shutil.copytree(models / "checkpoint", tmp_path / "snapshot")
        return str(tmp_path / "snapshot")

    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(snapshot_download=snapshot_download))
    return asked


@pytest.fixture(params=["checkpoint", "hub"])
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


def test_evaluate(name, models, called, tmp_path):
    (tmp_path / "data.txt").write_text(TEXT)
    flags = ("--data", tmp_path / "data.txt", "--l_max", "32")
    _, out, _ = called("evaluate", models / "run", *flags)
    status, other, _ = called("evaluate", name, *flags)
    assert status == 0
    assert out.splitlines()[1:] == other.splitlines()[1:]  # the first line names the run


def test_look_inside(name, called):
    status, out, _ = called("look_inside", name, "--prompt", "The 3th")
    assert status == 0
    assert out.endswith("inside/page.html\n")


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


def test_load_pretrained(name, models):
    theta, config, tokenizer = load_pretrained(name)
    expected = load_run(models / "run")
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


def test_a_run_is_itself(models, cache):
    assert as_run(models / "run") == models / "run"
    assert as_run("nowhere").name == "nowhere"  # which reading the run reports
    assert not cache.exists()


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
        assert error.startswith(f"{words[0]}.py: cannot download someone/large: is the hub reachable")
    assert called("convert", "hf:someone/small", tmp_path / "out")[0] == 0
    assert load_run(tmp_path / "out").task == "d"
    for wrong in ("hf:", "hf:..", "hf:a/b/c", "hf:/etc"):
        with pytest.raises(InterchangeError, match="expected hf:OWNER/NAME"):
            as_run(wrong)
