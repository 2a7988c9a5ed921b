"""Rotary positions and sizes of decoders in the metadata of a GGUF file, as the fields of a config.json."""

import dataclasses
import math
from typing import Any

import numpy as np

from algorithms.lines import Llama3, Rotary, Yarn
from training.interchange.errors import InterchangeError
from training.interchange.gguf_file import Keys, Metadata, keys
from training.interchange.rotary import rotary_fields

ROPE_FACTORS = "rope_freqs.weight"
"""The divisor of each frequency: the only trace of Llama 3's scaling in a file."""

OF_SIZES = keys("""
    context_length max_position_embeddings          embedding_length hidden_size
    feed_forward_length intermediate_size           block_count num_hidden_layers
    attention.head_count num_attention_heads        attention.head_count_kv num_key_value_heads
    attention.key_length head_dim
""")
ROTARY = OF_SIZES | keys("attention.layer_norm_rms_epsilon rms_norm_eps")


def with_rotary(m: Metadata, names: Keys, base: float = 10_000.0, **defaults: float) -> dict[str, Any]:
    """Return the fields of a model with rotary positions, by `names`; `base` is the default of theirs."""
    d_e, H = m.integer("embedding_length"), m.integer("attention.head_count")
    found = m.fields(names, num_key_value_heads=H, head_dim=max(d_e // H, 1), **defaults)
    d_head = found["head_dim"]
    if m.integer("attention.value_length", d_head) != d_head:
        raise m.wrong("attention.value_length", f"the {d_head} of attention.key_length")
    for field, part in (("attention_bias", "attn_q"), ("mlp_bias", "ffn_up")):  # in any layer, not the first
        found[field] = any(name.endswith(f".{part}.bias") for name in m.file.tensors)
    found["use_qk_norm"] = m.has("blk.0.attn_q_norm.weight")
    return found | {"rope_parameters": rotary_in(m, d_head, base)}


def rotary_in(m: Metadata, d_head: int, base: float) -> dict[str, Any]:
    """Return the field rope_parameters."""
    found: dict[str, Any] = {"rope_type": "default", "rope_theta": m.number("rope.freq_base", base)}
    turned = m.integer("rope.dimension_count", d_head)
    if turned != d_head:
        found["partial_rotary_factor"] = turned / d_head
    if m.has(ROPE_FACTORS):
        return found | _llama3(m, found["rope_theta"], turned)
    kind = m.get("rope.scaling.type", "none")
    if m.raw("rope.scale_linear") is not None:  # in files of 2023
        return found | {"rope_type": "linear", "factor": m.number("rope.scale_linear")}
    if kind == "none":
        return found
    found |= {"rope_type": kind, "factor": m.number("rope.scaling.factor")}
    if kind == "yarn":
        found["original_max_position_embeddings"] = m.integer("rope.scaling.original_context_length")
        said = [name for name in ("beta_fast", "beta_slow") if m.raw(f"rope.scaling.yarn_{name}") is not None]
        found |= {name: m.number(f"rope.scaling.yarn_{name}") for name in said}
        if (magnitude := m.number("rope.scaling.attn_factor", 1.0)) != 1.0:
            own = Yarn(factor=found["factor"], l_original=1).magnitude(1.0)
            found |= {} if math.isclose(magnitude, own, rel_tol=1e-6) else {"attention_factor": magnitude}
    return found


def _llama3(m: Metadata, base: float, d: int) -> dict[str, Any]:
    """Return Llama 3's scaling. GGUF has only the factors; the published settings are used if they give the same, with
    the original length that a factor between the others shows.
    """
    factors = m.file.read(ROPE_FACTORS).reshape(-1).astype(np.float64)
    scaling = Llama3(factor=float(f"{factors.max():.6g}"))
    if factors.size == d // 2 and 0 < factors.min() < scaling.factor:
        shares = (1 / factors - 1 / scaling.factor) / (1 - 1 / scaling.factor)
        i = np.abs(shares - 0.5).argmin()
        length = 2 * np.pi * base ** (2 * i / d) * (scaling.low + (scaling.high - scaling.low) * shares[i])
        scaling = dataclasses.replace(scaling, l_original=round(length)) if 0 < shares[i] < 1 else scaling
    positions = Rotary(base=base, scaling=scaling)
    expected = factors_of(positions, d)
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-4, atol=0):
        raise InterchangeError(
            f"{m.file.path} needs what this library does not have: frequencies other than Llama 3's ({ROPE_FACTORS})"
        )
    return rotary_fields(positions)


def turned_pairs(n: int, d: int) -> np.ndarray:
    """Return the divisors of the frequencies of d rows: 1 for the n pairs that turn, 1e30 for the others (Gemma 4)."""
    return np.where(np.arange(d // 2) < n, 1, 1e30).astype(np.float32)


def factors_of(positions: Rotary, d: int) -> np.ndarray:
    """Return the divisor of each frequency of positions that rotate d rows, which `Llama3` scales."""
    assert positions.scaling
    frequencies = positions.base ** (-np.arange(0, d, 2) / d)
    return frequencies / positions.scaling(frequencies, positions.base)[0]
