"""A URL in place of a path is refused, with what to do, and nothing is written: gs://b/x would be a directory gs:."""

import re
from pathlib import Path

import pytest

from scripts.crosscheck import crosscheck_main
from tests.cases import D, random_theta
from tests.run_cases import BYTES, make_run
from training import commands
from training.data.files import read_corpus
from training.disk import local_path
from training.interchange import load_pretrained, save_pretrained
from training.runs.directory import RunDirectory
from training.runs.trained_model import load_run

URL = "gs://bucket/x"
SAID = f"expected a path on this machine, got {URL}; mount its bucket (with gcsfuse, s3fs or rclone) or copy the"
TRAIN = ["d", "--run", "new", "--L=1", "--H=2", "--d_e=8", "--d_mlp=8", "--steps=1", "--tokenizer=bytes", "--quiet"]
COMMANDS = {
    commands.train_main: [
        ["d", "--run", URL],
        ["--run", URL],
        [*TRAIN, "--data", URL],
        [*TRAIN, "--data", "a.txt=1", f"{URL}=2"],
        [*TRAIN, "--data", "a.txt", "--validation-data", URL],
        [*TRAIN, "--data", "a.txt", "--labeled", URL],
        [*TRAIN, "--data", "a.txt", "--tokenizer", URL],
        [*TRAIN, "--data", "a.txt", "--from", URL],
        [*TRAIN, "--data", "a.txt", "--from", URL, "--lora-rank=2"],
        [*TRAIN, "--config", URL],
        [*TRAIN, "--cache", URL],
    ],
    commands.generate_main: [
        [URL, "--prompt", "a"],
    ],
    commands.evaluate_main: [
        [URL],
        ["run", "--data", URL],
        ["run", "--data", "a.txt", "--validation-data", URL],
    ],
    commands.convert_main: [[URL, "out"], ["run", URL], ["run", "out", "--from", URL]],
    commands.look_inside_main: [[URL, "--prompt", "a"], ["run", "--prompt", "a", "--out", URL]],
    commands.induction_main: [[URL], ["--out", URL]],
    commands.serve_main: [[URL]],
    crosscheck_main: [["--json", URL], ["--html", URL]],
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    root = tmp_path_factory.mktemp("inputs")
    (root / "a.txt").write_text("".join(f"The {n}th paragraph.\n\n" for n in range(90)))
    make_run(root / "run", "d", BYTES, data=[str(root / "a.txt")])
    return root


@pytest.mark.parametrize(
    ("main", "words"),
    [
        pytest.param(main, words, id=" ".join([main.__name__, *words]))
        for main, cases in COMMANDS.items()
        for words in cases
    ],
)
def test_a_command_refuses_a_url(inputs, monkeypatch, capsys, main, words):
    monkeypatch.chdir(inputs)
    before = sorted(inputs.rglob("*"))
    assert main(words) == 2
    assert SAID in capsys.readouterr().err
    assert sorted(inputs.rglob("*")) == before


def save(url):
    save_pretrained(url, random_theta(D), D)


FUNCTIONS = (RunDirectory, load_run, load_pretrained, local_path, lambda url: read_corpus([url], "text"), save)


@pytest.mark.parametrize("call", FUNCTIONS)
def test_a_function_refuses_a_url(call):
    with pytest.raises(ValueError, match=re.escape(SAID)):
        call(URL)


def test_a_path_is_a_path():
    assert local_path("a:/b") == local_path(Path("a:/b")) == Path("a:/b")
