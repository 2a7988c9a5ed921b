"""Files in the forms that there have been, and what is said when they are converted; values are in `test_decoders`."""

import json

import chex
import numpy as np
import pytest
import safetensors.numpy

from tests import interchange_cases as cases
from tests.training.interchange.test_decoders import make
from training.interchange import convert, load_pretrained, save_pretrained
from training.interchange.containers import VALUES
from training.interchange.pretrained import license_of

torch, transformers = cases.libraries()
UNKNOWN = "license: not stated in its files"


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


def test_gpt_oss_in_mxfp4_is_as_transformers_dequantizes_it(tmp_path):
    mxfp4 = pytest.importorskip("transformers.integrations.mxfp4")
    path = cases.saved(make("gpt_oss", hidden_size=64, intermediate_size=32), tmp_path, "bfloat16")
    tensors, rng = cases.tensors_of(path), np.random.default_rng(0)
    expected = {}
    for name in [name for name in tensors if name.endswith("_proj") and "experts" in name]:
        n, columns, rows = tensors.pop(name).shape
        blocks = rng.integers(0, 256, (n, rows, columns // 32, 16), np.uint8)
        scales = rng.integers(118, 130, blocks.shape[:-1], np.uint8)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        unpacked = mxfp4.convert_moe_packed_tensors(torch.tensor(blocks), torch.tensor(scales))
        expected[name] = unpacked.float().numpy()
    safetensors.numpy.save_file(tensors, path / "model.safetensors")
    cases.change_config(path, quantization_config={"quant_method": "mxfp4"})
    theta, config, _ = load_pretrained(path)
    save_pretrained(tmp_path / "whole", theta, config)
    found = cases.tensors_of(tmp_path / "whole")
    assert len(expected) == 2 * config.L
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name].astype(np.float32), array, err_msg=name)
    assert (VALUES[1], VALUES[15]) == (0.5, -6)

    name = next(name for name in tensors if name.endswith("_scales"))
    safetensors.numpy.save_file({**tensors, name: tensors[name][:, :-1]}, path / "model.safetensors")
    cases.assert_unreadable(path, r"expected \[n, rows, blocks, 16\]")
    cases.change_config(path, quantization_config={"quant_method": "fp8"})
    cases.assert_unreadable(path, "quantization_config: expected none, or the method mxfp4, got 'fp8'")


@pytest.fixture(scope="module")
def model():
    sizes = {"hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 2, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(vocab_size=29, **sizes, max_position_embeddings=16, tie_word_embeddings=True)
    return cases.randomized(torch, transformers.LlamaForCausalLM(config))


CARDS = {
    "plain": ("---\nlanguage:\n- en\nlicense: apache-2.0\ntags: [a]\n---\n# Model\n", "license: apache-2.0"),
    "named": ("---\nlicense: other\nlicense_name: 'llama 3'\n---\n", "license: llama 3"),
    "quoted": ('---\r\nlicense: "mit"\r\n---\r\n', "license: mit"),
    "later": ("---\na: b\n---\nlicense: mit\n", UNKNOWN),
    "unended": ("---\nlicense: mit\n", UNKNOWN),
    "of something else": ("---\n  license: mit\n---\n", UNKNOWN),
    "none": ("# Model\nlicense: mit\n", UNKNOWN),
    "long": (f"---\nlicense: {'x' * 999}\n---\n", f"license: {'x' * 60}"),
}


@pytest.mark.parametrize("name", CARDS)
def test_a_card_names_the_license(name, tmp_path):
    card, expected = CARDS[name]
    (tmp_path / "README.md").write_text(card, newline="")
    assert license_of(tmp_path, None) == expected


def test_a_file_of_the_license_is_named(tmp_path):
    (tmp_path / "LICENSE.txt").write_text("Do as you like.")
    assert license_of(tmp_path, None) == "license: see its file LICENSE.txt"
    (tmp_path / "README.md").write_bytes(b"\xff\xfe")
    assert license_of(tmp_path, None) == "license: see its file LICENSE.txt"


@pytest.mark.parametrize("said", ["apache-2.0", None])
def test_a_conversion_says_size_and_license_and_how_far_it_is(said, model, tmp_path):
    fields, gguf_cases = {"general.license": said} if said else {}, pytest.importorskip("tests.gguf_cases")
    path = gguf_cases.write(tmp_path / "model.gguf", model, fields=fields)
    seen = []
    sentence = convert(path, tmp_path / "run", progress=lambda n, total: seen.append((n, total)))
    n = sum(p.numel() for p in model.parameters())
    assert n == 29 * 8 + 2 * (4 * 64 + 3 * 96 + 16) + 8
    size = f"{n:,} parameters, {n * 4 / 1e6:,.1f} MB in float32"
    assert sentence.splitlines()[1] == f"{size}; {f'license: {said}' if said else UNKNOWN}"
    assert sentence.splitlines()[2].startswith(f"note: {path}: eos_token_id: expected a token below N_V = 29, got None")
    assert seen == [(1, 2 * 9 + 2)] * (2 * 9 + 2)


def test_a_directory_in_bfloat16_says_its_size(model, tmp_path):
    cases.saved(model, tmp_path / "in", "bfloat16")
    (tmp_path / "in" / "README.md").write_text("---\nlicense: mit\n---\n")
    n = sum(p.numel() for p in model.parameters())
    sentence = convert(tmp_path / "in", tmp_path / "run")
    assert sentence.splitlines()[1] == f"{n:,} parameters, {n * 2 / 1e6:,.1f} MB in bfloat16; license: mit"
    assert json.loads((tmp_path / "run" / "config.json").read_text())["task"] == "d"
