"""Dequantize the experts of gpt-oss's published checkpoints, which are in MXFP4.

A matrix W [rows, columns] is in two tensors: blocks of 32 numbers of a row, each a sign, two bits of exponent and one
of mantissa, two numbers a byte, low one first; and for each block a power of two. As bfloat16 they are exact.

Source: Open Compute Project 2023, "OCP Microscaling Formats (MX) Specification", version 1.0.
"""

from typing import Any

import ml_dtypes
import numpy as np

from training.interchange.containers import Tensors
from training.interchange.errors import InterchangeError

BLOCKS, SCALES = "_blocks", "_scales"
BIAS = 127
"""The exponent that stands for 2⁰."""
POSITIVE = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
VALUES = np.concatenate([POSITIVE, -POSITIVE])
"""The number for each half of a byte."""


def dequantized(tensors: Tensors, quantization: Any) -> Tensors:
    """Return tensors, which are changed: those in MXFP4 are dequantized, transposed, and have no suffix in their names.
    `quantization` is the field ``quantization_config``, None if nothing is quantized. Raises InterchangeError for
    another method, or blocks and scales that do not fit each other.
    """
    if quantization is None:
        return tensors
    method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
    if method != "mxfp4":
        raise InterchangeError(
            f"{tensors.path}: quantization_config: expected none, or the method mxfp4, got {str(method)[:60]!r}; get "
            "the model in float32, float16 or bfloat16, or as GGUF"
        )
    for name in [name for name in tensors.names if name.endswith(BLOCKS)]:
        whole = name.removesuffix(BLOCKS)
        shape, scales = tensors.shape(name), whole + SCALES
        if scales not in tensors.names or len(shape) != 4 or tensors.shape(scales) != shape[:-1] or shape[-1] != 16:
            found = list(tensors.shape(scales)) if scales in tensors.names else "none"
            raise InterchangeError(
                f"{tensors.path}: {name} and {scales}: expected [n, rows, blocks, 16] and [n, rows, blocks], got "
                f"{list(shape)} and {found}; download them again"
            )
        tensors.replace((name, scales), whole, (shape[0], 32 * shape[2], shape[1]), _dequantized)
    return tensors


def _dequantized(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Return the matrices of all experts, transposed, ``[n, columns, rows]``."""
    n, rows = blocks.shape[:2]
    out = np.empty((n, rows, 2 * blocks[0, 0].size), ml_dtypes.bfloat16)
    for i in range(n):  # one expert at a time is in memory as float32
        pairs = np.stack([VALUES[blocks[i] & 0x0F], VALUES[blocks[i] >> 4]], axis=-1)
        scaled = np.ldexp(pairs.reshape(*scales[i].shape, -1), scales[i].astype(np.int32)[..., None] - BIAS)
        out[i] = scaled.reshape(rows, -1)
    return out.swapaxes(1, 2)
