"""Encoders of transformers, at random: outputs, gradients by name, both directions."""

import functools
import json

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from scipy.special import softmax

from algorithms import (
    ALBERT,
    BERT,
    GEMMA3,
    LLADA,
    MODERNBERT,
    ROBERTA,
    ETransformerConfig,
    e_encoding,
    e_hidden_state,
    e_logits,
    e_transformer,
)
from algorithms.lines import MLP
from algorithms.ops.linear import logits
from tests import interchange_cases as cases
from tests.cases import random_theta
from training.interchange import InterchangeError, load_model, load_pretrained, save_pretrained
from training.tasks.classify import ClassifierParams, class_probabilities, pooled

torch, transformers = cases.libraries()

BERT_SIZES = {"vocab_size": 29, "max_position_embeddings": 13, "hidden_size": 15, "num_hidden_layers": 3}
BERT_SIZES |= {"num_attention_heads": 5, "intermediate_size": 7, "type_vocab_size": 3}
LABELS = {0: "ham", 1: "spam", 2: "other"}
ROBERTA_SIZES = {"vocab_size": 29, "max_position_embeddings": 15, "hidden_size": 15, "num_hidden_layers": 3}
ROBERTA_SIZES |= {"num_attention_heads": 5, "intermediate_size": 7, "type_vocab_size": 1, "layer_norm_eps": 0.1}
ROBERTA_SIZES |= {"pad_token_id": 1}
DISTILBERT_SIZES = {"vocab_size": 29, "max_position_embeddings": 13, "dim": 15, "n_layers": 3, "n_heads": 5}
DISTILBERT_SIZES |= {"hidden_dim": 7, "activation": "relu"}
ALBERT_SIZES = {"vocab_size": 29, "max_position_embeddings": 13, "embedding_size": 7, "hidden_size": 15}
ALBERT_SIZES |= {"num_hidden_layers": 4, "num_attention_heads": 5, "intermediate_size": 11, "layer_norm_eps": 0.1}
BASES = {"full": 100.0, "sliding": 50.0}
MODERN = {"vocab_size": 29, "max_position_embeddings": 13, "hidden_size": 18, "num_hidden_layers": 5}
MODERN |= {"num_attention_heads": 3, "intermediate_size": 7, "norm_eps": 0.1, "local_attention": 10}
MODERN |= {"rope_parameters": {f"{a}_attention": {"rope_type": "default", "rope_theta": b} for a, b in BASES.items()}}
MODERN |= dict.fromkeys(("pad_token_id", "eos_token_id", "bos_token_id", "cls_token_id", "sep_token_id"))
BIASES = dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias", "classifier_bias"), True)
GEMMA = {"vocab_size": 29, "max_position_embeddings": 13, "hidden_size": 18, "num_hidden_layers": 7}
GEMMA |= {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10, "intermediate_size": 7}
GEMMA |= {"rms_norm_eps": 0.1, "sliding_window": 10}  # so that padding sees a token: else transformers has NaN
GEMMA |= {"use_bidirectional_attention": True, "query_pre_attn_scalar": 7, "rope_parameters": MODERN["rope_parameters"]}
GEMMA |= dict.fromkeys(("pad_token_id", "eos_token_id", "bos_token_id"))
MODELS = {
    "BertForMaskedLM": BERT_SIZES,
    "BertForMaskedLM, untied": {**BERT_SIZES, "tie_word_embeddings": False},
    "BertForMaskedLM, one type": {**BERT_SIZES, "type_vocab_size": 1, "hidden_act": "gelu_new", "layer_norm_eps": 0.1},
    "BertForSequenceClassification": {**BERT_SIZES, "id2label": LABELS},
    "BertModel": BERT_SIZES,
    "RobertaForMaskedLM": ROBERTA_SIZES,
    "RobertaModel": {**ROBERTA_SIZES, "hidden_act": "gelu_new", "pad_token_id": 2, "type_vocab_size": 2},
    "DistilBertForMaskedLM": DISTILBERT_SIZES,
    "DistilBertModel": DISTILBERT_SIZES,
    "AlbertForMaskedLM": {**ALBERT_SIZES, "num_hidden_groups": 2},
    "AlbertModel": {**ALBERT_SIZES, "hidden_act": "relu"},
    "ModernBertForMaskedLM": MODERN,
    "Gemma3TextModel": GEMMA,
    "ModernBertModel": {**MODERN, **BIASES, "num_hidden_layers": 3, "hidden_activation": "silu"},
}
LENGTHS = np.array([11, 6])


