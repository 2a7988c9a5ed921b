"""The platforms' own attention kernels, behind the same function and masks.

cuDNN's through ``jax.nn.dot_product_attention``, and on a TPU the Pallas kernel that is shipped with JAX. Whatever they
cannot do exactly is refused with the reason; a token that may attend to nothing is set to 0 afterwards, where the
kernels return something else.
"""

import math

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from algorithms.machinery.hand_derived import varies_over
from algorithms.masks import Mask, StructuralMask

_NOT_IN_SHARD_MAP = "inside jax.shard_map it needs check_vma=False"

PALLAS_BLOCK = 128
"""The TPU kernel takes whole blocks of this many tokens."""


def cudnn_refuses(Q: Array, K: Array, V: Array, mask: Mask, dropout: float, platform: str) -> str | None:
    """Why cuDNN's kernel cannot serve tiles ``[H, d, B, l]`` exactly, or None if it can."""
    d_attn, d_mid = Q.shape[1], V.shape[1]
    if platform not in ("gpu", "cuda"):
        return f"it runs on an NVIDIA GPU, and the platform is {platform}"
    if Q.dtype not in (jnp.bfloat16, jnp.float16) or not Q.dtype == K.dtype == V.dtype:
        return f"it takes bfloat16 or float16 throughout, got {Q.dtype}, {K.dtype} and {V.dtype}"
    if d_attn != d_mid or d_attn > 128 or d_attn % 8:
        return f"it needs d_attn = d_mid, at most 128 and a multiple of 8, got d_attn = {d_attn} and d_mid = {d_mid}"
    if dropout:
        return "its dropout is not drawn from the key"
    if varies_over((Q, K, V, mask)):
        return _NOT_IN_SHARD_MAP
    if isinstance(mask, StructuralMask) and mask.documents_z is not None:
        return "it has no mask for the borders of documents"
    return None


def cudnn_attention(
    Q: Float[Array, "H d B l_x"], K: Float[Array, "H d B l_z"], V: Float[Array, "H d B l_z"], mask: Mask
) -> Float[Array, "H d B l_x"]:
    """``V · softmax(KᵀQ/√d)`` by cuDNN's kernel, forward and backward."""
    B, l_x, l_z = Q.shape[2], Q.shape[-1], K.shape[-1]
    q, k, v = (a.transpose(2, 3, 0, 1) for a in (Q, K, V))  # [B, l, H, d]
    options = {}
    if isinstance(mask, StructuralMask):
        options["is_causal"] = mask.unidirectional and mask.width is None
        if mask.width is not None:
            options["local_window_size"] = (mask.width - 1, 0)
        if mask.length is not None:
            options["key_value_seq_lengths"] = jnp.broadcast_to(jnp.asarray(mask.length, jnp.int32), (B,))
            options["query_seq_lengths"] = jnp.full(B, l_x, jnp.int32)
    else:
        options["mask"] = jnp.broadcast_to(mask.swapaxes(-1, -2), (B, l_x, l_z))[:, None]
    out = jax.nn.dot_product_attention(q, k, v, implementation="cudnn", **options)
    return _zero_for_nothing(out.transpose(2, 3, 0, 1), mask, l_z)


def pallas_refuses(Q: Array, K: Array, V: Array, mask: Mask, dropout: float, platform: str) -> str | None:
    """Why the TPU's kernel cannot serve tiles ``[H, d, B, l]`` exactly, or None if it can."""
    d_attn, d_mid = Q.shape[1], V.shape[1]
    if platform != "tpu":
        return f"it runs on a TPU, and the platform is {platform}"
    if Q.dtype not in (jnp.bfloat16, jnp.float32) or not Q.dtype == K.dtype == V.dtype:
        return f"it takes bfloat16 or float32 throughout, got {Q.dtype}, {K.dtype} and {V.dtype}"
    if d_attn != d_mid:
        return f"it needs d_attn = d_mid, got {d_attn} and {d_mid}"
    if Q.shape[-1] % PALLAS_BLOCK or K.shape[-1] % PALLAS_BLOCK:
        return f"it needs multiples of {PALLAS_BLOCK} tokens, got l_x = {Q.shape[-1]} and l_z = {K.shape[-1]}"
    if dropout:
        return "it has no dropout"
    if varies_over((Q, K, V, mask)):
        return _NOT_IN_SHARD_MAP
    if (n := _devices_to_split_between(Q)) > 1:
        return f"XLA cannot split it between the {n} devices of the mesh; call it in jax.shard_map with check_vma=False"
    if not isinstance(mask, StructuralMask) or mask.width is not None:
        return "its masks are bidirectional, unidirectional, padding and documents"
    if mask.length is not None and mask.documents_z is not None:
        return "documents with padding may leave a token nothing to attend to, which it does not tell"
    return None


