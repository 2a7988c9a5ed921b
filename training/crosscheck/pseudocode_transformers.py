"""Algorithms 8 to 10 as printed."""

from .pseudocode import Algorithm, Line

__all__ = ["TRANSFORMERS"]


def _embedding(number: str, x: str, X: str, remark: str = "") -> tuple[Line, Line, Line]:
    """Three lines: the length of a sequence, the embedding of its tokens, and the matrix of their columns."""
    first, l = int(number), {"z": "l_z", "x": "l_x", "": "l"}[x]
    ell, sequence = {"z": "ℓ_z", "x": "ℓ_x", "": "ℓ"}[x], x or "x"
    tex = {"z": r"\ell_z", "x": r"\ell_x", "": r"\ell"}[x]
    return (
        Line(
            number,
            f"{ell} ← length({sequence})",
            rf"{tex} \leftarrow \text{{length}}({sequence})",
            l,
            kind="length",
            remark=remark,
        ),
        Line(
            str(first + 1),
            f"for t ∈ [{ell}]: e_t ← W_e[:, {sequence}[t]] + W_p[:, t]",
            rf"\text{{for }} t \in [{tex}]:\ e_t \leftarrow W_e[:, {sequence}[t]] + W_p[:, t]",
            "e",
            f"d_e {l}",
            product=True,
        ),
        Line(
            str(first + 2),
            f"{X} ← [e_1, e_2, …, e_{ell}]",
            rf"{X} \leftarrow [e_1, e_2, \dots, e_{{{tex}}}]",
            X,
            f"d_e {l}",
        ),
    )


def _norm(number: int, X: str, to: str, l: str, index: str) -> Line:
    """`for t: X[:, t] ← layer_norm(X[:, t] | γ, β)`; to is what is assigned, index the layer norm's number."""
    ell, tex = l.replace("l", "ℓ"), l.replace("l", r"\ell")
    tilde = to == "X_tilde"
    text, latex = ("X̃", r"\tilde{X}") if tilde else (X, X)
    gamma = f"γ_l^{index}, β_l^{index}" if index else "γ, β"
    gamma_latex = rf"\gamma_l^{index}, \beta_l^{index}" if index else r"\gamma, \beta"
    return Line(
        str(number),
        f"for t ∈ [{ell}]: {text}[:,t] ← layer_norm({X}[:,t] | {gamma})",
        rf"\text{{for }} t \in [{tex}]:\ {latex}[:,t] \leftarrow \text{{layer\_norm}}({X}[:,t] \mid {gamma_latex})",
        to,
        f"{'d_e' if index else 'd_f' if number == 11 else 'd_e'} {l}",
        depth=1 if index else 0,
    )


def _attention(number: int, X: str, of: str, l: str, W: str, mask: str) -> Line:
    """`X ← X + MHAttention(of | W, mask)`."""
    tex = of.replace("X̃", r"\tilde{X}")
    W_latex = r"\mathcal{W}_l" + (rf"^\text{{{W}}}" if W else "")
    masks = {"1": (r"Mask ≡ 1", r"\text{Mask} \equiv 1")}
    text, latex = masks.get(mask, ("Mask[t,t'] = ⟦t ≤ t'⟧", r"\text{Mask}[t, t'] = \llbracket t \le t' \rrbracket"))
    return Line(
        str(number),
        f"{X} ← {X} + MHAttention({of} | 𝓦_l{'^' + W if W else ''}, {text})",
        rf"{X} \leftarrow {X} + \text{{MHAttention}}({tex} \mid {W_latex}, {latex})",
        X,
        f"d_e {l}",
        depth=1,
    )


def _mlp(number: int, X: str, of: str, l: str, activation: str, first: int = 1) -> Line:
    """`X ← X + W_mlp2 activation(W_mlp1 of + b_mlp1 1ᵀ) + b_mlp2 1ᵀ`."""
    tex, i, j = of.replace("X̃", r"\tilde{X}"), first, first + 1
    return Line(
        str(number),
        f"{X} ← {X} + W_mlp{j}^l {activation}(W_mlp{i}^l {of} + b_mlp{i}^l 1ᵀ) + b_mlp{j}^l 1ᵀ",
        rf"{X} \leftarrow {X} + W_{{\text{{mlp{j}}}}}^l \text{{{activation}}}(W_{{\text{{mlp{i}}}}}^l {tex}"
        rf" + b_{{\text{{mlp{i}}}}}^l 1^\intercal) + b_{{\text{{mlp{j}}}}}^l 1^\intercal",
        X,
        f"d_e {l}",
        depth=1,
    )


def _for(number: int, text: str, latex: str, label: str) -> Line:
    return Line(
        str(number), f"for l = 1..{text} do", rf"\text{{for }} l = 1, 2, \dots, {latex} \text{{ do}}", "l",
        kind="loop", label=label,
    )  # fmt: skip


def _end(number: int, loop: int, X: str, l: str) -> Line:
    return Line(
        str(number), "end", r"\text{end}", X, f"d_e {l}", kind="end", of=str(number - 1), code_line=str(loop)
    )  # fmt: skip


def _return(l: str) -> Line:
    return Line(
        "return", "return P = softmax(W_u X)", r"\text{return } P = \text{softmax}(W_u X)", "P", f"N_V {l}", each=7
    )


