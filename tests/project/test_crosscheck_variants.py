"""The cross-check of published models: every line equal, and exactly the changed lines marked."""

import dataclasses
import functools

import pytest

import algorithms
from algorithms.lines import MLP, Attention, Embedding, RMSNorm, Rotary, TransformerXL, Unembedding
from tests.printed_lines import lines_not_printed
from training.commands.crosscheck import ROOT
from training.crosscheck.algorithms import PSEUDOCODE
from training.crosscheck.changes import ARCHITECTURES, SHARING, changed_lines
from training.crosscheck.variants import NAMES, VariantScenarios, compare_variant, with_numbers_that_matter
from training.foreign.making import make_case

QUICK, THOROUGH = ("LLAMA",), ("ALBERT", "T5", "GPT2", "OPT", "BART", "GEMMA2", "NEOX")
NOT_LINES = {"pooler": "is read by no line"}
NOT_LINES |= dict.fromkeys(("mlp.d_mlp", "attention.d_head", "attention.n_keys"), "is a size")
NOT_LINES["mtp"] = "is behind the last line"


@functools.cache
def crosscheck(name, implementation="paper"):
    return compare_variant(VariantScenarios(algorithms, name, seed=0, sizes={}, implementation=implementation), ROOT)


@pytest.fixture(scope="module")
def llama():
    return crosscheck("LLAMA")


def marks_of(name):
    return () if name in QUICK else pytest.mark.thorough if name in THOROUGH else pytest.mark.slow


@pytest.mark.end_to_end
@pytest.mark.parametrize("name", [pytest.param(name, marks=marks_of(name)) for name in NAMES])
def test_every_line_of_a_variant_agrees(name):
    results = crosscheck(name)
    assert results.ok, results
    assert results.worst <= 1e-10
    assert any(result.change is not None for result in results.lines.values())
    assert {result.verdict for result in results.lines.values()} <= {"equal", "left out"}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", NAMES)
def test_those_lines_are_marked_whose_printed_formula_gives_other_values(name):
    case = make_case(variant=name, record=with_numbers_that_matter(algorithms.VARIANTS[name]))
    changed = changed_lines(algorithms.VARIANTS[name], case.algorithm, 2 if name in SHARING else 1)
    found = lines_not_printed(case)
    assert {key: key in changed for key in found} == found


@pytest.mark.end_to_end
def test_the_changed_lines_of_llama(llama):
    changed = {key: result.line.text for key, result in llama.lines.items() if result.change is not None}
    assert changed == {
        (4, "1"): "Q ← W_q X",
        (4, "2"): "K ← W_k Z",
        (4, "3"): "V ← W_v Z",
        (4, "4"): "S ← (R_z K)ᵀ(R_x Q)",
        (5, "2"): "Y^h ← Attention(X, Z | W_q^h, b_q^h, 𝓦_kv^g, Mask)",
        (5, "return"): "return Ṽ = W_o Y",
        (6, "1"): "m ← 0",
        (6, "2"): "v ← Σ_i e[i]²/d_e",
        (6, "return"): "return ê = e/√(v + ε) ⊙ γ",
        (10, "2"): "for t ∈ [ℓ]: e_t ← W_e[:, x[t]]",
        (10, "5"): "for t ∈ [ℓ]: X̃[:,t] ← rms_norm(X[:,t] | γ_l^1)",
        (10, "7"): "for t ∈ [ℓ]: X̃[:,t] ← rms_norm(X[:,t] | γ_l^2)",
        (10, "8"): "X ← X + W_mlp2^l (SiLU(W_gate^l X̃) ⊙ (W_mlp1^l X̃))",
        (10, "10"): "for t ∈ [ℓ]: X[:,t] ← rms_norm(X[:,t] | γ)",
    }
    assert llama.lines[6, "1"].verdict == "left out"
    assert not any(key[0] == 2 for key in llama.lines)  # no positions are embedded


