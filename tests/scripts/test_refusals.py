"""Whatever is wrong with a command line is one sentence, exit status 2, and nothing on standard output."""

import shlex

import pytest

from tests.run_cases import BYTES, LETTERS, conversing, make_run
from tests.training_cases import GATO_SETTINGS

COUNT = "expected an integer of at least 1, got"
PICTURE = "--out: expected a .png, .svg or .pdf in an existing directory"
REFUSED = {
    "generate": [
        ("d --temperature 1", "", "--temperature: expected a known flag, got '--temperature'; did you mean --tau?"),
        ("d --batch 3", "", "--batch: expected a known flag, got '--batch'; see --help"),
        ("nope.gguf", "", "there is no file nope.gguf"),
        ("ed", "a" * 40, "has 42 tokens, including special ones, but the model reads at most l_max = 40"),
        ("d --prompt ''", "", "text 1 is empty"),
        ("d --prompt abz", "", "character 'z'"),
        ("d --prompt abc --top-k 16", "", "top_k: expected at least 1 and at most 15"),
        ("d --prompt abc --stop ''", "", "--stop: expected some text"),
        ("d --prompt abc --beam-size 3", "", "--beam-size does not apply: the run is a decoder"),
        ("d --interactive --prompt abc", "", "--interactive and --prompt exclude each other"),
        ("ed --n 2", "abc\n", "would be the same"),
        ("ed --top-k 2", "abc\n", "--top-k does not apply: the run is an encoder-decoder"),
        ("ed --l_max 41", "abc\n", "l_max: expected at least 1 and at most 40"),
        ("e --prompt abc", "", "there is no [MASK] to be filled in the text 'abc'"),
        ("e --prompt a[MASK] --tau 1", "", "--tau and --seed: expected --steps or --l_gen with them"),
        ("e --prompt a[MASK] --n 16", "", "n: expected at least 1 and at most 15"),
        ("e --prompt a[MASK] --weights int8", "", "--weights does not apply: the run is an encoder,"),
        ("classify --seed 1", "abc\n", "--seed does not apply: the run is a classifier, whose options are none"),
        ("d --chat --prompt a", "", "the model has no chat template: it was not trained to converse"),
        ("e --chat --prompt a", "", "--chat: expected a decoder, got"),
        ("d --system a --prompt a", "", "--system: expected --chat with it"),
        ("talks --chat --prompt ''", "", "text 1 is empty: give some text to answer"),
        ("talks --chat --prompt a --system never", "", "refuses the conversation or raises an error: no such system"),
        (f"talks --chat --prompt '{'mat ' * 99}'", "", "but the model reads at most l_max = 90: shorten it"),
        ("talks --chat --beam-size 2", "", "--beam-size does not apply: the run is a decoder that converses"),
    ],
    "evaluate": [
        ("d --l_max 9", "", "--l_max: expected --data with it, got none; name the data, or leave it out"),
        ("d --data x --l_max 41", "", "--l_max: expected at most the model's 40 tokens, got 41"),
        ("ed --data x --l_max 9", "", "--l_max: expected a run of d or e, got one of ed; leave it out"),
        (
            "talks --data a.txt --validation-data b.txt --limit 3",
            "",
            "--limit: expected a run of ed or classify, got one",
        ),
        *((f"d --limit {limit}", "", f"--limit: {COUNT} '{limit}'") for limit in ("0", "many")),
    ],
    "induction": [
        ("d --out a.txt", "", f"{PICTURE}, got a.txt"),
        ("d --out nowhere/a.png", "", PICTURE),
        ("nowhere", "", "there is no run directory nowhere"),
        ("e", "", "RUN: expected a decoder's run (task d), got one of task e"),
        ("short", "", "RUN: expected room for at least 8 tokens, got l_max = 6"),
    ],
    "convert": [("gato out", "", "a model of the task gato cannot be written: no other library here reads it")],
    "serve": [
        ("ed", "", "serving needs a decoder, task d, or an encoder, task e"),
        ("e --weights int8", "", "--weights: expected a decoder's run, task d, got the task e"),
        ("d --weights int4", "", "--weights: expected one of int8, got 'int4'"),
    ],
    "train": [
        ("", "", "expected {d,e,ed,classify,gato}, got none; see --help"),
        ("--run none", "", "--run: expected a run to resume, got none; to begin one, put the task first: d, e, ed, "),
        ("clasify", "", "expected one of d, e, ed, classify, gato, got 'clasify'; did you mean classify?"),
        ("d", "", "expected --run, got none; see --help"),
        ("d --run", "", "--run: expected a value, got none"),
        ("d --run x --stepz=3", "", "--stepz: expected a known flag, got '--stepz'; did you mean --steps?"),
        ("d --run x --lr 1", "", "--lr: expected a known flag, got '--lr'; did you mean --learning-rate?"),
        ("d --run x y", "", "y: expected flags only, got 'y'; see --help"),
        ("d --run x --L many", "", "--L: expected an integer, got 'many'"),
        ("d --run x --dropout many", "", "--dropout: expected a number, got 'many'"),
        ("d --rows pakced", "", "--rows: expected one of chunks, windows, packed, got 'pakced'; did you mean packed?"),
        ("d --run x --process-id -1", "", "--process-id: expected an integer of at least 0, got '-1'"),
        ("d --run x --data nothing.txt", "", "cannot read nothing.txt: No such file or directory"),
        ("d --run x --data spa-eng", "", "spa-eng holds pairs, but d trains on text; choose docs"),
        ("d --run x --data docs x.txt", "", "docs is a named data set"),
        ("d --run x --data empty", "", "empty: expected text files (.txt and .md) in it, got an empty directory"),
        (
            "d --run x --data a.txt --validation-data b.txt --tokenizer bytes --l_max 100000",
            "",
            "fewer than one sequence of l_max = 100000",
        ),
        ("d --run x --data a.txt --tokenizer bytes --d_e 8 --H 3", "", "d_e = 8 is not a multiple of H = 3"),
        ("d --run x --config nothing.json", "", "cannot read the settings nothing.json"),
        (
            "d --run x --data a.txt --tokenizer nothing",
            "",
            "--tokenizer: expected one of bytes, characters, words, bpe, or the path of a tokenizer, got 'nothing'",
        ),
    ],
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory of runs, by the names that the command lines have."""
    root = tmp_path_factory.mktemp("runs")
    for name, numbers in (("a.txt", range(9)), ("b.txt", range(9, 18))):
        (root / name).write_text("".join(f"line {n}\tthis is the line {n}\n" for n in numbers))
    for task in ("d", "e", "ed", "classify"):
        make_run(root / task, task, data=("a.txt",), validation_data=("b.txt",), batch_size=4)
    (root / "empty").mkdir()
    make_run(root / "talks", "d", conversing(), l_max=90)
    make_run(root / "short", "d", LETTERS, l_max=6)
    make_run(root / "gato", "gato", BYTES, (), **GATO_SETTINGS)
    return root


@pytest.mark.parametrize(
    ("name", "words", "stdin", "message"), [(name, *row) for name, rows in REFUSED.items() for row in rows]
)
def test_it_is_refused_in_a_sentence(place, called, monkeypatch, tmp_path, name, words, stdin, message):
    monkeypatch.chdir(place)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before = sorted(place.rglob("*"))
    status, out, err = called(name, *shlex.split(words), stdin=stdin)
    assert (status, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith(f"{name}.py: ")
    assert message in err
    assert sorted(place.rglob("*")) == before
