"""scripts/generate.py, with runs of every task: what it prints, and what it refuses."""

import io
import json
import os
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import d_inference, d_transformer, e_transformer, ed_inference
from tests.run_cases import LABELS, LETTERS, make_run
from training import oracle
from training.command_line.terminal import show
from training.commands import generate
from training.data.special_tokens import SpecialTokens
from training.data.tokenizers import CharacterTokenizer, LibraryTokenizer, build_tokenizer
from training.generation import Generator
from training.runs.directory import RunDirectory
from training.runs.trained_model import load_run
from training.tasks.classify import class_probabilities


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    paths = {task: make_run(root / task, task) for task in ("d", "e", "ed", "classify")}
    assert all(RunDirectory(path).description().settings.dropout > 0 for path in paths.values())  # and used without
    return paths


@pytest.fixture
def answered(runs, called):
    """Run the script on the run of a task; return what it printed."""

    def call(task, *arguments, stdin=""):
        status, out, err = called("generate", runs[task], *arguments, stdin=stdin)
        assert (status, err) == (0, "")
        return out

    return call


def continuation(runs, prompt, l_gen, tau, r=0, seed=0):
    """What Algorithm 14 makes of a prompt, up to eos."""
    model = load_run(runs["d"])
    x = jnp.asarray([LETTERS.bos_token, *LETTERS.encode(prompt)])
    key = jax.random.fold_in(jax.random.key(seed), r)
    tokens = d_inference(x, model.theta, l_gen=l_gen, tau=tau, key=key).tolist()
    return LETTERS.decode(tokens[: tokens.index(LETTERS.eos_token)] if LETTERS.eos_token in tokens else tokens)


def translation(runs, line, tau=0.0, r=0, seed=0):
    """The result of Algorithm 15 for a line."""
    z = jnp.asarray([LETTERS.bos_token, *LETTERS.encode(line), LETTERS.eos_token])
    options = {"tau": tau, "key": jax.random.fold_in(jax.random.key(seed), r), "l_max": 9}
    tokens, length = ed_inference(z, load_run(runs["ed"]).theta, **options)
    return LETTERS.decode(tokens[: int(length)].tolist())


def test_a_decoder_continues_the_prompt(answered, runs):
    expected = continuation(runs, "abc", 20, 1.0)
    assert answered("d", "--prompt", "abc", "--l_gen", 20, "--tau", 1) == expected + "\n"
    assert answered("d", "--l_gen", 20, "--tau", 1, stdin="abc") == expected + "\n"


def test_several_answers_are_drawn_independently_and_by_the_seed(answered, runs):
    flags = ("--prompt", "abc", "--l_gen", 20, "--tau", 1, "--n", 3, "--seed", 5, "--json")
    answers = json.loads(answered("d", *flags))["answers"]
    assert [a["text"] for a in answers] == [continuation(runs, "abc", 20, 1.0, r, seed=5) for r in range(3)]
    assert len({a["text"] for a in answers}) == 3


def test_drafts_change_nothing_but_the_number_of_passes(called, runs, tmp_path):
    flags = ("--prompt", "abc", "--l_gen", 20, "--tau", 1, "--n", 2, "--stop", "e", "--repetition-penalty", 1.1)
    with_head = make_run(tmp_path / "mtp", "d", mtp_weight=0.3)
    status, plain, _ = called("generate", with_head, *flags)
    again, drafted, note = called("generate", with_head, *flags, "--draft")
    assert (status, again, drafted) == (0, 0, plain)
    said = re.fullmatch(r"note: (.+)% of (\d+) drafts were accepted: (.+) tokens for each pass of the model\n", note)
    assert said
    share, passes, rate = map(float, said.groups())
    assert 0 < round(share / 100 * passes) <= passes < 40
    assert rate == pytest.approx(1 + share / 100, abs=0.01)
    status, _, error = called("generate", runs["d"], *flags, "--draft")
    assert (status, error[:70]) == (2, "generate.py: theta.mtp: expected a head for the token after the next, ")
    status, _, error = called("generate", with_head, *flags, "--draft", "--weights", "int8")
    assert (status, error) == (2, "generate.py: --draft and --weights or steer exclude each other\n")


