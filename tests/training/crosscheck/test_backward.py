"""Every hand-derived backward rule is checked under the number of its algorithms, term by term."""

import io
import pathlib
import re

import pytest
from rich.console import Console

import algorithms
from tests.mutations.edits import Edit
from tests.mutations.located import edited
from training.crosscheck.backward import _rows, check_rules
from training.crosscheck.report import print_report
from training.crosscheck.results import Results

ROOT = pathlib.Path(__file__).resolve().parents[3]
OPS = "algorithms/ops"
SIGNS = [
    # file, function, code, code with another sign, algorithm, the inputs whose gradient is then wrong
    ("linear.py", "_backward_of_lookup", "jnp.tensordot(dE,", "-jnp.tensordot(dE,", 1, "W"),
    ("linear.py", "_backward_of_lookup", ".at[v].add(", ".at[v].subtract(", 2, "W"),
    ("linear.py", "_backward", "dW.astype", "-dW.astype", 4, "W"),
    ("linear.py", "_backward", "dX.astype", "-dX.astype", 9, "X"),
    ("linear.py", "_backward", "None if b is None else dY", "None if b is None else -dY", 5, "b"),
    ("attention/tiles.py", "_backward_of_tile", "dV = product(E", "dV = -product(E", 4, "V"),
    ("attention/tiles.py", "_backward_of_tile", "dK = product(Q", "dK = -product(Q", 4, "K"),
    ("attention/blockwise.py", "_backward_of_tile", "dV_j = product(", "dV_j = -product(", 4, "V"),
    ("attention/strips.py", "_backward_of_tile", "add(product(Q_x", "add(-product(Q_x", 4, "K"),
    ("attention/tiles.py", "backward", "A * (g - delta)", "A * (g + delta)", 4, "K P Q U"),
    ("attention/tiles.py", "kernel", "d_sinks = -", "d_sinks = ", 4, "sinks"),
    ("attention/tiles.py", "scores_by_distance_backward", "return dU", "return -dU", 4, "U"),
    ("activation.py", "capped_derivative", "1 - jnp", "1 + jnp", 4, "K P Q U"),
    ("rotation.py", "_backward", "cos, -sin)", "cos, sin)", 4, "X"),
    ("normalization.py", "_backward", "g - through_mean", "g + through_mean", 6, "X"),
    ("normalization.py", "_backward", "- x_hat *", "+ x_hat *", 6, "X"),
    ("normalization.py", "_backward", "dgamma = (", "dgamma = -(", 6, "gamma"),
    ("normalization.py", "_backward", ", dY.sum(", ", -dY.sum(", 6, "beta"),
    ("activation.py", "_backward", "(dY *", "(-dY *", 8, "X"),
    ("activation.py", "_gelu_derivative", "_normal_cdf(x) + x", "_normal_cdf(x) - x", 9, "X"),
    ("activation.py", "_silu_derivative", "sigma * (1 + x", "sigma * (1 - x", 10, "X"),
    ("grouped.py", "_gather_backward", "jnp.take(", "-jnp.take(", 10, "X"),
    ("grouped.py", "_backward", "_product(1 - axis", "-_product(1 - axis", 10, "X"),
    ("grouped.py", "_backward_of_rows", "_product(1, dW", "-_product(1, dW", 10, "Y"),
    ("delta_rule.py", "_backward", "(rho * e)", "(-rho * e)", 10, "beta"),
    ("delta_rule.py", "_backward", "(dL - dR)", "(dL + dR)", 10, "log_alpha"),
    ("delta_rule.py", "_backward", "dL + dR, rho", "dL - dR, rho", 10, "K"),
    ("delta_rule.py", "_backward", "dQ + c.Gamma", "dQ - c.Gamma", 10, "Q log_alpha"),
    ("chunked_log_loss.py", "_of_columns", " - q)", " + q)", 11, "W_u X b_u"),
    ("chunked_log_loss.py", "_of_columns", "(1 - jnp.square", "(1 + jnp.square", 13, "W_u X b_u"),
    ("chunked_log_loss.py", "_backward_of_sum", "g * losses", "-g * losses", 13, "weights"),
]


def test_every_rule_is_checked():
    defined = re.compile(r"^ *\w+ = (?:hand_derived|kernel)\(", re.MULTILINE)
    files = {path.stem for path in (ROOT / OPS).rglob("*.py") if defined.search(path.read_text("utf-8"))}
    assert files == {row.operation.rpartition(".")[2] for row in _rows(algorithms)}


@pytest.mark.end_to_end
def test_rules_are_right():
    rules = check_rules(algorithms, ROOT, 1, range(1, 16))
    assert all(rule.ok for rule in rules), rules
    assert {n for rule in rules for n in rule.algorithms} == {1, 2, 4, 5, 6, 8, 9, 10, 11, 12, 13}
    assert max(rule.worst for rule in rules) > 0
    assert not check_rules(algorithms, ROOT, 1, [3, 7, 14, 15])


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize(("file", "function", "right", "wrong", "algorithm", "inputs"), SIGNS)
def test_a_planted_sign_is_named_under_its_algorithm(file, function, right, wrong, algorithm, inputs):
    source = (ROOT / OPS / file).read_text("utf-8")
    at = source.index(right, source.index(f"def {function}("))
    with edited(Edit(f"{OPS}/{file}", function, "", right, wrong, at=(at, at + len(right))), ROOT) as package:
        root = pathlib.Path(package.__file__).resolve().parents[1]
        found = next(rule for rule in check_rules(package, root, 0, [algorithm]) if not rule.ok)
    assert found.error == ""
    assert {name for name, apart in found.gradients.items() if apart > 1e-3} == {*inputs.split()}
    results = Results({}, {}, {"seed": 0, "implementation": "auto"}, rules=[found])
    print_report(results, Console(file=(out := io.StringIO()), width=400))
    assert (
        f"{found.title} ({found.path.as_posix()}:{found.node.lineno}) differs from JAX's derivative" in out.getvalue()
    )
    assert results.as_data()["ok"] is False
    assert str(algorithm) in out.getvalue().splitlines()[-1].split(":")[0]
