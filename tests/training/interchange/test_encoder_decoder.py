"""BART, Marian, FSMT and torch.nn.Transformer, at random: logits, gradients by name, both directions, generation."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from algorithms import ed_hidden_state, ed_transformer
from tests import interchange_cases as cases
from training.generation import translate
from training.interchange import load_pretrained, save_pretrained

torch, transformers = cases.libraries()


@pytest.fixture(autouse=True)
def double_masks(monkeypatch):
    """FSMT forms its mask in float32, which the least number of float64 does not fit into."""
    fsmt = pytest.importorskip("transformers.models.fsmt.modeling_fsmt")
    monkeypatch.setattr(fsmt, "fill_with_neg_inf", lambda t: torch.full_like(t, torch.finfo(t.dtype).min))


SHARED = {"d_model": 12, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 3}
SHARED |= {"decoder_attention_heads": 3, "encoder_ffn_dim": 7, "decoder_ffn_dim": 7, "max_position_embeddings": 11}
MODELS = {
    "bart": ("Bart", {"vocab_size": 29, "scale_embedding": True}),
    "marian": (
        "Marian",
        {
            "vocab_size": 29,
            "pad_token_id": 28,
            "decoder_start_token_id": 28,
            "eos_token_id": 0,
            "scale_embedding": True,
            "activation_function": "swish",
        },
    ),
    "marian-two": (
        "Marian",
        {
            "vocab_size": 29,
            "decoder_vocab_size": 23,
            "share_encoder_decoder_embeddings": False,
            "pad_token_id": 22,
            "decoder_start_token_id": 22,
            "eos_token_id": 0,
            "activation_function": "relu",
        },
    ),
    "fsmt": ("FSMT", {"src_vocab_size": 29, "tgt_vocab_size": 23, "langs": ["en", "de"]}),
}
HEADS = {"Bart": "BartForConditionalGeneration", "Marian": "MarianMTModel", "FSMT": "FSMTForConditionalGeneration"}
Z_LENGTHS = np.array([7, 4])


def sinusoids(n, d, steps):
    """Sines and cosines of n positions, whose wavelengths grow to 10000 in so many steps."""
    angle = np.arange(n)[:, None] / 10000 ** (np.arange(d // 2)[None] / steps)
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=1)


def make(kind):
    name, options = MODELS[kind]
    config = getattr(transformers, f"{name}Config")(**{**SHARED, **options, "attn_implementation": "eager"})
    model = getattr(transformers, HEADS[name])(config).double()
    model = cases.randomized(torch, model)
    with torch.no_grad():
        for n, p in model.named_parameters():
            if "embed_positions" in n and name != "Bart":  # which transformers computes in float32
                p.copy_(torch.tensor(sinusoids(len(p), 12, 5 if name == "FSMT" else 6)))
                p.requires_grad = False
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.copy_(torch.randn(model.final_logits_bias.shape, dtype=torch.float64))
    return model


def data(config, kind=""):
    """No padding tokens, which have no gradient there, and FSMT no position."""
    rng = np.random.default_rng(1)
    N_V = min(config.N_V, config.N_V_z or config.N_V)
    z, x = rng.integers(3, N_V - 1, size=(2, 7)), rng.integers(3, N_V - 1, size=(2, 5))
    return z, x, np.roll(x, -1, axis=1), np.arange(10).reshape(2, 5) % 3


def theirs(model, z, x):
    attended = torch.tensor(np.arange(7) < Z_LENGTHS[:, None]).long()
    return model(
        input_ids=torch.tensor(z), attention_mask=attended, decoder_input_ids=torch.tensor(x), use_cache=False
    ).logits


def compare(theta, config, dtype, path, model, their_logits, inputs):
    z, x, targets, weights = inputs

    def loss(theta):
        X = ed_hidden_state(jnp.asarray(z), jnp.asarray(x), theta, z_length=jnp.asarray(Z_LENGTHS))
        return cases.column_loss(X, theta, targets, weights), cases.column_logits(X, theta)

    (value, ours), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(theta)
    their_loss = cases.torch_loss(torch, their_logits, targets, weights)
    their_loss.backward()
    cases.assert_same(ours, their_logits.detach(), dtype, "logits")
    cases.assert_same(value, their_loss.detach(), dtype, "loss")
    return cases.assert_gradients(model, path, gradients, dtype)


QUICK = [("bart", "float64")]


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        *QUICK,
        *(
            pytest.param(kind, dtype, marks=pytest.mark.slow)
            for kind in MODELS
            for dtype in cases.DTYPES
            if (kind, dtype) not in QUICK
        ),
    ],
)
def test_logits_and_gradients_are_those_of_transformers(tmp_path, kind, dtype):
    model = make(kind)
    path = cases.saved(model, tmp_path, dtype)
    theta, config, _ = load_pretrained(path)
    inputs = data(config)
    compared = compare(theta, config, dtype, path, model, theirs(model, *inputs[:2]), inputs)
    sinusoids = {n for n, _ in model.named_parameters() if "embed_positions" in n and kind != "bart"}
    assert compared == {name for name, _ in model.named_parameters()} - sinusoids


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize("kind", MODELS)
def test_the_way_there_and_back_is_exact(tmp_path, kind, dtype):
    model = make(kind)
    path = cases.saved(model, tmp_path / "theirs", dtype)
    theta, config, _ = load_pretrained(path)
    save_pretrained(tmp_path / "ours", theta, config)
    expected = {n: a for n, a in cases.tensors_of(path).items() if kind == "bart" or "embed_positions" not in n}
    cases.assert_bits(cases.tensors_of(tmp_path / "ours"), expected)
    opened = type(model).from_pretrained(tmp_path / "ours", attn_implementation="eager")
    reopened = type(model).from_pretrained(path, attn_implementation="eager")
    sinusoids = {name for name in model.state_dict() if kind == "fsmt" and "embed_positions" in name}
    tolerance = 1e-6 if sinusoids else 1e-12  # those of FSMT come out of the file, or are made in float32
    options = {"unwritten": sinusoids, "tolerance": tolerance}
    cases.assert_same_model(torch, opened, reopened, lambda m: theirs(m, *data(config)[:2]), **options)


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_greedy_translations_are_those_of_transformers(tmp_path, kind):
    model = make(kind)
    theta, config, _ = load_pretrained(cases.saved(model, tmp_path))
    z, _, _, _ = data(config)
    c = model.config
    options = {"bos": c.decoder_start_token_id, "eos": c.eos_token_id}
    attended = torch.tensor(np.arange(7) < Z_LENGTHS[:, None]).long()
    rules = {"forced_eos_token_id": None, "forced_bos_token_id": None, "bad_words_ids": None, "do_sample": False}
    tokens, counts, _ = translate(theta, z, lengths=Z_LENGTHS, config=config, l_max=9, **options)
    expected = model.generate(torch.tensor(z), attention_mask=attended, max_length=9, num_beams=1, **rules).numpy()
    for r in range(2):
        n = min(int(counts[r]), expected.shape[1])
        assert tokens[r, :n].tolist() == expected[r, :n].tolist()


class Seq2Seq:
    """torch.nn.Transformer with embeddings and an unembedding around it, as its tutorials have it."""

    @staticmethod
    def make(*, norm_first, tied, learned, shared):
        class Module(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.transformer = torch.nn.Transformer(
                    12, 3, 2, 3, 7, dropout=0.0, batch_first=True, norm_first=norm_first, activation="gelu"
                )
                self.tgt_embedding = torch.nn.Embedding(23, 12)
                if not shared:
                    self.src_embedding = torch.nn.Embedding(29, 12)
                self.generator = torch.nn.Linear(12, 23, bias=not tied)
                if tied:
                    self.generator.weight = self.tgt_embedding.weight
                if learned:
                    self.positions = torch.nn.Embedding(11, 12)

            def embed(self, tokens, table):
                l = tokens.shape[1]
                if learned:
                    return math.sqrt(12) * table(tokens) + self.positions(torch.arange(l))
                t, i = np.arange(l)[:, None], np.arange(6)[None]
                angle = t / 10000 ** (2 * i / 12)
                P = np.stack([np.sin(angle), np.cos(angle)], axis=2).reshape(l, 12)
                return math.sqrt(12) * table(tokens) + torch.tensor(P).to(table.weight.dtype)

            def forward(self, z, x):
                source = self.tgt_embedding if shared else self.src_embedding
                padding = torch.tensor(np.arange(7) >= Z_LENGTHS[:, None])
                hidden = self.transformer(
                    self.embed(z, source),
                    self.embed(x, self.tgt_embedding),
                    tgt_mask=torch.nn.Transformer.generate_square_subsequent_mask(5, dtype=self.generator.weight.dtype),
                    src_key_padding_mask=padding,
                    memory_key_padding_mask=padding,
                )
                return self.generator(hidden)

        return cases.randomized(torch, Module().double())

    @staticmethod
    def lemmatizer(path):
        """The model whose weights lie in a directory, as `real_weights.lemmatizer` lays them out."""

        class Embedding(torch.nn.Module):
            def __init__(self, n):
                super().__init__()
                self.embedding = torch.nn.Embedding(n, 256)

            def forward(self, tokens):
                l = tokens.shape[1]
                t, i = np.arange(l)[:, None], np.arange(128)[None]
                angle = t / 10000 ** (2 * i / 256)
                P = np.stack([np.sin(angle), np.cos(angle)], axis=2).reshape(l, 256)
                return 16 * self.embedding(tokens) + torch.tensor(P).to(self.embedding.weight.dtype)

        class Module(torch.nn.Module):
            def __init__(self, n):
                super().__init__()
                self.transformer = torch.nn.Transformer(256, 8, 3, 3, 512, dropout=0.0, batch_first=True)
                self.generator = torch.nn.Linear(256, n)
                self.src_tok_emb, self.trg_tok_emb = Embedding(n), Embedding(n)

            def forward(self, z, x, lengths):
                padding = torch.tensor(np.arange(z.shape[1]) >= np.asarray(lengths)[:, None])
                mask = torch.nn.Transformer.generate_square_subsequent_mask(
                    x.shape[1], dtype=self.generator.weight.dtype
                )
                options = {"src_key_padding_mask": padding, "memory_key_padding_mask": padding}
                return self.generator(
                    self.transformer(self.src_tok_emb(z), self.trg_tok_emb(x), tgt_mask=mask, **options)
                )

        state = torch.load(path / "best_transformer.pth", weights_only=True, map_location="cpu")
        state = {name: tensor for name, tensor in state.items() if not name.endswith(".pe")}
        model = Module(len(state["generator.bias"])).eval()
        model.load_state_dict(state)
        return model

    @staticmethod
    def greedy(model, path, word):
        """A lemma, as the package that has the weights finds it."""
        tokenizer = load_pretrained(path)[2]
        z, x = tokenizer.framed(tokenizer.encode(word)), [tokenizer.bos_token]
        while len(x) < len(word) + 6 and (len(x) < 2 or x[-1] != tokenizer.eos_token):
            with torch.no_grad():
                x.append(int(model(torch.tensor([z]), torch.tensor([x]), [len(z)])[0, -1].argmax()))
        return tokenizer.decode(x)

    @staticmethod
    def config(*, norm_first, tied, learned, shared):
        return {
            "model_type": "torch.nn.Transformer",
            "d_model": 12,
            "nhead": 3,
            "num_encoder_layers": 2,
            "num_decoder_layers": 3,
            "dim_feedforward": 7,
            "activation": "gelu",
            "norm_first": norm_first,
            "src_vocab_size": 29,
            "tgt_vocab_size": 23,
            "max_len": 11,
            "positions": "learned" if learned else "sinusoidal",
            "tie_word_embeddings": tied,
            "generator_bias": not tied,
            "names": {"src_embedding": "tgt_embedding" if shared else "src_embedding"},
        }


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
    options = {"norm_first": norm_first, "tied": tied, "learned": learned, "shared": shared}
    model = getattr(Seq2Seq.make(**options), {"float64": "double", "float32": "float"}[dtype])()
    torch.save(model.state_dict(), tmp_path / "model.pt")
    (tmp_path / "config.json").write_text(json.dumps(Seq2Seq.config(**options)))
    theta, config, _ = load_pretrained(tmp_path)
    inputs = data(config)
    tensors = {name: a.numpy() for name, a in model.state_dict().items()}
    safetensors.numpy.save_file(
        {n: a.copy() for n, a in tensors.items() if not (tied and "generator" in n)}, tmp_path / "model.safetensors"
    )
    (tmp_path / "model.pt").unlink()
    z, x = (torch.tensor(a) for a in inputs[:2])
    compared = compare(theta, config, dtype, tmp_path, model, model(z, x), inputs)
    assert compared == {name for name, _ in model.named_parameters()}
    save_pretrained(tmp_path / "out", theta, config)
    theirs_again = cases.tensors_of(tmp_path)
    cases.assert_bits(
        {
            n.replace("src_", "").replace("tgt_", "") if shared else n: a
            for n, a in cases.tensors_of(tmp_path / "out").items()
        },
        {n.replace("src_", "").replace("tgt_", "") if shared else n: a for n, a in theirs_again.items()},
    )


def test_an_output_bias_and_offsets_are_read_by_algorithm_8(tmp_path):
    model = make("bart")
    theta, config, _ = load_pretrained(cases.saved(model, tmp_path))
    z, x, _, _ = data(config)
    P = ed_transformer(jnp.asarray(z), jnp.asarray(x), theta, z_length=jnp.asarray(Z_LENGTHS))
    expected = np.moveaxis(theirs(model, z, x).softmax(-1).detach().numpy(), -1, 0)
    cases.assert_same(P, expected, "float64", "P")
    assert theta.W_p.shape[1] == config.l_max + 2
    with pytest.raises(ValueError, match=r"x: expected at most l_max = 11 tokens, got 12; cut it into chunks"):
        ed_transformer(jnp.asarray(z[0]), jnp.arange(12), theta)
