"""ModernBERT, bare or with the masked-token head, as Algorithm 9 with changed lines."""

from collections.abc import Sequence
from typing import Any

from algorithms import MODERNBERT
from algorithms.lines import MLP, Attention
from training.interchange.description import (
    Architecture,
    Field,
    Fields,
    Layers,
    Model,
    fields_of,
    theirs,
    unlike,
    written,
)
from training.interchange.mapping import Table, rows
from training.interchange.rotary import FULL, SHARE, SLIDING, Positions

SIZES = "N_V l_max L H d_e d_mlp"
OF_SIZES = "vocab_size max_position_embeddings num_hidden_layers num_attention_heads hidden_size intermediate_size"
DEFAULTS = 50368, 8192, 22, 12, 768, 1152
MASKED, BARE = "ModernBertForMaskedLM", "ModernBertModel"
BASES = {FULL: ("global_rope_theta", 160_000.0), SLIDING: ("local_rope_theta", 10_000.0)}
"""For each kind of layer, the field of its rotary base in files from before transformers 5, and the default."""


def _every_third(fields: Fields, L: int) -> list[str]:
    """Return the kind of each layer: every third, from the first on, attends to all tokens."""
    period = fields.integer("global_attn_every_n_layers", 3)
    return [SLIDING if l % period else FULL for l in range(L)]


LAYERS = Layers(_every_third)


def _read(fields: Fields, found: dict[str, Any], names: Sequence[str], kind: str) -> None:
    named = fields.first("architectures") or (MASKED if "head.dense.weight" in names else BARE)
    if named not in (MASKED, BARE):
        fields.needs.append(f"the head of {named}")
    masked, biases = named == MASKED, fields.flag("mlp_bias", False)
    if masked:
        fields.require("classifier_bias", biases, "biases of the head other than those of the MLPs")
        hidden = fields.get("hidden_activation", "gelu")
        if fields.get("classifier_activation", "gelu") != hidden:
            fields.needs.append("different activations in the layers and the head")
    found[f"{SLIDING}.window"] = fields.integer("local_attention", 128) // 2 + 1
    found["mlp"] = MLP(activation=fields.activation("hidden_activation", "gelu"), gated=True, biases=biases)
    found |= {"head": masked, "unembedding.bias": masked and fields.flag("decoder_bias", True)}
    found["unembedding.tied"] = found["unembedding.tied"] or not masked


def _write(model: Model, state: dict[str, Any], kind: str) -> list[str]:
    c, v = model.config, model.config.variant
    lines = [v.attention_of(l) for l in range(c.L)]
    local = next((a for a in lines if a.window is not None), lines[0])
    state["architectures"] = [MASKED if v.head else BARE]
    state["local_attention"] = 128 if local.window is None else 2 * (local.window - 1)
    state["decoder_bias"] = v.unembedding.bias
    if v.mlp is not None:
        activation = theirs(v.mlp.activation or "gelu")
        state |= dict.fromkeys(("mlp_bias", "classifier_bias"), v.mlp.biases)
        state |= dict.fromkeys(("hidden_activation", "classifier_activation"), activation)
    return unlike(model.task, "e", "classifier") + unlike(c.N_types, 0, "token types")


def _tensors(model: Model, state: dict[str, Any], kind: str) -> Table:
    prefix = "model." if model.config.variant.head else ""
    modules = "attn_norm mlp_norm attn.Wqkv attn.Wo mlp.Wi mlp.Wo"
    ours = "norm1.* norm2.* attention.heads.*_q+*_k+*_v attention.*_o mlp.*_gate+*_mlp1 mlp.*_mlp2"
    return {
        f"{prefix}embeddings.tok_embeddings.weight": "W_e",
        f"{prefix}embeddings.norm.*": "embedding_norm.*",
        **rows(f"{prefix}layers.#", modules, "layers", ours),
        f"{prefix}final_norm.*": "encoder_norm.*",
        "head.dense.*": "*_f",
        "head.norm.*": "norm.*",
        "decoder.weight": "W_u",
        "decoder.bias": "b_u",
    }


KINDS = {
    "modernbert": Architecture(
        "e",
        "modernbert",
        MODERNBERT,
        [
            *written(model_type="modernbert", architectures=None),
            *fields_of(SIZES, OF_SIZES, *DEFAULTS),
            Field("norm_eps", "norm.epsilon", 1e-5),
            Field("norm_bias", "norm.beta", False),
            Field("tie_word_embeddings", "unembedding.tied", True),
            Field("attention_bias", "attention.biases", False),
            *(
                Positions(f"{kind}.positions", base, kind=kind, names=(name, SHARE))
                for kind, (name, base) in BASES.items()
            ),
            *written(attention_dropout=0.0, mlp_dropout=0.0, embedding_dropout=0.0, pad_token_id=None),
        ],
        _tensors,
        _read,
        _write,
        prefix="model.",
        lines={SLIDING: Attention(window=65), FULL: Attention()},
        layers=LAYERS,
    )
}
"""By model_type."""
