"""The fifteen algorithms as printed: Phuong and Hutter's pseudocode (arXiv:2207.09238) in its own numbering."""

import numpy as np
from scipy.special import softmax

from .pseudocode import Algorithm, Line, as_printed
from .values import finished_translation, of_each_token, plain, prediction

__all__ = ["PSEUDOCODE"]

COMPONENTS = (
    as_printed(
        1, "Token embedding", "e ← token_embedding(v | W_e)", r"""
        Input v \in V \cong [N_V] \text{, a token ID}
        Output e \in \mathbb{R}^{d_e} \text{, the vector representation of the token}
        Parameters W_e \in \mathbb{R}^{d_e \times N_V} \text{, the token embedding matrix}
        """,
        Line("return e = W_e[:, v]", "e", "d_e t"),
    ),
    as_printed(
        2, "Positional embedding", "e_p ← positional_embedding(ℓ | W_p)", r"""
        Input \ell \in [\ell_\text{max}] \text{, position of a token in the sequence}
        Output e_p \in \mathbb{R}^{d_e} \text{, the vector representation of the position}
        Parameters W_p \in \mathbb{R}^{d_e \times \ell_\text{max}} \text{, the positional embedding matrix}
        """,
        Line("return e_p = W_p[:, ℓ]", "e_p", "d_e t"),
    ),
    as_printed(
        3, "Basic single-query attention", "ṽ ← single_query_attention(e, e_t | 𝓦_qkv)", r"""
        Input e \in \mathbb{R}^{d_\text{in}} \text{, vector representation of the current token}
        Input e_t \in \mathbb{R}^{d_\text{in}} \text{, vector representations of context tokens } t \in [T]
        Output \tilde{v} \in \mathbb{R}^{d_\text{out}} \text{, the token and its context combined}
        Parameters W_q, W_k \in \mathbb{R}^{d_\text{attn} \times d_\text{in}},\ b_q, b_k \in
            \mathbb{R}^{d_\text{attn}}
        Parameters W_v \in \mathbb{R}^{d_\text{out} \times d_\text{in}},\ b_v \in \mathbb{R}^{d_\text{out}}
        """,
        Line("q ← W_q e + b_q", "q", "d_attn"),
        Line("∀t: k_t ← W_k e_t + b_k", "k", "d_attn T"),
        Line("∀t: v_t ← W_v e_t + b_v", "v", "d_out T"),
        Line("∀t: α_t = exp(qᵀk_t/√d_attn) / Σ_u exp(qᵀk_u/√d_attn)", "alpha", "T"),
        Line("return ṽ = Σ_t α_t v_t", "v_tilde", "d_out", over="t=1..T"),
    ),
    as_printed(
        4, "Attention", "Ṽ ← Attention(X, Z | 𝓦_qkv, Mask)", r"""
        Input X \in \mathbb{R}^{d_x \times \ell_x},\ Z \in \mathbb{R}^{d_z \times \ell_z} \text{, primary and
            context sequence}
        Output \tilde{V} \in \mathbb{R}^{d_\text{out} \times \ell_x} \text{, the tokens of } X \text{, folding in
            information from } Z
        Parameters W_q \in \mathbb{R}^{d_\text{attn} \times d_x},\ b_q;\ W_k \in \mathbb{R}^{d_\text{attn} \times
            d_z},\ b_k;\ W_v \in \mathbb{R}^{d_\text{out} \times d_z},\ b_v
        Hyperparameters \text{Mask} \in \{0, 1\}^{\ell_z \times \ell_x}
        """,
        Line("Q ← W_q X + b_q 1ᵀ", "Q", "d_attn l_x"),
        Line("K ← W_k Z + b_k 1ᵀ", "K", "d_attn l_z"),
        Line("V ← W_v Z + b_v 1ᵀ", "V", "d_out l_z"),
        Line("S ← KᵀQ", "S", "l_z l_x"),
        Line("∀t_z,t_x: if ¬Mask[t_z,t_x] then S[t_z,t_x] ← −∞", "S", "l_z l_x"),
        Line("return Ṽ = V · softmax(S/√d_attn)", "V_tilde", "d_out l_x"),
    ),
    as_printed(
        5, "MHAttention", "Ṽ ← MHAttention(X, Z | 𝓦, Mask)", r"""
        Input X \in \mathbb{R}^{d_x \times \ell_x},\ Z \in \mathbb{R}^{d_z \times \ell_z} \text{, primary and
            context sequence}
        Output \tilde{V} \in \mathbb{R}^{d_\text{out} \times \ell_x} \text{, the tokens of } X \text{, folding in
            information from } Z
        Hyperparameters H \text{, number of attention heads};\ \text{Mask} \in \{0, 1\}^{\ell_z \times \ell_x}
        Parameters \mathcal{W}_{qkv}^h \text{ for } h \in [H];\ W_o \in \mathbb{R}^{d_\text{out} \times H
            d_\text{mid}},\ b_o \in \mathbb{R}^{d_\text{out}}
        """,
        Line("for h ∈ [H]:", "h", label="head"),
        Line("  Y^h ← Attention(X, Z | 𝓦_qkv^h, Mask)", "Y_h", "d_mid l_x"),
        Line("Y ← [Y¹; Y²; …; Y^H]", "Y", "H·d_mid l_x"),
        Line("return Ṽ = W_o Y + b_o 1ᵀ", "V_tilde", "d_out l_x"),
    ),
    as_printed(
        6, "layer_norm", "ê ← layer_norm(e | γ, β)", r"""
        Input e \in \mathbb{R}^{d_e} \text{, neural network activations}
        Output \hat{e} \in \mathbb{R}^{d_e} \text{, normalized activations}
        Parameters \gamma, \beta \in \mathbb{R}^{d_e} \text{, element-wise scale and offset}
        """,
        Line("m ← Σ_i e[i]/d_e", "m", "t", finish=of_each_token, over="i=1..d_e"),
        Line("v ← Σ_i (e[i] − m)²/d_e", "v", "t", finish=of_each_token, over="i=1..d_e"),
        Line("return ê = (e − m)/√v ⊙ γ + β", "e_hat", "d_e t"),
    ),
    as_printed(
        7, "Unembedding", "p ← Unembedding(e | W_u)", r"""
        Input e \in \mathbb{R}^{d_e} \text{, a token encoding}
        Output p \in \Delta(V) \text{, a probability distribution over the vocabulary}
        Parameters W_u \in \mathbb{R}^{N_V \times d_e} \text{, the unembedding matrix}
        """,
        Line("return p = softmax(W_u e)", "p", "N_V t"),
    ),
)  # fmt: skip


