"""The lines that a variant changes: from its record to the changed formulas, by one table.

A row says which field of the record changes which lines, and how: what is replaced in the printed formula, as text and
as LaTeX. A variant's lines are the printed ones with the rows that apply, one after another. `printed` finds the changed
lines a second time, from what a run computes, and both must agree.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

from .algorithms import PSEUDOCODE
from .pseudocode import Line

__all__ = ["ARCHITECTURES", "CHANGES", "SHARING", "Change", "ChangedLine", "changed_lines"]

Lines = Mapping[int, str]  # an algorithm → the numbers of some of its lines
Edits = tuple[tuple[str, str], ...]  # regular expression → replacement, in which VALUE is the row's value

ARCHITECTURES: Mapping[str, int] = {
    **dict.fromkeys(("VASWANI", "BART", "MARIAN", "FSMT", "T5"), 8),
    **dict.fromkeys(("BERT", "ROBERTA", "ALBERT"), 9),
}
"""Name of a variant → its algorithm, where that is not Algorithm 10."""

SHARING = ("LLAMA", "MISTRAL", "QWEN2", "QWEN3", "GEMMA", "GEMMA2", "GEMMA3")
SHARING += ("MIXTRAL", "QWEN3_MOE", "OLMOE", "GPT_OSS")
"""Variants with models whose heads share keys and values, which the sizes of the parameters say and not the record."""


@dataclasses.dataclass(frozen=True)
class Change:
    """A row of the table.

    Attributes:
        field: of the record, "attention.cap" for the cap of its attentions.
        value: what is put for VALUE, from the record and the heads that share keys; None where the row does not apply.
        lines: the lines that it changes, by algorithm.
        text: what it replaces in the text of the formula.
        latex: what it replaces in the LaTeX.
        note: says what a new symbol means; VALUE stands for the value here, too.
        left_out: whether nothing computes the lines any more.
    """

    field: str
    value: Callable[[Any, int], str | None]
    lines: Lines
    text: Edits
    latex: Edits
    note: str = ""
    left_out: bool = False


@dataclasses.dataclass(frozen=True)
class ChangedLine:
    """A line as a variant has it.

    Attributes:
        line: the line with the changed formula.
        fields: of the record, those that change it.
        notes: what new symbols mean.
        left_out: whether nothing computes it any more.
    """

    line: Line
    fields: tuple[str, ...]
    notes: tuple[str, ...]
    left_out: bool


def changed_lines(variant: Any, algorithm: int, sharing: int = 1) -> dict[tuple[int, str], ChangedLine]:
    """The lines of an algorithm, and of Algorithms 4 to 7, that a variant changes.

    `variant`: the record; `algorithm`: 8, 9 or 10; `sharing`: how many heads share keys and values.

    Raises:
        ValueError: if a row does not fit its formula.
    """
    found: dict[tuple[int, str], ChangedLine] = {}
    for change in CHANGES:
        value = change.value(variant, sharing)
        if value is None:
            continue
        for n in (4, 5, 6, 7, algorithm):
            for number in change.lines.get(n, "").split():
                line = PSEUDOCODE[n].line(number)
                before = found.get((n, number), ChangedLine(line, (), (), False))
                text = _edited(before.line.text, change.text, value, change, n, number)
                latex = _edited(before.line.latex, change.latex, value.replace("_", r"\_"), change, n, number)
                if text == before.line.text:
                    continue  # the value is the paper's here, as ReLU in Algorithm 8
                found[n, number] = ChangedLine(
                    dataclasses.replace(line, text=text, latex=latex),
                    (*before.fields, change.field),
                    (*before.notes, *([change.note.replace("VALUE", value)] if change.note else [])),
                    before.left_out or change.left_out,
                )
    return found


def _edited(formula: str, edits: Edits, value: str, change: Change, n: int, number: str) -> str:
    for pattern, replacement in edits:
        formula, count = re.subn(pattern, replacement.replace("VALUE", value.replace("\\", r"\\")), formula)
        if not count:
            raise ValueError(f"{change.field}: {pattern} is not in line {number} of Algorithm {n}, {formula}")
    return formula


def _if(
    condition: Callable[[Any], Any], value: Callable[[Any], Any] = lambda v: ""
) -> Callable[[Any, int], str | None]:
    """A row's value where a condition holds of the record."""
    return lambda variant, _: str(value(variant)) if condition(variant) else None


