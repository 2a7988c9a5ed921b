"""Mistakes in the glue end in a sentence that says what to do."""

import dataclasses
import re

import numpy as np
import pytest

from tests.foreign_code import TABLE, Decoder, decoder, nn, torch
from training.foreign import GlueError, check, load, record_arrays, record_jax, record_numpy, record_torch


def with_table(**change):
    def observe(case, dtype):
        load(Decoder(case.sizes, {}), {**TABLE, **change}, case.theta, layers=case.sizes["L"])

    return observe


def returning(output):
    """A glue whose call returns something else than logits, or logits and a loss."""

    def observe(case, dtype):
        model, x = Decoder(case.sizes, {}), torch.tensor([case.inputs["x"]])
        load(model, TABLE, case.theta, layers=case.sizes["L"])
        return record_torch(lambda: output(model(x)), model)

    return observe


def not_loaded(case, dtype):
    model = Decoder(case.sizes, {})
    return record_torch(lambda: model(torch.tensor([case.inputs["x"]])), model)


def crashes(case, dtype):
    raise AssertionError("3 is not 4")


def randomly(A):
    return nn.functional.dropout(A, 0.3)


MISTAKES = [
    (decoder(weights=randomly), "two runs give different numbers, first in "),
    (with_table(**{"blocks.{l}.project.weight": "l{l}/W_o"}), "the model has, such as blocks.0.proj.weight"),
    (with_table(**{"blocks.{l}.proj.weight": "l{l}/Wo"}), "θ has, such as l1/W_o"),
    (with_table(**{"head.weight": "W_p"}), "head.weight from W_p: expected 342 numbers"),
    (lambda case, dtype: load(Decoder(case.sizes, {}), TABLE, case.theta), "give layers=case.sizes['L']"),
    (lambda case, dtype: None, "expected a recording, got NoneType; return record_torch"),
    (lambda: None, "expected a function observe(case, dtype)"),
    (crashes, "raised AssertionError: 3 is not 4 (test_glue.py:"),
    (lambda case, dtype: record_numpy(lambda W: np.ones((3, 7)), {}), "computed within the call, got none"),
    (returning(lambda logits: {"logits": logits}), "as tensors; got ['logits']"),
    (returning(lambda logits: (logits, logits.sum(-1))), "got the shape [1, 7]; return its sum"),
    (not_loaded, "none that do; load θ into the model that runs"),
]


@pytest.mark.parametrize(("observe", "message"), MISTAKES)
def test_what_to_do_is_said(observe, message):
    with pytest.raises(GlueError, match=re.escape(message)):
        check(observe)


@pytest.mark.parametrize("is_wrong", [False, True])
def test_code_that_generates_is_checked_on_the_tokens_of_the_case(is_wrong):
    def observe(case, dtype):
        model = Decoder(case.sizes, {"tied": is_wrong}).to(getattr(torch, dtype))
        load(model, TABLE, case.theta, layers=case.sizes["L"])

        def generated():
            x = torch.tensor([case.inputs["x"]])
            for _ in range(3):
                x = torch.cat([x, model(x)[:, -1:].argmax(-1)], dim=1)
            return model(x)

        return record_torch(generated, model)

    if is_wrong:
        with pytest.raises(AssertionError, match="W_u is W_eᵀ"):
            check(observe)
    else:
        check(observe)


def test_a_parameter_that_is_nan_is_named():
    def observe(case, dtype):
        wrong = {**case.theta, "l2/W_mlp1": case.theta["l2/W_mlp1"] * np.nan}
        return decoder()(dataclasses.replace(case, theta=wrong), dtype)

    with pytest.raises(AssertionError, match=r"is NaN, first in the code's parameter blocks\.1\.fc\.weight"):
        check(observe)


def test_a_tied_parameter_goes_by_both_names_and_layers_may_be_numbered_otherwise():
    model = nn.Module()
    model.first, model.parts = nn.Linear(3, 2, bias=False), nn.ModuleList(nn.Linear(1, 1) for _ in range(4))
    model.second = nn.Module()
    model.second.weight = model.first.weight
    theta = {f"l{l}/{n}": np.array([10.0 * l + i]) for l in (1, 2) for i, n in enumerate("ab")}
    theta["W"] = np.arange(6.0).reshape(2, 3)
    table = {"second.weight": "W", "parts.{2l}.bias": "l{l}/a", "parts.{2l+1}.bias": "l{l}/b"}
    left = load(model, table, theta, layers=2)
    assert left == [f"parts.{i}.weight" for i in range(4)]
    np.testing.assert_array_equal(model.first.weight.detach().numpy(), theta["W"])
    assert [part.bias.item() for part in model.parts] == [10, 11, 20, 21]


def test_rows_of_a_numpy_embedding_are_recorded():
    W = np.random.default_rng(0).normal(size=(5, 3))
    recording = record_numpy(lambda theta: theta["W"][[4, 0, 2]][:2] * 2.0, {"W": W})
    assert [tensor.operation for tensor in recording.tensors] == ["getitem", "multiply"]
    np.testing.assert_array_equal(recording.tensors[0].value, W[[4, 0, 2]])


@pytest.mark.parametrize(
    "record", [record_jax, lambda of, x: record_numpy(lambda _, x: of(x), {}, x)], ids=["jax", "numpy"]
)
def test_a_number_that_is_returned_beside_the_output_is_the_loss(record):
    recording = record(lambda x: (x * 2.0, (x * 2.0).sum()), np.ones(3, np.float32))
    assert (recording.loss, [a.tolist() for a in recording.outputs]) == (6.0, [[2.0] * 3])
    with pytest.raises(GlueError, match="expected logits, or logits and a loss, got 2 numbers; return one"):
        record(lambda x: (x, x.sum(), x.min()), np.ones(3, np.float32))


def test_arrays_of_any_framework_are_compared():
    W, b, X = (np.random.default_rng(0).normal(size=n) for n in (3, 3, (3, 7)))
    recording = record_arrays({"parameter:W": W, "output:y": W @ X + b[0], "loss:": [2.0], "any": X}, "float64")
    assert (list(recording.parameters), recording.loss, recording.dtype) == (["W"], 2.0, "float64")
    assert [tensor.operation for tensor in recording.tensors] == ["output:y", "any"]


def test_what_is_told_can_be_declared():
    wrong = decoder(eps=1e-5, tanh=True, reduction="mean")
    with pytest.raises(AssertionError, match="if that is meant: --expect") as raised:
        check(wrong)
    (told,) = re.findall('--expect "(.*)"', str(raised.value))
    assert sorted(told.split(",")) == ["activation=gelu_tanh", "loss=mean", "norm_epsilon=+1e-05"]
    assert check(wrong, expect=told).ok
    assert check(decoder(eps=1e-5), expect="epsilon=1e-5").ok
