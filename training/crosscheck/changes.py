"""The lines that a variant changes: from its record to the changed formulas, by one table.

A row says which field of the record changes which lines, and how: what is replaced in the printed formula. A variant's
lines are the printed ones with the rows that apply, one after another. The tests find the changed lines a second time, from
what a run computes.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .algorithms import PSEUDOCODE
from .pseudocode import Line

__all__ = ["ARCHITECTURES", "CHANGES", "SHARING", "Change", "ChangedLine", "changed_lines"]

Lines = Mapping[int, str]  # an algorithm → the numbers of some of its lines
Edits = Mapping[str, str]  # regular expression → replacement, in which VALUE is the row's value

ARCHITECTURES: Mapping[str, int] = {
    **dict.fromkeys(("VASWANI", "BART", "MARIAN", "T5"), 8),
    **dict.fromkeys(("BERT", "ROBERTA", "ALBERT", "MODERNBERT", "LLADA"), 9),
}
"""Name of a variant → its algorithm, where that is not Algorithm 10."""

SHARING = ("LLAMA", "MISTRAL", "QWEN2", "QWEN3", "GEMMA", "GEMMA2", "GEMMA3")
SHARING += ("GRANITE", "GRANITE_HYBRID", "RECURRENT_GEMMA")
SHARING += ("MIXTRAL", "QWEN3_MOE", "QWEN3_NEXT", "QWEN3_5", "OLMO3", "GLM4", "OLMOE", "MINIMAX_M2", "GPT_OSS")
"""Variants with models whose heads share keys and values, which the sizes of the parameters say and not the record."""


@dataclasses.dataclass(frozen=True)
class Change:
    """A row of the table."""

    field: str  # of the record, "attention.cap" for the cap of its attentions; "H_kv" for heads that share keys
    lines: Lines  # the lines that it changes, by algorithm
    edits: Edits  # what it replaces in the formula
    note: str = ""  # says what a new symbol means; VALUE stands for the value here, too
    # from the record to what is put for VALUE; the row applies unless that is None, False or 0. None: what the field
    # holds
    value: Callable[[Any], Any] | None = None
    left_out: bool = False  # whether nothing computes the lines any more

    def of(self, variant: Any, sharing: int) -> str | None:
        """The row's value for a variant whose heads share keys in groups of this size; None if it does not apply."""
        if self.field == "H_kv":
            return "" if sharing > 1 else None
        value = _held(variant, self.field) if self.value is None else self.value(variant)
        return None if value is None or value is False or value == 0 else _text(value)


@dataclasses.dataclass(frozen=True)
class ChangedLine:
    """A line as a variant has it."""

    line: Line  # the line with the changed formula
    fields: tuple[str, ...]  # of the record, those that change it
    notes: tuple[str, ...]  # what new symbols mean
    left_out: bool  # whether nothing computes it any more


def changed_lines(variant: Any, algorithm: int, sharing: int = 1) -> dict[tuple[int, str], ChangedLine]:
    """The lines of an algorithm, and of Algorithms 4 to 7, that a variant changes.

    `variant`: the record; `algorithm`: 8, 9 or 10; `sharing`: how many heads share keys and values.

    Raises:
        ValueError: if a row does not fit its formula.
    """
    found: dict[tuple[int, str], ChangedLine] = {}
    for change in CHANGES:
        value = change.of(variant, sharing)
        for n in () if value is None else (4, 5, 6, 7, algorithm):
            for number in change.lines.get(n, "").split():
                before = found.get((n, number), ChangedLine(PSEUDOCODE[n].line(number), (), (), False))
                text = _edited(before.line.text, change, value or "", n, number)
                if text == before.line.text:
                    continue  # the value is the paper's here, as ReLU in Algorithm 8
                found[n, number] = ChangedLine(
                    dataclasses.replace(before.line, text=text),
                    (*before.fields, change.field),
                    (*before.notes, *([change.note.replace("VALUE", value or "")] if change.note else [])),
                    before.left_out or change.left_out,
                )
    return found


