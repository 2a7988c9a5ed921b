"""Sequence parallelism by hand: inside ``jax.shard_map``, each device computes the columns of its own tokens.

Positions and the mask are shifted by the device's first token, and a custom line gathers keys and values. With eight
devices (on a CPU, JAX_NUM_CPU_DEVICES=8), loss and gradient are those of one device:

>>> from jax.sharding import PartitionSpec
>>> from algorithms import DTransformerConfig, init_d_transformer
>>> config = DTransformerConfig(N_V=23, l_max=16, L=2, H=2, d_e=16, d_mlp=32)
>>> theta = init_d_transformer(jax.random.key(0), config)
>>> x = jnp.tile(jnp.array([[3, 1, 4, 1], [2, 7, 1, 8], [0, 5, 7, 7]]), (1, 4))  # [3, 16]
>>> targets = jnp.roll(x, -1, axis=-1)
>>> ring, columns = jax.make_mesh((8,), ("cp",)), PartitionSpec(None, "cp")
>>> specs = {"in_specs": (PartitionSpec(), columns, columns), "out_specs": PartitionSpec()}
>>> of_devices = jax.shard_map(nats, mesh=ring, **specs)
>>> with jax.set_mesh(ring):
...     divided = [jax.device_put(a, columns) for a in (x, targets)]
...     gathering = theta._replace(variant=theta.variant.but(attention=Gathering()))
...     value, gradient = jax.jit(jax.value_and_grad(of_devices))(gathering, *divided)
>>> whole = jax.value_and_grad(lambda theta: d_token_losses(x, theta, targets=targets).sum())(theta)
>>> bool(jnp.allclose(value, whole[0], rtol=1e-5) & jnp.allclose(gradient.W_e, whole[1].W_e, atol=1e-3))
True
"""

import dataclasses

import jax
import jax.numpy as jnp

from algorithms import d_token_losses
from algorithms.lines import Attention
from algorithms.masks import StructuralMask


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gathering(Attention):
    """Attention to the keys and values of all devices."""

    def read(self, Q, K, V, at):
        read = super().read(Q, K, V, at)
        return read._replace(K=gathered(read.K), V=gathered(read.V))


def gathered(a):
    """Return the columns of all devices along the mesh axis ``cp``."""
    return jax.lax.all_gather(a, "cp", axis=a.ndim - 1, tiled=True)


def nats(theta, x, targets):
    """Return the loss of this device's columns, summed over all devices."""
    first = jax.lax.axis_index("cp") * x.shape[-1]
    mask = StructuralMask(unidirectional=True, first=first)
    positions = first + jnp.arange(x.shape[-1])
    losses = d_token_losses(x, theta, targets=targets, mask=mask, positions=positions)
    return jax.lax.psum(losses.sum(), "cp")
