"""DeepSeek-V2 and V3 and GLM-4.7-Flash, by changed lines: latent attention and experts, in the first layers an MLP."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from algorithms.lines import Latent, RMSNorm
from training.interchange.decoders import VARIANT, WITHOUT_MLP, First, Mixed, of_lines
from training.interchange.description import Architecture, Field, Fields, Model, Need, fields_of, value_at, written
from training.interchange.experts import MIXTURES, OURS, mixture_table
from training.interchange.mapping import Table, rows
from training.interchange.rotary import Positions

MLP_NAMES = "gate_proj up_proj down_proj"
NO_BIASES = [Need("attention_bias", False, "biases of latents"), *written(attention_bias=False)]
ALL_ALIKE = Need("moe_layer_freq", 1, "layers without experts")


def latent_sizes(d_q: int | None) -> list[Any]:
    """Return the fields of the sizes of latent attention; `d_q`: the default of that of the queries' latent."""
    ours = "d_attn d_mid attention.d_c attention.d_r"
    theirs = "qk_nope_head_dim v_head_dim kv_lora_rank qk_rope_head_dim"
    return [
        *fields_of(ours, theirs, 128, 128, 512, 64),
        Field("q_lora_rank", "attention.d_q", d_q, optional=int),
        *written(num_key_value_heads=lambda c: c.H_kv),
    ]


def check_heads(fields: Fields, found: dict[str, Any]) -> None:
    """Note a need if heads share keys, which latents do not have."""
    fields.require("num_key_value_heads", found["H"], "keys shared by heads")


def _read(fields: Fields, found: dict[str, Any], names: Sequence[Any], kind: str) -> None:
    check_heads(fields, found)
    if kind != "deepseek_v2":
        pairs = "neighbors" if fields.flag("rope_interleave", True) else "halves"
        found["attention.positions"] = dataclasses.replace(found["attention.positions"], pairs=pairs)
        return
    method, experts = fields.get("topk_method", "greedy"), found["mlp"]
    if method not in ("greedy", "group_limited_greedy"):
        fields.needs.append(f"another choice of experts (topk_method = {method!r})")
    experts = experts.but(groups=1, chosen_groups=1) if method == "greedy" else experts
    found["mlp"] = experts.but(best=2 if experts.groups == 1 else 1)


def _write(model: Model, state: dict[str, Any], kind: str) -> list[str]:
    if kind == "deepseek_v2":
        one = getattr(model.config.variant.mlp, "groups", 1) == 1
        state["topk_method"] = "greedy" if one else "group_limited_greedy"
    else:
        state["rope_interleave"] = value_at(model.config, "attention.positions.pairs") == "neighbors"
    return []


def latent_rows(attention: str, q: str) -> dict[str, str]:
    """Return the tensors of latent attention in a layer, in modules of this name; `q`: that of the queries."""
    names = f"q_a_proj q_a_layernorm {q} kv_a_proj_with_mqa kv_a_layernorm kv_b_proj o_proj"
    ours = "*_cq norm_q.* *_q&*_qr:W_c *_c+*_kr norm_c.* *_k&*_v:W_c *_o"
    return rows(attention, names, "layers.attention", ours)


def _tensors(model: Model, state: dict[str, Any], kind: str) -> Table:
    return {
        **latent_rows("model.layers.#.self_attn", "q_b_proj" if value_at(model.config, "attention.d_q") else "q_proj"),
        **rows("model.layers.#.mlp", MLP_NAMES, "layers.mlp", OURS),
        **mixture_table(MIXTURES[kind]),
    }


def _architecture(kind: str, name: str, first: First, d_q: int = 1536, epsilon: float = 1e-6) -> Architecture:
    positions = Positions(pairs="neighbors", scales_scores=True)
    return of_lines(
        kind,
        name,
        _tensors,
        fields=[*latent_sizes(d_q), positions, Mixed(kind), first, *NO_BIASES, ALL_ALIKE],
        variant=VARIANT.but(norm=RMSNorm(epsilon=1e-6), attention=Latent(d_c=512, d_r=64)),
        sizes=WITHOUT_MLP,
        heads=[],
        epsilon=epsilon,
        read=_read,
        write=_write,
        ignored=("*.rotary_emb.inv_freq",),
    )


KINDS = {
    "deepseek_v3": _architecture("deepseek_v3", "DeepseekV3", First(3, 18_432)),
    "deepseek_v2": _architecture("deepseek_v2", "DeepseekV2", First(0, 11_008)),
    "glm4_moe_lite": _architecture("glm4_moe_lite", "Glm4MoeLite", First(1, 10_240), 768, 1e-5),
}
"""By model_type."""
