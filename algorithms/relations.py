"""Relations between arguments: what may not go together, although each argument is right by itself.

A relation is checked in every public function that has arguments of its names, or in those that it names.
"""

from typing import Any

import jax.numpy as jnp

from algorithms.machinery.contract import relation
from algorithms.model.columnwise import mixed


@relation()
def dropout_needs_a_key(dropout: float, key: Any) -> None:
    """Dropout draws, and every draw is from a key."""
    if dropout and key is None:
        raise ValueError(f"key: dropout = {dropout} needs one; give key=jax.random.key(seed), or dropout=0.0")


@relation()
def dropout_draws_for_each_sequence(z: Any, x: Any, dropout: float) -> None:
    """A context for all sequences would need a draw for each of them."""
    if dropout and z.ndim != x.ndim:
        raise ValueError(
            "z: expected one context per sequence of x, since dropout draws separately for each, got one for all"
        )


@relation()
def a_tied_unembedding_reads_rows_of_embeddings(theta: Any) -> None:
    """W_u = W_eᵀ multiplies the d_f rows of Algorithm 9."""
    if theta.W_u is None and getattr(theta, "W_f", None) is not None and theta.W_f.shape[0] != theta.W_e.shape[0]:
        (d_in, _), d_f = theta.W_e.shape, theta.W_f.shape[0]
        rows = "d_e" if theta.W_in is None else "d_in"
        raise ValueError(f"theta.W_u: a tied unembedding needs d_f = {rows} = {d_in}, got d_f = {d_f}; give W_u")


@relation(
    "ed_transformer",
    "ed_logits",
    "ed_hidden_state",
    "ed_encoding",
    "ed_decoding",
    "ed_token_losses",
    "ed_training",
    "ed_inference",
)
def line_16_of_algorithm_8_attends_to_another_sequence(theta: Any) -> None:
    """Positions that queries and keys share make no sense there."""
    if not all(line.positions is None or line.positions.in_context for line in theta.variant.attentions):
        raise ValueError(
            "variant.attention: expected positions of None, Distances or ALiBi in Algorithm 8, since the queries and "
            "keys of its line 16 belong to different sequences"
        )


@relation("e_transformer", "e_logits", "e_hidden_state", "e_token_losses", "e_training", "e_inference")
def lines_10_and_11_of_algorithm_9_have_parameters(theta: Any) -> None:
    """A bare encoder ends with line 9."""
    if theta.W_f is None and theta.variant.head != "unembedding":
        raise ValueError("theta.W_f: expected parameters of lines 10 and 11, got a bare encoder's; call e_encoding")


@relation("e_transformer", "e_logits", "e_hidden_state", "e_encoding", "e_token_losses")
def columns_have_the_rows_of_embeddings(x: Any, theta: Any) -> None:
    """Columns stand for those of W_e, which have d_in rows where W_in projects them."""
    rows = theta.W_e.shape[0]
    if jnp.issubdtype(x.dtype, jnp.floating) and x.shape[0] != rows:
        raise ValueError(
            f"x: expected token IDs, or columns of embeddings with the {rows} rows of theta.W_e, got {list(x.shape)}"
        )


@relation("d_token_losses", "ed_token_losses")
def columns_need_targets(x: Any, targets: Any) -> None:
    """Embeddings do not say which token follows."""
    if targets is None and jnp.issubdtype(x.dtype, jnp.floating):
        raise ValueError(
            "targets: expected the ID of the token to predict for each column, since x are embeddings, got None"
        )


@relation()
def documents_of_a_context_are_those_of_the_sequence(segments: Any, z_segments: Any) -> None:
    """Line 16 of Algorithm 8 compares their numbers."""
    if (segments is None) != (z_segments is None):
        raise ValueError("segments: expected to be given with z_segments, or without, got one of them; give both")


@relation("e_token_losses")
def masked_tokens_are_predicted_or_targets(x_tilde: Any, targets: Any, x: Any) -> None:
    """x̃ says which tokens of x to predict; targets what to predict from x."""
    if (x_tilde is None) == (targets is None) or (targets is None and jnp.issubdtype(x.dtype, jnp.floating)):
        raise ValueError("x_tilde: expected x with masked tokens, or else targets, got neither or both; give one")


@relation()
def types_are_embedded(types: Any, theta: Any) -> None:
    """Token types need W_t."""
    if types is not None and theta.W_t is None:
        raise ValueError("types: expected None, since theta.W_t is None: these parameters have no token types")


@relation()
def distances_are_within_documents(positions: Any, segments: Any, theta: Any) -> None:
    """Scores by distance count columns: with positions of documents, tokens must not see other documents."""
    by_distance = any(line.positions is not None and line.positions.by_distance for line in theta.variant.attentions)
    if by_distance and positions is not None and segments is None:
        raise ValueError(
            "positions: expected None without segments, since the variant's scores depend on the distance of columns, "
            "got an array; give segments, too"
        )


@relation()
def lines_keep_documents_apart(segments: Any, theta: Any) -> None:
    """Only the mask of attention knows where a document ends."""
    found = None if segments is None else mixed(theta, in_documents=True)
    if found is not None:
        raise ValueError(
            f"segments: expected None, since {found.name} mixes columns, also those of different documents, got an "
            "array; give each document a sequence of its own (train.py --rows chunks)"
        )


@relation()
def the_sequence_fits_positions(x: Any, theta: Any, *, name: str = "x") -> None:
    """The first columns of W_p may be unused."""
    longest, l = theta.variant.embedding.limit(theta), x.shape[-1]
    if longest is not None and isinstance(l, int) and l > longest:
        raise ValueError(
            f"{name}: expected at most l_max = {longest} tokens, got {l}; cut it into chunks, or make the parameters "
            "with a larger l_max"
        )


@relation()
def the_context_fits_positions(z: Any, theta: Any) -> None:
    """The context of Algorithm 8, too."""
    the_sequence_fits_positions(z, theta, name="z")


@relation()
def positions_are_left_for_what_is_generated(x: Any, l_gen: int, theta: Any) -> None:
    """Algorithm 14 reads the prompt and all generated tokens but the last."""
    l, l_max = x.shape[-1], theta.variant.embedding.limit(theta)
    if l_max is not None and l + l_gen - 1 > l_max:
        raise ValueError(
            f"l_gen: a prompt of {l} tokens and {l_gen} more need l_max >= {l + l_gen - 1}, got l_max = {l_max}; "
            f"shorten the prompt, or generate at most {l_max - l + 1} tokens"
        )


@relation()
def something_limits_the_output(l_max: int | None, theta: Any) -> None:
    """Algorithm 15 stops at l_max tokens."""
    limit = theta.variant.embedding.limit(theta)
    if l_max is None and limit is None:
        raise ValueError("l_max: expected the longest output in tokens, since these parameters set no limit, got None")
    if l_max is not None and limit is not None and l_max > limit:
        raise ValueError(f"l_max: expected at most {limit}, the l_max of the parameters, got {l_max}")


@relation()
def tokens_have_rows(N_V: int | None, W_u: Any) -> None:
    """The last rows of W_u may be padding."""
    if N_V is not None and W_u.shape[0] < N_V:
        rows = W_u.shape[0]
        raise ValueError(f"N_V: expected at most {rows} tokens, the rows of W_u, got {N_V}; give N_V=None for all rows")
