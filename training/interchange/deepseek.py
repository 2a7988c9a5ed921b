"""DeepSeek-V2 and V3, as Algorithm 10 with latent attention and experts, and in the first layers an MLP."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

from algorithms import DTransformerConfig, Variant
from algorithms.lines import MLP, Embedding, Experts, First, Latent, RMSNorm, Rotary, Unembedding, Yarn
from algorithms.model.variants import PAPER
from training.interchange.decoders import SIZES, read_scaling, rotary_fields
from training.interchange.description import Architecture, Fields, Model, lost, size_fields, unlike
from training.interchange.mapping import Entry, table
from training.interchange.mixtures import MIXTURES, OURS, mixture_entries, mixture_fields, read_mixture

KINDS = {"deepseek_v3": "DeepseekV3", "deepseek_v2": "DeepseekV2"}
"""model_type → the name of the class, without ForCausalLM."""
LATENTS = {"d_c": ("kv_lora_rank", 512), "d_r": ("qk_rope_head_dim", 64)}
HEADS = {"d_attn": ("qk_nope_head_dim", 128), "d_mid": ("v_head_dim", 128)}


def _read_config(fields: Fields, names: Sequence[Any], kind: str) -> Model:
    is_v3, own = kind == "deepseek_v3", MIXTURES[kind]
    sizes: dict[str, Any] = fields.sizes({**{size: field for size, field in SIZES.items() if size != "d_mlp"}, **HEADS})
    latents: dict[str, Any] = fields.sizes(LATENTS)
    sizes["d_mlp"] = fields.integer(own.width)
    fields.require("num_key_value_heads", sizes["H"], "keys shared by heads")
    fields.require("attention_bias", False, "biases of latents")
    fields.require("moe_layer_freq", 1, "layers without experts")
    variant = PAPER.but(
        embedding=Embedding(positions=None),
        norm=RMSNorm(epsilon=fields.number("rms_norm_eps", 1e-6)),
        attention=Latent(
            positions=_positions(fields, sizes["l_max"], interleaved=not is_v3 or fields.flag("rope_interleave", True)),
            **latents,
            d_q=None if _is_null(fields, "q_lora_rank") else fields.integer("q_lora_rank", 1536),
        ),
        mlp=_experts(fields, kind),
        first=_first(fields, kind, sizes["L"]),
        unembedding=Unembedding(tied=fields.flag("tie_word_embeddings", False)),
    )
    return Model("d", DTransformerConfig(**sizes, variant=variant))


def _first(fields: Fields, kind: str, L: int) -> First | None:
    """Return the first of L layers, which have an MLP in place of experts."""
    n = fields.integer("first_k_dense_replace", 3 if kind == "deepseek_v3" else 0, least=0)
    if n >= L:
        fields.needs.append(f"no layer with experts (first_k_dense_replace = {n}, num_hidden_layers = {L})")
        return None
    d_mlp = fields.integer("intermediate_size", 18_432 if kind == "deepseek_v3" else 11_008)
    return First(n=n, mlp=_mlp(fields), d_mlp=d_mlp) if n else None


def _mlp(fields: Fields) -> MLP:
    return MLP(activation=fields.activation("hidden_act", "silu"), gated=True, biases=fields.flag("mlp_bias", False))


def _is_null(fields: Fields, name: str) -> bool:
    return fields.has(name) and fields.get(name) is None


def _positions(fields: Fields, l_max: int, *, interleaved: bool) -> Rotary:
    state = fields.table("rope_parameters")
    if not state:  # before transformers 5
        state = {**fields.table("rope_scaling"), "rope_theta": fields.get("rope_theta")}
    said = Fields(fields.path, state)
    scaling = read_scaling(said, l_max, scales_scores=True)
    fields.needs += said.needs
    pairs = "neighbors" if interleaved else "halves"
    return Rotary(base=said.number("rope_theta", 10_000.0), pairs=pairs, scaling=scaling)


def _experts(fields: Fields, kind: str) -> Experts:
    """Return the line of the experts: V3's weights are sigmoids, and its tokens choose within the best groups."""
    is_v3 = kind == "deepseek_v3"
    line = read_mixture(fields, MIXTURES[kind], _mlp(fields))
    groups = fields.integer("n_group", 8 if is_v3 else 1)
    chosen = fields.integer("topk_group", 4 if is_v3 else 1)
    method = None if is_v3 else fields.get("topk_method", "greedy")
    if method == "greedy":
        groups = chosen = 1
    elif method not in (None, "group_limited_greedy"):
        fields.needs.append(f"another choice of experts (topk_method = {method!r})")
    return dataclasses.replace(
        line,
        scores="sigmoid" if is_v3 else "softmax",
        renormalized=fields.flag("norm_topk_prob", True) if is_v3 else False,
        choice_bias=is_v3,
        factor=fields.number("routed_scaling_factor", 2.5 if is_v3 else 1.0),
        groups=groups,
        chosen_groups=chosen,
        best=2 if is_v3 or groups == 1 else 1,
        shared=fields.integer("n_shared_experts", 1 if is_v3 else 2),
    )


