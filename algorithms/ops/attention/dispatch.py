"""The lazy scores of line 4 of Algorithm 4, computed in the product with the values, and the dispatch to its kernel."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Key

from algorithms.machinery.arrays import accumulation_dtype, are_numbers, scaled
from algorithms.machinery.devices import platform_of, split_attention
from algorithms.machinery.naming import beside, for_each, shows
from algorithms.machinery.options import dropout_key, static
from algorithms.masks import BIDIRECTIONAL, Mask, StructuralMask, batch_axes, sequence_axes
from algorithms.ops.activation import capped, softmax
from algorithms.ops.attention import vendor
from algorithms.ops.attention.blockwise import blockwise_attention
from algorithms.ops.attention.strips import in_strips, strips_attention
from algorithms.ops.attention.tiles import SMALL, ByDistance, Scores, dense_attention, gathered_by_distance
from algorithms.ops.dropout import fold_in, keep_mask, seed_of

ATTENTION_RESIDUALS = ("V_tilde", "log_sum_exp", "A")
"""The ``checkpoint_name`` of each array that the rules and the Pallas kernel keep for their backward passes."""

RULES = {"dense": dense_attention, "blockwise": blockwise_attention, "strips": strips_attention}
"""Name of a hand-derived rule → the rule."""

LIBRARY_KERNELS = {
    "cudnn": (vendor.cudnn_attention, vendor.cudnn_refuses),
    "pallas": (vendor.pallas_attention, vendor.pallas_refuses),
}
"""Name of a library's kernel → the kernel, and the function that says why it is not available for these arguments."""

KERNEL_OF = {"gpu": "cudnn", "cuda": "cudnn", "tpu": "pallas"}
"""Platform → its library's kernel."""


class Weights(NamedTuple):
    """A replacement of the softmax: `Attention.weights` of a custom line."""

    of_head: Callable[..., Array]  # (S, own) → A, for one head of one sequence
    own: Any = None  # its second argument: arrays with an axis of heads in front, or None
    says: str = ""  # whose it is, for error messages
    sinks: Any = None  # sinks ``[H]``, if nothing else differs from the softmax; the rules support these
    sequences: Any = None  # for each array of ``own``, its first axis of sequences, or None; None: no array has one


