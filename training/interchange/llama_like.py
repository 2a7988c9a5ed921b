"""Decoders with Llama's tensors, from Mistral, Qwen and Gemma to gpt-oss: one table of their changed lines.

They differ in a few fields of config.json, in where their norms are, and in their experts, if they have any.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from algorithms.lines import MLP, Attention, Embedding, LayerNorm, RMSNorm, Rotary
from algorithms.model.variant import Variant
from training.interchange.decoders import FACTORS, VARIANT, First, Mixed, heads_fields, of_lines
from training.interchange.description import Architecture, Field, Fields, Gate, Layers, Need, every, written
from training.interchange.experts import MIXTURES, OURS, SHARED, mixture_table, of_shared_mlp
from training.interchange.hybrids import SHARED as SHARED_EXPERT
from training.interchange.mapping import HEADS, HIDDEN, rows
from training.interchange.rotary import FULL, SHARE, SLIDING, Positions


class Norms(NamedTuple):
    """The names of the norms in a layer; "-": none."""

    attention: str = "input_layernorm"
    mlp: str = "post_attention_layernorm"
    of_attention: str = "-"  # of its output
    of_mlp: str = "-"


_FIRST = Norms()
_AFTER = Norms("-", "-", "post_attention_layernorm", "post_feedforward_layernorm")
_SANDWICH = _AFTER._replace(attention="input_layernorm", mlp="pre_feedforward_layernorm")
_GLM4 = Norms(of_attention="post_self_attn_layernorm", of_mlp="post_mlp_layernorm")
_RMS = RMSNorm(epsilon=1e-6)
_GEMMA = VARIANT.but(
    embedding=Embedding(positions=None, scaled=True),
    norm=RMSNorm(epsilon=1e-6, offset=1.0),
    mlp=MLP(activation="gelu_tanh", gated=True, biases=False),
)
_LINE = Attention(biases=False)
_QK = _LINE.but(normalize_heads=_RMS)
_TOGETHER = _QK.but(heads_together=True)
_GATED = "gate_proj up_proj down_proj", OURS
_OF_ALL = Field("attention_bias", "attention.biases", False)
_OF_QKV = _OF_ALL._replace(values=(False, "qkv"))
_SILU = Field("hidden_act", "mlp.activation", "silu")
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


def _window(default: int | None, kind: str = "attention") -> Field:
    return Field("sliding_window", f"{kind}.window", default, optional=int)


def _like(
    kind: str,
    name: str,
    *fields: Any,
    attention: Attention = _LINE,
    positions: Sequence[Any] = (Positions(),),
    activation: Field = _SILU,
    biases: Sequence[Field] = (_OF_ALL,),
    norms: Norms = _FIRST,
    of_heads: str = "q_norm k_norm",
    mlp: tuple[str, str] = _GATED,
    H_kv: int | None = None,
    d_head: int | None = None,
    windows: int | None = None,
    period: int | None = None,
    full: Attention | None = None,
    variant: Variant = VARIANT,
    order: Literal["no_norm", "one_norm"] | None = None,
    **others: Any,
) -> Architecture:
    """Return the architecture of models with Llama's tensors.

    Args:
        kind: the `model_type`.
        name: of the class, without ForCausalLM.
        fields: besides those of `of_lines` and below.
        attention: the line.
        positions: the fields of its positions.
        activation: the field of the MLP's; not of experts, which have their own.
        biases: the fields of its biases.
        norms: the names of a layer's norms.
        of_heads: the names of the norms of queries and of keys.
        mlp: the names of an MLP's matrices, and ours.
        H_kv: the default of num_key_value_heads.
        d_head: the default of head_dim.
        windows: the default of sliding_window, if some layers have windows.
        period: every how many layers there is then none, unless layer_types differs.
        full: the line of these layers; None: `attention`.
        variant: the lines that no field decides.
        order: that of a layer.
        others: as in `of_lines`.
    """
    layer = "model.layers.#"
    is_mixture, norm, plain = kind in MIXTURES, variant.norm, variant.mlps[0]
    if norms.of_attention != "-":
        attention = attention.but(normalize_output=norm)
        variant = variant.but(mlp=plain and plain.but(normalize_output=norm))
    if attention.normalize_heads and isinstance(norm, RMSNorm):
        attention = attention.but(normalize_heads=norm)
    if windows:
        lines = {SLIDING: attention.but(window=windows), FULL: full or attention}
        layers = Layers(every(period, "sliding_window_pattern", (SLIDING, FULL))) if period else None
        others = {"layers": layers, "lines": lines} | others
        fields = _window(windows, SLIDING), *fields
    of_norms = zip(norms, ("norm1", "norm2", "attention.norm_out", "mlp.norm_out"), strict=True)
    tensors = {
        **{f"{layer}.{name}.*": f"layers.{ours}.*" for name, ours in of_norms if name != "-"},
        **rows(f"{layer}.self_attn", "q_proj k_proj v_proj o_proj", "layers.attention", HEADS),
        **{f"{layer}.self_attn.{a}.weight": f"layers.attention.gamma_{a[0]}" for a in of_heads.split()},
        f"{layer}.self_attn.sinks": "layers.attention.s",
        **rows(f"{layer}.mlp", mlp[0], "layers.mlp", mlp[1]),
        **(mixture_table(MIXTURES[kind]) if is_mixture else {}),
    }
    return of_lines(
        kind,
        name,
        tensors | others.pop("more", {}),
        fields=[*positions, *([] if is_mixture else [activation]), *biases, *fields],
        heads=heads_fields(H_kv, d_head),
        variant=variant.but(attention=attention, order=order),
        ignored=("*.rotary_emb.inv_freq",),  # in files of 2023
        **others,
    )


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
    "activation": Field("hidden_activation|hidden_act", "mlp.activation", "gelu_pytorch_tanh"),
    "variant": _GEMMA,
    "norms": _SANDWICH,
    "H_kv": 4,
    "d_head": 256,
    "windows": 4096,
    "tied": True,
}
_LOCAL = Positions(f"{SLIDING}.positions", kind=SLIDING)
_OF_OLMO2: dict[str, Any] = {"attention": _TOGETHER, "norms": _AFTER, "order": "no_norm", "epsilon": 1e-5}
_OF_GRANITE: dict[str, Any] = {"more": of_shared_mlp("layers.mlp.shared")}
_ROWS = [
    _like("llama", "Llama", _OF_MLP, _UNCLIPPED),
    _like("mistral", "Mistral", _window(4096), H_kv=8),
    _like(
        "ministral3",
        "Ministral3",
        _window(None),
        positions=(Positions(base=1_000_000.0, grows=True),),
        biases=(),
        H_kv=8,
        d_head=128,
        epsilon=1e-5,
    ),
    _like("qwen2", "Qwen2", _USED, attention=_LINE.but(biases="qkv"), biases=(), **_OF_QWEN),
    _like("qwen3", "Qwen3", _USED, attention=_QK, d_head=128, **_OF_QWEN),
    _like("olmo2", "Olmo2", _UNCLIPPED, **_OF_OLMO2),
    _like(
        "olmo3",
        "Olmo3",
        positions=(
            Positions(f"{FULL}.positions", 500_000.0, kind=FULL),
            _LOCAL._replace(base=500_000.0, scaled=False),
        ),
        windows=4096,
        period=4,
        **_OF_OLMO2,
    ),
    _like(
        "smollm3",
        "SmolLM3",
        _OF_MLP,
        _UNUSED,
        _UNCLIPPED,
        positions=(Positions("1.positions", 2_000_000.0),),
        H_kv=4,
        tied=True,
        lines={0: _LINE, 1: _LINE.but(positions=Rotary())},
        layers=Layers(every(4, "no_rope_layer_interval", (1, 0)), "no_rope_layers"),
    ),
    _like("granite", "Granite", _OF_MLP, _UNCLIPPED, *FACTORS),
    _like("granitemoe", "GraniteMoe", Mixed("granitemoe"), *_OF_EXPERTS, *FACTORS, **_OF_GRANITE),
    _like(
        "granitemoeshared",
        "GraniteMoeShared",
        Mixed("granitemoeshared", SHARED, 0),
        *_OF_EXPERTS,
        *FACTORS,
        **_OF_GRANITE,
    ),
    _like(
        "gemma",
        "Gemma",
        _UNCLIPPED,
        activation=Field("hidden_act", "mlp.activation", "gelu_pytorch_tanh"),
        variant=_GEMMA,
        H_kv=16,
        d_head=256,
        tied=True,
        read=_read_gemma,
    ),
    _like("gemma2", "Gemma2", _CAP, _CAP_OF_LOGITS, _SCALAR, period=2, **_OF_GEMMA2),
    _like(
        "gemma3_text",
        "Gemma3",
        *(_CAP._replace(default=None), _CAP_OF_LOGITS._replace(default=None), _SCALAR),
        positions=(
            Positions(f"{FULL}.positions", 1_000_000.0, kind=FULL),
            _LOCAL._replace(names=("rope_local_base_freq", SHARE), scaled=False),
        ),
        period=6,
        attention=_QK,
        **_OF_GEMMA2,
    ),
    _like(
        "glm4",
        "Glm4",
        _UNCLIPPED,
        positions=(_NEIGHBORS._replace(share=0.5),),
        biases=(_OF_QKV._replace(default=True),),
        norms=_GLM4,
        epsilon=1.5625e-7,
        H_kv=2,
        d_head=128,
        mlp=("gate_up_proj down_proj", "*_gate+*_mlp1 *_mlp2"),
    ),
    _like(
        "nanochat",
        "NanoChat",
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
    _like(
        "cohere2",
        "Cohere2",
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
    _like(
        "mixtral",
        "Mixtral",
        Mixed("mixtral"),
        *_OF_EXPERTS,
        positions=(Positions(base=1_000_000.0),),
        epsilon=1e-5,
        H_kv=8,
    ),
    _like("qwen3_moe", "Qwen3Moe", Mixed("qwen3_moe"), _UNCLIPPED, _UNUSED, attention=_QK, H_kv=4),
    _like("olmoe", "Olmoe", Mixed("olmoe"), _CLIP, _NO_WINDOWS, attention=_TOGETHER, epsilon=1e-5),
    _like(
        "minimax_m2",
        "MiniMaxM2",
        Mixed("minimax_m2"),
        *_OF_EXPERTS,
        attention=_TOGETHER,
        positions=(Positions(base=5_000_000.0, share=1.0),),
        H_kv=8,
        d_head=128,
        read=_read_minimax,
    ),
    _like(
        "gpt_oss",
        "GptOss",
        Mixed("gpt_oss"),
        attention=_LINE.but(sinks=True),
        positions=(Positions(base=150_000.0),),
        biases=(_OF_ALL._replace(default=True),),
        epsilon=1e-5,
        windows=128,
        period=2,
        H_kv=8,
        d_head=64,
    ),
    _like(
        "arcee",
        "Arcee",
        _OF_MLP,
        activation=Field("hidden_act", "mlp.activation", "relu2"),
        variant=VARIANT.but(mlp=MLP(biases=False)),
        mlp=("up_proj down_proj", HIDDEN),
        epsilon=1e-5,
    ),
    _like(
        "seed_oss",
        "SeedOss",
        *(_OF_MLP, Need("attention_out_bias", False, "biases of outputs")),
        *written(attention_out_bias=False, residual_dropout=0.0),
        biases=(_OF_QKV._replace(default=True),),
        H_kv=8,
        d_head=128,
    ),
    _like(
        "ernie4_5",
        "Ernie4_5",
        positions=(_NEIGHBORS._replace(base=500_000.0),),
        biases=(_USE_BIAS,),
        H_kv=2,
        d_head=128,
        epsilon=1e-5,
        tied=True,
    ),
    _like(
        "starcoder2",
        "Starcoder2",
        *(_window(None), *written(residual_dropout=0.0, embedding_dropout=0.0)),
        activation=Field("hidden_act", "mlp.activation", "gelu_pytorch_tanh"),
        biases=(_USE_BIAS._replace(default=True),),
        variant=VARIANT.but(norm=LayerNorm(epsilon=1e-5), mlp=MLP()),
        mlp=("c_fc c_proj", HIDDEN),
        H_kv=2,
        of_epsilon="norm_epsilon",
        epsilon=1e-5,
        tied=True,
    ),
    _like(
        "qwen2_moe",
        "Qwen2Moe",
        *(Mixed("qwen2_moe", SHARED_EXPERT, 5632, width=1408), _UNUSED),
        biases=(_OF_QKV._replace(names="qkv_bias", default=True),),
        H_kv=16,
    ),
    _like(
        "glm4_moe",
        "Glm4Moe",
        *(Mixed("glm4_moe", width=1408), First(1, 10_944)),
        Gate("use_qk_norm", "attention.normalize_heads", False),
        attention=_QK,
        positions=(Positions(share=0.5),),
        biases=(_OF_QKV,),
        H_kv=8,
        epsilon=1e-5,
    ),
    _like(
        "exaone4",
        "Exaone4",
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
    _like(
        "hunyuan_v1_dense",
        "HunYuanDenseV1",
        attention=_QK.but(positions_first=True),
        epsilon=1e-5,
        read=_read_hunyuan,
        of_heads="query_layernorm key_layernorm",
    ),
    _like(
        "olmo",
        "Olmo",
        _CLIP,
        variant=VARIANT.but(norm=LayerNorm(epsilon=1e-5, gamma=False, beta=False)),
        of_epsilon="-",
        epsilon=1e-5,
    ),
    _like(
        "internlm3",
        "InternLM3",
        *written(qkv_bias=lambda c: c.variant.mlps[0].biases),
        biases=(_USE_BIAS._replace(names="bias"),),
        epsilon=1e-5,
        H_kv=2,
        d_head=128,
        read=_read_internlm3,
    ),
    _like(
        "ernie4_5_moe",
        "Ernie4_5_Moe",
        *(Mixed("ernie4_5_moe", width=1536), _FIRST_OF_ERNIE, Need("use_bias", False, "biases beside experts")),
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