def class_of(name):
    return getattr(transformers, name.partition(",")[0])


def make(name):
    kind = getattr(transformers, f"{name.partition('For')[0].removesuffix('Model')}Config")
    return cases.randomized(torch, class_of(name)(kind(**MODELS[name], attn_implementation="eager")))


def dtype_of(name):
    """That in which outputs are compared: ModernBERT's rotations are in float32, and Gemma's norms, too."""
    return {"modern": "rounded", "gemma3": "float32"}.get(name.lower()[:6], "float64")


def inputs(config, N_V=29):
    """Tokens and their types. No token is the padding token, because PyTorch gives that no gradient."""
    x = np.random.default_rng(1).integers(3, N_V, (2, 11))
    n = getattr(config, "type_vocab_size", 0) if config.model_type == "bert" else 0
    return x, np.random.default_rng(2).integers(n, size=x.shape) if n else None


def theirs(model, x, types=None):
    options = {} if types is None else {"token_type_ids": torch.tensor(types)}
    attended = torch.tensor(np.arange(11) < LENGTHS[:, None]).long()
    out = model(torch.tensor(x), attention_mask=attended, **options)
    return out.logits if hasattr(out, "logits") else out.last_hidden_state


def ours(x, theta, types=None):
    """The logits of a masked-token head or of a classifier, and the bare encoder's columns, tokens before rows."""
    options = {"length": jnp.asarray(LENGTHS), "types": None if types is None else jnp.asarray(types)}
    if isinstance(theta, ClassifierParams):
        X = pooled(e_encoding(jnp.asarray(x), theta.encoder, **options)[..., :1], theta.encoder)
        return jnp.moveaxis(logits(X[..., 0], theta.W_c, theta.b_c), 0, -1)
    if theta.W_f is None:
        return jnp.moveaxis(e_encoding(jnp.asarray(x), theta, **options), 0, -1)
    return cases.column_logits(e_hidden_state(jnp.asarray(x), theta, **options), theta)


