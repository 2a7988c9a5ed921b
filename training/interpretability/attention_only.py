"""Train attention-only models until they form induction heads: the experiment of `scripts/induction.py`.

Source: Elhage et al. 2021, "A mathematical framework for transformer circuits"; Olsson et al. 2022.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Integer, Key

from algorithms import PAPER, DTransformerConfig, DTransformerParams, init_d_transformer
from algorithms.lines import Attention, Embedding, LayerNorm, Rotary
from training.interpretability.induction import Repeating, losses

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
