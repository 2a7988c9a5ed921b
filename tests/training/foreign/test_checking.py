"""Foreign code: what departs is named, with its line, and nothing else is."""

import subprocess
import sys

import numpy as np
import pytest

from tests.foreign_code import attention, decoder, modern, softmax, torch, translator
from training.commands.crosscheck import main
from training.foreign import check
from training.foreign.checking import beside, diagnose
from training.foreign.diagnose import Diagnosis
from training.foreign.making import make_case, write_case


def found(observe, algorithm=10, dtype="float64", **options):
    report = diagnose(make_case(algorithm, **options), observe(make_case(algorithm, **options), dtype))
    return {(d.algorithm, d.line): d.text for d in report.departures}, report


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_right_code_departs_nowhere(dtype):
    report = check(decoder(), dtype=dtype)
    assert set(report.walk.status.values()) <= {"equal", "in step", "not shown"}
    assert list(report.walk.status.values()).count("equal") > 40


MISTAKES = [
    ({"eps": 1e-05}, (6, "return"), "ε = 1e-05 is added to v"),
    ({"scale": True}, (4, "return"), "scores are not divided by √d_attn"),
    ({"diagonal": 1}, (4, "5"), "a token attends to the next one, too"),
    ({"axis": -2}, (4, "return"), "softmax is over the queries"),
    ({"residual": True}, (10, "6"), "the residual is the normalized X̃, not X"),
    ({"tanh": True}, (10, "8"), "GELU is its tanh approximation"),
    ({"post": True}, (6, "return"), "the norm comes after the sum (post-norm)"),
    ({"reversed": True}, (10, "6"), "the layers are in reverse"),
    ({"axis": 1}, (4, "return"), "is NaN, first in _softmax (foreign_code.py:"),
    ({"fewer": 1}, (10, "6"), "the layer is left out"),
    ({"first": 1}, (2, "return"), "positions are one too high"),
    ({"tied": True}, (10, "return"), "W_u is W_eᵀ"),
    ({"merge": True}, (5, "3"), "without transposing"),
    ({"reduction": "mean"}, (13, "5"), "averaged over the ℓ − 1 predictions"),
    ({"silu": True}, (10, "8"), "the activation is SiLU"),
    ({"exchanged": True}, (4, "1"), "W_q and W_v are exchanged"),
    ({"H": 2}, (4, "4"), "rows are in 2 heads, not in H"),
    ({"tokens": [2, 3, 5, 7, 11, 13, 1]}, (1, "return"),
     "the tokens are 2, 3, 5, 7, 11, 13, 1, not those of case.inputs"),
    ({"unnormalized": "k"}, (4, "2"), "keys are of X, not of the normalized X̃"),
    ({"unnormalized": "qv"}, (4, "1"), "queries and values are of X, not of the normalized X̃"),
    ({"v": lambda v: v.flip(1)}, (4, "return"), "heads have values in reverse"),
    ({"k": lambda k: k.roll(1, 1)}, (4, "4"), "heads have keys in another order: head h those of h − 1"),
    ({"v": lambda v: v[:, :1].expand_as(v)}, (4, "return"), "all heads have the first head's values"),
    ({"axis": 1, "fill": -1e9}, (4, "return"), "softmax is over the heads, and masked scores are a large number"),
    ({"embedded": 18**0.5}, (10, "2"), "the sum of token and position is multiplied by √d_e"),
    ({"behind": lambda X: X * 0.5**0.5}, (10, "8"), "the sum is multiplied by √½"),
    ({"not loaded": "blocks.{l}.fc.bias"}, (10, "8"), "fc.bias, which holds nothing of θ: load it"),
]  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("wrong", "line", "text"), MISTAKES)
def test_a_mistake_is_named(wrong, line, text, dtype):
    departures, _ = found(decoder(**wrong), dtype=dtype)
    assert list(departures) == [line]
    assert text in departures[line]


@pytest.mark.parametrize(("wrong", "told"), [
    ({}, []),
    ({"causal": True}, [(4, "5", "enc*/5", "the mask is causal where the paper has none")]),
    ({"fill": -20.0}, [(4, "5", "dec*/14", "−20 is added to masked scores, not −∞")]),
    ({"first": 1}, [(2, "return", "encoder", "positions are one too high")]),
    ({"fewer": True}, [(8, "5", "enc2", "the layer is left out")]),
])  # fmt: skip
def test_a_mistake_is_named_where_it_is(wrong, told):
    _, report = found(translator(**wrong), algorithm=8)
    assert [(d.algorithm, d.line, d.where, d.text) for d in report.departures] == told


