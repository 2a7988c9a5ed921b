"""Every named variant that transformers has, against its own code: nothing departs."""

import dataclasses

import jax
import numpy as np
import pytest
import torch
import transformers

import algorithms
from algorithms.model.variants import VARIANTS
from training.crosscheck import record_torch
from training.crosscheck.foreign.checking import diagnose
from training.crosscheck.foreign.making import KINDS, make_case, of_library
from training.interchange import save_pretrained

MODELS = {8: "AutoModelForSeq2SeqLM", 9: "AutoModelForMaskedLM", 10: "AutoModelForCausalLM"}
WITHOUT = ("PAPER", "VASWANI", "GPT3", "GOPHER", "FSMT")
"""Variants that no model of transformers has, or none with one vocabulary."""


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in VARIANTS if name not in WITHOUT])
def test_nothing_departs(name, tmp_path):
    case = make_case(10, name)
    of_kind = getattr(algorithms, f"{KINDS[case.algorithm]}TransformerConfig")
    names = {field.name for field in dataclasses.fields(of_kind)}
    config = of_kind(**{size: n for size, n in case.sizes.items() if size in names}, variant=case.record)
    save_pretrained(tmp_path / name, jax.tree.map(np.asarray, of_library(case)), config)
    kind = getattr(transformers, MODELS[case.algorithm])
    dtype = torch.float32 if "experts" in case.base else torch.float64  # PyTorch's grouped product has no other
    model = kind.from_pretrained(tmp_path / name, dtype=dtype, attn_implementation="eager").eval()
    tokens = {"input_ids": torch.tensor([case.inputs["x"]])}
    if case.algorithm == 8:
        tokens = {"input_ids": torch.tensor([case.inputs["z"]]), "decoder_input_ids": tokens["input_ids"]}
    report = diagnose(case, record_torch(lambda: model(**tokens, use_cache=False).logits, model))
    assert report.ok, report
    assert list(report.walk.status.values()).count("equal") >= 15
