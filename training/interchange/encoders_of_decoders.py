"""Encoders with lines of decoders, as Algorithm 9: ModernBERT, EmbeddingGemma and LLaDA; and Ettin, a decoder."""

from collections.abc import Sequence
from typing import Any

from algorithms import ETTIN, LLADA, MODERNBERT, Variant
from algorithms.lines import MLP, Attention
from training.interchange import description, llama_like
from training.interchange.decoders import OF_SIZES, SIZES
from training.interchange.description import Architecture, Field, Fields, Layers, Model, fields_of, only, written
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


def _read_modernbert(fields: Fields, found: dict[str, Any], names: Sequence[str], kind: str) -> None:
    known = (CAUSAL,) if kind == DECODER else (MASKED if "head.dense.weight" in names else BARE, MASKED, BARE)
    masked, biases = fields.named(*known) != BARE, fields.flag("mlp_bias", False)
    if masked:
        fields.require("classifier_bias", biases, "biases of the head other than those of the MLPs")
        hidden = fields.get("hidden_activation", "gelu")
        if fields.get("classifier_activation", "gelu") != hidden:
            fields.needs.append("different activations in the layers and the head")
    found[f"{SLIDING}.window"] = fields.integer("local_attention", 128) // 2 + (kind != DECODER)
    found["mlp"] = MLP(activation=fields.activation("hidden_activation", "gelu"), gated=True, biases=biases)
    found |= {"head": masked, "unembedding.bias": masked and fields.flag("decoder_bias", True)}
    found["unembedding.tied"] = found["unembedding.tied"] or not masked


def _write_modernbert(model: Model, state: dict[str, Any], kind: str) -> list[str]:
    c, v = model.config, model.config.variant
    lines = [v.attention_of(l) for l in range(c.L)]
    local = next((a for a in lines if a.window is not None), lines[0])
    state["architectures"] = [CAUSAL if kind == DECODER else MASKED if v.head else BARE]
    state["local_attention"] = 128 if local.window is None else 2 * (local.window - (kind != DECODER))
    state["decoder_bias"] = v.unembedding.bias
    if v.mlp is not None:
        activation = description.theirs(v.mlp.activation or "gelu")
        state |= dict.fromkeys(("mlp_bias", "classifier_bias"), v.mlp.biases)
        state |= dict.fromkeys(("hidden_activation", "classifier_activation"), activation)
    return ["classifier"] * (model.task == "classify") + description.unlike(getattr(c, "N_types", 0), 0, "token types")


def _tensors_of_modernbert(model: Model, state: dict[str, Any], kind: str) -> Table:
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


def _modernbert(task: str, kind: str, variant: Variant) -> Architecture:
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
        _tensors_of_modernbert,
        _read_modernbert,
        _write_modernbert,
        prefix="model.",
        lines={SLIDING: Attention(window=65), FULL: Attention()},
        layers=Layers(_every_third),
    )


EMBEDDING_GEMMA = "embedding_gemma"
"""Name of the kind; its files have Gemma 3's model_type, and ``use_bidirectional_attention``."""
GEMMA = llama_like.KINDS["gemma3_text"]
GEMMA_MODEL = "Gemma3TextModel"


def _read_gemma(fields: Fields, found: dict[str, Any], names: Sequence[Any], kind: str) -> None:
    named = fields.first("architectures") or GEMMA_MODEL
    if named != GEMMA_MODEL:
        fields.needs.append(f"the head of {named} in an encoder")
    window = found[f"{SLIDING}.window"]
    found |= {f"{SLIDING}.window": window and window // 2 + 1, "unembedding.tied": True}


def _write_gemma(model: Model, state: dict[str, Any], kind: str) -> list[str]:
    window = state["sliding_window"]
    state["sliding_window"] = GEMMA.lines[SLIDING].window if window is None else 2 * (window - 1)
    return description.unlike(model.task, "e", "classifier") + description.unlike(
        model.config.N_types, 0, "token types"
    )


def _tensors_of_gemma() -> dict[str, str]:
    """Return Gemma 3's tensors without its prefix and its head; its last norm follows the layers of an encoder."""
    table: Any = {name.removeprefix("model."): ours for name, ours in GEMMA.tensors.items() if ours != "W_u"}
    return table | {"norm.*": "encoder_norm.*"}


FIXED = {
    "block_type": "llama",
    "layer_norm_type": "rms",
    "rope": True,
    "alibi": False,
    "attention_layer_norm": False,
    "include_bias": False,
    "include_qkv_bias": False,
    "input_emb_norm": False,
    "scale_logits": False,
}
"""Fields that have these values in all published files."""
KINDS = {
    "modernbert": _modernbert("e", "modernbert", MODERNBERT),
    DECODER: _modernbert("d", DECODER, ETTIN),
    EMBEDDING_GEMMA: Architecture(
        "e",
        EMBEDDING_GEMMA,
        GEMMA.variant.but(order="norm_first", final_norm=True, head=False),
        [
            *(field for field in GEMMA.fields if getattr(field, "name", "") != "use_bidirectional_attention"),
            *written(architectures=[GEMMA_MODEL], use_bidirectional_attention=True),
        ],
        _tensors_of_gemma(),
        _read_gemma,
        _write_gemma,
        prefix="model.",
        lines=GEMMA.lines,
        layers=GEMMA.layers,
    ),
    "llada": Architecture(
        "e",
        "llada",
        LLADA,
        [
            *written(model_type="llada", architectures=["LLaDAModelLM"], vocab_size=lambda c: c.N_V),
            *(field for name, value in FIXED.items() for field in only(name, value, "other lines than LLaDA's")),
            *fields_of(SIZES, "embedding_size|vocab_size max_sequence_length n_layers n_heads d_model mlp_hidden_size"),
            Field("n_kv_heads", "H_kv", lambda found: found["H"]),
            Field("activation_type", "mlp.activation", "silu"),
            Field("rms_norm_eps", "norm.epsilon", 1e-5),
            Field("rope_theta", "attention.positions.base", 10_000.0),
            Field("weight_tying", "unembedding.tied", False),
        ],
        {
            "model.transformer.wte.weight": "W_e",
            **rows(
                "model.transformer.blocks.#",
                "attn_norm ff_norm q_proj k_proj v_proj attn_out ff_proj up_proj ff_out",
                "layers",
                "norm1.* norm2.* attention.heads.*_q attention.heads.*_k attention.heads.*_v attention.*_o "
                "mlp.*_gate mlp.*_mlp1 mlp.*_mlp2",
            ),
            "model.transformer.ln_f.*": "encoder_norm.*",
            "model.transformer.ff_out.weight": "W_u",
        },
        prefix="model.",
    ),
}
"""By model_type."""


def kind_of(state: dict[str, Any]) -> Any:
    """Return the kind of a checkpoint by its config.json: the model_type, unless it is an EmbeddingGemma."""
    name = state.get("model_type")
    return EMBEDDING_GEMMA if name == GEMMA.kind and state.get("use_bidirectional_attention") else name
