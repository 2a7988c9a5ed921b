"""The parameters 𝓦 and θ of the paper, as NamedTuples of arrays.

``*stack`` is empty for one head or one layer. In a model, heads are stacked on axis 0 (``H``), and layers in front of
that (``L``, or ``L_enc`` and ``L_dec``). The functions check their input against the annotations: ``Annotated[P, "H"]``
stacks the arrays of P along H, and ``"theirs=ours"`` renames its axes.
"""

from typing import Annotated, Any, NamedTuple

from jax import Array
from jaxtyping import Float


class AttentionParams(NamedTuple):
    """𝓦_qkv: the query, key and value projections of one head (Algorithms 3 and 4).

    Heads may share keys and values: there are then H_kv heads of these, each for H/H_kv consecutive heads of queries.
    A bias of None is left out.
    """

    W_q: Float[Array, "*stack d_attn d_x"]
    b_q: Float[Array, "*stack d_attn"] | None
    W_k: Float[Array, "*stack_kv d_attn d_z"]
    b_k: Float[Array, "*stack_kv d_attn"] | None
    W_v: Float[Array, "*stack_kv d_mid d_z"]
    b_v: Float[Array, "*stack_kv d_mid"] | None


class LayerNormParams(NamedTuple):
    """γ and β of Algorithm 6; β is None for RMSnorm."""

    gamma: Float[Array, "*stack d_normalized"]
    beta: Float[Array, "*stack d_normalized"] | None


NORMS_OF_HEADS = {"d_norm_q": "d_attn", "d_norm_k": "d_attn"}
"""The axes of the norms of queries and keys, if they are of each head."""

NORMS_OF_ALL_HEADS = {"d_norm_q": "H*d_attn", "d_norm_k": "H_kv*d_attn"}
"""The same, if they are of all heads together."""


class MHAttentionParams(NamedTuple):
    """𝓦 of equation (4): the heads, stacked on axis 0, and the projection of their concatenated outputs.

    The rest is not in the paper: the norms of queries and keys, the norm of the output, and Transformer-XL's W_r, u
    and v.
    """

    heads: Annotated[AttentionParams, "H"]
    W_o: Float[Array, "*stack d_out H*d_mid"]
    b_o: Float[Array, "*stack d_out"] | None
    gamma_q: Float[Array, "*stack d_norm_q"] | None = None
    gamma_k: Float[Array, "*stack d_norm_k"] | None = None
    norm_out: Annotated[LayerNormParams, "d_normalized=d_out"] | None = None
    W_r: Float[Array, "*stack H d_attn d_x"] | None = None
    u: Float[Array, "*stack H d_attn"] | None = None
    v: Float[Array, "*stack H d_attn"] | None = None

    def __axes__(self) -> dict[str, str]:
        """The axes of the norms of queries and keys: of all heads together if γ has more rows than one head."""
        rows, of_head = (getattr(a, "shape", None) for a in (self.gamma_q, self.heads.W_q))
        together = rows and of_head and rows[-1:] != of_head[-2:-1]
        return NORMS_OF_ALL_HEADS if together else NORMS_OF_HEADS


class MLPParams(NamedTuple):
    """W_mlp1, b_mlp1, W_mlp2, b_mlp2 (W_mlp3 … b_mlp4 in the decoder of Algorithm 8).

    The gate and the norm of the output are not in the paper.
    """

    W_mlp1: Float[Array, "*stack d_mlp d_e"]
    b_mlp1: Float[Array, "*stack d_mlp"] | None
    W_mlp2: Float[Array, "*stack d_e d_mlp"]
    b_mlp2: Float[Array, "*stack d_e"] | None
    W_gate: Float[Array, "*stack d_mlp d_e"] | None = None
    b_gate: Float[Array, "*stack d_mlp"] | None = None
    norm_out: Annotated[LayerNormParams, "d_normalized=d_e"] | None = None


ResidualAttention = Annotated[MHAttentionParams, "d_x=d_e d_z=d_e d_out=d_e"]
ResidualNorm = Annotated[LayerNormParams, "d_normalized=d_e"]
ResidualMLP = Annotated[MLPParams, "d_e=d_e"]


class TransformerLayerParams(NamedTuple):
    """One layer of Algorithms 9 and 10 and of the encoder of Algorithm 8: 𝓦_l, γ¹ β¹, the MLP, γ² β².

    The norms, or the MLP and its norm, are None if the variant has none.
    """

    attention: ResidualAttention
    norm1: ResidualNorm | None
    mlp: ResidualMLP | None
    norm2: ResidualNorm | None


