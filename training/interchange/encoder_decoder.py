"""Algorithm 8 as in the transformers library: BART, Marian (OPUS-MT) and FSMT (fairseq's models of WMT 2019)."""

import functools
from collections.abc import Sequence
from typing import Any

from algorithms import BART, FSMT, MARIAN, EDTransformerConfig
from algorithms.lines import MLP, Unembedding
from training.interchange.description import Architecture, Fields, Model, size_fields, theirs, unexpressed, unlike
from training.interchange.mapping import Entry, attention_maps, mlp_maps, norm, table

ARCHITECTURE_NAMES = {
    "bart": "BartForConditionalGeneration",
    "marian": "MarianMTModel",
    "fsmt": "FSMTForConditionalGeneration",
}
VARIANTS = {"bart": BART, "marian": MARIAN, "fsmt": FSMT}
SIZES = {
    "l_max": ("max_position_embeddings", 1024),
    "L_enc": ("encoder_layers", 12),
    "L_dec": ("decoder_layers", 12),
    "H": ("encoder_attention_heads", 16),
    "d_e": ("d_model", 1024),
    "d_mlp": ("encoder_ffn_dim", 4096),
}
"""Our name → the field's name and default."""


def _read_config(kind: str, fields: Fields, names: Sequence[str]) -> Model:
    named = fields.first("architectures") or ARCHITECTURE_NAMES[kind]
    if named != ARCHITECTURE_NAMES[kind]:
        fields.needs.append(f"the head of {named}")
    sizes: dict[str, Any] = fields.sizes(SIZES)
    for name, size in (("attention_heads", "H"), ("ffn_dim", "d_mlp")):
        fields.require(f"decoder_{name}", sizes[size], f"a decoder with other {name} than the encoder")
    for flag in ("normalize_before", "add_final_layer_norm", "add_bias_logits"):
        fields.require(flag, False, "another arrangement of norms and biases")
    shared = kind == "bart" or (kind == "marian" and fields.flag("share_encoder_decoder_embeddings", True))
    N_V_z = fields.integer("src_vocab_size" if kind == "fsmt" else "vocab_size", 50265)
    N_V = N_V_z
    if not shared:
        N_V = fields.integer("tgt_vocab_size" if kind == "fsmt" else "decoder_vocab_size", N_V_z)
    tied = fields.flag("tie_word_embeddings", kind != "fsmt")
    first = VARIANTS[kind].embedding.first_position
    if kind == "fsmt":  # fairseq numbers positions from the padding token's ID on
        first = fields.integer("pad_token_id", 1, least=0) + 1
    scaled = fields.flag("scale_embedding", kind == "fsmt")
    variant = VARIANTS[kind].but(
        embedding=VARIANTS[kind].embedding.but(scaled=scaled, first_position=first),
        mlp=MLP(activation=fields.activation("activation_function", "relu" if kind == "fsmt" else "gelu")),
        unembedding=Unembedding(tied=tied, bias="final_logits_bias" in names),
    )
    if kind == "fsmt" and tied:
        shared = True
    return Model("ed", EDTransformerConfig(N_V=N_V, N_V_z=None if shared else N_V_z, **sizes, variant=variant))