SECOND_HEAD = [
    ({}, {}),
    ({"rolled": True}, {}),
    ({"norms": "exchanged"}, {(6, "return"): "it has the γ, β of the norm before"}),
    ({"norms": "X"}, {(6, "return"): "there is no norm here"}),
    ({"norms": "last"}, {(6, "return"): "it has the γ, β of the norm before"}),
    ({"before": True}, {(10, "10"): "the second head reads X before the last norm"}),
    ({"order": True}, {(10, "10"): "W_m multiplies X above e, not e above X"}),
    ({"shift": 0}, {(1, "return"): "the second head embeds x[t], not x[t+1]"}),
    ({"shift": 2}, {(1, "return"): "the second head embeds x[t+2], not x[t+1]"}),
    ({"tied": "second"}, {(10, "return"): "W_u is W_eᵀ (tied)"}),
    ({"labels": 1}, {(13, "5"): "the second head's loss is 0.3 times the sum of −log P[x[t+1], t]"}),
    ({"second head": 1.0}, {(13, "5"): "the second head's loss is 1 times the sum of −log P[x[t+2], t]"}),
    ({"second head": 0.0}, {(13, "5"): "the second head's loss is 0 times the sum of −log P[x[t+2], t]"}),
    ({"copies": True}, {(13, "6"): "what W_e and W_u get from the second head, which has copies of them, is missing"}),
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("wrong", "told"), SECOND_HEAD)
def test_a_mistake_in_a_second_head_is_named(wrong, told):
    departures, report = found(decoder(**{"second head": 0.3, **wrong}), edge="second head")
    assert departures == told, report


def test_values_that_are_shared_otherwise_than_keys_are_named():
    """No choice of keys and values together explains them, so that a walk that tries these goes in a circle."""
    assert not found(decoder(), edge="grouped heads")[0]
    departures, report = found(decoder(**{"values tiled": True}), edge="grouped heads")
    assert departures == {(4, "return"): "head h reads values h mod H_kv"}, report


OTHER_PAIRS = "queries and keys are rotated, pairs: {}, base 10000, exponent 2i/d, frequencies of other pairs"
FITTED = [
    ("LLAMA", {}, {}),
    ("LLAMA", {"fill": -8.0}, {(4, "5"): "masked scores are −8, not −∞"}),
    ("LLAMA", {"times": 1.3}, {(4, "4"): "scores are multiplied by 1.3/√d_attn, not by 1/√d_attn"}),
    ("LLAMA", {"embedding": 3.7}, {(10, "2"): "token embeddings are multiplied by 3.7"}),
    ("LLAMA", {"base": 31_415.0}, {(4, "1"): "queries and keys are rotated, pairs: halves, base 31415, exponent 2i/d"}),
    ("LLAMA", {"first key": 1}, {(4, "2"): "rotations count from 1"}),
    ("LLAMA", {"from": -1}, {}),
    ("LLAMA", {"from": -1, "tiled": True}, {(4, "4"): "head h reads keys h mod H_kv"}),
    ("LLAMA", {"values rotated": True}, {(4, "return"): "values are rotated, too"}),
    ("QWEN3", {"keys as they are": True}, {(4, "2"): "only queries are normalized"}),
    ("QWEN3", {"sums": True}, {(6, "2"): "squares are summed, not averaged"}),
    ("QWEN3", {"over": 2}, {(4, "1"): "each row is normalized over the tokens"}),
    ("QWEN3", {"over": (1, 3), "keys over": (1, 3)},
     {(4, "1"): "queries and keys are normalized over all heads together, not head by head"}),
    ("QWEN3", {"embedding normed": True}, {(10, "2"): "a norm with γ = 1, β = 0 is added"}),
    ("QWEN3", {"norm unused": True}, {(6, "return"): "there is no norm here"}),
    ("LLAMA", {"norm unused": True, "tied": True},
     {(6, "return"): "there is no norm here", (10, "return"): "W_u is W_eᵀ (tied)"}),
    ("LLAMA", {"layer before": True}, {(4, "4"): "keys and values are those of the layer before"}),
    ("LLAMA", {"neighbors": True, "base": 7_000.0},
     {(4, "1"): "queries and keys are rotated, pairs: neighbours, base 7000, exponent 2i/d"}),
    ("QWEN3", {"γ of queries": True}, {(4, "2"): "queries have the γ of keys, or keys that of queries"}),
    ("LLAMA", {"strict": True, "add": -1e10}, {
        (4, "5"): "the mask is strict: a token does not attend to itself (⟦t_z < t_x⟧)",
        (4, "return"): "a token with nothing to attend to attends as if nothing were masked (a large number is added "
        "to scores, not −∞)"}),
    ("LLAMA", {"fill": 0.0, "zeroed": True},
     {(4, "5"): "masked scores are 0, not −∞, and weights are set to 0 after softmax, and not renormalized"}),
    ("LLAMA", {"residual": True}, {(10, "8"): "the residual is X as it was before attention was added"}),
    ("LLAMA", {"other pairs": True}, {(4, "1"): OTHER_PAIRS.format("halves")}),
    ("LLAMA", {"other pairs": True, "neighbors": True}, {(4, "1"): OTHER_PAIRS.format("neighbours")}),
]  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("variant", "wrong", "told"), FITTED)
def test_numbers_are_fitted_and_norms_of_queries_and_keys_hide_nothing(variant, wrong, told):
    departures, report = found(modern(**wrong), variant=variant)
    assert departures == told, report
    assert ("only the last token's logits are computed, and equal" in report.notes) == ("from" in wrong)


