"""Algorithms 1 to 7 as printed."""

from typing import Any

import numpy as np

from .pseudocode import Algorithm, Line, Locals
from .values import plain

__all__ = ["COMPONENTS"]


def _of_each_token(m: Any, _: Locals) -> np.ndarray:
    """One number for each token, without the axis of 1 that it is kept on."""
    m = plain(m)
    return m[0] if m.ndim > 1 and m.shape[0] == 1 else m


TOKEN_EMBEDDING = Algorithm(
    1,
    "Token embedding",
    "e ← token_embedding(v | W_e)",
    r"e \leftarrow \text{token\_embedding}(v \mid W_e)",
    (
        ("Input", r"v \in V \cong [N_V] \text{, a token ID}"),
        ("Output", r"e \in \mathbb{R}^{d_e} \text{, the vector representation of the token}"),
        ("Parameters", r"W_e \in \mathbb{R}^{d_e \times N_V} \text{, the token embedding matrix}"),
    ),
    (Line("return", "return e = W_e[:, v]", r"\text{return } e = W_e[:, v]", "e", "d_e t"),),
)

POSITIONAL_EMBEDDING = Algorithm(
    2,
    "Positional embedding",
    "e_p ← positional_embedding(ℓ | W_p)",
    r"e_p \leftarrow \text{positional\_embedding}(\ell \mid W_p)",
    (
        ("Input", r"\ell \in [\ell_\text{max}] \text{, position of a token in the sequence}"),
        ("Output", r"e_p \in \mathbb{R}^{d_e} \text{, the vector representation of the position}"),
        ("Parameters", r"W_p \in \mathbb{R}^{d_e \times \ell_\text{max}} \text{, the positional embedding matrix}"),
    ),
    (Line("return", "return e_p = W_p[:, ℓ]", r"\text{return } e_p = W_p[:, \ell]", "e_p", "d_e t"),),
)

SINGLE_QUERY_ATTENTION = Algorithm(
    3,
    "Basic single-query attention",
    "ṽ ← single_query_attention(e, e_t | W_qkv)",
    r"\tilde{v} \leftarrow \text{single\_query\_attention}(e, e_t \mid \mathcal{W}_{qkv})",
    (
        ("Input", r"e \in \mathbb{R}^{d_\text{in}} \text{, vector representation of the current token}"),
        ("Input", r"e_t \in \mathbb{R}^{d_\text{in}} \text{, vector representations of context tokens } t \in [T]"),
        ("Output", r"\tilde{v} \in \mathbb{R}^{d_\text{out}} \text{, the token and its context combined}"),
        (
            "Parameters",
            r"W_q, W_k \in \mathbb{R}^{d_\text{attn} \times d_\text{in}},\ b_q, b_k \in \mathbb{R}^{d_\text{attn}}",
        ),
        ("Parameters", r"W_v \in \mathbb{R}^{d_\text{out} \times d_\text{in}},\ b_v \in \mathbb{R}^{d_\text{out}}"),
    ),
    (
        Line("1", "q ← W_q e + b_q", r"q \leftarrow W_q e + b_q", "q", "d_attn"),
        Line("2", "∀t: k_t ← W_k e_t + b_k", r"\forall t:\ k_t \leftarrow W_k e_t + b_k", "k", "d_attn T"),
        Line("3", "∀t: v_t ← W_v e_t + b_v", r"\forall t:\ v_t \leftarrow W_v e_t + b_v", "v", "d_out T"),
        Line(
            "4",
            "∀t: α_t = exp(qᵀk_t/√d_attn) / Σ_u exp(qᵀk_u/√d_attn)",
            r"\forall t:\ \alpha_t = \frac{\exp(q^\intercal k_t / \sqrt{d_\text{attn}})}"
            r"{\sum_u \exp(q^\intercal k_u / \sqrt{d_\text{attn}})}",
            "alpha",
            "T",
        ),
        Line(
            "return",
            "return ṽ = Σ_t α_t v_t",
            r"\text{return } \tilde{v} = \sum_{t=1}^{T} \alpha_t v_t",
            "v_tilde",
            "d_out",
        ),
    ),
)

ATTENTION = Algorithm(
    4,
    "Attention",
    "Ṽ ← Attention(X, Z | 𝓦_qkv, Mask)",
    r"\tilde{V} \leftarrow \text{Attention}(X, Z \mid \mathcal{W}_{qkv}, \text{Mask})",
    (
        (
            "Input",
            r"X \in \mathbb{R}^{d_x \times \ell_x},\ Z \in \mathbb{R}^{d_z \times \ell_z} \text{, primary and context sequence}",
        ),
        (
            "Output",
            r"\tilde{V} \in \mathbb{R}^{d_\text{out} \times \ell_x} \text{, the tokens of } X \text{, folding in information from } Z",
        ),
        (
            "Parameters",
            r"W_q \in \mathbb{R}^{d_\text{attn} \times d_x},\ b_q;\ W_k \in \mathbb{R}^{d_\text{attn} \times d_z},\ b_k;\ W_v \in \mathbb{R}^{d_\text{out} \times d_z},\ b_v",
        ),
        ("Hyperparameters", r"\text{Mask} \in \{0, 1\}^{\ell_z \times \ell_x}"),
    ),
    (
        Line("1", "Q ← W_q X + b_q 1ᵀ", r"Q \leftarrow W_q X + b_q 1^\intercal", "Q", "d_attn l_x"),
        Line("2", "K ← W_k Z + b_k 1ᵀ", r"K \leftarrow W_k Z + b_k 1^\intercal", "K", "d_attn l_z"),
        Line("3", "V ← W_v Z + b_v 1ᵀ", r"V \leftarrow W_v Z + b_v 1^\intercal", "V", "d_out l_z"),
        Line("4", "S ← KᵀQ", r"S \leftarrow K^\intercal Q", "S", "l_z l_x"),
        Line(
            "5",
            "∀t_z,t_x: if ¬Mask[t_z,t_x] then S[t_z,t_x] ← −∞",
            r"\forall t_z, t_x: \text{ if } \lnot\text{Mask}[t_z, t_x] \text{ then } S[t_z, t_x] \leftarrow -\infty",
            "S",
            "l_z l_x",
        ),
        Line(
            "return",
            "return Ṽ = V · softmax(S/√d_attn)",
            r"\text{return } \tilde{V} = V \cdot \text{softmax}(S / \sqrt{d_\text{attn}})",
            "V_tilde",
            "d_out l_x",
        ),
    ),
)

