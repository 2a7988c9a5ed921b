"""Encoders: BERT, RoBERTa, DistilBERT and ALBERT, bare or with the masked-token head; and BERT classifiers."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from algorithms import ALBERT, BERT, ROBERTA, Variant
from training.interchange import description
from training.interchange.description import Architecture, Field, Fields, Model, Need, fields_of, unlike, written
from training.interchange.mapping import HEADS, Table, each, rows

SIZES = "N_V L H d_e d_mlp"
OF_BERT = "vocab_size num_hidden_layers num_attention_heads hidden_size intermediate_size"
LAYER = f"{each('attention.{}', HEADS)} norm1.* norm2.* mlp.*_mlp1 mlp.*_mlp2"
PARTS = (
    "attention.self.query attention.self.key attention.self.value attention.output.dense attention.output.LayerNorm "
    "output.LayerNorm intermediate.dense output.dense"
)
"""BERT's modules in a layer."""


class Kind(NamedTuple):
    """The particulars of one kind of encoder."""

    names: tuple[str, ...]  # of the class with the masked-token head, of the bare one, and of one that classifies texts
    variant: Variant  # the lines that config.json does not decide
    sizes: tuple[Any, ...]  # our names, the fields' names and their defaults
    layer: str  # the prefix of a layer's tensors, # for its number
    parts: str  # the names in a layer of the modules that `LAYER` has
    head: str  # the names of W_f, of the norm after it, of W_u, and of b_u
    pooler: str = "pooler.dense"  # the name of W_pool
    plain: bool = False  # whether ε is fixed at 1e-12 and there are no token types, as in DistilBERT
    ignored: tuple[str, ...] = ()  # further patterns of tensors that are not parameters


OWN: dict[str, Kind] = {
    "bert": Kind(
        ("BertForMaskedLM", "BertModel", "BertForSequenceClassification"),
        BERT,
        (SIZES, OF_BERT, 30522, 12, 12, 768, 3072),
        "encoder.layer.#",
        PARTS,
        each("cls.predictions.{}", "transform.dense transform.LayerNorm decoder bias"),
        ignored=("cls.seq_relationship.*", "cls.predictions.bias"),  # an untied checkpoint does not use the bias
    ),
    "roberta": Kind(
        ("RobertaForMaskedLM", "RobertaModel"),
        ROBERTA,
        (SIZES, OF_BERT, 50265, 12, 12, 768, 3072),
        "encoder.layer.#",
        PARTS,
        each("lm_head.{}", "dense layer_norm decoder bias"),
    ),
    "distilbert": Kind(
        ("DistilBertForMaskedLM", "DistilBertModel"),
        BERT,
        (SIZES, "vocab_size n_layers n_heads dim hidden_dim", 30522, 6, 12, 768, 3072),
        "transformer.layer.#",
        f"{each('attention.{}_lin', 'q k v out')} sa_layer_norm output_layer_norm ffn.lin1 ffn.lin2",
        "vocab_transform vocab_layer_norm vocab_projector vocab_projector.bias",
        plain=True,
    ),
    "albert": Kind(
        ("AlbertForMaskedLM", "AlbertModel"),
        ALBERT,
        (
            "N_V L H d_e d_in d_mlp",
            OF_BERT.replace("hidden_size", "hidden_size embedding_size"),
            *(30000, 12, 64, 4096, 128, 16384),
        ),
        "encoder.albert_layer_groups.#.albert_layers.0",
        f"{each('attention.{}', 'query key value dense LayerNorm')} full_layer_layer_norm ffn ffn_output",
        each("predictions.{}", "dense LayerNorm decoder bias"),
        pooler="pooler",
    ),
}
"""By model_type."""


def _name(own: Kind, fields: Fields, names: Sequence[str]) -> str:
    """Return the name of the model's class, from config.json or else from the tensors."""
    named = fields.first("architectures")
    if named == "BertForPreTraining":  # its next-sentence head is ignored
        return own.names[0]
    if named:
        return fields.named(*own.names)
    if any(name.startswith(own.head.split()[0]) for name in names):
        return own.names[0]
    return own.names[-1] if "classifier.weight" in names else own.names[1]


def _labels(fields: Fields) -> tuple[str, ...]:
    fields.require("problem_type", "single_label_classification", "multi-label classification or regression")
    names = fields.table("id2label")
    n = len(names) or fields.integer("num_labels", 2, limit=1 << 20)
    if n == 1:
        fields.needs.append("regression (one label)")
    return tuple(str(names.get(str(i), f"LABEL_{i}")) for i in range(n))


