"""Low-rank adapters of frozen parameters, ``W + s·B A`` (LoRA; Hu et al. 2021).

An adapter is a pytree like θ, with a `LowRank` in place of each adapted matrix and None in place of everything else.
Only the adapter is trained; since B starts at 0, the initial model is θ.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Key

from algorithms.machinery.contract import arrays_of
from algorithms.roles import roles_of
from training.settings import Settings, SettingsError


class LowRank(NamedTuple):
    """The update B A (without s) of a matrix of every layer; the rows of all heads are joined into one matrix."""

    A: Float[Array, "L r d_in"]
    B: Float[Array, "L d_out r"]

    def __declared__(self) -> "LowRank":
        return arrays_of(LowRank, A="matrix", B="matrix")


def scale_of(settings: Settings) -> float:
    """Return s, which is alpha/r."""
    return settings.lora_alpha / settings.lora_rank


def matrices_of(theta: Any) -> dict[Any, Any]:
    """Return the matrices that can be adapted, those of the layers, by their paths in θ (or its shapes)."""
    leaves, roles = jax.tree_util.tree_leaves_with_path(theta), jax.tree.leaves(roles_of(theta))
    of_leaves = zip(leaves, roles, strict=True)
    return {path: leaf for (path, leaf), role in of_leaves if path[0].name == "layers" and role == "matrix"}


def sides(W: Any) -> tuple[int, int]:
    """Return d_out and d_in of a matrix that is stacked over layers, and perhaps over heads, whose rows are joined."""
    return math.prod(W.shape[1:-1]), W.shape[-1]


def init_adapter(key: Key[Array, ""], theta: Any, *, rank: int, matrices: tuple[str, ...] = ()) -> Any:
    """Return an adapter, B = 0 and A uniform in ±1/√d_in, of the named matrices of θ (or its shapes), or of all the
    layers' if none are named. Raises SettingsError if a matrix does not exist or its rank is too small.
    """
    found = matrices_of(theta)
    names = dict.fromkeys(path[-1].name for path in found)
    for name in matrices:
        if name not in names:
            raise SettingsError(f"--lora-matrices: expected some of {', '.join(names)}, got {name!r}")
    chosen = {path: W for path, W in found.items() if not matrices or path[-1].name in matrices}
    for path, W in chosen.items():
        if rank > min(sides(W)):
            raise SettingsError(f"--lora-rank: expected at most {min(sides(W))}, that of {path[-1].name}, got {rank}")
    keys = {path: jax.random.fold_in(key, i) for i, path in enumerate(chosen)}

    def of_leaf(path, W):
        if path not in chosen:
            return None
        L, (d_out, d_in) = W.shape[0], sides(W)
        A = jax.random.uniform(keys[path], (L, rank, d_in), jnp.float32, -1.0, 1.0) * d_in**-0.5
        return LowRank(A, jnp.zeros((L, d_out, rank), jnp.float32))

    return jax.tree_util.tree_map_with_path(of_leaf, theta)


def adapter_shapes(theta: Any, settings: Settings) -> Any:
    """Return the shapes of the adapter of θ (or its shapes) that a run trains; raises what `init_adapter` does."""
    options = {"rank": settings.lora_rank, "matrices": settings.lora_matrices}
    return jax.eval_shape(lambda theta: init_adapter(jax.random.key(0), theta, **options), theta)


def low_rank_of(adapter: Any) -> dict[Any, LowRank]:
    """Return the parts of an adapter by the paths of their matrices in θ."""
    return dict(jax.tree_util.tree_leaves_with_path(adapter, is_leaf=lambda node: isinstance(node, LowRank)))


def merged(theta: Any, adapter: Any, scale: float) -> Any:
    """Return θ with ``W + s·B A`` in place of every adapted W, in W's dtype."""
    parts = low_rank_of(adapter)

    def of_leaf(path, W):
        if path not in parts:
            return W
        A, B = parts[path]
        dtype = jnp.promote_types(W.dtype, A.dtype)
        return (W.astype(dtype) + (scale * (B @ A)).reshape(W.shape).astype(dtype)).astype(W.dtype)

    return jax.tree_util.tree_map_with_path(of_leaf, theta)
