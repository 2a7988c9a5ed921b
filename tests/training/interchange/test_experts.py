"""Experts in quantized checkpoints; what other checkpoints of experts are and lack is in `test_decoders`."""

import numpy as np
import pytest
import safetensors.numpy

from tests import interchange_cases as cases
from tests.training.interchange.test_decoders import make
from training.interchange import load_pretrained, save_pretrained
from training.interchange.containers import VALUES

torch, transformers = cases.libraries()


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
