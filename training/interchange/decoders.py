"""Decoders of layers as Llama's: the parts that their tables share, of sizes, norms, attentions, MLPs and experts."""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from algorithms.lines import MLP, Attention, Embedding, RMSNorm
from algorithms.model.variant import Variant
from algorithms.model.variants import PAPER
from training.interchange.description import Architecture, Field, Layers, Need, every, fields_of, written
from training.interchange.experts import MIXTURES, OURS
from training.interchange.mapping import HEADS, rows
from training.interchange.rotary import FULL, SLIDING, Positions

SIZES = "N_V l_max L H d_e d_mlp"
OF_SIZES = "vocab_size max_position_embeddings num_hidden_layers num_attention_heads hidden_size intermediate_size"
"""Our names of sizes, and the fields', which have no defaults."""
WITHOUT_MLP = fields_of(SIZES.removesuffix(" d_mlp"), OF_SIZES.removesuffix(" intermediate_size"))
OUTER = {"model.embed_tokens.weight": "W_e", "model.norm.*": "norm.*", "lm_head.weight": "W_u"}
"""The tensors besides those of layers."""
FACTORS = [
    Field("embedding_multiplier", "embedding.factor", 1.0),
    Field("residual_multiplier", "residual_factor", 1.0),
    Field("logits_scaling", "unembedding.factor", 1.0, power=-1.0),
    Field("attention_multiplier", "attention.scale", 1.0),
]
"""The factors of Granite."""
SILU = [Need("hidden_act", "silu", "another nonlinearity"), *written(hidden_act="silu")]
VARIANT = PAPER.but(
    embedding=Embedding(positions=None),
    norm=RMSNorm(epsilon=1e-6),
    mlp=MLP(activation="silu", gated=True, biases=False),
)
"""The lines that no field decides, of most decoders."""
LINE = Attention(biases=False)
OF_ALL = Field("attention_bias", "attention.biases", False)