def _read(fields: Fields, found: dict[str, Any], names: Sequence[str], kind: str) -> None:
    own, first = OWN[kind], 0
    named = _name(own, fields, names)
    masked, classifies = named == own.names[0], named in own.names[2:]
    if kind == "roberta":
        first = fields.integer("pad_token_id", 1, least=0) + 1
        if masked:  # its head always uses GELU
            fields.require("hidden_act", "gelu", "different activations in the layers and the head")
    if kind == "albert":
        fields.require("inner_group_num", 1, "several layers in a group")
        L, groups = found["L"], fields.integer("num_hidden_groups", 1)
        found["shared_layers"] = max(1, L // groups)
        if found["shared_layers"] * groups != L:
            fields.needs.append(f"groups of different sizes ({L} layers in {groups})")
    found |= {"embedding.first_position": first, "unembedding.bias": masked, "head": masked}
    found["unembedding.tied"] = found["unembedding.tied"] or not masked
    found["pooler"] = classifies or any(name.endswith(f"{own.pooler}.weight") for name in names)
    found["l_max"] = fields.integer("max_position_embeddings", 512, least=first + 1) - first
    found["N_types"] = 0 if own.plain else fields.integer("type_vocab_size", 2)
    if classifies:
        found["labels"] = _labels(fields)


def _write(model: Model, state: dict[str, Any], kind: str) -> list[str]:
    own, c, v = OWN[kind], model.config, model.config.variant
    masked, lacks = v.head and model.task == "e", []
    if masked:
        lacks += unlike(c.d_f, c.d_in, "final projection of a different size than the embeddings")
    if model.task == "classify":
        lacks += unlike(v.pooler, True, "classifier without a pooler")
        lacks += unlike(v.head, False, "classifier that keeps a masked-token head")
    if kind == "roberta" and v.head and (activation := description.value_at(c, "mlp.activation")) != "gelu":
        lacks.append(f"head with the activation {activation!r}")
    if own.plain:
        lacks += unlike(v.pooler, False, "pooler = True") + unlike(c.N_types, 0, "token types")
    state["architectures"] = [own.names[-1 if model.task == "classify" else 0 if masked else 1]]
    if model.labels:
        state["id2label"] = {str(i): label for i, label in enumerate(model.labels)}
        state["label2id"] = {label: i for i, label in enumerate(model.labels)}
    return lacks


def _tensors(model: Model, state: dict[str, Any], kind: str) -> Table:
    own, c, v = OWN[kind], model.config, model.config.variant
    ours = "encoder." if model.task == "classify" else ""
    prefix = f"{kind}." if ours or v.head else ""
    table: dict[str, Any] = {
        f"{prefix}embeddings.word_embeddings.weight": f"{ours}W_e",
        f"{prefix}embeddings.position_embeddings.weight": f"{ours}W_p",
        f"{prefix}embeddings.LayerNorm.*": f"{ours}embedding_norm.*",
    }
    if not own.plain:
        table[f"{prefix}embeddings.token_type_embeddings.weight"] = f"{ours}W_t" if c.N_types else (1, c.d_in)
    table |= {
        f"{prefix}encoder.embedding_hidden_mapping_in.*": f"{ours}*_in",
        **rows(f"{prefix}{own.layer}", own.parts, f"{ours}layers", LAYER),
        f"{prefix}{own.pooler}.*": f"{ours}*_pool",
    }
    if ours:
        return {**table, "classifier.*": "*_c"}
    if not v.head:
        return table
    W_f, after, W_u, b_u = own.head.split()
    table |= {f"{W_f}.*": "*_f", f"{after}.*": "norm.*"}
    if kind == "bert" and not c.tied:
        return {**table, f"{W_u}.*": "*_u"}
    biases = dict.fromkeys((b_u, f"{W_u}.bias"))
    return {**table, "|".join(biases): "b_u", f"{W_u}.weight": "W_u"}


def _architecture(kind: str, own: Kind) -> Architecture:
    fields = [
        *fields_of(*own.sizes),
        Need("sinusoidal_pos_embds", False, "sinusoidal positions"),
        Need("position_embedding_type", "absolute", "relative positions"),
        Need("is_decoder", False, "unidirectional attention"),
        Need("add_cross_attention", False, "cross-attention"),
        Field(
            "activation" if own.plain else "hidden_act", "mlp.activation", "gelu_new" if kind == "albert" else "gelu"
        ),
        *written(**{"attention_dropout" if own.plain else "attention_probs_dropout_prob": 0.0}),
        *written(model_type=kind, architectures=None),
        *written(max_position_embeddings=lambda c: c.l_max + c.variant.embedding.first_position),
        Field("tie_word_embeddings", "unembedding.tied", True),
    ]
    if kind == "roberta":
        fields += written(pad_token_id=lambda c: max(c.variant.embedding.first_position - 1, 0))
    if kind == "albert":
        fields += written(num_hidden_groups=lambda c: c.L // c.shared_layers, inner_group_num=1)
    if own.plain:
        fields += written(dropout=0.0, sinusoidal_pos_embds=False)
    else:
        fields.append(Field("layer_norm_eps", "norm.epsilon", 1e-12))
        fields += written(type_vocab_size=lambda c: c.N_types or 1, hidden_dropout_prob=0.0)
    ignored = ("*embeddings.position_ids", *own.ignored)
    return Architecture("e", kind, own.variant, fields, _tensors, _read, _write, prefix=f"{kind}.", ignored=ignored)


KINDS = {kind: _architecture(kind, own) for kind, own in OWN.items()}
"""By model_type."""
