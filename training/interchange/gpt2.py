"""GPT-2, which is Algorithm 10: `GPT2LMHeadModel` of transformers."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from algorithms import GPT2, DTransformerConfig
from training.interchange.description import Architecture, Fields, Model, theirs, unlike
from training.interchange.mapping import Entry, heads, linear, norm, table


def _read_config(fields: Fields, names: Sequence[str]) -> Model:
    fields.require("scale_attn_weights", True, "scores that are not divided by √d_attn")
    fields.require("scale_attn_by_inverse_layer_idx", False, "scores divided by the layer's number")
    fields.require("add_cross_attention", False, "cross-attention")
    d_e = fields.integer("n_embd", 768)
    variant = dataclasses.replace(
        GPT2,
        epsilon=fields.number("layer_norm_epsilon", 1e-5),
        activation=fields.activation("activation_function", "gelu_new"),
        tied=fields.flag("tie_word_embeddings", True),
        unembedding_bias="lm_head.bias" in names,
    )
    config = DTransformerConfig(
        N_V=fields.integer("vocab_size", 50257),
        l_max=fields.integer("n_positions", 1024),
        L=fields.integer("n_layer", 12),
        H=fields.integer("n_head", 12),
        d_e=d_e,
        d_mlp=fields.integer("n_inner", 4 * d_e),
        variant=variant,
    )
    return Model("d", config)


def _write_config(model: Model) -> tuple[dict[str, Any], list[str]]:
    c, v = model.config, model.config.variant
    lacks = unlike(v.norm, "layer_norm", "RMSnorm") + unlike(v.positions, "learned", "sinusoidal positions")
    lacks += unlike(v.unembedding_bias, False, "output bias")
    lacks += unlike(v.scale_embedding, False, "scaled embeddings")
    lacks += unlike((c.d_attn * c.H, c.d_mid * c.H), (c.d_e, c.d_e), "heads of another size than d_e/H")
    state = {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": c.N_V,
        "n_positions": c.l_max,
        "n_embd": c.d_e,
        "n_layer": c.L,
        "n_head": c.H,
        "n_inner": c.d_mlp,
        "activation_function": theirs(v.activation or "gelu"),
        "layer_norm_epsilon": v.epsilon,
        "tie_word_embeddings": c.tied,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": v.dropout,
    }
    return state, lacks


def _entries(model: Model, state: dict[str, Any]) -> list[Entry]:
    found = [table("transformer.wte.weight", "W_e", ["lm_head.weight"] if model.config.tied else [])]
    found.append(table("transformer.wpe.weight", "W_p"))
    for l in range(model.config.L):
        h = f"transformer.h.{l}"
        found += norm(f"{h}.ln_1", "layers.norm1", l)
        found += linear(f"{h}.attn.c_attn", *heads("layers.attention"), l, transposed=True)
        found += linear(f"{h}.attn.c_proj", "layers.attention.W_o", "layers.attention.b_o", l, transposed=True)
        found += norm(f"{h}.ln_2", "layers.norm2", l)
        found += linear(f"{h}.mlp.c_fc", "layers.mlp.W_mlp1", "layers.mlp.b_mlp1", l, transposed=True)
        found += linear(f"{h}.mlp.c_proj", "layers.mlp.W_mlp2", "layers.mlp.b_mlp2", l, transposed=True)
    found += norm("transformer.ln_f", "norm")
    found += [] if model.config.tied else [Entry("lm_head.weight", ("W_u",))]
    return [*found, Entry("lm_head.bias", ("b_u",))] if model.config.variant.unembedding_bias else found


ARCHITECTURE = Architecture(
    _read_config,
    _write_config,
    _entries,
    prefix="transformer.",
    ignored=("*h.*.attn.bias", "*h.*.attn.masked_bias"),  # the mask, in old files
)