@pytest.mark.parametrize(("options", "wrong", "told"), [
    ({"H_kv": 4}, {"per head": True},
     {(4, "1"): "rows of W_q, W_k, W_v are read as [H, 3, d], each head with its queries, keys and values"}),
    ({"edge": "packed documents"}, {}, {}),
    ({"edge": "packed documents"}, {"one document": True},
     {(4, "5"): "a token attends to the documents before its own, too"}),
    ({"edge": "far positions"}, {"neighbors": True},
     {(4, "1"): "queries and keys are rotated, pairs: neighbours, base 10000, exponent 2i/d"}),
])  # fmt: skip
def test_edges_of_a_variant(options, wrong, told):
    departures, report = found(modern(**wrong), variant="LLAMA", **options)
    assert departures == told, report


TOKENS, HALVES = [(t, t + 1) for t in range(7)], [(0, 4), (4, 7)]


@pytest.mark.parametrize(("wrong", "told"), [
    ({"parts": TOKENS}, {}), ({"parts": HALVES}, {}),
    ({"parts": TOKENS, "position of the part": True}, {(4, "1"): "queries and keys are not rotated"}),
])  # fmt: skip
def test_code_with_a_cache_is_compared_line_by_line(wrong, told):
    departures, report = found(modern(**wrong), variant="LLAMA")
    assert departures == told, report
    assert list(report.walk.status.values()).count("equal") > 40


@pytest.mark.parametrize(("wrong", "dtype", "first", "most"), [
    ({"mixed": True}, "float64", "no line differs by more than float64 explains", (4, "return")),
    ({"tanh": True}, "float64", "GELU is its tanh approximation", (10, "8")),
    ({}, "bfloat16", "no line differs by more than float64 and bfloat16 explains", None),
])  # fmt: skip
def test_two_programs_are_compared(wrong, dtype, first, most):
    case = make_case()
    one, other = decoder()(case, "float64"), decoder(**wrong)(case, dtype)
    result, x = beside(case, one, other), case.inputs["x"]
    theirs = [torch.tensor(of.outputs[0][0]).log_softmax(-1)[range(6), x[1:]].numpy() for of in (one, other)]
    np.testing.assert_allclose(result.apart, theirs[1] - theirs[0], rtol=0, atol=1e-14)
    assert first in str(result)
    np.testing.assert_allclose(sum(result.shares.values()), 1)
    assert most is None or result.shares[most] > 0.99


whole, in_parts, wrong_scale = modern(), modern(parts=HALVES), modern(times=1.3)