@dataclasses.dataclass(frozen=True, eq=False)
class LazyScores:
    """``S = KᵀQ`` of every head and sequence, and the operations of the lines after it, computed in the product with V.

    ``V @ softmax(S / c)`` chooses the kernel, or computes the lines as printed. As an array, such as
    an observer records, it is ``[*heads, l_z, *batch, l_x]``.
    """

    K: Any  # keys, ``[*heads, d_attn, *batch, l_z]``; with fewer heads than Q, each serves several; or a cache of them
    Q: Any  # queries, ``[*heads, d_attn, *batch, l_x]``
    heads: bool = False  # whether axis 0 is the axis of heads
    mask: Any = BIDIRECTIONAL  # one for all heads; one for all sequences, or one for each
    divisor: Any = 1.0
    cap: float | None = None  # c, for scaled scores ``c tanh(S/c)``
    by_distance: ByDistance = ()  # U ``[*heads, d_r, *batch, l_x]`` and P ``[H, d_r, l_z + l_x]`` of scores by distance
    added: Any = None  # numbers added to the scores of a single query of each sequence, ``[H, *batch, l_z]``
    weights: Weights | None = None  # a replacement of the softmax
    chosen: Callable[[Mask], Mask] | None = None  # narrows the mask
    step: int = 0  # 0: KᵀQ, 1: masked, 2: the weights of the values
    factor: Any = 1.0  # of these weights
    names: tuple[Any, ...] = ()  # the observers of the values of the steps

    __array_ufunc__ = None  # so that V @ S is this class's also if V is NumPy's

    def where(self, mask: Mask) -> "LazyScores":
        """The scores, −∞ where the mask is False."""
        return dataclasses.replace(self, mask=mask if self.chosen is None else self.chosen(mask), step=1)

    def __truediv__(self, c: Any) -> "LazyScores":
        changed: Any = {"divisor": self.divisor * c} if self.step < 2 else {"factor": self.factor / c}
        return dataclasses.replace(self, **changed)

    def __rmul__(self, c: Any) -> "LazyScores":
        return self / (1 / c)

    def softmax(self) -> "LazyScores":
        """The attention weights, by the softmax or its replacement."""
        return dataclasses.replace(self, step=2)

    def named(self, name: Callable[[Array], Array]) -> "LazyScores":
        """The same, whose value is shown to an observer if it is computed."""
        return dataclasses.replace(self, names=(*self.names, (self.step, name)))

    def __rmatmul__(self, V: Any) -> Float[Array, "... l_x"]:
        attend = getattr(self.K, "attend", None)  # of a cache
        V_tilde = _product(self, V) if attend is None else attend(self)
        return V_tilde if isinstance(self.factor, float) and self.factor == 1 else V_tilde * self.factor

    @property
    def d_attn(self) -> int:
        """The number of rows of a query."""
        return self.Q.shape[int(self.heads)]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape ``[*heads, l_z, *batch, l_x]``."""
        heads = int(self.heads)
        return *self.Q.shape[:heads], self.K.shape[-1], *self.Q.shape[heads + 1 :]

    def divided_by_root(self) -> "LazyScores":
        """The same S/c as S/√d_attn, which kernels compute: with other queries, unless c is as printed."""
        root = math.sqrt(self.d_attn)
        if isinstance(self.divisor, float) and self.divisor == root:
            return self
        Q, *U = (scaled(a, root / self.divisor) for a in (self.Q, *self.by_distance[:1]))
        return dataclasses.replace(self, Q=Q, by_distance=(*U, *self.by_distance[1:]), divisor=root)

    def array(self, V: Any = None) -> Array:
        """The value of the last step that was taken, by the lines as printed; with values, their product with them."""
        K, Q, of = self.K, self.Q, Weights(lambda S, _: softmax(S)) if self.weights is None else self.weights
        if self.heads and len(K) < len(Q):
            K, V = (a if a is None else jnp.repeat(a, len(Q) // len(a), axis=0) for a in (K, V))
        of_own = jax.tree.map(lambda axis: axis - 1, of.sequences)  # without the axis of heads
        rate, d_attn = static.value.dropout, self.d_attn
        seeds = _seeds(dropout_key.get(), self) if rate and V is not None else None

        def score(K, Q):
            return jnp.matmul(K.T, Q, preferred_element_type=accumulation_dtype(Q.dtype))

        def masked(S, mask, by_distance, added):
            S = S + gathered_by_distance(*by_distance, l_z=len(S)) if by_distance else S
            S = S if added is None else S + added
            Mask = mask.dense(*S.shape) if isinstance(mask, StructuralMask) else mask
            return jnp.where(Mask, capped(S, self.cap, d_attn), -jnp.inf)

        def weigh(S, own):
            S = S / jnp.asarray(self.divisor).astype(S.dtype)
            return of.of_head(S, own) if S.ndim > 1 else of.of_head(S[:, None], own)[:, 0]

        def weighted(V, A, seed):
            if seed is not None:
                kept = keep_mask(seed, rate, *map(jnp.arange, A.shape))
                A = jnp.where(kept, A / (1 - rate), 0)
            return (V.astype(A.dtype) @ A).astype(V.dtype)

        S = self._shown(0, self._each(score, (K, 0, 1), (Q, 0, 1)))
        if self.step > 0:
            U_P = self.by_distance, 0, (1, None)[: len(self.by_distance)]
            of_mask = self.mask, None, 0 if Q.ndim < self.K.ndim else sequence_axes(self.mask)
            S = self._shown(1, self._each(masked, (S, 0, 0), of_mask, U_P, (self.added, 0, 0)))
        if self.step > 1:
            S = self._shown(2, self._each(weigh, (S, 0, 0), (of.own, 0, of_own)))
        if V is not None:
            return self._each(weighted, (V, 0, 1), (S, 0, 0), (seeds, 0, 0), to=1)
        return jnp.moveaxis(S, self.heads + self._n, int(self.heads))

    @property
    def _n(self) -> int:
        return self.K.ndim - 2 - self.heads

    def _each(self, f: Callable[..., Array], *of: Any, to: int = 0) -> Array:
        """A function of each head and sequence, of arrays with their axes of heads, and of sequences in one head's."""
        arrays, heads, sequences = zip(*of, strict=True)
        heads, sequences = (
            [None if a is None else i for a, i in zip(arrays, axes, strict=True)] for axes in (heads, sequences)
        )
        for _ in range(self._n):
            f = jax.vmap(f, sequences, to)
        with for_each(self._n + self.heads):
            return jax.vmap(f, heads)(*arrays) if self.heads else f(*arrays)

    def _shown(self, step: int, S: Array) -> Array:
        """The value of a step, ``[*heads, *batch, l_z, l_x]``, shown to the observers that ask for it."""
        for name in (name for at, name in self.names if at == step):
            first, rows = int(self.heads), self.heads + self._n
            S = jnp.moveaxis(name(jnp.moveaxis(S, rows, first)), first, rows)
        return S


