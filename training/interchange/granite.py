"""Granite 4 (``granitemoehybrid``) and Bamba, by changed lines: Mamba-2 in most layers, attention in others."""

from collections.abc import Sequence
from typing import Any

from algorithms.lines import Attention, Experts, Mamba2, RMSNorm
from training.interchange.decoders import FACTORS, SILU, VARIANT, heads_fields, of_lines, plain_mlp
from training.interchange.description import Field, Fields, Layers, Model, Need, fields_of, unlike, written
from training.interchange.experts import (
    MIXTURES,
    OURS,
    SHARED,
    mixture_fields,
    mixture_table,
    of_shared_mlp,
    read_mixture,
    shared_experts,
    shared_units,
)
from training.interchange.hybrids import LINEAR
from training.interchange.mapping import HEADS, rows
from training.interchange.rotary import FULL, Positions

KIND = "granitemoehybrid"
LIMITS = None, [0.0, float("inf")], [0.0, {"__float__": "Infinity"}]
"""The value of time_step_limit for no limit."""
_NORM = RMSNorm(epsilon=1e-6)


def _read(fields: Fields, found: dict[str, Any], names: Sequence[Any], kind: str) -> None:
    if fields.get("mamba_d_head", "auto") != "auto":
        found[f"{LINEAR}.d_value"] = fields.integer("mamba_d_head")
    if fields.get("time_step_limit") not in LIMITS:
        fields.needs.append(f"limits of Δ (time_step_limit = {fields.get('time_step_limit')!r})")
    if kind != KIND:
        return
    if fields.get("position_embedding_type") != "rope":
        found["attention.positions"] = None
    shared = fields.integer(SHARED, 1024)
    if fields.integer("num_local_experts", 8, least=0) == 0:
        found["d_mlp"] = shared
        return
    always = shared_experts(fields, SHARED, found["d_mlp"], 1024)
    found["mlp"] = read_mixture(fields, MIXTURES[kind], plain_mlp(fields), **always)


def _rows_of_values(found: dict[str, Any]) -> int:
    return max(found.pop("expand") * found["d_e"] // found[f"{LINEAR}.n"], 1)


def _write(model: Model, state: dict[str, Any], kind: str) -> list[str]:
    c, v = model.config, model.config.variant
    mamba = next(line for line in v.attentions if isinstance(line, Mamba2))
    attention = next((line for line in v.attentions if isinstance(line, Attention)), None)
    if v.mlp is None:
        state.clear()
        return ["layers without MLPs"]
    d_v = mamba.n * mamba.d_value
    state |= {"mamba_d_head": mamba.d_value, "mamba_expand": max(d_v // c.d_e, 1)}
    lacks = unlike(d_v % c.d_e, 0, f"values of {d_v} rows, which are no multiple of d_e = {c.d_e}")
    if kind != KIND:
        return lacks
    state["position_embedding_type"] = "rope" if attention and attention.positions else None
    experts = mixture_fields(MIXTURES[kind], v.mlp, c.d_mlp) if isinstance(v.mlp, Experts) else {"num_local_experts": 0}
    state |= {**experts, SHARED: shared_units(v.mlp, c.d_mlp) or c.d_mlp}
    return lacks


def mamba_rows(mamba: str) -> dict[str, str]:
    """Return the tensors of Mamba-2 in a layer."""
    ours = "layers.attention"
    return {
        f"{mamba}.in_proj.weight": f"{ours}.W_z+W_v+W_k+W_q+W_a",
        f"{mamba}.conv1d.weight": f"<{ours}.C_v+C_k+C_q>",
        f"{mamba}.conv1d.bias": f"{ours}.b_v+b_k+b_q",
        f"{mamba}.dt_bias": f"{ours}.b_a",
        f"{mamba}.A_log": f"{ours}.a",
        f"{mamba}.D": f"{ours}.D",
        f"{mamba}.norm.weight": f"{ours}.gamma",
        f"{mamba}.out_proj.weight": f"{ours}.W_out",
    }


SHARED_ROWS = {
    **rows("model.layers.#.self_attn", "q_proj k_proj v_proj o_proj", "layers.attention", HEADS),
    **mamba_rows("model.layers.#.mamba"),
}
"""The tensors of attentions and recurrences."""


def _tensors(model: Model, state: dict[str, Any], kind: str) -> dict[str, str]:
    is_mixture = isinstance(model.config.variant.mlp, Experts)
    return {
        **SHARED_ROWS,
        **mixture_table(MIXTURES[kind]),
        **of_shared_mlp("layers.mlp.shared" if is_mixture else "layers.mlp"),
    }


def _by_number(fields: Fields, L: int) -> list[str]:
    """Return the kinds of Bamba's layers by the numbers of those with attention."""
    numbers = fields.get("attn_layer_indices", [])
    return [FULL if l in numbers else LINEAR for l in range(L)]


def _architecture(kind: str, name: str, tensors: Any, fields: Sequence[Any], layers: Layers, **others: Any) -> Any:
    mamba = Mamba2(n=128, n_keys=1, d_key=256, d_value=64, norm=_NORM)
    return of_lines(
        kind,
        name,
        tensors,
        fields=[Field("attention_bias", "attention.biases", False), *OF_MAMBA, *fields],
        variant=VARIANT.but(norm=_NORM),
        norms=f"{LINEAR}.norm",
        read=_read,
        write=_write,
        lines={LINEAR: mamba, FULL: Attention(biases=False)},
        layers=layers,
        **others,
    )


OF_MAMBA = [
    *fields_of(
        " ".join(f"{LINEAR}.{size}" for size in ("n", "n_keys", "d_key", "width")),
        "mamba_n_heads mamba_n_groups mamba_d_state mamba_d_conv",
        *(128, 1, 256, 4),
    ),
    Need("mamba_conv_bias", True, "a convolution without biases"),
    Need("mamba_proj_bias", False, "biases of the projections of a recurrence"),
    *written(mamba_conv_bias=True, mamba_proj_bias=False),
    Field("mamba_expand", "expand", 2),
    Field("-", f"{LINEAR}.d_value", _rows_of_values),
]
KINDS = {
    KIND: _architecture(
        KIND,
        "GraniteMoeHybrid",
        _tensors,
        [Positions(), *FACTORS, *SILU],
        Layers(
            lambda fields, L: [LINEAR] * L,
            "layer_types|layers_block_type",
            {"mamba": LINEAR, "attention": FULL},
        ),
    ),
    "bamba": _architecture(
        "bamba",
        "Bamba",
        {
            **rows("model.layers.#", "input_layernorm pre_ff_layernorm", "layers", "norm1.* norm2.*"),
            **rows("model.layers.#.feed_forward", "gate_proj up_proj down_proj", "layers.mlp", OURS),
            "model.final_layernorm.*": "norm.*",
            **SHARED_ROWS,
        },
        [
            Positions(share=0.5),
            Field("hidden_act", "mlp.activation", "silu"),
            Field("mlp_bias", "mlp.biases", False),
            *written(
                attn_layer_indices=lambda c: [l for l in range(c.L) if type(c.variant.attention_of(l)) is Attention],
            ),
        ],
        Layers(_by_number, "-"),
        heads=heads_fields(8),
        epsilon=1e-5,
    ),
}
"""By model_type."""
