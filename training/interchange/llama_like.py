"""Arcee, Seed-OSS, Ernie 4.5, StarCoder 2, Qwen 2 MoE and GLM-4.5: Llama's tensors, and few changed lines."""

from collections.abc import Sequence
from typing import Any

from algorithms.lines import MLP, Attention, LayerNorm, RMSNorm
from training.interchange.decoders import VARIANT, Mixed, Positions, heads_fields, of_lines
from training.interchange.deepseek import first_layers
from training.interchange.description import Architecture, Field, Fields, Model, Need, written
from training.interchange.experts import MIXTURES, OURS, mixture_table
from training.interchange.hybrids import SHARED
from training.interchange.mapping import HEADS, HIDDEN, rows

GATED = "gate_proj up_proj down_proj", OURS


def _like(
    kind: str,
    name: str,
    fields: Sequence[Any],
    *,
    mlp: tuple[str, str] = GATED,
    H_kv: int | None = None,
    d_head: int | None = None,
    **others: Any,
) -> Architecture:
    """Return the architecture of models with Llama's tensors.

    Args:
        kind: the `model_type`.
        name: of the class, without ForCausalLM.
        fields: besides those of `of_lines`.
        mlp: the names of an MLP's matrices, and ours.
        H_kv: the default of num_key_value_heads.
        d_head: the default of head_dim.
        others: as in `of_lines`.
    """
    layer, variant = "model.layers.#", others.pop("variant", VARIANT)
    tensors = {
        **rows(f"{layer}.self_attn", "q_proj k_proj v_proj o_proj", "layers.attention", HEADS),
        **{f"{layer}.self_attn.{a}_norm.weight": f"layers.attention.gamma_{a}" for a in "qk"},
        **rows(f"{layer}.mlp", mlp[0], "layers.mlp", mlp[1]),
        **(mixture_table(MIXTURES[kind]) if kind in MIXTURES else {}),
    }
    heads = heads_fields(H_kv, d_head)
    return of_lines(
        kind,
        name,
        tensors,
        fields=fields,
        heads=heads,
        variant=variant.but(attention=Attention(biases=False)),
        **others,
    )


def _read_starcoder2(fields: Fields, found: dict[str, Any], names: Sequence[Any], kind: str) -> None:
    width = fields.get("sliding_window")
    found["attention.window"] = None if width is None else fields.integer("sliding_window")


def _write_starcoder2(model: Model, state: dict[str, Any], kind: str) -> list[str]:
    state["sliding_window"] = getattr(model.config.variant.attentions[0], "window", None)
    return []


def _read_glm4_moe(fields: Fields, found: dict[str, Any], names: Sequence[Any], kind: str) -> None:
    has_norms = fields.flag("use_qk_norm", False)
    found["attention.normalize_heads"] = RMSNorm(epsilon=found["norm.epsilon"]) if has_norms else None
    found["first"] = first_layers(fields, found["L"], 1, 10_944)


def _write_glm4_moe(model: Model, state: dict[str, Any], kind: str) -> list[str]:
    c, v = model.config, model.config.variant
    state |= {"first_k_dense_replace": len(v.first), "num_nextn_predict_layers": 0}
    state["intermediate_size"] = v.first[0].d_mlp if v.first else c.d_mlp
    state["use_qk_norm"] = getattr(v.attentions[0], "normalize_heads", None) is not None
    return []


_ROTARY, _SILU = Positions("attention.positions"), Field("hidden_act", "mlp.activation", "silu")
_NEIGHBORS, _HALF = Positions("attention.positions", 500_000.0, pairs="neighbors"), _ROTARY._replace(share=0.5)
_OF_ALL = Field("attention_bias", "attention.biases", False)
_OF_QKV = Field("attention_bias", "attention.biases", True, (False, "qkv"))
_OF_MLP = Field("mlp_bias", "mlp.biases", False)
KINDS = {
    "arcee": _like(
        "arcee",
        "Arcee",
        [_ROTARY, Field("hidden_act", "mlp.activation", "relu2"), _OF_ALL, _OF_MLP],
        variant=VARIANT.but(mlp=MLP(biases=False)),
        mlp=("up_proj down_proj", HIDDEN),
        epsilon=1e-5,
    ),
    "seed_oss": _like(
        "seed_oss",
        "SeedOss",
        [
            *(_ROTARY, _SILU, _OF_QKV, _OF_MLP, Need("attention_out_bias", False, "biases of outputs")),
            *written(attention_out_bias=False, residual_dropout=0.0),
        ],
        H_kv=8,
        d_head=128,
    ),
    "ernie4_5": _like(
        "ernie4_5",
        "Ernie4_5",
        [_NEIGHBORS, _SILU, Field("use_bias", "attention.biases mlp.biases", False)],
        H_kv=2,
        d_head=128,
        epsilon=1e-5,
        tied=True,
    ),
    "starcoder2": _like(
        "starcoder2",
        "Starcoder2",
        [
            _ROTARY,
            Field("hidden_act", "mlp.activation", "gelu_pytorch_tanh"),
            Field("use_bias", "attention.biases mlp.biases", True),
            *written(residual_dropout=0.0, embedding_dropout=0.0),
        ],
        variant=VARIANT.but(norm=LayerNorm(epsilon=1e-5), mlp=MLP()),
        mlp=("c_fc c_proj", HIDDEN),
        H_kv=2,
        of_epsilon="norm_epsilon",
        epsilon=1e-5,
        tied=True,
        read=_read_starcoder2,
        write=_write_starcoder2,
    ),
    "qwen2_moe": _like(
        "qwen2_moe",
        "Qwen2Moe",
        [
            _ROTARY,
            Field("qkv_bias", "attention.biases", True, (False, "qkv")),
            Need("use_sliding_window", False, "windows"),
            Mixed("qwen2_moe", SHARED, 5632, width=1408),
        ],
        H_kv=16,
    ),
    "glm4_moe": _like(
        "glm4_moe",
        "Glm4Moe",
        [_HALF, _OF_QKV._replace(default=False), Mixed("glm4_moe", width=1408)],
        H_kv=8,
        epsilon=1e-5,
        read=_read_glm4_moe,
        write=_write_glm4_moe,
    ),
}
"""By model_type."""
