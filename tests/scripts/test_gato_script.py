"""The task gato from the command line: training, evaluation, and how the other scripts treat its run."""

import json

import pytest

from tests.run_cases import BYTES, make_run
from tests.serving_cases import LIMITS
from tests.training_cases import GATO_SETTINGS
from training.runs.trained_model import load_run
from training.serving.served import served_of

TEXT = "".join(f"The {n}th paragraph says that {n} and {n + 1} are {2 * n + 1}.\n\n" for n in range(400))
SIZES = {"--l_max": 80, "--L": 1, "--H": 2, "--d_e": 8, "--d_mlp": 8, "--d_r": 4, "--n-groups": 2, "--batch-size": 8}
TINY = SIZES | {"--tokenizer": "bytes", "--steps": 2, "--eval-batches": 1, "--peak": 1e9, "--optimizer": "adamw"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("run") / "gato", "gato", BYTES, (), **GATO_SETTINGS)


@pytest.mark.slow
def test_one_command_trains_and_another_measures(tmp_path, printed):
    (tmp_path / "text.txt").write_text(TEXT)
    own = ["--run", tmp_path / "run", "--data", tmp_path / "text.txt", "--cache", tmp_path / "cache", "--quiet"]
    printed("train", "gato", *own, *(word for pair in TINY.items() for word in pair))
    printed("evaluate", tmp_path / "run", "--cache", tmp_path / "cache")
    found = json.loads((tmp_path / "run" / "evaluation-validation.json").read_text())
    rows = found["rows"]
    assert rows.keys() == {"this model", "logistic regression"}
    assert rows["this model"].keys() == {"bits_per_byte", "accuracy", "recognized"}
    assert rows["logistic regression"]["accuracy"] > 0.9
    assert found["samples"][0].startswith("drawings of zero to nine:\n")


def test_scripts_for_decoders_use_what_reads_text(run, tmp_path, printed):
    out = printed("generate", run, "--prompt", "a", "--tau", 0, "--l_gen", 3, "--json")
    assert json.loads(out)["answers"][0]["text"]
    printed("look_inside", run, "--prompt", "abc", "--out", tmp_path)
    assert (tmp_path / "page.html").is_file()
    served = served_of(load_run(run), "gato", LIMITS)
    assert (served.config.N_V, served.tokenizer.N_V) == (BYTES.N_V, BYTES.N_V)
