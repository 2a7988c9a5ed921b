"""What heads do with any text: scores on repeated random tokens, and circuits from the parameters alone."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from algorithms import MHAttentionParams, d_hidden_state, e_encoding
from algorithms.inside import record
from training.interpretability import circuits, scores
from training.interpretability.page.look import Circuits
from training.runs.directory import Run

SEQUENCES, REPEATED = 4, 32
MOST_HEADS = 600  # whose pairs fit in a page


def circuits_of(run: Run) -> Circuits | str:
    """Return the scores of all heads and the composition of all pairs, or a sentence that says why there are none."""
    if run.task == "ed":
        return "Head scores are shown for decoders and encoders; an encoder-decoder has three kinds of heads."
    n = min(REPEATED, run.config.l_max // 2)
    if n < 2:
        return f"Head scores need a context of at least 4 tokens; the model reads {run.config.l_max}."
    theta: Any = run.theta.encoder if run.task == "classify" else run.theta
    x = jnp.asarray(repeated_tokens(run, n))
    f: Any = d_hidden_state if run.task == "d" else e_encoding
    A = record(f, "A")(x, theta)[1]["A"]
    found = {
        "previous token": scores.previous_token_scores(A),
        "duplicate token": scores.duplicate_token_scores(A, x),
        "induction": scores.induction_scores(A, x),
    }
    W = theta.variant.of_every_layer(theta.layers.attention)
    if run.task == "d" and isinstance(W, MHAttentionParams):
        found["copying"] = circuits.copying_scores(theta)
    composition, note = _composition(W)
    return Circuits({name: np.asarray(a, np.float32) for name, a in found.items()}, composition, note)


def repeated_tokens(run: Run, n: int) -> np.ndarray:
    """Return sequences of n random tokens, none of them special, each repeated once."""
    special = set(run.tokenizer.special_tokens)
    usual = np.array([v for v in range(run.config.N_V) if v not in special])
    return np.tile(np.random.default_rng(0).choice(usual, (SEQUENCES, n)), 2)


def _composition(W: Any) -> tuple[dict[str, np.ndarray], str]:
    if not isinstance(W, MHAttentionParams):
        return {}, f"Copying and composition are omitted: the attention has parameters of its own, {type(W).__name__}."
    L, H = W.heads.W_q.shape[:2]
    if L < 2:
        return {}, "A model with one layer has no heads that compose."
    if L * H > MOST_HEADS:
        return {}, f"Composition is omitted: {L * H:,} heads have more pairs than fit in a page."
    try:
        found = circuits.composition_scores(W)
    except ValueError as error:
        return {}, f"Composition is omitted: the attention scores of this model are not bilinear ({error})."
    return {name: np.asarray(a, np.float32) for name, a in found.items()}, ""
