"""The cross-check agrees on the shipped code, and names algorithm and line where the code is made wrong."""

import collections
import json
import math
import re
import sys
import types

import numpy as np
import pytest
from rich.console import Console

import algorithms
from tests.mutations import located
from tests.mutations.edits import Edit, Planted
from tests.mutations.located import locate
from tests.mutations.planted import PLANTED
from training.command_line.arguments import UsageError
from training.commands import crosscheck as command
from training.commands.crosscheck import ROOT
from training.crosscheck import values
from training.crosscheck.algorithms import PSEUDOCODE
from training.crosscheck.comparison import compare
from training.crosscheck.report import print_report
from training.crosscheck.scenarios import Scenarios

LINES = {1: 1, 2: 1, 3: 5, 4: 6, 5: 4, 6: 3, 7: 1, 8: 21, 9: 12, 10: 11, 11: 7, 12: 11, 13: 7, 14: 7, 15: 8}
COMPONENTS = (1, 2, 3, 4, 5, 6, 7)
SAMPLE = ("token off by one", "mask transposed", "1/√d dropped", "bias of the output skipped", "ε misplaced")
SAMPLE += ("keys not rotated",)


def crosscheck(numbers, implementation="paper", **sizes):
    scenarios = Scenarios(algorithms, seed=0, sizes=sizes, implementation=implementation)
    return compare(scenarios, ROOT, numbers)


@pytest.fixture(scope="module")
def components():
    return crosscheck(COMPONENTS)


def test_every_line_of_the_paper_is_listed():
    assert {n: len(algorithm.lines) for n, algorithm in PSEUDOCODE.items()} == LINES
    for n, algorithm in PSEUDOCODE.items():
        printed = [line.number for line in algorithm.lines if line.number != "return"]
        assert printed == [str(i + 1) for i in range(len(printed))], n
        assert algorithm.lines[-1].number == "return" or n == 7


@pytest.mark.end_to_end
def test_the_components_agree_line_by_line(components):
    assert components.ok, components
    assert len(components.lines) == sum(LINES[n] for n in COMPONENTS)
    assert components.worst <= 1e-10
    for result in components.lines.values():
        assert result.verdict == "equal"
        assert all(cell.values >= 1 for cell in result.cells.values())
        lines = [(ROOT / place.file).read_text("utf-8").splitlines()[place.line - 1] for place in result.places]
        assert all(line.strip() for line in lines)
    in_json = components.as_data()["lines"]
    assert len(in_json) == len(components.lines)
    assert all(line["verdict"] == "equal" and line["formula"] for line in in_json)


@pytest.mark.end_to_end
def test_heads_are_compared_one_by_one(components):
    of_heads = components.lines[5, "2"].cells["Y_h"]
    sequences = 1 + 1 + 3  # two runs of one, one of a batch
    assert of_heads.values == sequences * 2  # heads
    assert sum(cell.values for cell in components.lines[4, "4"].elsewhere if cell.caller == 5) == sequences * 2


@pytest.mark.end_to_end
def test_a_decoder_agrees_in_every_layer_and_head_of_every_sequence():
    results = crosscheck([4, 10], L=2, B=2)
    assert results.ok, results
    places = {number: [place.text for place in results.lines[10, number].places] for number in ("4", "9", "return")}
    assert places["4"] == ["@f.each_layer(X, theta.layers, mask)\ndef X(X, W, f, mask):"]
    assert (places["9"], places["return"]) == (["return X"], ["P = theta.variant.unembedding(X, theta)"])
    assert results.lines[10, "4"].verdict == "equal"  # the turns of the loop, not only what it makes
    layers, sequences = 2, 1 + 2 + 1  # a single one, a batch, and a single one with tied weights
    assert results.lines[10, "6"].cells["X"].values == layers * sequences
    assert sum(cell.values for cell in results.lines[4, "5"].elsewhere if cell.caller == 10) == 2 * layers * sequences


@pytest.mark.end_to_end
def test_the_lines_of_a_kernel_are_those_of_the_printed_scores():
    results = crosscheck([4], "blockwise")
    assert results.ok, results
    verdicts = {number: result.verdict for (n, number), result in results.lines.items() if n == 4}
    assert verdicts == dict.fromkeys(("1", "2", "3", "4", "5", "return"), "equal")


@pytest.fixture(scope="module")
def cache():
    return collections.defaultdict(dict)


@pytest.mark.end_to_end
@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in SAMPLE else pytest.mark.slow) for n in PLANTED])
def test_a_mutation_is_located(name, cache):
    mutation = PLANTED[name]
    results = locate(mutation, ROOT, 0, cache)
    assert not results.ok
    assert results.first is not None
    assert results.first[:2] == (mutation.algorithm, mutation.line), results
    assert sys.modules["algorithms"] is algorithms


@pytest.mark.parametrize(("is_found", "says", "status"), [(True, ["it"], 0), (True, [], 1), (False, ["it"], 1)])
def test_a_mutation_must_be_located_and_named(is_found, says, status, monkeypatch, capsys):
    name, bug = next(iter(PLANTED.items()))
    first = (bug.algorithm, bug.line if is_found else "0", "value")
    monkeypatch.setattr(located, "locate", lambda *_: types.SimpleNamespace(first=first))
    monkeypatch.setattr(located, "named", lambda *_: says)
    assert located.check_planted([name], ROOT, 0) == status
    assert f"{int(is_found)} of 1 mutations located, {len(says)} named" in capsys.readouterr().out


