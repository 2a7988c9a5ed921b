"""Find what makes the answers to two prompts differ, by putting values of one run into the other."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from algorithms import d_hidden_state, e_hidden_state
from training.generation.text import MASK
from training.interpretability import patching
from training.interpretability.page.look import Patched
from training.interpretability.page.words import readable, readable_tokens, token_text
from training.runs.directory import Run

MOST_OPERATIONS = 1e13  # floating-point operations for patching each layer, head and token in a separate run


def patched(run: Run, x: np.ndarray, other: np.ndarray) -> Patched | str:
    """Patch values of x into the run of the other prompt: the residual stream by layer and token, and each head."""
    if run.task == "e" and run.config.variant.head:
        mask = run.tokenizer.mask_token
        both = (x == mask) & (other == mask)
        if not both.any():
            return f"Patching measures what an encoder predicts for a {MASK}; both prompts need one at the same token."
        column = int(np.argmax(both))
    elif run.task == "d":
        column = len(x) - 1
    else:
        return "Patching is shown for decoders, and for encoders that predict tokens."
    logits = _logits_at(run, column)
    answer, alternative = (int(logits(tokens, run.theta).argmax()) for tokens in (x, other))

    def score(x, theta):
        log_p = jax.nn.log_softmax(logits(x, theta))
        return log_p[answer] - (0 if answer == alternative else log_p[alternative])

    ends = float(score(x, run.theta)), float(score(other, run.theta))
    if abs(ends[0] - ends[1]) < 1e-6:
        return "The model gives both prompts the same answer with the same probability, so there is nothing to restore."
    config = run.config
    n = config.shared_layers * sum(leaf.size for leaf in jax.tree.leaves(run.theta.layers))
    is_estimate = 2.0 * n * len(x) * (config.L * len(x) + config.L * config.H) > MOST_OPERATIONS
    source, target = (jnp.asarray(x), run.theta), (jnp.asarray(other), run.theta)
    if is_estimate:
        of_tokens = ends[1] + patching.attribution_patching(score, "X@8", source, target).sum(1)
        of_heads = ends[1] + patching.attribution_patching(score, "Y@2", source, target).sum((2, 3))
    else:
        of_tokens = patching.activation_patching(score, "X@8", source, target)
        of_heads = patching.activation_patching(score, "Y@2", source, target, by="head")
    of_tokens, of_heads = ((np.asarray(found) - ends[1]) / (ends[0] - ends[1]) for found in (of_tokens, of_heads))
    words = [f"“{readable(token_text(run.tokenizer, token))}”" for token in (answer, alternative)]
    said = f"log P({words[0]})" + f" − log P({words[1]})" * (answer != alternative)
    return Patched(readable_tokens(run.tokenizer, other), of_tokens, of_heads, said, ends, is_estimate)


def _logits_at(run: Run, column: int) -> Callable[[Any, Any], jax.Array]:
    f = d_hidden_state if run.task == "d" else e_hidden_state

    def logits(x, theta):
        X = f(x, theta)[:, column : column + 1]
        return theta.variant.unembedding.logits(X, theta)[:, 0].astype(jnp.float32)

    return logits