def test_every_field_changes_a_formula():
    """Of a named variant, or of one in the list below. A field that no formula reads would change none."""
    extra = [algorithms.PAPER.but(**variant) for variant, *_ in WITHOUT_A_NAME]
    variants = [(variant, ARCHITECTURES.get(name, 10)) for name, variant in algorithms.VARIANTS.items()]
    variants += [(variant, n) for variant, (_, n, *_) in zip(extra, WITHOUT_A_NAME, strict=True)]
    changes = (change for variant, n in variants for change in changed_lines(variant, n, 2).values())
    found = {field for change in changes for field in change.fields}
    records = {"": algorithms.Variant, "embedding.": Embedding, "norm.": RMSNorm, "attention.": Attention, "mlp.": MLP,
               "unembedding.": Unembedding}  # fmt: skip
    named = {prefix + field.name for prefix, record in records.items() for field in dataclasses.fields(record)}
    assert named - found == {*NOT_LINES, "embedding", "unembedding"}
    others = {
        "H_kv",
        "attention.delta_min",
        "attention.attention",
        "attention.factors",
        "mlp.shared",
        "mlp.shared_gate",
        "mlp.own_norms",
        "mlp.weighted",
        "norm.beta",
    }
    assert found - named == others


NORMALIZED = Attention(positions=Rotary(share=0.5), normalize_heads=RMSNorm(), scale=2.0)


WITHOUT_A_NAME = [
    (
        {"first": (MLP(d_mlp=5),)},
        10,
        (10, "8"),
        "X ← X + W_mlp2^l GELU(W_mlp1^l X̃ + b_mlp1^l 1ᵀ) + b_mlp2^l 1ᵀ; for l ≤ 1: X ← X + MLP(X̃ | 𝓦_l^first)",
    ),
    ({"order": "no_norm"}, 10, (10, "5"), "for t ∈ [ℓ]: X̃[:,t] ← X[:,t]"),
    ({"order": "norm_last"}, 10, (10, "5"), "for t ∈ [ℓ]: X̃[:,t] ← X[:,t]"),
    ({"final_norm": False}, 10, (10, "10"), "for t ∈ [ℓ]: X[:,t] ← X[:,t]"),
    ({"final_norm": True}, 8, (8, "20"), "end; X ← norm(X)"),
    ({"order": "norm_first"}, 9, (9, "6"), "for t ∈ [ℓ]: X[:,t] ← X[:,t]"),
    ({"mlp": None}, 10, (10, "8"), "X ← X"),
    ({"unembedding": Unembedding(tied=True, scaled=True)}, 10, (10, "return"), "return P = softmax(W_eᵀ/√d_e X)"),
    (
        {"attention": Attention(clip=2.0, positions=TransformerXL(), normalize_heads=RMSNorm())},
        10,
        (4, "4"),
        "S ← clip(rms_norm(K))ᵀ(clip(rms_norm(Q)) + u 1ᵀ)",
    ),
    ({"attention": Attention(clip=2.0)}, 10, (4, "return"), "return Ṽ = clip(V) · softmax(S/√d_attn)"),
    ({"attention": Attention(window=3)}, 9, (9, "5"), "X ← X + MHAttention(X | 𝓦_l, Mask[t,t'] = ⟦|t − t'| < w⟧)"),
    ({"attention": NORMALIZED}, 10, (4, "4"), "S ← s √d_attn (R_z rms_norm(K))ᵀ(R_x rms_norm(Q))"),
]


@pytest.mark.parametrize(("variant", "algorithm", "key", "text"), WITHOUT_A_NAME)
def test_formulas_of_records_without_a_name(variant, algorithm, key, text):
    assert changed_lines(algorithms.PAPER.but(**variant), algorithm)[key].line.text == text


def test_the_paper_changes_nothing():
    assert all(changed_lines(algorithms.PAPER, n) == {} for n in (8, 9, 10))


@pytest.mark.end_to_end
def test_the_paper_is_beside_what_is_changed(llama):
    lines = {(line["algorithm"], line["line"]): line for line in llama.as_data()["lines"]}
    changed = lines[10, "8"]["changed"]
    assert changed["printed"] == PSEUDOCODE[10].line("8").text
    assert changed["by"] == ("mlp.activation", "mlp.gated", "mlp.biases")
    assert lines[10, "6"]["changed"] is None
    counted = "LLAMA: implementation paper: 7 algorithms, 33 lines: 32 equal, 1 left out; 14 changed; "
    assert str(llama).startswith(counted)
