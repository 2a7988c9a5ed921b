"""The orders of a layer's lines in published models, in place of those that Algorithms 8, 9 and 10 print.

A layer without norms is the printed one, since f.layer_norm is the identity if θ has no norm.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from algorithms.machinery.naming import numbered
from algorithms.ops.activation import gelu


class NormFirst(NamedTuple):
    """The parameters of an attention or MLP, and the norm that its input gets."""

    norm: Any
    W: Any


def norms_first(W: Any) -> Any:
    """A layer of Algorithm 8 or 9 with each norm moved from behind an attention or MLP to its input."""
    parts = [name for name in W._fields if name != "end"]
    pairs = zip(parts[::2], parts[1::2], strict=True)
    moved = {name: NormFirst(getattr(W, norm), getattr(W, name)) for name, norm in pairs}
    return W._replace(**moved, **dict.fromkeys(parts[1::2]))


@numbered
def _norm_last(X, W, f, mask):
    """Lines 5 to 8 of Algorithm 10 with the norms behind the sums, as in Algorithm 9."""
    X_tilde = X  # line 5, without its norm
    X = X + f.mh_attention(X_tilde, W.attention, mask)  # line 6
    X = f.layer_norm(X, W.norm1)
    X_tilde = X  # line 7, without its norm
    X = X + f.mlp(X_tilde, W.mlp, gelu)  # line 8
    X = f.layer_norm(X, W.norm2)
    return X


@numbered
def _side_by_side(X, W, f, mask):
    """Lines 5 to 8 of Algorithm 10 with attention and MLP in parallel: both read the layer's input.

    Without a norm of its own, the MLP reads what the attention does.
    """
    X_tilde = f.layer_norm(X, W.norm1)  # line 5
    Y = f.mh_attention(X_tilde, W.attention, mask)  # line 6, without its sum
    X_tilde = X_tilde if W.norm2 is None else f.layer_norm(X, W.norm2)  # line 7
    X = X + Y + f.mlp(X_tilde, W.mlp, gelu)  # line 8
    return X


BODIES = {"norm_last": _norm_last, "side_by_side": _side_by_side, "one_norm": _side_by_side}


def in_order(order: str, layer: Callable[..., Any]) -> Callable[..., Any]:
    """A layer as printed, with its lines in another order than the algorithm's own."""
    if order == "norm_first":
        return lambda X, W, *reads: layer(X, norms_first(W), *reads)
    return BODIES[order]