class EDDecoderLayerParams(NamedTuple):
    """One decoder layer of Algorithm 8: 𝓦^dec, γ³ β³, 𝓦^{e/d}, γ⁴ β⁴, the MLP, γ⁵ β⁵."""

    self_attention: ResidualAttention
    norm3: ResidualNorm | None
    cross_attention: ResidualAttention
    norm4: ResidualNorm | None
    mlp: ResidualMLP | None
    norm5: ResidualNorm | None


class EmbeddingParams(NamedTuple):
    """The embeddings of Algorithm 8's context that differ from those of the primary sequence; others are None."""

    W_e: Float[Array, "d_e N_V"] | None = None
    W_p: Float[Array, "d_e l_max"] | None = None
    embedding_norm: ResidualNorm | None = None


class EDTransformerParams(NamedTuple):
    """θ of Algorithm 8. Fields from ``context`` on are not in the paper.

    ``W_p`` is None if the variant has no learned positions, and ``W_u`` if it is tied, W_u = W_eᵀ. The norms follow the
    embeddings, the encoder's last layer and the decoder's last layer. All layers share the distances, as in T5.
    """

    W_e: Float[Array, "d_e N_V"]
    W_p: Float[Array, "d_e l_max"] | None
    encoder: Annotated[TransformerLayerParams, "L_enc"]
    decoder: Annotated[EDDecoderLayerParams, "L_dec"]
    W_u: Float[Array, "N_V d_e"] | None
    context: Annotated[EmbeddingParams, "d_e=d_e"] | None = None
    embedding_norm: ResidualNorm | None = None
    encoder_norm: ResidualNorm | None = None
    decoder_norm: ResidualNorm | None = None
    b_u: Float[Array, "N_V"] | None = None
    encoder_distances: Float[Array, "H N_buckets"] | None = None
    decoder_distances: Float[Array, "H N_buckets"] | None = None


class ETransformerParams(NamedTuple):
    """θ of Algorithm 9. Fields from ``embedding_norm`` on are not in the paper: BERT, ALBERT and others add them.

    ``W_p`` is None if the variant has no learned positions, and ``W_u`` if it is tied, W_u = W_eᵀ (then d_f = d_in). A
    bare encoder, which ends with line 9, has no W_f, b_f, norm and W_u. W_t embeds token types; W_pool and b_pool
    project the first token's encoding for classifiers. Embeddings have d_in = d_e rows, unless W_in and b_in project
    them.
    """

    W_e: Float[Array, "d_in N_V"]
    W_p: Float[Array, "d_in l_max"] | None
    layers: Annotated[TransformerLayerParams, "L"]
    W_f: Annotated[Any, Float[Array, "d_f d_e"], None]
    b_f: Annotated[Any, Float[Array, "d_f"], None]
    norm: Annotated[Any, Annotated[LayerNormParams, "d_normalized=d_f"], None]
    W_u: Float[Array, "N_V d_f"] | None
    embedding_norm: Annotated[LayerNormParams, "d_normalized=d_in"] | None = None
    b_u: Float[Array, "N_V"] | None = None
    W_t: Float[Array, "d_in N_types"] | None = None
    W_pool: Annotated[Any, Float[Array, "d_e d_e"], None] = None
    b_pool: Annotated[Any, Float[Array, "d_e"], None] = None
    distances: Float[Array, "H N_buckets"] | None = None
    W_in: Float[Array, "d_e d_in"] | None = None
    b_in: Float[Array, "d_e"] | None = None

    def __axes__(self) -> dict[str, str]:
        """d_in is d_e unless W_in projects the embeddings."""
        return {"d_in": "d_e"} if self.W_in is None else {}


class DTransformerParams(NamedTuple):
    """θ of Algorithm 10. ``W_p`` is None if the variant has no learned positions, ``W_u`` if it is tied, W_u = W_eᵀ.

    Not in the paper: ``b_u``, an output bias; ``embedding_norm``, which follows the embeddings; and ``distances``,
    which are added to the scores of all layers, as in T5.
    """

    W_e: Float[Array, "d_e N_V"]
    W_p: Float[Array, "d_e l_max"] | None
    layers: Annotated[TransformerLayerParams, "L"]
    norm: ResidualNorm | None
    W_u: Float[Array, "N_V d_e"] | None
    b_u: Float[Array, "N_V"] | None = None
    embedding_norm: ResidualNorm | None = None
    distances: Float[Array, "H N_buckets"] | None = None
