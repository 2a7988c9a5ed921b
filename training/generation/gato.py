"""Gato beyond text: it names images, and draws what a text describes.

    Gato(load_run(directory)).drawings(["seven", "two"], n=64, levels=17)   # [2, 64] integers

This is Algorithm 14 with embeddings as input. Each predicted token must be of the modality of the answer, so the
probabilities of all other tokens are left out, as for a nucleus.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int, Key

from algorithms import DTransformerConfig
from training.data.gato.sequences import Columns, Vocabulary
from training.data.records import DataError
from training.runs.directory import Run
from training.tasks.gato import hidden_state
from training.tasks.gato_embedding import GatoParams
from training.tasks.objectives import Batch

LONGEST_NAME = 16  # tokens


def of_text(run: Run) -> Run:
    """Return a run of the task d: the text decoder in a run of gato, without values and images."""
    theta, config, N_V = run.theta.transformer, run.config, run.tokenizer.N_V
    W_u, b_u = (None if array is None else array[:N_V] for array in (theta.W_u, theta.b_u))
    sizes: dict[str, Any] = {f.name: getattr(config, f.name) for f in dataclasses.fields(DTransformerConfig)}
    sizes["N_V"] = N_V
    theta = theta._replace(W_e=theta.W_e[:, :N_V], W_u=W_u, b_u=b_u)
    return run._replace(theta=theta, config=DTransformerConfig(**sizes), task="d")


class Gato:
    """A trained model of several modalities."""

    def __init__(self, run: Run) -> None:
        """Use a run, or raise DataError if it is of another task."""
        if run.task != "gato":
            raise DataError(f"expected a run of the task gato, got one of the task {run.task}")
        self._params, self.config = run.theta, run.config
        self.vocabulary = Vocabulary(run.tokenizer, run.config)

    def names(self, images: Sequence[np.ndarray]) -> list[str]:
        """Return the greedily decoded text after each image, [height, width, channels] from −1 to 1."""
        tokenizer, eos = self.vocabulary.tokenizer, self.vocabulary.tokenizer.eos_token
        asked = [*map(self.vocabulary.named, images)]
        tokens = self._continued(asked, LONGEST_NAME, (0, tokenizer.N_V), ends=eos)
        return [tokenizer.decode(row[: [*row, eos].index(eos)]) for row in tokens.tolist()]

    def drawings(
        self, texts: Sequence[str], *, n: int, levels: int, tau: float = 1.0, key: Key[Array, ""] | None = None
    ) -> Int[np.ndarray, "texts n"]:
        """Return what the model draws for each text: n integers below `levels`, greedily for τ = 0."""
        first = self.vocabulary.first
        asked = [*map(self.vocabulary.drawn, texts)]
        return self._continued(asked, n, (first, first + levels), tau=tau, key=key) - first

    def _continued(self, asked: Sequence[Columns], n: int, allowed, *, tau=0.0, key: Any = None, ends=None):
        """Return the next n tokens of each sequence, all from `range(*allowed)`; those after `ends` are meaningless."""
        lengths = np.array([len(columns.x) for columns in asked])
        needed = int(lengths.max()) + n - 1
        if needed > self.config.l_max:
            raise DataError(
                f"the sequence needs {needed} columns, but the model reads at most l_max = {self.config.l_max}: "
                "shorten it"
            )
        width, most = min(self.config.l_max, -(-needed // 16) * 16), max(1, *(len(columns.places) for columns in asked))
        batch = self.vocabulary.batch([[columns] for columns in asked], width, most)
        batch["segment_ids"] = np.ones_like(batch["x"])
        found = np.zeros((len(asked), n), np.int64)
        for i in range(n):
            of_step = None if tau == 0 else jax.random.fold_in(key, i)
            tokens = np.asarray(_next(self._params, batch, lengths - 1 + i, of_step, allowed=allowed, tau=tau))
            found[:, i] = tokens
            if i + 1 < n:
                batch["x"][np.arange(len(asked)), lengths + i] = tokens
            if ends is not None and (found[:, : i + 1] == ends).any(axis=1).all():
                break
        return found


@functools.partial(jax.jit, static_argnames=("allowed", "tau"))
def _next(
    params: GatoParams, batch: Batch, column: Int[Array, "B"], key: Any, *, allowed: tuple[int, int], tau: float
) -> Int[Array, "B"]:
    """Return the token that follows the given column of each row."""
    X = hidden_state(params, batch)
    last = jnp.take_along_axis(X, column[None, :, None], axis=-1)
    first, end = allowed
    theta = params.transformer
    logits = theta.variant.unembedding.logits(last, theta)[first:end, :, 0].astype(jnp.float32)
    if tau == 0:
        return first + jnp.argmax(logits, axis=0)
    return first + jax.random.categorical(key, logits / tau, axis=0)
