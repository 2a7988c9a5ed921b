"""Section 8 of the paper, as commands: few-shot prompts, votes and noise."""

import json

import pytest

from tests.run_cases import make_run
from training import commands
from training.data.tokenizers import CharacterTokenizer

pytestmark = pytest.mark.usefixtures("compile_once")

LINES = CharacterTokenizer("\t\nabcdefghij .")
TEXT = "".join(f"{'abcdefghij'[n % 10]}{'abcdefghij'[n // 10 % 10]} fade{'abcd'[n % 4]}. big\n\n" for n in range(300))
SIZES = {"--L": 1, "--H": 2, "--d_e": 8, "--d_mlp": 8, "--l_max": 16, "--batch-size": 4, "--peak": 1e9}


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("run") / "d", "d", LINES)


def test_examples_of_a_file_stand_before_every_prompt(decoder, tmp_path, printed):
    (tmp_path / "shots.tsv").write_text("ab\tba\ncd\tdc\n")
    options = ["--tau", "0", "--l_gen", "4", "--json"]
    asked = ("generate", decoder, "--shots", tmp_path / "shots.tsv", *options)
    lines = printed(*asked, stdin="ef\ngh\n").splitlines()
    found = [json.loads(line) for line in lines]
    assert [one["prompt"] for one in found] == ["ab\tba\ncd\tdc\nef\t", "ab\tba\ncd\tdc\ngh\t"]
    for one in found:
        alone = json.loads(printed("generate", decoder, "--prompt", one["prompt"], "--stop", "\n", *options))["answers"]
        assert [answer["text"] for answer in alone] == [answer["text"] for answer in one["answers"]]


def test_the_answers_of_a_prompt_vote(decoder, printed):
    asked = ["generate", decoder, "--prompt", "ab", "--n", "9", "--l_gen", "1", "--tau", "1", "--json"]
    texts = [answer["text"].strip() for answer in json.loads(printed(*asked))["answers"]]
    (winner,) = json.loads(printed(*asked, "--vote"))["answers"]
    assert winner["votes"] == max(map(texts.count, texts)) == texts.count(winner["text"])
    assert winner["voters"] == 9
    assert printed(*asked[:-1], "--vote") == f"{winner['text']}\n"


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
