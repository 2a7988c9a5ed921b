"""The attention kernels of libraries, with the same interface and masks as the hand-derived rules.

They are cuDNN's, through ``jax.nn.dot_product_attention``, and for TPUs the Pallas kernel shipped with JAX. Inputs that
a kernel cannot compute exactly are refused with the reason. Masks for which cuDNN has no option are passed as an array
of 0 and a large negative number, which is exact; scores by distance would be rounded in such an array. A few packed
documents are passed as their first tokens and lengths, which is faster. For a token with nothing to attend to, the
kernels return arbitrary values, set to 0 afterwards.

Kernels have a first derivative only. Second and higher ones are those of the blockwise rule: its passes take the place
of the kernel's as soon as they are differentiated, in forward or in reverse mode.
"""

import contextlib
import functools
import re
from contextlib import AbstractContextManager
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Integer

from algorithms.machinery.arrays import scaled
from algorithms.machinery.devices import tokens_are_split, varies_over
from algorithms.machinery.options import with_derivative_of
from algorithms.masks import Mask, StructuralMask, depends_on_position
from algorithms.ops.attention.blockwise import blockwise_attention
from algorithms.ops.attention.tiles import Keys, Outputs, Queries, Scores, Values

Numbers = tuple[int, ...]

PALLAS_BLOCKS = (1024, 512, 384, 256, 128)
"""The block sizes of the TPU kernel, in tokens; larger blocks are faster, except where `_block` says."""

PALLAS_KEYS, PALLAS_SCORES = 1024, 512
"""The most keys of a block backward, and those of a block whose scores the TPU kernel computes at once."""

PALLAS_ROW = 512
"""The most bytes of a query, key or value in blocks of 1,024 tokens: heads of 256 rows in bfloat16, 128 in float32."""

CUDNN_ARRAY = 8192
"""The most tokens for which a structural mask is given to cuDNN as an array: 2 bytes for each score of a sequence."""

CUDNN_DOCUMENTS = 8
"""The most documents of a sequence that cuDNN gets by first tokens and lengths; its time grows with this number."""

CUDNN_FORWARD = "dot_product_attention_fwd_wrapper"
"""JAX's primitive for cuDNN's forward kernel, whose outputs have no ``checkpoint_name``."""


def cudnn_refuses(Q: Array, K: Array, V: Array, scores: Scores, platform: str) -> str | None:
    """Why cuDNN's kernel cannot compute tiles ``[H, d, B, l]`` exactly, or None if it can."""
    (d_attn, d_mid), (l_x, l_z), mask = (Q.shape[1], V.shape[1]), (Q.shape[-1], K.shape[-1]), scores.mask
    if platform not in ("gpu", "cuda"):
        return f"it runs on an NVIDIA GPU, and the platform is {platform}"
    if Q.dtype not in (jnp.bfloat16, jnp.float16) or not Q.dtype == K.dtype == V.dtype:
        return f"it accepts bfloat16 or float16 throughout, got {Q.dtype}, {K.dtype} and {V.dtype}"
    if (reason := _refused_heads(d_attn, d_mid, _compute_capability(), _cudnn_version())) is not None:
        return reason
    if scores.dropout:
        return "its dropout is not drawn from the key"
    if scores.cap is not None:
        return "it does not cap the scores"
    if (reason := _refused_on_devices(Q, K, V, mask)) is not None:
        return reason
    if isinstance(mask, StructuralMask) and mask.first is not None:
        return "its first query is token 0"
    return _refused_array(mask, l_x, l_z)


def _refused_heads(d_attn: int, d_mid: int, gpu: Numbers | None, cudnn: Numbers) -> str | None:
    """Why cuDNN's kernel cannot compute heads of these sizes, or None if it can."""
    if gpu is None:
        return "it runs on an NVIDIA GPU, and this one is of another maker"
    if () < gpu < (8, 0) or (gpu == (10, 3) and cudnn < (9, 11)):
        return f"it does not run on a GPU of compute capability {_dotted(gpu)} with cuDNN {_dotted(cudnn)}"
    most = 256 if gpu >= (9, 0) else 128
    if max(d_attn, d_mid) <= most:
        return None
    found = f", compute capability {_dotted(gpu)}" if gpu else ""
    return f"it accepts heads of at most {most} rows, got d_attn = {d_attn} and d_mid = {d_mid}{found}"


