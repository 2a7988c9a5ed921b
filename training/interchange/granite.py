"""Granite 4 (``granitemoehybrid``), by changed lines: Mamba-2 in most layers, attention in others, and factors."""

from collections.abc import Sequence
from typing import Any

from algorithms.lines import MLP, Attention, Experts, Mamba2, RMSNorm, Rotary
from training.interchange.decoders import FACTORS, FULL, OUTER, of_lines, read_scaling, rotary_fields, rotary_of
from training.interchange.description import Fields, Model, in_turn, theirs, unlike
from training.interchange.experts import (
    MIXTURES,
    SHARED,
    mixture_fields,
    mixture_table,
    of_shared_mlp,
    read_mixture,
    shared_experts,
)
from training.interchange.hybrids import LINEAR, checked_types
from training.interchange.mapping import HEADS, rows

KIND = "granitemoehybrid"
MAMBA = "n n_keys d_key width"
OF_MAMBA = "mamba_n_heads mamba_n_groups mamba_d_state mamba_d_conv"
DEFAULTS = 128, 1, 256, 4
NAMES = {"mamba": LINEAR, "attention": FULL}
"""Of kinds of layers, in files from before transformers 5."""
LIMITS = None, [0.0, float("inf")], [0.0, {"__float__": "Infinity"}]
"""What time_step_limit may say: there is none."""


def _read(fields: Fields, found: dict[str, Any], names: Sequence[Any], kind: str) -> None:
    norm, L = RMSNorm(epsilon=found["norm.epsilon"]), found["L"]
    rope, said = fields.get("position_embedding_type") == "rope", rotary_of(fields)
    said.require("partial_rotary_factor", 1.0, "rotary positions for only part of the rows")
    rotary = Rotary(base=said.number("rope_theta", 10_000.0), scaling=read_scaling(said, found["l_max"]))
    attention = Attention(
        positions=rotary if rope else None,
        biases=fields.flag("attention_bias", False),
        scale=fields.number("attention_multiplier", 1.0),
    )
    types = fields.get("layer_types", fields.get("layers_block_type", [LINEAR] * L))
    types = checked_types(fields, [NAMES.get(t, t) for t in types] if isinstance(types, list) else types, L)
    lines: Any = {LINEAR: _mamba(fields, found["d_e"], norm), FULL: attention}
    found |= {"norm": norm, "d_mid": found["d_attn"], "attention": in_turn([lines[t] for t in types])}
    fields.require("hidden_act", "silu", "another nonlinearity")
    mlp, shared = MLP(activation="silu", gated=True, biases=False), fields.integer(SHARED, 1024)
    if fields.integer("num_local_experts", 8, least=0) == 0:
        found |= {"mlp": mlp, "d_mlp": shared}
        return
    found["mlp"] = read_mixture(
        fields, MIXTURES[kind], mlp, shared=max(shared_experts(fields, found["d_mlp"], 1024), 1)
    )


def _mamba(fields: Fields, d_e: int, norm: RMSNorm) -> Mamba2:
    """Return the recurrence."""
    sizes = [fields.integer(name, default) for name, default in zip(OF_MAMBA.split(), DEFAULTS, strict=True)]
    auto = fields.get("mamba_d_head", "auto") == "auto"
    rows = fields.integer("mamba_expand", 2) * d_e
    d_value = max(rows // sizes[0], 1) if auto else fields.integer("mamba_d_head")
    fields.require("mamba_conv_bias", True, "a convolution without biases")
    fields.require("mamba_proj_bias", False, "biases of the projections of a recurrence")
    if fields.get("time_step_limit") not in LIMITS:
        fields.needs.append(f"limits of Δ (time_step_limit = {fields.get('time_step_limit')!r})")
    return Mamba2(**dict(zip(MAMBA.split(), sizes, strict=True)), d_value=d_value, norm=norm)


def _write(model: Model, state: dict[str, Any], kind: str) -> list[str]:
    c, v = model.config, model.config.variant
    lines = [v.attention_of(l) for l in range(c.L)]
    mambas = [line for line in lines if isinstance(line, Mamba2)]
    if not mambas or v.mlp is None:
        state.clear()
        return ["layers without Mamba-2, or without MLPs"]
    attention = next((line for line in lines if isinstance(line, Attention)), Attention(biases=False, scale=1.0))
    state["layer_types"] = [LINEAR if isinstance(line, Mamba2) else FULL for line in lines]
    state |= {name: getattr(mambas[0], ours) for ours, name in zip(MAMBA.split(), OF_MAMBA.split(), strict=True)}
    d_value, d_v = mambas[0].d_value, mambas[0].n * mambas[0].d_value
    state |= {"mamba_d_head": d_value, "mamba_expand": max(d_v // c.d_e, 1)}
    state["position_embedding_type"] = None if attention.positions is None else "rope"
    state |= {"rope_parameters": rotary_fields(attention.positions), "attention_bias": attention.biases is True}
    state["attention_multiplier"] = attention.scale or c.d_attn**-0.5
    experts = mixture_fields(MIXTURES[kind], v.mlp, c.d_mlp) if isinstance(v.mlp, Experts) else {"num_local_experts": 0}
    state |= {**experts, SHARED: c.d_mlp * getattr(v.mlp, "shared", 1)}
    state["hidden_act"] = theirs(v.mlp.activation or "gelu")
    return unlike(d_v % c.d_e, 0, f"values of {d_v} rows, which are no multiple of d_e = {c.d_e}")


def _tensors(model: Model, state: dict[str, Any], kind: str) -> dict[str, str]:
    layer, attention = "model.layers.#", "layers.attention"
    is_mixture = isinstance(model.config.variant.mlp, Experts)
    mamba = f"{layer}.mamba"
    return {
        "model.embed_tokens.weight": "W_e",
        **rows(layer, "input_layernorm post_attention_layernorm", "layers", "norm1.* norm2.*"),
        **rows(f"{layer}.self_attn", "q_proj k_proj v_proj o_proj", attention, HEADS),
        f"{mamba}.in_proj.weight": f"{attention}.W_z+W_v+W_k+W_q+W_a",
        f"{mamba}.conv1d.weight": f"<{attention}.C_v+C_k+C_q>",
        f"{mamba}.conv1d.bias": f"{attention}.b_v+b_k+b_q",
        f"{mamba}.dt_bias": f"{attention}.b_a",
        f"{mamba}.A_log": f"{attention}.a",
        f"{mamba}.D": f"{attention}.D",
        f"{mamba}.norm.weight": f"{attention}.gamma",
        f"{mamba}.out_proj.weight": f"{attention}.W_out",
        **mixture_table(MIXTURES[kind]),
        **of_shared_mlp("layers.mlp.shared" if is_mixture else "layers.mlp"),
        **OUTER,
    }


_CONSTANTS = {"mamba_conv_bias": True, "mamba_proj_bias": False}
_GRANITE = of_lines(KIND, "GraniteMoeHybrid", _tensors, _read, _write, fields=FACTORS, constants=_CONSTANTS)
KINDS = {KIND: _GRANITE._replace(mixers=(Mamba2,))}
"""By model_type."""
