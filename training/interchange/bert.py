"""BERT, which is Algorithm 9: transformers' `BertForMaskedLM`, `BertForSequenceClassification` and bare `BertModel`."""

from collections.abc import Sequence
from typing import Any

from algorithms import BERT, ETransformerConfig
from algorithms.lines import MLP, LayerNorm, Unembedding
from training.interchange.description import Architecture, Fields, Model, differences, plain_heads, theirs, unlike
from training.interchange.mapping import Entry, linear, norm, table

MASKED, CLASSIFIER, BARE = "BertForMaskedLM", "BertForSequenceClassification", "BertModel"
PREFIX = "bert."


def _kind(fields: Fields, names: Sequence[str]) -> str:
    """Which of the three it is: as config.json says, or else as the tensors show."""
    named = fields.first("architectures")
    if named == "BertForPreTraining":  # its next-sentence head is left out
        return MASKED
    if named in (MASKED, CLASSIFIER, BARE):
        return named
    if named:
        fields.needs.append(f"the head of {named}")
    if any(name.startswith("cls.predictions.") for name in names):
        return MASKED
    return CLASSIFIER if "classifier.weight" in names else BARE


def _read_config(fields: Fields, names: Sequence[str]) -> Model:
    fields.require("position_embedding_type", "absolute", "relative positions")
    fields.require("is_decoder", False, "unidirectional attention")
    fields.require("add_cross_attention", False, "cross-attention")
    kind = _kind(fields, names)
    tied = fields.flag("tie_word_embeddings", True) or kind != MASKED
    variant = BERT.but(
        norm=LayerNorm(epsilon=fields.number("layer_norm_eps", 1e-12)),
        mlp=MLP(activation=fields.activation("hidden_act", "gelu")),
        unembedding=Unembedding(tied=tied, bias=kind == MASKED),
        head=kind == MASKED,
        pooler=kind == CLASSIFIER or any(name.endswith("pooler.dense.weight") for name in names),
    )
    config = ETransformerConfig(
        N_V=fields.integer("vocab_size", 30522),
        l_max=fields.integer("max_position_embeddings", 512),
        L=fields.integer("num_hidden_layers", 12),
        H=fields.integer("num_attention_heads", 12),
        d_e=fields.integer("hidden_size", 768),
        d_mlp=fields.integer("intermediate_size", 3072),
        N_types=fields.integer("type_vocab_size", 2),
        variant=variant,
    )
    return Model("classify", config, _labels(fields)) if kind == CLASSIFIER else Model("e", config)


def _labels(fields: Fields) -> tuple[str, ...]:
    fields.require("problem_type", "single_label_classification", "another kind of classification than of one class")
    names = fields.table("id2label")
    n = len(names) or fields.integer("num_labels", 2)
    if n == 1:
        fields.needs.append("regression (one label)")
    return tuple(str(names.get(str(i), f"LABEL_{i}")) for i in range(n))


def _write_config(model: Model) -> tuple[dict[str, Any], list[str]]:
    c, v = model.config, model.config.variant
    masked = model.task == "e" and v.head
    said = BERT.but(
        norm=LayerNorm(epsilon=v.norm.epsilon),
        mlp=MLP(activation=v.mlp.activation),
        unembedding=Unembedding(tied=v.unembedding.tied, bias=masked),
        head=v.head,
        pooler=v.pooler,
        dropout=v.dropout,
    )
    lacks = differences(v, said) + plain_heads(c)
    if masked:
        lacks += unlike(c.d_f, c.d_e, "final projection of another size than d_e")
    if model.task == "classify":
        lacks += unlike(v.pooler, True, "classifier without a pooler")
        lacks += unlike(v.head, False, "classifier that keeps a masked-token head")
    state = {
        "model_type": "bert",
        "architectures": [CLASSIFIER if model.task == "classify" else MASKED if masked else BARE],
        "vocab_size": c.N_V,
        "max_position_embeddings": c.l_max,
        "num_hidden_layers": c.L,
        "num_attention_heads": c.H,
        "hidden_size": c.d_e,
        "intermediate_size": c.d_mlp,
        "type_vocab_size": c.N_types or 1,
        "hidden_act": theirs(v.mlp.activation or "gelu"),
        "layer_norm_eps": v.norm.epsilon,
        "tie_word_embeddings": c.tied,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": v.dropout,
    }
    if model.labels:
        state["id2label"] = {str(i): label for i, label in enumerate(model.labels)}
        state["label2id"] = {label: i for i, label in enumerate(model.labels)}
    return state, lacks


def _entries(model: Model, state: dict[str, Any]) -> list[Entry]:
    c, v = model.config, model.config.variant
    ours = "encoder." if model.task == "classify" else ""
    bert = PREFIX if ours or v.head else ""
    tied = ["cls.predictions.decoder.weight"] if v.head and c.tied else []
    found = [
        table(f"{bert}embeddings.word_embeddings.weight", f"{ours}W_e", tied),
        table(f"{bert}embeddings.position_embeddings.weight", f"{ours}W_p"),
        table(f"{bert}embeddings.token_type_embeddings.weight", f"{ours}W_t")
        if c.N_types
        else Entry(f"{bert}embeddings.token_type_embeddings.weight", (), lead=(1, c.d_e)),
        *norm(f"{bert}embeddings.LayerNorm", f"{ours}embedding_norm"),
    ]
    for l in range(c.L):
        layer, attention = f"{bert}encoder.layer.{l}", f"{ours}layers.attention"
        for letter, name in (("q", "query"), ("k", "key"), ("v", "value")):
            heads = f"{attention}.heads"
            found += linear(f"{layer}.attention.self.{name}", f"{heads}.W_{letter}", f"{heads}.b_{letter}", l)
        found += linear(f"{layer}.attention.output.dense", f"{attention}.W_o", f"{attention}.b_o", l)
        found += norm(f"{layer}.attention.output.LayerNorm", f"{ours}layers.norm1", l)
        found += linear(f"{layer}.intermediate.dense", f"{ours}layers.mlp.W_mlp1", f"{ours}layers.mlp.b_mlp1", l)
        found += linear(f"{layer}.output.dense", f"{ours}layers.mlp.W_mlp2", f"{ours}layers.mlp.b_mlp2", l)
        found += norm(f"{layer}.output.LayerNorm", f"{ours}layers.norm2", l)
    if v.pooler:
        found += linear(f"{bert}pooler.dense", f"{ours}W_pool", f"{ours}b_pool")
    if ours:
        return found + linear("classifier", "W_c", "b_c")
    if not v.head:
        return found
    found += linear("cls.predictions.transform.dense", "W_f", "b_f")
    found += norm("cls.predictions.transform.LayerNorm", "norm")
    if c.tied:
        return [*found, Entry("cls.predictions.bias", ("b_u",), aliases=("cls.predictions.decoder.bias",))]
    return found + linear("cls.predictions.decoder", "W_u", "b_u")


ARCHITECTURE = Architecture(
    _read_config,
    _write_config,
    _entries,
    prefix=PREFIX,
    ignored=("*embeddings.position_ids", "cls.seq_relationship.*", "cls.predictions.bias"),  # unread where not tied
)
