"""Decoders with Llama's tensors, from Mistral, Qwen and Gemma to gpt-oss: one table of their changed lines.

They differ in a few fields of config.json, in where their norms are, and in their experts, if they have any.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from algorithms.lines import MLP, XIELU, Embedding, LayerNorm, RMSNorm, Rotary
from training.interchange import mtp
from training.interchange.decoders import FACTORS, LINE, OF_ALL, OF_SIZES, SIZES, VARIANT, Norms, of_lines, window
from training.interchange.description import Field, Fields, Gate, Layers, Need, every, fields_of, written
from training.interchange.experts import First, of_shared_mlp
from training.interchange.mapping import HIDDEN
from training.interchange.rotary import FULL, SHARE, SLIDING, Positions

_AFTER = Norms("-", "-", "post_attention_layernorm", "post_feedforward_layernorm")
_SANDWICH = _AFTER._replace(attention="input_layernorm", mlp="pre_feedforward_layernorm")
_GLM4 = Norms(of_attention="post_self_attn_layernorm", of_mlp="post_mlp_layernorm")
_RMS = RMSNorm(epsilon=1e-6)
_GEMMA = VARIANT.but(
    embedding=Embedding(positions=None, scaled=True),
    norm=RMSNorm(epsilon=1e-6, offset=1.0),
    mlp=MLP(activation="gelu_tanh", gated=True, biases=False),
)
_QK = LINE.but(normalize_heads=_RMS)
_TOGETHER = _QK.but(heads_together=True)
_OF_QKV = OF_ALL._replace(values=(False, "qkv"))
_OF_MLP = Field("mlp_bias", "mlp.biases", False)
_USE_BIAS = Field("use_bias", "attention.biases mlp.biases", False)
_CAP = Field("attn_logit_softcapping", "attention.cap", 50.0, optional=float)
_CAP_OF_LOGITS = Field("final_logit_softcapping", "unembedding.cap", 30.0, optional=float)
_SCALAR = Field("query_pre_attn_scalar", "attention.scale", 256, power=-0.5)
_CLIP = Field("clip_qkv", "attention.clip", optional=float)
_UNCLIPPED = Need("clip_qkv", None, "clipped queries, keys and values")
_NO_WINDOWS = Need("sliding_window", None, "windows in all layers")
_UNUSED = Need("use_sliding_window", False, "windows in some layers")
_OF_EXPERTS = _UNCLIPPED, _NO_WINDOWS
_NEIGHBORS = Positions(pairs="neighbors")


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


def _read_internlm3(fields: Fields, found: dict[str, Any], names: Sequence[Any], kind: str) -> None:
    """Note a need if only some of the matrices have biases, as transformers does not have them, either."""
    fields.require("qkv_bias", found["mlp.biases"], "biases of some matrices")


def _read_minimax(fields: Fields, found: dict[str, Any], names: Sequence[Any], kind: str) -> None:
    """Read the share of rows that are rotated from their number, where files of transformers 4 have that."""
    rotated, said = fields.get("rotary_dim"), fields.inner(fields.table("rope_parameters"))
    if rotated is not None and fields.get(SHARE, said.get(SHARE)) is None:
        share = fields.integer("rotary_dim") / found["d_attn"]
        found["attention.positions"] = found["attention.positions"].but(share=share)


_FIRST_OF_ERNIE = First(1, 12_288, "moe_layer_start_index")
_OF_QWEN: dict[str, Any] = {"windows": 4096, "layers": Layers(_of_qwen), "H_kv": 32}
_USED = Gate("use_sliding_window", f"{SLIDING}.window", False)
_OF_GEMMA2: dict[str, Any] = {
    "activation": [Field("hidden_activation|hidden_act", "mlp.activation", "gelu_pytorch_tanh")],
    "variant": _GEMMA,
    "norms": _SANDWICH,
    "H_kv": 4,
    "d_head": 256,
    "windows": 4096,
    "tied": True,
}
_LOCAL = Positions(f"{SLIDING}.positions", kind=SLIDING)
_OF_OLMO2: dict[str, Any] = {"attention": _TOGETHER, "norms": _AFTER, "order": "no_norm", "epsilon": 1e-5}
_OF_GRANITE: dict[str, Any] = {"tensors": of_shared_mlp("layers.mlp.shared")}
_ROWS = [
    of_lines("llama Llama", _OF_MLP, _UNCLIPPED),
    of_lines("mistral Mistral", window(4096), H_kv=8),
    of_lines(
        "ministral3 Ministral3",
        window(None),
        positions=(Positions(base=1_000_000.0, grows=True),),
        biases=(),
        H_kv=8,
        d_head=128,
        epsilon=1e-5,
    ),
    of_lines("qwen2 Qwen2", _USED, attention=LINE.but(biases="qkv"), biases=(), **_OF_QWEN),
    of_lines("qwen3 Qwen3", _USED, attention=_QK, d_head=128, **_OF_QWEN),
    of_lines("olmo2 Olmo2", _UNCLIPPED, **_OF_OLMO2),
    of_lines(
        "olmo3 Olmo3",
        positions=(Positions(f"{FULL}.positions", 500_000.0, kind=FULL), _LOCAL._replace(base=500_000.0, scaled=False)),
        windows=4096,
        period=4,
        **_OF_OLMO2,
    ),
    of_lines(
        "smollm3 SmolLM3",
        _OF_MLP,
        _UNUSED,
        _UNCLIPPED,
        positions=(Positions("1.positions", 2_000_000.0),),
        H_kv=4,
        tied=True,
        lines={0: LINE, 1: LINE.but(positions=Rotary())},
        layers=Layers(every(4, "no_rope_layer_interval", (1, 0)), "no_rope_layers"),
    ),
    of_lines("granite Granite", _OF_MLP, _UNCLIPPED, *FACTORS),
    of_lines("granitemoe GraniteMoe", *_OF_EXPERTS, *FACTORS, **_OF_GRANITE),
    of_lines("granitemoeshared GraniteMoeShared", *_OF_EXPERTS, *FACTORS, **_OF_GRANITE),
    of_lines(
        "gemma Gemma",
        _UNCLIPPED,
        activation="gelu_pytorch_tanh",
        variant=_GEMMA,
        H_kv=16,
        d_head=256,
        tied=True,
        read=_read_gemma,
    ),
    of_lines("gemma2 Gemma2", _CAP, _CAP_OF_LOGITS, _SCALAR, period=2, **_OF_GEMMA2),
    of_lines(
        "gemma3_text Gemma3",
        *(_CAP._replace(default=None), _CAP_OF_LOGITS._replace(default=None), _SCALAR),
        positions=(
            Positions(f"{FULL}.positions", 1_000_000.0, kind=FULL),
            _LOCAL._replace(names=("rope_local_base_freq", SHARE), scaled=False),
        ),
        sizes=fields_of(SIZES, OF_SIZES, 262_208, 131_072, None, 8, None, None),  # which the first files left out
        period=6,
        attention=_QK,
        **_OF_GEMMA2,
    ),
    of_lines(
        "glm4 Glm4",
        _UNCLIPPED,
        positions=(_NEIGHBORS._replace(share=0.5),),
        biases=(_OF_QKV._replace(default=True),),
        norms=_GLM4,
        epsilon=1.5625e-7,
        H_kv=2,
        d_head=128,
        mlp=("gate_up_proj down_proj", "*_gate+*_mlp1 *_mlp2"),
    ),
    of_lines(
        "nanochat NanoChat",
        _CAP_OF_LOGITS._replace(default=15.0),
        _UNCLIPPED,
        attention=_QK,
        positions=(Positions(pairs="halves_swapped"),),
        variant=VARIANT.but(
            embedding=Embedding(positions=None, normalized=True),
            norm=RMSNorm(epsilon=1e-6, gamma=False),
            mlp=MLP(biases=False),
        ),
        norms=Norms("-", "-"),
        mlp=("fc1 fc2", HIDDEN),
    ),
    of_lines(
        "cohere2 Cohere2",
        Field("logit_scale", "unembedding.factor", 0.0625),
        positions=(Positions(f"{SLIDING}.positions", pairs="neighbors"),),
        variant=VARIANT.but(norm=LayerNorm(epsilon=1e-5, beta=False)),
        norms=Norms(mlp="-"),
        order="one_norm",
        windows=4096,
        period=4,
        of_epsilon="layer_norm_eps",
        epsilon=1e-5,
        tied=True,
        read=_read_cohere2,
    ),
    of_lines("mixtral Mixtral", *_OF_EXPERTS, positions=(Positions(base=1_000_000.0),), epsilon=1e-5, H_kv=8),
    of_lines("qwen3_moe Qwen3Moe", _UNCLIPPED, _UNUSED, attention=_QK, H_kv=4),
    of_lines("olmoe Olmoe", _CLIP, _NO_WINDOWS, attention=_TOGETHER, epsilon=1e-5),
    of_lines(
        "minimax_m2 MiniMaxM2",
        *_OF_EXPERTS,
        attention=_TOGETHER,
        positions=(Positions(base=5_000_000.0, share=1.0),),
        H_kv=8,
        d_head=128,
        read=_read_minimax,
    ),
    of_lines(
        "gpt_oss GptOss",
        attention=LINE.but(sinks=True),
        positions=(Positions(base=150_000.0),),
        biases=(OF_ALL._replace(default=True),),
        epsilon=1e-5,
        windows=128,
        period=2,
        H_kv=8,
        d_head=64,
    ),
    of_lines(
        "arcee Arcee",
        _OF_MLP,
        activation="relu2",
        variant=VARIANT.but(mlp=MLP(biases=False)),
        mlp=("up_proj down_proj", HIDDEN),
        epsilon=1e-5,
    ),
    of_lines(
        "apertus Apertus",
        Need("hidden_act", "xielu", "another nonlinearity"),
        *written(hidden_act="xielu"),
        attention=_QK,
        positions=(Positions(base=12_000_000.0),),
        activation=(),
        variant=VARIANT.but(mlp=XIELU(biases=False)),
        norms=Norms("attention_layernorm", "feedforward_layernorm"),
        mlp=("up_proj down_proj", HIDDEN),
        tensors={
            **{f"model.layers.#.mlp.act_fn.alpha_{sign}": f"layers.mlp.alpha_{sign}" for sign in "pn"},
            "model.layers.#.mlp.act_fn.beta": 0.5,
            "model.layers.#.mlp.act_fn.eps": float(np.float32(-1e-6)),
        },
        epsilon=1e-5,
    ),
    of_lines(
        "seed_oss SeedOss",
        *(_OF_MLP, Need("attention_out_bias", False, "biases of outputs")),
        *written(attention_out_bias=False, residual_dropout=0.0),
        biases=(_OF_QKV._replace(default=True),),
        H_kv=8,
        d_head=128,
    ),
    of_lines(
        "ernie4_5 Ernie4_5",
        positions=(_NEIGHBORS._replace(base=500_000.0),),
        biases=(_USE_BIAS,),
        H_kv=2,
        d_head=128,
        epsilon=1e-5,
        tied=True,
    ),
    of_lines(
        "starcoder2 Starcoder2",
        *(window(None), *written(residual_dropout=0.0, embedding_dropout=0.0)),
        activation="gelu_pytorch_tanh",
        biases=(_USE_BIAS._replace(default=True),),
        variant=VARIANT.but(norm=LayerNorm(epsilon=1e-5), mlp=MLP()),
        mlp=("c_fc c_proj", HIDDEN),
        H_kv=2,
        of_epsilon="norm_epsilon",
        epsilon=1e-5,
        tied=True,
    ),
    of_lines("qwen2_moe Qwen2Moe", _UNUSED, biases=(_OF_QKV._replace(names="qkv_bias", default=True),), H_kv=16),
    of_lines(
        "glm4_moe Glm4Moe",
        First(1, 10_944),
        Gate("use_qk_norm", "attention.normalize_heads", False),
        attention=_QK,
        positions=(Positions(share=0.5),),
        biases=(_OF_QKV,),
        H_kv=8,
        epsilon=1e-5,
        head=mtp.DEEPSEEK,
    ),
    of_lines(
        "exaone4 Exaone4",
        attention=_QK,
        positions=(Positions(f"{SLIDING}.positions"),),
        biases=(),
        norms=_AFTER,
        order="no_norm",
        windows=4096,
        period=4,
        epsilon=1e-5,
        read=_read_exaone4,
    ),
    of_lines(
        "hunyuan_v1_dense HunYuanDenseV1",
        attention=_QK.but(positions_first=True),
        epsilon=1e-5,
        read=_read_hunyuan,
        of_heads="query_layernorm key_layernorm",
    ),
    of_lines(
        "olmo Olmo",
        _CLIP,
        variant=VARIANT.but(norm=LayerNorm(epsilon=1e-5, gamma=False, beta=False)),
        of_epsilon="-",
        epsilon=1e-5,
    ),
    of_lines(
        "internlm3 InternLM3",
        *written(qkv_bias=lambda c: c.variant.mlps[0].biases),
        biases=(_USE_BIAS._replace(names="bias"),),
        epsilon=1e-5,
        H_kv=2,
        d_head=128,
        read=_read_internlm3,
    ),
    of_lines(
        "ernie4_5_moe Ernie4_5_Moe",
        *(_FIRST_OF_ERNIE, Need("use_bias", False, "biases beside experts")),
        *written(use_bias=False, moe_layer_interval=1, moe_layer_end_index=-1),
        positions=(_NEIGHBORS._replace(base=500_000.0),),
        biases=(),
        H_kv=4,
        epsilon=1e-5,
        tied=True,
    ),
]
KINDS = {row.kind: row for row in _ROWS}
"""By model_type."""