@pytest.mark.parametrize(
    ("flags", "of_model", "how"),
    [
        (("--tau", 0, "--no-repeat-ngram-size", 2), {}, {"tau": 0.0, "no_repeat_ngram_size": 2}),
        (("--tau", 0, "--repetition-penalty", 3.0), {}, {"tau": 0.0, "repetition_penalty": 3.0}),
        (("--tau", 3, "--top-k", 1), {}, {"tau": 0.0}),
        (("--tau", 3, "--top-p", "0.0001"), {}, {"tau": 0.0}),
        (("--tau", 1, "--weights", "int8"), {"int8": True}, {"tau": 1.0}),
    ],
)
def test_what_is_asked_for_reaches_the_model(answered, runs, flags, of_model, how):
    model = load_run(runs["d"])
    x = np.array([[LETTERS.bos_token, *LETTERS.encode("abc")]])
    options = {"lengths": np.array([4]), "l_gen": 9, "eos": LETTERS.eos_token, "key": jax.random.key(0)}
    tokens = Generator(model.theta, model.config, **of_model).generate(x, **options, **how)[0]
    expected = LETTERS.decode(tokens[tokens != LETTERS.eos_token].tolist())
    assert answered("d", "--prompt", "abc", "--l_gen", 9, *flags) == expected + "\n"
    assert of_model or answered("d", "--prompt", "abc", "--l_gen", 9, *flags[:2]) != expected + "\n"


def test_several_answers_are_told_apart(answered, runs):
    drawn = [continuation(runs, "abc", 5, 1.0, r) for r in range(4)]
    for flags, names in (
        (("--n", 2), ("answer 1", "answer 2")),
        (("--prompt", "abc"), ("prompt 1", "prompt 2")),
        (("--prompt", "abc", "--n", 2), [f"prompt {p}, answer {n}" for p in (1, 2) for n in (1, 2)]),
    ):
        expected = "".join(f"--- {name} ---\n{text}\n" for name, text in zip(names, drawn, strict=False))
        assert answered("d", "--l_gen", 5, "--tau", 1, "--prompt", "abc", *flags) == expected
    expected = "".join(f"{r + 1}\t{translation(runs, 'abc', 1.0, r)}\n" for r in range(2))
    assert answered("ed", "--l_max", 9, "--tau", 1, "--n", 2, stdin="abc\n") == expected


def test_a_stop_ends_the_text(answered, runs):
    free = continuation(runs, "abc", 20, 1.0)
    stop = free[4:6]
    expected = free[: free.index(stop)]
    flags = ("--prompt", "abc", "--l_gen", 20, "--tau", 1, "--stop", stop, "--stop", "never to be seen")
    assert answered("d", *flags) == expected + "\n"
    answer = json.loads(answered("d", *flags, "--json"))["answers"][0]
    assert (answer["text"], answer["ended_by"]) == (expected, "stop")


def test_an_encoder_decoder_translates_line_by_line(answered, runs):
    lines = ["abc", "j", "fade ."]
    expected = [translation(runs, line) for line in lines]
    stdin = "\n".join(lines) + "\n"
    assert answered("ed", "--l_max", 9, stdin=stdin).splitlines() == expected
    assert answered("ed", "--l_max", 9, "--prompt", "abc") == expected[0] + "\n"  # streamed


def test_an_encoder_fills_masks(answered, runs):
    model = load_run(runs["e"])
    text = "ab[MASK]d e[MASK]"
    tokens = [LETTERS.bos_token, *LETTERS.encode("ab"), LETTERS.mask_token, *LETTERS.encode("d e"), LETTERS.mask_token]
    P = np.asarray(e_transformer(jnp.asarray([*tokens, LETTERS.eos_token]), model.theta))
    best = np.argsort(-P, axis=0)
    answer = json.loads(answered("e", "--prompt", text, "--n", 2, "--json"))["answers"][0]
    for candidates, t in zip(answer["masks"], (3, 7), strict=True):
        np.testing.assert_allclose([c["probability"] for c in candidates], np.sort(P[:, t])[::-1][:2], rtol=1e-4)
    filled = [int(best[0, 3]), int(best[0, 7])]
    whole = [*tokens[:3], filled[0], *tokens[4:7], filled[1]]
    assert answer["text"] == LETTERS.decode(whole)
    assert answered("e", "--prompt", text) == LETTERS.decode(whole) + "\n"
    assert answered("e", "--prompt", text, "--n", 3).count("mask 2: ") == 3


