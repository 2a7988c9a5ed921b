"""ModernBERT, bare or with the masked-token head, as Algorithm 9 with changed lines, and Ettin, its decoder, as 10."""

from collections.abc import Sequence
from typing import Any

from algorithms import ETTIN, MODERNBERT, Variant
from algorithms.lines import MLP, Attention
from training.interchange.decoders import OF_SIZES, SIZES
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
from training.interchange.mapping import HEADS, Table, rows
from training.interchange.rotary import FULL, SHARE, SLIDING, Positions

DEFAULTS = 50368, 8192, 22, 12, 768, 1152
MASKED, BARE, CAUSAL = "ModernBertForMaskedLM", "ModernBertModel", "ModernBertDecoderForCausalLM"
DECODER = "modernbert-decoder"
BASES = {FULL: ("global_rope_theta", 160_000.0), SLIDING: ("local_rope_theta", 10_000.0)}
"""For each kind of layer, the field of its rotary base in files from before transformers 5, and the default."""


def _every_third(fields: Fields, L: int) -> list[str]:
    """Return the kind of each layer: every third, from the first on, attends to all tokens."""
    period = fields.integer("global_attn_every_n_layers", 3)
    return [SLIDING if l % period else FULL for l in range(L)]


def _read(fields: Fields, found: dict[str, Any], names: Sequence[str], kind: str) -> None:
    known = (CAUSAL,) if kind == DECODER else (MASKED if "head.dense.weight" in names else BARE, MASKED, BARE)
    named = fields.first("architectures") or known[0]
    if named not in known:
        fields.needs.append(f"the head of {named}")
    masked, biases = named != BARE, fields.flag("mlp_bias", False)
    if masked:
        fields.require("classifier_bias", biases, "biases of the head other than those of the MLPs")
        hidden = fields.get("hidden_activation", "gelu")
        if fields.get("classifier_activation", "gelu") != hidden:
            fields.needs.append("different activations in the layers and the head")
    found[f"{SLIDING}.window"] = fields.integer("local_attention", 128) // 2 + (kind != DECODER)
    found["mlp"] = MLP(activation=fields.activation("hidden_activation", "gelu"), gated=True, biases=biases)
    found |= {"head": masked, "unembedding.bias": masked and fields.flag("decoder_bias", True)}
    found["unembedding.tied"] = found["unembedding.tied"] or not masked


def _write(model: Model, state: dict[str, Any], kind: str) -> list[str]:
    c, v = model.config, model.config.variant
    lines = [v.attention_of(l) for l in range(c.L)]
    local = next((a for a in lines if a.window is not None), lines[0])
    state["architectures"] = [CAUSAL if kind == DECODER else MASKED if v.head else BARE]
    state["local_attention"] = 128 if local.window is None else 2 * (local.window - (kind != DECODER))
    state["decoder_bias"] = v.unembedding.bias
    if v.mlp is not None:
        activation = theirs(v.mlp.activation or "gelu")
        state |= dict.fromkeys(("mlp_bias", "classifier_bias"), v.mlp.biases)
        state |= dict.fromkeys(("hidden_activation", "classifier_activation"), activation)
    return ["classifier"] * (model.task == "classify") + unlike(getattr(c, "N_types", 0), 0, "token types")


def _tensors(model: Model, state: dict[str, Any], kind: str) -> Table:
    prefix, is_decoder = "model." if model.config.variant.head else "", kind == DECODER
    modules, ours = ("q_proj k_proj v_proj Wo", HEADS) if is_decoder else ("Wqkv Wo", "heads.*_q+*_k+*_v *_o")
    head, norm, norm_f = ("lm_head", "norm", "norm_f") if is_decoder else ("head", "encoder_norm", "norm")
    return {
        f"{prefix}embeddings.tok_embeddings.weight": "W_e",
        f"{prefix}embeddings.norm.*": "embedding_norm.*",
        **rows(f"{prefix}layers.#", "attn_norm mlp_norm", "layers", "norm1.* norm2.*"),
        **rows(f"{prefix}layers.#.attn", modules, "layers.attention", ours),
        **rows(f"{prefix}layers.#.mlp", "Wi Wo", "layers.mlp", "*_gate+*_mlp1 *_mlp2"),
        f"{prefix}final_norm.*": f"{norm}.*",
        f"{head}.dense.*": "*_f",
        f"{head}.norm.*": f"{norm_f}.*",
        "decoder.weight": "W_u",
        "decoder.bias": "b_u",
    }


def _architecture(task: str, kind: str, variant: Variant) -> Architecture:
    return Architecture(
        task,
        kind,
        variant,
        [
            *written(model_type=kind, architectures=None),
            *fields_of(SIZES, OF_SIZES, *DEFAULTS),
            Field("norm_eps", "norm.epsilon", 1e-5),
            Field("norm_bias", "norm.beta", False),
            Field("tie_word_embeddings", "unembedding.tied", True),
            Field("attention_bias", "attention.biases", False),
            *(Positions(f"{of}.positions", base, kind=of, names=(name, SHARE)) for of, (name, base) in BASES.items()),
            *written(attention_dropout=0.0, mlp_dropout=0.0, embedding_dropout=0.0),
            *written(pad_token_id=lambda c: c.N_V - 1 if kind == DECODER else None),  # where null is refused
        ],
        _tensors,
        _read,
        _write,
        prefix="model.",
        lines={SLIDING: Attention(window=65), FULL: Attention()},
        layers=Layers(_every_third),
    )


KINDS = {"modernbert": _architecture("e", "modernbert", MODERNBERT), DECODER: _architecture("d", DECODER, ETTIN)}
"""By model_type."""
