"""Line 6 of Algorithm 10, line 5 of Algorithm 9, and lines 5, 14 and 16 of Algorithm 8: the attention."""

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float

from algorithms.alg03_attention import Steps, mh_attention
from algorithms.machinery.arrays import indices, scaled
from algorithms.machinery.contract import array, plain
from algorithms.machinery.options import outside_trace, shapes_of_leaves
from algorithms.machinery.record import Count, Positive, Range
from algorithms.masks import BIDIRECTIONAL, Mask, StructuralMask, documents, near, sequence_axes
from algorithms.model.mixer import Mixer, MixerMetadata, stored
from algorithms.model.norm import LayerNorm, RMSNorm
from algorithms.model.positions import DistanceTable, Positions
from algorithms.notation import Cap
from algorithms.ops.activation import softmax
from algorithms.ops.attention.dispatch import LazyScores, Weights, scores
from algorithms.ops.linear import linear
from algorithms.parameters import MHAttentionParams, head_shapes

MH_ATTENTION = plain(mh_attention)


class At(NamedTuple):
    """Inputs of an attention's methods besides queries, keys and values."""

    X: Float[Array, "d_e *columns"]
    Z: Float[Array, "d_e *columns"]  # X, or another sequence
    W: Any  # 𝓦
    t_x: Any  # the positions of X's columns
    t_z: Any  # those of Z's; None for another sequence
    table: DistanceTable = DistanceTable()
    inputs: Any = None  # what `Attention.inputs` returns
    lent: Any = None  # keys and values of the layer `Attention.keys_of`


