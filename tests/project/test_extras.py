"""Each extra by itself, in an environment with nothing else, runs what the documents and the Makefile run with it."""

import collections
import os
import re
import shutil
import signal
import subprocess
import tomllib
import urllib.request
import venv
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

pytestmark = pytest.mark.end_to_end
ROOT = Path(__file__).resolve().parents[2]
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
TRAIN = "scripts/train.py d --data text.txt --run runs/d --steps 2 --L 1 --H 1 --d_e 16 --l_max 32 --N_V 300"
CLASSIFY = "scripts/train.py classify --data labels.tsv --run runs/c --steps 2 --L 1 --H 1 --d_e 16"
TEXT = "".join(f"The {i}th cat sat on the {i * i}th mat.\n\n" for i in range(300))

WRITE_DATA = """import importlib, sys, pyarrow, pyarrow.parquet
zstd = importlib.import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
text = open("text.txt").read()
pyarrow.parquet.write_table(pyarrow.table({"text": text.split("\\n\\n")[:-1]}), "text.parquet")
open("text.txt.zst", "wb").write(zstd.compress(text.encode()))"""
READ_SENTENCEPIECE = """import sentencepiece, pathlib
from training.interchange.gguf_tokenizer import read_pieces
sentencepiece.SentencePieceTrainer.train(
    input="text.txt", model_prefix="tokenizer", vocab_size=300, model_type="bpe", byte_fallback=True,
    normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=2)
assert read_pieces(pathlib.Path(), 300).encode("The cat")"""

COMMANDS = {
    "train": (TRAIN, "scripts/generate.py runs/d --prompt The --l_gen 4", "scripts/evaluate.py runs/d"),
    "sklearn": (CLASSIFY, "scripts/evaluate.py runs/c"),
    "models": (f"{TRAIN} --variant LLAMA", "scripts/convert.py runs/d d.gguf", "scripts/convert.py d.gguf runs/again"),
    "translation": (("-c", READ_SENTENCEPIECE),),
    "data": (
        ("-c", WRITE_DATA),
        TRAIN.replace("text.txt", "text.parquet"),
        TRAIN.replace("text.txt", "text.txt.zst").replace("runs/d", "runs/z"),
    ),
    "wandb": (f"{TRAIN} --wandb",),
    "serve": (TRAIN,),
    "book": ("scripts/crosscheck.py --algorithm 4 --variant LLAMA --html build/book",),
    "site": ("scripts/crosscheck.py --algorithm 4 --html build/book", "-m mkdocs build --strict"),
}
"""Extra → commands that the documents and the Makefile have for it, on small data."""
ELSEWHERE = {
    "cuda": "make compilers",
    "tpu": "make compilers; .ci/run runs this half",
    "test": "make test",
    "compare": "make end-to-end",
    "dev": "make lint",
}
"""Extras that a target of the Makefile installs, each in an environment of its own."""


def closure(extra):
    """The names of the distributions that an extra installs, by what is installed here."""
    asked = [*DECLARED["dependencies"], f"{DECLARED['name']}[{extra}]"]
    found, seen = set(), set()
    while asked:
        requirement = Requirement(asked.pop())
        for of in ("", *requirement.extras):
            if (requirement.name, of) in seen or not _applies(requirement, ""):
                continue
            seen.add((requirement.name, of))
            if requirement.name == DECLARED["name"]:
                asked += DECLARED["optional-dependencies"][of] if of else []
                continue
            found.add(requirement.name.lower().replace("_", "-"))
            needed = map(Requirement, metadata.requires(requirement.name) or ())
            asked += [f"{one.name}[{','.join(one.extras)}]" for one in needed if _applies(one, of)]
    return found


def _applies(requirement, extra):
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


@pytest.fixture
def environment(tmp_path, request):
    """Return a function that runs Python with the distributions of an extra, and nothing else: links to those here."""
    extra = request.param
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    entries = collections.defaultdict(set)
    for name in closure(extra):
        for file in metadata.files(name) or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                entries[file.parts[0]].add((file, Path(str(metadata.distribution(name).locate_file("")))))
    for top, files in entries.items():  # a namespace package's files are linked one by one
        shared = len(files) > 1 and not any(file.parts == (top, "__init__.py") for file, _ in files)
        for file, place in {(file if shared else Path(top), place) for file, place in files}:
            (packages / file).parent.mkdir(parents=True, exist_ok=True)
            (packages / file).symlink_to(place / file)
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "mkdocs.yml", "algorithms", "training", "scripts"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "labels.tsv").write_text(
        "".join(f"{'ab'[i % 2]}\tThe {i}th {('cat', 'dog')[i % 2]}\n" for i in range(300))
    )
    variables = os.environ | {"PYTHONPATH": str(tmp_path), "WANDB_MODE": "offline", "NO_MKDOCS_2_WARNING": "1"}

    def begin(words):
        words = words.split() if isinstance(words, str) else words
        python = [str(tmp_path / "venv" / "bin" / "python"), *words]
        pipe, merged = subprocess.PIPE, subprocess.STDOUT
        return subprocess.Popen(python, cwd=tmp_path, env=variables, stdout=pipe, stderr=merged, text=True)

    def run(words):
        process = begin(words)
        out, _ = process.communicate(timeout=600)
        assert process.returncode == 0, f"{words}\n{out[-4000:]}"
        return out

    run.begin, run.place, run.extra = begin, tmp_path, extra
    return run


def test_every_extra_is_tested():
    assert not COMMANDS.keys() & ELSEWHERE.keys()
    assert COMMANDS.keys() | ELSEWHERE.keys() == DECLARED["optional-dependencies"].keys()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("environment", COMMANDS, indirect=True)
def test_an_extra_by_itself_runs_what_it_is_for(environment):
    for words in COMMANDS[environment.extra]:
        environment(words)
    if environment.extra in CHECKS:
        CHECKS[environment.extra](environment)


def check_book(environment):
    pages = {path.stem for path in (environment.place / "build" / "book").glob("*.html")}
    assert {"index", "algorithm-4", "source-alg03_attention"} <= pages


def check_site(environment):
    site = environment.place / "build" / "site"
    documents = {
        path.relative_to(environment.place / "docs").with_suffix(".html")
        for path in (environment.place / "docs").rglob("*.md")
    }
    assert {page for page in documents if not (site / page).is_file()} == set()


def check_server(environment):
    server = environment.begin("scripts/serve.py runs/d --port 0")
    try:
        lines = iter(server.stdout.readline, "")
        url = next(found[0] for found in (re.findall(r"http://[\w.]+:\d+", line) for line in lines) if found)
        with urllib.request.urlopen(f"{url}/v1/models") as answer:
            assert answer.status == 200
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=60)


CHECKS = {"book": check_book, "site": check_site, "serve": check_server}
