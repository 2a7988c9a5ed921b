"""Decoders with Llama's tensors, from Mistral, Qwen and Gemma to gpt-oss: one table of their changed lines.

They differ in a few fields of config.json, in where their norms are, and in their experts, if they have any.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from algorithms.lines import Attention, RMSNorm, Rotary
from training.interchange import mtp
from training.interchange.decoders import FACTORS, LINE, OF_ALL, OF_SIZES, SIZES, Norms, of_lines, window
from training.interchange.description import Field, Fields, Gate, Layers, Need, every, fields_of, only, written
from training.interchange.experts import First, of_shared_mlp
from training.interchange.mapping import HIDDEN
from training.interchange.rotary import FULL, SHARE, SLIDING, Positions

_AFTER = Norms("-", "-", "post_attention_layernorm", "post_feedforward_layernorm")
_SANDWICH = _AFTER._replace(attention="input_layernorm", mlp="pre_feedforward_layernorm")
_GLM4 = Norms(of_attention="post_self_attn_layernorm", of_mlp="post_mlp_layernorm")
_OF_QKV = OF_ALL._replace(values=(False, "qkv"))
_OF_MLP = Field("mlp_bias", "mlp.biases", False)
_USE_BIAS = Field("use_bias", "attention.biases mlp.biases", False)
_CAP = Field("attn_logit_softcapping", "attention.cap", optional=float)
_CAP_OF_LOGITS = Field("final_logit_softcapping", "unembedding.cap", optional=float)
_SCALAR = Field("query_pre_attn_scalar", "attention.scale", 256, power=-0.5)
_CLIP = Field("clip_qkv", "attention.clip", optional=float)
_UNCLIPPED = Need("clip_qkv", None, "clipped queries, keys and values")
_NO_WINDOWS = Need("sliding_window", None, "windows in all layers")
_UNUSED = Need("use_sliding_window", False, "windows in some layers")
_OF_EXPERTS = _UNCLIPPED, _NO_WINDOWS
_OF_ERNIE = (Positions(base=500_000.0, pairs="neighbors"),)


def _of_qwen(fields: Fields, L: int) -> list[str]:
    """Return the kinds of Qwen's layers: those from a number on have windows."""
    first = fields.integer("max_window_layers", 28, least=0)
    return [SLIDING if l >= first else FULL for l in range(L)]


def _read_gemma(fields: Fields, found: dict[str, Any], names: Sequence[Any], kind: str) -> None:
    """Read the activation of the first Gemma, whose official files call the tanh approximation gelu."""
    if fields.get("hidden_activation") is not None:
        found["mlp.activation"] = fields.activation("hidden_activation", "")
    if fields.get("hidden_activation", fields.get("hidden_act")) == "gelu":
        found["mlp.activation"] = "gelu_tanh"


def _read_cohere2(fields: Fields, found: dict[str, Any], names: Sequence[Any], kind: str) -> None:
    """Leave out the positions of layers with windows if there are none."""
    found |= {f"{SLIDING}.positions": None} if found[f"{SLIDING}.window"] is None else {}


def _read_exaone4(fields: Fields, found: dict[str, Any], names: Sequence[Any], kind: str) -> None:
    """Rotate all layers of a model without windows."""
    has_none = found[f"{SLIDING}.window"] is None
    found |= {f"{FULL}.positions": found[f"{SLIDING}.positions"] if has_none else None}


def _read_hunyuan(fields: Fields, found: dict[str, Any], names: Sequence[Any], kind: str) -> None:
    """Stretch the wavelengths by a factor alpha, if there is one, whatever the length."""
    for said in (fields.table("rope_parameters"), fields.table("rope_scaling")):
        if said.get("rope_type", said.get("type")) == "dynamic" and said.get("alpha"):
            positions, d = found["attention.positions"], found["d_attn"]
            alpha = fields.inner(said).number("alpha", 1.0)
            found["attention.positions"] = positions.but(base=positions.base * alpha ** (d / (d - 2)))


def _read_minimax(fields: Fields, found: dict[str, Any], names: Sequence[Any], kind: str) -> None:
    """Read the share of rows that are rotated from their number, where files of transformers 4 have that."""
    rotated, said = fields.get("rotary_dim"), fields.inner(fields.table("rope_parameters"))
    if rotated is not None and fields.get(SHARE, said.get(SHARE)) is None:
        share = fields.integer("rotary_dim") / found["d_attn"]
        found["attention.positions"] = found["attention.positions"].but(share=share)