@pytest.mark.parametrize(("other", "texts", "status"), [
    ("in_parts", ["no line differs by more than float64 explains", "log-probabilities of the tokens"], 0),
    ("wrong_scale", ["the first line that differs:\nAlgorithm 4", "by 1.3/√d_attn", "% by Algorithm 4, line"], 1),
])  # fmt: skip
def test_two_programs_are_compared_by_the_command(other, texts, status, capsys):
    of = ["--variant", "LLAMA", "--of", f"{__name__}:whole", "--beside", f"{__name__}:{other}"]
    assert main(of) == status
    told = capsys.readouterr().out
    assert all(text in told for text in texts), told


def test_two_folders_are_compared_by_the_command(tmp_path, capsys):
    case = make_case()
    write_case(case, tmp_path)
    for name, wrong in (("one", {}), ("other", {"tanh": True})):
        (tmp_path / name).mkdir()
        seen = decoder(**wrong)(case, "float64")
        arrays = {str(tensor.time): tensor.value for tensor in seen.tensors}
        np.savez(tmp_path / name / "dump.npz", allow_pickle=False, **arrays, **{"output:logits": seen.outputs[0]})
    assert main(["--of", str(tmp_path / "one"), "--beside", str(tmp_path / "other")]) == 1
    assert "GELU is its tanh approximation" in capsys.readouterr().out
    assert main(["--of", str(tmp_path / "one"), "--beside", str(tmp_path / "one")]) == 0
    assert "are equal to the bit" in capsys.readouterr().out


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize("cast", ["before", "after"])
def test_where_a_norm_in_float32_is_cast_back_is_noted(cast, dtype):
    """Gemma multiplies by γ before, Llama after; logits in float32 do not make bfloat16 another dtype."""
    logits = {"logits": lambda Y: Y.float()} if dtype == "bfloat16" else {}
    departures, report = found(modern(cast=cast, **logits), variant="LLAMA", dtype=dtype)
    assert not departures, report
    assert report.dtype == dtype
    assert f"γ multiplies {cast} the norm is cast from float32 to {dtype}" in report.notes


@pytest.mark.parametrize("glue", ["autocast", "numpy"])
def test_the_dtype_is_that_of_what_is_computed(glue):
    """Parameters in float32 under autocast; a dtype that is not one of NumPy's own."""
    case = make_case(variant="LLAMA") if glue == "autocast" else make_case(5)
    with torch.autocast("cpu", torch.bfloat16, enabled=glue == "autocast"):
        recording = modern()(case, "float32") if glue == "autocast" else attention(case, "bfloat16")
    report = diagnose(case, recording)
    assert report.dtype == "bfloat16"
    assert not report.departures, report


def test_sublayers_that_follow_each_other_are_named_where_they_stand_side_by_side():
    """The mean that the second norm of the same X would have is the first one's, and is found."""
    (departure,) = diagnose(make_case(10), decoder()(make_case(10), "float64"), {"parallel": "yes"}).departures
    assert departure.text == "one sublayer follows the other"


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_rough_run_finds_what_a_run_with_errors_finds(dtype):
    diagnosis = Diagnosis(make_case(10), decoder()(make_case(10), dtype))
    exact, rough = (diagnosis.run({}, **options) for options in ({}, diagnosis.rough))
    shown, of_rough = ({v for v, seen in run.lines.items() if seen.match is not None} for run in (exact, rough))
    assert rough.R == 1
    assert len(shown) > 40
    assert shown <= of_rough


@pytest.mark.parametrize("wrong", [{"silu": True}, {"scale": True}, {"axis": -2}, {}])
def test_in_bfloat16_nothing_else_is_told(wrong):
    """Rounding hides these in the lines where they are, and shows them in later ones; a draw may be another's, too."""
    texts = {"silu": "SiLU", "scale": "not divided by √d_attn", "axis": "over the queries"}
    departures, report = found(decoder(**wrong), dtype="bfloat16")
    assert len(departures) == len(wrong), report
    assert all(texts[name] in text for name, text in zip(wrong, departures.values(), strict=True)), report


