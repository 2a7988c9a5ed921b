"""DeepSeek-V2, V3, V3.2, GLM-4.7-Flash, GLM-5 and Kimi Linear, by changed lines: latent attention and experts, in the
first layers an MLP; in most of Kimi's layers gated delta rules, and no positions.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from algorithms.lines import Indexer, KimiDelta, Latent, RMSNorm
from training.interchange import mtp
from training.interchange.decoders import SILU, VARIANT, WITHOUT_MLP, of_lines
from training.interchange.description import (
    Architecture,
    Field,
    Fields,
    Layers,
    Model,
    Need,
    fields_of,
    value_at,
    written,
)
from training.interchange.experts import OURS, First
from training.interchange.hybrids import LINEAR
from training.interchange.mapping import rows
from training.interchange.rotary import FULL, Positions

NO_BIASES = (Need("attention_bias", False, "biases of latents"), *written(attention_bias=False))
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
OF_DELTA = "num_heads head_dim short_conv_kernel_size", "linear_num_heads linear_head_dim linear_conv_kernel_dim"
"""The numbers of Kimi's delta rule: in the object of published files, and in those of transformers."""


def latent_sizes(d_q: int | None) -> list[Any]:
    """Return the fields of the sizes of latent attention; `d_q`: the default of that of the queries' latent."""
    ours = "d_attn d_mid attention.d_c attention.d_r"
    theirs = "qk_nope_head_dim v_head_dim kv_lora_rank qk_rope_head_dim"
    return [
        *fields_of(ours, theirs, 128, 128, 512, 64),
        Field("q_lora_rank", "attention.d_q", d_q, optional=int),
        *written(num_key_value_heads=lambda c: c.H_kv),
    ]


def _read(fields: Fields, found: dict[str, Any], names: Sequence[Any], kind: str) -> None:
    fields.require("num_key_value_heads", found["H"], "keys shared by heads")
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
        state["rope_interleave"] = value_at(model.config, "attention.positions.pairs") == "neighbors"
    return []


def _fields_of(indexer: Indexer | None) -> list[Any]:
    """Return the fields of an indexer."""
    if indexer is None:
        return []
    ours = " ".join(f"attention.indexer.{size}" for size in "nkd")
    kinds = written(layer_types=lambda c: ["indexed_attention"] * c.L, indexer_types=lambda c: ["full"] * c.L)
    return [*fields_of(ours, "index_n_heads index_topk index_head_dim", indexer.n, indexer.k, indexer.d), *kinds]


def _architecture(
    names: str, first: First, d_q: int = 1536, epsilon: float = 1e-6, indexer: Indexer | None = None
) -> Architecture:
    return of_lines(
        names,
        *(*latent_sizes(d_q), first, ALL_ALIKE, *_fields_of(indexer)),
        attention=Latent(d_c=512, d_r=64, d_q=d_q, indexer=indexer),
        positions=[Positions(pairs="neighbors", scales_scores=True)],
        biases=NO_BIASES,
        sizes=WITHOUT_MLP,
        heads=[],
        epsilon=epsilon,
        tensors=LATENT if indexer is None else LATENT | INDEXER,
        read=_read,
        write=_write,
        head=mtp.DEEPSEEK,
    )


def _read_kimi(fields: Fields, found: dict[str, Any], names: Sequence[Any], kind: str) -> None:
    published = fields.inner(fields.table("linear_attn_config"))
    n, d, width = (
        published.integer(name, fields.integer(theirs, default))
        for name, theirs, default in zip(*map(str.split, OF_DELTA), (32, 128, 4), strict=True)
    )
    delta = {"n": n, "n_keys": n, "d_key": d, "d_value": d, "rank": d, "width": width}
    found |= {f"{LINEAR}.{name}": value for name, value in delta.items()}
    fields.require("num_key_value_heads", found["H"], "keys shared by heads")


def _layer_types(fields: Fields, L: int) -> Any:
    """Return the kind of each of Kimi's layers; published files count from 1."""
    full = fields.inner(fields.table("linear_attn_config")).get("full_attn_layers")
    if isinstance(full, list):
        return [FULL if l + 1 in full else LINEAR for l in range(L)]
    return [FULL if l and l % 4 == 0 else LINEAR for l in range(L)] if full is None else full


def _write_kimi(model: Model, state: dict[str, Any], kind: str) -> list[str]:
    delta = next(line for line in model.config.variant.attentions if isinstance(line, KimiDelta))
    state |= dict(zip(OF_DELTA[1].split(), (delta.n, delta.d_key, delta.width), strict=True))
    return []


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


_OF_KIMI = RMSNorm(epsilon=1e-5)
_INDEXER = Indexer(n=64, d=128, k=2048)
KINDS = {
    "deepseek_v3": _architecture("deepseek_v3 DeepseekV3", First(3, 18_432)),
    "deepseek_v2": _architecture("deepseek_v2 DeepseekV2", First(0, 11_008)),
    "deepseek_v32": _architecture("deepseek_v32 DeepseekV32", First(3, 18_432), indexer=_INDEXER),
    "glm_moe_dsa": _architecture(
        "glm_moe_dsa GlmMoeDsa", First(3, 12_288), 2048, 1e-5, Indexer(n=32, d=128, k=2048, pairs="neighbors")
    ),
    "glm4_moe_lite": _architecture("glm4_moe_lite Glm4MoeLite", First(1, 10_240), 768, 1e-5),
    "kimi_linear": of_lines(
        "kimi_linear KimiLinear",
        *(*latent_sizes(None), ALL_ALIKE, First(1, 9216), *SILU),
        Need("moe_router_activation_func", "sigmoid", "other scores of experts"),
        Need("mla_use_nope", True, "rotary positions"),
        positions=(),
        biases=NO_BIASES,
        variant=VARIANT.but(norm=_OF_KIMI),
        sizes=[field._replace(names=field.names.replace("max_", "model_max_length|max_")) for field in WITHOUT_MLP],
        heads=[],
        epsilon=1e-5,
        same_epsilon=f"{LINEAR}.norm",
        mlp=("", ""),
        tensors=_of_kimi(),
        read=_read_kimi,
        write=_write_kimi,
        lines={
            LINEAR: KimiDelta(n=32, n_keys=32, d_key=128, d_value=128, rank=128, norm=_OF_KIMI),
            FULL: Latent(positions=None, d_c=512, d_r=64),
        },
        layers=Layers(_layer_types),
    ),
}
"""By model_type."""