def scores(K: Any, Q: Any, *, heads: bool = False, **options: Any) -> LazyScores:
    """``KᵀQ``, computed with the values; ``options`` are fields of `LazyScores`."""
    K = K if hasattr(K, "attend") else _with_batch(K, Q.shape[1 + heads : -1], 1 + heads)
    return LazyScores(K, Q, heads, **options)


def _product(s: LazyScores, V: Float[Array, "... l_z"]) -> Float[Array, "... l_x"]:
    """``V A``, of every head and sequence, by the chosen implementation.

    Of the dropout's keys, one for each sequence, head h draws with ``fold_in(key, h)``; without an axis of heads, the
    key is used.
    """
    heads, batch, implementation = s.heads, s.Q.shape[1 + s.heads : -1], static.value.implementation
    K, V = s.K, _with_batch(V, batch, 1 + heads)
    weights, sinks = s.weights, None if s.weights is None else s.weights.sinks
    if implementation == "paper" or shows("printed"):
        return s.array(V)
    if weights is not None and sinks is None and implementation == "auto":
        return s.array(V)
    if weights is not None and sinks is None:
        raise ValueError(f'implementation="{implementation}" is not available: {weights.says}; give "auto" or "paper"')
    if 0 in (*batch, s.Q.shape[-1], K.shape[-1]):
        return jnp.zeros_like(V, shape=(*V.shape[:-1], s.Q.shape[-1]))
    printed, s, mask = functools.partial(s.array, V), s.divided_by_root(), s.mask
    flat = functools.partial(_flat, heads=heads, batch=batch)
    Q, K, V, *U = map(flat, (s.Q, K, V, *s.by_distance[:1]))
    by_distance = (*U, *s.by_distance[1:])
    of_itself = isinstance(mask, StructuralMask) and mask.documents_x is mask.documents_z
    if len(batch) > 1:  # the batch axes of the mask's arrays, merged into one
        mask = jax.tree.map(lambda a, n: a.reshape(-1, *a.shape[n:]) if n else a, mask, batch_axes(mask))
    seeds = _seeds(dropout_key.get(), s) if static.value.dropout else None
    seeds = None if seeds is None else seeds.reshape(len(Q), -1, 2)
    tiles = Scores(mask, seeds, by_distance, sinks, static.value.dropout, s.cap)
    if implementation == "auto":
        name = automatic(Q, K, V, tiles, platform_of(Q))
    else:
        name = implementation
        _refuse(name, Q, K, V, tiles)

    def of_tiles(Q, K, V, tiles, first):
        if name in LIBRARY_KERNELS:
            return vendor.library_attention(LIBRARY_KERNELS[name][0], Q, K, V, tiles.mask, s.cap, of_itself)
        return RULES[name](Q, K, V, tiles if first is None else tiles.counted_from(first, K.shape[-1]))

    balanced = name == "blockwise" and isinstance(mask, StructuralMask) and mask.unidirectional and mask.width is None
    V_tilde = split_attention(of_tiles, (Q, K, V), tiles, tiles.axes, balanced)
    V_tilde = V_tilde.reshape(*(len(Q),) * heads, -1, *batch, V_tilde.shape[-1])
    return beside(V_tilde, printed)  # shows S and A to an observer