@pytest.mark.end_to_end
def test_a_line_without_counterpart_is_reported(cache):
    file = "algorithms/alg03_attention.py"
    without_tag = Edit(file, "attention", "2", "b_k)", "b_k)  # untagged:")
    results = locate(Planted(without_tag, 4, "2"), ROOT, 0, cache, (4,))
    assert [(r.algorithm, r.line.number, r.verdict) for r in results.failures] == [(4, "2", "missing")]
    assert not results.ok


@pytest.mark.end_to_end
@pytest.mark.parametrize(("deviation", "verdict"), [("e - m", "equal"), ("e + m", "different")])
def test_a_line_in_one_step_with_the_next_is_judged_by_what_the_step_gives(deviation, verdict, cache, capsys):
    file = "algorithms/alg06_layer_norm.py"
    text = (ROOT / file).read_text("utf-8")
    first, last = text.index("    m = e.mean("), text.index("# line 2") + len("# line 2")
    mean = "e.mean(axis=0, keepdims=True)"
    step = f"    m = {mean}\n    v = jnp.square({deviation}).mean(axis=0, keepdims=True)  # lines 1-2"
    fused = Edit(file, "layer_norm", "2", text[first:last], step, at=(first, last))
    results = locate(Planted(fused, 6, "2"), ROOT, 0, cache, (6,))
    verdicts = {line.line.number: line.verdict for line in results.lines.values()}
    assert verdicts == {"1": "within", "2": verdict, "return": verdict}
    assert results.ok == (verdict == "equal")
    assert (results.first or ())[:2] == (() if results.ok else (6, "2"))
    assert [line["step"] for line in results.as_data()["lines"]] == [("1", "2"), ("1", "2"), ("return",)]
    print_report(results, Console(width=200))
    assert "in step 1–2" in (printed := capsys.readouterr().out)
    assert ("2 equal, 1 in a step that is equal;" in printed) == results.ok


def test_an_error_is_reported_with_its_line(cache):
    file, right, wrong = "algorithms/alg03_attention.py", '"o...t,t...->o..."', '"t...o,t...->o..."'
    raising = Edit(file, "single_query_attention", "return", right, wrong)
    results = locate(Planted(raising, 3, "return"), ROOT, 0, cache)
    assert results.errors[3][0] == "return"
    assert results.first is not None
    assert results.first[:2] == (3, "return")


@pytest.mark.thorough
def test_what_auto_takes_is_said_and_its_backward_rule_compared(cache):
    """An error in the rule that a caller gets, which the lines as printed do not have, is found in training."""
    results = crosscheck([13], "auto")
    assert results.ok, results
    assert str(results).startswith("implementation auto (dense): 1 algorithm, ")
    first = locate(PLANTED["softmax Jacobian without aᵀg"], ROOT, 0, cache, [13]).first
    assert first is not None
    assert first[:2] == (13, "6")


def test_differences():
    inf, nan = math.inf, math.nan
    assert values.difference(np.array([1.0, -inf, nan]), np.array([1.5, -inf, nan])) == 0.5
    assert values.difference(np.array([-inf]), np.array([0.0])) == inf
    assert values.difference(np.array([nan]), np.array([0.0])) == inf
    assert values.difference(np.zeros(2), np.zeros(3)) == inf
    np.testing.assert_array_equal(values.prefix(np.arange(6).reshape(2, 3), (2, 1)), [[0], [3]])
    assert values.prefix(np.zeros(2), (3,)).shape == (2,)


@pytest.mark.end_to_end
def test_command_line(tmp_path, capsys):
    assert command.main(["--algorithm", "6", "--sizes", "d_e=5", "--json", str(tmp_path / "result.json")]) == 0
    printed = capsys.readouterr().out
    assert "1 algorithm, 3 lines: 3 equal" in printed
    assert "algorithms/alg06_layer_norm.py:" in printed
    assert "implementation paper: " in printed
    assert "implementation auto" in printed
    written = json.loads((tmp_path / "result.json").read_text("utf-8"))
    assert written["ok"] is True
    result, of_auto = written["runs"]
    assert [run["settings"]["implementation"] for run in (result, of_auto)] == ["paper", "auto"]
    assert [line["line"] for line in result["lines"]] == ["1", "2", "return"]
    assert result["lines"][2]["variables"][0]["shape"] == [5, 1]
    assert result["lines"][0]["code"][0]["text"].startswith("m = ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--algorithm", "16"], "--algorithm: expected one of 1, 2,"),
        (["--sizes", "H"], "NAME=SIZE"),
        (["--sizes", "Q=3"], "expected one of N_V"),
        (["--sizes", "d_e=1"], "d_e: expected at least 2, got 1"),
        (["--implementation", "fast"], "--implementation: expected one of auto"),
    ],
)
def test_wrong_usage(arguments, message):
    with pytest.raises(UsageError, match=re.escape(message)) as stopped:
        command.main(arguments)
    assert "\n" not in str(stopped.value)
