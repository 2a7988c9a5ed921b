"""The formulas that a variant's record decides; the paper's own record has the printed ones.

Each formula is written once, from the fields that decide it, with a note on each symbol that the paper does not have.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .algorithms import PSEUDOCODE
from .pseudocode import Line

__all__ = ["Lines", "formulas"]

Lines = dict[tuple[int, str], tuple[str, ...]]
"""Algorithm and number of a line → its text, and what its new symbols mean."""

ACTIVATIONS = {"relu": "ReLU", "relu_squared": "ReLU²", "gelu": "GELU", "gelu_tanh": "GELU_tanh",
               "gelu_sigmoid": "GELU_sigmoid", "silu": "SiLU"}  # fmt: skip
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
    "ShortConvolution": "ShortConvolution: W_out (W_y X̃ ⊙ U), U: of W_i X̃ ⊙ W_x X̃ after a convolution over the last tokens",
}
BY_DISTANCE = {
    "TransformerXL": (
        "s (W_r r_δ)ᵀ(Q[:,t_x] + v)",
        "δ = t_x − t_z; r_δ: rows i and i + d_e/2 are sin and cos of δ/base^(2i/d_e); s is 1, or that of line 4",
    ),
    "Distances": (
        "√d_attn b[bucket(t_z − t_x)]",
        "b: a number for each head and bucket of distances, the same in all layers; none in line 16 of Algorithm 8",
    ),
    "ALiBi": ("−√d_attn m_h |t_z − t_x|", "m_h: the slope of head h, 2^(−8h/H) where H is a power of 2"),
}
ORDERS = {
    "side_by_side": "attention and MLP both read the layer's input: line 7 normalizes the X that line 5 does",
    "one_norm": "attention and MLP read the same columns, with one norm",
}
XIELU = "xIELU(x) = softplus(α_p^l) x² + x/2 where x > 0, else (½ + softplus(α_n^l)) (e^x − 1 − x) + x/2"
INDEX = "Σ_h w_h ReLU(k[:,t]ᵀ q_h[:,t']), of queries W_q^h q, keys layer_norm(W_k X̃) and weights W_w X̃ of the indexer"
CAUSAL = "t ≤ t', "
NOT_FIRST = "norm_l: norm, but for l = 1 without one"
NORMED = "norm: that of the next line, of what is read"


def formulas(variant: Any, algorithm: int, sharing: int, own: Mapping[str, str]) -> Lines:
    """The lines of Algorithms 4 to 7 and of 8, 9 or 10; the arguments are those of `changed_lines`."""
    return {key: (text, *notes) for key, text, notes in _Formulas(variant, algorithm, own).lines(sharing)}


class _Formulas:
    """The formulas of a variant; its methods return a formula, or what stands in one, and note what symbols mean."""

    def __init__(self, variant: Any, algorithm: int, own: Mapping[str, str]) -> None:
        self.v, self.n, self.own = variant, algorithm, own
        # the attentions among its mixers; if there are none, the paper's, which changes nothing
        self.mixers = tuple(part for line in variant.attentions for part, _ in line.parts())
        attentions = tuple(line for line in self.mixers if hasattr(line, "normalize_heads"))
        self.attentions = attentions or type(variant)().attentions
        self.mlps = tuple(filter(None, variant.mlps_in_turn))
        self.mlp: Any = next(iter(self.mlps), None)
        self.norm_name = _name(variant.norm)
        self.order = {None: "norm_first" if algorithm == 10 else "norm_last"}.get(variant.order, variant.order)
        self.notes: list[str] = []

    def lines(self, sharing: int) -> Iterator[tuple[tuple[int, str], str, list[str]]]:
        """Each line's algorithm and number, its text, and what its new symbols mean."""
        for n in (4, 5, 6, 7, self.n):
            for line in PSEUDOCODE[n].lines:
                self.notes = []
                formula = {4: self.of_head, 5: self.of_heads, 6: self.of_norm}.get(n, self.of_model)
                text = formula(line)
                if (n, line.number) == (5, "2") and sharing > 1:
                    text = text.replace("𝓦_qkv^h", "W_q^h, b_q^h, 𝓦_kv^g")
                    self.notes.append("g = ⌈h H_kv/H⌉: heads share keys and values")
                yield (n, line.number), text, self.notes

    def held(self, field: str) -> str:
        """The text of a field such as "mlp.clip", what the layers have in turn; "" if it is None, False or 0."""
        part, _, name = field.partition(".")
        lines = {"attention": self.attentions, "mlp": self.mlps}.get(part, (getattr(self.v, part),))
        values = list(dict.fromkeys(getattr(line, name) for line in lines if hasattr(line, name))) or [None]
        if len(values) > 1:
            return ", ".join("∞" if value is None else _text(value) for value in values) + " in turn"
        return _text(values[0]) or "yes" if values[0] else ""

    def positions(self, kind: str) -> list[Any]:
        """The attentions' positions of a kind."""
        return [a.positions for a in self.attentions if type(a.positions).__name__ == kind]

    def of_head(self, line: Line) -> str:
        """A line of Algorithm 4."""
        if line.number in "123":
            return self.lent(line, self.biased(line, "out"))
        if line.number == "4":
            return self.scores()
        if line.number == "5":
            return self.masked(line.text)
        text, sinks = line.text, self.held("attention.sinks")
        if sinks:
            text = text.replace("softmax", "softmax_s")
            self.notes.append("softmax_s: with exp s of this head's sink in the denominator, too")
        if any(a.normalize_values for a in self.attentions):
            text = text.replace("V ·", "rms_norm(V) ·")
            self.notes.append("rms_norm: of each column, without γ")
        return text.replace("V ·", "clip(V) ·") if self.held("attention.clip") else text

    def lent(self, line: Line, text: str) -> str:
        """A line of keys or values, which some layers do not compute."""
        if line.number == "3" and any(a.keys_are_values for a in self.attentions):
            layers = _in_turn([a.keys_are_values for a in self.attentions])
            text = f"{text}; V ← K where l = {layers}" if layers else "V ← K"
        if line.number != "1" and any(a.keys_of is not None for a in self.attentions):
            of = {str(a.keys_of + 1): 0 for a in self.attentions if a.keys_of is not None}
            first = next(l for l, a in enumerate(self.attentions) if a.keys_of is not None)
            text += f"; those of layer {' or '.join(of)} where l > {first}"
        return text

    def biased(self, line: Line, without: str) -> str:
        """A line that ends with a bias, if there is one."""
        return line.text.partition(" + b_")[0] if self.attentions[0].biases in (False, without) else line.text

    def of_heads(self, line: Line) -> str:
        """A line of Algorithm 5."""
        if line.number == "return":
            return self.biased(line, "qkv")
        is_gated = line.number == "2" and self.held("attention.gated")
        return line.text.replace("← ", "← σ(W_g^h X) ⊙ ") if is_gated else line.text

    def scores(self) -> str:
        heads, rotation, scale = self.attentions[0].normalize_heads, self.rotation(), self.held("attention.scale")
        norm = "" if heads is None else "rms_norm_H" if self.held("attention.heads_together") else "rms_norm"
        clip, temperature = self.held("attention.clip"), self.temperature()

        def side(A: str, R: str) -> str:
            if norm and rotation and self.held("attention.positions_first"):
                return f"{norm}({R} {A})"
            A = f"{norm}({A})" if norm else A
            A = f"clip({A})" if clip else A
            return f"({R} {A})" if rotation else A

        K, Q = side("K", "R_z"), side("Q", "R_x")
        Q = f"g {Q}" if temperature else Q
        Q = f"({Q} + u 1ᵀ)" if self.positions("TransformerXL") else Q
        self.notes += [note for is_so, note in (
            (rotation, f"R_x turns the query at t = t_x, R_z the key at t = t_z: {rotation}"),
            (temperature, f"g, of the query at t = t_x: {temperature}"),
            (clip, f"clip: entries below −c become −c, and those above c become c; c = {clip}"),
            (norm, f"rms_norm: of each column, {'with γ_k and γ_q' if getattr(heads, 'gamma', False) else 'without γ'}"),
            (norm.endswith("_H"), "rms_norm_H: the norm of all heads' rows as one column; this head takes its own rows"),
            (scale, f"s = {scale} in place of 1/√d_attn, which the last line multiplies by"),
        ) if is_so]  # fmt: skip
        return f"S ← {'s √d_attn ' if scale else ''}{K}ᵀ{Q}"

    def masked(self, text: str) -> str:
        for kind, (added, note) in BY_DISTANCE.items():
            if self.positions(kind):
                text += f", else S[t_z,t_x] ← S[t_z,t_x] + {added}"
                self.notes.append(note)
        if cap := self.held("attention.cap"):
            text += ", else S[t_z,t_x] ← c√d_attn tanh(S[t_z,t_x]/(c√d_attn))"
            self.notes.append(f"c = {cap}")
        return text

    def rotation(self) -> str:
        if not (rotary := self.positions("Rotary")):
            return ""
        bases, r = list(dict.fromkeys(f"{r.base:,.0f}" for r in rotary)), rotary[0]
        rows = {"halves": "i and i + d/2", "neighbors": "2i and 2i + 1", "halves_swapped": "i + d/2 and i"}[r.pairs]
        share = "d_attn" if r.share == 1 else f"{r.share:g} d_attn"
        scaled = "" if r.scaling is None else f", scaled by {type(r.scaling).__name__}"
        base = f"{', '.join(bases)}{' in turn' if len(bases) > 1 else ''}"
        if of_all := next((r for r in rotary if r.of_all), None):
            base += f"; with the last, d = d_attn, and only the first {of_all.share:g} of the pairs turn"
        return f"rows {rows} of the first d = {share} by t · base^(−2i/d){scaled}, base = {base}"

    def temperature(self) -> str:
        of_layers = [getattr(a.positions, "temperature", a.positions) for a in self.attentions]
        grows = [type(grow).__name__ == "Temperature" for grow in of_layers]
        if True not in grows:
            return ""
        first, layers = of_layers[grows.index(True)], _in_turn(grows)
        where = f" in layers l = {layers}, and 1 in the others" if layers else ""
        return f"1 + {first.c:g} ln(1 + ⌊{'t' if first.first else '(t − 1)'}/{first.n}⌋){where}"

    def of_norm(self, line: Line) -> str:
        """A line of Algorithm 6."""
        norm, text = self.v.norm, line.text
        if _is_rms(norm):
            text = {"1": "m ← 0", "2": text.replace("(e[i] − m)", "e[i]")}.get(
                line.number, text.replace("(e − m)", "e")
            )
        if line.number == "return":
            text = text if norm.gamma else text.replace(" ⊙ γ", "")
            text = text.replace(" + β", "") if _is_rms(norm) or not norm.beta else text
            if norm.epsilon:
                text = text.replace("√v", "√(v + ε)")
                self.notes.append(f"ε = {norm.epsilon:g}")
        return text

    def of_model(self, line: Line) -> str:
        """A line of Algorithm 7, or of the variant's."""
        text, X, shared = line.text, line.variable, self.v.shared_layers
        if self.n == 9 and line.number in ("10", "11") and self.v.head == "unembedding":
            return f"{text.partition('←')[0]}← X"
        if "softmax(" in text:
            return self.unembedded(line)
        for what, formula in (("W_e[", self.embedded), ("layer_norm(", self.normed), ("MHAttention(", self.attention),
                              ("W_mlp", self.fed_forward)):  # fmt: skip
            if what in text:
                return formula(line)
        if line.label and shared > 1:
            self.notes.append(f"g: {shared} layers in a row have the same parameters, those of g where the lines say l")
            return text.replace(" do", f", g = ⌈l/{shared}⌉ do")
        if line.kind == "end" and self.n == 10 and self.v.layer_end is not None:
            return self.end_of_layer(self.v.layer_end)
        if line.kind == "end" and self.n != 10 and self.v.final_norm:
            of = "encoder" if X == "Z" else "decoder"
            self.notes.append("norm: with a γ of its own" if self.n == 9 else f"norm: with γ and β of the {of}'s own")
            return f"end; {X} ← norm({X})"
        if "W_f" in text:
            text = text if not self.mlp or self.mlp.biases else text.replace(" + b_f 1ᵀ", "")
            return text.replace("GELU", self.activation("GELU"))
        return text

    def end_of_layer(self, end: Any) -> str:
        """What follows the lines of a layer."""
        if end.d is None:
            return "X ← s_l X; end"
        self.notes.append("P_l[:,t]: (norm(W_l X_0[:,t]/√d_e) + √d W_e^l[:, x[t]])/√2, of the X_0 that line 3 gives")
        return f"X ← s_l (X + {_name(end.norm)}(W_o^l ({ACTIVATIONS[end.activation]}(W_gate^l X) ⊙ P_l))); end"

    def unembedded(self, line: Line) -> str:
        u, is_model = self.v.unembedding, line.variable == "P"
        head, _, logits = line.text.removesuffix(")").partition("softmax(")
        if is_model:
            W_u = ("W_eᵀ/√d_e" if u.scaled else "W_eᵀ") if u.tied else "W_u"
            logits = logits.replace("W_u", W_u if u.factor == 1 else f"{_text(u.factor)} {W_u}")
        logits += (" + b_u 1ᵀ" if is_model else " + b_u") if u.bias else ""
        if u.cap is not None:
            logits = f"c tanh(({logits})/c)"
            self.notes.append(f"c = {u.cap:g}")
        return f"{head}softmax({logits})"

    def activation(self, printed: str) -> str:
        return ACTIVATIONS.get(self.mlp.activation, printed) if self.mlp else printed

    def embedded(self, line: Line) -> str:
        e, (head, _, text) = self.v.embedding, line.text.partition("← ")
        text, _, _ = text.partition(" + W_p")
        table = "W_p^enc" if "z[t]" in text and e.context_positions else "W_p"
        t = f"t + {e.first_position}" if e.first_position else "t"
        root = {True: "√d_e · ", "bfloat16": "bfloat16(√d_e) · "}.get(e.scaled, "")
        text = f"{root}{'' if e.factor == 1 else f'{_text(e.factor)} '}{text}"
        text += {None: "", "learned": f" + {table}[:, {t}]"}.get(e.positions, f" + PE({t})")
        if rows := {"sinusoidal": "2i and 2i + 1", "sinusoidal_halves": "i and i + d_e/2"}.get(e.positions):
            self.notes.append(f"PE(t): rows {rows} are sin and cos of t/10000^(2i/d_e)")
        if table != "W_p":
            self.notes.append("W_p^enc: the context has positions of its own")
        if e.normalized:
            text = f"{self.norm_name}({text}{' | γ_e, β_e' if self.v.norm.gamma else ''})"
        if e.factored and self.n == 9:
            text = f"W_in ({text}) + b_in"
            self.notes.append("W_in: from the d_in rows of an embedding to d_e")
        return f"{head}← {text}"

    def normed(self, line: Line) -> str:
        """A line that normalizes every column."""
        head, _, printed = line.text.removesuffix(")").partition("← layer_norm(")
        (X, _, parameters), norm, of_layer = printed.partition(" | "), self.v.norm, line.depth > 0
        gamma, _, beta = parameters.partition(", ")
        parameters = gamma if _is_rms(norm) or not norm.beta else f"{gamma}, {beta}"
        parameters = f"{_text(norm.offset)} + {parameters}" if getattr(norm, "offset", 0) else parameters
        is_second = (self.n, line.number) == (10, "7")
        if of_layer and (self.order in ("no_norm", "norm_last" if self.n == 10 else "norm_first")):
            return f"{head}← {X}"
        if (is_second and (self.v.mlp is None or self.held("mlp.own_norms"))) or (
            self.n == 10 and not of_layer and self.v.final_norm is False
        ):
            return f"{head}← {X}"
        if is_second and self.order == "one_norm":
            return f"{head}← X̃[:,t]"
        is_some = self.n == 10 and of_layer and self.some([order != "no_norm" for order in self.v.orders])
        if (self.n, line.number) == (10, "5") and not self.v.first_norm:
            is_some = True
            self.notes.append(NOT_FIRST)
        text = f"{'norm_l' if is_some else self.norm_name}({X}{f' | {parameters}' if norm.gamma else ''})"
        if self.n == 10 and not of_layer and self.v.unembedding.projected:
            b_f = " + b_f" if self.mlp is None or self.mlp.biases else ""
            text = f"{self.norm_name}({self.activation('GELU')}(W_f {text}{b_f}) | {parameters.replace('γ', 'γ_f').replace('β', 'β_f')})"
            self.notes.append("W_f: lines 10 and 11 of Algorithm 9 follow, with a norm of their own")
        return f"{head}← {text}"

    def some(self, are_normed: Sequence[bool]) -> bool:
        """Note which layers have a norm if only some do; return whether that is so."""
        layers = _in_turn(are_normed)
        self.notes += [f"norm_l: a norm where l = {layers}"] if layers else []
        return layers is not None

    def attention(self, line: Line) -> str:
        """A line that adds the output of attention."""
        reads, _, rest = line.text.partition("MHAttention(")[2].partition(" | ")
        W, _, mask = rest.partition(", ")
        is_normed, is_first = self.n != 10 and self.order == "norm_first", self.n == 9 and not self.v.first_norm
        reads = f"norm{'_l' * is_first}({reads[0]}){reads[1:]}" if is_normed else reads
        mask = mask if line.number == "16" else self.windowed(mask)
        text = self.added(self.v.attentions, lambda: f"{self.mixer()}({reads} | {W}, {mask}")
        self.notes += [NORMED] * is_normed + [NOT_FIRST] * (is_normed and is_first)
        if self.order in ORDERS:
            self.notes.append(ORDERS[self.order])
            return f"Y ← {text}"
        return self.total(line.variable, text)

    def added(self, lines: Sequence[Any], of: Callable[[], str]) -> str:
        """The output of a sublayer, with its norm if all layers, or some, have one."""
        norms = [getattr(line, "normalize_output", None) for line in lines]
        are_normed = [norm is not None for norm in norms]
        name = _name(norms[0]) if all(are_normed) else "norm_l" if self.some(are_normed) else ""
        text = f"{name}({of()} | γ_l^out)" if name else of()
        return text if self.v.residual_factor == 1 else f"{_text(self.v.residual_factor)} ({text})"

    def total(self, X: str, added: str) -> str:
        """A line that adds something to the residual stream."""
        is_last = self.n == 10 and self.order == "norm_last"
        return f"{X} ← {self.norm_name}({X} + {added})" if is_last else f"{X} ← {X} + {added}"

    def windowed(self, mask: str) -> str:
        window, is_both, is_chunked = self.held("attention.window"), "≡" in mask, self.held("attention.chunked")
        if not window:
            return mask
        self.notes.append(f"w = {window}")
        if is_chunked:
            return f"Mask[t,t'] = ⟦{'' if is_both else CAUSAL}⌈t/w⌉ = ⌈t'/w⌉⟧)"
        return "Mask[t,t'] = ⟦|t − t'| < w⟧)" if is_both else "Mask[t,t'] = ⟦t' − w < t ≤ t'⟧)"

    def mixer(self) -> str:
        """The name of the mixer in place of attention."""
        kinds, name = {type(line).__name__ for line in self.v.attentions}, "MHAttention"
        if "Parallel" in kinds:
            name = self.parallel(next(line for line in self.v.attentions if type(line).__name__ == "Parallel"))
        for kind in RECURRENCES if self.n == 10 else ():
            if kind in kinds:
                name = name.replace("MHAttention", kind if kinds == {kind} else f"{kind} or MHAttention")
                self.notes.append(RECURRENCES[kind])
        least = max(getattr(line, "delta_min", 0) for line in self.mixers)
        if least and self.n == 10:
            name = name.replace("Mamba2", "Mamba2_Δ")
            self.notes.append(f"Mamba2_Δ: with Δ of at least {least:g}")
        if self.n == 10 and hasattr(self.attentions[0], "d_q"):
            name = name.replace("MHAttention", "LatentAttention")
            self.notes.append(f"LatentAttention: {self.latent()}")
        return name.replace("MHAttention", self.own.get("attention", "MHAttention"))

    def parallel(self, line: Any) -> str:
        """Attention and a recurrence side by side, in place of Algorithm 5."""
        c_1, c_2, kind, m = *map(_text, line.factors), type(line.recurrence).__name__, line.recurrence
        says = RECURRENCES.get(kind, kind)
        says = says if m.norm else says.replace("rms_norm(o ⊙ SiLU(W_z X̃))", "(o ⊙ SiLU(W_z X̃))")
        if factors := [_text(c) for c in getattr(m, "factors", ())]:
            says += f", times {', '.join(factors[:3])}; W_a X̃ times {factors[3]}, W_z X̃ times {factors[4]}"
        self.notes.append(says)
        return f"({c_1} MHAttention + {c_2} {kind})"

    def latent(self) -> str:
        """The formulas of latent attention, in place of Algorithm 5."""
        q = "X̃" if self.attentions[0].d_q is None else "q"
        norms = "c = rms_norm(W_c X̃)" + ("" if q == "X̃" else ", q = rms_norm(W_cq X̃)")
        indexer = self.attentions[0].indexer
        norms += "" if indexer is None else f"; of the {indexer.k:,} tokens with the largest {INDEX}"
        rotation, R = self.rotation().replace("d_attn", "d_r"), "R " if self.rotation() else ""
        told = f"queries [W_q^h {q}; {R}W_qr^h {q}], keys [W_k^h c; {R}W_kr X̃], values W_v^h c; {norms}"
        return f"{told}; R rotates {rotation}" if rotation else told

    def fed_forward(self, line: Line) -> str:
        """A line that adds the output of an MLP."""
        X, (_, j, i) = line.variable, line.text.replace("b_mlp", "").split("W_mlp")
        reads = "X̃" if self.n == 10 else f"norm({X})" if self.order == "norm_first" else X
        if "mlp" in self.own:
            return f"{X} ← {X} + {self.own['mlp']}({reads} | 𝓦_l)"
        text = f"{X} ← {X}"
        if self.mlp:
            text = self.total(X, self.added(self.v.mlps_in_turn, lambda: self.of_mlp(i[0], j[0], reads)))
        alone = _in_turn([line is None for line in self.v.mlps_in_turn])
        text += f"; not for l = {alone}" if alone else ""
        text = text.replace("X ← X", "X ← X + Y") if self.order in ORDERS else text
        if self.v.first and self.n == 10:
            text += f"; for l ≤ {len(self.v.first)}: X ← X + MLP(X̃ | 𝓦_l^first)"
            self.notes.append("MLP: line 8 without experts, in the first layers")
        self.notes += [NORMED] * (self.n != 10 and self.order == "norm_first")
        return text

    def of_mlp(self, i: str, j: str, reads: str) -> str:
        """The output of an MLP, or of experts with the shared ones."""
        m, f, clip = self.mlp, self.activation("ReLU" if self.n == 8 else "GELU"), self.held("mlp.clip")
        if type(m).__name__ == "XIELU":
            f = "xIELU"
            self.notes.append(XIELU)
        experts = next((e for e in self.mlps if hasattr(e, "router_bias")), None)
        is_of_inputs = any(getattr(e, "weighted", "") == "inputs" for e in self.mlps)
        norm = self.norm_name if self.held("mlp.own_norms") else ""
        reads, of_shared = (f"{norm}(X | γ_{name}^l)" if norm else reads for name in ("in", "shared"))
        l, X = "{l,i}" if experts else "l", f"(G[i,:] ⊙ {reads})" if is_of_inputs else reads

        def affine(name: str, X: str) -> str:
            return f"W_{name}^{l} {X}" + (f" + b_{name}^{l} 1ᵀ" if m.biases else "")

        inner, gate = affine(f"mlp{i}", X), affine("gate", X)
        if (c := m.factors) != (1, 1):
            inner, gate = f"{_text(c[1])} ({inner})", f"{_text(c[0])} ({gate})"
        if clip:
            inner, gate = f"1 + clip({inner}, −c, c)", f"min({gate}, c)"
            self.notes.append(f"c = {clip}")
        text = affine(f"mlp{j}", f"({f}({gate}) ⊙ ({inner}))" if self.held("mlp.gated") else f"{f}({inner})")
        if experts:
            text = f"Σ_i {text}" if is_of_inputs else f"Σ_i G[i,:] ⊙ ({text})"
            text = f"{norm}({text} | γ_sum^l)" if norm else text
            self.notes.append(f"G: {self.chosen(experts, f'{norm}(X | γ_r^l)/√d_e' if norm else 'X̃')}")
        if self.held("mlp.shared"):
            shared = f"MLP({of_shared} | 𝓦_l^shared)"
            shared = f"{norm}({shared} | γ_mlp^l)" if norm else shared
            text += f" + {'σ(w_s^lᵀ X̃) ⊙ ' if self.held('mlp.shared_gate') else ''}{shared}"
            self.notes.append("MLP: line 8 without experts, which every token takes")
        return text

    def chosen(self, m: Any, reads: str) -> str:
        """The weights of experts, whose router reads what this formula says."""
        scores = f"W_r {reads} + b_r 1ᵀ" if m.router_bias else f"W_r {reads}"
        scores = f"{'softmax' if m.scores == 'softmax' else 'σ'}({scores})"
        by = f"{scores} + b_choice 1ᵀ" if m.choice_bias else "these"
        within = f", within {m.chosen_groups} of {m.groups} groups by their {m.best} best" if m.groups > 1 else ""
        share = ", divided by their sum" if m.renormalized else ""
        factor = "" if m.factor == 1 else f", times {m.factor:g}"
        factor += ", times s_i" if m.own_norms else ""
        told = f"{scores} in the {m.k} rows i of {m.n} with the largest of {by}{within}{share}{factor}; 0 in the others"
        layers = _in_turn([m is None or hasattr(m, "router_bias") for m in self.v.mlps_in_turn])
        return told if layers is None else f"{told}; only layers l = {layers} have experts, and the others one MLP"


def _is_rms(norm: Any) -> bool:
    return type(norm).__name__ == "RMSNorm"


def _name(norm: Any) -> str:
    return "rms_norm" if _is_rms(norm) else "layer_norm"


def _in_turn(values: Sequence[bool]) -> str | None:
    """The numbers, from 1, of the first layers with True, if layers take these in turn; None if they are alike."""
    numbers = (str(l + 1) for l in range(2 * len(values)) if values[l % len(values)])
    return f"{', '.join(numbers)}, …" if len(set(values)) > 1 else None


def _text(value: Any) -> str:
    """A value in a formula; records, which no formula shows, are the empty text."""
    return value if isinstance(value, str) else f"{value:g}" if isinstance(value, int | float) else ""
