"""Decoders of layers as Llama's: the parts that their tables share, of sizes, norms, attentions, MLPs and experts."""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from algorithms import VARIANTS, Variant
from algorithms.lines import Attention
from training.interchange.description import Architecture, Field, Layers, Need, every, fields_of, only, theirs, written
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
SILU = only("hidden_act", "silu", "another nonlinearity")
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
    """Decoders by their record, which says their lines, and what files call these; the other defaults are Llama's."""

    names: str  # the `model_type`, the class without ForCausalLM, and the record in `VARIANTS`
    # besides those of the attributes below, and whether W_u is W_eᵀ; the default of a line's field is the record's
    fields: Sequence[Any]
    attention: Any = None  # the mixer of all layers; None: the record's
    positions: Sequence[Any] = (Positions(),)  # the fields of the attention's
    activation: Any = None  # the default of hidden_act (None: the record's), or the fields of the MLP's without experts
    biases: Sequence[Any] = (OF_ALL,)  # the fields of the attention's
    variant: Variant | None = None  # in place of the record
    sizes: Sequence[Any] = fields_of(SIZES, OF_SIZES)  # their fields
    H_kv: int | None = None  # the default of num_key_value_heads
    d_head: int | None = None  # the default of head_dim
    heads: Sequence[Any] | None = None  # the fields of both; None: those of `heads_fields`
    epsilon: float | None = None  # the default of the norms' ε; None: the record's
    of_epsilon: str = "rms_norm_eps"  # its field
    same_epsilon: str = ""  # the path of a further norm with this ε, besides those of the variant and of attentions
    tied: bool | None = None  # the default of tie_word_embeddings; None: the record's
    kinds: tuple[str, str] = (SLIDING, FULL)  # the kinds of layers, if the record has two mixers, in this order
    windows: int | None = None  # the default of sliding_window, if layers may have windows; None: the record's
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

    def lines(self, mixers: Sequence[Any]) -> dict[str, Any]:
        """Return the mixers by the kinds of layers, if there are several."""
        distinct = [*dict.fromkeys(mixers)]
        if self.windows and len(distinct) == 1:
            distinct = [distinct[0].but(window=self.windows), *distinct]
        return dict(zip(self.kinds, distinct, strict=True)) if len(distinct) > 1 else {}

    def architecture(self, **others: Any) -> Architecture:
        """Return the architecture, with others of its attributes."""
        (kind, name, record), activation = self.names.split(), self.activation
        variant = self.variant or VARIANTS[record]
        variant = variant.but(attention=self.attention) if self.attention else variant
        lines, plain = others.setdefault("lines", self.lines(variant.attentions)), next(filter(None, variant.mlps))
        fields = self.fields
        if SLIDING in lines:
            fields = window(self.windows, SLIDING), *fields
            turns = every(len(variant.attentions), "sliding_window_pattern", self.kinds)
            others = {"layers": Layers(turns)} | others
        activation = theirs(plain.activation or "gelu") if activation is None else activation
        of_mlps = [Field("hidden_act", "mlp.activation", activation)] if isinstance(activation, str) else activation
        of_mlps = [MIXTURES[kind]] if kind in MIXTURES else of_mlps
        same = f"norm attention.normalize_heads attention.normalize_output {self.same_epsilon}"
        same += " mlp.normalize_output" if plain.normalize_output else ""
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
            variant if lines else variant.but(attention=variant.attentions[0]),  # `read` has those of all layers
            [field.or_that_of(variant, lines) if isinstance(field, Field) else field for field in of_all],
            self.whole if callable(self.tensors) else self.whole(),
            prefix="model.",
            ignored=("*.rotary_emb.inv_freq", *others.pop("ignored", ())),  # in files of 2023
            **others,
        )


def of_lines(names: str, *fields: Any, **given: Any) -> Architecture:
    """Return the architecture of decoders, by the attributes of `Decoder` and of `Architecture`."""
    own = {name: given.pop(name) for name in Decoder._fields if name in given}
    return Decoder(names, fields, **own).architecture(**given)
