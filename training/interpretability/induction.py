"""Induction heads: which heads of a decoder continue repeated sequences, and its predictions without them.

Repeated random tokens can only be predicted by finding what followed the current token the last time. That takes a head
in an earlier layer that tells each token which one came before it, and a later one that attends to the tokens after
earlier copies of the current one (Olsson et al. 2022, "In-context learning and induction heads").
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jaxtyping import Bool, Float, Integer, Key

from algorithms import PAPER, DTransformerConfig, DTransformerParams, d_hidden_state, init_d_transformer, token_losses
from algorithms.inside import at, intervene, record
from algorithms.lines import Attention, Embedding, LayerNorm, Rotary
from training.interpretability import scores

ATTENTION_ONLY = PAPER.but(
    embedding=Embedding(positions=None),
    norm=LayerNorm(epsilon=1e-5),
    attention=Attention(positions=Rotary(), biases=False),
    mlp=None,
)
"""Positions are rotary, so only queries and keys depend on them, and the residual stream holds tokens alone."""

CONFIG = DTransformerConfig(N_V=48, l_max=64, L=2, H=4, d_e=64, d_mlp=1, variant=ATTENTION_ONLY)
PERIODS = 12, 32
BATCH = 32
OPTIMIZER = optax.adam(3e-3, b2=0.98)
GUESSING = math.log(CONFIG.N_V)
"""The loss of a uniform prediction, in nats."""
Heads = Integer[np.ndarray, "n 2"]  # each row is a head's layer and number


class Repeating(NamedTuple):
    """Random tokens that repeat."""

    x: Integer[Array, "B l"]  # the tokens
    repeats: Bool[Array, "B n"]  # whether each token after the first is predictable from those before it


class Measured(NamedTuple):
    """Losses and attention scores of a decoder on such tokens."""

    first: Float[Array, ""]  # the mean loss of the unpredictable tokens, in nats
    again: Float[Array, ""]  # the mean loss of those that repeat
    previous: Float[Array, "L H"]  # `scores.previous_token_scores`
    induction: Float[Array, "L H"]  # `scores.induction_scores`


def losses(theta: DTransformerParams, tokens: Repeating) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return the mean losses of the unpredictable tokens, and of those that repeat."""
    x, u = tokens.x, theta.variant.unembedding
    X = d_hidden_state(x[:, :-1], theta)
    each = token_losses(X, u.matrix(theta), x[:, 1:], b_u=theta.b_u, cap=u.cap)

    def mean(of):
        return jnp.where(of, each, 0).sum() / of.sum()

    return mean(~tokens.repeats), mean(tokens.repeats)


@jax.jit
def measured(theta: DTransformerParams, tokens: Repeating) -> Measured:
    """Return the losses, and the scores of all heads."""
    (first, again), seen = record(losses, "A")(theta, tokens)
    x = tokens.x[:, :-1]
    return Measured(first, again, scores.previous_token_scores(seen["A"]), scores.induction_scores(seen["A"], x))


@jax.jit
def loss_without(theta: DTransformerParams, tokens: Repeating, heads: Integer[Array, "n 2"]) -> Float[Array, ""]:
    """Return the loss on repeats with these heads ablated."""
    ablated: dict[str, float] = {at("Y@2", layer=layer, head=head): 0.0 for layer, head in heads}
    return intervene(losses, ablated)(theta, tokens)[1]


def twice(tokens: Integer[np.ndarray, "B n"], before: Integer[np.ndarray, "m"]) -> Repeating:
    """Repeat random sequences once, after the tokens that the model puts before a text, such as bos."""
    B, n = tokens.shape
    x = np.concatenate([np.tile(before, (B, 1)), tokens, tokens], axis=1)
    repeats = np.arange(1, x.shape[1]) > len(before) + n
    return Repeating(jnp.asarray(x, jnp.int32), jnp.broadcast_to(repeats, (B, x.shape[1] - 1)))


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


# Training attention-only models until they form induction heads (Elhage et al. 2021; Olsson et al. 2022).


def repeating(key: Key[Array, ""]) -> Repeating:
    """Return random tokens that repeat, each sequence with a random period."""
    of_period, of_tokens = jax.random.split(key)
    period = jax.random.randint(of_period, (BATCH, 1), *PERIODS)
    drawn = jax.random.randint(of_tokens, (BATCH, CONFIG.l_max), 0, CONFIG.N_V)
    t = jnp.arange(CONFIG.l_max)[None]
    return Repeating(jnp.take_along_axis(drawn, t % period, axis=1), t[:, 1:] > period)


def trained(key: Key[Array, ""], L: int, steps: int, every: int) -> Iterator[tuple[int, DTransformerParams]]:
    """Train a model of L layers with Adam; yield the step and the model at the start, then after each `every` steps."""
    of_theta, of_data = jax.random.split(key)
    theta: Any = init_d_transformer(of_theta, dataclasses.replace(CONFIG, L=L))
    state = theta, OPTIMIZER.init(theta)
    yield 0, theta
    for step in range(0, steps, every):
        n = min(every, steps - step)
        state = _trained(state, of_data, jnp.arange(step, step + n))
        yield step + n, state[0]


@jax.jit
def _trained(state: Any, key: Key[Array, ""], steps: Integer[Array, "n"]) -> Any:
    def loss(theta, tokens):
        first, again = losses(theta, tokens)
        share = tokens.repeats.mean()
        return (1 - share) * first + share * again

    def step(state, number):
        theta, of_optimizer = state
        gradient = jax.grad(loss)(theta, repeating(jax.random.fold_in(key, number)))
        updates, of_optimizer = OPTIMIZER.update(gradient, of_optimizer)
        return (optax.apply_updates(theta, updates), of_optimizer), None

    return jax.lax.scan(step, state, steps)[0]
