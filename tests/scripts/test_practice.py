"""Section 8 of the paper: votes and noise."""

import json
import pathlib
import re

import pytest

from tests.run_cases import make_run
from training import commands
from training.data.tokenizers import CharacterTokenizer
from training.runs.trained_model import load_run

pytestmark = pytest.mark.usefixtures("compile_once")

LINES = CharacterTokenizer("\t\nabcdefghij .")
TEXT = "".join(f"{'abcdefghij'[n % 10]}{'abcdefghij'[n // 10 % 10]} fade{'abcd'[n % 4]}. big\n\n" for n in range(300))
SIZES = {"--L": 1, "--H": 2, "--d_e": 8, "--d_mlp": 8, "--l_max": 16, "--batch-size": 4, "--peak": 1e9}


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("run") / "d", "d", LINES)


def test_the_documented_vote_counts_the_answers_behind_a_scratchpad(decoder):
    page = (pathlib.Path(__file__).parents[2] / "docs" / "generation.md").read_text("utf-8")
    (lines,) = re.findall(r"```python\n(from collections import Counter.*?)```", page, re.DOTALL)
    found = {"run": load_run(decoder)}
    exec(lines.replace("50+42+42=", "ab").replace('"answer "', '"e"'), found)  # as a reader runs them
    behind = [answer["text"].split("\n")[0].split("e")[-1] for answer in found["answers"]]
    assert found["votes"] == {text: behind.count(text) for text in behind}
    assert found["votes"].total() == 15


def trained(tmp_path, name, *flags):
    (tmp_path / "text.txt").write_text(TEXT)
    own = ["--run", tmp_path / name, "--data", tmp_path / "text.txt", "--tokenizer", "characters", "--quiet"]
    words = ["d", *own, *(word for pair in SIZES.items() for word in pair), *flags]
    assert commands.train_main([*map(str, words)]) == 0
    return tmp_path / name


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("trained"), "run", "--steps", 3)


def test_a_decoder_is_trained_with_noise(run, tmp_path):
    noisy = trained(tmp_path, "noisy", "--steps", 1, "--token-noise", "0.3")
    losses = [json.loads((one / "metrics.jsonl").read_text().splitlines()[0])["loss"] for one in (run, noisy)]
    assert losses[0] != losses[1]
