"""The shape of a mesh, such as `replica=2,data=4,model=2`, and the sizes that it must divide."""

import dataclasses
import itertools
import math

import jax

from training.settings import Settings

AXES = {
    "replica": "copies of the model, between hosts",
    "data": "divides the batch, and every parameter and its optimizer state",
    "context": "divides the tokens of each sequence",
    "model": "divides heads, hidden units and vocabulary",
}
"""The axes of a mesh; along the last one, devices are neighbors."""
BATCH_AXES = ("replica", "data")  # the axes that divide the sequences of a batch


class MeshError(ValueError):
    """A mesh is invalid, or does not fit; the message names the numbers and what would fit."""


def parse(text: str) -> dict[str, int]:
    """Return the sizes of a mesh's axes, in the order of `AXES`, empty for one device, or raise MeshError."""
    sizes: dict[str, int] = {}
    for part in text.split(",") if text.strip() else []:
        axis, _, size = (word.strip() for word in part.partition("="))
        if axis not in AXES or axis in sizes or not size.isdecimal() or int(size) < 1:
            raise MeshError(
                f"--mesh: expected {', '.join(AXES)}, each at most once and with a number of devices, such as "
                f"data=4,model=2, got {text!r}"
            )
        sizes[axis] = int(size)
    return {axis: sizes[axis] for axis in AXES if axis in sizes}


def n_places(text: str) -> int:
    """Return the number of devices of a mesh, or raise MeshError if the text is not a mesh."""
    return math.prod(parse(text).values())


def written(sizes: dict[str, int]) -> str:
    """Return a mesh as written on the command line."""
    return ",".join(f"{axis}={size}" for axis, size in sizes.items())


def check_devices(sizes: dict[str, int], n: int) -> None:
    """Check that a mesh is for n devices, or raise MeshError."""
    places = math.prod(sizes.values())
    if not sizes or places == n:
        return

    def distance(other: tuple[int, ...]) -> float:
        return sum(abs(math.log(a / b)) for a, b in zip(other, sizes.values(), strict=True))

    divisors = [d for d in range(1, n + 1) if n % d == 0]
    factorizations = (f for f in itertools.product(divisors, repeat=len(sizes)) if math.prod(f) == n)
    nearest = dict(zip(sizes, min(factorizations, key=distance), strict=True))
    there = "there is one" if n == 1 else f"there are {n}"
    raise MeshError(f"the mesh {written(sizes)} is for {places} devices, but {there}: give {written(nearest)}")


def check_sizes(settings: Settings, N_V: int | None = None) -> None:
    """Raise MeshError unless the mesh of a run divides all sizes that it splits, and N_V if given."""
    sizes, parts = parse(settings.mesh), settings.accumulation_steps
    split = {axis: n for axis, n in sizes.items() if axis in BATCH_AXES}
    n = math.prod(split.values())
    if settings.batch_size % (n * parts):
        each = f"batch_size is {settings.batch_size}" + (f" in {parts} parts" if parts > 1 else "")
        nearest = _nearest(settings.batch_size, n * parts)
        raise MeshError(f"{each}, which {written(split)} does not divide: give batch_size {nearest}")
    of_model = {"H": settings.H, "d_mlp": settings.d_mlp, "N_V": N_V}
    for axis, of_axis in (("model", of_model), ("context", {"l_max": settings.l_max})):
        n = sizes.get(axis, 1)
        for name, size in of_axis.items():
            if size is not None and size % n:
                raise MeshError(f"{name} is {size}, which {axis}={n} does not divide: {_advice(name, size, axis, n)}")


def _advice(name: str, size: int, axis: str, n: int) -> str:
    smaller = max(d for d in range(1, n) if size % d == 0)
    if name == "N_V":
        return f"give vocabulary_multiple {n}, or {axis}={smaller}"
    return f"give {name} {_nearest(size, n)}, or {axis}={smaller}"


def _nearest(size: int, n: int) -> int:
    """The positive multiple of n nearest to a size."""
    return max(1, round(size / n)) * n


def accelerators() -> int:
    """Return the number of accelerators of all processes; 0 on a CPU, whose cores already share the work."""
    return 0 if jax.default_backend() == "cpu" else jax.device_count()


def over_all(settings: Settings, n: int, *, chosen: bool) -> tuple[Settings, str]:
    """Return the settings with the mesh data=n if nobody chose one and n divides the batch, and a note, or ""."""
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
