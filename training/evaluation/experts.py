"""Shares of tokens that the experts of a decoder get."""

from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from algorithms import DTransformerParams, d_hidden_state
from algorithms.inside import record
from algorithms.lines import Experts
from training.data.batches import Batch
from training.tasks.objectives import in_sequence


def has_experts(theta: DTransformerParams) -> bool:
    """Return whether any layer of a decoder has experts."""
    return any(isinstance(line, Experts) for line in theta.variant.mlps)


def loads(theta: DTransformerParams, batches: Iterable[Batch]) -> Float[np.ndarray, "L N_experts"]:
    """The share of tokens that choose each expert of a decoder that has some; a layer's add up to k."""
    routed = record(d_hidden_state, "G")

    @jax.jit
    def counted(theta, batch):
        within = in_sequence()(batch)
        _, seen = routed(batch["x"], theta, segments=batch.get("segment_ids"))
        return jnp.einsum("lnbt,bt->ln", seen["G"] > 0, within), within.sum()

    chosen, tokens = zip(*(jax.device_get(counted(theta, batch)) for batch in batches), strict=True)
    return np.sum(chosen, axis=0) / np.sum(tokens)
