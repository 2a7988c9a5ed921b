"""Granite 4 (``granitemoehybrid``) and Bamba, by changed lines: Mamba-2 in most layers, attention in others."""

from collections.abc import Sequence
from typing import Any

from algorithms.lines import Attention, Experts, Mamba2, RMSNorm
from training.interchange.decoders import FACTORS, LINE, SILU, VARIANT, Norms, of_lines
from training.interchange.description import (
    Architecture,
    Field,
    Fields,
    Layers,
    Model,
    Need,
    fields_of,
    numbered,
    unlike,
    written,
)
from training.interchange.experts import GRANITE, SHARED, of_shared_mlp
from training.interchange.hybrids import LINEAR
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
    if fields.integer("num_local_experts", 8, least=0) == 0:
        found["d_mlp"] = fields.integer(SHARED, 1024)
    else:
        GRANITE.read(fields, found)


def _rows_of_values(found: dict[str, Any]) -> int:
    return max(found.pop("expand") * found["d_e"] // found[f"{LINEAR}.n"], 1)


def _write(model: Model, state: dict[str, Any], kind: str) -> list[str]:
    c, v = model.config, model.config.variant
    mamba = next(line for line in v.attentions if isinstance(line, Mamba2))
    attention = next((line for line in v.attentions if isinstance(line, Attention)), None)
    d_v = mamba.n * mamba.d_value
    state |= {"mamba_d_head": mamba.d_value, "mamba_expand": max(d_v // c.d_e, 1)}
    lacks = unlike(d_v % c.d_e, 0, f"values of {d_v} rows, which are no multiple of d_e = {c.d_e}")
    if kind != KIND:
        return lacks
    state["position_embedding_type"] = "rope" if attention and attention.positions else None
    if isinstance(v.mlp, Experts):
        GRANITE.fill(state, c, {})
    else:
        state |= {"num_local_experts": 0, SHARED: c.d_mlp}
    return lacks


def mamba_rows(mamba: str, ours: str = "layers.attention") -> dict[str, str]:
    """Return the tensors of Mamba-2 in a layer."""
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


def _tensors(model: Model, state: dict[str, Any], kind: str) -> dict[str, str]:
    is_mixture = isinstance(model.config.variant.mlp, Experts)
    return MAMBA | GRANITE.table | of_shared_mlp("layers.mlp.shared" if is_mixture else "layers.mlp")


def _architecture(names: str, *fields: Any, **others: Any) -> Architecture:
    return of_lines(
        names,
        *(*OF_MAMBA, *fields),
        variant=VARIANT.but(norm=_NORM),
        same_epsilon=f"{LINEAR}.norm",
        read=_read,
        write=_write,
        lines={LINEAR: Mamba2(n=128, n_keys=1, d_key=256, d_value=64, norm=_NORM), FULL: LINE},
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
MAMBA = mamba_rows("model.layers.#.mamba")
_NAMES = {"mamba": LINEAR, "attention": FULL}
KINDS = {
    KIND: _architecture(
        f"{KIND} GraniteMoeHybrid",
        *FACTORS,
        activation=SILU,
        mlp=("", ""),
        tensors=_tensors,
        layers=Layers(lambda fields, L: [LINEAR] * L, "layer_types|layers_block_type", _NAMES),
    ),
    "bamba": _architecture(
        "bamba Bamba",
        Field("mlp_bias", "mlp.biases", False),
        *written(attn_layer_indices=lambda c: [l for l in range(c.L) if type(c.variant.attention_of(l)) is Attention]),
        positions=[Positions(share=0.5)],
        norms=Norms(mlp="pre_ff_layernorm"),
        modules=("self_attn", "feed_forward"),
        tensors={"model.final_layernorm.*": "norm.*", **MAMBA},
        layers=Layers(numbered("attn_layer_indices", (LINEAR, FULL), lambda L: ()), "-"),
        H_kv=8,
        epsilon=1e-5,
    ),
}
"""By model_type."""
