"""Low-rank parameters beside frozen ones, ``W + s·B A`` (LoRA; Hu et al. 2021): a pytree of their own.

    adapter = init_adapter(key, theta, rank=8)
    theta = merged(theta, adapter, scale)

An adapter looks like θ, with a `LowRank` in place of each matrix that it changes, and None in place of everything else.
Only it is trained; as B is 0 at first, the training begins with what θ computes.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Key

from training.settings import Settings, SettingsError


class LowRank(NamedTuple):
    """What is added to a matrix of every layer, but for the factor s: B A, with the rows of all heads in one matrix."""

    A: Float[Array, "L r d_in"]
    B: Float[Array, "L d_out r"]


def scale_of(settings: Settings) -> float:
    """Return s, which is alpha/r."""
    return settings.lora_alpha / settings.lora_rank


def matrices_of(theta: Any) -> dict[Any, Any]:
    """Return the matrices that an adapter can change, those of the layers, by their paths in θ or in its shapes."""
    leaves = jax.tree_util.tree_leaves_with_path(theta)
    return {path: leaf for path, leaf in leaves if path[0].name == "layers" and path[-1].name.startswith("W_")}


def sides(W: Any) -> tuple[int, int]:
    """Return d_out and d_in of a matrix that is stacked over layers, and over heads, whose rows follow one another."""
    rows = 1
    for n in W.shape[1:-1]:
        rows *= n
    return rows, W.shape[-1]


def init_adapter(key: Key[Array, ""], theta: Any, *, rank: int, matrices: tuple[str, ...] = ()) -> Any:
    """Return an adapter of θ, or of its shapes, that changes nothing yet: B is 0, and A is uniform up to ±1/√d_in. It
    is for these matrices; with none named, for all of the layers'. Raises SettingsError if there is no such matrix, or
    none of so high a rank.
    """
    found = matrices_of(theta)
    names = dict.fromkeys(path[-1].name for path in found)
    for name in matrices:
        if name not in names:
            raise SettingsError(f"--lora-matrices: expected some of {', '.join(names)}, got {name!r}")
    chosen = {path: W for path, W in found.items() if not matrices or path[-1].name in matrices}
    for path, W in chosen.items():
        if rank > min(sides(W)):
            raise SettingsError(f"--lora-rank: expected at most {min(sides(W))}, as {path[-1].name} has, got {rank}")
    keys = {path: jax.random.fold_in(key, i) for i, path in enumerate(chosen)}

    def of_leaf(path, W):
        if path not in chosen:
            return None
        L, (d_out, d_in) = W.shape[0], sides(W)
        A = jax.random.uniform(keys[path], (L, rank, d_in), jnp.float32, -1.0, 1.0) * d_in**-0.5
        return LowRank(A, jnp.zeros((L, d_out, rank), jnp.float32))

    return jax.tree_util.tree_map_with_path(of_leaf, theta)


def adapter_shapes(theta: Any, settings: Settings) -> Any:
    """Return the shapes of the adapter of θ, or of its shapes, that a run trains. Raises SettingsError as
    `init_adapter`.
    """
    options = {"rank": settings.lora_rank, "matrices": settings.lora_matrices}
    return jax.eval_shape(lambda theta: init_adapter(jax.random.key(0), theta, **options), theta)


def low_rank_of(adapter: Any) -> dict[Any, LowRank]:
    """Return the parts of an adapter by the paths of their matrices in θ."""
    return dict(jax.tree_util.tree_leaves_with_path(adapter, is_leaf=lambda node: isinstance(node, LowRank)))


def merged(theta: Any, adapter: Any, scale: float) -> Any:
    """Return θ with ``W + s·B A`` in place of every W that the adapter changes, in its own dtype."""
    parts = low_rank_of(adapter)

    def of_leaf(path, W):
        if path not in parts:
            return W
        A, B = parts[path]
        dtype = jnp.promote_types(W.dtype, A.dtype)
        return (W.astype(dtype) + (scale * (B @ A)).reshape(W.shape).astype(dtype)).astype(W.dtype)

    return jax.tree_util.tree_map_with_path(of_leaf, theta)