UNREAD = {"BertForMaskedLM, untied": {"cls.predictions.bias"}}
"""Parameters that transformers does not use."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if "For" in n else pytest.mark.slow) for n in MODELS])
def test_outputs_and_gradients_are_those_of_transformers(tmp_path, name):
    model = make(name).double()
    path, (x, types) = cases.saved(model, tmp_path), inputs(model.config)
    theta, expected = load_model(path).theta, theirs(model, x, types)
    read = np.arange(11) < LENGTHS[:, None] if expected.ndim == 3 else None
    outputs = functools.partial(ours, x, types=types)
    compared = cases.assert_as_theirs(torch, model, path, theta, outputs, expected, dtype_of(name), read=read)
    unread = {n for n, p in model.named_parameters() if p.grad is None}
    assert unread == UNREAD.get(name, {n for n in unread if "pooler" in n})
    assert compared == {n for n, _ in model.named_parameters()} - unread


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_the_way_there_and_back_is_exact(tmp_path, name, dtype):
    path = cases.saved(make(name), tmp_path / "theirs", dtype)
    opened, kind = class_of(name).from_pretrained, name.partition("For")[0].removesuffix("Model").lower()
    options = {"to": {"gemma3text": "embedding_gemma"}.get(kind, kind), "unwritten": UNREAD.get(name, set())}
    cases.assert_written_again(torch, path, opened, lambda model: theirs(model, *inputs(model.config)), **options)


@pytest.mark.parametrize(
    ("kind", "variant", "sizes"),
    [
        *((kind, ROBERTA if kind == "roberta" else BERT, {}) for kind in ("bert", "roberta", "distilbert")),
        ("albert", ALBERT.but(shared_layers=2), {"d_in": 5}),
        ("modernbert", MODERNBERT, {}),
    ],
)
def test_our_own_models_open_in_transformers(tmp_path, kind, variant, sizes):
    config = ETransformerConfig(N_V=17, l_max=12, L=2, H=3, d_e=12, d_mlp=7, variant=variant, **sizes)
    theta = random_theta(config)
    save_pretrained(tmp_path / "out", theta, config, to=kind)
    model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    x = np.random.default_rng(1).integers(3, 17, (2, 11))
    read = np.arange(11) < LENGTHS[:, None]
    found, expected = np.asarray(ours(x, theta)), theirs(model, x).detach().numpy()
    cases.assert_same(found[read], expected[read], dtype_of(kind), "logits")


def test_a_classifier_has_its_labels_and_its_probabilities(tmp_path):
    model = make("BertForSequenceClassification")
    run = load_model(cases.saved(model, tmp_path))
    assert (run.task, run.labels) == ("classify", ("ham", "spam", "other"))
    x, types = inputs(model.config)
    P = class_probabilities(jnp.asarray(x), run.theta, length=jnp.asarray(LENGTHS))
    expected = theirs(model, x, 0 * types).softmax(-1).detach().numpy()
    cases.assert_same(P.T, expected, "float64", "probabilities")


def test_a_pretrained_bert_of_2018_is_read(tmp_path):
    """bert-base-uncased has a pooler and a next-sentence head besides, positions, and gamma and beta."""
    model = make("BertForMaskedLM")
    path = cases.saved(model, tmp_path / "new")
    (tmp_path / "old").mkdir()
    tensors = {name.replace("Norm.weight", "Norm.gamma"): a for name, a in cases.tensors_of(path).items()}
    tensors = {name.replace("Norm.bias", "Norm.beta"): a for name, a in tensors.items()}
    tensors |= {"bert.pooler.dense.weight": np.ones((15, 15)), "bert.pooler.dense.bias": np.ones(15)}
    tensors |= {"cls.seq_relationship.weight": np.ones((2, 15)), "cls.seq_relationship.bias": np.ones(2)}
    tensors["bert.embeddings.position_ids"] = np.arange(13)[None]
    safetensors.numpy.save_file(tensors, tmp_path / "old" / "model.safetensors")
    (tmp_path / "old" / "config.json").write_text((path / "config.json").read_text())
    theta, expected = (load_pretrained(one)[0] for one in (tmp_path / "old", path))
    np.testing.assert_array_equal(theta.W_pool, np.ones((15, 15)))
    x, _ = inputs(model.config)
    P = [e_transformer(jnp.asarray(x), t) for t in (theta, expected)]
    np.testing.assert_array_equal(*P)


def test_what_a_bare_encoder_lacks_is_said(tmp_path):
    theta, _, _ = load_pretrained(cases.saved(make("BertModel"), tmp_path))
    assert theta.W_f is None
    with pytest.raises(ValueError, match=r"theta.W_f: expected parameters of lines 10 and 11, got a bare encoder's"):
        e_transformer(jnp.arange(3), theta)
    without = theta._replace(W_t=None)
    with pytest.raises(ValueError, match=r"types: expected None, since theta.W_t is None"):
        e_encoding(jnp.arange(3), without, types=jnp.zeros(3, int))
    with pytest.raises(ValueError, match=r"theta.W_pool: expected None in BERT, got parameters"):
        e_encoding(jnp.arange(3), theta._replace(variant=BERT))


def test_the_fields_of_modern_bert_before_transformers_5_are_read(tmp_path):
    path = cases.saved(make("ModernBertForMaskedLM"), tmp_path)
    expected = load_pretrained(path)[1]
    old = {f"{name}_rope_theta": BASES[kind] for name, kind in (("global", "full"), ("local", "sliding"))}
    cases.change_config(path, rope_parameters=None, layer_types=None, global_attn_every_n_layers=3, **old)
    assert load_pretrained(path)[1] == expected


def test_embedding_gemma_of_our_own_opens_in_transformers(tmp_path):
    """Also without windows, where transformers wants a number all the same."""
    for line in (GEMMA3.attentions[0].but(window=4), GEMMA3.attentions[-1]):
        variant = GEMMA3.but(attention=line, order="norm_first", final_norm=True, head=False)
        config = ETransformerConfig(N_V=17, l_max=12, L=2, H=3, d_e=12, d_mlp=7, variant=variant)
        theta = random_theta(config)
        theta = theta._replace(W_f=None, b_f=None, norm=None, W_u=None)
        save_pretrained(tmp_path / "out", theta, config, to="embedding_gemma")
        x = np.random.default_rng(1).integers(3, 17, (2, 11))
        expected = theirs(transformers.AutoModel.from_pretrained(tmp_path / "out"), x).detach().numpy()
        read = np.arange(11) < LENGTHS[:, None]
        cases.assert_same(np.asarray(ours(x, theta))[read], expected[read], "rounded", "hidden states")
        (tmp_path / "out").rename(tmp_path / f"out{line.window}")


PUBLISHED_LLADA = {"model_type": "llada", "block_type": "llama", "layer_norm_type": "rms", "rope": True, "alibi": False}
PUBLISHED_LLADA |= {"d_model": 12, "n_heads": 3, "n_kv_heads": 3, "n_layers": 3, "mlp_hidden_size": 7, "mlp_ratio": 4}
PUBLISHED_LLADA |= {"embedding_size": 17, "vocab_size": 17, "max_sequence_length": 16, "mask_token_id": 9}
PUBLISHED_LLADA |= {"rms_norm_eps": 0.1, "rope_theta": 100.0, "activation_type": "silu", "weight_tying": False}
PUBLISHED_LLADA |= {"include_bias": False, "include_qkv_bias": False, "scale_logits": False, "input_emb_norm": False}


def test_llada_is_the_oracles_of_its_published_tensors(tmp_path):
    """transformers does not have it: rows and names are those of its own code, whose blocks are Llama's."""
    rng, d, each = np.random.default_rng(0), 12, {}
    matrices = {"q_proj": (d, d), "k_proj": (d, d), "v_proj": (d, d), "attn_out": (d, d)}
    matrices |= {"ff_proj": (7, d), "up_proj": (7, d), "ff_out": (d, 7), "attn_norm": (d,), "ff_norm": (d,)}
    for l in range(3):
        each |= {f"blocks.{l}.{name}": shape for name, shape in matrices.items()}
    each |= {"wte": (17, d), "ff_out": (17, d), "ln_f": (d,)}
    tensors = {f"model.transformer.{name}.weight": rng.normal(size=shape) for name, shape in each.items()}
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED_LLADA))
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    run = load_model(tmp_path)
    assert run.config.variant.but(norm=LLADA.norm, attention=LLADA.attention) == LLADA
    assert run.tokenizer.mask_token == 9

    def heads(W):
        return W.reshape(3, 4, d)

    def norm(X, gamma):
        return X / np.sqrt((X**2).mean(axis=0) + 0.1) * gamma[:, None]

    def layer(X, W):
        Y = norm(X, W["attn_norm"])
        Q, K, V = (rotated(heads(W[f"{a}_proj"]) @ Y) if a != "v" else heads(W["v_proj"]) @ Y for a in "qkv")
        A = softmax(np.swapaxes(K, 1, 2) @ Q / 2, axis=1)
        X = X + W["attn_out"] @ (V @ A).reshape(d, -1)
        Y = norm(X, W["ff_norm"])
        G = W["ff_proj"] @ Y
        return X + W["ff_out"] @ (G / (1 + np.exp(-G)) * (W["up_proj"] @ Y))

    def rotated(X):
        angles = 100.0 ** -(np.arange(2) / 2)[:, None] * np.arange(X.shape[-1])
        turn = np.exp(1j * angles) * (X[:, :2] + 1j * X[:, 2:])
        return np.concatenate([turn.real, turn.imag], axis=1)

    of = {name.removeprefix("model.transformer.").removesuffix(".weight"): a for name, a in tensors.items()}
    x = np.array([3, 9, 9, 1, 16, 9, 0])
    X = of["wte"].T[:, x]
    for l in range(3):
        X = layer(X, {name: of[f"blocks.{l}.{name}"] for name in matrices})
    expected = of["ff_out"] @ norm(X, of["ln_f"])
    np.testing.assert_allclose(e_logits(x, run.theta), expected, rtol=1e-9)
    save_pretrained(tmp_path / "out", run.theta, run.config)
    cases.assert_bits(cases.tensors_of(tmp_path / "out"), tensors)
    assert load_pretrained(tmp_path / "out")[1] == run.config


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("Gemma3TextModel", {"architectures": ["Gemma3ForCausalLM"]}, "the head of Gemma3ForCausalLM in an encoder"),
        ("BertModel", {"position_embedding_type": "x"}, r"relative positions \(position_embedding_type = 'x'\)"),
        ("BertModel", {"is_decoder": True, "hidden_act": "tanh"}, r"attention \(is_decoder = True\), the activation"),
        ("BertModel", {"architectures": ["BertForQuestionAnswering"]}, "the head of BertForQuestionAnswering"),
        ("RobertaForMaskedLM", {"hidden_act": "relu"}, "different activations in the layers and the head"),
        ("RobertaForMaskedLM", {"architectures": ["RobertaForSequenceClassification"]}, "the head of RobertaForSeq"),
        ("RobertaForMaskedLM", {"max_position_embeddings": 2}, "max_position_embeddings: expected an integer of at"),
        ("DistilBertModel", {"sinusoidal_pos_embds": True}, "sinusoidal positions"),
        ("DistilBertModel", {"n_layers": 4}, r"number of layers \(L\): expected 3"),
        ("AlbertForMaskedLM", {"num_hidden_groups": 3}, r"groups of different sizes \(4 layers in 3\)"),
        ("AlbertForMaskedLM", {"num_hidden_groups": 1}, r"number of layers \(L\): expected 2"),
        ("AlbertModel", {"inner_group_num": 2}, "several layers in a group"),
        ("ModernBertForMaskedLM", {"classifier_bias": True}, "biases of the head other than those of the MLPs"),
        ("ModernBertForMaskedLM", {"classifier_activation": "relu"}, "different activations in the layers and"),
        ("ModernBertForMaskedLM", {"layer_types": ["local"] * 5}, "layer_types: expected sliding_attention or full_"),
        ("ModernBertModel", {"architectures": ["ModernBertForTokenClassification"]}, "the head of ModernBertForToken"),
    ],
)
def test_what_is_lacking_or_contradicts_is_said(name, fields, message, tmp_path):
    cases.assert_refused(make(name), tmp_path, message, **fields)


def test_what_a_kind_cannot_say_is_refused(tmp_path):
    variant = BERT.but(mlp=MLP(activation="silu"))
    config = ETransformerConfig(N_V=17, l_max=12, L=1, H=3, d_e=12, d_mlp=7, N_types=2, variant=variant)
    for to, message in (
        ("distilbert", "no token types"),
        ("roberta", "no embedding.first_position = 0, and lacks 1 more; leave out --to, for bert"),
        ("albert", "no embedding.factored = False"),
        ("modernbert", "no embedding.positions = 'learned'"),
    ):
        with pytest.raises(InterchangeError, match=message):
            save_pretrained(tmp_path / "out", random_theta(config), config, to=to)