def _edited(formula: str, change: Change, value: str, n: int, number: str) -> str:
    for pattern, replacement in change.edits.items():
        formula, count = re.subn(pattern, replacement.replace("VALUE", value), formula)
        if not count:
            raise ValueError(f"{change.field}: {pattern} is not in line {number} of Algorithm {n}, {formula}")
    return formula


def _held(variant: Any, field: str) -> Any:
    """Value of a field of the record, such as "mlp.clip"; of attentions, what the layers take in turn."""
    part, _, name = field.partition(".")
    if part not in ("attention", "mlp"):
        return getattr(getattr(variant, part), name, None) if name else getattr(variant, part)
    lines = _attentions(variant) if part == "attention" else _mlps(variant)
    held = list(dict.fromkeys(getattr(line, name) for line in lines if hasattr(line, name))) or [None]
    if len(held) == 1:
        return held[0]
    return ", ".join("∞" if value is None else _text(value) for value in held) + " in turn"


def _attentions(variant: Any) -> tuple[Any, ...]:
    """The attentions among its mixers; if there are none, the paper's, which changes nothing."""
    return tuple(line for line in variant.attentions if hasattr(line, "biases")) or type(variant)().attentions


def _mlps(variant: Any) -> tuple[Any, ...]:
    """The MLPs that layers take in turn, without those that have none."""
    return tuple(filter(None, variant.mlps_in_turn))


def _mlp(variant: Any) -> Any:
    """The first of them; None if there are none."""
    return next(iter(_mlps(variant)), None)


def _in_turn(values: Sequence[bool]) -> str | None:
    """The numbers, from 1, of the first layers with True, if layers take these in turn; None if they are alike."""
    numbers = (str(l + 1) for l in range(2 * len(values)) if values[l % len(values)])
    return f"{', '.join(numbers)}, …" if len(set(values)) > 1 else None


def _with_norm(lines: Sequence[Any]) -> list[bool]:
    """For each line, whether the value that it adds is normalized."""
    return [getattr(line, "normalize_output", None) is not None for line in lines]


def _text(value: Any) -> str:
    """A value in a formula; records, which no formula shows, are the empty text."""
    return value if isinstance(value, str) else f"{value:g}" if isinstance(value, int | float) else ""


def _has(kind: str) -> Callable[[Any], bool]:
    """Whether a variant has attentions with positions of a class."""
    return lambda variant: any(type(a.positions).__name__ == kind for a in _attentions(variant))


def _is_rms(variant: Any) -> bool:
    return type(variant.norm).__name__ == "RMSNorm"


def _norm(variant: Any) -> str:
    return "rms_norm" if _is_rms(variant) else "layer_norm"


def _rotation(variant: Any) -> str | None:
    rotary = [a.positions for a in _attentions(variant) if type(a.positions).__name__ == "Rotary"]
    if not rotary:
        return None
    bases, r = list(dict.fromkeys(f"{r.base:,.0f}" for r in rotary)), rotary[0]
    rows = {"halves": "i and i + d/2", "neighbors": "2i and 2i + 1", "halves_swapped": "i + d/2 and i"}[r.pairs]
    share = "d_attn" if r.share == 1 else f"{r.share:g} d_attn"
    scaled = "" if r.scaling is None else f", scaled by {type(r.scaling).__name__}"
    base = f"{', '.join(bases)}{' in turn' if len(bases) > 1 else ''}"
    return f"rows {rows} of the first d = {share} by t · base^(−2i/d){scaled}, base = {base}"


def _temperature(variant: Any) -> str | None:
    of_layers = [getattr(a.positions, "temperature", a.positions) for a in _attentions(variant)]
    grows = [type(grow).__name__ == "Temperature" for grow in of_layers]
    where = f" in layers l = {layers}, and 1 in the others" if (layers := _in_turn(grows)) else ""
    first = of_layers[grows.index(True)] if True in grows else None
    return first and f"1 + {first.c:g} ln(1 + ⌊{'t' if first.first else '(t − 1)'}/{first.n}⌋){where}"


