"""Scores that depend on the distance between two tokens, added to the scores of their contents.

``S[t_z, t_x] += P[:, k]ᵀ U[:, t_x]`` with ``k = t_z − t_x + l_x − 1``: P ``[d_r, l_z + l_x]`` has a column for each
distance (and a spare one at the end), U ``[d_r, l_x]`` one for each query. This is a product whose rows are shifted by
a reshape: nothing is gathered, and a block of the scores needs only a slice of P.
"""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from algorithms.machinery.arrays import accumulation_dtype


def gathered_by_distance(U: Float[Array, "d_r l_x"], P: Float[Array, "d_r n"], l_z: int) -> Float[Array, "l_z l_x"]:
    """The formula of `scores_by_distance` as it stands above."""
    l_x = U.shape[1]
    t_z, t_x = jnp.arange(l_z)[:, None], jnp.arange(l_x)[None]
    return jnp.matmul(P.T, U, preferred_element_type=accumulation_dtype(U.dtype))[t_z - t_x + l_x - 1, t_x]


def scores_by_distance(
    U: Float[Array, "d_r l_x"], P: Float[Array, "d_r n"], dtype: jnp.dtype
) -> Float[Array, "l_z l_x"]:
    """``S[t_z, t_x] = B[t_x, t_z − t_x + l_x − 1]`` with ``B = UᵀP``: each row of B begins one column earlier."""
    l_x, n = U.shape[1], P.shape[1]
    B = jnp.matmul(U.T, P, preferred_element_type=dtype)
    sheared = B.reshape(-1)[l_x - 1 : l_x * n - 1].reshape(l_x, n - 1)
    return sheared[:, : n - l_x].T


def scores_by_distance_backward(
    U: Float[Array, "d_r l_x"], P: Float[Array, "d_r n"], dS: Float[Array, "l_z l_x"]
) -> tuple[Float[Array, "d_r l_x"], Float[Array, "d_r n"]]:
    """With ``∂F/∂B[t_x, t_z − t_x + l_x − 1] = ∂F/∂S[t_z, t_x]``, and 0 elsewhere::

    ∂F/∂U = P (∂F/∂B)ᵀ
    ∂F/∂P = U ∂F/∂B
    """
    l_x, n = U.shape[1], P.shape[1]
    sheared = jnp.pad(dS.T, ((0, 0), (0, l_x - 1)))
    dB = jnp.pad(sheared.reshape(-1), (l_x - 1, 1)).reshape(l_x, n)
    dU = jnp.matmul(P, dB.T.astype(P.dtype), preferred_element_type=dS.dtype)
    dP = jnp.matmul(U, dB.astype(U.dtype), preferred_element_type=dS.dtype)
    return dU, dP