def _embedding(x: str, X: str, l: str, remark: str = "") -> tuple[Line, ...]:
    """The length of a sequence, the embedding of its tokens, and the matrix of their columns."""
    ell = l.replace("l", "ℓ")
    return (
        Line(f"{ell} ← length({x})", l, kind="length", remark=remark),
        Line(f"for t ∈ [{ell}]: e_t ← W_e[:, {x}[t]] + W_p[:, t]", "e", f"d_e {l}", product=True),
        Line(f"{X} ← [e_1, e_2, …, e_{ell}]", X, f"d_e {l}"),
    )


CAUSAL = "Mask[t,t'] = ⟦t ≤ t'⟧"
RETURN = "return P = softmax(W_u X)"

TRANSFORMERS = (
    as_printed(
        8, "EDTransformer", "P ← EDTransformer(z, x | θ)", r"""
        Input z, x \in V^{*} \text{, two sequences of token IDs}
        Output P \in (0,1)^{N_V \times \text{length}(x)} \text{; column } t \text{ is } \hat{P}(x[t+1] \mid x[1:t],
            z)
        Hyperparameters \ell_\text{max}, L_\text{enc}, L_\text{dec}, H, d_e, d_\text{mlp} \in \mathbb{N}
        Parameters \theta: W_e, W_p, W_u \text{; per encoder layer } \mathcal{W}_l^\text{enc}, \gamma_l^1,
            \beta_l^1, \gamma_l^2, \beta_l^2 \text{ and an MLP}
        Parameters \text{per decoder layer } \mathcal{W}_l^\text{dec}, \mathcal{W}_l^\text{e/d}, \gamma_l^3,
            \beta_l^3, \gamma_l^4, \beta_l^4, \gamma_l^5, \beta_l^5 \text{ and an MLP}
        """,
        *_embedding("z", "Z", "l_z", "Encode the context sequence"),
        Line("for l = 1..L_enc do", "l", label="encoder layer"),
        Line("  Z ← Z + MHAttention(Z | 𝓦_l^enc, Mask ≡ 1)", "Z", "d_e l_z"),
        Line("  for t ∈ [ℓ_z]: Z[:,t] ← layer_norm(Z[:,t] | γ_l^1, β_l^1)", "Z", "d_e l_z"),
        Line("  Z ← Z + W_mlp2^l ReLU(W_mlp1^l Z + b_mlp1^l 1ᵀ) + b_mlp2^l 1ᵀ", "Z", "d_e l_z"),
        Line("  for t ∈ [ℓ_z]: Z[:,t] ← layer_norm(Z[:,t] | γ_l^2, β_l^2)", "Z", "d_e l_z"),
        Line("end", "Z", "d_e l_z"),
        *_embedding("x", "X", "l_x", "Decode the primary sequence, conditioning on the context"),
        Line("for l = 1..L_dec do", "l", label="decoder layer"),
        Line(f"  X ← X + MHAttention(X | 𝓦_l^dec, {CAUSAL})", "X", "d_e l_x"),
        Line("  for t ∈ [ℓ_x]: X[:,t] ← layer_norm(X[:,t] | γ_l^3, β_l^3)", "X", "d_e l_x"),
        Line("  X ← X + MHAttention(X, Z | 𝓦_l^e/d, Mask ≡ 1)", "X", "d_e l_x"),
        Line("  for t ∈ [ℓ_x]: X[:,t] ← layer_norm(X[:,t] | γ_l^4, β_l^4)", "X", "d_e l_x"),
        Line("  X ← X + W_mlp4^l ReLU(W_mlp3^l X + b_mlp3^l 1ᵀ) + b_mlp4^l 1ᵀ", "X", "d_e l_x"),
        Line("  for t ∈ [ℓ_x]: X[:,t] ← layer_norm(X[:,t] | γ_l^5, β_l^5)", "X", "d_e l_x"),
        Line("end", "X", "d_e l_x"),
        Line(RETURN, "P", "N_V l_x", each=7),
    ),
    as_printed(
        9, "ETransformer", "P ← ETransformer(x | θ)", r"""
        Input x \in V^{*} \text{, a sequence of token IDs}
        Output P \in (0,1)^{N_V \times \text{length}(x)} \text{; column } t \text{ is a distribution for the token
            at } t
        Hyperparameters \ell_\text{max}, L, H, d_e, d_\text{mlp}, d_f \in \mathbb{N}
        Parameters \theta: W_e, W_p \text{; per layer } \mathcal{W}_l, \gamma_l^1, \beta_l^1, \gamma_l^2, \beta_l^2
            \text{ and an MLP; } W_f, b_f, \gamma, \beta, W_u
        """,
        *_embedding("x", "X", "l"),
        Line("for l = 1..L do", "l", label="layer"),
        Line("  X ← X + MHAttention(X | 𝓦_l, Mask ≡ 1)", "X", "d_e l"),
        Line("  for t ∈ [ℓ]: X[:,t] ← layer_norm(X[:,t] | γ_l^1, β_l^1)", "X", "d_e l"),
        Line("  X ← X + W_mlp2^l GELU(W_mlp1^l X + b_mlp1^l 1ᵀ) + b_mlp2^l 1ᵀ", "X", "d_e l"),
        Line("  for t ∈ [ℓ]: X[:,t] ← layer_norm(X[:,t] | γ_l^2, β_l^2)", "X", "d_e l"),
        Line("end", "X", "d_e l"),
        Line("X ← GELU(W_f X + b_f 1ᵀ)", "X", "d_f l"),
        Line("for t ∈ [ℓ]: X[:,t] ← layer_norm(X[:,t] | γ, β)", "X", "d_f l"),
        Line(RETURN, "P", "N_V l", each=7),
    ),
    as_printed(
        10, "DTransformer", "P ← DTransformer(x | θ)", r"""
        Input x \in V^{*} \text{, a sequence of token IDs}
        Output P \in (0,1)^{N_V \times \text{length}(x)} \text{; column } t \text{ is } \hat{P}(x[t+1] \mid x[1:t])
        Hyperparameters \ell_\text{max}, L, H, d_e, d_\text{mlp} \in \mathbb{N}
        Parameters \theta: W_e, W_p \text{; per layer } \mathcal{W}_l, \gamma_l^1, \beta_l^1, \gamma_l^2, \beta_l^2
            \text{ and an MLP; } \gamma, \beta, W_u
        """,
        *_embedding("x", "X", "l"),
        Line("for l = 1..L do", "l", label="layer"),
        Line("  for t ∈ [ℓ]: X̃[:,t] ← layer_norm(X[:,t] | γ_l^1, β_l^1)", "X_tilde", "d_e l"),
        Line(f"  X ← X + MHAttention(X̃ | 𝓦_l, {CAUSAL})", "X", "d_e l"),
        Line("  for t ∈ [ℓ]: X̃[:,t] ← layer_norm(X[:,t] | γ_l^2, β_l^2)", "X_tilde", "d_e l"),
        Line("  X ← X + W_mlp2^l GELU(W_mlp1^l X̃ + b_mlp1^l 1ᵀ) + b_mlp2^l 1ᵀ", "X", "d_e l"),
        Line("end", "X", "d_e l"),
        Line("for t ∈ [ℓ]: X[:,t] ← layer_norm(X[:,t] | γ, β)", "X", "d_e l"),
        Line(RETURN, "P", "N_V l", each=7),
    ),
)  # fmt: skip