def _each(field: str) -> Callable[[Any], str]:
    """The values of an attention's field: one, or those that the layers take in turn."""

    def values(variant: Any) -> str:
        numbers = dict.fromkeys(getattr(a, field) for a in variant.attentions)
        each = ", ".join("∞" if n is None else f"{n:g}" for n in numbers)
        return f"{each} in turn" if len(numbers) > 1 else each

    return values


def _kind(attention: Any) -> str:
    """The class of an attention's positions."""
    return type(attention.positions).__name__


def _has(kind: str) -> Callable[[Any], bool]:
    return lambda variant: any(_kind(a) == kind for a in variant.attentions)


def _any(field: str) -> Callable[[Any], bool]:
    return lambda variant: any(getattr(a, field) is not None for a in variant.attentions)


def _is_rms(norm: Any) -> bool:
    return type(norm).__name__ == "RMSNorm"


def _norm_name(norm: Any) -> str:
    return "rms_norm" if _is_rms(norm) else "layer_norm"


def _rotation(variant: Any) -> str:
    rotary = [a.positions for a in variant.attentions if _kind(a) == "Rotary"]
    bases = ", ".join(dict.fromkeys(f"{r.base:,.0f}" for r in rotary))
    r = rotary[0]
    rows = "i and i + d/2" if r.pairs == "halves" else "2i and 2i + 1"
    share = "d_attn" if r.share == 1 else f"{r.share:g} d_attn"
    scaled = "" if r.scaling is None else f", scaled by {type(r.scaling).__name__}"
    turn = " in turn" if "," in bases.replace(",000", "") else ""
    return f"rows {rows} of the first d = {share} by t · base^(−2i/d){scaled}, base = {bases}{turn}"


def _activation(variant: Any) -> str | None:
    return variant.mlp and variant.mlp.activation


def _is_latent(variant: Any) -> bool:
    return hasattr(variant.attentions[0], "d_q")


def _latent(variant: Any) -> str:
    """What latent attention has in place of Algorithm 5."""
    line = variant.attentions[0]
    q = "X̃" if line.d_q is None else "q"
    norms = "c = rms_norm(W_c X̃)" + ("" if line.d_q is None else ", q = rms_norm(W_cq X̃)")
    rotary = f"R rotates {_rotation(variant)}".replace("d_attn", "d_r")
    return f"queries [W_q^h {q}; R W_qr^h {q}], keys [W_k^h c; R W_kr X̃], values W_v^h c; {norms}; {rotary}"


def _has_experts(variant: Any) -> bool:
    return hasattr(variant.mlp, "router_bias")


def _experts(variant: Any) -> str:
    m = variant.mlp
    scores = "W_r X̃ + b_r 1ᵀ" if m.router_bias else "W_r X̃"
    scores = f"{'softmax' if m.scores == 'softmax' else 'σ'}({scores})"
    by = f"{scores} + b_choice 1ᵀ" if m.choice_bias else "these"
    within = f", within {m.chosen_groups} of {m.groups} groups by their {m.best} best" if m.groups > 1 else ""
    share = ", divided by their sum" if m.renormalized else ""
    factor = "" if m.factor == 1 else f", times {m.factor:g}"
    return f"{scores} in the {m.k} rows i of {m.n} with the largest of {by}{within}{share}{factor}; 0 in the others"


ACTIVATIONS = {"relu": "ReLU", "gelu": "GELU", "gelu_tanh": "GELU_tanh", "gelu_sigmoid": "GELU_sigmoid", "silu": "SiLU"}

EMBEDDING: Lines = {8: "2 11", 9: "2", 10: "2"}
CONTEXT: Lines = {8: "2"}
NORMS: Lines = {8: "6 8 15 17 19", 9: "6 8 11", 10: "5 7 10"}
NORMS_OF_LAYERS: Lines = {8: "6 8 15 17 19", 9: "6 8", 10: "5 7"}
ATTENTION: Lines = {8: "5 14 16", 9: "5", 10: "6"}
CAUSAL: Lines = {8: "14", 10: "6"}
TO_ALL: Lines = {8: "5", 9: "5"}
NORMALIZED_FIRST: Lines = {8: "5 14 16", 9: "5"}
MLP: Lines = {8: "7 18", 9: "7", 10: "8"}
ACTIVATED: Lines = {8: "7 18", 9: "7 10", 10: "8"}
RETURN: Lines = {8: "return", 9: "return", 10: "return"}
UNEMBEDDING: Lines = {**RETURN, 7: "1"}

