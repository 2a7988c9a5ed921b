"""BART, Marian, T5 (also version 1.1) and torch.nn.Transformer, at random: logits, gradients, files, generation."""

import functools
import itertools
import json
import math
import re

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from algorithms import T5, EDTransformerConfig, ed_hidden_state
from algorithms.lines import MLP, Distances
from tests import interchange_cases as cases
from tests.cases import quick_of, random_theta
from training.interchange import load_pretrained, save_pretrained

torch, transformers = cases.libraries()


SHARED = {"d_model": 12, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 3}
SHARED |= {"decoder_attention_heads": 3, "encoder_ffn_dim": 7, "decoder_ffn_dim": 7, "max_position_embeddings": 11}
ONE = {"vocab_size": 29, "pad_token_id": 28, "decoder_start_token_id": 28, "eos_token_id": 0}
TWO = {**ONE, "decoder_vocab_size": 23, "pad_token_id": 22, "decoder_start_token_id": 22}
OF_T5 = {"vocab_size": 31, "d_kv": 5, "d_ff": 7, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 3}
OF_T5 |= {"relative_attention_num_buckets": 6, "relative_attention_max_distance": 7, "layer_norm_epsilon": 1e-3}
OF_T5 |= {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}
MODELS = {
    "bart": ("Bart", {"vocab_size": 29, "scale_embedding": True}),
    "marian": ("Marian", {**ONE, "scale_embedding": True, "activation_function": "swish"}),
    "marian-two": ("Marian", {**TWO, "share_encoder_decoder_embeddings": False, "activation_function": "relu"}),
    "t5": ("T5", OF_T5),
    "t5 1.1": ("T5", {**OF_T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
}
HEADS = {"Bart": "BartForConditionalGeneration", "Marian": "MarianMTModel", "T5": "T5ForConditionalGeneration"}
Z_LENGTHS = np.array([7, 4])


def sinusoids(n, d, steps):
    """Sines and cosines of n positions, whose wavelengths grow to 10000 in so many steps."""
    angle = np.arange(n)[:, None] / 10000 ** (np.arange(d // 2)[None] / steps)
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=1)


def make(kind):
    name, options = MODELS[kind]
    config = getattr(transformers, f"{name}Config")(**{**SHARED, **options, "attn_implementation": "eager"})
    model = getattr(transformers, HEADS[name])(config).double()
    if kind == "t5 1.1":  # has a matrix of its own for the logits in Google's files
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    model = cases.randomized(torch, model)
    with torch.no_grad():
        for n, p in model.named_parameters():
            if "embed_positions" in n and name != "Bart":  # which transformers computes in float32
                p.copy_(torch.tensor(sinusoids(len(p), 12, 6)))
                p.requires_grad = False
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.copy_(torch.randn(model.final_logits_bias.shape, dtype=torch.float64))
    return model


def saved(model, kind, path, dtype="float64"):
    path = cases.saved(model, path, dtype)
    if kind == "t5 1.1":
        cases.change_config(path, tie_word_embeddings=False)
    return path


def data(config):
    """No padding tokens, which have no gradient there."""
    rng = np.random.default_rng(1)
    N_V = min(config.N_V, config.N_V_z or config.N_V)
    return rng.integers(3, N_V - 1, size=(2, 7)), rng.integers(3, N_V - 1, size=(2, 5))


def theirs(model, z, x):
    options = {"attention_mask": torch.tensor(np.arange(7) < Z_LENGTHS[:, None]).long(), "use_cache": False}
    return model(input_ids=torch.tensor(z), decoder_input_ids=torch.tensor(x), **options).logits


def ours(z, x, theta, z_length=Z_LENGTHS):
    X = ed_hidden_state(jnp.asarray(z), jnp.asarray(x), theta, z_length=jnp.asarray(z_length))
    return jnp.moveaxis(theta.variant.unembedding.logits(X, theta), 0, -1)


@pytest.mark.parametrize(("kind", "dtype"), quick_of([("bart", "float64")], itertools.product(MODELS, cases.DTYPES)))
def test_logits_and_gradients_are_those_of_transformers(tmp_path, kind, dtype):
    model = make(kind)
    path = saved(model, kind, tmp_path, dtype)
    theta, config, _ = load_pretrained(path)
    inputs = data(config)
    outputs, expected = functools.partial(ours, *inputs), theirs(model, *inputs)
    dtype = "rounded" if "t5" in kind and dtype == "float64" else dtype
    compared = cases.assert_as_theirs(torch, model, path, theta, outputs, expected, dtype)
    sinusoids = {n for n, _ in model.named_parameters() if "embed_positions" in n and kind != "bart"}
    assert compared == {name for name, _ in model.named_parameters()} - sinusoids


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize("kind", MODELS)
def test_the_way_there_and_back_is_exact(tmp_path, kind, dtype):
    model = make(kind)
    path = saved(model, kind, tmp_path / "theirs", dtype)
    x = data(load_pretrained(path)[1])
    sinusoids = {name for name in cases.tensors_of(path) if kind != "bart" and "embed_positions" in name}
    opened = functools.partial(type(model).from_pretrained, attn_implementation="eager")
    options = {"unwritten": sinusoids, "tolerance": 1e-12}
    cases.assert_written_again(torch, path, opened, lambda model: theirs(model, *x), **options)


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_greedy_translations_are_those_of_transformers(tmp_path, kind):
    model = make(kind)
    path = saved(model, kind, tmp_path)
    z, _ = data(load_pretrained(path)[1])
    rules = dict.fromkeys(("forced_eos_token_id", "forced_bos_token_id", "bad_words_ids"))
    rules |= {"use_cache": False} if "t5" in kind else {}  # its cache has as many layers as the encoder
    cases.assert_greedy(torch, model, path, z, Z_LENGTHS, 9, **rules)


@pytest.mark.parametrize(("gated", "tied"), [(False, True), (True, False)])
def test_our_own_t5_opens_in_transformers(tmp_path, gated, tied):
    mlp = MLP(activation="gelu_tanh", gated=True, biases=False) if gated else T5.mlp
    variant = T5.but(mlp=mlp, attention=T5.attentions[0].but(positions=Distances(buckets=8, farthest=9)))
    variant = variant.but(unembedding=variant.unembedding.but(tied=tied, scaled=tied))
    sizes = {"N_V": 17, "l_max": 23, "L_enc": 2, "L_dec": 3, "H": 4, "d_e": 12, "d_mlp": 13, "d_attn": 8, "d_mid": 8}
    config = EDTransformerConfig(**sizes, variant=variant)
    theta = random_theta(config)
    save_pretrained(tmp_path / "out", theta, config)
    model = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "out")
    z, x = data(config)
    cases.assert_same(ours(z, x, theta), theirs(model, z, x).detach(), "rounded", "logits")
    assert load_pretrained(tmp_path / "out")[1] == config


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"feed_forward_proj": "gated-swish2"}, "the activation 'swish2'"),
        ({"feed_forward_proj": "doubly-gated-gelu"}, "the MLP of feed_forward_proj = 'doubly-gated-gelu'"),
        ({"architectures": ["T5EncoderModel"]}, "the head of T5EncoderModel"),
        ({"relative_attention_num_buckets": 5}, "Distances.buckets: expected an even number >= 4, got 5"),
        ({"relative_attention_max_distance": 2}, "Distances.farthest: expected a distance > 3, half of the buckets"),
        ({"relative_attention_num_buckets": 8}, "relative_attention_bias.weight"),
        ({"num_layers": 5}, r"number of layers of the encoder \(L_enc\): expected 2, as"),
    ],
)
def test_what_t5_lacks_or_contradicts_is_said(fields, message, tmp_path):
    cases.assert_refused(make("t5"), tmp_path, message, **fields)


