"""Custom positions: ALiBi with slopes that are learned."""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from algorithms import LLAMA
from algorithms.lines import Attention, Positions, array


class SlopesParams(NamedTuple):
    """The logarithms of the slopes."""

    a: Array  # [H]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slopes(Positions):
    """Adds ``−e^{a_h} |t_z − t_x|`` to the scaled scores of head h."""

    by_distance = True
    in_context = True

    def shapes(self):
        return {"of_positions": SlopesParams(array("H", deviation=1.0))}

    def scores(self, Q, W, table, scale):
        U = jnp.full_like(Q, Q.shape[1] ** 0.5, shape=(len(Q), 1, *Q.shape[2:]))

        def P(distances):
            return -jnp.exp(W.of_positions.a)[:, None, None] * jnp.abs(jnp.asarray(distances, Q.dtype))[None, None]

        return Q, U, P


SLOPES = LLAMA.but(attention=Attention(positions=Slopes(), biases=False))