def _body(transformer: str, to: str, target: str) -> tuple[Line, ...]:
    """The end of a training step, and of training: the probabilities, the loss, the step downhill."""
    return (
        Line(f"    P(θ) ← {transformer}", "P", "N_V l", finish=prediction),
        Line(f"    loss(θ) = −Σ_{{{to}}} log P(θ)[{target}, t]", "loss"),
        Line("    θ ← θ − η·∇loss(θ)", "theta", "θ"),
        Line("return θ̂ = θ", "theta_hat", "θ"),
    )


EPOCHS = (Line("for i = 1..N_epochs do", "i", label="epoch"), Line("  for n = 1..N_data do", "n", label="sequence"),
          Line("    ℓ ← length(x_n)", "l", finish=lambda _, names: names["l"]))  # fmt: skip

TRAINING = (
    as_printed(
        11, "EDTraining", "θ̂ ← EDTraining(z_{1:N_data}, x_{1:N_data}, θ)", r"""
        Input \{(z_n, x_n)\}_{n=1}^{N_\text{data}} \text{, a dataset of sequence pairs; } \theta \text{, initial
            parameters}
        Output \hat{\theta} \text{, the trained parameters}
        Hyperparameters N_\text{epochs} \in \mathbb{N},\ \eta \in (0, \infty)
        """,
        *EPOCHS,
        *_body("EDTransformer(z_n, x_n | θ)", "t=1..ℓ−1", "x_n[t+1]"),
    ),
    as_printed(
        12, "ETraining", "θ̂ ← ETraining(x_{1:N_data}, θ)", r"""
        Input \{x_n\}_{n=1}^{N_\text{data}} \text{, a dataset of sequences; } \theta \text{, initial parameters}
        Output \hat{\theta} \text{, the trained parameters}
        Hyperparameters N_\text{epochs} \in \mathbb{N},\ \eta \in (0, \infty),\ p_\text{mask} \in (0, 1)
        """,
        *EPOCHS,
        Line("    for t = 1..ℓ do", "t", "l", label="token"),
        Line("      x̃_n[t] ← mask_token or x_n[t], randomly with probability p_mask or 1 − p_mask", "x_tilde", "l",
             product=True),
        Line("    end", "x_tilde", "l"),
        Line("    T̃ ← {t ∈ [ℓ] : x̃_n[t] = mask_token}", "T_tilde", "|T̃|", finish=lambda T, _: np.flatnonzero(plain(T))),
        *_body("ETransformer(x̃_n | θ)", "t∈T̃", "x_n[t]"),
    ),
    as_printed(
        13, "DTraining", "θ̂ ← DTraining(x_{1:N_data}, θ)", r"""
        Input \{x_n\}_{n=1}^{N_\text{data}} \text{, a dataset of sequences; } \theta \text{, initial parameters}
        Output \hat{\theta} \text{, the trained parameters}
        Hyperparameters N_\text{epochs} \in \mathbb{N},\ \eta \in (0, \infty)
        """,
        *EPOCHS,
        *_body("DTransformer(x_n | θ)", "t=1..ℓ−1", "x_n[t+1]"),
    ),
)  # fmt: skip

