"""DeepSeek-V2 and V3 and GLM-4.7-Flash, by changed lines: latent attention and experts, in the first layers an MLP."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from algorithms.lines import MLP, Experts, Latent, RMSNorm, Rotary, Yarn
from training.interchange.decoders import VARIANT, WITHOUT_MLP, of_lines, read_scaling, rotary_fields, rotary_of
from training.interchange.description import Architecture, Field, Fields, Model, Need, fields_of, value_at, written
from training.interchange.experts import MIXTURES, OURS, mixture_fields, mixture_table, read_mixture
from training.interchange.mapping import Table, rows


class Kind(NamedTuple):
    """What distinguishes one kind, of a `model_type`."""

    name: str  # of the class, without ForCausalLM
    first: int  # the default of first_k_dense_replace
    d_mlp: int  # of intermediate_size
    d_q: int = 1536  # of q_lora_rank
    epsilon: float = 1e-6


NAMES = {
    "deepseek_v3": Kind("DeepseekV3", 3, 18_432),
    "deepseek_v2": Kind("DeepseekV2", 0, 11_008),
    "glm4_moe_lite": Kind("Glm4MoeLite", 1, 10_240, 768, 1e-5),
}
MLP_NAMES = "gate_proj up_proj down_proj"
DENSE, SPARSE = "dense", "sparse"


def latent_sizes(line: str) -> list[Field]:
    """Return the fields of the sizes of latent attention, the line at a path."""
    ours = f"d_attn d_mid {line}.d_c {line}.d_r"
    theirs = "qk_nope_head_dim v_head_dim kv_lora_rank qk_rope_head_dim"
    return [*fields_of(ours, theirs, 128, 128, 512, 64), *written(num_key_value_heads=lambda c: c.H_kv)]


def _read(fields: Fields, found: dict[str, Any], names: Sequence[Any], kind: str) -> None:
    is_v3, own = kind != "deepseek_v2", NAMES[kind]
    fields.require("num_key_value_heads", found["H"], "keys shared by heads")
    if not fields.has("q_lora_rank") or fields.get("q_lora_rank") is not None:
        found["attention.d_q"] = fields.integer("q_lora_rank", own.d_q)
    said = rotary_of(fields)
    interleaved = not is_v3 or fields.flag("rope_interleave", True)
    found["attention.positions"] = Rotary(
        base=said.number("rope_theta", 10_000.0),
        pairs="neighbors" if interleaved else "halves",
        scaling=read_scaling(said, found["l_max"], scales_scores=True),
    )
    found["first"] = first_layers(fields, found["L"], own.first, own.d_mlp)
    found["mlp"] = _experts(fields, kind)


def first_layers(fields: Fields, L: int, n: int, d_mlp: int) -> tuple[MLP, ...]:
    """Return the MLPs of the first of L layers, in place of experts; `n`, `d_mlp`: how many, and their hidden units, by
    default.
    """
    types, n = fields.get("mlp_layer_types"), fields.integer("first_k_dense_replace", n, least=0)
    n = types.count(DENSE) if isinstance(types, list) else n
    if types is not None and types != [DENSE] * n + [SPARSE] * (L - n):
        fields.needs.append(f"layers without experts after others (mlp_layer_types = {str(types)[:60]})")
    if n >= L:
        fields.needs.append(f"no layer with experts (first_k_dense_replace = {n}, num_hidden_layers = {L})")
        return ()
    return (plain_mlp(fields).but(d_mlp=fields.integer("intermediate_size", d_mlp)),) * n


def plain_mlp(fields: Fields) -> MLP:
    """Return the MLP of a first layer, and of an expert."""
    return MLP(activation=fields.activation("hidden_act", "silu"), gated=True, biases=fields.flag("mlp_bias", False))


def _experts(fields: Fields, kind: str) -> Experts:
    """Return the line of the experts: V3's weights are sigmoids, and its tokens choose within the best groups."""
    is_v3 = kind != "deepseek_v2"
    method = None if is_v3 else fields.get("topk_method", "greedy")
    others: dict[str, Any] = {"scores": "sigmoid" if is_v3 else "softmax", "choice_bias": is_v3}
    others |= {"groups": 1, "chosen_groups": 1} if method == "greedy" else {}
    line = read_mixture(fields, MIXTURES[kind], plain_mlp(fields), **others)
    if method not in (None, "greedy", "group_limited_greedy"):
        fields.needs.append(f"another choice of experts (topk_method = {method!r})")
    return dataclasses.replace(line, best=2 if is_v3 or line.groups == 1 else 1)


def _write(model: Model, state: dict[str, Any], kind: str) -> list[str]:
    c, v = model.config, model.config.variant
    line, mlp = v.attentions[0], v.mlp
    if not isinstance(line, Latent) or not isinstance(mlp, Experts):
        state.clear()
        return ["attention and MLPs other than latent attention and experts"]
    state["rope_parameters"] = rotary_fields(line.positions)
    if v.first:
        state["intermediate_size"] = v.first[0].d_mlp
    if kind == "glm4_moe_lite":
        state["mlp_layer_types"] = [DENSE] * len(v.first) + [SPARSE] * (c.L - len(v.first))
    state |= {**mixture_fields(MIXTURES[kind], mlp, c.d_mlp), "pad_token_id": None}
    scaling = getattr(line.positions, "scaling", None)
    if isinstance(scaling, Yarn):
        state["rope_parameters"] |= {"attention_factor": scaling.attention_factor, "mscale_all_dim": scaling.scores}
    if kind != "deepseek_v2":
        interleaved = getattr(line.positions, "pairs", None) == "neighbors"
        state |= {"rope_interleave": interleaved, "num_nextn_predict_layers": 0}
    else:
        state["topk_method"] = "greedy" if mlp.groups == 1 else "group_limited_greedy"
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


def _architecture(kind: str) -> Architecture:
    return of_lines(
        kind,
        NAMES[kind].name,
        _tensors,
        fields=[
            *written(intermediate_size=lambda c: c.d_mlp),
            Field(MIXTURES[kind].width, "d_mlp"),
            *written(q_lora_rank=lambda c: value_at(c, "attention.d_q"), hidden_act="silu", attention_bias=False),
            *written(first_k_dense_replace=lambda c: len(c.variant.first)),
            Need("attention_bias", False, "biases of latents"),
            Need("moe_layer_freq", 1, "layers without experts"),
        ],
        variant=VARIANT.but(norm=RMSNorm(epsilon=1e-6), attention=Latent(d_c=512, d_r=64)),
        sizes=WITHOUT_MLP,
        heads=latent_sizes("attention"),
        epsilon=NAMES[kind].epsilon,
        read=_read,
        write=_write,
        ignored=("*.rotary_emb.inv_freq",),
    )


KINDS = {kind: _architecture(kind) for kind in NAMES}
"""By model_type."""
