"""DeepSeek-V2 and V3, as Algorithm 10 with latent attention and experts, and in the first layers an MLP."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from algorithms.lines import MLP, Embedding, Experts, Latent, RMSNorm, Rotary, Yarn
from algorithms.model.variants import PAPER
from training.interchange.decoders import OF_SIZES, OUTER, SIZES, read_scaling, rotary_fields, rotary_of
from training.interchange.description import Architecture, Field, Fields, Model, fields_of, value_at, written
from training.interchange.experts import MIXTURES, OURS, mixture_fields, mixture_table, read_mixture
from training.interchange.mapping import Table, rows

NAMES = {"deepseek_v3": "DeepseekV3", "deepseek_v2": "DeepseekV2"}
"""model_type → the name of the class, without ForCausalLM."""


def _read(fields: Fields, found: dict[str, Any], names: Sequence[Any], kind: str) -> None:
    is_v3 = kind == "deepseek_v3"
    found["d_mlp"] = fields.integer(MIXTURES[kind].width)
    fields.require("num_key_value_heads", found["H"], "keys shared by heads")
    fields.require("attention_bias", False, "biases of latents")
    fields.require("moe_layer_freq", 1, "layers without experts")
    no_query_latent = fields.has("q_lora_rank") and fields.get("q_lora_rank") is None
    found["attention"] = Latent(
        positions=_positions(fields, found["l_max"], interleaved=not is_v3 or fields.flag("rope_interleave", True)),
        d_c=found.pop("attention.d_c"),
        d_r=found.pop("attention.d_r"),
        d_q=None if no_query_latent else fields.integer("q_lora_rank", 1536),
    )
    n = fields.integer("first_k_dense_replace", 3 if is_v3 else 0, least=0)
    first = first_layers(fields, n, found["L"], 18_432 if is_v3 else 11_008)
    found |= {"mlp": _experts(fields, kind), "first": first}


def first_layers(fields: Fields, n: int, L: int, d_mlp: int) -> tuple[MLP, ...]:
    """Return the MLPs of the first n of L layers, in place of experts; `d_mlp`: their hidden units by default."""
    if n >= L:
        fields.needs.append(f"no layer with experts (first_k_dense_replace = {n}, num_hidden_layers = {L})")
        return ()
    return (plain_mlp(fields).but(d_mlp=fields.integer("intermediate_size", d_mlp)),) * n


def plain_mlp(fields: Fields) -> MLP:
    """Return the MLP of a first layer, and of an expert."""
    return MLP(activation=fields.activation("hidden_act", "silu"), gated=True, biases=fields.flag("mlp_bias", False))


def _positions(fields: Fields, l_max: int, *, interleaved: bool) -> Rotary:
    said = rotary_of(fields)
    scaling = read_scaling(said, l_max, scales_scores=True)
    pairs = "neighbors" if interleaved else "halves"
    return Rotary(base=said.number("rope_theta", 10_000.0), pairs=pairs, scaling=scaling)


def _experts(fields: Fields, kind: str) -> Experts:
    """Return the line of the experts: V3's weights are sigmoids, and its tokens choose within the best groups."""
    is_v3 = kind == "deepseek_v3"
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
    state |= {**mixture_fields(MIXTURES[kind], mlp, c.d_mlp), "pad_token_id": None}
    scaling = getattr(line.positions, "scaling", None)
    if isinstance(scaling, Yarn):
        state["rope_parameters"] |= {"attention_factor": scaling.attention_factor, "mscale_all_dim": scaling.scores}
    if kind == "deepseek_v3":
        interleaved = getattr(line.positions, "pairs", None) == "neighbors"
        state |= {"rope_interleave": interleaved, "num_nextn_predict_layers": 0}
    else:
        state["topk_method"] = "greedy" if mlp.groups == 1 else "group_limited_greedy"
    return []


def _tensors(model: Model, state: dict[str, Any], kind: str) -> Table:
    q = "q_b_proj" if value_at(model.config, "attention.d_q") else "q_proj"
    return {
        "model.embed_tokens.weight": "W_e",
        **rows("model.layers.#", "input_layernorm post_attention_layernorm", "layers", "norm1.* norm2.*"),
        **rows(
            "model.layers.#.self_attn",
            f"q_a_proj q_a_layernorm {q} kv_a_proj_with_mqa kv_a_layernorm kv_b_proj o_proj",
            "layers.attention",
            "*_cq norm_q.* *_q&*_qr *_c+*_kr norm_c.* *_k&*_v *_o",
        ),
        **rows("model.layers.#.mlp", MIXTURES[kind].parts, "layers.mlp", OURS),
        **mixture_table(MIXTURES[kind]),
        **OUTER,
    }


def _architecture(kind: str) -> Architecture:
    fields = [
        *written(model_type=kind, architectures=[f"{NAMES[kind]}ForCausalLM"]),
        *fields_of(SIZES.removesuffix(" d_mlp"), OF_SIZES.removesuffix(" intermediate_size")),
        *written(intermediate_size=lambda c: c.d_mlp),
        *fields_of(
            "d_attn d_mid attention.d_c attention.d_r",
            "qk_nope_head_dim v_head_dim kv_lora_rank qk_rope_head_dim",
            *(128, 128, 512, 64),
        ),
        *written(q_lora_rank=lambda c: value_at(c, "attention.d_q"), num_key_value_heads=lambda c: c.H_kv),
        Field("rms_norm_eps", "norm.epsilon", 1e-6),
        Field("tie_word_embeddings", "unembedding.tied", False),
        *written(rope_parameters=None, hidden_act="silu", attention_bias=False, attention_dropout=0.0),
        *written(first_k_dense_replace=lambda c: len(c.variant.first)),
    ]
    return Architecture(
        "d",
        kind,
        PAPER.but(embedding=Embedding(positions=None), norm=RMSNorm(epsilon=1e-6)),
        fields,
        _tensors,
        _read,
        _write,
        prefix="model.",
        ignored=("*.rotary_emb.inv_freq",),
    )


KINDS = {kind: _architecture(kind) for kind in NAMES}
"""By model_type."""
