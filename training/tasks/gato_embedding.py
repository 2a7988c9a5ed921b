"""Gato: Algorithm 10 with an embedding for each modality in line 2 (Phuong and Hutter 2022, §6).

Text is tokens. Images are patches in raster order, each embedded by a residual block. Discrete values have tokens of
their own. One sequence may mix all of these::

    E = gato_embedding(x, patches, at, row, column, *theta)     # in place of W_e[:, x[t]] in line 2
    X = d_hidden_state(E, theta.transformer)                    # the rest of line 2, and lines 3-10, of Algorithm 10
"""

import dataclasses
import math
from typing import NamedTuple, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Integer, Key

from algorithms.alg01_embedding import positional_embedding
from algorithms.machinery.arrays import AnyArray
from algorithms.machinery.contract import Role, arrays_of, compiled
from algorithms.machinery.devices import shard
from algorithms.machinery.record import serializable
from algorithms.model.initialization import Scheme, init_d_transformer
from algorithms.model.sizes import DTransformerConfig, Size
from algorithms.model.theta import DTransformerParams
from algorithms.notation import Choice
from algorithms.ops.activation import activate
from algorithms.ops.linear import linear

BINS = 1024
"""Gato's number of discrete values."""
EPSILON = 1e-6
"""Added to the variance of a group of channels, which is 0 in a blank patch."""


@serializable
class PatchParams(NamedTuple):
    """Parameters that embed image patches: a residual block of n_groups · d_group channels, and positions."""

    K_in: Float[Array, "d_r channels k k"]
    b_in: Float[Array, "d_r"]
    gamma1: Float[Array, "n_groups d_group"]
    beta1: Float[Array, "n_groups d_group"]
    K_1: Float[Array, "d_r d_r k k"]
    b_1: Float[Array, "d_r"]
    gamma2: Float[Array, "n_groups d_group"]
    beta2: Float[Array, "n_groups d_group"]
    K_2: Float[Array, "d_r d_r k k"]
    b_2: Float[Array, "d_r"]
    W_out: Float[Array, "d_e side*side*d_r"]
    b_out: Float[Array, "d_e"]
    W_row: Float[Array, "d_e n_rows"]
    W_column: Float[Array, "d_e n_columns"]

    def __declared__(self) -> "PatchParams":
        tables: dict[str, Role] = {"W_row": "embedding", "W_column": "embedding"}
        return arrays_of(PatchParams, K_in="kernel", K_1="kernel", K_2="kernel", **tables)


@serializable
class GatoParams(NamedTuple):
    """θ of Gato: that of Algorithm 10, whose W_e embeds text and values, and the parameters that embed patches."""

    transformer: DTransformerParams
    image: PatchParams


@dataclasses.dataclass(frozen=True, kw_only=True)
class GatoConfig(DTransformerConfig):
    """Hyperparameters of Gato."""

    patch: Size = 16  # side of a patch, in pixels
    channels: Size = 1  # of an image
    d_r: Size = 96  # channels of the residual block
    n_groups: Size = 32  # groups of channels that its norms are taken over
    n_places: Size = 16  # most rows, and most columns, of patches in an image

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.d_r % self.n_groups:
            expected = f"expected a divisor of d_r = {self.d_r}"
            self._refuse("n_groups", f"{expected}, got {self.n_groups}; change one of them")