@pytest.mark.parametrize(("wrong", "told"), [
    ({"scale": True}, {(4, "return"): "scores are not divided by √d_attn"}),
    ({"side by side": True}, {(10, "6"): "attention and MLP read the same X, side by side"}),
])  # fmt: skip
def test_a_mistake_beside_a_softmax_in_float32_is_named_in_float64(wrong, told):
    """By its name, and not as what float64 alone explains: that attention is left out."""
    departures, report = found(decoder(mixed=True, **wrong))
    assert departures == told, report
    assert any(note.startswith("float32 within float64, first in _to_copy (foreign_code.py:") for note in report.notes)


def test_gradients_beside_tables_of_positions_from_float32_are_judged_by_these():
    def summed(Y, x):
        return torch.nn.functional.cross_entropy(Y, x, reduction="sum")

    departures, report = found(modern(tables=True, loss=summed), variant="LLAMA")
    assert not departures, report
    assert "tables of positions in float32 within float64: gradients are judged by that" in report.notes
    departures, report = found(modern(tables=True, loss=lambda Y, x: 0.9 * summed(Y, x)), variant="LLAMA")
    assert departures.keys() == {(13, "5")}, report
    departures, report = found(modern(loss=summed), variant="LLAMA")
    assert not departures, report
    assert not report.notes


LEARNING = [
    ({"detached": "K"}, (4, "2"), "no gradient passes it"),
    ({"detached": "softmax"}, (4, "return"), "its derivative is as if the sum below the fraction is constant"),
    ({"derivative": True}, (10, "8"), "its derivative is as if GELU is its tanh approximation"),
    ({"times": 1 / 6}, (13, "6"), "averaged, not summed"),
    ({"hook": lambda g: g.flip(1)}, (13, "6"), "going backwards, the gradient differs from l2/"),
    ({"optimizer": lambda p: torch.optim.SGD(p, 0.1, maximize=True)}, (13, "6"), "the step is uphill"),
    ({"optimizer": lambda p: torch.optim.AdamW(p, 0.1)}, (13, "6"), "the step is AdamW's"),
    ({"optimizer": lambda p: torch.optim.Adam(p, 0.1, weight_decay=0.01)}, (13, "6"),
     "its decay added to the gradient"),
    ({"tau": True}, (14, "5"), "τ is not used"),
]  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("wrong", "line", "text"), LEARNING)
def test_what_follows_is_named(wrong, line, text):
    departures, _ = found(decoder(**wrong))
    assert list(departures) == [line]
    assert text in departures[line]


@pytest.mark.parametrize(("optimizer", "text"), [
    (lambda p: torch.optim.AdamW(p, 0.1, weight_decay=0.3), "θ − η·Adam's direction, and θ decays by 0.3 times that"),
    (lambda p: torch.optim.AdamW(p, 0.004, weight_decay=0.0), "θ − 0.004·Adam's direction, without decay"),
    (lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.2), "θ − η·∇loss, and θ decays by 0.2 times that"),
])  # fmt: skip
def test_rates_and_decays_are_fitted(optimizer, text):
    departures, report = found(decoder(optimizer=optimizer))
    assert departures == {(13, "6"): f"the step is {text}"}, report


def smoothed(logits, x):
    return torch.nn.functional.cross_entropy(logits[0, :-1], x[0, 1:], label_smoothing=0.15)


def with_z(logits, x):
    z = logits[0, :-1].logsumexp(-1).square().sum()
    return torch.nn.functional.cross_entropy(logits[0, :-1], x[0, 1:], reduction="sum") + 0.02 * z


def of_means(logits, x):
    losses = torch.nn.functional.cross_entropy(logits[0, :-1], x[0, 1:], reduction="none")
    return (losses[:2].mean() + losses[2:].mean()) / 2


@pytest.mark.parametrize(("loss", "text"), [
    (smoothed, "labels are smoothed by 0.15 (mean)"), (with_z, "0.02·(log Σ exp of the logits)² is added (sum)"),
])  # fmt: skip
def test_losses_are_fitted(loss, text):
    departures, report = found(decoder(loss=loss))
    assert departures == {(13, "5"): text}, report


def test_declared_updates_are_checked():
    assert check(decoder(optimizer=lambda p: torch.optim.AdamW(p, 0.1)), expect="update=AdamW").ok
    with pytest.raises(AssertionError, match="Adam's, without decay"):
        check(decoder(optimizer=lambda p: torch.optim.Adam(p, 0.1)), expect="update=AdamW")