def heads_fields(H_kv: int | None = None, d_head: int | None = None) -> list[Field]:
    """Return the fields of the heads of keys and of a head's rows, with these defaults; None: H, and d_e/H."""
    return [
        Field("num_key_value_heads", "H_kv", H_kv or (lambda found: found["H"])),
        Field("head_dim", "d_attn d_mid", d_head or (lambda found: max(found["d_e"] // found["H"], 1))),
    ]


class Norms(NamedTuple):
    """The names of the norms in a layer; "-": none."""

    attention: str = "input_layernorm"
    mlp: str = "post_attention_layernorm"
    of_attention: str = "-"  # of its output
    of_mlp: str = "-"


NORMS = Norms()
OTHERS: Any = MappingProxyType({})


def window(default: int | None, kind: str = "attention") -> Field:
    """Return the field of the width of a window; null: none."""
    return Field("sliding_window", f"{kind}.window", default, optional=int)


def of_lines(
    names: str,
    *fields: Any,
    attention: Any = LINE,
    positions: Sequence[Any] = (Positions(),),
    activation: Any = "silu",
    biases: Sequence[Any] = (OF_ALL,),
    variant: Variant = VARIANT,
    order: Literal["no_norm", "one_norm"] | None = None,
    sizes: Sequence[Any] = fields_of(SIZES, OF_SIZES),
    H_kv: int | None = None,
    d_head: int | None = None,
    heads: Sequence[Any] | None = None,
    epsilon: float = 1e-6,
    of_epsilon: str = "rms_norm_eps",
    same_epsilon: str = "",
    tied: bool = False,
    windows: int | None = None,
    period: int | None = None,
    full: Attention | None = None,
    norms: Norms = NORMS,
    modules: tuple[str, str] = ("self_attn", "mlp"),
    of_heads: str = "q_norm k_norm",
    mlp: tuple[str, str] = ("gate_proj up_proj down_proj", OURS),
    tensors: Any = OTHERS,
    **others: Any,
) -> Architecture:
    """Return the architecture of decoders that differ from Llama in lines; the defaults are Llama's.

    Args:
        names: the `model_type`, and the class without ForCausalLM.
        fields: besides those of the arguments below, and whether W_u is W_eᵀ.
        attention: the line.
        positions: the fields of its positions.
        activation: the default of hidden_act, or the fields of the MLP's; experts have their own.
        biases: the fields of its biases.
        variant: the lines that no field decides.
        order: that of a layer.
        sizes: their fields.
        H_kv: the default of num_key_value_heads.
        d_head: the default of head_dim.
        heads: the fields of both; None: those of `heads_fields`.
        epsilon: the default of the norms' ε.
        of_epsilon: its field.
        same_epsilon: the path of a further norm with this ε, besides those of the variant and of attentions.
        tied: the default of tie_word_embeddings.
        windows: the default of sliding_window, if some layers have windows.
        period: every how many layers there is then none, unless layer_types differs.
        full: the line of these layers; None: `attention`.
        norms: the names of a layer's norms.
        modules: the names of attention and MLP.
        of_heads: the names of the norms of queries and of keys.
        mlp: the names of an MLP's matrices, and ours.
        tensors: others, in place of those with the same arrays of ours; or a function of a model and its config.json.
        others: as in `Architecture`.
    """
    (kind, name), layer, norm, plain = names.split(), "model.layers.#", variant.norm, variant.mlps[0]
    assert plain
    of_mlps = [Field("hidden_act", "mlp.activation", activation)] if isinstance(activation, str) else activation
    of_mlps = [MIXTURES[kind]] if kind in MIXTURES else of_mlps
    if norms.of_attention != "-":
        attention, variant = attention.but(normalize_output=norm), variant.but(mlp=plain.but(normalize_output=norm))
    if getattr(attention, "normalize_heads", None) and isinstance(norm, RMSNorm):
        attention = attention.but(normalize_heads=norm)
    if windows:
        lines = {SLIDING: attention.but(window=windows), FULL: full or attention}
        layers = Layers(every(period, "sliding_window_pattern", (SLIDING, FULL))) if period else None
        others = {"layers": layers, "lines": lines} | others
        fields = window(windows, SLIDING), *fields
    same = f"norm attention.normalize_heads attention.normalize_output {same_epsilon}"
    same += " mlp.normalize_output" if getattr(variant.mlps[0], "normalize_output", None) else ""
    of_norms = zip(norms, ("norm1", "norm2", "attention.norm_out", "mlp.norm_out"), strict=True)
    of_attention, of_mlp = (f"{layer}.{module}" for module in modules)
    of_layer = {
        **{f"{layer}.{name}.*": f"layers.{ours}.*" for name, ours in of_norms if name != "-"},
        **rows(of_attention, "q_proj k_proj v_proj o_proj", "layers.attention", HEADS),
        **{f"{of_attention}.{a}.weight": f"layers.attention.gamma_{a[0]}" for a in of_heads.split()},
        f"{of_attention}.sinks": "layers.attention.s",
        **rows(of_mlp, mlp[0], "layers.mlp", mlp[1]),
        **(MIXTURES[kind].table if kind in MIXTURES else {}),
    }

    def whole(*model: Any) -> dict[str, Any]:
        own: Any = tensors(*model) if callable(tensors) else tensors
        return {name: ours for name, ours in (OUTER | of_layer).items() if ours not in own.values()} | own

    of_all = [
        *written(model_type=kind, architectures=[f"{name}ForCausalLM"]),
        Need("use_bidirectional_attention", False, "bidirectional attention"),
        *sizes,
        *(heads_fields(H_kv, d_head) if heads is None else heads),
        Field(of_epsilon, " ".join(f"{norm}.epsilon" for norm in same.split()), epsilon),
        Field("tie_word_embeddings", "unembedding.tied", tied),
        *(*positions, *of_mlps, *biases, *fields),
        *written(attention_dropout=0.0, pad_token_id=None),
    ]
    return Architecture(
        "d",
        kind,
        variant.but(attention=attention, order=order),
        of_all,
        whole if callable(tensors) else whole(),
        prefix="model.",
        ignored=("*.rotary_emb.inv_freq", *others.pop("ignored", ())),  # in files of 2023
        **others,
    )
