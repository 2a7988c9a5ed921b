"""generate.py --chat: what a small model with a template answers, turn by turn, and what it refuses."""

import functools
import json
import os
import pathlib
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest

from tests.run_cases import conversing, make_run
from training.data.tokenizers import LibraryTokenizer
from training.generation import Generator
from training.generation.prefixes import LEAST
from training.generation.talking import Conversation
from training.runs.trained_model import load_run

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "generate.py"
L_MAX = 90


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "talks", "d", conversing(), l_max=L_MAX)


@pytest.fixture(scope="module")
def model(run):
    return load_run(run)


@pytest.fixture
def told(run, called):
    """What is printed, and what is said about it."""
    return functools.partial(called, "generate", run, "--chat", "--tau", "0")


def written(*contents, system=None):
    """The conversation as the template writes it."""
    roles = [("user", "assistant")[i % 2] for i in range(len(contents))]
    said = [("system", system)] * (system is not None) + list(zip(roles, contents, strict=True))
    return "<s>" + "".join(f"{role}: {content}<end>" for role, content in said) + "assistant: "


def answer_of(model, *contents, system=None, l_gen=None):
    """The greedy answer to a conversation that is read anew as a whole; it ends at any end token."""
    x = model.tokenizer.encode_markup(written(*contents, system=system))
    l_gen = L_MAX - len(x) + 1 if l_gen is None else l_gen
    options = {"lengths": np.array([len(x)]), "l_gen": l_gen, "key": jax.random.key(0), "tau": 0.0}
    tokens = Generator(model.theta, model.config).generate(np.array([x]), **options)[0].tolist()
    end = next((i for i, token in enumerate(tokens) if token in model.tokenizer.end_tokens), len(tokens))
    return model.tokenizer.decode(tokens[:end])


def test_a_prompt_opens_a_conversation(told, model):
    assert told("--prompt", "the cat") == (0, answer_of(model, "the cat") + "\n", "")
    assert told(stdin="the cat\nsat") == (0, answer_of(model, "the cat\nsat") + "\n", "")
    expected = answer_of(model, "the cat", system="sat on")
    assert expected != answer_of(model, "the cat")
    assert told("--prompt", "the cat", "--system", "sat on") == (0, expected + "\n", "")
    _, printed, _ = told("--prompt", "the cat", "--prompt", "the", "--json", "--n", "2", "--l_gen", "4")
    for line, text in zip(printed.splitlines(), ("the cat", "the"), strict=True):
        assert [a["text"] for a in json.loads(line)["answers"]] == [answer_of(model, text, l_gen=4)] * 2


def test_a_conversation_goes_on_and_is_not_read_again(told, model, monkeypatch):
    """What cannot be said leaves it."""
    expected, said = [], []
    for text in ("the cat", "sat", "the rat"):
        said.append(text)
        expected.append(answer_of(model, *said, l_gen=3))
        said.append(expected[-1])
    talkers = []
    original = Conversation.hear
    monkeypatch.setattr(Conversation, "hear", lambda self, text: talkers.append(self) or original(self, text))
    anew = answer_of(model, "sat", l_gen=3)
    stdin = f"the cat\n\nsat\n{'mat ' * 99}\nthe rat\n/reset\nsat\n"
    status, printed, notice = told("--interactive", "--l_gen", "3", stdin=stdin)
    assert (status, printed, notice.count("\n")) == (0, "\n".join([*expected, anew, ""]), 1)
    assert "but the model reads at most l_max = 90: shorten it" in notice
    assert talkers[0].generator.prefixes.found >= LEAST


def test_each_of_several_end_tokens_ends_an_answer(told, model, monkeypatch):
    x = model.tokenizer.encode_markup(written("the cat"))
    generator = Generator(model.theta, model.config)
    key = jax.random.key(0)
    likely = generator.generate(np.array([x]), lengths=np.array([len(x)]), l_gen=6, key=key, tau=0.0)[0].tolist()
    text = model.tokenizer.decode(likely[:3])
    assert likely[3] not in likely[:3]
    ends = (model.tokenizer.special.eos, model.tokenizer.special.ends[0], likely[3])
    monkeypatch.setattr(LibraryTokenizer, "end_tokens", ends)
    assert told("--prompt", "the cat") == (0, text + "\n", "")
    _, printed, _ = told("--prompt", "the cat", "--json")
    (answer,) = json.loads(printed)["answers"]
    assert (answer["text"], answer["ended_by"], len(answer["log_probabilities"])) == (text, "eos", 4)


def test_a_conversation_that_outgrows_the_context_drops_its_oldest_turns_and_says_so(told, model):
    said, contents, notes = [], [], 0
    for text in ("the cat sat", "the rat", "on the mat", "sat", "the cat"):
        contents.append(text)
        while len(model.tokenizer.encode_markup(written(*contents, system="the"))) + 9 > L_MAX + 1:
            contents, notes = contents[2:], notes + 1
        said.append(answer_of(model, *contents, system="the", l_gen=9))
        contents.append(said[-1])
    assert notes >= 2
    stdin = "the cat sat\nthe rat\non the mat\nsat\nthe cat\n"
    status, printed, notice = told("--interactive", "--system", "the", "--l_gen", "9", stdin=stdin)
    assert (status, printed) == (0, "\n".join([*said, ""]))
    assert "note: the conversation has outgrown the model's context of l_max = 90 tokens: its oldest " in notice
    assert "2 messages are dropped" in notice


def test_an_answer_that_fills_the_context_says_so(told, model):
    model_says = answer_of(model, "the cat")
    status, printed, notice = told("--interactive", stdin="the cat\n")
    assert (status, printed) == (0, model_says + "\n")
    assert notice == "note: the answer ends where the model's context of l_max = 90 tokens is full\n"


@pytest.mark.end_to_end
def test_ctrl_c_stops_an_answer_and_not_the_conversation(tmp_path):
    run = make_run(tmp_path / "talks", "d", conversing(), l_max=4000)
    model = load_run(run)
    flags = [sys.executable, str(SCRIPT), str(run), "--chat", "--interactive", "--tau", "1"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(flags, **pipes, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"}) as process:
        process.stdin.write("the cat\n")
        process.stdin.flush()
        first = process.stdout.read(1)  # the answer, which is long, has begun
        process.send_signal(signal.SIGINT)
        first += process.stdout.readline()
        process.stdin.write("/reset\n")
        process.stdin.close()
        rest, notice = process.stdout.read(), process.stderr.read()
        assert process.wait(timeout=60) == 0, notice
    assert (rest, notice) == ("", "")
    assert 0 < len(model.tokenizer.encode(first)) < 3900
