"""GPT-2, which is Algorithm 10: `GPT2LMHeadModel` of transformers."""

from collections.abc import Sequence
from typing import Any

from algorithms import GPT2, DTransformerConfig
from algorithms.lines import MLP, LayerNorm, Unembedding
from training.interchange.description import Architecture, Fields, Model, differences, plain_heads, theirs
from training.interchange.mapping import Entry, heads, linear, norm, table


def _read_config(fields: Fields, names: Sequence[str]) -> Model:
    fields.require("scale_attn_weights", True, "scores that are not divided by √d_attn")
    fields.require("scale_attn_by_inverse_layer_idx", False, "scores divided by the layer's number")
    fields.require("add_cross_attention", False, "cross-attention")
    d_e = fields.integer("n_embd", 768)
    tied, bias = fields.flag("tie_word_embeddings", True), "lm_head.bias" in names
    variant = GPT2.but(
        norm=LayerNorm(epsilon=fields.number("layer_norm_epsilon", 1e-5)),
        mlp=MLP(activation=fields.activation("activation_function", "gelu_new")),
        unembedding=Unembedding(tied=tied, bias=bias),
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
    activation = v.mlp.activation or "gelu"
    said = GPT2.but(
        norm=LayerNorm(epsilon=v.norm.epsilon),
        mlp=MLP(activation=v.mlp.activation),
        unembedding=Unembedding(tied=v.unembedding.tied),
        dropout=v.dropout,
    )
    lacks = differences(v, said) + plain_heads(c)
    state = {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": c.N_V,
        "n_positions": c.l_max,
        "n_embd": c.d_e,
        "n_layer": c.L,
        "n_head": c.H,
        "n_inner": c.d_mlp,
        "activation_function": theirs(activation),
        "layer_norm_epsilon": v.norm.epsilon,
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
    return [*found, Entry("lm_head.bias", ("b_u",))] if model.config.variant.unembedding.bias else found


ARCHITECTURE = Architecture(
    _read_config,
    _write_config,
    _entries,
    prefix="transformer.",
    ignored=("*h.*.attn.bias", "*h.*.attn.masked_bias"),  # the mask, in old files
)
