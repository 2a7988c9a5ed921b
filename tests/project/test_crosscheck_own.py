"""The cross-check of custom lines: equal to their authors' loops, and what is not compared is named."""

import dataclasses
from typing import Any, ClassVar

import jax
import numpy as np
import pytest

import algorithms
from algorithms import PAPER
from algorithms.lines import Attention
from tests.own_lines import loops
from tests.own_lines.experts import Experts
from tests.own_lines.sinks import Sinks
from training.command_line.arguments import UsageError
from training.commands import crosscheck as command
from training.commands.crosscheck import ROOT
from training.crosscheck.own import OwnScenarios, is_own
from training.crosscheck.variants import compare_variant

PATHS = {name: f"tests.own_lines.{name.lower()}:{name}" for name in ("SINKS", "EXPERTS", "DIFFERENTIAL", "LATENT")}
HYBRID = "tests.own_lines.retention:HYBRID"
IN_BOTH = PAPER.but(attention=Sinks(biases=False), mlp=Experts(n=3, activation="silu", gated=True, biases=False))
LATER = {"DIFFERENTIAL": pytest.mark.slow, "LATENT": pytest.mark.slow}
REST = "Algorithms 4 and 5, in whose place {} has its own lines"


def test_no_line_of_a_published_model_is_custom():
    assert not any(is_own(line) for v in algorithms.VARIANTS.values() for line in (*v.attentions, *v.mlps))


def crosscheck(path: str) -> Any:
    return compare_variant(OwnScenarios(algorithms, path, seed=0, sizes={}, implementation="paper"), ROOT)


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", [pytest.param(name, marks=LATER.get(name, ())) for name in PATHS])
def test_every_line_agrees_with_the_loops(name):
    results = crosscheck(PATHS[name])
    assert results.ok, results
    assert results.worst <= 1e-10
    number = "8" if name == "EXPERTS" else "6"
    change = results.lines[10, number].change
    assert change.line.text.startswith(f"X ← X + {name.title()}(X̃ | 𝓦_l")
    assert results.lines[10, number].cells["X"].values > 0
    assert results.settings["left_out"] == ([] if name == "EXPERTS" else [REST.format(name.title())])
    assert (4, "4") in results.lines if name == "EXPERTS" else (4, "4") not in results.lines


@pytest.mark.thorough
def test_every_line_of_layers_that_differ_agrees_with_the_loops():
    results = crosscheck(HYBRID)
    assert results.ok, results
    assert results.lines[10, "6"].cells["X"].values > 0
    assert " + Retention or MHAttention(" in results.lines[10, "6"].change.line.text


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sharp(Attention):
    """``A = softmax(2 S)``."""

    loops: ClassVar = f"{__name__}:sharp"

    def weights(self, S, own):
        return jax.nn.softmax(2 * S, axis=0)


def sharp(line, X, Z, W, mask):
    heads = list(loops.heads_of(line, X, Z, W))
    Y = [[V @ loops.map_of(2 * K, Q, mask, t) for t in range(X.shape[1])] for Q, K, V in heads]
    return W.W_o @ np.concatenate([np.stack(columns, axis=1) for columns in Y])


SHARP_IN_TURN = PAPER.but(attention=(Attention(biases=False), Sharp(biases=False)))


@pytest.mark.thorough
def test_a_line_of_ones_own_takes_turns_with_ours(monkeypatch):
    results = crosscheck(f"{__name__}:SHARP_IN_TURN")
    assert results.ok, results
    assert results.lines[10, "6"].change.line.text.startswith("X ← X + MHAttention or Sharp(X̃ | 𝓦_l")
    monkeypatch.setattr(Sharp, "weights", lambda line, S, own: jax.nn.softmax(S, axis=0))
    assert crosscheck(f"{__name__}:SHARP_IN_TURN").first[:2] == (10, "6")


@pytest.mark.thorough
@pytest.mark.parametrize(("architecture", "algorithm"), [("e", 9), ("ed", 8)])
def test_an_encoder_and_a_pair_of_models_agree_with_the_loops(architecture, algorithm):
    results = crosscheck(f"{__name__}:IN_BOTH:{architecture}")
    assert results.ok, results
    own = {"5": "Sinks", "7": "Experts", "14": "Sinks", "16": "Sinks", "18": "Experts"}
    for number in own if algorithm == 8 else ("5", "7"):
        line = results.lines[algorithm, number]
        assert f" + {own[number]}(" in line.change.line.text
        assert sum(cell.values for cell in line.cells.values()) > 0


@pytest.mark.thorough
def test_wrong_loops_of_attention_to_a_context_are_located(monkeypatch):
    right = loops.sinks

    def wrong(line, X, Z, W, mask):
        return right(line, X, Z, W, np.ones_like(mask) if X is not Z else mask) * (1 if X is Z else 2)

    monkeypatch.setattr(loops, "sinks", wrong)
    results = crosscheck(f"{__name__}:IN_BOTH:ed")
    assert results.first[:2] == (8, "16")


@pytest.mark.thorough
def test_without_loops_the_line_is_left_out_and_named(monkeypatch):
    monkeypatch.setattr(Sinks, "loops", "")
    results = crosscheck(PATHS["SINKS"])
    assert results.ok, results
    assert (10, "6") not in results.lines
    assert "not compared: line 6 of Algorithm 10, since Sinks.loops names no NumPy loops" in str(results)
    assert "not compared: Algorithms 4 and 5, in whose place Sinks has its own lines" in str(results)


def test_wrong_usage():
    with pytest.raises(UsageError, match=r"--variant: expected one of VASWANI, BERT, .*PACKAGE.MODULE:NAME.* 'LAMA'"):
        command.main(["--variant", "LAMA"])
    with pytest.raises(UsageError, match="no_such_lines: expected a module with the lines of this model"):
        command.main(["--variant", "no_such_lines:MINE"])
