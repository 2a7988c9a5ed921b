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


def window(default: int | None, kind: str = "attention") -> Field:
    """Return the field of the width of a window; null: none."""
    return Field("sliding_window", f"{kind}.window", default, optional=int)


class Decoder(NamedTuple):
    """Decoders that differ from Llama in lines; the defaults are Llama's."""

    names: str  # the `model_type`, and the class without ForCausalLM
    fields: Sequence[Any]  # besides those of the attributes below, and whether W_u is W_eᵀ
    attention: Any = LINE
    positions: Sequence[Any] = (Positions(),)  # the fields of the attention's
    activation: Any = "silu"  # the default of hidden_act, or the fields of the MLP's; experts have their own
    biases: Sequence[Any] = (OF_ALL,)  # the fields of the attention's
    variant: Variant = VARIANT  # the lines that no field decides
    order: Literal["no_norm", "one_norm"] | None = None  # of a layer
    sizes: Sequence[Any] = fields_of(SIZES, OF_SIZES)  # their fields
    H_kv: int | None = None  # the default of num_key_value_heads
    d_head: int | None = None  # the default of head_dim
    heads: Sequence[Any] | None = None  # the fields of both; None: those of `heads_fields`
    epsilon: float = 1e-6  # the default of the norms' ε
    of_epsilon: str = "rms_norm_eps"  # its field
    same_epsilon: str = ""  # the path of a further norm with this ε, besides those of the variant and of attentions
    tied: bool = False  # the default of tie_word_embeddings
    windows: int | None = None  # the default of sliding_window, if some layers have windows
    period: int | None = None  # every how many layers there is then none, unless layer_types differs
    full: Attention | None = None  # the line of these layers; None: `attention`
    norms: Norms = Norms()  # the names of a layer's norms
    modules: tuple[str, str] = ("self_attn", "mlp")  # the names of attention and MLP
    of_heads: str = "q_norm k_norm"  # the names of the norms of queries and of keys
    mlp: tuple[str, str] = ("gate_proj up_proj down_proj", OURS)  # the names of an MLP's matrices, and ours
    # others, in place of those with the same arrays of ours; or a function of a model and its config.json
    tensors: Any = MappingProxyType({})

    @property
    def of_layer(self) -> dict[str, Any]:
        """The tensors of a layer."""
        kind, layer = self.names.split()[0], "model.layers.#"
        of_norms = zip(self.norms, ("norm1", "norm2", "attention.norm_out", "mlp.norm_out"), strict=True)
        of_attention, of_mlp = (f"{layer}.{module}" for module in self.modules)
        return {
            **{f"{layer}.{name}.*": f"layers.{ours}.*" for name, ours in of_norms if name != "-"},
            **rows(of_attention, "q_proj k_proj v_proj o_proj", "layers.attention", HEADS),
            **{f"{of_attention}.{a}.weight": f"layers.attention.gamma_{a[0]}" for a in self.of_heads.split()},
            f"{of_attention}.sinks": "layers.attention.s",
            **rows(of_mlp, self.mlp[0], "layers.mlp", self.mlp[1]),
            **(MIXTURES[kind].table if kind in MIXTURES else {}),
        }

    def whole(self, *model: Any) -> dict[str, Any]:
        """Return all tensors, of a model and its config.json if these matter."""
        own: Any = self.tensors(*model) if callable(self.tensors) else self.tensors
        return {name: ours for name, ours in (OUTER | self.of_layer).items() if ours not in own.values()} | own

    def architecture(self, **others: Any) -> Architecture:
        """Return the architecture, with others of its attributes."""
        (kind, name), norm, activation = self.names.split(), self.variant.norm, self.activation
        attention, variant, fields = self.attention, self.variant, self.fields
        plain: Any = variant.mlps[0]
        of_mlps = [Field("hidden_act", "mlp.activation", activation)] if isinstance(activation, str) else activation
        of_mlps = [MIXTURES[kind]] if kind in MIXTURES else of_mlps
        if self.norms.of_attention != "-":
            attention, variant = attention.but(normalize_output=norm), variant.but(mlp=plain.but(normalize_output=norm))
        if getattr(attention, "normalize_heads", None) and isinstance(norm, RMSNorm):
            attention = attention.but(normalize_heads=norm)
        if self.windows:
            lines = {SLIDING: attention.but(window=self.windows), FULL: self.full or attention}
            turns = every(self.period, "sliding_window_pattern", (SLIDING, FULL)) if self.period else None
            others = {"layers": turns and Layers(turns), "lines": lines} | others
            fields = window(self.windows, SLIDING), *fields
        same = f"norm attention.normalize_heads attention.normalize_output {self.same_epsilon}"
        same += " mlp.normalize_output" if getattr(variant.mlps[0], "normalize_output", None) else ""
        of_all = [
            *written(model_type=kind, architectures=[f"{name}ForCausalLM"]),
            Need("use_bidirectional_attention", (False, "vision"), "bidirectional attention"),
            *self.sizes,
            *(heads_fields(self.H_kv, self.d_head) if self.heads is None else self.heads),
            Field(self.of_epsilon, " ".join(f"{norm}.epsilon" for norm in same.split()), self.epsilon),
            Field("tie_word_embeddings", "unembedding.tied", self.tied),
            *(*self.positions, *of_mlps, *self.biases, *fields),
            *written(attention_dropout=0.0, pad_token_id=None),
        ]
        return Architecture(
            "d",
            kind,
            variant.but(attention=attention, order=self.order),
            of_all,
            self.whole if callable(self.tensors) else self.whole(),
            prefix="model.",
            ignored=("*.rotary_emb.inv_freq", *others.pop("ignored", ())),  # in files of 2023
            **others,
        )


def of_lines(names: str, *fields: Any, **given: Any) -> Architecture:
    """Return the architecture of decoders, by the attributes of `Decoder` and of `Architecture`."""
    own = {name: given.pop(name) for name in Decoder._fields if name in given}
    return Decoder(names, fields, **own).architecture(**given)