def _latent(variant: Any) -> str | None:
    """The formulas of latent attention, in place of Algorithm 5."""
    line = _attentions(variant)[0]
    if not hasattr(line, "d_q"):
        return None
    q = "X̃" if line.d_q is None else "q"
    norms = "c = rms_norm(W_c X̃)" + ("" if line.d_q is None else ", q = rms_norm(W_cq X̃)")
    told, rotation = "queries [W_q^h Q; R W_qr^h Q], keys [W_k^h c; R W_kr X̃], values W_v^h c", _rotation(variant)
    if rotation is None:
        return f"{told}; {norms}".replace("R ", "").replace("Q", q)
    return f"{told}; {norms}; R rotates {rotation}".replace("d_attn", "d_r").replace("Q", q)


def _mixers(kind: str) -> Callable[[Any], str | None]:
    """A recurrence, and the attentions that it alternates with."""

    def value(variant: Any) -> str | None:
        kinds = {type(line).__name__ for line in variant.attentions}
        return None if kind not in kinds else kind if kinds == {kind} else f"{kind} or MHAttention"

    return value


def _experts(variant: Any) -> str | None:
    m = next((m for m in _mlps(variant) if hasattr(m, "router_bias")), None)
    if m is None:
        return None
    scores = "W_r X̃ + b_r 1ᵀ" if m.router_bias else "W_r X̃"
    scores = f"{'softmax' if m.scores == 'softmax' else 'σ'}({scores})"
    by = f"{scores} + b_choice 1ᵀ" if m.choice_bias else "these"
    within = f", within {m.chosen_groups} of {m.groups} groups by their {m.best} best" if m.groups > 1 else ""
    share = ", divided by their sum" if m.renormalized else ""
    factor = "" if m.factor == 1 else f", times {m.factor:g}"
    told = f"{scores} in the {m.k} rows i of {m.n} with the largest of {by}{within}{share}{factor}; 0 in the others"
    layers = _in_turn([hasattr(m, "router_bias") for m in variant.mlps_in_turn])
    return told if layers is None else f"{told}; only layers l = {layers} have experts, and the others one MLP"


ACTIVATIONS = {"relu": "ReLU", "relu_squared": "ReLU²", "gelu": "GELU", "gelu_tanh": "GELU_tanh",
               "gelu_sigmoid": "GELU_sigmoid", "silu": "SiLU"}  # fmt: skip

EMBEDDING: Lines = {8: "2 11", 9: "2", 10: "2"}
NORMS: Lines = {8: "6 8 15 17 19", 9: "6 8 11", 10: "5 7 10"}
NORMS_OF_LAYERS: Lines = {8: "6 8 15 17 19", 9: "6 8", 10: "5 7"}
ATTENTION: Lines = {8: "5 14 16", 9: "5", 10: "6"}
MLP: Lines = {8: "7 18", 9: "7", 10: "8"}
RETURN: Lines = {8: "return", 9: "return", 10: "return"}

DROP_POSITIONS: Edits = {r" \+ W_p\[:, t\]": ""}
SINUSOIDS: Edits = {r"W_p\[:, t\]": "PE(t)"}
DROP_NORM: Edits = {r"(?:layer|rms)_norm\((\w\[:,t\]) \|[^)]*\)": r"\1"}
ADDED: Edits = {r"← (\w) \+ (.*)$": r"← \1 + VALUE (\2)"}
CONVOLVED = "of W_q X̃, W_k X̃, W_v X̃ after a convolution over the last tokens and SiLU"
RECURRENCES = {
    "GatedDelta": "GatedDelta: in every head S ← αS; S ← S + k β (v − Sᵀk)ᵀ; o = Sᵀq; of all, W_out (rms_norm(o) ⊙ "
    f"SiLU(W_z X̃)); q, k, v: {CONVOLVED}, q and k of length 1",
    "KimiDelta": "KimiDelta: in every head S ← α ⊙ S, with an α for each row; S ← S + k β (v − Sᵀk)ᵀ; o = Sᵀq; of all, "
    f"W_out (rms_norm(o) ⊙ σ(W_z2 W_z1 X̃)); q, k, v: {CONVOLVED}, q and k of length 1",
    "Mamba2": "Mamba2: in every head S ← e^(−Δe^a) S + Δ k vᵀ; o = Sᵀq + D v; of all, W_out rms_norm(o ⊙ SiLU(W_z X̃)); "
    f"q, k, v: {CONVOLVED}",
    "RGLRU": "RGLRU: in every row h ← αh + √(1 − α²) i u; of all, W_out (h ⊙ GELU_tanh(W_y X̃ + b_y)) + b_out; u: of W_x X̃ + "
    "b_x after a convolution over the last tokens; i = σ(W_i u + b_i), α = exp(−8 σ(W_r u + b_r) softplus(a))",
}
NORMED_IN = "norm_l: a norm where l = VALUE"
NORMED = "norm: that of the next line, of what is read"