def _compute_capability() -> Numbers | None:
    """Compute capability of the local GPU; () if there is none (cross-compilation), None if it is not NVIDIA's."""
    device = jax.local_devices()[0]
    if device.platform != "gpu":
        return ()
    return _numbers(device.compute_capability) or None


def _cudnn_version() -> Numbers:
    """Version of the cuDNN that JAX has loaded, by a private function of JAX; () if either is missing."""
    try:
        from jax._src.cudnn.fused_attention_stablehlo import check_cudnn_version

        version = check_cudnn_version()
    except (ImportError, RuntimeError):
        return ()
    return version // 10_000, version // 100 % 100


def _numbers(version: str) -> Numbers:
    return tuple(map(int, version.split("."))) if re.fullmatch(r"[\d.]+", version) else ()


def _dotted(numbers: Numbers) -> str:
    return ".".join(map(str, numbers)) or "unknown"


def _refused_array(mask: Mask, l_x: int, l_z: int) -> str | None:
    """Why cuDNN's kernel does not accept a mask, or None if it does."""
    if not _is_array(mask):
        return None
    if l_x % 2 or l_z % 2:
        return f"it needs even lengths for such a mask, got l_x = {l_x} and l_z = {l_z}"
    if isinstance(mask, StructuralMask) and max(l_x, l_z) > CUDNN_ARRAY:
        return f"it accepts such a mask only as an array, which is too large for more than {CUDNN_ARRAY} tokens"
    return None


def _is_array(mask: Mask) -> bool:
    """Whether cuDNN needs a mask as an array: it has options for the past, a window of it, and a length."""
    if not isinstance(mask, StructuralMask):
        return True
    by_numbers = (mask.documents_z, mask.prefix, mask.blocks_z)
    return any(a is not None for a in by_numbers) or (mask.width is not None and not mask.unidirectional)


def pallas_refuses(Q: Array, K: Array, V: Array, scores: Scores, platform: str) -> str | None:
    """Why the TPU's kernel cannot compute tiles ``[H, d, B, l]`` exactly, or None if it can."""
    block, mask = PALLAS_BLOCKS[-1], scores.mask
    if platform != "tpu":
        return f"it runs on a TPU, and the platform is {platform}"
    if Q.dtype not in (jnp.bfloat16, jnp.float32) or not Q.dtype == K.dtype == V.dtype:
        return f"it accepts bfloat16 or float32 throughout, got {Q.dtype}, {K.dtype} and {V.dtype}"
    if Q.shape[-1] % block or K.shape[-1] % block:
        return f"it needs multiples of {block} tokens, got l_x = {Q.shape[-1]} and l_z = {K.shape[-1]}"
    if scores.dropout:
        return "it has no dropout"
    if (reason := _refused_on_devices(Q, K, V, mask)) is not None:
        return reason
    if not isinstance(mask, StructuralMask):
        return "it accepts structural masks, not arrays"
    if mask.prefix is not None or mask.blocks_z is not None:
        return "it does not mask by a prefix or by blocks"
    return None if mask.first is None else "its first query is token 0"


def _refused_on_devices(Q: Array, K: Array, V: Array, mask: Mask) -> str | None:
    """Why a library's kernel cannot compute tiles that several devices hold, or None if it can."""
    if varies_over((Q, K, V, mask)):
        return "inside jax.shard_map it needs check_vma=False"
    if tokens_are_split(Q) and depends_on_position(mask):
        return "its mask counts from the first token, and the mesh axis context divides the tokens"
    return None


