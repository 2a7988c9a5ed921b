"""Evaluation of Gato: on held-out text, and on digits that it names and draws.

Naming and drawing are Algorithm 14 with embeddings as input. Each predicted token must be of the modality of the
answer, so the probabilities of all other tokens are left out, as for a nucleus.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int

from training.data.batches import Batches, NextTokens
from training.data.gato import NAMES, SHADES, SIDE, Columns, Digits, Vocabulary
from training.data.loading import RunData
from training.evaluation.held_out import evaluate_run
from training.generation.gato import of_text
from training.runs.directory import Description, Run
from training.tasks.gato import hidden_state
from training.tasks.gato_embedding import GatoParams
from training.tasks.objectives import Batch

DRAWN, TAU = 5, 0.5  # drawings of each digit, and their temperature
AT_ONCE = 120  # images in a batch
LONGEST_NAME = 16  # tokens
INK = " .:*#"  # of shades, from white to black


def figures(
    run: Run, description: Description, data: RunData, part: str
) -> tuple[dict[str, dict[str, float]], list[str]]:
    """Return figures by method, this model first, and a drawing of each digit."""
    from sklearn.linear_model import LogisticRegression  # as slow to import as to fit

    train, held_out = Digits.of("train"), Digits.of("validation")
    simple = LogisticRegression(max_iter=2000).fit(train.shades.reshape(len(train.labels), -1) / 16, train.labels)
    pixels = held_out.pixels
    named = [name for i in range(0, len(pixels), AT_ONCE) for name in names(run, pixels[i : i + AT_ONCE])]
    drawn = drawings(run, [name for name in NAMES for _ in range(DRAWN)], n=SIDE**2, tau=TAU)
    recognized = simple.predict(drawn / 16).reshape(10, -1) == np.arange(10)[:, None]
    theirs = float(simple.score(held_out.shades.reshape(len(pixels), -1) / 16, held_out.labels))
    accuracy = float(np.mean([a == b for a, b in zip(named, held_out.names, strict=True)]))
    of_digits = {"accuracy": accuracy, "recognized": float(recognized.mean())}
    settings = description.settings
    texts = NextTokens(getattr(data.stores, part), l_max=settings.l_max, mode="packed")
    found = evaluate_run(of_text(run), settings, Batches(texts, batch_size=settings.batch_size, seed=settings.seed))
    name = "bits_per_byte" if "bits_per_byte" in found else "loss"  # if the tokens do not decode to the exact text
    rows = {"this model": {name: found[name]} | of_digits, "logistic regression": {"accuracy": theirs}}
    ink = np.array(list(INK))[drawn[::DRAWN].reshape(10, SIDE, SIDE) * len(INK) // SHADES]
    lines = ["  ".join("".join(drawing[row]) for drawing in ink).rstrip() for row in range(SIDE)]
    return rows, ["drawings of zero to nine:\n" + "\n".join(lines)]


def names(run: Run, images: np.ndarray) -> list[str]:
    """Return the greedily decoded text after each image, [n, 8, 8, 1] from −1 to 1."""
    tokenizer, eos = run.tokenizer, run.tokenizer.eos_token
    asked = [*map(Vocabulary(tokenizer, run.config).named, images)]
    tokens = _continued(run, asked, LONGEST_NAME, (0, tokenizer.N_V), ends=eos)
    return [tokenizer.decode(row[: [*row, eos].index(eos)]) for row in tokens.tolist()]


def drawings(run: Run, texts: Sequence[str], *, n: int, tau: float) -> Int[np.ndarray, "texts n"]:
    """Return what the model draws for each text: n shades, greedily for τ = 0."""
    first, asked = run.tokenizer.N_V, [*map(Vocabulary(run.tokenizer, run.config).drawn, texts)]
    return _continued(run, asked, n, (first, first + SHADES), tau=tau) - first


def _continued(
    run: Run, asked: Sequence[Columns], n: int, allowed: tuple[int, int], *, tau: float = 0.0, ends: int | None = None
) -> np.ndarray:
    """Return the next n tokens of each sequence, or as many as fit, from `range(*allowed)`; none count after `ends`."""
    lengths, l_max, key = np.array([len(columns.x) for columns in asked]), run.config.l_max, jax.random.key(0)
    longest, most = int(lengths.max()), max(1, *(len(columns.patches) for columns in asked))
    n = min(n, l_max + 1 - longest)
    width = min(l_max, -(-(longest + n - 1) // 16) * 16)
    batch = Vocabulary(run.tokenizer, run.config).batch([[columns] for columns in asked], width, most)
    batch["segment_ids"] = np.ones_like(batch["x"])
    found = np.zeros((len(asked), n), np.int64)
    for i in range(n):
        tokens = _next(run.theta, batch, lengths - 1 + i, jax.random.fold_in(key, i), allowed=allowed, tau=tau)
        found[:, i] = np.asarray(tokens)
        if i + 1 < n:
            batch["x"][np.arange(len(asked)), lengths + i] = found[:, i]
        if (found[:, : i + 1] == ends).any(axis=1).all():
            break
    return found


@functools.partial(jax.jit, static_argnames=("allowed", "tau"))
def _next(
    params: GatoParams, batch: Batch, column: Int[Array, "B"], key: Any, *, allowed: tuple[int, int], tau: float
) -> Int[Array, "B"]:
    """Return the token that follows the given column of each row."""
    last = jnp.take_along_axis(hidden_state(params, batch), column[None, :, None], axis=-1)
    theta, (first, end) = params.transformer, allowed
    logits = theta.variant.unembedding.logits(last, theta)[first:end, :, 0].astype(jnp.float32)
    return first + (jnp.argmax(logits, axis=0) if tau == 0 else jax.random.categorical(key, logits / tau, axis=0))
