"""The head for the token after the next: multi-token prediction (MTP), not in the paper.

A decoder of one layer reads ``W_m [norm(e); norm(X)]``, column by column: X is line 10 of Algorithm 10, and column t of
e the embedding of x[t + 1]. Its unembedding, which is θ's, predicts x[t + 2]. In training its loss has the weight
``variant.mtp.weight``; in decoding it drafts a token that Algorithm 10 verifies.

Source: DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", §2.2, equations 21 to 25, with one head.
"""

from typing import Any, Unpack

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Integer

from algorithms.alg10_d_transformer import d_hidden_state
from algorithms.layers import lines_of
from algorithms.machinery.arrays import AnyArray
from algorithms.machinery.contract import compiled, relation
from algorithms.machinery.devices import shard
from algorithms.machinery.options import dropout_key, using
from algorithms.masks import UNIDIRECTIONAL, SelfMask, in_documents
from algorithms.model.theta import DTransformerParams, count_layers
from algorithms.notation import Length, LoopOptions
from algorithms.ops.dropout import fold_in
from algorithms.ops.linear import linear


def mtp_decoder(theta: DTransformerParams) -> DTransformerParams:
    """θ of the head, a decoder that reads `mtp_columns` in place of embeddings; W_e and W_u are those of the model."""
    head: Any = theta.mtp
    of_head = {"layers": head.layers, "norm": head.norm, "variant": theta.variant.of_mtp}
    return theta._replace(W_p=None, embedding_norm=None, mtp=None, **of_head)


def mtp_columns(
    X: Float[Array, "d_e *batch l"], y: Integer[Array, "*batch l"], theta: Any, **of_lines: Any
) -> Float[Array, "d_e *batch l"]:
    """``W_m [norm(e); norm(X)]``, with e the embeddings of the tokens y that follow the columns of X."""
    f, head = lines_of("Algorithm 10", y, theta, **of_lines), theta.mtp
    e = f.layer_norm(f.embedding(y, theta), head.norm_e)
    return shard(linear(head.W_m, jnp.concatenate([e, f.layer_norm(X, head.norm_x)]), None), "tokens")


@compiled
def mtp_hidden_state(
    X: Float[AnyArray, "d_e *batch l"],
    y: Integer[AnyArray, "*batch l"],
    theta: DTransformerParams,
    *,
    length: Length = None,
    mask: SelfMask = UNIDIRECTIONAL,
    positions: Integer[AnyArray, "*#batch l"] | None = None,
    segments: Integer[AnyArray, "*#batch l"] | None = None,
    **options: Unpack[LoopOptions],
) -> Float[Array, "d_e *batch l"]:
    """The head's hidden state, from which W_u predicts the token after y: line 10 of `mtp_decoder`.

    y[t] is the token that follows column t of X; where there is none, any other. The arguments are those of
    `d_hidden_state`, which computed X.
    """
    mask, positions = in_documents(mask, segments, positions)
    columns = mtp_columns(X, y, theta, length=length, positions=positions)
    with using(key=fold_in(dropout_key.get(), 2 * count_layers(theta.layers, theta.variant))):
        return d_hidden_state(columns, mtp_decoder(theta), length=length, mask=mask, positions=positions)


@relation("mtp_hidden_state", "mtp_token_losses")
def a_head_has_parameters(theta: Any) -> None:
    """The variant decides whether there is one."""
    if theta.mtp is None:
        raise ValueError(
            "theta.mtp: expected the parameters of a head for the token after the next, got None; make theta with "
            "variant.but(mtp=lines.MTP())"
        )