_OF_QWEN: dict[str, Any] = {"windows": 4096, "layers": Layers(_of_qwen), "H_kv": 32}
_USED = Gate("use_sliding_window", f"{SLIDING}.window", False)
_OF_GEMMA2: dict[str, Any] = {
    "activation": [Field("hidden_activation|hidden_act", "mlp.activation", "gelu_pytorch_tanh")],
    "norms": _SANDWICH,
    "H_kv": 4,
    "d_head": 256,
}
_LOCAL = Positions(f"{SLIDING}.positions", kind=SLIDING)
_OF_GRANITE: dict[str, Any] = {"epsilon": 1e-6, "tied": False}
_OF_GRANITE_MOE = _OF_GRANITE | {"tensors": of_shared_mlp("layers.mlp.shared")}
_ROWS = [
    of_lines("llama Llama LLAMA", _OF_MLP, _UNCLIPPED, epsilon=1e-6),
    of_lines("mistral Mistral MISTRAL", window(4096), H_kv=8, epsilon=1e-6),
    of_lines(
        "ministral3 Ministral3 MINISTRAL3",
        window(None),
        positions=(Positions(base=1_000_000.0, grows=True),),
        biases=(),
        H_kv=8,
        d_head=128,
    ),
    of_lines("qwen2 Qwen2 QWEN2", _USED, biases=(), **_OF_QWEN),
    of_lines("qwen3 Qwen3 QWEN3", _USED, d_head=128, **_OF_QWEN),
    of_lines("olmo2 Olmo2 OLMO2", _UNCLIPPED, norms=_AFTER, epsilon=1e-5),
    of_lines(
        "olmo3 Olmo3 OLMO3",
        positions=(Positions(f"{FULL}.positions", 500_000.0, kind=FULL), _LOCAL._replace(base=500_000.0, scaled=False)),
        norms=_AFTER,
        epsilon=1e-5,
    ),
    of_lines(
        "smollm3 SmolLM3 LLAMA",
        *(_OF_MLP, _UNUSED, _UNCLIPPED),
        positions=(Positions("1.positions", 2_000_000.0),),
        H_kv=4,
        epsilon=1e-6,
        tied=True,
        lines={0: LINE, 1: LINE.but(positions=Rotary())},
        layers=Layers(every(4, "no_rope_layer_interval", (1, 0)), "no_rope_layers"),
    ),
    of_lines("granite Granite GRANITE", _OF_MLP, _UNCLIPPED, *FACTORS, **_OF_GRANITE),
    of_lines("granitemoe GraniteMoe GRANITE", *_OF_EXPERTS, *FACTORS, **_OF_GRANITE_MOE),
    of_lines("granitemoeshared GraniteMoeShared GRANITE", *_OF_EXPERTS, *FACTORS, **_OF_GRANITE_MOE),
    of_lines("gemma Gemma GEMMA", _UNCLIPPED, activation="gelu_pytorch_tanh", H_kv=16, d_head=256, read=_read_gemma),
    of_lines("gemma2 Gemma2 GEMMA2", _CAP, _CAP_OF_LOGITS, _SCALAR, **_OF_GEMMA2),
    of_lines(
        "gemma3_text Gemma3 GEMMA3",
        *(_CAP, _CAP_OF_LOGITS, _SCALAR),
        positions=(
            Positions(f"{FULL}.positions", 1_000_000.0, kind=FULL),
            _LOCAL._replace(names=("rope_local_base_freq", SHARE), scaled=False),
        ),
        sizes=fields_of(SIZES, OF_SIZES, 262_208, 131_072, None, 8, None, None),  # which the first files left out
        windows=4096,
        **_OF_GEMMA2,
    ),
    of_lines(
        "glm4 Glm4 GLM4",
        _UNCLIPPED,
        positions=(Positions(share=0.5, pairs="neighbors"),),
        biases=(_OF_QKV._replace(default=True),),
        norms=_GLM4,
        epsilon=1.5625e-7,
        H_kv=2,
        d_head=128,
        mlp=("gate_up_proj down_proj", "*_gate+*_mlp1 *_mlp2"),
    ),
    of_lines(
        "nanochat NanoChat NANOCHAT",
        *(_CAP_OF_LOGITS, _UNCLIPPED),
        positions=(Positions(pairs="halves_swapped"),),
        norms=Norms("-", "-"),
        mlp=("fc1 fc2", HIDDEN),
    ),
    of_lines(
        "cohere2 Cohere2 COHERE2",
        Field("logit_scale", "unembedding.factor", 0.0625),
        positions=(Positions(f"{SLIDING}.positions", pairs="neighbors"),),
        norms=Norms(mlp="-"),
        of_epsilon="layer_norm_eps",
        read=_read_cohere2,
    ),
    of_lines("mixtral Mixtral MIXTRAL", *_OF_EXPERTS, positions=(Positions(base=1_000_000.0),), H_kv=8),
    of_lines("qwen3_moe Qwen3Moe QWEN3_MOE", _UNCLIPPED, _UNUSED, H_kv=4),
    of_lines("olmoe Olmoe OLMOE", _CLIP, _NO_WINDOWS),
    of_lines(
        "minimax_m2 MiniMaxM2 MINIMAX_M2",
        *_OF_EXPERTS,
        positions=(Positions(base=5_000_000.0, share=1.0),),
        H_kv=8,
        d_head=128,
        read=_read_minimax,
    ),
    of_lines(
        "gpt_oss GptOss GPT_OSS",
        positions=(Positions(base=150_000.0),),
        biases=(OF_ALL._replace(default=True),),
        H_kv=8,
        d_head=64,
    ),
    of_lines("arcee Arcee ARCEE", _OF_MLP, mlp=("up_proj down_proj", HIDDEN)),
    of_lines(
        "apertus Apertus APERTUS",
        *only("hidden_act", "xielu", "another nonlinearity"),
        positions=(Positions(base=12_000_000.0),),
        activation=(),
        norms=Norms("attention_layernorm", "feedforward_layernorm"),
        mlp=("up_proj down_proj", HIDDEN),
        tensors={
            **{f"model.layers.#.mlp.act_fn.alpha_{sign}": f"layers.mlp.alpha_{sign}" for sign in "pn"},
            "model.layers.#.mlp.act_fn.beta": 0.5,
            "model.layers.#.mlp.act_fn.eps": float(np.float32(-1e-6)),
        },
    ),
    of_lines(
        "seed_oss SeedOss SEED_OSS",
        *(_OF_MLP, *only("attention_out_bias", False, "biases of outputs"), *written(residual_dropout=0.0)),
        biases=(_OF_QKV._replace(default=True),),
        H_kv=8,
        d_head=128,
    ),
    of_lines("ernie4_5 Ernie4_5 ERNIE4_5", positions=_OF_ERNIE, biases=(_USE_BIAS,), H_kv=2, d_head=128),
    of_lines(
        "starcoder2 Starcoder2 STARCODER2",
        *(window(None), *written(residual_dropout=0.0, embedding_dropout=0.0)),
        attention=Attention(),
        activation="gelu_pytorch_tanh",
        biases=(_USE_BIAS._replace(default=True),),
        mlp=("c_fc c_proj", HIDDEN),
        H_kv=2,
        of_epsilon="norm_epsilon",
    ),
    of_lines(
        "qwen2_moe Qwen2Moe QWEN2_MOE", _UNUSED, biases=(_OF_QKV._replace(names="qkv_bias", default=True),), H_kv=16
    ),
    of_lines(
        "glm4_moe Glm4Moe GLM4_MOE",
        *(First(1, 10_944), Gate("use_qk_norm", "attention.normalize_heads", False)),
        attention=LINE.but(normalize_heads=RMSNorm(epsilon=1e-5)),
        positions=(Positions(share=0.5),),
        biases=(_OF_QKV,),
        H_kv=8,
        head=mtp.DEEPSEEK,
    ),
    of_lines(
        "exaone4 Exaone4 EXAONE4",
        positions=(Positions(f"{SLIDING}.positions"),),
        biases=(),
        norms=_AFTER,
        read=_read_exaone4,
    ),
    of_lines("hunyuan_v1_dense HunYuanDenseV1 HUNYUAN", read=_read_hunyuan, of_heads="query_layernorm key_layernorm"),
    of_lines("olmo Olmo OLMO", _CLIP, of_epsilon="-"),
    of_lines(
        "internlm3 InternLM3 LLAMA",
        Need("qkv_bias", lambda found: found["mlp.biases"], "biases of some matrices"),
        *written(qkv_bias=lambda c: c.variant.mlps[0].biases),
        biases=(_USE_BIAS._replace(names="bias"),),
        H_kv=2,
        d_head=128,
    ),
    of_lines(
        "ernie4_5_moe Ernie4_5_Moe ERNIE4_5_MOE",
        *(First(1, 12_288, "moe_layer_start_index"), *only("use_bias", False, "biases beside experts")),
        *written(moe_layer_interval=1, moe_layer_end_index=-1),
        positions=_OF_ERNIE,
        biases=(),
        H_kv=4,
    ),
]
KINDS = {row.kind: row for row in _ROWS}
"""By model_type."""
