"""What a run without a mesh does on a machine with several accelerators: it uses them, if they divide the batch."""

import dataclasses

import jax

from training.mesh.shape import MeshError, check_sizes, parse
from training.settings import Settings


def accelerators() -> int:
    """Return the number of accelerators of all processes; 0 on a CPU, whose cores already share the work."""
    return 0 if jax.default_backend() == "cpu" else jax.device_count()


def over_all(settings: Settings, n: int, *, chosen: bool) -> tuple[Settings, str]:
    """Return the settings with the mesh data=n if nobody has chosen a mesh and n devices divide the batch, and a note
    that says so, or what to type if devices are left idle; "" if there is nothing to say.

    Example:
        >>> over_all(Settings(task="d", batch_size=16), 8, chosen=False)[1]
        'all 8 devices share the work: --mesh data=8 (--mesh "" uses one)'
    """
    if n < 2 or parse(settings.mesh):
        return settings, ""
    divided = dataclasses.replace(settings, mesh=f"data={n}")
    try:
        check_sizes(divided)
    except MeshError as error:
        return settings, f"{n - 1} of {n} devices are idle: for --mesh data={n}, {error}"
    if chosen:
        return settings, f"{n - 1} of {n} devices are idle: --mesh data={n} uses all"
    return divided, f'all {n} devices share the work: --mesh data={n} (--mesh "" uses one)'
