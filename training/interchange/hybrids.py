"""Qwen 3.5 (text), as Algorithm 10 with changed lines: gated delta rules, and gated attention in every fourth layer."""

from collections.abc import Sequence
from typing import Any

from algorithms.lines import MLP, Attention, Embedding, GatedDelta, RMSNorm, Rotary
from algorithms.model.variants import PAPER
from training.interchange.decoders import (
    FULL,
    OF_SIZES,
    OUTER,
    SIZES,
    in_turn,
    read_scaling,
    rotary_fields,
    rotary_of,
)
from training.interchange.description import Architecture, Field, Fields, Model, fields_of, theirs, written
from training.interchange.errors import InterchangeError
from training.interchange.mapping import rows
from training.interchange.mixtures import OURS

LINEAR = "linear_attention"
OF_DELTA = "n n_keys d_key d_value width"
OF_LINEAR = "num_value_heads num_key_heads key_head_dim value_head_dim conv_kernel_dim"
DEFAULTS = 32, 16, 128, 128, 4


def _read(fields: Fields, found: dict[str, Any], names: Sequence[Any], kind: str) -> None:
    L, epsilon, said = found["L"], found["norm.epsilon"], rotary_of(fields)
    norm = RMSNorm(epsilon=epsilon, offset=1.0)
    sizes = [
        fields.integer(f"linear_{name}", default) for name, default in zip(OF_LINEAR.split(), DEFAULTS, strict=True)
    ]
    delta = GatedDelta(**dict(zip(OF_DELTA.split(), sizes, strict=True)), norm=RMSNorm(epsilon=epsilon))
    attention = Attention(
        positions=Rotary(
            base=said.number("rope_theta", 10_000.0),
            share=said.number("partial_rotary_factor", 0.25),
            scaling=read_scaling(said, found["l_max"]),
        ),
        biases=fields.flag("attention_bias", False),
        normalize_heads=norm,
        gated=True,
    )
    fields.require("hidden_act", "silu", "another nonlinearity")
    lines: list[Any] = [{LINEAR: delta, FULL: attention}[kind] for kind in _layer_types(fields, L)]
    mlp = MLP(activation="silu", gated=True, biases=False)
    found |= {"d_mid": found["d_attn"], "norm": norm, "mlp": mlp, "attention": in_turn(lines)}


def _layer_types(fields: Fields, L: int) -> list[str]:
    """Return the kind of each layer."""
    types = fields.get("layer_types")
    if types is None:
        interval = fields.integer("full_attention_interval", 4)
        return [LINEAR if (l + 1) % interval else FULL for l in range(L)]
    if not isinstance(types, list) or len(types) != L or not set(types) <= {LINEAR, FULL}:
        raise InterchangeError(
            f"{fields.path}: layer_types: expected {LINEAR} or {FULL} for each of {L} layers, got {str(types)[:60]}"
        )
    return types


def _write(model: Model, state: dict[str, Any], kind: str) -> list[str]:
    c, v = model.config, model.config.variant
    lines = [v.attention_of(l) for l in range(c.L)]
    deltas = [line for line in lines if isinstance(line, GatedDelta)]
    attentions = [line for line in lines if isinstance(line, Attention)]
    if not deltas or not attentions or v.mlp is None:
        state.clear()
        return ["layers other than gated delta rules and attention, with MLPs"]
    state["layer_types"] = [LINEAR if isinstance(line, GatedDelta) else FULL for line in lines]
    for ours, name in zip(OF_DELTA.split(), OF_LINEAR.split(), strict=True):
        state[f"linear_{name}"] = getattr(deltas[0], ours)
    positions = attentions[0].positions
    state["rope_parameters"] = {**rotary_fields(positions), "partial_rotary_factor": getattr(positions, "share", 1.0)}
    state |= {"attention_bias": attentions[0].biases is True, "hidden_act": theirs(v.mlp.activation or "gelu")}
    return []


def _architecture() -> Architecture:
    layer, attention = "model.layers.#", "layers.attention"
    delta = f"{layer}.linear_attn"
    return Architecture(
        "d",
        "qwen3_5_text",
        PAPER.but(embedding=Embedding(positions=None)),
        [
            *written(model_type="qwen3_5_text", architectures=["Qwen3_5ForCausalLM"]),
            *fields_of(SIZES, OF_SIZES),
            Field("num_key_value_heads", "H_kv", 4),
            Field("head_dim", "d_attn", 256),
            Field("rms_norm_eps", "norm.epsilon", 1e-6),
            Field("tie_word_embeddings", "unembedding.tied", False),
            *written(rope_parameters=None, attention_dropout=0.0, pad_token_id=None),
        ],
        {
            "model.embed_tokens.weight": "W_e",
            **rows(layer, "input_layernorm post_attention_layernorm", "layers", "norm1.* norm2.*"),
            f"{layer}.self_attn.q_proj.*": f"{attention}.heads.*_q&{attention}.*_g",
            **rows(f"{layer}.self_attn", "k_proj v_proj o_proj", attention, "heads.*_k heads.*_v *_o"),
            **{f"{layer}.self_attn.{a}_norm.weight": f"{attention}.gamma_{a}" for a in "qk"},
            f"{delta}.in_proj_qkv.weight": f"{attention}.W_q+W_k+W_v",
            f"{delta}.conv1d.weight": f"<{attention}.C_q+C_k+C_v>",
            **{f"{delta}.in_proj_{a}.weight": f"{attention}.W_{a}" for a in "zba"},
            f"{delta}.dt_bias": f"{attention}.b_a",
            f"{delta}.A_log": f"{attention}.a",
            f"{delta}.norm.weight": f"{attention}.gamma",
            f"{delta}.out_proj.weight": f"{attention}.W_out",
            **rows(f"{layer}.mlp", "gate_proj up_proj down_proj", "layers.mlp", OURS),
            **OUTER,
        },
        _read,
        _write,
        prefix="model.",
        ignored=("mtp.*", "model.visual.*"),
        mixers=(GatedDelta,),
    )


KINDS = {"qwen3_5_text": _architecture()}
"""By model_type."""