def _write_config(kind: str, model: Model) -> tuple[dict[str, Any], list[str]]:
    c, v, expected = model.config, model.config.variant, VARIANTS[kind]
    said = expected.but(
        embedding=expected.embedding.but(scaled=v.embedding.scaled),
        mlp=MLP(activation=v.mlp.activation),
        unembedding=Unembedding(tied=v.unembedding.tied, bias=v.unembedding.bias and kind != "fsmt"),
    )
    lacks = unexpressed(c, said)
    if kind == "bart":
        lacks += unlike(c.N_V_z, None, "separate vocabulary for the context")
    state = {
        "model_type": kind,
        "architectures": [ARCHITECTURE_NAMES[kind]],
        "is_encoder_decoder": True,
        **size_fields(c, SIZES),
        "decoder_attention_heads": c.H,
        "decoder_ffn_dim": c.d_mlp,
        "activation_function": theirs(v.mlp.activation or "relu"),
        "scale_embedding": v.embedding.scaled,
        "tie_word_embeddings": c.tied,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "pad_token_id": v.embedding.first_position - 1 if kind == "fsmt" else c.N_V - 1,
        "decoder_start_token_id": c.N_V - 2,
        "eos_token_id": c.N_V - 1,
        "forced_eos_token_id": None,
    }
    if kind == "fsmt":
        lacks += unlike(c.tied, c.N_V_z is None, "tied unembedding but with one vocabulary")
        sizes = {"src_vocab_size": c.N_V_z or c.N_V, "tgt_vocab_size": c.N_V, "langs": ["source", "target"]}
    else:
        sizes = {"vocab_size": c.N_V_z or c.N_V}
    if kind == "marian":
        sizes |= {"decoder_vocab_size": c.N_V, "share_encoder_decoder_embeddings": c.N_V_z is None}
    return state | sizes, lacks


def _entries(kind: str, model: Model, state: dict[str, Any]) -> list[Entry]:
    c = model.config
    encoder, decoder, head = "model.encoder", "model.decoder", "lm_head.weight"
    copies = [f"{part}.embed_tokens.weight" for part in (encoder, decoder)]
    if kind == "fsmt":
        head = f"{decoder}.output_projection.weight"
    tied = [head] if c.tied else []
    if c.N_V_z is not None:
        found = [table(copies[0], "context.W_e"), table(copies[1], "W_e", tied)]
    elif kind == "fsmt":
        found = [table(copies[1], "W_e", [copies[0], *tied])]
    else:
        found = [table("model.shared.weight", "W_e", [*copies, *tied])]
    if kind == "bart":
        for part, ours in ((encoder, "context."), (decoder, "")):
            found.append(table(f"{part}.embed_positions.weight", f"{ours}W_p"))
            found += norm(f"{part}.layernorm_embedding", f"{ours}embedding_norm")
    if kind != "fsmt":
        has_bias = c.variant.unembedding.bias
        found.append(Entry("final_logits_bias", ("b_u",) if has_bias else (), lead=(1,) if has_bias else (1, c.N_V)))
    for l in range(c.L_enc):
        name = f"{encoder}.layers.{l}"
        found += _attention(f"{name}.self_attn", "encoder.attention", l)
        found += norm(f"{name}.self_attn_layer_norm", "encoder.norm1", l)
        found += mlp_maps(f"{name}.fc1", f"{name}.fc2", "encoder.mlp", l)
        found += norm(f"{name}.final_layer_norm", "encoder.norm2", l)
    for l in range(c.L_dec):
        name = f"{decoder}.layers.{l}"
        found += _attention(f"{name}.self_attn", "decoder.self_attention", l)
        found += norm(f"{name}.self_attn_layer_norm", "decoder.norm3", l)
        found += _attention(f"{name}.encoder_attn", "decoder.cross_attention", l)
        found += norm(f"{name}.encoder_attn_layer_norm", "decoder.norm4", l)
        found += mlp_maps(f"{name}.fc1", f"{name}.fc2", "decoder.mlp", l)
        found += norm(f"{name}.final_layer_norm", "decoder.norm5", l)
    return found if c.tied else [*found, Entry(head, ("W_u",))]


def _attention(name: str, leaf: str, l: int) -> list[Entry]:
    return attention_maps([f"{name}.{part}_proj" for part in ("q", "k", "v", "out")], leaf, l)


def architecture(kind: str) -> Architecture:
    """Return how models of "bart", "marian" or "fsmt" are described and stored."""
    return Architecture(
        functools.partial(_read_config, kind),
        functools.partial(_write_config, kind),
        functools.partial(_entries, kind),
        prefix="model.",
        ignored=() if kind == "bart" else ("*embed_positions.weight",),  # sinusoids, which we compute
    )
