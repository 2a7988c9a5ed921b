"""Encoders: BERT, RoBERTa, DistilBERT and ALBERT, bare or with the masked-token head; and BERT classifiers."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from algorithms import ALBERT, BERT, ROBERTA, ETransformerConfig, Variant
from algorithms.lines import MLP, LayerNorm, Unembedding
from training.interchange.description import Architecture, Fields, Model, size_fields, theirs, unexpressed, unlike
from training.interchange.mapping import Entry, attention_maps, linear, mlp_maps, norm, table


class Kind(NamedTuple):
    """What distinguishes one kind of encoder."""

    name: tuple[str, str]  # of the class with the masked-token head, and of the bare one
    variant: Variant  # the lines that config.json does not decide
    sizes: Mapping[str, tuple[str, int]]  # our name → the field's name and default
    layer: str  # the prefix of a layer's tensors, without the layer's number
    parts: tuple[str, ...]  # the names in a layer of W_q, W_k, W_v, W_o, norm1, W_mlp1, W_mlp2 and norm2
    head: tuple[str, str, str, str]  # the names of W_f, of the norm after it, of W_u, and of b_u
    activation: tuple[str, str] = ("hidden_act", "gelu")  # the field's name and default
    dropout: str = "attention_probs_dropout_prob"  # the field's name
    pooler: str = "pooler.dense"  # the name of W_pool
    plain: bool = False  # whether ε is fixed at 1e-12 and there are no token types
    classifier: str = ""  # the name of the class that classifies texts, if supported
    ignored: tuple[str, ...] = ()  # further patterns of tensors that are not parameters


PARTS = (
    *(f"attention.self.{name}" for name in ("query", "key", "value")),
    "attention.output.dense",
    "attention.output.LayerNorm",
    "intermediate.dense",
    "output.dense",
    "output.LayerNorm",
)
"""`Kind.parts` of BERT."""
SIZES = {
    "N_V": ("vocab_size", 30522),
    "L": ("num_hidden_layers", 12),
    "H": ("num_attention_heads", 12),
    "d_e": ("hidden_size", 768),
    "d_mlp": ("intermediate_size", 3072),
}
"""`Kind.sizes` of BERT."""

KINDS: dict[str, Kind] = {
    "bert": Kind(
        ("BertForMaskedLM", "BertModel"),
        BERT,
        SIZES,
        "encoder.layer",
        PARTS,
        (
            "cls.predictions.transform.dense",
            "cls.predictions.transform.LayerNorm",
            "cls.predictions.decoder.weight",
            "cls.predictions.bias",
        ),
        classifier="BertForSequenceClassification",
        ignored=("cls.seq_relationship.*", "cls.predictions.bias"),  # an untied checkpoint does not use the bias
    ),
    "roberta": Kind(
        ("RobertaForMaskedLM", "RobertaModel"),
        ROBERTA,
        SIZES | {"N_V": ("vocab_size", 50265)},
        "encoder.layer",
        PARTS,
        ("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder.weight", "lm_head.bias"),
    ),
    "distilbert": Kind(
        ("DistilBertForMaskedLM", "DistilBertModel"),
        BERT,
        {
            "N_V": ("vocab_size", 30522),
            "L": ("n_layers", 6),
            "H": ("n_heads", 12),
            "d_e": ("dim", 768),
            "d_mlp": ("hidden_dim", 3072),
        },
        "transformer.layer",
        (
            *(f"attention.{name}_lin" for name in ("q", "k", "v", "out")),
            "sa_layer_norm",
            "ffn.lin1",
            "ffn.lin2",
            "output_layer_norm",
        ),
        ("vocab_transform", "vocab_layer_norm", "vocab_projector.weight", "vocab_projector.bias"),
        activation=("activation", "gelu"),
        dropout="attention_dropout",
        plain=True,
    ),
    "albert": Kind(
        ("AlbertForMaskedLM", "AlbertModel"),
        ALBERT,
        {
            "N_V": ("vocab_size", 30000),
            "L": ("num_hidden_layers", 12),
            "H": ("num_attention_heads", 64),
            "d_e": ("hidden_size", 4096),
            "d_in": ("embedding_size", 128),
            "d_mlp": ("intermediate_size", 16384),
        },
        "encoder.albert_layer_groups",
        tuple(
            f"albert_layers.0.{part}"
            for part in (
                *(f"attention.{name}" for name in ("query", "key", "value", "dense")),
                "attention.LayerNorm",
                "ffn",
                "ffn_output",
                "full_layer_layer_norm",
            )
        ),
        ("predictions.dense", "predictions.LayerNorm", "predictions.decoder.weight", "predictions.bias"),
        activation=("hidden_act", "gelu_new"),
        pooler="pooler",
    ),
}
"""By model_type."""


def _name(own: Kind, fields: Fields, names: Sequence[str]) -> str:
    """Return the name of the model's class, from config.json or else from the tensors."""
    named = fields.first("architectures")
    if named == "BertForPreTraining":  # its next-sentence head is ignored
        return own.name[0]
    if named:
        if named not in (*own.name, own.classifier):
            fields.needs.append(f"the head of {named}")
        return named
    if any(name.startswith(own.head[0]) for name in names):
        return own.name[0]
    return own.classifier if own.classifier and "classifier.weight" in names else own.name[1]


