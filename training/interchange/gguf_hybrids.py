"""Hybrids in GGUF: which layers are recurrences, and the shapes of their tensors.

A layer whose number of heads of keys is 0 is a recurrence (`granitehybrid`, `kimi-linear`); in `qwen3next` and
`qwen35`, every n-th layer has attention. In place of the logarithm a, a file has −e^a. In `qwen35`, heads of values
that share keys do not follow one another: the first of each key come first, then the second of each.
"""

from typing import Any

import numpy as np

from training.interchange.gguf_file import Metadata
from training.interchange.hybrids import LINEAR
from training.interchange.mapping import Shape
from training.interchange.rotary import FULL

FLAT = ("ssm_a", "ssm_d", "ssm_norm")
"""Arrays that are one column here, whatever axes they have in a file."""
TAPS = ("ssm_conv1d", "ssm_conv1d_q", "ssm_conv1d_k", "ssm_conv1d_v")
"""The taps of convolutions: matrices here."""
EXACT = (*FLAT, *TAPS)
"""Tensors that llama.cpp reads in float32."""
OF_VALUES = ("attn_qkv", "attn_gate", "ssm_alpha", "ssm_beta", "ssm_a", "ssm_dt", "ssm_conv1d", "ssm_out")
"""Tensors with rows, or columns (`ssm_out`), of value heads; `attn_qkv` and the taps have others before them."""


def flat(part: str, shape: Shape) -> Shape:
    """Return the shape here of a tensor in a file."""
    if part in FLAT:
        return (int(np.prod(shape)),)
    if part == "ffn_gate_inp_shexp":
        return (1, shape[-1])
    return (int(np.prod(shape[:-1])), shape[-1]) if part in TAPS and len(shape) > 1 else shape


def with_rates(array: np.ndarray, *, write: bool) -> np.ndarray:
    """Return −e^a in place of a, to `write`, or the other way round."""
    array = array.astype(np.float32)
    return -np.exp(array) if write else np.log(-array)


def with_values_by_keys(part: str, array: np.ndarray, state: dict[str, Any], *, write: bool) -> np.ndarray:
    """Return a tensor with the heads of values in the order of `qwen35`, to `write`, or the other way round."""
    n, n_keys = (state[f"linear_num_{kind}_heads"] for kind in ("value", "key"))
    axis, first = int(part == "ssm_out"), 2 * n_keys * state["linear_key_head_dim"] * (part in ("attn_qkv", *TAPS))
    if part not in OF_VALUES or (array.shape[axis] - first) % n or n % n_keys:
        return array  # the mapping reports a wrong shape
    before, values = np.split(np.moveaxis(array, axis, 0), [first])
    heads = (n_keys, n // n_keys) if write else (n // n_keys, n_keys)
    values = values.reshape(*heads, -1, *values.shape[1:]).swapaxes(0, 1).reshape(values.shape)
    return np.moveaxis(np.concatenate([before, values]), 0, axis)


def rows_of_values(m: Metadata, n: int) -> int:
    """Return how many rows each of n heads of values has."""
    inner = m.integer("ssm.inner_size")
    if inner % n:
        raise m.wrong("ssm.inner_size", f"a multiple of ssm.time_step_rank = {n}")
    return inner // n


def by_heads(m: Metadata) -> tuple[list[str], int]:
    """Return the kind of each layer, and the number of heads of keys in those with attention."""
    counts, L = m.raw("attention.head_count_kv"), m.layers()
    counts = [counts] * L if isinstance(counts, int) else counts
    fits = isinstance(counts, list) and len(counts) == L and all(isinstance(n, int) and n >= 0 for n in counts)
    if not fits or len({*counts} - {0}) != 1:
        raise m.wrong("attention.head_count_kv", f"a number for each of {L} layers: 0, and the same in all others")
    return [FULL if n else LINEAR for n in counts], max(counts)


def heads_of_layers(state: dict[str, Any], n: int) -> dict[str, Any]:
    """Return the metadata on which layers have attention, with n heads of keys."""
    return {"attention.head_count_kv": [n if kind == FULL else 0 for kind in state["layer_types"]]}


def interval_of(state: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata on which layers have attention; what they do not say differs when they are read back."""
    types = state["layer_types"]
    return {"full_attention_interval": types.index(FULL) + 1 if FULL in types else len(types) + 1}