MH_ATTENTION = Algorithm(
    5,
    "MHAttention",
    "Ṽ ← MHAttention(X, Z | 𝓦, Mask)",
    r"\tilde{V} \leftarrow \text{MHAttention}(X, Z \mid \mathcal{W}, \text{Mask})",
    (
        (
            "Input",
            r"X \in \mathbb{R}^{d_x \times \ell_x},\ Z \in \mathbb{R}^{d_z \times \ell_z} \text{, primary and context sequence}",
        ),
        (
            "Output",
            r"\tilde{V} \in \mathbb{R}^{d_\text{out} \times \ell_x} \text{, the tokens of } X \text{, folding in information from } Z",
        ),
        ("Hyperparameters", r"H \text{, number of attention heads};\ \text{Mask} \in \{0, 1\}^{\ell_z \times \ell_x}"),
        (
            "Parameters",
            r"\mathcal{W}_{qkv}^h \text{ for } h \in [H];\ W_o \in \mathbb{R}^{d_\text{out} \times H d_\text{mid}},\ b_o \in \mathbb{R}^{d_\text{out}}",
        ),
    ),
    (
        Line("1", "for h ∈ [H]:", r"\text{for } h \in [H]:", "h", kind="loop", label="head"),
        Line(
            "2",
            "Y^h ← Attention(X, Z | 𝓦_qkv^h, Mask)",
            r"Y^h \leftarrow \text{Attention}(X, Z \mid \mathcal{W}_{qkv}^h, \text{Mask})",
            "Y_h",
            "d_mid l_x",
            depth=1,
        ),
        Line("3", "Y ← [Y¹; Y²; …; Y^H]", r"Y \leftarrow [Y^1; Y^2; \dots; Y^H]", "Y", "H·d_mid l_x"),
        Line(
            "return",
            "return Ṽ = W_o Y + b_o 1ᵀ",
            r"\text{return } \tilde{V} = W_o Y + b_o 1^\intercal",
            "V_tilde",
            "d_out l_x",
        ),
    ),
)

LAYER_NORM = Algorithm(
    6,
    "layer_norm",
    "ê ← layer_norm(e | γ, β)",
    r"\hat{e} \leftarrow \text{layer\_norm}(e \mid \gamma, \beta)",
    (
        ("Input", r"e \in \mathbb{R}^{d_e} \text{, neural network activations}"),
        ("Output", r"\hat{e} \in \mathbb{R}^{d_e} \text{, normalized activations}"),
        ("Parameters", r"\gamma, \beta \in \mathbb{R}^{d_e} \text{, element-wise scale and offset}"),
    ),
    (
        Line("1", "m ← Σ_i e[i]/d_e", r"m \leftarrow \sum_{i=1}^{d_e} e[i] / d_e", "m", "t", code=_of_each_token),
        Line(
            "2",
            "v ← Σ_i (e[i] − m)²/d_e",
            r"v \leftarrow \sum_{i=1}^{d_e} (e[i] - m)^2 / d_e",
            "v",
            "t",
            code=_of_each_token,
        ),
        Line(
            "return",
            "return ê = (e − m)/√v ⊙ γ + β",
            r"\text{return } \hat{e} = \frac{e - m}{\sqrt{v}} \odot \gamma + \beta",
            "e_hat",
            "d_e t",
        ),
    ),
)

UNEMBEDDING = Algorithm(
    7,
    "Unembedding",
    "p ← Unembedding(e | W_u)",
    r"p \leftarrow \text{Unembedding}(e \mid W_u)",
    (
        ("Input", r"e \in \mathbb{R}^{d_e} \text{, a token encoding}"),
        ("Output", r"p \in \Delta(V) \text{, a probability distribution over the vocabulary}"),
        ("Parameters", r"W_u \in \mathbb{R}^{N_V \times d_e} \text{, the unembedding matrix}"),
    ),
    (Line("1", "return p = softmax(W_u e)", r"\text{return } p = \text{softmax}(W_u e)", "p", "N_V t"),),
)

COMPONENTS = (
    TOKEN_EMBEDDING,
    POSITIONAL_EMBEDDING,
    SINGLE_QUERY_ATTENTION,
    ATTENTION,
    MH_ATTENTION,
    LAYER_NORM,
    UNEMBEDDING,
)
