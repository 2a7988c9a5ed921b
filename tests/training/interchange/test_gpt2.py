"""The files of GPT-2, in the forms that there have been, and in shards; its values are in `test_decoders`."""

import chex
import numpy as np
import pytest
import safetensors.numpy

from tests import interchange_cases as cases
from tests.training.interchange.test_decoders import make
from training.interchange import load_pretrained, save_pretrained

torch, transformers = cases.libraries()


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    return cases.saved(make("gpt2"), tmp_path_factory.mktemp("gpt2"))


def test_a_bare_model_and_old_masks_are_read(tmp_path, odd):
    """The files of 2019 have no prefix, and the mask among the tensors; those of PyTorch the tied matrix twice."""
    tensors = {name.removeprefix("transformer."): a for name, a in cases.tensors_of(odd).items()}
    tensors |= {f"h.{l}.attn.bias": np.tril(np.ones((1, 1, 32, 32), np.uint8)) for l in range(3)}
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