SAMPLE = Line("  sample a token y from q ∝ p^{1/τ}", "y",
              also=Line("", "q", "N_V", local="log_q", finish=lambda log_q, _: softmax(plain(log_q), axis=0), greedy=False))  # fmt: skip

INFERENCE = (
    as_printed(
        14, "DInference", "y ← DInference(x, θ̂)", r"""
        Input x \in V^{*} \text{, a prompt; } \hat{\theta} \text{, trained parameters}
        Output y \in V^{*} \text{, the transformer's continuation of the prompt}
        Hyperparameters \ell_\text{gen} \in \mathbb{N},\ \tau \in (0, \infty)
        """,
        Line("ℓ ← length(x)", "l"),
        Line("for i = 1..ℓ_gen do", "i", label="step"),
        Line("  P ← DTransformer(x | θ̂)", "P", "N_V l", finish=prediction),
        Line("  p ← P[:, ℓ+i−1]", "p", "N_V", finish=lambda log_p, _: np.exp(plain(log_p))),
        SAMPLE,
        Line("  x ← [x, y]", "x", "l"),
        Line("return y = x[ℓ+1 : ℓ+ℓ_gen]", "y", "l_gen"),
    ),
    as_printed(
        15, "EDInference", "x̂ ← EDInference(z, θ̂)", r"""
        Input z \in V^{*} \text{, a sequence to be translated, say; } \hat{\theta} \text{, trained parameters}
        Output \hat{x} \in V^{*} \text{, the transformer's translation}
        Hyperparameters \tau \in (0, \infty)
        """,
        Line("x̂ ← [bos_token]", "x_hat", "l"),
        Line("y ← 0", "y"),
        Line("while y ≠ eos_token do", "y", label="step"),
        Line("  P ← EDTransformer(z, x̂ | θ̂)", "P", "N_V l", finish=prediction),
        Line("  p ← P[:, length(x̂)]", "p", "N_V", finish=lambda log_p, _: np.exp(plain(log_p))),
        SAMPLE,
        Line("  x̂ ← [x̂, y]", "x_hat", "l"),
        Line("return x̂", "x_hat", "l", finish=finished_translation),
    ),
)  # fmt: skip

PSEUDOCODE: dict[int, Algorithm] = {a.number: a for a in (*COMPONENTS, *TRANSFORMERS, *TRAINING, *INFERENCE)}
"""Number of an algorithm → what the paper prints."""
