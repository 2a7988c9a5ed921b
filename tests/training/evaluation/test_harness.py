"""lm-evaluation-harness on a converted run: its likelihoods are those that Algorithm 10 gives."""

import importlib
import pathlib

import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import d_transformer
from tests.run_cases import LETTERS, make_run
from training.interchange import convert
from training.runs.trained_model import load_run

pytest.importorskip("lm_eval", reason="lm-eval is not installed")
DOCUMENTATION = pathlib.Path(__file__).resolve().parents[3] / "docs" / "generation.md"
PAIRS = [("a bad", " cab"), ("face", "d"), ("abcdefg" * 5, "hij")]


def by_hand(run, context, end):
    tokens = [LETTERS.bos_token, *LETTERS.encode(context + end)]
    table = np.log(np.asarray(d_transformer(jnp.asarray(tokens[:-1]), run.theta)))
    places = range(len(tokens) - 1 - len(end), len(tokens) - 1)
    return sum(table[tokens[t + 1], t] for t in places)


@pytest.mark.end_to_end
def test_its_own_model_of_transformers_reads_a_converted_run(tmp_path):
    assert "lm_eval --model hf --model_args pretrained=out,dtype=float32" in DOCUMENTATION.read_text("utf-8")
    convert(make_run(tmp_path / "run", "d"), tmp_path / "out")
    hflm = importlib.import_module("lm_eval.models.huggingface").HFLM
    instance = importlib.import_module("lm_eval.api.instance").Instance
    asked = [instance("loglikelihood", {}, pair, i) for i, pair in enumerate(PAIRS)]
    found = hflm(pretrained=str(tmp_path / "out"), device="cpu", dtype="float32").loglikelihood(asked)
    run = load_run(tmp_path / "run")
    np.testing.assert_allclose([p for p, _ in found], [by_hand(run, *pair) for pair in PAIRS], rtol=1e-4)