def _positions(form: str | None) -> Callable[[Any], bool]:
    return lambda variant: variant.embedding.positions == form


def _biases(*without: Any) -> Callable[[Any], bool]:
    return lambda variant: _attentions(variant)[0].biases in (False, *without)


def _norms_of_heads(variant: Any) -> str | None:
    norm = _attentions(variant)[0].normalize_heads
    return norm and ("with γ_k and γ_q" if norm.gamma else "without γ")


def _residual_factor(variant: Any) -> Any:
    return variant.residual_factor != 1 and variant.residual_factor


def _order(order: str, value: Callable[[Any], Any] = lambda _: True) -> Callable[[Any], Any]:
    return lambda variant: variant.order == order and value(variant)


def _added(text: str) -> Edits:
    """The terms that scores by distance add."""
    return {"$": f", else S[t_z,t_x] ← S[t_z,t_x] + {text}"}


CHANGES: tuple[Change, ...] = (
    Change("embedding.positions", EMBEDDING, DROP_POSITIONS, value=_positions(None)),
    Change("embedding.positions", EMBEDDING, SINUSOIDS,
           "PE(t): rows 2i and 2i + 1 are sin and cos of t/10000^(2i/d_e)", _positions("sinusoidal")),
    Change("embedding.positions", EMBEDDING, SINUSOIDS,
           "PE(t): rows i and i + d_e/2 are sin and cos of t/10000^(2i/d_e)", _positions("sinusoidal_halves")),
    Change("embedding.first_position", EMBEDDING, {r"(W_p\[:, t|PE\(t)": r"\1 + VALUE"}),
    Change("embedding.context_positions", {8: "2"}, {"W_p": "W_p^enc"},
           "W_p^enc: the context has positions of its own"),
    Change("embedding.scaled", EMBEDDING, {"W_e": "VALUE · W_e"},
           value=lambda v: {True: "√d_e", "bfloat16": "bfloat16(√d_e)"}.get(v.embedding.scaled)),
    Change("embedding.factor", EMBEDDING, {"W_e": "VALUE W_e"},
           value=lambda v: v.embedding.factor != 1 and v.embedding.factor),
    Change("embedding.normalized", EMBEDDING, {"← (.*)$": r"← VALUE(\1 | γ_e, β_e)"},
           value=lambda v: v.embedding.normalized and v.norm.gamma and _norm(v)),
    Change("embedding.normalized", EMBEDDING, {"← (.*)$": r"← VALUE(\1)"},
           value=lambda v: v.embedding.normalized and not v.norm.gamma and _norm(v)),
    Change("embedding.factored", {9: "2"}, {"← (.*)$": r"← W_in (\1) + b_in"},
           "W_in: from the d_in rows of an embedding to d_e"),
    Change("shared_layers", {8: "4 13", 9: "4", 10: "4"}, {" do$": ", g = ⌈l/VALUE⌉ do"},
           "g: VALUE layers in a row have the same parameters, those of g where the lines say l",
           lambda v: v.shared_layers > 1 and v.shared_layers),
    Change("norm", NORMS, {r"layer_norm\((.*) \| (γ\S*), β\S*\)": r"rms_norm(\1 | \2)"}, value=_is_rms),
    Change("norm.gamma", NORMS, {r" \| γ[^)]*": ""}, value=lambda v: not v.norm.gamma),
    Change("norm.beta", NORMS, {r", β[^)]*": ""}, value=lambda v: v.norm.gamma and not (_is_rms(v) or v.norm.beta)),
    Change("norm.offset", NORMS, {r"(γ[^)]*)\)": r"VALUE + \1)"}),
    Change("norm", {6: "1"}, {"←.*": "← 0"}, value=_is_rms, left_out=True),
    Change("norm", {6: "2"}, {r"\(e\[i\] − m\)²": "e[i]²"}, value=_is_rms),
    Change("norm", {6: "return"}, {r"\(e − m\)": "e", r" \+ β": ""}, value=_is_rms),
    Change("norm.gamma", {6: "return"}, {" ⊙ γ": ""}, value=lambda v: not v.norm.gamma),
    Change("norm.beta", {6: "return"}, {r" \+ β": ""}, value=lambda v: not (_is_rms(v) or v.norm.beta)),
    Change("norm.epsilon", {6: "return"}, {"√v": "√(v + ε)"}, "ε = VALUE"),
    Change("attention.biases", {4: "1 2 3"}, {r" \+ b_\w 1ᵀ": ""}, value=_biases("out")),
    Change("attention.biases", {5: "return"}, {r" \+ b_o 1ᵀ": ""}, value=_biases("qkv")),
    Change("H_kv", {5: "2"}, {r"𝓦_qkv\^h": "W_q^h, b_q^h, 𝓦_kv^g"}, "g = ⌈h H_kv/H⌉: heads share keys and values"),
    Change("attention.positions", {4: "4"}, {"KᵀQ": "(R_z K)ᵀ(R_x Q)"},
           "R_x turns the query at t = t_x, R_z the key at t = t_z: VALUE", _rotation),
    Change("attention.positions", {4: "4"}, {r"(\(R_x Q\)|Q)": r"g \1"}, "g, of the query at t = t_x: VALUE", _temperature),
    Change("attention.positions", {4: "4"}, {"KᵀQ": "Kᵀ(Q + u 1ᵀ)"}, value=_has("TransformerXL")),
    Change("attention.clip", {4: "4"}, {"K(.*)Q": r"clip(K)\1clip(Q)"},
           "clip: entries below −c become −c, and those above c become c; c = VALUE"),
    Change("attention.clip", {4: "return"}, {"V ·": "clip(V) ·"}),
    Change("attention.normalize_heads", {4: "4"}, {"K(.*)Q": r"rms_norm(K)\1rms_norm(Q)"},
           "rms_norm: of each column, VALUE", _norms_of_heads),
    Change("attention.positions_first", {4: "4"}, {r"\((R_. )rms_norm\(([KQ])\)\)": r"rms_norm(\1\2)"}),
    Change("attention.heads_together", {4: "4"}, {"rms_norm": "rms_norm_H"},
           "rms_norm_H: the norm of all heads' rows as one column; this head takes its own rows"),
    Change("attention.scale", {4: "4"}, {"← ": "← s √d_attn "},
           "s = VALUE in place of 1/√d_attn, which the last line multiplies by"),
    Change("attention.positions", {4: "5"}, _added("s (W_r r_δ)ᵀ(Q[:,t_x] + v)"),
           "δ = t_x − t_z; r_δ: rows i and i + d_e/2 are sin and cos of δ/base^(2i/d_e); s is 1, or that of line 4",
           _has("TransformerXL")),
    Change("attention.positions", {4: "5"}, _added("√d_attn b[bucket(t_z − t_x)]"),
           "b: a number for each head and bucket of distances, the same in all layers; none in line 16 of Algorithm 8",
           _has("Distances")),
    Change("attention.positions", {4: "5"}, _added("−√d_attn m_h |t_z − t_x|"),
           "m_h: the slope of head h, 2^(−8h/H) where H is a power of 2", _has("ALiBi")),
    Change("attention.cap", {4: "5"}, {"$": ", else S[t_z,t_x] ← c√d_attn tanh(S[t_z,t_x]/(c√d_attn))"}, "c = VALUE"),
    Change("attention.sinks", {4: "return"}, {r"softmax\((.*)\)": r"softmax_s(\1)"},
           "softmax_s: with exp s of this head's sink in the denominator, too"),
    Change("attention.gated", {5: "2"}, {"← (.*)$": r"← σ(W_g^h X) ⊙ \1"}),
    Change("attention.window", {8: "14", 10: "6"}, {"t ≤ t'": "t' − w < t ≤ t'"}, "w = VALUE"),
    Change("attention.window", {8: "5", 9: "5"}, {" ≡ 1": "[t,t'] = ⟦|t − t'| < w⟧"}, "w = VALUE"),
    Change("attention.chunked", {8: "14", 10: "6"}, {"t' − w < t ≤ t'": "t ≤ t', ⌈t/w⌉ = ⌈t'/w⌉"}),
    Change("attention.chunked", {8: "5", 9: "5"}, {r"\|t − t'\| < w": "⌈t/w⌉ = ⌈t'/w⌉"}),
    Change("attention.normalize_output", ATTENTION, {r"\+ (MHAttention.*)$": r"+ VALUE(\1 | γ_l^out)"},
           value=lambda v: all(_with_norm(v.attentions)) and _norm(v)),
    Change("attention.normalize_output", ATTENTION, {r"\+ (MHAttention.*)$": r"+ norm_l(\1 | γ_l^out)"}, NORMED_IN,
           lambda v: _in_turn(_with_norm(v.attentions))),
    *(Change("attention", {10: "6"}, {"MHAttention": "VALUE"}, note, _mixers(kind)) for kind, note in RECURRENCES.items()),
    Change("attention", {10: "6"}, {"MHAttention": "LatentAttention"}, "LatentAttention: VALUE", _latent),
    Change("mlp.gated", MLP, {r"(\w+)\(W_mlp(\d)\^l (\S+) \+ b_mlp\d\^l 1ᵀ\)":
                              r"(\1(W_gate^l \3 + b_gate^l 1ᵀ) ⊙ (W_mlp\2^l \3 + b_mlp\2^l 1ᵀ))"}),
    Change("mlp.biases", MLP, {r" \+ b_\w+\^l 1ᵀ": ""}, value=lambda v: _mlp(v) and not _mlp(v).biases),
    Change("mlp.biases", {9: "10"}, {r" \+ b_f 1ᵀ": ""}, value=lambda v: _mlp(v) and not _mlp(v).biases),
    Change("mlp.activation", {8: "7 18", 9: "7 10", 10: "8"}, {"ReLU|GELU": "VALUE"},
           value=lambda v: _mlp(v) and ACTIVATIONS.get(_mlp(v).activation)),
    Change("mlp", MLP, {"ReLU|GELU": "xIELU"},
           "xIELU(x) = softplus(α_p^l) x² + x/2 where x > 0, else (½ + softplus(α_n^l)) (e^x − 1 − x) + x/2",
           lambda v: type(_mlp(v)).__name__ == "XIELU"),
    Change("head", {9: "10 11"}, {"←.*": "← X"}, value=lambda v: v.head == "unembedding"),
    Change("mlp.normalize_output", MLP, {r"\+ (W_mlp.*)$": r"+ VALUE(\1 | γ_l^out)"},
           value=lambda v: all(_with_norm(v.mlps_in_turn)) and _norm(v)),
    Change("mlp.normalize_output", MLP, {r"\+ (W_mlp.*)$": r"+ norm_l(\1 | γ_l^out)"}, NORMED_IN,
           lambda v: _in_turn(_with_norm(v.mlps_in_turn))),
    Change("mlp.clip", MLP,
           {r"(\w+)\((W_gate[^)]*)\) ⊙ \((W_mlp[^)]*)\)": r"\1(min(\2, c)) ⊙ (1 + clip(\3, −c, c))"}, "c = VALUE"),
    Change("mlp", MLP, {r"([Wb]_(?:mlp\d|gate))\^l": r"\1^{l,i}", r"\+ (W_mlp.*)$": r"+ Σ_i G[i,:] ⊙ (\1)"},
           "G: VALUE", _experts),
    Change("mlp.weighted", MLP,
           {r"Σ_i G\[i,:\] ⊙ \((.*)\)$": r"Σ_i \1", "(W_\\w+\\^\\{l,i\\}) ([XZ]\u0303?)(?=[ )])": r"\1 (G[i,:] ⊙ \2)"},
           value=lambda v: any(getattr(m, "weighted", "") == "inputs" for m in _mlps(v))),
    Change("mlp.shared", MLP, {"$": " + MLP(X̃ | 𝓦_l^shared)"},
           "MLP: line 8 without experts, which every token takes"),
    Change("mlp.shared_gate", MLP, {r"\+ (MLP\(.*)$": r"+ σ(w_s^lᵀ X̃) ⊙ \1"}),
    Change("first", {10: "8"}, {"$": "; for l ≤ VALUE: X ← X + MLP(X̃ | 𝓦_l^first)"},
           "MLP: line 8 without experts, in the first layers", lambda v: len(v.first)),
    Change("mlp", {10: "7"}, DROP_NORM, value=lambda v: v.mlp is None),
    Change("mlp", MLP, {r" \+ W_mlp.*": ""}, value=lambda v: v.mlp is None),
    Change("residual_factor", ATTENTION, ADDED, value=_residual_factor),
    Change("residual_factor", MLP, ADDED, value=lambda v: _mlp(v) and _residual_factor(v)),
    Change("order", {10: "6"}, {r"X ← X \+ ": "Y ← "},
           "attention and MLP both read the layer's input: line 7 normalizes the X that line 5 does",
           _order("side_by_side")),
    Change("order", {10: "6"}, {r"X ← X \+ ": "Y ← "}, "attention and MLP read the same columns, with one norm",
           _order("one_norm")),
    Change("order", {10: "7"}, {"← .*$": "← X̃[:,t]"}, value=_order("one_norm")),
    Change("order", {10: "8"}, {"X ← X": "X ← X + Y"}, value=lambda v: v.order in ("side_by_side", "one_norm")),
    Change("order", NORMS_OF_LAYERS, DROP_NORM, value=_order("no_norm")),
    Change("order", {10: "5 7"}, {r"(?:layer|rms)_norm\(": "norm_l("}, NORMED_IN,
           lambda v: _in_turn([order != "no_norm" for order in v.orders])),
    Change("order", {10: "5 7"}, DROP_NORM, value=_order("norm_last")),
    Change("order", {10: "6 8"}, {"← (.*)$": r"← VALUE(\1)"}, value=_order("norm_last", _norm)),
    Change("order", {8: "6 8 15 17 19", 9: "6 8"}, DROP_NORM, value=_order("norm_first")),
    Change("order", {8: "5 14 16", 9: "5"}, {r"MHAttention\((\w)": r"MHAttention(norm(\1)"}, NORMED,
           _order("norm_first")),
    Change("order", {8: "7 18", 9: "7"}, {r"(W_(?:mlp\d|gate)\^l) ([XZ])(?= \+|\))": r"\1 norm(\2)"}, NORMED,
           _order("norm_first")),
    Change("first_norm", {9: "5"}, {r"norm\((\w)\)": r"norm_l(\1)"}, "norm_l: norm, but for l = 1 without one",
           lambda v: not v.first_norm),
    Change("final_norm", {9: "9"}, {"end": "end; X ← norm(X)"}, "norm: with a γ of its own"),
    Change("final_norm", {8: "9"}, {"end": "end; Z ← norm(Z)"}, "norm: with γ and β of the encoder's own"),
    Change("final_norm", {8: "20"}, {"end": "end; X ← norm(X)"}, "norm: with γ and β of the decoder's own"),
    Change("final_norm", {10: "10"}, DROP_NORM, value=lambda v: v.final_norm is False),
    Change("unembedding.bias", RETURN, {"W_u X": "W_u X + b_u 1ᵀ"}),
    Change("unembedding.bias", {7: "1"}, {"W_u e": "W_u e + b_u"}),
    Change("unembedding.cap", {**RETURN, 7: "1"}, {r"softmax\((.*)\)": r"softmax(c tanh((\1)/c))"}, "c = VALUE"),
    Change("unembedding.factor", RETURN, {"W_u": "VALUE W_u"},
           value=lambda v: v.unembedding.factor != 1 and v.unembedding.factor),
    Change("unembedding.tied", RETURN, {"W_u": "W_eᵀ"},
           value=lambda v: v.unembedding.tied and not v.unembedding.scaled),
    Change("unembedding.scaled", RETURN, {"W_u": "W_eᵀ/√d_e"},
           value=lambda v: v.unembedding.tied and v.unembedding.scaled),
)  # fmt: skip
"""Field of a variant's record → the lines that it changes, in the order in which they are applied."""