def test_gpt2_is_told_and_can_be_declared():
    gpt2 = decoder(eps=1e-5, tanh=True, tied=True)
    with pytest.raises(AssertionError, match="together these are the lines that GPT2 changes"):
        check(gpt2)
    report = check(gpt2, expect="GPT2")
    assert report.ok
    with pytest.raises(AssertionError, match="scores are not divided by √d_attn"):
        check(decoder(eps=1e-5, tanh=True, tied=True, scale=True), expect="GPT2")
    assert check(decoder(reduction="mean", eps=1e-5, tanh=True, tied=True), expect="GPT2, loss=mean").ok


def test_numpy():
    departures, report = found(attention, 5)
    assert not departures, report
    departures, _ = found(lambda case, dtype: attention(case, dtype, mask=lambda M: ~M), 5)
    assert departures[4, "5"] == "the given mask is inverted"


def exponentials(S):
    return np.exp(S - S.max(axis=0))


def finite(S, M):
    E = exponentials(np.where(M, S, -1e9))
    return E / E.sum(0)


def nothing(S, M):
    with np.errstate(invalid="ignore"):
        return np.exp(np.where(M, S, -np.inf)) / np.exp(np.where(M, S, -np.inf)).sum(0)


QUERIES = "numerators are divided by their sum over the queries"
WEIGHTS = [
    (lambda S, M: softmax(S, M, axis=1), [QUERIES]),
    (lambda S, M: exponentials(S) * M / exponentials(S).sum(0), ["weights are set to 0 after softmax"]),
    (lambda S, M: exponentials(S) * M / (exponentials(S) * M).sum(1, keepdims=True),
     ["the exponentials are masked, not the scores", QUERIES]),
    (lambda S, M: np.exp(S) * M / np.exp(S).sum(1, keepdims=True),
     ["weights are set to 0 after softmax", "softmax is over the queries"]),
    (lambda S, M: np.exp(S) * M / np.exp(S).sum(), ["weights are set to 0 after softmax", "softmax is over all pairs"]),
    (lambda S, M: exponentials(S) * M / (1 + (exponentials(S) * M).sum(0)),
     ["the exponentials are masked, not the scores", "1 more in its denominator, after its maximum is subtracted"]),
    (lambda S, M: 40 * np.exp(S) * M / 40, ["the softmax is not divided by its sum"]),  # values of −10,000
    (finite, ["a token with nothing to attend to attends to all tokens alike"]),
    (lambda S, M: exponentials(S - 1e9 * ~M) / exponentials(S - 1e9 * ~M).sum(0),
     ["a token with nothing to attend to attends as if nothing were masked"]),
    (lambda S, M: (np.exp(S) + M) / np.exp(S).sum(0), ["is another, in no form of the catalogue"]),
]  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("weights", "texts"), WEIGHTS)
def test_weights_are_named_by_what_they_give(weights, texts):
    """Steps on the way to them are in the code, too: scores, exponentials, masked or not."""
    _, report = found(lambda case, dtype: attention(case, dtype, weights=weights), 5)
    told = [d.text for d in report.departures]
    assert len(told) == len(texts), report
    assert all(text in d for text, d in zip(texts, told, strict=True)), report


def test_a_softmax_over_the_heads_is_named_although_it_is_nan():
    _, report = found(decoder(axis=1))
    assert [d.text for d in report.departures if d.kind == "named"] == ["softmax is over the heads"]


def test_after_two_unknowns_it_stops():
    _, report = found(decoder(weights=lambda A: A + 0.1 * A.square()))
    kinds = [d.kind for d in report.departures]
    assert kinds.count("unknown") <= 2
    assert "named" not in kinds


def test_matcher_and_diagnosis_need_no_jax():
    code = "import sys, training.foreign.diagnose as d; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("options", "message"), [
    ({"expect": "GPT5"}, "expected one of PAPER, GPT2"), ({"expect": "BERT"}, "expected one of"),
    ({"expect": "size=2"}, "expected a slot among"), ({"sizes": {"de": 24}}, "expected some of H, H_kv"),
    ({"expect": "activation=swish"}, "expected activation to be one of gelu, relu"),
])  # fmt: skip
def test_options_that_are_none_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        check(decoder(), **options)
