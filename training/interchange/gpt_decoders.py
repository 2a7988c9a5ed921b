"""GPT-2 and its successors OPT, GPT-Neo, GPT-NeoX (Pythia) and BLOOM, as Algorithm 10 with changed lines.

They differ in their positions and in the names of their fields and tensors, so one mapping reads and writes them all.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from algorithms import BLOOM, GPT2, GPT_NEO, NEOX, OPT, DTransformerConfig
from algorithms.lines import MLP, Attention, LayerNorm, Rotary
from algorithms.model.variant import Variant
from training.interchange.decoders import in_turn, read_scaling, rotary_fields
from training.interchange.description import MOST_LAYERS, Architecture, Fields, Model, lost, plain_heads, theirs
from training.interchange.errors import InterchangeError
from training.interchange.mapping import Entry, heads, linear, norm, table


class Kind(NamedTuple):
    """What distinguishes one `model_type`."""

    name: str  # of its class
    variant: Variant  # the lines that config.json does not decide
    # our size or number → its names in config.json, the one to write first, and its default; None for d_mlp: 4 d_e
    fields: Mapping[str, tuple[Any, ...]]
    read_lines: Callable[[Fields, Variant, Mapping[str, int]], Variant]  # (fields, variant, sizes) → variant
    write_lines: Callable[[Variant, Sequence[Attention]], dict[str, Any]]  # (variant, the layers' attentions) → fields
    # the names of the tensors
    embedding: str
    layers: str  # followed by the layer's number
    norms: tuple[str, str]  # before attention and MLP
    attention: tuple[str, ...]  # queries, keys and values, together or separately, and the output
    mlp: tuple[str, str]
    final_norm: str
    unembeddings: tuple[str, ...] = ("lm_head.weight",)  # alternatives, the one to write first
    positions: str | None = None
    embedding_norm: str | None = None
    transposed: bool = False  # whether matrices are transposed, and queries, keys and values stacked, not interleaved
    tied: bool = True  # the default


def _read_gpt2(fields: Fields, variant: Variant, sizes: Mapping[str, int]) -> Variant:
    fields.require("scale_attn_weights", True, "scores that are not divided by √d_attn")
    fields.require("scale_attn_by_inverse_layer_idx", False, "scores divided by the layer's number")
    fields.require("add_cross_attention", False, "cross-attention")
    return variant


def _write_gpt2(variant: Variant, lines: Sequence[Attention]) -> dict[str, Any]:
    return {"resid_pdrop": 0.0, "embd_pdrop": 0.0}


def _read_opt(fields: Fields, variant: Variant, sizes: Mapping[str, int]) -> Variant:
    fields.require("layer_norm_elementwise_affine", True, "norms without parameters")
    fields.require("word_embed_proj_dim", sizes["d_e"], "a projection of the embeddings")
    first, biases = fields.flag("do_layer_norm_before", True), fields.flag("enable_bias", True)
    return variant.but(
        attention=Attention(biases=biases),
        mlp=MLP(biases=biases),
        order=None if first else "norm_last",
        final_norm=None if first and not fields.flag("_remove_final_layer_norm", False) else False,
    )


def _write_opt(variant: Variant, lines: Sequence[Attention]) -> dict[str, Any]:
    first = variant.order != "norm_last"
    return {
        "enable_bias": lines[0].biases is True,
        "do_layer_norm_before": first,
        "_remove_final_layer_norm": variant.final_norm is False and first,
    }


def _read_gpt_neo(fields: Fields, variant: Variant, sizes: Mapping[str, int]) -> Variant:
    L, (full, local) = fields.integer("num_layers", 24, limit=MOST_LAYERS), GPT_NEO.attentions
    lines = {"global": full, "local": local.but(window=fields.integer("window_size", 256))}
    pattern = fields.get("attention_types", [[["global", "local"], (L + 1) // 2]])
    try:
        kinds = fields.get("attention_layers")
        if kinds is None:
            kinds = [kind for one, times in pattern for _ in range(min(times, L + 1)) for kind in one]
        kinds = kinds if len(kinds) == L and set(kinds) <= set(lines) else None
    except (TypeError, ValueError):  # malformed
        kinds = None
    if kinds is None:
        raise InterchangeError(
            f"{fields.path}: attention_types: expected global or local for each of {L} layers, got {str(pattern)[:60]}"
        )
    return variant.but(attention=in_turn([lines[kind] for kind in kinds]))


def _write_gpt_neo(variant: Variant, lines: Sequence[Attention]) -> dict[str, Any]:
    kinds = ["global" if line.window is None else "local" for line in lines]
    return {
        "attention_layers": kinds,
        "attention_types": [[[kind], 1] for kind in kinds],
        "window_size": next((line.window for line in lines if line.window), 256),
    }


def _read_gpt_neox(fields: Fields, variant: Variant, sizes: Mapping[str, int]) -> Variant:
    old = {"rope_theta": fields.get("rotary_emb_base"), "partial_rotary_factor": fields.get("rotary_pct")}
    said = Fields(fields.path, fields.table("rope_parameters") or {**fields.table("rope_scaling"), **old})
    positions = Rotary(
        base=said.number("rope_theta", 10_000.0),
        share=said.number("partial_rotary_factor", 0.25),
        scaling=read_scaling(said, sizes["l_max"]),
    )
    fields.needs += said.needs
    return variant.but(
        attention=Attention(positions=positions, biases=fields.flag("attention_bias", True)),
        order="side_by_side" if fields.flag("use_parallel_residual", True) else None,
    )


def _write_gpt_neox(variant: Variant, lines: Sequence[Attention]) -> dict[str, Any]:
    positions = lines[0].positions
    return {
        "use_parallel_residual": variant.order == "side_by_side",
        "attention_bias": lines[0].biases is True,
        "rope_parameters": rotary_fields(positions) | {"partial_rotary_factor": getattr(positions, "share", 1.0)},
    }


def _read_bloom(fields: Fields, variant: Variant, sizes: Mapping[str, int]) -> Variant:
    fields.require("apply_residual_connection_post_layernorm", False, "residual connections after the norms")
    return variant


KINDS = {
    "gpt2": Kind(
        "GPT2LMHeadModel",
        GPT2,
        {
            "N_V": ("vocab_size", 50257),
            "l_max": ("n_positions", 1024),
            "L": ("n_layer", 12),
            "H": ("n_head", 12),
            "d_e": ("n_embd", 768),
            "d_mlp": ("n_inner", None),
            "activation": ("activation_function", "gelu_new"),
            "epsilon": ("layer_norm_epsilon", 1e-5),
            "dropout": ("attn_pdrop", 0.0),
        },
        _read_gpt2,
        _write_gpt2,
        embedding="transformer.wte",
        positions="transformer.wpe",
        layers="transformer.h",
        norms=("ln_1", "ln_2"),
        attention=("attn.c_attn", "attn.c_proj"),
        mlp=("mlp.c_fc", "mlp.c_proj"),
        final_norm="transformer.ln_f",
        transposed=True,
    ),
    "opt": Kind(
        "OPTForCausalLM",
        OPT,
        {
            "N_V": ("vocab_size", 50272),
            "l_max": ("max_position_embeddings", 2048),
            "L": ("num_hidden_layers", 12),
            "H": ("num_attention_heads", 12),
            "d_e": ("hidden_size", 768),
            "d_mlp": ("ffn_dim", 3072),
            "activation": ("activation_function", "relu"),
            "dropout": ("attention_dropout", 0.0),
        },
        _read_opt,
        _write_opt,
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
        GPT_NEO,
        {
            "N_V": ("vocab_size", 50257),
            "l_max": ("max_position_embeddings", 2048),
            "L": ("num_layers", 24),
            "H": ("num_heads", 16),
            "d_e": ("hidden_size", 2048),
            "d_mlp": ("intermediate_size", None),
            "activation": ("activation_function", "gelu_new"),
            "epsilon": ("layer_norm_epsilon", 1e-5),
            "dropout": ("attention_dropout", 0.0),
        },
        _read_gpt_neo,
        _write_gpt_neo,
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
        NEOX,
        {
            "N_V": ("vocab_size", 50432),
            "l_max": ("max_position_embeddings", 2048),
            "L": ("num_hidden_layers", 44),
            "H": ("num_attention_heads", 64),
            "d_e": ("hidden_size", 6144),
            "d_mlp": ("intermediate_size", 24576),
            "activation": ("hidden_act", "gelu"),
            "epsilon": ("layer_norm_eps", 1e-5),
            "dropout": ("attention_dropout", 0.0),
        },
        _read_gpt_neox,
        _write_gpt_neox,
        embedding="gpt_neox.embed_in",
        layers="gpt_neox.layers",
        norms=("input_layernorm", "post_attention_layernorm"),
        attention=("attention.query_key_value", "attention.dense"),
        mlp=("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
        final_norm="gpt_neox.final_layer_norm",
        unembeddings=("embed_out.weight", "lm_head.weight"),
        tied=False,
    ),
    "bloom": Kind(
        "BloomForCausalLM",
        BLOOM,
        {
            "N_V": ("vocab_size", 250_880),
            "l_max": ("seq_length", 2048),  # config.json may omit it
            "L": ("n_layer", "num_hidden_layers", 2),
            "H": ("n_head", "num_attention_heads", 8),
            "d_e": ("hidden_size", "n_embed", 64),
            "epsilon": ("layer_norm_epsilon", 1e-5),
            "dropout": ("attention_dropout", 0.0),
        },
        _read_bloom,
        lambda variant, lines: {},
        embedding="transformer.word_embeddings",
        embedding_norm="transformer.word_embeddings_layernorm",
        layers="transformer.h",
        norms=("input_layernorm", "post_attention_layernorm"),
        attention=("self_attention.query_key_value", "self_attention.dense"),
        mlp=("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
        final_norm="transformer.ln_f",
    ),
}
"""By model_type."""
SIZES = ("N_V", "l_max", "L", "H", "d_e", "d_mlp")
"""In this order, since the default of d_mlp is 4 d_e."""


def _read_config(fields: Fields, names: Sequence[Any], kind: str) -> Model:
    own = KINDS[kind]
    sizes: dict[str, Any] = {}
    for size in SIZES:
        *said, default = own.fields.get(size, ("", None))
        name = next((name for name in said if fields.get(name) is not None), said[0])
        sizes[size] = fields.integer(name, default or 4 * sizes["d_e"])
    variant = own.variant.but(
        unembedding=own.variant.unembedding.but(
            tied=fields.flag("tie_word_embeddings", own.tied), bias="lm_head.bias" in names
        )
    )
    if "epsilon" in own.fields:
        variant = variant.but(norm=LayerNorm(epsilon=fields.number(*own.fields["epsilon"])))
    variant = own.read_lines(fields, variant, sizes)
    if "activation" in own.fields:
        mlp = variant.mlp or MLP()
        variant = variant.but(mlp=mlp.but(activation=fields.activation(*own.fields["activation"])))
    return Model("d", DTransformerConfig(**sizes, variant=variant))


def _write_config(model: Model, kind: str) -> tuple[dict[str, Any], list[str]]:
    own, c, v = KINDS[kind], model.config, model.config.variant
    numbers = {size: getattr(c, size) for size in SIZES} | {
        "activation": theirs((v.mlp and v.mlp.activation) or "gelu"),
        "epsilon": v.norm.epsilon,
        "dropout": 0.0,
    }
    state: dict[str, Any] = {
        "model_type": kind,
        "architectures": [own.name],
        **{said[0]: numbers[ours] for ours, said in own.fields.items()},
        "tie_word_embeddings": c.tied,
        "pad_token_id": None,
        **own.write_lines(v, [v.attentions[l % len(v.attentions)] for l in range(c.L)]),
    }
    ours = v.but(mlp=v.mlp and v.mlp.but(activation=v.mlp.activation or "gelu"))
    return state, lost(c, ours, state, lambda fields: _read_config(fields, (), kind)) + plain_heads(c)


def _entries(model: Model, state: dict[str, Any], kind: str) -> list[Entry]:
    own, c, v = KINDS[kind], model.config, model.config.variant
    found = [table(f"{own.embedding}.weight", "W_e", own.unembeddings if c.tied else [])]
    found += [table(f"{own.positions}.weight", "W_p")] if own.positions else []
    found += norm(own.embedding_norm, "embedding_norm") if own.embedding_norm else []
    W, b = heads("layers.attention")
    *of_heads, output = own.attention
    biases = v.attentions[0].biases
    map_of = functools.partial(linear, transposed=own.transposed)
    for l in range(c.L):
        layer = f"{own.layers}.{l}"
        found += [entry for i in (0, 1) for entry in norm(f"{layer}.{own.norms[i]}", f"layers.norm{i + 1}", l)]
        if len(of_heads) == 1:
            weights = map_of(f"{layer}.{of_heads[0]}", W, b, l, by_head=not own.transposed)
        else:
            parts = zip(of_heads, W, b, strict=True)
            weights = [entry for name, *ours in parts for entry in map_of(f"{layer}.{name}", *ours, l)]
        found += [entry for entry in weights if biases is True or entry.name.endswith("weight")]
        weights = map_of(f"{layer}.{output}", "layers.attention.W_o", "layers.attention.b_o", l)
        found += weights if biases else weights[:1]
        for i in (1, 2):
            weights = map_of(f"{layer}.{own.mlp[i - 1]}", f"layers.mlp.W_mlp{i}", f"layers.mlp.b_mlp{i}", l)
            found += weights if v.mlp.biases else weights[:1]
    found += norm(own.final_norm, "norm") if v.final_norm is not False else []
    unembedding, *aliases = own.unembeddings
    found += [] if c.tied else [Entry(unembedding, ("W_u",), aliases=tuple(aliases))]
    return [*found, Entry("lm_head.bias", ("b_u",))] if v.unembedding.bias else found


def architecture(kind: str) -> Architecture:
    """Return how models of one of `KINDS` are described and stored."""
    return Architecture(
        functools.partial(_read_config, kind=kind),
        functools.partial(_write_config, kind=kind),
        functools.partial(_entries, kind=kind),
        prefix=f"{KINDS[kind].embedding.partition('.')[0]}.",
        # masks and rotary frequencies, in old files
        ignored=("*.attention.bias", "*.attention.masked_bias", "*.attn.bias", "*.attn.masked_bias", "*.inv_freq"),
    )