def _devices_to_split_between(Q: Array) -> int:
    """How many devices of the mesh in use XLA itself divides a program between."""
    mesh = jax.sharding.get_abstract_mesh() if jax.typeof(Q).sharding.mesh.empty else jax.typeof(Q).sharding.mesh
    return math.prod(size for axis, size in mesh.shape.items() if axis not in mesh.manual_axes)


def pallas_attention(
    Q: Float[Array, "H d B l_x"], K: Float[Array, "H d B l_z"], V: Float[Array, "H d B l_z"], mask: StructuralMask
) -> Float[Array, "H d B l_x"]:
    """``V · softmax(KᵀQ/√d)`` by the Pallas kernel for TPUs, forward and backward."""
    from jax.experimental.pallas.ops.tpu.flash_attention import SegmentIds, flash_attention  # takes half a second

    B, l_x, l_z = Q.shape[2], Q.shape[-1], K.shape[-1]
    q, k, v = (a.transpose(2, 0, 3, 1) for a in (Q, K, V))  # [B, H, l, d]
    segments = None
    if mask.length is not None or mask.documents_z is not None:
        of_x = jnp.zeros(l_x, jnp.int32) if mask.documents_x is None else mask.documents_x
        of_z = jnp.zeros(l_z, jnp.int32) if mask.documents_z is None else mask.documents_z
        of_z = jnp.broadcast_to(of_z, (B, l_z)).astype(jnp.int32)
        if mask.length is not None:
            length = jnp.broadcast_to(jnp.asarray(mask.length, jnp.int32), (B,))
            of_z = jnp.where(jnp.arange(l_z)[None] < length[:, None], of_z, -1)
        segments = SegmentIds(jnp.broadcast_to(of_x, (B, l_x)).astype(jnp.int32), of_z)
    out = flash_attention(q, k, v, segment_ids=segments, causal=mask.unidirectional, sm_scale=float(Q.shape[1]) ** -0.5)
    return _zero_for_nothing(out.transpose(1, 3, 0, 2), mask, l_z)


def _zero_for_nothing(V_tilde: Float[Array, "H d B l_x"], mask: Mask, l_z: int) -> Float[Array, "H d B l_x"]:
    """Ṽ with 0 in the columns of tokens that may attend to nothing."""
    something = _something(mask, l_z, V_tilde.shape[-1])
    something = jnp.broadcast_to(something, (V_tilde.shape[2], V_tilde.shape[3]))
    return jnp.where(something[None, None], V_tilde, 0)


def _something(mask: Mask, l_z: int, l_x: int) -> Bool[Array, "*B l_x"]:
    if not isinstance(mask, StructuralMask):
        return mask.any(axis=-2)
    t_x = jnp.arange(l_x)
    first = jnp.maximum(0, t_x - mask.width + 1) if mask.width is not None else jnp.zeros(l_x, jnp.int32)
    end = jnp.minimum(t_x + 1, l_z) if mask.unidirectional else jnp.full(l_x, l_z)
    if mask.length is not None:
        length = jnp.asarray(mask.length, jnp.int32)
        end = jnp.minimum(jnp.broadcast_to(end, (*length.shape, l_x)), length[..., None])
    return jnp.broadcast_to(first, end.shape) < end
