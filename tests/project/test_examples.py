"""The examples of foreign code in the documents: each mistake in them is named, and nothing else is."""

import importlib
import pathlib
import shutil
import subprocess

import pytest

from training.command_line.arguments import UsageError
from training.commands.crosscheck import main
from training.foreign import check
from training.foreign.checking import diagnose, recorded
from training.foreign.making import make_case, write_case

pytestmark = pytest.mark.end_to_end
EXAMPLES = pathlib.Path(__file__).parents[2] / "docs" / "examples"


def named(report):
    return [(d.algorithm, d.line, d.text) for d in report.departures]


@pytest.mark.parametrize(
    ("module", "algorithm", "mistakes"),
    [
        (
            "decoder_torch",
            10,
            [
                "Algorithm 4, line return (softmax): ",
                "    equal if scores are divided by √d_e, not by √d_attn\n    in _softmax (decoder_torch.py:",
                "Algorithm 10, line 8 in l*/8: ",
                "    equal if the residual is the normalized X̃, not X\n    in add (decoder_torch.py:",
                "Algorithm 13, line 5: ",
                "    equal if the loss is averaged over the ℓ − 1 predictions, not summed",
            ],
        ),
        (
            "attention_numpy",
            4,
            ["    equal if softmax is over the queries t_x, not the keys t_z\n    in divide (attention_"],
        ),
    ],
)
def test_mistakes_of_an_example_are_named(module, algorithm, mistakes):
    observe = importlib.import_module(f"docs.examples.{module}").observe
    with pytest.raises(AssertionError) as raised:
        check(observe, algorithm)
    said = str(raised.value)
    assert all(mistake in said for mistake in mistakes), said
    assert said.count("equal if") == sum("equal if" in mistake for mistake in mistakes)


def test_mistake_of_the_example_in_c_is_named(tmp_path):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler is installed")
    case = make_case(10, seed=2)
    write_case(case, tmp_path / "case")
    program = tmp_path / "decoder"
    subprocess.run([compiler, "-O2", "-Wall", "-Werror", "-o", program, EXAMPLES / "decoder.c", "-lm"], check=True)
    subprocess.run([program, tmp_path / "case"], check=True)
    report = diagnose(case, recorded(tmp_path / "case" / "dump", None))
    assert named(report) == [(6, "2", "the variance is divided by d_e − 1, not by d_e")]
    (mended,) = tmp_path.glob("decoder")
    source = (EXAMPLES / "decoder.c").read_text().replace("(d - 1)", "d")
    (tmp_path / "right.c").write_text(source)
    subprocess.run([compiler, "-O2", "-o", mended, tmp_path / "right.c", "-lm"], check=True)
    subprocess.run([mended, tmp_path / "case"], check=True)
    assert diagnose(case, recorded(tmp_path / "case" / "dump", None)).ok


@pytest.mark.parametrize(
    ("of", "message"),
    [
        (
            "docs.examples.nowhere:observe",
            "expected modules that are installed, got none named 'docs.examples.nowhere'",
        ),
        (
            "docs.examples.attention_numpy:seen",
            "expected a function that docs.examples.attention_numpy has, got 'seen'",
        ),
        ("docs.examples.attention_numpy", "expected MODULE:FUNCTION, transformers:KIND or a directory"),
    ],
)
def test_what_cannot_be_observed_is_said(of, message):
    with pytest.raises(UsageError, match=message):
        main(["--of", of])


def test_code_that_another_algorithms_case_stops_is_told_of_the_option():
    with pytest.raises(UsageError, match=r"raised KeyError: .* \(attention_numpy.py:.* of Algorithm 10"):
        main(["--of", "docs.examples.attention_numpy:observe"])
