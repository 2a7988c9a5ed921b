"""The loss of every token, from tokens and θ of any variant: lines 4 and 5 of Algorithms 11 and 13, 8 and 9 of 12."""

from typing import Any, Unpack

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Integer, Shaped

from algorithms.alg08_ed_transformer import ed_hidden_state
from algorithms.alg09_e_transformer import e_hidden_state
from algorithms.alg10_d_transformer import d_hidden_state
from algorithms.layers import positions_in
from algorithms.machinery.arrays import AnyArray, as_ids
from algorithms.machinery.contract import compiled
from algorithms.masks import BIDIRECTIONAL, UNIDIRECTIONAL, SelfMask
from algorithms.model.theta import DTransformerParams, EDTransformerParams, ETransformerParams
from algorithms.mtp import mtp_hidden_state
from algorithms.notation import ContextLength, Length, LoopOptions, PrimaryLength, Share, mask_token
from algorithms.ops.log_loss import token_losses


@compiled
def ed_token_losses(
    z: Integer[AnyArray, "*#batch l_z"],
    x: Integer[AnyArray, "*batch l_x"] | Float[AnyArray, "d_e *batch l_x"],
    theta: EDTransformerParams,
    *,
    targets: Integer[AnyArray, "*batch l_x"] | None = None,
    weights: Float[AnyArray, "*#batch l_x"] | Bool[AnyArray, "*#batch l_x"] | None = None,
    label_smoothing: Share = 0.0,
    z_length: ContextLength = None,
    length: PrimaryLength = None,
    z_segments: Integer[AnyArray, "*#batch l_z"] | None = None,
    segments: Integer[AnyArray, "*#batch l_x"] | None = None,
    **options: Unpack[LoopOptions],
) -> Float[Array, "*batch l_x"]:
    """``−log P[x[t+1], t]`` with ``P = EDTransformer(z, x | θ)``, for every token that has a next one; 0 for others.

    The last token of a document has none. Given ``targets``, every column before the padding has a loss,
    ``−log P[targets[t], t]``; columns of embeddings need them. ``weights`` multiply the losses; where a weight is 0,
    the target is not read. The probabilities of all tokens are never held at once; the result is in at least float32.
    Without these options, its sum is the loss of Algorithm 11.

    Example:
        >>> config = EDTransformerConfig(N_V=5, l_max=4, L_enc=1, L_dec=1, H=2, d_e=6, d_mlp=8)
        >>> theta = init_ed_transformer(jax.random.key(0), config)._replace(W_u=jnp.zeros((5, 6)))
        >>> print(ed_token_losses(jnp.array([0, 1]), jnp.array([3, 1, 4]), theta))
        [1.609438 1.609438 0.      ]

    Source: Phuong and Hutter 2022, lines 4 and 5 of Algorithm 11.
    """
    where: Any = {"z_length": z_length, "z_segments": z_segments, "segments": segments}
    X = ed_hidden_state(z, x, theta, **where)
    targets, counted = next_tokens(x, targets, length, segments)
    return losses_of(X, theta, targets, counted, weights, label_smoothing)


@compiled
def e_token_losses(
    x: Integer[AnyArray, "*batch l"] | Float[AnyArray, "d_in *batch l"],
    theta: ETransformerParams,
    *,
    x_tilde: Integer[AnyArray, "*batch l"] | None = None,
    targets: Integer[AnyArray, "*batch l"] | None = None,
    weights: Float[AnyArray, "*#batch l"] | Bool[AnyArray, "*#batch l"] | None = None,
    label_smoothing: Share = 0.0,
    mask: SelfMask = BIDIRECTIONAL,
    length: Length = None,
    types: Integer[AnyArray, "*#batch l"] | None = None,
    positions: Integer[AnyArray, "*#batch l"] | None = None,
    segments: Integer[AnyArray, "*#batch l"] | None = None,
    **options: Unpack[LoopOptions],
) -> Float[Array, "*batch l"]:
    """``−log P[x[t], t]`` with ``P = ETransformer(x̃ | θ)``, for every token that x̃ masks; 0 for others.

    ``x_tilde`` is x with mask_token in place of some tokens. Given ``targets`` instead, x itself is read, and every
    column before the padding has the loss ``−log P[targets[t], t]``. Otherwise like `ed_token_losses`.

    Source: Phuong and Hutter 2022, lines 7 to 9 of Algorithm 12.
    """
    where: Any = {"length": length, "types": types, "mask": mask, "positions": positions, "segments": segments}
    X = e_hidden_state(x if x_tilde is None else x_tilde, theta, **where)
    counted = is_before(X[0], length)
    if x_tilde is not None:
        targets, counted = x, counted & (x_tilde == mask_token(theta.W_e.shape[1]))
    return losses_of(X, theta, targets, counted, weights, label_smoothing)


