"""Line 6 of Algorithm 10, line 5 of Algorithm 9, and lines 5, 14 and 16 of Algorithm 8: the attention."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float

from algorithms.alg03_attention import combine, of_heads, of_one_head, projections
from algorithms.machinery.apart import apart, shapes_of_leaves
from algorithms.machinery.arrays import indices, scaled
from algorithms.machinery.contract import array
from algorithms.machinery.naming import numbered
from algorithms.machinery.record import Positive, Range
from algorithms.masks import Mask, StructuralMask, documents, near, sequence_axes
from algorithms.model.mixer import Given, Mixer, stored
from algorithms.model.norm import LayerNorm, RMSNorm
from algorithms.model.positions import Positions, Table
from algorithms.notation import Cap
from algorithms.ops.attention.dispatch import Weights, attend
from algorithms.ops.linear import linear
from algorithms.ops.softmax import softmax
from algorithms.parameters import AttentionParams, MHAttentionParams, head_shapes


class Read(NamedTuple):
    """Lines 1 to 3 of Algorithm 4 for every head, and what a variant adds to them: all that line 4 reads."""

    Q: Float[Array, "H d_attn *columns"]
    K: Float[Array, "H_kv d_attn *columns"] | Any  # None if the memory has all keys and values
    V: Float[Array, "H_kv d_mid *columns"] | Any  # without rows: K serves as V, and is cached once
    U: Float[Array, "H d_r *columns"] | Any = None  # of ``scores_by_distance``; None: no scores by distance
    P: Callable[[Any], Float[Array, "H d_r n"]] | Any = None  # its P for n distances
    own: Any = None  # what `Attention.weights` reads: arrays ``[H, …]`` or, of each sequence, ``[H, …, *batch, …]``
    whole: "Read | None" = None  # the same for whole sequences, from keys and values that no cache keeps; None: this
    result: Callable[[Any], Any] | None = None  # a sum of a cache's values → that of the values of ``whole``
    sequences: Any = None  # the axis of sequences in each array of ``own``, or None; set by `Attention`


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attention(Mixer):
    """``MHAttention(X, Z | 𝓦, Mask)``, Algorithm 5. If 𝓦 has fewer heads of keys and values, queries share them.

    The mask is the algorithm's or the caller's; in self-attention the line narrows it to a window. An attention of your
    own overrides ``shapes``, ``read``, ``weights`` and ``write``: whole sequences, prompts, and steps with a cache all
    call these. ``read`` and ``write`` get any number of columns, in a step only the newest, so what they compute of a
    column must depend on that column and its position alone; a cache and packed documents refuse others.

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
        heads_together: whether that norm is over all heads together, as in OLMo 2.
        normalize_output: a norm of the result, before it is added to the residual stream.
        sinks: whether each head has a score s of its own, which takes weight in the softmax and has no value:
            ``A[t_z, t_x] = exp S[t_z, t_x] / (exp s + Σ_u exp S[u, t_x])``.
        clip: c: queries, keys and values are clipped to [−c, c], between their norm and their positions; None: not.
        gated: whether what a head gives is multiplied by σ(W_g X), entry by entry, as in Qwen3-Next.
    """

    positions: Positions | None = None
    scale: Positive | None = None
    cap: Cap = None
    window: Annotated[int | None, Range("a width of at least 1 token", lambda width: width >= 1)] = None
    chunked: bool = False
    biases: bool | Literal["qkv", "out"] = True
    normalize_heads: RMSNorm | None = None
    heads_together: bool = False
    normalize_output: LayerNorm | None = None
    sinks: bool = False
    clip: Positive | None = None
    gated: bool = False

    reads_context: ClassVar[bool] = True
    final: ClassVar[tuple[str, ...]] = (
        "whole",
        "step",
        "begin",
        "slots",
        "steps",
        "context",
        "windowed",
        "replaces_softmax",
    )

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        if self.chunked and self.window is None:
            self.refuse("chunked", "False where window = None")
        if self.heads_together and self.normalize_heads is None:
            self.refuse("heads_together", "False where normalize_heads = None")

    def shapes(self) -> Any:
        """The shapes of 𝓦."""
        norm, positions = self.normalize_heads, {} if self.positions is None else self.positions.shapes()
        rows_q, rows_k = ("H*d_attn", "H_kv*d_attn") if self.heads_together else ("d_attn", "d_attn")
        return MHAttentionParams(
            heads=head_shapes("H", d_x="d_e", d_z="d_e", biases=self.biases in (True, "qkv")),
            W_o=array("d_e H*d_mid"),
            b_o=array("d_e", self.biases in (True, "out")),
            gamma_q=norm and norm.shapes(rows_q).gamma,
            gamma_k=norm and norm.shapes(rows_k).gamma,
            norm_out=self.normalize_output and self.normalize_output.shapes(),
            s=array("H", self.sinks),
            W_g=array("H d_mid d_e", self.gated),
            **positions,
        )

    def sizes(self) -> dict[str, int]:
        """The sizes of the positions."""
        return {} if self.positions is None else self.positions.sizes()

    def whole(
        self, X: Float[Array, "d_e *batch l_x"], W: Any, mask: Mask, given: Given, context: Any = None
    ) -> tuple[Float[Array, "d_e *batch l_x"], Read]:
        """Algorithm 5 as the variant has it, and all that line 4 of Algorithm 4 reads."""
        options = {"implementation": given.implementation, "dropout": given.dropout, "key": given.key}
        mask = self.windowed(mask, given.t, given.t) if context is None else mask
        return self._of_heads(lambda read: (of_sequences(read, mask, self, **options), read), X, W, given, context)

    def step(
        self, x: Float[Array, "d_e *batch"], W: Any, kept: Any, given: Given, context: Any = None
    ) -> tuple[Float[Array, "d_e *batch"], Any]:
        """Algorithm 5 as the variant has it, by the method ``attend`` of a cache, which is kept."""
        return self._of_heads(lambda read: kept.attend(read, self), x, W, given, context)

    def slots(self, W: Any, d_e: int, dtype: Any, batch: tuple[int, ...], C: int) -> Any:
        """The shapes of keys and values of C tokens, ``[H_kv, d, *batch, C]``."""
        X, t = jax.ShapeDtypeStruct((d_e, 1), dtype), np.arange(1)
        options = {"t_x": t, "t_z": t, "table": Table(), "implementation": "paper"}
        K, V = jax.eval_shape(lambda X, W: self.read(X, X, W, **options)[1:3], X, W)
        shapes: Any = (jax.ShapeDtypeStruct((*a.shape[:2], *batch, C), dtype) for a in (K, V))
        return KeyValueSlots(*shapes)

    def steps(
        self, X: Float[Array, "d_e *batch m"], W: Any, kept: Any, given: Given, mask: Mask, context: Any = None
    ) -> tuple[Float[Array, "d_e *batch m"], Any]:
        """Algorithm 5 for columns that attend to keys and values in slots, their own too, or to those of a context."""
        return self._of_heads(lambda read: kept.attend(read, self, given, mask), X, W, given, context)

    @numbered
    def _of_heads(self, attend: Callable[[Read], tuple[Any, Any]], X: Any, W: Any, given: Given, context: Any) -> Any:
        """Algorithm 5 with this line's Algorithm 4, and what ``attend`` keeps of the latter's lines 1 to 3."""
        kept = []

        def attention(X, Z, W, _):
            """Algorithm 4 for every head."""
            t_z = given.t if context is None else None
            read = self._read(X, Z, W, t_x=given.t, t_z=t_z, table=given.table, implementation=given.implementation)
            V_tilde, of_layer = attend(read)  # lines 4-5, return
            V_tilde = self._gated(V_tilde, X, W, given.implementation)
            kept.append(of_layer)
            return V_tilde

        Z = X if context is None else context
        return of_heads(attention, self.write, X, Z, W, None, given.implementation), kept[0]

    def read(self, X: Any, Z: Any, W: Any, *, t_x: Any, t_z: Any, table: Table, implementation: Any) -> Read:
        """Lines 1 to 3 of Algorithm 4 for every head, and all that the line does to their results before line 4."""
        Q, K, V = products(X, Z, W, implementation)
        if table.positions is not None and t_z is not None:  # W_q(X + P) = W_q X + W_q P
            q, k = products_of_positions(table.positions, W, implementation)
            Q, K = Q + q, K + k
        Q, K = self._normalized(Q, W.gamma_q, implementation), self._normalized(K, W.gamma_k, implementation)
        Q, K, V = self._clipped(Q), self._clipped(K), self._clipped(V)
        U = P = None
        if self.positions is not None:
            if t_z is not None:
                Q, K = self.positions.of_queries(Q, t_x, implementation), self.positions.rotate(K, t_z, implementation)
            scale = 1.0 if self.scale is None else self.scale * Q.shape[1] ** 0.5
            Q, U, P = self.positions.scores(Q, W, table, scale)
        if t_z is None:  # another sequence, which is at no distance
            U = P = None
        Q = Q if self.scale is None else scaled(Q, self.scale * Q.shape[1] ** 0.5)
        return Read(Q, K, V, U, P, W.s if self.sinks else None)

    def weights(self, S: Float[Array, "l_z l_x"], own: Any) -> Float[Array, "l_z l_x"]:
        """What replaces the softmax: the weights of the values by the scores of one head of one sequence.

        S is scaled, and −∞ where the mask is False, also in whole columns; ``own`` is that part of `Read.own` which
        belongs to the head and the sequence.
        """
        if not self.sinks:
            return softmax(S)
        with_sink = jnp.concatenate([S, jnp.full_like(S, own, shape=(1, S.shape[1]))])
        return softmax(with_sink)[:-1]

    @property
    def replaces_softmax(self) -> bool:
        """Whether `weights` is overridden, by what only the lines as printed compute."""
        return type(self).weights is not Attention.weights

    def write(self, Y: Float[Array, "H d_mid *columns"], W: Any, implementation: Any) -> Float[Array, "d_e *columns"]:
        """Lines 3 and 4 of Algorithm 5, and a norm of the result if the line has one."""
        V_tilde = combine(Y, W, implementation)
        return V_tilde if self.normalize_output is None else self.normalize_output(V_tilde, W.norm_out, implementation)

    def _read(self, X: Any, Z: Any, W: Any, **options: Any) -> Read:
        """What it reads, with the axes of sequences in what replaces the softmax."""
        read = self.read(X, Z, W, **options)
        if read.own is None or X.ndim == 2 or not self.replaces_softmax:
            return read
        arrays, tree = jax.tree.flatten(read.own)
        axes = axes_of_own(self, *shapes_of_leaves(W), len(X))
        batched = [array.ndim == of.ndim + X.ndim - 3 for array, of in zip(arrays, axes, strict=True)]
        sequences = [of.sequences if has else None for of, has in zip(axes, batched, strict=True)]
        return read._replace(sequences=tree.unflatten(sequences))

    def _normalized(self, Q: Any, gamma: Any, implementation: Any) -> Any:
        norm = self.normalize_heads
        return Q if norm is None or Q is None else norm.of_heads(Q, gamma, implementation, self.heads_together)

    def _gated(self, V_tilde: Any, X: Any, W: Any, implementation: Any) -> Any:
        return V_tilde * jax.nn.sigmoid(linear(W.W_g, X, None, implementation)) if self.gated else V_tilde

    def _clipped(self, Q: Any) -> Any:
        return Q if self.clip is None or Q is None else jnp.clip(Q, -self.clip, self.clip)

    def context(self, Z: Float[Array, "d_e *batch l_z"], W: Any, implementation: Any) -> tuple[Array, Array]:
        """The keys and values of a context, as its queries' attention reads them."""
        t = indices(Z.shape[-1])
        read = self.read(Z, Z, W, t_x=t, t_z=None, table=Table(), implementation=implementation)
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