def init_gato(
    key: Key[Array, ""], config: GatoConfig, *, scheme: Scheme = "glorot", dtype: DTypeLike = jnp.float32
) -> GatoParams:
    """θ of Gato: Algorithm 10's by the scheme, and a residual block whose kernels preserve their input's variance."""
    c, keys = config, jax.random.split(key, 7)

    def normal(key, *shape, deviation):
        return deviation * jax.random.normal(key, shape, dtype)

    def kernel(key, channels):
        return normal(key, c.d_r, channels, 3, 3, deviation=(9 * channels) ** -0.5)

    zero = jnp.zeros(c.d_r, dtype)
    gamma = jnp.ones((c.n_groups, c.d_r // c.n_groups), dtype)
    image = PatchParams(
        kernel(keys[1], c.channels), zero, gamma, 0 * gamma, kernel(keys[2], c.d_r), zero, gamma, 0 * gamma,
        kernel(keys[3], c.d_r), zero, normal(keys[4], c.d_e, c.patch**2 * c.d_r, deviation=1 / (c.patch * c.d_r**0.5)),
        jnp.zeros(c.d_e, dtype), *(normal(key, c.d_e, c.n_places, deviation=0.02) for key in keys[5:]),
    )  # fmt: skip
    return GatoParams(init_d_transformer(keys[0], config, scheme=scheme, dtype=dtype), image)


def raster(image: np.ndarray, *, side: int, n_places: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The non-overlapping patches of images [*batch, height, width, channels], left to right and top to bottom, divided
    by √side as Gato does: [side, side, channels, *batch, n]; and the row and the column of each, [n]. Raises
    ValueError if they do not tile the images, are more than n_places in a row or column, or a pixel is outside [-1, 1].
    """
    *batch, height, width, channels = image.shape
    if side < 1 or height % side or width % side:
        raise ValueError(
            f"image: expected height and width that patches of side {side} tile, got {height} x {width}; crop or pad "
            f"it to multiples of {max(side, 1)}, or give another side"
        )
    rows, columns = height // side, width // side
    if max(rows, columns) > n_places:
        raise ValueError(
            f"image: expected at most {n_places} rows and columns of patches, one for each position in an image, got "
            f"{rows} x {columns}; scale it to at most {side * n_places} x {side * n_places} pixels, "
            "or train with a larger n_places"
        )
    if not np.all(np.abs(image) <= 1):
        raise ValueError("image: expected finite numbers from -1 to 1, such as pixels / 127.5 - 1, got others")
    grid = np.moveaxis(image.reshape(*batch, rows, side, columns, side, channels), (-4, -2, -1), (0, 1, 2))
    row, column = np.indices((rows, columns))
    return grid.reshape(side, side, channels, *batch, rows * columns) / side**0.5, row.ravel(), column.ravel()


@compiled
def patch_embedding(
    patches: Float[AnyArray, "side side channels *batch n"],
    row: Integer[AnyArray, "*#batch n"],
    column: Integer[AnyArray, "*#batch n"],
    image: PatchParams,
    **options: Unpack[Choice],
) -> Float[Array, "d_e *batch n"]:
    """Gato's embedding of image patches: a residual block, and the position within the image.

    For each patch p, in this row and column of the patches of its image::

        U ← Conv(p | K_in, b_in)
        V ← Conv(GELU(norm(U | γ¹, β¹)) | K_1, b_1)
        U ← U + Conv(GELU(norm(V | γ², β²)) | K_2, b_2)
        e ← W_out vec(U) + b_out + W_row[:, row] + W_column[:, column]

    Conv is a 3×3 convolution, padded with 0, and norm normalizes each group of channels over all pixels of the patch.
    A row or column outside [0, n_places) gives NaN.

    Source: Reed et al. 2022, "A Generalist Agent", §2.2 and appendix C: a residual block in the order of He et al.
    2016b, with group norms and GELU. Departures: Gato scales rows and columns to 128 positions and, in training, draws
    a random one within the patch; here each row and each column of patches has one position.
    """
    side, _, channels, *columns = patches.shape
    p = jnp.moveaxis(patches.reshape(side, side, channels, math.prod(columns)), -1, 0).astype(image.K_in.dtype)
    U = _conv(p, image.K_in, image.b_in)
    V = _conv(activate("gelu", _group_norm(U, image.gamma1, image.beta1)), image.K_1, image.b_1)
    U = U + _conv(activate("gelu", _group_norm(V, image.gamma2, image.beta2)), image.K_2, image.b_2)
    vec = jnp.moveaxis(U, 0, -1).reshape(math.prod(U.shape[1:]), *columns)
    E = linear(image.W_out, vec, image.b_out)
    for place, W in ((row, image.W_row), (column, image.W_column)):
        E = E + positional_embedding(place.reshape(*(1,) * (len(columns) - place.ndim), *place.shape), W)
    return E


def _conv(p: Float[Array, "n side side d"], K: Float[Array, "d_out d k k"], b: Float[Array, "d_out"]) -> Array:
    """The 3×3 convolution of each patch, padded with 0: ``out[i,j,o] = Σ K[o,c,a,b] p[i + a − 1, j + b − 1, c]``."""
    out = jax.lax.conv_general_dilated(p, K, (1, 1), "SAME", dimension_numbers=("NHWC", "OIHW", "NHWC"))
    return out + b[None, None, None]


def _group_norm(U: Float[Array, "n side side d"], gamma: Array, beta: Array) -> Array:
    """Each group of channels of a patch, normalized over its pixels and channels."""
    grouped = U.reshape(*U.shape[:3], *gamma.shape)
    m = grouped.mean(axis=(1, 2, 4), keepdims=True)
    v = ((grouped - m) ** 2).mean(axis=(1, 2, 4), keepdims=True)
    normalized = (grouped - m) / jnp.sqrt(v + EPSILON)
    return (normalized * gamma[None, None, None] + beta[None, None, None]).reshape(U.shape)


@compiled
def gato_embedding(
    x: Integer[AnyArray, "*batch l"],
    patches: Float[AnyArray, "side side channels *batch n"],
    at: Integer[AnyArray, "*batch l"],
    row: Integer[AnyArray, "*#batch n"],
    column: Integer[AnyArray, "*#batch n"],
    theta: DTransformerParams,
    image: PatchParams,
    **options: Unpack[Choice],
) -> Float[Array, "d_e *batch l"]:
    """Gato's embeddings of text, values and patches in one sequence, for line 2 of Algorithm 10.

    ``at[t]`` is the number of the patch at position t, or −1 if the token x[t], text or a value, is there::

        2  for t ∈ [ℓ]: e_t ← W_e[:, x[t]] + W_p[:, t]                        where at[t] = −1
                        e_t ← patch_embedding(patches[at[t]]) + W_p[:, t]      elsewhere

    The result has no W_p: `d_hidden_state` and the others, which take it in place of tokens, add that.

    Departures from Reed et al. 2022: W_p has a position for each token of the sequence, as in Algorithm 10; Gato's are
    positions within a time step.

    Source: Phuong and Hutter 2022, §6, Gato.
    """
    tokens = shard(theta.variant.embedding.tokens(jnp.where(at < 0, x, 0), theta), "tokens")
    of_patches = patch_embedding(patches, row, column, image)
    of_patches = jnp.take_along_axis(of_patches, jnp.maximum(at, 0)[None], axis=-1, mode="fill")
    return jnp.where(at[None] < 0, tokens, of_patches)