@compiled
def d_token_losses(
    x: Integer[AnyArray, "*batch l"] | Float[AnyArray, "d_e *batch l"],
    theta: DTransformerParams,
    *,
    targets: Integer[AnyArray, "*batch l"] | None = None,
    weights: Float[AnyArray, "*#batch l"] | Bool[AnyArray, "*#batch l"] | None = None,
    label_smoothing: Share = 0.0,
    mask: SelfMask = UNIDIRECTIONAL,
    length: Length = None,
    positions: Integer[AnyArray, "*#batch l"] | None = None,
    segments: Integer[AnyArray, "*#batch l"] | None = None,
    **options: Unpack[LoopOptions],
) -> Float[Array, "*batch l"]:
    """``−log P[x[t+1], t]`` with ``P = DTransformer(x | θ)``, for every token that has a next one; 0 for others.

    ``mask`` replaces the mask of line 6 of Algorithm 10. Otherwise like `ed_token_losses`.

    Source: Phuong and Hutter 2022, lines 4 and 5 of Algorithm 13.
    """
    where: Any = {"length": length, "mask": mask, "positions": positions, "segments": segments}
    X = d_hidden_state(x, theta, **where)
    targets, counted = next_tokens(x, targets, length, segments)
    return losses_of(X, theta, targets, counted, weights, label_smoothing)


@compiled
def mtp_token_losses(
    X: Float[AnyArray, "d_e *batch l"],
    x: Integer[AnyArray, "*batch l"],
    theta: DTransformerParams,
    *,
    weights: Float[AnyArray, "*#batch l"] | Bool[AnyArray, "*#batch l"] | None = None,
    label_smoothing: Share = 0.0,
    mask: SelfMask = UNIDIRECTIONAL,
    length: Length = None,
    positions: Integer[AnyArray, "*#batch l"] | None = None,
    segments: Integer[AnyArray, "*#batch l"] | None = None,
    **options: Unpack[LoopOptions],
) -> Float[Array, "*batch l"]:
    """``−log P[x[t+2], t]`` with the head's P, for every token that has two more in its document; 0 for others.

    X is `d_hidden_state` of x, with the same arguments. Otherwise like `ed_token_losses`.

    Source: that of `algorithms.mtp`, equation 24.
    """
    y, counted = next_tokens(x, None, length, segments)
    y, where = jnp.where(counted, y, 0), {"length": length, "positions": positions, "segments": segments}
    X = mtp_hidden_state(X, y, theta, mask=mask, **where)
    counted = counted & jnp.roll(counted, -1, axis=-1)
    return losses_of(X, theta, jnp.roll(y, -1, axis=-1), counted, weights, label_smoothing)


def next_tokens(x: Any, targets: Any, length: Any, segments: Any) -> tuple[Any, Bool[Array, "*batch l"]]:
    """The token to predict in each column, and whether there is one: in the next column, unless targets are given."""
    if targets is not None:
        return targets, is_before(targets, length)
    counted = is_before(x, length, 1)
    if segments is not None:
        counted &= jnp.broadcast_to(segments == jnp.roll(segments, -1, axis=-1), x.shape)
    return jnp.roll(x, -1, axis=-1), counted


def losses_of(
    X: Float[Array, "d *batch l"],
    theta: Any,
    targets: Any,
    counted: Bool[Array, "*batch l"],
    weights: Any = None,
    label_smoothing: float = 0.0,
) -> Float[Array, "*batch l"]:
    """``−log P[targets[t], t]``, with P the unembedding of X, for the counted t, times their weights; 0 for others."""
    weights = None if weights is None else jnp.broadcast_to(weights, counted.shape)
    counted = counted if weights is None else counted & (weights != 0)
    line = theta.variant.unembedding
    X, targets = jnp.where(counted[None], X, 0), jnp.where(counted, as_ids(targets), 0)
    of_logits: Any = {"b_u": theta.b_u, "cap": line.cap}
    losses = token_losses(X, line.matrix(theta), targets, label_smoothing=label_smoothing, **of_logits)
    losses = jnp.where(counted, losses, 0)
    return losses if weights is None else weights.astype(losses.dtype) * losses


def is_before(x: Shaped[Array, "*batch l"], length: Any, n: int = 0) -> Bool[Array, "*batch l"]:
    """Whether the token n after each one is before the padding."""
    length = as_ids(x.shape[-1] if length is None else length)
    length = length.reshape(*length.shape, *(1,) * (x.ndim - length.ndim))
    return jnp.broadcast_to(positions_in(x) + n < length, x.shape)
