"""Induction heads: which heads of a decoder continue repeated sequences, and its predictions without them.

Repeated random tokens can only be predicted by finding what followed the current token the last time. That takes a head
in an earlier layer that tells each token which one came before it, and a later one that attends to the tokens after
earlier copies of the current one (Olsson et al. 2022, "In-context learning and induction heads").
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Integer

from algorithms import DTransformerParams, d_hidden_state, token_losses
from algorithms.inside import at, intervene, record
from training.interpretability import scores

Heads = Integer[np.ndarray, "n 2"]  # each row is a head's layer and number


class RepeatedTokens(NamedTuple):
    """Random tokens that repeat."""

    x: Integer[Array, "B l"]  # the tokens
    repeats: Bool[Array, "B n"]  # whether each token after the first is predictable from those before it


class Measurements(NamedTuple):
    """Losses and attention scores of a decoder on such tokens."""

    first: Float[Array, ""]  # the mean loss of the unpredictable tokens, in nats
    again: Float[Array, ""]  # the mean loss of those that repeat
    previous: Float[Array, "L H"]  # `scores.previous_token_scores`
    induction: Float[Array, "L H"]  # `scores.induction_scores`


def losses(theta: DTransformerParams, tokens: RepeatedTokens) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return the mean losses of the unpredictable tokens, and of those that repeat."""
    x, u = tokens.x, theta.variant.unembedding
    X = d_hidden_state(x[:, :-1], theta)
    each = token_losses(X, u.matrix(theta), x[:, 1:], b_u=theta.b_u, cap=u.cap)

    def mean(of):
        return jnp.where(of, each, 0).sum() / of.sum()

    return mean(~tokens.repeats), mean(tokens.repeats)


@jax.jit
def measured(theta: DTransformerParams, tokens: RepeatedTokens) -> Measurements:
    """Return the losses, and the scores of all heads."""
    (first, again), seen = record(losses, "A")(theta, tokens)
    x = tokens.x[:, :-1]
    return Measurements(first, again, scores.previous_token_scores(seen["A"]), scores.induction_scores(seen["A"], x))


@jax.jit
def loss_without(theta: DTransformerParams, tokens: RepeatedTokens, heads: Integer[Array, "n 2"]) -> Float[Array, ""]:
    """Return the loss on repeats with these heads ablated."""
    ablated: dict[str, float] = {at("Y@2", layer=layer, head=head): 0.0 for layer, head in heads}
    return intervene(losses, ablated)(theta, tokens)[1]


def twice(tokens: Integer[np.ndarray, "B n"], before: Integer[np.ndarray, "m"]) -> RepeatedTokens:
    """Repeat random sequences once, after the tokens that the model puts before a text, such as bos."""
    B, n = tokens.shape
    x = np.concatenate([np.tile(before, (B, 1)), tokens, tokens], axis=1)
    repeats = np.arange(1, x.shape[1]) > len(before) + n
    return RepeatedTokens(jnp.asarray(x, jnp.int32), jnp.broadcast_to(repeats, (B, x.shape[1] - 1)))


def induction_heads(induction: Float[Array, "L H"], least: float) -> Heads:
    """Return the heads with a score of at least `least`, the largest first."""
    order = np.argsort(-np.asarray(induction), axis=None, kind="stable")
    found = np.stack(np.unravel_index(order, induction.shape), axis=1)
    return found[np.asarray(induction)[tuple(found.T)] >= least]


def others(heads: Heads, shape: tuple[int, int], rng: np.random.Generator) -> Heads:
    """Draw as many other heads of the same layers, or of all (L, H) if these have too few, or raise ValueError."""
    every = np.stack(np.unravel_index(np.arange(np.prod(shape)), shape), axis=1)
    rest = every[~(every[:, None] == heads[None]).all(-1).any(1)]
    near = rest[np.isin(rest[:, 0], heads[:, 0])]
    near = near if len(near) >= len(heads) else rest
    if len(near) < len(heads):
        raise ValueError(f"heads: expected at most half of the {len(every)} heads, got {len(heads)}")
    return near[rng.choice(len(near), len(heads), replace=False)]