class KeyValueSlots(NamedTuple):
    """The keys and values of the tokens of sequences, each in a slot of its own."""

    K: Float[Array, "H_kv d_attn *batch C"]
    V: Float[Array, "H_kv d_mid *batch C"]

    def attend(self, read: Read, line: Attention, given: Given, mask: Mask) -> tuple[Array, "KeyValueSlots"]:
        """Lines 4 to the end of Algorithm 4 for columns in ``given.slots``, and the slots with theirs, too.

        Later slots, whose contents do not matter, count as 0. The mask is that of the columns among themselves.
        """
        at, C = given.slots, self.K.shape[-1]
        slots = KeyValueSlots(stored(self.K, read.K, at), stored(self.V, read.V, at))
        is_known = jnp.arange(C).reshape(*(1,) * (at.ndim - 1), C) <= at[..., -1:]
        K, V = (jnp.where(is_known[None, None], a, 0).astype(read.K.dtype) for a in slots)
        read = read._replace(K=K, V=V if V.shape[1] else K, whole=None)
        if isinstance(mask, StructuralMask):  # UNIDIRECTIONAL, and the positions are the slots
            mask = line.windowed(StructuralMask(unidirectional=True, first=at[..., 0]), np.arange(C), at)
        else:
            mask = _among(mask, line, given, C)
        of_sequence = functools.partial(_from_slots, read, line, given.implementation)
        if read.U is None:
            Y = of_sequence(read.Q, read.K, read.V, None, mask, at)
        else:  # the distances of sequences differ
            for _ in range(at.ndim - 1):
                of_sequence = jax.vmap(of_sequence, (2, 2, 2, 2, sequence_axes(mask), 0), 2)
            Y = of_sequence(read.Q, read.K, read.V, read.U, mask, at)
        return (Y if read.result is None else read.result(Y)), slots


