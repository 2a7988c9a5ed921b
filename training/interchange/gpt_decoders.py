"""Decoders of the years of GPT-3 as Algorithm 10 with changed lines: OPT, GPT-Neo, GPT-NeoX (Pythia) and BLOOM.

They differ in their positions and in the names of their tensors, by which one mapping reads and writes all of them.
"""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from algorithms import BLOOM, GPT_NEO, NEOX, OPT, DTransformerConfig
from algorithms.lines import MLP, Attention, LayerNorm, Rotary, Unembedding
from algorithms.model.variant import Variant
from training.interchange.decoders import in_turn, read_scaling, rotary_fields
from training.interchange.description import Architecture, Fields, Model, differences, plain_heads, theirs
from training.interchange.errors import InterchangeError
from training.interchange.mapping import Entry, heads, linear, norm, table


class Kind(NamedTuple):
    """The names of the tensors of a `model_type`, and of its class."""

    name: str  # of the class
    embedding: str
    layers: str  # followed by the layer's number
    norms: tuple[str, str]  # before attention and MLP
    attention: tuple[str, ...]  # queries, keys and values, or all in one, and the output
    mlp: tuple[str, str]
    final_norm: str
    unembeddings: tuple[str, ...] = ("lm_head.weight",)  # in files, and in others
    positions: str | None = None
    embedding_norm: str | None = None

    @property
    def is_fused(self) -> bool:
        """Whether one tensor has queries, keys and values, head by head."""
        return len(self.attention) == 2


