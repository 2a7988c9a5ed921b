"""The parameters 𝓦 and θ of the paper, as NamedTuples of arrays.

``*stack`` is empty for one head or one layer; inside a model the heads are stacked on axis 0 (``H``) and the layers in
front of that (``L``, or ``L_enc`` and ``L_dec``). The annotations are what the functions check their input against: an
axis stacked in front, and, as ``theirs=ours``, which axis of a transformer another class's axis is.
"""

from typing import Annotated, Any, NamedTuple

from jax import Array
from jaxtyping import Float


class AttentionParams(NamedTuple):
    """𝓦_qkv: the query, key and value projections of one head (Algorithms 3 and 4).

    Stacked heads may share keys and values: these then have H_kv heads, each read by H/H_kv consecutive ones. A bias
    that is None is left out.
    """

    W_q: Float[Array, "*stack d_attn d_x"]
    b_q: Float[Array, "*stack d_attn"] | None
    W_k: Float[Array, "*stack_kv d_attn d_z"]
    b_k: Float[Array, "*stack_kv d_attn"] | None
    W_v: Float[Array, "*stack_kv d_mid d_z"]
    b_v: Float[Array, "*stack_kv d_mid"] | None


class LayerNormParams(NamedTuple):
    """γ and β of Algorithm 6. ``beta`` is None for RMSnorm."""

    gamma: Float[Array, "*stack d_normalized"]
    beta: Float[Array, "*stack d_normalized"] | None


NORMS_OF_HEADS = {"d_norm_q": "d_attn", "d_norm_k": "d_attn"}
"""The axes of the norms of queries and keys, where each head has one."""


class MHAttentionParams(NamedTuple):
    """𝓦 of equation (4): the heads, stacked on axis 0, and the projection of their concatenated outputs.

    Not in the paper, and None there: γ of the norms of queries and keys, the norm of the output, and W_r, u and v of
    Transformer-XL's scores.
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
        """The axes that are others: a norm is of each head, or of all heads' rows if γ has more than one's."""
        rows, of_head = (getattr(a, "shape", None) for a in (self.gamma_q, self.heads.W_q))
        together = rows and of_head and rows[-1:] != of_head[-2:-1]
        return {"d_norm_q": "H*d_attn", "d_norm_k": "H_kv*d_attn"} if together else NORMS_OF_HEADS


class MLPParams(NamedTuple):
    """W_mlp1, b_mlp1, W_mlp2, b_mlp2 (W_mlp3 … b_mlp4 in the decoder of Algorithm 8).

    Not in the paper, and None there: the gate, and the norm of the output.
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

    A variant without norms between the lines, or without MLPs, has None there.
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
    """Embeddings of the context in Algorithm 8, where they differ from those of the primary sequence."""

    W_e: Float[Array, "d_e N_V"] | None = None
    W_p: Float[Array, "d_e l_max"] | None = None
    embedding_norm: ResidualNorm | None = None


class EDTransformerParams(NamedTuple):
    """θ of Algorithm 8. From ``context`` on all are None in the paper: other models add them.

    ``W_p`` None: sinusoidal positions of the variant. ``W_u`` None: tied, W_u = W_eᵀ. The norms follow the embeddings,
    the encoder's last layer, and the decoder's. The distances are T5's, which all layers share.
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
    """θ of Algorithm 9. From ``embedding_norm`` on all are None in the paper: they are what BERT and ALBERT add.

    ``W_p`` None: sinusoidal positions of the variant. ``W_u`` None: tied, W_u = W_eᵀ (then d_f = d_in). A bare encoder
    has neither W_f, b_f and norm nor W_u: it ends with line 9. W_t embeds the token types, and W_pool and b_pool are
    what classifiers read the first token's encoding with. Embeddings have d_in rows, and d_in = d_e unless W_in and
    b_in project them.
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
        """The axes that are one: d_in is d_e where nothing projects the embeddings."""
        return {"d_in": "d_e"} if self.W_in is None else {}


class DTransformerParams(NamedTuple):
    """θ of Algorithm 10. ``W_p`` None: sinusoidal positions of the variant. ``W_u`` None: tied, W_u = W_eᵀ.

    ``b_u``, an output bias, ``embedding_norm``, which follows the embeddings, and ``distances``, what T5's add to the
    scores of all layers, are None in the paper.
    """

    W_e: Float[Array, "d_e N_V"]
    W_p: Float[Array, "d_e l_max"] | None
    layers: Annotated[TransformerLayerParams, "L"]
    norm: ResidualNorm | None
    W_u: Float[Array, "N_V d_e"] | None
    b_u: Float[Array, "N_V"] | None = None
    embedding_norm: ResidualNorm | None = None
    distances: Float[Array, "H N_buckets"] | None = None
