"""The parameters 𝓦 and θ of the paper, as NamedTuples of arrays.

In a model, heads are stacked on axis 0 of their arrays, and layers in front of that. The method ``shapes`` of a line in
`algorithms.lines` says the axes of its parameters, and `algorithms.model.theta` has θ.
"""

from typing import Any, NamedTuple

from jax import Array

from algorithms.machinery.contract import array
from algorithms.machinery.record import serializable


@serializable
class AttentionParams(NamedTuple):
    """𝓦_qkv: the query, key and value projections of one head (Algorithms 3 and 4).

    Heads may share keys and values: there are then H_kv heads of these, each for H/H_kv consecutive heads of queries.
    A bias of None is left out.
    """

    W_q: Array
    b_q: Array | None
    W_k: Array
    b_k: Array | None
    W_v: Array
    b_v: Array | None

    def __shapes__(self) -> "AttentionParams":
        return OF_A_HEAD


def head_shapes(H: str, *, d_x: str, d_z: str, biases: Any = True) -> AttentionParams:
    """The shapes of 𝓦_qkv, stacked along H and H_kv if H is not empty."""
    H_kv = f"{H}_kv" if H else ""
    return AttentionParams(
        W_q=array(f"{H} d_attn {d_x}"),
        b_q=array(f"{H} d_attn", biases),
        W_k=array(f"{H_kv} d_attn {d_z}"),
        b_k=array(f"{H_kv} d_attn", biases),
        W_v=array(f"{H_kv} d_mid {d_z}"),
        b_v=array(f"{H_kv} d_mid", biases),
    )


OF_A_HEAD = head_shapes("", d_x="d_x", d_z="d_z")


@serializable
class LayerNormParams(NamedTuple):
    """γ and β of Algorithm 6; β is None for RMSnorm."""

    gamma: Array
    beta: Array | None


@serializable
class MHAttentionParams(NamedTuple):
    """𝓦 of equation (4): the heads, stacked on axis 0, and the projection of their concatenated outputs.

    The rest is not in the paper: the norms of queries and keys, the norm of the output, Transformer-XL's W_r, u and v,
    the sinks s, parameters of custom positions, and the gate of the heads' outputs.
    """

    heads: AttentionParams
    W_o: Array
    b_o: Array | None
    gamma_q: Array | None = None
    gamma_k: Array | None = None
    norm_out: LayerNormParams | None = None
    W_r: Array | None = None
    u: Array | None = None
    v: Array | None = None
    s: Array | None = None
    of_positions: Any = None
    W_g: Array | None = None

    def __shapes__(self) -> "MHAttentionParams":
        return MHAttentionParams(head_shapes("H", d_x="d_x", d_z="d_z"), array("d_out H*d_mid"), array("d_out"))


@serializable
class MLPParams(NamedTuple):
    """W_mlp1, b_mlp1, W_mlp2, b_mlp2 (W_mlp3 … b_mlp4 in the decoder of Algorithm 8).

    The gate, the norm of the output, and the parameters of an activation are not in the paper.
    """

    W_mlp1: Array
    b_mlp1: Array | None
    W_mlp2: Array
    b_mlp2: Array | None
    W_gate: Array | None = None
    b_gate: Array | None = None
    norm_out: LayerNormParams | None = None
    alpha_p: Array | None = None
    alpha_n: Array | None = None


@serializable
class ExpertNormsParams(NamedTuple):
    """The norms of what the shared MLP, the router and the experts read, and of the experts' weighted sum."""

    shared: LayerNormParams
    router: LayerNormParams
    inputs: LayerNormParams
    outputs: LayerNormParams


@serializable
class ExpertsParams(NamedTuple):
    """A mixture of experts in place of an MLP; not in the paper. Of ``experts``, all arrays have the experts in front.

    The router has a row for each expert; b_choice only decides which experts are chosen, and has no gradient; w_s gates
    the shared MLP; s has a factor for each expert.
    """

    W_r: Array
    b_r: Array | None
    b_choice: Array | None
    experts: MLPParams
    shared: MLPParams | None = None
    norm_out: LayerNormParams | None = None
    w_s: Array | None = None
    norms: ExpertNormsParams | None = None
    s: Array | None = None


@serializable
class LayerInputsParams(NamedTuple):
    """Embeddings of the tokens for all layers, a layer's rows below those of the layer before; not in the paper.

    W_l projects the embeddings of Algorithm 10, and a norm follows in each layer.
    """

    W_e: Array
    W_l: Array
    norm: LayerNormParams


@serializable
class LayerEndParams(NamedTuple):
    """What follows the lines of a layer: the gate of its inputs, their projection and its norm, and a scalar."""

    W_gate: Array | None
    W_o: Array | None
    norm_out: LayerNormParams | None
    s: Array


@serializable
class TransformerLayerParams(NamedTuple):
    """One layer of Algorithms 9 and 10 and of the encoder of Algorithm 8: 𝓦_l, γ¹ β¹, the MLP, γ² β².

    The norms, or the MLP and its norm, are None if the variant has none; ``end`` is not in the paper.
    """

    attention: MHAttentionParams
    norm1: LayerNormParams | None
    mlp: MLPParams | None
    norm2: LayerNormParams | None
    end: LayerEndParams | None = None


@serializable
class MTPParams(NamedTuple):
    """A head for the token after the next, see `algorithms.mtp`; not in the paper.

    The norms of embeddings and of hidden states, the matrix of both, and a layer and a norm as θ has them.
    """

    norm_e: LayerNormParams
    norm_x: LayerNormParams
    W_m: Array
    layers: TransformerLayerParams
    norm: LayerNormParams | None


@serializable
class EDDecoderLayerParams(NamedTuple):
    """One decoder layer of Algorithm 8: 𝓦^dec, γ³ β³, 𝓦^{e/d}, γ⁴ β⁴, the MLP, γ⁵ β⁵."""

    self_attention: MHAttentionParams
    norm3: LayerNormParams | None
    cross_attention: MHAttentionParams
    norm4: LayerNormParams | None
    mlp: MLPParams | None
    norm5: LayerNormParams | None


@serializable
class EmbeddingParams(NamedTuple):
    """The embeddings of Algorithm 8's context that differ from those of the primary sequence; others are None."""

    W_e: Array | None = None
    W_p: Array | None = None
    embedding_norm: LayerNormParams | None = None
