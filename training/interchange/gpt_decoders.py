"""GPT-2 and its successors OPT, GPT-Neo, GPT-NeoX (Pythia) and BLOOM, as Algorithm 10 with changed lines."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from algorithms import GPT_NEO, VARIANTS
from training.interchange.description import MOST_LAYERS, Architecture, Field, Fields, Need, fields_of, in_turn, written
from training.interchange.errors import InterchangeError
from training.interchange.mapping import HEADS, HIDDEN, each, rows
from training.interchange.rotary import Positions

LONG = "max_position_embeddings num_hidden_layers num_attention_heads"
EPSILON, DROPOUT = Field("layer_norm_epsilon", "norm.epsilon", 1e-5), written(attention_dropout=0.0)
APART = f"norm1.* norm2.* {each('attention.{}', HEADS)} {each('mlp.{}', HIDDEN)}"
STACKED, BY_HEAD = (APART.replace(" attention.heads.*_k attention.heads.*_v", f"{m}*_k{m}*_v") for m in "+&")
"""The arrays of a layer, with queries, keys and values apart, stacked, and interleaved head by head."""
MEGATRON = "input_layernorm post_attention_layernorm {0}.query_key_value {0}.dense mlp.dense_h_to_4h mlp.dense_4h_to_h"


def _wide(found: Mapping[str, int]) -> int:
    return 4 * found["d_e"]


def _read_opt(fields: Fields, found: dict[str, Any], names: Sequence[str], kind: str) -> None:
    fields.require("word_embed_proj_dim", found["d_e"], "a projection of the embeddings")
    if found["order"] == "norm_last" or fields.flag("_remove_final_layer_norm", False):
        found["final_norm"] = False


def _read_gpt_neo(fields: Fields, found: dict[str, Any], names: Sequence[str], kind: str) -> None:
    L, (full, local) = fields.integer("num_layers", 24, limit=MOST_LAYERS), GPT_NEO.attentions
    lines: dict[str, Any] = {
        "global": full,
        "local": dataclasses.replace(local, window=fields.integer("window_size", 256)),
    }
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
    found["attention"] = in_turn([lines[kind] for kind in kinds])


def _kinds(config: Any) -> list[str]:
    lines = config.variant.attentions
    return ["global" if lines[l % len(lines)].window is None else "local" for l in range(config.L)]


def _kind(
    names: str,  # the `model_type`, the class, and the record in `VARIANTS`
    of_sizes: str,  # the sizes' fields
    sizes: Sequence[Any],  # their defaults
    fields: Sequence[Field | Need],
    modules: str,  # the embedding, the positions or the norm after it, a layer, and the last norm
    parts: str,  # of a layer
    read: Callable[[Fields, dict[str, Any], Sequence[str], str], Any] = lambda *_: None,
    *,
    more: Sequence[Any] = (),
    W_u: str = "lm_head.weight",
    conv1d: bool = False,
) -> Architecture:
    """Return how models of a kind are described and stored; `more` fields follow those that all kinds have."""

    def read_all(fields: Fields, found: dict[str, Any], names: Sequence[str], kind: str) -> None:
        found["unembedding.bias"] = "lm_head.bias" in names
        read(fields, found, names, kind)

    kind, name, record = names.split()
    embedding, second, layer, last = modules.split()
    variant = VARIANTS[record]
    together = STACKED if conv1d else BY_HEAD
    return Architecture(
        "d",
        kind,
        variant,
        [
            *written(model_type=kind, architectures=[name]),
            *fields_of("N_V l_max L H d_e d_mlp", of_sizes, *sizes),
            *fields,
            Field("tie_word_embeddings", "unembedding.tied", W_u == "lm_head.weight"),
            *written(pad_token_id=None),
            *more,
        ],
        {
            f"{embedding}.weight": "W_e",
            f"{second}.*": "embedding_norm.*" if variant.embedding.normalized else "*_p",
            **rows(layer, parts, "layers", APART if len(parts.split()) == len(APART.split()) else together),
            f"{last}.*": "norm.*",
            W_u: "W_u",
            "lm_head.bias": "b_u",
        },
        read_all,
        prefix=f"{embedding.partition('.')[0]}.",
        # masks and rotary frequencies, in old files
        ignored=("*.attention.bias", "*.attention.masked_bias", "*.attn.bias", "*.attn.masked_bias", "*.inv_freq"),
        conv1d=conv1d,
    )


KINDS = {
    "gpt2": _kind(
        "gpt2 GPT2LMHeadModel GPT2",
        "vocab_size n_positions n_layer n_head n_embd n_inner",
        [50257, 1024, 12, 12, 768, _wide],
        [
            Need("scale_attn_weights", True, "scores that are not divided by √d_attn"),
            Need("scale_attn_by_inverse_layer_idx", False, "scores divided by the layer's number"),
            Need("add_cross_attention", False, "cross-attention"),
            Field("activation_function", "mlp.activation", "gelu_new"),
            EPSILON,
            *written(attn_pdrop=0.0),
        ],
        each("transformer.{}", "wte wpe h.# ln_f"),
        "ln_1 ln_2 attn.c_attn attn.c_proj mlp.c_fc mlp.c_proj",
        more=written(resid_pdrop=0.0, embd_pdrop=0.0),
        conv1d=True,
    ),
    "opt": _kind(
        "opt OPTForCausalLM OPT",
        f"vocab_size {LONG} hidden_size ffn_dim",
        [50272, 2048, 12, 12, 768, 3072],
        [
            Need("layer_norm_elementwise_affine", True, "norms without parameters"),
            Field("activation_function", "mlp.activation", "relu"),
            *DROPOUT,
        ],
        each("model.decoder.{}", "embed_tokens embed_positions layers.# final_layer_norm"),
        f"self_attn_layer_norm final_layer_norm {each('self_attn.{}_proj', 'q k v out')} fc1 fc2",
        _read_opt,
        more=[
            Field("enable_bias", "mlp.biases", True),
            Field("enable_bias", "attention.biases", True),
            Field("do_layer_norm_before", "order", True, ("norm_last", None)),
            *written(
                _remove_final_layer_norm=lambda c: c.variant.final_norm is False and c.variant.order != "norm_last"
            ),
        ],
    ),
    "gpt_neo": _kind(
        "gpt_neo GPTNeoForCausalLM GPT_NEO",
        "vocab_size max_position_embeddings num_layers num_heads hidden_size intermediate_size",
        [50257, 2048, 24, 16, 2048, _wide],
        [Field("activation_function", "mlp.activation", "gelu_new"), EPSILON, *DROPOUT],
        each("transformer.{}", "wte wpe h.# ln_f"),
        f"ln_1 ln_2 {each('attn.attention.{}_proj', 'q k v out')} mlp.c_fc mlp.c_proj",
        _read_gpt_neo,
        more=written(
            attention_layers=_kinds,
            attention_types=lambda c: [[[kind], 1] for kind in _kinds(c)],
            window_size=lambda c: next((line.window for line in c.variant.attentions if line.window), 256),
        ),
    ),
    "gpt_neox": _kind(
        "gpt_neox GPTNeoXForCausalLM NEOX",
        f"vocab_size {LONG} hidden_size intermediate_size",
        [50432, 2048, 44, 64, 6144, 24576],
        [Field("hidden_act", "mlp.activation", "gelu"), Field("layer_norm_eps", "norm.epsilon", 1e-5), *DROPOUT],
        each("gpt_neox.{}", "embed_in - layers.# final_layer_norm"),
        MEGATRON.format("attention"),
        more=[
            Field("use_parallel_residual", "order", True, (None, "side_by_side")),
            Field("attention_bias", "attention.biases", True),
            Positions(share=0.25, names=("rotary_emb_base", "rotary_pct")),
        ],
        W_u="embed_out.weight|lm_head.weight",
    ),
    "bloom": _kind(
        "bloom BloomForCausalLM BLOOM",
        "vocab_size seq_length n_layer|num_hidden_layers n_head|num_attention_heads hidden_size|n_embed -",
        [250_880, 2048, 2, 8, 64, _wide],  # config.json may omit seq_length
        [
            Need("apply_residual_connection_post_layernorm", False, "residual connections after the norms"),
            EPSILON,
            *DROPOUT,
        ],
        each("transformer.{}", "word_embeddings word_embeddings_layernorm h.# ln_f"),
        MEGATRON.format("self_attention"),
    ),
}
"""By model_type."""
