"""Gato's lines 1 to 3 (document 004, §6): each modality by itself, then one sequence of them for Algorithm 10."""

from typing import Any

import numpy as np

from .components import Array, gelu, token_embedding

EPSILON = 1e-6


def patches_of(image: Array, side: int) -> list[tuple[Array, int, int]]:
    """Return the patches of an image in raster order, with their rows and columns of patches.

    `image`: pixels from -1 to 1, [height, width, channels]; `side`: of a patch. Result: [side, side, channels]
    divided by the square root of the side, row, column; left to right, top to bottom.
    """
    height, width, _ = image.shape
    found = []
    for row in range(height // side):
        for column in range(width // side):
            patch = image[row * side : (row + 1) * side, column * side : (column + 1) * side]
            found.append((patch / np.sqrt(side), row, column))
    return found


def convolution(p: Array, K: Array, b: Array) -> Array:
    """Return the 3×3 convolution of a patch, which is surrounded by zeros.

    `p`: [side, side, d]; `K`: [d_out, d, 3, 3]; `b`: [d_out].
    """
    side, surrounded = len(p), np.pad(p, ((1, 1), (1, 1), (0, 0)))
    out = np.zeros((side, side, len(b)))
    for i in range(side):
        for j in range(side):
            for o in range(len(b)):
                near = np.moveaxis(surrounded[i : i + 3, j : j + 3], -1, 0)
                out[i, j, o] = b[o] + (K[o] * near).sum()
    return out


def group_norm(U: Array, gamma: Array, beta: Array) -> Array:
    """Return a patch with each group of its channels normalized over pixels and channels.

    `U`: [side, side, n_groups · d_group]; `gamma`: [n_groups, d_group]; `beta`: [n_groups, d_group].
    """
    n_groups, d_group = gamma.shape
    out = np.zeros_like(U)
    for g in range(n_groups):
        group = U[:, :, g * d_group : (g + 1) * d_group]
        m = group.sum() / group.size
        v = ((group - m) ** 2).sum() / group.size
        for k in range(d_group):
            out[:, :, g * d_group + k] = (group[:, :, k] - m) / np.sqrt(v + EPSILON) * gamma[g, k] + beta[g, k]
    return out


def patch_embedding(patch: Array, row: int, column: int, image: Any) -> Array:
    """Return the embedding of a patch: a residual block, and the position within the image.

    `patch`: [side, side, channels]; `row`: of patches; `column`: of patches; `image`: K_in, b_in, gamma1, beta1,
    K_1, b_1, gamma2, beta2, K_2, b_2, W_out, b_out, W_row, W_column.
    """
    U = convolution(patch, image.K_in, image.b_in)
    V = convolution(gelu(group_norm(U, image.gamma1, image.beta1)), image.K_1, image.b_1)
    U = U + convolution(gelu(group_norm(V, image.gamma2, image.beta2)), image.K_2, image.b_2)
    e = image.W_out @ U.ravel() + image.b_out
    return e + image.W_row[:, row] + image.W_column[:, column]


def gato_embedding(sequence: list[Any], theta: Any) -> Array:
    """Return the embeddings of Gato, without positions.

    `sequence`: of each column a token ID, or a patch as `patches_of` gives it; `theta`: transformer (W_e) and image.
    Result: [d_e, l].
    """
    W_e, image = theta.transformer.W_e, theta.image
    e = [patch_embedding(*v, image=image) if isinstance(v, tuple) else token_embedding(v, W_e) for v in sequence]
    E: Array = np.stack(e, axis=1)
    return E
