"""Qwen3-Next and Qwen 3.5 (text), also with experts, by changed lines: gated delta rules, and gated attention in every
fourth layer.
"""

from collections.abc import Sequence
from typing import Any

from algorithms.lines import Attention, GatedDelta, RMSNorm
from training.interchange.decoders import SILU, VARIANT, WITHOUT_MLP, Mixed, heads_fields, of_lines
from training.interchange.description import Architecture, Layers, Need, every, fields_of, written
from training.interchange.experts import MIXTURES, OURS, mixture_table
from training.interchange.mapping import rows
from training.interchange.rotary import FULL, Positions

LINEAR = "linear_attention"
OF_DELTA = " ".join(f"{LINEAR}.{size}" for size in ("n", "n_keys", "d_key", "d_value", "width"))
OF_LINEAR = (
    "linear_num_value_heads linear_num_key_heads linear_key_head_dim linear_value_head_dim linear_conv_kernel_dim"
)
SHARED = "shared_expert_intermediate_size"
_APART = {"qkv": "W_q+W_k+W_v", **{a: f"W_{a}" for a in "zba"}}
PROJECTIONS = {
    "qwen3_next": {"qkvz": "W_q&W_k&W_v&W_z", "ba": "W_b&W_a/W_q"},
    "qwen3_5_text": _APART,
    "qwen3_5_moe_text": _APART,
}
"""For each kind, the projections before a delta rule: the ends of the tensors' names, and our arrays."""
_NORM, _OF_DELTA = RMSNorm(epsilon=1e-6, offset=1.0), RMSNorm(epsilon=1e-6)
LINES = {
    LINEAR: GatedDelta(n=32, n_keys=16, d_key=128, d_value=128, norm=_OF_DELTA),
    FULL: Attention(biases=False, normalize_heads=_NORM, gated=True),
}


def _architecture(kind: str, name: str, H_kv: int, more: Sequence[Any] = (), **others: Any) -> Architecture:
    layer, attention = "model.layers.#", "layers.attention"
    delta = f"{layer}.linear_attn"
    mlp = rows(f"{layer}.mlp", "gate_proj up_proj down_proj", "layers.mlp", OURS)
    tensors = {
        f"{layer}.self_attn.q_proj.*": f"{attention}.heads.*_q&{attention}.*_g",
        **rows(f"{layer}.self_attn", "k_proj v_proj o_proj", attention, "heads.*_k heads.*_v *_o"),
        **{f"{layer}.self_attn.{a}_norm.weight": f"{attention}.gamma_{a}" for a in "qk"},
        **{f"{delta}.in_proj_{a}.weight": f"{attention}.{ours}" for a, ours in PROJECTIONS[kind].items()},
        f"{delta}.conv1d.weight": f"<{attention}.C_q+C_k+C_v>",
        f"{delta}.dt_bias": f"{attention}.b_a",
        f"{delta}.A_log": f"{attention}.a",
        f"{delta}.norm.weight": f"{attention}.gamma",
        f"{delta}.out_proj.weight": f"{attention}.W_out",
        **(mixture_table(MIXTURES[kind]) if kind in MIXTURES else mlp),
    }
    fields = [
        Positions(share=0.25),
        *fields_of(OF_DELTA, OF_LINEAR, 32, 16, 128, 128, 4),
        Need("attention_bias", False, "biases of the gates of heads"),
        *written(attention_bias=False),
        *SILU,
        *more,
    ]
    return of_lines(
        kind,
        name,
        tensors,
        fields=fields,
        variant=VARIANT.but(norm=_NORM),
        heads=heads_fields(H_kv, 256),
        norms=f"{LINEAR}.norm",
        lines=LINES,
        layers=Layers(every(4, "full_attention_interval", (LINEAR, FULL))),
        ignored=("mtp.*", "model.visual.*"),
        **others,
    )


_OF_MOE = [Mixed("qwen3_5_moe_text", SHARED, width=512)]
KINDS = {
    "qwen3_next": _architecture("qwen3_next", "Qwen3Next", 2, [Mixed("qwen3_next", SHARED, width=512)]),
    "qwen3_5_text": _architecture("qwen3_5_text", "Qwen3_5", 4),
    "qwen3_5_moe_text": _architecture("qwen3_5_moe_text", "Qwen3_5Moe", 2, _OF_MOE, sizes=WITHOUT_MLP),
}
"""By model_type."""
