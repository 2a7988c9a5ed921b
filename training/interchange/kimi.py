"""Kimi Linear, by changed lines: DeepSeek's with gated delta rules in most layers, and no positions."""

from collections.abc import Sequence
from typing import Any

from algorithms.lines import Embedding, KimiDelta, Latent, RMSNorm
from algorithms.model.variants import PAPER
from training.interchange.decoders import FULL, OF_SIZES, OUTER, SIZES
from training.interchange.deepseek import first_layers, plain_mlp
from training.interchange.description import Architecture, Field, Fields, Model, fields_of, in_turn, written
from training.interchange.experts import MIXTURES, OURS, mixture_fields, mixture_table, read_mixture
from training.interchange.hybrids import LINEAR, checked_types
from training.interchange.mapping import rows

KIND = "kimi_linear"
OF_DELTA = "num_heads head_dim short_conv_kernel_size", "linear_num_heads linear_head_dim linear_conv_kernel_dim"
"""The numbers of a delta rule: in the object of published files, and in those of transformers."""
DEFAULTS = 32, 128, 4
DENSE, SPARSE = "dense", "sparse"


def _read(fields: Fields, found: dict[str, Any], names: Sequence[Any], kind: str) -> None:
    L, norm = found["L"], RMSNorm(epsilon=found["norm.epsilon"])
    published = fields.inner(fields.table("linear_attn_config"))
    n, d, width = (
        published.integer(name, fields.integer(theirs, default))
        for name, theirs, default in zip(*map(str.split, OF_DELTA), DEFAULTS, strict=True)
    )
    latent = Latent(
        positions=None,
        d_c=found.pop("attention.d_c"),
        d_r=found.pop("attention.d_r"),
        d_q=None if fields.get("q_lora_rank") is None else fields.integer("q_lora_rank"),
    )
    lines: Any = {LINEAR: KimiDelta(n=n, n_keys=n, d_key=d, d_value=d, rank=d, width=width, norm=norm), FULL: latent}
    found |= {"norm": norm, "attention": in_turn([lines[kind] for kind in _layer_types(fields, published, L)])}
    fields.require("num_key_value_heads", found["H"], "keys shared by heads")
    fields.require("attention_bias", False, "biases of latents")
    fields.require("hidden_act", "silu", "another nonlinearity")
    fields.require("moe_layer_freq", 1, "layers without experts")
    fields.require("moe_router_activation_func", "sigmoid", "other scores of experts")
    fields.require("mla_use_nope", True, "rotary positions")
    found |= {"first": first_layers(fields, _first(fields, L), L, 9216), "d_mlp": fields.integer(MIXTURES[kind].width)}
    found["mlp"] = read_mixture(fields, MIXTURES[kind], plain_mlp(fields))


def _layer_types(fields: Fields, published: Fields, L: int) -> list[str]:
    """Return the kind of each layer; published files count from 1."""
    types = [FULL if l and l % 4 == 0 else LINEAR for l in range(L)]
    if published.has("full_attn_layers"):
        full = published.get("full_attn_layers")
        types = [FULL if l + 1 in full else LINEAR for l in range(L)] if isinstance(full, list) else full
    return checked_types(fields, fields.get("layer_types", types), L)


def _first(fields: Fields, L: int) -> int:
    """Return how many of the first layers have an MLP in place of experts."""
    types = fields.get("mlp_layer_types")
    if types is None:
        return fields.integer("first_k_dense_replace", 1, least=0)
    n = types.count(DENSE) if isinstance(types, list) else 0
    if types != [DENSE] * n + [SPARSE] * (L - n):
        fields.needs.append(f"layers without experts after others (mlp_layer_types = {str(types)[:60]})")
    return n


