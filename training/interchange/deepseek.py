"""DeepSeek-V2, V3, V3.2, GLM-4.7-Flash, GLM-5 and Kimi Linear, by changed lines: latent attention and experts, in the
first layers an MLP; in most of Kimi's layers gated delta rules, and no positions.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from training.interchange import description, mtp
from training.interchange.decoders import SILU, WITHOUT_MLP, of_lines
from training.interchange.description import Architecture, Field, Fields, Layers, Model, Need, fields_of, only, written
from training.interchange.experts import OURS, First
from training.interchange.hybrids import LINEAR
from training.interchange.mapping import rows
from training.interchange.rotary import FULL, Positions

NO_BIASES = only("attention_bias", False, "biases of latents")
ALL_ALIKE = Need("moe_layer_freq", 1, "layers without experts")
LATENT = rows(
    "model.layers.#.self_attn",
    "q_proj q_a_proj q_a_layernorm q_b_proj kv_a_proj_with_mqa kv_a_layernorm kv_b_proj",
    "layers.attention",
    "*_q&*_qr:W_c!W_cq *_cq norm_q.* *_q&*_qr:W_cq *_c+*_kr norm_c.* *_k&*_v:W_c",
)
"""The tensors of latent attention besides that of its output."""
INDEXER = rows(
    "model.layers.#.self_attn.indexer", "wq_b wk k_norm weights_proj", "layers.attention.index", "*_q *_k norm_k.* *_w"
)
LATENT_SIZES = [
    *fields_of("d_attn d_mid", "qk_nope_head_dim v_head_dim", 128, 128),
    *fields_of("attention.d_c attention.d_r", "kv_lora_rank qk_rope_head_dim"),
    Field("q_lora_rank", "attention.d_q", optional=int),
    Need("num_key_value_heads", lambda found: found["H"], "keys shared by heads"),
    *written(num_key_value_heads=lambda c: c.H_kv),
]
OF_INDEXER = [
    *fields_of(" ".join(f"attention.indexer.{size}" for size in "nkd"), "index_n_heads index_topk index_head_dim"),
    *written(layer_types=lambda c: ["indexed_attention"] * c.L, indexer_types=lambda c: ["full"] * c.L),
]


def _read(fields: Fields, found: dict[str, Any], names: Sequence[Any], kind: str) -> None:
    if {*map(str, fields.items("indexer_types", ["full"]))} != {"full"}:
        fields.needs.append("choices of tokens that layers share (indexer_types)")
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
        state["rope_interleave"] = description.value_at(model.config, "attention.positions.pairs") == "neighbors"
    return []


def _architecture(names: str, first: First, *fields: Any) -> Architecture:
    return of_lines(
        names,
        *(*LATENT_SIZES, first, ALL_ALIKE, *fields),
        positions=[Positions(pairs="neighbors", scales_scores=True)],
        biases=NO_BIASES,
        sizes=WITHOUT_MLP,
        heads=[],
        tensors=LATENT | INDEXER,
        read=_read,
        write=_write,
        head=mtp.DEEPSEEK,
    )


def _layer_types(fields: Fields, L: int) -> Any:
    """Return the kind of each of Kimi's layers; published files count from 1."""
    full = fields.get("linear_attn_config.full_attn_layers")
    if isinstance(full, list):
        return [FULL if l + 1 in full else LINEAR for l in range(L)]
    return [FULL if l and l % 4 == 0 else LINEAR for l in range(L)] if full is None else full


def _of_kimi() -> dict[str, str]:
    layer, ours = "model.layers.#", "layers.attention"
    delta = f"{layer}.self_attn"
    return LATENT | {
        **{f"{delta}.{a}_proj.weight": f"{ours}.W_{a}:C_{a}" for a in "qkv"},
        **{f"{delta}.{a}_conv1d.weight": f"<{ours}.C_{a}>" for a in "qkv"},
        **{f"{delta}.{theirs}_a_proj.weight": f"{ours}.W_{a}1" for theirs, a in ("fa", "gz")},
        **{f"{delta}.{theirs}_b_proj.weight": f"{ours}.W_{a}2" for theirs, a in ("fa", "gz")},
        f"{delta}.b_proj.weight": f"{ours}.W_b",
        f"{delta}.o_norm.weight": f"{ours}.gamma",
        f"{delta}.dt_bias": f"{ours}.b_a",
        f"{delta}.A_log": f"{{{ours}.a}}",
        f"{delta}.o_proj.weight": f"{ours}.W_out",
        **{
            f"{layer}.mlp.{name}.*|{layer}.block_sparse_moe.{name}.*": f"layers.mlp.{leaf}"
            for name, leaf in zip(("gate_proj", "up_proj", "down_proj"), OURS.split(), strict=True)
        },
    }


KINDS = {
    "deepseek_v3": _architecture("deepseek_v3 DeepseekV3 DEEPSEEK", First(3, 18_432)),
    "deepseek_v2": _architecture("deepseek_v2 DeepseekV2 DEEPSEEK", First(0, 11_008)),
    "deepseek_v32": _architecture("deepseek_v32 DeepseekV32 DEEPSEEK_V32", First(3, 18_432), *OF_INDEXER),
    "glm_moe_dsa": _architecture("glm_moe_dsa GlmMoeDsa GLM5", First(3, 12_288), *OF_INDEXER),
    "glm4_moe_lite": _architecture("glm4_moe_lite Glm4MoeLite GLM4_MOE_LITE", First(1, 10_240)),
    "kimi_linear": of_lines(
        "kimi_linear KimiLinear KIMI_LINEAR",
        *(*LATENT_SIZES, ALL_ALIKE, First(1, 9216), *SILU),
        # in published files, in an object
        Field("linear_num_heads|linear_attn_config.num_heads", f"{LINEAR}.n {LINEAR}.n_keys"),
        Field("linear_head_dim|linear_attn_config.head_dim", f"{LINEAR}.d_key {LINEAR}.d_value {LINEAR}.rank"),
        Field("linear_conv_kernel_dim|linear_attn_config.short_conv_kernel_size", f"{LINEAR}.width"),
        Need("moe_router_activation_func", "sigmoid", "other scores of experts"),
        Need("mla_use_nope", True, "rotary positions"),
        positions=(),
        biases=NO_BIASES,
        sizes=[field._replace(names=field.names.replace("max_", "model_max_length|max_")) for field in WITHOUT_MLP],
        heads=[],
        kinds=(LINEAR, FULL),
        same_epsilon=f"{LINEAR}.norm",
        mlp=("", ""),
        tensors=_of_kimi(),
        layers=Layers(_layer_types),
    ),
}
"""By model_type."""