def _write_config(model: Model, kind: str) -> tuple[dict[str, Any], list[str]]:
    c, v = model.config, model.config.variant
    line, mlp = v.attentions[0], v.mlp
    if not isinstance(line, Latent) or not isinstance(mlp, Experts):
        return {}, ["attention and MLPs other than latent attention and experts"]
    state: dict[str, Any] = {
        "model_type": kind,
        "architectures": [f"{KINDS[kind]}ForCausalLM"],
        **size_fields(c, {**SIZES, **HEADS}),
        **{name: getattr(line, size) for size, (name, _) in LATENTS.items()},
        "q_lora_rank": line.d_q,
        "num_key_value_heads": c.H_kv,
        "rms_norm_eps": v.norm.epsilon,
        "tie_word_embeddings": c.tied,
        "rope_parameters": rotary_fields(line.positions),
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "first_k_dense_replace": v.first.n if v.first else 0,
        **({"intermediate_size": v.first.d_mlp} if v.first else {}),
        **mixture_fields(MIXTURES[kind], mlp, c.d_mlp),
        "routed_scaling_factor": mlp.factor,
        "n_shared_experts": mlp.shared,
        "n_group": mlp.groups,
        "topk_group": mlp.chosen_groups,
        "pad_token_id": None,
    }
    scaling = line.positions.scaling
    if isinstance(scaling, Yarn):
        state["rope_parameters"] |= {"attention_factor": scaling.attention_factor, "mscale_all_dim": scaling.scores}
    if kind == "deepseek_v3":
        state |= {"norm_topk_prob": mlp.renormalized, "rope_interleave": line.positions.pairs == "neighbors"}
        state["num_nextn_predict_layers"] = 0
    else:
        state["topk_method"] = "greedy" if mlp.groups == 1 else "group_limited_greedy"
    lacks = lost(c, v, state, lambda fields: _read_config(fields, range(c.L), kind))
    return state, lacks + unlike(c.H_kv, c.H, f"keys shared by heads (H_kv = {c.H_kv})")


def _entries(model: Model, state: dict[str, Any], kind: str) -> list[Entry]:
    config, v = model.config, model.config.variant
    line, W = v.attentions[0], "layers.attention"
    found = [table("model.embed_tokens.weight", "W_e", ["lm_head.weight"] if config.tied else [])]
    for l in range(config.L):
        layer = f"model.layers.{l}"

        def one(name: str, *leaves: str, l=l, layer=layer, by_head: bool = False) -> Entry:
            return Entry(f"{layer}.{name}.weight", leaves, l, by_head=by_head)

        q = "q_proj" if line.d_q is None else "q_b_proj"
        found += [one("input_layernorm", "layers.norm1.gamma"), one("post_attention_layernorm", "layers.norm2.gamma")]
        if line.d_q is not None:
            found += [one("self_attn.q_a_proj", f"{W}.W_cq"), one("self_attn.q_a_layernorm", f"{W}.norm_q.gamma")]
        found += [
            one(f"self_attn.{q}", f"{W}.W_q", f"{W}.W_qr", by_head=True),
            one("self_attn.kv_a_proj_with_mqa", f"{W}.W_c", f"{W}.W_kr"),
            one("self_attn.kv_a_layernorm", f"{W}.norm_c.gamma"),
            one("self_attn.kv_b_proj", f"{W}.W_k", f"{W}.W_v", by_head=True),
            one("self_attn.o_proj", f"{W}.W_o"),
            *_mlp_entries(v, l, kind),
        ]
    found.append(Entry("model.norm.weight", ("norm.gamma",)))
    return found + ([] if config.tied else [Entry("lm_head.weight", ("W_u",))])


def _mlp_entries(v: Variant, l: int, kind: str) -> list[Entry]:
    """Return the tensors of a layer's MLP, or of its experts: of these, our arrays begin after the first layers."""
    n = v.first.n if v.first else 0
    if l >= n:
        return mixture_entries(MIXTURES[kind], v.mlp, l, l - n)
    names = zip(MIXTURES[kind].parts, OURS, strict=True)
    return [Entry(f"model.layers.{l}.mlp.{name}.weight", (f"first_mlp.{leaf}",), l) for name, leaf in names]


def architecture(kind: str) -> Architecture:
    """Return how models of one of `KINDS` are described and stored."""
    return Architecture(
        functools.partial(_read_config, kind=kind),
        functools.partial(_write_config, kind=kind),
        functools.partial(_entries, kind=kind),
        prefix="model.",
        ignored=("*.rotary_emb.inv_freq",),
    )