def _write(model: Model, state: dict[str, Any], kind: str) -> list[str]:
    c, v = model.config, model.config.variant
    lines = [v.attention_of(l) for l in range(c.L)]
    delta = next((line for line in lines if isinstance(line, KimiDelta)), None)
    latent = next((line for line in lines if isinstance(line, Latent)), None)
    if delta is None or latent is None:
        state.clear()
        return ["layers other than Kimi's gated delta rules and latent attention"]
    state["layer_types"] = [LINEAR if isinstance(line, KimiDelta) else FULL for line in lines]
    state |= dict(zip(OF_DELTA[1].split(), (delta.n, delta.d_key, delta.width), strict=True))
    state |= {"kv_lora_rank": latent.d_c, "qk_rope_head_dim": latent.d_r, "q_lora_rank": latent.d_q}
    n = len(v.first)
    state["mlp_layer_types"] = [DENSE] * n + [SPARSE] * (c.L - n)
    state["intermediate_size"] = v.first[0].d_mlp if n else c.d_mlp
    state |= {**mixture_fields(MIXTURES[kind], v.mlp, c.d_mlp), "hidden_act": "silu"}
    return []


def _tensors(model: Model, state: dict[str, Any], kind: str) -> dict[str, str]:
    layer, ours = "model.layers.#", "layers.attention"
    attention, q = f"{layer}.self_attn", "q_proj" if state.get("q_lora_rank") is None else "q_b_proj"
    names, mlp = "gate_proj up_proj down_proj", "layers.mlp"
    return {
        "model.embed_tokens.weight": "W_e",
        **rows(layer, "input_layernorm post_attention_layernorm", "layers", "norm1.* norm2.*"),
        **rows(attention, "q_a_proj q_a_layernorm o_proj", ours, "*_cq norm_q.* *_o"),
        **rows(attention, "kv_a_proj_with_mqa kv_a_layernorm", ours, "*_c+*_kr norm_c.*"),
        **rows(attention, f"{q} kv_b_proj", ours, "*_q&*_qr:W_c *_k&*_v:W_c"),
        **{f"{attention}.{a}_proj.weight": f"{ours}.W_{a}:C_{a}" for a in "qkv"},
        **{f"{attention}.{a}_conv1d.weight": f"<{ours}.C_{a}>" for a in "qkv"},
        **{f"{attention}.f_{a}_proj.weight": f"{ours}.W_a{i}" for i, a in ((1, "a"), (2, "b"))},
        **{f"{attention}.g_{a}_proj.weight": f"{ours}.W_z{i}" for i, a in ((1, "a"), (2, "b"))},
        f"{attention}.b_proj.weight": f"{ours}.W_b",
        f"{attention}.dt_bias": f"{ours}.b_a",
        f"{attention}.A_log": f"{{{ours}.a}}",
        f"{attention}.o_norm.weight": f"{ours}.gamma",
        f"{attention}.o_proj.weight": f"{ours}.W_out",
        **{
            "|".join(f"{layer}.{module}.{name}.*" for module in ("mlp", "block_sparse_moe")): f"{mlp}.{leaf}"
            for name, leaf in zip(names.split(), OURS.split(), strict=True)
        },
        **mixture_table(MIXTURES[kind]),
        **OUTER,
    }


KINDS = {
    KIND: Architecture(
        "d",
        KIND,
        PAPER.but(embedding=Embedding(positions=None)),
        [
            *written(model_type=KIND, architectures=["KimiLinearForCausalLM"]),
            *fields_of(
                SIZES.removesuffix(" d_mlp"),
                OF_SIZES.removesuffix(" intermediate_size").replace("max_", "model_max_length|max_"),
            ),
            *fields_of(
                "d_attn d_mid attention.d_c attention.d_r",
                "qk_nope_head_dim v_head_dim kv_lora_rank qk_rope_head_dim",
                *(128, 128, 512, 64),
            ),
            *written(num_key_value_heads=lambda c: c.H_kv),
            Field("rms_norm_eps", "norm.epsilon", 1e-5),
            Field("tie_word_embeddings", "unembedding.tied", False),
            *written(attention_bias=False, attention_dropout=0.0, pad_token_id=None),
        ],
        _tensors,
        _read,
        _write,
        prefix="model.",
        mixers=(KimiDelta,),
    )
}
"""By model_type."""