class ContextKeys(NamedTuple):
    """The keys and values of a context."""

    K: Float[Array, "H_kv d_attn *batch l_z"]
    V: Float[Array, "H_kv d_mid *batch l_z"]

    def attend(self, read: Read, line: Attention, given: Given, mask: Mask) -> tuple[Array, None]:
        """Lines 4 to the end of Algorithm 4."""
        K, V = (a.astype(read.Q.dtype) for a in self)
        read = read._replace(K=K, V=V if V.shape[1] else K, whole=None)
        Y = of_sequences(read, mask, line, implementation=given.implementation, dropout=0.0, key=None)
        return (Y if read.result is None else read.result(Y)), None


def _among(mask: Any, line: Attention, given: Given, C: int) -> Bool[Array, "*batch C m"]:
    """The mask of columns in slots: they see all slots before theirs, and each other by ``mask``, in line's window.

    Windows count positions: those before have the positions of their slots.
    """
    at, (*batch, m) = given.slots, given.slots.shape
    every = jnp.broadcast_to(jnp.arange(C, dtype=at.dtype), (*batch, C))
    before = jnp.broadcast_to((every < at[..., :1])[None], (m, *batch, C))
    seen = stored(before, jnp.moveaxis(jnp.broadcast_to(mask, (*batch, m, m)), -1, 0), at)
    seen, t_x = jnp.moveaxis(seen, 0, -1), given.t[..., None, :]
    t_z = stored(every.astype(given.t.dtype), given.t, at)[..., None]
    if line.window is not None:
        seen &= abs(t_z - t_x) < line.window
        seen &= (t_z // line.window == t_x // line.window) | (not line.chunked)
    return seen


def _from_slots(
    read: Read, line: Attention, implementation: Any, Q: Any, K: Any, V: Any, U: Any, mask: Any, at: Any
) -> Any:
    """Lines 4 to the end of Algorithm 4 for queries in the slots ``at``, which follow one another."""
    l_x, C, first = Q.shape[-1], K.shape[-1], at[..., 0]
    P: Any = None if U is None else read.P(np.arange(1 - C - l_x, C + 1))

    def of_distances(_):
        return jax.lax.dynamic_slice_in_dim(P, C - first, C + l_x, 2)

    read = read._replace(Q=Q, K=K, V=V, U=U, P=of_distances)
    return of_sequences(read, mask, line, implementation=implementation, dropout=0.0, key=None)


def products(X: Any, Z: Any, W: Any, implementation: Any) -> tuple[Any, Any, Any]:
    """Lines 1 to 3 of Algorithm 4, of every head; of a context that is known, no keys and values."""
    if isinstance(W, MHAttentionParams):
        return projections(X, Z, W.heads, functools.partial(linear, implementation=implementation))
    q, k, v = W.products(X)  # laid out for generation, as one product
    return projections(X, Z, AttentionParams(q, None, k, None, v, None), lambda product, _, __: product)


def products_of_positions(P: Any, W: Any, implementation: Any) -> tuple[Any, Any]:
    """W_q P and W_k P of every head."""
    if not isinstance(W, MHAttentionParams):
        return W.products(P, of_positions=True)
    return linear(W.heads.W_q, P, None, implementation), linear(W.heads.W_k, P, None, implementation)


class AxesOfOwn(NamedTuple):
    """The axes of an array of `Read.own`, for one axis of sequences."""

    ndim: int
    sequences: int | None  # the axis of sequences
    columns: bool  # whether it has an axis of columns


@apart
def axes_of_own(line: Attention, tree: Any, shapes: Any, d_e: int) -> list[AxesOfOwn]:
    """The axes of the arrays of `Read.own`, found by their shapes for other numbers of sequences and columns."""
    W = tree.unflatten([jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes])

    def shapes_for(B, l):
        X, t = jax.ShapeDtypeStruct((d_e, B, l), jnp.float32), np.arange(l)
        options = {"t_x": t, "t_z": t, "table": Table(), "implementation": "paper"}
        own = jax.eval_shape(lambda X, W: line.read(X, X, W, **options).own, X, W)
        return [array.shape for array in jax.tree.leaves(own)]

    found = []
    for shape, more, longer in zip(shapes_for(2, 5), shapes_for(3, 5), shapes_for(2, 7), strict=True):
        sequences = [axis for axis, (n, m) in enumerate(zip(shape, more, strict=True)) if n != m]
        found.append(AxesOfOwn(len(shape), sequences[0] if sequences else None, shape != longer))
    return found


def of_sequences(read: Read, mask: Mask, line: Attention, **options: Any) -> Float[Array, "H d_mid *batch l_x"]:
    """Lines 4 to the end of Algorithm 4 for whole sequences, by the best kernel."""
    Q, K, V, U, P, own, *_ = whole = read.whole or read
    l_x, l_z = Q.shape[-1], K.shape[-1]
    by_distance = () if U is None else (U, P(indices(l_z + l_x) - (l_x - 1)))
    weights = weights_of(line, own, whole.sequences)
    options |= {"heads": True, "cap": line.cap, "by_distance": by_distance, "weights": weights}
    return attend(of_one_head, Q, K, V, mask, **options)


def weights_of(line: Attention, own: Any, sequences: Any = None) -> Weights | None:
    """What replaces the softmax, if the line does; ``own`` and ``sequences`` are those of `Read`."""
    if not line.replaces_softmax and not line.sinks:
        return None
    sinks = None if line.replaces_softmax else own
    return Weights(line.weights, own, f"{type(line).__name__} has weights of its own", sinks, sequences)
