"""A plain Llama to compare with, in the usual [batch, token, feature] layout, with each platform's usual kernel."""

from typing import Any

import jax
import jax.numpy as jnp

from training.benchmarks.reference import attention, cross_entropy

LLAMA_1G = {"N_V": 32_000, "l_max": 2048, "L": 22, "H": 32, "H_kv": 4, "d_e": 2048, "d_mlp": 5632}
"""TinyLlama's sizes: 1.1 G parameters, untied."""


def parameters(sizes: dict[str, int]) -> dict[str, Any]:
    """Return the shapes of all parameters, float32, stacked over layers."""
    d, f, L, N_V = sizes["d_e"], sizes["d_mlp"], sizes["L"], sizes["N_V"]
    kv = d // sizes["H"] * sizes["H_kv"]
    layer = {"norm1": (d,), "q": (d, d), "k": (d, kv), "v": (d, kv), "out": (d, d)}
    layer |= {"norm2": (d,), "gate": (d, f), "up": (d, f), "down": (f, d)}
    shapes = {"W_e": (N_V, d), "W_u": (N_V, d), "norm": (d,), "layers": {n: (L, *s) for n, s in layer.items()}}
    return jax.tree.map(lambda s: jax.ShapeDtypeStruct(s, jnp.float32), shapes, is_leaf=lambda s: isinstance(s, tuple))


def norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    """RMSnorm of the last axis, in float32."""
    y = x.astype(jnp.float32)
    y = y * jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + 1e-5)
    return (y * scale).astype(x.dtype)


def rotated(x: jax.Array) -> jax.Array:
    """Rotary positions of [B, l, H, d]; rotates the first half of the features with the second."""
    l, d = x.shape[1], x.shape[-1]
    angle = jnp.arange(l)[:, None] * 10_000.0 ** (-jnp.arange(0, d, 2)[None] / d)
    cos, sin = (f(angle)[None, :, None] for f in (jnp.cos, jnp.sin))
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def loss(theta: Any, x: jax.Array, *, H: int, kernel: str, remat: bool, unroll: bool = False) -> jax.Array:
    """Return the nats of the next tokens of x: [B, l], divided by the size of x; in bfloat16, logits in float32."""
    theta = jax.tree.map(lambda a: a.astype(jnp.bfloat16), theta)

    def layer(h, w):
        y = norm(h, w["norm1"])
        d = y.shape[-1] // H
        q, k, v = ((y @ w[a]).reshape(*x.shape, -1, d) for a in "qkv")
        q, k = rotated(q), rotated(k)
        if kernel == "splash":  # which needs as many heads of keys as of queries
            k, v = (jnp.repeat(a, H // a.shape[2], axis=2) for a in (k, v))
        h = h + attention(q, k, v, kernel).reshape(h.shape) @ w["out"]
        y = norm(h, w["norm2"])
        return h + (jax.nn.silu(y @ w["gate"]) * (y @ w["up"])) @ w["down"], None

    layer = jax.checkpoint(layer, prevent_cse=unroll) if remat else layer
    h, _ = jax.lax.scan(layer, theta["W_e"][x], theta["layers"], unroll=unroll)
    return cross_entropy(norm(h, theta["norm"]), theta["W_u"], x) / x.size
