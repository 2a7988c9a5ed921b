"""Which mesh axes divide which parameters: the table, by the paper's symbols.

A row has the mesh axes of an array's last axes; in front stand those of the layers, which nothing divides. ``model``
divides what the devices compute with: heads, hidden units, the vocabulary. ``data`` divides what they only keep, the
parameters and with them everything that an optimizer keeps of each parameter; they are gathered where they are used. An
axis that does not divide a size evenly leaves it whole, and so are copies along ``replica`` and ``context``.
"""

import math
from collections.abc import Mapping

from jax.sharding import PartitionSpec as P

DATA, MODEL = "data", "model"
BOTH = (MODEL, DATA)

TABLE: dict[str, tuple[str | tuple[str, ...] | None, ...]] = {
    "W_e": (DATA, MODEL),  # d_e, N_V
    "W_p": (DATA, None),  # d_e, l_max
    "W_t": (DATA, None),  # d_e, N_types
    "W_q": (MODEL, None, DATA),  # H, d_attn, d_x
    "W_k": (MODEL, None, DATA),  # H, d_attn, d_z
    "W_v": (MODEL, None, DATA),  # H, d_mid, d_z
    "b_q": (MODEL, DATA),  # H, d_attn
    "b_k": (MODEL, DATA),  # H, d_attn
    "b_v": (MODEL, DATA),  # H, d_mid
    "W_o": (DATA, MODEL),  # d_out, H·d_mid
    "b_o": (DATA,),  # d_out
    "gamma": (DATA,),  # d_e
    "beta": (DATA,),  # d_e
    "W_mlp1": (MODEL, DATA),  # d_mlp, d_e
    "b_mlp1": (BOTH,),  # d_mlp
    "W_mlp2": (DATA, MODEL),  # d_e, d_mlp
    "b_mlp2": (DATA,),  # d_e
    "W_f": (None, DATA),  # d_f, d_e
    "b_f": (DATA,),  # d_f
    "W_pool": (None, DATA),  # d_e, d_e
    "b_pool": (DATA,),  # d_e
    "W_u": (MODEL, DATA),  # N_V, d_e
    "b_u": (BOTH,),  # N_V
    "W_c": (None, DATA),  # N_C, d_e
    "b_c": (None,),  # N_C
}


def spec_of(name: str, shape: tuple[int, ...], sizes: Mapping[str, int]) -> P:
    """Return where an array lies.

    Args:
        name: the paper's symbol.
        shape: of the parameter, or of what an optimizer keeps of it, which may have fewer axes.
        sizes: of the mesh axes.
    """
    row = TABLE.get(name, ())
    row = (None,) * (len(shape) - len(row)) + row[max(0, len(row) - len(shape)) :]
    return P(*(_dividing(axes, size, sizes) for axes, size in zip(row, shape, strict=True)))


def _dividing(axes: str | tuple[str, ...] | None, size: int, sizes: Mapping[str, int]) -> tuple[str, ...] | None:
    """Those of the mesh axes that together divide a size evenly."""
    found: tuple[str, ...] = ()
    for axis in (axes,) if isinstance(axes, str) else axes or ():
        n = math.prod(sizes[a] for a in found) * sizes.get(axis, 1)
        if sizes.get(axis, 1) > 1 and size % n == 0:
            found = (*found, axis)
    return found or None
