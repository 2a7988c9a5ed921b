"""A run that adapts another one is loaded, by every command, as the merged model, to the last bit."""

import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.run_cases import conversing, make_run
from training import commands
from training.mesh.placement import Placement
from training.runs.named_arrays import flatten
from training.runs.trained_model import load_run

SIZES = {"variant": "LLAMA", "H": 4, "H_kv": 2, "d_e": 16, "d_mlp": 16, "l_max": 64, "dropout": 0.0}
ASKED = ["the cat", "sat on", "the mat, the rat", "a rat", "the rat sat", "on the mat", "the", "cat, the", "sat, sat"]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A model, a run that adapts it to a few conversations, and the two merged."""
    root = tmp_path_factory.mktemp("runs")
    make_run(root / "model", "d", conversing(), **SIZES)
    for name, asked in (("chats", ASKED), ("held-out", [f"{text} sat" for text in ASKED])):
        with (root / f"{name}.jsonl").open("w") as file:
            for text in asked:
                messages = [{"role": "user", "content": text}, {"role": "assistant", "content": text[::-1]}]
                file.write(json.dumps({"messages": messages}) + "\n")
    flags = ["--from", root / "model", "--lora-rank", 2, "--steps", 4, "--batch-size", 2, "--l_max", 40, "--quiet"]
    flags += ["--learning-rate", 0.05, "--peak", 1e9, "--no-tensorboard", "--cache", root / "cache"]
    data = ["--data", root / "chats.jsonl", "--validation-data", root / "held-out.jsonl"]
    assert commands.train_main([str(a) for a in ["d", "--run", root / "taught", *flags, *data]]) == 0
    assert commands.convert_main([str(root / "taught"), str(root / "out"), "--merge"]) == 0
    assert commands.convert_main([str(root / "out"), str(root / "merged")]) == 0
    return root


def test_the_adapter_changes_the_model_and_merging_does_not(root):
    before, taught, merged = (load_run(root / name).theta for name in ("model", "taught", "merged"))
    assert np.abs(taught.layers.mlp.W_mlp1 - before.layers.mlp.W_mlp1).max() > 0.01
    chex.assert_trees_all_equal(flatten(merged), flatten(taught))
    narrow = jax.tree.map(lambda a: jnp.asarray(a).astype(jnp.bfloat16), taught)
    chex.assert_trees_all_equal(load_run(root / "taught", dtype="bfloat16").theta, narrow)
    theta = load_run(root / "taught", placement=Placement("data=2,model=4")).theta
    chex.assert_trees_all_close(theta, taught, rtol=1e-7, atol=1e-6)
    assert len({str(shard.index) for shard in theta.layers.mlp.W_mlp1.addressable_shards}) == 8


def test_evaluate(root, printed):
    """By its own data, and the merged model and the first one by the same ones, in batches of another size."""
    cache = ["--cache", root / "cache"]
    data = ["--data", root / "chats.jsonl", "--validation-data", root / "held-out.jsonl", "--l_max", 40]
    found = {}
    for name, flags in (("taught", []), ("merged", data), ("model", data)):
        printed("evaluate", root / name, *cache, *flags)
        (kept,) = (root / name).glob("evaluation-validation*.json")
        found[name] = json.loads(kept.read_text())["rows"]["this model"]
    trained = json.loads((root / "taught" / "results.json").read_text())
    assert found["taught"] == pytest.approx({name: trained[name] for name in found["taught"]}, rel=1e-6)
    assert found["merged"] == pytest.approx(found["taught"], rel=1e-5)
    assert abs(found["model"]["loss"] - found["taught"]["loss"]) > 0.01