def library_attention(
    kernel: Any, Q: Queries, K: Keys, V: Values, mask: Mask, cap: float | None = None, of_itself: bool = False
) -> Outputs:
    """``V · softmax(KᵀQ/√d)`` by a library's kernel, and 0 for a token with nothing to attend to.

    ``of_itself``: whether the mask, if of documents, has the same numbers for queries and context.
    """
    V_tilde: Any = _differentiable(kernel, cap, Q, K, V, mask)
    has_context = _has_context(mask, K.shape[-1], Q.shape[-1], of_itself)
    if has_context is None:
        return V_tilde
    return jnp.where(jnp.broadcast_to(has_context, V_tilde.shape[2:])[None, None], V_tilde, 0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _differentiable(kernel: Any, cap: float | None, Q: Array, K: Array, V: Array, mask: Mask) -> Array:
    with _in_32_bits():
        return kernel(Q, K, V, mask, cap)


def _forward(kernel: Any, cap: float | None, Q: Array, K: Array, V: Array, mask: Mask) -> tuple[Array, Any]:
    matrices = Q, K, V
    with _in_32_bits():
        V_tilde, pullback = jax.vjp(lambda *matrices: kernel(*matrices, mask, cap), *jax.lax.stop_gradient(matrices))
    V_tilde = with_derivative_of(functools.partial(_values, cap), V_tilde, *matrices, mask)
    return V_tilde, (*matrices, mask, pullback)


def _backward(kernel: Any, cap: float | None, residuals: Any, E: Array) -> tuple[Any, ...]:
    *arguments, pullback = residuals
    with _in_32_bits():
        gradients = pullback(jax.lax.stop_gradient(E))
    return *with_derivative_of(functools.partial(_gradients, cap), gradients, *arguments, E), None


_differentiable.defvjp(_forward, _backward)


def _in_32_bits() -> AbstractContextManager[Any]:
    """A context without 64-bit types, which Mosaic, the TPU's kernel compiler, does not support."""
    return jax.enable_x64(False) if getattr(jax.config, "jax_enable_x64", False) else contextlib.nullcontext()


def _values(cap: float | None, Q: Array, K: Array, V: Array, mask: Mask) -> Array:
    return blockwise_attention.forward(Q, K, V, Scores(mask, cap=cap))[0]


def _gradients(cap: float | None, Q: Array, K: Array, V: Array, mask: Mask, E: Array) -> tuple[Array, ...]:
    _, residuals = blockwise_attention.forward(Q, K, V, Scores(mask, cap=cap))
    return blockwise_attention.backward(residuals, E)[:3]


def cudnn_attention(Q: Queries, K: Keys, V: Values, mask: Mask, cap: None) -> Outputs:
    """The kernel of cuDNN, forward and backward. An array becomes 0 or a large negative number, added to the scores;
    documents are an array, too, if a sequence has more than `CUDNN_DOCUMENTS` of them.

    JAX requires queries, keys and values with the same number of rows, a multiple of 8: zeros fill the shorter ones.
    """
    (d_attn, B, l_x), d_mid, l_z = Q.shape[1:], V.shape[1], K.shape[-1]
    d = -(-max(d_attn, d_mid) // 8) * 8

    def computed(attention: Any, *matrices: Array, **options: Any) -> Array:
        q, k, v = (_filled(a, d).transpose(2, 3, 0, 1) for a in matrices)  # [B, l, H, d]
        return attention(q, k, v, scale=d_attn**-0.5, **options)[..., :d_mid].transpose(2, 3, 0, 1)

    options: dict[str, Any] = {"implementation": "cudnn"}
    if isinstance(mask, StructuralMask) and not _is_array(mask):
        options["is_causal"] = mask.unidirectional
        if mask.width is not None:  # which bounds the past only: without is_causal, all of the future is allowed
            options["local_window_size"] = (mask.width - 1, 0)
        if mask.length is not None:
            options["key_value_seq_lengths"] = jnp.broadcast_to(jnp.asarray(mask.length, jnp.int32), (B,))
            options["query_seq_lengths"] = jnp.full(B, l_x, jnp.int32)
        return computed(jax.nn.dot_product_attention, Q, K, V, **options)

    def by_array(*matrices: Array) -> Array:
        allowed: Any = mask
        of_array = options
        if isinstance(mask, StructuralMask):
            of_array = options | {"is_causal": mask.unidirectional}  # so that the kernel skips the future
            allowed = mask.dense(l_z, l_x)
        allowed = jnp.broadcast_to(allowed.swapaxes(-1, -2), (B, l_x, l_z))[:, None]
        return computed(jax.nn.dot_product_attention, *matrices, mask=allowed, **of_array)

    if not _by_offsets(mask, Q, K):
        return by_array(Q, K, V)
    from jax._src.cudnn import fused_attention_stablehlo as cudnn  # as jax.nn's function does not accept offsets

    few, first, length = _offsets(mask, B)
    of_documents = {"q_seqlen": length, "kv_seqlen": length, "q_offsets": first, "kv_offsets": first}
    of_documents |= {"mask_type": cudnn.MaskType.PADDING_CAUSAL, "qkv_layout": "BTNH"}
    by_offsets = functools.partial(computed, cudnn.dot_product_attention, **of_documents)
    return jax.lax.cond(few, by_offsets, by_array, Q, K, V)


def _by_offsets(mask: Mask, Q: Array, K: Array) -> TypeGuard[StructuralMask]:
    """Whether cuDNN accepts the mask as the first tokens and lengths of documents.

    JAX asks the local GPU, so a program for another one gets an array. Before 0.11.1, it counts documents wrongly where
    heads share keys.
    """
    if not isinstance(mask, StructuralMask) or mask.documents_z is None or Q.shape[-1] != K.shape[-1]:
        return False
    alone = all(a is None for a in (mask.width, mask.length, mask.prefix, mask.blocks_z))
    local = (_compute_capability() or ()) >= (9, 0)
    return mask.unidirectional and alone and local and (len(Q) == len(K) or _numbers(jax.__version__) >= (0, 11, 1))


def _offsets(mask: StructuralMask, B: int) -> tuple[Array, Array, Array]:
    """The first tokens ``[B, CUDNN_DOCUMENTS + 1]`` and lengths ``[B, CUDNN_DOCUMENTS]`` of documents, −1 after the
    last, and whether they tell the mask: each sequence has so few, in rising order, the same in queries and context.
    """
    of_x, of_z = (jnp.broadcast_to(a, (B, a.shape[-1])) for a in (mask.documents_x, mask.documents_z))
    l, begins = of_z.shape[-1], jnp.diff(of_z, axis=1, prepend=of_z[:, :1] - 1) > 0
    few = (of_x == of_z).all() & (jnp.diff(of_z, axis=1) >= 0).all() & (begins.sum(axis=1) <= CUDNN_DOCUMENTS).all()
    first = jax.vmap(functools.partial(jnp.nonzero, size=CUDNN_DOCUMENTS, fill_value=-1))(begins)[0].astype(jnp.int32)
    first = jnp.pad(first, ((0, 0), (0, 1)), constant_values=-1)
    end = jnp.where(first[:, 1:] < 0, l, first[:, 1:])
    return few, first, jnp.where(first[:, :-1] < 0, -1, end - first[:, :-1])


def _filled(a: Float[Array, "H d_a B l"], d: int) -> Float[Array, "H d B l"]:
    """The same array, with zeros appended to reach d rows."""
    return a if a.shape[1] == d else jnp.pad(a, ((0, 0), (0, d - a.shape[1]), (0, 0), (0, 0)))


def pallas_attention(Q: Queries, K: Keys, V: Values, mask: Any, cap: float | None) -> Outputs:
    """The splash attention kernel for TPUs, forward and backward."""
    # importing it takes half a second
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as rules

    (H, _, B, l_x), l_z = Q.shape, K.shape[-1]
    rule = rules.CausalMask((l_x, l_z)) if mask.unidirectional else rules.FullMask((l_x, l_z))
    if mask.width is not None:
        rule = rules.LocalMask((l_x, l_z), (mask.width - 1, mask.ahead), 0)
    row = max(Q.shape[1], V.shape[1]) * Q.dtype.itemsize
    of_x, of_z = (_block(l, mask.width, row) for l in (l_x, l_z))
    pair = max(n for n in (of_z, min(2 * of_z, PALLAS_KEYS)) if l_z % n == 0)
    blocks = splash.BlockSizes(
        block_q=of_x,
        block_kv=of_z,
        block_kv_compute=min(of_z, PALLAS_SCORES),
        block_q_dkv=of_x,
        block_kv_dkv=pair,  # it writes and sums a gradient of Q for each block
        block_kv_dkv_compute=min(of_z, PALLAS_SCORES),
        use_fused_bwd_kernel=True,
        q_layout=splash.QKVLayout.SEQ_MINOR,  # tokens last, as ours: nothing is transposed, or padded to 128 rows
        k_layout=splash.QKVLayout.SEQ_MINOR,
        v_layout=splash.QKVLayout.SEQ_MINOR,
    )
    kernel = splash.make_splash_mha(
        rules.MultiHeadMask([rule] * H),
        block_sizes=blocks,
        attn_logits_soft_cap=cap,
        head_shards=1,
        q_seq_shards=1,
        residual_checkpoint_name="V_tilde",
    )
    q, k, v = (a.transpose(2, 0, 3, 1) for a in (scaled(Q, Q.shape[1] ** -0.5), K, V))  # [B, H, l, d]
    segments = _segments(mask, B, l_x, l_z)
    segments = None if segments is None else splash.SegmentIds(*segments)
    V_tilde: Any = jax.vmap(kernel)(q, k, v, segments)
    return V_tilde.transpose(1, 3, 0, 2)


def _block(l: int, width: int | None, row: int) -> int:
    """The tokens of a block: the most that divide l. More than 512 only in several blocks, since they skip less of the
    future, in wide windows, and for queries, keys and values of so few bytes that all fit into the chip's own memory.
    """
    pays = (width is None or width >= 4 * PALLAS_KEYS) and row <= PALLAS_ROW
    return next(n for n in PALLAS_BLOCKS if l % n == 0 and n <= (max(512, l // 2) if pays else 512))


def _segments(mask: StructuralMask, B: int, l_x: int, l_z: int) -> list[Integer[Array, "B l"]] | None:
    """Segment numbers of both sequences: tokens attend within a segment; None if the whole sequence is one segment."""
    if mask.length is None and mask.documents_z is None:
        return None
    documents = mask.documents_x, mask.documents_z
    of_x, of_z = (
        jnp.zeros(l, jnp.int32) if numbers is None else jnp.asarray(numbers, jnp.int32)
        for l, numbers in zip((l_x, l_z), documents, strict=True)
    )
    if mask.length is not None:
        length = jnp.broadcast_to(jnp.asarray(mask.length, jnp.int32), (B,))
        of_nothing = of_x.min(axis=-1, keepdims=True) - 1  # a number that no token x has
        within = jnp.arange(l_z, dtype=jnp.int32)[None] < length[:, None]
        of_z, of_nothing = (jnp.broadcast_to(a, (B, a.shape[-1])) for a in (of_z, of_nothing))
        of_z = jnp.where(within, of_z, of_nothing)
    return [jnp.broadcast_to(a, (B, a.shape[-1])) for a in (of_x, of_z)]


def _has_context(mask: Mask, l_z: int, l_x: int, of_itself: bool) -> Bool[Array, "*B l_x"] | None:
    """Whether each token has something to attend to; None if all tokens do."""
    if not isinstance(mask, StructuralMask):
        return mask.any(axis=-2)
    of_documents = mask.documents_z is not None and not (of_itself and mask.length is None)
    if of_documents or mask.prefix is not None or mask.blocks_z is not None:
        return mask.dense(l_z, l_x).any(axis=-2)
    if mask.length is None and (mask.width is None or l_x <= l_z):
        return None
    t_x = jnp.arange(l_x)
    first = jnp.maximum(0, t_x - mask.width + 1) if mask.width is not None else jnp.zeros(l_x, jnp.int32)
    end = jnp.full(l_x, l_z) if mask.ahead is None else jnp.minimum(t_x + 1 + mask.ahead, l_z)
    if mask.length is not None:
        length = jnp.asarray(mask.length, jnp.int32)
        end = jnp.minimum(jnp.broadcast_to(end, (*length.shape, l_x)), length[..., None])
    return jnp.broadcast_to(first, end.shape) < end