class QKV(NamedTuple):
    """Queries, keys and values of every head, as line 4 of Algorithm 4 reads them, and a variant's additions."""

    Q: Float[Array, "H d_attn *columns"]
    K: Float[Array, "H_kv d_attn *columns"] | Any  # None if the cache, or that of another layer, has them
    V: Float[Array, "H_kv d_mid *columns"] | Any  # without rows: K is V, too, and is cached once
    U: Float[Array, "H d_r *columns"] | Any = None  # of ``scores_by_distance``; None: no scores by distance
    P: Callable[[Any], Float[Array, "H d_r n"]] | Any = None  # its P for n distances
    own: Any = None  # argument of `Attention.weights`: arrays ``[H, …]`` or, of each sequence, ``[H, …, *batch, …]``
    uncached: "QKV | None" = None  # for whole sequences, if a cache stores something else than keys and values
    result: Callable[[Any], Any] | None = None  # maps a weighted sum of cached values to that of ``uncached``'s
    chosen: Callable[[Mask, Any], Mask] | None = None  # of a mask, and cached keys: the mask of the tokens to read
    sequences: Any = None  # the axis of sequences in each array of ``own``, or None; set by `Attention`


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attention(Mixer):
    """``MHAttention(X, Z | 𝓦, Mask)``, Algorithm 5. If 𝓦 has fewer heads of keys and values, queries share them.

    The mask is the algorithm's or the caller's; in self-attention the line narrows it to a window. A custom attention
    overrides ``shapes``, ``inputs``, ``read``, ``weights`` and ``result``, which whole sequences, prompts and cached
    steps all call. They get any number of columns, in a step only the newest, so the result for a column must depend
    on that column and its position alone; caches and packed documents refuse others.

    Attributes:
        positions: how queries, keys or scores depend on the positions of the tokens; None: not at all.
        scale: factor of the scores; None: 1/√d_attn.
        cap: c: scaled scores s become ``c tanh(s/c)``; None: no cap.
        window: w: in self-attention, a token attends only to tokens at a distance |t_x − t_z| < w; None: to all. Where
            the mask is unidirectional, these are itself and the w − 1 before it, as in Mistral and Gemma; elsewhere
            also the w − 1 after it, as in EmbeddingGemma (w = sliding_window/2 + 1 = 257) and ModernBERT
            (w = local_attention/2 + 1 = 65). Cross-attention has no window.
        chunked: whether, of the tokens in its window, a token attends only to those in its chunk, ⌊t_z/w⌋ = ⌊t_x/w⌋, as
            in Llama 4. Chunks count from the first token of each document.
        biases: whether there are biases: all, none, only b_q, b_k and b_v, or only b_o.
        normalize_heads: a norm of queries and keys, applied before their positions.
        positions_first: whether positions are applied before that norm, as in HunYuan.
        heads_together: whether that norm is over all heads jointly, as in OLMo 2.
        normalize_output: a norm of the result, before it is added to the residual stream.
        sinks: whether each head has a score s of its own, which takes weight in the softmax and has no value:
            ``A[t_z, t_x] = exp S[t_z, t_x] / (exp s + Σ_u exp S[u, t_x])``.
        clip: c: queries, keys and values are clipped to [−c, c], between their norm and their positions; None: not.
        gated: whether the output of each head is multiplied by σ(W_g X), entry by entry, as in Qwen3-Next.
        normalize_values: a norm of values without γ, as in Gemma 4.
        keys_are_values: whether W_v = W_k and b_v = b_k; values then have no positions, and their own norm.
        d_head: rows of queries, keys and values; None: those of the model's configuration.
        n_keys: number of heads of keys and values; None: that of the configuration.
        keys_of: the number of an earlier layer whose keys and values it reads, as in Gemma 4; None: it has its own.
    """

    positions: Positions | None = None
    scale: Positive | None = None
    cap: Cap = None
    window: Annotated[int | None, Range("a width of at least 1 token", lambda width: width >= 1)] = None
    chunked: bool = False
    biases: bool | Literal["qkv", "out"] = True
    normalize_heads: RMSNorm | None = None
    positions_first: bool = False
    heads_together: bool = False
    normalize_output: LayerNorm | None = None
    sinks: bool = False
    clip: Positive | None = None
    gated: bool = False
    normalize_values: RMSNorm | None = None
    keys_are_values: bool = False
    d_head: Count | None = None
    n_keys: Count | None = None
    keys_of: Annotated[int | None, Range("the number of a layer", lambda l: l >= 0)] = None

    reads_context: ClassVar[bool] = True
    final: ClassVar[tuple[str, ...]] = (
        "whole",
        "step",
        "begin",
        "cache_shapes",
        "steps",
        "context",
        "reading",
        "windowed",
        "replaces_softmax",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chunked and self.window is None:
            self.refuse("chunked", "False where window = None")
        for name in ("heads_together", "positions_first"):
            if getattr(self, name) and self.normalize_heads is None:
                self.refuse(name, "False where normalize_heads = None")
        if self.heads_together and self.positions_first:
            self.refuse("positions_first", "False where heads_together = True")
        if self.normalize_values is not None and self.normalize_values.gamma:
            self.refuse("normalize_values", "a norm without γ")

    @property
    def divided(self) -> tuple[str, ...]:
        """Its custom axes that a mesh divides."""
        return tuple(axis for axis in map(self._own_axis, ("H_kv", "H*d_mid")) if axis not in ("H_kv", "H*d_mid"))

    @property
    def heads(self) -> tuple[str, ...]:
        """Its custom axis of heads."""
        return self.divided[:1] if self.n_keys else ()

    def _own_axis(self, axis: str) -> str:
        """The name of an axis with this line's own numbers of rows and of heads."""
        axis = axis.replace("H_kv", f"H_kv_{self.n_keys}") if self.n_keys else axis
        return re.sub("d_(attn|mid)", rf"d_\1_{self.d_head}", axis) if self.d_head else axis

    def shapes(self) -> Any:
        """The shapes of 𝓦."""
        norm, positions = self.normalize_heads, {} if self.positions is None else self.positions.shapes()
        rows_q, rows_k = ("H*d_attn", "H_kv*d_attn") if self.heads_together else ("d_attn", "d_attn")
        heads = head_shapes("H", d_x="d_e", d_z="d_e", biases=self.biases in (True, "qkv"))
        lacks = "W_k b_k W_v b_v" if self.keys_of is not None else "W_v b_v" if self.keys_are_values else ""
        shapes = MHAttentionParams(
            heads=heads._replace(**dict.fromkeys(lacks.split())),
            W_o=array("d_e H*d_mid"),
            b_o=array("d_e", self.biases in (True, "out")),
            gamma_q=norm and norm.shapes(rows_q).gamma,
            gamma_k=None if self.keys_of is not None else norm and norm.shapes(rows_k).gamma,
            norm_out=self.normalize_output and self.normalize_output.shapes(),
            s=array("H", self.sinks),
            W_g=array("H d_mid d_e", self.gated),
            **positions,
        )
        return jax.tree.map(lambda s: dataclasses.replace(s, axes=self._own_axis(s.axes)), shapes)

    def sizes(self) -> dict[str, int]:
        """The sizes of the positions, and its own numbers of rows and of heads."""
        rows = {self._own_axis(name): self.d_head for name in ("d_attn", "d_mid") if self.d_head}
        heads = {f"H_kv_{self.n_keys}": self.n_keys} if self.n_keys else {}
        return {**({} if self.positions is None else self.positions.sizes()), **rows, **heads}

    def whole(
        self, X: Float[Array, "d_e *batch l_x"], W: Any, mask: Mask, metadata: MixerMetadata, context: Any = None
    ) -> tuple[Float[Array, "d_e *batch l_x"], QKV]:
        """Algorithm 5 for this variant, and its queries, keys and values."""
        mask = self.windowed(mask, metadata.t, metadata.t) if context is None else mask
        return self._computed(X, W, mask, metadata, context)

    def step(
        self, x: Float[Array, "d_e *batch"], W: Any, cache: Any, metadata: MixerMetadata, context: Any = None
    ) -> tuple[Float[Array, "d_e *batch"], Any]:
        """Algorithm 5 for one column of each sequence, and the updated cache."""
        return self._computed(x, W, BIDIRECTIONAL, metadata, context, cache)

    def cache_shapes(self, W: Any, d_e: int, dtype: Any, batch: tuple[int, ...], C: int) -> Any:
        """The shapes of keys and values of C tokens, ``[H_kv, d, *batch, C]``; none if another layer has them."""
        if self.keys_of is not None:
            return ()
        X, metadata = jax.ShapeDtypeStruct((d_e, 1), dtype), MixerMetadata(np.arange(1))
        K, V = jax.eval_shape(lambda X, W: self.reading(X, W, metadata)[1:3], X, W)
        shapes: Any = (jax.ShapeDtypeStruct((*a.shape[:2], *batch, C), dtype) for a in (K, V))
        return KeyValueSlots(*shapes)

    def steps(
        self,
        X: Float[Array, "d_e *batch m"],
        W: Any,
        cache: Any,
        metadata: MixerMetadata,
        mask: Mask,
        context: Any = None,
    ) -> tuple[Float[Array, "d_e *batch m"], Any]:
        """Algorithm 5 for columns that attend to the slots of a cache, or to a cached context."""
        return self._computed(X, W, mask, metadata, context, cache)

    def _computed(
        self, X: Any, W: Any, mask: Mask, metadata: MixerMetadata, context: Any = None, cache: Any = None
    ) -> Any:
        """Algorithm 5 with this line's steps, and the new cache, or the queries, keys and values without one."""
        at = self._at(X, W, metadata, context)
        (X, Z, of_lines), f = at.inputs, _Steps(self, at, cache, metadata, mask)
        V_tilde = MH_ATTENTION(X, Z, of_lines, mask, f=f)
        if self.normalize_output is not None:
            V_tilde = self.normalize_output(V_tilde, of_lines.norm_out)
        return V_tilde, f.new_cache

    def _at(self, X: Any, W: Any, metadata: MixerMetadata, context: Any) -> At:
        t_z = metadata.t if context is None else None
        at = At(X, X if context is None else context, W, metadata.t, t_z, metadata.table, lent=metadata.lent)
        return at._replace(inputs=self.inputs(at))

    def inputs(self, at: At) -> tuple[Any, Any, MHAttentionParams]:
        """X, Z and 𝓦 of Algorithm 5."""
        W = at.W if isinstance(at.W, MHAttentionParams) else at.W.printed  # laid out for generation
        if self.keys_of is not None:
            K, V = map(_Given, at.lent or (None, None))
            W = W._replace(heads=W.heads._replace(W_k=K, W_v=V))
        elif self.keys_are_values:
            W = W._replace(heads=W.heads._replace(W_v=W.heads.W_k, b_v=W.heads.b_k))
        return at.X, at.Z, W

    def read(self, Q: Any, K: Any, V: Any, at: At) -> QKV:
        """What line 4 of Algorithm 4 reads, from the results of lines 1 to 3, for every head."""
        W, t_x, t_z, lent = at.W, at.t_x, at.t_z, (K, V)
        K, V = (K, V) if self.keys_of is None else (None, None)
        if not self.positions_first:
            Q, K = self._normalized(Q, K, W)
        if self.clip is not None:
            Q, K, V = (A if A is None else jnp.clip(A, -self.clip, self.clip) for A in (Q, K, V))
        if self.normalize_values is not None and V is not None:
            V = self.normalize_values.of_heads(V, None)
        U = P = None
        if self.positions is not None and t_z is not None:
            Q, K = self.positions.of_queries(Q, t_x), None if K is None else self.positions.rotate(K, t_z)
        if self.positions_first:
            Q, K = self._normalized(Q, K, W)
        if self.positions is not None:
            scale = 1.0 if self.scale is None else self.scale * Q.shape[1] ** 0.5
            Q, U, P = self.positions.scores(Q, W, at.table, scale)
        if t_z is None:  # another sequence, which is at no distance
            U = P = None
        Q = Q if self.scale is None else scaled(Q, self.scale * Q.shape[1] ** 0.5)
        K, V = (K, V) if self.keys_of is None else lent
        return QKV(Q, K, V, U, P, W.s if self.sinks else None)

    def _normalized(self, Q: Any, K: Any, W: Any) -> Any:
        if self.normalize_heads is None:
            return Q, K
        norm, both = self.normalize_heads, ((Q, W.gamma_q), (K, W.gamma_k))
        return (A if A is None else norm.of_heads(A, gamma, self.heads_together) for A, gamma in both)

    def weights(self, S: Float[Array, "l_z l_x"], own: Any) -> Float[Array, "l_z l_x"]:
        """Replaces the softmax: attention weights from the scores of one head of one sequence.

        S is scaled, and −∞ where the mask is False, also in whole columns; ``own`` is that part of `QKV.own` which
        belongs to the head and the sequence.
        """
        if not self.sinks:
            return softmax(S)
        with_sink = jnp.concatenate([S, jnp.full_like(S, own, shape=(1, S.shape[1]))])
        return softmax(with_sink)[:-1]

    @property
    def replaces_softmax(self) -> bool:
        """Whether `weights` is overridden; only the printed lines compute it then."""
        return type(self).weights is not Attention.weights

    def result(self, Y: Float[Array, "H d_mid *columns"], at: At) -> Float[Array, "H d_mid *columns"]:
        """What line 3 of Algorithm 5 reads, from the output of Algorithm 4 for every head."""
        return Y * jax.nn.sigmoid(linear(at.W.W_g, at.X)) if self.gated else Y

    def reading(self, X: Any, W: Any, metadata: MixerMetadata, context: Any = None) -> QKV:
        """What line 4 of Algorithm 4 reads."""
        at = self._at(X, W, metadata, context)
        X, Z, of_lines = at.inputs
        W_q, b_q, W_k, b_k, W_v, b_v = of_lines.heads
        return self.read(linear(W_q, X, b_q), linear(W_k, Z, b_k), linear(W_v, Z, b_v), at)

    def context(self, Z: Float[Array, "d_e *batch l_z"], W: Any) -> tuple[Array, Array]:
        """The keys and values of a context, for the cache."""
        read = self.reading(Z, W, MixerMetadata(indices(Z.shape[-1])), Z)
        return read.K, read.V

    def windowed(self, mask: Mask, t_z: Any, t_x: Any) -> Mask:
        """The mask of self-attention, restricted to the windows of tokens at these positions."""
        if self.window is None:
            return mask
        mask = mask & near(self.window)
        if not self.chunked:
            return mask
        z, x = ((t.reshape(-1) if t.size == t.shape[-1] else t) // self.window for t in (t_z, t_x))
        if t_x is t_z:
            is_one = isinstance(z, np.ndarray) and np.unique(z).size <= 1
            return mask if is_one else mask & documents(jnp.asarray(z))
        return mask & StructuralMask(documents_z=jnp.asarray(z), documents_x=x)


class _Given(NamedTuple):
    """In place of a matrix: its product with any columns."""

    Y: Any  # None if a cache has it

    def times(self, X: Any, dtype: Any) -> Any:
        """The product."""
        return self.Y


class _Steps(Steps):
    """A variant's operations between the lines of Algorithm 4, for every head; ``new_cache`` is their second result."""

    def __init__(self, line: Attention, at: At, cache: Any, *of_cache: Any) -> None:
        self.line, self.at, self.cache, self.of_cache = line, at, cache, of_cache
        self.of: Any = None
        self.new_cache: Any = None

    def read(self, Q: Any, K: Any, V: Any) -> tuple[Any, Any, Any]:
        read = self.line.read(Q, K, V, self.at)
        read = self._with_axes(read) if self.line.replaces_softmax else read
        if self.cache is None:
            self.new_cache, self.of = read, read.uncached or read
        else:
            memory, self.new_cache = self.cache.extended(read, self.line, *self.of_cache)
            self.of = read._replace(K=memory, V=memory)
        return self.of[:3]

    def scores(self, K: Any, Q: Any, *, heads: bool) -> LazyScores:
        options: Any = {"cap": self.line.cap}
        line, of = self.line, self.of
        if line.replaces_softmax or line.sinks:
            sinks = None if line.replaces_softmax else of.own
            says = f"{type(line).__name__} has custom weights"
            options["weights"] = Weights(line.weights, of.own, says, sinks, of.sequences)
        if self.cache is None and self.new_cache.chosen is not None:
            options["chosen"] = functools.partial(self.new_cache.chosen, K=self.new_cache.K)
        if self.cache is None and of.U is not None:
            l_x, l_z = Q.shape[-1], K.shape[-1]
            options["by_distance"] = of.U, of.P(indices(l_z + l_x) - (l_x - 1))
        return scores(K, Q, heads=True, **options)

    def result(self, V_tilde: Any) -> Any:
        result = None if self.cache is None else self.of.result
        return self.line.result(V_tilde if result is None else result(V_tilde), self.at)

    def _with_axes(self, read: QKV) -> QKV:
        X, W = self.at.X, self.at.W
        if read.own is None or X.ndim == 2:
            return read
        arrays, tree = jax.tree.flatten(read.own)
        axes = axes_of_own(self.line, *shapes_of_leaves(W), len(X))
        batched = [array.ndim == of.ndim + X.ndim - 3 for array, of in zip(arrays, axes, strict=True)]
        sequences = [of.sequences if has else None for of, has in zip(axes, batched, strict=True)]
        return read._replace(sequences=tree.unflatten(sequences))


class Memory(NamedTuple):
    """The keys and values of a cache, in place of arrays."""

    attend: Callable[[LazyScores], Any]  # the product of its values with the weights of scores


class KeyValueSlots(NamedTuple):
    """A KV cache with a slot for each token."""

    K: Float[Array, "H_kv d_attn *batch C"]
    V: Float[Array, "H_kv d_mid *batch C"]

    def extended(
        self, read: QKV, line: Attention, metadata: MixerMetadata, mask: Mask
    ) -> tuple[Memory, "KeyValueSlots"]:
        """The keys and values for columns in ``metadata.slots``, and the updated cache.

        Later slots are read as 0. The mask is that of the columns among themselves.
        """
        at, C = metadata.slots, self.K.shape[-1]
        is_own = read.K is not None
        slots = KeyValueSlots(stored(self.K, read.K, at), stored(self.V, read.V, at)) if is_own else self
        is_known = jnp.arange(C).reshape(*(1,) * (at.ndim - 1), C) <= at[..., -1:]
        K, V = (jnp.where(is_known[None, None], a, 0).astype(read.Q.dtype) for a in slots)
        V = V if V.shape[1] else K
        if isinstance(mask, StructuralMask):  # UNIDIRECTIONAL, and the positions are the slots
            mask = line.windowed(StructuralMask(unidirectional=True, first=at[..., 0]), np.arange(C), at)
        else:
            mask = _among(mask, line, metadata, C)
        mask = mask if read.chosen is None else read.chosen(mask, K)

        def attend(s):
            of_sequence = functools.partial(_from_slots, s, read.P)
            if read.U is None:
                return of_sequence(s.Q, K, V, None, mask, at)
            for _ in range(at.ndim - 1):  # the distances of sequences differ
                of_sequence = jax.vmap(of_sequence, (2, 2, 2, 2, sequence_axes(mask), 0), 2)
            return of_sequence(s.Q, K, V, read.U, mask, at)

        return Memory(attend), slots


class ContextKeys(NamedTuple):
    """The KV cache of a context."""

    K: Float[Array, "H_kv d_attn *batch l_z"]
    V: Float[Array, "H_kv d_mid *batch l_z"]

    def extended(self, read: QKV, *_: Any) -> tuple[Memory, None]:
        """The keys and values."""
        K, V = (a.astype(read.Q.dtype) for a in self)
        return Memory(lambda s: (V if V.shape[1] else K) @ dataclasses.replace(s, K=K)), None


def _among(mask: Any, line: Attention, metadata: MixerMetadata, C: int) -> Bool[Array, "*batch C m"]:
    """The mask of columns in slots: they see all slots before theirs, and each other by ``mask``, in line's window.

    Windows count positions: those before have the positions of their slots.
    """
    at, (*batch, m) = metadata.slots, metadata.slots.shape
    every = jnp.broadcast_to(jnp.arange(C, dtype=at.dtype), (*batch, C))
    before = jnp.broadcast_to((every < at[..., :1])[None], (m, *batch, C))
    seen = stored(before, jnp.moveaxis(jnp.broadcast_to(mask, (*batch, m, m)), -1, 0), at)
    seen, t_x = jnp.moveaxis(seen, 0, -1), metadata.t[..., None, :]
    t_z = stored(every.astype(metadata.t.dtype), metadata.t, at)[..., None]
    if line.window is not None:
        seen &= abs(t_z - t_x) < line.window
        seen &= (t_z // line.window == t_x // line.window) | (not line.chunked)
    return seen


def _from_slots(s: LazyScores, of_distances: Any, Q: Any, K: Any, V: Any, U: Any, mask: Any, at: Any) -> Any:
    """Lines 4 to the end of Algorithm 4 for queries in the slots ``at``, which follow one another."""
    l_x, C, by_distance = Q.shape[-1], K.shape[-1], ()
    if U is not None:
        P = of_distances(np.arange(1 - C - l_x, C + 1))
        by_distance = U, jax.lax.dynamic_slice_in_dim(P, C - at[..., 0], C + l_x, 2)
    return V @ dataclasses.replace(s, Q=Q, K=K, mask=mask, by_distance=by_distance)


class AxesOfOwn(NamedTuple):
    """The axes of an array of `QKV.own`, for one axis of sequences."""

    ndim: int
    sequences: int | None  # the axis of sequences
    columns: bool  # whether it has an axis of columns


@outside_trace
def axes_of_own(line: Attention, tree: Any, shapes: Any, d_e: int) -> list[AxesOfOwn]:
    """The axes of the arrays of `QKV.own`, found by their shapes for other numbers of sequences and columns."""
    W = tree.unflatten([jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes])

    def shapes_for(B, l):
        X, t = jax.ShapeDtypeStruct((d_e, B, l), jnp.float32), np.arange(l)

        own = jax.eval_shape(lambda X, W: line.reading(X, W, MixerMetadata(t)).own, X, W)
        return [array.shape for array in jax.tree.leaves(own)]

    found = []
    for shape, more, longer in zip(shapes_for(2, 5), shapes_for(3, 5), shapes_for(2, 7), strict=True):
        sequences = [axis for axis, (n, m) in enumerate(zip(shape, more, strict=True)) if n != m]
        found.append(AxesOfOwn(len(shape), sequences[0] if sequences else None, shape != longer))
    return found