ED_TRANSFORMER = Algorithm(
    8,
    "EDTransformer",
    "P ← EDTransformer(z, x | θ)",
    r"P \leftarrow \text{EDTransformer}(z, x \mid \theta)",
    (
        ("Input", r"z, x \in V^{*} \text{, two sequences of token IDs}"),
        (
            "Output",
            r"P \in (0,1)^{N_V \times \text{length}(x)} \text{; column } t \text{ is } \hat{P}(x[t+1] \mid x[1:t], z)",
        ),
        ("Hyperparameters", r"\ell_\text{max}, L_\text{enc}, L_\text{dec}, H, d_e, d_\text{mlp} \in \mathbb{N}"),
        (
            "Parameters",
            r"\theta: W_e, W_p, W_u \text{; per encoder layer } \mathcal{W}_l^\text{enc}, \gamma_l^1, \beta_l^1, \gamma_l^2, \beta_l^2 \text{ and an MLP}",
        ),
        (
            "Parameters",
            r"\text{per decoder layer } \mathcal{W}_l^\text{dec}, \mathcal{W}_l^\text{e/d}, \gamma_l^3, \beta_l^3, \gamma_l^4, \beta_l^4, \gamma_l^5, \beta_l^5 \text{ and an MLP}",
        ),
    ),
    (
        *_embedding("1", "z", "Z", "Encode the context sequence"),
        _for(4, "L_enc", r"L_\text{enc}", "encoder layer"),
        _attention(5, "Z", "Z", "l_z", "enc", "1"),
        _norm(6, "Z", "Z", "l_z", "1"),
        _mlp(7, "Z", "Z", "l_z", "ReLU"),
        _norm(8, "Z", "Z", "l_z", "2"),
        _end(9, 4, "Z", "l_z"),
        *_embedding("10", "x", "X", "Decode the primary sequence, conditioning on the context"),
        _for(13, "L_dec", r"L_\text{dec}", "decoder layer"),
        _attention(14, "X", "X", "l_x", "dec", "unidirectional"),
        _norm(15, "X", "X", "l_x", "3"),
        _attention(16, "X", "X, Z", "l_x", "e/d", "1"),
        _norm(17, "X", "X", "l_x", "4"),
        _mlp(18, "X", "X", "l_x", "ReLU", 3),
        _norm(19, "X", "X", "l_x", "5"),
        _end(20, 13, "X", "l_x"),
        _return("l_x"),
    ),
)

E_TRANSFORMER = Algorithm(
    9,
    "ETransformer",
    "P ← ETransformer(x | θ)",
    r"P \leftarrow \text{ETransformer}(x \mid \theta)",
    (
        ("Input", r"x \in V^{*} \text{, a sequence of token IDs}"),
        (
            "Output",
            r"P \in (0,1)^{N_V \times \text{length}(x)} \text{; column } t \text{ is a distribution for the token at } t",
        ),
        ("Hyperparameters", r"\ell_\text{max}, L, H, d_e, d_\text{mlp}, d_f \in \mathbb{N}"),
        (
            "Parameters",
            r"\theta: W_e, W_p \text{; per layer } \mathcal{W}_l, \gamma_l^1, \beta_l^1, \gamma_l^2, \beta_l^2 \text{ and an MLP; } W_f, b_f, \gamma, \beta, W_u",
        ),
    ),
    (
        *_embedding("1", "", "X"),
        _for(4, "L", "L", "layer"),
        _attention(5, "X", "X", "l", "", "1"),
        _norm(6, "X", "X", "l", "1"),
        _mlp(7, "X", "X", "l", "GELU"),
        _norm(8, "X", "X", "l", "2"),
        _end(9, 4, "X", "l"),
        Line("10", "X ← GELU(W_f X + b_f 1ᵀ)", r"X \leftarrow \text{GELU}(W_f X + b_f 1^\intercal)", "X", "d_f l"),
        _norm(11, "X", "X", "l", ""),
        _return("l"),
    ),
)

D_TRANSFORMER = Algorithm(
    10,
    "DTransformer",
    "P ← DTransformer(x | θ)",
    r"P \leftarrow \text{DTransformer}(x \mid \theta)",
    (
        ("Input", r"x \in V^{*} \text{, a sequence of token IDs}"),
        (
            "Output",
            r"P \in (0,1)^{N_V \times \text{length}(x)} \text{; column } t \text{ is } \hat{P}(x[t+1] \mid x[1:t])",
        ),
        ("Hyperparameters", r"\ell_\text{max}, L, H, d_e, d_\text{mlp} \in \mathbb{N}"),
        (
            "Parameters",
            r"\theta: W_e, W_p \text{; per layer } \mathcal{W}_l, \gamma_l^1, \beta_l^1, \gamma_l^2, \beta_l^2 \text{ and an MLP; } \gamma, \beta, W_u",
        ),
    ),
    (
        *_embedding("1", "", "X"),
        _for(4, "L", "L", "layer"),
        _norm(5, "X", "X_tilde", "l", "1"),
        _attention(6, "X", "X̃", "l", "", "unidirectional"),
        _norm(7, "X", "X_tilde", "l", "2"),
        _mlp(8, "X", "X̃", "l", "GELU"),
        _end(9, 4, "X", "l"),
        _norm(10, "X", "X", "l", ""),
        _return("l"),
    ),
)

TRANSFORMERS = (ED_TRANSFORMER, E_TRANSFORMER, D_TRANSFORMER)