def test_an_encoder_fills_masks_after_a_text_step_by_step(answered, runs):
    tokens = [LETTERS.bos_token, *LETTERS.encode("ab"), *[LETTERS.mask_token] * 3, LETTERS.eos_token]
    own = [load_run(runs["e"]).theta, 2, 0.0, None, lambda x, theta: np.array(e_transformer(jnp.asarray(x), theta))]
    expected = LETTERS.decode(oracle.e_inference(tokens, *own))
    assert answered("e", "--prompt", "ab", "--l_gen", 3, "--steps", 2) == f"{expected}\n"
    assert len(answered("e", "--prompt", "ab", "--l_gen", 3, "--tau", 0.5, "--n", 2).splitlines()) == 2


def test_a_classifier_names_the_class(answered, runs):
    model = load_run(runs["classify"])
    x = jnp.asarray([LETTERS.bos_token, *LETTERS.encode("bad"), LETTERS.eos_token])
    p = np.asarray(class_probabilities(x, model.theta))
    best = int(p.argmax())
    assert answered("classify", stdin="bad\n") == f"{LABELS[best]}\t{p[best]:.4f}\n"
    answer = json.loads(answered("classify", "--json", stdin="bad\n"))["answers"][0]
    np.testing.assert_allclose([answer["probabilities"][label] for label in LABELS], p, rtol=1e-5)


def test_every_line_is_a_request_of_its_own(answered, runs, monkeypatch):
    monkeypatch.setattr(generate, "LINES_AT_ONCE", 2)
    expected = [translation(runs, "abc", 2.0, r, seed=4) for r in range(3)]
    flags = ("--l_max", 9, "--tau", 2, "--seed", 4)
    assert answered("ed", *flags, stdin=3 * "abc\n").splitlines() == expected
    assert len(set(expected)) == 3
    assert answered("ed", *flags, stdin="\nj\nabc\n").splitlines()[2] == expected[2]


def test_line_n_in_is_line_n_out(answered, runs, called):
    lines = answered("ed", "--l_max", 6, stdin="abc\n\nj\n").split("\n")
    assert lines[0] == answered("ed", "--l_max", 6, stdin="abc\n")[:-1]
    assert lines[1] == ""
    assert lines[2] == answered("ed", "--l_max", 6, stdin="j\n")[:-1]
    objects = answered("ed", "--json", "--l_max", 6, stdin="\nabc\n").splitlines()
    assert json.loads(objects[0]) == {"prompt": "", "answers": []}
    status, out, err = called("generate", runs["ed"], "--l_max", 6, stdin="abc\n?\nj\n")
    assert (status, out.split("\n"), err.count("\n")) == (2, lines, 1)
    assert "'?'" in err


@pytest.mark.parametrize("origin", ["trained here", "published"])
def test_a_prompt_that_ends_in_a_space_goes_on_with_a_word(called, printed, tmp_path, origin):
    """Which is said, unless the space is kept. A published tokenizer has its special tokens anywhere, perhaps no mask,
    and fewer tokens than its model.
    """
    tokenizer = build_tokenizer("bpe", ["the cat sat on the mat, the rat sat on the cat. " * 9], N_V=280)
    if origin == "published":
        tokenizer = LibraryTokenizer(tokenizer.inner, special=SpecialTokens(N_V=290, bos=0, eos=0))
    run = make_run(tmp_path / "bpe", "d", tokenizer)
    model = load_run(run)
    read = tokenizer.framed(tokenizer.encode("the"), ends=False)
    P = np.asarray(d_transformer(jnp.asarray(read), model.theta))[:, -1]
    spaced = [v for v in range(tokenizer.N_V) if tokenizer.decode([v]).startswith(" ")]
    assert len(spaced) > 3
    best = max(spaced, key=lambda v: P[v])
    assert best != P.argmax()  # else this would show nothing
    more = d_inference(jnp.asarray([*read, best]), model.theta, l_gen=4, tau=0.0, key=jax.random.key(0))
    expected = tokenizer.decode([best, *more.tolist()])[1:]
    assert tokenizer.eos_token not in more
    asked = ("generate", run, "--l_gen", 5, "--tau", 0, "--prompt", "the ")
    assert printed(*asked) == expected + "\n"  # streamed
    first, _ = printed(*asked, "--prompt", "the cat", "--json").splitlines()
    assert json.loads(first)["answers"][0]["text"] == expected
    (noted,) = called(*asked)[2].splitlines()
    assert noted.startswith("note: text 1: its final space is not read")
    whole = tokenizer.framed(tokenizer.encode("the "), ends=False)
    kept = d_inference(jnp.asarray(whole), model.theta, l_gen=5, tau=0.0, key=jax.random.key(0)).tolist()
    assert called(*asked, "--keep-final-space") == (0, tokenizer.decode(kept) + "\n", "")
    assert kept[0] != best


