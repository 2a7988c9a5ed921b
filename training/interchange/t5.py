"""T5, as Algorithm 8 with relative positions: the first version, and version 1.1 (Flan-T5) with its gated MLP."""

from collections.abc import Sequence
from typing import Any

from algorithms import T5, EDTransformerConfig
from algorithms.lines import MLP, Distances, RMSNorm, Unembedding
from training.interchange.description import Architecture, Fields, Model, differences, size_fields, theirs, unlike
from training.interchange.mapping import Entry, table

NAME = "T5ForConditionalGeneration"
HEAD = "lm_head.weight"
DISTANCES = "layer.0.SelfAttention.relative_attention_bias.weight"
SIZES = {
    "N_V": ("vocab_size", 32128),
    "l_max": ("n_positions", 512),
    "L_enc": ("num_layers", 6),
    "H": ("num_heads", 8),
    "d_e": ("d_model", 512),
    "d_mlp": ("d_ff", 2048),
    "d_attn": ("d_kv", 64),
}
"""Our name → the field's name and default."""


def _read_config(fields: Fields, names: Sequence[str]) -> Model:
    named = fields.first("architectures") or NAME
    if named not in (NAME, "T5WithLMHeadModel"):
        fields.needs.append(f"the head of {named}")
    activation, is_gated = _mlp(fields)
    # transformers 5 declares every model tied; version 1.1 is recognized by its unscaled logits, or its own matrix
    scaled = fields.flag("scale_decoder_outputs", fields.flag("tie_word_embeddings", True))
    tied = scaled or HEAD not in names
    distances = Distances(
        buckets=fields.integer("relative_attention_num_buckets", 32),
        farthest=fields.integer("relative_attention_max_distance", 128),
    )
    variant = T5.but(
        norm=RMSNorm(epsilon=fields.number("layer_norm_epsilon", 1e-6)),
        attention=T5.attentions[0].but(positions=distances),
        mlp=MLP(activation=activation, gated=is_gated, biases=False),
        unembedding=Unembedding(tied=tied, scaled=scaled),
    )
    sizes: dict[str, Any] = fields.sizes(SIZES)
    L_dec = fields.integer("num_decoder_layers", sizes["L_enc"])
    return Model("ed", EDTransformerConfig(**sizes, L_dec=L_dec, d_mid=sizes["d_attn"], variant=variant))


def _mlp(fields: Fields) -> tuple[Any, bool]:
    """Return the nonlinearity, and whether the MLP is gated."""
    said = str(fields.get("feed_forward_proj", "relu"))
    gate, _, activation = said.rpartition("-")
    if gate not in ("", "gated"):
        fields.needs.append(f"the MLP of feed_forward_proj = {said!r}")
    if said == "gated-gelu":  # always means the tanh approximation
        activation = "gelu_new"
    mlp = Fields(fields.path, {"feed_forward_proj": activation})
    found = mlp.activation("feed_forward_proj", "relu")
    fields.needs += mlp.needs
    return found, bool(gate)


def _write_config(model: Model) -> tuple[dict[str, Any], list[str]]:
    c, v = model.config, model.config.variant
    distances = v.attentions[0].positions
    distances = distances if isinstance(distances, Distances) else Distances()
    mlp = v.mlp or MLP()
    said = T5.but(
        norm=RMSNorm(epsilon=v.norm.epsilon),
        attention=T5.attentions[0].but(positions=distances),
        mlp=MLP(activation=mlp.activation or "relu", gated=mlp.gated, biases=False),
        unembedding=Unembedding(tied=v.unembedding.tied, scaled=v.unembedding.scaled),
    )
    lacks = differences(v, said)
    lacks += unlike(c.d_mid, c.d_attn, f"values of a different size than keys (d_mid = {c.d_mid})")
    lacks += unlike(c.H_kv, c.H, f"keys shared by heads (H_kv = {c.H_kv})")
    lacks += unlike(c.N_V_z, None, "separate vocabulary for the context")
    activation = theirs(mlp.activation or "relu")
    state = {
        "model_type": "t5",
        "architectures": [NAME],
        "is_encoder_decoder": True,
        **size_fields(c, SIZES),
        "num_decoder_layers": c.L_dec,
        "relative_attention_num_buckets": distances.buckets,
        "relative_attention_max_distance": distances.farthest,
        "layer_norm_epsilon": v.norm.epsilon,
        "feed_forward_proj": f"gated-{activation}" if mlp.gated else activation,
        "tie_word_embeddings": c.tied,
        "scale_decoder_outputs": c.tied and v.unembedding.scaled,
        "dropout_rate": 0.0,
        "pad_token_id": c.N_V - 1,
        "decoder_start_token_id": c.N_V - 2,
        "eos_token_id": c.N_V - 1,
    }
    return state, lacks


def _entries(model: Model, state: dict[str, Any]) -> list[Entry]:
    c = model.config
    copies = [f"{part}.embed_tokens.weight" for part in ("encoder", "decoder")]
    found = [table("shared.weight", "W_e", [*copies, *([HEAD] if c.tied else [])])]
    found += [Entry(HEAD, ("W_u",))] if not c.tied else []
    projections = {**{a: f"heads.W_{a}" for a in "qkv"}, "o": "W_o"}
    hidden = {"wi_0": "W_gate", "wi_1": "W_mlp1"} if c.variant.mlp.gated else {"wi": "W_mlp1"}
    weights = {**hidden, "wo": "W_mlp2"}
    of_encoder = [("SelfAttention", "attention", "norm1", projections), ("DenseReluDense", "mlp", "norm2", weights)]
    of_decoder = [
        ("SelfAttention", "self_attention", "norm3", projections),
        ("EncDecAttention", "cross_attention", "norm4", projections),
        ("DenseReluDense", "mlp", "norm5", weights),
    ]
    for part, L, steps in (("encoder", c.L_enc, of_encoder), ("decoder", c.L_dec, of_decoder)):
        found.append(table(f"{part}.block.0.{DISTANCES}", f"{part}_distances"))
        for l in range(L):
            for i, (name, ours, norm, leaves) in enumerate(steps):
                step = f"{part}.block.{l}.layer.{i}"
                for module, leaf in leaves.items():
                    found.append(Entry(f"{step}.{name}.{module}.weight", (f"{part}.{ours}.{leaf}",), l))
                found.append(Entry(f"{step}.layer_norm.weight", (f"{part}.{norm}.gamma",), l))
        found.append(Entry(f"{part}.final_layer_norm.weight", (f"{part}_norm.gamma",)))
    return found


ARCHITECTURE = Architecture(
    _read_config,
    _write_config,
    _entries,
    # an unused tensor in old files
    ignored=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),
)