def automatic(Q: Array, K: Array, V: Array, scores: Scores, platform: str) -> str:
    """The meaning of ``"auto"`` for tiles ``[H, d, B, l]``: the first row of this table that applies.

    ``docs/performance.md`` has measurements.

    ========  ==============================================================  ===============
    platform  condition                                                       implementation
    ========  ==============================================================  ===============
    gpu       cuDNN supports the input                                        ``"cudnn"``
    tpu       the Pallas kernel supports the input                            ``"pallas"``
    any       a symbolic size, in ``jax.export``                              ``"dense"``
    cpu       more than 128 x 128 scores, which fit in a few strips           ``"strips"``
    any       at most 256 x 256 scores                                        ``"dense"``
    any       otherwise                                                       ``"blockwise"``
    ========  ==============================================================  ===============
    """
    if not are_numbers(*Q.shape, *K.shape):
        return "dense"
    library, (l_x, l_z) = KERNEL_OF.get(platform), (Q.shape[-1], K.shape[-1])
    if library is not None and _kernel_refuses(library, Q, K, V, scores, platform) is None:
        return library
    if platform == "cpu" and l_x * l_z > SMALL and in_strips(l_x, l_z, scores.mask):
        return "strips"
    return "dense" if l_x * l_z <= 256 * 256 else "blockwise"


def _kernel_refuses(name: str, Q: Array, K: Array, V: Array, scores: Scores, platform: str) -> str | None:
    if scores.sinks is not None:
        return "the kernel does not support sinks"
    if scores.by_distance:
        return "the kernel does not support ALiBi, T5 or Transformer-XL scores"
    return LIBRARY_KERNELS[name][1](Q, K, V, scores, platform)


def _refuse(name: str, Q: Array, K: Array, V: Array, scores: Scores) -> None:
    reason = None
    if name in LIBRARY_KERNELS:
        reason = _kernel_refuses(name, Q, K, V, scores, platform_of(Q))
    elif name in ("blockwise", "strips") and not are_numbers(*Q.shape, *K.shape):
        reason = f"it needs known sizes, and got symbolic ones: {Q.shape} and {K.shape}"
    if reason is not None:
        raise ValueError(f'implementation="{name}" is not available: {reason}; give implementation="auto"')


def _with_batch(a: Array, batch: tuple[int, ...], at: int) -> Array:
    """Keys or values, broadcast to every sequence of the batch if they have no batch axes."""
    if a.ndim - at - 1 == len(batch):
        return a
    return jnp.broadcast_to(jnp.expand_dims(a, range(at, at + len(batch))), (*a.shape[:at], *batch, a.shape[-1]))


def _flat(a: Array, heads: bool, batch: tuple[int, ...]) -> Float[Array, "H d B l"]:
    rows = a.shape[:2] if heads else (1, *a.shape[:1])
    return a.reshape(*rows, math.prod(batch), a.shape[-1])


def _seeds(key: Key[Array, "*batch"] | None, s: LazyScores) -> Array | None:
    if key is None:
        return None
    return seed_of(jnp.asarray(jax.vmap(functools.partial(fold_in, key))(jnp.arange(len(s.Q))) if s.heads else key))