class Seq2Seq(torch.nn.Module):
    """torch.nn.Transformer with embeddings and an unembedding around it, as its tutorials have it.

    `sizes`: of torch.nn.Transformer; `N_z`, `N_x`: of the vocabularies; `names`: of the tables of both; `l_max`: of
    learned positions, if there are any.
    """

    def __init__(self, sizes, N_z, N_x, names=("src_embedding", "tgt_embedding"), *, tied=False, l_max=0, **options):
        super().__init__()
        d, self.names = sizes[0], names
        self.transformer = torch.nn.Transformer(*sizes, dropout=0.0, batch_first=True, **options)
        for name, n in {names[0]: N_z, names[1]: N_x}.items():
            outer, _, inner = name.partition(".")
            table = torch.nn.Embedding(n, d)
            self.add_module(outer, torch.nn.ModuleDict({inner: table}) if inner else table)
        self.generator = torch.nn.Linear(d, N_x, bias=not tied)
        if tied:
            self.generator.weight = self.get_submodule(names[1]).weight
        if l_max:
            self.positions = torch.nn.Embedding(l_max, d)

    def embed(self, tokens, name):
        table, l = self.get_submodule(name), tokens.shape[1]
        d = table.embedding_dim
        if hasattr(self, "positions"):
            return math.sqrt(d) * table(tokens) + self.positions(torch.arange(l))
        angle = np.arange(l)[:, None] / 10000 ** (2 * np.arange(d // 2)[None] / d)
        P = np.stack([np.sin(angle), np.cos(angle)], axis=2).reshape(l, d)
        return math.sqrt(d) * table(tokens) + torch.tensor(P).to(table.weight.dtype)

    def forward(self, z, x, lengths=Z_LENGTHS):
        padding = torch.tensor(np.arange(z.shape[1]) >= np.asarray(lengths)[:, None])
        mask = torch.nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=self.generator.weight.dtype)
        options = {"src_key_padding_mask": padding, "memory_key_padding_mask": padding, "tgt_mask": mask}
        embedded = (self.embed(tokens, name) for tokens, name in zip((z, x), self.names, strict=True))
        return self.generator(self.transformer(*embedded, **options))


def lemmatizer(path):
    """The model whose weights lie in a directory, as `real_weights.lemmatizer` lays them out."""
    state = torch.load(path / "best_transformer.pth", weights_only=True, map_location="cpu")
    state = {name: tensor for name, tensor in state.items() if not name.endswith(".pe")}
    n, names = len(state["generator.bias"]), ("src_tok_emb.embedding", "trg_tok_emb.embedding")
    model = Seq2Seq((256, 8, 3, 3, 512), n, n, names).eval()
    model.load_state_dict(state)
    return model


def greedy(model, path, word):
    """A lemma, as the package that has the weights finds it."""
    tokenizer = load_pretrained(path)[2]
    z, x = tokenizer.framed(tokenizer.encode(word)), [tokenizer.bos_token]
    while len(x) < len(word) + 6 and (len(x) < 2 or x[-1] != tokenizer.eos_token):
        with torch.no_grad():
            x.append(int(model(torch.tensor([z]), torch.tensor([x]), [len(z)])[0, -1].argmax()))
    return tokenizer.decode(x)


OF_TORCH = {"model_type": "torch.nn.Transformer", "d_model": 12, "nhead": 3, "num_encoder_layers": 2}
OF_TORCH |= {"num_decoder_layers": 3, "dim_feedforward": 7, "activation": "gelu", "src_vocab_size": 29}
OF_TORCH |= {"tgt_vocab_size": 23, "max_len": 11}


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.filterwarnings("ignore:Support for mismatched")
@pytest.mark.parametrize(
    ("norm_first", "tied", "learned", "shared", "dtype"),
    [
        (True, False, False, False, "float64"),
        pytest.param(False, True, True, True, "float64", marks=pytest.mark.slow),
        pytest.param(False, False, False, False, "float32", marks=pytest.mark.slow),
        pytest.param(True, True, True, False, "float32", marks=pytest.mark.slow),
    ],
)
def test_torch_nn_transformer(tmp_path, norm_first, tied, learned, shared, dtype):
    names = ("tgt_embedding" if shared else "src_embedding", "tgt_embedding")
    options = {"norm_first": norm_first, "activation": "gelu", "tied": tied, "l_max": 11 * learned}
    model = cases.randomized(torch, Seq2Seq((12, 3, 2, 3, 7), 29, 23, names, **options).double())
    model = getattr(model, {"float64": "double", "float32": "float"}[dtype])()
    torch.save(model.state_dict(), tmp_path / "model.pt")
    fields = {"norm_first": norm_first, "tie_word_embeddings": tied, "generator_bias": not tied}
    fields |= {"positions": "learned" if learned else "sinusoidal", "names": {"src_embedding": names[0]}}
    (tmp_path / "config.json").write_text(json.dumps(OF_TORCH | fields))
    theta, config, _ = load_pretrained(tmp_path)
    tensors = {name: a.numpy().copy() for name, a in model.state_dict().items() if not (tied and "generator" in name)}
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "model.pt").unlink()
    inputs = data(config)
    outputs, expected = functools.partial(ours, *inputs), model(*map(torch.tensor, inputs))
    compared = cases.assert_as_theirs(torch, model, tmp_path, theta, outputs, expected, dtype)
    assert compared == {name for name, _ in model.named_parameters()}
    save_pretrained(tmp_path / "out", theta, config)
    written = cases.tensors_of(tmp_path / "out")
    if shared:
        written, tensors = ({re.sub("src_|tgt_", "", n): a for n, a in of.items()} for of in (written, tensors))
    cases.assert_bits(written, tensors)
