"""BERT of transformers, at random: masked-token head, classifier and bare encoder, with token types and padding."""

import functools
import itertools

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from algorithms import BERT, e_encoding, e_hidden_state, e_transformer
from algorithms.ops.linear import logits
from tests import interchange_cases as cases
from tests.cases import quick_of
from training.interchange import load_model, load_pretrained
from training.tasks.classify import class_probabilities, pooled

torch, transformers = cases.libraries()

SIZES = {
    "odd": {"vocab_size": 29, "max_position_embeddings": 13, "hidden_size": 15, "num_hidden_layers": 3}
    | {"num_attention_heads": 5, "intermediate_size": 7, "type_vocab_size": 3},
    "other": {"vocab_size": 11, "max_position_embeddings": 9, "hidden_size": 14, "num_hidden_layers": 1}
    | {"num_attention_heads": 2, "intermediate_size": 19, "type_vocab_size": 1}
    | {"hidden_act": "gelu_new", "layer_norm_eps": 0.1},
}
KINDS = {
    "masked": ("BertForMaskedLM", {}),
    "untied": ("BertForMaskedLM", {"tie_word_embeddings": False}),
    "classifier": ("BertForSequenceClassification", {"id2label": {0: "ham", 1: "spam", 2: "other"}}),
    "bare": ("BertModel", {}),
}
LENGTHS = np.array([9, 5])


def make(kind, size="odd"):
    name, options = KINDS[kind]
    config = transformers.BertConfig(**SIZES[size], **options, attn_implementation="eager")
    return cases.randomized(torch, getattr(transformers, name)(config).double())


def inputs(config, seed=1):
    rng = np.random.default_rng(seed)
    x = rng.integers(1, config.N_V, size=(2, 9))  # the padding token, 0, has no gradient there
    return x, rng.integers(config.N_types, size=x.shape)


def theirs(model, x, types):
    attended = torch.tensor(np.arange(9) < LENGTHS[:, None]).long()
    out = model(torch.tensor(x), attention_mask=attended, token_type_ids=torch.tensor(types))
    return out.last_hidden_state if hasattr(out, "last_hidden_state") else out.logits


def ours(run, x, types):
    """The logits of a masked-token head or of a classifier, and the bare encoder's columns, tokens before rows."""
    options = {"length": jnp.asarray(LENGTHS), "types": jnp.asarray(types)}

    def outputs(theta):
        if run.task == "classify":
            X = pooled(e_encoding(jnp.asarray(x), theta.encoder, **options)[..., :1], theta.encoder)
            return jnp.moveaxis(logits(X[..., 0], theta.W_c, theta.b_c), 0, -1)
        if theta.W_f is None:
            return jnp.moveaxis(e_encoding(jnp.asarray(x), theta, **options), 0, -1)
        return cases.column_logits(e_hidden_state(jnp.asarray(x), theta, **options), theta)

    return outputs


@pytest.mark.parametrize(
    ("kind", "size", "dtype"), quick_of([("masked", "odd", "float64")], itertools.product(KINDS, SIZES, cases.DTYPES))
)
def test_outputs_and_gradients_are_those_of_transformers(tmp_path, kind, size, dtype):
    model = make(kind, size)
    path = cases.saved(model, tmp_path, dtype)
    run = load_model(path)
    x, types = inputs(run.config)
    expected = theirs(model, x, types)
    read = np.arange(9) < LENGTHS[:, None] if expected.ndim == 3 else None
    outputs = ours(run, x, types)
    compared = cases.assert_as_theirs(torch, model, path, run.theta, outputs, expected, dtype, read=read)
    unread = {"bare": {"pooler.dense.weight", "pooler.dense.bias"}, "untied": {"cls.predictions.bias"}}.get(kind, set())
    assert compared == {name for name, _ in model.named_parameters()} - unread


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_way_there_and_back_is_exact(tmp_path, kind, dtype):
    path = cases.saved(make(kind), tmp_path / "theirs", dtype)
    x = inputs(load_model(path).config)
    unread = {"cls.predictions.bias"} if kind == "untied" else set()  # by transformers
    opened = functools.partial(getattr(transformers, KINDS[kind][0]).from_pretrained, attn_implementation="eager")
    cases.assert_written_again(torch, path, opened, lambda model: theirs(model, *x), unwritten=unread)


def test_a_classifier_has_its_labels_and_its_probabilities(tmp_path):
    model = make("classifier")
    run = load_model(cases.saved(model, tmp_path))
    assert (run.task, run.labels) == ("classify", ("ham", "spam", "other"))
    x, types = inputs(run.config)
    P = class_probabilities(jnp.asarray(x), run.theta, length=jnp.asarray(LENGTHS))
    expected = theirs(model, x, 0 * types).softmax(-1).detach().numpy()
    cases.assert_same(P.T, expected, "float64", "probabilities")


def test_a_pretrained_bert_of_2018_is_read(tmp_path):
    """bert-base-uncased has a pooler and a next-sentence head besides, positions, and gamma and beta."""
    model = make("masked")
    path = cases.saved(model, tmp_path / "new")
    (tmp_path / "old").mkdir()
    tensors = {name.replace("Norm.weight", "Norm.gamma"): a for name, a in cases.tensors_of(path).items()}
    tensors = {name.replace("Norm.bias", "Norm.beta"): a for name, a in tensors.items()}
    tensors |= {"bert.pooler.dense.weight": np.ones((15, 15)), "bert.pooler.dense.bias": np.ones(15)}
    tensors |= {"cls.seq_relationship.weight": np.ones((2, 15)), "cls.seq_relationship.bias": np.ones(2)}
    tensors["bert.embeddings.position_ids"] = np.arange(13)[None]
    safetensors.numpy.save_file(tensors, tmp_path / "old" / "model.safetensors")
    (tmp_path / "old" / "config.json").write_text((path / "config.json").read_text())
    (theta, config, _), (expected, _, _) = load_pretrained(tmp_path / "old"), load_pretrained(path)
    np.testing.assert_array_equal(theta.W_pool, np.ones((15, 15)))
    x, _ = inputs(config)
    P = [e_transformer(jnp.asarray(x), t) for t in (theta, expected)]
    np.testing.assert_array_equal(*P)


def test_what_a_bare_encoder_lacks_is_said(tmp_path):
    theta, _, _ = load_pretrained(cases.saved(make("bare"), tmp_path))
    assert theta.W_f is None
    with pytest.raises(ValueError, match=r"theta.W_f: expected parameters of lines 10 and 11, got a bare encoder's"):
        e_transformer(jnp.arange(3), theta)
    without = theta._replace(W_t=None)
    with pytest.raises(ValueError, match=r"types: expected None, since theta.W_t is None"):
        e_encoding(jnp.arange(3), without, types=jnp.zeros(3, int))
    with pytest.raises(ValueError, match=r"theta.W_pool: expected None in BERT, got parameters"):
        e_encoding(jnp.arange(3), theta._replace(variant=BERT))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"position_embedding_type": "x"}, r"relative positions \(position_embedding_type = 'x'\)"),
        ({"is_decoder": True, "hidden_act": "tanh"}, r"unidirectional attention \(is_decoder = True\), the activation"),
        ({"architectures": ["BertForQuestionAnswering"]}, "the head of BertForQuestionAnswering"),
    ],
)
def test_what_is_not_supported_is_listed(tmp_path, changed, message):
    cases.assert_refused(make("masked"), tmp_path, f"needs what this library does not have: {message}", **changed)
