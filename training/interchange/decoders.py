"""Shared parts of the tables of decoders: fields of sizes, experts and first layers, and changed lines."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from algorithms.lines import MLP, Embedding, Experts, RMSNorm
from algorithms.model.variant import Variant
from algorithms.model.variants import PAPER
from training.interchange.description import Architecture, Field, Fields, Need, fields_of, theirs, written
from training.interchange.experts import MIXTURES, mixture_fields, read_mixture, shared_experts, shared_units
from training.interchange.mapping import Table, rows

SIZES = "N_V l_max L H d_e d_mlp"
OF_SIZES = "vocab_size max_position_embeddings num_hidden_layers num_attention_heads hidden_size intermediate_size"
"""Our names of sizes, and the fields', which have no defaults."""
WITHOUT_MLP = fields_of(SIZES.removesuffix(" d_mlp"), OF_SIZES.removesuffix(" intermediate_size"))
OUTER = {"model.norm.*": "norm.*", "lm_head.weight": "W_u"}
"""The tensors after the layers."""
NORMS = "input_layernorm post_attention_layernorm", "layers", "norm1.* norm2.*"
"""The norms of a layer, for `rows`."""
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
DENSE, SPARSE = "dense", "sparse"


def heads_fields(H_kv: int | None = None, d_head: int | None = None) -> list[Field]:
    """Return the fields of the heads of keys and of a head's rows, with these defaults; None: H, and d_e/H."""
    return [
        Field("num_key_value_heads", "H_kv", H_kv or (lambda found: found["H"])),
        Field("head_dim", "d_attn d_mid", d_head or (lambda found: max(found["d_e"] // found["H"], 1))),
    ]


class Mixed(NamedTuple):
    """The fields of the experts of models of a kind; as a `Field`."""

    kind: str
    shared: str = ""  # the field with the hidden units of what every token takes, if it is not their number
    default: int = 512  # of that field
    activation: str = "silu"  # the default of hidden_act
    width: int | None = None  # the default of the field with the hidden units of an expert

    def read(self, fields: Fields, found: dict[str, Any]) -> None:
        """Add the mixture, and the hidden units of an expert, to what was found."""
        own = MIXTURES[self.kind]
        found["d_mlp"] = fields.integer(own.width, self.width)
        shared = shared_experts(fields, self.shared, found["d_mlp"], self.default) if self.shared else {}
        found["mlp"] = read_mixture(fields, own, plain_mlp(fields, self.activation), **shared)

    def fill(self, state: dict[str, Any], config: Any, lines: Mapping[str, Any]) -> None:
        """Add the fields to a config.json."""
        mlps = config.variant.mlps_in_turn
        mlp = next((line for line in mlps if isinstance(line, Experts)), mlps[0])
        state["hidden_act"] = theirs(getattr(mlp, "activation", None) or "gelu")
        state |= mixture_fields(MIXTURES[self.kind], mlp, config.d_mlp)
        state |= {self.shared: shared_units(mlp, config.d_mlp)} if self.shared else {}


class First(NamedTuple):
    """The fields of the first layers, which have an MLP in place of experts; as a `Field`."""

    n: int  # the default of their number
    d_mlp: int  # the default of their hidden units
    name: str = "first_k_dense_replace"  # of the field with their number

    def read(self, fields: Fields, found: dict[str, Any]) -> None:
        """Add their MLPs to what was found."""
        types, L = fields.get("mlp_layer_types"), found["L"]
        n = fields.integer(self.name, self.n, least=0)
        n = types.count(DENSE) if isinstance(types, list) else n
        if types is not None and types != [DENSE] * n + [SPARSE] * (len(types) - n):
            fields.needs.append(f"layers without experts after others (mlp_layer_types = {str(types)[:60]})")
        if n >= L:
            fields.needs.append(f"no layer with experts ({self.name} = {n}, num_hidden_layers = {L})")
            n = 0
        found["first"] = (plain_mlp(fields).but(d_mlp=fields.integer("intermediate_size", self.d_mlp)),) * n

    def fill(self, state: dict[str, Any], config: Any, lines: Mapping[str, Any]) -> None:
        """Add the fields to a config.json."""
        first, L = config.variant.first, config.L
        state |= {self.name: len(first), "num_nextn_predict_layers": 0}
        state["mlp_layer_types"] = [DENSE] * len(first) + [SPARSE] * (L - len(first))
        state["intermediate_size"] = first[0].d_mlp if first else config.d_mlp


def plain_mlp(fields: Fields, activation: str = "silu") -> MLP:
    """Return the MLP of a first layer, and of an expert; `activation`: the default of theirs."""
    function = fields.activation("hidden_act", activation)
    return MLP(activation=function, gated=True, biases=fields.flag("mlp_bias", False))


def of_lines(
    kind: str,
    name: str,
    tensors: Table | Callable[..., Table],
    *,
    fields: Sequence[Any] = (),
    variant: Variant = VARIANT,
    sizes: Sequence[Any] = fields_of(SIZES, OF_SIZES),
    heads: Sequence[Any] | None = None,
    epsilon: float = 1e-6,
    of_epsilon: str = "rms_norm_eps",
    norms: str = "",
    tied: bool = False,
    **others: Any,
) -> Architecture:
    """Return the architecture of decoders that differ in lines.

    Args:
        kind: the `model_type`.
        name: of the class, without ForCausalLM.
        tensors: those besides embeddings, the norms of layers, and what follows them.
        fields: those besides sizes, heads, ε and whether W_u is W_eᵀ.
        variant: the lines that no field decides.
        sizes: their fields.
        heads: the fields of their sizes; None: those of `heads_fields`.
        epsilon: the default of the norms' ε.
        of_epsilon: its field.
        norms: the paths of further norms with the same ε, besides those of the variant and of attentions.
        tied: the default of tie_word_embeddings.
        others: as in `Architecture`.
    """
    norms = f"norm attention.normalize_heads attention.normalize_output {norms}"
    if any(getattr(mlp, "normalize_output", None) for mlp in variant.mlps):
        norms += " mlp.normalize_output"
    of_all = [
        *written(model_type=kind, architectures=[f"{name}ForCausalLM"]),
        Need("use_bidirectional_attention", False, "bidirectional attention"),
        *sizes,
        *(heads_fields() if heads is None else heads),
        Field(of_epsilon, " ".join(f"{norm}.epsilon" for norm in norms.split()), epsilon),
        Field("tie_word_embeddings", "unembedding.tied", tied),
        *fields,
        *written(attention_dropout=0.0, pad_token_id=None),
    ]

    def whole(*model: Any) -> Table:
        inner = tensors(*model) if callable(tensors) else tensors
        has_norms = any(ours.startswith("layers.norm") for ours in inner.values() if isinstance(ours, str))
        norms = {} if has_norms else rows("model.layers.#", *NORMS)
        outer = {name: ours for name, ours in OUTER.items() if ours not in inner.values()}
        return {"model.embed_tokens.weight": "W_e", **norms, **inner, **outer}

    table = whole if callable(tensors) else whole()
    return Architecture("d", kind, variant, of_all, table, prefix="model.", **others)