KINDS = {
    "opt": Kind(
        "OPTForCausalLM",
        embedding="model.decoder.embed_tokens",
        positions="model.decoder.embed_positions",
        layers="model.decoder.layers",
        norms=("self_attn_layer_norm", "final_layer_norm"),
        attention=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj"),
        mlp=("fc1", "fc2"),
        final_norm="model.decoder.final_layer_norm",
    ),
    "gpt_neo": Kind(
        "GPTNeoForCausalLM",
        embedding="transformer.wte",
        positions="transformer.wpe",
        layers="transformer.h",
        norms=("ln_1", "ln_2"),
        attention=(*(f"attn.attention.{a}_proj" for a in ("q", "k", "v", "out")),),
        mlp=("mlp.c_fc", "mlp.c_proj"),
        final_norm="transformer.ln_f",
    ),
    "gpt_neox": Kind(
        "GPTNeoXForCausalLM",
        embedding="gpt_neox.embed_in",
        layers="gpt_neox.layers",
        norms=("input_layernorm", "post_attention_layernorm"),
        attention=("attention.query_key_value", "attention.dense"),
        mlp=("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
        final_norm="gpt_neox.final_layer_norm",
        unembeddings=("embed_out.weight", "lm_head.weight"),
    ),
    "bloom": Kind(
        "BloomForCausalLM",
        embedding="transformer.word_embeddings",
        embedding_norm="transformer.word_embeddings_layernorm",
        layers="transformer.h",
        norms=("input_layernorm", "post_attention_layernorm"),
        attention=("self_attention.query_key_value", "self_attention.dense"),
        mlp=("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
        final_norm="transformer.ln_f",
    ),
}
"""By their model_type."""


def _opt(fields: Fields) -> dict[str, Any]:
    """The sizes and the variant of an OPT."""
    fields.require("layer_norm_elementwise_affine", True, "norms without parameters")
    d_e, biases = fields.integer("hidden_size", 768), fields.flag("enable_bias", True)
    fields.require("word_embed_proj_dim", d_e, "a projection of the embeddings")
    first = fields.flag("do_layer_norm_before", True)
    return {
        "N_V": fields.integer("vocab_size", 50272),
        "l_max": fields.integer("max_position_embeddings", 2048),
        "L": fields.integer("num_hidden_layers", 12),
        "H": fields.integer("num_attention_heads", 12),
        "d_e": d_e,
        "d_mlp": fields.integer("ffn_dim", 3072),
        "variant": OPT.but(
            attention=Attention(biases=biases),
            mlp=MLP(activation=fields.activation("activation_function", "relu"), biases=biases),
            order=None if first else "norm_last",
            final_norm=None if first and not fields.flag("_remove_final_layer_norm", False) else False,
        ),
    }


def _gpt_neo(fields: Fields) -> dict[str, Any]:
    """The sizes and the variant of a GPT-Neo."""
    d_e, L = fields.integer("hidden_size", 2048), fields.integer("num_layers", 24)
    full, local = GPT_NEO.attentions
    lines = {"global": full, "local": local.but(window=fields.integer("window_size", 256))}
    pattern = fields.get("attention_types", [[["global", "local"], (L + 1) // 2]])
    try:
        kinds = fields.get("attention_layers")
        if kinds is None:
            kinds = [kind for one, times in pattern for _ in range(min(times, L + 1)) for kind in one]
        kinds = kinds if len(kinds) == L and set(kinds) <= set(lines) else None
    except (TypeError, ValueError):  # of another form
        kinds = None
    if kinds is None:
        raise InterchangeError(
            f"{fields.path}: attention_types: expected global or local for each of {L} layers, got {str(pattern)[:60]}"
        )
    return {
        "N_V": fields.integer("vocab_size", 50257),
        "l_max": fields.integer("max_position_embeddings", 2048),
        "L": L,
        "H": fields.integer("num_heads", 16),
        "d_e": d_e,
        "d_mlp": fields.integer("intermediate_size", 4 * d_e),
        "variant": GPT_NEO.but(
            norm=LayerNorm(epsilon=fields.number("layer_norm_epsilon", 1e-5)),
            attention=in_turn([lines[kind] for kind in kinds]),
            mlp=MLP(activation=fields.activation("activation_function", "gelu_new")),
        ),
    }


def _gpt_neox(fields: Fields) -> dict[str, Any]:
    """The sizes and the variant of a GPT-NeoX."""
    l_max = fields.integer("max_position_embeddings", 2048)
    old = {"rope_theta": fields.get("rotary_emb_base"), "partial_rotary_factor": fields.get("rotary_pct")}
    said = Fields(fields.path, fields.table("rope_parameters") or {**fields.table("rope_scaling"), **old})
    positions = Rotary(
        base=said.number("rope_theta", 10_000.0),
        share=said.number("partial_rotary_factor", 0.25),
        scaling=read_scaling(said, l_max),
    )
    fields.needs += said.needs
    return {
        "N_V": fields.integer("vocab_size", 50432),
        "l_max": l_max,
        "L": fields.integer("num_hidden_layers", 44),
        "H": fields.integer("num_attention_heads", 64),
        "d_e": fields.integer("hidden_size", 6144),
        "d_mlp": fields.integer("intermediate_size", 24576),
        "variant": NEOX.but(
            norm=LayerNorm(epsilon=fields.number("layer_norm_eps", 1e-5)),
            attention=Attention(positions=positions, biases=fields.flag("attention_bias", True)),
            mlp=MLP(activation=fields.activation("hidden_act", "gelu")),
            order="side_by_side" if fields.flag("use_parallel_residual", True) else None,
        ),
    }


def _bloom(fields: Fields) -> dict[str, Any]:
    """The sizes and the variant of a BLOOM, whose config.json need not say how long its texts were."""
    fields.require("apply_residual_connection_post_layernorm", False, "sums with what the norms give")
    d_e = fields.integer("hidden_size", fields.get("n_embed", 64))
    return {
        "N_V": fields.integer("vocab_size", 250_880),
        "l_max": fields.integer("seq_length", 2048),
        "L": fields.integer("n_layer", fields.get("num_hidden_layers", 2)),
        "H": fields.integer("n_head", fields.get("num_attention_heads", 8)),
        "d_e": d_e,
        "d_mlp": 4 * d_e,
        "variant": BLOOM.but(norm=LayerNorm(epsilon=fields.number("layer_norm_epsilon", 1e-5))),
    }


DESCRIBED = {"opt": _opt, "gpt_neo": _gpt_neo, "gpt_neox": _gpt_neox, "bloom": _bloom}


def _read_config(fields: Fields, names: Sequence[Any], kind: str) -> Model:
    tied = fields.flag("tie_word_embeddings", kind != "gpt_neox")
    state = DESCRIBED[kind](fields)
    variant: Variant = state.pop("variant")
    return Model("d", DTransformerConfig(**state, variant=variant.but(unembedding=Unembedding(tied=tied))))


def _write_config(model: Model, kind: str) -> tuple[dict[str, Any], list[str]]:
    c, v = model.config, model.config.variant
    state: dict[str, Any] = {
        "model_type": kind,
        "architectures": [KINDS[kind].name],
        "vocab_size": c.N_V,
        "hidden_size": c.d_e,
        "tie_word_embeddings": c.tied,
        "attention_dropout": v.dropout,
        "pad_token_id": None,
    }
    lines = [v.attentions[l % len(v.attentions)] for l in range(c.L)]
    activation = theirs((v.mlp and v.mlp.activation) or "gelu")
    if kind == "bloom":
        state |= {"n_layer": c.L, "n_head": c.H, "layer_norm_epsilon": v.norm.epsilon, "seq_length": c.l_max}
        return state, _lacks(model, state, kind)
    state["max_position_embeddings"] = c.l_max
    if kind == "gpt_neo":
        state |= {"num_layers": c.L, "num_heads": c.H, "intermediate_size": c.d_mlp, "activation_function": activation}
        kinds = ["global" if line.window is None else "local" for line in lines]
        state |= {"attention_layers": kinds, "attention_types": [[[one], 1] for one in kinds]}
        state["window_size"] = next((line.window for line in lines if line.window), 256)
        state["layer_norm_epsilon"] = v.norm.epsilon
        return state, _lacks(model, state, kind)
    state |= {"num_hidden_layers": c.L, "num_attention_heads": c.H}
    if kind == "opt":
        state |= {"ffn_dim": c.d_mlp, "activation_function": activation, "enable_bias": lines[0].biases is True}
        state |= {"do_layer_norm_before": v.order != "norm_last", "word_embed_proj_dim": c.d_e}
        state["_remove_final_layer_norm"] = v.final_norm is False and v.order != "norm_last"
        return state, _lacks(model, state, kind)
    state |= {"intermediate_size": c.d_mlp, "hidden_act": activation, "layer_norm_eps": v.norm.epsilon}
    state |= {"use_parallel_residual": v.order == "side_by_side", "attention_bias": lines[0].biases is True}
    share = getattr(lines[0].positions, "share", 1.0)
    state["rope_parameters"] = rotary_fields(lines[0].positions) | {"partial_rotary_factor": share}
    return state, _lacks(model, state, kind)


def _lacks(model: Model, state: dict[str, Any], kind: str) -> list[str]:
    """The reasons why a kind cannot express a model: the differences after its config.json is read back."""
    c = model.config
    fields = Fields(Path("config.json"), state)
    try:
        said = _read_config(fields, (), kind).config
    except ValueError as error:
        return [f"place for it: {error}"]
    ours = c.variant.but(unembedding=c.variant.unembedding.but(tied=c.tied), dropout=0.0)
    rows = [] if said.d_mlp == c.d_mlp else [f"{c.d_mlp} hidden units where it has {said.d_mlp}"]
    return differences(ours, said.variant) + fields.needs + plain_heads(c) + rows


def _entries(model: Model, state: dict[str, Any], kind: str) -> list[Entry]:
    names, c, v = KINDS[kind], model.config, model.config.variant
    found = [table(f"{names.embedding}.weight", "W_e", names.unembeddings if c.tied else [])]
    found += [table(f"{names.positions}.weight", "W_p")] if names.positions else []
    found += norm(names.embedding_norm, "embedding_norm") if names.embedding_norm else []
    W, b = heads("layers.attention")
    *of_heads, output = names.attention
    biases = v.attentions[0].biases
    for l in range(c.L):
        layer = f"{names.layers}.{l}"
        found += [entry for i in (0, 1) for entry in norm(f"{layer}.{names.norms[i]}", f"layers.norm{i + 1}", l)]
        if names.is_fused:
            weights = linear(f"{layer}.{of_heads[0]}", W, b, l, by_head=True)
        else:
            weights = [e for a in zip(of_heads, W, b, strict=True) for e in linear(f"{layer}.{a[0]}", *a[1:], l)]
        found += [entry for entry in weights if biases is True or entry.name.endswith("weight")]
        weights = linear(f"{layer}.{output}", "layers.attention.W_o", "layers.attention.b_o", l)
        found += weights if biases else weights[:1]
        for i in (1, 2):
            weights = linear(f"{layer}.{names.mlp[i - 1]}", f"layers.mlp.W_mlp{i}", f"layers.mlp.b_mlp{i}", l)
            found += weights if v.mlp.biases else weights[:1]
    found += norm(names.final_norm, "norm") if v.final_norm is not False else []
    unembedding, *aliases = names.unembeddings
    return found if c.tied else [*found, Entry(unembedding, ("W_u",), aliases=tuple(aliases))]


def architecture(kind: str) -> Architecture:
    """Return how models of a kind, one of `KINDS`, are described and stored."""
    return Architecture(
        functools.partial(_read_config, kind=kind),
        functools.partial(_write_config, kind=kind),
        functools.partial(_entries, kind=kind),
        prefix=f"{KINDS[kind].embedding.partition('.')[0]}.",
        # masks and frequencies, in old files
        ignored=("*.attention.bias", "*.attention.masked_bias", "*.attn.bias", "*.attn.masked_bias", "*.inv_freq"),
    )