def _labels(fields: Fields) -> tuple[str, ...]:
    fields.require("problem_type", "single_label_classification", "multi-label classification or regression")
    names = fields.table("id2label")
    n = len(names) or fields.integer("num_labels", 2, limit=1 << 20)
    if n == 1:
        fields.needs.append("regression (one label)")
    return tuple(str(names.get(str(i), f"LABEL_{i}")) for i in range(n))


def _read_config(kind: str, fields: Fields, names: Sequence[str]) -> Model:
    own = KINDS[kind]
    fields.require("sinusoidal_pos_embds", False, "sinusoidal positions")
    fields.require("position_embedding_type", "absolute", "relative positions")
    fields.require("is_decoder", False, "unidirectional attention")
    fields.require("add_cross_attention", False, "cross-attention")
    named = _name(own, fields, names)
    masked, classifies = named == own.name[0], named == own.classifier
    if kind == "roberta" and masked:  # its head always uses GELU
        fields.require("hidden_act", "gelu", "different activations in the layers and the head")
    first = fields.integer("pad_token_id", 1, least=0) + 1 if kind == "roberta" else 0
    sizes: dict[str, Any] = fields.sizes(own.sizes)
    shared = 1
    if kind == "albert":
        fields.require("inner_group_num", 1, "several layers in a group")
        groups = fields.integer("num_hidden_groups", 1)
        shared = max(1, sizes["L"] // groups)
        if sizes["L"] != shared * groups:
            fields.needs.append(f"groups of different sizes ({sizes['L']} layers in {groups})")
    variant = own.variant.but(
        embedding=own.variant.embedding.but(first_position=first),
        norm=LayerNorm(epsilon=1e-12 if own.plain else fields.number("layer_norm_eps", 1e-12)),
        mlp=MLP(activation=fields.activation(*own.activation)),
        shared_layers=shared,
        unembedding=Unembedding(tied=fields.flag("tie_word_embeddings", True) or not masked, bias=masked),
        head=masked,
        pooler=classifies or any(name.endswith(f"{own.pooler}.weight") for name in names),
    )
    l_max = fields.integer("max_position_embeddings", 512, least=first + 1) - first
    N_types = 0 if own.plain else fields.integer("type_vocab_size", 2)
    config = ETransformerConfig(**sizes, l_max=l_max, N_types=N_types, variant=variant)
    return Model("classify", config, _labels(fields)) if classifies else Model("e", config)


def _write_config(kind: str, model: Model) -> tuple[dict[str, Any], list[str]]:
    own, c, v = KINDS[kind], model.config, model.config.variant
    masked = v.head and model.task == "e"
    epsilon = 1e-12 if own.plain else v.norm.epsilon
    mlp = MLP(activation=v.mlp.activation) if v.mlp else MLP()
    said = own.variant.but(
        embedding=own.variant.embedding.but(first_position=v.embedding.first_position if kind == "roberta" else 0),
        norm=LayerNorm(epsilon=epsilon),
        mlp=mlp,
        unembedding=Unembedding(tied=v.unembedding.tied, bias=masked),
        shared_layers=v.shared_layers if kind == "albert" else 1,
        head=v.head,
        pooler=v.pooler and not own.plain,
    )
    lacks = unexpressed(c, said)
    if masked:
        lacks += unlike(c.d_f, c.d_in, "final projection of a different size than the embeddings")
    if model.task == "classify":
        lacks += unlike(v.pooler, True, "classifier without a pooler")
        lacks += unlike(v.head, False, "classifier that keeps a masked-token head")
    if kind == "roberta" and v.head:
        lacks += unlike(mlp.activation or "gelu", "gelu", f"head with the activation {mlp.activation!r}")
    lacks += ["padding token before the first position"] if kind == "roberta" and not v.embedding.first_position else []
    state = {
        **size_fields(c, own.sizes),
        own.activation[0]: theirs(mlp.activation or "gelu"),
        own.dropout: 0.0,
        "model_type": kind,
        "architectures": [own.classifier if model.task == "classify" else own.name[0 if masked else 1]],
        "max_position_embeddings": c.l_max + v.embedding.first_position,
        "tie_word_embeddings": c.tied,
    }
    if kind == "roberta":
        state["pad_token_id"] = v.embedding.first_position - 1
    if kind == "albert":
        state |= {"num_hidden_groups": c.L // c.shared_layers, "inner_group_num": 1}
    if not own.plain:
        state |= {"layer_norm_eps": epsilon, "type_vocab_size": c.N_types or 1, "hidden_dropout_prob": 0.0}
    else:
        lacks += unlike(c.N_types, 0, "token types")
        state |= {"dropout": 0.0, "sinusoidal_pos_embds": False}
    if model.labels:
        state["id2label"] = {str(i): label for i, label in enumerate(model.labels)}
        state["label2id"] = {label: i for i, label in enumerate(model.labels)}
    return state, lacks


def _entries(kind: str, model: Model, state: dict[str, Any]) -> list[Entry]:
    own, c, v = KINDS[kind], model.config, model.config.variant
    ours = "encoder." if model.task == "classify" else ""
    prefix = f"{kind}." if ours or v.head else ""
    W_f, after, W_u, b_u = own.head
    found = [
        table(f"{prefix}embeddings.word_embeddings.weight", f"{ours}W_e", [W_u] if v.head and c.tied else []),
        table(f"{prefix}embeddings.position_embeddings.weight", f"{ours}W_p"),
        *norm(f"{prefix}embeddings.LayerNorm", f"{ours}embedding_norm"),
    ]
    if not own.plain:
        types = f"{prefix}embeddings.token_type_embeddings.weight"
        found.append(table(types, f"{ours}W_t") if c.N_types else Entry(types, (), lead=(1, c.d_in)))
    if v.embedding.factored:
        found += linear(f"{prefix}encoder.embedding_hidden_mapping_in", f"{ours}W_in", f"{ours}b_in")
    for l in range(c.L // c.shared_layers):
        *projections, norm1, mlp1, mlp2, norm2 = (f"{prefix}{own.layer}.{l}.{part}" for part in own.parts)
        found += attention_maps(projections, f"{ours}layers.attention", l)
        found += norm(norm1, f"{ours}layers.norm1", l) + norm(norm2, f"{ours}layers.norm2", l)
        found += mlp_maps(mlp1, mlp2, f"{ours}layers.mlp", l)
    if v.pooler:
        found += linear(f"{prefix}{own.pooler}", f"{ours}W_pool", f"{ours}b_pool")
    if ours:
        return found + linear("classifier", "W_c", "b_c")
    if not v.head:
        return found
    found += [*linear(W_f, "W_f", "b_f"), *norm(after, "norm")]
    if kind == "bert" and not c.tied:
        return found + linear(W_u.removesuffix(".weight"), "W_u", "b_u")
    bias = Entry(b_u, ("b_u",), aliases=() if own.plain else (W_u.replace("weight", "bias"),))
    return [*found, bias] if c.tied else [*found, bias, Entry(W_u, ("W_u",))]


def architecture(kind: str) -> Architecture:
    """Return how encoders of one of `KINDS` are described and stored."""
    return Architecture(
        functools.partial(_read_config, kind),
        functools.partial(_write_config, kind),
        functools.partial(_entries, kind),
        prefix=f"{kind}.",
        ignored=("*embeddings.position_ids", *KINDS[kind].ignored),
    )