def test_a_terminal_gets_no_control_characters(capsys, monkeypatch):
    text = "ring \a, red \x1b[31m, \u202ebackwards\n\tand é"
    show(text)
    assert capsys.readouterr().out == text + "\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    show(text)
    assert capsys.readouterr().out == "ring \\x07, red \\x1b[31m, \\u202ebackwards\n\tand é\n"


NEWLINES = CharacterTokenizer("abcdefghij .\n")


def test_a_conversation_keeps_its_history(called, printed, tmp_path):
    """A line that cannot be answered leaves it, an empty line goes on, and /reset forgets it."""
    run = make_run(tmp_path / "d", "d", NEWLINES, l_max=200)
    model = load_run(run)
    generator = Generator(model.theta, model.config)

    def said(text, r):
        x = np.array([[NEWLINES.bos_token, *NEWLINES.encode(text)]])
        key = jax.random.fold_in(jax.random.key(0), r)[None]
        tokens = generator.generate(x, lengths=np.array([x.size]), l_gen=9, key=key, eos=NEWLINES.eos_token)[0]
        return NEWLINES.decode(tokens[tokens != NEWLINES.eos_token].tolist())

    asked = ("generate", run, "--interactive", "--l_gen", 9, "--tau", 1)
    status, out, err = called(*asked, stdin="abc\n???\nde\n\n/reset\nabc\n")
    first = said("abc", 0)
    second = said(f"abc{first}\nde", 2)
    third = said(f"abc{first}\nde{second}", 3)
    assert (status, out, err.count("\n")) == (0, f"{first}\n{second}\n{third}\n{said('abc', 5)}\n", 1)
    assert "'?'" in err
    lines = [json.loads(line) for line in printed(*asked, "--json", "--n", 2, stdin="abc\nde\n").splitlines()]
    assert lines[1]["prompt"] == f"abc{lines[0]['answers'][0]['text']}\nde"


def piped(data):
    """Standard input as Python has it where bytes come through a pipe, in a locale of ASCII."""
    return io.TextIOWrapper(io.BytesIO(data), encoding="ascii")


@pytest.mark.parametrize("task", ["d", "classify"])
def test_what_is_not_utf_8_is_said(runs, called, task):
    for flags, byte in (([], "0xff at character 2"), (["--prompt", os.fsdecode(b"\xc3(")], "0xc3 at character 0")):
        expected = f"generate.py: expected UTF-8, got the byte {byte}; convert the text\n"
        assert called("generate", runs[task], *flags, stdin=piped(b"ab\xffc")) == (2, "", expected)


def test_a_line_that_is_not_utf_8_loses_no_other(runs, called):
    for flags in ([], ["--json"]):
        stdin = piped(b"abc\nd\xffe\nj\n")
        status, out, err = called("generate", runs["ed"], "--l_max", "6", *flags, stdin=stdin)
        expected = "generate.py: expected UTF-8, got the byte 0xff at character 1; convert the text\n"
        assert (status, err, len(out.splitlines())) == (2, expected, 3)
    second, third = map(json.loads, out.splitlines()[1:])
    assert second == {"prompt": "d\ufffde", "answers": []}
    assert third["prompt"] == "j"


def test_a_text_that_is_mostly_unknown_is_noted(tmp_path, called):
    words = build_tokenizer("words", ["the cat sat on the mat"] * 9, N_V=20)
    run = make_run(tmp_path / "run", "d", words)
    note = "note: text 1: more than half of its tokens are unknown to the run's tokenizer\n"
    for prompt, noted in (("the cat sat", False), ("the dog sits", True), ("the dog sat", False)):
        status, _, err = called("generate", run, "--prompt", prompt, "--l_gen", "3")
        assert (status, err) == (0, note * noted)
