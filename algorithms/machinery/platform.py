"""The platform that a program is compiled for."""

import jax
from jax import Array


def platform_of(X: Array) -> str:
    """The platform that is compiled for: that of the mesh X lies on, of the mesh in use, or the default device's."""
    for mesh in (jax.typeof(X).sharding.mesh, jax.sharding.get_abstract_mesh()):
        if getattr(mesh, "abstract_device", None) is not None:
            return mesh.abstract_device.platform
    device = getattr(jax.config, "jax_default_device", None)  # a device, or the name of a platform
    return getattr(device, "platform", device) or jax.default_backend()