DROP_NORM: Edits = ((r"(?:layer|rms)_norm\((\w\[:,t\]) \|[^)]*\)", r"\1"),)
DROP_NORM_LATEX: Edits = ((r"\\text\{(?:layer|rms)\\_norm\}\((\w\[:,t\]) \\mid[^)]*\)", r"\1"),)
SINUSOIDS: Edits = ((r"W_p\[:, t\]", "PE(t)"),)
SINUSOIDS_LATEX: Edits = ((r"W_p\[:, t\]", r"\\text{PE}(t)"),)


def _sinusoidal(form: str, note: str) -> Change:
    return Change("embedding.positions", _if(lambda v: v.embedding.positions == form), EMBEDDING, SINUSOIDS,
                  SINUSOIDS_LATEX, note)  # fmt: skip


def _by_distance(kind: str, text: str, latex: str, note: str) -> Change:
    return Change("attention.positions", _if(_has(kind)), {4: "5"},
                  (("$", f", else S[t_z,t_x] ← S[t_z,t_x] + {text}"),),
                  (("$", rf" \\text{{, else }} S[t_z, t_x] \\leftarrow S[t_z, t_x] + {latex}"),), note)  # fmt: skip


CHANGES: tuple[Change, ...] = (
    Change("embedding.positions", _if(lambda v: v.embedding.positions is None), EMBEDDING,
           ((r" \+ W_p\[:, t\]", ""),), ((r" \+ W_p\[:, t\]", ""),)),
    _sinusoidal("sinusoidal", "PE(t): rows 2i and 2i + 1 are sin and cos of t/10000^(2i/d_e)"),
    _sinusoidal("sinusoidal_halves", "PE(t): rows i and i + d_e/2 are sin and cos of t/10000^(2i/d_e)"),
    _sinusoidal("sinusoidal_fairseq", "PE(t): rows i and i + d_e/2 are sin and cos of t/10000^(2i/(d_e − 2))"),
    Change("embedding.first_position", _if(lambda v: v.embedding.first_position, lambda v: v.embedding.first_position),
           EMBEDDING, ((r"(W_p\[:, t|PE\(t)", r"\1 + VALUE"),), ((r"(W_p\[:, t|PE\}\(t)", r"\1 + VALUE"),)),
    Change("embedding.context_positions", _if(lambda v: v.embedding.context_positions), CONTEXT,
           (("W_p", "W_p^enc"),), (("W_p", r"W_p^\\text{enc}"),), "W_p^enc: the context has positions of its own"),
    Change("embedding.scaled", _if(lambda v: v.embedding.scaled), EMBEDDING,
           (("W_e", "√d_e · W_e"),), (("W_e", r"\\sqrt{d_e}\\, W_e"),)),
    Change("embedding.normalized", _if(lambda v: v.embedding.normalized, lambda v: _norm_name(v.norm)), EMBEDDING,
           (("← (.*)$", r"← VALUE(\1 | γ_e, β_e)"),),
           ((r"\\leftarrow (.*)$", r"\\leftarrow \\text{VALUE}(\1 \\mid \\gamma_e, \\beta_e)"),)),
    Change("embedding.factored", _if(lambda v: v.embedding.factored), {9: "2"},
           (("← (.*)$", r"← W_in (\1) + b_in"),), ((r"\\leftarrow (.*)$", r"\\leftarrow W_\\text{in} (\1) + b_\\text{in}"),),
           "W_in: from the d_in rows of an embedding to d_e"),
    Change("shared_layers", _if(lambda v: v.shared_layers > 1, lambda v: v.shared_layers), {8: "4 13", 9: "4", 10: "4"},
           ((" do$", ", g = ⌈l/VALUE⌉ do"),), ((r"\\text\{ do\}", r",\\; g = \\lceil l/VALUE \\rceil \\text{ do}"),),
           "g: VALUE layers in a row have the same parameters, those of g where the lines say l"),
    Change("norm", _if(lambda v: _is_rms(v.norm)), NORMS,
           ((r"layer_norm\((.*) \| (γ\S*), β\S*\)", r"rms_norm(\1 | \2)"),),
           ((r"layer\\_norm\}\((.*) \\mid (.*), \\beta[^)]*\)", r"rms\\_norm}(\1 \\mid \2)"),)),
    Change("norm.offset", _if(lambda v: getattr(v.norm, "offset", 0), lambda v: f"{v.norm.offset:g}"), NORMS,
           ((r"(γ[^)]*)\)", r"VALUE + \1)"),), ((r"(\\gamma[^)]*)\)", r"VALUE + \1)"),)),
    Change("norm", _if(lambda v: _is_rms(v.norm)), {6: "1"},
           (("←.*", "← 0"),), ((r"\\leftarrow.*", r"\\leftarrow 0"),), left_out=True),
    Change("norm", _if(lambda v: _is_rms(v.norm)), {6: "2"},
           ((r"\(e\[i\] − m\)²", "e[i]²"),), ((r"\(e\[i\] - m\)\^2", "e[i]^2"),)),
    Change("norm", _if(lambda v: _is_rms(v.norm)), {6: "return"},
           ((r"\(e − m\)", "e"), (r" \+ β", "")), (("e - m", "e"), (r" \+ \\beta", ""))),
    Change("norm.epsilon", _if(lambda v: v.norm.epsilon, lambda v: f"{v.norm.epsilon:g}"), {6: "return"},
           (("√v", "√(v + ε)"),), ((r"\\sqrt\{v\}", r"\\sqrt{v + \\varepsilon}"),), "ε = VALUE"),
    Change("attention.biases", _if(lambda v: v.attentions[0].biases in (False, "out")), {4: "1 2 3"},
           ((r" \+ b_\w 1ᵀ", ""),), ((r" \+ b_\w 1\^\\intercal", ""),)),
    Change("attention.biases", _if(lambda v: v.attentions[0].biases in (False, "qkv")), {5: "return"},
           ((r" \+ b_o 1ᵀ", ""),), ((r" \+ b_o 1\^\\intercal", ""),)),
    Change("H_kv", lambda _, sharing: "" if sharing > 1 else None, {5: "2"},
           ((r"𝓦_qkv\^h", "W_q^h, b_q^h, 𝓦_kv^g"),),
           ((r"\\mathcal\{W\}_\{qkv\}\^h", r"W_q^h, b_q^h, \\mathcal{W}_{kv}^g"),),
           "g = ⌈h H_kv/H⌉: heads share keys and values"),
    Change("attention.positions", _if(_has("Rotary"), _rotation), {4: "4"},
           (("KᵀQ", "(R_z K)ᵀ(R_x Q)"),), ((r"K\^\\intercal Q", r"(R_z K)^\\intercal (R_x Q)"),),
           "R_x turns the query at t = t_x, R_z the key at t = t_z: VALUE"),
    Change("attention.positions", _if(_has("TransformerXL")), {4: "4"},
           (("KᵀQ", "Kᵀ(Q + u 1ᵀ)"),), ((r"K\^\\intercal Q", r"K^\\intercal (Q + u 1^\\intercal)"),)),
    Change("attention.clip", _if(_any("clip"), _each("clip")), {4: "4"},
           (("K(.*)Q", r"clip(K)\1clip(Q)"),), (("K(.*)Q", r"\\text{clip}(K)\1\\text{clip}(Q)"),),
           "clip: entries below −c become −c, and those above c become c; c = VALUE"),
    Change("attention.clip", _if(_any("clip")), {4: "return"},
           (("V ·", "clip(V) ·"),), ((r"V \\cdot", r"\\text{clip}(V) \\cdot"),)),
    Change("attention.normalize_heads", _if(_any("normalize_heads")), {4: "4"},
           (("K(.*)Q", r"rms_norm(K)\1rms_norm(Q)"),),
           (("K(.*)Q", r"\\text{rms\\_norm}(K)\1\\text{rms\\_norm}(Q)"),),
           "rms_norm: of each column, with γ_k and γ_q"),
    Change("attention.heads_together", _if(lambda v: v.attentions[0].heads_together), {4: "4"},
           (("rms_norm", "rms_norm_H"),), ((r"\\text\{rms\\_norm\}", r"\\text{rms\\_norm}_H"),),
           "rms_norm_H: the norm of all heads' rows as one column; this head takes its own rows"),
    Change("embedding.positions", _if(lambda v: v.embedding.positions == "in_attention"), EMBEDDING,
           ((r" \+ W_p\[:, t\]", ""),), ((r" \+ W_p\[:, t\]", ""),)),
    Change("embedding.positions", _if(lambda v: v.embedding.positions == "in_attention"), {4: "4"},
           (("K", "(K + W_k P)"), ("Q", "(Q + W_q P)")), (("K", "(K + W_k P)"), ("Q", "(Q + W_q P)")),
           "P: the columns W_p[:, t], which queries and keys read in all layers, and nothing else"),
    Change("attention.scale", _if(_any("scale"), _each("scale")), {4: "4"},
           (("← ", "← s √d_attn "),), ((r"\\leftarrow ", r"\\leftarrow s \\sqrt{d_\\text{attn}}\\, "),),
           "s = VALUE in place of 1/√d_attn, which the last line multiplies by"),
    _by_distance("TransformerXL", "s (W_r r_δ)ᵀ(Q[:,t_x] + v)", r"s (W_r r_\\delta)^\\intercal (Q[:, t_x] + v)",
                 "δ = t_x − t_z; r_δ: rows i and i + d_e/2 are sin and cos of δ/base^(2i/d_e); s is 1, or that of line 4"),
    _by_distance("Distances", "√d_attn b[bucket(t_z − t_x)]",
                 r"\\sqrt{d_\\text{attn}}\\, b[\\text{bucket}(t_z - t_x)]",
                 "b: a number for each head and bucket of distances, the same in all layers; none in line 16 of Algorithm 8"),
    _by_distance("ALiBi", "−√d_attn m_h |t_z − t_x|", r"{-}\\sqrt{d_\\text{attn}}\\, m_h |t_z - t_x|",
                 "m_h: the slope of head h, 2^(−8h/H) where H is a power of 2"),
    Change("attention.cap", _if(_any("cap"), _each("cap")), {4: "5"},
           (("$", ", else S[t_z,t_x] ← c√d_attn tanh(S[t_z,t_x]/(c√d_attn))"),),
           (("$", r" \\text{, else } S[t_z, t_x] \\leftarrow c\\sqrt{d_\\text{attn}} \\tanh\\frac{S[t_z, t_x]}{c\\sqrt{d_\\text{attn}}}"),),
           "c = VALUE"),
    Change("attention.sinks", _if(lambda v: v.attentions[0].sinks), {4: "return"},
           ((r"softmax\((.*)\)", r"softmax_s(\1)"),), ((r"\\text\{softmax\}", r"\\text{softmax}_s"),),
           "softmax_s: with exp s of this head's sink in the denominator, too"),
    Change("attention.window", _if(_any("window"), _each("window")), CAUSAL,
           (("t ≤ t'", "t' − w < t ≤ t'"),), ((r"t \\le t'", r"t' - w < t \\le t'"),), "w = VALUE"),
    Change("attention.window", _if(_any("window"), _each("window")), TO_ALL,
           ((" ≡ 1", "[t,t'] = ⟦t' − w < t⟧"),), ((r" \\equiv 1", r"[t, t'] = \\llbracket t' - w < t \\rrbracket"),),
           "w = VALUE"),
    Change("attention.normalize_output", _if(_any("normalize_output"), lambda v: _norm_name(v.norm)), ATTENTION,
           ((r"\+ (MHAttention.*)$", r"+ VALUE(\1 | γ_l^out)"),),
           ((r"\+ (\\text\{MHAttention.*)$", r"+ \\text{VALUE}(\1 \\mid \\gamma_l^\\text{out})"),)),
    Change("attention", _if(_is_latent, _latent), {10: "6"},
           (("MHAttention", "LatentAttention"),), (("MHAttention", "LatentAttention"),), "LatentAttention: VALUE"),
    Change("mlp.gated", _if(lambda v: v.mlp and v.mlp.gated), MLP,
           ((r"(\w+)\(W_mlp(\d)\^l (\S+) \+ b_mlp\d\^l 1ᵀ\)",
             r"(\1(W_gate^l \3 + b_gate^l 1ᵀ) ⊙ (W_mlp\2^l \3 + b_mlp\2^l 1ᵀ))"),),
           ((r"\\text\{(\w+)\}\((W_\{\\text\{mlp\d\}\}\^l) (\S+) \+ (b_\S+) 1\^\\intercal\)",
             r"(\\text{\1}(W_{\\text{gate}}^l \3 + b_{\\text{gate}}^l 1^\\intercal) \\odot (\2 \3 + \4 1^\\intercal))"),)),
    Change("mlp.biases", _if(lambda v: v.mlp and not v.mlp.biases), MLP,
           ((r" \+ b_\w+\^l 1ᵀ", ""),), ((r" \+ b_\{\\text\{\w+\}\}\^l 1\^\\intercal", ""),)),
    Change("mlp.activation", _if(_activation, lambda v: ACTIVATIONS[v.mlp.activation]), ACTIVATED,
           (("ReLU|GELU", "VALUE"),), (("ReLU|GELU", "VALUE"),)),
    Change("mlp.normalize_output", _if(lambda v: v.mlp and v.mlp.normalize_output, lambda v: _norm_name(v.norm)), MLP,
           ((r"\+ (W_mlp.*)$", r"+ VALUE(\1 | γ_l^out)"),),
           ((r"\+ (W_\{\\text\{mlp.*)$", r"+ \\text{VALUE}(\1 \\mid \\gamma_l^\\text{out})"),)),
    Change("mlp.clip", _if(lambda v: v.mlp and v.mlp.clip, lambda v: f"{v.mlp.clip:g}"), MLP,
           ((r"(\w+)\((W_gate[^)]*)\) ⊙ \((W_mlp[^)]*)\)", r"\1(min(\2, c)) ⊙ (1 + clip(\3, −c, c))"),),
           ((r"(\\text\{[^}]+\})\((W_\{\\text\{gate[^)]*)\) \\odot \((W_\{\\text\{mlp[^)]*)\)",
             r"\1(\\min(\2, c)) \\odot (1 + \\text{clip}(\3, -c, c))"),), "c = VALUE"),
    Change("mlp", _if(_has_experts, _experts), MLP,
           ((r"([Wb]_(?:mlp\d|gate))\^l", r"\1^{l,i}"), (r"\+ (W_mlp.*)$", r"+ Σ_i G[i,:] ⊙ (\1)")),
           ((r"([Wb]_\{\\text\{(?:mlp\d|gate)\}\})\^l", r"\1^{l,i}"),
            (r"\+ (W_\{\\text\{mlp.*)$", r"+ \\sum_i G[i,:] \\odot (\1)")), "G: VALUE"),
    Change("mlp.shared", _if(lambda v: _has_experts(v) and v.mlp.shared), MLP,
           (("$", " + MLP(X̃ | 𝓦_l^shared)"),), (("$", r" + \\text{MLP}(\\tilde X \\mid \\mathcal{W}_l^\\text{shared})"),),
           "MLP: line 8 without experts, which every token takes"),
    Change("first", _if(lambda v: v.first, lambda v: str(v.first.n)), {10: "8"},
           (("$", "; for l ≤ VALUE: X ← X + MLP(X̃ | 𝓦_l^first)"),),
           (("$", r"; \\text{for } l \\leq VALUE\\text{: } X \\leftarrow X + \\text{MLP}(\\tilde X \\mid \\mathcal{W}_l^\\text{first})"),),
           "MLP: line 8 without experts, in the first layers"),
    Change("mlp", _if(lambda v: v.mlp is None), {10: "7"}, DROP_NORM, DROP_NORM_LATEX),
    Change("mlp", _if(lambda v: v.mlp is None), MLP, ((r" \+ W_mlp.*", ""),), ((r" \+ W_\{\\text\{mlp.*", ""),)),
    Change("order", _if(lambda v: v.order == "side_by_side"), {10: "6"},
           (("X ← X \\+ ", "Y ← "),), ((r"X \\leftarrow X \+ ", r"Y \\leftarrow "),),
           "attention and MLP both read the layer's input: line 7 normalizes the X that line 5 does"),
    Change("order", _if(lambda v: v.order == "side_by_side"), {10: "8"},
           (("X ← X", "X ← X + Y"),), ((r"X \\leftarrow X", r"X \\leftarrow X + Y"),)),
    Change("order", _if(lambda v: v.order == "no_norm"), NORMS_OF_LAYERS, DROP_NORM, DROP_NORM_LATEX),
    Change("order", _if(lambda v: v.order == "norm_last"), {10: "5 7"}, DROP_NORM, DROP_NORM_LATEX),
    Change("order", _if(lambda v: v.order == "norm_last", lambda v: _norm_name(v.norm)), {10: "6 8"},
           (("← (.*)$", r"← VALUE(\1)"),), ((r"\\leftarrow (.*)$", r"\\leftarrow \\text{VALUE}(\1)"),)),
    Change("order", _if(lambda v: v.order == "norm_first"), {8: "6 8 15 17 19", 9: "6 8"}, DROP_NORM, DROP_NORM_LATEX),
    Change("order", _if(lambda v: v.order == "norm_first"), NORMALIZED_FIRST,
           ((r"MHAttention\((\w)", r"MHAttention(norm(\1)"),),
           ((r"MHAttention\}\((\w)", r"MHAttention}(\\text{norm}(\1)"),), "norm: that of the next line, of what is read"),
    Change("order", _if(lambda v: v.order == "norm_first"), {8: "7 18", 9: "7"},
           ((r"(W_(?:mlp\d|gate)\^l) ([XZ])(?= \+|\))", r"\1 norm(\2)"),),
           ((r"(W_\{\\text\{(?:mlp\d|gate)\}\}\^l) ([XZ])(?= \+|\))", r"\1 \\text{norm}(\2)"),),
           "norm: that of the next line, of what is read"),
    Change("final_norm", _if(lambda v: v.final_norm is True), {8: "9"}, (("end", "end; Z ← norm(Z)"),),
           ((r"\\text\{end\}", r"\\text{end; } Z \\leftarrow \\text{norm}(Z)"),), "norm: with γ and β of the encoder's own"),
    Change("final_norm", _if(lambda v: v.final_norm is True), {8: "20"}, (("end", "end; X ← norm(X)"),),
           ((r"\\text\{end\}", r"\\text{end; } X \\leftarrow \\text{norm}(X)"),), "norm: with γ and β of the decoder's own"),
    Change("final_norm", _if(lambda v: v.final_norm is False), {10: "10"}, DROP_NORM, DROP_NORM_LATEX),
    Change("unembedding.bias", _if(lambda v: v.unembedding.bias), RETURN,
           (("W_u X", "W_u X + b_u 1ᵀ"),), (("W_u X", r"W_u X + b_u 1^\\intercal"),)),
    Change("unembedding.bias", _if(lambda v: v.unembedding.bias), {7: "1"}, (("W_u e", "W_u e + b_u"),),
           (("W_u e", "W_u e + b_u"),)),
    Change("unembedding.cap", _if(lambda v: v.unembedding.cap, lambda v: f"{v.unembedding.cap:g}"), UNEMBEDDING,
           ((r"softmax\((.*)\)", r"softmax(c tanh((\1)/c))"),),
           ((r"\\text\{softmax\}\((.*)\)", r"\\text{softmax}(c \\tanh((\1)/c))"),), "c = VALUE"),
    Change("unembedding.tied", _if(lambda v: v.unembedding.tied and not v.unembedding.scaled), RETURN,
           (("W_u", "W_eᵀ"),), (("W_u", r"W_e^\\intercal"),)),
    Change("unembedding.scaled", _if(lambda v: v.unembedding.tied and v.unembedding.scaled), RETURN,
           (("W_u", "W_eᵀ/√d_e"),), (("W_u", r"(W_e^\\intercal / \\sqrt{d_e})"),)),
)  # fmt: skip
"""Field of a variant's record → the lines that it changes, in the order in which they are applied."""
