"""Algorithm 7: unembedding."""

from jax import Array
from jaxtyping import Float

from algorithms.machinery.arrays import AnyArray
from algorithms.machinery.contract import algorithm
from algorithms.notation import Cap
from algorithms.ops.linear import logits
from algorithms.ops.softmax import capped, softmax


@algorithm(7, "Unembedding")
def unembedding(
    e: Float[AnyArray, "d_e *batch"],
    W_u: Float[AnyArray, "N_V d_e"],
    *,
    b_u: Float[AnyArray, "N_V"] | None = None,
    cap: Cap = None,
) -> Float[Array, "N_V *batch"]:
    """Algorithm 7: p ← softmax(W_u e). Turns a token's representation into a distribution over the vocabulary.

    Not in the paper: an output bias b_u, p ← softmax(W_u e + b_u), as in BERT; and a ``cap``, as in Gemma.
    Departures: none (subtracting the largest logit before the exponential changes no value). For bfloat16 and float16
    arrays, probabilities are float32, so that few of them are equal.

    Example:
        >>> unembedding(jnp.array([1.0]), jnp.zeros((4, 1))).tolist()
        [0.25, 0.25, 0.25, 0.25]
    """
    p = softmax(capped(logits(e, W_u, b_u), cap))  # line 1
    return p
