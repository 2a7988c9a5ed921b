"""GPT-2 of transformers, at random: its logits, its gradients by name, and both directions to the last bit."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from algorithms import GPT2, PAPER, DTransformerConfig, d_hidden_state
from tests import interchange_cases as cases
from tests.cases import random_theta
from training.interchange import load_pretrained, save_pretrained

torch, transformers = cases.libraries()

MODELS = {
    "odd": {"vocab_size": 29, "n_positions": 13, "n_embd": 15, "n_layer": 3, "n_head": 5, "n_inner": 7},
    "untied": {"vocab_size": 31, "n_positions": 11, "n_embd": 6, "n_layer": 2, "n_head": 1}
    | {"tie_word_embeddings": False},
    "relu": {"vocab_size": 5, "n_positions": 17, "n_embd": 14, "n_layer": 1, "n_head": 7}
    | {"activation_function": "relu", "layer_norm_epsilon": 0.1},
}
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}


def make(name, seed=0):
    config = transformers.GPT2Config(**MODELS[name], **SPECIAL, attn_implementation="eager")
    return cases.randomized(torch, transformers.GPT2LMHeadModel(config).double(), seed)


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    return cases.saved(make("odd"), tmp_path_factory.mktemp("gpt2"))


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("name", ["odd", *(pytest.param(name, marks=pytest.mark.slow) for name in ("untied", "relu"))])
def test_logits_and_gradients_are_those_of_transformers(tmp_path, name, dtype):
    model = make(name)
    path = cases.saved(model, tmp_path, dtype)
    x = np.random.default_rng(1).integers(model.config.vocab_size, size=(2, model.config.n_positions))
    cases.assert_decodes_as_theirs(torch, model, path, x, dtype)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("name", ["odd", "untied"])
def test_the_way_there_and_back_is_exact(tmp_path, name, dtype):
    path = cases.saved(make(name), tmp_path / "theirs", dtype)
    opened = transformers.GPT2LMHeadModel.from_pretrained
    cases.assert_written_again(torch, path, opened, lambda model: model(torch.arange(5)[None]).logits)


def test_a_bare_model_and_old_masks_are_read(tmp_path, odd):
    """The files of 2019 have no prefix, and the mask among the tensors; those of PyTorch the tied matrix twice."""
    tensors = {name.removeprefix("transformer."): a for name, a in cases.tensors_of(odd).items()}
    tensors |= {f"h.{l}.attn.bias": np.tril(np.ones((1, 1, 13, 13), np.uint8)) for l in range(3)}
    tensors["lm_head.weight"] = tensors["wte.weight"]
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((odd / "config.json").read_text())
    chex.assert_trees_all_equal(*(load_pretrained(path)[0] for path in (tmp_path, odd)))
    tensors["lm_head.weight"] = tensors["wte.weight"] + 1
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    cases.assert_unreadable(tmp_path, r"lm_head.weight and wte.weight differ, although the model ties them")


@pytest.mark.parametrize("old", [False, True])
def test_files_of_pytorch_and_shards_are_read(tmp_path, odd, old):
    model = transformers.GPT2LMHeadModel.from_pretrained(odd)
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=not old)
    expected = load_pretrained(odd)[0]
    chex.assert_trees_all_equal(load_pretrained(tmp_path)[0], expected)
    if not old:
        model.save_pretrained(tmp_path / "shards", max_shard_size="4KB")
        assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
        chex.assert_trees_all_equal(load_pretrained(tmp_path / "shards")[0], expected)


def test_shards_are_written(tmp_path, odd, monkeypatch):
    monkeypatch.setattr("training.interchange.containers.SHARD_BYTES", 4000)
    theta, config, _ = load_pretrained(odd)
    save_pretrained(tmp_path / "ours", theta, config)
    assert len(list((tmp_path / "ours").glob("*.safetensors"))) > 2
    cases.assert_bits(cases.tensors_of(tmp_path / "ours"), cases.tensors_of(odd))
    opened = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "ours").state_dict()
    for name, tensor in transformers.GPT2LMHeadModel.from_pretrained(odd).state_dict().items():
        assert torch.equal(opened[name], tensor)


@pytest.mark.parametrize("variant", [PAPER, GPT2], ids=["PAPER", "GPT2"])
@pytest.mark.parametrize("tied", [True, False])
def test_our_own_models_open_in_transformers(tmp_path, variant, tied):
    config = DTransformerConfig(N_V=17, l_max=11, L=2, H=3, d_e=12, d_mlp=13, variant=variant, tied=tied)
    theta = random_theta(config)
    save_pretrained(tmp_path / "out", theta, config)
    model = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "out")
    x = np.arange(11)
    X = d_hidden_state(jnp.asarray(x), theta)
    theirs = model(torch.tensor(x)[None]).logits[0]
    cases.assert_same(cases.column_logits(X, theta), theirs.detach(), "float64", "logits")
    theta_again, config_again, _ = load_pretrained(tmp_path / "out")
    assert config_again.tied == tied
    chex.assert_trees_all_equal(*map(jax.tree.leaves, (theta_again, theta)), strict=True)
